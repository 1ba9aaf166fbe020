//! The contents of one job's place: its copies, remains of others, and whether they are whole.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use store::checksum::checksum;
use store::delta::Chain;
use store::error::RecordError;
use store::limits::RECORD_BYTES_MAX;
use store::packets::{Key, KeyUse, PacketReader, Source as _, parallel};
use store::record::{BaseCopy, Copied, CopiedFile, KeyName};
use store::{GenerationId, JobFile, Manifest, StorageError};
use transport::{JobId, Rank};

use crate::error::CopyError;
use crate::key::CopyKey;
use crate::names;
use crate::target::Target;
use crate::windows::Windows;

/// The jobs that have something at a place.
pub fn jobs(target: &dyn Target) -> Result<Vec<JobId>, StorageError> {
    Ok(target.top()?.iter().filter_map(|name| names::job_parsed(name)).collect())
}

/// The copies of one job.
pub struct Copies<'a> {
    pub(crate) target: &'a dyn Target,
    pub(crate) job: JobId,
    pub(crate) key: Option<CopyKey>,
}

/// The copies found of a job.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The copies, oldest generation first.
    pub copies: Vec<Copied>,
    /// Records that cannot be read, and why.
    pub damaged: Vec<(GenerationId, CopyError)>,
    /// Copies with the key that was given whose record nobody signed with it; with the paths of the records.
    pub(crate) unsigned: BTreeMap<GenerationId, String>,
    /// Checksums of the records.
    pub(crate) records: BTreeMap<GenerationId, u64>,
    /// Every file, with its length.
    pub(crate) entries: BTreeMap<String, u64>,
}

/// Something of a copy that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which copy.
    pub generation: GenerationId,
    /// The fault.
    pub error: CopyError,
}

impl Listed {
    /// The newest copy.
    #[must_use]
    pub fn newest(&self) -> Option<&Copied> {
        self.copies.last()
    }

    /// The largest counter of any life.
    #[must_use]
    pub fn counter_last(&self) -> u32 {
        let damaged = self.damaged.iter().map(|(generation, _)| generation.life.counter);
        self.copies.iter().map(|copy| copy.generation.life.counter).chain(damaged).max().unwrap_or(0)
    }

    /// Bytes of all files of the job, and how many files belong to no copy: a copy that is being written, or was given up. None is counted while a record
    /// cannot be read.
    #[must_use]
    pub fn bytes_and_leftovers(&self) -> (u64, usize) {
        (self.entries.values().sum(), self.leftovers().len())
    }

    /// Files that no copy names. None if a record cannot be read: the files that it names are unknown.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        if !self.damaged.is_empty() {
            return Vec::new();
        }
        let named = named(&self.copies);
        self.entries.keys().filter(|path| !named.contains(*path)).cloned().collect()
    }
}

/// Every file that these copies consist of, without those of their bases.
pub(crate) fn named<'a>(copies: impl IntoIterator<Item = &'a Copied>) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for copy in copies {
        for name in [names::COPIED, names::MANIFEST, names::JOB_FILE] {
            paths.insert(names::in_copy(copy.job, copy.generation, name));
        }
        for rank in (0..).map(Rank).take(copy.ranks.len()) {
            for what in [names::BLOCKS, names::PLACES] {
                paths.insert(names::of_rank(copy.job, copy.generation, rank, what));
            }
        }
    }
    paths
}

impl<'a> Copies<'a> {
    /// Of job `job`, at `target`. `key`: new files are encrypted or signed with it, and others must have been.
    #[must_use]
    pub fn new(target: &'a dyn Target, job: JobId, key: Option<CopyKey>) -> Copies<'a> {
        Copies { target, job, key }
    }

    /// The same at another place.
    pub(crate) fn at<'b>(&self, target: &'b dyn Target) -> Copies<'b> {
        Copies { target, job: self.job, key: self.key.clone() }
    }

    /// Lists the copies. Fails only if the place does not answer.
    pub fn list(&self) -> Result<Listed, CopyError> {
        let entries = self.target.list(&names::job(self.job))?;
        let (mut copies, mut damaged) = (Vec::new(), Vec::new());
        let (mut records, mut unsigned) = (BTreeMap::new(), BTreeMap::new());
        for entry in &entries {
            let Some(generation) = names::copied_parsed(self.job, &entry.path) else { continue };
            let bytes = match self.target.read(&entry.path, RECORD_BYTES_MAX) {
                // It has just been removed.
                Err(StorageError::NotFound { .. }) => continue,
                read => read?,
            };
            match self.parse(generation, &bytes) {
                Ok(copied) => {
                    records.insert(generation, checksum(&bytes));
                    // A copy with another key is a matter for its owner.
                    let own = self.key.as_ref().map(|of| of.key.id());
                    if copied.key.is_some_and(|key| own == Some(key.id)) && !self.is_signed(&copied) {
                        unsigned.insert(generation, self.target.shown(&entry.path));
                    }
                    copies.push(copied);
                }
                Err(error) => {
                    let path = self.target.shown(&entry.path);
                    damaged.push((generation, CopyError::Record { path, error }));
                }
            }
        }
        copies.sort_by_key(|copy| copy.generation);
        let entries = entries.into_iter().map(|entry| (entry.path, entry.bytes)).collect();
        Ok(Listed { copies, damaged, unsigned, records, entries })
    }

    /// The record of one copy, and its checksum, without reading other files. None: there is no such copy.
    pub(crate) fn record(&self, generation: GenerationId) -> Result<Option<(Copied, u64)>, CopyError> {
        let path = names::in_copy(self.job, generation, names::COPIED);
        let bytes = match self.target.read(&path, RECORD_BYTES_MAX) {
            Err(StorageError::NotFound { .. }) => return Ok(None),
            read => read?,
        };
        match self.parse(generation, &bytes) {
            Ok(copied) => Ok(Some((copied, checksum(&bytes)))),
            Err(error) => Err(CopyError::Record { path: self.target.shown(&path), error }),
        }
    }

    /// A copy and all its bases, by their names and not by a listing of the place. Missing files are found when they
    /// are read.
    pub fn with_needs(&self, generation: GenerationId) -> Result<Vec<Copied>, CopyError> {
        let (copied, _) = self.record(generation)?.ok_or(CopyError::NoCopy { generation })?;
        self.check_key(&copied)?;
        let mut needs = vec![copied];
        loop {
            let last = &needs[needs.len() - 1];
            let Some(BaseCopy { generation: base, record }) = last.upon else { return Ok(needs) };
            let no_base = || {
                CopyError::NoBase { generation: last.generation, base }.in_base(generation, last.generation)
            };
            let found = self.record(base).map_err(|error| error.in_base(generation, base))?;
            let is_new = !needs.iter().any(|known| known.generation == base);
            let (found, _) = found.filter(|(_, found)| *found == record && is_new).ok_or_else(no_base)?;
            if found.key != needs[0].key || found.ranks.len() != needs[0].ranks.len() {
                let error = CopyError::OtherBase { generation: last.generation, base };
                return Err(error.in_base(generation, last.generation));
            }
            self.check_key(&found).map_err(|error| error.in_base(generation, base))?;
            needs.push(found);
        }
    }

    fn parse(&self, generation: GenerationId, bytes: &[u8]) -> Result<Copied, RecordError> {
        let copied = Copied::parse(bytes)?;
        if copied.job != self.job {
            return Err(RecordError::WrongJob { expected: self.job, found: copied.job });
        }
        if copied.generation != generation {
            return Err(RecordError::WrongGeneration { expected: generation, found: copied.generation });
        }
        Ok(copied)
    }

    /// The job file of a copy.
    pub fn job_file(&self, copied: &Copied) -> Result<JobFile, CopyError> {
        self.check_key(copied)?;
        let path = names::in_copy(self.job, copied.generation, names::JOB_FILE);
        let bytes = self.read_small(&path, &copied.job_file, RECORD_BYTES_MAX)?;
        let failed = |error| CopyError::Record { path: self.target.shown(&path), error };
        let file = JobFile::parse(&bytes).map_err(failed)?;
        if file.job != self.job {
            return Err(failed(RecordError::WrongJob { expected: self.job, found: file.job }));
        }
        Ok(file)
    }

    /// The manifest of a copy.
    pub fn manifest(&self, copied: &Copied) -> Result<Manifest, CopyError> {
        let path = names::in_copy(self.job, copied.generation, names::MANIFEST);
        let bytes = self.target.read(&path, RECORD_BYTES_MAX)?;
        let failed = |error| CopyError::Record { path: self.target.shown(&path), error };
        self.check_key(copied)?;
        if let (Some(of), true) = (&self.key, copied.signature.is_some())
            && !copied.is_manifest_signed(&of.key, &bytes)
        {
            return Err(CopyError::Unsigned { path: self.target.shown(&path) });
        }
        let (expected, found) = (copied.manifest, Manifest::checksum(&bytes));
        if expected != found {
            return Err(failed(RecordError::WrongManifest { expected, found }));
        }
        let manifest = Manifest::parse(&bytes).map_err(failed)?;
        if manifest.job != self.job {
            return Err(failed(RecordError::WrongJob { expected: self.job, found: manifest.job }));
        }
        if manifest.generation != copied.generation {
            let (expected, found) = (copied.generation, manifest.generation);
            return Err(failed(RecordError::WrongGeneration { expected, found }));
        }
        let (expected, found) = (manifest.images.len(), copied.ranks.len());
        if expected != found {
            return Err(CopyError::Images { generation: copied.generation, expected, found });
        }
        Ok(manifest)
    }

    /// Whether nobody else can have written a record, as far as that is asked for.
    fn is_signed(&self, copied: &Copied) -> bool {
        let Some(CopyKey { key, accepts_unsigned, .. }) = &self.key else { return true };
        if copied.signature.is_none() { *accepts_unsigned } else { copied.is_signed(key) }
    }

    /// Checks that a copy has the key that was given, and that its record is signed with it. Signed copies can be read without the key as well.
    pub(crate) fn check_key(&self, copied: &Copied) -> Result<(), CopyError> {
        let shown = |name| self.target.shown(&names::in_copy(self.job, copied.generation, name));
        let given = self.key.as_ref().map(|of| of.key.id());
        match copied.key {
            None if given.is_some() => {
                // The packets themselves say that they need no key.
                let error = store::packets::PacketsError::NotEncrypted;
                Err(CopyError::Packets { path: shown(names::JOB_FILE), error })
            }
            Some(KeyName { id, usage })
                if given != Some(id) && (given.is_some() || usage == KeyUse::Encrypt) =>
            {
                Err(CopyError::Key { generation: copied.generation, usage, given: given.is_some() })
            }
            _ if !self.is_signed(copied) => Err(CopyError::Unsigned { path: shown(names::COPIED) }),
            _ => Ok(()),
        }
    }

    /// Whether a key vouches for everything that is read.
    #[must_use]
    pub fn is_authentic(&self) -> bool {
        self.key.is_some()
    }

    /// The key with which files are read.
    pub(crate) fn read_key(&self) -> Option<&Key> {
        self.key.as_ref().map(|of| &of.key)
    }

    /// Opens a packed file: the one that the record names.
    fn open_packed(
        &self,
        path: &str,
        file: &CopiedFile,
    ) -> Result<(PacketReader, Windows<Box<dyn store::packets::Source + 'a>>), CopyError> {
        let target: &'a dyn Target = self.target;
        let source = Windows::new(target.open(path)?);
        let exchanged = |what| CopyError::Exchanged { path: self.target.shown(path), what };
        if source.bytes() != file.stored_bytes {
            return Err(exchanged("its length is another one than was written"));
        }
        let mut footer = [0; 8];
        source.read_at(file.stored_bytes.saturating_sub(8), &mut footer)?;
        if u64::from_le_bytes(footer) != file.footer {
            return Err(exchanged("its footer is another one than was written"));
        }
        let failed = |error| CopyError::Packets { path: self.target.shown(path), error };
        let reader = PacketReader::open(&source, self.read_key()).map_err(failed)?;
        if reader.footer().content_bytes != file.bytes {
            return Err(exchanged("it holds more or fewer bytes than were packed"));
        }
        Ok((reader, source))
    }

    /// The content of a packed file that fits into memory, checked.
    pub(crate) fn read_small(
        &self,
        path: &str,
        file: &CopiedFile,
        bytes_max: u64,
    ) -> Result<Vec<u8>, CopyError> {
        let bytes = file.bytes;
        if bytes > bytes_max {
            return Err(StorageError::TooLong { path: self.target.shown(path), bytes, bytes_max }.into());
        }
        let (reader, source) = self.open_packed(path, file)?;
        let mut content = Vec::new();
        // Every byte of it, those that unpacking needs not as well.
        let read = reader.verify(&source).and_then(|()| {
            reader.read_all(&source, |packet| {
                content.extend_from_slice(packet);
                Ok(())
            })
        });
        read.map_err(|error| CopyError::Packets { path: self.target.shown(path), error })?;
        Ok(content)
    }

    /// Reads every byte of these copies, and of their bases, and checks it; each file once. `progress` gets the number
    /// of bytes as they are read, from several threads.
    pub fn verify(
        &self,
        copies: &[Copied],
        threads: NonZeroUsize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Found>, CopyError> {
        let listed = self.list()?;
        let mut found = Vec::new();
        // Each with its bases, as far as those exist.
        let mut meant: Vec<(&Copied, Vec<&Copied>)> = Vec::new();
        for copied in copies {
            let generation = copied.generation;
            let looked = self.check_key(copied).and_then(|()| {
                self.job_file(copied)?;
                self.manifest(copied)?;
                listed.needs(copied)
            });
            match looked {
                Ok(needs) => meant.push((copied, needs)),
                Err(error) => found.push(Found { generation, error }),
            }
        }
        // The places that a base names are its own matter.
        let mut parts: BTreeMap<(GenerationId, Rank, &str), &Copied> = BTreeMap::new();
        for (copied, needs) in &meant {
            for (rank, _) in copied.by_rank() {
                parts.insert((copied.generation, rank, names::PLACES), *copied);
                parts.extend(needs.iter().map(|at| ((at.generation, rank, names::BLOCKS), *at)));
            }
        }
        let parts: Vec<_> = parts.into_iter().collect();
        let wrong = Mutex::new(BTreeMap::new());
        parallel::each(
            parts.len() as u64,
            threads,
            || (),
            |(), number| {
                let (part, copied) = parts[usize::try_from(number).expect("it counts what is in memory")];
                let (_, rank, what) = part;
                let of = &copied.ranks[rank.0 as usize];
                let (verified, bytes) = if what == names::PLACES {
                    (self.places(copied, rank).map(drop), of.places.stored_bytes)
                } else {
                    (self.verify_blocks(copied, rank), of.blocks_bytes)
                };
                progress(bytes);
                if let Err(error) = verified {
                    wrong.lock().unwrap_or_else(PoisonError::into_inner).insert(part, error);
                }
                Ok::<(), CopyError>(())
            },
        )?;
        let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (copied, needs) in meant {
            let generation = copied.generation;
            for (rank, _) in copied.by_rank() {
                let before = found.len();
                let places = wrong.get(&(generation, rank, names::PLACES));
                found.extend(places.map(|error| Found { generation, error: error.clone() }));
                // Where this one has all blocks of a rank, the others' blocks of it do not matter.
                let chain = self.chain(&needs, rank);
                let files = chain.as_ref().map_or(needs.len(), Chain::files);
                found.extend(needs[..files].iter().filter_map(|at| {
                    let error = wrong.get(&(at.generation, rank, names::BLOCKS))?.clone();
                    Some(Found { generation, error: error.in_base(generation, at.generation) })
                }));
                // The content of each file is right; the files may still not belong together.
                if let (Err(error), true) = (chain, found.len() == before) {
                    found.push(Found { generation, error });
                }
            }
        }
        Ok(found)
    }
}
