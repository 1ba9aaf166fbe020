//! An endpoint's address as it is written for the interface: its identity, and its places now.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | magic: `S` |
//! | 1 | 1 | version of this layout: 2 |
//! | 2 | 8 | port id, little-endian: the identity, which survives restart and relocation |
//! | 10 | 1, n | length and bytes of the address on the first rail, in its driver's encoding |
//! | .. | 1, n | likewise for further rails, up to the end; a length of 0 ends the list |
//!
//! All addresses have 64 bytes, the rest is zero: MPI libraries take no more. Those of two rails find room, also of shared memory (24) and RDMA (28).

use std::net::{IpAddr, SocketAddr};

use drivers::udp::UdpAddress;
use transport::{PortId, RawAddress};

/// Bytes of an address.
pub(crate) const ADDRESS_BYTES: usize = 64;

const MAGIC: u8 = b'S';
const VERSION: u8 = 2;
const RAILS_AT: usize = 10;

/// An endpoint: its identity, and its places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) port: PortId,
    pub(crate) rails: Vec<RawAddress>,
}

impl Address {
    pub(crate) fn emit(&self) -> [u8; ADDRESS_BYTES] {
        let mut out = [0; ADDRESS_BYTES];
        out[..2].copy_from_slice(&[MAGIC, VERSION]);
        out[2..RAILS_AT].copy_from_slice(&self.port.0.to_le_bytes());
        let mut at = RAILS_AT;
        for rail in &self.rails {
            let bytes = rail.as_bytes();
            // A rail that is dead or was taken away is nowhere.
            if bytes.is_empty() || at + 1 + bytes.len() > ADDRESS_BYTES {
                continue;
            }
            out[at] = rail.len();
            out[at + 1..at + 1 + bytes.len()].copy_from_slice(bytes);
            at += 1 + bytes.len();
        }
        out
    }

    /// `None`: not an address of ours, or of another version.
    pub(crate) fn parse(bytes: &[u8; ADDRESS_BYTES]) -> Option<Address> {
        if bytes[..2] != [MAGIC, VERSION] {
            return None;
        }
        let port = PortId(u64::from_le_bytes(bytes[2..RAILS_AT].try_into().ok()?));
        let mut rails = Vec::new();
        let mut rest = &bytes[RAILS_AT..];
        while let [length, tail @ ..] = rest
            && *length > 0
        {
            rails.push(RawAddress::new(tail.get(..usize::from(*length))?)?);
            rest = &tail[usize::from(*length)..];
        }
        Some(Address { port, rails })
    }

    /// The address of an endpoint that was opened at a known place, for callers that know only the place.
    pub(crate) fn at_place(place: SocketAddr) -> Address {
        let place = SocketAddr::new(canonical(place.ip()), place.port());
        Address { port: port_at(place), rails: vec![RawAddress::from(UdpAddress(place))] }
    }

    /// Where the endpoint is found on its first rail that is a UDP socket.
    pub(crate) fn place(&self) -> Option<SocketAddr> {
        self.rails.iter().find_map(|rail| UdpAddress::try_from(rail).ok()).map(|address| address.0)
    }
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "fi_addr_stillwire://{:016x}", self.port.0)?;
        match self.place() {
            Some(place) => write!(f, "@{place}"),
            None => Ok(()),
        }
    }
}

/// The top bits of the id of a port that was opened at a known place; no port with a random id has them.
const AT_PLACE: u64 = 0b10 << 62;

/// The id of a port that a person names by its place.
pub(crate) fn port_at(place: SocketAddr) -> PortId {
    let ip = match canonical(place.ip()) {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => xxhash_rust::xxh3::xxh3_64(&ip.octets()) & 0xffff_ffff_ffff,
    };
    PortId(AT_PLACE | (ip << 16 & !(0b11 << 62)) | u64::from(place.port()))
}

/// The id of a port that was opened at no known place.
pub(crate) fn random_port() -> PortId {
    PortId(getrandom::u64().unwrap_or_else(|_| fallback_random()) & !(0b11 << 62) | 0b01 << 62)
}

/// Without the kernel's random numbers: time, process and a counter, which do not repeat within a job either.
fn fallback_random() -> u64 {
    static COUNT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    let count = COUNT.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    let text = format!("{time} {} {count}", std::process::id());
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// One spelling for all addresses of this host.
pub(crate) fn canonical(ip: IpAddr) -> IpAddr {
    let ip = ip.to_canonical();
    match ip {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_unspecified() => {
            IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)
        }
        IpAddr::V6(v6) if v6.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        _ => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(places: &[&str]) -> Address {
        let rails = places.iter().map(|place| RawAddress::from(UdpAddress(place.parse().unwrap()))).collect();
        Address { port: PortId(0x0102_0304_0506_0708), rails }
    }

    #[test]
    fn what_is_written_is_read() {
        for address in [address(&[]), address(&["10.1.2.3:4"]), address(&["[::1]:7", "127.0.0.1:65535"])] {
            assert_eq!(Address::parse(&address.emit()), Some(address));
        }
    }

    /// Addresses in shared memory, and others.
    #[test]
    fn every_rail_finds_room() {
        let shm = drivers::shm::ShmDriver::open(&drivers::shm::ShmConfig::default()).unwrap();
        let udp = UdpAddress("[fe80::1%7]:4000".parse().unwrap());
        let rails = vec![drivers::Driver::local_address(&shm), RawAddress::from(udp)];
        let address = Address { port: PortId(1), rails };
        assert_eq!(Address::parse(&address.emit()), Some(address.clone()));
        let without = Address { port: PortId(1), rails: vec![address.rails[0], address.rails[1]] };
        let with_none =
            Address { rails: vec![address.rails[0], RawAddress::NONE, address.rails[1]], ..address };
        assert_eq!(Address::parse(&with_none.emit()), Some(without));
        // That of a queue pair is as long as a driver's can be.
        let longest = RawAddress::new(&[4; 28]).unwrap();
        assert_eq!(RawAddress::new(&[4; 29]), None);
        let rails = vec![drivers::Driver::local_address(&shm), longest];
        let address = Address { port: PortId(1), rails };
        assert_eq!(Address::parse(&address.emit()), Some(address));
    }

    #[test]
    fn the_layout_is_fixed() {
        let bytes = address(&["10.1.2.3:4660"]).emit();
        assert_eq!(bytes[..10], *b"S\x02\x08\x07\x06\x05\x04\x03\x02\x01");
        assert_eq!(bytes[10..22], [10, 2, 2, 0x34, 0x12, 0, 0, 10, 1, 2, 3, 0]);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let mut bytes = address(&["10.1.2.3:4"]).emit();
        bytes[1] = 3;
        assert_eq!(Address::parse(&bytes), None);
        let mut bytes = address(&["10.1.2.3:4"]).emit();
        bytes[10] = 60;
        assert_eq!(Address::parse(&bytes), None, "a rail behind the end");
        assert_eq!(Address::parse(&[0; ADDRESS_BYTES]), None);
    }

    #[test]
    fn a_place_gives_the_same_id_however_it_is_spelled() {
        let id = |text: &str| Address::at_place(text.parse().unwrap());
        assert_eq!(id("127.0.0.1:7000"), id("127.0.1.1:7000"));
        assert_eq!(id("[::ffff:10.0.0.1]:5"), id("10.0.0.1:5"));
        assert_ne!(id("10.0.0.1:5").port, id("10.0.0.2:5").port);
        assert_ne!(random_port().0 >> 62, id("10.0.0.1:5").port.0 >> 62);
    }
}
