//! Sleeping until a descriptor is readable.

use core::time::Duration;
use std::os::fd::BorrowedFd;

use nix::errno::Errno as NixErrno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::driver::Wake;
use crate::error::{DriverError, Errno, Operation};

/// Longest single sleep: a `timespec` cannot hold every `Duration`, and a caller that asks for more only wakes early.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<Wake, DriverError> {
    let timeout = TimeSpec::from_duration(timeout.min(SLEEP_MAX));
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    match ppoll(&mut polled, Some(timeout), None) {
        Ok(0) => Ok(Wake::Timeout),
        Ok(_) => Ok(Wake::Frame),
        Err(NixErrno::EINTR) => Ok(Wake::Interrupted),
        Err(error) => Err(DriverError::Transient { operation: Operation::Wait, errno: Errno(error as i32) }),
    }
}
