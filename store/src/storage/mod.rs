//! The few operations on a directory tree that the store is made of.
//!
//! Paths are relative to the tree's root, parts divided by `/`; the root itself is the empty path. A power loss leaves
//! only data that was made durable: a file's bytes after [`Storage::sync_file`], a directory's entries (files and
//! folders made, renamed or removed in it) after [`Storage::sync_directory`]. Everything since may be lost, kept, or
//! kept in part. [`Memory`] takes that freedom; code that passes over it does not depend on any one file system.

mod bucket;
mod directory;
mod memory;
mod packed;

use core::fmt;

pub use bucket::Bucket;
pub use directory::{
    Directory, DirectoryFile, DirectoryLock, DirectoryReader, ExposedPart, Exposure, Limit, Private, Shared,
};
pub use memory::{Fault, Memory};
pub use packed::{Appended, Stored};

use crate::error::bytes_text;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The name within its directory.
    pub name: String,
    /// Its kind.
    pub kind: EntryKind,
}

/// The kind of a directory's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A file of so many bytes.
    File {
        /// Its length.
        bytes: u64,
    },
    /// A directory.
    Directory,
    /// Something else (a link, a socket): never ours, never touched.
    Other,
}

/// A directory tree. See the module about durability.
pub trait Storage {
    /// A file being written, from [`Storage::create`] or [`Storage::reopen`] on. It goes on naming the same file when that is renamed.
    ///
    /// A handle and not a path, because Linux reports a failed write-back only to descriptors that were open when it
    /// failed: a file opened anew for `fsync` could be called durable though it is not.
    type File;

    /// Makes the directory `path` in an existing one. [`StorageError::AlreadyExists`] if the name is taken.
    fn create_directory(&mut self, path: &str) -> Result<(), StorageError>;

    /// Makes the file `path`, empty. [`StorageError::AlreadyExists`] if the name is taken: exclusive.
    fn create(&mut self, path: &str) -> Result<Self::File, StorageError>;

    /// Opens the file `path`, to be written where it is: at its end, or over its bytes.
    fn reopen(&mut self, path: &str) -> Result<Self::File, StorageError>;

    /// Writes `bytes` at the end of `file`. On an error any part of them may have been written.
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<(), StorageError>;

    /// Writes `bytes` over the bytes at `offset`; `offset` plus their length must not exceed the file's length.
    fn overwrite(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes the bytes of `file` durable. After an error the file must be given up, never synced again: the kernel may have dropped the bytes that it
    /// could not write.
    fn sync_file(&mut self, file: &mut Self::File) -> Result<(), StorageError>;

    /// Makes the entries of the directory `path` durable.
    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError>;

    /// Renames the file `from` to `to` in the same directory, replacing a file there; atomic.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError>;

    /// Renames the file `from` to `to` in the same directory; atomic, and [`StorageError::AlreadyExists`] if the
    /// name `to` is taken: of several that publish one name, one succeeds.
    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError>;

    /// Removes the file `path`.
    fn remove_file(&mut self, path: &str) -> Result<(), StorageError>;

    /// Removes the directory `path`. [`StorageError::NotEmpty`] if anything is in it.
    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError>;

    /// Length of the file `path` in bytes.
    fn length(&mut self, path: &str) -> Result<u64, StorageError>;

    /// Fills `into` from `offset` of the file `path`. [`StorageError::Short`] if it ends before that.
    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;

    /// The whole file `path`. [`StorageError::TooLong`], before anything is allocated, above `bytes_max`.
    fn read(&mut self, path: &str, bytes_max: u64) -> Result<Vec<u8>, StorageError> {
        let bytes = self.length(path)?;
        let length = usize::try_from(bytes).ok().filter(|_| bytes <= bytes_max);
        let Some(length) = length else {
            return Err(StorageError::TooLong { path: path.to_owned(), bytes, bytes_max });
        };
        let mut content = vec![0; length];
        self.read_range(path, 0, &mut content)?;
        Ok(content)
    }

    /// The entries of the directory `path`, sorted by name.
    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError>;

    /// Bytes that can still be written; `None` if that is unknown.
    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError>;
}

impl<S: Storage + ?Sized> Storage for &mut S {
    type File = S::File;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        (**self).create_directory(path)
    }
    fn create(&mut self, path: &str) -> Result<Self::File, StorageError> {
        (**self).create(path)
    }
    fn reopen(&mut self, path: &str) -> Result<Self::File, StorageError> {
        (**self).reopen(path)
    }
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<(), StorageError> {
        (**self).append(file, bytes)
    }
    fn overwrite(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        (**self).overwrite(file, offset, bytes)
    }
    fn sync_file(&mut self, file: &mut Self::File) -> Result<(), StorageError> {
        (**self).sync_file(file)
    }
    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        (**self).sync_directory(path)
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        (**self).rename(from, to)
    }
    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        (**self).publish(from, to)
    }
    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        (**self).remove_file(path)
    }
    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        (**self).remove_directory(path)
    }
    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        (**self).length(path)
    }
    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        (**self).read_range(path, offset, into)
    }
    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError> {
        (**self).list(path)
    }
    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        (**self).free_bytes()
    }
}

/// The storage operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the methods of `Storage`")]
pub enum Operation {
    CreateDirectory,
    Create,
    Reopen,
    Append,
    Overwrite,
    SyncFile,
    SyncDirectory,
    Rename,
    Publish,
    RemoveFile,
    RemoveDirectory,
    Length,
    Read,
    List,
    FreeBytes,
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::CreateDirectory => "make the directory",
            Operation::Create => "create",
            Operation::Reopen => "open",
            Operation::Append | Operation::Overwrite => "write",
            Operation::SyncFile | Operation::SyncDirectory => "make durable",
            Operation::Rename => "rename",
            Operation::Publish => "publish",
            Operation::RemoveFile => "remove",
            Operation::RemoveDirectory => "remove the directory",
            Operation::Length => "measure",
            Operation::Read => "read",
            Operation::List => "list",
            Operation::FreeBytes => "ask for the free space of",
            Operation::Lock => "lock",
        })
    }
}

/// A storage operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum StorageError {
    /// No such file or directory.
    #[error(
        "cannot {operation} {path}: there is no such file or directory; check the path, or list the job with `stillwire ls`"
    )]
    NotFound { operation: Operation, path: String },
    /// The name is taken and must not be.
    #[error(
        "cannot {operation} {path}: the name is taken already; another process made it, or it is left from an earlier attempt"
    )]
    AlreadyExists { operation: Operation, path: String },
    /// A directory to be removed has entries.
    #[error("cannot {operation} {path}: it still has files that are not the store's; move them away")]
    NotEmpty { operation: Operation, path: String },
    /// The file system is full, or the user's quota is used up.
    #[error("disk full: {} more are needed for {path}, {} are free; free some space, keep fewer generations, or choose another directory with --ckpt-dir", bytes_text(*.wanted_bytes), free_text(*.free_bytes))]
    NoSpace { path: String, wanted_bytes: u64, free_bytes: Option<u64> },
    /// The user may not do this.
    #[error(
        "cannot {operation} {path}: permission denied; make it writable for this user, or choose another directory with --ckpt-dir"
    )]
    Permission { operation: Operation, path: String },
    /// The file system is mounted for reading only.
    #[error(
        "cannot {operation} {path}: Read-only file system; mount it for writing, or choose another directory with --ckpt-dir"
    )]
    ReadOnly { operation: Operation, path: String },
    /// Other users could put files of their own into a job's directory, or another directory in its place.
    #[error(
        "{path} is not safe from other users: {exposure}. Choose another directory (--ckpt-dir, --node-dir){}",
        exposure.cure()
    )]
    Exposed { path: String, exposure: Exposure },
    /// A file ended before the bytes that were asked for.
    #[error(
        "cannot read {path}: {wanted_bytes} bytes from {offset} on were expected, the file has {found_bytes} bytes; it is cut off: restart from another generation"
    )]
    Short { path: String, offset: u64, wanted_bytes: u64, found_bytes: u64 },
    /// A file is longer than its kind can be.
    #[error(
        "cannot read {path}: at most {bytes_max} bytes were expected, the file has {bytes}; it is damaged or not the store's"
    )]
    TooLong { path: String, bytes: u64, bytes_max: u64 },
    /// A directory has more entries than a job's can have.
    #[error(
        "cannot list {path}: at most {entries_max} entries were expected, it has more; is this a job's directory?"
    )]
    TooMany { path: String, entries_max: usize },
    /// A file stands where a directory was expected, or the other way round.
    #[error(
        "cannot {operation} {path}: a directory stands where a file was expected, or a file where a directory was; check the path"
    )]
    WrongType { operation: Operation, path: String },
    /// The device failed.
    #[error(
        "cannot {operation} {path}: the device failed (input/output error); replace the disk, or choose another directory with --ckpt-dir"
    )]
    Device { operation: Operation, path: String },
    /// Another process holds the lock.
    #[error(
        "{path} is locked: another stillwire process is working on this job; let it end, or stop it first"
    )]
    Locked { path: String },
    /// The simulated machine has lost power; nothing works before it is restarted.
    #[error("the machine has crashed")]
    Crashed,
    /// The caller has requested the end.
    #[error("it was abandoned before its end")]
    Ended,
    /// A storage that is reached over a network has refused, or does not answer.
    #[error("cannot {operation} {path}: {problem}")]
    Remote { operation: Operation, path: String, problem: String },
    /// Anything else the operating system said.
    #[error("cannot {operation} {path}: {}; check the disk and the mount", os_text(*.errno))]
    Io { operation: Operation, path: String, errno: i32 },
}

impl StorageError {
    /// The device gives bytes of one file no more (`EIO`); other files, and a new one in its place, may be as good as ever.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(
            self,
            StorageError::Device { operation: Operation::Read | Operation::Length | Operation::List, .. }
        )
    }
}

fn free_text(free: Option<u64>) -> String {
    free.map_or_else(|| "an unknown number".to_owned(), bytes_text)
}

fn os_text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Divides a path into its directory (empty: the root) and its name.
pub(crate) fn parent_and_name(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
