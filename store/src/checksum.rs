//! The checksum of everything on disk: XXH3, 64 bits.
//!
//! It guards against accidents (rot, torn writes, wrong files), not against a person with write access to the
//! directory: such a person owns the job anyway. Why XXH3 and not a CRC: `docs/reference/image-format.md`.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Checksum of `bytes`.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// A checksum computed piece by piece; equal to [`checksum`] of the pieces put together.
#[derive(Clone, Default)]
pub struct Checksum(Xxh3);

impl Checksum {
    /// The checksum of nothing so far.
    #[must_use]
    pub fn new() -> Checksum {
        Checksum(Xxh3::new())
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The checksum of all pieces.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the reference implementation (`xxhsum -H3`): the crate must never come to mean another function.
    #[test]
    fn the_checksum_is_xxh3() {
        assert_eq!(checksum(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(checksum(b"a"), 0xe6c6_32b6_1e96_4e1f);
        assert_eq!(checksum(b"abc"), 0x78af_5f94_892f_3950);
    }

    #[test]
    fn pieces_give_the_same_as_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251).to_le_bytes()[0]).collect();
        for piece in [1, 63, 64, 240, 1024, 4999] {
            let mut sum = Checksum::new();
            bytes.chunks(piece).for_each(|piece| sum.update(piece));
            assert_eq!(sum.value(), checksum(&bytes), "{piece}");
        }
    }
}
