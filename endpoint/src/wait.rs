//! Sleeping until a frame comes, outside the gate.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use drivers::{Armed, Driver};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use transport::LinkIndex;
use transport::matching::Pattern;

use crate::gate::{Endpoint, Shared};
use crate::inner::Inner;

/// What wakes sleepers: the rails' descriptors, and an event for completions that the helper has found.
pub(crate) struct Bell {
    event: EventFd,
    /// Our own duplicates: a rail may die and close its descriptor while somebody sleeps on it.
    rails: Vec<OwnedFd>,
}

impl Bell {
    pub(crate) fn new(rails: &[Box<dyn Driver>]) -> std::io::Result<Bell> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let rails = rails
            .iter()
            .filter_map(|driver| driver.fd())
            .map(|fd| fd.try_clone_to_owned())
            .collect::<Result<_, _>>()?;
        Ok(Bell { event, rails })
    }

    /// Wakes whoever sleeps.
    pub(crate) fn ring(&self) {
        // Full means that it is ringing already.
        let _ = self.event.write(1);
    }

    pub(crate) fn ring_for_sleepers(&self, shared: &Shared) {
        if shared.sleepers.load(Ordering::Relaxed) > 0 {
            self.ring();
        }
    }

    /// Sleeps until a frame or a ring, for `timeout` at most.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.rails.len() + 1);
        fds.push(PollFd::new(self.event.as_fd(), PollFlags::POLLIN));
        fds.extend(self.rails.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        // An interrupted sleep is a short one; the caller looks again anyway.
        let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None);
        if fds[0].revents().is_some_and(|events| !events.is_empty()) {
            let _ = self.event.read();
        }
    }

    pub(crate) fn rails(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.rails.iter().map(OwnedFd::try_clone).collect()
    }

    /// Rails without a descriptor can only be polled.
    fn longest(&self, rails: usize) -> Duration {
        if self.rails.len() < rails { Duration::from_micros(50) } else { Duration::from_secs(1) }
    }
}

impl Inner {
    /// Prepares every rail for a sleep. False: a frame may be there already.
    pub(crate) fn arm(&mut self) -> bool {
        self.rails.iter_mut().flatten().all(|driver| matches!(driver.arm(), Ok(Armed::Sleep)))
    }
}

impl Endpoint {
    /// Waits until a completion is there, for `timeout` at most: polls for a while, then sleeps. True if one is there.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, |_| false)
    }

    /// As [`Endpoint::wait`], and also returns when a message waits that a receive with this pattern would get.
    pub fn wait_message(&self, pattern: &Pattern, timeout: Duration) -> bool {
        self.wait_until(timeout, |inner| inner.port.peek(pattern).is_some())
    }

    /// As [`Endpoint::wait`], and also returns when a message could be sent on this link from the user's buffer.
    pub fn wait_room(&self, link: LinkIndex, timeout: Duration) -> bool {
        self.wait_until(timeout, |inner| inner.port.can_send(link, 0))
    }

    fn wait_until(&self, timeout: Duration, mut met: impl FnMut(&mut Inner) -> bool) -> bool {
        let shared = &*self.shared;
        let started = shared.clock.now();
        loop {
            {
                let mut inner = shared.lock();
                if !inner.completions.is_empty() || met(&mut inner) {
                    return true;
                }
                let now = shared.clock.now();
                let rounds = shared.rounds.load(Ordering::Relaxed).wrapping_add(1);
                shared.rounds.store(rounds, Ordering::Relaxed);
                inner.progress(now);
                if !inner.completions.is_empty() || met(&mut inner) {
                    return true;
                }
                let waited = now.since(started);
                if waited >= timeout {
                    return false;
                }
                if waited >= shared.config.spin && inner.arm() {
                    let due = inner.port.poll_timeout().map_or(Duration::MAX, |due| due.since(now));
                    let rest = (timeout - waited).min(due).min(shared.bell.longest(inner.rails.len()));
                    shared.sleepers.fetch_add(1, Ordering::Relaxed);
                    drop(inner);
                    shared.bell.sleep(rest);
                    shared.sleepers.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
            }
            core::hint::spin_loop();
        }
    }
}
