//! Which image a delta needs below it.

use ckpt_glue::{GenerationId, ImageDigest};
use transport::{Epoch, Life};

use super::Section;
use crate::error::ImageError;
use crate::kinds;

const VERSION: u16 = 1;
const BYTES: usize = 24;

/// The image of the same rank from which a delta takes the unchanged pages. It is a whole image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The generation that it was taken for.
    pub generation: GenerationId,
    /// Its content.
    pub digest: ImageDigest,
}

impl Base {
    /// The content of its section.
    #[must_use]
    pub fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&self.generation.life.counter.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.generation.epoch.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.life.nonce.to_le_bytes());
        bytes[16..].copy_from_slice(&self.digest.0.to_le_bytes());
        bytes
    }

    /// The section around [`Base::emit`]'s bytes.
    #[must_use]
    pub fn section(bytes: &[u8; BYTES]) -> Section<'_> {
        Section::new(kinds::BASE, VERSION, bytes)
    }

    /// Reads a section's content.
    pub fn parse(version: u16, bytes: &[u8]) -> Result<Base, ImageError> {
        let unreadable =
            || ImageError::SectionUnreadable { kind: kinds::BASE, version, bytes: bytes.len() as u64 };
        let bytes =
            <[u8; BYTES]>::try_from(bytes).ok().filter(|_| version == VERSION).ok_or_else(unreadable)?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
        let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
        let life = Life { counter: half(0), nonce: word(8) };
        Ok(Base { generation: GenerationId { life, epoch: Epoch(half(4)) }, digest: ImageDigest(word(16)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_read_back_and_nothing_else_is() {
        let life = Life { counter: 3, nonce: 0x1122_3344_5566_7788 };
        let base =
            Base { generation: GenerationId { life, epoch: Epoch(9) }, digest: ImageDigest(u64::MAX - 1) };
        let bytes = base.emit();
        assert_eq!(Base::parse(VERSION, &bytes), Ok(base));
        assert!(Base::parse(VERSION + 1, &bytes).is_err());
        assert!(Base::parse(VERSION, &bytes[1..]).is_err());
    }
}
