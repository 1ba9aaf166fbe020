//! Where the kernel would send a frame: routes and neighbours, asked and listened for over rtnetlink.

#![expect(clippy::host_endian_bytes, reason = "netlink speaks the host's byte order")]

use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use super::headers::Mac;
use crate::error::Errno;

/// `RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE`.
const GROUPS: u32 = 0x1 | 0x4 | 0x40 | 0x400;
const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
const GET_NEIGHBOUR: u16 = 30;
const NEW_NEIGHBOUR: u16 = 28;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// `RTA_DST`, `RTA_SRC`, `RTA_OIF`, `RTA_GATEWAY`; `NDA_DST`, `NDA_LLADDR`.
const ROUTE_TO: u16 = 1;
const ROUTE_FROM: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const NEIGHBOUR_IP: u16 = 1;
const NEIGHBOUR_MAC: u16 = 2;
/// `RTN_UNICAST`: neither to ourselves nor to many.
const UNICAST: u8 = 1;
/// Every `NUD_` state in which the kernel itself would use the address.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// Bytes of a netlink header, of a route's and of a neighbour's fixed part.
const HEADER_BYTES: usize = 16;
const FIXED_BYTES: usize = 12;
/// Bytes of the longest answer.
const ANSWER_BYTES: usize = 8192;

/// The kernel's facts about the way to an address over an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// It lies behind this Ethernet address.
    Behind(Mac),
    /// It lies behind a neighbour whose Ethernet address the kernel does not know (yet).
    Unknown,
    /// It is not reached that way: it is here, or elsewhere.
    Elsewhere,
}

/// Two sockets: one for requests, one for notifications of changes.
pub(crate) struct Neighbours {
    asking: OwnedFd,
    hearing: OwnedFd,
    interface: u32,
}

impl Neighbours {
    pub(crate) fn open(interface: u32) -> Result<Neighbours, Errno> {
        Ok(Neighbours { asking: open(0)?, hearing: open(GROUPS)?, interface })
    }

    /// Readable when something has changed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.hearing.as_fd()
    }

    pub(crate) fn sockets(&self) -> [&OwnedFd; 2] {
        [&self.asking, &self.hearing]
    }

    /// Whether anything has changed since the last call.
    pub(crate) fn changed(&self) -> bool {
        let mut buffer = [0; ANSWER_BYTES];
        let mut changed = false;
        loop {
            match recv(self.hearing.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => changed = true,
                // More has changed than the socket holds.
                Err(nix::errno::Errno::ENOBUFS) => changed = true,
                Err(_) => return changed,
            }
        }
    }

    /// The Ethernet address behind which `to` lies, over our interface. `None`: not that way, or not known (yet).
    pub(super) fn mac_towards(&self, to: IpAddr) -> Option<Mac> {
        match self.way(None, to) {
            Way::Behind(mac) => Some(mac),
            Way::Unknown | Way::Elsewhere => None,
        }
    }

    /// The route of frames to `to`, from the address `from` if given.
    pub(crate) fn way(&self, from: Option<IpAddr>, to: IpAddr) -> Way {
        let Some(hop) = self.next_hop(from, to) else { return Way::Elsewhere };
        self.neighbour(hop).ok().flatten().map_or(Way::Unknown, Way::Behind)
    }

    /// Whether the kernel answers questions for one neighbour (Linux 5.0).
    pub(crate) fn can_ask(&self, anybody: IpAddr) -> bool {
        !matches!(self.neighbour(anybody), Err(Errno(errno)) if errno != libc::ENOENT)
    }

    /// `None`: known, and not to be used.
    fn neighbour(&self, hop: IpAddr) -> Result<Option<Mac>, Errno> {
        let mut fixed = [0; FIXED_BYTES];
        fixed[0] = family(hop);
        fixed[4..8].copy_from_slice(&self.interface.to_ne_bytes());
        let answer = self.ask(GET_NEIGHBOUR, NEW_NEIGHBOUR, &fixed, &[(NEIGHBOUR_IP, &octets(hop))])?;
        let state = u16::from_ne_bytes([answer[8], answer[9]]);
        let mac = attribute(&answer, NEIGHBOUR_MAC).and_then(|mac| mac.try_into().ok());
        Ok(mac.filter(|_| state & USABLE != 0))
    }

    /// `to` itself, or the gateway towards it.
    fn next_hop(&self, from: Option<IpAddr>, to: IpAddr) -> Option<IpAddr> {
        let mut fixed = [0; FIXED_BYTES];
        fixed[0] = family(to);
        let to_octets = octets(to);
        fixed[1] = u8::try_from(to_octets.len() * 8).ok()?;
        let interface = self.interface.to_ne_bytes();
        let from_octets = from.map(octets).unwrap_or_default();
        let asked: [(u16, &[u8]); 3] =
            [(ROUTE_TO, &to_octets), (ROUTE_INTERFACE, &interface), (ROUTE_FROM, &from_octets)];
        let asked = if from.is_some() { &asked[..] } else { &asked[..2] };
        let answer = self.ask(GET_ROUTE, NEW_ROUTE, &fixed, asked).ok()?;
        if answer[7] != UNICAST || attribute(&answer, ROUTE_INTERFACE)? != interface {
            return None;
        }
        match attribute(&answer, ROUTE_GATEWAY) {
            None => Some(to),
            Some(ip) if ip.len() == 4 => <[u8; 4]>::try_from(ip).ok().map(IpAddr::from),
            Some(ip) => <[u8; 16]>::try_from(ip).ok().map(IpAddr::from),
        }
    }

    /// One question; the answer from its fixed part on, if it is of the kind expected. The kernel answers within the call that asks.
    pub(super) fn ask(
        &self,
        kind: u16,
        expected: u16,
        fixed: &[u8],
        attributes: &[(u16, &[u8])],
    ) -> Result<Vec<u8>, Errno> {
        const UNUSABLE: Errno = Errno(libc::EPROTO);
        let mut message = vec![0; HEADER_BYTES];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
        message.extend_from_slice(fixed);
        for (name, value) in attributes {
            let bytes = u16::try_from(4 + value.len()).map_err(|_| UNUSABLE)?;
            message.extend_from_slice(&bytes.to_ne_bytes());
            message.extend_from_slice(&name.to_ne_bytes());
            message.extend_from_slice(value);
        }
        let bytes = u32::try_from(message.len()).map_err(|_| UNUSABLE)?;
        message[..4].copy_from_slice(&bytes.to_ne_bytes());
        let failed = |error: nix::errno::Errno| Errno(error as i32);
        send(self.asking.as_raw_fd(), &message, MsgFlags::empty()).map_err(failed)?;
        let mut answer = vec![0; ANSWER_BYTES];
        let bytes = recv(self.asking.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).map_err(failed)?;
        answer.truncate(bytes);
        let (header, rest) = answer.split_at_checked(HEADER_BYTES).ok_or(UNUSABLE)?;
        match (u16::from_ne_bytes([header[4], header[5]]), rest.first_chunk::<4>()) {
            (kind, _) if kind == expected && rest.len() >= FIXED_BYTES => Ok(rest.to_vec()),
            (ERROR, Some(errno)) => Err(Errno(-i32::from_ne_bytes(*errno))),
            _ => Err(UNUSABLE),
        }
    }
}

fn open(groups: u32) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute);
    let fd = fd.map_err(|error| Errno(error as i32))?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(|error| Errno(error as i32))?;
    Ok(fd)
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The value of an attribute behind the fixed part.
fn attribute(answer: &[u8], name: u16) -> Option<&[u8]> {
    let mut rest = answer.get(FIXED_BYTES..)?;
    while let Some((head, _)) = rest.split_first_chunk::<4>() {
        let bytes = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..bytes)?;
        if u16::from_ne_bytes([head[2], head[3]]) == name {
            return Some(value);
        }
        rest = rest.get(bytes.next_multiple_of(4)..)?;
    }
    None
}
