//! A descriptor that becomes readable when a frame has come, and when a held one is due.

use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use transport::Instant;

/// Stands at the first held frame that goes by time. A thread that sleeps on it need not have looked after
/// that frame was held.
pub(super) struct Alarm {
    both: Epoll,
    timer: TimerFd,
    stands_at: Option<Instant>,
}

impl Alarm {
    /// Beside the descriptor of the driver inside.
    pub(super) fn beside(inner: BorrowedFd<'_>) -> Result<Alarm, Errno> {
        let both = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        for source in [inner, timer.as_fd()] {
            both.add(source, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Alarm { both, timer, stands_at: None })
    }

    /// From now on it stands at `due`; one that has gone off is silent until then. False: the kernel has refused.
    pub(super) fn stand_at(&mut self, due: Option<Instant>, now: Instant) -> bool {
        if self.stands_at == due {
            return true;
        }
        let set = match due {
            // Nothing at all would be no time at all: not set.
            Some(due) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(due.since(now).max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::empty(),
            ),
            None => self.timer.unset(),
        };
        if set.is_ok() {
            self.stands_at = due;
        }
        set.is_ok()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.both.0.as_fd()
    }

    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        [self.both.0.as_raw_fd(), self.timer.as_fd().as_raw_fd()]
    }
}
