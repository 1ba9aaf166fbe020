//! Files of any storage as places that packed bytes come from and go to.

use core::cell::RefCell;

use super::{Storage, StorageError};
use crate::packets::{Sink, Source};

/// A file that is read.
#[derive(Debug)]
pub struct Stored<'a, S> {
    storage: RefCell<&'a mut S>,
    path: &'a str,
    bytes: u64,
}

impl<'a, S: Storage> Stored<'a, S> {
    /// The file `path`.
    pub fn open(storage: &'a mut S, path: &'a str) -> Result<Stored<'a, S>, StorageError> {
        let bytes = storage.length(path)?;
        Ok(Stored { storage: RefCell::new(storage), path, bytes })
    }
}

impl<S: Storage> Source for Stored<'_, S> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.storage.borrow_mut().read_range(self.path, offset, into)
    }
}

/// A file that is written.
pub struct Appended<'a, S: Storage> {
    /// Where it lies.
    pub storage: &'a mut S,
    /// It.
    pub file: &'a mut S::File,
}

impl<S: Storage> Sink for Appended<'_, S> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.storage.append(self.file, bytes)
    }
}
