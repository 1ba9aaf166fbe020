//! A node's clock: skewed, and sometimes jumping.

use super::queue::Nanos;
use transport::Instant;

/// Drift is in parts per 2^20 (close to ppm): ordinary quartz is within 100.
const DRIFT_ONE: i64 = 1 << 20;

/// The monotonic clock of one node. It runs a little fast or slow, starts anywhere, and jumps forward when the node was
/// suspended, or (a broken clock source) back.
#[derive(Clone, Debug)]
pub struct Clock {
    offset: i64,
    drift: i64,
}

impl Clock {
    /// A clock that shows `start_ns` at the world's time zero and gains `drift` / 2^20 of the time that passes.
    #[must_use]
    pub fn new(start_ns: u64, drift: i64) -> Clock {
        Clock { offset: i64::try_from(start_ns).unwrap_or(i64::MAX / 2), drift }
    }

    /// The clock's time at `world`.
    #[must_use]
    #[inline]
    pub fn read(&self, world: Nanos) -> Instant {
        let t = i64::try_from(world).unwrap_or(i64::MAX / 2);
        let shown = self.offset + t + t / DRIFT_ONE * self.drift + (t % DRIFT_ONE) * self.drift / DRIFT_ONE;
        Instant::from_nanos(u64::try_from(shown).unwrap_or(0))
    }

    /// World time at which the clock will show at least `deadline`, if it does not jump again; never before `now`.
    #[must_use]
    #[inline]
    pub fn when(&self, deadline: Instant, now: Nanos) -> Nanos {
        let shown = self.read(now).as_nanos();
        let Some(left) = deadline.as_nanos().checked_sub(shown) else { return now };
        let left = i64::try_from(left).unwrap_or(i64::MAX / 4);
        let slowed = left - left / DRIFT_ONE * self.drift - (left % DRIFT_ONE) * self.drift / DRIFT_ONE;
        // One more than exact, because both divisions round: the timer must not ring a nanosecond early for ever.
        now.saturating_add(u64::try_from(slowed).unwrap_or(0)).saturating_add(1)
    }

    /// Moves the clock by `jump_ns`; it never shows less than zero.
    pub fn jump(&mut self, jump_ns: i64) {
        self.offset = self.offset.saturating_add(jump_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_reached_when_the_clock_says_it_will_be() {
        for drift in [-100, 0, 37, 100] {
            let clock = Clock::new(5_000_000, drift);
            for left in [0u64, 1, 999, 1_000_000, 77_000_000_123] {
                let now = 123_456_789;
                let deadline = Instant::from_nanos(clock.read(now).as_nanos() + left);
                let at = clock.when(deadline, now);
                // The inverse of the drift is taken to first order; the error is below drift^2.
                let early = deadline.as_nanos().saturating_sub(clock.read(at).as_nanos());
                assert!(early <= 1 + left / 10_000_000, "drift {drift} left {left}: {early} early");
            }
        }
    }

    #[test]
    fn a_jump_moves_the_clock_both_ways() {
        let mut clock = Clock::new(1_000, 0);
        clock.jump(500);
        assert_eq!(clock.read(0).as_nanos(), 1_500);
        clock.jump(-2_000);
        assert_eq!(clock.read(0).as_nanos(), 0);
        assert_eq!(clock.read(2_000).as_nanos(), 1_500);
    }
}
