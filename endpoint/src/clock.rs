//! The clock of this process as the protocol sees it.

use drivers::sync::{AtomicU64, Ordering};
#[cfg(not(loom))]
use nix::time::{ClockId, clock_gettime};
use transport::Instant;

/// Monotonic nanoseconds since the endpoint was opened. Read at every poll and send, so in one number: `std::time::Instant` takes
/// seconds and nanoseconds apart three times on the way.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Changes only while the gate is held. Relaxed: a thread that reads an older one sees a time that is too
    /// early or too late once.
    started_ns: AtomicU64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started_ns: AtomicU64::new(monotonic_ns()) }
    }

    /// In a restored process: goes on at `last`. The machine's clock may stand before the one of the machine that was left, or far behind it.
    pub(crate) fn go_on_at(&self, last: Instant) {
        self.started_ns.store(monotonic_ns().wrapping_sub(last.as_nanos()), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(monotonic_ns().wrapping_sub(self.started_ns.load(Ordering::Relaxed)))
    }
}

#[cfg(not(loom))]
fn monotonic_ns() -> u64 {
    // A kernel without this clock cannot run the standard library either.
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}

/// In a model no time passes.
#[cfg(loom)]
fn monotonic_ns() -> u64 {
    0
}
