//! The link to the launcher at the keeper's ends: over standard input and output, from the first message to the last.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::limits::LINK_GREETING_MAX;
use super::super::wire::{Begin, Link, LinkError, ToKeeper};

/// The link over standard input and output.
pub(super) fn open() -> io::Result<Link> {
    let duplicate = |fd: BorrowedFd<'_>| -> io::Result<OwnedFd> {
        let fd = fd.try_clone_to_owned()?;
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(fd)
    };
    let link = Link::new(duplicate(io::stdin().as_fd())?, duplicate(io::stdout().as_fd())?);
    // Nothing else may be read or written there.
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(link)
}

/// Waits for the launcher's first message; messages behind that have come as well.
pub(super) fn greeting(link: &mut Link) -> Result<(Begin, Vec<ToKeeper>), LinkError> {
    let until = Instant::now() + LINK_GREETING_MAX;
    let mut messages = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for 30 s").into());
        }
        let mut fds = [PollFd::new(link.from().as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        link.receive(&mut messages)?;
        if messages.is_empty() {
            continue;
        }
        return match messages.remove(0) {
            ToKeeper::Begin(begin) => Ok((*begin, messages)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it does not begin").into()),
        };
    }
}

/// Sends the waiting messages, for a second at most, while the other end reads.
pub(super) fn finish_sending(link: &mut Link) {
    let until = Instant::now() + Duration::from_secs(1);
    while link.has_waiting() && Instant::now() < until {
        let mut fds = [PollFd::new(link.to().as_fd(), PollFlags::POLLOUT)];
        let _ = poll(&mut fds, PollTimeout::from(100u8));
        link.flush();
    }
}
