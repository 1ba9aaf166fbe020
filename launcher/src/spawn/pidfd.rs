//! Signals to processes that may end at any time: a number is given anew once its process has been collected, a descriptor of the process is not.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Child;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// A process, which need not be a child.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// The process that has this number now. The caller has to make sure, after this, that it is the one that is meant.
    pub fn open(pid: Pid) -> io::Result<PidFd> {
        // SAFETY: the call takes two numbers.
        let answer = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
        let number = i32::try_from(answer).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        Ok(PidFd(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Fails if the process has been collected.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let nothing = std::ptr::null::<libc::siginfo_t>();
        let (process, number) = (self.0.as_raw_fd(), signal as libc::c_int);
        // SAFETY: two numbers, and a null pointer, for which the kernel fills in what kill(2) would.
        let answer = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, number, nothing, 0) };
        Errno::result(answer).map(drop).map_err(io::Error::from)
    }
}

/// Whether a child has ended. It is not collected: its number, and that of its group, stay its own.
pub fn has_ended(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(child), flags), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
}

/// The number of a child.
pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_was_collected_gets_no_signal() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = pid_of(&child);
        let process = PidFd::open(pid).expect("it runs");
        assert!(!has_ended(pid));
        process.signal(Signal::SIGKILL).expect("it runs");
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        // As often as one likes: it is still there to be collected.
        assert!(has_ended(pid));
        process.signal(Signal::SIGKILL).expect("a process that waits to be collected");
        child.wait().expect("a child");
        let error = process.signal(Signal::SIGKILL).expect_err("it is gone");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
