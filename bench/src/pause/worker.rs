//! The measured process: it captures itself on command, as the agent of a saved program does.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use process::capture::{Captured, Image, Mode, Options, Outcome, Pause, Prepared, Sink};
use process::content::Hashes;
use process::declared::Declared;
use process::files::Policy;
use process::restore::{BasePages, Ids, Pages};
use process::state::{Files, ProcessState, Unchanged, VERSION};
use process::track::{self, Costs, Extent, Scope, Tracker, Way};
use serde::{Deserialize, Serialize};
use store::checksum::Checksum;

use super::port::{Port, Standstill};
use super::system::{Memory, bare_fork, close_inherited};
use crate::error::BenchError;
use crate::pair::Address;
use crate::worker::Parent;

/// A measured process.
pub(crate) const ROLE: &str = "pause";
/// A process that is restored from an image.
pub(crate) const RESTORED: &str = "pause-restored";

/// A command to a measured process.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum WorkerCommand {
    /// First of all.
    Begin { bytes: usize, huge: bool, peers: Vec<Address> },
    /// A whole image, then as many writes, then the next image: pauses alone, nothing is written.
    Sample { fraction: f64, round: usize },
    /// The same, written to files in a folder.
    Save { fraction: f64, folder: String },
    /// Work for so many steps, with a checkpoint during it or without.
    Work { fraction: f64, steps: usize, checkpoint: Checkpoint, folder: String },
    /// Work for so long on one part of the memory of many, with a checkpoint during it, chosen as the agent chooses, or without.
    Turn { fraction: f64, place: usize, ms: u64, checkpoint: bool, folder: String },
    /// In a restored process: touch everything.
    Touch,
}

/// The checkpoint taken while the program works.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) enum Checkpoint {
    Nothing,
    /// An image of all pages, with arming before it where the agent arms.
    Whole,
    /// The next one, the way that the agent chooses.
    Next,
    /// The next one, by content.
    Content,
}

/// The kind of a turn's checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) enum Kind {
    Whole,
    Delta,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Whole => "whole",
            Kind::Delta => "delta",
        }
    }
}

/// A pause, and the way that was chosen.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) struct Taken {
    pub(super) stop_ns: u64,
    pub(super) state_ns: u64,
    pub(super) memory_ns: u64,
    /// All of it, the port's included.
    pub(super) total_ns: u64,
    pub(super) freeze_ns: u64,
    pub(super) dump_ns: u64,
    pub(super) thaw_ns: u64,
    pub(super) is_copy: bool,
}

impl Taken {
    fn of(captured: &Captured, still: Standstill) -> Taken {
        let Pause { stop_ns, state_ns, memory_ns, total_ns, .. } = captured.pause();
        let Standstill { freeze_ns, dump_ns, thaw_ns } = still;
        let total_ns = total_ns + freeze_ns + dump_ns + thaw_ns;
        let is_copy = captured.mode() == Mode::Scan;
        Taken { stop_ns, state_ns, memory_ns, total_ns, freeze_ns, dump_ns, thaw_ns, is_copy }
    }
}

/// Measurements of one sample.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) struct Sample {
    /// Bare forks before the first capture, between the two, and after the second, ns.
    pub(super) forks_ns: [u64; 3],
    /// Arming before the whole image, outside of the pause; 0 where nothing was armed.
    pub(super) arm_ns: u64,
    pub(super) first: Taken,
    pub(super) second: Taken,
    /// Bytes of the process's own, and of those that a copy copies.
    pub(super) own_bytes: u64,
    pub(super) written_bytes: u64,
}

/// An answer of the measured process.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    Ready,
    Sampled(Sample),
    Saved,
    Worked {
        ns: u64,
        /// From the pause until the image was written; 0: none was.
        write_ns: u64,
    },
    Turned {
        steps: usize,
        ns: u64,
        kind: Option<Kind>,
    },
    /// This is the restored process.
    Restored,
    Touched {
        sum: u64,
    },
}

struct Sum(Checksum);

impl process::Sum for Sum {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn value(&self) -> u64 {
        self.0.value()
    }
}

/// The program: a thread that computes when there is work, and one that waits. Both stand still in a capture.
struct Program {
    memory: Memory,
    /// Pages of a step, the first of them, and steps that are left.
    window: AtomicUsize,
    first: AtomicUsize,
    left: AtomicUsize,
    /// When none was left any more, ns since `began`.
    ended_ns: AtomicU64,
    began: Instant,
    done: AtomicBool,
}

struct Measured {
    program: Arc<Program>,
    tracker: Option<Tracker>,
    costs: Costs,
    port: Option<Port>,
    /// Hashes of the last whole image, if they were noted.
    hashes: Option<Arc<Hashes>>,
    /// Deltas since the last whole image that was armed.
    deltas: Option<u32>,
}

/// Work on the content of pages besides writing it.
enum Content {
    Unknown,
    Noted,
    Compared(Arc<Hashes>),
}

enum Taking {
    Captured(Box<Captured>),
    Restored,
}

fn failed(errno: process::Errno) -> BenchError {
    BenchError::Pipe(std::io::Error::from_raw_os_error(errno.0))
}

impl Measured {
    fn begin(bytes: usize, huge: bool, peers: &[Address]) -> Result<Measured, BenchError> {
        let memory = Memory::new(bytes, huge)?;
        let program = Arc::new(Program {
            memory,
            window: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            ended_ns: AtomicU64::new(0),
            began: Instant::now(),
            done: AtomicBool::new(false),
        });
        let (computes, waits) = (Arc::clone(&program), Arc::clone(&program));
        std::thread::spawn(move || compute(&computes));
        std::thread::spawn(move || {
            while !waits.done.load(Ordering::Relaxed) {
                std::thread::park();
            }
        });
        let port = if peers.is_empty() { None } else { Some(Port::open(peers)?) };
        let (tracker, costs) = (None, Costs::NOTHING);
        Ok(Measured { program, tracker, costs, port, hashes: None, deltas: None })
    }

    fn declared(&self, sink: &impl AsRawFd) -> Declared {
        let named = |(name, number): (&str, i32)| (name.to_owned(), number);
        let mut declared = Declared {
            handed_in: STANDARD.map(named).to_vec(),
            remade: vec![("the image".to_owned(), sink.as_raw_fd())],
            ..Declared::new()
        };
        if let Some(tracker) = &self.tracker {
            tracker.declare(&mut declared);
        }
        if let Some(hashes) = &self.hashes {
            hashes.declare(&mut declared);
        }
        if let Some(port) = &self.port {
            let (descriptors, mappings) = port.endpoint().system();
            declared.remade.extend(descriptors.into_iter().map(|number| ("the port".to_owned(), number)));
            let ranges = mappings.into_iter().map(|range| range.start as u64..range.end as u64);
            declared.ignored_memory.extend(ranges);
        }
        declared
    }

    /// As the agent arms before a whole image. How long it took, ns.
    fn arm(&mut self, sink: &OwnedFd) -> Result<u64, BenchError> {
        // Not before: CRIU refuses processes that have one.
        if self.tracker.is_none() {
            self.tracker = Tracker::open().ok();
        }
        let declared = self.declared(sink);
        let Some(tracker) = &mut self.tracker else { return Ok(0) };
        if !track::bytes().map_err(failed)?.are_armed() {
            return Ok(0);
        }
        let began = Instant::now();
        tracker.arm(&declared, Scope::Small).map_err(failed)?;
        Ok(nanos(began))
    }

    fn take(&mut self, sink: &OwnedFd, options: Options) -> Result<Taking, BenchError> {
        Ok(self.take_with(sink, options, |_| Ok(()))?.0)
    }

    /// `more` is asked of the capture besides.
    fn take_with(
        &mut self,
        sink: &OwnedFd,
        options: Options,
        more: impl FnOnce(&mut Prepared) -> Result<(), BenchError>,
    ) -> Result<(Taking, Standstill), BenchError> {
        let mut prepared = Prepared::look(&self.declared(sink), options)?;
        more(&mut prepared)?;
        let sink = Sink { file: sink.as_fd(), offset: 0, cover: None };
        let capture = || match prepared.capture(sink, &mut Sum(Checksum::new()))? {
            Outcome::Restored => Ok(Taking::Restored),
            Outcome::Captured(captured) => Ok(Taking::Captured(captured)),
        };
        match &mut self.port {
            Some(port) => port.still(capture),
            None => Ok((capture()?, Standstill::default())),
        }
    }

    fn take_sample(
        &mut self,
        sink: &OwnedFd,
        options: Options,
    ) -> Result<(Box<Captured>, Taken), BenchError> {
        match self.take_with(sink, options, |_| Ok(()))? {
            (Taking::Captured(captured), still) => {
                let taken = Taken::of(&captured, still);
                Ok((captured, taken))
            }
            (Taking::Restored, _) => Err(lost()),
        }
    }

    /// As the agent chooses (`rank/agent/src/choice.rs`).
    fn plan(&self, sink: &OwnedFd, is_armed: bool) -> Result<(Way, Options, Extent), BenchError> {
        let whole = Options::default();
        let Some(tracker) = self.tracker.as_ref().filter(|_| is_armed) else {
            let is_huge = track::bytes().map_err(failed)?.are_huge();
            return Ok((if is_huge { Way::Compare } else { Way::Whole }, whole, Extent::default()));
        };
        let extent = tracker.extent(&self.declared(sink)).map_err(failed)?;
        let way = self.costs.way(&extent, false);
        let options = if way == Way::Copy {
            Options { mode: Mode::Scan, copy_bytes: extent.copy_bytes(), ..whole }
        } else {
            whole
        };
        Ok((way, options, extent))
    }

    /// Forks after the look that comes before every capture, so that the kernel's caches and the mappings are the same.
    fn bare_fork(&self, sink: &OwnedFd) -> Result<Duration, BenchError> {
        let prepared = Prepared::look(&self.declared(sink), Options::default())?;
        let took = bare_fork()?;
        drop(prepared);
        Ok(took)
    }

    fn sample(&mut self, fraction: f64, round: usize) -> Result<Sample, BenchError> {
        // The children's output is not read before they are ended.
        let sink = OwnedFd::from(File::options().write(true).open("/dev/null")?);
        let before = self.bare_fork(&sink)?;
        let arm_ns = self.arm(&sink)?;
        let (captured, first) = self.take_sample(&sink, Options::default())?;
        self.costs.captured(captured.mode(), &captured.pause(), 0, 0);
        captured.cancel();
        self.program.memory.dirty(fraction, round);
        let between = self.bare_fork(&sink)?;
        let (_, options, extent) = self.plan(&sink, arm_ns > 0)?;
        let (captured, second) = self.take_sample(&sink, options)?;
        self.costs.captured(captured.mode(), &captured.pause(), extent.written_bytes, extent.scan_ns);
        captured.cancel();
        let after = self.bare_fork(&sink)?;
        let forks_ns =
            [before, between, after].map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let Extent { own_bytes, written_bytes, .. } = extent;
        Ok(Sample { forks_ns, arm_ns, first, second, own_bytes, written_bytes })
    }

    /// A whole image, and the next one, in files. `true`: this is the process restored from the second.
    fn save(&mut self, fraction: f64, folder: &Path) -> Result<bool, BenchError> {
        let (whole, next) = (ImageFiles::new(folder, "whole"), ImageFiles::new(folder, "next"));
        let sink = whole.create()?;
        let is_armed = self.arm(&sink)? > 0;
        let Taking::Captured(captured) = self.take(&sink, Options::default())? else { return Ok(true) };
        self.costs.captured(captured.mode(), &captured.pause(), 0, 0);
        drop(whole.write(captured, &sink)?);
        drop(sink);
        self.program.memory.dirty(fraction, 0);
        let sink = next.create()?;
        let (_, options, _) = self.plan(&sink, is_armed)?;
        match self.take(&sink, options)? {
            Taking::Captured(captured) => drop(next.write(captured, &sink)?),
            Taking::Restored => {
                // Open in the process that was saved, and not in this one.
                std::mem::forget(sink);
                if let Some(tracker) = self.tracker.take() {
                    tracker.forget();
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The program's thread takes so many steps; this one meanwhile takes a checkpoint, if it is to. How long the steps took.
    fn work(
        &mut self,
        fraction: f64,
        steps: usize,
        checkpoint: Checkpoint,
        folder: &Path,
    ) -> Result<Answer, BenchError> {
        self.works_on(fraction, 0);
        let mut is_armed = false;
        if matches!(checkpoint, Checkpoint::Next | Checkpoint::Content) {
            let nowhere = OwnedFd::from(File::options().write(true).open("/dev/null")?);
            is_armed = checkpoint == Checkpoint::Next && self.arm(&nowhere)? > 0;
            let captured = self.take_way(&nowhere, Options::default(), Content::Noted)?;
            self.costs.captured(captured.mode(), &captured.pause(), 0, 0);
            self.hashes = captured.finish()?.hashes;
        }
        // Completes the work that the last image left.
        self.steps(1);
        let began = nanos(self.program.began);
        self.program.left.store(steps, Ordering::Release);
        let mut write_ns = 0;
        if checkpoint != Checkpoint::Nothing {
            let place = ImageFiles::new(folder, "working");
            let sink = place.create()?;
            let (way, options, _) = match checkpoint {
                Checkpoint::Whole => {
                    self.arm(&sink)?;
                    (Way::Whole, Options::default(), Extent::default())
                }
                Checkpoint::Content => (Way::Compare, Options::default(), Extent::default()),
                Checkpoint::Next | Checkpoint::Nothing => self.plan(&sink, is_armed)?,
            };
            let content = match self.hashes.clone().filter(|_| way == Way::Compare) {
                Some(hashes) => Content::Compared(hashes),
                None if checkpoint == Checkpoint::Whole => Content::Noted,
                None => Content::Unknown,
            };
            let captured = self.take_way(&sink, options, content)?;
            let captured_at = Instant::now();
            drop(place.write(captured, &sink)?);
            write_ns = nanos(captured_at);
            self.hashes = None;
        }
        self.steps(0);
        let ns = self.program.ended_ns.load(Ordering::Relaxed).saturating_sub(began);
        Ok(Answer::Worked { ns, write_ns })
    }

    /// The program works for so long, on one of the parts of its memory.
    fn turn(
        &mut self,
        (fraction, place): (f64, usize),
        time: Duration,
        checkpoint: bool,
        folder: &Path,
    ) -> Result<Answer, BenchError> {
        /// When in a turn the checkpoint comes: a tenth.
        const BEFORE: u32 = 10;
        self.works_on(fraction, place);
        let (began, began_ns) = (Instant::now(), nanos(self.program.began));
        self.program.left.store(usize::MAX, Ordering::Release);
        let mut kind = None;
        if checkpoint {
            std::thread::sleep(time / BEFORE);
            kind = Some(self.checkpoint(&ImageFiles::new(folder, "sequence"))?);
        }
        std::thread::sleep(time.saturating_sub(began.elapsed()));
        let left = self.program.left.swap(1, Ordering::AcqRel);
        // The step under way counts, too.
        self.steps(0);
        let ns = self.program.ended_ns.load(Ordering::Relaxed).saturating_sub(began_ns);
        Ok(Answer::Turned { steps: usize::MAX - left + 1, ns, kind })
    }

    /// As the agent chooses, written to files.
    fn checkpoint(&mut self, place: &ImageFiles) -> Result<Kind, BenchError> {
        let sink = place.create()?;
        let (way, mut options, extent) = self.plan(&sink, self.deltas.is_some())?;
        let content = match (way, &self.hashes) {
            (Way::Copy, _) => Content::Unknown,
            (Way::Compare, Some(hashes)) => Content::Compared(Arc::clone(hashes)),
            (Way::Compare | Way::Whole, _) => {
                options = Options::default();
                if self.deltas == Some(0) {
                    self.costs.missed();
                }
                (self.deltas, self.hashes) = (None, None);
                if self.costs.rests() {
                    Content::Unknown
                } else {
                    self.deltas = (self.arm(&sink)? > 0).then_some(0);
                    Content::Noted
                }
            }
        };
        let captured = self.take_way(&sink, options, content)?;
        self.costs.captured(captured.mode(), &captured.pause(), extent.written_bytes, extent.scan_ns);
        let kind = if captured.is_delta() { Kind::Delta } else { Kind::Whole };
        if kind == Kind::Delta {
            self.costs.paid();
            self.deltas = self.deltas.map(|deltas| deltas + 1);
        }
        if let Some(hashes) = place.write(captured, &sink)? {
            self.hashes = Some(hashes);
        }
        Ok(kind)
    }

    /// A capture of this process, which is not restored.
    fn take_way(
        &mut self,
        sink: &OwnedFd,
        options: Options,
        content: Content,
    ) -> Result<Box<Captured>, BenchError> {
        let equip = |prepared: &mut Prepared| {
            match content {
                Content::Unknown => {}
                Content::Noted => prepared.note_content()?,
                Content::Compared(hashes) => {
                    prepared.compare_content(hashes);
                }
            }
            Ok(())
        };
        match self.take_with(sink, options, equip)? {
            (Taking::Captured(captured), _) => Ok(captured),
            (Taking::Restored, _) => Err(lost()),
        }
    }

    /// Which part of its memory the program writes to: `place` of as many as there are.
    fn works_on(&self, fraction: f64, place: usize) {
        let pages = self.program.memory.pages();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of pages"
        )]
        let window = ((pages as f64 * fraction) as usize).max(1);
        self.program.window.store(window, Ordering::Relaxed);
        self.program.first.store(place % (pages / window).max(1) * window, Ordering::Relaxed);
    }

    /// Has the program take more steps, and waits until none is left.
    fn steps(&self, more: usize) {
        self.program.left.fetch_add(more, Ordering::Release);
        while self.program.left.load(Ordering::Acquire) > 0 {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}

const STANDARD: [(&str, i32); 3] = [("stdin", 0), ("stdout", 1), ("stderr", 2)];

/// Steps of the program: each writes to every page of its working set.
fn compute(program: &Program) {
    while !program.done.load(Ordering::Relaxed) {
        if program.left.load(Ordering::Acquire) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        }
        let first = program.first.load(Ordering::Relaxed);
        program.memory.sweep(first..first + program.window.load(Ordering::Relaxed));
        program.ended_ns.store(nanos(program.began), Ordering::Relaxed);
        program.left.fetch_sub(1, Ordering::Release);
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn lost() -> BenchError {
    BenchError::Restore("an image that nobody has written was restored".to_owned())
}

/// The files of an image, as this bench keeps it.
struct ImageFiles {
    folder: PathBuf,
    name: &'static str,
}

impl ImageFiles {
    fn new(folder: &Path, name: &'static str) -> ImageFiles {
        ImageFiles { folder: folder.to_path_buf(), name }
    }

    fn file(&self, part: &str) -> PathBuf {
        self.folder.join(format!("{}.{part}", self.name))
    }

    fn create(&self) -> Result<OwnedFd, BenchError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        let path = self.file("pages");
        let direct = options.clone().custom_flags(libc::O_DIRECT).open(&path);
        Ok(direct.or_else(|_| options.open(&path))?.into())
    }

    fn write(&self, mut captured: Box<Captured>, sink: &OwnedFd) -> Result<Option<Arc<Hashes>>, BenchError> {
        let into = Sink { file: sink.as_fd(), offset: 0, cover: None };
        let rest = captured.write_copies(into, &mut Sum(Checksum::new()))?;
        assert_eq!(rest, None, "nothing is limited");
        let is_copy = captured.is_delta();
        let Image { state, files, unchanged, hashes, .. } = captured.finish()?;
        std::fs::write(self.file("state"), state.encode())?;
        std::fs::write(self.file("files"), files.encode())?;
        if is_copy {
            std::fs::write(self.file("unchanged"), Unchanged { runs: unchanged }.encode())?;
        }
        // As the store does before an image counts.
        File::from(sink.try_clone()?).sync_all()?;
        Ok(hashes)
    }

    fn state(&self) -> Result<ProcessState, BenchError> {
        let bytes = std::fs::read(self.file("state"))?;
        ProcessState::decode(VERSION, &bytes).map_err(|error| BenchError::Restore(error.to_string()))
    }
}

pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    close_inherited();
    let Some(WorkerCommand::Begin { bytes, huge, peers }) = parent.hear()? else { return Ok(()) };
    let mut measured = Measured::begin(bytes, huge, &peers)?;
    parent.send(&Answer::Ready)?;
    while let Some(order) = parent.hear()? {
        let answer = match order {
            WorkerCommand::Begin { .. } => Answer::Ready,
            WorkerCommand::Sample { fraction, round } => Answer::Sampled(measured.sample(fraction, round)?),
            WorkerCommand::Save { fraction, folder } => {
                if measured.save(fraction, folder.as_ref())? {
                    Answer::Restored
                } else {
                    Answer::Saved
                }
            }
            WorkerCommand::Work { fraction, steps, checkpoint, folder } => {
                measured.work(fraction, steps, checkpoint, folder.as_ref())?
            }
            WorkerCommand::Turn { fraction, place, ms, checkpoint, folder } => {
                let time = Duration::from_millis(ms);
                measured.turn((fraction, place), time, checkpoint, folder.as_ref())?
            }
            WorkerCommand::Touch => Answer::Touched { sum: measured.program.memory.sum() },
        };
        parent.send(&answer)?;
    }
    measured.program.done.store(true, Ordering::Relaxed);
    Ok(())
}

/// Becomes the process whose images lie in a folder, which answers.
pub(crate) fn restore(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(folder) = parent.hear::<String>()? else { return Ok(()) };
    let (whole, next) = (ImageFiles::new(folder.as_ref(), "whole"), ImageFiles::new(folder.as_ref(), "next"));
    let damaged = |error: process::state::DecodeError| BenchError::Restore(error.to_string());
    let state = next.state()?;
    let files = Files::decode(VERSION, &std::fs::read(next.file("files"))?).map_err(damaged)?;
    let pages = File::open(next.file("pages"))?;
    let unchanged = match std::fs::read(next.file("unchanged")) {
        Ok(bytes) => Some(Unchanged::decode(VERSION, &bytes).map_err(damaged)?),
        Err(_) => None,
    };
    let base = unchanged.map(|unchanged| {
        Ok::<_, BenchError>((File::open(whole.file("pages"))?, whole.state()?.memory.runs, unchanged.runs))
    });
    let base = base.transpose()?;
    let base_pages = base.as_ref().map(|(file, runs, unchanged)| BasePages {
        file: file.as_fd(),
        offset: 0,
        runs,
        unchanged,
    });
    let pages = Pages { file: pages.as_fd(), offset: 0, base_pages, are_freed: false };
    let handed_in = STANDARD.map(|(name, number)| (name.to_owned(), number));
    let Err(error) =
        process::restore::restore(&state, &files, pages, &handed_in, Policy::default(), Ids::New);
    Err(BenchError::Restore(error.to_string()))
}
