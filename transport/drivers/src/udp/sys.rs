//! The system calls that neither `std` nor `socket2` offers: messages with control data, several messages in one call, and
//! options by number. Single datagrams go by the numbers of their calls too: libc's `send` and `recv` are points where a thread can be
//! cancelled, which costs each of them two atomic operations once a process has several threads. All `unsafe` of the UDP driver is here; every pointer handed to the kernel comes from a borrow that
//! lasts for the call.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

use crate::error::Errno;

/// Room for the control data we send (segment size) or receive (segment size), aligned as the kernel asks.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 64;
const _: () = assert!(align_of::<libc::cmsghdr>() <= 8);

/// Sets an integer option.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let len = size_of_libc::<c_int>();
    // SAFETY: `value` is readable for `len` bytes during the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Reads an integer option.
pub(super) fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    let mut len = size_of_libc::<c_int>();
    // SAFETY: `value` is writable for `len` bytes during the call, `len` says so.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if rc == 0 { Ok(value) } else { Err(Errno::last()) }
}

/// Datagrams that the socket has dropped since it was opened, modulo 2^32. Asked for now and then: having the kernel report it with
/// each datagram (SO_RXQ_OVFL) makes each receive dearer.
pub(super) fn dropped(fd: BorrowedFd<'_>) -> Option<u32> {
    /// Of the numbers that SO_MEMINFO gives, the place of the one that counts drops (`SK_MEMINFO_DROPS`).
    const DROPS: usize = 8;
    let mut numbers = [0u32; DROPS + 1];
    let mut len = size_of_libc::<[u32; DROPS + 1]>();
    // SAFETY: `numbers` is writable for `len` bytes during the call, `len` says so.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (rc == 0 && len == size_of_libc::<[u32; DROPS + 1]>()).then_some(numbers[DROPS])
}

/// Size of a small C type, as socket calls want it.
#[expect(clippy::cast_possible_truncation, reason = "sizes of C structs, far below 4 GiB")]
const fn size_of_libc<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

/// One message to send: its destination (none on a connected socket), the segment size to cut it into (0: it is one
/// datagram), and how many parts of the batch it gathers.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) to: Option<&'a SockAddr>,
    pub(super) segment_bytes: u16,
    pub(super) parts: usize,
}

/// Arrays that a call needs, kept so that they are not allocated each time. Empty between calls.
#[derive(Default)]
pub(super) struct SendArrays {
    parts: Vec<libc::iovec>,
    controls: Vec<Control>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers inside are made and used within one `send_messages`, and cleared before it returns.
unsafe impl Send for SendArrays {}

/// Sends `messages`, each gathered from its number of `parts`, in order. Returns how many were accepted; an
/// error only if the first was not.
pub(super) fn send_messages<'a>(
    fd: BorrowedFd<'_>,
    arrays: &mut SendArrays,
    messages: &[Message<'a>],
    parts: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    arrays.parts.extend(parts.map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: part.len(),
    }));
    arrays.controls.resize(messages.len(), Control([0; CONTROL_BYTES]));
    let mut first_part = 0;
    for (message, control) in messages.iter().zip(&mut arrays.controls) {
        let parts = &mut arrays.parts[first_part..first_part + message.parts];
        first_part += message.parts;
        arrays.messages.push(libc::mmsghdr { msg_hdr: header(message, parts, control), msg_len: 0 });
    }
    let result = match arrays.messages.as_mut_slice() {
        [] => Ok(0),
        [one] => {
            // SAFETY: the header points at a name, parts and control data that `messages`, `parts` and `arrays` keep alive and
            // unmoved during the call (the vectors are not touched after the pointers were taken). The kernel only reads.
            let rc = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const one.msg_hdr, 0) };
            if rc < 0 { Err(Errno::last()) } else { Ok(1) }
        }
        several => {
            let count = u32::try_from(several.len()).unwrap_or(u32::MAX);
            // SAFETY: as above for each header; the array is writable for the lengths that the kernel reports.
            let rc = unsafe { libc::sendmmsg(fd.as_raw_fd(), several.as_mut_ptr(), count, 0) };
            usize::try_from(rc).map_err(|_| Errno::last())
        }
    };
    arrays.parts.clear();
    arrays.controls.clear();
    arrays.messages.clear();
    result
}

/// Fills in a message header whose pointers are those of the arguments.
fn header(message: &Message<'_>, parts: &mut [libc::iovec], control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr`: null pointers and lengths of 0.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = parts.len();
    if let Some(to) = message.to {
        header.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_namelen = to.len();
    }
    if message.segment_bytes > 0 {
        // SAFETY: `CMSG_SPACE` only computes.
        let space = unsafe { libc::CMSG_SPACE(u16::BITS / 8) } as usize;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = space;
        // SAFETY: `control` is aligned for a `cmsghdr` and longer than `space`, so the first header and its two bytes of data
        // lie inside it.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_UDP;
            (*first).cmsg_type = libc::UDP_SEGMENT;
            (*first).cmsg_len = libc::CMSG_LEN(u16::BITS / 8) as usize;
            libc::CMSG_DATA(first).cast::<u16>().write_unaligned(message.segment_bytes);
        }
    }
    header
}

/// The datagrams in one receive buffer.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Datagram {
    pub(super) bytes: usize,
    /// Size of each frame in it, the last may be shorter; 0: it is one frame.
    pub(super) segment_bytes: usize,
    /// It was longer than the buffer.
    pub(super) truncated: bool,
}

/// Receives up to `datagrams.len()` (at most `N`) datagrams without blocking, the `i`th into the `i`th `stride` bytes of
/// `buffers`. Returns how many; an error only if there was none, `EAGAIN` if none is waiting.
pub(super) fn receive_datagrams<const N: usize>(
    fd: BorrowedFd<'_>,
    buffers: &mut [u8],
    stride: usize,
    datagrams: &mut [Datagram],
) -> Result<usize, Errno> {
    if let [one] = datagrams {
        let Some(buffer) = buffers.get_mut(..stride) else { return Ok(0) };
        return receive_one(fd, buffer, one);
    }
    let mut controls = [Control([0; CONTROL_BYTES]); N];
    let mut parts = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; N];
    // SAFETY: all-zero bytes are a valid array of `mmsghdr`.
    let mut messages: [libc::mmsghdr; N] = unsafe { core::mem::zeroed() };
    let mut count = 0;
    for (i, buffer) in buffers.chunks_exact_mut(stride).take(datagrams.len().min(N)).enumerate() {
        parts[i] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        messages[i].msg_hdr.msg_iov = &raw mut parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_control = controls[i].0.as_mut_ptr().cast();
        messages[i].msg_hdr.msg_controllen = CONTROL_BYTES;
        count += 1;
    }
    // SAFETY: the first `count` headers point at distinct buffers, parts and control blocks that live to the end of this
    // function and are writable for the lengths stated. No timeout is given.
    let rc = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
            core::ptr::null_mut(),
        )
    };
    let received = usize::try_from(rc).map_err(|_| Errno::last())?;
    for (message, datagram) in messages[..received].iter().zip(datagrams) {
        *datagram = describe(&message.msg_hdr, message.msg_len as usize);
    }
    Ok(received)
}

/// Receives one datagram without control data, which costs 0.15 us less: only for a socket that does not coalesce. Returns its
/// length; one that does not fit is cut.
pub(super) fn receive_plain(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (no_name, no_length) = (core::ptr::null_mut::<c_void>(), core::ptr::null_mut::<c_void>());
    // SAFETY: `buffer` is writable for its length during the call; no name is asked for.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            no_name,
            no_length,
        )
    };
    usize::try_from(rc).map_err(|_| Errno::last())
}

/// Sends one datagram through a connected socket.
pub(super) fn send_plain(fd: BorrowedFd<'_>, frame: &[u8]) -> Result<(), Errno> {
    let (flags, no_name, no_length): (c_int, *const c_void, libc::socklen_t) = (0, core::ptr::null(), 0);
    // SAFETY: `frame` is readable for its length during the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd.as_raw_fd(),
            frame.as_ptr(),
            frame.len(),
            flags,
            no_name,
            no_length,
        )
    };
    if rc < 0 { Err(Errno::last()) } else { Ok(()) }
}

fn receive_one(fd: BorrowedFd<'_>, buffer: &mut [u8], datagram: &mut Datagram) -> Result<usize, Errno> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    // SAFETY: the header points at one buffer and one control block, both writable for the lengths stated during the call.
    let rc = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let bytes = usize::try_from(rc).map_err(|_| Errno::last())?;
    *datagram = describe(&header, bytes);
    Ok(1)
}

/// Reads flags and control data of a message that the kernel has filled in; its control block must still be alive.
fn describe(header: &libc::msghdr, bytes: usize) -> Datagram {
    let mut datagram =
        Datagram { bytes, truncated: header.msg_flags & libc::MSG_TRUNC != 0, ..Datagram::default() };
    // SAFETY: the kernel has set `msg_controllen` to the bytes that it wrote into the control block, and
    // `CMSG_FIRSTHDR`/`CMSG_NXTHDR` give only headers inside it. Each value is read only if the header's length covers
    // it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            let data = libc::CMSG_DATA(control);
            let holds = |size: u32| control.cmsg_len >= libc::CMSG_LEN(size) as usize;
            match (control.cmsg_level, control.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) if holds(4) => {
                    let size = data.cast::<c_int>().read_unaligned();
                    datagram.segment_bytes = usize::try_from(size).unwrap_or(0);
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, control);
        }
    }
    datagram
}
