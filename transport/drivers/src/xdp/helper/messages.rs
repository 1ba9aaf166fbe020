//! One message, over a socket that keeps messages whole; the helper's answers have descriptors beside them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recv, recvmsg, sendmsg};

use crate::error::Errno;
use crate::limits::XDP_QUEUES_MAX;

/// Descriptors beside an answer: the port, the memory, and a socket for each queue.
const FILES_MAX: usize = 2 + XDP_QUEUES_MAX;

fn known(error: nix::errno::Errno) -> Errno {
    Errno(error as i32)
}

/// Sends a message.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> Result<(), Errno> {
    let numbers: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
    let beside = [ControlMessage::ScmRights(&numbers)];
    let beside = if numbers.is_empty() { &[][..] } else { &beside[..] };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], beside, flags, None);
    sent.map(drop).map_err(known)
}

/// Receives an answer; how many bytes came (0: the other end is closed, `bytes.len()` or more: it may have been longer), and the descriptors beside it.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut beside = nix::cmsg_space!([RawFd; FILES_MAX]);
    let mut to = [IoSliceMut::new(bytes)];
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let came = recvmsg::<()>(socket.as_raw_fd(), &mut to, Some(&mut beside), flags).map_err(known)?;
    let mut files = Vec::new();
    for message in came.cmsgs().map_err(known)? {
        if let ControlMessageOwned::ScmRights(numbers) = message {
            // SAFETY: the kernel has just made these for us, and no other code knows them.
            files.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((came.bytes, files))
}

/// Looks at the first message that waits, and leaves it there, with all descriptors beside it: receiving some and closing them, or having the kernel
/// close them, may wait for another process. `Err(EAGAIN)`: none waits; otherwise as [`receive`].
pub(super) fn look(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
    recv(socket.as_raw_fd(), bytes, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).map_err(known)
}
