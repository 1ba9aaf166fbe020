//! A job's directory: its lives and generations.
//!
//! ```text
//!                 begin_generation     every image durable      commit
//!   (nothing) -----------------> Writing ----------> Complete ----------> Committed
//!                                   |                    |                    |
//!                                   | a later epoch or life is begun          | collect, or a later life starts
//!                                   v                    v                    v from an older generation
//!                                 Abandoned <------------+               Collected -----> (nothing)
//! ```
//!
//! A generation exists from the instant its commit record has its name (rule 8). That record is made under another
//! name, synced, and published by one atomic, exclusive rename; before it, everything it names is durable. So a crash
//! at any instant leaves either this generation or the one before.
//!
//! A life is fenced from the instant a later decision has its name (rule 9): [`JobDirectory::commit`] refuses, and a
//! commit that raced the decision does not count, because every reader applies the rule of
//! [`scan`](self): a commit record of a life older than a decision counts only if that decision started from it or from a
//! newer one.

mod base;
mod collect;
mod commit;
mod lives;
pub(crate) mod names;
mod relayout;
mod scan;
mod seats;
mod take_over;
mod verify;

use ckpt_glue::GenerationId;
use transport::{JobId, Rank};

pub use collect::CollectReport;
pub use commit::{CommitRequest, ImageClaim};
pub use names::{folder, generation_of};
pub use scan::{AbandonedBy, Generation, GenerationState};
pub use take_over::TakenFile;
pub use verify::{Damage, Depth, Restorable};

use crate::error::{RecordError, StoreError};
use crate::image::writer::image_bytes;
use crate::image::{Exited, Identity, ImageKey, ImageReader, ImageSummary, ImageWriter, Section};
use crate::limits::RECORD_BYTES_MAX;
use crate::record::JobFile;
use crate::sabotage::{Rule, Sabotage};
use crate::storage::{Storage, StorageError, parent_and_name};

/// A job's directory over some storage, whose root it is.
///
/// It remembers nothing between calls: the state is on disk. So any number of them may stand for one directory, in any number of processes; exclusion
/// happens on disk.
#[derive(Clone, Debug)]
pub struct JobDirectory<S> {
    storage: S,
    job: JobId,
    node: Option<u32>,
    key: Option<ImageKey>,
    sabotage: Sabotage,
}

impl<S: Storage> JobDirectory<S> {
    /// Makes the directory of a new job, durably. The storage's root must exist.
    /// [`StorageError::AlreadyExists`] if a job lives there.
    pub fn create(storage: S, file: &JobFile) -> Result<JobDirectory<S>, StoreError> {
        let mut directory =
            JobDirectory { storage, job: file.job, node: None, key: None, sabotage: Sabotage::none() };
        directory.write_record(names::JOB, &names::temporary(names::JOB), &file.emit())?;
        Ok(directory)
    }

    /// Opens the directory of the job whose job file lies there.
    pub fn open(storage: S) -> Result<(JobDirectory<S>, JobFile), StoreError> {
        let mut directory =
            JobDirectory { storage, job: JobId(0), node: None, key: None, sabotage: Sabotage::none() };
        let file = directory.read_record(names::JOB, JobFile::parse)?;
        directory.job = file.job;
        Ok((directory, file))
    }

    /// Removes the only file of a directory in which [`JobDirectory::create`] was interrupted. Returns whether it was such a directory.
    pub fn remove_unfinished(storage: &mut S) -> Result<bool, StoreError> {
        let temporary = names::temporary(names::JOB);
        if !storage.list("")?.iter().all(|entry| entry.name == temporary) {
            return Ok(false);
        }
        match storage.remove_file(&temporary) {
            Ok(()) | Err(StorageError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the job file anew, durably, in place of one that says something else, or cannot be read. At every instant one of the two is there.
    pub fn renew(storage: S, file: &JobFile) -> Result<JobDirectory<S>, StoreError> {
        let mut directory = JobDirectory::attach(storage, file.job);
        directory.replace_record(names::JOB, &names::temporary(names::JOB), &file.emit())?;
        Ok(directory)
    }

    /// The directory of a job known from elsewhere: reads nothing.
    pub fn attach(storage: S, job: JobId) -> JobDirectory<S> {
        JobDirectory { storage, job, node: None, key: None, sabotage: Sabotage::none() }
    }

    /// Says that only the images of node `node` (its place in the manifest's list) lie here, as when every node has a
    /// disk of its own. Images of other nodes are then neither looked for nor missed.
    #[must_use]
    pub fn on_node(self, node: u32) -> JobDirectory<S> {
        JobDirectory { node: Some(node), ..self }
    }

    /// Has images encrypted with a key, and read with it; then those that are not encrypted are refused. A check whether images are whole needs no
    /// key.
    #[must_use]
    pub fn encrypted(self, key: Option<ImageKey>) -> JobDirectory<S> {
        JobDirectory { key, ..self }
    }

    /// Takes rules out, for a simulator that must notice.
    #[must_use]
    pub fn with_sabotage(self, sabotage: Sabotage) -> JobDirectory<S> {
        JobDirectory { sabotage, ..self }
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The storage below.
    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Path of a rank's image, relative to the job's directory.
    #[must_use]
    pub fn image_path(&self, generation: GenerationId, rank: Rank) -> String {
        names::in_generation(generation, &names::image(rank))
    }

    /// Path of the base of a rank's image, which only a delta has.
    #[must_use]
    pub fn base_path(&self, generation: GenerationId, rank: Rank) -> String {
        names::in_generation(generation, &names::base(rank))
    }

    /// Begins a rank's image; Call [`JobDirectory::begin_generation`] before, in any process. The writer takes this
    /// directory's [`JobDirectory::storage`].
    pub fn begin_image(
        &mut self,
        generation: GenerationId,
        rank: Rank,
    ) -> Result<ImageWriter<S::File>, StoreError> {
        let path = self.image_path(generation, rank);
        let identity = self.identity(generation, rank);
        let mut writer = ImageWriter::begin(&mut self.storage, path, identity, self.key.as_ref())?;
        writer.replaces =
            self.sabotage.is_out(Rule::KeyWithoutLife) || self.sabotage.is_out(Rule::EpochReuse);
        Ok(writer)
    }

    /// Writes a rank's image, durably. Before the first byte the room on the disk is compared with the needed bytes;
    /// after an error nothing is left of it.
    pub fn write_image(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        sections: &[Section<'_>],
    ) -> Result<ImageSummary, StoreError> {
        let path = self.image_path(generation, rank);
        let wanted_bytes = image_bytes(self.identity(generation, rank), sections, self.key.is_some())
            .map_err(|error| StoreError::Image { path: path.clone(), error })?;
        let free_bytes = self.storage.free_bytes().unwrap_or(None);
        if free_bytes.is_some_and(|free| free < wanted_bytes) {
            return Err(StorageError::NoSpace { path, wanted_bytes, free_bytes }.into());
        }
        let mut writer = self.begin_image(generation, rank)?;
        for section in sections {
            if let Err(error) = writer.section(&mut self.storage, *section) {
                // The first error is the informative one; this one would only repeat it.
                let _ = writer.abandon(&mut self.storage);
                return Err(error);
            }
        }
        writer.finish(&mut self.storage)
    }

    /// Removes the unfinished image of a rank that is dead. The name of a whole image stays taken.
    pub fn discard_begun(&mut self, generation: GenerationId, rank: Rank) -> Result<(), StoreError> {
        let temporary = names::temporary(&self.image_path(generation, rank));
        match self.storage.remove_file(&temporary) {
            Ok(()) | Err(StorageError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the image of a rank that has ended (rule 12).
    pub fn write_exited(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        exited: Exited,
    ) -> Result<ImageSummary, StoreError> {
        self.write_image(generation, rank, &[Exited::section(&exited.emit())])
    }

    /// Opens a rank's image and checks that it is that rank's of that generation. Whether it is the committed one:
    /// [`JobDirectory::open_committed_image`].
    pub fn open_image(&mut self, generation: GenerationId, rank: Rank) -> Result<ImageReader, StoreError> {
        let mut reader = self.open_locked_image(generation, rank)?;
        self.unlock(&mut reader)?;
        Ok(reader)
    }

    /// The same for one whose header and table are all that is read.
    fn open_locked_image(&mut self, generation: GenerationId, rank: Rank) -> Result<ImageReader, StoreError> {
        let path = self.image_path(generation, rank);
        let reader = ImageReader::open(&mut self.storage, &path)?;
        reader.expect(&self.identity(generation, rank))?;
        self.expect_encrypted(&reader)?;
        Ok(reader)
    }

    /// `Ok` if the image is encrypted, or need not be.
    fn expect_encrypted(&self, reader: &ImageReader) -> Result<(), StoreError> {
        if self.key.is_some() { reader.expect_encrypted() } else { Ok(()) }
    }

    fn unlock(&mut self, reader: &mut ImageReader) -> Result<(), StoreError> {
        match &self.key {
            Some(key) => reader.unlock(&mut self.storage, &key.key),
            None => Ok(()),
        }
    }

    /// Opens a rank's image of a committed generation, for restoring it: the content is the one the commit record
    /// names.
    pub fn open_committed_image(
        &mut self,
        generation: GenerationId,
        rank: Rank,
    ) -> Result<ImageReader, StoreError> {
        let record = self.commit_record(generation)?;
        let reader = self.open_image(generation, rank)?;
        match record.images.get(rank.0 as usize) {
            Some(digest) => reader.expect_digest(*digest)?,
            None => {
                return Err(StorageError::NotFound {
                    operation: crate::storage::Operation::Read,
                    path: reader.path().to_owned(),
                }
                .into());
            }
        }
        Ok(reader)
    }

    fn identity(&self, generation: GenerationId, rank: Rank) -> Identity {
        Identity { job: self.job, life: generation.life, epoch: generation.epoch, rank }
    }

    fn read_record<T>(
        &mut self,
        path: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, RecordError>,
    ) -> Result<T, StoreError> {
        let bytes = self.storage.read(path, RECORD_BYTES_MAX)?;
        parse(&bytes).map_err(|error| StoreError::Record { path: path.to_owned(), error })
    }

    fn is_here(&self, node: u32) -> bool {
        self.node.is_none_or(|here| here == node)
    }

    /// Writes a record under another name, durably, and publishes it under its own, durably and exclusively. If that
    /// fails, the record is not there, or [`StoreError::Unsettled`] reports that this is unknown.
    fn write_record(&mut self, path: &str, temporary: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.prepare_record(temporary, bytes)?;
        let directory = parent_and_name(path).0;
        let published = self.storage.publish(temporary, path);
        match published.clone().and_then(|()| self.storage.sync_directory(directory)) {
            Ok(()) => Ok(()),
            Err(error) => {
                let _ = self.storage.remove_file(temporary);
                // The name is another's.
                if matches!(error, StorageError::AlreadyExists { .. }) {
                    return Err(error.into());
                }
                self.revoke(path, bytes, error)
            }
        }
    }

    /// Writes a record under another name, durably, and renames it to its own, durably, replacing any file of that
    /// name.
    fn replace_record(&mut self, path: &str, temporary: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.prepare_record(temporary, bytes)?;
        self.storage.rename(temporary, path)?;
        Ok(self.storage.sync_directory(parent_and_name(path).0)?)
    }

    /// Takes back a record that may have got its name, and may be durable: it must not be found later.
    fn revoke(&mut self, path: &str, bytes: &[u8], error: StorageError) -> Result<(), StoreError> {
        let directory = parent_and_name(path).0;
        let removed = match self.storage.read(path, RECORD_BYTES_MAX) {
            Ok(found) if found == bytes => self.storage.remove_file(path),
            Ok(_) | Err(StorageError::NotFound { .. }) => Ok(()),
            Err(unreadable) => Err(unreadable),
        };
        match removed.and_then(|()| self.storage.sync_directory(directory)) {
            Ok(()) => Err(error.into()),
            Err(_) => Err(StoreError::Unsettled { path: path.to_owned(), error }),
        }
    }

    fn prepare_record(&mut self, temporary: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut file = match self.storage.create(temporary) {
            // Left by an attempt of ours that did not come to the end: a file of that name can only be ours.
            Err(StorageError::AlreadyExists { .. }) => {
                self.storage.remove_file(temporary)?;
                self.storage.create(temporary)?
            }
            created => created?,
        };
        let written = self.storage.append(&mut file, bytes).and_then(|()| self.storage.sync_file(&mut file));
        if written.is_err() {
            let _ = self.storage.remove_file(temporary);
        }
        Ok(written?)
    }
}
