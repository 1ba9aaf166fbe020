//! Images of this node's ranks that the keeper itself reads and writes. A thread does it: a disk that does not answer holds up neither heartbeats nor the
//! ranks' lease, only the rank that needs the image.
//!
//! The keeper's main loop uses no file of a job's or node's directory once it has begun, but for the lock of its node: taking it does not wait for its
//! holder, and no rank may run before the answer (R30); where it lies on NFS, the server is asked. Two more calls can wait for a disk, that of the program:
//! starting a process, whose file the kernel reads, and looking for a program that ranks spawn. Neither can be done for a rank by somebody else: a thread
//! that starts it would be the one with which the kernel ends it (`PR_SET_PDEATHSIG`). Before the loop begins (`Shell::new`), no rank has a lease that
//! could end.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use ckpt_glue::control::{Decision, ExitedRecord};
use ckpt_glue::keeper::Input;
use ckpt_glue::names::{ExitStatus, GenerationId, ImageDigest};
use nix::errno::Errno;
use store::image::Exited;
use store::{Directory, JobDirectory, Key, Section, StoreError, kinds};
use transport::{JobId, Life, Rank};

use super::super::events::Events;
use super::super::wire::FromKeeper;
use super::super::worker::Worker;
use super::super::{Saves, image_key};
use super::Source;
use super::{Shell, Site};
use crate::spawn::namespace::Wanted;
use crate::spawn::preload;
use crate::spawn::program::Program;

/// Version of the section with the final counters of a rank that had ended.
const CLOSED_PORTS_VERSION: u16 = 1;

/// Version of the section with the part in PMI of a rank that had ended.
const PMI_VERSION: u16 = 1;

/// Tasks that wait for the thread: each rank of the job may be restored, and may have ended in two checkpoints of which one is given up.
fn tasks_max(ranks: u32) -> usize {
    3 * ranks as usize + 16
}

/// A task of the thread.
#[derive(Debug)]
enum Task {
    /// Read how a rank of a generation is started again.
    Read { number: u64, rank: Rank, generation: GenerationId, program: Box<Program> },
    /// Write the image of a rank that has ended.
    Write { rank: Rank, generation: GenerationId, record: ExitedRecord, pmi: Vec<u8> },
}

/// Its outcome.
#[derive(Debug)]
enum Done {
    Read { number: u64, rank: Rank, outcome: Result<RankImage, Unread> },
    Written { rank: Rank, generation: GenerationId, outcome: Result<(ImageDigest, u64), StoreError> },
}

/// How a rank is started again, by its image.
#[derive(Debug)]
pub(super) enum RankImage {
    /// Rule 12: it had ended when the generation was taken, and is not started again.
    Exited { record: ExitedRecord, pmi: Vec<u8> },
    /// As a whole process: the program that ran, and its ids.
    Whole(Box<Program>, Wanted),
    /// By its own points.
    Points,
}

/// Why not.
#[derive(Debug)]
enum Unread {
    Image(StoreError),
    Program(io::Error),
}

/// A rank whose image is being read.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    number: u64,
    decision: Decision,
}

/// The handle of the thread.
pub(super) struct Images {
    worker: Worker<Task, Done>,
    awaited: BTreeMap<Rank, Awaited>,
    last: u64,
}

impl Images {
    pub(super) fn start(site: &Site, events: &mut Events<Source>) -> io::Result<Images> {
        let files = Files {
            directory: site.directory.clone(),
            job: site.job,
            key: site.encryption.clone(),
            saves: site.saves,
        };
        let worker = Worker::start_with(tasks_max(site.ranks), "stillwire-ends", move |task, results| {
            results.report(files.perform(task));
        })?;
        events.watch(worker.wake_fd(), Source::Images)?;
        Ok(Images { worker, awaited: BTreeMap::new(), last: 0 })
    }

    /// A rank is not to be started any more.
    pub(super) fn forget(&mut self, rank: Rank, life: Life) {
        if self.awaited.get(&rank).is_some_and(|awaited| awaited.decision.life == life) {
            self.awaited.remove(&rank);
        }
    }

    /// The job is over: nobody needs what the thread still does.
    pub(super) fn leave(&mut self) {
        self.worker.leave();
    }
}

/// The files, as the thread sees them.
struct Files {
    directory: PathBuf,
    job: JobId,
    key: Option<Key>,
    saves: Saves,
}

impl Files {
    fn perform(&self, task: Task) -> Done {
        match task {
            Task::Read { number, rank, generation, program } => {
                Done::Read { number, rank, outcome: self.read(rank, generation, &program) }
            }
            Task::Write { rank, generation, record, pmi } => {
                Done::Written { rank, generation, outcome: self.write(rank, generation, &record, &pmi) }
            }
        }
    }

    /// Where this node's images lie. It may have been lost, and made anew, since it was opened last.
    fn open(&self) -> Result<JobDirectory<Directory>, StoreError> {
        let storage = Directory::open(&self.directory)?;
        Ok(JobDirectory::attach(storage, self.job).encrypted(self.key.clone().map(image_key)))
    }

    fn read(&self, rank: Rank, generation: GenerationId, program: &Program) -> Result<RankImage, Unread> {
        if let Some(exited) = self.exited(rank, generation).map_err(Unread::Image)? {
            return Ok(exited);
        }
        if self.saves != Saves::Process {
            return Ok(RankImage::Points);
        }
        let found = self
            .open()
            .and_then(|mut directory| preload::restored(program, &mut directory, generation, rank));
        let Some((program, ids)) = found.map_err(|error| Unread::Program(io::Error::other(error)))? else {
            return Ok(RankImage::Points);
        };
        let there = program.find(&program.command[0]);
        let missing = |error: crate::error::LauncherError| {
            Unread::Program(io::Error::new(io::ErrorKind::NotFound, error.to_string()))
        };
        there.map_err(missing)?;
        Ok(RankImage::Whole(Box::new(program), ids))
    }

    fn exited(&self, rank: Rank, generation: GenerationId) -> Result<Option<RankImage>, StoreError> {
        let mut directory = self.open()?;
        let reader = directory.open_committed_image(generation, rank)?;
        if reader.find(kinds::CLOSED_PORTS).is_err() {
            return Ok(None);
        }
        let mut section = |kind| -> Result<Vec<u8>, StoreError> {
            reader.read_section(directory.storage(), reader.find(kind)?)
        };
        let ports = section(kinds::CLOSED_PORTS)?;
        let record = ExitedRecord::parse(&ports).map_err(|_| StoreError::Image {
            path: reader.path().to_owned(),
            error: store::ImageError::SectionUnreadable {
                kind: kinds::CLOSED_PORTS,
                version: CLOSED_PORTS_VERSION,
                bytes: ports.len() as u64,
            },
        })?;
        // Images of before had no such section: nothing with MPI was saved.
        let pmi = match reader.find(kinds::PMI) {
            Ok(_) => section(kinds::PMI)?,
            Err(_) => Vec::new(),
        };
        Ok(Some(RankImage::Exited { record, pmi }))
    }

    fn write(
        &self,
        rank: Rank,
        generation: GenerationId,
        record: &ExitedRecord,
        pmi: &[u8],
    ) -> Result<(ImageDigest, u64), StoreError> {
        let status = match record.status {
            ExitStatus::Code(code) => i32::from(code),
            ExitStatus::Signal(signal) => -i32::from(signal),
        };
        let (exited, counters) = (Exited { status }.emit(), record.emit());
        let sections = [
            Exited::section(&exited),
            Section::new(kinds::CLOSED_PORTS, CLOSED_PORTS_VERSION, &counters),
            Section::new(kinds::PMI, PMI_VERSION, pmi),
        ];
        let mut directory = self.open()?;
        directory.begin_generation(generation)?;
        // It may have ended when it had begun one.
        directory.discard_begun(generation, rank)?;
        let summary = directory.write_image(generation, rank, &sections)?;
        Ok((summary.digest, summary.bytes))
    }
}

impl Shell {
    pub(super) fn spawn(&mut self, rank: Rank, decision: Decision) {
        self.begin_pmi(decision.life);
        let Some(generation) = decision.restore else {
            return self.start(rank, decision, RankImage::Points);
        };
        self.images.last += 1;
        let number = self.images.last;
        let program = Box::new(self.site.program.clone());
        match self.images.worker.try_ask(Task::Read { number, rank, generation, program }) {
            Ok(()) => drop(self.images.awaited.insert(rank, Awaited { number, decision })),
            Err(full) => self.not_started(rank, &io::Error::other(full)),
        }
    }

    pub(super) fn write_exited(
        &mut self,
        rank: Rank,
        generation: GenerationId,
        record: ExitedRecord,
        pmi: Vec<u8>,
    ) {
        if self.images.worker.try_ask(Task::Write { rank, generation, record, pmi }).is_err() {
            let errno = Errno::EBUSY as u32;
            self.feed_keeper(Input::ExitedImageFailed { rank, generation, errno });
        }
    }

    /// The thread has done something.
    pub(super) fn on_images(&mut self) {
        while let Some(done) = self.images.worker.next() {
            match done {
                Done::Read { number, rank, outcome } => self.on_image_read(number, rank, outcome),
                Done::Written { rank, generation, outcome: Ok((digest, bytes)) } => {
                    self.feed_keeper(Input::ExitedImageDone { rank, generation, digest, bytes });
                }
                Done::Written { rank, generation, outcome: Err(error) } => {
                    self.report_store("the image of a rank that has ended", &error);
                    self.feed_keeper(Input::ExitedImageFailed { rank, generation, errno: error.errno() });
                }
            }
        }
    }

    fn on_image_read(&mut self, number: u64, rank: Rank, outcome: Result<RankImage, Unread>) {
        let is_it = |awaited: &Awaited| awaited.number == number;
        // A rank that was killed meanwhile counts as ended already.
        let Some(Awaited { decision, .. }) = self.images.awaited.get(&rank).copied().filter(is_it) else {
            return;
        };
        self.images.awaited.remove(&rank);
        match outcome {
            Ok(RankImage::Exited { record, pmi }) => {
                self.send_to_launcher(&FromKeeper::ExitedInImage { rank: rank.0, pmi });
                self.feed_keeper(Input::ExitedInImage { rank, record });
            }
            Ok(image) => self.start(rank, decision, image),
            Err(Unread::Image(error)) => {
                self.report_store("an image that is to be restored", &error);
                self.feed_keeper(Input::NotStarted { rank, errno: error.errno() });
            }
            Err(Unread::Program(error)) => self.not_started(rank, &error),
        }
    }

    fn report_store(&mut self, what: &str, error: &StoreError) {
        self.send_to_launcher(&FromKeeper::Store { what: what.to_owned(), error: error.to_string() });
    }
}
