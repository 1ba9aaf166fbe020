//! The thread that reads: local changes, window by window, and pages that other nodes request for their repair.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;
use store::GenerationId;
use store::limits::PAGE_BYTES;
use store::protect::{Changes, Member, Served, Strip, Wanted};
use store::record::Content;
use transport::Life;

use crate::disk::Disk;
use crate::encode_worker::Task;
use crate::error::ProtectorError;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::mailbox::Mailbox;
use crate::message::{Answer, Body, Message, Question};
use crate::usage::Usage;
use crate::work::{UNENDING, Work};

/// Its jobs, done in order. Each encoding has a number: results of an earlier one are discarded. A question has the
/// number of the last one.
pub(crate) enum Job {
    /// Changes, of this encoding.
    Begin { attempt: u64, changes: Box<Changes> },
    /// Compare how many pages a member says that it has with its records.
    Check { attempt: u64, member: usize, pages: u64, from: Option<GenerationId>, content: Box<Content> },
    /// Read the contribution to a window: these cycles.
    Window { attempt: u64, window: u64, cycles: Range<u64> },
    /// All windows have been read.
    End { attempt: u64 },
    /// Answer a member that is repaired.
    Answer { attempt: u64, life: Life, to: usize, generation: GenerationId, number: u64, question: Question },
    /// Something of this node has been written anew.
    Forget,
}

impl Job {
    fn attempt(&self) -> u64 {
        match self {
            Job::Begin { attempt, .. }
            | Job::Check { attempt, .. }
            | Job::Window { attempt, .. }
            | Job::End { attempt }
            | Job::Answer { attempt, .. } => *attempt,
            Job::Forget => UNENDING,
        }
    }
}

/// Its results.
pub(crate) enum Done {
    /// See [`Job::Check`]: it has as many.
    Checked { attempt: u64, member: usize },
    /// See [`Job::Window`]: by keeper, then by row.
    Window { attempt: u64, window: u64, strips: Vec<Strip>, arithmetic: f64 },
    /// The checksums of all pages are durable.
    Ended { attempt: u64 },
    /// See [`Job::Answer`]: the message, for the asker in that life.
    Answered { life: Life, to: usize, message: Vec<u8> },
    /// The encoding cannot go on.
    Failed { attempt: u64, error: ProtectorError },
}

impl Done {
    /// The encoding that it is of.
    pub(crate) fn attempt(&self) -> Option<u64> {
        match self {
            Done::Checked { attempt, .. }
            | Done::Window { attempt, .. }
            | Done::Ended { attempt }
            | Done::Failed { attempt, .. } => Some(*attempt),
            Done::Answered { .. } => None,
        }
    }
}

pub(crate) struct Reader {
    member: Member<Disk>,
    tasks: Arc<Mailbox<Task>>,
    usage: Arc<Usage>,
    work: Arc<Work>,
    changes: Option<(u64, Box<Changes>)>,
    /// The generation that is open for other members' questions.
    served: Option<(GenerationId, Served)>,
}

impl Reader {
    pub(crate) fn new(
        member: Member<Disk>,
        tasks: Arc<Mailbox<Task>>,
        usage: Arc<Usage>,
        work: Arc<Work>,
    ) -> Reader {
        Reader { member, tasks, usage, work, changes: None, served: None }
    }

    /// Runs until the sender of jobs is dropped.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        let usage = Arc::clone(&self.usage);
        let mut meter = usage.meter();
        while let Ok(job) = jobs.recv() {
            self.work.begin(job.attempt());
            let done = match job {
                Job::Begin { attempt, changes } => {
                    self.changes = Some((attempt, changes));
                    None
                }
                Job::Check { attempt, member, pages, from, content } => {
                    let checked = self.check(member, pages, from, &content);
                    Some(match checked {
                        Ok(()) => Done::Checked { attempt, member },
                        Err(error) => Done::Failed { attempt, error },
                    })
                }
                Job::Window { attempt, window, cycles } => self.window(attempt, window, cycles),
                Job::End { attempt } => self.end(attempt),
                Job::Answer { life, to, generation, number, question, .. } => {
                    let body = Body::Answer(self.answer(generation, question));
                    let message = Message { generation, number, body }.emit();
                    Some(Done::Answered { life, to, message })
                }
                Job::Forget => {
                    (self.served, self.changes) = (None, None);
                    None
                }
            };
            if let Some(done) = done {
                self.tasks.post(Task::Read(done));
            }
            meter.rest(&self.work);
        }
    }

    fn check(
        &mut self,
        of: usize,
        pages: u64,
        from: Option<GenerationId>,
        content: &Content,
    ) -> Result<(), ProtectorError> {
        let old = from.map(|from| self.member.content(from, of)).transpose()?;
        let known = content.pages().max(old.as_ref().map_or(0, Content::pages));
        if pages == known {
            return Ok(());
        }
        let reason = format!("it tells of {pages} pages, by its records it has {known}");
        Err(ProtectorError::Message { peer: content.node, reason })
    }

    fn window(&mut self, attempt: u64, window: u64, cycles: Range<u64>) -> Option<Done> {
        let (_, changes) = self.changes.as_mut().filter(|(current, _)| *current == attempt)?;
        let (started, disk) = (Instant::now(), self.member.directory().storage().spent());
        let strips = match self.member.window(changes, cycles) {
            Ok(strips) => strips,
            Err(error) => return Some(Done::Failed { attempt, error: error.into() }),
        };
        let disk = self.member.directory().storage().spent() - disk;
        let arithmetic = started.elapsed().saturating_sub(disk).as_secs_f64();
        Some(Done::Window { attempt, window, strips, arithmetic })
    }

    fn end(&mut self, attempt: u64) -> Option<Done> {
        let (_, changes) = self.changes.take().filter(|(current, _)| *current == attempt)?;
        Some(match self.member.record_checksums(&changes) {
            Ok(()) => Done::Ended { attempt },
            Err(error) => Done::Failed { attempt, error: error.into() },
        })
    }

    fn answer(&mut self, generation: GenerationId, question: Question) -> Answer {
        let failed = |error: store::protect::ProtectError| Answer::Failed(error.to_string());
        match question {
            Question::Content { of } if usize::from(of) < self.member.group().members() => {
                match self.member.content(generation, usize::from(of)) {
                    Ok(content) => Answer::Content(content.emit()),
                    Err(error) => failed(error),
                }
            }
            Question::Places(wanted) if self.may_be_asked(&wanted) => {
                if self.served.as_ref().is_none_or(|(known, _)| *known != generation) {
                    match Served::open(&mut self.member, generation) {
                        Ok(served) => self.served = Some((generation, served)),
                        Err(error) => return failed(error),
                    }
                }
                let (_, served) = self.served.as_mut().expect("it was just opened");
                match served.places(&mut self.member, &wanted) {
                    Ok(reported) => Answer::Places(reported),
                    Err(error) => failed(error),
                }
            }
            _ => {
                Answer::Failed("there is no such member in this group, or too much was asked for".to_owned())
            }
        }
    }

    fn may_be_asked(&self, wanted: &Wanted) -> bool {
        let group = self.member.group();
        let pages = (wanted.cycles.end - wanted.cycles.start)
            .saturating_mul(group.data_pages().max(group.parity_pages()));
        wanted.by < group.members() && pages.saturating_mul(PAGE_BYTES as u64) < MESSAGE_BYTES_MAX
    }
}
