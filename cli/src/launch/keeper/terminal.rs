//! The terminal of a job's only rank (`--tty`), and the effect of the keys that are typed into it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, unlockpt};
use session::input::{Line, Record};

use super::super::process::non_blocking;
use super::super::terminal::{Size, TerminalSpec};
use super::Shell;

/// Both ends of a new one.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) keeper_end: OwnedFd,
    pub(crate) rank_end: OwnedFd,
    /// A person is there, and stops the job with Ctrl-Z.
    pub(crate) is_watched: bool,
}

impl Terminal {
    fn open(spec: &TerminalSpec) -> io::Result<Terminal> {
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
        Ok(Terminal { keeper_end, rank_end, is_watched: spec.settings.is_some() })
    }
}

/// The kernel's treatment of keys, as far as it decides how many bytes of them a program can read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discipline {
    settings: libc::termios,
}

impl Discipline {
    /// Of a terminal, by either end of it.
    pub(super) fn of(terminal: &impl std::os::fd::AsFd) -> io::Result<Discipline> {
        Ok(Discipline { settings: nix::sys::termios::tcgetattr(terminal)?.into() })
    }

    fn is(&self, key: u8, function: usize) -> bool {
        // 0: no key has this function.
        key != 0 && self.settings.c_cc[function] == key
    }

    fn has(&self, flags: u32) -> bool {
        self.settings.c_lflag & flags == flags
    }

    fn is_interrupt(&self, key: u8) -> bool {
        self.has(libc::ISIG) && (self.is(key, libc::VINTR) || self.is(key, libc::VQUIT))
    }

    /// Whether the key stops the program in the foreground.
    pub(super) fn is_suspend(&self, key: u8) -> bool {
        self.has(libc::ISIG) && self.is(key, libc::VSUSP)
    }

    /// The keys that end the input of a program that reads lines; empty for one that reads keys, whose input no key ends.
    pub(super) fn end_of_file(&self, typed: &Typed) -> Vec<u8> {
        let times = if self.has(libc::ICANON) { 1 + usize::from(!typed.readable.is_empty()) } else { 0 };
        vec![self.settings.c_cc[libc::VEOF]; times]
    }
}

/// The line that is being typed.
#[derive(Debug, Default)]
pub(super) struct Typed {
    bytes: u32,
    readable: Vec<u8>,
    /// The next key is a character, also if it has a function.
    is_quoted: bool,
}

impl Typed {
    fn end_line(&mut self, record: &mut Record, further: usize) {
        let readable = u32::try_from(self.readable.len() + further).unwrap_or(u32::MAX);
        record.add_line(Line { typed: self.bytes, readable });
        *self = Typed::default();
    }

    /// A key that is not for the program.
    pub(super) fn pass_over(&mut self) {
        self.bytes += 1;
    }

    /// Notes keys that were typed in. Whether one of them interrupts the program.
    pub(super) fn add(&mut self, keys: &[u8], discipline: &Discipline, record: &mut Record) -> bool {
        let mut interrupts = false;
        for key in keys {
            interrupts |= discipline.is_interrupt(*key);
            self.add_key(*key, discipline, record);
        }
        interrupts
    }

    fn add_key(&mut self, key: u8, discipline: &Discipline, record: &mut Record) {
        self.bytes += 1;
        if !discipline.has(libc::ICANON) {
            // Each key can be read at once; nothing is left of lines.
            *record = Record {
                given_lines: record.given_lines + u64::from(self.bytes),
                lines: Default::default(),
                ..*record
            };
            *self = Typed::default();
            return;
        }
        if core::mem::take(&mut self.is_quoted) {
            self.readable.push(key);
            return;
        }
        let input = discipline.settings.c_iflag;
        let key = match key {
            b'\r' if input & libc::IGNCR != 0 => return,
            b'\r' if input & libc::ICRNL != 0 => b'\n',
            b'\n' if input & libc::INLCR != 0 => b'\r',
            other => other,
        };
        let is = |function| discipline.is(key, function);
        let is_extended = discipline.has(libc::IEXTEN);
        if discipline.is_interrupt(key) || discipline.is_suspend(key) {
            if !discipline.has(libc::NOFLSH) {
                // The kernel discards input that was not read yet.
                record.lines = Default::default();
                record.given_lines += u64::from(self.bytes);
                *self = Typed::default();
            }
        } else if input & libc::IXON != 0 && (is(libc::VSTART) || is(libc::VSTOP)) {
        } else if is(libc::VERASE) {
            self.erase_character(input & libc::IUTF8 != 0);
        } else if is(libc::VKILL) {
            self.readable.clear();
        } else if is_extended && is(libc::VWERASE) {
            self.erase_word();
        } else if is_extended && is(libc::VLNEXT) {
            self.is_quoted = true;
        } else if is(libc::VEOF) {
            self.end_line(record, 0);
        } else if key == b'\n' || is(libc::VEOL) || (is_extended && is(libc::VEOL2)) {
            self.end_line(record, 1);
        } else {
            self.readable.push(key);
        }
    }

    fn erase_character(&mut self, is_utf8: bool) {
        while let Some(byte) = self.readable.pop() {
            if !is_utf8 || byte & 0xc0 != 0x80 {
                return;
            }
        }
    }

    fn erase_word(&mut self) {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
        let blank = |readable: &[u8], of: bool| readable.last().is_some_and(|byte| is_word(byte) == of);
        while blank(&self.readable, false) {
            self.readable.pop();
        }
        while blank(&self.readable, true) {
            self.readable.pop();
        }
    }
}

impl Shell {
    /// For a rank that is about to be started, if it has one.
    pub(super) fn new_terminal(&mut self) -> io::Result<Option<Terminal>> {
        let Some(spec) = &self.terminal else { return Ok(None) };
        let named =
            |error| io::Error::other(format!("a terminal for it (--tty): {error}; is /dev/ptmx there?"));
        let terminal = Terminal::open(spec).map_err(named)?;
        self.terminal_end = Some(terminal.keeper_end.as_fd().try_clone_to_owned()?);
        Ok(Some(terminal))
    }

    /// The launcher's terminal has another size.
    pub(super) fn resize(&mut self, size: Size) {
        if let Some(spec) = &mut self.terminal {
            spec.size = size;
        }
        if let Some(terminal) = &self.terminal_end {
            // It has been closed: the next one has this size.
            let _ = size.set(terminal.as_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[u8]) -> (Record, Typed) {
        let terminal = Terminal::open(&TerminalSpec {
            settings: None,
            size: Size { rows: 24, columns: 80, pixels: (0, 0) },
        });
        let terminal = terminal.unwrap();
        let discipline = Discipline::of(&terminal.rank_end).unwrap();
        let (mut record, mut typed) = (Record::new(0, (0, 0)), Typed::default());
        typed.add(keys, &discipline, &mut record);
        // The kernel's own opinion: it has as many bytes of whole lines as were found.
        nix::unistd::write(&terminal.keeper_end, keys).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut unread: libc::c_int = 0;
        // SAFETY: the kernel writes a number.
        unsafe { libc::ioctl(terminal.rank_end.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
        let readable: u32 = record.lines.iter().map(|line| line.readable).sum();
        assert_eq!(u32::try_from(unread).unwrap(), readable, "{}", keys.escape_ascii());
        (record, typed)
    }

    #[test]
    fn lines_have_as_many_bytes_as_the_kernel_gives() {
        let whole = typed(b"one\rtwo\nthr");
        assert_eq!((whole.0.given_lines, whole.1.bytes), (8, 3));
        for keys in [
            &b"abc\x7f\x7fd\n"[..],
            b"\x7f\x7fx\n",
            b"two words\x17x\n",
            b"two words  \x17x\n",
            b"gone\x15here\n",
            b"\x16\x7fquoted\n",
            b"part\x04rest\n",
            b"first\nlost\x03kept\n",
            b"",
        ] {
            let (record, left) = typed(keys);
            assert_eq!(record.given_lines + u64::from(left.bytes), keys.len() as u64);
        }
    }

    #[test]
    fn an_end_of_file_ends_a_line_that_has_begun() {
        let terminal = Terminal::open(&TerminalSpec {
            settings: None,
            size: Size { rows: 1, columns: 1, pixels: (0, 0) },
        });
        let discipline = Discipline::of(&terminal.unwrap().keeper_end).unwrap();
        let mut line = Typed::default();
        assert_eq!(discipline.end_of_file(&line), [4]);
        line.add(b"x", &discipline, &mut Record::new(0, (0, 0)));
        assert_eq!(discipline.end_of_file(&line), [4, 4]);
        assert!(line.add(b"\x03", &discipline, &mut Record::new(0, (0, 0))));
    }
}
