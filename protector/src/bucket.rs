//! A limit on bytes per second that several threads share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use store::storage;

/// See [`storage::Bucket`].
pub(crate) struct Bucket {
    shared: Mutex<storage::Bucket>,
    since: Instant,
}

impl Bucket {
    pub(crate) fn new(bytes_per_s: u64) -> Bucket {
        let shared = Mutex::new(storage::Bucket::new(bytes_per_s, Duration::ZERO));
        Bucket { shared, since: Instant::now() }
    }

    /// Takes so many bytes, and says how long to wait before the next ones may be taken.
    pub(crate) fn take(&self, bytes: u64) -> Duration {
        let now = self.since.elapsed();
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).take(now, bytes)
    }

    /// How long to wait before something may be taken.
    pub(crate) fn wait(&self) -> Duration {
        self.take(0)
    }
}
