//! Where native ranks are to cut: a counted point ahead of every rank, near enough to be reached in time.

use core::time::Duration;

use crate::control::{NoImageReason, Point, PointSummary};
use crate::limits::{POINT_MARGIN_MAX, POINT_WIDENINGS_MAX};

/// Chooses points, and learns from those that were missed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PointChooser {
    /// The margin is widened by this power of two: ranks had passed the point when the command came.
    widenings: u32,
    /// The margin is narrowed by this power of two: the point was not reached in time.
    narrowings: u32,
    /// Checkpoints in a row that came to nothing because of points.
    misaligned: u32,
}

/// What the chooser says about a failure.
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
    pub(crate) fn choose(&self, summary: &PointSummary, round_trip: Duration) -> Option<u64> {
        let most = summary.most?;
        // Twice the round trip: the answer is half of one old, the command takes another half, the rest is for jitter.
        let during = round_trip.saturating_mul(2).as_nanos();
        let passed = match summary.interval_ns_min {
            Some(interval_ns) => u64::try_from(during / u128::from(interval_ns.max(1))).unwrap_or(u64::MAX),
            None => 0,
        };
        let margin = passed.saturating_add(1).min(POINT_MARGIN_MAX);
        let margin = (margin << self.widenings) >> self.narrowings;
        Some(most.count.saturating_add(margin.clamp(1, POINT_MARGIN_MAX)))
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

/// What was known when a point was named, for the report that points do not line up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) point: u64,
    pub(crate) least: Point,
    pub(crate) most: Point,
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
        let chooser = PointChooser::default();
        let trip = Duration::from_millis(3);
        assert_eq!(chooser.choose(&at(10, None), trip), Some(11));
        assert_eq!(chooser.choose(&at(10, Some(1_000_000)), trip), Some(17));
        assert_eq!(chooser.choose(&at(10, Some(0)), trip), Some(10 + POINT_MARGIN_MAX));
        assert_eq!(chooser.choose(&PointSummary::FINALIZING, trip), None);
        assert_eq!(chooser.choose(&at(u64::MAX, None), trip), Some(u64::MAX));
    }

    #[test]
    fn misses_widen_and_narrow_the_margin() {
        let mut chooser = PointChooser::default();
        let summary = at(100, Some(1_000_000));
        let trip = Duration::from_millis(4);
        assert_eq!(chooser.choose(&summary, trip), Some(109));
        chooser.failed(&NoImageReason::PointPassed { point: 109, count: 120 });
        let misaligned = chooser.failed(&NoImageReason::PointPassed { point: 118, count: 120 });
        assert_eq!(misaligned, Some(Misaligned { in_a_row: 2, count: 120 }));
        assert_eq!(chooser.choose(&summary, trip), Some(136));
        chooser.succeeded();
        assert_eq!(chooser.choose(&summary, trip), Some(118));
        chooser.failed(&NoImageReason::PointMissed { point: Some(118), count: 101 });
        assert_eq!(chooser.choose(&summary, trip), Some(104));
        assert_eq!(chooser.failed(&NoImageReason::Ended {}), None);
    }
}
