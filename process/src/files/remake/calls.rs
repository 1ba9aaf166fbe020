//! System calls that make descriptors, with the flags of an image as they are.

use std::ffi::CString;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;

fn check(answer: i32) -> Result<i32> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(answer) }
}

fn text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::new(ErrorKind::InvalidInput, "a path with a zero byte"))
}

pub(super) fn open(path: &[u8], flags: i32) -> Result<RawFd> {
    let path = text(path)?;
    // SAFETY: a path that ends with a zero byte.
    check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOCTTY, 0o600) })
}

pub(super) fn close(fd: RawFd) {
    // SAFETY: the owner of the descriptor gives it up.
    let _ = unsafe { libc::close(fd) };
}

/// A copy with a number of at least `least`.
pub(super) fn copy_above(fd: RawFd, least: RawFd) -> Result<RawFd> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, least) })
}

/// Makes `number` a copy of `fd`.
pub(super) fn place(fd: RawFd, number: RawFd, closes_on_exec: bool) -> Result<()> {
    let flags = if closes_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the caller gives up the old file of `number`.
    check(unsafe { libc::dup3(fd, number, flags) }).map(drop)
}

pub(super) fn flags(fd: RawFd) -> Result<i32> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

pub(super) fn set_flags(fd: RawFd, flags: i32) -> Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

pub(super) fn stat(fd: RawFd) -> Result<libc::stat> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure.
    check(unsafe { libc::fstat(fd, &raw mut stat) })?;
    Ok(stat)
}

pub(super) fn seek(fd: RawFd, position: u64) -> Result<()> {
    // SAFETY: no memory is touched.
    let at = unsafe { libc::lseek(fd, position.cast_signed(), libc::SEEK_SET) };
    if at < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

pub(super) fn truncate(fd: RawFd, bytes: u64) -> Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::ftruncate(fd, bytes.cast_signed()) }).map(drop)
}

/// Writes everything; a short write is an error.
pub(super) fn write_all(fd: RawFd, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the kernel reads the bytes.
        let written = unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) };
        let written = usize::try_from(written).map_err(|_| Error::last_os_error())?;
        rest = rest.get(written..).unwrap_or(&[]);
    }
    Ok(())
}

pub(super) fn memory_file(name: &[u8], takes_seals: bool) -> Result<RawFd> {
    let name = text(name)?;
    let flags = libc::MFD_CLOEXEC | if takes_seals { libc::MFD_ALLOW_SEALING } else { 0 };
    // SAFETY: a name that ends with a zero byte.
    check(unsafe { libc::memfd_create(name.as_ptr(), flags) })
}

pub(super) fn add_seals(fd: RawFd, seals: u32) -> Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }).map(drop)
}

pub(super) fn pipe(flags: i32) -> Result<[RawFd; 2]> {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), flags | libc::O_CLOEXEC) })?;
    Ok(ends)
}

pub(super) fn set_pipe_capacity(fd: RawFd, bytes: u32) -> Result<()> {
    // SAFETY: no memory is touched.
    if check(unsafe { libc::fcntl(fd, libc::F_GETPIPE_SZ) })?.cast_unsigned() == bytes {
        return Ok(());
    }
    // SAFETY: no memory is touched.
    check(unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, bytes) }).map(drop)
}

pub(super) fn socket_pair(kind: i32) -> Result<[RawFd; 2]> {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) })?;
    Ok(ends)
}

pub(super) fn set_option(fd: RawFd, name: i32, value: i32) -> Result<()> {
    // SAFETY: the kernel reads four bytes.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), 4) }).map(drop)
}

pub(super) fn set_timeout(fd: RawFd, name: i32, ns: u64) -> Result<()> {
    let time = [ns / 1_000_000_000, ns % 1_000_000_000 / 1000];
    let bytes = libc::socklen_t::try_from(size_of_val(&time)).map_err(Error::other)?;
    // SAFETY: the kernel reads seconds and microseconds, a `struct timeval`.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, time.as_ptr().cast(), bytes) }).map(drop)
}

/// Sends one message whole, or fails.
pub(super) fn send(fd: RawFd, message: &[u8]) -> Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads the bytes.
    let sent = unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), flags) };
    match usize::try_from(sent) {
        Err(_) => Err(Error::last_os_error()),
        Ok(sent) if sent < message.len() => Err(Error::new(ErrorKind::WouldBlock, "it does not fit")),
        Ok(_) => Ok(()),
    }
}

pub(super) fn shut(fd: RawFd, how: i32) -> Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::shutdown(fd, how) }).map(drop)
}

pub(super) fn event(is_semaphore: bool) -> Result<RawFd> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | if is_semaphore { libc::EFD_SEMAPHORE } else { 0 };
    // SAFETY: no memory is touched.
    check(unsafe { libc::eventfd(0, flags) })
}

pub(super) fn poll() -> Result<RawFd> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

pub(super) fn watch(poll: RawFd, number: RawFd, events: u32, data: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the kernel reads the event.
    check(unsafe { libc::epoll_ctl(poll, libc::EPOLL_CTL_ADD, number, &raw mut event) }).map(drop)
}

pub(super) fn timer(clock: i32) -> Result<RawFd> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC) })
}

pub(super) fn set_timer(fd: RawFd, left_ns: u64, interval_ns: u64) -> Result<()> {
    let time = libc::itimerspec {
        it_value: crate::sys::timespec(left_ns),
        it_interval: crate::sys::timespec(interval_ns),
    };
    // SAFETY: the kernel reads the time.
    check(unsafe { libc::timerfd_settime(fd, 0, &raw const time, std::ptr::null_mut()) }).map(drop)
}

/// `TFD_IOC_SET_TICKS`: a timer's result of its next read. Only kernels with `CONFIG_CHECKPOINT_RESTORE` have it.
pub(super) fn set_ticks(fd: RawFd, ticks: u64) -> Result<()> {
    const TFD_IOC_SET_TICKS: libc::c_ulong = 0x4008_5400;
    // SAFETY: the kernel reads a number.
    check(unsafe { libc::ioctl(fd, TFD_IOC_SET_TICKS as _, &raw const ticks) }).map(drop)
}

pub(super) fn signals(mask: u64) -> Result<RawFd> {
    // SAFETY: the kernel reads the eight bytes of its own kind of mask.
    let fd = unsafe {
        libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, size_of::<u64>(), libc::SFD_CLOEXEC)
    };
    check(i32::try_from(fd).unwrap_or(-1))
}

pub(super) fn lock_whole(fd: RawFd, is_exclusive: bool) -> Result<()> {
    let kind = if is_exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: no memory is touched.
    check(unsafe { libc::flock(fd, kind | libc::LOCK_NB) }).map(drop)
}

/// `last`: the last byte; `None`: to the end.
pub(super) fn lock_range(
    fd: RawFd,
    command: i32,
    is_exclusive: bool,
    start: u64,
    last: Option<u64>,
) -> Result<()> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let kind = if is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = start.cast_signed();
    lock.l_len = last.map_or(0, |last| (last.saturating_sub(start) + 1).cast_signed());
    // SAFETY: the kernel reads the lock.
    check(unsafe { libc::fcntl(fd, command, &raw const lock) }).map(drop)
}

/// Lets this process have as many descriptors as it may.
pub(super) fn raise_limit() -> Result<u64> {
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}
