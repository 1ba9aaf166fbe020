//! The system calls of [`super::facts`]: no C library between, see [`crate::sys`].

use std::ffi::CStr;
use std::os::fd::RawFd;

use crate::sys::{Answer, Errno, call};

/// `KCMP_FILE` and `KCMP_EPOLL_TFD` of kcmp(2).
const KCMP_FILE: usize = 0;
const KCMP_EPOLL_TFD: usize = 7;
/// `F_DUPFD_QUERY` of fcntl(2), since Linux 6.10.
const F_DUPFD_QUERY: i32 = 1027;

pub(super) fn argument(fd: RawFd) -> usize {
    // Sign-extended, as the C library does.
    (fd as isize).cast_unsigned()
}

/// Number of the lowest bits of an answer: descriptors and flags are 32 bits wide.
#[expect(clippy::cast_possible_truncation, reason = "the kernel returns an int")]
fn int(value: usize) -> i32 {
    value as i32
}

pub(super) fn fcntl(fd: RawFd, command: i32, argument_of: usize) -> Answer<i32> {
    // SAFETY: the commands used here touch no memory.
    let answer = unsafe { call(libc::SYS_fcntl, [argument(fd), command as usize, argument_of, 0, 0, 0]) };
    answer.map(int)
}

pub(super) fn stat(fd: RawFd) -> Answer<libc::stat> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure.
    unsafe { call(libc::SYS_fstat, [argument(fd), &raw mut stat as usize, 0, 0, 0, 0]) }?;
    Ok(stat)
}

/// Type of the file system, `statfs(2)`.
pub(super) fn file_system(fd: RawFd) -> Answer<u64> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure.
    unsafe { call(libc::SYS_fstatfs, [argument(fd), &raw mut answer as usize, 0, 0, 0, 0]) }?;
    Ok(answer.f_type.cast_unsigned())
}

pub(super) fn position(fd: RawFd) -> Answer<u64> {
    // SAFETY: no memory is touched.
    let at = unsafe { call(libc::SYS_lseek, [argument(fd), 0, libc::SEEK_CUR as usize, 0, 0, 0]) };
    at.map(|at| at as u64)
}

pub(super) fn read_at(fd: RawFd, room: &mut [u8], offset: u64) -> Answer<usize> {
    // SAFETY: the room is as long as it says.
    unsafe { crate::sys::read_at(fd, room.as_mut_ptr() as u64, room.len(), offset) }
}

pub(super) fn write(fd: RawFd, bytes: &[u8]) -> Answer<usize> {
    // SAFETY: the kernel reads the bytes.
    unsafe { call(libc::SYS_write, [argument(fd), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// Where a link in a folder leads. The answer has no zero byte at its end.
pub(super) fn link(folder: RawFd, path: &CStr, room: &mut [u8]) -> Answer<usize> {
    // SAFETY: a path that ends with a zero byte, and room that is as long as it says.
    unsafe {
        call(
            libc::SYS_readlinkat,
            [argument(folder), path.as_ptr() as usize, room.as_mut_ptr() as usize, room.len(), 0, 0],
        )
    }
}

/// Entries of a directory, as `getdents64(2)` packs them.
pub(super) fn entries(directory: RawFd, room: &mut [u8]) -> Answer<usize> {
    // SAFETY: the room is as long as it says.
    unsafe {
        call(libc::SYS_getdents64, [argument(directory), room.as_mut_ptr() as usize, room.len(), 0, 0, 0])
    }
}

/// How the open file descriptions of two descriptors are ordered: an order that holds while they are open.
pub(super) fn compare(left: RawFd, right: RawFd) -> Answer<Option<std::cmp::Ordering>> {
    compare_in(crate::sys::process_id(), left, right)
}

/// Of a process that the caller may look into.
pub(super) fn compare_in(pid: u32, left: RawFd, right: RawFd) -> Answer<Option<std::cmp::Ordering>> {
    let me = pid as usize;
    // SAFETY: no memory is touched.
    let answer = unsafe { call(libc::SYS_kcmp, [me, me, KCMP_FILE, argument(left), argument(right), 0]) }?;
    Ok(ordering(answer))
}

fn ordering(answer: usize) -> Option<std::cmp::Ordering> {
    match answer {
        0 => Some(std::cmp::Ordering::Equal),
        1 => Some(std::cmp::Ordering::Less),
        2 => Some(std::cmp::Ordering::Greater),
        // Unequal, and the kernel gives no order.
        _ => None,
    }
}

/// `struct kcmp_epoll_slot`.
#[repr(C)]
struct EpollSlot {
    poll: u32,
    number: u32,
    nth: u32,
}

/// How `fd` is ordered to the `nth` file that `poll` watches under `number`.
pub(super) fn compare_watched(
    fd: RawFd,
    poll: RawFd,
    number: u32,
    nth: u32,
) -> Answer<Option<std::cmp::Ordering>> {
    let me = crate::sys::process_id() as usize;
    let slot = EpollSlot { poll: poll.cast_unsigned(), number, nth };
    // SAFETY: the kernel reads the slot.
    let answer =
        unsafe { call(libc::SYS_kcmp, [me, me, KCMP_EPOLL_TFD, argument(fd), &raw const slot as usize, 0]) }?;
    Ok(ordering(answer))
}

/// Whether two descriptors share one open file description, where kcmp(2) is forbidden.
pub(super) fn is_same(left: RawFd, right: RawFd) -> Answer<bool> {
    fcntl(left, F_DUPFD_QUERY, argument(right)).map(|answer| answer == 1)
}

/// Bytes that wait to be read: `FIONREAD`.
pub(super) fn waiting(fd: RawFd) -> Answer<usize> {
    let mut bytes = 0i32;
    // SAFETY: the kernel writes a number.
    unsafe {
        call(libc::SYS_ioctl, [argument(fd), libc::FIONREAD as usize, &raw mut bytes as usize, 0, 0, 0])
    }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// The events that `ppoll(2)` reports at once for a descriptor.
pub(super) fn state(fd: RawFd) -> Answer<i16> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP, revents: 0 };
    let at_once = crate::sys::timespec(0);
    // SAFETY: one entry, and a time; both live through the call.
    unsafe { call(libc::SYS_ppoll, [&raw mut poll as usize, 1, &raw const at_once as usize, 0, 0, 0]) }?;
    Ok(poll.revents)
}

/// A pipe for copies of another one's contents.
pub(super) fn pipe(flags: i32) -> Answer<[RawFd; 2]> {
    let mut ends = [0 as RawFd; 2];
    // SAFETY: room for two numbers.
    unsafe { call(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0]) }?;
    Ok(ends)
}

/// Puts the contents of one pipe into another one as well.
pub(super) fn tee(from: RawFd, into: RawFd, bytes: usize) -> Answer<usize> {
    let flags = libc::SPLICE_F_NONBLOCK as usize;
    // SAFETY: no memory is touched.
    unsafe { call(libc::SYS_tee, [argument(from), argument(into), bytes, flags, 0, 0]) }
}

/// Lets a timer count its expirations since it was read last, so that /proc shows them.
pub(super) fn settle_timer(fd: RawFd) -> Answer<()> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut time: libc::itimerspec = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure.
    unsafe { call(libc::SYS_timerfd_gettime, [argument(fd), &raw mut time as usize, 0, 0, 0, 0]) }.map(drop)
}

/// An option of a socket that is one plain value.
pub(super) fn option<T: Copy + Default>(fd: RawFd, name: i32) -> Answer<T> {
    let mut value = T::default();
    let mut bytes = u32::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the value has the room that the length says.
    unsafe {
        call(
            libc::SYS_getsockopt,
            [
                argument(fd),
                libc::SOL_SOCKET as usize,
                name as usize,
                &raw mut value as usize,
                &raw mut bytes as usize,
                0,
            ],
        )
    }?;
    Ok(value)
}

pub(super) fn set_option(fd: RawFd, name: i32, value: i32) -> Answer<()> {
    // SAFETY: the kernel reads four bytes.
    unsafe {
        call(
            libc::SYS_setsockopt,
            [argument(fd), libc::SOL_SOCKET as usize, name as usize, &raw const value as usize, 4, 0],
        )
    }
    .map(drop)
}

/// A message that stays where it is.
pub(super) struct Peeked {
    /// Its bytes, of which no more than the room were copied.
    pub(super) bytes: usize,
    /// `MSG_…`.
    pub(super) flags: i32,
}

/// Looks at the next message at the socket's peek offset; `None`: there is none.
pub(super) fn peek(fd: RawFd, room: &mut [u8]) -> Answer<Option<Peeked>> {
    let mut piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_TRUNC) as usize;
    // SAFETY: the message refers to the room, both live through the call.
    let answer =
        unsafe { call(libc::SYS_recvmsg, [argument(fd), &raw mut message as usize, flags, 0, 0, 0]) };
    match answer {
        Ok(bytes) => Ok(Some(Peeked { bytes, flags: message.msg_flags })),
        Err(Errno(libc::EAGAIN)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A socket to ask the kernel about sockets.
pub(super) fn diagnosis() -> Answer<RawFd> {
    let kind = (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: no memory is touched.
    let fd = unsafe {
        call(libc::SYS_socket, [libc::AF_NETLINK as usize, kind, libc::NETLINK_SOCK_DIAG as usize, 0, 0, 0])
    };
    fd.map(int)
}

pub(super) fn send(fd: RawFd, bytes: &[u8]) -> Answer<usize> {
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: the kernel reads the bytes.
    unsafe { call(libc::SYS_sendto, [argument(fd), bytes.as_ptr() as usize, bytes.len(), flags, 0, 0]) }
}

pub(super) fn receive(fd: RawFd, room: &mut [u8]) -> Answer<usize> {
    // SAFETY: the room is as long as it says.
    unsafe { call(libc::SYS_recvfrom, [argument(fd), room.as_mut_ptr() as usize, room.len(), 0, 0, 0]) }
}
