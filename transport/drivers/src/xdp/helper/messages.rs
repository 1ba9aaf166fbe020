//! One message and the descriptors beside it, over a socket that keeps messages whole.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::error::Errno;

/// Descriptors that one message can bring (`SCM_MAX_FD`). With room for all none is left behind without a name.
const FILES_MAX: usize = 253;

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
    sent.map(drop).map_err(|error| Errno(error as i32))
}

/// Receives a message; how many bytes came (0: the other end is closed, `bytes.len()` or more: it may have been longer), and the descriptors beside it.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut beside = nix::cmsg_space!([RawFd; FILES_MAX]);
    let mut to = [IoSliceMut::new(bytes)];
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let known = |error: nix::errno::Errno| Errno(error as i32);
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
