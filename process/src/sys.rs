//! System calls without a C library between: no `errno`, no cancellation point, no lock, no allocation. For code that runs
//! while threads stand still, in handlers, and in the forked child.

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

use crate::arch::syscall;

/// Number of an error, as `errno(3)` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

pub(crate) type Answer<T> = Result<T, Errno>;

/// Any call with up to six arguments.
///
/// # Safety
/// That of the call.
#[inline]
pub(crate) unsafe fn call(number: i64, arguments: [usize; 6]) -> Answer<usize> {
    // SAFETY: the caller's.
    let answer = unsafe { syscall(number, arguments) };
    if (-4095..0).contains(&answer) {
        Err(Errno(i32::try_from(-answer).unwrap_or(libc::EIO)))
    } else {
        Ok(answer.cast_unsigned())
    }
}

fn fd_argument(fd: RawFd) -> usize {
    // Sign-extended: AT_FDCWD is negative.
    (fd as isize).cast_unsigned()
}

pub(crate) fn open_read(path: &CStr) -> Answer<RawFd> {
    open_at(libc::AT_FDCWD, path, libc::O_RDONLY)
}

pub(crate) fn open_at(directory: RawFd, path: &CStr, flags: i32) -> Answer<RawFd> {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: a path that ends with a zero byte.
    let fd =
        unsafe { call(libc::SYS_openat, [fd_argument(directory), path.as_ptr() as usize, flags, 0, 0, 0]) }?;
    RawFd::try_from(fd).map_err(|_| Errno(libc::EBADF))
}

pub(crate) fn close(fd: RawFd) {
    // SAFETY: the owner of the descriptor gives it up.
    let _ = unsafe { call(libc::SYS_close, [fd_argument(fd), 0, 0, 0, 0, 0]) };
}

pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> Answer<usize> {
    // SAFETY: the kernel writes into the buffer, within its length.
    unsafe { call(libc::SYS_read, [fd_argument(fd), buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// Reads from an offset; the target is an address, because it may be memory that Rust does not know.
///
/// # Safety
/// `bytes` bytes at `address` may be written.
pub(crate) unsafe fn read_at(fd: RawFd, address: u64, bytes: usize, offset: u64) -> Answer<usize> {
    // SAFETY: the caller's.
    unsafe { call(libc::SYS_pread64, [fd_argument(fd), address as usize, bytes, offset as usize, 0, 0]) }
}

/// Writes all pieces at an offset.
///
/// # Safety
/// The kernel reads the pieces; for unreadable memory it answers `EFAULT`.
pub(crate) unsafe fn write_vector_at(fd: RawFd, pieces: &[libc::iovec], offset: u64) -> Answer<usize> {
    // SAFETY: the caller's.
    unsafe {
        call(
            libc::SYS_pwritev,
            [fd_argument(fd), pieces.as_ptr() as usize, pieces.len(), offset as usize, 0, 0],
        )
    }
}

/// Has the kernel begin to write this part of a file to the disk, and does not wait for it. Failures are not reported
/// here: a later sync of the file reports those of the write-back.
pub(crate) fn begin_write_back(fd: RawFd, offset: u64, bytes: u64) {
    let flags = libc::SYNC_FILE_RANGE_WRITE as usize;
    // SAFETY: no memory is touched.
    let _ = unsafe {
        call(libc::SYS_sync_file_range, [fd_argument(fd), offset as usize, bytes as usize, flags, 0, 0])
    };
}

/// Reads all of a file of /proc into `buffer`; `ENOBUFS` if it has more.
pub(crate) fn read_whole(path: &CStr, buffer: &mut [u8]) -> Answer<usize> {
    read_whole_at(libc::AT_FDCWD, path, buffer)
}

/// The same with a path that begins in a folder.
pub(crate) fn read_whole_at(folder: RawFd, path: &CStr, buffer: &mut [u8]) -> Answer<usize> {
    let fd = open_at(folder, path, libc::O_RDONLY)?;
    let read = read_rest(fd, buffer);
    close(fd);
    read
}

/// Reads from a descriptor to the end of its file.
pub(crate) fn read_rest(fd: RawFd, buffer: &mut [u8]) -> Answer<usize> {
    let mut filled = 0;
    loop {
        let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) else {
            return Err(Errno(libc::ENOBUFS));
        };
        match read(fd, room)? {
            0 => return Ok(filled),
            more => filled += more,
        }
    }
}

/// Copies memory of this process, which may not be there any more.
pub(crate) fn peek<T: Copy + Default>(address: u64) -> Answer<T> {
    let mut value = T::default();
    let bytes = size_of::<T>();
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    // SAFETY: the kernel writes into the value, whose bytes it has read; any bytes are one of the plain types that come here.
    let copied =
        unsafe { call(libc::SYS_process_vm_readv, [process_id() as usize, local, 1, remote, 1, 0]) }?;
    if copied == bytes { Ok(value) } else { Err(Errno(libc::EFAULT)) }
}

/// Fills `into` from pieces of this process's memory, which may not be there any more: then with `EFAULT`.
pub(crate) fn copy_own(pieces: &[libc::iovec], into: &mut [u8]) -> Answer<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let (local, remote) = (&raw const local as usize, pieces.as_ptr() as usize);
    // SAFETY: the kernel writes into `into`, within its length; it does not copy unreadable memory.
    let copied = unsafe {
        call(libc::SYS_process_vm_readv, [process_id() as usize, local, 1, remote, pieces.len(), 0])
    }?;
    if copied == into.len() { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: no memory is touched.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: no memory is touched.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Waits while `word` is `expected`, at most `timeout_ns`.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) -> Answer<()> {
    let timeout = timespec(timeout_ns);
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the word and the time live through the call.
    unsafe {
        call(
            libc::SYS_futex,
            [word.as_ptr() as usize, operation, expected as usize, &raw const timeout as usize, 0, 0],
        )
    }
    .map(drop)
}

/// Wakes all threads that wait for `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the word lives.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, operation, i32::MAX as usize, 0, 0, 0]) };
}

pub(crate) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Time of a clock that no one sets, ns.
pub(crate) fn now_ns() -> u64 {
    let mut time = timespec(0);
    // SAFETY: the kernel writes the time.
    let _ = unsafe {
        call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, &raw mut time as usize, 0, 0, 0, 0])
    };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Waits, less long if a signal comes.
pub(crate) fn sleep_ns(ns: u64) {
    let time = timespec(ns);
    // SAFETY: the kernel reads the time.
    let _ = unsafe { call(libc::SYS_nanosleep, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

/// `prctl(2)` with one argument.
///
/// # Safety
/// That of the option.
pub(crate) unsafe fn prctl(option: i32, argument: usize) -> Answer<usize> {
    // SAFETY: the caller's.
    unsafe { call(libc::SYS_prctl, [option as usize, argument, 0, 0, 0, 0]) }
}

/// Gives the calling thread an empty table of descriptors of its own (`CLOSE_RANGE_UNSHARE`, Linux 5.9).
pub(crate) fn leave_descriptors() -> Answer<()> {
    const CLOSE_RANGE_UNSHARE: usize = 2;
    // SAFETY: the thread's own table is a new one; descriptors of the other threads stay as they are.
    unsafe { call(libc::SYS_close_range, [0, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0]) }.map(drop)
}

/// Text of fixed room, for paths and messages where nothing may allocate. Longer text is cut off.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Text<N> {
        Text { bytes: [0; N], filled: 0 }
    }

    pub(crate) fn push(mut self, text: &[u8]) -> Text<N> {
        for byte in text {
            // One byte stays zero: it ends the path.
            if self.filled + 1 < N {
                self.bytes[self.filled] = *byte;
                self.filled += 1;
            }
        }
        self
    }

    pub(crate) fn number(self, value: u32) -> Text<N> {
        let mut digits = [0u8; 10];
        let mut first = digits.len();
        let mut left = value;
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 || first == 0 {
                break;
            }
        }
        let (_, digits) = digits.split_at(first);
        self.push(digits)
    }

    pub(crate) fn as_path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_put_together_and_cut_where_its_room_ends() {
        let text = Text::<24>::new().push(b"/proc/self/task/").number(0).push(b"/").number(120);
        assert_eq!(text.as_path().to_bytes(), b"/proc/self/task/0/120");
        assert_eq!(Text::<4>::new().number(u32::MAX).as_path().to_bytes(), b"429");
    }

    #[test]
    fn a_file_that_is_longer_than_its_room_is_reported() {
        let mut small = [0u8; 16];
        assert_eq!(read_whole(c"/proc/self/maps", &mut small), Err(Errno(libc::ENOBUFS)));
        let mut large = vec![0u8; 1 << 20];
        assert!(read_whole(c"/proc/self/maps", &mut large).is_ok_and(|read| read > 100));
        assert_eq!(read_whole(c"/nonexistent/file", &mut large), Err(Errno(libc::ENOENT)));
    }
}
