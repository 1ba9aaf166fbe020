//! Removal of generations that are no longer needed.

use transport::Life;

use super::lives::Lives;
use super::names::{self, GenerationEntry};
use super::{Depth, Generation, GenerationId, GenerationState, JobDirectory};
use crate::error::{CommitError, StoreError};
use crate::protect::{self, ProtectError};
use crate::storage::{Storage, StorageError, parent_and_name};

/// The result of [`JobDirectory::collect`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Committed generations that stay, oldest first.
    pub kept: Vec<GenerationId>,
    /// Removed generations of every state, oldest first.
    pub removed: Vec<GenerationId>,
    /// Bytes of their files.
    pub freed_bytes: u64,
}

impl<S: Storage> JobDirectory<S> {
    /// Removes all but the newest `keep` committed generations that are whole, and the remains of dead attempts.
    ///
    /// Always stays, regardless of `keep`: the newest committed generation, every committed one newer than the last
    /// whole one that is kept, those `in_use`, the one being written, and files whose names are not the store's. Only
    /// the current life may collect ([`crate::CommitError::Fenced`] otherwise). A crash at any instant leaves every
    /// generation either whole or not committed.
    pub fn collect(
        &mut self,
        life: Life,
        keep: u32,
        in_use: &[GenerationId],
    ) -> Result<CollectReport, StoreError> {
        self.collect_telling(life, keep, in_use, &mut || ())
    }

    /// The same; `progress` is called repeatedly meanwhile, between pieces that take the storage some seconds at most.
    pub fn collect_telling(
        &mut self,
        life: Life,
        keep: u32,
        in_use: &[GenerationId],
        progress: &mut dyn FnMut(),
    ) -> Result<CollectReport, StoreError> {
        let lives = self.lives()?;
        let generation = GenerationId { life, epoch: transport::Epoch(0) };
        lives.admit(life).map_err(|error| StoreError::Commit { generation, error })?;
        let generations = self.generations_of(&lives)?;
        let mut report = CollectReport {
            kept: self.choose_kept(&generations, keep, in_use, progress)?,
            ..Default::default()
        };
        // The kept generations must be durable before anything goes: a commit record that can be seen need not be.
        for generation in &report.kept {
            self.sync_way(*generation)?;
            progress();
        }
        // Parity of kept generations must not build upon removed ones.
        protect::node_parity::fold(self, &report.kept, in_use, progress).map_err(|error| match error {
            ProtectError::Store(error) => error,
            error => StoreError::Parity { error: Box::new(error) },
        })?;
        for found in &generations {
            let being_written = matches!(found.state, GenerationState::Writing | GenerationState::Complete);
            if being_written || report.kept.contains(&found.id) || in_use.contains(&found.id) {
                continue;
            }
            self.remove_generation(found.id, progress)?;
            report.removed.push(found.id);
            report.freed_bytes += found.bytes;
        }
        self.remove_lives(&lives, life, &report.kept)?;
        Ok(report)
    }

    /// Gives up a generation that is being written and removes its files. Ranks that still write into it fail.
    /// A committed one is left alone ([`crate::CommitError::AlreadyCommitted`]).
    ///
    /// The directory itself stays until [`JobDirectory::collect`]: it remembers that the number was used (rule 1).
    pub fn abandon(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        if self.has_file(generation, names::COMMIT)? {
            let error = CommitError::AlreadyCommitted;
            return Err(StoreError::Commit { generation, error });
        }
        self.remove_files(generation, &mut || ())
    }

    /// Removes every generation that is not committed, files and number. Only for when no process of any life runs any
    /// more: a life that goes on must not find a number free that it has used (rule 1).
    pub fn discard_unfinished(&mut self) -> Result<Vec<GenerationId>, StoreError> {
        let mut removed = Vec::new();
        for found in self.generations()? {
            if found.state != GenerationState::Committed {
                self.remove_generation(found.id, &mut || ())?;
                removed.push(found.id);
            }
        }
        Ok(removed)
    }

    fn choose_kept(
        &mut self,
        generations: &[Generation],
        keep: u32,
        in_use: &[GenerationId],
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<GenerationId>, StoreError> {
        let mut kept = Vec::new();
        let mut whole = 0;
        for found in generations.iter().rev().filter(|found| found.state == GenerationState::Committed) {
            if whole < keep.max(1) {
                whole += u32::from(self.verify(found.id, Depth::Tables)?.is_empty());
                kept.push(found.id);
                progress();
            } else if in_use.contains(&found.id) {
                kept.push(found.id);
            }
        }
        kept.reverse();
        Ok(kept)
    }

    pub(super) fn remove_generation(
        &mut self,
        generation: GenerationId,
        progress: &mut dyn FnMut(),
    ) -> Result<(), StoreError> {
        let directory = names::folder(generation);
        let commit = names::in_generation(generation, names::COMMIT);
        // First of all it stops being committed, durably: no crash leaves a committed generation with images missing.
        match self.storage.rename(&commit, &names::in_generation(generation, names::COLLECTED)) {
            Ok(()) => self.storage.sync_directory(&directory)?,
            Err(StorageError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.remove_files(generation, progress)?;
        // The marker goes last, when the absence of everything else is durable.
        self.storage.sync_directory(&directory)?;
        ignore_absent(self.storage.remove_file(&names::in_generation(generation, names::COLLECTED)))?;
        self.remove_directory(&directory)
    }

    /// Removes the files of a generation, the collection's marker and strangers' files excepted.
    fn remove_files(
        &mut self,
        generation: GenerationId,
        progress: &mut dyn FnMut(),
    ) -> Result<(), StoreError> {
        let entries = match self.storage.list(&names::folder(generation)) {
            Err(StorageError::NotFound { .. }) => return Ok(()),
            listed => listed?,
        };
        for entry in entries {
            match names::parse_generation_entry(&entry.name) {
                GenerationEntry::Collected | GenerationEntry::Other => {}
                _ => {
                    let path = names::in_generation(generation, &entry.name);
                    ignore_absent(self.storage.remove_file(&path))?;
                    progress();
                }
            }
        }
        Ok(())
    }

    /// Removes empty directories of other lives, decisions that no kept generation needs, and decisions never made.
    fn remove_lives(
        &mut self,
        lives: &Lives,
        current: Life,
        kept: &[GenerationId],
    ) -> Result<(), StoreError> {
        for life in lives.directories.iter().filter(|life| **life != current) {
            if self.epochs(*life)?.is_empty() {
                self.remove_directory(&names::life(*life))?;
            }
        }
        // Whether a generation counts depends on the decisions from its own life on; the newest fences the rest.
        let oldest_needed =
            kept.first().map_or(current.counter, |oldest| oldest.life.counter.min(current.counter));
        for counter in lives.decisions.keys().filter(|counter| **counter < oldest_needed) {
            ignore_absent(self.storage.remove_file(&names::decision(*counter)))?;
        }
        // One with a higher counter may be a decider at work this instant.
        for leftover in &lives.leftovers {
            if let names::TopLevelEntry::DecisionTemporary(counter) = names::parse_top_level(leftover)
                && counter <= current.counter
            {
                ignore_absent(self.storage.remove_file(leftover))?;
            }
        }
        Ok(())
    }

    fn remove_directory(&mut self, path: &str) -> Result<(), StoreError> {
        match self.storage.remove_directory(path) {
            Ok(()) => Ok(self.storage.sync_directory(parent_and_name(path).0)?),
            // A stranger's file is in it, or the directory went away by itself.
            Err(StorageError::NotEmpty { .. } | StorageError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn ignore_absent(removed: Result<(), StorageError>) -> Result<(), StoreError> {
    match removed {
        Ok(()) | Err(StorageError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
