//! A copied message: its first or only fragment. The payload follows; [`super::Body::More`] carries the rest.
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | tag | receives match on it |
//! | 8 | 8 | data | user data beside the payload |
//! | 16 | 8 | total | bytes of the whole message |
//! | 24 | 1 | space | matching space |
//! | 25 | 7 | reserved | zero |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, reserved, short};
use crate::matching::Space;

pub(super) const BYTES: usize = 32;

/// Envelope of a copied message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eager {
    /// The key that receives match.
    pub tag: u64,
    /// User data beside the payload.
    pub data: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// Matching space.
    pub space: Space,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Raw {
    tag: U64,
    data: U64,
    pub(super) total: U64,
    space: u8,
    reserved: [u8; 7],
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Raw {
    /// Zero if nothing stands where nothing may.
    #[inline]
    pub(super) fn odd(&self) -> u64 {
        let [a, b, c, d, e, f, g] = self.reserved;
        u64::from_le_bytes([0, a, b, c, d, e, f, g])
    }

    #[inline]
    pub(super) fn value(&self) -> Eager {
        Eager {
            tag: self.tag.get(),
            data: self.data.get(),
            total: self.total.get(),
            space: Space(self.space),
        }
    }
}

impl Eager {
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<Eager, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        reserved(&raw.reserved)?;
        Ok(raw.value())
    }

    /// The body as numbers whose bytes in little-endian order are its bytes.
    #[inline]
    pub(crate) fn words(&self) -> [u64; BYTES / 8] {
        [self.tag, self.data, self.total, u64::from(self.space.0)]
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        let raw = Raw {
            tag: U64::new(self.tag),
            data: U64::new(self.data),
            total: U64::new(self.total),
            space: self.space.0,
            reserved: [0; 7],
        };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        BYTES
    }
}
