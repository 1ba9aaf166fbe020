//! Ethernet addresses of peers over RoCE. An address handle holds that of the neighbour behind which its peer lies, as the kernel knew it when the handle was made;
//! where it knows none, making a handle waits for the network. So neighbours are asked for before, and handles are made anew when they change.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::abi::Gid;
use crate::limits::VERBS_NEIGHBOUR_PATIENCE;
use crate::xdp::neighbours::{Neighbours, Way};

/// A port without a listener (RFC 863): a datagram to it makes the kernel resolve the neighbour, and is discarded.
const DISCARD_PORT: u16 = 9;

/// The kernel's tables, as far as they are those of the device's network interface.
pub(super) struct Ways {
    neighbours: Neighbours,
    own: IpAddr,
    asking: UdpSocket,
}

impl Ways {
    /// `None`: frames find their way without Ethernet addresses of neighbours, or the device's interface is not in this network namespace, or the kernel
    /// answers no such questions. Making handles may wait then.
    pub(super) fn open(own: Gid, interface: &str) -> Option<Ways> {
        let own = address_of(own)?;
        let addresses = nix::ifaddrs::getifaddrs().ok()?;
        let has_it = addresses.filter(|one| one.interface_name == interface).any(|one| {
            let Some(address) = one.address else { return false };
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))) == Some(own)
        });
        if !has_it {
            return None;
        }
        let index = nix::net::if_::if_nametoindex(interface).ok()?;
        let neighbours = Neighbours::open(index).ok().filter(|neighbours| neighbours.can_ask(own))?;
        let asking = UdpSocket::bind((own, 0)).ok()?;
        // Where the kernel does not let everybody do that, routes decide.
        let _ = setsockopt(&asking, sockopt::BindToDevice, &interface.into());
        asking.set_nonblocking(true).ok()?;
        Some(Ways { neighbours, own, asking })
    }

    /// Whether anything may have changed since the last call.
    pub(super) fn changed(&self) -> bool {
        self.neighbours.changed()
    }

    /// Known facts about the way to a peer. GIDs that are no IP addresses have their Ethernet address in them.
    pub(super) fn look(&self, to: Gid) -> Way {
        address_of(to).map_or(Way::Elsewhere, |to| self.neighbours.way(Some(self.own), to))
    }

    /// Has the kernel ask the network for the neighbour, or whether that has still the same address.
    pub(super) fn ask(&self, to: Gid) {
        if let Some(to) = address_of(to) {
            // A question that cannot be sent is dropped; the next frame tries again.
            let _ = self.asking.send_to(&[], (to, DISCARD_PORT));
        }
    }

    /// As [`Ways::look`]; a neighbour that is not known is asked for, and has a moment to answer.
    pub(super) fn find(&self, to: Gid) -> Way {
        let mut way = self.look(to);
        if way != Way::Unknown {
            return way;
        }
        self.ask(to);
        let until = Instant::now() + VERBS_NEIGHBOUR_PATIENCE;
        while way == Way::Unknown {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(left) = u8::try_from(left.as_micros().div_ceil(1000)) else { break };
            let mut watched = [PollFd::new(self.neighbours.fd(), PollFlags::POLLIN)];
            if left == 0 || poll(&mut watched, PollTimeout::from(left)) != Ok(1) {
                break;
            }
            // The caller looks up all others anew in any case: something has changed.
            let _ = self.neighbours.changed();
            way = self.look(to);
        }
        way
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let asking = self.asking.as_fd().as_raw_fd();
        self.neighbours.sockets().map(|socket| socket.as_raw_fd()).into_iter().chain([asking])
    }
}

/// The IP address that a GID of version 2 is.
fn address_of(gid: Gid) -> Option<IpAddr> {
    let address = Ipv6Addr::from(gid);
    match address.to_ipv4_mapped() {
        Some(v4) => Some(IpAddr::V4(v4)),
        None if address.is_unicast_link_local() => None,
        None => Some(IpAddr::V6(address)),
    }
}
