//! The checkpoints of one content in a folder: numbers, bases and signatures are managed here.
//!
//! ```text
//! 00000007.delta        checkpoint 7
//! 00000007.signature    its hashes; only of the newest one and its base, and made anew from the deltas if it is lost
//! 00000008.delta.tmp    one that is being written, or was when its writer died
//! ```
//!
//! A checkpoint is written once and never changed, so any of them can be restored while the next one is being written. One process at a time may write.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::{Chain, Layer};
use super::error::DeltaError;
use super::file::{DeltaReader, Facts};
use super::rules::{Choice, Rules, SeriesState};
use super::signature::Signature;
use super::writer::{DeltaOptions, DeltaSummary, DeltaWriter, Differences};
use crate::error::StoreError;
use crate::packets::{Compression, Key, Sealing, Source};
use crate::storage::{Appended, EntryKind, Storage, StorageError, Stored};

/// A checkpoint of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its facts.
    pub facts: Facts,
    /// Bytes of its file.
    pub bytes: u64,
}

/// A folder of checkpoints.
#[derive(Debug)]
pub struct Series<S> {
    storage: S,
    folder: String,
    rules: Rules,
    key: Option<Key>,
    members: BTreeMap<u64, Member>,
    /// Files that cannot be read, and why; their numbers are not used again.
    damaged: BTreeMap<u64, StoreError>,
    /// Those that were needed lately.
    signatures: BTreeMap<u64, Arc<Signature>>,
}

/// How the blocks of a new checkpoint are cut, hashed and stored.
#[derive(Clone, Debug)]
pub struct Making {
    /// Bytes of a block; if it is not that of the base, the checkpoint is full.
    pub block_bytes: u32,
    /// The seed of hashes, unless a base has another: a random number, once chosen.
    pub seed: u64,
    /// How blocks are compressed.
    pub compression: Compression,
    /// A random salt, if the series has a key.
    pub salt: [u8; 24],
}

impl<S: Storage> Series<S> {
    /// Reads the folder, which must exist. With a key, everything in it is encrypted.
    pub fn open(
        mut storage: S,
        folder: &str,
        rules: Rules,
        key: Option<Key>,
    ) -> Result<Series<S>, StoreError> {
        let (mut members, mut damaged) = (BTreeMap::new(), BTreeMap::new());
        for entry in storage.list(folder)? {
            let (Some(number), EntryKind::File { bytes }) = (number_of(&entry.name), entry.kind) else {
                continue;
            };
            let path = path_of(folder, number, DELTA);
            let source = Stored::open(&mut storage, &path)?;
            match DeltaReader::facts_of(&source, key.as_ref()) {
                Ok(facts) if facts.number == number => {
                    members.insert(number, Member { facts, bytes });
                }
                Ok(facts) => {
                    let error = DeltaError::NumberDiffers { expected: number, found: facts.number };
                    damaged.insert(number, StoreError::Delta { path, error });
                }
                Err(error) if error.is_about_key() => return Err(StoreError::Delta { path, error }),
                Err(error) => {
                    damaged.insert(number, StoreError::Delta { path, error });
                }
            }
        }
        let folder = folder.to_owned();
        Ok(Series { storage, folder, rules, key, members, damaged, signatures: BTreeMap::new() })
    }

    /// All that can be read, by number.
    pub fn members(&self) -> impl DoubleEndedIterator<Item = &Member> {
        self.members.values()
    }

    /// Files that cannot be read.
    pub fn damaged(&self) -> impl Iterator<Item = (u64, &StoreError)> {
        self.damaged.iter().map(|(number, error)| (*number, error))
    }

    /// The newest one that can be read.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        self.members.keys().next_back().copied()
    }

    /// Numbers of the checkpoints that `number` needs, itself first.
    pub fn needs(&self, number: u64) -> Result<Vec<u64>, DeltaError> {
        let mut needs = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next {
            let Some(member) = self.members.get(&number) else {
                return Err(match needs.last() {
                    None => DeltaError::NoSuchNumber { number, newest: self.newest() },
                    Some(above) => DeltaError::ChainBroken { number: *above, base: number },
                });
            };
            needs.push(number);
            let base = member.facts.base.map(|_| member.facts.base_number);
            if base.is_some_and(|base| base >= number) {
                return Err(DeltaError::Unreadable { what: "index" });
            }
            next = base;
        }
        Ok(needs)
    }

    /// Files of the checkpoints that `number` needs, itself first, below the storage's root.
    pub fn files(&self, number: u64) -> Result<Vec<String>, DeltaError> {
        Ok(self.needs(number)?.into_iter().map(|number| path_of(&self.folder, number, DELTA)).collect())
    }

    /// Checkpoint `number` with all that it needs, whose files `open` opens.
    pub fn chain<R: Source>(
        &self,
        number: u64,
        mut open: impl FnMut(&str) -> Result<R, StorageError>,
    ) -> Result<Chain<R>, StoreError> {
        let top = path_of(&self.folder, number, DELTA);
        let failed = |path: &str, error| StoreError::Delta { path: path.to_owned(), error };
        let mut layers = Vec::new();
        for path in self.files(number).map_err(|error| failed(&top, error))? {
            layers.push(Layer::open(open(&path)?, self.key.as_ref()).map_err(|error| failed(&path, error))?);
        }
        Chain::new(layers, None).map_err(|error| failed(&top, error))
    }

    /// Where the next checkpoint stands.
    fn state(&self) -> Option<SeriesState> {
        let count = |number: u64| {
            let files = self.needs(number).ok()?.len();
            Some((number, u32::try_from(files).unwrap_or(u32::MAX)))
        };
        let (number, newest) = self.members.iter().next_back()?;
        let is_base = newest.facts.becomes_base || newest.facts.base.is_none();
        let base = if is_base { *number } else { newest.facts.base_number };
        let full = self.members.values().rev().find(|member| member.facts.base.is_none())?.facts.number;
        Some(SeriesState { base: count(base)?, full, newest: count(*number)? })
    }

    /// The signature of checkpoint `number`: as it was kept, or from the deltas that it needs.
    pub fn signature(&mut self, number: u64) -> Result<Arc<Signature>, StoreError> {
        if let Some(signature) = self.signatures.get(&number) {
            return Ok(Arc::clone(signature));
        }
        let kept = self.kept_signature(number);
        let signature = match kept {
            Some(signature) => signature,
            None => self.composed_signature(number)?,
        };
        let signature = Arc::new(signature);
        self.signatures.insert(number, Arc::clone(&signature));
        Ok(signature)
    }

    fn kept_signature(&mut self, number: u64) -> Option<Signature> {
        let path = path_of(&self.folder, number, SIGNATURE);
        let source = Stored::open(&mut self.storage, &path).ok()?;
        let signature = Signature::read(&source, self.key.as_ref()).ok()?;
        (signature.name() == self.members.get(&number)?.facts.name).then_some(signature)
    }

    fn composed_signature(&mut self, number: u64) -> Result<Signature, StoreError> {
        let top = path_of(&self.folder, number, DELTA);
        let failed = |path: &str, error| StoreError::Delta { path: path.to_owned(), error };
        let mut layers = Vec::new();
        for path in self.files(number).map_err(|error| failed(&top, error))? {
            let source = Stored::open(&mut self.storage, &path)?;
            let delta =
                DeltaReader::open(&source, self.key.as_ref()).map_err(|error| failed(&path, error))?;
            layers.push(Layer { delta, source: () });
        }
        let signature = Chain::new(layers, None).and_then(|chain| chain.signature());
        let signature = signature.map_err(|error| failed(&top, error))?;
        Ok(signature.expect("a chain without a file below has a signature"))
    }

    /// Begins the next checkpoint. A checkpoint without an available base becomes full.
    pub fn begin(&mut self, making: &Making) -> Result<Adding<'_, S>, StoreError> {
        let newest = self.newest();
        let last = newest.max(self.damaged.keys().next_back().copied());
        let number = last.map_or(0, |last| last + 1);
        let base = match self.rules.choose(self.state().as_ref()) {
            Choice::Full => None,
            Choice::Delta { base } => self.signature(base).ok().map(|signature| (base, signature)),
        };
        let base = base.filter(|(_, signature)| signature.block_bytes() == making.block_bytes);
        let previous = match (&base, newest) {
            (Some((base, signature)), Some(newest)) if *base != newest => {
                let previous = self.signature(newest).ok();
                previous.filter(|previous| previous.comparable(signature).is_ok())
            }
            _ => None,
        };
        let sealing = self.key.clone().map(|key| Sealing::new(key, making.salt));
        let seed = base.as_ref().map_or(making.seed, |(_, signature)| signature.seed());
        let (base_number, base) = base.unzip();
        let options =
            DeltaOptions { base, previous, compression: making.compression, sealing: sealing.clone() };
        let temporary = path_of(&self.folder, number, DELTA) + TEMPORARY;
        // Its writer is dead: one process at a time may write.
        match self.storage.remove_file(&temporary) {
            Ok(()) | Err(StorageError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let mut file = self.storage.create(&temporary)?;
        let begun = DeltaWriter::begin(
            &mut Appended { storage: &mut self.storage, file: &mut file },
            making.block_bytes,
            seed,
            options,
        );
        match begun {
            Ok(writer) => Ok(Adding {
                series: self,
                file,
                writer,
                number,
                base_number: base_number.unwrap_or(0),
                sealing,
            }),
            Err(error) => {
                let _ = self.storage.remove_file(&temporary);
                Err(StoreError::Delta { path: temporary, error })
            }
        }
    }

    /// Removes checkpoints, but for the newest `keep` and their bases. Returns the numbers of removed checkpoints, the newest first: at no instant
    /// does a checkpoint lack its base.
    pub fn collect(&mut self, keep: usize) -> Result<Vec<u64>, StoreError> {
        let mut needed: Vec<u64> = Vec::new();
        for number in self.members.keys().rev().take(keep.max(1)) {
            // Of a chain that is broken already nothing is removed.
            needed.extend(self.needs(*number).unwrap_or_else(|_| self.members.keys().copied().collect()));
        }
        let gone: Vec<u64> =
            self.members.keys().rev().copied().filter(|number| !needed.contains(number)).collect();
        for number in &gone {
            self.storage.remove_file(&path_of(&self.folder, *number, DELTA))?;
            self.members.remove(number);
            self.forget_signature(*number);
        }
        if !gone.is_empty() {
            self.storage.sync_directory(&self.folder)?;
        }
        Ok(gone)
    }

    fn forget_signature(&mut self, number: u64) {
        self.signatures.remove(&number);
        // Remains do no harm.
        let _ = self.storage.remove_file(&path_of(&self.folder, number, SIGNATURE));
    }

    /// Keeps the signature of the newest one in a file, and no others but its base's. A delta is durable without: a failure here costs reading the
    /// deltas again.
    fn keep_signature(&mut self, number: u64, signature: &Arc<Signature>, sealing: Option<Sealing>) {
        let path = path_of(&self.folder, number, SIGNATURE);
        let temporary = path.clone() + TEMPORARY;
        let _ = self.storage.remove_file(&temporary);
        let written = self.write_signature(&temporary, signature, sealing);
        if written.is_err() || self.storage.rename(&temporary, &path).is_err() {
            let _ = self.storage.remove_file(&temporary);
        }
        self.signatures.insert(number, Arc::clone(signature));
        let wanted = self.state().map(|state| [state.base.0, state.full, state.newest.0]);
        let names = self.storage.list(&self.folder).unwrap_or_default();
        let kept = names.iter().filter_map(|entry| entry.name.strip_suffix(SIGNATURE)?.parse().ok());
        for other in kept.chain(self.signatures.keys().copied()).collect::<Vec<u64>>() {
            if wanted.is_some_and(|wanted| !wanted.contains(&other)) {
                self.forget_signature(other);
            }
        }
    }

    fn write_signature(
        &mut self,
        path: &str,
        signature: &Signature,
        sealing: Option<Sealing>,
    ) -> Result<(), DeltaError> {
        let mut file = self.storage.create(path)?;
        signature.write(&mut Appended { storage: &mut self.storage, file: &mut file }, sealing)?;
        Ok(self.storage.sync_file(&mut file)?)
    }
}

/// A checkpoint that is being written. One that is dropped leaves its temporary file for the next one to remove.
pub struct Adding<'a, S: Storage> {
    series: &'a mut Series<S>,
    file: S::File,
    writer: DeltaWriter,
    number: u64,
    base_number: u64,
    sealing: Option<Sealing>,
}

impl<S: Storage> Adding<'_, S> {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// As [`DeltaWriter::push`].
    pub fn push(&mut self, place: u64, block: &[u8]) -> Result<(), StoreError> {
        let mut sink = Appended { storage: &mut self.series.storage, file: &mut self.file };
        let pushed = self.writer.push(&mut sink, place, block);
        pushed.map_err(|error| self.series.failed(self.number, error))
    }

    /// As [`DeltaWriter::unwritten`], `since` the checkpoint with that number.
    pub fn unwritten(&mut self, place: u64, since: u64) -> Result<bool, StoreError> {
        let since = self.series.signature(since)?;
        let known = self.writer.unwritten(place, &since);
        known.map_err(|error| self.series.failed(self.number, error))
    }

    /// How much differs so far.
    #[must_use]
    pub fn differences(&self) -> Differences {
        self.writer.differences()
    }

    /// Makes it durable, and gives it its name.
    pub fn finish(self) -> Result<DeltaSummary, StoreError> {
        let Adding { series, mut file, writer, number, base_number, sealing } = self;
        let differences = writer.differences();
        let becomes_base = series.rules.becomes_base(differences.since_base, differences.since_previous);
        let mut sink = Appended { storage: &mut series.storage, file: &mut file };
        let finished = writer.finish(&mut sink, number, base_number, becomes_base);
        let path = path_of(&series.folder, number, DELTA);
        let temporary = path.clone() + TEMPORARY;
        let published =
            finished.map_err(|error| StoreError::Delta { path: path.clone(), error }).and_then(|summary| {
                series.storage.sync_file(&mut file)?;
                series.storage.publish(&temporary, &path)?;
                Ok(summary)
            });
        let summary = match published {
            Ok(summary) => summary,
            Err(error) => {
                // A half-written file is useless, and a full disk needs its room.
                let _ = series.storage.remove_file(&temporary);
                return Err(error);
            }
        };
        series.storage.sync_directory(&series.folder)?;
        series.members.insert(number, Member { facts: summary.facts, bytes: summary.stored_bytes });
        let sealing = sealing.map(|sealing| sealing.part(2));
        series.keep_signature(number, &summary.signature, sealing);
        Ok(summary)
    }

    /// Gives it up, and removes its unfinished file.
    pub fn abandon(self) -> Result<(), StoreError> {
        let temporary = path_of(&self.series.folder, self.number, DELTA) + TEMPORARY;
        Ok(self.series.storage.remove_file(&temporary)?)
    }
}

impl<S> Series<S> {
    fn failed(&self, number: u64, error: DeltaError) -> StoreError {
        StoreError::Delta { path: path_of(&self.folder, number, DELTA), error }
    }
}

const DELTA: &str = ".delta";
const SIGNATURE: &str = ".signature";
const TEMPORARY: &str = ".tmp";

fn path_of(folder: &str, number: u64, ending: &str) -> String {
    let name = format!("{number:08}{ending}");
    if folder.is_empty() { name } else { format!("{folder}/{name}") }
}

/// The number of a checkpoint, if a file is one.
fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(DELTA)?.parse().ok()?;
    (path_of("", number, DELTA) == name).then_some(number)
}
