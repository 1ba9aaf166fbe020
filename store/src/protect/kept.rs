//! The parity that a node keeps: one file with all pages, and the changes of generations that are not folded into it yet.

use transport::{Epoch, Life};

use super::changed::{Changed, RECORD_BYTES, create_anew, read_record, record};
use super::error::ProtectError;
use crate::job::{GenerationId, JobDirectory, names};
use crate::limits::PAGE_BYTES;
use crate::record::Protected;
use crate::storage::{Storage, StorageError};

/// The directory of the file with all pages, in the job's directory.
const DIRECTORY: &str = "parity";
const PREFIX: &str = "pages-";

/// The file with the parity of all pages as of this generation.
fn pages_path(generation: GenerationId) -> String {
    let GenerationId { life: Life { counter, nonce }, epoch: Epoch(epoch) } = generation;
    format!("{DIRECTORY}/{PREFIX}{counter:08}-{nonce:016x}-{epoch:08}")
}

/// The generation that the name of such a file says.
fn parse_name(name: &str) -> Option<GenerationId> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let counter = parts.next()?.parse().ok()?;
    let nonce = u64::from_str_radix(parts.next()?, 16).ok()?;
    let epoch = Epoch(parts.next()?.parse().ok()?);
    let generation = GenerationId { life: Life { counter, nonce }, epoch };
    (pages_path(generation) == format!("{DIRECTORY}/{name}")).then_some(generation)
}

/// Generations of whose parity there are files with all pages; after a crash there may be two.
fn bases<S: Storage>(storage: &mut S) -> Result<Vec<GenerationId>, ProtectError> {
    match storage.list(DIRECTORY) {
        Ok(entries) => Ok(entries.iter().filter_map(|entry| parse_name(&entry.name)).collect()),
        Err(StorageError::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// A node's parity of one generation: changes laid over what they change.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The newest first.
    layers: Vec<Changed>,
    /// What is below them: generation and pages.
    base: Option<(GenerationId, u64)>,
}

impl Kept {
    /// Finds the parity of `generation`. Nothing of it is read but tables.
    pub fn open<S: Storage>(
        directory: &mut JobDirectory<S>,
        generation: GenerationId,
    ) -> Result<Kept, ProtectError> {
        let storage = directory.storage();
        let (bases, mut layers) = (bases(storage)?, Vec::<Changed>::new());
        let mut at = generation;
        loop {
            if bases.contains(&at) {
                let pages = storage.length(&pages_path(at))? / RECORD_BYTES as u64;
                return Ok(Kept { layers, base: Some((at, pages)) });
            }
            let layer = match Changed::open(storage, at) {
                Err(error) if error.is_absence() => return Err(ProtectError::NoParity { generation }),
                opened => opened?,
            };
            // Generations only build upon older ones, so this ends.
            let from = layer.from.filter(|from| *from < at);
            let ends = layer.from.is_none();
            layers.push(layer);
            match from {
                Some(from) => at = from,
                None if ends => return Ok(Kept { layers, base: None }),
                None => return Err(ProtectError::NoParity { generation }),
            }
        }
    }

    /// Page `number`; `None`: it is zero.
    pub fn page<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        number: u64,
    ) -> Result<Option<Vec<u8>>, ProtectError> {
        let storage = directory.storage();
        for layer in &self.layers {
            if let Some(index) = layer.index(number) {
                return layer.read(storage, index, number).map(Some);
            }
        }
        match self.base {
            Some((base, pages)) if number < pages => {
                read_record(storage, &pages_path(base), 0, number, number).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Pages from 0 on that may be other than zero.
    #[must_use]
    pub fn pages(&self) -> u64 {
        let of_layers = self.layers.iter().filter_map(|layer| layer.numbers.last()).map(|last| last + 1);
        of_layers.chain(self.base.map(|(_, pages)| pages)).max().unwrap_or(0)
    }

    /// Writes page `number` where it is to be found, over damaged bytes.
    pub(super) fn mend<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        number: u64,
        page: &[u8],
    ) -> Result<(), ProtectError> {
        let storage = directory.storage();
        let found = self.layers.iter().find_map(|layer| layer.index(number).map(|index| (layer, index)));
        let (path, offset) = match (found, self.base) {
            (Some((layer, index)), _) => {
                (layer.path.clone(), super::changed::HEADER_BYTES as u64 + index * RECORD_BYTES as u64)
            }
            (None, Some((base, pages))) if number < pages => (pages_path(base), number * RECORD_BYTES as u64),
            _ => return Ok(()),
        };
        let mut file = storage.reopen(&path)?;
        storage.overwrite(&mut file, offset, &record(page))?;
        Ok(storage.sync_file(&mut file)?)
    }
}

/// Writes the parity of all pages as of `generation`; `page` tells each. What is not there any more of older files goes.
pub(super) fn write_whole<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
    pages: u64,
    mut page: impl FnMut(&mut JobDirectory<S>, u64) -> Result<Option<Vec<u8>>, ProtectError>,
) -> Result<(), ProtectError> {
    let storage = directory.storage();
    match storage.create_directory(DIRECTORY) {
        Ok(()) | Err(StorageError::AlreadyExists { .. }) => storage.sync_directory("")?,
        Err(error) => return Err(error.into()),
    }
    let path = pages_path(generation);
    let temporary = names::temporary(&path);
    let mut file = create_anew(storage, &temporary)?;
    let zero = vec![0; PAGE_BYTES];
    for number in 0..pages {
        let content = page(directory, number)?;
        directory.storage().append(&mut file, &record(content.as_deref().unwrap_or(&zero)))?;
    }
    let storage = directory.storage();
    storage.sync_file(&mut file)?;
    storage.rename(&temporary, &path)?;
    storage.sync_directory(DIRECTORY)?;
    remove_others(storage, generation)
}

fn remove_others<S: Storage>(storage: &mut S, generation: GenerationId) -> Result<(), ProtectError> {
    let others: Vec<GenerationId> =
        bases(storage)?.into_iter().filter(|other| *other != generation).collect();
    for other in &others {
        storage.remove_file(&pages_path(*other))?;
    }
    if !others.is_empty() {
        storage.sync_directory(DIRECTORY)?;
    }
    Ok(())
}

/// Writes what has changed up to `generation`, which is committed, into the file with all pages. Parity of older generations
/// is gone then; parity of newer ones builds upon it.
///
/// At every instant parity of this generation and of newer ones can be read: each page that is being written over lies in a file of
/// changes as well, until all of them are durable. Doing it again, after a crash at any instant, changes nothing.
pub fn fold<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
) -> Result<(), ProtectError> {
    let kept = match Kept::open(directory, generation) {
        // Nothing of it is protected here, or what is was lost and waits for its repair.
        Err(ProtectError::NoParity { .. }) => return Ok(()),
        opened => opened?,
    };
    // A whole one ends the search, so it can only be the last.
    let mut base = kept.base;
    for layer in kept.layers.iter().rev() {
        base = Some(match base {
            Some(base) if layer.from.is_some() => fold_into(directory, base, layer)?,
            _ => {
                let pages = layer.numbers.last().map_or(0, |last| last + 1);
                write_whole(directory, layer.generation, pages, |directory, number| {
                    match layer.index(number) {
                        Some(index) => layer.read(directory.storage(), index, number).map(Some),
                        None => Ok(None),
                    }
                })?;
                (layer.generation, pages)
            }
        });
        let storage = directory.storage();
        storage.remove_file(&layer.path)?;
        storage.sync_directory(&names::generation(layer.generation))?;
    }
    remove_others(directory.storage(), generation)
}

fn fold_into<S: Storage>(
    directory: &mut JobDirectory<S>,
    (base, mut pages): (GenerationId, u64),
    layer: &Changed,
) -> Result<(GenerationId, u64), ProtectError> {
    let storage = directory.storage();
    let (from, to) = (pages_path(base), pages_path(layer.generation));
    let mut file = storage.reopen(&from)?;
    let length = storage.length(&from)?;
    // Half a record at the end is from an attempt that did not come to the end.
    if length > pages * RECORD_BYTES as u64 {
        let rest = usize::try_from((pages + 1) * RECORD_BYTES as u64 - length).expect("less than a record");
        storage.append(&mut file, &vec![0; rest])?;
        storage.overwrite(&mut file, pages * RECORD_BYTES as u64, &record(&[0; PAGE_BYTES]))?;
        pages += 1;
    }
    for (index, number) in (0..).zip(&layer.numbers) {
        let page = layer.read(storage, index, *number)?;
        while pages < *number {
            storage.append(&mut file, &record(&[0; PAGE_BYTES]))?;
            pages += 1;
        }
        if *number < pages {
            storage.overwrite(&mut file, number * RECORD_BYTES as u64, &record(&page))?;
        } else {
            storage.append(&mut file, &record(&page))?;
            pages += 1;
        }
    }
    storage.sync_file(&mut file)?;
    storage.rename(&from, &to)?;
    storage.sync_directory(DIRECTORY)?;
    Ok((layer.generation, pages))
}

/// The record that says how a generation is protected.
pub(super) fn protected<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
) -> Result<Protected, ProtectError> {
    let path = names::in_generation(generation, names::PROTECTED);
    let bytes = directory.storage().read(&path, crate::limits::RECORD_BYTES_MAX)?;
    Protected::parse(&bytes).map_err(|error| ProtectError::Record { path, error })
}
