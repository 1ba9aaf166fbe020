//! Reading an image: header and table at once, each section when it is wanted.

use ckpt_glue::ImageDigest;

use super::layout::{Entry, HEADER_BYTES, Header, parse_table};
use super::parse::{SHORTEST, digest};
use super::seal::Opened;
use super::{Base, Exited, Identity, ImageSummary};
use crate::checksum::{Checksum, checksum};
use crate::error::{ImageError, StoreError};
use crate::kinds;
use crate::limits::{PAGE_BYTES, READ_BUFFER_BYTES};
use crate::seal::Key;
use crate::storage::Storage;

const _: () = assert!(READ_BUFFER_BYTES.is_multiple_of(PAGE_BYTES), "pieces that are read begin with a page");

/// An image whose header and table are read and checked. Sections are read one by one, each checked when it is read.
#[derive(Clone, Debug)]
pub struct ImageReader {
    path: String,
    header: Header,
    entries: Vec<Entry>,
    digest: ImageDigest,
    /// Of an encrypted image whose key is known.
    opened: Option<Opened>,
}

impl ImageReader {
    /// Reads header and table of the image `path`. Nothing is allocated before the file's own length has been
    /// compared with the header's.
    pub fn open<S: Storage>(storage: &mut S, path: &str) -> Result<ImageReader, StoreError> {
        let failed = |error| StoreError::Image { path: path.to_owned(), error };
        let found_bytes = storage.length(path)?;
        if found_bytes < SHORTEST as u64 {
            return Err(failed(ImageError::TooShort { expected_bytes: SHORTEST as u64, found_bytes }));
        }
        let mut head = [0; HEADER_BYTES];
        storage.read_range(path, 0, &mut head)?;
        let header = Header::parse(&head).map_err(failed)?;
        if header.total_bytes != found_bytes {
            let expected_bytes = header.total_bytes;
            return Err(failed(ImageError::LengthDiffers { expected_bytes, found_bytes }));
        }
        let table_bytes =
            usize::try_from(header.table_bytes()).expect("SECTIONS_MAX entries fit into memory");
        let mut table = vec![0; table_bytes];
        storage.read_range(path, header.table_offset(), &mut table)?;
        let entries = parse_table(&header, &table).map_err(failed)?;
        let digest = digest(&head, &table);
        Ok(ImageReader { path: path.to_owned(), header, entries, digest, opened: None })
    }

    /// `Ok` if the image is encrypted.
    pub(crate) fn expect_encrypted(&self) -> Result<(), StoreError> {
        if self.header.is_encrypted { Ok(()) } else { Err(self.failed(ImageError::NotEncrypted)) }
    }

    /// Has encrypted sections read with `key`: without it their bytes can be verified but not read. An image that is
    /// not encrypted is refused: a caller with a key expects an encrypted one. Reads the seal, 16 bytes for each page.
    pub fn unlock<S: Storage>(&mut self, storage: &mut S, key: &Key) -> Result<(), StoreError> {
        self.expect_encrypted()?;
        let number = self.find(kinds::SEAL)?;
        let seal = self.read_section(storage, number)?;
        let sections = &self.entries[..number as usize];
        let opened = Opened::new(&self.header, sections, seal, key).map_err(|error| self.failed(error))?;
        self.opened = Some(opened);
        Ok(())
    }

    /// `Ok` if the image is that of `identity`.
    pub fn expect(&self, identity: &Identity) -> Result<(), StoreError> {
        identity.check(&self.header.identity).map_err(|error| self.failed(error))
    }

    /// `Ok` if the image is the one with `digest`.
    pub fn expect_digest(&self, digest: ImageDigest) -> Result<(), StoreError> {
        if digest == self.digest {
            return Ok(());
        }
        Err(self.failed(ImageError::WrongDigest { expected: digest, found: self.digest }))
    }

    /// The file, relative to the storage's root.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The table, in the order of the sections.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Names the content.
    #[must_use]
    pub fn digest(&self) -> ImageDigest {
        self.digest
    }

    /// A manifest's data of this image.
    #[must_use]
    pub fn summary(&self) -> ImageSummary {
        ImageSummary::of(&self.header, &self.entries, self.digest)
    }

    /// The number of the first section of `kind`.
    pub fn find(&self, kind: u32) -> Result<u32, StoreError> {
        let found = (0u32..).zip(&self.entries).find(|(_, entry)| entry.kind == kind);
        found.map(|(number, _)| number).ok_or_else(|| self.failed(ImageError::SectionMissing { kind }))
    }

    /// The content of section `number`, checked. At most as long as the file.
    pub fn read_section<S: Storage>(&self, storage: &mut S, number: u32) -> Result<Vec<u8>, StoreError> {
        let entry = self.entry(number)?;
        let length = usize::try_from(entry.bytes).map_err(|_| {
            let bytes_max = usize::MAX as u64;
            self.failed(ImageError::TooLong { found_bytes: entry.bytes, bytes_max })
        })?;
        let mut content = vec![0; length];
        self.read_section_into(storage, number, &mut content)?;
        Ok(content)
    }

    /// Reads section `number` to where it belongs, which must have its length, and checks it there. After an error
    /// `into` holds no meaningful bytes.
    pub fn read_section_into<S: Storage>(
        &self,
        storage: &mut S,
        number: u32,
        into: &mut [u8],
    ) -> Result<(), StoreError> {
        let entry = self.entry(number)?;
        let expected_bytes = into.len() as u64;
        if entry.bytes != expected_bytes {
            let (section, found_bytes) = (number, entry.bytes);
            let error = ImageError::SectionLengthDiffers { section, expected_bytes, found_bytes };
            return Err(self.failed(error));
        }
        storage.read_range(&self.path, entry.offset, into)?;
        entry.check(number, checksum(into)).map_err(|error| self.failed(error))?;
        match &self.opened {
            Some(opened) => opened.open(number, 0, into).map_err(|error| self.failed(error)),
            None if entry.is_encrypted() => Err(self.failed(ImageError::NoKey)),
            None => Ok(()),
        }
    }

    /// Reads pages of section `number` of an encrypted image, from page `first` of it on, to where they belong, and checks their tags. Whole pages, or to the end of the section.
    pub fn read_pages<S: Storage>(
        &self,
        storage: &mut S,
        number: u32,
        first: u64,
        into: &mut [u8],
    ) -> Result<(), StoreError> {
        let entry = self.entry(number)?;
        let from = first.saturating_mul(PAGE_BYTES as u64);
        let (expected_bytes, found_bytes) = (from.saturating_add(into.len() as u64), entry.bytes);
        if expected_bytes > found_bytes {
            let section = number;
            let error = ImageError::SectionLengthDiffers { section, expected_bytes, found_bytes };
            return Err(self.failed(error));
        }
        storage.read_range(&self.path, entry.offset + from, into)?;
        let opened = self.opened.as_ref().ok_or_else(|| self.failed(ImageError::NoKey))?;
        opened.open(number, first, into).map_err(|error| self.failed(error))
    }

    /// Reads every byte of the file and checks it, with little memory; after [`ImageReader::unlock`] also that none was changed without the key.
    pub fn verify<S: Storage>(&self, storage: &mut S) -> Result<(), StoreError> {
        self.read_through(storage, |_| Ok(()))
    }

    /// Reads the file from its first byte to its last, checks all, and gives `take` each piece as soon as it is read. The content of a piece is known
    /// to be right only when this has returned.
    pub fn read_through<S: Storage, E: From<StoreError>>(
        &self,
        storage: &mut S,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |error| E::from(self.failed(error));
        let mut head = [0; HEADER_BYTES];
        read(storage, &self.path, 0, &mut head)?;
        take(&head)?;
        let mut from = HEADER_BYTES as u64;
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        for (number, entry) in (0u32..).zip(&self.entries) {
            let padding = usize::try_from(entry.offset - from).expect("below PADDING_BYTES_MAX");
            read(storage, &self.path, from, &mut buffer[..padding])?;
            if buffer[..padding].iter().any(|byte| *byte != 0) {
                return Err(failed(ImageError::PaddingDamaged { until: entry.offset }));
            }
            take(&buffer[..padding])?;
            let mut checksum = Checksum::new();
            // Damaged pages have a wrong tag as well: a wrong tag is reported only of whole pages.
            let mut sealed = Ok(());
            let mut position = entry.offset;
            let end = entry.offset + entry.stored_bytes;
            while position < end {
                let length =
                    usize::try_from(end - position).map_or(buffer.len(), |left| left.min(buffer.len()));
                read(storage, &self.path, position, &mut buffer[..length])?;
                checksum.update(&buffer[..length]);
                take(&buffer[..length])?;
                if let Some(opened) = &self.opened {
                    let page = (position - entry.offset) / PAGE_BYTES as u64;
                    sealed = sealed.and_then(|()| opened.open(number, page, &mut buffer[..length]));
                }
                position += length as u64;
            }
            entry.check(number, checksum.value()).map_err(failed)?;
            sealed.map_err(failed)?;
            from = end;
        }
        let table_bytes = usize::try_from(self.header.total_bytes - from).expect("read into memory before");
        let mut table = vec![0; table_bytes];
        read(storage, &self.path, from, &mut table)?;
        // They were right when the file was opened, and may have been exchanged since.
        let found = digest(&head, &table);
        if found != self.digest {
            return Err(failed(ImageError::WrongDigest { expected: self.digest, found }));
        }
        take(&table)
    }

    /// How the rank ended, if this is the image of one that had.
    pub fn exited<S: Storage>(&self, storage: &mut S) -> Result<Option<Exited>, StoreError> {
        let Ok(number) = self.find(kinds::EXITED) else { return Ok(None) };
        let version = self.entry(number)?.version;
        let content = self.read_section(storage, number)?;
        Exited::parse(version, &content).map(Some).map_err(|error| self.failed(error))
    }

    /// Which image this one needs below it, if it is a delta.
    pub fn base<S: Storage>(&self, storage: &mut S) -> Result<Option<Base>, StoreError> {
        let Ok(number) = self.find(kinds::BASE) else { return Ok(None) };
        let version = self.entry(number)?.version;
        let content = self.read_section(storage, number)?;
        Base::parse(version, &content).map(Some).map_err(|error| self.failed(error))
    }

    /// `Ok` if the image needs no other.
    pub(crate) fn expect_whole(&self) -> Result<(), StoreError> {
        if self.header.is_delta { Err(self.failed(ImageError::BaseIsDelta)) } else { Ok(()) }
    }

    fn entry(&self, number: u32) -> Result<&Entry, StoreError> {
        let entry = usize::try_from(number).ok().and_then(|place| self.entries.get(place));
        let sections = self.header.sections;
        entry.ok_or_else(|| self.failed(ImageError::NoSuchSection { section: number, sections }))
    }

    fn failed(&self, error: ImageError) -> StoreError {
        StoreError::Image { path: self.path.clone(), error }
    }
}

fn read<S: Storage, E: From<StoreError>>(
    storage: &mut S,
    path: &str,
    offset: u64,
    into: &mut [u8],
) -> Result<(), E> {
    storage.read_range(path, offset, into).map_err(|error| E::from(error.into()))
}
