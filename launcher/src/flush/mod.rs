//! Copies of committed generations, written in the background by a thread of their own ([`worker`]): nothing of the job waits for them. Where images lie on
//! other hosts' disks, that thread asks their keepers to pack them ([`wire`]).
//!
//! One is written at a time. If the next one is due before that, it waits; a newer one takes its place.

pub(crate) mod wire;
mod worker;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use copies::{CopyError, CopyKey, CopyLocation, PackRequest, Packed, Report};
use crossbeam_channel::{Sender, bounded};
use store::{GenerationId, Manifest};

use super::Plan;
use super::limits::{COPY_GRACE, COPY_NEWS_EVERY};
use super::worker::Worker;
use crate::error::LauncherError;
use crate::print_message;
pub use worker::Directories;
use worker::{Answer, Copier};
pub(super) use worker::{stand_back, threads};

/// Which generations are copied, and where.
#[derive(Clone, Debug)]
pub struct Flush {
    /// Every so many generations one is.
    pub every: u32,
    /// Where copies lie.
    pub to: CopyLocation,
    /// Number of the newest copies that are kept.
    pub keep: u32,
    /// At most so many depend on one whole copy.
    pub whole_every: u32,
    /// The key that encrypts or signs them.
    pub key: Option<CopyKey>,
    /// A copy that makes no progress for so long is given up.
    pub patience: Duration,
}

/// A copy of a generation whose images lie on other hosts' disks.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The generation.
    pub generation: GenerationId,
    /// Where copies lie.
    pub from: CopyLocation,
    /// The key of encrypted or signed copies.
    pub key: Option<CopyKey>,
}

/// The outcome of a copy.
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

/// A message from the thread.
#[derive(Debug)]
pub(super) enum CopyEvent {
    /// Others are to pack their images of this generation; the thread waits for [`Flusher::answer`].
    Asks(PackRequest, Box<Manifest>),
    Done(Copied),
}

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoFar {
    /// The generation.
    pub generation: GenerationId,
    /// Read of images and bases.
    pub bytes: u64,
    /// Bytes of the images, without their bases.
    pub of: u64,
}

/// A copy that is being written.
#[derive(Debug)]
struct UnderWay {
    generation: GenerationId,
    /// Of all images, without their bases.
    bytes: u64,
    report: Arc<Report>,
    reported: Instant,
    /// The bytes that the report had counted at the last look, and since when the count has been that.
    seen: (u64, Instant),
    /// Others pack, and their progress is watched elsewhere.
    asks: bool,
    /// It has made no progress for too long, and is to end when its place answers.
    is_given_up: bool,
}

/// The thread's other end.
#[derive(Debug)]
pub(super) struct Flusher {
    worker: Worker<(Box<Manifest>, Arc<Report>), CopyEvent>,
    /// To the thread, if others pack. Without it nobody does.
    answers: Option<Sender<Answer>>,
    every: u32,
    /// Generations committed since the last one that was to be copied.
    since: u32,
    place: String,
    patience: Duration,
    under_way: Option<UnderWay>,
    waiting: Option<Box<Manifest>>,
}

impl Flusher {
    pub(super) fn start(flush: &Flush, plan: &Plan) -> Result<Flusher, LauncherError> {
        // The thread asks once, and takes the answer before it asks again.
        let (answers, answered) = bounded(1);
        let by_others = plan.has_images_elsewhere();
        let copier = Copier::new(flush, plan, by_others.then_some(answered))?;
        type Task = (Box<Manifest>, Arc<Report>);
        let worker = Worker::start("stillwire-copies", move |(manifest, report): Task, results| {
            results.report(CopyEvent::Done(copier.copy(&manifest, &report, results)));
        })?;
        let (every, place, patience) = (flush.every, flush.to.to_string(), flush.patience);
        let answers = by_others.then_some(answers);
        Ok(Flusher { worker, answers, every, since: 0, place, patience, under_way: None, waiting: None })
    }

    /// Rings when the thread has done something.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.worker.wake_fd()
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
        let (report, now) = (Arc::new(Report::default()), Instant::now());
        self.under_way = Some(UnderWay {
            generation: manifest.generation,
            bytes: manifest.image_bytes(),
            report: Arc::clone(&report),
            reported: now,
            seen: (0, now),
            asks: false,
            is_given_up: false,
        });
        self.worker.ask((manifest, report));
    }

    /// The thread's next message. When it has finished a copy, the next copy begins.
    pub(super) fn next(&mut self) -> Option<CopyEvent> {
        let said = self.worker.next()?;
        match &said {
            CopyEvent::Asks(..) => self.under_way.iter_mut().for_each(|copy| copy.asks = true),
            CopyEvent::Done(_) => {
                self.under_way = None;
                if let Some(manifest) = self.waiting.take() {
                    self.begin(manifest);
                }
            }
        }
        Some(said)
    }

    /// To [`CopyEvent::Asks`]: the packed image of each rank.
    pub(super) fn answer(&mut self, answer: Result<Vec<Packed>, CopyError>) {
        if let Some(copy) = &mut self.under_way {
            (copy.asks, copy.seen.1) = (false, Instant::now());
        }
        if let Some(answers) = &self.answers {
            // A thread that has ended has reported why. One that has not taken an earlier answer did not ask for this one.
            let _ = answers.try_send(answer);
        }
    }

    /// Others have read so many more bytes.
    pub(super) fn note(&self, bytes: u64) {
        if let Some(copy) = &self.under_way {
            // An error means that the copy is given up; it ends by itself.
            let _ = copy.report.add(bytes);
        }
    }

    /// Generations that must not be removed.
    pub(super) fn in_use(&self) -> Vec<GenerationId> {
        let waiting = self.waiting.as_ref().map(|manifest| manifest.generation);
        self.under_way.as_ref().map(|copy| copy.generation).into_iter().chain(waiting).collect()
    }

    /// The one that is being written.
    pub(super) fn under_way(&self) -> Option<SoFar> {
        let UnderWay { generation, bytes, report, .. } = self.under_way.as_ref()?;
        Some(SoFar { generation: *generation, bytes: report.bytes(), of: *bytes })
    }

    /// How long one may make no progress.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether it was given up, and has not ended yet: its place does not answer.
    pub(super) fn is_given_up(&self) -> bool {
        self.under_way.as_ref().is_some_and(|copy| copy.is_given_up)
    }

    /// Gives up the one that is being written if it has made no progress for too long. The thread ends it when its place answers.
    pub(super) fn give_up_silent(&mut self, now: Instant) -> Option<SoFar> {
        let copy = self.under_way.as_mut().filter(|copy| !copy.asks && !copy.is_given_up)?;
        let steps = copy.report.steps();
        if copy.seen.0 != steps {
            copy.seen = (steps, now);
        }
        if copy.seen.1 + self.patience > now {
            return None;
        }
        copy.is_given_up = true;
        copy.report.stop();
        self.under_way()
    }

    /// The one that waits is not written any more.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting = None;
    }

    /// When its progress is to be reported, or it is to be given up.
    pub(super) fn due(&self) -> Option<Instant> {
        let copy = self.under_way.as_ref().filter(|copy| !copy.is_given_up)?;
        let silent = (!copy.asks).then_some(copy.seen.1 + self.patience);
        silent.into_iter().chain([copy.reported + COPY_NEWS_EVERY]).min()
    }

    /// How far it is, if a report is due.
    pub(super) fn progress(&mut self, now: Instant) -> Option<SoFar> {
        let is_due = |copy: &&mut UnderWay| copy.reported + COPY_NEWS_EVERY <= now && !copy.is_given_up;
        let copy = self.under_way.as_mut().filter(is_due)?;
        copy.reported = now;
        self.under_way()
    }
}

impl Flusher {
    /// Whether the copy that is being written ends by then.
    fn ends_until(&self, until: Instant) -> bool {
        loop {
            match self.worker.wait_until(until) {
                Some(CopyEvent::Done(_)) => return true,
                // Nobody answers any more, and it hears that.
                Some(CopyEvent::Asks(..)) => {}
                None => return false,
            }
        }
    }
}

impl Drop for Flusher {
    /// Ends the copy that is being written, and leaves the thread behind if it does not end soon: it may wait for an object store.
    fn drop(&mut self) {
        if let Some(copy) = &self.under_way {
            copy.report.stop();
        }
        self.answers = None;
        let until = Instant::now() + COPY_GRACE;
        if self.under_way.is_some() && !self.ends_until(until) {
            print_message(format_args!(
                "the copy that is given up has waited for {} for {COPY_GRACE:?}, and is left behind there; the next copy removes what is left of it",
                self.place
            ));
            self.worker.leave();
        }
    }
}
