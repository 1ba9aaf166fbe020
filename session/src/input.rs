//! How much of the job's standard input this process has read.
//!
//! The keeper writes the input into a pipe, the process's standard input, and counts what it has written in a record that both have open. What
//! was read is that count less what lies in the pipe, at any instant, without a word to the keeper. The record ([`Record`]) is written
//! before and after each write to the pipe, with a serial number that is odd in between.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::stat::{SFlag, fstat};
use nix::sys::uio::pread;

/// Names the environment variable with the number of the inherited record.
pub const INPUT_VARIABLE: &str = "STILLWIRE_INPUT";

/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;

/// Looks at a record that is being written, before it is given up: the keeper writes to a pipe that does not block, which takes microseconds.
const LOOKS_MAX: u32 = 2000;
/// Time between two of them, ns.
const LOOK_AGAIN_NS: i64 = 50_000;

/// What the keeper counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Rises with each write; odd while the pipe is being written to.
    pub serial: u64,
    /// Bytes of the job's input that were given to this rank since the job began, those that it had read in earlier lives included.
    pub given: u64,
    /// Device and inode of the pipe.
    pub pipe: (u64, u64),
}

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let fields = [self.serial, self.given, self.pipe.0, self.pipe.1];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
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
        Record { serial: field(0), given: field(1), pipe: (field(2), field(3)) }
    }

    fn read(count: RawFd) -> Option<Record> {
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

/// What [`note`] found.
static NOTED: AtomicU64 = AtomicU64::new(NOT_KNOWN);

/// The number of the record that the launcher has given to this process, whatever its standard input is.
#[must_use]
pub fn given() -> Option<RawFd> {
    let number = std::env::var_os(INPUT_VARIABLE)?.to_str()?.parse::<RawFd>().ok()?;
    (number > 2 && Record::read(number).is_some()).then_some(number)
}

/// Has this process know how much it reads, if its standard input is the job's. The program may close it, or put another file in its place.
/// Called once, before the program reads.
pub fn adopt() {
    let Some(count) = given() else { return };
    // SAFETY: borrowed for system calls, which fail if nothing is open there.
    let (input, record) =
        unsafe { (BorrowedFd::borrow_raw(libc::STDIN_FILENO), BorrowedFd::borrow_raw(count)) };
    let is_jobs = |pipe: (u64, u64)| {
        let kind = |mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
        fstat(input)
            .is_ok_and(|stat| kind(stat.st_mode) == SFlag::S_IFIFO && (stat.st_dev, stat.st_ino) == pipe)
    };
    if !Record::read(count).is_some_and(|record| is_jobs(record.pipe)) {
        return;
    }
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
        let before = Record::read(count)?;
        if before.serial.is_multiple_of(2) {
            let mut unread: libc::c_int = 0;
            // SAFETY: the kernel writes a number, and fails if nothing is open there.
            if unsafe { libc::ioctl(pipe, libc::FIONREAD, &raw mut unread) } != 0 {
                return None;
            }
            if Record::read(count)?.serial == before.serial {
                return before.given.checked_sub(u64::try_from(unread).ok()?);
            }
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN_NS };
        // SAFETY: a time to sleep, which is read; an interrupted sleep is a short one.
        unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
    }
    None
}

/// As [`look`], for [`noted`]: what is found at the cut is told later.
pub fn note() {
    NOTED.store(look().unwrap_or(NOT_KNOWN), Ordering::Relaxed);
}

/// What the last [`note`] found.
#[must_use]
pub fn noted() -> Option<u64> {
    Some(NOTED.load(Ordering::Relaxed)).filter(|read| *read != NOT_KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record { serial: 7, given: 1 << 40, pipe: (3, 0xffff_ffff_0000_0001) };
        assert_eq!(Record::parse(&record.emit()), record);
    }
}
