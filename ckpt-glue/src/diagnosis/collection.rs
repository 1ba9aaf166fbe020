//! Asks all ranks twice what they wait for.

use transport::{Instant, Rank};

use super::{Diagnosis, Reports};
use crate::control::{Found, Message, RankReport};
use crate::limits::{WAIT_ANSWER_MAX, WAIT_ROUNDS_APART};

/// What comes next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask all ranks.
    Ask(Message),
    /// All is known.
    Done(Diagnosis),
}

/// ```text
///   asked --all have answered, or the time is over--> pause --over--> asked again --likewise--> done
/// ```
#[derive(Clone, Debug)]
enum Phase {
    Asked { since: Instant },
    Pause { until: Instant },
    AskedAgain { first: Reports, since: Instant },
}

/// The two questions of one diagnosis.
#[derive(Clone, Debug)]
pub struct Collection {
    query: u32,
    ranks: u32,
    phase: Phase,
    reports: Reports,
}

impl Collection {
    /// Asks the first question. `query`: a number that neither question of this life has had.
    #[must_use]
    pub fn begin(now: Instant, query: u32, ranks: u32) -> (Collection, Message) {
        let phase = Phase::Asked { since: now };
        let collection = Collection { query, ranks, phase, reports: Reports::new() };
        let message = collection.question();
        (collection, message)
    }

    fn question(&self) -> Message {
        let time_left_ns = u64::try_from(WAIT_ANSWER_MAX.as_nanos()).unwrap_or(u64::MAX);
        Message::WaitQuery { query: self.query, time_left_ns }
    }

    /// The number of the newest question.
    #[must_use]
    pub fn query(&self) -> u32 {
        self.query
    }

    /// Takes answers. The first of a rank counts.
    pub fn take(
        &mut self,
        now: Instant,
        query: u32,
        reports: impl IntoIterator<Item = RankReport>,
    ) -> Option<Step> {
        if query != self.query {
            return None;
        }
        for report in reports.into_iter().filter(|report| report.rank.0 < self.ranks) {
            self.reports.entry(report.rank).or_insert(report);
        }
        self.settle(now, false)
    }

    /// Handles a timeout that is due.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Step> {
        if now < self.poll_timeout() {
            return None;
        }
        if let Phase::Pause { .. } = self.phase {
            self.query = self.query.wrapping_add(1);
            let first = core::mem::take(&mut self.reports);
            self.phase = Phase::AskedAgain { first, since: now };
            return Some(Step::Ask(self.question()));
        }
        self.settle(now, true)
    }

    /// When [`Collection::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        match self.phase {
            Phase::Asked { since } | Phase::AskedAgain { since, .. } => since + WAIT_ANSWER_MAX,
            Phase::Pause { until } => until,
        }
    }

    fn settle(&mut self, now: Instant, is_over: bool) -> Option<Step> {
        let is_complete = u32::try_from(self.reports.len()) == Ok(self.ranks);
        if !is_complete && !is_over {
            return None;
        }
        match &mut self.phase {
            Phase::Pause { .. } => None,
            Phase::Asked { .. } => {
                self.phase = Phase::Pause { until: now + WAIT_ROUNDS_APART };
                None
            }
            Phase::AskedAgain { first, since } => {
                let waited = now.since(*since);
                let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
                for rank in (0..self.ranks).map(Rank) {
                    let silent = || RankReport::of(rank, Found::KeeperSilent { waited_ns });
                    self.reports.entry(rank).or_insert_with(silent);
                }
                Some(Step::Done(Diagnosis::new(self.ranks, first, &self.reports)))
            }
        }
    }
}
