//! The table of addresses, and which of them have a connected send socket.

use std::net::SocketAddr;

use socket2::{SockAddr, Socket};
use transport::{AddressId, RawAddress};

use super::address::{UdpAddress, scope_of, with_ip};
use super::{UdpConfig, socket};
use crate::addresses::Addresses;
use crate::driver::Path;
use crate::error::DriverError;
use crate::limits::{CONNECTED_MAX, DATAGRAM_BYTES_SAFE, PROMOTE_SENDS};

/// One resolved address.
pub(super) struct Peer {
    /// For sending through the receive socket.
    pub(super) name: SockAddr,
    /// The shorter limit of the route and its own interface.
    pub(super) path: Path,
    /// Bytes of the longest frame that the path takes, as the kernel reports.
    way_bytes_max: usize,
    /// Bytes of the longest frame that its own interface takes, as it reports.
    taken_bytes_max: usize,
    pub(super) connected: Option<Connected>,
    /// Sends by name since the peer last had a connected socket or was refused one.
    sent_by_name: u32,
    /// Value of the table's use counter at the last frame.
    last_use: u64,
}

/// A send socket of one peer's own.
pub(super) struct Connected {
    pub(super) socket: Socket,
    /// It can send merged frames, as far as known.
    pub(super) segment: bool,
}

/// All resolved addresses.
pub(super) struct Peers {
    /// Where the receive socket is bound.
    own: SocketAddr,
    frame_bytes_max: usize,
    connected_max: usize,
    socket_bytes: usize,
    segment: bool,
    table: Addresses<SocketAddr, Peer>,
    /// Ids with a connected socket; at most `connected_max`.
    connected: Vec<AddressId>,
    uses: u64,
}

impl Peers {
    pub(super) fn new(own: SocketAddr, config: &UdpConfig, segment: bool) -> Peers {
        Peers {
            own,
            frame_bytes_max: config.frame_bytes_max,
            connected_max: config.connected_max.min(CONNECTED_MAX),
            socket_bytes: config.socket_bytes,
            segment,
            table: Addresses::new(),
            connected: Vec::new(),
            uses: 0,
        }
    }

    /// The sockets of peers that have one of their own.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.table.iter().filter_map(|peer| peer.connected.as_ref()).map(|own| &own.socket)
    }

    /// No path resolved from now on takes longer frames.
    pub(super) fn limit_frames(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = self.frame_bytes_max.min(frame_bytes_max);
    }

    pub(super) fn resolve(&mut self, raw: &RawAddress) -> Result<AddressId, DriverError> {
        let unusable = |expected| DriverError::AddressUnusable { address: *raw, expected };
        let UdpAddress(written) =
            UdpAddress::try_from(raw).map_err(|_| unusable("a UDP address, version 2, IPv4 or IPv6"))?;
        let address = self.localised(written);
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(unusable("an IP address and UDP port that can be sent to"));
        }
        let family = if self.own.is_ipv4() { "an IPv4 address" } else { "an IPv6 address" };
        let name = socket::name_for(self.own, address).ok_or_else(|| unusable(family))?;
        let mtu = UdpAddress::mtu_in(raw);
        let taken_bytes_max = mtu.map_or(usize::MAX, |mtu| socket::frame_bytes_in(mtu, address));
        if let Some(known) = self.table.id(&address) {
            // A peer known by its place alone has given more by now.
            if let Some(peer) = self.table.get_mut(known).filter(|_| mtu.is_some()) {
                peer.taken_bytes_max = taken_bytes_max;
                peer.settle();
            }
            return Ok(known);
        }
        self.table.check_room()?;
        let path = self.examine(address);
        let has_way = path.is_some();
        let unknown = Path { frame_bytes_max: DATAGRAM_BYTES_SAFE, on_host: false };
        let path = path.unwrap_or(unknown);
        let way_bytes_max = path.frame_bytes_max;
        let mut peer = Peer {
            name,
            path,
            way_bytes_max,
            taken_bytes_max,
            connected: None,
            sent_by_name: 0,
            last_use: 0,
        };
        peer.settle();
        if has_way && self.connected.len() < self.connected_max {
            peer.connected = self.connect(address);
        }
        let is_connected = peer.connected.is_some();
        let id = self.table.insert(address, peer)?;
        if is_connected {
            self.connected.push(id);
        }
        Ok(id)
    }

    /// A link-local address names an interface by its number *on the owner's host*; here it is the rail's own interface.
    fn localised(&self, written: SocketAddr) -> SocketAddr {
        match written {
            SocketAddr::V6(mut address) if address.ip().is_unicast_link_local() => {
                address.set_scope_id(scope_of(self.own));
                SocketAddr::V6(address)
            }
            _ => with_ip(written, written.ip().to_canonical()),
        }
    }

    pub(super) fn forget(&mut self, id: AddressId) {
        if self.table.remove(id).is_some() {
            self.connected.retain(|connected| *connected != id);
        }
    }

    pub(super) fn get(&self, id: AddressId) -> Option<&Peer> {
        self.table.get(id)
    }

    pub(super) fn path(&self, id: AddressId) -> Option<Path> {
        self.get(id).map(|peer| peer.path)
    }

    /// The facts about the path to `peer`; `None` if there is none now.
    pub(super) fn examine(&self, peer: SocketAddr) -> Option<Path> {
        let mut path = socket::path(&socket::open_connected(self.own, peer).ok()?, peer);
        path.frame_bytes_max = path.frame_bytes_max.min(self.frame_bytes_max);
        if !path.on_host {
            // Our own source address is fixed; the kernel's choice shows whether the peer's is on this host too.
            let unbound = with_ip(peer, unspecified(peer));
            path.on_host =
                socket::open_connected(unbound, peer).is_ok_and(|socket| socket::path(&socket, peer).on_host);
        }
        Some(path)
    }

    fn connect(&self, address: SocketAddr) -> Option<Connected> {
        let socket = socket::open_connected(self.own, address).ok()?;
        socket::enlarge_buffers(&socket, self.socket_bytes);
        Some(Connected { socket, segment: self.segment })
    }

    /// The peer's own socket, if it has one and its path takes `frame_bytes`; counts as a use.
    pub(super) fn socket_for(&mut self, id: AddressId, frame_bytes: usize) -> Option<&Socket> {
        self.uses += 1;
        let uses = self.uses;
        let peer = self.table.get_mut(id)?;
        peer.last_use = uses;
        let connected = peer.connected.as_ref()?;
        (frame_bytes <= peer.path.frame_bytes_max).then_some(&connected.socket)
    }

    /// Called before frames go to `id`: a peer that is used much gets the connected socket of one that is not.
    pub(super) fn before_send(&mut self, id: AddressId) {
        self.uses += 1;
        let (uses, connected_max) = (self.uses, self.connected_max);
        let Some(peer) = self.table.get_mut(id) else { return };
        peer.last_use = uses;
        if peer.connected.is_some() {
            return;
        }
        peer.sent_by_name += 1;
        if peer.sent_by_name < PROMOTE_SENDS || connected_max == 0 {
            return;
        }
        peer.sent_by_name = 0;
        if self.connected.len() >= connected_max {
            self.demote_least_recent();
        }
        if let Some(connected) = self.table.address(id).and_then(|address| self.connect(address)) {
            self.connected.push(id);
            if let Some(peer) = self.table.get_mut(id) {
                peer.connected = Some(connected);
            }
        }
    }

    fn demote_least_recent(&mut self) {
        let used = |id: &AddressId| self.get(*id).map_or(0, |peer| peer.last_use);
        let Some((at, id)) = self.connected.iter().enumerate().min_by_key(|(_, id)| used(id)) else {
            return;
        };
        let id = *id;
        self.connected.swap_remove(at);
        if let Some(peer) = self.table.get_mut(id) {
            peer.connected = None;
        }
    }

    /// A connected socket that fails is replaced after some frames by name.
    pub(super) fn disconnect(&mut self, id: AddressId) {
        self.connected.retain(|connected| *connected != id);
        if let Some(peer) = self.table.get_mut(id) {
            peer.connected = None;
        }
    }

    /// Merged frames were refused on the peer's own socket.
    pub(super) fn stop_segmenting(&mut self, id: AddressId) {
        let peer = self.table.get_mut(id);
        if let Some(connected) = peer.and_then(|peer| peer.connected.as_mut()) {
            connected.segment = false;
        }
    }

    /// A frame of `frame_bytes` was too long for the path: asks the kernel for the limit, and makes sure that it is lower.
    /// Returns the new limit.
    pub(super) fn shrink(&mut self, id: AddressId, frame_bytes: usize) -> usize {
        let Some(address) = self.table.address(id) else { return 0 };
        let asked = self.examine(address).map_or(DATAGRAM_BYTES_SAFE, |path| path.frame_bytes_max);
        // The kernel may know a limit that already excludes the frame; otherwise step down to the length that every
        // path takes, and below that byte by byte, so that a path never claims a length that was just refused.
        let below = if frame_bytes > DATAGRAM_BYTES_SAFE {
            DATAGRAM_BYTES_SAFE
        } else {
            frame_bytes.saturating_sub(1)
        };
        let limit = if asked < frame_bytes { asked } else { below };
        self.set_frame_bytes_max(id, limit);
        self.path(id).map_or(limit, |path| path.frame_bytes_max)
    }

    pub(super) fn set_frame_bytes_max(&mut self, id: AddressId, frame_bytes_max: usize) {
        if let Some(peer) = self.table.get_mut(id) {
            peer.way_bytes_max = frame_bytes_max;
            peer.settle();
        }
    }
}

impl Peer {
    /// Within the host no frame passes the interface that has the address.
    fn settle(&mut self) {
        let taken = if self.path.on_host { usize::MAX } else { self.taken_bytes_max };
        self.path.frame_bytes_max = self.way_bytes_max.min(taken);
    }
}

fn unspecified(family_of: SocketAddr) -> std::net::IpAddr {
    match family_of {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
