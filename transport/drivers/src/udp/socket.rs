//! Opening and tuning sockets; limits of the path to an address.

use core::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{UdpConfig, address, sys};
use crate::driver::Path;
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_SAFE};

/// Bytes of IP and UDP headers before the payload.
const HEADER_BYTES_V4: usize = 20 + 8;
const HEADER_BYTES_V6: usize = 40 + 8;

fn cannot_open(operation: Operation) -> impl Fn(std::io::Error) -> DriverError {
    move |error| DriverError::CannotOpen { operation, errno: Errno::from(&error) }
}

/// The bound socket of a rail, and the address it got.
pub(super) fn open_receive(config: &UdpConfig) -> Result<(Socket, SocketAddr), DriverError> {
    let socket = open(config.bind).map_err(cannot_open(Operation::OpenSocket))?;
    if config.bind.is_ipv6() {
        socket.set_only_v6(!config.bind.ip().is_unspecified()).map_err(cannot_open(Operation::SetOption))?;
    }
    enlarge_buffers(&socket, config.socket_bytes);
    never_fragment(&socket, config.bind);
    socket.bind(&SockAddr::from(config.bind)).map_err(cannot_open(Operation::Bind))?;
    let bound = socket.local_addr().map_err(cannot_open(Operation::Bind))?;
    Ok((socket, bound.as_socket().unwrap_or(config.bind)))
}

/// A rail's socket that another process has opened and bound, not to wait and of the family of its address.
pub(super) fn adopt(config: &UdpConfig, bound: OwnedFd) -> Result<(Socket, SocketAddr), DriverError> {
    let socket = Socket::from(bound);
    enlarge_buffers(&socket, config.socket_bytes);
    never_fragment(&socket, config.bind);
    let bound = socket.local_addr().map_err(cannot_open(Operation::Bind))?;
    Ok((socket, bound.as_socket().unwrap_or(config.bind)))
}

/// A socket for sending to `peer` alone, from the rail's own IP, so that frames leave through the rail's NIC.
pub(super) fn open_connected(own: SocketAddr, peer: SocketAddr) -> std::io::Result<Socket> {
    let socket = open(peer)?;
    never_fragment(&socket, peer);
    // Nothing is received here; the least the kernel grants is enough.
    let _ = socket.set_recv_buffer_size(0);
    if !own.ip().is_unspecified() {
        let mut source = own;
        source.set_port(0);
        socket.bind(&SockAddr::from(source))?;
    }
    socket.connect(&SockAddr::from(peer))?;
    Ok(socket)
}

fn open(family_of: SocketAddr) -> std::io::Result<Socket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    Socket::new(Domain::for_address(family_of), kind, Some(Protocol::UDP))
}

/// Asks for large buffers: beyond the system's limit where we may, else up to it. Being refused costs only loss under bursts.
pub(super) fn enlarge_buffers(socket: &Socket, bytes: usize) {
    let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    for (forced, usual) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if sys::set_option(socket.as_fd(), libc::SOL_SOCKET, forced, value).is_err() {
            let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, usual, value);
        }
    }
}

/// Bytes that the receive socket holds, by the kernel's count (true sizes, twice the requested bytes).
pub(super) fn receive_bytes(socket: &Socket) -> usize {
    socket.recv_buffer_size().unwrap_or(0)
}

/// Sets "don't fragment": a lost fragment would lose the whole frame, and fragments bypass the filters that
/// steer frames to a rail. The kernel then keeps the path's MTU and refuses longer frames with EMSGSIZE.
/// Where it cannot be set, frames get fragmented and still arrive.
fn never_fragment(socket: &Socket, family_of: SocketAddr) {
    discover(socket, family_of, libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO);
}

fn discover(socket: &Socket, family_of: SocketAddr, v4: c_int, v6: c_int) {
    let fd = socket.as_fd();
    // On an IPv6 socket this concerns the IPv4 traffic that it may carry.
    let _ = sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4);
    if family_of.is_ipv6() {
        let _ = sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6);
    }
}

/// A socket like the rail's receive socket, for frames that are longer than their path: the kernel may fragment them.
pub(super) fn open_fragmenting(receive: &Socket) -> std::io::Result<Socket> {
    let bound = receive.local_addr()?.as_socket().ok_or(std::io::ErrorKind::Unsupported)?;
    let socket = open(bound)?;
    let source = SocketAddr::new(bound.ip(), 0);
    if source.is_ipv6() {
        socket.set_only_v6(!source.ip().is_unspecified())?;
    }
    discover(&socket, bound, libc::IP_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DONT);
    // Nothing is received here; the least the kernel grants is enough.
    let _ = socket.set_recv_buffer_size(0);
    socket.bind(&SockAddr::from(source))?;
    Ok(socket)
}

/// Whether the kernel knows how to coalesce datagrams.
pub(super) fn can_coalesce(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0).is_ok()
}

/// Asks for coalesced datagrams, or for none any more; whether that worked. When it ends, the sizes of those that wait are lost.
pub(super) fn coalesce(fd: BorrowedFd<'_>, on: bool) -> bool {
    sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, on.into()).is_ok()
}

/// Whether the kernel knows segmentation. The NIC may still refuse it.
pub(super) fn can_segment(socket: &Socket) -> bool {
    sys::option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Bytes of the largest frame that the path of a connected socket takes, as the kernel knows it now.
pub(super) fn frame_bytes_max(socket: &Socket, peer: SocketAddr) -> usize {
    let (level, name) = match peer {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = sys::option(socket.as_fd(), level, name).ok().and_then(|mtu| usize::try_from(mtu).ok());
    mtu.map_or(DATAGRAM_BYTES_SAFE, |mtu| frame_bytes_in(mtu, peer))
}

/// Bytes of the largest frame in an IP packet of `mtu` bytes to `peer`.
pub(super) fn frame_bytes_in(mtu: usize, peer: SocketAddr) -> usize {
    let header = if peer.is_ipv4() { HEADER_BYTES_V4 } else { HEADER_BYTES_V6 };
    mtu.saturating_sub(header).min(DATAGRAM_BYTES_MAX)
}

/// The kernel's facts about the way to `peer`, over a socket connected to it.
pub(super) fn path(socket: &Socket, peer: SocketAddr) -> Path {
    // The kernel sends from the very address that it sends to only if that address is its own.
    let source = socket.local_addr().ok().and_then(|address| address.as_socket());
    let on_host = peer.ip().is_loopback() || source.is_some_and(|source| source.ip() == peer.ip());
    Path { frame_bytes_max: frame_bytes_max(socket, peer), on_host }
}

/// `peer` as the receive socket, of the family of `own`, has to name it; `None` if that socket cannot send there.
pub(super) fn name_for(own: SocketAddr, peer: SocketAddr) -> Option<SockAddr> {
    match (own, peer.ip()) {
        (SocketAddr::V4(_), IpAddr::V4(_)) => Some(peer.into()),
        (SocketAddr::V6(own), IpAddr::V4(ip)) if own.ip().is_unspecified() => {
            Some(address::with_ip(peer, IpAddr::V6(ip.to_ipv6_mapped())).into())
        }
        (SocketAddr::V6(_), IpAddr::V6(_)) => Some(peer.into()),
        _ => None,
    }
}
