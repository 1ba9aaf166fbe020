//! The parity that a node keeps: one file with all pages, and the changes of generations that are not folded into it yet. Where a generation was rebuilt
//! apart from those before it, it has a file with all pages of its own, upon which the next ones build.

use ckpt_glue::GenerationId;

use super::base::{Base, DIRECTORY, base_of, bases};
use super::error::ProtectError;
use super::parity_changes::{
    HEADER_BYTES, ParityChanges, RECORD_BYTES, RUN_BYTES, Records, make_directory, read_records, record,
    record_offset, replace,
};
use crate::job::{JobDirectory, names};
use crate::limits::PAGE_BYTES;
use crate::record::Protected;
use crate::storage::Storage;

/// Bytes after which a file that is being written is made durable, so that no single call takes long: the caller gets
/// progress in between.
const SYNC_BYTES: usize = 64 << 20;

/// A node's parity of one generation: layers of changes over their base.
#[derive(Clone, Debug)]
pub(super) struct NodeParity {
    /// The newest first.
    layers: Vec<ParityChanges>,
    /// Their base.
    base: Option<Base>,
}

impl NodeParity {
    /// Finds the parity of `generation`. Nothing of it is read but tables.
    pub(super) fn open<S: Storage>(
        directory: &mut JobDirectory<S>,
        generation: GenerationId,
    ) -> Result<NodeParity, ProtectError> {
        let storage = directory.storage();
        let (bases, mut layers) = (bases(storage)?, Vec::<ParityChanges>::new());
        let mut at = generation;
        loop {
            if let Some(base) = base_of(storage, &bases, at)? {
                return Ok(NodeParity { layers, base: Some(base) });
            }
            let layer = match ParityChanges::open(storage, at) {
                Err(error) if error.is_absence() => return Err(ProtectError::NoParity { generation }),
                opened => opened?,
            };
            // Generations only build upon older ones, so this ends.
            let from = layer.from.filter(|from| *from < at);
            let ends = layer.from.is_none();
            layers.push(layer);
            match from {
                Some(from) => at = from,
                None if ends => return Ok(NodeParity { layers, base: None }),
                None => return Err(ProtectError::NoParity { generation }),
            }
        }
    }

    /// The generation that it builds upon.
    pub(super) fn from(&self) -> Option<GenerationId> {
        self.layers.first().and_then(|layer| layer.from)
    }

    /// Page `number`; `None`: it is zero.
    pub(super) fn page<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        number: u64,
    ) -> Result<Option<Vec<u8>>, ProtectError> {
        if matches!(self.source(number), Source::Nowhere) {
            return Ok(None);
        }
        let mut page = vec![0; PAGE_BYTES];
        self.read(directory, number, &mut page)?;
        Ok(Some(page))
    }

    /// Pages from `number` on.
    pub(super) fn read<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        number: u64,
        pages: &mut [u8],
    ) -> Result<(), ProtectError> {
        let count = pages.len() / PAGE_BYTES;
        let mut done = 0;
        while done < count {
            let first = number + done as u64;
            let source = self.source(first);
            // Adjacent pages of one source are read together.
            let run = (1..count - done).find(|i| self.source(first + *i as u64) != source.after(*i as u64));
            let run = run.unwrap_or(count - done);
            let into = &mut pages[done * PAGE_BYTES..(done + run) * PAGE_BYTES];
            match source {
                Source::Layer(layer, index) => {
                    self.layers[layer].read(directory.storage(), index, first, into)?;
                }
                Source::Base(path, index) => {
                    read_records(directory.storage(), path, record_offset(0, index), first, into)?;
                }
                Source::Nowhere => into.fill(0),
            }
            done += run;
        }
        Ok(())
    }

    fn source(&self, number: u64) -> Source<'_> {
        let in_layers = self
            .layers
            .iter()
            .enumerate()
            .find_map(|(i, layer)| layer.index(number).map(|at| Source::Layer(i, at)));
        let base = self.base.as_ref().filter(|base| number < base.pages);
        let in_base = base.map(|base| Source::Base(&base.path, number));
        in_layers.or(in_base).unwrap_or(Source::Nowhere)
    }

    /// Pages from 0 on that may be other than zero.
    pub(super) fn pages(&self) -> u64 {
        let of_layers = self.layers.iter().filter_map(|layer| layer.numbers.last()).map(|last| last + 1);
        of_layers.chain(self.base.as_ref().map(|base| base.pages)).max().unwrap_or(0)
    }

    /// Writes page `number` in its place, over damaged bytes.
    pub(super) fn repair_page<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        number: u64,
        page: &[u8],
    ) -> Result<(), ProtectError> {
        let storage = directory.storage();
        let (path, offset) = match self.source(number) {
            Source::Layer(layer, index) => {
                (self.layers[layer].path.clone(), record_offset(HEADER_BYTES as u64, index))
            }
            Source::Base(path, index) => (path.to_owned(), record_offset(0, index)),
            Source::Nowhere => return Ok(()),
        };
        let mut file = storage.reopen(&path)?;
        storage.overwrite(&mut file, offset, &record(page))?;
        Ok(storage.sync_file(&mut file)?)
    }
}

/// Where a page of parity is, and which record of that file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source<'a> {
    Layer(usize, u64),
    Base(&'a str, u64),
    Nowhere,
}

impl Source<'_> {
    /// That of a page so many pages on, if it lies together with this one.
    fn after(self, pages: u64) -> Self {
        match self {
            Source::Layer(layer, index) => Source::Layer(layer, index + pages),
            Source::Base(path, index) => Source::Base(path, index + pages),
            Source::Nowhere => Source::Nowhere,
        }
    }
}

/// Writes the parity of all pages as of `generation`; `page` returns each. Files of other generations stay: newer ones
/// may build upon them.
pub(super) fn write_whole<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
    pages: u64,
    mut page: impl FnMut(&mut JobDirectory<S>, u64) -> Result<Option<Vec<u8>>, ProtectError>,
) -> Result<(), ProtectError> {
    make_directory(directory.storage(), DIRECTORY)?;
    let Base { path, .. } = Base::new(generation, pages);
    replace(directory, &path, |directory, file| {
        let (zero, mut records) = (vec![0; PAGE_BYTES], Records::default());
        for number in 0..pages {
            let content = page(directory, number)?;
            records.add(directory.storage(), file, content.as_deref().unwrap_or(&zero))?;
            if (number + 1) % (SYNC_BYTES / PAGE_BYTES) as u64 == 0 {
                records.write(directory.storage(), file)?;
                directory.storage().sync_file(file)?;
            }
        }
        Ok(records.write(directory.storage(), file)?)
    })?;
    // Files that could not be read, and had another number of pages.
    remove_others(directory.storage(), |other| !other.is_of(generation) || other.path == path)
}

fn remove_others<S: Storage>(storage: &mut S, stays: impl Fn(&Base) -> bool) -> Result<(), ProtectError> {
    let others: Vec<Base> = bases(storage)?.into_iter().filter(|other| !stays(other)).collect();
    for other in &others {
        storage.remove_file(&other.path)?;
    }
    if !others.is_empty() {
        storage.sync_directory(DIRECTORY)?;
    }
    Ok(())
}

/// Called before all generations go but those of `kept`, which are committed and in order, and those `in_use`. Writes the changes up to the oldest
/// kept one into the file with all pages. Gives such a file to each newer one that builds upon a removed one. Parity of other generations is gone
/// then.
///
/// At every instant parity of this generation and of newer ones can be read: each page that is being written over lies in a file of
/// changes as well, until all of them are durable. Doing it again, after a crash at any instant, changes nothing.
///
/// `progress` is called after every run of pages that has been read or written.
pub(crate) fn fold<S: Storage>(
    directory: &mut JobDirectory<S>,
    kept: &[GenerationId],
    in_use: &[GenerationId],
    progress: &mut dyn FnMut(),
) -> Result<(), ProtectError> {
    let Some((oldest, newer)) = kept.split_first() else { return Ok(()) };
    fold_up_to(directory, *oldest, progress)?;
    for generation in newer {
        stand_alone(directory, *generation, kept, progress)?;
    }
    remove_others(directory.storage(), |other| {
        kept.contains(&other.generation) || in_use.contains(&other.generation)
    })
}

/// The parity of a generation; `None`: nothing of it is protected here, or its parity was lost and waits for its repair.
fn open_if_there<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
) -> Result<Option<NodeParity>, ProtectError> {
    match NodeParity::open(directory, generation) {
        Err(ProtectError::NoParity { .. }) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Gives a generation a file with all pages if its parity builds upon one that is not kept.
fn stand_alone<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
    kept: &[GenerationId],
    progress: &mut dyn FnMut(),
) -> Result<(), ProtectError> {
    let Some(found) = open_if_there(directory, generation)? else { return Ok(()) };
    let below = found
        .layers
        .iter()
        .map(|layer| layer.generation)
        .chain(found.base.iter().map(|base| base.generation));
    if below.into_iter().all(|below| kept.contains(&below)) {
        return Ok(());
    }
    write_all(directory, &found, generation, found.pages(), progress)?;
    let Some(own) = found.layers.first() else { return Ok(()) };
    let storage = directory.storage();
    storage.remove_file(&own.path)?;
    Ok(storage.sync_directory(&names::folder(generation))?)
}

/// Writes so many pages of `found` into a file with all pages as of `generation`.
fn write_all<S: Storage>(
    directory: &mut JobDirectory<S>,
    found: &NodeParity,
    generation: GenerationId,
    pages: u64,
    progress: &mut dyn FnMut(),
) -> Result<(), ProtectError> {
    let (mut run, mut first) = (Vec::new(), 0);
    write_whole(directory, generation, pages, |directory, number| {
        let mut at = usize::try_from(number - first).expect("within a run") * PAGE_BYTES;
        if at == run.len() {
            let left = usize::try_from(pages - number).expect("it fits") * PAGE_BYTES;
            (first, at, run) = (number, 0, vec![0; left.min(RUN_BYTES)]);
            found.read(directory, number, &mut run)?;
            progress();
        }
        Ok(Some(run[at..at + PAGE_BYTES].to_vec()))
    })
}

fn fold_up_to<S: Storage>(
    directory: &mut JobDirectory<S>,
    generation: GenerationId,
    progress: &mut dyn FnMut(),
) -> Result<(), ProtectError> {
    let Some(kept) = open_if_there(directory, generation)? else { return Ok(()) };
    // A whole one ends the search, so it can only be the last.
    let mut base = kept.base.clone();
    for layer in kept.layers.iter().rev() {
        base = Some(match base {
            Some(base) if layer.from.is_some() => fold_into(directory, base, layer, progress)?,
            _ => {
                let pages = layer.numbers.last().map_or(0, |last| last + 1);
                let alone = NodeParity { layers: vec![layer.clone()], base: None };
                write_all(directory, &alone, layer.generation, pages, progress)?;
                Base::new(layer.generation, pages)
            }
        });
        let storage = directory.storage();
        storage.remove_file(&layer.path)?;
        storage.sync_directory(&names::folder(layer.generation))?;
    }
    Ok(())
}

fn fold_into<S: Storage>(
    directory: &mut JobDirectory<S>,
    base: Base,
    layer: &ParityChanges,
    progress: &mut dyn FnMut(),
) -> Result<Base, ProtectError> {
    let storage = directory.storage();
    let mut file = storage.reopen(&base.path)?;
    let length = storage.length(&base.path)?;
    // Bytes behind its pages are from an attempt that did not come to the end. Any of them may have become durable, the last before the first: none
    // of them counts.
    let mut pages = base.pages;
    let behind = length.saturating_sub(record_offset(0, pages)).div_ceil(RECORD_BYTES as u64);
    let missing = record_offset(0, pages + behind) - length.max(record_offset(0, pages));
    storage.append(&mut file, &vec![0; usize::try_from(missing).expect("less than a record")])?;
    for _ in 0..behind {
        storage.overwrite(&mut file, record_offset(0, pages), &record(&[0; PAGE_BYTES]))?;
        pages += 1;
    }
    let (mut index, mut run, mut unsynced) = (0, Vec::new(), 0);
    while let Some(number) = layer.numbers.get(index).copied() {
        while pages < number {
            storage.append(&mut file, &record(&[0; PAGE_BYTES]))?;
            pages += 1;
        }
        // Over the existing pages, or behind them: not both at once.
        let most = if number < pages { pages - number } else { u64::MAX };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(RUN_BYTES / PAGE_BYTES);
        let count = layer.run(index, most);
        run.resize(count * PAGE_BYTES, 0);
        layer.read(storage, index as u64, number, &mut run)?;
        if number < pages {
            let records: Vec<u8> = run.chunks_exact(PAGE_BYTES).flat_map(record).collect();
            storage.overwrite(&mut file, record_offset(0, number), &records)?;
        } else {
            let mut records = Records::default();
            records.add(storage, &mut file, &run)?;
            records.write(storage, &mut file)?;
            pages += count as u64;
        }
        index += count;
        unsynced += run.len();
        if unsynced >= SYNC_BYTES {
            unsynced = 0;
            storage.sync_file(&mut file)?;
        }
        progress();
    }
    storage.sync_file(&mut file)?;
    let folded = Base::new(layer.generation, pages);
    storage.rename(&base.path, &folded.path)?;
    storage.sync_directory(DIRECTORY)?;
    Ok(folded)
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
