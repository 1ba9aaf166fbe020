//! A limit on bytes per second.

use core::time::Duration;

/// Burst that a limit lets through after a pause, as time at its rate: far below a second, so that rates are kept in short runs too.
const BURST_MAX: Duration = Duration::from_millis(5);

/// A bucket that fills at a rate. A caller that takes more than is in it waits until it would have been full enough; so
/// the rate is kept over times much longer than 5 ms and than one piece takes at the rate. The caller gives the time,
/// counted from an instant of its choice.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bucket {
    bytes_per_s: f64,
    /// Below zero: taken ahead.
    bytes: f64,
    at: Duration,
}

impl Bucket {
    /// An empty one, at this time.
    #[must_use]
    pub fn new(bytes_per_s: u64, now: Duration) -> Bucket {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
        let bytes_per_s = bytes_per_s.max(1) as f64;
        Bucket { bytes_per_s, bytes: 0.0, at: now }
    }

    /// Takes so many bytes, and says how long to wait before the next ones may be taken.
    pub fn take(&mut self, now: Duration, bytes: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "one piece is far below 2^52")]
        let bytes = bytes as f64;
        // Another thread may have looked at the time later, and been here earlier.
        let gained = now.saturating_sub(self.at).as_secs_f64() * self.bytes_per_s;
        self.at = self.at.max(now);
        self.bytes = (self.bytes + gained).min(self.bytes_per_s * BURST_MAX.as_secs_f64()) - bytes;
        Duration::try_from_secs_f64((-self.bytes / self.bytes_per_s).max(0.0)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ahead_is_waited_for() {
        let mut bucket = Bucket::new(1_000_000, Duration::ZERO);
        let mut after = |ms, bytes| bucket.take(Duration::from_millis(ms), bytes).as_millis();
        // However long nothing was taken, no more than a burst is there: 100,000 bytes are a tenth of a second.
        assert_eq!(after(60_000, 0), 0);
        assert_eq!(after(60_000, 100_000), 95);
        assert_eq!(after(60_050, 1_000_000), 1045);
        // Nothing is forgotten.
        assert_eq!(after(60_100, 0), 995);
        assert_eq!(after(61_095, 0), 0);
        // A thread that comes late takes nothing back.
        assert_eq!(after(60_000, 1000), 1);
    }

    #[test]
    fn a_wait_longer_than_any_time_is_no_panic() {
        assert!(Bucket::new(1, Duration::ZERO).take(Duration::ZERO, u64::MAX) > Duration::from_secs(1 << 30));
    }
}
