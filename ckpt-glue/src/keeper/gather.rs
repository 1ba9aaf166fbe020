//! Answers gathered from the ranks of a node and the keepers below it, so that one message goes up where many came.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Instant, Rank};

use crate::control::{ImageReport, PointSummary, PortEntry};
use crate::limits::{ENTRIES_MAX, POINT_SILENCE};
use crate::names::NodeIndex;

/// Counts from below that add up to the number of ranks in this part of the tree. Also right when a child reports in
/// several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count {
    pub(crate) ranks: u32,
    pub(crate) extra: u32,
}

impl Count {
    /// Adds a report. Returns whether with it the whole part of the tree has reported.
    pub(crate) fn add(&mut self, ranks: u32, extra: u32, ranks_below: u32) -> bool {
        let before = self.ranks;
        self.ranks = self.ranks.saturating_add(ranks);
        self.extra = self.extra.saturating_add(extra);
        before < ranks_below && self.ranks >= ranks_below
    }
}

/// Counts of points for one question.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    pub(crate) query: u32,
    pub(crate) summary: PointSummary,
    asked: Instant,
    /// Silence has been reported; once for each question is enough.
    reported: bool,
    answered: BTreeSet<Rank>,
    children: BTreeSet<NodeIndex>,
}

impl Points {
    pub(crate) fn new(now: Instant, query: u32) -> Points {
        Points {
            query,
            summary: PointSummary::NONE,
            asked: now,
            reported: false,
            answered: BTreeSet::new(),
            children: BTreeSet::new(),
        }
    }

    /// The time after which members without an answer count as silent; `None`: that has been reported.
    pub(crate) fn patience(&self) -> Option<Instant> {
        (!self.reported).then(|| self.asked + POINT_SILENCE)
    }

    /// Names one of `ranks` that has been silent for longer than is usual, and for how long it has.
    pub(crate) fn silent(
        &mut self,
        now: Instant,
        mut ranks: impl Iterator<Item = Rank>,
    ) -> Option<(Rank, Duration)> {
        if self.patience().is_none_or(|patience| now < patience) {
            return None;
        }
        self.reported = true;
        let silent = ranks.find(|rank| !self.answered.contains(rank))?;
        Some((silent, now.since(self.asked)))
    }

    pub(crate) fn add_rank(&mut self, rank: Rank, summary: PointSummary) {
        if self.answered.insert(rank) {
            self.summary = self.summary.with(summary);
        }
    }

    pub(crate) fn answered_len(&self) -> usize {
        self.answered.len() + self.children.len()
    }

    pub(crate) fn add_child(&mut self, child: NodeIndex, summary: PointSummary) {
        if self.children.insert(child) {
            self.summary = self.summary.with(summary);
        }
    }
}

/// Images of one cut.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    pub(crate) epoch: Epoch,
    reported: BTreeSet<Rank>,
    waiting: Vec<ImageReport>,
}

impl Images {
    pub(crate) fn new(epoch: Epoch) -> Images {
        Images { epoch, reported: BTreeSet::new(), waiting: Vec::new() }
    }

    /// Adds reports and hands out those that are to go up now: all of them once the part of the tree is complete, and a
    /// full message's worth before that. `at_once`: nothing waits.
    pub(crate) fn add(
        &mut self,
        reports: &[ImageReport],
        ranks_below: u32,
        at_once: bool,
    ) -> Vec<Vec<ImageReport>> {
        for report in reports {
            if self.reported.insert(report.rank) {
                self.waiting.push(*report);
            }
        }
        let complete = u32::try_from(self.reported.len()).unwrap_or(u32::MAX) >= ranks_below;
        let complete = complete || at_once;
        let mut messages = Vec::new();
        while self.waiting.len() >= ENTRIES_MAX || (complete && !self.waiting.is_empty()) {
            let rest = self.waiting.split_off(self.waiting.len().min(ENTRIES_MAX));
            messages.push(core::mem::replace(&mut self.waiting, rest));
        }
        messages
    }

    pub(crate) fn reported_len(&self) -> usize {
        self.reported.len()
    }

    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.reported.contains(&rank)
    }
}

/// Ports of ranks that have come up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registrations {
    waiting: Vec<PortEntry>,
    complete: u32,
}

impl Registrations {
    pub(crate) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds ports, of which the last ones complete `ranks` ranks, and hands out the messages that are to go up.
    pub(crate) fn add(
        &mut self,
        ports: Vec<PortEntry>,
        ranks: u32,
        total: &mut u32,
        ranks_below: u32,
    ) -> Vec<(Vec<PortEntry>, u32)> {
        self.waiting.extend(ports);
        self.complete += ranks;
        *total = total.saturating_add(ranks);
        let mut messages = Vec::new();
        while self.waiting.len() > ENTRIES_MAX {
            let rest = self.waiting.split_off(ENTRIES_MAX);
            messages.push((core::mem::replace(&mut self.waiting, rest), 0));
        }
        if *total >= ranks_below && self.complete > 0 {
            messages.push((core::mem::take(&mut self.waiting), self.complete));
            self.complete = 0;
        }
        messages
    }
}
