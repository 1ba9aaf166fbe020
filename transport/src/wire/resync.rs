//! After a restart: "I have everything before this number" (R10).
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | expected | number of the next frame that the sender expects, all 64 bits |
//! | 8 | 8 | next | number of the next frame that the sender will send |
//! | 16 | 8 | heard | 1 if the sender has the receiver's own resync, else 0 |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, short};

pub(super) const BYTES: usize = 24;

/// The counters of one end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resync {
    /// Number of the next frame that the sender expects.
    pub expected: u64,
    /// Number of the next frame that the sender will send.
    pub next: u64,
    /// 1 once the sender has heard the receiver in this life: no answer is needed.
    pub heard: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    expected: U64,
    next: U64,
    heard: U64,
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Resync {
    pub(super) fn parse(bytes: &[u8]) -> Result<Resync, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        Ok(Resync { expected: raw.expected.get(), next: raw.next.get(), heard: raw.heard.get() })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        let raw =
            Raw { expected: U64::new(self.expected), next: U64::new(self.next), heard: U64::new(self.heard) };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        BYTES
    }
}
