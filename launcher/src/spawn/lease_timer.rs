//! The kernel's part in a lease (R30): it ends this process when the lease is over, and with it the ranks, which end with the process that has started
//! them ([`super::process::end_with_launcher`]). It does so although all processes of the host stand still, the guard with them: SIGKILL ends a stopped
//! process too, and nothing of it goes on when the others do.

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use crate::limits::GUARD_GRACE;

#[derive(Debug)]
pub(super) struct LeaseTimer(Timer);

impl LeaseTimer {
    /// Nothing is ended yet. An error only if the user has too many signals or timers (RLIMIT_SIGPENDING).
    pub(super) fn new() -> io::Result<LeaseTimer> {
        let kill = SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 };
        Ok(LeaseTimer(Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(kill))?))
    }

    /// For how long the lease lasts from now on; `None`: for ever.
    pub(super) fn set(&mut self, lease: Option<Duration>) {
        // All zero switches it off.
        let left = lease.map_or(Duration::ZERO, |lease| lease + GUARD_GRACE);
        // It fails for times only that no lease has.
        let _ = self.0.set(Expiration::OneShot(left.into()), TimerSetTimeFlags::empty());
    }
}
