//! The sender and its address: in the first frames of a link, until the peer has sent its link index.
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | from | port that sends |
//! | 8 | 8 | to | port that is meant; a frame for another port is dropped |
//! | 16 | 4 | link | index of the link at the sender: the answer carries it |
//! | 20 | 4 | reserved | zero |
//! | 24 | 1 | address length | at most 28 |
//! | 25 | 3 | reserved | zero |
//! | 28 | 28 | address | of the sending port on the rail that this frame came over; zero behind its length |

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, reserved, short};
use crate::ids::{LinkIndex, PortId, RAW_ADDRESS_BYTES, RawAddress};

pub(super) const BYTES: usize = 56;

/// First contact: identities and the way back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contact {
    /// Port that sends.
    pub from: PortId,
    /// Port that is meant.
    pub to: PortId,
    /// Index of the link at the sender.
    pub link: LinkIndex,
    /// The sender's own address on this rail.
    pub address: RawAddress,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    from: U64,
    to: U64,
    link: U32,
    reserved: U32,
    address_bytes: u8,
    padding: [u8; 3],
    address: [u8; RAW_ADDRESS_BYTES],
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Contact {
    pub(super) fn parse(bytes: &[u8]) -> Result<Contact, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        reserved(raw.reserved.as_bytes())?;
        reserved(&raw.padding)?;
        let address = raw.address.get(..usize::from(raw.address_bytes)).and_then(RawAddress::new).ok_or(
            Malformed::Field {
                field: "address length",
                found: u64::from(raw.address_bytes),
                max: RAW_ADDRESS_BYTES as u64,
            },
        )?;
        reserved(&raw.address[address.as_bytes().len()..])?;
        Ok(Contact {
            from: PortId(raw.from.get()),
            to: PortId(raw.to.get()),
            link: LinkIndex(raw.link.get()),
            address,
        })
    }

    pub(crate) fn emit(&self, out: &mut [u8]) -> usize {
        let mut address = [0; RAW_ADDRESS_BYTES];
        let bytes = self.address.as_bytes();
        address[..bytes.len()].copy_from_slice(bytes);
        let raw = Raw {
            from: U64::new(self.from.0),
            to: U64::new(self.to.0),
            link: U32::new(self.link.0),
            reserved: U32::ZERO,
            address_bytes: self.address.len(),
            padding: [0; 3],
            address,
        };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        BYTES
    }
}
