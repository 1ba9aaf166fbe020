//! A directory tree as a target: a shared directory, or a substitute in a test.

use std::collections::BTreeSet;
use std::sync::Mutex;

use store::StorageError;
use store::packets;
use store::storage::{EntryKind, Storage};

use crate::target::{Entry, Target, Writing};

const TEMPORARY: &str = ".tmp";

/// Folders in folders that are looked into: ours are three deep.
const DEPTH_MAX: usize = 6;

/// A tree of a [`Storage`].
pub struct Folder<S> {
    storage: S,
    shown: String,
    /// Folders that are known to be there, durably.
    made: Mutex<BTreeSet<String>>,
}

impl<S: Storage + Clone> Folder<S> {
    /// The tree of `storage`; `shown`: its root's name in messages.
    pub fn new(storage: S, shown: String) -> Folder<S> {
        Folder { storage, shown, made: Mutex::default() }
    }

    /// Makes the folders on the way to a file.
    fn make_way(&self, path: &str) -> Result<(), StorageError> {
        let mut made = self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut storage = self.storage.clone();
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if made.contains(folder) {
                continue;
            }
            match storage.create_directory(folder) {
                Ok(()) | Err(StorageError::AlreadyExists { .. }) => {}
                Err(error) => return Err(error),
            }
            // Also if another made it: it may not have come to this line.
            storage.sync_directory(parent(folder))?;
            made.insert(folder.to_owned());
        }
        Ok(())
    }

    fn walk(storage: &mut S, folder: &str, depth: usize, found: &mut Vec<Entry>) -> Result<(), StorageError> {
        let entries = match storage.list(folder) {
            Err(StorageError::NotFound { .. }) => return Ok(()),
            listed => listed?,
        };
        for entry in entries {
            let path = if folder.is_empty() { entry.name } else { format!("{folder}/{}", entry.name) };
            match entry.kind {
                EntryKind::File { bytes } => found.push(Entry { path, bytes }),
                EntryKind::Directory if depth < DEPTH_MAX => Self::walk(storage, &path, depth + 1, found)?,
                EntryKind::Directory | EntryKind::Other => {}
            }
        }
        Ok(())
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl<S: Storage + Clone + Send + Sync> Target for Folder<S>
where
    S::File: Send,
{
    fn create(&self, path: &str, _: u64) -> Result<Box<dyn Writing + '_>, StorageError> {
        self.make_way(path)?;
        let mut storage = self.storage.clone();
        let temporary = format!("{path}{TEMPORARY}");
        let file = match storage.create(&temporary) {
            // Left by a writer that did not come to its end.
            Err(StorageError::AlreadyExists { .. }) => {
                storage.remove_file(&temporary)?;
                storage.create(&temporary)?
            }
            created => created?,
        };
        Ok(Box::new(FolderWriting { storage, file: Some(file), path: path.to_owned(), temporary }))
    }

    fn open(&self, path: &str) -> Result<Box<dyn packets::Source + '_>, StorageError> {
        Ok(Box::new(Opened::new(self.storage.clone(), path)?))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        let mut found = Vec::new();
        Self::walk(&mut self.storage.clone(), folder, 0, &mut found)?;
        found.sort();
        Ok(found)
    }

    fn top(&self) -> Result<Vec<String>, StorageError> {
        Ok(self.storage.clone().list("")?.into_iter().map(|entry| entry.name).collect())
    }

    fn remove(&self, path: &str) -> Result<(), StorageError> {
        let mut storage = self.storage.clone();
        match storage.remove_file(path) {
            Ok(()) => storage.sync_directory(parent(path))?,
            Err(StorageError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        // A folder goes with its last file.
        let mut made = self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut folder = parent(path);
        while !folder.is_empty() && storage.remove_directory(folder).is_ok() {
            made.remove(folder);
            folder = parent(folder);
        }
        Ok(())
    }

    fn shown(&self, path: &str) -> String {
        format!("{}/{path}", self.shown)
    }
}

struct FolderWriting<S: Storage> {
    storage: S,
    file: Option<S::File>,
    path: String,
    temporary: String,
}

impl<S: Storage> Writing for FolderWriting<S> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let file = self.file.as_mut().expect("it is taken at the end");
        self.storage.append(file, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        let mut file = self.file.take().expect("once");
        let finished = self.storage.sync_file(&mut file).and_then(|()| {
            self.storage.rename(&self.temporary, &self.path)?;
            self.storage.sync_directory(parent(&self.path))
        });
        if finished.is_err() {
            let _ = self.storage.remove_file(&self.temporary);
        }
        finished
    }
}

impl<S: Storage> Drop for FolderWriting<S> {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = self.storage.remove_file(&self.temporary);
        }
    }
}

/// A file that is read.
struct Opened<S> {
    storage: Mutex<S>,
    path: String,
    bytes: u64,
}

impl<S: Storage> Opened<S> {
    fn new(mut storage: S, path: &str) -> Result<Opened<S>, StorageError> {
        let bytes = storage.length(path)?;
        Ok(Opened { storage: Mutex::new(storage), path: path.to_owned(), bytes })
    }
}

impl<S: Storage> packets::Source for Opened<S> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let mut storage = self.storage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        storage.read_range(&self.path, offset, into)
    }
}
