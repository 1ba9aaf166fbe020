//! A message whose payload stays with its sender until a receive matches (rendezvous).
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | operation | of the sender |
//! | 8 | 8 | tag | receives match on it |
//! | 16 | 8 | data | user data beside the payload |
//! | 24 | 8 | total | bytes of the whole message |
//! | 32 | 1 | space | matching space |
//! | 33 | 7 | place | where the payload lies in the sender's memory, within a host (R11); 0: not given |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, short};
use crate::ids::OpId;
use crate::matching::Space;

pub(super) const BYTES: usize = 40;

/// Envelope of a message that is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rts {
    /// Operation of the sender, by which the CTS and the data name it.
    pub operation: OpId,
    /// The key that receives match.
    pub tag: u64,
    /// User data beside the payload.
    pub data: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// Matching space.
    pub space: Space,
    /// Where the payload lies in the sender's memory, for a receiver on its host; 0: not given. Below [`PLACE_END`].
    pub place: u64,
}

/// No place lies here or beyond: it has seven bytes, and user memory ends before on every machine.
pub const PLACE_END: u64 = 1 << 56;

/// Where in the body the place lies.
const PLACE_AT: usize = 33;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    operation: U64,
    tag: U64,
    data: U64,
    total: U64,
    space: u8,
    place: [u8; 7],
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Rts {
    pub(super) fn parse(bytes: &[u8]) -> Result<Rts, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        let mut place = [0; 8];
        place[..7].copy_from_slice(&raw.place);
        Ok(Rts {
            operation: OpId(raw.operation.get()),
            tag: raw.tag.get(),
            data: raw.data.get(),
            total: raw.total.get(),
            space: Space(raw.space),
            place: u64::from_le_bytes(place),
        })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        let raw = Raw {
            operation: U64::new(self.operation.0),
            tag: U64::new(self.tag),
            data: U64::new(self.data),
            total: U64::new(self.total),
            space: self.space.0,
            place: [0; 7],
        };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        write_place(out, self.place);
        BYTES
    }
}

/// Writes where the payload lies into the body of an RTS that has been written already. An RTS without room for it
/// stays unchanged.
pub fn write_place(body: &mut [u8], place: u64) {
    let reported = if place < PLACE_END { place } else { 0 };
    body[PLACE_AT..BYTES].copy_from_slice(&reported.to_le_bytes()[..BYTES - PLACE_AT]);
}
