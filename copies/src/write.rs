//! Writing a copy: images first, each packed in one pass, then the manifest, then the record with which the copy exists.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use store::checksum::checksum;
use store::packets::{Compression, Cut, Key, PacketWriter, PacketsSummary, Sealing, Sink, parallel};
use store::record::{Copied, CopiedFile};
use store::{
    GenerationId, ImageDigest, ImageReader, JobDirectory, JobFile, Manifest, Storage, StorageError,
    StoreError,
};
use transport::Rank;

use crate::copies::{Copies, named};
use crate::error::CopyError;
use crate::names;
use crate::target::Writing;

/// Bytes of a block: those of a page of an image.
const BLOCK_BYTES: u32 = 4096;

/// Where the images of ranks lie, for reading: one directory of the job, or one for each node.
pub trait Source: Sync {
    /// What the directories lie on.
    type Storage: Storage;

    /// The directory that has a rank's image.
    fn directory(&self, rank: Rank) -> Result<JobDirectory<Self::Storage>, StoreError>;
}

/// What is to be copied, and how.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The job's file.
    pub job_file: &'a JobFile,
    /// The generation, which is committed.
    pub manifest: &'a Manifest,
    /// The time, in milliseconds since 1970-01-01 UTC.
    pub copied_unix_ms: u64,
    /// Copies that are kept: the newest ones.
    pub keep: u32,
    /// Images that are packed at once.
    pub threads: NonZeroUsize,
}

/// How far a copy has come, and whether it is to go on.
#[derive(Debug, Default)]
pub struct Report {
    bytes: AtomicU64,
    is_stopped: AtomicBool,
}

/// What has been written.
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
    /// Bytes of images that have been packed, or unpacked, or were there already.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Ends what is being done, soon.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) -> Result<(), CopyError> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_stopped.load(Ordering::Relaxed) { Err(CopyError::Stopped) } else { Ok(()) }
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
    /// Writes a copy of a committed generation, and removes older ones and what is left of half ones. After an error it does not exist, and what was written of it is
    /// removed now, or with the next copy.
    pub fn write<T: Source>(
        &self,
        work: &Work<'_>,
        source: &T,
        report: &Report,
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
        let is_there =
            found.is_some_and(|found| found.key == names::key_id(self.key.as_ref()) && before.has_all(found));
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
                let begun = Mutex::new(Vec::new());
                let written = self.write_all(work, source, report, &before.images(), &begun);
                if written.is_err() {
                    self.take_back(generation, &begun.into_inner().unwrap_or_else(PoisonError::into_inner));
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

    /// Removes what was written of a copy that failed, as far as it goes: the next one removes the rest.
    fn take_back(&self, generation: GenerationId, begun: &[String]) {
        // Its record may have got its name all the same. As long as nobody knows, what it names stays.
        if self.target.remove(&names::in_copy(self.job, generation, names::COPIED)).is_ok() {
            for path in begun {
                let _ = self.target.remove(path);
            }
        }
    }

    fn write_all<T: Source>(
        &self,
        work: &Work<'_>,
        source: &T,
        report: &Report,
        known: &BTreeMap<String, CopiedFile>,
        begun: &Mutex<Vec<String>>,
    ) -> Result<(Copied, u64), CopyError> {
        let Work { manifest, .. } = work;
        let generation = manifest.generation;
        let images = Mutex::new(vec![None; manifest.images.len()]);
        parallel::each(
            manifest.images.len() as u64,
            work.threads,
            || (),
            |(), number| {
                let at = usize::try_from(number).expect("it counts what is in memory");
                let files = self.write_rank(manifest, at, source, report, known, begun)?;
                images.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(files);
                Ok::<(), CopyError>(())
            },
        )?;
        let images = images.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut new_bytes = 0;
        let images: Vec<(CopiedFile, Option<CopiedFile>)> = images
            .into_iter()
            .map(|files| {
                let ((image, base), bytes) = files.expect("every rank was copied without an error");
                new_bytes += bytes;
                (image, base)
            })
            .collect();
        let own = |name| names::in_copy(self.job, generation, name);
        let note = |path: &str| begun.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
        let bytes = manifest.emit();
        note(&own(names::MANIFEST));
        self.target.write(&own(names::MANIFEST), &bytes)?;
        let file = work.job_file.emit();
        note(&own(names::JOB_FILE));
        let job_file =
            self.pack(&own(names::JOB_FILE), ImageDigest(checksum(&file)), file.len() as u64, |take| {
                take(&file)
            })?;
        let copied = Copied {
            job: self.job,
            generation,
            taken_unix_ms: manifest.taken_unix_ms,
            copied_unix_ms: work.copied_unix_ms,
            key: names::key_id(self.key.as_ref()),
            manifest: Manifest::checksum(&bytes),
            job_file,
            images,
        };
        self.expect_there(&copied)?;
        report.add(0)?;
        self.target.write(&own(names::COPIED), &copied.emit())?;
        Ok((copied, new_bytes))
    }

    fn write_rank<T: Source>(
        &self,
        manifest: &Manifest,
        at: usize,
        source: &T,
        report: &Report,
        known: &BTreeMap<String, CopiedFile>,
        begun: &Mutex<Vec<String>>,
    ) -> Result<((CopiedFile, Option<CopiedFile>), u64), CopyError> {
        let named = &manifest.images[at];
        let mut directory = source.directory(named.rank)?;
        let image = directory.open_image(manifest.generation, named.rank)?;
        image.expect_digest(named.summary.digest)?;
        let base = directory.open_base(manifest.generation, named.rank, &image)?;
        let mut new_bytes = 0;
        let mut write = |reader: &ImageReader| -> Result<CopiedFile, CopyError> {
            let path = names::image(self.job, named.rank, reader.digest(), names::key_id(self.key.as_ref()));
            let bytes = reader.header().total_bytes;
            if let Some(file) = known.get(&path).filter(|file| file.bytes == bytes) {
                report.add(bytes)?;
                return Ok(*file);
            }
            begun.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
            let file = self.pack(&path, reader.digest(), bytes, |take| {
                reader.read_through(directory.storage(), |piece| {
                    report.add(piece.len() as u64)?;
                    take(piece)
                })
            })?;
            new_bytes += file.stored_bytes;
            Ok(file)
        };
        let base = base.as_ref().map(&mut write).transpose()?;
        let image = write(&image)?;
        Ok(((image, base), new_bytes))
    }

    /// Packs a content of so many bytes, which `read` gives piece by piece.
    fn pack(
        &self,
        path: &str,
        digest: ImageDigest,
        bytes: u64,
        read: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), CopyError>) -> Result<(), CopyError>,
    ) -> Result<CopiedFile, CopyError> {
        let failed = |error| CopyError::Packets { path: self.target.shown(path), error };
        let sealing = self.key.as_ref().map(sealing).transpose()?;
        // Packets that do not become smaller stay as they are: some bytes of entry and tag for each 64 KiB.
        let mut writing = self.target.create(path, bytes + bytes / 512 + 4096)?;
        let mut tail = Tail { writing: &mut *writing, last: [0; 8] };
        let cut = Cut::of_blocks(BLOCK_BYTES).expect("within the limits");
        let mut writer = PacketWriter::begin(&mut tail, cut, Compression::Auto, sealing).map_err(failed)?;
        read(&mut |piece| writer.write(&mut tail, piece).map_err(failed))?;
        let PacketsSummary { content_bytes, stored_bytes, .. } = writer.finish(&mut tail).map_err(failed)?;
        let footer = u64::from_le_bytes(tail.last);
        writing.finish()?;
        Ok(CopiedFile { digest, bytes: content_bytes, stored_bytes, footer })
    }

    /// Everything that the record is to vouch for is there, whatever others have done meanwhile.
    fn expect_there(&self, copied: &Copied) -> Result<(), CopyError> {
        let entries = self.target.list(&names::job(self.job))?;
        let lengths: BTreeMap<_, _> =
            entries.iter().map(|entry| (entry.path.as_str(), entry.bytes)).collect();
        for (rank, file) in copied.files() {
            let path = names::image(self.job, rank, file.digest, copied.key);
            if lengths.get(path.as_str()) != Some(&file.stored_bytes) {
                return Err(CopyError::Gone { path: self.target.shown(&path) });
            }
        }
        Ok(())
    }

    /// Removes all but the newest `keep` copies, and what they alone have; or says why their files stay.
    fn remove_old(&self, keep: u32) -> Result<(Vec<GenerationId>, Option<CopyError>), CopyError> {
        let listed = self.list()?;
        let old = listed.copies.len().saturating_sub(keep.max(1) as usize);
        let (old, kept) = listed.copies.split_at(old);
        // First of all they stop being copies.
        for copy in old {
            self.target.remove(&names::in_copy(self.job, copy.generation, names::COPIED))?;
        }
        let removed = old.iter().map(|copy| copy.generation).collect();
        if let Some((_, error)) = listed.damaged.first() {
            let obscure = match error.clone() {
                CopyError::Record { path, error } => CopyError::Obscure { path, error },
                other => other,
            };
            return Ok((removed, Some(obscure)));
        }
        let kept = named(kept);
        for path in named(old).difference(&kept) {
            self.target.remove(path)?;
        }
        Ok((removed, None))
    }
}

fn sealing(key: &Key) -> Result<Sealing, CopyError> {
    let mut salt = [0; 24];
    getrandom::fill(&mut salt).map_err(|_| CopyError::NoRandomness)?;
    Ok(Sealing::new(key.clone(), salt))
}
