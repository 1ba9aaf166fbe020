//! Another layout of the ranks to the nodes: a generation's images lie on other nodes then, and its manifest says so.
//!
//! The manifest of the new layout is durable under a name of its own first. The job file names the new layout next, in one rename: from then on the new
//! manifest counts. A crash between that and the end of [`JobDirectory::take_layout`] leaves a record with which it is done again.

use super::names::{self, TopLevelEntry};
use super::{GenerationId, JobDirectory};
use crate::error::{RecordError, StoreError};
use crate::record::Manifest;
use crate::storage::{Storage, StorageError};

impl<S: Storage> JobDirectory<S> {
    /// Writes the manifest of the generation that layout `layout` begins with, durably. It counts from [`JobDirectory::take_layout`] on.
    pub fn write_layout(&mut self, layout: u32, manifest: &Manifest) -> Result<(), StoreError> {
        let path = names::layout(layout);
        self.replace_record(&path, &names::temporary(&path), &manifest.emit())
    }

    /// The layouts whose records are here, rising: none, unless a change of the layout was interrupted.
    pub fn layouts(&mut self) -> Result<Vec<u32>, StoreError> {
        let number = |name: &str| match names::parse_top_level(name) {
            TopLevelEntry::Layout(layout) => Some(layout),
            _ => None,
        };
        let entries = self.storage.list("")?;
        let mut layouts: Vec<u32> = entries.iter().filter_map(|entry| number(&entry.name)).collect();
        layouts.sort_unstable();
        Ok(layouts)
    }

    /// Commits the generation of a layout's record as it says, and removes all others: their images lie on the nodes of the former layout. The job file
    /// names the new layout already. After a crash it can be done again.
    pub fn take_layout(&mut self, layout: u32) -> Result<GenerationId, StoreError> {
        let path = names::layout(layout);
        let manifest = self.read_record(&path, Manifest::parse)?;
        if manifest.job != self.job {
            let error = RecordError::WrongJob { expected: self.job, found: manifest.job };
            return Err(StoreError::Record { path, error });
        }
        self.adopt(&manifest)?;
        for found in self.generations()?.iter().filter(|found| found.id != manifest.generation) {
            self.remove_generation(found.id, &mut || ())?;
        }
        self.remove_layout(layout)?;
        Ok(manifest.generation)
    }

    /// Removes a layout's record: the job file does not name it, or it has been taken.
    pub fn remove_layout(&mut self, layout: u32) -> Result<(), StoreError> {
        match self.storage.remove_file(&names::layout(layout)) {
            Ok(()) | Err(StorageError::NotFound { .. }) => Ok(self.storage.sync_directory("")?),
            Err(error) => Err(error.into()),
        }
    }
}
