//! A piece of a granted payload. Idempotent by (operation, offset).
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | operation | of the sender, as announced |
//! | 8 | 8 | offset | of this piece in the payload |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, short};
use crate::ids::OpId;

pub(super) const BYTES: usize = 16;

/// Which piece of which payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Operation that was announced.
    pub operation: OpId,
    /// Offset of this piece in the payload, in bytes.
    pub offset: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    operation: U64,
    offset: U64,
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Data {
    pub(super) fn parse(bytes: &[u8]) -> Result<Data, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        Ok(Data { operation: OpId(raw.operation.get()), offset: raw.offset.get() })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        let raw = Raw { operation: U64::new(self.operation.0), offset: U64::new(self.offset) };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        BYTES
    }
}
