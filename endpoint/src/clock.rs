//! The clock of this process as the protocol sees it.

use nix::time::{ClockId, clock_gettime};
use transport::Instant;

/// Monotonic nanoseconds since the endpoint was opened. Read at every poll and send, so in one number: `std::time::Instant` takes
/// seconds and nanoseconds apart three times on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started_ns: u64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started_ns: monotonic_ns() }
    }

    pub(crate) fn now(self) -> Instant {
        Instant::from_nanos(monotonic_ns().saturating_sub(self.started_ns))
    }
}

fn monotonic_ns() -> u64 {
    // A kernel without this clock cannot run the standard library either.
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}
