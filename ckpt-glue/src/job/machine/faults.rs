//! From a report to the reaction: detector, policy, and hosts in the place of others.

use alloc::collections::BTreeSet;

use transport::{Instant, Rank};

use super::super::books::{Counted, Ended};
use super::super::suspicion::CutOff;
use super::super::{Event, Output};
use super::Job;
use crate::control::{FaultReport, Message};
use crate::limits::EXIT_GRACE;
use crate::names::{ExitStatus, NodeIndex};
use crate::protocols::CheckpointInput;
use crate::recovery::{
    self, Confidence, Fallback, Fault, FaultModel, Phase, Plan, Policy, Price, RecoveryProtocol,
    RecoveryView, StopReason,
};
use crate::sabotage::Rule;

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
        if self.is_of_lost(now, report) || self.is_evidence(now, report) {
            return self.show_detector(report);
        }
        let fault = self.detector.classify(&report, &self.settings.layout);
        self.on_classified(now, report, fault);
    }

    /// Takes what the built-in detector makes of a report.
    pub(super) fn on_classified(&mut self, now: Instant, report: FaultReport, fault: Option<Fault>) {
        // Several processes die of one cause. Faults that follow while the old life is being ended are no
        // news, except that the job must end.
        let heard = match (self.recovery.phase(), fault.map(|fault| fault.model)) {
            (Phase::Idle | Phase::Over, _) => false,
            _ if self.closing.is_some() => false,
            (Phase::Fencing, model) => model == Some(FaultModel::Inconsistent),
            _ => true,
        };
        let Some(fault) = fault.filter(|_| heard) else {
            self.show_detector(report);
            self.outputs.push(Output::Event(Event::Reported { report, action: None }));
            return;
        };
        if self.holds(now, report, &fault) {
            return;
        }
        let waits = fault.model == FaultModel::Program
            && self.settings.layout.ranks() > 1
            && matches!(self.plan(now, &fault, None), Some(Plan::Stop { .. }));
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

    /// `None`: the fault is waited for its end. `protocol`: a component's choice.
    pub(super) fn plan(
        &self,
        now: Instant,
        fault: &Fault,
        protocol: Option<RecoveryProtocol>,
    ) -> Option<Plan> {
        let config = &self.settings.config.fault;
        let changed = protocol.and_then(|first| config.policy.with_protocol(fault.model, first).ok());
        let view = RecoveryView {
            newest: self.recovery.committed(),
            attempts: self.recovery.attempts(),
            in_a_row: self.recovery.attempts_in_a_row(now),
            restarts_max: config.restarts_max,
            back_off: config.back_off,
            on_fault: config.on_fault,
            on_exit: config.on_exit,
            has_other_hosts: self.has_other_hosts,
            all_run: self.recovery.phase() == Phase::Running && !self.counted.finished,
            rolls_back: self.rolls_back,
        };
        changed.as_ref().unwrap_or(&config.policy).plan(&view, fault)
    }

    /// The reaction if a person, or a component, says now that this node is failing.
    #[must_use]
    pub fn plan_for_suspect(&self, now: Instant, node: NodeIndex, confidence: Confidence) -> Option<Plan> {
        let fault = self.detector.classify(&FaultReport::NodeSuspected { node }, &self.settings.layout)?;
        self.plan(now, &Fault { confidence, ..fault }, None)
    }

    /// A detector that is a component suspects a node.
    pub(super) fn on_detected(&mut self, now: Instant, node: NodeIndex) {
        let report = FaultReport::NodeSuspected { node };
        let fault = self.detector.classify(&report, &self.settings.layout);
        let fault = fault.map(|fault| Fault { confidence: Confidence::Component, ..fault });
        self.on_classified(now, report, fault);
    }

    /// Starts the reaction to a fault, once the components have said their word.
    pub(super) fn act_on(&mut self, now: Instant, fault: Fault) {
        if !self.asks_for_model(fault) {
            self.show_detector(fault.report);
            self.act_as_classified(now, fault);
        }
    }

    /// The same for a fault whose model is settled.
    pub(super) fn act_as_classified(&mut self, now: Instant, mut fault: Fault) {
        self.detector.count(now, &mut fault, &self.settings.config.fault.policy.thresholds);
        let Some(plan) = self.plan(now, &fault, None) else {
            return self.let_pass(now, fault.report);
        };
        if !self.asks_for_reaction(fault, plan) {
            self.carry_out(now, fault, plan);
        }
    }

    /// Ends the life for a fault, and begins with the plan.
    pub(super) fn carry_out(&mut self, now: Instant, fault: Fault, plan: Plan) {
        let report = fault.report;
        if let Plan::Ignore { rank, status } = plan {
            self.outputs.push(Output::Event(Event::Reported { report, action: Some((fault, plan)) }));
            self.lose_rank(now, rank, status);
            return self.judge_held(now);
        }
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
            moved: BTreeSet::new(),
        });
        self.interval.measure.end_life(now, !matches!(plan, Plan::Stop { .. }));
        self.end_life(now);
        self.recovery.handle(now, recovery::Input::Fault(fault, plan));
    }

    /// R37: the life goes on without a rank. No rank waits for it any more, and its keeper counts it as ended.
    fn lose_rank(&mut self, now: Instant, rank: Rank, status: ExitStatus) {
        self.counted.lost.insert(rank);
        self.checkpoint.handle(now, CheckpointInput::RankLost { rank });
        // Before the ranks hear of the loss: a cut that is under way is abandoned.
        self.relay_checkpoint(now);
        if !self.settings.sabotage.is_out(Rule::LossUntold) {
            self.broadcast(Message::RankLost { rank, status });
        }
    }

    /// A report about a rank without which the life goes on. If it was still alive for its keeper, that has ended it now.
    fn is_of_lost(&mut self, now: Instant, report: FaultReport) -> bool {
        match report {
            FaultReport::RankDied { rank, status } if self.counted.lost.contains(&rank) => {
                self.lose_rank(now, rank, status);
                true
            }
            FaultReport::RankSilent { rank, .. } | FaultReport::RankHeard { rank, .. } => {
                self.counted.lost.contains(&rank)
            }
            _ => false,
        }
    }

    /// R9: nothing of the old life counts from now on.
    pub(super) fn end_life(&mut self, now: Instant) {
        self.relay_checkpoint(now);
        self.checkpoint.fence();
        self.give_up_diagnosis();
        self.counted = Counted::default();
        self.leases = None;
        self.suspicions.end();
        self.ended = None;
        self.drop_questions();
    }

    /// A silent network becomes a fault when it has lasted.
    pub(super) fn watch_network(&mut self, now: Instant) {
        if self.cut_off_due().is_none_or(|due| now < due) {
            return;
        }
        if let Some(CutOff { node, since, .. }) = self.suspicions.cut_off() {
            let silent_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            self.on_report(now, FaultReport::NodeCutOff { node, silent_ms });
        }
    }

    /// When the next silence is a fault. Silences in which ranks that have ended may have a part never are; and no node is moved that may be the wrong one.
    pub(super) fn cut_off_due(&self) -> Option<Instant> {
        let policy = self.policy();
        let protocol = policy.on.network.first();
        let runs = self.recovery.phase() == Phase::Running;
        let counted = &self.counted;
        let is_whole = counted.finalizing == 0 && counted.left.is_none() && counted.lost.is_empty();
        if protocol == RecoveryProtocol::Wait || !runs || !is_whole || self.questions.is_open() {
            return None;
        }
        let cut = self.suspicions.cut_off()?;
        let is_named = cut.is_certain || protocol != RecoveryProtocol::Migration;
        is_named.then(|| cut.since + policy.thresholds.network_after)
    }

    /// R32: a node has not answered the fence, and no rank of it can still run.
    pub(super) fn on_lost(&mut self, now: Instant, node: NodeIndex) {
        // The host that has just got the place has never been there.
        let is_moved = self.price.as_ref().is_some_and(|price| price.moved.contains(&node));
        match self.policy().on.permanent.first() {
            // No place is given away any more.
            _ if self.recovery.is_ending() => self.recovery.handle(now, recovery::Input::NodeLost { node }),
            RecoveryProtocol::Stop if self.recovery.life().is_some() && !is_moved => {
                self.give_up(now, node, StopReason::Policy { model: FaultModel::Permanent });
            }
            RecoveryProtocol::Restart | RecoveryProtocol::Stop if !is_moved => {
                self.outputs.push(Output::Await { node });
            }
            _ => self.recovery.handle(now, recovery::Input::NodeLost { node }),
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
        self.absent.hurry();
        self.recovery.handle(now, recovery::Input::NodeLost { node });
    }

    /// Another host has the node's place.
    pub(super) fn on_replaced(&mut self, now: Instant, node: NodeIndex) {
        self.absent.is_replaced(now, node);
        self.detector.forget(node);
        if let Some(price) = &mut self.price {
            if self.recovery.is_lost(node) && price.moved.is_empty() {
                price.model = FaultModel::Permanent;
            }
            price.protocol = RecoveryProtocol::Migration;
            price.moved.insert(node);
        }
        self.recovery.handle(now, recovery::Input::NodeReplaced { node });
    }

    /// No host can take its place.
    pub(super) fn on_not_replaced(&mut self, now: Instant, node: NodeIndex) {
        let stops = self.policy().on.permanent.fallback() == Fallback::Stop;
        let goes_on = self.recovery.life().is_some() && !self.recovery.is_ending();
        if stops && goes_on && self.recovery.is_lost(node) {
            return self.give_up(now, node, StopReason::NoOtherHost { node });
        }
        self.recovery.handle(now, recovery::Input::NotReplaced { node });
    }
}
