//! Files of parity pages: the changes of a node's parity with one generation, and all of it.
//!
//! Changes are held as the new pages themselves. So the file is its own journal: until its pages are written over the old ones, and while they are,
//! parity of the new generation is the old one's with these pages laid over it; and writing them once more changes nothing.

use ckpt_glue::GenerationId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use transport::{Epoch, Life};

use super::error::ProtectError;
use crate::checksum::checksum;
use crate::image::layout::{Field, fields};
use crate::job::{JobDirectory, names};
use crate::limits::{CONTENT_PAGES_MAX, PAGE_BYTES};
use crate::storage::{Storage, StorageError};

/// The first bytes of a file of changed parity.
pub const MAGIC: [u8; 4] = *b"SWPD";
/// The version that this build writes and reads.
pub const VERSION: u16 = 1;
/// The generation stands for itself: pages that are not in the file are zero.
const FLAG_WHOLE: u16 = 1;

/// Bytes of the header.
pub const HEADER_BYTES: usize = size_of::<HeaderBytes>();
/// Bytes that a page takes in files of parity: itself and its checksum.
pub(super) const RECORD_BYTES: usize = PAGE_BYTES + 8;

const _: () = assert!(HEADER_BYTES == 64);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 4],
    version: U16,
    flags: U16,
    pages: U64,
    life_counter: U32,
    epoch: U32,
    life_nonce: U64,
    from_life_counter: U32,
    from_epoch: U32,
    from_life_nonce: U64,
    table_checksum: U64,
    checksum: U64,
}

/// The header's fields, in order and without gaps.
pub const HEADER_FIELDS: &[Field] = fields!(HeaderBytes: magic 4, version 2, flags 2, pages 8, life_counter 4, epoch 4,
    life_nonce 8, from_life_counter 4, from_epoch 4, from_life_nonce 8, table_checksum 8, checksum 8);

/// A page and its checksum.
pub(super) fn record(page: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_BYTES);
    record.extend_from_slice(page);
    record.extend_from_slice(&checksum(page).to_le_bytes());
    record
}

/// Reads records of a file from `offset` on, of pages from `number` on, into as many pages.
pub(super) fn read_records<S: Storage>(
    storage: &mut S,
    path: &str,
    offset: u64,
    number: u64,
    pages: &mut [u8],
) -> Result<(), ProtectError> {
    let mut bytes = vec![0; pages.len() / PAGE_BYTES * RECORD_BYTES];
    storage.read_range(path, offset, &mut bytes)?;
    let into = pages.chunks_exact_mut(PAGE_BYTES);
    for (page, (record, into)) in (number..).zip(bytes.chunks_exact(RECORD_BYTES).zip(into)) {
        let (content, sum) = record.split_at(PAGE_BYTES);
        if checksum(content).to_le_bytes() != *sum {
            return Err(ProtectError::ParityDamaged { path: path.to_owned(), page });
        }
        into.copy_from_slice(content);
    }
    Ok(())
}

/// Where a record lies in a file of parity.
pub(super) fn record_offset(start: u64, index: u64) -> u64 {
    start + index * RECORD_BYTES as u64
}

/// Bytes that are gathered before they are written, and read at once.
pub(super) const RUN_BYTES: usize = 1 << 20;

/// Records that wait to be written together.
#[derive(Debug, Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    /// Adds records of pages that follow each other.
    pub(super) fn add<S: Storage>(
        &mut self,
        storage: &mut S,
        file: &mut S::File,
        pages: &[u8],
    ) -> Result<(), StorageError> {
        for page in pages.chunks_exact(PAGE_BYTES) {
            self.0.extend_from_slice(&record(page));
            if self.0.len() >= RUN_BYTES {
                self.write(storage, file)?;
            }
        }
        Ok(())
    }

    /// Writes the records that still wait.
    pub(super) fn write<S: Storage>(
        &mut self,
        storage: &mut S,
        file: &mut S::File,
    ) -> Result<(), StorageError> {
        let bytes = core::mem::take(&mut self.0);
        if bytes.is_empty() { Ok(()) } else { storage.append(file, &bytes) }
    }
}

/// Changes of a node's parity, being written.
#[derive(Debug)]
pub(super) struct ParityChangesWriter<F> {
    path: String,
    file: F,
    generation: GenerationId,
    from: Option<GenerationId>,
    numbers: Vec<u64>,
    records: Records,
}

impl<F> ParityChangesWriter<F> {
    pub(super) fn begin<S: Storage<File = F>>(
        storage: &mut S,
        generation: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<ParityChangesWriter<F>, ProtectError> {
        let path = names::in_generation(generation, names::PARITY);
        let temporary = names::temporary(&path);
        let mut file = create_anew(storage, &temporary)?;
        storage.append(&mut file, &[0; HEADER_BYTES])?;
        Ok(ParityChangesWriter {
            path,
            file,
            generation,
            from,
            numbers: Vec::new(),
            records: Records::default(),
        })
    }

    pub(super) fn temporary(&self) -> String {
        names::temporary(&self.path)
    }

    /// Adds the new content of pages from `number` on, which come behind all that were added.
    pub(super) fn pages<S: Storage<File = F>>(
        &mut self,
        storage: &mut S,
        number: u64,
        pages: &[u8],
    ) -> Result<(), ProtectError> {
        if let Some(last) = self.numbers.last().copied().filter(|last| *last >= number) {
            return Err(ProtectError::OutOfOrder { last, found: number });
        }
        self.numbers.extend(number..number + (pages.len() / PAGE_BYTES) as u64);
        Ok(self.records.add(storage, &mut self.file, pages)?)
    }

    /// Makes the file durable under its name, and says how many pages it has.
    pub(super) fn finish<S: Storage<File = F>>(mut self, storage: &mut S) -> Result<u64, ProtectError> {
        self.records.write(storage, &mut self.file)?;
        let table: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        storage.append(&mut self.file, &table)?;
        let from = self.from.unwrap_or(GenerationId { life: Life { counter: 0, nonce: 0 }, epoch: Epoch(0) });
        let pages = self.numbers.len() as u64;
        let mut header = HeaderBytes {
            magic: MAGIC,
            version: VERSION.into(),
            flags: if self.from.is_none() { FLAG_WHOLE } else { 0 }.into(),
            pages: pages.into(),
            life_counter: self.generation.life.counter.into(),
            epoch: self.generation.epoch.0.into(),
            life_nonce: self.generation.life.nonce.into(),
            from_life_counter: from.life.counter.into(),
            from_epoch: from.epoch.0.into(),
            from_life_nonce: from.life.nonce.into(),
            table_checksum: checksum(&table).into(),
            checksum: 0.into(),
        };
        header.checksum = checksum(&header.as_bytes()[..HEADER_BYTES - 8]).into();
        storage.overwrite(&mut self.file, 0, header.as_bytes())?;
        storage.sync_file(&mut self.file)?;
        storage.rename(&self.temporary(), &self.path)?;
        storage.sync_directory(&names::folder(self.generation))?;
        Ok(pages)
    }
}

/// Which pages of a node's parity have changed with a generation.
#[derive(Clone, Debug)]
pub(super) struct ParityChanges {
    pub(super) path: String,
    pub(super) generation: GenerationId,
    pub(super) from: Option<GenerationId>,
    pub(super) numbers: Vec<u64>,
}

impl ParityChanges {
    pub(super) fn open<S: Storage>(
        storage: &mut S,
        generation: GenerationId,
    ) -> Result<ParityChanges, ProtectError> {
        let changed = ParityChanges::open_file(storage, &names::in_generation(generation, names::PARITY))?;
        if changed.generation != generation {
            let (path, what) = (changed.path, "it belongs to another generation");
            return Err(ProtectError::File { path, what });
        }
        Ok(changed)
    }

    /// The file `path`, of any generation.
    pub(super) fn open_file<S: Storage>(storage: &mut S, path: &str) -> Result<ParityChanges, ProtectError> {
        let path = path.to_owned();
        let damaged = |what| ProtectError::File { path: path.clone(), what };
        let length = storage.length(&path)?;
        if length < HEADER_BYTES as u64 {
            return Err(damaged("the file is cut off"));
        }
        let mut bytes = [0; HEADER_BYTES];
        storage.read_range(&path, 0, &mut bytes)?;
        let header: &HeaderBytes = zerocopy::transmute_ref!(&bytes);
        if header.magic != MAGIC || header.checksum.get() != checksum(&bytes[..HEADER_BYTES - 8]) {
            return Err(damaged("the header is damaged"));
        }
        if header.version.get() != VERSION || header.flags.get() & !FLAG_WHOLE != 0 {
            return Err(damaged("the file was written by a newer build, which has to be used"));
        }
        let generation_of = |counter: U32, nonce: U64, epoch: U32| GenerationId {
            life: Life { counter: counter.get(), nonce: nonce.get() },
            epoch: Epoch(epoch.get()),
        };
        let generation = generation_of(header.life_counter, header.life_nonce, header.epoch);
        let pages = header.pages.get();
        let expected = pages
            .checked_mul((RECORD_BYTES + 8) as u64)
            .and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
        if expected != Some(length) {
            return Err(damaged("the file has another length than its header says"));
        }
        let mut table = vec![0; usize::try_from(pages * 8).expect("a table fits into memory")];
        storage.read_range(&path, length - pages * 8, &mut table)?;
        let numbers: Vec<u64> =
            table.chunks_exact(8).map(|word| u64::from_le_bytes(core::array::from_fn(|i| word[i]))).collect();
        let in_order = numbers.is_sorted_by(|a, b| a < b);
        let last = numbers.last().copied().unwrap_or(0);
        if checksum(&table) != header.table_checksum.get() || !in_order || last > CONTENT_PAGES_MAX {
            return Err(damaged("the table is damaged"));
        }
        let whole = header.flags.get() & FLAG_WHOLE != 0;
        let from = generation_of(header.from_life_counter, header.from_life_nonce, header.from_epoch);
        Ok(ParityChanges { path, generation, from: (!whole).then_some(from), numbers })
    }

    /// Where in the file page `number` lies, if it is there.
    pub(super) fn index(&self, number: u64) -> Option<u64> {
        self.numbers.binary_search(&number).ok().map(|index| index as u64)
    }

    /// Reads the pages of numbers `index`, `index` + 1, ... of the table, which follow each other from page `number` on.
    pub(super) fn read<S: Storage>(
        &self,
        storage: &mut S,
        index: u64,
        number: u64,
        pages: &mut [u8],
    ) -> Result<(), ProtectError> {
        read_records(storage, &self.path, record_offset(HEADER_BYTES as u64, index), number, pages)
    }

    /// How many pages from the `index`-th of the table on follow each other, at most so many.
    pub(super) fn run(&self, index: usize, most: usize) -> usize {
        let numbers = &self.numbers[index..];
        (1..most.min(numbers.len()))
            .find(|i| numbers[*i] != numbers[0] + *i as u64)
            .unwrap_or(most.min(numbers.len()))
    }
}

/// Makes a directory durably, if it is not there.
pub(super) fn make_directory<S: Storage>(storage: &mut S, path: &str) -> Result<(), StorageError> {
    match storage.create_directory(path) {
        Ok(()) | Err(StorageError::AlreadyExists { .. }) => {
            storage.sync_directory(crate::storage::parent_and_name(path).0)
        }
        made => made,
    }
}

/// Makes the file `path` anew; an existing one was left by an attempt that did not come to the end.
pub(super) fn create_anew<S: Storage>(storage: &mut S, path: &str) -> Result<S::File, StorageError> {
    match storage.create(path) {
        Err(StorageError::AlreadyExists { .. }) => {
            storage.remove_file(path)?;
            storage.create(path)
        }
        created => created,
    }
}

/// Has the file `path` written, durably, in place of one that may be there. A file that `write` cannot complete is removed.
pub(super) fn replace<S: Storage>(
    directory: &mut JobDirectory<S>,
    path: &str,
    write: impl FnOnce(&mut JobDirectory<S>, &mut S::File) -> Result<(), ProtectError>,
) -> Result<(), ProtectError> {
    let temporary = names::temporary(path);
    let mut file = create_anew(directory.storage(), &temporary)?;
    if let Err(error) = write(directory, &mut file) {
        // The first error is the informative one.
        let _ = directory.storage().remove_file(&temporary);
        return Err(error);
    }
    let storage = directory.storage();
    storage.sync_file(&mut file)?;
    storage.rename(&temporary, path)?;
    Ok(storage.sync_directory(crate::storage::parent_and_name(path).0)?)
}

pub(super) fn append_zeros<S: Storage>(
    storage: &mut S,
    file: &mut S::File,
    mut bytes: u64,
) -> Result<(), ProtectError> {
    while bytes > 0 {
        let count = bytes.min(PAGE_BYTES as u64);
        let zeros = vec![0; usize::try_from(count).expect("at most a page")];
        storage.append(file, &zeros)?;
        bytes -= count;
    }
    Ok(())
}

/// Writes the file `path`, durably, in place of one that may be there.
pub(super) fn write_file<S: Storage>(storage: &mut S, path: &str, bytes: &[u8]) -> Result<(), StorageError> {
    let temporary = names::temporary(path);
    let mut file = create_anew(storage, &temporary)?;
    storage.append(&mut file, bytes)?;
    storage.sync_file(&mut file)?;
    storage.rename(&temporary, path)?;
    storage.sync_directory(crate::storage::parent_and_name(path).0)
}
