//! When markers reach a rank, computed instead of scheduled.
//!
//! Rank i begins to send at `begun[i]`; its k-th marker goes to rank i + k, leaves its end at `begun[i] + k * c` and
//! arrives a latency later, where c is the cost of a marker. A rank takes messages in the order in which they arrive, c
//! each. So everything follows from the times at which the ranks begin, and only few markers need to be looked at one
//! by one: those that come before the rank's own command, and those that come after it has sent its last marker. All
//! others wait in between, and a rank that works through a queue without a pause takes c for each of them, regardless
//! of their order.

use super::costs::{LATENCY_NS, MARKER_BYTES, message_ns};
use crate::engine::queue::Nanos;

/// Cost of a marker at each end.
const MARKER_NS: Nanos = message_ns(MARKER_BYTES);

/// The markers of one checkpoint.
#[derive(Debug)]
pub(super) struct Aggregate {
    /// When each rank began to send.
    begun: Vec<Option<Nanos>>,
    /// Markers that came to each rank before its command.
    early: Vec<u32>,
    first: Nanos,
    last: Nanos,
    waiting: usize,
}

fn at(rank: u64) -> usize {
    usize::try_from(rank).unwrap_or(usize::MAX)
}

impl Aggregate {
    pub(super) fn new(ranks: u32) -> Aggregate {
        let ranks = at(ranks.into());
        Aggregate { begun: vec![None; ranks], early: vec![0; ranks], first: 0, last: 0, waiting: ranks }
    }

    fn ranks(&self) -> u64 {
        self.begun.len() as u64
    }

    /// Markers that arrive at `rank` before its command does at `command`: how many, and until when they keep it busy.
    pub(super) fn take_early(&mut self, rank: u32, command: Nanos) -> (u32, Nanos) {
        let mut arrivals = Vec::new();
        // None begun: nothing is on its way.
        let since = if self.last == 0 { 0 } else { command.saturating_sub(self.first + LATENCY_NS) };
        for k in 1..=(since / MARKER_NS).min(self.ranks() - 1) {
            let sender = (u64::from(rank) + self.ranks() - k) % self.ranks();
            let arrival = self.begun[at(sender)].map(|begun| begun + k * MARKER_NS + LATENCY_NS);
            arrivals.extend(arrival.filter(|arrival| *arrival < command));
        }
        arrivals.sort_unstable();
        let busy = arrivals.iter().fold(0, |busy: Nanos, arrival| busy.max(*arrival) + MARKER_NS);
        let early = u32::try_from(arrivals.len()).unwrap_or(u32::MAX);
        self.early[at(rank.into())] = early;
        (early, busy)
    }

    /// `rank` begins to send; whether it is the last one.
    pub(super) fn begin(&mut self, rank: u32, now: Nanos) -> bool {
        self.begun[at(rank.into())] = Some(now);
        self.first = if self.last == 0 { now } else { self.first.min(now) };
        self.last = self.last.max(now);
        self.waiting -= 1;
        self.waiting == 0
    }

    /// When all have begun: the markers that `rank` still has to take, and when it has taken the last of them.
    pub(super) fn finish(&self, rank: u32) -> (u32, Nanos) {
        let ranks = self.ranks();
        let begun = self.begun[at(rank.into())].unwrap_or(0);
        let sent = begun + (ranks - 1) * MARKER_NS;
        // Sender `rank + 1 + g` has this rank as its last receiver but g; the later it began, the more of those matter.
        let window = (self.last - begun + LATENCY_NS) / MARKER_NS;
        let mut late = Vec::new();
        for g in 0..=window.min(ranks - 2) {
            let sender = (u64::from(rank) + 1 + g) % ranks;
            let k = ranks - 1 - g;
            let arrival = self.begun[at(sender)].map(|begun| begun + k * MARKER_NS + LATENCY_NS);
            late.extend(arrival.filter(|arrival| *arrival > sent));
        }
        late.sort_unstable();
        let rest = ranks - 1 - u64::from(self.early[at(rank.into())]);
        let waited = sent + (rest - late.len() as u64) * MARKER_NS;
        let done = late.iter().fold(waited, |busy, arrival| busy.max(*arrival) + MARKER_NS);
        (u32::try_from(rest).unwrap_or(u32::MAX), done)
    }
}
