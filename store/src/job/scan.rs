//! The contents of a job's directory, and whether each generation in it counts.

use std::collections::BTreeSet;

use transport::{Epoch, Life};

use super::lives::Lives;
use super::names::{self, GenerationEntry};
use super::{GenerationId, JobDirectory};
use crate::error::{RecordError, StoreError};
use crate::record::{CommitRecord, Manifest};
use crate::sabotage::Rule;
use crate::storage::{EntryKind, Storage, StorageError};

/// How far a generation has come. Diagram: [`crate::job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationState {
    /// Images are being written.
    Writing,
    /// Every image is durable and named in a manifest; the commit record is missing.
    Complete,
    /// It exists, and a life can start from it.
    Committed,
    /// It can never be committed, or no more counts.
    Abandoned(AbandonedBy),
    /// It was committed and is being removed.
    Collected,
}

/// The end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonedBy {
    /// A later life was decided that does not build on it (rule 9).
    Life(Life),
    /// A later epoch of its life was begun (rule 1).
    Epoch(Epoch),
    /// No decision names its life (rule 7).
    UndecidedLife,
}

/// A generation as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Which one.
    pub id: GenerationId,
    /// How far it has come.
    pub state: GenerationState,
    /// Finished image files.
    pub images: u32,
    /// Files that are half written.
    pub half_written: u32,
    /// Bytes of all its files together.
    pub bytes: u64,
    /// This node's data for the loss of others is durable ([`crate::protect`]).
    pub protected: bool,
}

/// The entries of a generation's directory.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    images: u32,
    half_written: u32,
    bytes: u64,
    manifest: bool,
    commit: bool,
    collected: bool,
    protected: bool,
}

impl<S: Storage> JobDirectory<S> {
    /// Every generation on disk, oldest first.
    pub fn generations(&mut self) -> Result<Vec<Generation>, StoreError> {
        let lives = self.lives()?;
        self.generations_of(&lives)
    }

    /// The newest committed generation whose records can be read, with its manifest. A restart should begin from [`JobDirectory::newest_restorable`]
    /// instead.
    pub fn newest_committed(&mut self) -> Result<Option<Manifest>, StoreError> {
        let generations = self.generations()?;
        let committed = generations.iter().rev().filter(|found| found.state == GenerationState::Committed);
        for found in committed {
            match self.manifest(found.id) {
                Ok(manifest) => return Ok(Some(manifest)),
                Err(error @ StoreError::Storage(StorageError::Crashed)) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// The commit record of a generation, if it has one that is whole and its own.
    pub fn commit_record(&mut self, generation: GenerationId) -> Result<CommitRecord, StoreError> {
        let path = names::in_generation(generation, names::COMMIT);
        let record = self.read_record(&path, CommitRecord::parse)?;
        match self.check_owner(record.job, record.generation, generation) {
            Ok(()) => Ok(record),
            Err(error) => Err(StoreError::Record { path, error }),
        }
    }

    /// The manifest of a committed generation, checked against its commit record.
    pub fn manifest(&mut self, generation: GenerationId) -> Result<Manifest, StoreError> {
        let record = self.commit_record(generation)?;
        let path = names::in_generation(generation, names::MANIFEST);
        let (manifest, found) =
            self.read_record(&path, |bytes| Ok((Manifest::parse(bytes)?, Manifest::checksum(bytes))))?;
        let checked = self.check_owner(manifest.job, manifest.generation, generation).and_then(|()| {
            if found != record.manifest {
                return Err(RecordError::WrongManifest { expected: record.manifest, found });
            }
            compare_digests(&record, &manifest)
        });
        match checked {
            Ok(()) => Ok(manifest),
            Err(error) => Err(StoreError::Record { path, error }),
        }
    }

    fn check_owner(
        &self,
        job: transport::JobId,
        found: GenerationId,
        expected: GenerationId,
    ) -> Result<(), RecordError> {
        if job != self.job {
            return Err(RecordError::WrongJob { expected: self.job, found: job });
        }
        if found != expected {
            return Err(RecordError::WrongGeneration { expected, found });
        }
        Ok(())
    }

    pub(super) fn generations_of(&mut self, lives: &Lives) -> Result<Vec<Generation>, StoreError> {
        let mut found = Vec::new();
        for life in &lives.directories {
            for epoch in self.epochs(*life)? {
                let id = GenerationId { life: *life, epoch };
                found.extend(self.content(id)?.map(|content| (id, content)));
            }
        }
        let with_record = found.iter().filter(|(_, content)| content.commit).map(|(id, _)| *id).collect();
        let describe = |(id, content): &(GenerationId, Content)| {
            let last = found.iter().rev().find(|(other, _)| other.life == id.life);
            let last_epoch = last.map_or(id.epoch, |(last, _)| last.epoch);
            let state = state(lives, &with_record, *id, *content, last_epoch);
            let Content { images, half_written, bytes, protected, .. } = *content;
            Generation { id: *id, state, images, half_written, bytes, protected }
        };
        Ok(found.iter().map(describe).collect())
    }

    /// Epochs of `life` that have a directory, rising; none if the life has no directory.
    pub(super) fn epochs(&mut self, life: Life) -> Result<Vec<Epoch>, StoreError> {
        let entries = match self.storage.list(&names::life(life)) {
            Err(StorageError::NotFound { .. }) => return Ok(Vec::new()),
            listed => listed?,
        };
        let mut epochs: Vec<Epoch> =
            entries.iter().filter_map(|entry| names::parse_epoch(&entry.name)).collect();
        epochs.sort();
        Ok(epochs)
    }

    /// `None` if the directory went away since it was seen.
    fn content(&mut self, id: GenerationId) -> Result<Option<Content>, StoreError> {
        let entries = match self.storage.list(&names::folder(id)) {
            Err(StorageError::NotFound { .. }) => return Ok(None),
            listed => listed?,
        };
        let mut content = Content::default();
        for entry in &entries {
            let EntryKind::File { bytes } = entry.kind else { continue };
            match names::parse_generation_entry(&entry.name) {
                GenerationEntry::Image(_) => content.images += 1,
                GenerationEntry::Temporary => content.half_written += 1,
                GenerationEntry::Manifest => content.manifest = true,
                GenerationEntry::Commit => content.commit = true,
                GenerationEntry::Collected => content.collected = true,
                GenerationEntry::Protection => content.protected |= entry.name == names::PROTECTED,
                GenerationEntry::Base(_) => {}
                GenerationEntry::Other => continue,
            }
            content.bytes += bytes;
        }
        Ok(Some(content))
    }
}

fn state(
    lives: &Lives,
    with_record: &BTreeSet<GenerationId>,
    id: GenerationId,
    content: Content,
    last_epoch: Epoch,
) -> GenerationState {
    if content.collected {
        return GenerationState::Collected;
    }
    // A record that cannot be read is no evidence against its life; one that names another life is.
    let decided = match lives.decisions.get(&id.life.counter) {
        Some(Ok(decision)) => decision.life == id.life,
        Some(Err(_)) | None => content.commit,
    };
    let keyless = lives.sabotage.is_out(Rule::KeyWithoutLife);
    if !decided && !keyless {
        return GenerationState::Abandoned(AbandonedBy::UndecidedLife);
    }
    if content.commit {
        return match lives.fence(id, with_record) {
            Some(life) => GenerationState::Abandoned(AbandonedBy::Life(life)),
            None => GenerationState::Committed,
        };
    }
    match lives.current() {
        Some(current) if current != id.life && !keyless => {
            GenerationState::Abandoned(AbandonedBy::Life(current))
        }
        _ if last_epoch > id.epoch => GenerationState::Abandoned(AbandonedBy::Epoch(last_epoch)),
        _ if content.manifest => GenerationState::Complete,
        _ => GenerationState::Writing,
    }
}

fn compare_digests(record: &CommitRecord, manifest: &Manifest) -> Result<(), RecordError> {
    for (image, commit) in manifest.images.iter().zip(&record.images) {
        if image.summary.digest != *commit {
            let (rank, manifest, commit) = (image.rank, image.summary.digest, *commit);
            return Err(RecordError::DigestsDiffer { rank, manifest, commit });
        }
    }
    if manifest.images.len() != record.images.len() {
        let (count, count_max) = (manifest.images.len(), record.images.len());
        return Err(RecordError::TooMany { what: "images in the manifest", count, count_max });
    }
    Ok(())
}
