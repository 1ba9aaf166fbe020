//! How much of the job's standard input this process has read.
//!
//! The keeper writes the input into a pipe, the process's standard input, and counts the written bytes in a
//! record that both have open. At any instant, the bytes that were read are that count less the bytes in the
//! pipe, without a word to the keeper. The record ([`Record`]) is written before and after each write to the
//! pipe, with a serial number that is odd in between.
//!
//! Standard input may be a terminal of the job instead (`terminal.rs`). In line mode only whole lines can be read from one, and fewer bytes than
//! were typed, where some were erased: so the record also has the last lines ([`Line`]).

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::stat::{SFlag, fstat};
use nix::sys::uio::pread;

use crate::terminal;

/// Names the environment variable with the number of the inherited record.
pub const INPUT_VARIABLE: &str = "STILLWIRE_INPUT";

/// Lines that a record has, at most; of older ones as many bytes count as read as were typed.
pub const LINES_MAX: usize = 16;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 8 * (HEAD_WORDS + LINES_MAX);

/// Words before the lines.
const HEAD_WORDS: usize = 6;

/// Looks at a record that is being written, before it is given up: the keeper writes to a pipe that does not block, which takes microseconds.
const LOOKS_MAX: u32 = 2000;
/// Time between two of them, ns.
const LOOK_AGAIN_NS: i64 = 50_000;

/// The keeper's record of the input that it gave to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Rises with each write; odd while the pipe is being written to.
    pub serial: u64,
    /// Bytes of the job's input that were given to this rank since the job began, those that it had read in earlier lives included.
    pub given: u64,
    /// Device and inode of the pipe, or of the terminal.
    pub source: (u64, u64),
    /// Of a terminal: bytes up to the end of the last whole line, counted as `given`.
    pub given_lines: u64,
    /// Bytes that a program which reads single keys could read of those behind that.
    pub partial_readable: u64,
    /// The last lines before `given_lines`, the newest first. Single keys in a row count as a line.
    pub lines: [Line; LINES_MAX],
}

/// A line that was typed into a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// Bytes that were typed.
    pub typed: u32,
    /// Bytes of it that the program can read: without those that were erased, and those that erased them.
    pub readable: u32,
}

impl Record {
    /// Nothing of a new pipe or terminal has been written, and `given` bytes were read in earlier lives.
    #[must_use]
    pub fn new(given: u64, source: (u64, u64)) -> Record {
        let lines = [Line::default(); LINES_MAX];
        Record { serial: 0, given, source, given_lines: given, partial_readable: 0, lines }
    }

    /// A whole line ends `line.typed` bytes behind the last one.
    pub fn add_line(&mut self, line: Line) {
        self.given_lines += u64::from(line.typed);
        self.lines.copy_within(..LINES_MAX - 1, 1);
        self.lines[0] = line;
    }

    /// Bytes that a program on a terminal has read, which could read `unread` more. `by_lines`: whole lines alone.
    #[must_use]
    pub fn read(&self, unread: u64, by_lines: bool) -> u64 {
        let partial = (self.given.saturating_sub(self.given_lines), self.partial_readable);
        let lines = self.lines.iter().map(|line| (u64::from(line.typed), u64::from(line.readable)));
        let all = core::iter::once(partial).filter(|_| !by_lines).chain(lines);
        let (mut end, mut unread) = (if by_lines { self.given_lines } else { self.given }, unread);
        for (typed, readable) in all.filter(|(typed, _)| *typed > 0) {
            if unread == 0 || unread < readable {
                break;
            }
            unread -= readable;
            end = end.saturating_sub(typed);
        }
        end.saturating_sub(unread)
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let (device, inode) = self.source;
        let head: [u64; HEAD_WORDS] =
            [self.serial, self.given, device, inode, self.given_lines, self.partial_readable];
        let lines = self.lines.iter().map(|line| u64::from(line.typed) | u64::from(line.readable) << 32);
        for (place, field) in bytes.chunks_exact_mut(8).zip(head.into_iter().chain(lines)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads it.
    #[must_use]
    pub fn parse(bytes: &[u8; RECORD_BYTES]) -> Record {
        let field = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(field)
        };
        let mut lines = [Line::default(); LINES_MAX];
        for (at, line) in lines.iter_mut().enumerate() {
            let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(u32::MAX);
            let [typed, readable] = [field(HEAD_WORDS + at), field(HEAD_WORDS + at) >> 32].map(half);
            *line = Line { typed, readable };
        }
        Record {
            serial: field(0),
            given: field(1),
            source: (field(2), field(3)),
            given_lines: field(4),
            partial_readable: field(5),
            lines,
        }
    }

    fn look(count: RawFd) -> Option<Record> {
        let mut bytes = [0; RECORD_BYTES];
        // SAFETY: borrowed for one system call, which fails if nothing is open there.
        let count = unsafe { BorrowedFd::borrow_raw(count) };
        (pread(count, &mut bytes, 0) == Ok(RECORD_BYTES)).then(|| Record::parse(&bytes))
    }
}

/// Nothing is open, or nothing is known.
const NO_NUMBER: i32 = -1;
const NOT_KNOWN: u64 = u64::MAX;

/// Descriptors of this process; a restored one has them under the same numbers.
static PIPE: AtomicI32 = AtomicI32::new(NO_NUMBER);
static COUNT: AtomicI32 = AtomicI32::new(NO_NUMBER);

/// The result of the last [`note`]; [`NOT_KNOWN`]: none.
static NOTED: AtomicU64 = AtomicU64::new(NOT_KNOWN);

/// The number of the record that the launcher has given to this process, even if its standard input is another file.
#[must_use]
pub fn given() -> Option<RawFd> {
    let number = std::env::var_os(INPUT_VARIABLE)?.to_str()?.parse::<RawFd>().ok()?;
    (number > 2 && Record::look(number).is_some()).then_some(number)
}

/// Has this process know how much it reads, if its standard input is the job's. The program may close it, or put another file in its place.
/// Called once, before the program reads.
pub fn adopt() {
    let Some(count) = given() else { return };
    // SAFETY: borrowed for system calls, which fail if nothing is open there.
    let (input, record) =
        unsafe { (BorrowedFd::borrow_raw(libc::STDIN_FILENO), BorrowedFd::borrow_raw(count)) };
    let Ok(stat) = fstat(input) else { return };
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    let is_kind = kind == SFlag::S_IFIFO || kind == SFlag::S_IFCHR;
    let is_jobs = |record: Record| is_kind && record.source == (stat.st_dev, stat.st_ino);
    if !Record::look(count).is_some_and(is_jobs) {
        return;
    }
    terminal::adopt(kind == SFlag::S_IFCHR);
    // Programs that this one starts have no use for it.
    let _ = fcntl(record, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    if let Ok(pipe) = fcntl(input, FcntlArg::F_DUPFD_CLOEXEC(3)) {
        COUNT.store(count, Ordering::Relaxed);
        PIPE.store(pipe, Ordering::Release);
    }
}

/// The pipe and the record, if the process has them.
#[must_use]
pub fn adopted() -> Option<(RawFd, RawFd)> {
    let pipe = PIPE.load(Ordering::Acquire);
    (pipe != NO_NUMBER).then(|| (pipe, COUNT.load(Ordering::Relaxed)))
}

/// Bytes of the job's input that this process has read since the job began, in this life and those before. `None`: it is not known.
/// Exact if nobody reads meanwhile. Allocates nothing, takes no lock.
#[must_use]
pub fn look() -> Option<u64> {
    let (pipe, count) = adopted()?;
    for _ in 0..LOOKS_MAX {
        let before = Record::look(count)?;
        if before.serial.is_multiple_of(2) {
            let mode = terminal::mode(pipe);
            let mut unread: libc::c_int = 0;
            // SAFETY: the kernel writes a number, and fails if nothing is open there.
            if unsafe { libc::ioctl(pipe, libc::FIONREAD, &raw mut unread) } != 0 {
                return None;
            }
            if Record::look(count)?.serial == before.serial {
                let unread = u64::try_from(unread).ok()?;
                return match mode {
                    None => before.given.checked_sub(unread),
                    Some(mode) => Some(before.read(unread, mode == terminal::Mode::Lines)),
                };
            }
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN_NS };
        // SAFETY: a time to sleep, which is read; an interrupted sleep is a short one.
        unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
    }
    None
}

/// As [`look`], for [`noted`]: the count at the cut is reported later. Also notes the settings of a terminal.
pub fn note() {
    NOTED.store(look().unwrap_or(NOT_KNOWN), Ordering::Relaxed);
    if let Some((input, _)) = adopted() {
        terminal::note(input);
    }
}

/// Gives a terminal the settings that it had at the cut, in the restored process.
pub fn restore() {
    if let Some((input, _)) = adopted() {
        terminal::restore(input);
    }
}

/// The bytes that the last [`note`] found; `None`: it could not count them.
#[must_use]
pub fn noted() -> Option<u64> {
    Some(NOTED.load(Ordering::Relaxed)).filter(|read| *read != NOT_KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = Record { serial: 7, ..Record::new(1 << 40, (3, 0xffff_ffff_0000_0001)) };
        for typed in 1..20 {
            record.add_line(Line { typed, readable: typed / 2 });
        }
        record.partial_readable = 3;
        assert_eq!(record.lines[0], Line { typed: 19, readable: 9 });
        assert_eq!(Record::parse(&record.emit()), record);
    }

    #[test]
    fn whole_lines_are_counted_back_by_what_can_be_read_of_them() {
        let mut record = Record::new(100, (0, 0));
        // "abc\n", "x<erase>y\n", and an end of file, which has no byte.
        for line in [(4, 4), (4, 2), (1, 0)] {
            record.add_line(Line { typed: line.0, readable: line.1 });
        }
        assert_eq!(record.given_lines, 109);
        record.given = 112;
        assert_eq!(record.read(0, true), 109);
        assert_eq!(record.read(2, true), 104);
        assert_eq!(record.read(4, true), 102, "a part of the first line was read");
        assert_eq!(record.read(6, true), 100);
        // Three bytes behind them, one of which erased another.
        record.partial_readable = 1;
        assert_eq!((record.read(0, false), record.read(1, false), record.read(3, false)), (112, 109, 104));
    }
}
