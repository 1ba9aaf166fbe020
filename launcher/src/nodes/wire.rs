//! Requests to a keeper for the directory of its node, and its answers. Records travel as their bytes.

use std::time::Duration;

use ckpt_glue::protection::Account;
use ckpt_glue::protection::nodes::Found;
use ckpt_glue::protection::seat::{self, JobEnd, Seat};
use protector::{Limits, Shape, Statistics};
use serde::{Deserialize, Serialize};
use store::protect::Group;
use store::{Decision, GenerationId, Manifest};
use transport::Life;

use super::super::flush::wire::CopyAccess;

/// A node's directory of its own, and its part in its group.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// Nodes of the group, and how many of them may be lost; empty: nothing is protected.
    pub(crate) nodes: Vec<u32>,
    pub(crate) losses: usize,
    pub(crate) budget: Budget,
    /// The job file.
    pub(crate) job_file: Vec<u8>,
}

/// The limits of protecting on a node, and the way that parity takes; the cheapest one, if none is named.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Budget {
    /// The node's resources that may be used.
    pub limits: Limits,
    /// The way of parity.
    pub shape: Option<Shape>,
}

impl Membership {
    /// The group, if there is one.
    pub(crate) fn group(&self) -> Option<Group> {
        if self.nodes.is_empty() { None } else { Group::new(self.nodes.clone(), self.losses).ok() }
    }
}

/// A request to a keeper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum NodeTask {
    /// Make the directory if it is not there, take over the decisions, and look at these generations: every byte of those that are marked.
    /// `sees`: a place of copies and a sign there, which must be the launcher's.
    Survey { decisions: Vec<Decision>, generations: Vec<(Manifest, bool)>, sees: Option<(CopyAccess, u64)> },
    /// Note a seat (R34).
    Seat { seat: Seat, is_taken: bool },
    /// Look at this generation, in a life that runs.
    Look(Manifest),
    /// Bring the node's images of a generation from a place of copies.
    Fetch { generation: GenerationId, from: CopyAccess },
    /// Write down a decision.
    Decide(Decision),
    /// Replace the copy of the job file by this one.
    Keep { job_file: Vec<u8> },
    /// Commit this generation here: the job has committed it.
    Commit(Manifest),
    /// Remove generations that are not kept.
    Collect { life: Life, keep: u32, kept: Vec<GenerationId> },
    /// The job is over: note that, and leave no candidate behind (R34).
    JobEnd(JobEnd),
    /// The job is over: commit here the generations that it has committed, and remove unfinished ones.
    Settle { manifests: Vec<Manifest> },
    /// A protector's endpoint for this life, which is about to begin.
    Open { life: Life },
    /// Where the protectors of all nodes are.
    Meet { life: Life, addresses: Vec<(u32, Vec<u8>)> },
    /// Protect a generation, building upon the data of `from` that all members hold. `ranks`: the first one here, and the one behind the last.
    Protect { generation: GenerationId, from: Option<GenerationId>, ranks: (u32, u32) },
    /// Give it up.
    Abandon { generation: GenerationId },
    /// Compute this node's lost data of a generation from the data of the others.
    Repair { generation: GenerationId },
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum NodeDone {
    /// As asked.
    Done,
    /// To [`NodeTask::Survey`], in the same order, and further records that are known here. `beside`: the nodes whose directories lie beside this
    /// one's.
    Surveyed { found: Vec<Found>, seats: seat::Known, end: Option<JobEnd>, known: Known, beside: Vec<u32> },
    /// To [`NodeTask::Look`].
    Looked(Found),
    /// Instead: decisions are here that contradict those that came with it, or come after them. Nothing was looked at; these are all that are here.
    Ahead(Vec<Decision>),
    /// To [`NodeTask::Open`]: where it is.
    Opened { addresses: Vec<u8>, unusable: Vec<String> },
    /// To [`NodeTask::Abandon`]: how far it was with it, if it was being protected.
    GivenUp(Option<Account>),
    /// To [`NodeTask::Fetch`]: so many files.
    Fetched(u32),
    /// To [`NodeTask::Repair`].
    Repaired(Rebuilt),
    /// To [`NodeTask::Protect`]: its cost.
    Protected(Effort),
}

/// The cost of protecting a generation on a node: see [`Statistics`]. Overlapping work counts in each of the times, in microseconds. A command's
/// answer has it, too.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Effort {
    pub(crate) shape: Option<String>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) network_us: u64,
    pub(crate) disk_us: u64,
    pub(crate) arithmetic_us: u64,
    pub(crate) total_us: u64,
    pub(crate) predicted_us: u64,
}

impl From<&Statistics> for Effort {
    fn from(found: &Statistics) -> Effort {
        let us = |seconds: f64| {
            let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
        };
        Effort {
            shape: found.shape.map(|shape| shape.to_string()),
            sent_bytes: found.sent_bytes,
            received_bytes: found.received_bytes,
            read_bytes: found.read_bytes,
            written_bytes: found.written_bytes,
            network_us: us(found.seconds.network),
            disk_us: us(found.seconds.disk),
            arithmetic_us: us(found.seconds.arithmetic),
            total_us: us(found.seconds.total),
            predicted_us: us(found.seconds.predicted),
        }
    }
}

/// Whole records of a node that did not come with the question.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) decisions: Vec<Decision>,
    /// Of generations that are committed there.
    pub(crate) manifests: Vec<Manifest>,
}

/// The rebuilt data of a generation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Rebuilt {
    /// Files that were missing or cut off.
    pub(crate) files: u64,
    /// Damaged pages of files that were there.
    pub(crate) pages: u64,
    /// Pages of parity.
    pub(crate) parity_pages: u64,
    /// Records that were missing or damaged.
    pub(crate) records: u64,
    /// Bytes that the other nodes sent for it.
    pub(crate) received_bytes: u64,
}
