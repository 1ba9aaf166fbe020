//! What the ranks of this part of the tree wait for: one question of the coordinator, and the answers to it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Instant, Rank};

use super::Keeper;
use super::ranks::RankPhase;
use crate::control::{Found, Message, RankReport};
use crate::limits::{WAIT_ANSWER_MIN, WAIT_ANSWER_STEP, WAIT_REPORTS_MAX};
use crate::names::{NodeIndex, Party};

/// Answers to one question.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    query: u32,
    asked: Instant,
    /// When ranks of this node that have not answered are named.
    due: Instant,
    /// Ranks of this node without an answer.
    awaited: BTreeSet<Rank>,
    /// Ranks of this part of the tree that have been answered for.
    answered: BTreeSet<Rank>,
    /// Reports that have not been passed on.
    waiting: Vec<RankReport>,
}

impl Waits {
    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Messages that are to go up now: all once the part of the tree is complete or the time is over, and full ones before that.
    fn take_messages(&mut self, ranks_below: u32, is_over: bool) -> Vec<Message> {
        let is_complete = u32::try_from(self.answered.len()).unwrap_or(u32::MAX) >= ranks_below;
        let mut messages = Vec::new();
        while self.waiting.len() >= WAIT_REPORTS_MAX || (is_complete || is_over) && !self.waiting.is_empty() {
            let rest = self.waiting.split_off(self.waiting.len().min(WAIT_REPORTS_MAX));
            let reports = core::mem::replace(&mut self.waiting, rest);
            messages.push(Message::WaitReports { query: self.query, reports });
        }
        messages
    }
}

impl Keeper {
    /// The coordinator asks what all ranks wait for.
    pub(super) fn on_wait_query(&mut self, now: Instant, query: u32, time_left_ns: u64) {
        let children = self.children();
        let Some(held) = self.held() else { return };
        let own = Duration::from_nanos(time_left_ns).saturating_sub(WAIT_ANSWER_STEP).max(WAIT_ANSWER_MIN);
        let mut waits = Waits {
            query,
            asked: now,
            due: now + own,
            awaited: BTreeSet::new(),
            answered: BTreeSet::new(),
            waiting: Vec::new(),
        };
        for (rank, kept) in &held.ranks {
            let found = match kept.phase {
                RankPhase::Running | RankPhase::Finalizing => {
                    waits.awaited.insert(*rank);
                    continue;
                }
                // One that comes up listens for nothing but the addresses of others.
                RankPhase::Spawning | RankPhase::Attached => Found::NotAttached,
                RankPhase::Exited(_) => Found::Ended,
                RankPhase::Dead => Found::Dead,
            };
            waits.answered.insert(*rank);
            waits.waiting.push(RankReport::of(*rank, found));
        }
        let asked: Vec<Rank> = waits.awaited.iter().copied().collect();
        held.waits = Some(waits);
        let time_left_ns = u64::try_from(own.as_nanos()).unwrap_or(u64::MAX);
        let message = Message::WaitQuery { query, time_left_ns };
        for child in children {
            self.send(Party::Keeper(child), message.clone());
        }
        for rank in asked {
            self.send(Party::Rank(rank), message.clone());
        }
        self.flush_waits(false);
    }

    /// A rank of this node answers.
    pub(super) fn on_rank_waits(&mut self, rank: Rank, query: u32, reports: Vec<RankReport>) {
        let Some(waits) = self.waits(query) else { return };
        let own = reports.into_iter().find(|report| report.rank == rank);
        if let Some(report) = own.filter(|_| waits.awaited.remove(&rank)) {
            waits.answered.insert(rank);
            waits.waiting.push(report);
            self.flush_waits(false);
        }
    }

    /// A keeper below answers for ranks of its part of the tree.
    pub(super) fn on_child_waits(&mut self, child: NodeIndex, query: u32, reports: Vec<RankReport>) {
        let node = self.node;
        let Some(held) = self.held() else { return };
        let layout = &held.layout;
        let Some(waits) = held.waits.as_mut().filter(|waits| waits.query == query) else { return };
        for report in reports {
            let is_below = layout.towards(node, report.rank) == Some(Party::Keeper(child));
            if is_below && waits.answered.insert(report.rank) {
                waits.waiting.push(report);
            }
        }
        self.flush_waits(false);
    }

    /// Names the ranks of this node that have not answered in time.
    pub(super) fn watch_waits(&mut self, now: Instant) {
        let Some(held) = self.held() else { return };
        let Some(waits) = held.waits.as_mut().filter(|waits| now >= waits.due) else { return };
        let waited_ns = u64::try_from(now.since(waits.asked).as_nanos()).unwrap_or(u64::MAX);
        for rank in core::mem::take(&mut waits.awaited) {
            waits.answered.insert(rank);
            waits.waiting.push(RankReport::of(rank, Found::Silent { waited_ns }));
        }
        self.flush_waits(true);
        if let Some(held) = self.held() {
            held.waits = None;
        }
    }

    fn waits(&mut self, query: u32) -> Option<&mut Waits> {
        self.held()?.waits.as_mut().filter(|waits| waits.query == query)
    }

    fn flush_waits(&mut self, is_over: bool) {
        let Some(held) = self.held() else { return };
        let ranks_below = held.ranks_below;
        let Some(waits) = &mut held.waits else { return };
        let messages = waits.take_messages(ranks_below, is_over);
        if waits.awaited.is_empty() && u32::try_from(waits.answered.len()).unwrap_or(u32::MAX) >= ranks_below
        {
            held.waits = None;
        }
        messages.into_iter().for_each(|message| self.send_up(message));
    }
}
