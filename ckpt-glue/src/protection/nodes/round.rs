//! A question to several nodes, and the answers that are missing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use core::time::Duration;

use transport::Instant;

use super::{Answer, Question, Refusal, Refused};
use crate::names::NodeIndex;

#[derive(Clone, Debug)]
pub(super) struct Round<D> {
    pub(super) number: u64,
    pub(super) question: Question,
    pub(super) waiting: BTreeSet<NodeIndex>,
    pub(super) answers: BTreeMap<NodeIndex, (Answer, D)>,
    pub(super) refused: Refused,
    /// A node that has not answered by then does not count; `None`: progress is watched elsewhere.
    pub(super) until: Option<Instant>,
    pub(super) limit: Duration,
}

impl<D> Round<D> {
    /// Whether it is over. The missing answers then are refusals.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        // If one node refuses, the generation is not protected, and the other answers do not matter.
        let is_spoilt = matches!(self.question, Question::Protect(..)) && !self.refused.is_empty();
        self.waiting.is_empty() || is_spoilt || self.is_late(now)
    }

    fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Counts the missing answers as refusals, if the time is over.
    pub(super) fn close(&mut self, now: Instant) {
        if !self.is_late(now) {
            return;
        }
        for node in core::mem::take(&mut self.waiting) {
            let why = format!("no answer in {} s", self.limit.as_secs());
            self.refused.insert(node, Refusal { errno: Refusal::LATE, why });
        }
    }

    /// A node's keeper is gone before it has answered.
    pub(super) fn lose(&mut self, node: NodeIndex) {
        if self.waiting.remove(&node) {
            self.refused.insert(node, Refusal::gone());
        }
    }

    /// The shell's part of the answers.
    pub(super) fn into_details(self) -> BTreeMap<NodeIndex, D> {
        self.answers.into_iter().map(|(node, (_, detail))| (node, detail)).collect()
    }
}

impl Refusal {
    pub(super) fn gone() -> Refusal {
        Refusal { errno: Refusal::GONE, why: "its keeper is gone".into() }
    }
}
