//! Checkpoint protocols: the work in normal running that allows a job to survive a fault. Chosen by name in the job's configuration.
//!
//! The reaction to a fault is in [`crate::recovery`].

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Instant, Life, Rank};

use crate::config::JobConfig;
use crate::control::{ImageReport, Message, NoImageReason, Point, PointSummary, Source};
use crate::coordinator::Coordinated;
use crate::names::GenerationId;
use crate::sabotage::Sabotage;

/// The life that a checkpoint protocol works in: all its ranks run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifeView {
    /// The life.
    pub life: Life,
    /// The epoch in which it began.
    pub epoch: Epoch,
    /// Its ranks.
    pub ranks: u32,
    /// Those that can be saved only at counted points.
    pub counted: u32,
}

/// An input of a checkpoint protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckpointInput {
    /// A request for a checkpoint.
    Request(Source),
    /// The interval from now on, from the beginning of one checkpoint to that of the next; `None`: only on request.
    Every(Option<Duration>),
    /// The counts of all ranks (a [`Message::PointReport`] of the whole job).
    Points {
        /// The question.
        query: u32,
        /// The counts.
        summary: PointSummary,
    },
    /// Images are durable.
    Images {
        /// The life that wrote them. R8: only those of the current life count.
        life: Life,
        /// Their cut.
        epoch: Epoch,
        /// The images.
        reports: Vec<ImageReport>,
    },
    /// A rank has no image.
    NoImage {
        /// The cut.
        epoch: Epoch,
        /// The rank.
        rank: Rank,
        /// Why.
        reason: NoImageReason,
    },
    /// The commit record is durable on enough nodes.
    CommitDurable(GenerationId),
    /// The commit record could not be written, and it is certain that it never will be found.
    CommitFailed {
        /// The generation.
        generation: GenerationId,
        /// Linux error number.
        errno: u32,
    },
    /// All ranks have finished their work: nothing more is worth saving.
    Finishing,
    /// The life goes on without this rank (R37). There is no image of it, so there are no further generations.
    RankLost {
        /// The rank.
        rank: Rank,
    },
}

/// Why a checkpoint failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbandonReason {
    /// A rank has no image.
    NoImage {
        /// The rank.
        rank: Rank,
        /// Why.
        reason: NoImageReason,
    },
    /// Its time was over.
    TimedOut {
        /// Images that were durable.
        images: u32,
        /// Images expected.
        ranks: u32,
    },
    /// The commit record could not be written.
    CommitFailed {
        /// Linux error number.
        errno: u32,
    },
    /// The life goes on without this rank.
    RankLost {
        /// The rank.
        rank: Rank,
    },
    /// The job is ending.
    Finishing,
    /// A fault has ended the life.
    LifeOver,
}

/// Why a request was not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefuseReason {
    /// Nothing runs: the job is starting, recovering or over.
    NotRunning,
    /// All ranks have finished.
    Finishing,
    /// The life goes on without this rank.
    RankLost {
        /// The rank.
        rank: Rank,
    },
    /// Not all ranks reported how many points they have passed.
    NoAnswer,
    /// No epoch number is left in this life.
    EpochsUsedUp,
}

/// An event about checkpoints for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckpointEvent {
    /// A checkpoint has begun.
    Begun {
        /// Its epoch.
        epoch: Epoch,
        /// The origin of the request.
        source: Source,
        /// The point at which native ranks cut.
        point: Option<u64>,
    },
    /// A generation is durable.
    Committed {
        /// Its key.
        generation: GenerationId,
        /// The origin of the request.
        source: Source,
        /// From the command to the durable record.
        took: Duration,
        /// Its images and their cost, by rank.
        images: Vec<ImageReport>,
    },
    /// A checkpoint failed; the generation before it stays.
    Abandoned {
        /// Its epoch.
        epoch: Epoch,
        /// The origin of the request.
        source: Source,
        /// Why.
        reason: AbandonReason,
    },
    /// A request was not followed.
    Refused {
        /// The origin of the request.
        source: Source,
        /// Why.
        reason: RefuseReason,
    },
    /// Several checkpoints in a row were abandoned because ranks were not at the same point: the program's calls of
    /// `point()` do not line up, or lie too far apart.
    PointsDoNotLineUp {
        /// How many in a row.
        attempts: u32,
        /// The point named last.
        point: u64,
        /// The rank furthest behind when it was named.
        least: Point,
        /// The rank furthest ahead.
        most: Point,
        /// The rank that spoiled the last attempt and its count.
        spoiled_by: Point,
    },
}

/// An output of a checkpoint protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckpointOutput {
    /// Send this to every keeper and rank, along the tree.
    Broadcast(Message),
    /// Write the commit record (R8: last, exclusively). Answer with [`CheckpointInput::CommitDurable`] or
    /// [`CheckpointInput::CommitFailed`].
    WriteCommit {
        /// The generation.
        generation: GenerationId,
        /// The image of every rank, in the order of ranks.
        images: Vec<ImageReport>,
    },
    /// Everything older than this generation, and everything abandoned, may go.
    Collect {
        /// The newest committed generation.
        keep: GenerationId,
    },
    /// Report to the user.
    Event(CheckpointEvent),
}

/// The work in normal running that allows a job to survive a fault.
pub trait CheckpointProtocol: core::fmt::Debug + Send {
    /// Its name in job files.
    fn name(&self) -> &'static str;
    /// All ranks of a life run. Everything of the life before is forgotten.
    fn begin(&mut self, now: Instant, life: LifeView);
    /// Takes one input.
    fn handle(&mut self, now: Instant, input: CheckpointInput);
    /// R9: the life is over; nothing of it is committed from now on.
    fn fence(&mut self);
    /// Handles timeouts that are due.
    fn handle_timeout(&mut self, now: Instant);
    /// When [`CheckpointProtocol::handle_timeout`] has something to do.
    fn poll_timeout(&self) -> Option<Instant>;
    /// The next thing to do; call until there is none.
    fn poll_output(&mut self) -> Option<CheckpointOutput>;
    /// The epoch that is being saved, if any.
    fn saving(&self) -> Option<Epoch>;
}

/// Names that `checkpoint.protocol` may have.
pub const CHECKPOINT_PROTOCOLS: &str = "`coordinated`";
/// The checkpoint protocol of that name.
#[must_use]
pub fn checkpoint_protocol(
    name: &str,
    config: &JobConfig,
    sabotage: Sabotage,
) -> Option<Box<dyn CheckpointProtocol>> {
    match name {
        "coordinated" => Some(Box::new(Coordinated::new(config.checkpoint.clone(), sabotage))),
        _ => None,
    }
}
