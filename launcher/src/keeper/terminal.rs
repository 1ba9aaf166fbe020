//! The terminal of a job's only rank (`--tty`).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, unlockpt};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::tcgetpgrp;

use super::super::terminal::{Size, TerminalSpec};
use super::Shell;
use crate::spawn::process::non_blocking;

/// Both ends of a new one.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) keeper_end: OwnedFd,
    pub(crate) rank_end: OwnedFd,
    /// A person is there, and stops the job with Ctrl-Z.
    pub(crate) is_watched: bool,
}

impl Terminal {
    pub(super) fn open(spec: &TerminalSpec) -> io::Result<Terminal> {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let keeper_end = posix_openpt(flags)?;
        grantpt(&keeper_end)?;
        unlockpt(&keeper_end)?;
        let asked = libc::c_ulong::try_from(flags.bits()).unwrap_or(0);
        // SAFETY: opens the other end, by number: /dev/pts may be another one here.
        let rank_end = unsafe { libc::ioctl(keeper_end.as_raw_fd(), libc::TIOCGPTPEER, asked) };
        if rank_end < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and belongs to nobody else.
        let rank_end = unsafe { OwnedFd::from_raw_fd(rank_end) };
        if let Some(settings) = &spec.settings {
            settings.set(rank_end.as_fd())?;
        }
        spec.size.set(rank_end.as_fd())?;
        let keeper_end = non_blocking(keeper_end.as_fd().try_clone_to_owned()?)?;
        Ok(Terminal { keeper_end, rank_end, is_watched: spec.is_watched })
    }
}

/// The terminal of the keeper's only rank.
#[derive(Debug)]
pub(super) struct OwnTerminal {
    /// How one begins, if the rank has one.
    spec: Option<TerminalSpec>,
    /// That of the newest.
    keeper_end: Option<OwnedFd>,
}

impl OwnTerminal {
    pub(super) fn new(spec: Option<TerminalSpec>) -> OwnTerminal {
        OwnTerminal { spec, keeper_end: None }
    }
}

impl Shell {
    /// For a rank that is about to be started, if it has one.
    pub(super) fn new_terminal(&mut self) -> io::Result<Option<Terminal>> {
        let Some(spec) = &self.terminal.spec else { return Ok(None) };
        let named =
            |error| io::Error::other(format!("a terminal for it (--tty): {error}; is /dev/ptmx there?"));
        let terminal = Terminal::open(spec).map_err(named)?;
        self.terminal.keeper_end = Some(terminal.keeper_end.as_fd().try_clone_to_owned()?);
        Ok(Some(terminal))
    }

    /// The launcher's terminal has another size.
    pub(super) fn resize(&mut self, size: Size) {
        if let Some(spec) = &mut self.terminal.spec {
            spec.size = size;
        }
        if let Some(terminal) = &self.terminal.keeper_end {
            // It has been closed: the next one has this size.
            let _ = size.set(terminal.as_fd());
        }
    }

    /// The program stood still, and others have drawn on the screen: most draw it again when they hear of a size.
    pub(super) fn redraw(&self) {
        let group = self.terminal.keeper_end.as_ref().map(tcgetpgrp);
        if let Some(Ok(group)) = group {
            // It has ended.
            let _ = killpg(group, Signal::SIGWINCH);
        }
    }
}
