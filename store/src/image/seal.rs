//! Encrypted images: without the key nobody can read their secret pages, or change any page unnoticed.
//!
//! Encrypted bytes lie where plain ones would, and are as many: code that handles an image page by page, or only
//! verifies that it is whole, needs no key. Salt, check of the key and tags are in one section at the end, the *seal*.

use core::fmt;
use core::mem::size_of;
use std::borrow::Cow;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{Entry, Field, Header, fields};
use crate::error::ImageError;
use crate::kinds;
use crate::limits::{IMAGE_BYTES_MAX, PAGE_BYTES, SECTIONS_MAX};
use crate::seal::{Key, SALT_BYTES, Sealing, TAG_BYTES};

/// Version of the seal's section.
pub const VERSION: u16 = 1;

/// Context of an image's check of the key.
const IMAGES: &[u8] = b"stillwire image";

/// The number of a page: that of its section from this bit on, and which page of the section it is.
const SECTION_SHIFT: u32 = 40;
const _: () = assert!((IMAGE_BYTES_MAX / PAGE_BYTES as u64) < 1 << SECTION_SHIFT);
const _: () = assert!((SECTIONS_MAX as u64) < 1 << (u64::BITS - 1 - SECTION_SHIFT));

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SealBytes {
    salt: [u8; 24],
    key_check: [u8; 16],
    table_tag: [u8; 16],
}

/// The fields before the tags, in order and without gaps.
pub const SEAL_FIELDS: &[Field] = fields!(SealBytes: salt 24, key_check 16, table_tag 16);

/// Bytes of these fields.
pub const SEAL_BYTES: usize = size_of::<SealBytes>();
const _: () = assert!(SEAL_BYTES == 56 && SALT_BYTES == 24 && TAG_BYTES == 16);

/// A key for images, and where each gets its salt.
#[derive(Clone)]
pub struct ImageKey {
    /// The key.
    pub key: Key,
    /// Gives random bytes; `None`: there are none.
    pub salt: fn() -> Option<[u8; SALT_BYTES]>,
}

impl fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ImageKey")
    }
}

/// Whether sections of this kind are encrypted, if the image is. All are, except those that name an image's needs or the places of its pages.
#[must_use]
pub fn is_secret(kind: u32) -> bool {
    !matches!(kind, kinds::BASE | kinds::SEAL | kinds::PROCESS_PLACES)
}

/// Pages of so many bytes.
fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}

/// Bytes of the seal of an image with these other sections.
pub(super) fn seal_bytes(sections: &[Entry]) -> u64 {
    SEAL_BYTES as u64 + sections.iter().map(|entry| pages(entry.bytes)).sum::<u64>() * TAG_BYTES as u64
}

/// Encrypts and decrypts the pages of one section, if it is secret; of another one it makes and checks the tags. Does not allocate, and takes no lock.
#[derive(Clone, Debug)]
pub struct SectionSeal {
    sealing: Sealing,
    section: u32,
    is_secret: bool,
}

impl SectionSeal {
    fn number(&self, page: u64) -> u64 {
        u64::from(self.section) << SECTION_SHIFT | page
    }

    /// Seals page `page` of the section, at most 4096 bytes.
    pub fn seal(&self, page: u64, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let number = self.number(page);
        if self.is_secret {
            self.sealing.seal(number, &[], bytes)
        } else {
            self.sealing.seal(number, bytes, &mut [])
        }
    }

    fn open(&self, page: u64, bytes: &mut [u8], tag: &[u8; TAG_BYTES]) -> bool {
        let number = self.number(page);
        if self.is_secret {
            self.sealing.open(number, &[], bytes, tag)
        } else {
            self.sealing.open(number, bytes, &mut [], tag)
        }
    }
}

/// The bytes that the tag of the table covers: the header without lengths, and the table's entries of all sections but
/// the seal.
fn described(header: &Header, sections: &[Entry]) -> Vec<u8> {
    let mut bytes = header.emit()[..Header::IDENTITY_BYTES].to_vec();
    sections.iter().for_each(|entry| bytes.extend_from_slice(&entry.emit()));
    bytes
}

/// The seal of an image that is being written.
#[derive(Clone)]
pub(super) struct Sealer {
    sealing: Sealing,
    /// Of all pages so far.
    tags: Vec<u8>,
    /// The open section, if it is not the seal; how many of its pages are done, and the beginning of the next.
    section: Option<(SectionSeal, u64)>,
    held: Vec<u8>,
}

impl Sealer {
    pub(super) fn new(key: Key, salt: [u8; SALT_BYTES]) -> Sealer {
        let sealing = Sealing::new(key, salt);
        Sealer { sealing, tags: Vec::new(), section: None, held: Vec::new() }
    }

    /// True if the section is going to be encrypted.
    pub(super) fn begin(&mut self, section: u32, kind: u32) -> bool {
        let (sealing, is_secret) = (self.sealing.clone(), is_secret(kind));
        self.section = (kind != kinds::SEAL).then_some((SectionSeal { sealing, section, is_secret }, 0));
        is_secret
    }

    pub(super) fn of_section(&self) -> Option<SectionSeal> {
        self.section.as_ref().map(|(seal, _)| seal.clone())
    }

    /// The stored form of the next bytes of the section: whole pages only, the rest is held back.
    pub(super) fn update<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.section.is_none() {
            return Cow::Borrowed(bytes);
        }
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() / PAGE_BYTES * PAGE_BYTES;
        Cow::Owned(self.seal(whole))
    }

    /// The stored form of the rest of the section, which ends here.
    pub(super) fn end(&mut self) -> Vec<u8> {
        let rest = self.seal(self.held.len());
        self.section = None;
        rest
    }

    fn seal(&mut self, bytes: usize) -> Vec<u8> {
        let after = self.held.split_off(bytes);
        let mut stored = core::mem::replace(&mut self.held, after);
        if let Some((seal, done)) = &mut self.section {
            for page in stored.chunks_mut(PAGE_BYTES) {
                self.tags.extend_from_slice(&seal.seal(*done, page));
                *done += 1;
            }
        }
        stored
    }

    /// The open section was sealed outside, with the seal from [`Sealer::of_section`]; these are the tags.
    pub(super) fn end_outside(&mut self, tags: &[u8]) {
        self.tags.extend_from_slice(tags);
        self.section = None;
    }

    /// The content of the seal's section.
    pub(super) fn finish(&self, header: &Header, sections: &[Entry]) -> Vec<u8> {
        let fields = SealBytes {
            salt: self.sealing.salt(),
            key_check: self.sealing.key_check(IMAGES),
            table_tag: self.sealing.footer_tag(&described(header, sections)),
        };
        [fields.as_bytes(), &self.tags].concat()
    }
}

/// The seal of an image that is read, opened with its key.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    sealing: Sealing,
    /// The content of the seal.
    seal: Vec<u8>,
    /// For each section, how many pages those before it have, and whether it is secret.
    sections: Vec<(u64, bool)>,
}

impl Opened {
    /// `seal`: the content of its section, which is as long as the table says; `sections`: the others.
    pub(super) fn new(
        header: &Header,
        sections: &[Entry],
        seal: Vec<u8>,
        key: &Key,
    ) -> Result<Opened, ImageError> {
        let (fields, _) = SealBytes::read_from_prefix(&seal).map_err(|_| ImageError::OtherKey)?;
        let sealing = Sealing::new(key.clone(), fields.salt);
        if sealing.key_check(IMAGES) != fields.key_check {
            return Err(ImageError::OtherKey);
        }
        if sealing.footer_tag(&described(header, sections)) != fields.table_tag {
            return Err(ImageError::TableForged);
        }
        let mut before = 0;
        let sections = sections.iter().map(|entry| {
            let here = (before, entry.is_encrypted());
            before += pages(entry.bytes);
            here
        });
        Ok(Opened { sealing, sections: sections.collect(), seal })
    }

    /// Decrypts bytes read from section `section`, from page `first` on, and checks them. The seal itself needs nothing.
    pub(super) fn open(&self, section: u32, first: u64, bytes: &mut [u8]) -> Result<(), ImageError> {
        let Some((before, is_secret)) = self.sections.get(section as usize).copied() else { return Ok(()) };
        let seal = SectionSeal { sealing: self.sealing.clone(), section, is_secret };
        let (tags, _) = self.seal[SEAL_BYTES..].as_chunks::<TAG_BYTES>();
        for (page, bytes) in (first..).zip(bytes.chunks_mut(PAGE_BYTES)) {
            let tag = usize::try_from(before + page).ok().and_then(|at| tags.get(at));
            if !tag.is_some_and(|tag| seal.open(page, bytes, tag)) {
                return Err(ImageError::PageForged { section, page });
            }
        }
        Ok(())
    }
}
