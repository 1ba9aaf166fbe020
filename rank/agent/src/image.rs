//! Images of this process: taken, written, given up.

use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use ckpt_glue::control::{CutStatistics, NoImageReason, Reason};
use ckpt_glue::names::ImageDigest;
use ckpt_glue::participant::Input;
use client::delay::{DelayMeter, Progress};
use client::input;
use client::launch::Launch;
use drivers::shm::host;
use endpoint::{Endpoint, EndpointError};
use process::capture::{CaptureError, Captured, Outcome, Prepared, Sink};
use process::declared::{AtCut, Declared, Outside};
use process::state::{self, Places, Unchanged};
use store::checksum::Checksum;
use store::image::{Base, ImageKey, SectionSeal};
use store::storage::{DirectoryFile, Limit};
use store::{Directory, GenerationId, ImageWriter, JobDirectory, Section, StoreError, kinds};
use transport::{Epoch, JobId, PortId, Rank};

use crate::choice::{Choice, PAGE_BYTES, Plan};
use crate::error::AgentError;
use crate::limits::{LOOKS_MAX, WRITING_LOOKS, WRITING_SLICE_MAX, WRITING_SLICE_MIN};
use crate::pmi::launchers_socket;
use crate::ports::{self, Dump, FrozenPorts, System};

/// The outcome of a cut.
pub(crate) enum Cut<'a> {
    /// The image is being written.
    Taken,
    /// This is the restored process; its ports still stand as they did.
    Restored(FrozenPorts<'a>),
    /// The ports may have the old epoch, or the new one.
    Failed(NoImageReason),
}

/// How an attempt ended that did not fail.
enum Attempt<'a> {
    Taken(Box<Writing>),
    Restored(FrozenPorts<'a>),
}

/// The names under which descriptors are handed to a restored process, besides the keeper's line.
pub(crate) const LINE: &str = "keeper";
const OUTPUTS: [(&str, RawFd); 2] = [("stdout", libc::STDOUT_FILENO), ("stderr", libc::STDERR_FILENO)];

/// The launcher's socket for an MPI library.
const PMI: &str = "pmi";

/// The job's standard input, and the count of its bytes given so far.
const INPUT: &str = "stdin";
const INPUT_COUNT: &str = "stdin count";

/// Descriptors that the launcher hands to every process that it starts.
pub(crate) fn handed_in(line: RawFd) -> Vec<(String, RawFd)> {
    let pmi = launchers_socket().map(|number| (PMI, number));
    // Without an input of the job, the program finds its end; nothing is counted there.
    let count = input::given().unwrap_or(libc::STDIN_FILENO);
    let inputs = [(INPUT, libc::STDIN_FILENO), (INPUT_COUNT, count)];
    let all = OUTPUTS.into_iter().chain(inputs).chain([(LINE, line)]).chain(pmi);
    all.map(|(name, fd)| (name.to_owned(), fd)).collect()
}

/// An image whose pages are being written by a fork of this process.
struct Writing {
    generation: GenerationId,
    writer: ImageWriter<DirectoryFile>,
    captured: Box<Captured>,
    plan: Plan,
    /// Where the pages begin in the file.
    offset: u64,
    ports: Vec<Dump>,
    /// The last id that the pid namespace has given, if it is the process's own.
    last: Option<u32>,
    freeze: Duration,
    dump: Duration,
    thaw: Duration,
    /// Bytes that the program had read of the job's standard input at the cut.
    input_read: Option<u64>,
    since: Instant,
    /// Of copies that are written here, so far.
    sum: PagesSum,
    /// When to write on, or to look whether the fork has ended.
    due: Instant,
}

/// When to look again at a fork that has been writing for so long.
fn next_look(written_for: Duration) -> Duration {
    (written_for / WRITING_LOOKS).clamp(WRITING_SLICE_MIN, WRITING_SLICE_MAX)
}

impl Writing {
    /// As [`Captured::write_copies`].
    fn write_copies(&mut self) -> Result<Option<Duration>, CaptureError> {
        let seal = self.writer.section_seal().map(PagesSeal);
        self.captured.write_copies(sink(&self.writer, self.offset, seal.as_ref()), &mut self.sum)
    }
}

/// Version of the section of kind [`kinds::PROCESS_IDS`].
const IDS_VERSION: u16 = 1;

/// The last process id, from a section of kind [`kinds::PROCESS_IDS`]; `None`: the section's length is wrong.
#[must_use]
pub fn last_id(section: &[u8]) -> Option<u32> {
    section.try_into().ok().map(u32::from_le_bytes)
}

fn last_id_here() -> Option<u32> {
    let text = host::is_apart().then(|| std::fs::read_to_string("/proc/sys/kernel/ns_last_pid").ok())??;
    text.trim().parse().ok()
}

/// Where other ranks are found, if this one has a pid namespace of its own.
fn outside() -> Option<Outside> {
    if !host::is_apart() {
        return None;
    }
    Some(Outside { folder: host::processes().into(), own_id: host::own_id().ok()? })
}

/// Where the rank's images lie, as the launcher names it. It is opened for each use, and checked: while the process is captured it must not be open, for
/// that would be one of the process's own descriptors.
pub(crate) struct ImageDirectory {
    path: PathBuf,
    job: JobId,
    key: Option<ImageKey>,
}

impl ImageDirectory {
    pub(crate) fn of(launch: &Launch) -> ImageDirectory {
        ImageDirectory { path: launch.directory.clone(), job: launch.job, key: launch.image_key() }
    }

    pub(crate) fn open(&self) -> Result<JobDirectory<Directory>, StoreError> {
        Ok(JobDirectory::attach(Directory::open(&self.path)?, self.job).encrypted(self.key.clone()))
    }
}

pub(crate) struct Images {
    directory: ImageDirectory,
    line: RawFd,
    /// The program's outputs as it was given them: it may have closed them, or put other files in their
    /// place.
    outputs: Vec<(String, OwnedFd)>,
    pmi: Option<RawFd>,
    writing: Option<Box<Writing>>,
    choice: Choice,
    /// How long the ports stood still the last time.
    expected: Duration,
    /// The reason why the last image was not taken, until it is reported.
    reason: Option<Reason>,
    delay: DelayMeter,
}

/// How a capture ended.
enum Half<'a> {
    Captured {
        captured: Box<Captured>,
        offset: u64,
        ports: Vec<Dump>,
        freeze: Duration,
        dump: Duration,
        thaw: Duration,
    },
    Restored(FrozenPorts<'a>),
}

/// The store's checksum, for pages.
struct PagesSum(Checksum);

impl process::Sum for PagesSum {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn value(&self) -> u64 {
        self.0.value()
    }
}

/// Encrypts pages of the image.
struct PagesSeal(SectionSeal);

impl process::Cover for PagesSeal {
    fn cover(&self, page: u64, bytes: &mut [u8]) -> [u8; process::COVER_TAG_BYTES] {
        self.0.seal(page, bytes)
    }
}

/// Where the pages of an image go, and how.
fn sink<'a>(writer: &'a ImageWriter<DirectoryFile>, offset: u64, seal: Option<&'a PagesSeal>) -> Sink<'a> {
    let cover = seal.map(|seal| -> &dyn process::Cover { seal });
    Sink { file: writer.file().as_fd(), offset, cover }
}

/// The rank's share of its node's write rate.
struct PagesPace(Limit);

impl process::Pace for PagesPace {
    fn piece_bytes(&self) -> u64 {
        self.0.piece_bytes()
    }

    fn wait_ns(&mut self, bytes: u64) -> u64 {
        nanos(self.0.wait(bytes))
    }
}

impl Images {
    pub(crate) fn new(directory: ImageDirectory, line: &UnixStream) -> Result<Images, AgentError> {
        let own = |(name, number): (&str, RawFd)| {
            // SAFETY: borrowed for a duplicate; fails if the launcher has given none.
            let output = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
            Some((name.to_owned(), output.try_clone_to_owned().ok()?))
        };
        let outputs = OUTPUTS.into_iter().filter_map(own).collect();
        input::adopt();
        process::restore::before_threads(input::restore);
        let (line, pmi) = (line.as_raw_fd(), launchers_socket());
        let (choice, expected) = (Choice::new(), Duration::ZERO);
        let delay = DelayMeter::new(Progress::of_process_without_this_thread());
        Ok(Images { directory, line, outputs, pmi, writing: None, choice, expected, reason: None, delay })
    }

    /// When [`Images::look`] has something to do, if an image is being written.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.writing.as_ref().map(|writing| writing.due)
    }

    /// Freezes the ports, stops the program, takes its state, lets it go on. Returns a second time in a process that was restored from that.
    pub(crate) fn take<'a>(
        &mut self,
        generation: GenerationId,
        launch: &Launch,
        endpoints: &'a [Endpoint],
    ) -> Cut<'a> {
        let entered = Instant::now();
        self.delay.begin(Progress::of_process_without_this_thread());
        match self.try_take(generation, launch, endpoints, entered) {
            Ok(Attempt::Restored(frozen_ports)) => {
                // An older image that was being written has its writer, and its file, in the process that was saved.
                core::mem::forget(self.writing.take());
                self.choice.restored();
                self.reason = None;
                Cut::Restored(frozen_ports)
            }
            Ok(Attempt::Taken(writing)) => {
                self.writing = Some(writing);
                Cut::Taken
            }
            Err(error) => {
                let reason = match &error {
                    TakeError::Store(error) => NoImageReason::WriteFailed { errno: error.errno() },
                    TakeError::Capture(_)
                    | TakeError::Base { .. }
                    | TakeError::Freeze(_)
                    | TakeError::Nameless { .. } => NoImageReason::Unsavable { what: 0 },
                };
                self.reason = Some(Reason::new(&error));
                self.delay.give_up(Progress::of_process_without_this_thread());
                Cut::Failed(reason)
            }
        }
    }

    fn try_take<'a>(
        &mut self,
        generation: GenerationId,
        launch: &Launch,
        endpoints: &'a [Endpoint],
        entered: Instant,
    ) -> Result<Attempt<'a>, TakeError> {
        let rank = launch.rank;
        if let Some(port) = ports::nameless(endpoints, rank) {
            return Err(TakeError::Nameless { port });
        }
        let mut directory = self.directory.open()?;
        directory.begin_generation(generation)?;
        let mut writer = core::mem::ManuallyDrop::new(directory.begin_image(generation, rank)?);
        let declared = self.declared(&System::of(endpoints));
        let mut plan = self.choice.plan(&mut directory, (generation, rank), &declared);
        plan.disk_bytes_per_s = launch.disk_bytes_per_s;
        let taken = self.capture(directory, &mut writer, generation.epoch, endpoints, &plan);
        let is_delta = matches!(&taken, Ok(Half::Captured { captured, .. }) if captured.is_delta());
        if !is_delta && !matches!(taken, Ok(Half::Restored(_))) && plan.base.take().is_some() {
            // Files that cannot be removed are collected with their generation.
            let unlink = |mut directory: JobDirectory<Directory>| directory.unlink_base(generation, rank);
            let _ = self.directory.open().map(unlink);
        }
        match taken {
            Ok(Half::Captured { captured, offset, ports, freeze, dump, thaw }) => {
                let writer = core::mem::ManuallyDrop::into_inner(writer);
                // A restored process does not reuse ids that were assigned since the cut: skipping them does
                // no harm.
                let (since, last) = (entered, last_id_here());
                let writing = Writing {
                    generation,
                    writer,
                    captured,
                    plan,
                    offset,
                    ports,
                    last,
                    freeze,
                    dump,
                    thaw,
                    input_read: input::noted(),
                    since,
                    sum: PagesSum(Checksum::new()),
                    due: since,
                };
                Ok(Attempt::Taken(Box::new(writing)))
            }
            // The writer is not dropped: its descriptor is not open here.
            Ok(Half::Restored(frozen_ports)) => Ok(Attempt::Restored(frozen_ports)),
            Err(error) => {
                // The first error is the informative one.
                self.abandon(core::mem::ManuallyDrop::into_inner(writer));
                Err(error)
            }
        }
    }

    /// Looks at the process, then freezes its ports: the look takes far longer than they should stand.
    /// Mappings and descriptors that rails make meanwhile make another look necessary.
    fn freeze<'a>(
        &self,
        writer: &ImageWriter<DirectoryFile>,
        endpoints: &'a [Endpoint],
        plan: &Plan,
    ) -> Result<(Prepared, FrozenPorts<'a>), TakeError> {
        let mut looks = 0;
        loop {
            let system = System::of(endpoints);
            let looked = self.look_at_process(writer, &system, plan);
            looks += 1;
            let prepared = match looked {
                // A peer's memory, or its listening socket, which was not declared.
                Err(_) if looks < LOOKS_MAX && System::of(endpoints) != system => continue,
                looked => looked?,
            };
            ports::prepare(endpoints, self.expected);
            let frozen_ports = FrozenPorts::freeze(endpoints)?;
            if frozen_ports.system() == system || looks == LOOKS_MAX {
                return Ok((prepared, frozen_ports));
            }
            frozen_ports.thaw();
        }
    }

    fn look_at_process(
        &self,
        writer: &ImageWriter<DirectoryFile>,
        system: &System,
        plan: &Plan,
    ) -> Result<Prepared, TakeError> {
        let mut declared = self.declared(system);
        let image = writer.file().as_fd().as_raw_fd();
        declared.remade.push(("the image that is being written".to_owned(), image));
        self.choice.declare(&mut declared);
        let mut prepared = Prepared::look(&declared, plan.options())?;
        plan.equip(&mut prepared)?;
        if let Some(bytes_per_s) = plan.disk_bytes_per_s {
            prepared.limit(Box::new(PagesPace(Limit::new(bytes_per_s))));
        }
        Ok(prepared)
    }

    /// Resources that are not saved, because their owners make them anew.
    fn declared(&self, system: &System) -> Declared {
        let outputs = self.outputs.iter().map(|(name, output)| (name.clone(), output.as_raw_fd()));
        let rails = system.descriptors.iter().map(|number| ("the transport".to_owned(), *number));
        let inputs = input::adopted().map(|(pipe, count)| [(INPUT, pipe), (INPUT_COUNT, count)]);
        Declared {
            handed_in: outputs
                .chain([(LINE.to_owned(), self.line)])
                .chain(inputs.into_iter().flatten().map(|(name, number)| (name.to_owned(), number)))
                .chain(self.pmi.map(|number| (PMI.to_owned(), number)))
                .collect(),
            remade: rails.collect(),
            outside: outside(),
            at_cut: Some(AtCut(input::note)),
            ignored_memory: system
                .mappings
                .iter()
                .map(|range| range.start as u64..range.end as u64)
                .collect(),
            ..Declared::new()
        }
    }

    fn capture<'a>(
        &mut self,
        mut directory: JobDirectory<Directory>,
        writer: &mut ImageWriter<DirectoryFile>,
        epoch: Epoch,
        endpoints: &'a [Endpoint],
        plan: &Plan,
    ) -> Result<Half<'a>, TakeError> {
        let offset = writer.begin_outside(directory.storage(), state::PAGES_KIND, state::VERSION, 0)?;
        drop(directory);
        let (prepared, mut frozen_ports) = self.freeze(writer, endpoints, plan)?;
        let frozen = Instant::now();
        // R2: the state in the image has the new epoch.
        frozen_ports.raise(epoch);
        let ports = frozen_ports.dump();
        let dump = frozen.elapsed();
        let seal = writer.section_seal().map(PagesSeal);
        match prepared.capture(sink(writer, offset, seal.as_ref()), &mut PagesSum(Checksum::new()))? {
            Outcome::Restored => Ok(Half::Restored(frozen_ports)),
            Outcome::Captured(captured) => {
                let freeze = frozen_ports.freeze;
                let thaw = frozen_ports.thaw();
                self.expected = frozen.elapsed();
                Ok(Half::Captured { captured, offset, ports, freeze, dump, thaw })
            }
        }
    }

    /// The job's directory may have been moved since this process was saved.
    pub(crate) fn look_in(&mut self, launch: &Launch) {
        self.directory = ImageDirectory::of(launch);
    }

    /// The ports of an image that has been restored.
    pub(crate) fn ports_of(&mut self, generation: GenerationId, rank: Rank) -> Result<Vec<Dump>, AgentError> {
        let mut directory = self.directory.open()?;
        let reader = directory.open_committed_image(generation, rank)?;
        let storage = directory.storage();
        let sections = (0u32..).zip(reader.entries()).filter(|(_, entry)| entry.kind == kinds::PORT);
        let ports = sections.map(|(number, entry)| {
            Ok(Dump { port: PortId(entry.id), section: reader.read_section(storage, number)? })
        });
        ports.collect()
    }

    /// The outcome of the image that is being written; `None`: it is not known yet.
    pub(crate) fn look(&mut self) -> Option<Input> {
        let now = Instant::now();
        let writing = self.writing.as_mut().filter(|writing| writing.due <= now)?;
        let copied = match writing.write_copies() {
            Ok(Some(rest)) => {
                writing.due = now + rest;
                return None;
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if !writing.captured.is_over() {
            writing.due = now + next_look(now.saturating_duration_since(writing.since));
            return None;
        }
        let writing = self.writing.take()?;
        let Writing { generation, since, freeze, dump, thaw, input_read, .. } = *writing;
        let epoch = generation.epoch;
        let pause = writing.captured.pause();
        match self.finish(*writing, copied) {
            Ok((digest, bytes)) => {
                let total = nanos(since.elapsed());
                let statistics = CutStatistics {
                    stop_ns: pause.stop_ns,
                    freeze_ns: nanos(freeze),
                    dump_ns: nanos(dump) + pause.state_ns + pause.memory_ns,
                    thaw_ns: nanos(thaw),
                    write_ns: total.saturating_sub(pause.total_ns),
                    delay_ns: self.delay.delay_ns(),
                    input_read,
                    ..CutStatistics::default()
                };
                Some(Input::Captured { epoch, digest, bytes, statistics })
            }
            Err(error) => {
                let reason = match &error {
                    TakeError::Store(error) => NoImageReason::WriteFailed { errno: error.errno() },
                    _ => NoImageReason::WriteFailed { errno: libc::EIO.unsigned_abs() },
                };
                self.reason = Some(Reason::new(&error));
                Some(Input::CaptureFailed { epoch, reason })
            }
        }
    }

    fn finish(
        &mut self,
        writing: Writing,
        copied: Result<(), CaptureError>,
    ) -> Result<(ImageDigest, u64), TakeError> {
        let Writing { generation, mut writer, captured, plan, ports, last, .. } = writing;
        let (mode, pause) = (captured.mode(), captured.pause());
        let is_encrypted = writer.section_seal().is_some();
        let mut directory = self.directory.open()?;
        let storage = directory.storage();
        let written = copied.and_then(|()| captured.finish()).map_err(TakeError::from).and_then(|image| {
            writer.end_outside(storage, image.pages_bytes, image.pages_sum)?;
            self.choice.captured(&plan, mode, &pause, image.pages_bytes);
            let (process, files) = (image.state.encode(), image.files.encode());
            for (kind, bytes) in [(state::STATE_KIND, process), (state::FILES_KIND, files)] {
                writer.section(storage, Section::new(kind, state::VERSION, &bytes))?;
            }
            if is_encrypted {
                let page_bytes = image.state.machine.page_bytes;
                let places = Places { page_bytes, runs: image.state.memory.runs.clone() }.encode();
                writer.section(storage, Section::new(state::PLACES_KIND, state::VERSION, &places))?;
            }
            if let Some(last) = last {
                let ids = last.to_le_bytes();
                writer.section(storage, Section::new(kinds::PROCESS_IDS, IDS_VERSION, &ids))?;
            }
            let mut below = 0;
            if let Some(base) = &plan.base {
                let unchanged = Unchanged { runs: image.unchanged };
                if !self.choice.has(base, &unchanged) {
                    return Err(TakeError::Base { generation: base.generation });
                }
                below = unchanged.runs.iter().map(|run| run.pages * PAGE_BYTES).sum();
                let unchanged = unchanged.encode();
                writer.section(storage, Section::new(state::UNCHANGED_KIND, state::VERSION, &unchanged))?;
                writer.section(storage, Base::section(&base.emit()))?;
            }
            for Dump { port, section } in &ports {
                let section = Section::new(nic_freeze::SECTION_KIND, nic_freeze::SECTION_VERSION, section);
                writer.section(storage, section.with_id(port.0))?;
            }
            Ok((image.state.memory.runs, image.hashes, [image.pages_bytes, below]))
        });
        let (runs, hashes, [bytes, below]) = match written {
            Ok(written) => written,
            Err(error) => {
                let _ = writer.abandon(storage);
                return Err(error);
            }
        };
        let summary = writer.finish(storage)?;
        let digest = summary.digest;
        match &plan.base {
            Some(base) => self.choice.finished_delta(generation, base, bytes, below),
            None => self.choice.finished_whole(generation, digest, runs, hashes),
        }
        Ok((digest, summary.bytes))
    }

    /// An image of this epoch is not wanted any more.
    pub(crate) fn cancel(&mut self, epoch: Epoch) {
        self.delay.give_up(Progress::of_process_without_this_thread());
        if let Some(writing) = self.writing.take_if(|writing| writing.generation.epoch == epoch) {
            writing.captured.cancel();
            self.abandon(writing.writer);
        }
    }

    /// The program begins to run, or goes on in another life: its speed is measured from here.
    pub(crate) fn begin_life(&mut self) {
        self.delay = DelayMeter::new(Progress::of_process_without_this_thread());
    }

    /// The generation is committed.
    pub(crate) fn committed(&mut self) {
        self.delay.end(Progress::of_process_without_this_thread());
    }

    fn abandon(&self, writer: ImageWriter<DirectoryFile>) {
        // Files that cannot be removed are collected with their generation.
        let _ = self.directory.open().and_then(|mut directory| writer.abandon(directory.storage()));
    }

    /// Why there is no image, for people, if that has not been asked before.
    pub(crate) fn take_reason(&mut self) -> Option<Reason> {
        self.reason.take()
    }
}

#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("unchanged pages are missing from the image of {generation}, on which this one builds")]
    Base { generation: GenerationId },
    #[error("its ports cannot be frozen: {0}")]
    Freeze(#[from] EndpointError),
    #[error(
        "port {port:?} was opened at a place of the program's choice, and cannot be found elsewhere: let the provider choose (no node or service for fi_getinfo)"
    )]
    Nameless { port: PortId },
}

fn nanos(time: core::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
