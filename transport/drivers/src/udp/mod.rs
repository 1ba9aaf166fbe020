//! The driver over ordinary UDP sockets.
//!
//! One bound socket receives; its address is the rail's address. Frames leave through *connected* send sockets to the peers
//! used most (a connected send saves the kernel a route look-up, about 0.4 us), and through the receive socket to all others.
//! Nothing is ever received on a send socket: frames name their port, and a peer answers to where that port receives.
//!
//! * [`address`]: how a socket address is written as a [`RawAddress`];
//! * `socket`: opening and tuning sockets, path MTU;
//! * `peers`: the table of addresses, and the peers with a connected socket;
//! * `transmit`: merging staged frames into as few system calls as possible;
//! * `receive`: bursts, and taking coalesced datagrams apart;
//! * `sys`: the system calls that need `unsafe`.

pub mod address;
mod peers;
mod receive;
mod socket;
mod sys;
mod transmit;

use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use socket2::Socket;
use transport::{AddressId, RawAddress};

use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, Notice, Path, Wake};
use crate::error::DriverError;
use crate::interfaces::mtu_at;
use crate::limits::{
    BURST_FRAMES, CONNECTED_MAX, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_SAFE, NOTICES_MAX, SOCKET_BUFFER_BYTES,
};
use crate::payload::Payload;
use crate::sleep::wait_readable;
use crate::staging::Staging;
pub use address::UdpAddress;
use peers::Peers;
use receive::Incoming;
use transmit::Scratch;

/// How to open a [`UdpDriver`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Where to receive; port 0 takes a free one. `[::]` receives IPv4 too.
    pub bind: SocketAddr,
    /// The address that peers use, if `bind` is a wildcard.
    pub advertise: Option<IpAddr>,
    /// Bytes that no frame exceeds, on any path.
    pub frame_bytes_max: usize,
    /// Bytes to ask for as socket buffers.
    pub socket_bytes: usize,
    /// Peers with a connected send socket, at most [`CONNECTED_MAX`].
    pub connected_max: usize,
    /// Merge frames of equal size into one call (UDP_SEGMENT), where the kernel can.
    pub segment: bool,
    /// Let the kernel hand over coalesced datagrams (UDP_GRO) from the first burst on, where it can.
    pub coalesce: bool,
}

impl UdpConfig {
    /// Receives at `bind`, everything else as large and as fast as the system allows.
    #[must_use]
    pub fn new(bind: SocketAddr) -> UdpConfig {
        UdpConfig {
            bind,
            advertise: None,
            frame_bytes_max: DATAGRAM_BYTES_MAX,
            socket_bytes: SOCKET_BUFFER_BYTES,
            connected_max: CONNECTED_MAX,
            segment: true,
            coalesce: true,
        }
    }
}

/// A rail over UDP.
pub struct UdpDriver {
    caps: Caps,
    counters: Counters,
    socket: Socket,
    own: SocketAddr,
    /// Of the interface where frames come in, in bytes.
    mtu: Option<usize>,
    /// For frames that were cut for a longer path than there is now; opened when the first comes.
    fragmenting: Option<Socket>,
    /// The receive socket can send merged frames, as far as known.
    segment: bool,
    peers: Peers,
    staging: Staging,
    incoming: Incoming,
    scratch: Scratch,
    notices: VecDeque<Notice>,
}

impl UdpDriver {
    /// Opens the receive socket and finds out the features of the system.
    ///
    /// # Errors
    /// `CannotOpen` with the step and errno, `NoOwnAddress` for a wildcard without `advertise`.
    pub fn open(config: &UdpConfig) -> Result<UdpDriver, DriverError> {
        let (socket, bound) = socket::open_receive(config)?;
        UdpDriver::with(config, socket, bound)
    }

    /// The same over a UDP socket that another process has bound.
    pub(crate) fn over(config: &UdpConfig, bound: OwnedFd) -> Result<UdpDriver, DriverError> {
        let (socket, bound) = socket::adopt(config, bound)?;
        UdpDriver::with(config, socket, bound)
    }

    fn with(config: &UdpConfig, socket: Socket, bound: SocketAddr) -> Result<UdpDriver, DriverError> {
        let ip = match config.advertise {
            Some(ip) => ip,
            None if bound.ip().is_unspecified() => return Err(DriverError::NoOwnAddress),
            None => bound.ip(),
        };
        let own = address::with_ip(bound, ip);
        let mtu = mtu_at(ip.to_canonical()).or_else(|| mtu_at(bound.ip()));
        let coalesce = config.coalesce && socket::can_coalesce(&socket);
        let segment = config.segment && socket::can_segment(&socket);
        let mut peers = Peers::new(bound, config, segment);
        // The way to ourselves is the widest: it crosses no network.
        let widest = peers.examine(own).map_or(DATAGRAM_BYTES_SAFE, |path| path.frame_bytes_max);
        peers.limit_frames(widest);
        let caps = Caps {
            kind: "udp",
            frame_bytes_max: widest,
            burst: BURST_FRAMES,
            gather: true,
            // Datagrams to one address leave in order, but networks reorder.
            ordered: false,
            receive_bytes: socket::receive_bytes(&socket),
            within_host: false,
        };
        Ok(UdpDriver {
            caps,
            counters: Counters::default(),
            socket,
            own,
            mtu,
            fragmenting: None,
            segment,
            peers,
            staging: Staging::new(BURST_FRAMES, widest),
            incoming: Incoming::new(coalesce),
            scratch: Scratch::default(),
            notices: VecDeque::new(),
        })
    }

    /// Where peers send to.
    #[must_use]
    pub fn own_address(&self) -> SocketAddr {
        self.own
    }

    /// Whether frames are merged (UDP_SEGMENT), and whether they are received coalesced (UDP_GRO, from the first burst on).
    #[must_use]
    pub fn offloads(&self) -> (bool, bool) {
        (self.segment, self.incoming.coalesces())
    }

    /// The path's limit has turned out to be lower: keeps it, and reports it to the owner.
    fn shrink_path(&mut self, to: AddressId, frame_bytes: usize) {
        let frame_bytes_max = self.peers.shrink(to, frame_bytes);
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice::PathShrunk { to, frame_bytes_max });
    }
}

impl Driver for UdpDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        UdpAddress(self.own).with_mtu(self.mtu)
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        self.peers.resolve(address)
    }

    fn forget(&mut self, address: AddressId) {
        self.peers.forget(address);
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.peers.path(to)
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        self.staging.lease()
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        if frame_bytes + payload.len() > self.caps.frame_bytes_max {
            self.counters.lost_too_long += 1;
            self.staging.commit_refused(to);
        } else if !self.staging.commit(to, frame_bytes, payload) {
            self.counters.lost_other += 1;
        }
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        self.flush_staged()
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        self.incoming.receive(self.socket.as_fd(), &mut self.counters, frames_max, each)
    }

    fn staged_total(&self) -> u64 {
        self.staging.staged_total()
    }

    fn completed_total(&self) -> u64 {
        self.staging.completed_total()
    }

    /// Immediate: the kernel copies every frame during the system call, so nothing of ours is ever with the NIC.
    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.counters.lost_drained += self.staging.drain() as u64;
        Ok(Poll::Ready(()))
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        self.incoming.count_overflow(self.socket.as_fd(), &mut self.counters);
        Ok(if self.incoming.is_empty() { Armed::Sleep } else { Armed::FrameWaiting })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let own = core::iter::once(&self.socket).chain(&self.fragmenting);
        own.chain(self.peers.sockets()).map(|socket| socket.as_raw_fd()).collect()
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        match self.arm()? {
            Armed::FrameWaiting => Ok(Wake::Frame),
            Armed::Sleep => wait_readable(self.socket.as_fd(), timeout),
        }
    }
}
