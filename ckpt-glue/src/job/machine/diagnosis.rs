//! A person asks why the job hangs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use transport::Instant;

use super::{Job, Output};
use crate::control::RankReport;
use crate::diagnosis::{Collection, Step};
use crate::recovery::Phase;

/// The diagnosis that is being made.
#[derive(Default, Debug)]
pub(super) struct Diagnosing {
    /// Number of the last question.
    last: u32,
    open: Option<Collection>,
}

impl Diagnosing {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.open.as_ref().map(Collection::poll_timeout)
    }
}

impl Job {
    /// Begins a diagnosis. A question that comes while one is being made has the same answer.
    pub(super) fn diagnose(&mut self, now: Instant) {
        if self.diagnosis.open.is_some() {
            return;
        }
        if !matches!(self.recovery.phase(), Phase::Starting | Phase::Running) {
            return self.outputs.push(Output::Diagnosed(None));
        }
        let query = self.diagnosis.last.wrapping_add(1);
        let (collection, message) = Collection::begin(now, query, self.settings.layout.ranks());
        self.diagnosis = Diagnosing { last: query, open: Some(collection) };
        self.broadcast(message);
    }

    pub(super) fn on_wait_reports(&mut self, now: Instant, query: u32, reports: Vec<RankReport>) {
        let step = self.diagnosis.open.as_mut().and_then(|open| open.take(now, query, reports));
        self.follow(step);
    }

    pub(super) fn watch_diagnosis(&mut self, now: Instant) {
        let step = self.diagnosis.open.as_mut().and_then(|open| open.handle_timeout(now));
        self.follow(step);
    }

    fn follow(&mut self, step: Option<Step>) {
        match step {
            None => {}
            Some(Step::Ask(message)) => {
                self.diagnosis.last = self.diagnosis.open.as_ref().map_or(0, Collection::query);
                self.broadcast(message);
            }
            Some(Step::Done(diagnosis)) => {
                self.diagnosis.open = None;
                self.outputs.push(Output::Diagnosed(Some(Box::new(diagnosis))));
            }
        }
    }

    /// The life is over, and with it every wait.
    pub(super) fn give_up_diagnosis(&mut self) {
        if self.diagnosis.open.take().is_some() {
            self.outputs.push(Output::Diagnosed(None));
        }
    }
}
