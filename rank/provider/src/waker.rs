//! The event that a blocked reader sleeps on: a descriptor that becomes readable when something has been reported, or
//! when a frame may be waiting.

use core::ffi::c_int;
use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::boundary::{Errno, Result};
use crate::engine::Engine;

/// The waker of a queue or a counter.
pub(crate) struct Waker {
    /// Readable after each thing that is reported.
    event: EventFd,
    /// Readable when `event` is, or when a frame may be waiting at an endpoint.
    epoll: Epoll,
    /// The endpoints' descriptors, which are ours to close.
    rails: Mutex<Vec<(usize, OwnedFd)>>,
}

/// An error number of the system.
pub(crate) fn failed(error: nix::Error) -> Errno {
    Errno(error as c_int)
}

/// Readable: nothing else is asked for.
pub(crate) fn readable() -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, 0)
}

pub(crate) fn new_epoll() -> Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)
}

/// Sleeps until a descriptor is readable, a millisecond at least.
pub(crate) fn sleep_on(fd: BorrowedFd<'_>, longest: Duration) {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(longest.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
    // An interrupted sleep is a short one.
    let _ = poll(&mut fds, timeout);
}

impl Waker {
    pub(crate) fn new() -> Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map_err(failed)?;
        let epoll = new_epoll()?;
        epoll.add(&event, readable()).map_err(failed)?;
        Ok(Waker { event, epoll, rails: Mutex::default() })
    }

    pub(crate) fn wake(&self) {
        // Full means that it is readable already.
        let _ = self.event.write(1);
    }

    /// Clears it. True if it had been woken.
    pub(crate) fn clear(&self) -> bool {
        self.event.read().is_ok()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    pub(crate) fn raw_fd(&self) -> c_int {
        self.epoll.0.as_raw_fd()
    }

    pub(crate) fn sleep(&self, longest: Duration) {
        sleep_on(self.fd(), longest);
    }

    /// Frames that come to this endpoint wake the sleeper.
    pub(crate) fn join(&self, engine: &Arc<Engine>) -> Result<()> {
        let mut rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = engine.descriptor()?;
        self.epoll.add(fd.as_fd(), readable()).map_err(failed)?;
        rails.push((Arc::as_ptr(engine) as usize, fd));
        Ok(())
    }

    pub(crate) fn leave(&self, engine: &Arc<Engine>) {
        let mut rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        rails.retain(|(owner, fd)| {
            let stays = *owner != Arc::as_ptr(engine) as usize;
            if !stays {
                let _ = self.epoll.delete(fd);
            }
            stays
        });
    }
}
