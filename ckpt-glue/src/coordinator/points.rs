//! Where native ranks are to cut: a counted point ahead of every rank, near enough to be reached in time.

use core::time::Duration;

use crate::control::{NoImageReason, Point, PointSummary};
use crate::limits::{
    POINT_MARGIN_MAX, POINT_MARGIN_MIN, POINT_TIME_MIN, POINT_TIME_PACES, POINT_WIDENINGS_MAX,
};

/// Chooses points, and learns from those that were missed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PointChooser {
    /// The margin is widened by this power of two: ranks had passed the point when the command came.
    widenings: u32,
    /// The margin is narrowed by this power of two: the point was not reached in time.
    narrowings: u32,
    /// Checkpoints in a row that failed because of points.
    misaligned: u32,
    /// The longest question of late: a rank that was slow a moment ago may be slow again.
    longest_question: Duration,
}

/// The failure of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Misaligned {
    pub(crate) in_a_row: u32,
    pub(crate) count: u64,
}

impl PointChooser {
    /// A point that no rank will have passed when the command reaches it. `round_trip`: how long the question took, from
    /// the coordinator to the last answer; the command needs half of it, and the fastest rank runs on meanwhile.
    ///
    /// `None`: all ranks have finished and can be saved anywhere.
    pub(crate) fn choose(&mut self, summary: &PointSummary, round_trip: Duration) -> Option<u64> {
        let most = summary.most?;
        // Forgotten within a few checkpoints: on a busy host one question in ten is an order of magnitude slower.
        self.longest_question = round_trip.max(self.longest_question - self.longest_question / 8);
        // The answer is half a question old, the command takes another half; the rest is for jitter and for points that
        // follow each other faster than they do in the mean.
        let during = self.longest_question.saturating_mul(4).as_nanos();
        let passed = match summary.interval_ns_min {
            Some(interval_ns) => u64::try_from(during / u128::from(interval_ns.max(1))).unwrap_or(u64::MAX),
            None => 0,
        };
        let margin = passed.saturating_add(POINT_MARGIN_MIN).min(POINT_MARGIN_MAX);
        let margin = (margin << self.widenings) >> self.narrowings;
        Some(most.count.saturating_add(margin.clamp(1, POINT_MARGIN_MAX)))
    }

    /// Time for all ranks to come to `point`: a few times as long as the one furthest behind should need at the pace of the
    /// past, and never so short that a busy host is taken for a program that does not come.
    pub(crate) fn time_for(summary: &PointSummary, point: u64) -> Duration {
        let ahead = summary.least.map_or(0, |least| point.saturating_sub(least.count));
        let interval_ns = summary.interval_ns_min.unwrap_or(0);
        let pace = Duration::from_nanos(interval_ns.saturating_mul(ahead).saturating_mul(POINT_TIME_PACES));
        pace.max(POINT_TIME_MIN)
    }

    /// A generation was committed.
    pub(crate) fn succeeded(&mut self) {
        self.misaligned = 0;
        self.widenings = self.widenings.saturating_sub(1);
        self.narrowings = self.narrowings.saturating_sub(1);
    }

    /// A rank has no image; `None` if that has nothing to do with points.
    pub(crate) fn failed(&mut self, reason: &NoImageReason) -> Option<Misaligned> {
        let count = match reason {
            NoImageReason::PointPassed { count, .. } => {
                self.narrowings = 0;
                self.widenings = (self.widenings + 1).min(POINT_WIDENINGS_MAX);
                *count
            }
            NoImageReason::PointMissed { count, .. } => {
                self.widenings = 0;
                self.narrowings = (self.narrowings + 1).min(POINT_WIDENINGS_MAX);
                *count
            }
            _ => return None,
        };
        self.misaligned = self.misaligned.saturating_add(1);
        Some(Misaligned { in_a_row: self.misaligned, count })
    }
}

/// The counts when a point was named, for the report that points do not line up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) point: u64,
    pub(crate) least: Point,
    pub(crate) most: Point,
    /// Time that the ranks get to come to it.
    pub(crate) time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::Rank;

    fn at(count: u64, interval_ns: Option<u64>) -> PointSummary {
        PointSummary::of(Point { count, rank: Rank(0) }, interval_ns)
    }

    #[test]
    fn the_point_is_ahead_of_the_fastest_rank_by_what_it_passes_meanwhile() {
        let mut chooser = PointChooser::default();
        let trip = Duration::from_millis(3);
        assert_eq!(chooser.choose(&at(10, None), trip), Some(12));
        assert_eq!(chooser.choose(&at(10, Some(1_000_000)), trip), Some(24));
        assert_eq!(chooser.choose(&at(10, Some(0)), trip), Some(10 + POINT_MARGIN_MAX));
        assert_eq!(chooser.choose(&PointSummary::FINALIZING, trip), None);
        assert_eq!(chooser.choose(&at(u64::MAX, None), trip), Some(u64::MAX));
    }

    #[test]
    fn a_slow_question_is_remembered_for_a_while() {
        let mut chooser = PointChooser::default();
        let summary = at(10, Some(1_000_000));
        let (slow, fast) = (Duration::from_millis(16), Duration::from_millis(1));
        assert_eq!(chooser.choose(&summary, fast), Some(16));
        assert_eq!(chooser.choose(&summary, slow), Some(76));
        assert_eq!(chooser.choose(&summary, fast), Some(68));
        for _ in 0..30 {
            chooser.choose(&summary, fast);
        }
        assert_eq!(chooser.choose(&summary, fast), Some(16));
    }

    #[test]
    fn a_slow_program_gets_time_for_its_point() {
        let second = 1_000_000_000;
        assert_eq!(PointChooser::time_for(&at(10, None), 12), POINT_TIME_MIN);
        assert_eq!(PointChooser::time_for(&at(10, Some(1_000)), 12), POINT_TIME_MIN);
        assert_eq!(PointChooser::time_for(&at(10, Some(5 * second)), 12), Duration::from_secs(40));
        assert_eq!(PointChooser::time_for(&at(0, Some(u64::MAX)), 12), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn misses_widen_and_narrow_the_margin() {
        let mut chooser = PointChooser::default();
        let summary = at(100, Some(1_000_000));
        let trip = Duration::from_millis(4);
        assert_eq!(chooser.choose(&summary, trip), Some(118));
        chooser.failed(&NoImageReason::PointPassed { point: 110, count: 120 });
        let misaligned = chooser.failed(&NoImageReason::PointPassed { point: 120, count: 120 });
        assert_eq!(misaligned, Some(Misaligned { in_a_row: 2, count: 120 }));
        assert_eq!(chooser.choose(&summary, trip), Some(172));
        chooser.succeeded();
        assert_eq!(chooser.choose(&summary, trip), Some(136));
        chooser.failed(&NoImageReason::PointMissed { point: Some(120), count: 101 });
        assert_eq!(chooser.choose(&summary, trip), Some(109));
        assert_eq!(chooser.failed(&NoImageReason::Ended {}), None);
    }
}
