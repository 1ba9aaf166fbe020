//! How the address of a queue pair is written as a [`RawAddress`].
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind of driver: 4 |
//! | 1 | 1 | version of this layout: 1 |
//! | 2 | 1 | MTU of the port: 1 is 256 bytes, each further one doubles, 5 is 4096; plus 128 if it is one of InfiniBand that takes no frame without a route's header |
//! | 3 | 2 | LID, little-endian; 0 over Ethernet |
//! | 5 | 3 | number of the queue pair, little-endian |
//! | 8 | 4 | its key, little-endian |
//! | 12 | 16 | GID, in network order |

use core::fmt;
use std::net::Ipv6Addr;

use transport::RawAddress;

use super::abi::Gid;

const KIND: u8 = 4;
const VERSION: u8 = 1;

/// Largest code of an MTU.
const MTU_MAX: u8 = 5;
const NEEDS_ROUTE: u8 = 0x80;

/// Where a queue pair is reached: `verbs:GID/LID/NUMBER`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerbsAddress {
    pub(super) mtu: u8,
    /// A port of InfiniBand that shares its LID with others: the route distinguishes them.
    pub(super) needs_route: bool,
    pub(super) lid: u16,
    pub(super) number: u32,
    pub(super) key: u32,
    pub(super) gid: Gid,
}

impl VerbsAddress {
    /// Bytes of the largest frame that the queue pair's port takes.
    pub(super) fn frame_bytes_max(&self) -> usize {
        128 << self.mtu
    }

    /// Whether the port is one of an Ethernet device.
    pub(super) fn is_ethernet(&self) -> bool {
        self.lid == 0
    }

    /// Of a port of InfiniBand, the subnet in which its LID counts.
    pub(super) fn subnet(&self) -> &[u8] {
        &self.gid[..8]
    }

    /// The GID, which has the form of an IPv6 address.
    #[must_use]
    pub fn gid(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.gid)
    }
}

impl From<VerbsAddress> for RawAddress {
    fn from(address: VerbsAddress) -> RawAddress {
        let mut bytes = [0u8; 28];
        bytes[0] = KIND;
        bytes[1] = VERSION;
        bytes[2] = address.mtu | if address.needs_route { NEEDS_ROUTE } else { 0 };
        bytes[3..5].copy_from_slice(&address.lid.to_le_bytes());
        bytes[5..8].copy_from_slice(&address.number.to_le_bytes()[..3]);
        bytes[8..12].copy_from_slice(&address.key.to_le_bytes());
        bytes[12..].copy_from_slice(&address.gid);
        RawAddress::new(&bytes).unwrap_or(RawAddress::NONE)
    }
}

impl TryFrom<&RawAddress> for VerbsAddress {
    /// The bytes are not an address of a queue pair of a version that this driver knows.
    type Error = NotVerbs;

    fn try_from(raw: &RawAddress) -> Result<VerbsAddress, NotVerbs> {
        let [KIND, VERSION, port, rest @ ..] = raw.as_bytes() else { return Err(NotVerbs) };
        let (mtu, needs_route) = (port & !NEEDS_ROUTE, port & NEEDS_ROUTE != 0);
        if !(1..=MTU_MAX).contains(&mtu) {
            return Err(NotVerbs);
        }
        let [lid_low, lid_high, n0, n1, n2, k0, k1, k2, k3, gid @ ..] = rest else { return Err(NotVerbs) };
        Ok(VerbsAddress {
            mtu,
            needs_route,
            lid: u16::from_le_bytes([*lid_low, *lid_high]),
            number: u32::from_le_bytes([*n0, *n1, *n2, 0]),
            key: u32::from_le_bytes([*k0, *k1, *k2, *k3]),
            gid: gid.try_into().map_err(|_| NotVerbs)?,
        })
    }
}

/// Bytes that are no address of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotVerbs;

impl fmt::Display for VerbsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verbs:{}/{}/{}", self.gid(), self.lid, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_encoding() {
        let gid = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a09, 0x0001).octets();
        let (number, key) = (0x00de_adbe, 0x7654_3210);
        let address = VerbsAddress { mtu: 5, needs_route: false, lid: 0xabcd, number, key, gid };
        let raw = RawAddress::from(address);
        assert_eq!(VerbsAddress::try_from(&raw), Ok(address));
        let routed = VerbsAddress { needs_route: true, ..address };
        assert_eq!(VerbsAddress::try_from(&RawAddress::from(routed)), Ok(routed));
        assert_eq!(address.to_string(), "verbs:::ffff:10.9.0.1/43981/14593470");
        for mtu in [0, 6, 0x80, 0x86] {
            let mut bytes = raw.as_bytes().to_vec();
            bytes[2] = mtu;
            let raw = RawAddress::new(&bytes).expect("as long as before");
            assert_eq!(VerbsAddress::try_from(&raw), Err(NotVerbs), "an MTU that there is not");
        }
    }
}
