//! From a report to the reaction: detector, policy, and hosts in the place of others.

use alloc::vec::Vec;

use transport::Instant;

use super::super::books::{Counted, Ended};
use super::super::{Event, Output};
use super::Job;
use crate::control::FaultReport;
use crate::limits::EXIT_GRACE;
use crate::names::{ExitStatus, NodeIndex};
use crate::recovery::{
    self, Fallback, Fault, FaultModel, Phase, Plan, Policy, Price, RecoveryProtocol, RecoveryView, StopReason,
};

impl Job {
    /// Which faults there are, and the reaction to each.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.settings.config.fault.policy
    }

    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.settings.config.fault.policy = policy;
        self.outputs.push(Output::Event(Event::PolicyChanged));
    }

    /// A rank in a session that waits for a rank which has ended without one waits for ever.
    pub(super) fn watch_left(&mut self, now: Instant) {
        if let Some(rank) = self.counted.left.filter(|_| self.counted.connecting) {
            self.on_report(now, FaultReport::RankDied { rank, status: ExitStatus::Code(0) });
        }
    }

    pub(super) fn on_report(&mut self, now: Instant, report: FaultReport) {
        if self.is_evidence(now, report) {
            return;
        }
        let fault = self.detector.classify(&report, &self.settings.layout);
        // Several processes die of one cause. Faults that follow while the old life is being ended are no
        // news, except that the job must end.
        let heard = match (self.recovery.phase(), fault.map(|fault| fault.model)) {
            (Phase::Idle | Phase::Over, _) => false,
            _ if self.closing.is_some() => false,
            (Phase::Fencing, model) => model == Some(FaultModel::Inconsistent),
            _ => true,
        };
        let Some(fault) = fault.filter(|_| heard) else {
            self.outputs.push(Output::Event(Event::Reported { report, action: None }));
            return;
        };
        let waits = fault.model == FaultModel::Program
            && self.settings.layout.ranks() > 1
            && matches!(self.plan(now, &fault), Some(Plan::Stop { .. }));
        if !waits {
            return self.act_on(now, fault);
        }
        if self.ended.is_some() {
            // The first counts.
            self.outputs.push(Output::Event(Event::Reported { report, action: None }));
            return;
        }
        self.ended = Some(Ended { fault, until: now + EXIT_GRACE });
    }

    /// `None`: the fault is waited for its end.
    fn plan(&self, now: Instant, fault: &Fault) -> Option<Plan> {
        let config = &self.settings.config.fault;
        let view = RecoveryView {
            newest: self.recovery.committed(),
            attempts: self.recovery.attempts(),
            in_a_row: self.recovery.attempts_in_a_row(now),
            restarts_max: config.restarts_max,
            back_off: config.back_off,
            on_fault: config.on_fault,
            on_exit: config.on_exit,
        };
        config.policy.plan(&view, fault)
    }

    /// Ends the life for a fault, and starts the reaction to it.
    pub(super) fn act_on(&mut self, now: Instant, mut fault: Fault) {
        self.detector.count(now, &mut fault, &self.settings.config.fault.policy.thresholds);
        let report = fault.report;
        let Some(plan) = self.plan(now, &fault) else {
            return self.outputs.push(Output::Event(Event::Reported { report, action: None }));
        };
        if let Some(Ended { fault: Fault { report, .. }, .. }) = self.ended.take() {
            // It has ended because of this.
            self.outputs.push(Output::Event(Event::Reported { report, action: None }));
        }
        self.outputs.push(Output::Event(Event::Reported { report, action: Some((fault, plan)) }));
        self.fault_at.get_or_insert(now);
        self.price.get_or_insert(Price {
            model: fault.model,
            protocol: RecoveryProtocol::Restart,
            ranks: self.settings.layout.ranks(),
            moved: Vec::new(),
        });
        self.interval.measure.end_life(now, !matches!(plan, Plan::Stop { .. }));
        self.end_life(now);
        self.recovery.handle(now, recovery::Input::Fault(fault, plan));
    }

    /// R9: nothing of the old life counts from now on.
    pub(super) fn end_life(&mut self, now: Instant) {
        self.relay_checkpoint(now);
        self.checkpoint.fence();
        self.counted = Counted::default();
        self.leases = None;
        self.suspicions.end();
        self.ended = None;
    }

    /// A silent network becomes a fault when it has lasted.
    pub(super) fn watch_network(&mut self, now: Instant) {
        if self.cut_off_due().is_none_or(|due| now < due) {
            return;
        }
        if let Some((node, since)) = self.suspicions.cut_off_longest() {
            let silent_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            self.on_report(now, FaultReport::NodeCutOff { node, silent_ms });
        }
    }

    /// When the next silence is a fault.
    pub(super) fn cut_off_due(&self) -> Option<Instant> {
        let policy = self.policy();
        let is_fault = policy.on.network.first() != RecoveryProtocol::Wait;
        let runs = self.recovery.phase() == Phase::Running;
        let longest = self.suspicions.cut_off_longest().filter(|_| is_fault && runs);
        longest.map(|(_, since)| since + policy.thresholds.network_after)
    }

    /// R32: a node has not answered the fence, and no rank of it can still run.
    pub(super) fn on_lost(&mut self, now: Instant, node: NodeIndex) {
        // A launcher that continues a job decides nothing about nodes that it has not seen yet.
        let protocol = match self.recovery.life() {
            Some(_) => self.policy().on.permanent.first(),
            None => RecoveryProtocol::Migration,
        };
        match protocol {
            RecoveryProtocol::Migration => self.recovery.handle(now, recovery::Input::NodeLost { node }),
            RecoveryProtocol::Stop => {
                self.give_up(now, node, StopReason::Policy { model: FaultModel::Permanent });
            }
            RecoveryProtocol::Restart | RecoveryProtocol::Wait => {
                self.outputs.push(Output::Event(Event::NodeAwaited { node }));
            }
        }
    }

    /// A node is lost for good, and the job ends with it.
    fn give_up(&mut self, now: Instant, node: NodeIndex, reason: StopReason) {
        let (report, site) = (FaultReport::KeeperSilent { node }, recovery::FaultSite::Node(node));
        let confidence = recovery::Confidence::TimedOut;
        let fault = Fault { model: FaultModel::Permanent, site, confidence, report };
        let plan = Plan::Stop { reason };
        self.outputs.push(Output::Event(Event::Reported { report, action: Some((fault, plan)) }));
        self.recovery.handle(now, recovery::Input::Fault(fault, plan));
        self.recovery.handle(now, recovery::Input::NodeLost { node });
    }

    /// Another host has the node's place.
    pub(super) fn on_replaced(&mut self, now: Instant, node: NodeIndex) {
        self.absent.is_replaced(now, node);
        self.detector.forget(node);
        if let Some(price) = &mut self.price {
            if price.model == FaultModel::Transient {
                price.model = FaultModel::Permanent;
            }
            price.protocol = RecoveryProtocol::Migration;
            price.moved.push(node);
        }
        self.recovery.handle(now, recovery::Input::NodeReplaced { node });
    }

    /// No host can take its place.
    pub(super) fn on_not_replaced(&mut self, now: Instant, node: NodeIndex) {
        let stops = self.policy().on.permanent.fallback() == Fallback::Stop;
        if stops && self.recovery.life().is_some() && self.recovery.is_lost(node) {
            return self.give_up(now, node, StopReason::NoOtherHost { node });
        }
        self.recovery.handle(now, recovery::Input::NotReplaced { node });
    }
}
