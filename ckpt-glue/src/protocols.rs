//! The three kinds of component that make a fault-tolerance model, chosen by name in the job's configuration.
//!
//! * [`CheckpointProtocol`]: the work in normal running, and the ranks that must roll back. `coordinated`.
//! * [`FaultDetector`]: which reports are faults. `process-death`.
//! * [`RecoveryProtocol`]: the reaction to a fault. `restart`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Instant, Life, Rank};

use crate::config::{JobConfig, OnExit, OnFault};
use crate::control::{FaultReport, ImageReport, Message, NoImageReason, Point, PointSummary, Source};
use crate::coordinator::Coordinated;
use crate::layout::Layout;
use crate::limits::BACK_OFF_MAX;
use crate::names::{ExitStatus, GenerationId};
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

/// The ranks that must roll back after a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RollBack {
    /// Every rank.
    All,
    /// Only this one.
    Only(Rank),
}

/// The work in normal running that allows a job to survive a fault, and the ranks that must roll back after one.
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
    /// The ranks that must roll back after `fault`.
    fn rolls_back(&self, fault: &Fault) -> RollBack;
}

/// Kinds of fault, as papers on fault models name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum FaultKind {
    /// A process is gone, its node is well.
    Process,
    /// A node is gone.
    Physical,
    /// The program itself has ended, or wants the end.
    Program,
    /// The saved state contradicts itself.
    Inconsistent,
}

/// A report that calls for recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The observations.
    pub report: FaultReport,
}

/// Decides which reports are faults.
pub trait FaultDetector: core::fmt::Debug + Send {
    /// Its name in job files.
    fn name(&self) -> &'static str;
    /// Takes a report; the fault, if it makes one.
    fn observe(&mut self, now: Instant, report: &FaultReport) -> Option<Fault>;
}

/// The facts for a recovery protocol.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryView<'a> {
    /// Which nodes run which ranks.
    pub layout: &'a Layout,
    /// Newest committed generation.
    pub newest: Option<GenerationId>,
    /// Attempts to recover since the last committed generation, the coming one not counted.
    pub attempts: u32,
    /// Of these, those since the last life whose ranks ran for [`BACK_OFF_MAX`].
    pub in_a_row: u32,
    /// Attempts allowed.
    pub restarts_max: u32,
    /// Whether a fault ends the job.
    pub on_fault: OnFault,
    /// Whether an exit code of a rank is a fault.
    pub on_exit: OnExit,
    /// The ranks that must roll back.
    pub roll_back: RollBack,
}

/// The reaction to a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// End all processes, begin a new life from the newest committed generation on the same nodes, after this pause.
    Restart {
        /// Pause between the end of the old life and the decision about the new one.
        after: Duration,
    },
    /// End all processes and the job.
    Stop {
        /// Why no attempt is made.
        reason: StopReason,
    },
}

/// Why a job ends after a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The configuration sets it.
    OnFaultAbort,
    /// The program asked for it.
    ProgramAborted,
    /// A rank has ended by itself, in the middle of its program.
    ProgramExited,
    /// Some ranks of a program that begins anew connect and others do not: the next time would end in the same way.
    NotAllConnected,
    /// As many attempts as allowed have failed since the last committed generation.
    AttemptsUsedUp {
        /// How many.
        attempts: u32,
    },
    /// Restarting the same generation would end in the same way.
    Inconsistent,
    /// No majority of the keepers answers: another coordinator may decide.
    NoMajority {
        /// Keepers that answered.
        answered: u32,
        /// Keepers needed.
        needed: u32,
    },
    /// Nodes that are needed do not answer, and there is no other place for their ranks.
    NodesMissing {
        /// Nodes that answered.
        answered: u32,
        /// Nodes of the job.
        nodes: u32,
    },
    /// The store does not answer whether it is fenced.
    StoreSilent,
    /// A job that was restarted finds no generation that it could go back to.
    NothingToRestore,
}

/// The reaction to a fault.
pub trait RecoveryProtocol: core::fmt::Debug + Send {
    /// Its name in job files.
    fn name(&self) -> &'static str;
    /// The reaction to `fault`.
    fn plan(&self, view: &RecoveryView<'_>, fault: &Fault) -> Plan;
}

/// A process that was killed is a fault, and so is a node that is gone; an exit code is the program's own. A silent process is no fault: it may be
/// stopped, swapped out, or under a debugger. Its silence is evidence of a suspicion (R33), as a late heartbeat is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessDeath;

impl FaultDetector for ProcessDeath {
    fn name(&self) -> &'static str {
        "process-death"
    }

    fn observe(&mut self, _now: Instant, report: &FaultReport) -> Option<Fault> {
        let kind = match report {
            FaultReport::RankSilent { .. }
            | FaultReport::RankHeard { .. }
            | FaultReport::KeeperOverdue { .. }
            | FaultReport::KeeperHeard { .. } => return None,
            FaultReport::RankDied { status: ExitStatus::Code(_), .. } | FaultReport::Aborted { .. } => {
                FaultKind::Program
            }
            FaultReport::RankDied { status: ExitStatus::Signal(_), .. }
            | FaultReport::RankNotRestored { .. }
            | FaultReport::RankNotStarted { .. }
            | FaultReport::StartTimedOut { .. }
            | FaultReport::DecisionFailed { .. } => FaultKind::Process,
            FaultReport::KeeperSilent { .. } => FaultKind::Physical,
            FaultReport::Inconsistent { .. } => FaultKind::Inconsistent,
        };
        Some(Fault { kind, report: *report })
    }
}

/// RESTART: all ranks again on the same nodes.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// Pause before the second attempt in a row; doubled for each further one, up to [`BACK_OFF_MAX`].
    pub back_off: Duration,
}

impl RecoveryProtocol for Restart {
    fn name(&self) -> &'static str {
        "restart"
    }

    fn plan(&self, view: &RecoveryView<'_>, fault: &Fault) -> Plan {
        match fault.kind {
            FaultKind::Program if matches!(fault.report, FaultReport::Aborted { .. }) => {
                return Plan::Stop { reason: StopReason::ProgramAborted };
            }
            FaultKind::Program if view.on_exit == OnExit::Fail => {
                return Plan::Stop { reason: StopReason::ProgramExited };
            }
            FaultKind::Process
                if view.newest.is_none() && matches!(fault.report, FaultReport::StartTimedOut { .. }) =>
            {
                return Plan::Stop { reason: StopReason::NotAllConnected };
            }
            FaultKind::Inconsistent => return Plan::Stop { reason: StopReason::Inconsistent },
            FaultKind::Program | FaultKind::Process | FaultKind::Physical => {}
        }
        if view.on_fault == OnFault::Abort {
            return Plan::Stop { reason: StopReason::OnFaultAbort };
        }
        if view.attempts >= view.restarts_max {
            return Plan::Stop { reason: StopReason::AttemptsUsedUp { attempts: view.attempts } };
        }
        let after = match view.in_a_row {
            0 => Duration::ZERO,
            more => self.back_off.saturating_mul(2u32.saturating_pow(more - 1)).min(BACK_OFF_MAX),
        };
        Plan::Restart { after }
    }
}

/// Names that `checkpoint.protocol` may have.
pub const CHECKPOINT_PROTOCOLS: &str = "`coordinated`";
/// Names that `fault.detector` may have.
pub const FAULT_DETECTORS: &str = "`process-death`";
/// Names that `fault.recovery` may have.
pub const RECOVERY_PROTOCOLS: &str = "`restart`";

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

/// The fault detector of that name.
#[must_use]
pub fn fault_detector(name: &str) -> Option<Box<dyn FaultDetector>> {
    match name {
        "process-death" => Some(Box::new(ProcessDeath)),
        _ => None,
    }
}

/// The recovery protocol of that name.
#[must_use]
pub fn recovery_protocol(name: &str, config: &JobConfig) -> Option<Box<dyn RecoveryProtocol>> {
    match name {
        "restart" => Some(Box::new(Restart { back_off: config.fault.back_off })),
        _ => None,
    }
}
