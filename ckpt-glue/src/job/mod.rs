//! A job as its coordinator sees it: one actor that decides, made of the three components that the configuration names.
//!
//! The shell feeds [`Input`]s one at a time, carries out [`Output`]s in order, and nothing else decides anything.

mod absent;
mod books;
mod limit;
mod machine;
mod suspicion;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{JobId, Life};

use crate::config::JobConfig;
use crate::control::{Control, Decision, FaultReport, ImageReport, Source};
use crate::diagnosis::Diagnosis;
use crate::interval::{Cause, Estimate, Every, Tuning};
use crate::layout::Layout;
use crate::names::{ExitStatus, GenerationId, NodeIndex, Party};
use crate::protocols::{AbandonReason, CheckpointEvent, RefuseReason};
use crate::recovery::{Answer, Beginning, Ending, Fault, Loaded, Plan, Policy, Price, Question};
use crate::sabotage::Sabotage;

pub use machine::Job;
pub use suspicion::{Monitor, SuspicionEvent};

/// The settings of a job.
#[derive(Clone, Debug)]
pub struct JobSettings {
    /// Its id.
    pub job: JobId,
    /// Its components and times.
    pub config: JobConfig,
    /// Which nodes run which ranks.
    pub layout: Layout,
    /// Where the first life begins.
    pub beginning: Beginning,
    /// Counter of the last life that was ever decided for this job; 0 for a new one.
    pub counter_last: u32,
    /// Some node is not this launcher's host: its keeper may run on when the launcher is gone, so ranks have leases (R30).
    pub is_remote: bool,
    /// Ranks of an earlier launcher may run for so long on hosts that this one does not use: no life begins before (R31).
    pub earlier_lease: Duration,
    /// The longest silence after which earlier launchers of the job took a node for lost; zero if there was none. Leases that they granted last accordingly (R32).
    pub former_silence: Duration,
    /// Whether every rank of a new program is known to connect by itself, so that one that has not in time has not come up. Else it may be a program that
    /// knows nothing of all this, and simply runs.
    pub connects: bool,
    /// Which rule is out.
    pub sabotage: Sabotage,
}

/// An input of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A control message, from any sender.
    Control(Control),
    /// A request for a checkpoint.
    Request(Source),
    /// Another interval between checkpoints from now on.
    Tune(Tuning),
    /// A person asks why the job hangs. Answered with [`Output::Diagnosed`].
    Diagnose,
    /// The answer to [`Output::FenceStore`].
    StoreFenced {
        /// As asked.
        counter: u32,
        /// Newest committed generation that can be restored.
        newest: Option<GenerationId>,
        /// Some generation is committed, whether or not it can be restored.
        committed: bool,
        /// 64 fresh random bits.
        nonce: u64,
    },
    /// The answer to [`Output::FenceStore`] does not hold any more, if nothing was decided from it: a node was lost. Another one follows.
    StoreWithdrawn {
        /// As asked.
        counter: u32,
    },
    /// The place of a node was given to another host, whose keeper is being started ([`Output::Replace`]).
    NodeReplaced {
        /// The node.
        node: NodeIndex,
    },
    /// There is no other host for the node ([`Output::Replace`]).
    NotReplaced {
        /// The node.
        node: NodeIndex,
    },
    /// A person says that a node is failing.
    Suspect {
        /// The node.
        node: NodeIndex,
    },
    /// Other reactions to faults from now on.
    SetPolicy(Policy),
    /// Whether any host may take a node's place; at first it may.
    OtherHosts(bool),
    /// A detector that is a component suspects this node.
    Detected {
        /// The node.
        node: NodeIndex,
    },
    /// The components that answer from now on; at first none.
    Loaded(Loaded),
    /// The answer to [`Output::Ask`].
    Answered {
        /// The question.
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// The answer to [`Output::FenceStore`] takes its time, and there is progress: lost images are being rebuilt, or all of them read.
    StoreBusy {
        /// As asked.
        counter: u32,
    },
    /// Before the first life: lives up to this number were decided by others and were unknown here. The store is fenced
    /// anew, below a number above it ([`Output::FenceStore`]).
    LivesFound {
        /// The largest one.
        counter_last: u32,
    },
    /// The decision is durable.
    DecisionDurable {
        /// Its life.
        life: Life,
    },
    /// The decision could not be written. It must never be found later.
    DecisionFailed {
        /// Its life.
        life: Life,
        /// Linux error number.
        errno: u32,
    },
    /// The commit record is durable on enough nodes.
    CommitDurable(GenerationId),
    /// The commit record could not be written, or was refused by the fence. It must never be found later (R1): after an
    /// error that leaves it open, the shell first makes sure that it is gone, or tries again.
    CommitFailed {
        /// Its generation.
        generation: GenerationId,
        /// Linux error number.
        errno: u32,
    },
    /// A person wants the end.
    Stop,
}

/// An output of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this.
    Send {
        /// The receiver: a keeper, or the tool that asked.
        to: Party,
        /// Its name.
        control: Control,
    },
    /// From now on the store refuses commits of lives with a counter below `refuse_below`. Commits under way are waited
    /// for or prevented. Then answer with [`Input::StoreFenced`].
    FenceStore {
        /// Names the question.
        counter: u32,
        /// The bound.
        refuse_below: u32,
    },
    /// Nothing was heard of the keeper of this node for too long. End the connection to it, and start another keeper there.
    Reconnect {
        /// The node.
        node: NodeIndex,
    },
    /// No rank that a node had can still run (R32, R36): its place may be given to another host. Then answer with [`Input::NodeReplaced`], and without another host
    /// with [`Input::NotReplaced`]. A node that does not answer is then waited for until the fence has had its time.
    Replace {
        /// The node.
        node: NodeIndex,
        /// It answers, and goes on if there is no other host.
        answers: bool,
    },
    /// A node is lost, and keeps its place by the job's policy: it is waited for until the fence has had its time. Its keeper is to be started again.
    Await {
        /// The node.
        node: NodeIndex,
    },
    /// Make this durable, then answer with [`Input::DecisionDurable`] or [`Input::DecisionFailed`] (R9).
    WriteDecision(Decision),
    /// Write the commit record, then answer with [`Input::CommitDurable`] or [`Input::CommitFailed`] (R8).
    WriteCommit {
        /// The generation.
        generation: GenerationId,
        /// The image of every rank, in the order of ranks.
        images: Vec<ImageReport>,
    },
    /// Generations older than this one, and images of abandoned ones, may go.
    Collect {
        /// The newest committed generation.
        keep: GenerationId,
    },
    /// Ask a component; the answer is [`Input::Answered`]. A component that has failed answers [`Answer::BuiltIn`], and [`Input::Loaded`] follows.
    Ask {
        /// Names the question. `None`: no answer is awaited.
        number: Option<u64>,
        /// The question.
        question: Question,
    },
    /// Who waits for whom. `None`: no ranks run, or the life has ended meanwhile.
    Diagnosed(Option<Box<Diagnosis>>),
    /// Report to the user.
    Event(Event),
    /// Nothing runs any more.
    Over(FinalReport),
}

/// An event for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A life begins: processes are being started.
    LifeBegun {
        /// The decision.
        decision: Decision,
        /// Attempts to recover since the last committed generation, this one included; 0 for the first life.
        attempt: u32,
    },
    /// All ranks run.
    AllRunning {
        /// The life.
        life: Life,
        /// Since the fault that made it necessary was reported; `None` for the first life.
        since_fault: Option<Duration>,
        /// What the recovery has cost; `None` for the first life.
        price: Option<Price>,
    },
    /// Faults have other reactions from now on.
    PolicyChanged,
    /// Something about a checkpoint.
    Checkpoint(CheckpointEvent),
    /// A person has changed when checkpoints are taken.
    IntervalTuned(Every),
    /// The interval between checkpoints has changed noticeably, of a job that chooses it itself.
    IntervalChosen {
        /// The interval.
        chosen: Estimate,
        /// Why it is another one.
        cause: Cause,
    },
    /// Something was reported.
    Reported {
        /// Its name.
        report: FaultReport,
        /// The reaction; `None` if it is no fault, or if the ranks are being ended already.
        action: Option<(Fault, Plan)>,
    },
    /// A node may be gone, or is there again (R33).
    Suspicion(SuspicionEvent),
    /// The disk has not answered for a while. The job keeps waiting for its answer.
    DiskSilent {
        /// The record being written.
        record: Record,
        /// For how long.
        waited: Duration,
    },
    /// All ranks have finished their work.
    AllFinished,
}

/// A record that the coordinator has written; it continues only when the record is known to be durable or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// The commit record of a generation.
    Commit(GenerationId),
    /// The decision about a life.
    Decision(Life),
}

/// Why a job was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopCause {
    /// A person.
    Person,
    /// Its time limit.
    TimeLimit {
        /// Why there is no checkpoint of its end, if there is none.
        unsaved: Option<Unsaved>,
    },
}

/// Why the last checkpoint before a time limit is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsaved {
    /// It was given up.
    Abandoned(AbandonReason),
    /// It was not begun.
    Refused(RefuseReason),
    /// It was not durable in time.
    TooLate,
    /// Not all ranks ran: the job was coming up, or going back after a fault.
    NotRunning,
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinalReport {
    /// Why nothing runs any more.
    pub ending: Ending,
    /// The cause that stopped it, if the ending has one.
    pub stopped_by: Option<StopCause>,
    /// A status of a rank that is not success, if the job finished with one.
    pub status: ExitStatus,
    /// Newest committed generation: a restart would begin from it.
    pub committed: Option<GenerationId>,
    /// Generations committed.
    pub commits: u32,
    /// Attempts to recover.
    pub rollbacks: u32,
}
