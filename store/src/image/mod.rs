//! One image file: the saved state of one rank. Byte tables: `docs/reference/image-format.md`.
//!
//! ```text
//! | header, 64 bytes | section 0 | zeros | section 1 | ... | table, 48 bytes per section | checksum of the table |
//! ```
//!
//! The table stands at the end, so that a process of many gigabytes is written in one pass, checksummed on the way;
//! the header is written last, so that a file whose writer died is known by a header of zeros.

mod base;
mod exited;
pub mod layout;
mod parse;
mod reader;
pub mod seal;
pub(crate) mod writer;

use ckpt_glue::{GenerationId, ImageDigest};
use transport::{Epoch, JobId, Life, Rank};

pub use base::Base;
pub use exited::Exited;
pub use layout::{Entry, Header};
pub use parse::{ParsedImage, parse_image};
pub use reader::ImageReader;
pub use seal::{ImageKey, SectionSeal};
pub use writer::{ImageWriter, encode_encrypted_image, encode_image};

use crate::error::ImageError;

/// Whose state an image is, and of which instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The job.
    pub job: JobId,
    /// The life in which the cut was taken.
    pub life: Life,
    /// The cut.
    pub epoch: Epoch,
    /// The rank.
    pub rank: Rank,
}

impl Identity {
    /// The generation the image belongs to.
    #[must_use]
    pub fn generation(&self) -> GenerationId {
        GenerationId { life: self.life, epoch: self.epoch }
    }

    /// `Ok` if `found` is this identity, else the first difference.
    pub fn check(&self, found: &Identity) -> Result<(), ImageError> {
        if found.job != self.job {
            return Err(ImageError::WrongJob { expected: self.job, found: found.job });
        }
        if found.life != self.life {
            return Err(ImageError::WrongLife { expected: self.life, found: found.life });
        }
        if found.epoch != self.epoch {
            return Err(ImageError::WrongEpoch { expected: self.epoch, found: found.epoch });
        }
        if found.rank != self.rank {
            return Err(ImageError::WrongRank { expected: self.rank, found: found.rank });
        }
        Ok(())
    }
}

/// One section to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its kind: [`crate::kinds`].
    pub kind: u32,
    /// Version of its content, counted by the crate that makes it.
    pub version: u16,
    /// Which one of its kind: a region, a port. 0 where there is only one.
    pub id: u64,
    /// Its content.
    pub bytes: &'a [u8],
}

impl<'a> Section<'a> {
    /// The only section of its kind.
    #[must_use]
    pub fn new(kind: u32, version: u16, bytes: &'a [u8]) -> Section<'a> {
        Section { kind, version, id: 0, bytes }
    }

    /// Section `id` of its kind.
    #[must_use]
    pub fn with_id(self, id: u64) -> Section<'a> {
        Section { id, ..self }
    }
}

/// How many sections of one kind an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindSummary {
    /// The kind.
    pub kind: u32,
    /// Sections of it.
    pub sections: u32,
    /// Their bytes together.
    pub bytes: u64,
}

/// The manifest's data of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSummary {
    /// Names its content.
    pub digest: ImageDigest,
    /// Length of the file.
    pub bytes: u64,
    /// Its sections, by rising kind.
    pub kinds: Vec<KindSummary>,
}

impl ImageSummary {
    fn of(header: &Header, entries: &[Entry], digest: ImageDigest) -> ImageSummary {
        let mut kinds = std::collections::BTreeMap::new();
        for entry in entries {
            let (sections, bytes) = kinds.entry(entry.kind).or_insert((0u32, 0u64));
            *sections += 1;
            *bytes += entry.bytes;
        }
        let summary = |(kind, (sections, bytes))| KindSummary { kind, sections, bytes };
        ImageSummary { digest, bytes: header.total_bytes, kinds: kinds.into_iter().map(summary).collect() }
    }
}
