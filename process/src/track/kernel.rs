//! The calls behind a [`super::Tracker`].

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::arch::PAGE_BYTES;
use crate::pages::Scanner;
use crate::sys::{self, Answer, Errno};

/// Faults of the kernel itself are not handed to the program: an ordinary user may ask for that. Nothing is ever handed out
/// here.
const USER_MODE_ONLY: usize = 1;
/// `UFFD_API`.
const VERSION: u64 = 0xaa;
/// `UFFD_FEATURE_WP_UNPOPULATED`, without which the kernel reports nothing of private memory, and
/// `UFFD_FEATURE_WP_ASYNC`.
const FEATURES: u64 = 1 << 13 | 1 << 15;
/// `UFFDIO_API`: `_IOWR(0xaa, 0x3f, struct uffdio_api)`.
const IOCTL_API: usize = 0xc018_aa3f;
/// `UFFDIO_REGISTER`: `_IOWR(0xaa, 0, struct uffdio_register)`.
const IOCTL_REGISTER: usize = 0xc020_aa00;
/// `UFFDIO_REGISTER_MODE_WP`.
const MODE_PROTECT: u64 = 1 << 1;

/// Programs count on low numbers, close them, and put files of theirs in their place.
const NUMBER_MIN: usize = 500;

/// The name of such a descriptor in `/proc`.
const NAME: &str = "anon_inode:[userfaultfd]";

fn ioctl(descriptor: RawFd, request: usize, argument: &mut [u64]) -> Answer<usize> {
    let argument = argument.as_mut_ptr() as usize;
    // SAFETY: the arguments of both requests are as many words as the kernel reads and writes.
    unsafe { sys::call(libc::SYS_ioctl, [descriptor as usize, request, argument, 0, 0, 0]) }
}

pub(super) fn open() -> Answer<OwnedFd> {
    let flags = libc::O_CLOEXEC as usize | libc::O_NONBLOCK as usize | USER_MODE_ONLY;
    // SAFETY: a new descriptor.
    let number = unsafe { sys::call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) }?;
    // SAFETY: without another owner.
    let low = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
    let duplicate = [number, libc::F_DUPFD_CLOEXEC as usize, NUMBER_MIN, 0, 0, 0];
    // SAFETY: a new descriptor, without another owner.
    let high =
        unsafe { sys::call(libc::SYS_fcntl, duplicate).map(|number| OwnedFd::from_raw_fd(number as RawFd)) };
    let descriptor = high.unwrap_or(low);
    // `struct uffdio_api`: version, features, calls.
    ioctl(descriptor.as_raw_fd(), IOCTL_API, &mut [VERSION, FEATURES, 0])?;
    Ok(descriptor)
}

pub(super) fn register(descriptor: RawFd, range: Range<u64>) -> Answer<()> {
    // `struct uffdio_register`: start, length, mode, calls.
    let mut argument = [range.start, range.end - range.start, MODE_PROTECT, 0];
    ioctl(descriptor, IOCTL_REGISTER, &mut argument).map(drop)
}

pub(super) fn is_ours(descriptor: RawFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    name.is_ok_and(|name| is_descriptor(name.as_os_str().as_encoded_bytes()))
}

/// Whether `/proc` gives such a descriptor this name, be it a tracker's or not.
pub(crate) fn is_descriptor(link: &[u8]) -> bool {
    link == NAME.as_bytes()
}

/// Whether one was opened as a tracker does: no fault is handed out to anybody. `text` is its fdinfo.
pub(crate) fn is_tracker(text: &[u8]) -> bool {
    // Version, requested and available features, as hexadecimal numbers; the highest bit means that it was
    // asked.
    let features = |line: &str| u64::from_str_radix(line.strip_prefix("API:")?.split(':').nth(1)?, 16).ok();
    let text = String::from_utf8_lossy(text);
    text.lines().find_map(features).is_some_and(|asked| asked & !(1 << 31) == FEATURES)
}

/// Whether a written page is distinguished from an armed one: some kernels accept the flags without implementing them.
pub(super) fn try_out(descriptor: RawFd) -> Answer<()> {
    let bytes = 2 * PAGE_BYTES as usize;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, where the kernel likes.
    let base =
        unsafe { sys::call(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0]) }?;
    let outcome = distinguishes_written(descriptor, base as u64);
    // SAFETY: our own memory, which nothing refers to.
    let _ = unsafe { sys::call(libc::SYS_munmap, [base, bytes, 0, 0, 0, 0]) };
    if outcome? { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

fn distinguishes_written(descriptor: RawFd, base: u64) -> Answer<bool> {
    let range = base..base + 2 * PAGE_BYTES;
    let write = |page: u64| {
        // SAFETY: two pages of `try_out`'s own.
        unsafe { ((base + page * PAGE_BYTES) as *mut u8).write_volatile(1) };
    };
    write(0);
    write(1);
    let mut scanner = Scanner::open()?;
    if !scanner.can_track() {
        return Err(Errno(libc::ENOTTY));
    }
    register(descriptor, range.clone())?;
    scanner.arm(range.clone())?;
    write(1);
    let mut written = Vec::new();
    scanner.own(range, true, |pages, is_written| {
        written.push(((pages.start - base) / PAGE_BYTES, (pages.end - base) / PAGE_BYTES, is_written));
        Ok(())
    })?;
    Ok(written == [(0, 1, false), (1, 2, true)])
}
