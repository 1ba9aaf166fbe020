//! An image that lies in memory as a whole.

use ckpt_glue::ImageDigest;

use super::layout::{ENTRY_BYTES, HEADER_BYTES, Header, TRAILER_BYTES, parse_table};
use super::{Entry, Identity, Section};
use crate::checksum::{Checksum, checksum};
use crate::error::ImageError;

/// A whole image, every byte of it checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedImage<'a> {
    /// Whose state it is.
    pub identity: Identity,
    /// Names its content.
    pub digest: ImageDigest,
    /// Whether they are encrypted: then their bytes are those that are stored.
    pub is_encrypted: bool,
    /// Its sections in order.
    pub sections: Vec<Section<'a>>,
}

/// Digest of an image: over header and table, checksums included.
pub(super) fn digest(header: &[u8; HEADER_BYTES], table: &[u8]) -> ImageDigest {
    let mut digest = Checksum::new();
    digest.update(header);
    digest.update(table);
    ImageDigest(digest.value())
}

/// Checks every byte of the image in `file`: header, table, sections, padding.
pub fn parse_image(file: &[u8]) -> Result<ParsedImage<'_>, ImageError> {
    let found_bytes = file.len() as u64;
    let Some(head) = file.first_chunk::<HEADER_BYTES>().filter(|_| file.len() >= SHORTEST) else {
        return Err(ImageError::TooShort { expected_bytes: SHORTEST as u64, found_bytes });
    };
    let header = Header::parse(head)?;
    if header.total_bytes != found_bytes {
        return Err(ImageError::LengthDiffers { expected_bytes: header.total_bytes, found_bytes });
    }
    // The length is now the file's own, so everything below fits into memory because the file did.
    let table = &file[usize_of(header.table_offset())..];
    let entries = parse_table(&header, table)?;
    let mut sections = Vec::with_capacity(table.len() / ENTRY_BYTES);
    let mut from = HEADER_BYTES;
    for (number, entry) in (0u32..).zip(&entries) {
        let start = usize_of(entry.offset);
        if file[from..start].iter().any(|byte| *byte != 0) {
            return Err(ImageError::PaddingDamaged { until: entry.offset });
        }
        from = start + usize_of(entry.stored_bytes);
        let bytes = &file[start..from];
        entry.check(number, checksum(bytes))?;
        sections.push(Section { kind: entry.kind, version: entry.version, id: entry.id, bytes });
    }
    let (identity, is_encrypted) = (header.identity, header.is_encrypted);
    Ok(ParsedImage { identity, digest: digest(head, table), is_encrypted, sections })
}

/// Bytes of an image without sections.
pub(super) const SHORTEST: usize = HEADER_BYTES + TRAILER_BYTES;

/// A position inside something that lies in memory.
fn usize_of(position: u64) -> usize {
    usize::try_from(position).expect("a position inside a slice fits into usize")
}

impl Entry {
    /// `Ok` if the stored bytes of section `number` have this checksum.
    pub(super) fn check(&self, number: u32, found: u64) -> Result<(), ImageError> {
        if found == self.checksum {
            return Ok(());
        }
        Err(ImageError::SectionDamaged { section: number, kind: self.kind, expected: self.checksum, found })
    }
}
