//! Fault models, as papers on fault tolerance name them.

use core::fmt;

use transport::Rank;

use crate::control::FaultReport;
use crate::names::NodeIndex;

/// The kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultModel {
    /// A node answers, and its ranks and those of other nodes do not hear each other.
    Network,
    /// A process is gone, its node is well.
    Process,
    /// Processes of one node are gone again and again.
    Repeated,
    /// A node is gone, and may answer again.
    Transient,
    /// A node is gone for good: it has not answered in time, or a person says so.
    Permanent,
    /// The program itself has ended, or wants the end.
    Program,
    /// The saved state contradicts itself.
    Inconsistent,
}

impl FaultModel {
    /// Those for which a policy names the reaction.
    pub const CHOSEN: [FaultModel; 5] = [
        FaultModel::Network,
        FaultModel::Process,
        FaultModel::Repeated,
        FaultModel::Transient,
        FaultModel::Permanent,
    ];

    /// The name in files and in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultModel::Network => "network",
            FaultModel::Process => "process",
            FaultModel::Repeated => "repeated",
            FaultModel::Transient => "transient",
            FaultModel::Permanent => "permanent",
            FaultModel::Program => "program",
            FaultModel::Inconsistent => "inconsistent",
        }
    }
}

impl fmt::Display for FaultModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a fault is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultSite {
    /// Nowhere in particular.
    Job,
    /// In the process of this rank, on this node.
    Rank(Rank, NodeIndex),
    /// On this node.
    Node(NodeIndex),
}

impl FaultSite {
    /// The node.
    #[must_use]
    pub fn node(self) -> Option<NodeIndex> {
        match self {
            FaultSite::Job => None,
            FaultSite::Rank(_, node) | FaultSite::Node(node) => Some(node),
        }
    }
}

/// How sure a fault is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confidence {
    /// The kernel has reported the end of the process, or the program has said so itself.
    Certain,
    /// A timeout has passed: the silent process or node may still run.
    TimedOut,
    /// A person says so.
    Person,
    /// A component says so.
    Component,
}

/// A report that calls for recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Its kind.
    pub model: FaultModel,
    /// Where it is.
    pub site: FaultSite,
    /// How sure it is.
    pub confidence: Confidence,
    /// The observations.
    pub report: FaultReport,
}
