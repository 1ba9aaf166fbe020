//! How a UDP socket address is written as a [`RawAddress`].
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind of driver: 2 |
//! | 1 | 1 | version of this layout: 2 |
//! | 2 | 2 | UDP port, little-endian |
//! | 4 | 2 | MTU: bytes of the longest IP packet that the owner's interface takes, little-endian; 0: not known |
//! | 6 | 4 or 16 | IP address, in network order: 10 bytes in all are of IPv4, 26 of IPv6 |
//! | 22 | 4 | IPv6 only: scope id on the owner's host, little-endian |
//!
//! Short, because an address of libfabric has 64 bytes for those of all rails. An IPv4 address mapped into IPv6 is
//! written as IPv4. The owner sends its MTU because there is no other source: its interface drops longer frames without
//! any notice to the sender.

use core::fmt;
use core::str::FromStr;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use transport::RawAddress;

const KIND: u8 = 2;
const VERSION: u8 = 2;
/// Every IPv4 host takes packets of so many bytes (RFC 1122, section 3.3.2), so a smaller MTU counts as none:
/// frames that such a device does not take are lost.
const MTU_MIN: u16 = 576;

/// A socket address as drivers write it: `udp:10.0.0.1:4000`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpAddress(pub SocketAddr);

impl From<UdpAddress> for RawAddress {
    /// With an MTU that is not known.
    fn from(address: UdpAddress) -> RawAddress {
        address.with_mtu(None)
    }
}

impl UdpAddress {
    /// As a rail writes it whose interface has this MTU, in bytes.
    pub(super) fn with_mtu(self, mtu: Option<usize>) -> RawAddress {
        let UdpAddress(address) = self;
        // No IP packet is longer; the loopback's MTU is.
        let mtu = mtu.map_or(0, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        let mut bytes = [0u8; 26];
        bytes[0] = KIND;
        bytes[1] = VERSION;
        bytes[2..4].copy_from_slice(&address.port().to_le_bytes());
        bytes[4..6].copy_from_slice(&mtu.to_le_bytes());
        let len = match address.ip().to_canonical() {
            IpAddr::V4(ip) => {
                bytes[6..10].copy_from_slice(&ip.octets());
                10
            }
            IpAddr::V6(ip) => {
                bytes[6..22].copy_from_slice(&ip.octets());
                bytes[22..].copy_from_slice(&scope_of(address).to_le_bytes());
                26
            }
        };
        RawAddress::new(&bytes[..len]).unwrap_or(RawAddress::NONE)
    }

    /// The MTU that stands in a rail's address, in bytes; `None`: not known.
    pub(super) fn mtu_in(raw: &RawAddress) -> Option<usize> {
        let [KIND, VERSION, _, _, low, high, ..] = raw.as_bytes() else { return None };
        let mtu = u16::from_le_bytes([*low, *high]);
        (mtu >= MTU_MIN).then_some(mtu.into())
    }
}

impl TryFrom<&RawAddress> for UdpAddress {
    /// The bytes are not a UDP address of a version that this driver knows.
    type Error = NotUdp;

    fn try_from(raw: &RawAddress) -> Result<UdpAddress, NotUdp> {
        let [KIND, VERSION, low, high, _, _, ip @ ..] = raw.as_bytes() else { return Err(NotUdp) };
        let port = u16::from_le_bytes([*low, *high]);
        let address = match ip.len() {
            4 => {
                let octets: [u8; 4] = ip.try_into().map_err(|_| NotUdp)?;
                SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(octets), port))
            }
            20 => {
                let octets: [u8; 16] = ip[..16].try_into().map_err(|_| NotUdp)?;
                let scope = u32::from_le_bytes(ip[16..].try_into().map_err(|_| NotUdp)?);
                SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope))
            }
            _ => return Err(NotUdp),
        };
        Ok(UdpAddress(address))
    }
}

/// Bytes that are no UDP address of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotUdp;

impl fmt::Display for UdpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp:{}", self.0)
    }
}

impl FromStr for UdpAddress {
    type Err = AddrParseError;

    /// Reads the output of `Display`; the `udp:` may be missing.
    fn from_str(text: &str) -> Result<UdpAddress, AddrParseError> {
        text.strip_prefix("udp:").unwrap_or(text).parse().map(UdpAddress)
    }
}

/// `address` with another IP; the scope is kept.
pub(super) fn with_ip(address: SocketAddr, ip: IpAddr) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, address.port())),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, address.port(), 0, scope_of(address))),
    }
}

/// Number of the interface that a link-local IPv6 address belongs to; 0: none.
pub(super) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str) -> String {
        let raw = RawAddress::from(text.parse::<UdpAddress>().expect("an address"));
        UdpAddress::try_from(&raw).expect("own encoding").to_string()
    }

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["udp:127.0.0.1:4000", "udp:255.255.255.255:65535", "udp:[::1]:1", "udp:[fe80::1%3]:9"] {
            assert_eq!(round_trip(text), text);
        }
        assert_eq!(round_trip("[::ffff:10.0.0.1]:80"), "udp:10.0.0.1:80");
    }

    #[test]
    fn the_layout_is_fixed() {
        let raw = RawAddress::from(UdpAddress("10.1.2.3:4660".parse().expect("an address")));
        assert_eq!(raw.as_bytes(), [2, 2, 0x34, 0x12, 0, 0, 10, 1, 2, 3]);
    }

    #[test]
    fn an_mtu_comes_along() {
        let address = UdpAddress("10.1.2.3:4660".parse().expect("an address"));
        for (mtu, found) in [
            (None, None),
            (Some(9000), Some(9000)),
            (Some(65_536), Some(65_535)),
            (Some(576), Some(576)),
            (Some(575), None),
        ] {
            let raw = address.with_mtu(mtu);
            assert_eq!((UdpAddress::mtu_in(&raw), UdpAddress::try_from(&raw)), (found, Ok(address)));
        }
        assert_eq!(UdpAddress::mtu_in(&RawAddress::NONE), None);
    }

    #[test]
    fn other_encodings_are_refused() {
        let good = RawAddress::from(UdpAddress("[::1]:7".parse().expect("an address")));
        for damage in 0..2 {
            let mut bytes = good.as_bytes().to_vec();
            bytes[damage] ^= 0x40;
            let raw = RawAddress::new(&bytes).expect("short enough");
            assert_eq!(UdpAddress::try_from(&raw), Err(NotUdp));
        }
        // As many bytes as an IPv4 address has are one.
        for len in (0..good.as_bytes().len()).filter(|len| *len != 10) {
            let raw = RawAddress::new(&good.as_bytes()[..len]).expect("short enough");
            assert_eq!(UdpAddress::try_from(&raw), Err(NotUdp));
        }
    }
}
