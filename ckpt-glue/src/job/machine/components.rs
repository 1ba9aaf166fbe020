//! Questions to components: one at a time. The life goes on until it is answered, and further faults wait.

use alloc::vec::Vec;

use transport::Instant;

use super::super::{Event, Output};
use super::Job;
use crate::control::FaultReport;
use crate::limits::HELD_FAULTS_MAX;
use crate::recovery::{Answer, Confidence, Fault, FaultModel, Loaded, Plan, Question};

/// Questions that are open, and what waits for their answer.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) loaded: Loaded,
    open: Option<Open>,
    /// Faults that were reported meanwhile; at most [`HELD_FAULTS_MAX`].
    held: Vec<FaultReport>,
    asked: u64,
}

/// A question that is not answered.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u64,
    fault: Fault,
    /// Its model is settled, and the reaction is asked for.
    is_classified: bool,
}

impl Questions {
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

impl Job {
    /// The detector learns of a report to which it has no answer.
    pub(super) fn show_detector(&mut self, report: FaultReport) {
        if self.questions.loaded.detector {
            let question = Question::Report { report, fault: None };
            self.outputs.push(Output::Ask { number: None, question });
        }
    }

    fn ask(&mut self, fault: Fault, is_classified: bool, question: Question) {
        self.questions.asked += 1;
        let number = self.questions.asked;
        self.questions.open = Some(Open { number, fault, is_classified });
        self.outputs.push(Output::Ask { number: Some(number), question });
    }

    /// Whether the detector is asked for the model of the fault. It is not asked about suspicions, of a person or its own.
    pub(super) fn asks_for_model(&mut self, fault: Fault) -> bool {
        let is_observed = matches!(fault.confidence, Confidence::Certain | Confidence::TimedOut);
        let is_asked = self.questions.loaded.detector && fault.is_asked() && is_observed;
        if is_asked {
            self.ask(fault, false, Question::Report { report: fault.report, fault: Some(fault) });
        }
        is_asked
    }

    /// Whether the recovery protocol is asked for the reaction.
    pub(super) fn asks_for_reaction(&mut self, fault: Fault, plan: Plan) -> bool {
        let is_asked = self.questions.loaded.recovery && fault.is_asked();
        if is_asked {
            self.ask(fault, true, Question::Reaction { fault, plan });
        }
        is_asked
    }

    /// A fault that is reported while a component is asked about another one waits. What contradicts itself is not waited for; nor is a component, if too
    /// much waits.
    pub(super) fn holds(&mut self, now: Instant, report: FaultReport, fault: &Fault) -> bool {
        if !self.questions.is_open() || fault.model == FaultModel::Inconsistent {
            return false;
        }
        self.show_detector(report);
        self.questions.held.push(report);
        if self.questions.held.len() >= HELD_FAULTS_MAX {
            self.answer_at_once(now);
        }
        true
    }

    /// A rank that has ended by itself is judged after the question.
    pub(super) fn ended_due(&self) -> Option<Instant> {
        self.ended.filter(|_| !self.questions.is_open()).map(|ended| ended.until)
    }

    pub(super) fn on_answer(&mut self, now: Instant, number: u64, answer: Answer) {
        let Some(Open { mut fault, is_classified, .. }) =
            self.questions.open.take_if(|open| open.number == number)
        else {
            return;
        };
        match answer {
            Answer::Model(model) if !is_classified && fault.can_be(model) => fault.model = model,
            _ => {}
        }
        if !is_classified {
            return self.act_as_classified(now, fault);
        }
        let protocol = match answer {
            Answer::Protocol(protocol) => Some(protocol),
            _ => None,
        };
        match self.plan(now, &fault, protocol) {
            Some(plan) => self.carry_out(now, fault, plan),
            None => self.let_pass(now, fault.report),
        }
    }

    /// The open question is not waited for any longer.
    pub(super) fn answer_at_once(&mut self, now: Instant) {
        while let Some(Open { number, .. }) = self.questions.open {
            self.on_answer(now, number, Answer::BuiltIn);
        }
    }

    /// The fault has no reaction. Those that waited behind it are judged now.
    pub(super) fn let_pass(&mut self, now: Instant, report: FaultReport) {
        self.outputs.push(Output::Event(Event::Reported { report, action: None }));
        self.judge_held(now);
    }

    /// The life goes on, and faults that waited behind a question are judged.
    pub(super) fn judge_held(&mut self, now: Instant) {
        for report in core::mem::take(&mut self.questions.held) {
            self.on_report(now, report);
        }
    }

    /// The life is over, and with it all that was asked about it. Faults that waited are of the same cause.
    pub(super) fn drop_questions(&mut self) {
        self.questions.open = None;
        for report in core::mem::take(&mut self.questions.held) {
            self.outputs.push(Output::Event(Event::Reported { report, action: None }));
        }
    }
}
