//! Where each field of an image lies. The one description of it for people is `docs/reference/image-format.md`; a test compares
//! the two.

use core::mem::{offset_of, size_of};
use core::ops::RangeInclusive;

use transport::{Epoch, JobId, Life, Rank};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Identity;
use super::seal::{self, is_secret, seal_bytes};
use crate::checksum::checksum;
use crate::error::ImageError;
use crate::kinds;
use crate::limits::{IMAGE_BYTES_MAX, PADDING_BYTES_MAX, SECTIONS_MAX};

/// The first bytes of an image.
pub const MAGIC: [u8; 4] = *b"SWIM";
/// The version that this build writes.
pub const VERSION: u16 = 1;
/// The versions that this build reads.
pub const READABLE: RangeInclusive<u16> = 1..=VERSION;
/// The image needs the one that its section [`kinds::BASE`] names.
pub const FLAG_DELTA: u16 = 1;
/// The image is encrypted, and ends with a section [`kinds::SEAL`].
pub const FLAG_ENCRYPTED: u16 = 2;
/// The flags that this build knows. Flags change the meaning of the file, so an unknown one is refused.
pub const FLAGS_KNOWN: u16 = FLAG_DELTA | FLAG_ENCRYPTED;
/// The bytes of a section as they are.
pub const ENCODING_PLAIN: u16 = 0;
/// As many bytes, encrypted page by page. Other encodings (packets, block deltas) will get other numbers.
pub const ENCODING_ENCRYPTED: u16 = 1;

/// Bytes of the header.
pub const HEADER_BYTES: usize = size_of::<HeaderBytes>();
/// Bytes of one entry of the table.
pub const ENTRY_BYTES: usize = size_of::<EntryBytes>();
/// Bytes of the table's checksum, which ends the file.
pub const TRAILER_BYTES: usize = 8;

const _: () = assert!(HEADER_BYTES == 64 && ENTRY_BYTES == 48);
const _: () = assert!(SECTIONS_MAX as u64 * (ENTRY_BYTES as u64) < IMAGE_BYTES_MAX);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 4],
    version: U16,
    flags: U16,
    sections: U32,
    rank: U32,
    job: [u8; 16],
    life_counter: U32,
    epoch: U32,
    life_nonce: U64,
    total_bytes: U64,
    checksum: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryBytes {
    kind: U32,
    version: U16,
    encoding: U16,
    id: U64,
    offset: U64,
    stored_bytes: U64,
    bytes: U64,
    checksum: U64,
}

/// A field's name, offset and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// As the document calls it.
    pub name: &'static str,
    /// Bytes from the beginning of its structure.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// A structure's fields: name and length of each.
macro_rules! fields {
    ($of:ty: $($name:ident $bytes:literal),+) => {
        &[$($crate::image::layout::Field {
            name: stringify!($name),
            offset: core::mem::offset_of!($of, $name),
            bytes: $bytes,
        }),+]
    };
}

pub(crate) use fields;

/// The header's fields, in order and without gaps.
pub const HEADER_FIELDS: &[Field] = fields!(HeaderBytes: magic 4, version 2, flags 2, sections 4, rank 4, job 16,
    life_counter 4, epoch 4, life_nonce 8, total_bytes 8, checksum 8);

/// The fields of a table's entry, in order and without gaps.
pub const ENTRY_FIELDS: &[Field] = fields!(EntryBytes: kind 4, version 2, encoding 2, id 8, offset 8, stored_bytes 8,
    bytes 8, checksum 8);

/// The header of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose state it is.
    pub identity: Identity,
    /// Format version.
    pub version: u16,
    /// Whether it needs a base ([`FLAG_DELTA`]).
    pub is_delta: bool,
    /// Whether its sections are encrypted ([`FLAG_ENCRYPTED`]).
    pub is_encrypted: bool,
    /// Number of sections.
    pub sections: u32,
    /// Length of the whole file.
    pub total_bytes: u64,
}

impl Header {
    /// Bytes before the first of its fields that says how long something is.
    pub(super) const IDENTITY_BYTES: usize = offset_of!(HeaderBytes, total_bytes);

    /// The header in `bytes`, checked by itself: magic, checksum, version, flags, bounds.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, ImageError> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(ImageError::HalfWritten);
        }
        let fields: &HeaderBytes = zerocopy::transmute_ref!(bytes);
        if fields.magic != MAGIC {
            return Err(ImageError::NotAnImage { expected: MAGIC, found: fields.magic });
        }
        let (expected, found) = (fields.checksum.get(), header_checksum(bytes));
        if expected != found {
            return Err(ImageError::HeaderDamaged { expected, found });
        }
        // Only now is the version believed: magic, version and checksum keep their places in every version.
        let version = fields.version.get();
        if !READABLE.contains(&version) {
            return Err(ImageError::UnsupportedVersion { found: version, readable: READABLE });
        }
        let flags = fields.flags.get();
        if flags & !FLAGS_KNOWN != 0 {
            return Err(ImageError::UnsupportedFlags { found: flags, known: FLAGS_KNOWN });
        }
        let header = Header {
            identity: Identity {
                job: JobId(u128::from_le_bytes(fields.job)),
                life: Life { counter: fields.life_counter.get(), nonce: fields.life_nonce.get() },
                epoch: Epoch(fields.epoch.get()),
                rank: Rank(fields.rank.get()),
            },
            version,
            is_delta: flags & FLAG_DELTA != 0,
            is_encrypted: flags & FLAG_ENCRYPTED != 0,
            sections: fields.sections.get(),
            total_bytes: fields.total_bytes.get(),
        };
        header.check_bounds()?;
        Ok(header)
    }

    /// The header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.is_delta, FLAG_DELTA) | flag(self.is_encrypted, FLAG_ENCRYPTED);
        let fields = HeaderBytes {
            magic: MAGIC,
            version: U16::new(self.version),
            flags: U16::new(flags),
            sections: U32::new(self.sections),
            rank: U32::new(self.identity.rank.0),
            job: self.identity.job.0.to_le_bytes(),
            life_counter: U32::new(self.identity.life.counter),
            epoch: U32::new(self.identity.epoch.0),
            life_nonce: U64::new(self.identity.life.nonce),
            total_bytes: U64::new(self.total_bytes),
            checksum: U64::new(0),
        };
        let mut bytes: [u8; HEADER_BYTES] = zerocopy::transmute!(fields);
        let checksum = header_checksum(&bytes);
        bytes[offset_of!(HeaderBytes, checksum)..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Bytes of the table, its checksum included.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        table_bytes(self.sections)
    }

    /// Where the table begins.
    #[must_use]
    pub fn table_offset(&self) -> u64 {
        self.total_bytes - self.table_bytes()
    }

    fn check_bounds(&self) -> Result<(), ImageError> {
        if self.total_bytes > IMAGE_BYTES_MAX {
            return Err(ImageError::TooLong { found_bytes: self.total_bytes, bytes_max: IMAGE_BYTES_MAX });
        }
        let room =
            self.total_bytes.saturating_sub((HEADER_BYTES + TRAILER_BYTES) as u64) / ENTRY_BYTES as u64;
        let sections_max = room.min(u64::from(SECTIONS_MAX));
        let shortest = (HEADER_BYTES + TRAILER_BYTES) as u64;
        if u64::from(self.sections) > sections_max || self.total_bytes < shortest {
            return Err(ImageError::TooManySections { found: self.sections, sections_max });
        }
        Ok(())
    }
}

fn header_checksum(bytes: &[u8; HEADER_BYTES]) -> u64 {
    checksum(&bytes[..offset_of!(HeaderBytes, checksum)])
}

/// Bytes of the table of so many sections, its checksum included.
#[must_use]
pub fn table_bytes(sections: u32) -> u64 {
    u64::from(sections) * ENTRY_BYTES as u64 + TRAILER_BYTES as u64
}

/// One section as the table describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its kind: [`crate::kinds`].
    pub kind: u32,
    /// Version of its content.
    pub version: u16,
    /// How its content is stored.
    pub encoding: u16,
    /// Which one of its kind.
    pub id: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes that it takes in the file.
    pub stored_bytes: u64,
    /// Bytes of its content.
    pub bytes: u64,
    /// Checksum of the stored bytes.
    pub checksum: u64,
}

impl Entry {
    fn parse(fields: &EntryBytes) -> Entry {
        Entry {
            kind: fields.kind.get(),
            version: fields.version.get(),
            encoding: fields.encoding.get(),
            id: fields.id.get(),
            offset: fields.offset.get(),
            stored_bytes: fields.stored_bytes.get(),
            bytes: fields.bytes.get(),
            checksum: fields.checksum.get(),
        }
    }

    /// Whether its content is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encoding == ENCODING_ENCRYPTED
    }

    pub(super) fn emit(&self) -> [u8; ENTRY_BYTES] {
        zerocopy::transmute!(EntryBytes {
            kind: U32::new(self.kind),
            version: U16::new(self.version),
            encoding: U16::new(self.encoding),
            id: U64::new(self.id),
            offset: U64::new(self.offset),
            stored_bytes: U64::new(self.stored_bytes),
            bytes: U64::new(self.bytes),
            checksum: U64::new(self.checksum),
        })
    }
}

/// The table in `bytes`, which must be [`Header::table_bytes`] long: checksum, encodings, and that the sections lie
/// one after the other between header and table.
pub fn parse_table(header: &Header, bytes: &[u8]) -> Result<Vec<Entry>, ImageError> {
    assert_eq!(bytes.len() as u64, header.table_bytes(), "the caller reads what the header says");
    let (entries, trailer) = bytes.split_at(bytes.len() - TRAILER_BYTES);
    let mut expected = [0; TRAILER_BYTES];
    expected.copy_from_slice(trailer);
    let (expected, found) = (u64::from_le_bytes(expected), checksum(entries));
    if expected != found {
        return Err(ImageError::TableDamaged { expected, found });
    }
    let mut parsed = Vec::with_capacity(entries.len() / ENTRY_BYTES);
    let mut from = HEADER_BYTES as u64;
    for (section, chunk) in (0u32..).zip(entries.chunks_exact(ENTRY_BYTES)) {
        let Ok(fields) = EntryBytes::ref_from_bytes(chunk) else { continue };
        let entry = Entry::parse(fields);
        if entry.encoding > ENCODING_ENCRYPTED {
            let found = entry.encoding;
            return Err(ImageError::UnsupportedEncoding { section, found, known_max: ENCODING_ENCRYPTED });
        }
        let until = header.table_offset();
        let end = entry.offset.checked_add(entry.stored_bytes).filter(|end| *end <= until);
        let placed = entry.offset >= from && entry.offset - from < PADDING_BYTES_MAX;
        let Some(end) = end.filter(|_| placed && entry.stored_bytes == entry.bytes) else {
            let (offset, bytes) = (entry.offset, entry.stored_bytes);
            return Err(ImageError::SectionMisplaced { section, offset, bytes, from, until });
        };
        from = end;
        parsed.push(entry);
    }
    let names_base = parsed.iter().any(|entry| entry.kind == kinds::BASE);
    if names_base != header.is_delta {
        return Err(ImageError::BaseDiffers { names_base });
    }
    check_seal(header, &parsed)?;
    if from != header.table_offset() {
        let (offset, until) = (from, header.table_offset());
        return Err(ImageError::SectionMisplaced { section: header.sections, offset, bytes: 0, from, until });
    }
    Ok(parsed)
}

/// An encrypted image has one seal, as its last section, with a tag for each page of the others; of no other image a section is encrypted.
fn check_seal(header: &Header, sections: &[Entry]) -> Result<(), ImageError> {
    let seals = sections.iter().filter(|entry| entry.kind == kinds::SEAL).count();
    let Some((last, others)) = sections.split_last().filter(|(last, _)| last.kind == kinds::SEAL) else {
        let is_fit = seals == 0 && !header.is_encrypted && !sections.iter().any(Entry::is_encrypted);
        return if is_fit { Ok(()) } else { Err(ImageError::SealDiffers { has_seal: false }) };
    };
    if seals != 1 || !header.is_encrypted || last.is_encrypted() {
        return Err(ImageError::SealDiffers { has_seal: true });
    }
    if (last.id, last.version) != (0, seal::VERSION) {
        return Err(ImageError::SealVersion { id: last.id, found: last.version, known: seal::VERSION });
    }
    let (expected_bytes, found_bytes) = (seal_bytes(others), last.bytes);
    if expected_bytes != found_bytes {
        return Err(ImageError::SealLengthDiffers { expected_bytes, found_bytes });
    }
    match (0u32..).zip(others).find(|(_, entry)| entry.is_encrypted() != is_secret(entry.kind)) {
        Some((section, entry)) => Err(ImageError::NotSecret { section, kind: entry.kind }),
        None => Ok(()),
    }
}

/// The table's bytes, its checksum included.
#[must_use]
pub fn emit_table(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES + TRAILER_BYTES);
    for entry in entries {
        bytes.extend_from_slice(&entry.emit());
    }
    let checksum = checksum(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}
