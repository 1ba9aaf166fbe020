//! Copies of committed generations, written in the background by a thread of their own ([`worker`]): nothing of the job waits for them. Where images lie on
//! other hosts' disks, that thread asks for what their keepers pack ([`wire`]).
//!
//! One is written at a time. If the next one is due before that, it waits; a newer one takes its place.

pub(crate) mod wire;
mod worker;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use copies::{CopyError, Order, Packed, Place, Report};
use store::packets::Key;
use store::{GenerationId, Manifest};

use super::Plan;
use super::limits::{COPY_GRACE, COPY_NEWS_EVERY};
use super::worker::Worker;
use crate::commands::tell;
use crate::error::CliError;
pub(crate) use worker::Directories;
use worker::{Answer, Copier};
pub(super) use worker::{stand_back, threads};

/// Which generations are copied, and where.
#[derive(Clone, Debug)]
pub(crate) struct Flush {
    /// Every so many generations one is.
    pub(crate) every: u32,
    /// Where copies lie.
    pub(crate) to: Place,
    /// How many are kept: the newest ones.
    pub(crate) keep: u32,
    /// What they are encrypted with.
    pub(crate) key: Option<Key>,
}

/// A copy of a generation whose images lie on other hosts' disks.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) generation: GenerationId,
    /// Where copies lie.
    pub(crate) from: Place,
    pub(crate) key: Option<Key>,
}

/// What the thread has done.
#[derive(Debug)]
pub(super) enum Copied {
    Written {
        generation: GenerationId,
        bytes: u64,
        new_bytes: u64,
        took: Duration,
        unremoved: Option<String>,
    },
    Failed {
        generation: GenerationId,
        error: String,
    },
}

/// What the thread says.
#[derive(Debug)]
pub(super) enum Said {
    /// Others are to pack what they have of this generation, and it waits for [`Flusher::answer`].
    Asks(Order, Box<Manifest>),
    Done(Copied),
}

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SoFar {
    pub(crate) generation: GenerationId,
    /// Read of images and bases.
    pub(crate) bytes: u64,
    /// What the images have, without their bases.
    pub(crate) of: u64,
}

/// A copy that is being written.
#[derive(Debug)]
struct UnderWay {
    generation: GenerationId,
    /// Of all images, without their bases.
    bytes: u64,
    /// What the report said when it began.
    begun_at: u64,
    told: Instant,
}

/// The thread's other end.
#[derive(Debug)]
pub(super) struct Flusher {
    worker: Worker<Box<Manifest>, Said>,
    /// To the thread, if others pack. Without it nobody does.
    answers: Option<Sender<Answer>>,
    every: u32,
    /// Generations committed since the last one that was to be copied.
    since: u32,
    report: Arc<Report>,
    place: String,
    under_way: Option<UnderWay>,
    waiting: Option<Box<Manifest>>,
}

impl Flusher {
    pub(super) fn start(flush: &Flush, plan: &Plan) -> Result<Flusher, CliError> {
        let report = Arc::new(Report::default());
        let (answers, answered) = channel();
        let by_others = plan.has_images_elsewhere();
        let copier = Copier::new(flush, plan, Arc::clone(&report), by_others.then_some(answered))?;
        let worker = Worker::start("stillwire-copies", move |manifest: Box<Manifest>, results| {
            results.tell(Said::Done(copier.copy(&manifest, results)));
        })?;
        let (every, place) = (flush.every, flush.to.to_string());
        let answers = by_others.then_some(answers);
        Ok(Flusher { worker, answers, every, since: 0, report, place, under_way: None, waiting: None })
    }

    /// Rings when the thread has done something.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.worker.bell()
    }

    /// A generation is committed. Returns one that is left out for its sake.
    pub(super) fn committed(&mut self, manifest: &Manifest) -> Option<GenerationId> {
        self.since += 1;
        if self.since < self.every {
            return None;
        }
        self.since = 0;
        if self.under_way.is_some() {
            let left_out = self.waiting.replace(Box::new(manifest.clone()));
            return left_out.map(|manifest| manifest.generation);
        }
        self.begin(Box::new(manifest.clone()));
        None
    }

    fn begin(&mut self, manifest: Box<Manifest>) {
        self.under_way = Some(UnderWay {
            generation: manifest.generation,
            bytes: manifest.image_bytes(),
            begun_at: self.report.bytes(),
            told: Instant::now(),
        });
        self.worker.ask(manifest);
    }

    /// What the thread has to say; when it has done something, the next copy begins.
    pub(super) fn next(&mut self) -> Option<Said> {
        let said = self.worker.next()?;
        if matches!(said, Said::Done(_)) {
            self.under_way = None;
            if let Some(manifest) = self.waiting.take() {
                self.begin(manifest);
            }
        }
        Some(said)
    }

    /// To [`Said::Asks`]: what was written of each rank.
    pub(super) fn answer(&self, answer: Result<Vec<Packed>, CopyError>) {
        if let Some(answers) = &self.answers {
            // A thread that has ended has said why.
            let _ = answers.send(answer);
        }
    }

    /// Others have read so many more bytes.
    pub(super) fn note(&self, bytes: u64) {
        // What is stopped ends by itself.
        let _ = self.report.add(bytes);
    }

    /// Generations that must not be removed.
    pub(super) fn in_use(&self) -> Vec<GenerationId> {
        let waiting = self.waiting.as_ref().map(|manifest| manifest.generation);
        self.under_way.as_ref().map(|copy| copy.generation).into_iter().chain(waiting).collect()
    }

    /// The one that is being written.
    pub(super) fn under_way(&self) -> Option<SoFar> {
        let UnderWay { generation, bytes, begun_at, .. } = *self.under_way.as_ref()?;
        Some(SoFar { generation, bytes: self.report.bytes().saturating_sub(begun_at), of: bytes })
    }

    /// The one that waits is not written any more.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting = None;
    }

    /// Grows as long as it makes progress, also where no byte counts.
    pub(super) fn steps(&self) -> u64 {
        self.report.steps()
    }

    /// When somebody is to be told how far it is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.under_way.as_ref().map(|copy| copy.told + COPY_NEWS_EVERY)
    }

    /// How far it is, if it is time to tell.
    pub(super) fn progress(&mut self, now: Instant) -> Option<SoFar> {
        let copy = self.under_way.as_mut().filter(|copy| copy.told + COPY_NEWS_EVERY <= now)?;
        copy.told = now;
        self.under_way()
    }
}

impl Flusher {
    /// Whether what is being written ends by then.
    fn ends_until(&self, until: Instant) -> bool {
        loop {
            match self.worker.wait_until(until) {
                Some(Said::Done(_)) => return true,
                // Nobody answers any more, and it hears that.
                Some(Said::Asks(..)) => {}
                None => return false,
            }
        }
    }
}

impl Drop for Flusher {
    /// Ends what is being written, and leaves the thread behind if it does not end soon: it may wait for an object store.
    fn drop(&mut self) {
        self.report.stop();
        self.answers = None;
        let until = Instant::now() + COPY_GRACE;
        if self.under_way.is_some() && !self.ends_until(until) {
            tell(format_args!(
                "the copy that is given up has waited for {} for {COPY_GRACE:?}, and is left behind there; the next copy removes what is left of it",
                self.place
            ));
            self.worker.leave();
        }
    }
}
