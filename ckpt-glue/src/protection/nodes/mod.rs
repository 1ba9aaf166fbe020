//! The directories of a job's nodes, as its coordinator sees them: one actor that asks the nodes, and decides from their answers (R27, R28).
//!
//! ```text
//!   life to begin:  Survey (all) ---> Seat (all) ---> Open, Meet ---> choose ---> the decision is written ---> Decide (all) ---> ranks start
//!                        ^                              | lost, and can be rebuilt or brought
//!                        +------- Repair, Fetch <-------+
//!   checkpoint:     images durable ---> (Open, Meet, if they have not met) ---> Protect (all) ---> commit record written ---> Commit (all) ---> Collect (all)
//!                                          | refused, lost, late ---> Late (all): Abandon
//!   behind a life:  Rebuild (nodes with losses) ---> Look (all) ---> the next generation; a checkpoint goes first
//! ```
//!
//! The shell feeds [`Input`]s one at a time and carries out [`Output`]s in order. It reads the records that come with answers; everything else about
//! them is decided here. `D` is what the shell keeps of an answer and gets back with the event in which it counts.

mod machine;
mod protectors;
mod rebuilding;
mod restoring;
mod round;
mod sealing;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};
use transport::Life;

use super::late::{Account, Cause};
use super::restore::Terms;
use super::seat::{Claimant, JobEnd, Known, Seat, Unseated};
use super::verdict::{Finding, GenerationVerdict, ProtectionGroup};
use crate::control::ImageReport;
use crate::names::{GenerationId, NodeIndex};
use crate::sabotage::Sabotage;

pub use machine::Nodes;

/// A node's findings of a generation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Why its images cannot be restored; `None`: they can.
    pub problem: Option<String>,
    /// Its part of the generation and its protection data can be read completely.
    pub is_whole: bool,
    /// Or a part of it: pages from which others may be rebuilt.
    pub has_some: bool,
}

impl Found {
    /// Without words.
    #[must_use]
    pub fn finding(&self) -> Finding {
        Finding { has_images: self.problem.is_none(), is_whole: self.is_whole, has_some: self.has_some }
    }
}

/// Why a node has not done what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Linux error number.
    pub errno: u32,
    /// In words.
    pub why: String,
}

impl Refusal {
    /// `EIO`: the node's disk fails, or something that lies on it is damaged.
    pub const DEVICE: u32 = 5;
    /// `EHOSTDOWN`: the node's keeper is gone.
    pub const GONE: u32 = 112;
    /// `ETIMEDOUT`: the node has not answered in time.
    pub const LATE: u32 = 110;
    /// `ENOSPC`: the node's disk is full.
    pub const NO_ROOM: u32 = 28;
    /// `ENODATA`: all others have answered, and their data is not enough to compute the lost data, neither now nor later.
    pub const BEYOND_REPAIR: u32 = 61;
    /// `ECANCELED`: the life was over before.
    pub const LIFE_OVER: u32 = 125;
}

/// Refusals by node.
pub type Refused = BTreeMap<NodeIndex, Refusal>;

/// An answer, without the records that may come with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// As asked.
    Done,
    /// To [`Question::Survey`].
    Surveyed {
        /// Of each generation, in the order of the question.
        found: Vec<Found>,
        /// The seats that the directory knows.
        seats: Known,
        /// The end of the job, if the directory knows it and no later life.
        end: Option<JobEnd>,
    },
    /// To [`Question::Look`].
    Looked(Found),
    /// To [`Question::Late`]: how far it was.
    GivenUp(Option<Account>),
}

/// A question to nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Their generations and decisions, before a life begins.
    Survey,
    /// To note a seat durably (R34).
    Seat {
        /// The seat.
        seat: Seat,
        /// It was taken; otherwise it is being taken.
        is_taken: bool,
    },
    /// To open their protectors' endpoints for this life. Its nonce is another one each time, also within a life.
    Open(Life),
    /// To learn where the others' endpoints of that name are.
    Meet(Life),
    /// To compute their lost data of a generation.
    Repair(GenerationId),
    /// To bring their lost data of a generation from its copy.
    Fetch(GenerationId),
    /// To take over a decision.
    Decide(Life),
    /// To protect a generation, building upon the data of another one that all members hold.
    Protect(GenerationId, Option<GenerationId>),
    /// To give up a generation that was not protected in time, and to report how far they were with it.
    Late(GenerationId),
    /// To take over a commit record.
    Commit(GenerationId),
    /// To remove generations that are not kept.
    Collect,
    /// As [`Question::Repair`], behind a life that runs.
    Rebuild(GenerationId),
    /// The outcome of that.
    Look(GenerationId),
}

/// Longest waits for answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// For one that needs no other node's data.
    pub answer: Duration,
    /// Until a generation is protected.
    pub protect: Duration,
    /// For the account of a late node.
    pub late: Duration,
    /// Without progress, while images are brought from a copy.
    pub fetch_silent: Duration,
    /// Between two reports that images are being rebuilt or brought.
    pub progress_every: Duration,
}

/// The settings of a job's nodes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Nodes.
    pub nodes: u32,
    /// Nodes that protect each other; none: nothing is protected.
    pub groups: Vec<ProtectionGroup>,
    /// Longest waits.
    pub times: Times,
    /// Which rule is out.
    pub sabotage: Sabotage,
}

/// A life is to begin.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Its counter.
    pub counter: u32,
    /// 64 fresh random bits.
    pub nonce: u64,
    /// The committed generations, newest first.
    pub generations: Vec<GenerationId>,
    /// The terms of the choice.
    pub terms: Terms,
    /// The launcher, as one who may have to take the seat (R34).
    pub claimant: Claimant,
    /// No life was before: a node that refuses is the command's error.
    pub is_first: bool,
}

/// The outcome of reading the records that came with a survey's answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Records {
    /// They agree with the job's own, but for these nodes'.
    Agree(Refused),
    /// The job's own have been mended from them. The nodes are asked again, about these generations, newest first.
    Mended(Vec<GenerationId>),
}

/// An input.
#[derive(Clone, Debug)]
pub enum Input<D> {
    /// A node's keeper is there.
    KeeperReady(NodeIndex),
    /// A node's keeper is gone.
    KeeperLost(NodeIndex),
    /// An answer to question `number`.
    Answered {
        /// Of this node.
        node: NodeIndex,
        /// As asked.
        number: u64,
        /// In short, and the shell's part.
        answer: Result<(Answer, D), Refusal>,
    },
    /// A node works on question `number`.
    Busy {
        /// The node.
        node: NodeIndex,
        /// As asked.
        number: u64,
    },
    /// The store has been fenced.
    Survey(Survey),
    /// The answer to [`Output::Surveyed`]. None: a fence, or the end, follows.
    Records(Records),
    /// The seat is noted durably in the job's directory.
    SeatHeld(Seat),
    /// The decision about this life is durable in the job's directory.
    Decided(Life),
    /// Every image is durable where it was written.
    Written {
        /// The generation.
        generation: GenerationId,
        /// Its images.
        images: Vec<ImageReport>,
    },
    /// The commit record is durable in the job's directory.
    Committed(GenerationId),
    /// Old generations have been removed from the job's directory; these are kept.
    Collected(Vec<GenerationId>),
    /// A checkpoint has failed: a node that had no room for the decision may have it now.
    CheckpointFailed,
    /// All ranks run.
    AllRunning,
    /// The life is being ended, and nothing of it is waited for.
    LifeOver,
    /// The job is over: nothing more is rebuilt.
    Leaving,
}

/// An output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<D> {
    /// Send these nodes this question. Each answer comes as [`Input::Answered`].
    Ask {
        /// Names it.
        number: u64,
        /// The question.
        question: Question,
        /// The nodes.
        nodes: BTreeSet<NodeIndex>,
    },
    /// All nodes give this generation up; no answer is expected.
    Abandon(GenerationId),
    /// These nodes are sent the newest decision again; no answer is expected.
    Remind(BTreeSet<NodeIndex>),
    /// The answers to the survey. Read the records in them, then answer with [`Input::Records`].
    Surveyed {
        /// Answers by node.
        answers: BTreeMap<NodeIndex, D>,
    },
    /// A node refuses before the first life: the job does not begin.
    Unfit(NodeIndex, Refusal),
    /// The seat is taken: note it durably in the job's directory, then answer with [`Input::SeatHeld`].
    SeatTaken(Seat),
    /// The launcher may not begin a life (R34): the job ends here.
    Unseated(Unseated),
    /// A life that is to begin takes its time, and there is progress.
    Busy {
        /// Its counter.
        counter: u32,
    },
    /// The choice of [`Output::Begin`] does not hold any more: a node was lost before the decision. Another one follows.
    Withdraw {
        /// Its counter.
        counter: u32,
    },
    /// This life begins.
    Begin {
        /// The life.
        life: Life,
        /// From this generation; `None`: none can be restored.
        from: Option<GenerationId>,
        /// Every member of every group holds what it keeps of it for the others.
        is_protected: bool,
    },
    /// A majority of nodes may not know the decision yet, but none waits for it.
    DecisionNoted(Life),
    /// Write the commit record of this generation: it is protected (R27).
    Protected {
        /// The generation.
        generation: GenerationId,
        /// Its images.
        images: Vec<ImageReport>,
        /// Answers by node; none where nothing is protected.
        answers: BTreeMap<NodeIndex, D>,
    },
    /// The generation is given up.
    NotProtected {
        /// The generation.
        generation: GenerationId,
        /// Linux error number.
        errno: u32,
    },
    /// The nodes have been sent the commit record.
    CommitNoted(GenerationId),
    /// Report to the user.
    Event(Event<D>),
}

/// The verdict on a generation before a life begins, with the reasons in the nodes' words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The generation.
    pub generation: GenerationId,
    /// The verdict.
    pub verdict: GenerationVerdict,
    /// Why nodes' images of it cannot be restored.
    pub problems: BTreeMap<NodeIndex, String>,
    /// Why the last repair has failed.
    pub failure: Refused,
}

/// An event for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<D> {
    /// Nodes have refused.
    Refused(Question, Refused),
    /// Protectors' endpoints are open.
    Opened(BTreeMap<NodeIndex, D>),
    /// Generations that were passed over or chosen, newest first. They replace those of the last such event.
    Judged(Vec<Report>),
    /// Nodes rebuild their part of a generation before the life begins.
    Repairing {
        /// The generation.
        generation: GenerationId,
        /// The nodes.
        nodes: BTreeSet<NodeIndex>,
        /// Why images of it cannot be restored, as those of them report that know a reason.
        problems: BTreeMap<NodeIndex, String>,
    },
    /// Nodes bring their part of a generation from its copy.
    Fetching(GenerationId, BTreeSet<NodeIndex>),
    /// They have it.
    Fetched(GenerationId, BTreeMap<NodeIndex, D>),
    /// Nodes rebuild their part of a kept generation while the job runs.
    Rebuilding(GenerationId, BTreeSet<NodeIndex>),
    /// Nodes have rebuilt their part.
    Rebuilt {
        /// The generation.
        generation: GenerationId,
        /// Answers by node.
        answers: BTreeMap<NodeIndex, D>,
        /// A life is to begin.
        is_before_life: bool,
    },
    /// A kept generation is whole on all nodes again.
    WholeAgain(GenerationId),
    /// A kept generation is not rebuilt, because it cannot be.
    NotRebuildable(Report),
    /// A kept generation is not rebuilt: nodes have refused, or have these problems after it.
    NotRebuilt {
        /// The generation.
        generation: GenerationId,
        /// By node; `None`: the node's answer says nothing of it.
        problems: BTreeMap<NodeIndex, Option<String>>,
        /// Refusals.
        refused: Refused,
    },
    /// A generation was not protected in time.
    Late {
        /// The generation.
        generation: GenerationId,
        /// Why it was given up.
        refused: Refused,
        /// The late nodes.
        causes: BTreeMap<NodeIndex, Cause>,
        /// Accounts by node.
        accounts: BTreeMap<NodeIndex, Account>,
        /// The newest generation that stays protected.
        base: Option<GenerationId>,
    },
}
