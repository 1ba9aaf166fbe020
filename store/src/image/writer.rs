//! Writing an image: one pass, no seeking but for the header.

use std::borrow::Cow;

use super::layout::{
    ENCODING_ENCRYPTED, ENCODING_PLAIN, Entry, HEADER_BYTES, Header, VERSION, emit_table, table_bytes,
};
use super::parse::digest;
use super::seal::{self, ImageKey, Sealer, SectionSeal};
use super::{Identity, ImageSummary, Section};
use crate::checksum::Checksum;
use crate::error::{CommitError, ImageError, StoreError};
use crate::kinds;
use crate::limits::{
    IMAGE_BYTES_MAX, PADDING_BYTES_MAX, PAGE_ALIGNED_BYTES_MIN, PAGE_BYTES, SECTIONS_MAX, WRITE_BUFFER_BYTES,
};
use crate::seal::{Key, SALT_BYTES, TAG_BYTES};
use crate::storage::{Directory, DirectoryFile, Storage, StorageError, parent_and_name};

/// Padding between two sections.
const ZEROS: [u8; 4096] = [0; 4096];
const _: () = assert!(ZEROS.len() as u64 == PADDING_BYTES_MAX);

/// Sections below [`PAGE_ALIGNED_BYTES_MIN`] start at a multiple of this.
const SMALL_ALIGNMENT: u64 = 8;

/// Decides the next bytes and the contents of the table; writes nothing itself.
#[derive(Clone)]
struct Encoder {
    identity: Identity,
    position: u64,
    entries: Vec<Entry>,
    open: Option<Checksum>,
    /// Of an encrypted image.
    sealer: Option<Sealer>,
}

impl Encoder {
    fn new(identity: Identity, key: Option<(Key, [u8; SALT_BYTES])>) -> Encoder {
        let sealer = key.map(|(key, salt)| Sealer::new(key, salt));
        Encoder { identity, position: HEADER_BYTES as u64, entries: Vec::new(), open: None, sealer }
    }

    /// Zero bytes before a section of `bytes` bytes, were it next.
    fn padding(&self, bytes: u64) -> u64 {
        let alignment = if bytes >= PAGE_ALIGNED_BYTES_MIN { PADDING_BYTES_MAX } else { SMALL_ALIGNMENT };
        self.position.next_multiple_of(alignment) - self.position
    }

    /// Opens a section; returns the zero bytes to write first.
    fn begin(&mut self, kind: u32, version: u16, id: u64, bytes_expected: u64) -> Result<u64, ImageError> {
        assert!(self.open.is_none(), "the section before was ended");
        let sections = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let padding = self.padding(bytes_expected);
        let total = self.position.saturating_add(padding).saturating_add(bytes_expected);
        if sections >= SECTIONS_MAX || total > IMAGE_BYTES_MAX - table_bytes(SECTIONS_MAX) {
            return Err(FULL);
        }
        self.position += padding;
        let is_encrypted = self.sealer.as_mut().is_some_and(|sealer| sealer.begin(sections, kind));
        let encoding = if is_encrypted { ENCODING_ENCRYPTED } else { ENCODING_PLAIN };
        let offset = self.position;
        self.entries.push(Entry {
            kind,
            version,
            encoding,
            id,
            offset,
            stored_bytes: 0,
            bytes: 0,
            checksum: 0,
        });
        self.open = Some(Checksum::new());
        Ok(padding)
    }

    /// Takes the next bytes of the open section; returns the bytes to store now.
    fn update<'a>(&mut self, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, ImageError> {
        let stored = match &mut self.sealer {
            Some(sealer) => sealer.update(bytes),
            None => Cow::Borrowed(bytes),
        };
        self.stored(&stored)?;
        Ok(stored)
    }

    fn stored(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        let checksum = self.open.as_mut().expect("a section is open");
        checksum.update(bytes);
        self.pass(bytes.len() as u64)
    }

    fn pass(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.position = self.position.saturating_add(bytes);
        if self.position > IMAGE_BYTES_MAX - table_bytes(SECTIONS_MAX) { Err(FULL) } else { Ok(()) }
    }

    /// Ends the open section, whose bytes came past this encoder; `tags` of its pages, if it is encrypted.
    fn end_outside(&mut self, bytes: u64, checksum: u64, tags: &[u8]) -> Result<(), ImageError> {
        self.open.take().expect("a section is open");
        if let Some(sealer) = &mut self.sealer {
            sealer.end_outside(tags);
        }
        let entry = self.entries.last_mut().expect("an open section has an entry");
        (entry.stored_bytes, entry.bytes, entry.checksum) = (bytes, bytes, checksum);
        self.pass(bytes)
    }

    /// Ends the open section; returns the rest of it that is still to be stored.
    fn end(&mut self) -> Result<Vec<u8>, ImageError> {
        let rest = self.sealer.as_mut().map_or_else(Vec::new, Sealer::end);
        self.stored(&rest)?;
        let checksum = self.open.take().expect("a section is open");
        let entry = self.entries.last_mut().expect("an open section has an entry");
        entry.stored_bytes = self.position - entry.offset;
        entry.bytes = entry.stored_bytes;
        entry.checksum = checksum.value();
        Ok(rest)
    }

    /// The content of the seal, the last section of an encrypted image.
    fn seal(&self) -> Option<Vec<u8>> {
        let sealer = self.sealer.as_ref()?;
        let mut header = self.header(0);
        header.sections += 1;
        Some(sealer.finish(&header, &self.entries))
    }

    fn header(&self, total_bytes: u64) -> Header {
        Header {
            identity: self.identity,
            version: VERSION,
            is_delta: self.entries.iter().any(|entry| entry.kind == kinds::BASE),
            is_encrypted: self.sealer.is_some(),
            sections: u32::try_from(self.entries.len()).expect("bounded by SECTIONS_MAX"),
            total_bytes,
        }
    }

    /// The table to write at the end, the header to write over the beginning, and the manifest's entry.
    fn finish(&self) -> (Vec<u8>, [u8; HEADER_BYTES], ImageSummary) {
        assert!(self.open.is_none(), "the last section was ended");
        let table = emit_table(&self.entries);
        let header = self.header(self.position + table.len() as u64);
        let head = header.emit();
        let summary = ImageSummary::of(&header, &self.entries, digest(&head, &table));
        (table, head, summary)
    }
}

const FULL: ImageError = ImageError::Full { sections_max: SECTIONS_MAX, bytes_max: IMAGE_BYTES_MAX };

/// The whole image of `sections` as bytes, equal to [`ImageWriter`]'s output.
pub fn encode_image(identity: Identity, sections: &[Section<'_>]) -> Result<Vec<u8>, ImageError> {
    encode(Encoder::new(identity, None), sections)
}

/// The same, encrypted. `salt` must be random: never the same for two images with one key.
pub fn encode_encrypted_image(
    identity: Identity,
    sections: &[Section<'_>],
    key: Key,
    salt: [u8; SALT_BYTES],
) -> Result<Vec<u8>, ImageError> {
    encode(Encoder::new(identity, Some((key, salt))), sections)
}

fn encode(mut encoder: Encoder, sections: &[Section<'_>]) -> Result<Vec<u8>, ImageError> {
    let mut file = vec![0; HEADER_BYTES];
    let mut put = |encoder: &mut Encoder, section: &Section<'_>| {
        let bytes = section.bytes.len() as u64;
        let padding = encoder.begin(section.kind, section.version, section.id, bytes)?;
        file.resize(file.len() + usize::try_from(padding).unwrap_or(0), 0);
        file.extend_from_slice(&encoder.update(section.bytes)?);
        file.extend_from_slice(&encoder.end()?);
        Ok(())
    };
    sections.iter().try_for_each(|section| put(&mut encoder, section))?;
    if let Some(seal) = encoder.seal() {
        put(&mut encoder, &Section::new(kinds::SEAL, seal::VERSION, &seal))?;
    }
    let (table, header, _) = encoder.finish();
    file.extend_from_slice(&table);
    file[..HEADER_BYTES].copy_from_slice(&header);
    Ok(file)
}

/// Bytes of the file that [`ImageWriter`] makes of `sections`.
pub(crate) fn image_bytes(
    identity: Identity,
    sections: &[Section<'_>],
    is_encrypted: bool,
) -> Result<u64, ImageError> {
    let mut encoder = Encoder::new(identity, None);
    let mut pages = 0;
    for section in sections {
        let bytes = section.bytes.len() as u64;
        encoder.begin(section.kind, section.version, section.id, bytes)?;
        encoder.position += bytes;
        encoder.open = None;
        pages += bytes.div_ceil(PAGE_BYTES as u64);
    }
    let sections = u32::try_from(sections.len()).unwrap_or(u32::MAX);
    let seal =
        (seal::SEAL_BYTES as u64 + pages * TAG_BYTES as u64 + PADDING_BYTES_MAX) * u64::from(is_encrypted);
    Ok(encoder.position + seal + table_bytes(sections.saturating_add(u32::from(is_encrypted))))
}

/// An image being written, under a temporary name until [`ImageWriter::finish`].
///
/// It does not hold the storage, so that several can be written side by side; every call must get the one that it was
/// begun on. A writer that is dropped leaves its temporary file for [`crate::JobDirectory::collect`];
/// [`ImageWriter::abandon`] removes it at once. After an error only `abandon` makes sense.
pub struct ImageWriter<F> {
    file: F,
    path: String,
    temporary: String,
    buffer: Vec<u8>,
    encoder: Encoder,
    is_named: bool,
    /// A name that is taken is taken again: false unless a simulator took rule 8 out.
    pub(crate) replaces: bool,
}

impl<F> ImageWriter<F> {
    /// Begins the image `path`; its directory must exist. The file is written as `path` + `.tmp`; with `key` it is encrypted.
    pub fn begin<S>(
        storage: &mut S,
        path: String,
        identity: Identity,
        key: Option<&ImageKey>,
    ) -> Result<ImageWriter<F>, StoreError>
    where
        S: Storage<File = F>,
    {
        let salted = |key: &ImageKey| match (key.salt)() {
            Some(salt) => Ok((key.key.clone(), salt)),
            None => Err(StoreError::Image { path: path.clone(), error: ImageError::NoSalt }),
        };
        let key = key.map(salted).transpose()?;
        let temporary = crate::job::names::temporary(&path);
        let file = storage.create(&temporary)?;
        let encoder = Encoder::new(identity, key);
        Ok(ImageWriter {
            file,
            path,
            temporary,
            buffer: vec![0; HEADER_BYTES],
            encoder,
            is_named: false,
            replaces: false,
        })
    }

    /// Opens a section, which [`ImageWriter::write`] fills and [`ImageWriter::end_section`] ends. `bytes_expected`
    /// only decides its alignment.
    ///
    /// # Panics
    /// If the section before was not ended.
    pub fn begin_section<S>(
        &mut self,
        storage: &mut S,
        section: Section<'_>,
        bytes_expected: u64,
    ) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        let begun = self.encoder.begin(section.kind, section.version, section.id, bytes_expected);
        let padding = begun.map_err(|error| self.image_error(error))?;
        self.put(storage, &ZEROS[..usize::try_from(padding).expect("less than PADDING_BYTES_MAX")])?;
        if section.bytes.is_empty() { Ok(()) } else { self.write(storage, section.bytes) }
    }

    /// Adds to the open section.
    ///
    /// # Panics
    /// If no section is open.
    pub fn write<S>(&mut self, storage: &mut S, bytes: &[u8]) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        // Encrypted bytes are copied: piece by piece.
        for piece in bytes.chunks(if self.encoder.sealer.is_some() { WRITE_BUFFER_BYTES } else { usize::MAX })
        {
            let stored = self.encoder.update(piece).map_err(|error| self.image_error(error))?;
            self.put(storage, &stored)?;
        }
        Ok(())
    }

    /// Ends the open section.
    ///
    /// # Panics
    /// If no section is open.
    pub fn end_section<S>(&mut self, storage: &mut S) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        let rest = self.encoder.end().map_err(|error| self.image_error(error))?;
        self.put(storage, &rest)
    }

    /// Writes a whole section.
    ///
    /// # Panics
    /// If a section is open.
    pub fn section<S>(&mut self, storage: &mut S, section: Section<'_>) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        self.begin_section(storage, section, section.bytes.len() as u64)?;
        self.end_section(storage)
    }

    /// Writes table and header, makes the file durable, gives it its name, and makes that durable. When this returns
    /// the image survives a loss of power.
    ///
    /// # Panics
    /// If a section is open.
    pub fn finish<S>(mut self, storage: &mut S) -> Result<ImageSummary, StoreError>
    where
        S: Storage<File = F>,
    {
        match self.finish_in_place(storage) {
            Ok(summary) => Ok(summary),
            Err(error) => {
                // A half-written file is useless, and a full disk needs its room.
                let left = if self.is_named { &self.path } else { &self.temporary };
                let _ = storage.remove_file(left);
                Err(error)
            }
        }
    }

    /// Gives the image up and removes its unfinished file.
    pub fn abandon<S>(self, storage: &mut S) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        Ok(storage.remove_file(&self.temporary)?)
    }

    fn finish_in_place<S>(&mut self, storage: &mut S) -> Result<ImageSummary, StoreError>
    where
        S: Storage<File = F>,
    {
        if let Some(seal) = self.encoder.seal() {
            self.section(storage, Section::new(kinds::SEAL, seal::VERSION, &seal))?;
        }
        let (table, header, summary) = self.encoder.finish();
        self.put(storage, &table)?;
        self.flush(storage)?;
        storage.overwrite(&mut self.file, 0, &header)?;
        storage.sync_file(&mut self.file)?;
        let named = if self.replaces {
            storage.rename(&self.temporary, &self.path)
        } else {
            storage.publish(&self.temporary, &self.path)
        };
        match named {
            Err(StorageError::AlreadyExists { .. }) => {
                let (generation, rank) = (self.encoder.identity.generation(), self.encoder.identity.rank);
                return Err(StoreError::Commit { generation, error: CommitError::AlreadyWritten { rank } });
            }
            named => named?,
        }
        self.is_named = true;
        storage.sync_directory(parent_and_name(&self.path).0)?;
        Ok(summary)
    }

    fn put<S>(&mut self, storage: &mut S, bytes: &[u8]) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        if self.buffer.len() + bytes.len() > WRITE_BUFFER_BYTES {
            self.flush(storage)?;
        }
        if bytes.len() >= WRITE_BUFFER_BYTES {
            return Ok(storage.append(&mut self.file, bytes)?);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush<S>(&mut self, storage: &mut S) -> Result<(), StoreError>
    where
        S: Storage<File = F>,
    {
        if !self.buffer.is_empty() {
            storage.append(&mut self.file, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn image_error(&self, error: ImageError) -> StoreError {
        StoreError::Image { path: self.path.clone(), error }
    }
}

/// A section that another process writes: pages of a process, by a fork of it.
impl ImageWriter<DirectoryFile> {
    /// Opens a section that begins at a page of the file, and returns its offset. Its writer uses [`ImageWriter::file`]
    /// and offsets of its own; [`ImageWriter::end_outside`] reports the written bytes.
    ///
    /// # Panics
    /// If the section before was not ended.
    pub fn begin_outside(
        &mut self,
        storage: &mut Directory,
        kind: u32,
        version: u16,
        id: u64,
    ) -> Result<u64, StoreError> {
        self.begin_section(storage, Section { kind, version, id, bytes: &[] }, PAGE_ALIGNED_BYTES_MIN)?;
        self.flush(storage)?;
        Ok(self.encoder.position)
    }

    /// How the writer of that section has to encrypt its pages; `None`: not at all. The tags go behind the last page,
    /// and stay there until this writer removes them.
    #[must_use]
    pub fn section_seal(&self) -> Option<SectionSeal> {
        self.encoder.sealer.as_ref().and_then(Sealer::of_section)
    }

    /// Ends that section: the file has `bytes` from its offset on, and this is their checksum.
    ///
    /// # Panics
    /// If no section is open.
    pub fn end_outside(
        &mut self,
        storage: &mut Directory,
        bytes: u64,
        checksum: u64,
    ) -> Result<(), StoreError> {
        let mut tags = Vec::new();
        if self.section_seal().is_some() {
            let length = bytes.div_ceil(PAGE_BYTES as u64).saturating_mul(TAG_BYTES as u64);
            let full = |_| self.image_error(FULL);
            tags.resize(usize::try_from(length).map_err(full)?, 0);
            storage.read_range(&self.temporary, self.encoder.position.saturating_add(bytes), &mut tags)?;
        }
        self.encoder.end_outside(bytes, checksum, &tags).map_err(|error| self.image_error(error))?;
        // The seal, which has the tags, makes the file longer than they have made it.
        Ok(storage.pass_over(&mut self.file, bytes)?)
    }

    /// The file below.
    #[must_use]
    pub fn file(&self) -> &DirectoryFile {
        &self.file
    }
}
