//! The launcher's own terminal, while a job with `--tty` has it: every key goes to the program, which has a terminal of its own on its node.
//!
//! ```text
//!   keyboard --> launcher's terminal (raw) --> keeper --> terminal of the rank: echo, line editing, signals
//!   screen   <-- launcher's terminal (raw) <-- keeper <--
//! ```

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, isatty, tcgetpgrp};
use serde::{Deserialize, Serialize};

/// A terminal's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
    /// Of the whole, 0 if nobody knows.
    pub(crate) pixels: (u16, u16),
}

/// Settings of a terminal, as termios(3) has them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) input: u32,
    pub(crate) output: u32,
    pub(crate) control: u32,
    pub(crate) local: u32,
    pub(crate) characters: Vec<u8>,
}

/// How the terminal of a rank begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TerminalSpec {
    /// As the launcher's; `None`: it has none, or is in its background, and the kernel's are used.
    pub(crate) settings: Option<Settings>,
    /// The launcher has a terminal: a person is there.
    pub(crate) is_watched: bool,
    pub(crate) size: Size,
}

impl Size {
    /// Where there is no terminal.
    const USUAL: Size = Size { rows: 24, columns: 80, pixels: (0, 0) };

    fn of(terminal: BorrowedFd<'_>) -> Option<Size> {
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the kernel writes four numbers, and fails if this is no terminal.
        let read = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
        let pixels = (size.ws_xpixel, size.ws_ypixel);
        (read == 0).then_some(Size { rows: size.ws_row, columns: size.ws_col, pixels })
    }

    /// Of the launcher's terminal.
    pub(crate) fn here() -> Size {
        Size::of(io::stdin().as_fd()).or_else(|| Size::of(io::stdout().as_fd())).unwrap_or(Size::USUAL)
    }

    /// Sets it; the kernel notifies the program in the foreground (SIGWINCH) if it differs.
    pub(crate) fn set(self, terminal: BorrowedFd<'_>) -> io::Result<()> {
        let (ws_xpixel, ws_ypixel) = self.pixels;
        let size = libc::winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel, ws_ypixel };
        // SAFETY: the kernel reads four numbers.
        let set = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Settings {
    fn of(termios: &Termios) -> Settings {
        let termios: libc::termios = termios.clone().into();
        Settings {
            input: termios.c_iflag,
            output: termios.c_oflag,
            control: termios.c_cflag,
            local: termios.c_lflag,
            characters: termios.c_cc.to_vec(),
        }
    }

    /// Sets them; the speed stays.
    pub(crate) fn set(&self, terminal: BorrowedFd<'_>) -> io::Result<()> {
        let mut termios: libc::termios = tcgetattr(terminal)?.into();
        (termios.c_iflag, termios.c_oflag) = (self.input, self.output);
        (termios.c_cflag, termios.c_lflag) = (self.control, self.local);
        for (place, character) in termios.c_cc.iter_mut().zip(&self.characters) {
            *place = *character;
        }
        Ok(tcsetattr(terminal, SetArg::TCSANOW, &termios.into())?)
    }
}

/// The launcher's terminal, which gets its settings back when this is dropped.
#[derive(Debug)]
pub(crate) struct LauncherTerminal {
    /// Standard input is one.
    is_there: bool,
    /// Its settings from before it was raw; `None`: it is not.
    usual: Option<Termios>,
}

impl LauncherTerminal {
    pub(crate) fn new() -> LauncherTerminal {
        LauncherTerminal { is_there: isatty(io::stdin()).unwrap_or(false), usual: None }
    }

    /// This process may use it now. In the background its settings are somebody else's, such as those of a shell's line editor.
    fn is_ours(&self) -> bool {
        self.is_there && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
    }

    /// For a rank's terminal.
    pub(crate) fn spec(&self) -> TerminalSpec {
        let settings = || tcgetattr(io::stdin()).ok().as_ref().map(Settings::of);
        let settings =
            self.usual.as_ref().map(Settings::of).or_else(|| settings().filter(|_| self.is_ours()));
        TerminalSpec { settings, is_watched: self.is_there, size: Size::here() }
    }

    /// There is none, or every key goes to the job.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_there || self.usual.is_some()
    }

    /// Gives every key to the job, if this process is in the foreground. Whether that is new.
    pub(crate) fn enter(&mut self) -> bool {
        if self.is_settled() || !self.is_ours() {
            return false;
        }
        let Ok(usual) = tcgetattr(io::stdin()) else { return false };
        let mut raw = usual.clone();
        cfmakeraw(&mut raw);
        if tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).is_ok() {
            self.usual = Some(usual);
        }
        self.usual.is_some()
    }

    /// Gives it back. It does not wait until everything has been shown: a terminal that nobody reads would hold up the job.
    pub(crate) fn leave(&mut self) {
        let Some(usual) = self.usual.take() else { return };
        // From the background this would stop the process, and the terminal would stay as it is.
        let mut stops = SigSet::empty();
        stops.add(Signal::SIGTTOU);
        let before = stops.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        // It is gone: nobody needs its settings.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &usual);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
    }
}

impl Drop for LauncherTerminal {
    fn drop(&mut self) {
        self.leave();
    }
}
