//! Where copies lie: a tree of files that are written once, whole or not at all.

use store::StorageError;
use store::packets;

/// A file that a target has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path, parts divided by `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

/// A place for files. Paths are relative to it, parts divided by `/`. Many threads may use it at once.
pub trait Target: Send + Sync {
    /// Begins a file of at most so many bytes. Its name keeps its older contents until [`Writing::finish`]. A writer
    /// that is dropped before leaves nothing, or a file that [`Target::list`] shows.
    fn create(&self, path: &str, bytes_max: u64) -> Result<Box<dyn Writing + '_>, StorageError>;

    /// Opens a file for reading.
    fn open(&self, path: &str) -> Result<Box<dyn packets::Source + '_>, StorageError>;

    /// Every file below a folder, by rising path; also unfinished ones. None if there is no such folder.
    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError>;

    /// The names of the entries directly in the place.
    fn top(&self) -> Result<Vec<String>, StorageError>;

    /// Removes a file, durably. Its absence is no error.
    fn remove(&self, path: &str) -> Result<(), StorageError>;

    /// A path as people know it.
    fn shown(&self, path: &str) -> String;

    /// Writes a small file.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let mut writing = self.create(path, bytes.len() as u64)?;
        writing.put(bytes)?;
        writing.finish()
    }

    /// Reads a small file.
    fn read(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, StorageError> {
        let source = self.open(path)?;
        let bytes = source.bytes();
        let length = usize::try_from(bytes).ok().filter(|_| bytes <= bytes_max);
        let Some(length) = length else {
            return Err(StorageError::TooLong { path: self.shown(path), bytes, bytes_max });
        };
        let mut content = vec![0; length];
        source.read_at(0, &mut content)?;
        Ok(content)
    }
}

/// A file that is being written.
pub trait Writing {
    /// Takes the next bytes.
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes it durable under its name.
    fn finish(self: Box<Self>) -> Result<(), StorageError>;
}

impl packets::Sink for dyn Writing + '_ {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        Writing::put(self, bytes)
    }
}
