//! Taking over a generation from a copy that lies elsewhere.

use std::collections::BTreeSet;

use transport::{Life, Rank};

use super::names;
use super::{Depth, GenerationId, GenerationState, JobDirectory};
use crate::error::{RecordError, StoreError};
use crate::record::Manifest;
use crate::storage::{Storage, StorageError};

/// Which of a rank's files of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenFile {
    /// Its image.
    Image,
    /// The base of that.
    Base,
}

impl<S: Storage> JobDirectory<S> {
    /// The life that went on without `generation`, if one did: then it would not count here, even if it were there.
    pub fn passed_over(&mut self, generation: GenerationId) -> Result<Option<Life>, StoreError> {
        let lives = self.lives()?;
        let found = self.generations_of(&lives)?;
        let committed = found.iter().filter(|found| found.state == GenerationState::Committed);
        let with_record: BTreeSet<_> = committed.map(|found| found.id).chain([generation]).collect();
        Ok(lives.fence(generation, &with_record))
    }

    /// Begins to take over a generation: its directory is there, durably. Files in it stay. Only while no process of the job runs.
    pub fn begin_taking(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        self.make_generation(generation)
    }

    /// Takes over one file of it, replacing an older one. `write` fills it; it gets its name and is durable after that
    /// succeeds.
    pub fn take_file<E: From<StoreError>>(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        which: TakenFile,
        write: impl FnOnce(&mut S, &mut S::File) -> Result<(), E>,
    ) -> Result<(), E> {
        let name = match which {
            TakenFile::Image => names::image(rank),
            TakenFile::Base => names::base(rank),
        };
        let path = names::in_generation(generation, &name);
        let temporary = names::temporary(&path);
        let stored = |error: StorageError| E::from(error.into());
        match self.storage.remove_file(&temporary) {
            Ok(()) | Err(StorageError::NotFound { .. }) => {}
            Err(error) => return Err(stored(error)),
        }
        let mut file = self.storage.create(&temporary).map_err(stored)?;
        let written = write(&mut self.storage, &mut file);
        let written = written.and_then(|()| self.storage.sync_file(&mut file).map_err(stored));
        if let Err(error) = written {
            let _ = self.storage.remove_file(&temporary);
            return Err(error);
        }
        self.storage.rename(&temporary, &path).map_err(stored)?;
        // The records, which come later, may lie on another disk.
        self.storage.sync_directory(&names::folder(generation)).map_err(stored)
    }

    /// Makes the records of a generation whole that are damaged or lost here, from a copy that was made after it was committed (R27). Returns false,
    /// and writes nothing, in three cases. They are whole. Or the generation counts no more: a later life went on without it, or it is older than the
    /// committed generations here, and so may have been collected. Or the copy is not the one that was committed.
    pub fn repair_manifest(&mut self, manifest: &Manifest) -> Result<bool, StoreError> {
        let generation = manifest.generation;
        if manifest.job != self.job || self.manifest(generation).is_ok() {
            return Ok(false);
        }
        let is_damaged = self.has_file(generation, names::COMMIT)?;
        let is_collected = self.has_file(generation, names::COLLECTED)?;
        let listed = self.generations()?;
        let mut committed = listed.iter().filter(|found| found.state == GenerationState::Committed);
        let is_newest = committed.all(|found| found.id <= generation);
        let is_other = self
            .commit_record(generation)
            .is_ok_and(|record| record.manifest != Manifest::checksum(&manifest.emit()));
        if is_collected || is_other || !is_damaged && !is_newest || self.passed_over(generation)?.is_some() {
            return Ok(false);
        }
        self.adopt(manifest)?;
        Ok(true)
    }

    /// Makes the generation exist here. Every image is compared with the manifest first.
    pub fn take_over(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        let generation = manifest.generation;
        if manifest.job != self.job {
            let error = RecordError::WrongJob { expected: self.job, found: manifest.job };
            let path = names::in_generation(generation, names::MANIFEST);
            return Err(StoreError::Record { path, error });
        }
        if let Some(damage) = self.verify_images(manifest, Depth::Tables, |_, _| ())?.into_iter().next() {
            return Err(damage.error);
        }
        self.adopt(manifest)
    }
}
