//! The thread that writes: records, parity of the others' data, repair.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use store::GenerationId;
use store::protect::{Changes, Keeping, Member, Others, PageAnswer, ProtectError, Repaired, Strip, Wanted};
use store::record::Content;
use store::storage::DirectoryFile;
use transport::Rank;

use crate::api::{Event, RequestKind};
use crate::disk::Disk;
use crate::encode_worker::Task;
use crate::error::ProtectorError;
use crate::mailbox::Mailbox;
use crate::remote::Remote;
use crate::runs::ImageRuns;
use crate::usage::{Meter, Usage};
use crate::windows::Share;
use crate::work::{UNENDING, Work};

/// Its jobs, done in order. Each encoding has a number: results of an earlier one are discarded.
pub(crate) enum Job {
    /// Place this node's images.
    Place { attempt: u64, generation: GenerationId, from: Option<GenerationId>, ranks: Vec<Rank> },
    /// Another member's content.
    Content { attempt: u64, content: Box<Content> },
    /// The sum of a window.
    Keep { attempt: u64, window: u64, strip: Strip },
    /// No more windows.
    Finish { attempt: u64 },
    /// Everything is durable.
    Seal { attempt: u64 },
    /// The encoding is given up.
    Drop,
    /// See [`crate::Request::Repair`].
    Repair { attempt: u64, generation: GenerationId, remote: Remote },
    /// See [`crate::Request::Abandon`].
    Abandon(GenerationId),
}

impl Job {
    fn attempt(&self) -> u64 {
        match self {
            Job::Place { attempt, .. }
            | Job::Content { attempt, .. }
            | Job::Keep { attempt, .. }
            | Job::Finish { attempt }
            | Job::Seal { attempt }
            | Job::Repair { attempt, .. } => *attempt,
            // Abandoned files are removed in any case.
            Job::Drop | Job::Abandon(_) => UNENDING,
        }
    }
}

/// Its results.
pub(crate) enum Done {
    /// Placed: this node's content, its changes, and their places.
    Placed { attempt: u64, content: Box<Content>, changes: Box<Changes>, share: Share },
    /// Another member's content is durable.
    Content { attempt: u64 },
    /// A window's sum is written.
    Kept { attempt: u64, window: u64 },
    /// Parity is durable.
    Finished { attempt: u64 },
    /// The generation is protected, as far as this node goes.
    Sealed { attempt: u64 },
    /// The encoding cannot go on.
    Failed { attempt: u64, error: ProtectorError },
    /// A repair has come to its end.
    Repaired { generation: GenerationId, repaired: Result<Repaired, ProtectorError> },
    /// A generation is given up, or cannot be.
    Abandoned { generation: GenerationId, abandoned: Result<(), ProtectorError> },
}

impl Done {
    /// The encoding that it is of.
    pub(crate) fn attempt(&self) -> Option<u64> {
        match self {
            Done::Placed { attempt, .. }
            | Done::Content { attempt }
            | Done::Kept { attempt, .. }
            | Done::Finished { attempt }
            | Done::Sealed { attempt }
            | Done::Failed { attempt, .. } => Some(*attempt),
            Done::Repaired { .. } | Done::Abandoned { .. } => None,
        }
    }
}

/// Other members, asked for no more than the processor time allows to compute with.
struct Paced<'a, 'b> {
    remote: Remote,
    meter: &'a mut Meter<'b>,
    work: &'a Work,
}

impl Others for Paced<'_, '_> {
    fn content(
        &mut self,
        asked: usize,
        of: usize,
        generation: GenerationId,
    ) -> Result<Content, ProtectError> {
        self.remote.content(asked, of, generation)
    }

    fn places(
        &mut self,
        asked: &[usize],
        generation: GenerationId,
        wanted: &Wanted,
    ) -> Vec<Result<Vec<PageAnswer>, ProtectError>> {
        let reported = self.remote.places(asked, generation, wanted);
        self.meter.rest(self.work);
        reported
    }
}

/// An encoding under way.
struct Encoding {
    attempt: u64,
    generation: GenerationId,
    from: Option<GenerationId>,
    keeping: Option<Keeping<DirectoryFile>>,
}

pub(crate) struct Writer {
    member: Member<Disk>,
    tasks: Arc<Mailbox<Task>>,
    usage: Arc<Usage>,
    work: Arc<Work>,
    encoding: Option<Encoding>,
}

impl Writer {
    pub(crate) fn new(
        member: Member<Disk>,
        tasks: Arc<Mailbox<Task>>,
        usage: Arc<Usage>,
        work: Arc<Work>,
    ) -> Writer {
        Writer { member, tasks, usage, work, encoding: None }
    }

    /// Runs until the sender of jobs is dropped.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        let usage = Arc::clone(&self.usage);
        let mut meter = usage.meter();
        while let Ok(job) = jobs.recv() {
            self.work.begin(job.attempt());
            if let Some(done) = self.carry_out(job, &mut meter) {
                self.tasks.post(Task::Written(done));
            }
            meter.rest(&self.work);
        }
        self.work.begin(UNENDING);
        self.give_up();
    }

    fn carry_out(&mut self, job: Job, meter: &mut Meter<'_>) -> Option<Done> {
        match job {
            Job::Place { attempt, generation, from, ranks } => {
                self.give_up();
                self.encoding = Some(Encoding { attempt, generation, from, keeping: None });
                self.step(attempt, |member, encoding| place(member, encoding, &ranks))
            }
            Job::Content { attempt, content } => self.step(attempt, |member, _| {
                member.write_content(&content)?;
                Ok(Done::Content { attempt })
            }),
            Job::Keep { attempt, window, strip } => self.step(attempt, |member, encoding| {
                let keeping = encoding.keeping.as_mut().expect("it keeps until it finishes");
                member.keep_strip(keeping, &strip)?;
                Ok(Done::Kept { attempt, window })
            }),
            Job::Finish { attempt } => self.step(attempt, |member, encoding| {
                member.finish(encoding.keeping.take().expect("it finishes once"))?;
                Ok(Done::Finished { attempt })
            }),
            Job::Seal { attempt } => self.step(attempt, |member, encoding| {
                member.seal(encoding.generation, encoding.from)?;
                Ok(Done::Sealed { attempt })
            }),
            Job::Drop => {
                self.give_up();
                None
            }
            Job::Repair { generation, remote, .. } => {
                let mut others = Paced { remote, meter, work: &self.work };
                let repaired = self.member.repair(generation, &mut others).map_err(ProtectorError::from);
                Some(Done::Repaired { generation, repaired })
            }
            Job::Abandon(generation) => {
                let abandoned = self.member.directory().abandon(generation).map_err(ProtectorError::from);
                Some(Done::Abandoned { generation, abandoned })
            }
        }
    }

    /// A step of an encoding, if it is still the one under way. Who fails keeps nothing.
    fn step(
        &mut self,
        attempt: u64,
        step: impl FnOnce(&mut Member<Disk>, &mut Encoding) -> Result<Done, ProtectorError>,
    ) -> Option<Done> {
        let mut encoding = self.encoding.take_if(|encoding| encoding.attempt == attempt)?;
        let done = step(&mut self.member, &mut encoding);
        self.encoding = Some(encoding);
        Some(done.unwrap_or_else(|error| {
            self.work.begin(UNENDING);
            self.give_up();
            Done::Failed { attempt, error }
        }))
    }

    fn give_up(&mut self) {
        if let Some(keeping) = self.encoding.take().and_then(|encoding| encoding.keeping) {
            // The rest of it is removed with the generation.
            let _ = self.member.abandon(keeping);
        }
    }
}

fn place(member: &mut Member<Disk>, encoding: &mut Encoding, ranks: &[Rank]) -> Result<Done, ProtectorError> {
    let Encoding { attempt, generation, from, .. } = *encoding;
    let runs = ImageRuns::new(member.directory().storage().clone());
    let content = member.place(generation, from, ranks, |image, section| runs.of(image, section))?;
    let changes = member.changes(generation, from)?;
    encoding.keeping = Some(member.keep(generation, from)?);
    let share = changes.pages_to_read(member.group().data_pages());
    Ok(Done::Placed { attempt, content: Box::new(content), changes: Box::new(changes), share })
}

pub(crate) fn failed(request: RequestKind, generation: Option<GenerationId>, error: ProtectorError) -> Event {
    Event::Failed { request, generation, error }
}
