//! The keepers as the job's machine sees them: their leases, their silence, and nodes that do not answer (R30 to R33).

use alloc::vec::Vec;
use core::time::Duration;

use transport::Instant;

use super::super::books::Leases;
use super::super::suspicion::{Action, Monitor, SuspicionEvent};
use super::super::{Event, JobSettings, Output};
use super::Job;
use crate::control::{FaultReport, Message, NO_LIFE, Watch};
use crate::names::{NodeIndex, Party};
use crate::recovery::{Beginning, Phase};
use crate::sabotage::Rule;

impl JobSettings {
    /// How keepers watch each other, if they do.
    fn watch(&self) -> Option<Watch> {
        let watches = self.layout.nodes() > 1 || self.is_remote;
        watches.then(|| self.config.keeper.watch())
    }

    /// Longest wait for keepers before the first fence. In a restart that one waits for a host that is gone, and gives its place away.
    pub(super) fn gather_max(&self) -> Duration {
        match (self.beginning, self.watch()) {
            (Beginning::Newest | Beginning::Named(_), Some(_)) => self.config.keeper.restart_gather_max(),
            _ => self.config.fault.start_timeout,
        }
    }
}

impl Job {
    /// R31: time in which the coordinator has not run, or by which its clock has jumped ahead, does not count as silence: leases may still run.
    pub(super) fn look(&mut self, now: Instant) {
        let (Some(next), Some(watch)) = (self.next_look, self.watch()) else { return };
        if now < next {
            return;
        }
        let late = now.since(next);
        self.next_look = Some(now + watch.beat());
        if let Some(leases) = &mut self.leases {
            leases.root_heard = leases.root_heard.max(now.min(leases.root_heard + late));
        }
        self.absent.postpone(late);
        self.recovery.postpone(late);
    }

    pub(super) fn watch_keepers(&mut self, now: Instant) {
        let root = self.settings.layout.root();
        let is_silent = |leases: &mut Leases| now >= leases.root_heard + leases.watch.silence();
        if self.leases.take_if(is_silent).is_some() {
            self.absent.is_silent(root);
            self.on_report(now, FaultReport::KeeperSilent { node: root });
        }
    }

    /// The keeper at the top of the tree asks for a lease.
    pub(super) fn on_heartbeat(&mut self, now: Instant, keepers: u32, asked_ns: u64) {
        let Some(leases) = &mut self.leases else { return };
        leases.root_heard = now;
        leases.is_overdue = false;
        self.suspicions.heard(now, self.settings.layout.root());
        let left_ns = leases.watch.lease_ns;
        // Without a majority another coordinator may decide: our ranks stop when their leases run out.
        if keepers >= self.settings.layout.majority() {
            self.absent.granted(now + leases.watch.silence());
            self.broadcast(Message::Lease { asked_ns, left_ns });
        }
    }

    /// R33: the silence of the root, which no other keeper watches, and everything else that is due.
    pub(super) fn watch_suspects(&mut self, now: Instant) {
        if let Some(leases) = self.leases.as_mut().filter(|leases| !leases.is_overdue && now >= leases.due())
        {
            leases.is_overdue = true;
            self.suspicions.overdue(now, self.settings.layout.root());
        }
        self.suspicions.due(now);
        self.relay_suspicions(now);
        self.watch_network(now);
    }

    /// R33: takes a report that is evidence of a suspicion, and no fault. Only the silence of a rank is reported besides: jobs on one host have no other
    /// sign of it.
    pub(super) fn is_evidence(&mut self, now: Instant, report: FaultReport) -> bool {
        match report {
            FaultReport::KeeperOverdue { node } => self.suspicions.overdue(now, node),
            FaultReport::KeeperHeard { node } => self.suspicions.heard(now, node),
            FaultReport::RankSilent { rank, by: Some(by), silent_ms } => {
                self.suspicions.rank_silent(now, rank, by, Duration::from_millis(silent_ms));
                return false;
            }
            FaultReport::RankHeard { rank, by } => self.suspicions.rank_heard(now, rank, by),
            _ => return false,
        }
        true
    }

    /// R33: a suspicion is a question and an event, and ends nothing.
    pub(super) fn relay_suspicions(&mut self, now: Instant) {
        while let Some(action) = self.suspicions.poll() {
            match action {
                Action::Ask { node, number } => {
                    self.send_as(NO_LIFE, Party::Keeper(node), Message::Probe { number });
                }
                Action::Event(event) => {
                    let ends = self.settings.sabotage.is_out(Rule::SuspicionEnds);
                    let raised = match event {
                        SuspicionEvent::Raised { node, .. } => Some(node).filter(|_| ends),
                        _ => None,
                    };
                    self.outputs.push(Output::Event(Event::Suspicion(event)));
                    if let Some(node) = raised {
                        self.absent.is_silent(node);
                        self.on_report(now, FaultReport::KeeperSilent { node });
                    }
                }
            }
        }
    }

    /// Nodes that are not trusted now, the monitors that suspect them, and since when the first does.
    pub fn suspects(&self) -> impl Iterator<Item = (NodeIndex, Vec<Monitor>, Instant)> + '_ {
        self.suspicions.suspects()
    }

    /// How often this monitor has suspected a node that was there.
    #[must_use]
    pub fn false_alarms(&self, by: Monitor) -> u64 {
        self.suspicions.false_alarms(by)
    }

    /// R32: nodes that do not answer the fence.
    pub(super) fn watch_absent(&mut self, now: Instant) {
        if self.recovery.phase() != Phase::Fencing {
            return;
        }
        for node in self.absent.due(now) {
            self.on_lost(now, node);
        }
    }

    pub(super) fn watch(&self) -> Option<Watch> {
        self.settings.watch()
    }

    /// R9, and R32 for nodes that do not answer. `first`: before the first life of this launcher.
    pub(super) fn fence_nodes(&mut self, now: Instant, first: bool) {
        let layout = &self.settings.layout;
        let nodes: Vec<NodeIndex> = layout.shares().iter().map(|share| share.node).collect();
        let early = self.settings.sabotage.is_out(Rule::PlaceTooEarly);
        match self.watch() {
            Some(watch) if !first => {
                let more = self.policy().thresholds.transient_within;
                self.absent.fence(now, watch, more, early, nodes.iter().copied());
                for node in self.absent.silent() {
                    self.outputs.push(Output::Reconnect { node });
                }
            }
            Some(watch) if self.settings.beginning != Beginning::Fresh => {
                let former = self.settings.former_silence;
                let (quorum, nodes) = (layout.quorum(), nodes.iter().copied());
                self.absent.fence_first(now, watch, former, early, quorum, nodes);
            }
            _ => {}
        }
        for node in nodes {
            self.send_fence(node);
        }
    }

    pub(super) fn send_fence(&mut self, node: NodeIndex) {
        let life = self.recovery.life().unwrap_or(NO_LIFE);
        let (counter, first) = self.fence;
        let first = first && self.absent.may_remember(node);
        self.send_as(life, Party::Keeper(node), Message::Fence { counter, first });
    }
}
