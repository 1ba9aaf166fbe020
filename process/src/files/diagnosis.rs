//! The process at the other end of a Unix socket: `sock_diag(7)`, asked for one socket by its inode. No allocation.

use super::kernel;
use crate::sys::{self, Errno};

/// The kernel's facts about a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Peer {
    /// `TCP_…`: established, listening, closed.
    state: u8,
    /// Inode of the other end; 0: there is none, or it was closed.
    pub(super) inode: u64,
    /// Bit 0: it receives no more; bit 1: it sends no more.
    pub(super) shut: u8,
    /// It has an address.
    pub(super) is_named: bool,
}

/// States of sockets, as the kernel shares them among protocols.
const ESTABLISHED: u8 = 1;
const LISTENING: u8 = 10;

impl Peer {
    /// Whether it is, or was, one of two.
    pub(super) fn is_connected(self) -> bool {
        self.state == ESTABLISHED || self.inode != 0
    }

    pub(super) fn is_listening(self) -> bool {
        self.state == LISTENING
    }

    pub(super) fn is_shut_for_reading(self) -> bool {
        self.shut & 1 != 0
    }
}

/// `SOCK_DIAG_BY_FAMILY`, `UDIAG_SHOW_NAME | UDIAG_SHOW_PEER`, and attributes of the answer.
const BY_FAMILY: u16 = 20;
const SHOW: u32 = 1 | 4;
const ATTRIBUTE_NAME: u16 = 0;
const ATTRIBUTE_PEER: u16 = 2;
const ATTRIBUTE_SHUTDOWN: u16 = 6;
/// Bytes of `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 16;

/// Asks for the Unix socket with this inode.
pub(super) fn ask(inode: u64) -> Result<Peer, Errno> {
    let inode = u32::try_from(inode).map_err(|_| Errno(libc::EOVERFLOW))?;
    let socket = kernel::diagnosis()?;
    let answer = ask_on(socket, inode);
    sys::close(socket);
    answer
}

fn ask_on(socket: i32, inode: u32) -> Result<Peer, Errno> {
    let mut request = [0u8; 40];
    request[0..4].copy_from_slice(&40u32.to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&1u16.to_ne_bytes()); // NLM_F_REQUEST
    request[16] = 1; // AF_UNIX
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // in every state
    request[24..28].copy_from_slice(&inode.to_ne_bytes());
    request[28..32].copy_from_slice(&SHOW.to_ne_bytes());
    request[32..40].fill(0xff); // with any cookie
    kernel::send(socket, &request)?;
    let mut answer = [0u8; 512];
    let bytes = kernel::receive(socket, &mut answer)?;
    parse(answer.get(..bytes).unwrap_or(&[]))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn parse(answer: &[u8]) -> Result<Peer, Errno> {
    parse_or_none(answer).unwrap_or(Err(Errno(libc::EPROTO)))
}

fn parse_or_none(answer: &[u8]) -> Option<Result<Peer, Errno>> {
    if half(answer, 4)? == 2 {
        // NLMSG_ERROR: a negative number follows the header.
        let error = word(answer, HEADER_BYTES)?.cast_signed();
        return Some(Err(Errno(error.checked_neg()?)));
    }
    let end = usize::try_from(word(answer, 0)?).ok()?.min(answer.len());
    let mut peer = Peer { state: *answer.get(HEADER_BYTES + 2)?, ..Peer::default() };
    let mut at = HEADER_BYTES + MESSAGE_BYTES;
    while at + 4 <= end {
        let length = usize::from(half(answer, at)?);
        match half(answer, at + 2)? {
            ATTRIBUTE_NAME => peer.is_named = length > 4,
            ATTRIBUTE_PEER => peer.inode = u64::from(word(answer, at + 4)?),
            ATTRIBUTE_SHUTDOWN => peer.shut = *answer.get(at + 4)?,
            _ => {}
        }
        at += length.max(4).next_multiple_of(4);
    }
    Some(Ok(peer))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn inode(socket: &impl AsRawFd) -> u64 {
        kernel::stat(socket.as_raw_fd()).unwrap().st_ino
    }

    #[test]
    fn each_end_of_a_pair_knows_the_other_until_that_is_closed() {
        let (left, right) = UnixStream::pair().unwrap();
        let seen = ask(inode(&left)).unwrap();
        assert!(seen.is_connected() && !seen.is_named && seen.inode == inode(&right));
        assert_eq!(ask(inode(&right)).unwrap().inode, inode(&left));
        left.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!((ask(inode(&left)).unwrap().shut, ask(inode(&right)).unwrap().shut), (2, 1));
        drop(right);
        let seen = ask(inode(&left)).unwrap();
        assert!(seen.is_connected() && seen.inode == 0 && seen.shut == 3);
    }

    #[test]
    fn what_is_no_pair_is_known_as_that() {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join("s")).unwrap();
        let seen = ask(inode(&listener)).unwrap();
        assert!(seen.is_named && seen.is_listening() && !seen.is_connected());
        let alone = UnixDatagram::unbound().unwrap();
        assert!(!ask(inode(&alone)).unwrap().is_connected());
        assert_eq!(ask(u64::from(u32::MAX)), Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn an_answer_that_is_cut_short_is_an_error() {
        for length in 0..34 {
            let mut answer = vec![0u8; length];
            if length >= 4 {
                answer[0] = 200;
            }
            let _ = parse(&answer);
        }
        assert_eq!(parse(&[]), Err(Errno(libc::EPROTO)));
    }
}
