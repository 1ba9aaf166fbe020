//! The rank's side: asking for queues, and keeping them.

use core::time::Duration;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, connect, setsockopt, shutdown, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use super::messages;
use super::wire::{self, ANSWER_BYTES, Answer, Name, Refusal, Wanted};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{XDP_BUSY_PATIENCE, XDP_HELPER_ANSWER_PATIENCE};
use crate::xdp::Attach;

/// A rank's request.
pub(in crate::xdp) struct Request<'a> {
    pub(in crate::xdp) device: &'a str,
    pub(in crate::xdp) attach: Option<Attach>,
    pub(in crate::xdp) queues: usize,
    pub(in crate::xdp) wire_bytes_max: usize,
    pub(in crate::xdp) chunk_bytes: usize,
    /// Where the rail receives; port 0 takes a free one.
    pub(in crate::xdp) address: SocketAddr,
    pub(in crate::xdp) memory_bytes: usize,
}

/// The grant.
pub(in crate::xdp) struct Given {
    pub(in crate::xdp) lease: Lease,
    pub(in crate::xdp) attach: Attach,
    /// Bound to the rail's address.
    pub(in crate::xdp) port: OwnedFd,
    /// The file of the memory for frames.
    pub(in crate::xdp) memory: OwnedFd,
    /// Bound ones, one for each queue.
    pub(in crate::xdp) sockets: Vec<OwnedFd>,
}

/// The connection that keeps the granted queues and address.
pub(in crate::xdp) struct Lease(OwnedFd);

impl Lease {
    pub(in crate::xdp) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether the helper is gone.
    pub(in crate::xdp) fn is_over(&self) -> bool {
        let came = messages::receive(self.fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        !matches!(came, Err(Errno(libc::EAGAIN | libc::EINTR)))
    }
}

impl Drop for Lease {
    /// Returns when the helper has let go of the address and taken the rail out of the program. Closing would not do while a forked child has the descriptor too.
    fn drop(&mut self) {
        let reported = shutdown(self.0.as_raw_fd(), Shutdown::Write);
        if reported.is_ok() {
            // It sends nothing any more: this ends with the connection, or, of a helper that stands still,
            // with our patience.
            let _ = messages::receive(self.fd(), &mut [0], MsgFlags::empty());
        }
    }
}

/// Asks for queues. If others still hold some for a moment, asks again.
pub(in crate::xdp) fn open(path: &Path, request: &Request<'_>) -> Result<Given, DriverError> {
    let failed = |errno| refused(Refusal::Failed { operation: Operation::FindDevice, errno });
    let device = Name::new(request.device).ok_or(failed(Errno(libc::ENODEV)))?;
    let queues = u8::try_from(request.queues).unwrap_or(u8::MAX);
    let mut wanted = Wanted {
        device,
        address: request.address,
        attach: request.attach,
        queues_min: queues,
        queues_max: queues,
        wire_bytes_max: u32::try_from(request.wire_bytes_max).unwrap_or(u32::MAX),
        chunk_bytes: u32::try_from(request.chunk_bytes).unwrap_or(u32::MAX),
        memory_bytes: u32::try_from(request.memory_bytes).unwrap_or(u32::MAX),
    };
    let start = Instant::now();
    loop {
        let (connection, answer, files) = ask(path, wire::Request::Open(wanted))?;
        let refusal = match answer {
            Answer::Given { attach, queues } if 2 + queues.len() == files.len() => {
                let mut files = files.into_iter();
                let (Some(port), Some(memory)) = (files.next(), files.next()) else {
                    return Err(unreachable(Errno(libc::EPROTO)));
                };
                let sockets = files.collect();
                return Ok(Given { lease: Lease(connection), attach, port, memory, sockets });
            }
            Answer::Refused(refusal) => refusal,
            Answer::Would | Answer::Given { .. } => return Err(unreachable(Errno(libc::EPROTO))),
        };
        let others = matches!(refusal, Refusal::Queues { .. } | Refusal::Port | Refusal::Limit { .. })
            || matches!(refusal, Refusal::Failed { errno: Errno(libc::EBUSY), .. });
        if !others || wanted.queues_min < queues || (queues == 1 && start.elapsed() > XDP_BUSY_PATIENCE) {
            return Err(refused(refusal));
        }
        if start.elapsed() > XDP_BUSY_PATIENCE {
            // They stay with others: fewer will do.
            wanted.queues_min = 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the helper at `path` would serve this process at the device.
///
/// # Errors
/// `HelperUnreachable`, `HelperRefused`.
pub fn probe(path: &Path, device: &str) -> Result<(), DriverError> {
    let failed = |errno| refused(Refusal::Failed { operation: Operation::FindDevice, errno });
    let device = Name::new(device).ok_or(failed(Errno(libc::ENODEV)))?;
    match ask(path, wire::Request::Probe { device })?.1 {
        Answer::Would => Ok(()),
        Answer::Refused(refusal) => Err(refused(refusal)),
        Answer::Given { .. } => Err(unreachable(Errno(libc::EPROTO))),
    }
}

/// One request over a connection of its own, and the answer.
fn ask(path: &Path, request: wire::Request) -> Result<(OwnedFd, Answer, Vec<OwnedFd>), DriverError> {
    let answered = || -> Result<_, Errno> {
        let known = |error: nix::errno::Errno| Errno(error as i32);
        let connection = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
        let connection = connection.map_err(known)?;
        let patience =
            TimeVal::new(i64::try_from(XDP_HELPER_ANSWER_PATIENCE.as_secs()).unwrap_or(i64::MAX), 0);
        setsockopt(&connection, sockopt::ReceiveTimeout, &patience).map_err(known)?;
        setsockopt(&connection, sockopt::SendTimeout, &patience).map_err(known)?;
        let address = UnixAddr::new(path).map_err(known)?;
        connect(connection.as_raw_fd(), &address).map_err(known)?;
        // A helper that has refused this user already has closed the connection; its answer is there all the same.
        let _ = messages::send(connection.as_fd(), &request.emit(), &[], MsgFlags::empty());
        let mut bytes = [0; ANSWER_BYTES + 1];
        let mut receive = || messages::receive(connection.as_fd(), &mut bytes, MsgFlags::empty());
        let (came, files) = match receive() {
            // It closed the connection with our request unread: that is reported before its answer.
            Err(Errno(libc::ECONNRESET)) => receive()?,
            received => received?,
        };
        if came == 0 {
            return Err(Errno(libc::ECONNRESET));
        }
        let answer = Answer::parse(&bytes[..came]).map_err(|_| Errno(libc::EPROTO))?;
        Ok((connection, answer, files))
    };
    answered().map_err(unreachable)
}

fn refused(refusal: Refusal) -> DriverError {
    DriverError::HelperRefused { refusal }
}

fn unreachable(errno: Errno) -> DriverError {
    DriverError::HelperUnreachable { errno }
}
