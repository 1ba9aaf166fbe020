//! Writing a copy: first each rank's part, then the manifest, then the record with which the copy exists.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use store::checksum::checksum;
use store::delta::Rules;
use store::packets::{Compression, Cut, PacketWriter, PacketsSummary, Sink, parallel};
use store::record::{BaseCopy, Copied, CopiedFile};
use store::{
    GenerationId, ImageDigest, ImageReader, JobDirectory, JobFile, Manifest, Storage, StorageError,
    StoreError,
};
use transport::Rank;

use crate::blocks::BLOCK_BYTES;
use crate::chain::Ground;
use crate::copies::{Copies, named};
use crate::error::CopyError;
use crate::key::{CopyKey, salt};
use crate::names;
use crate::pack::Packed;
use crate::progress_target::ProgressTarget;
use crate::target::Writing;

/// Where the images of ranks lie, for reading: one directory of the job, or one for each node.
pub trait Source: Sync {
    /// Storage of the directories.
    type Storage: Storage;

    /// The directory that has a rank's image.
    fn directory(&self, rank: Rank) -> Result<JobDirectory<Self::Storage>, StoreError>;

    /// Which runs of pages a section of an image of a rank consists of: number of the first (its address by the length of a page), and how many. None: nothing is known of it,
    /// and its pages keep their places as far as nothing is put between them.
    fn runs(&self, rank: Rank, image: &ImageReader, section: u32) -> Vec<(u64, u64)>;
}

/// The content and the rules of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The job's file.
    pub job_file: &'a JobFile,
    /// The generation, which is committed.
    pub manifest: &'a Manifest,
    /// The time, in milliseconds since 1970-01-01 UTC.
    pub copied_unix_ms: u64,
    /// The number of newest copies that are kept, besides their bases.
    pub keep: u32,
    /// How copies build upon each other.
    pub rules: Rules,
    /// So many copies in a row at most are not whole. Nor do they take more room together than the whole one, but for the last.
    pub whole_every: u32,
    /// Images that are packed at once.
    pub threads: NonZeroUsize,
}

/// Called with the number of bytes as they are packed or unpacked, and with 0 for other progress, from several threads;
/// returns whether to continue.
type Listener = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// How far a copy has come, and whether it is to go on.
#[derive(Default)]
pub struct Report {
    bytes: AtomicU64,
    steps: AtomicU64,
    is_stopped: AtomicBool,
    listener: Option<Listener>,
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// The written data.
#[derive(Clone, Debug)]
pub struct Written {
    /// The copy.
    pub copied: Copied,
    /// Bytes that were not there before.
    pub new_bytes: u64,
    /// Older copies that were removed.
    pub removed: Vec<GenerationId>,
    /// Why older copies, or their files, could not be removed.
    pub unremoved: Option<CopyError>,
}

impl Report {
    /// A report to `listener`, which returns whether to continue.
    pub fn reporting_to(listener: impl Fn(u64) -> bool + Send + Sync + 'static) -> Report {
        Report { listener: Some(Box::new(listener)), ..Report::default() }
    }

    /// Bytes of images that have been packed, or unpacked, or were there already.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Grows as long as there is progress, also where no byte of an image counts: a table is read, a block found again, a file made durable.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Ends the work in progress, soon.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// So many more bytes; 0 is progress as well. An error if it is to end.
    pub fn add(&self, bytes: u64) -> Result<(), CopyError> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
        let goes_on = self.listener.as_ref().is_none_or(|listener| listener(bytes));
        if goes_on && !self.is_stopped.load(Ordering::Relaxed) { Ok(()) } else { Err(CopyError::Stopped) }
    }
}

/// Remembers the checksum that ends a packed file.
struct Tail<'a> {
    writing: &'a mut dyn Writing,
    last: [u8; 8],
}

impl Sink for Tail<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        if let Some(last) = bytes.last_chunk() {
            self.last = *last;
        }
        self.writing.put(bytes)
    }
}

impl Copies<'_> {
    /// Writes a copy of a committed generation, and removes older ones and the remains of incomplete ones. After an
    /// error it does not exist, and its files are removed now, or with the next copy.
    pub fn write<T: Source>(
        &self,
        work: &Work<'_>,
        source: &T,
        report: &Report,
    ) -> Result<Written, CopyError> {
        let watched = ProgressTarget::new(self.target, report);
        let copies = self.at(&watched);
        copies.write_by(work, report, |ground| {
            let all: Vec<usize> = (0..work.manifest.images.len()).collect();
            copies.pack_ranks(work.manifest, &all, work.threads, source, report, ground)
        })
    }

    /// The same, by `pack`, which returns a [`Packed`] of each image of the manifest.
    pub(crate) fn write_by(
        &self,
        work: &Work<'_>,
        report: &Report,
        pack: impl FnOnce(Option<&Ground<'_>>) -> Result<Vec<Packed>, CopyError>,
    ) -> Result<Written, CopyError> {
        let generation = work.manifest.generation;
        let before = self.list()?;
        if let Some(by) = before
            .copies
            .iter()
            .map(|copy| copy.generation)
            .find(|found| found.life.counter > generation.life.counter)
        {
            return Err(CopyError::Superseded { by });
        }
        let found = before.copies.iter().find(|copy| copy.generation == generation);
        let is_there = found.is_some_and(|found| {
            let has_key = found.key == self.key.as_ref().map(CopyKey::name) || before.is_needed(generation);
            has_key && before.needs(found).is_ok()
        });
        if !is_there {
            // It may have lost something, or be to have another key.
            self.target.remove(&names::in_copy(self.job, generation, names::COPIED))?;
        }
        for path in before.leftovers() {
            self.target.remove(&path)?;
        }
        let written = match found.filter(|_| is_there) {
            Some(found) => Ok((found.clone(), 0)),
            None => {
                let mut others = before.clone();
                others.copies.retain(|copy| copy.generation != generation);
                let ground =
                    others.ground(&work.rules, work.whole_every, self.key.as_ref().map(CopyKey::name));
                let written = self.write_all(work, report, ground.as_ref(), pack);
                if written.is_err() {
                    self.take_back(generation);
                }
                written
            }
        };
        let (copied, new_bytes) = written?;
        let (removed, unremoved) = match self.remove_old(work.keep) {
            Ok(removed) => removed,
            Err(error) => (Vec::new(), Some(error)),
        };
        Ok(Written { copied, new_bytes, removed, unremoved })
    }

    /// Removes the files of a copy that failed, as far as it goes: the next one removes the rest.
    fn take_back(&self, generation: GenerationId) {
        // Its record may have got its name all the same. As long as that is unknown, the files that it names stay.
        if self.target.remove(&names::in_copy(self.job, generation, names::COPIED)).is_ok() {
            for entry in self.target.list(&names::copy(self.job, generation)).unwrap_or_default() {
                let _ = self.target.remove(&entry.path);
            }
        }
    }

    /// Writes the parts of these images of a manifest, several at once.
    pub(crate) fn pack_ranks<T: Source>(
        &self,
        manifest: &Manifest,
        images: &[usize],
        threads: NonZeroUsize,
        source: &T,
        report: &Report,
        ground: Option<&Ground<'_>>,
    ) -> Result<Vec<Packed>, CopyError> {
        let packed = Mutex::new(vec![None; images.len()]);
        parallel::each(
            images.len() as u64,
            threads,
            || (),
            |(), number| {
                let at = usize::try_from(number).expect("it counts what is in memory");
                let written = self.write_rank(manifest, images[at], source, report, ground)?;
                packed.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(written);
                Ok::<(), CopyError>(())
            },
        )?;
        let packed = packed.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter();
        Ok(packed.map(|packed| packed.expect("written without an error")).collect())
    }

    fn write_all(
        &self,
        work: &Work<'_>,
        report: &Report,
        ground: Option<&Ground<'_>>,
        pack: impl FnOnce(Option<&Ground<'_>>) -> Result<Vec<Packed>, CopyError>,
    ) -> Result<(Copied, u64), CopyError> {
        let Work { manifest, .. } = work;
        let generation = manifest.generation;
        let ground = ground.filter(|ground| ground.chain[0].ranks.len() == manifest.images.len());
        let ranks = pack(ground)?;
        let (expected, found) = (manifest.images.len(), ranks.len());
        if expected != found {
            return Err(CopyError::Images { generation, expected, found });
        }
        let own = |name| names::in_copy(self.job, generation, name);
        let bytes = manifest.emit();
        self.target.write(&own(names::MANIFEST), &bytes)?;
        let file = work.job_file.emit();
        let job_file = self.pack(&own(names::JOB_FILE), ImageDigest(checksum(&file)), &file)?;
        let ground = ground.filter(|_| ranks.iter().any(|packed| !packed.is_full));
        let base = ground.map(|ground| ground.chain[ground.base]);
        let sum = |of: fn(&Packed) -> u64| ranks.iter().map(of).sum();
        let (since_base, since_previous) =
            (sum(|packed| packed.differences.since_base), sum(|packed| packed.differences.since_previous));
        let mut copied = Copied {
            job: self.job,
            generation,
            taken_unix_ms: manifest.taken_unix_ms,
            copied_unix_ms: work.copied_unix_ms,
            key: self.key.as_ref().map(CopyKey::name),
            manifest: Manifest::checksum(&bytes),
            upon: base.map(|base| BaseCopy { generation: base.generation, record: base.checksum() }),
            becomes_base: base.is_some() && work.rules.becomes_base(since_base, since_previous),
            since_whole: None,
            job_file,
            ranks: ranks.iter().map(|packed| packed.of).collect(),
            signature: None,
        };
        copied.since_whole = ground.map(|ground| ground.since_whole_with(copied.stored_bytes()));
        if let Some(of) = &self.key {
            copied.sign(&of.key, salt()?, &bytes);
        }
        self.expect_there(&copied)?;
        report.add(0)?;
        self.target.write(&own(names::COPIED), &copied.emit())?;
        let new_bytes = copied.stored_bytes();
        Ok((copied, new_bytes))
    }

    /// Packs a content.
    pub(crate) fn pack(
        &self,
        path: &str,
        digest: ImageDigest,
        content: &[u8],
    ) -> Result<CopiedFile, CopyError> {
        let failed = |error| CopyError::Packets { path: self.target.shown(path), error };
        let sealing = self.key.as_ref().map(CopyKey::sealing).transpose()?;
        let bytes = content.len() as u64;
        // Packets that do not become smaller stay as they are: some bytes of entry and tag for each 64 KiB.
        let mut writing = self.target.create(path, bytes + bytes / 512 + 4096)?;
        let mut tail = Tail { writing: &mut *writing, last: [0; 8] };
        let cut = Cut::of_blocks(BLOCK_BYTES).expect("within the limits");
        let mut writer = PacketWriter::begin(&mut tail, cut, Compression::Auto, sealing).map_err(failed)?;
        writer.write(&mut tail, content).map_err(failed)?;
        let PacketsSummary { content_bytes, stored_bytes, .. } = writer.finish(&mut tail).map_err(failed)?;
        let footer = u64::from_le_bytes(tail.last);
        writing.finish()?;
        Ok(CopiedFile { digest, bytes: content_bytes, stored_bytes, footer })
    }

    /// Checks that every file that the record will vouch for exists, regardless of other writers meanwhile.
    fn expect_there(&self, copied: &Copied) -> Result<(), CopyError> {
        match self.list()?.needs(copied) {
            Ok(_) => Ok(()),
            Err(error) => Err(CopyError::Gone { error: Box::new(error) }),
        }
    }

    /// Removes all but the newest `keep` copies and their bases; or says why others stay.
    fn remove_old(&self, keep: u32) -> Result<(Vec<GenerationId>, Option<CopyError>), CopyError> {
        let listed = self.list()?;
        if let Some((_, error)) = listed.damaged.first() {
            let obscure = match error.clone() {
                CopyError::Record { path, error } => CopyError::Obscure { path, error },
                other => other,
            };
            return Ok((Vec::new(), Some(obscure)));
        }
        let kept = listed.kept(keep);
        let (kept, old): (Vec<&Copied>, Vec<&Copied>) =
            listed.copies.iter().partition(|copy| kept.contains(&copy.generation));
        // First of all they stop being copies, the newest first: at no instant does one lack its base.
        for copy in old.iter().rev() {
            self.target.remove(&names::in_copy(self.job, copy.generation, names::COPIED))?;
        }
        let kept = named(kept);
        for path in named(old.iter().copied()).difference(&kept) {
            self.target.remove(path)?;
        }
        Ok((old.iter().map(|copy| copy.generation).collect(), None))
    }
}

pub(crate) fn random_seed() -> Result<u64, CopyError> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|_| CopyError::NoRandomness)?;
    Ok(u64::from_le_bytes(seed))
}
