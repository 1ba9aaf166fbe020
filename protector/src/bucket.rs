//! A limit on bytes per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::BURST;

/// A bucket that fills at a rate. Who takes more than is in it waits until it would have been full enough; so over any time of more than
/// [`BURST`] the rate is kept, whatever the pieces are.
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
        #[expect(clippy::cast_precision_loss, reason = "one piece is far below 2^52")]
        let bytes = bytes as f64;
        self.look(bytes)
    }

    /// How long to wait before something may be taken.
    pub(crate) fn wait(&self) -> Duration {
        self.look(0.0)
    }

    fn look(&self, bytes: f64) -> Duration {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let gained = now.duration_since(level.at).as_secs_f64() * self.bytes_per_s;
        level.at = now;
        level.bytes = (level.bytes + gained).min(self.bytes_per_s * BURST.as_secs_f64()) - bytes;
        Duration::from_secs_f64((-level.bytes / self.bytes_per_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ahead_is_waited_for() {
        let bucket = Bucket::new(1_000_000);
        assert!(bucket.wait().is_zero());
        // 100,000 bytes are a tenth of a second; at most a burst of them was there.
        let wait = bucket.take(100_000);
        assert!(wait > Duration::from_millis(80) && wait <= Duration::from_millis(100), "{wait:?}");
        assert!(bucket.take(1_000_000) > Duration::from_secs(1));
        assert!(bucket.wait() > Duration::from_secs(1), "nothing is forgotten");
    }
}
