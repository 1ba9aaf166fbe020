//! The socket that the launcher has given this process, and the record that waits on it.

use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use client::launch::{self, Launch, SOCKET_VARIABLE};
use client::limits::LAUNCH_BYTES_MAX;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recv};
use nix::unistd::getppid;

use crate::error::AgentError;

/// A rank of a job that no process has taken yet.
#[derive(Debug)]
pub(crate) struct RankSlot {
    number: RawFd,
    /// Messages that wait on the socket. It is not taken from there: a restored process reads it in its new life.
    pub(crate) launch: Launch,
}

/// The launch record that waits on a socket, which stays there.
fn waiting(number: RawFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; LAUNCH_BYTES_MAX + 64];
    let found = recv(number, &mut bytes, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).ok()?;
    bytes.truncate(found);
    bytes.starts_with(&launch::MAGIC).then_some(bytes)
}

/// Programs that only start others, in their own place at last. Their children take the rank slot.
const SHELLS: [&str; 8] = ["ash", "bash", "busybox", "dash", "fish", "ksh", "sh", "zsh"];

/// Whether this is the executable of a shell, which never takes a rank slot itself.
pub fn is_shell(executable: &Path) -> bool {
    executable.file_name().is_some_and(|name| SHELLS.iter().any(|shell| name == *shell))
}

/// Whether the launcher has started this very process: programs that a rank's own program starts inherit the socket, and are no ranks.
fn is_started_by_peer(number: RawFd) -> bool {
    // SAFETY: borrowed for one system call, which fails if nothing is open there.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    getsockopt(&socket, PeerCredentials).is_ok_and(|launcher| launcher.pid() == getppid().as_raw())
}

impl RankSlot {
    /// The rank slot that this process was started for. `None`: it has none, as processes that a rank starts, which inherit the variable.
    pub(crate) fn find() -> Result<Option<RankSlot>, AgentError> {
        let number = std::env::var_os(SOCKET_VARIABLE);
        let number = number.as_ref().and_then(|text| text.to_str()?.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number > 2) else { return Ok(None) };
        let Some(record) = waiting(number) else { return Ok(None) };
        if !is_started_by_peer(number) || is_shell(&std::env::current_exe().unwrap_or_default()) {
            return Ok(None);
        }
        let launch = Launch::read(&mut record.as_slice())?;
        Ok(Some(RankSlot { number, launch }))
    }

    /// Whether it has not been taken since.
    pub(crate) fn is_free(&self) -> bool {
        waiting(self.number).is_some()
    }

    /// The socket, for this process alone.
    pub(crate) fn take(self) -> std::io::Result<UnixStream> {
        // SAFETY: the launcher opened this descriptor for this process, and a launch record waits on it: nothing else in the process knows
        // of it, and a rank slot is taken once, by the constructor of the library.
        let socket = unsafe { OwnedFd::from_raw_fd(self.number) };
        // Programs that this one starts are no ranks.
        fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(UnixStream::from(socket))
    }

    /// The socket's number.
    pub(crate) fn number(&self) -> RawFd {
        self.number
    }
}
