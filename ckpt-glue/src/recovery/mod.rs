//! From a report to a job that runs again: what kind of fault it is, what follows, and the life that begins.
//!
//! | part         | decides                                                                                   |
//! |--------------|-------------------------------------------------------------------------------------------|
//! | [`Detector`] | the fault model of a report, where the fault is, and how sure that is                     |
//! | [`Policy`]   | the recovery protocols for each model, in the order in which they are tried               |
//! | [`Recovery`] | the order of steps: fence, decide, start                                                  |
//!
//! The parts and their names are those of Jitsumoto and Matsuoka (Fault/Recovery model aware component-based FTMPI, 2007).

mod components;
mod detector;
mod fault;
mod lives;
mod policy;
mod protocol;

use core::time::Duration;

use transport::Life;

use crate::control::Decision;
use crate::names::{GenerationId, NodeIndex};
use crate::sabotage::Sabotage;

pub use components::{Answer, Components, Loaded, Question};
pub use detector::Detector;
pub use fault::{Confidence, Fault, FaultModel, FaultSite};
pub use lives::Recovery;
pub use policy::{Order, Policy, PolicyError, Protocols, Thresholds};
pub use protocol::{Fallback, Plan, Price, RecoveryProtocol, RecoveryView, StopReason};

/// Where the first life of a launcher begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beginning {
    /// A new job: the program starts from the beginning, and after a fault again, until something is committed.
    Fresh,
    /// From the newest committed generation. There must be one, now and after every fault: a restarted job must not
    /// begin anew.
    Newest,
    /// From this generation, which the user named.
    Named(GenerationId),
}

/// An input of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// All keepers are there; begin the first life.
    Begin(Beginning),
    /// A fault, and the recovery protocol's plan.
    Fault(Fault, Plan),
    /// A person wants the end (Ctrl-C), or the program's time is over.
    Stop,
    /// All processes of all lives before `counter` are dead on this node.
    NodeFenced {
        /// As asked.
        counter: u32,
        /// The node.
        node: NodeIndex,
        /// Whether its keeper remembers all messages since the job's beginning.
        votes: bool,
    },
    /// A node does not answer, and no rank that it had can still run (R32).
    NodeLost {
        /// The node.
        node: NodeIndex,
    },
    /// Its place was given to another host ([`Output::Replace`]).
    NodeReplaced {
        /// The node.
        node: NodeIndex,
    },
    /// There is no other host for it.
    NotReplaced {
        /// The node.
        node: NodeIndex,
    },
    /// The store takes no commit of a life before `counter` any more; commits that were under way have ended.
    StoreFenced {
        /// As asked.
        counter: u32,
        /// Newest committed generation that can be restored.
        newest: Option<GenerationId>,
        /// Some generation is committed, whether or not it can be restored.
        committed: bool,
        /// 64 fresh random bits for the next life.
        nonce: u64,
    },
    /// The store's answer does not hold any more, and another one follows.
    StoreWithdrawn {
        /// As asked.
        counter: u32,
    },
    /// The store is at it, and needs more time.
    StoreBusy {
        /// As asked.
        counter: u32,
    },
    /// Lives up to this number were decided by others and were unknown here.
    LivesFound {
        /// The largest one.
        counter_last: u32,
    },
    /// The decision is durable.
    DecisionDurable {
        /// Its life.
        life: Life,
    },
    /// A rank of a program that begins anew has begun to connect: the others have a limited time from now on.
    Connecting,
    /// All ranks run.
    AllRunning,
    /// A generation was committed: the attempts so far were worth it.
    Committed(GenerationId),
    /// All ranks have ended as they should.
    AllEnded,
}

/// An output of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Ask all keepers to end every process of a life before `counter`.
    FenceNodes {
        /// Counter of the life to come.
        counter: u32,
        /// Whether there was no life yet.
        first: bool,
    },
    /// Ask the store to refuse every commit of a life before `counter`, then for the newest committed
    /// generation. Also asked before the first life, where it settles the state that an earlier launcher
    /// left.
    FenceStore {
        /// Counter of the life to come; the answer names it.
        counter: u32,
        /// Commits of lives with a counter below this one are refused from now on: always `counter`, unless R9 is
        /// taken out.
        refuse_below: u32,
    },
    /// The place of this node may be given to another host. If it is, answer with [`Input::NodeReplaced`], else with [`Input::NotReplaced`].
    Replace {
        /// The node.
        node: NodeIndex,
        /// It has answered the fence (R36), and keeps its place if there is no other host.
        answers: bool,
    },
    /// Make this durable.
    WriteDecision(Decision),
    /// Begin the life. Its decision is durable.
    StartLife(Decision),
    /// Nothing runs any more.
    Over(Ending),
}

/// Why nothing runs any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// All ranks ended as they should.
    Finished,
    /// A person, or the time limit, wanted it.
    Stopped,
    /// A fault that was not to be recovered from, or could not be.
    Failed {
        /// The last fault; `None` if the job failed before its first life.
        fault: Option<Fault>,
        /// Why no further attempt is made.
        reason: StopReason,
    },
}

/// The settings of a recovery.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Nodes of the job; all are needed to run it.
    pub nodes: u32,
    /// Keepers that remember the job since its beginning, and must answer before anything is decided: see [`crate::layout::Layout::quorum`].
    pub quorum: u32,
    /// Longest wait for the answers to a fence.
    pub fence_max: Duration,
    /// A node that may come back is waited for so much longer.
    pub transient_within: Duration,
    /// Ranks of an earlier launcher may run for so long on hosts that this one does not use.
    pub earlier_lease: Duration,
    /// Counter of the last life that was ever decided for this job; 0 for a new one.
    pub counter_last: u32,
    /// Time for all ranks to connect, from the first one that does; for restored ones, from the start of the life.
    pub start_timeout: Duration,
    /// Whether all ranks of a new program are known to connect by themselves.
    pub connects: bool,
    /// Which rule is out.
    pub sabotage: Sabotage,
}

/// The phase a recovery is in, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Not begun.
    Idle,
    /// Ending all processes.
    Fencing,
    /// Pausing.
    BackingOff,
    /// Making the decision durable.
    Deciding,
    /// Ranks come up.
    Starting,
    /// The program runs.
    Running,
    /// Nothing runs any more.
    Over,
}
