//! About when operations began, without a word about it in any of them.
//!
//! Operations are numbered in turn. The helper notes from time to time which number comes next; so an operation below a noted
//! number began before that was noted. Nothing of it is on the path of a message.

use core::time::Duration;
use std::collections::VecDeque;

use transport::{Instant, OpId};

/// Time between two notes. An operation seems younger than it is by this much at most, as long as no note has been dropped.
pub(crate) const NOTED_EVERY: Duration = Duration::from_secs(1);

/// Notes that are kept. Of old operations the age need not be known to the second: with so many, it is right to a quarter after hours.
const NOTES_MAX: usize = 64;

/// The numbers that came next, and when that was seen first; both rise.
#[derive(Debug, Default)]
pub(crate) struct OpTimes(VecDeque<(OpId, Instant)>);

impl OpTimes {
    pub(crate) fn note(&mut self, next: OpId, now: Instant) {
        if self.0.back().is_some_and(|(noted, _)| *noted >= next) {
            return;
        }
        if self.0.len() >= NOTES_MAX {
            self.drop_one(now);
        }
        self.0.push_back((next, now));
    }

    /// Drops the note whose absence makes the ages of operations wrong by the smallest part of them.
    fn drop_one(&mut self, now: Instant) {
        let loss = |at: &usize| {
            let (_, before) = self.0[at - 1];
            let (_, after) = self.0[at + 1];
            after.since(before).as_nanos().saturating_mul(1 << 20) / now.since(before).as_nanos().max(1)
        };
        if let Some(least) = (1..self.0.len().saturating_sub(1)).min_by_key(loss) {
            self.0.remove(least);
        }
    }

    /// An operation is at least so old.
    pub(crate) fn age(&self, op: OpId, now: Instant) -> Duration {
        let above = self.0.partition_point(|(next, _)| *next <= op);
        self.0.get(above).map_or(Duration::ZERO, |(_, noted)| now.since(*noted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Instant {
        Instant::from_nanos(second * 1_000_000_000)
    }

    #[test]
    fn an_operation_is_as_old_as_the_first_note_above_it() {
        let mut times = OpTimes::default();
        assert_eq!(times.age(OpId(1), at(9)), Duration::ZERO, "nothing is known");
        times.note(OpId(5), at(1));
        times.note(OpId(5), at(2));
        times.note(OpId(8), at(3));
        let age = |op| times.age(OpId(op), at(10)).as_secs();
        assert_eq!([age(4), age(5), age(7), age(8)], [9, 7, 7, 0]);
    }

    #[test]
    fn notes_are_bounded_and_never_make_an_operation_too_old() {
        let mut times = OpTimes::default();
        // Operation n begins just after second n, and is noted at second n + 1.
        (1..=10_000).for_each(|second| times.note(OpId(second), at(second)));
        assert!(times.0.len() <= NOTES_MAX);
        for op in 0..10_000 {
            let (age, truth) = (times.age(OpId(op), at(10_000)).as_secs(), 10_000 - op);
            assert!(age < truth || op == 0, "{op}: {age} of {truth}");
            assert!(age * 4 + 8 >= truth * 3, "{op}: {age} of {truth}");
        }
    }
}
