//! The measured process: it captures itself when it is told to, as the agent of a saved program does.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use process::capture::{Captured, Image, Mode, Options, Outcome, Pause, Prepared, Sink};
use process::declared::Declared;
use process::files::Policy;
use process::restore::{Below, Pages};
use process::state::{Files, ProcessState, Unchanged, VERSION};
use process::track::{ARMED_BYTES_MIN, Costs, Extent, Scope, Tracker, small_bytes};
use serde::{Deserialize, Serialize};
use store::checksum::Checksum;

use super::system::{Memory, bare_fork, close_inherited};
use crate::error::BenchError;
use crate::worker::Parent;

/// A measured process.
pub(crate) const ROLE: &str = "pause";
/// One that becomes what an image says.
pub(crate) const RESTORED: &str = "pause-restored";

/// What a measured process is told.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum Order {
    /// First of all.
    Begin { bytes: usize, huge: bool },
    /// A whole image, then as many writes, then the next image: pauses alone, nothing is written.
    Sample { fraction: f64, round: usize },
    /// The same, written to files in a folder.
    Save { fraction: f64, folder: String },
    /// Work for so many steps, with a checkpoint during it or without.
    Work { fraction: f64, steps: usize, checkpoint: Checkpoint, folder: String },
    /// In a restored process: touch everything.
    Touch,
}

/// What is taken while the program works.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) enum Checkpoint {
    Nothing,
    /// An image of all pages, with arming before it where the agent arms.
    Whole,
    /// The next one, the way that the agent chooses.
    Next,
}

/// A pause, and the way that was chosen.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) struct Taken {
    pub(super) stop_ns: u64,
    pub(super) state_ns: u64,
    pub(super) memory_ns: u64,
    pub(super) total_ns: u64,
    pub(super) is_copy: bool,
}

impl Taken {
    fn of(captured: &Captured) -> Taken {
        let Pause { stop_ns, state_ns, memory_ns, total_ns, .. } = captured.pause();
        Taken { stop_ns, state_ns, memory_ns, total_ns, is_copy: captured.mode() == Mode::Scan }
    }
}

/// What one sample found.
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

/// What it answers.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    Ready,
    Sampled(Sample),
    Saved,
    Worked {
        ns: u64,
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
    /// Pages of a step, and steps that are left.
    window: AtomicUsize,
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
}

enum Taking {
    Captured(Box<Captured>),
    Restored,
}

fn failed(errno: process::Errno) -> BenchError {
    BenchError::Pipe(std::io::Error::from_raw_os_error(errno.0))
}

impl Measured {
    fn begin(bytes: usize, huge: bool) -> Result<Measured, BenchError> {
        let memory = Memory::new(bytes, huge)?;
        let program = Arc::new(Program {
            memory,
            window: AtomicUsize::new(0),
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
        Ok(Measured { program, tracker: None, costs: Costs::NOTHING })
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
        if small_bytes().map_err(failed)? < ARMED_BYTES_MIN {
            return Ok(0);
        }
        let began = Instant::now();
        tracker.arm(&declared, Scope::Small).map_err(failed)?;
        Ok(nanos(began))
    }

    fn take(&mut self, sink: &OwnedFd, options: Options) -> Result<Taking, BenchError> {
        let prepared = Prepared::look(&self.declared(sink), options)?;
        let sink = Sink { file: sink.as_fd(), offset: 0 };
        match prepared.capture(sink, &mut Sum(Checksum::new()))? {
            Outcome::Restored => Ok(Taking::Restored),
            Outcome::Captured(captured) => Ok(Taking::Captured(captured)),
        }
    }

    /// As the agent chooses.
    fn plan(&self, sink: &OwnedFd, is_armed: bool) -> Result<(Options, Extent), BenchError> {
        let whole = Options::default();
        let Some(tracker) = self.tracker.as_ref().filter(|_| is_armed) else {
            return Ok((whole, Extent::default()));
        };
        let extent = tracker.extent(&self.declared(sink)).map_err(failed)?;
        let options = if self.costs.prefer_copy(&extent, false) {
            Options { mode: Mode::Scan, copy_bytes: extent.copy_bytes(), ..whole }
        } else {
            whole
        };
        Ok((options, extent))
    }

    fn sample(&mut self, fraction: f64, round: usize) -> Result<Sample, BenchError> {
        // Nobody reads what the children write before they are ended.
        let sink = OwnedFd::from(File::options().write(true).open("/dev/null")?);
        let before = bare_fork()?;
        let arm_ns = self.arm(&sink)?;
        let Taking::Captured(captured) = self.take(&sink, Options::default())? else { return Err(lost()) };
        let first = Taken::of(&captured);
        self.costs.captured(captured.mode(), &captured.pause(), 0, 0);
        captured.cancel();
        self.program.memory.dirty(fraction, round);
        let between = bare_fork()?;
        let (options, extent) = self.plan(&sink, arm_ns > 0)?;
        let Taking::Captured(captured) = self.take(&sink, options)? else { return Err(lost()) };
        let second = Taken::of(&captured);
        self.costs.captured(captured.mode(), &captured.pause(), extent.written_bytes, extent.scan_ns);
        captured.cancel();
        let after = bare_fork()?;
        let forks_ns =
            [before, between, after].map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let Extent { own_bytes, written_bytes, .. } = extent;
        Ok(Sample { forks_ns, arm_ns, first, second, own_bytes, written_bytes })
    }

    /// A whole image, and the next one, in files. `true`: this is the process restored from the second.
    fn save(&mut self, fraction: f64, folder: &Path) -> Result<bool, BenchError> {
        let (whole, next) = (Place::new(folder, "whole"), Place::new(folder, "next"));
        let sink = whole.create()?;
        let is_armed = self.arm(&sink)? > 0;
        let Taking::Captured(captured) = self.take(&sink, Options::default())? else { return Ok(true) };
        self.costs.captured(captured.mode(), &captured.pause(), 0, 0);
        whole.write(captured, &sink)?;
        drop(sink);
        self.program.memory.dirty(fraction, 0);
        let sink = next.create()?;
        let (options, _) = self.plan(&sink, is_armed)?;
        match self.take(&sink, options)? {
            Taking::Captured(captured) => next.write(captured, &sink)?,
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
    ) -> Result<u64, BenchError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of pages"
        )]
        let window = ((self.program.memory.pages() as f64 * fraction) as usize).max(1);
        self.program.window.store(window, Ordering::Relaxed);
        let mut is_armed = false;
        if checkpoint == Checkpoint::Next {
            let nowhere = OwnedFd::from(File::options().write(true).open("/dev/null")?);
            is_armed = self.arm(&nowhere)? > 0;
            let Taking::Captured(captured) = self.take(&nowhere, Options::default())? else {
                return Err(lost());
            };
            self.costs.captured(captured.mode(), &captured.pause(), 0, 0);
            captured.cancel();
        }
        // What the last image has left to do is done.
        self.steps(1);
        let began = nanos(self.program.began);
        self.program.left.store(steps, Ordering::Release);
        if checkpoint != Checkpoint::Nothing {
            let place = Place::new(folder, "working");
            let sink = place.create()?;
            if checkpoint == Checkpoint::Whole {
                self.arm(&sink)?;
            }
            let (options, _) = self.plan(&sink, is_armed)?;
            let Taking::Captured(captured) = self.take(&sink, options)? else { return Err(lost()) };
            place.write(captured, &sink)?;
        }
        self.steps(0);
        Ok(self.program.ended_ns.load(Ordering::Relaxed).saturating_sub(began))
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
            std::thread::sleep(std::time::Duration::from_micros(100));
            continue;
        }
        program.memory.sweep(0..program.window.load(Ordering::Relaxed));
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
struct Place {
    folder: PathBuf,
    name: &'static str,
}

impl Place {
    fn new(folder: &Path, name: &'static str) -> Place {
        Place { folder: folder.to_path_buf(), name }
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

    fn write(&self, mut captured: Box<Captured>, sink: &OwnedFd) -> Result<(), BenchError> {
        captured.write_copies(Sink { file: sink.as_fd(), offset: 0 }, &mut Sum(Checksum::new()))?;
        let is_copy = captured.mode() == Mode::Scan;
        let Image { state, files, unchanged, .. } = captured.finish()?;
        std::fs::write(self.file("state"), state.encode())?;
        std::fs::write(self.file("files"), files.encode())?;
        if is_copy {
            std::fs::write(self.file("unchanged"), Unchanged { runs: unchanged }.encode())?;
        }
        Ok(())
    }

    fn state(&self) -> Result<ProcessState, BenchError> {
        let bytes = std::fs::read(self.file("state"))?;
        ProcessState::decode(VERSION, &bytes).map_err(|error| BenchError::Restore(error.to_string()))
    }
}

pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    close_inherited();
    let Some(Order::Begin { bytes, huge }) = parent.hear()? else { return Ok(()) };
    let mut measured = Measured::begin(bytes, huge)?;
    parent.tell(&Answer::Ready)?;
    while let Some(order) = parent.hear()? {
        let answer = match order {
            Order::Begin { .. } => Answer::Ready,
            Order::Sample { fraction, round } => Answer::Sampled(measured.sample(fraction, round)?),
            Order::Save { fraction, folder } => {
                if measured.save(fraction, folder.as_ref())? {
                    Answer::Restored
                } else {
                    Answer::Saved
                }
            }
            Order::Work { fraction, steps, checkpoint, folder } => {
                Answer::Worked { ns: measured.work(fraction, steps, checkpoint, folder.as_ref())? }
            }
            Order::Touch => Answer::Touched { sum: measured.program.memory.sum() },
        };
        parent.tell(&answer)?;
    }
    measured.program.done.store(true, Ordering::Relaxed);
    Ok(())
}

/// Becomes the process whose images lie in a folder, which answers.
pub(crate) fn restore(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(folder) = parent.hear::<String>()? else { return Ok(()) };
    let (whole, next) = (Place::new(folder.as_ref(), "whole"), Place::new(folder.as_ref(), "next"));
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
    let below =
        base.as_ref().map(|(file, runs, unchanged)| Below { file: file.as_fd(), offset: 0, runs, unchanged });
    let pages = Pages { file: pages.as_fd(), offset: 0, below };
    let handed_in = STANDARD.map(|(name, number)| (name.to_owned(), number));
    let Err(error) = process::restore::restore(&state, &files, pages, &handed_in, Policy::default());
    Err(BenchError::Restore(error.to_string()))
}
