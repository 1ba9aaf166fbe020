//! Recovery protocols: what follows a fault, and its price.

use alloc::collections::BTreeSet;
use core::fmt;
use core::time::Duration;

use transport::Rank;

use super::{Confidence, Fault, FaultModel, Order, Policy};
use crate::config::{OnExit, OnFault};
use crate::control::FaultReport;
use crate::limits::BACK_OFF_MAX;
use crate::names::{ExitStatus, GenerationId, NodeIndex};

/// The reaction to a fault, as a policy names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecoveryProtocol {
    /// Nothing: the fault may pass.
    Wait,
    /// The job goes on without the rank that has ended.
    Ignore,
    /// All ranks go back to the newest generation, on the same nodes.
    Restart,
    /// The same, with another host in the place of the node that is at fault.
    Migration,
    /// The job ends.
    Stop,
}

impl RecoveryProtocol {
    /// All of them.
    pub const ALL: [RecoveryProtocol; 5] = [
        RecoveryProtocol::Wait,
        RecoveryProtocol::Ignore,
        RecoveryProtocol::Restart,
        RecoveryProtocol::Migration,
        RecoveryProtocol::Stop,
    ];

    /// The name in files and in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RecoveryProtocol::Wait => "wait",
            RecoveryProtocol::Ignore => "ignore",
            RecoveryProtocol::Restart => "restart",
            RecoveryProtocol::Migration => "migration",
            RecoveryProtocol::Stop => "stop",
        }
    }
}

impl fmt::Display for RecoveryProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What follows if no other host can take a node's place, or if a rank cannot be ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The node keeps its place.
    Restart,
    /// The job ends.
    Stop,
}

/// The reaction to a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// The life goes on without this rank (R37): operations to it fail, it counts as ended, and nothing is saved any more.
    Ignore {
        /// The rank.
        rank: Rank,
        /// How it has ended.
        status: ExitStatus,
    },
    /// End all processes, begin a new life from the newest committed generation on the same nodes, after this pause.
    Restart {
        /// Pause between the end of the old life and the decision about the new one.
        after: Duration,
    },
    /// The same, and another host takes the place of this node once nothing of the old life runs there (R36).
    Migrate {
        /// The node.
        node: NodeIndex,
        /// As for [`Plan::Restart`].
        after: Duration,
        /// If there is no other host.
        fallback: Fallback,
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
    /// The policy for this model says so.
    Policy {
        /// The model.
        model: FaultModel,
    },
    /// The policy wants another host in the place of this node, and there is none.
    NoOtherHost {
        /// The node.
        node: NodeIndex,
    },
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

/// What a recovery has cost, besides its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Price {
    /// The model of the fault.
    pub model: FaultModel,
    /// The protocol that was carried out.
    pub protocol: RecoveryProtocol,
    /// Ranks that went back.
    pub ranks: u32,
    /// Nodes whose place another host has taken.
    pub moved: BTreeSet<NodeIndex>,
}

/// The facts for a plan.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryView {
    /// Newest committed generation.
    pub newest: Option<GenerationId>,
    /// Attempts to recover since the last committed generation, the coming one not counted.
    pub attempts: u32,
    /// Of these, those since the last life whose ranks ran for [`BACK_OFF_MAX`].
    pub in_a_row: u32,
    /// Attempts allowed.
    pub restarts_max: u32,
    /// Pause before the second attempt in a row; doubled for each further one, up to [`BACK_OFF_MAX`].
    pub back_off: Duration,
    /// Whether a fault ends the job.
    pub on_fault: OnFault,
    /// Whether an exit code of a rank is a fault.
    pub on_exit: OnExit,
    /// Whether any host may take a node's place.
    pub has_other_hosts: bool,
    /// Whether the life can go on without a rank: all of them run.
    pub all_run: bool,
    /// Whether the program can be rolled back. One of an MPI library without checkpoints cannot.
    pub rolls_back: bool,
}

impl Policy {
    /// The reaction to `fault`; `None`: it is waited for its end.
    #[must_use]
    pub fn plan(&self, view: &RecoveryView, fault: &Fault) -> Option<Plan> {
        let stop = |reason| Some(Plan::Stop { reason });
        let order = self.on.of(fault.model);
        if order.is_some_and(|order| order.first() == RecoveryProtocol::Wait) {
            return None;
        }
        if let Some(plan) = self.ignored(view, fault) {
            return Some(plan);
        }
        let is_start_over =
            matches!(fault.report, FaultReport::StartTimedOut { .. }) && view.newest.is_none();
        match fault.model {
            FaultModel::Program if matches!(fault.report, FaultReport::Aborted { .. }) => {
                return stop(StopReason::ProgramAborted);
            }
            FaultModel::Program if view.on_exit == OnExit::Fail => return stop(StopReason::ProgramExited),
            FaultModel::Process if is_start_over => return stop(StopReason::NotAllConnected),
            FaultModel::Inconsistent => return stop(StopReason::Inconsistent),
            _ => {}
        }
        if view.on_fault == OnFault::Abort || !view.rolls_back {
            return stop(StopReason::OnFaultAbort);
        }
        let stops = |order: &Order| match order.first() {
            RecoveryProtocol::Ignore => order.fallback() == Fallback::Stop,
            first => first == RecoveryProtocol::Stop,
        };
        if order.is_some_and(stops) {
            return stop(StopReason::Policy { model: fault.model });
        }
        if view.attempts >= view.restarts_max && fault.confidence != Confidence::Person {
            return stop(StopReason::AttemptsUsedUp { attempts: view.attempts });
        }
        let after = match view.in_a_row {
            0 => Duration::ZERO,
            more => view.back_off.saturating_mul(2u32.saturating_pow(more - 1)).min(BACK_OFF_MAX),
        };
        let moves = order.filter(|order| order.first() == RecoveryProtocol::Migration);
        Some(match (moves, fault.site.node()) {
            (Some(order), Some(node)) if view.has_other_hosts => {
                Plan::Migrate { node, after, fallback: order.fallback() }
            }
            (Some(order), Some(node)) if order.fallback() == Fallback::Stop => {
                Plan::Stop { reason: StopReason::NoOtherHost { node } }
            }
            _ => Plan::Restart { after },
        })
    }

    /// A rank that has ended is gone for a program that bears it, whether a signal has ended it or it has ended itself.
    fn ignored(&self, view: &RecoveryView, fault: &Fault) -> Option<Plan> {
        let FaultReport::RankDied { rank, status } = fault.report else { return None };
        let model = match fault.model {
            FaultModel::Program => FaultModel::Process,
            model => model,
        };
        let is_chosen = self.on.of(model).is_some_and(|order| order.first() == RecoveryProtocol::Ignore);
        let is_possible = view.all_run && view.on_fault != OnFault::Abort;
        (is_chosen && is_possible).then_some(Plan::Ignore { rank, status })
    }
}
