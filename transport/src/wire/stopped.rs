//! The sender is about to pause: soft state that saves resends, nothing depends on it.
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | pause | number of the pause, counted up by the port |
//! | 8 | 8 | expected | length of the pause in nanoseconds |

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, short};

pub(super) const BYTES: usize = 16;

/// Hint that the sender is about to pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// Number of the pause; a hint that is not newer than the last is ignored.
    pub pause: u64,
    /// Expected length of the pause in nanoseconds.
    pub expected_ns: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    pause: U64,
    expected_ns: U64,
}

const _: () = assert!(size_of::<Raw>() == BYTES);

impl Stopped {
    pub(super) fn parse(bytes: &[u8]) -> Result<Stopped, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, BYTES))?;
        Ok(Stopped { pause: raw.pause.get(), expected_ns: raw.expected_ns.get() })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        let raw = Raw { pause: U64::new(self.pause), expected_ns: U64::new(self.expected_ns) };
        out[..BYTES].copy_from_slice(raw.as_bytes());
        BYTES
    }
}
