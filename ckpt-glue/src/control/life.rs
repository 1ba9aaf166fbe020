//! Messages of the beginning and the end of a life.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use transport::{Epoch, Life, PortId, Rank, RawAddress};

use super::checkpoint::CutMode;
use super::wire::{wire_enum, wire_struct};
use crate::layout::Layout;
use crate::limits::{LEASE_MARGIN_PART, SUSPECTED_AFTER};
use crate::names::{ExitStatus, GenerationId, NodeIndex};

/// R9: the decision that is durable before the first process of a life starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The new life.
    pub life: Life,
    /// The generation that *every* rank restores; `None`: they all start from the beginning.
    pub restore: Option<GenerationId>,
}

wire_struct!(Decision, 13, { life, restore });

impl Decision {
    /// The epoch in which all ranks of the life begin: that of the generation, so that the links' rules hold unchanged.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.restore.map_or(Epoch(0), |generation| generation.epoch)
    }
}

/// How keepers watch each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    /// Nanoseconds between heartbeats.
    pub beat_ns: u64,
    /// Nanoseconds without one after which a keeper is reported as silent.
    pub silence_ns: u64,
    /// Nanoseconds that a keeper's ranks may run after its last question that was answered; less than `silence_ns`, so that no rank of a keeper runs
    /// that is reported as silent (R31).
    pub lease_ns: u64,
}

wire_struct!(Watch, 24, { beat_ns, silence_ns, lease_ns });

impl Watch {
    /// Of a keeper that is reported as silent after `silence`.
    #[must_use]
    pub fn new(beat: Duration, silence: Duration) -> Watch {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let silence_ns = nanos(silence);
        // The last part is for a guard to notice that a lease is over, and for the processes to end.
        Watch { beat_ns: nanos(beat), silence_ns, lease_ns: silence_ns - silence_ns / LEASE_MARGIN_PART }
    }
    pub(crate) fn beat(&self) -> Duration {
        Duration::from_nanos(self.beat_ns)
    }
    /// A keeper that has not been heard for so long counts as silent, and its ranks have ended.
    #[must_use]
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(self.silence_ns)
    }
    /// A keeper that has not been heard for so long is suspected (R33): earlier than it is lost, also with a short silence.
    #[must_use]
    pub fn suspicion(&self) -> Duration {
        SUSPECTED_AFTER.min(self.silence() / 2)
    }
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns)
    }
}

/// The data that a keeper needs to begin a life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewLife {
    /// The decision, already durable.
    pub decision: Decision,
    /// Which nodes run which ranks.
    pub layout: Layout,
    /// Heartbeats; `None`: a job of one node, whose keeper lives and dies with the coordinator.
    pub watch: Option<Watch>,
}

wire_struct!(NewLife, 30, { decision, layout, watch });

/// One port of one rank and where it can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortEntry {
    /// The port; its rank is part of the id.
    pub port: PortId,
    /// Its address on each of its rails, in the order of the rails.
    pub rails: Vec<RawAddress>,
}

wire_struct!(PortEntry, 12, { port, rails });

/// A rank that has come up and can be reached, but runs no program yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The rank.
    pub rank: Rank,
    /// Its process id, in the keeper's process namespace.
    pub pid: u32,
    /// How it can be saved.
    pub mode: CutMode,
    /// Its ports.
    pub ports: Vec<PortEntry>,
}

wire_struct!(Registration, 13, { rank, pid, mode, ports });

/// A fault, from the view of its observer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultReport {
    /// A process ended that should not have.
    RankDied {
        /// Its rank.
        rank: Rank,
        /// How.
        status: ExitStatus,
    },
    /// A process ended by itself before it had become the one in its image.
    RankNotRestored {
        /// Its rank.
        rank: Rank,
        /// How.
        status: ExitStatus,
    },
    /// A process could not be started or restored; the number is the shell's `errno`.
    RankNotStarted {
        /// Its rank.
        rank: Rank,
        /// Linux error number.
        errno: u32,
    },
    /// A rank's port has not answered its peer for long. Not a fault by itself: the process may be stopped or busy.
    RankSilent {
        /// The silent rank.
        rank: Rank,
        /// The rank that hears nothing of it over the data network; `None`: its keeper misses an answer.
        by: Option<Rank>,
        /// Milliseconds without a frame.
        silent_ms: u64,
    },
    /// A keeper has missed its heartbeats: its node is gone or cut off.
    KeeperSilent {
        /// Its node.
        node: NodeIndex,
    },
    /// Nothing was heard of a keeper for a while: a suspicion (R33).
    KeeperOverdue {
        /// Its node.
        node: NodeIndex,
    },
    /// A keeper that was overdue is heard again.
    KeeperHeard {
        /// Its node.
        node: NodeIndex,
    },
    /// A rank that was silent is heard again.
    RankHeard {
        /// That rank.
        rank: Rank,
        /// The rank that hears it.
        by: Rank,
    },
    /// A node answers, and its ranks and those of other nodes have not heard each other for long. The coordinator's own conclusion.
    NodeCutOff {
        /// The node.
        node: NodeIndex,
        /// Milliseconds since they have.
        silent_ms: u64,
    },
    /// A person says that a node is failing.
    NodeSuspected {
        /// The node.
        node: NodeIndex,
    },
    /// Both ends of a link contradict each other after a restart (R10). No restart of the same generation can help.
    Inconsistent {
        /// The port that noticed.
        port: PortId,
        /// Its peer.
        peer: PortId,
        /// Oldest unacknowledged frame of the sender.
        oldest: u64,
        /// The sender's next frame.
        next: u64,
        /// The value that the receiver expects.
        found: u64,
    },
    /// Not all ranks connected in time.
    StartTimedOut {
        /// Ranks that had.
        running: u32,
        /// Ranks of the job.
        ranks: u32,
    },
    /// The program ended itself and all others (`MPI_Abort`).
    Aborted {
        /// The rank that asked.
        rank: Rank,
        /// Its code.
        code: u8,
    },
    /// The decision about a life could not be made durable; the number is the shell's `errno`.
    DecisionFailed {
        /// Linux error number.
        errno: u32,
    },
}

wire_enum!(FaultReport, "fault", {
    0 => RankDied { rank, status },
    1 => RankNotStarted { rank, errno },
    2 => RankSilent { rank, by, silent_ms },
    3 => KeeperSilent { node },
    4 => Inconsistent { port, peer, oldest, next, found },
    5 => StartTimedOut { running, ranks },
    6 => Aborted { rank, code },
    7 => DecisionFailed { errno },
    8 => RankNotRestored { rank, status },
    9 => KeeperOverdue { node },
    10 => KeeperHeard { node },
    11 => RankHeard { rank, by },
    12 => NodeCutOff { node, silent_ms },
    13 => NodeSuspected { node },
});

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultReport::RankDied { rank, status } => write!(f, "rank {rank} died ({status})"),
            FaultReport::RankNotRestored { rank, status } => {
                write!(f, "rank {rank} ended before it was restored ({status})")
            }
            FaultReport::RankNotStarted { rank, errno } => {
                write!(f, "rank {rank} could not be started (errno {errno})")
            }
            FaultReport::RankSilent { rank, by: Some(by), silent_ms } => {
                write!(f, "rank {rank} has not answered for {silent_ms} ms (rank {by} waits)")
            }
            FaultReport::RankSilent { rank, by: None, silent_ms } => {
                write!(f, "rank {rank} has not answered for {silent_ms} ms")
            }
            FaultReport::KeeperOverdue { node } => write!(f, "node {node} is overdue"),
            FaultReport::KeeperHeard { node } => write!(f, "node {node} is heard again"),
            FaultReport::RankHeard { rank, by } => write!(f, "rank {rank} answers rank {by} again"),
            FaultReport::KeeperSilent { node } => write!(f, "node {node} is gone or cut off"),
            FaultReport::NodeCutOff { node, silent_ms } => write!(
                f,
                "ranks of node {node} and of other nodes have not heard each other for {silent_ms} ms"
            ),
            FaultReport::NodeSuspected { node } => write!(f, "node {node} is said to fail"),
            FaultReport::Inconsistent { port, peer, oldest, next, found } => write!(
                f,
                "ports {port} and {peer} contradict each other: frame {found} is expected, {oldest} to {next} are held"
            ),
            FaultReport::StartTimedOut { running, ranks } => {
                write!(f, "only {running} of {ranks} ranks came up in time")
            }
            FaultReport::Aborted { rank, code } => write!(f, "rank {rank} aborted the job (code {code})"),
            FaultReport::DecisionFailed { errno } => {
                write!(f, "the decision about the next life could not be written (errno {errno})")
            }
        }
    }
}

/// The job's activity, for a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobPhase {
    /// Waiting for keepers.
    Gathering,
    /// Ending all processes before a new attempt.
    Fencing,
    /// Waiting before the next attempt.
    BackingOff,
    /// Making the decision durable.
    Deciding,
    /// Ranks come up.
    Starting,
    /// The program runs.
    Running,
    /// All ranks have finished their work, their processes are ending.
    Finishing,
    /// Nothing runs any more.
    Over,
}

wire_enum!(JobPhase, "phase of the job", {
    0 => Gathering {}, 1 => Fencing {}, 2 => BackingOff {}, 3 => Deciding {}, 4 => Starting {}, 5 => Running {},
    6 => Finishing {}, 7 => Over {},
});

/// The answer to `ps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobStatus {
    /// Its phase.
    pub phase: JobPhase,
    /// The current life; `None` before the first.
    pub life: Option<Life>,
    /// Newest committed generation.
    pub committed: Option<GenerationId>,
    /// Generations committed since the launcher started.
    pub commits: u32,
    /// Rollbacks since the launcher started.
    pub rollbacks: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// Ranks that run in this life.
    pub running: u32,
    /// Ranks that have finished their work.
    pub finalizing: u32,
    /// The epoch that is being saved; `None` if no checkpoint is under way.
    pub saving: Option<Epoch>,
}

wire_struct!(JobStatus, 24, { phase, life, committed, commits, rollbacks, ranks, running, finalizing, saving });
