//! How the place of a segment is written as a [`RawAddress`].
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind of driver: 3 |
//! | 1 | 1 | version of this layout and of the segment's: 1 |
//! | 2 | 8 | host: boot, namespaces and user, as a hash |
//! | 10 | 4 | start of the owning process, clock ticks, the low half |
//! | 14 | 4 | its process id |
//! | 18 | 4 | its descriptor of the segment |
//! | 22 | 2 | which of its segments: descriptors are used again |
//!
//! Little-endian.

use transport::RawAddress;

use super::host::{Host, Process};

const KIND: u8 = 3;
const VERSION: u8 = 1;
const BYTES: usize = 24;

/// The kind of address, for messages.
pub(super) const EXPECTED: &str =
    "a shared-memory segment of this host, boot, user and process namespace, in layout 1";

/// Where a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SegmentAddress {
    pub(super) host: Host,
    pub(super) owner: Process,
    pub(super) descriptor: u32,
    pub(super) serial: u16,
}

impl SegmentAddress {
    pub(super) fn encode(&self) -> RawAddress {
        let mut bytes = [0; BYTES];
        bytes[0] = KIND;
        bytes[1] = VERSION;
        bytes[2..10].copy_from_slice(&self.host.0.to_le_bytes());
        bytes[10..14].copy_from_slice(&self.owner.start.to_le_bytes());
        bytes[14..18].copy_from_slice(&self.owner.pid.to_le_bytes());
        bytes[18..22].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.serial.to_le_bytes());
        RawAddress::new(&bytes).unwrap_or(RawAddress::NONE)
    }

    /// `None` if it is not an address of this driver.
    pub(super) fn decode(address: &RawAddress) -> Option<SegmentAddress> {
        let bytes: &[u8; BYTES] = address.as_bytes().try_into().ok()?;
        if bytes[..2] != [KIND, VERSION] {
            return None;
        }
        let (host, rest) = bytes[2..].split_first_chunk()?;
        let (start, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (descriptor, rest) = rest.split_first_chunk()?;
        let (serial, _) = rest.split_first_chunk()?;
        Some(SegmentAddress {
            host: Host(u64::from_le_bytes(*host)),
            owner: Process { pid: u32::from_le_bytes(*pid), start: u32::from_le_bytes(*start) },
            descriptor: u32::from_le_bytes(*descriptor),
            serial: u16::from_le_bytes(*serial),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was() {
        let place = SegmentAddress {
            host: Host(0x0123_4567_89ab_cdef),
            owner: Process { pid: 4_000_000, start: 1 << 31 },
            descriptor: 1023,
            serial: 7,
        };
        assert_eq!(SegmentAddress::decode(&place.encode()), Some(place));
        assert_eq!(SegmentAddress::decode(&RawAddress::NONE), None);
    }
}
