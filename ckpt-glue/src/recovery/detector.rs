//! Which reports are faults, and of which model.

use alloc::collections::{BTreeMap, VecDeque};

use transport::{Instant, Rank};

use super::{Confidence, Fault, FaultModel, FaultSite, Thresholds};
use crate::control::FaultReport;
use crate::layout::Layout;
use crate::names::{ExitStatus, NodeIndex};

/// Names the model of a fault from the reports of monitors.
///
/// A process that a signal ended is a fault, and so is a node that is gone; an exit code is the program's own. A silent process is no fault: it may be
/// stopped, swapped out, or under a debugger. Its silence is evidence of a suspicion (R33), as a late heartbeat is.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    /// When processes of a node were at fault, oldest first; no more of each than the threshold.
    process_faults: BTreeMap<NodeIndex, VecDeque<Instant>>,
}

impl Detector {
    /// The fault of a report; `None`: it is none.
    #[must_use]
    pub fn classify(&self, report: &FaultReport, layout: &Layout) -> Option<Fault> {
        let of = |rank: Rank| layout.node_of(rank).map_or(FaultSite::Job, |node| FaultSite::Rank(rank, node));
        let (model, site, confidence) = match *report {
            FaultReport::RankSilent { .. }
            | FaultReport::RankHeard { .. }
            | FaultReport::KeeperOverdue { .. }
            | FaultReport::KeeperHeard { .. } => return None,
            FaultReport::RankDied { rank, status: ExitStatus::Code(_) }
            | FaultReport::Aborted { rank, .. } => (FaultModel::Program, of(rank), Confidence::Certain),
            FaultReport::RankDied { rank, status: ExitStatus::Signal(_) }
            | FaultReport::RankNotRestored { rank, .. }
            | FaultReport::RankNotStarted { rank, .. } => {
                (FaultModel::Process, of(rank), Confidence::Certain)
            }
            FaultReport::StartTimedOut { .. } => (FaultModel::Process, FaultSite::Job, Confidence::TimedOut),
            FaultReport::DecisionFailed { .. } => (FaultModel::Process, FaultSite::Job, Confidence::Certain),
            FaultReport::KeeperSilent { node } => {
                (FaultModel::Transient, FaultSite::Node(node), Confidence::TimedOut)
            }
            FaultReport::NodeCutOff { node, .. } => {
                (FaultModel::Network, FaultSite::Node(node), Confidence::TimedOut)
            }
            FaultReport::NodeSuspected { node } => {
                (FaultModel::Permanent, FaultSite::Node(node), Confidence::Person)
            }
            FaultReport::Inconsistent { .. } => {
                (FaultModel::Inconsistent, FaultSite::Job, Confidence::Certain)
            }
        };
        Some(Fault { model, site, confidence, report: *report })
    }

    /// Counts a fault that ends a life. So many process faults of one node are a fault of the node.
    pub fn count(&mut self, now: Instant, fault: &mut Fault, thresholds: &Thresholds) {
        let (FaultModel::Process, FaultSite::Rank(_, node)) = (fault.model, fault.site) else { return };
        let faults = self.process_faults.entry(node).or_default();
        faults.push_back(now);
        while faults.len() > thresholds.repeated_faults as usize
            || faults.front().is_some_and(|first| now.since(*first) > thresholds.repeated_within)
        {
            faults.pop_front();
        }
        if faults.len() >= thresholds.repeated_faults as usize {
            fault.model = FaultModel::Repeated;
        }
    }

    /// Another host has the node's place: the faults were those of the one before it.
    pub fn forget(&mut self, node: NodeIndex) {
        self.process_faults.remove(&node);
    }
}
