//! Keys on their way into the terminal of a rank: how many at a time, which of them are for the launcher, and how many bytes the program can read
//! of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::time::Instant;

use client::input::{Line, Record};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::limits::{END_LOOK_EVERY, KEYS_LOOK_EVERY, KEYS_UNREAD_MAX};

/// The kernel's treatment of keys (n_tty), as far as it decides how many bytes of them a program can read.
#[derive(Clone, Copy, Debug)]
struct Discipline {
    settings: libc::termios,
}

impl Discipline {
    /// Of a terminal, by either end of it.
    fn of(terminal: &impl AsFd) -> io::Result<Discipline> {
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
    fn is_suspend(&self, key: u8) -> bool {
        self.has(libc::ISIG) && self.is(key, libc::VSUSP)
    }

    /// Whether the key is one that the kernel acts on, and never hands to a program, in any mode.
    fn is_consumed(&self, key: u8) -> bool {
        let is_flow = self.settings.c_iflag & libc::IXON != 0;
        self.is_interrupt(key)
            || self.is_suspend(key)
            || (is_flow && (self.is(key, libc::VSTART) || self.is(key, libc::VSTOP)))
    }
}

/// The line that is being typed, and how the last keys are counted.
#[derive(Debug, Default)]
struct Typed {
    bytes: u32,
    readable: Vec<u8>,
    /// The next key is a character, also if it has a function.
    is_quoted: bool,
    /// The record's newest line consists of single keys, and the next key belongs to it.
    is_run: bool,
}

impl Typed {
    fn end_line(&mut self, record: &mut Record, further: usize) {
        let readable = u32::try_from(self.readable.len() + further).unwrap_or(u32::MAX);
        record.add_line(Line { typed: self.bytes, readable });
        *self = Typed::default();
    }

    /// Notes keys that were typed. Whether one of them interrupts the program.
    fn add(&mut self, keys: &[u8], discipline: &Discipline, record: &mut Record) -> bool {
        let mut interrupts = false;
        for key in keys {
            interrupts |= discipline.is_interrupt(*key) && !self.is_quoted;
            self.add_key(*key, discipline, record);
            record.given += 1;
        }
        record.partial_readable = self.readable.len() as u64;
        interrupts
    }

    /// Notes a key that is not typed at all.
    fn pass_over(&mut self, discipline: &Discipline, record: &mut Record) {
        if discipline.has(libc::ICANON) {
            self.bytes += 1;
        } else {
            self.add_single(false, record);
        }
        record.given += 1;
    }

    /// A single key, which can be read at once; or cannot.
    fn add_single(&mut self, is_readable: bool, record: &mut Record) {
        if self.bytes > 0 {
            // A line that had begun when the program turned to single keys.
            self.end_line(record, 0);
        }
        match record.lines.first_mut().filter(|_| self.is_run && is_readable) {
            Some(run) => {
                run.typed += 1;
                run.readable += 1;
                record.given_lines += 1;
            }
            None => record.add_line(Line { typed: 1, readable: u32::from(is_readable) }),
        }
        self.is_run = is_readable;
    }

    fn add_key(&mut self, key: u8, discipline: &Discipline, record: &mut Record) {
        let is_quoted = core::mem::take(&mut self.is_quoted);
        if (discipline.is_interrupt(key) || discipline.is_suspend(key))
            && !is_quoted
            && !discipline.has(libc::NOFLSH)
        {
            // The kernel discards all unread input.
            self.bytes += 1;
            record.given_lines += u64::from(self.bytes);
            record.lines = [Line::default(); client::input::LINES_MAX];
            *self = Typed::default();
            return;
        }
        if !discipline.has(libc::ICANON) {
            return self.add_single(!discipline.is_consumed(key), record);
        }
        self.bytes += 1;
        self.is_run = false;
        if is_quoted {
            return self.readable.push(key);
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
        if discipline.is_consumed(key) || (is(libc::VREPRINT) && discipline.has(libc::ECHO | libc::IEXTEN)) {
            // No character.
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
        let ends_with = |readable: &[u8], of: bool| readable.last().is_some_and(|byte| is_word(byte) == of);
        while ends_with(&self.readable, false) {
            self.readable.pop();
        }
        while ends_with(&self.readable, true) {
            self.readable.pop();
        }
    }
}

/// What to do with the next keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Type so many of them.
    Type(usize),
    /// Leave the first one out.
    PassOver,
    /// Leave the first one out, and stop the job.
    Suspend,
    /// Look again in a while: the program has to read first.
    Later,
    /// The terminal is gone.
    Gone,
}

/// The keeper's side of a rank's terminal.
#[derive(Debug)]
pub(super) struct Keyboard {
    /// The rank's end, which shows the unread bytes.
    rank_end: OwnedFd,
    typed: Typed,
    /// A person is there, who stops the job with Ctrl-Z.
    is_watched: bool,
    /// Keys before this one were typed in an earlier life: those that interrupted or stopped the program then do not do so again.
    replay_end: u64,
    /// A key has interrupted the program.
    pub(super) is_interrupted: bool,
    /// When to look again.
    pub(super) due: Option<Instant>,
}

impl Keyboard {
    pub(super) fn new(rank_end: OwnedFd, is_watched: bool, replay_end: u64) -> Keyboard {
        let typed = Typed::default();
        Keyboard { rank_end, typed, is_watched, replay_end, is_interrupted: false, due: None }
    }

    /// Bytes that the program has not read, those of the line that is being typed included.
    fn unread(&self) -> usize {
        let mut unread: libc::c_int = 0;
        // SAFETY: the kernel writes a number.
        unsafe { libc::ioctl(self.rank_end.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
        usize::try_from(unread).unwrap_or(0) + self.typed.readable.len()
    }

    /// `given`: the number of the first of the keys.
    pub(super) fn step(&mut self, keys: &[u8], given: u64) -> Step {
        self.due = None;
        let Ok(discipline) = Discipline::of(&self.rank_end) else { return Step::Gone };
        let Some(first) = keys.first() else { return Step::Type(0) };
        let is_quoted = self.typed.is_quoted && discipline.has(libc::ICANON);
        let acts = |key: &u8| discipline.is_interrupt(*key) || discipline.is_suspend(*key);
        if !is_quoted && given < self.replay_end && acts(first) {
            return Step::PassOver;
        }
        if !is_quoted && self.is_watched && discipline.is_suspend(*first) {
            return Step::Suspend;
        }
        let run = keys.iter().position(acts).unwrap_or(keys.len()).max(1);
        // The kernel takes 4095 bytes into its count of unread ones, and many more behind that.
        let room = KEYS_UNREAD_MAX.saturating_sub(self.unread());
        if room > 0 {
            return Step::Type(run.min(room));
        }
        match keys.iter().position(|key| discipline.is_interrupt(*key)) {
            Some(0) => Step::Type(1),
            // It would have the kernel discard all that is unread, these keys included.
            Some(_) if !discipline.has(libc::NOFLSH) => Step::PassOver,
            _ => {
                self.due = Some(Instant::now() + KEYS_LOOK_EVERY);
                Step::Later
            }
        }
    }

    /// Notes typed keys.
    pub(super) fn typed(&mut self, keys: &[u8], record: &mut Record) {
        if let Ok(discipline) = Discipline::of(&self.rank_end) {
            self.is_interrupted |= self.typed.add(keys, &discipline, record);
        }
    }

    pub(super) fn pass_over(&mut self, record: &mut Record) {
        if let Ok(discipline) = Discipline::of(&self.rank_end) {
            self.typed.pass_over(&discipline, record);
        }
    }

    /// Nothing follows: the key that says so to the program, as soon as that has read all. A program may read lines now and keys later, so it is typed
    /// again whenever that has been read, as by a person who wants it to end.
    pub(super) fn end_key(&mut self) -> Option<u8> {
        self.due = Some(Instant::now() + END_LOOK_EVERY);
        let mut fds = [PollFd::new(self.rank_end.as_fd(), PollFlags::POLLIN)];
        let is_read = poll(&mut fds, PollTimeout::ZERO) == Ok(0);
        let discipline = Discipline::of(&self.rank_end).ok().filter(|_| is_read)?;
        Some(discipline.settings.c_cc[libc::VEOF]).filter(|key| *key != 0)
    }

    /// The key has been typed.
    pub(super) fn ended(&mut self, record: &mut Record) {
        if self.typed.bytes > 0 {
            self.typed.end_line(record, 0);
            record.partial_readable = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::terminal::{Size, TerminalSpec};
    use super::super::terminal::Terminal;
    use super::*;

    fn terminal() -> Terminal {
        let size = Size { rows: 24, columns: 80, pixels: (0, 0) };
        Terminal::open(&TerminalSpec { settings: None, size, is_watched: true }).unwrap()
    }

    /// Bytes that the program could read, by the kernel's own count.
    fn unread(terminal: &Terminal) -> u32 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut unread: libc::c_int = 0;
        // SAFETY: the kernel writes a number.
        unsafe { libc::ioctl(terminal.rank_end.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
        u32::try_from(unread).unwrap()
    }

    fn set(terminal: &Terminal, change: impl Fn(&mut libc::termios)) {
        let mut settings: libc::termios = nix::sys::termios::tcgetattr(&terminal.rank_end).unwrap().into();
        change(&mut settings);
        let settings = settings.into();
        nix::sys::termios::tcsetattr(&terminal.rank_end, nix::sys::termios::SetArg::TCSANOW, &settings)
            .unwrap();
    }

    /// Types keys, and compares the count of readable bytes with the kernel's.
    fn typed(terminal: &Terminal, keys: &[u8]) -> (Record, Typed) {
        let discipline = Discipline::of(&terminal.rank_end).unwrap();
        let (mut record, mut typed) = (Record::new(0, (0, 0)), Typed::default());
        typed.add(keys, &discipline, &mut record);
        nix::unistd::write(&terminal.keeper_end, keys).unwrap();
        let readable: u32 = record.lines.iter().map(|line| line.readable).sum();
        assert_eq!(unread(terminal), readable, "{}", keys.escape_ascii());
        assert_eq!(record.given, keys.len() as u64);
        assert_eq!(record.given_lines + u64::from(typed.bytes), record.given);
        (record, typed)
    }

    #[test]
    fn lines_have_as_many_bytes_as_the_kernel_gives() {
        let whole = typed(&terminal(), b"one\rtwo\nthr");
        assert_eq!((whole.0.given_lines, whole.1.bytes), (8, 3));
        for keys in [
            &b"abc\x7f\x7fd\n"[..],
            b"\x7f\x7fx\n",
            b"two words\x17x\n",
            b"two words  \x17x\n",
            b"gone\x15here\n",
            b"\x16\x7fquoted\n",
            b"\x16\x1a\x16\x03\n",
            b"part\x04rest\n",
            b"first\nlost\x03kept\n",
            b"ab\x12c\n",
            b"x\x13y\x11z\n",
            b"",
        ] {
            typed(&terminal(), keys);
        }
    }

    #[test]
    fn single_keys_are_counted_without_those_that_the_kernel_acts_on() {
        let terminal = terminal();
        set(&terminal, |settings| settings.c_lflag &= !libc::ICANON);
        let (record, _) = typed(&terminal, b"ab\x13c\x11de");
        // Five of seven can be read; with two left, "d" and "e" are unread.
        assert_eq!((record.read(2, false), record.read(3, false)), (5, 3));
    }

    #[test]
    fn a_line_that_has_begun_can_be_read_once_the_program_turns_to_single_keys() {
        let terminal = terminal();
        let (record, _) = typed(&terminal, b"one\nxx\x7fy");
        assert_eq!(record.read(4, true), 0);
        set(&terminal, |settings| settings.c_lflag &= !libc::ICANON);
        assert_eq!(unread(&terminal), 6);
        assert_eq!((record.read(6, false), record.read(2, false)), (0, 4));
    }

    #[test]
    fn keys_wait_for_a_program_that_does_not_read() {
        let terminal = terminal();
        let mut keyboard = Keyboard::new(terminal.rank_end.try_clone().unwrap(), true, 0);
        let mut record = Record::new(0, (0, 0));
        let mut left: Vec<u8> = b"0123456\n".repeat(1000);
        while let Step::Type(bytes) = keyboard.step(&left, record.given) {
            assert!(bytes > 0 && nix::unistd::write(&terminal.keeper_end, &left[..bytes]) == Ok(bytes));
            keyboard.typed(&left[..bytes], &mut record);
            left.drain(..bytes);
            unread(&terminal);
        }
        assert!(keyboard.due.is_some());
        assert_eq!(u64::from(unread(&terminal)) + record.partial_readable, record.given);
        assert_eq!(record.given, KEYS_UNREAD_MAX as u64);
        // Ctrl-C is not held up by them.
        left.push(3);
        while keyboard.step(&left, record.given) == Step::PassOver {
            keyboard.pass_over(&mut record);
            left.remove(0);
        }
        assert_eq!((left.as_slice(), keyboard.step(&left, record.given)), (&[3][..], Step::Type(1)));
    }

    #[test]
    fn keys_of_an_earlier_life_neither_interrupt_nor_stop() {
        let terminal = terminal();
        let mut keyboard = Keyboard::new(terminal.rank_end.try_clone().unwrap(), true, 3);
        assert_eq!(keyboard.step(b"\x03\x1a\x1a", 1), Step::PassOver);
        assert_eq!(keyboard.step(b"\x1a\x1a", 2), Step::PassOver);
        assert_eq!(keyboard.step(b"\x1a", 3), Step::Suspend);
        assert_eq!(keyboard.step(b"ab\x03", 3), Step::Type(2));
        assert_eq!(keyboard.step(b"\x03", 5), Step::Type(1));
    }

    #[test]
    fn the_end_is_typed_when_all_has_been_read_and_again() {
        let terminal = terminal();
        let mut keyboard = Keyboard::new(terminal.rank_end.try_clone().unwrap(), false, 0);
        let mut record = Record::new(0, (0, 0));
        nix::unistd::write(&terminal.keeper_end, b"one\ntwo").unwrap();
        keyboard.typed(b"one\ntwo", &mut record);
        unread(&terminal);
        assert_eq!(keyboard.end_key(), None);
        let mut text = [0; 16];
        assert_eq!(nix::unistd::read(&terminal.rank_end, &mut text), Ok(4));
        assert_eq!(keyboard.end_key(), Some(4));
        nix::unistd::write(&terminal.keeper_end, b"\x04").unwrap();
        keyboard.ended(&mut record);
        assert_eq!((unread(&terminal), record.read(3, true), record.read(0, true)), (3, 4, 7));
        assert_eq!(nix::unistd::read(&terminal.rank_end, &mut text), Ok(3));
        assert_eq!(keyboard.end_key(), Some(4));
    }
}
