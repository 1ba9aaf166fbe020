//! A limit on bytes per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::BURST_MAX;

/// A bucket that fills at a rate. Who takes more than is in it waits until it would have been full enough; so over any time of more than
/// [`BURST_MAX`] the rate is kept, whatever the pieces are.
pub(crate) struct Bucket {
    bytes_per_s: f64,
    level: Mutex<Level>,
}

struct Level {
    /// Below zero: taken ahead.
    bytes: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(bytes_per_s: u64) -> Bucket {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
        let bytes_per_s = bytes_per_s.max(1) as f64;
        Bucket { bytes_per_s, level: Mutex::new(Level { bytes: 0.0, at: Instant::now() }) }
    }

    /// Takes so many bytes, and says how long to wait before the next ones may be taken.
    pub(crate) fn take(&self, bytes: u64) -> Duration {
        self.take_at(Instant::now(), bytes)
    }

    /// How long to wait before something may be taken.
    pub(crate) fn wait(&self) -> Duration {
        self.take(0)
    }

    fn take_at(&self, now: Instant, bytes: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "one piece is far below 2^52")]
        let bytes = bytes as f64;
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have looked at the time later, and been here earlier.
        let gained = now.saturating_duration_since(level.at).as_secs_f64() * self.bytes_per_s;
        level.at = level.at.max(now);
        level.bytes = (level.bytes + gained).min(self.bytes_per_s * BURST_MAX.as_secs_f64()) - bytes;
        Duration::from_secs_f64((-level.bytes / self.bytes_per_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ahead_is_waited_for() {
        let bucket = Bucket::new(1_000_000);
        let start = Instant::now();
        let after = |ms, bytes| bucket.take_at(start + Duration::from_millis(ms), bytes).as_millis();
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
}
