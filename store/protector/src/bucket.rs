//! A limit on bytes per second that several threads share.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use store::storage::Limit;

/// See [`store::storage::Bucket`].
pub(crate) struct Bucket {
    shared: Mutex<Limit>,
}

impl Bucket {
    pub(crate) fn new(bytes_per_s: u64) -> Bucket {
        Bucket { shared: Mutex::new(Limit::new(bytes_per_s)) }
    }

    /// Takes so many bytes, and says how long to wait before the next ones may be taken.
    pub(crate) fn take(&self, bytes: u64) -> Duration {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).wait(bytes)
    }

    /// How long to wait before something may be taken.
    pub(crate) fn wait(&self) -> Duration {
        self.take(0)
    }
}
