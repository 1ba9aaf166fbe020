//! The answer to an RTS: a receive matched, send the payload.
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | operation | of the sender, as announced |
//! | 8 | 8 | total | bytes wanted: less than announced where the receive is shorter |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, short};
use crate::ids::OpId;

pub(super) const BYTES: usize = 16;

/// Permission to send the payload of one announced message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cts {
    /// Operation that was announced.
    pub operation: OpId,
    /// Bytes wanted, at most the announced ones.
    pub total: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    operation: U64,
    total: U64,
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Cts {
    pub(super) fn parse(bytes: &[u8]) -> Result<Cts, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        Ok(Cts { operation: OpId(raw.operation.get()), total: raw.total.get() })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        let raw = Raw { operation: U64::new(self.operation.0), total: U64::new(self.total) };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        BYTES
    }
}
