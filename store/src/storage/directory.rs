//! A real directory.

mod limit;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

pub use limit::Limit;

use super::{DirectoryEntry, EntryKind, Operation, Storage, StorageError};
use crate::error::StoreError;
use crate::limits::DIRECTORY_ENTRIES_MAX;
use crate::packets::Source;

/// Images hold a program's memory, secrets included: only their owner may read them.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
}

/// A file of a [`Directory`] being written.
#[derive(Debug)]
pub struct DirectoryFile {
    file: File,
    path: String,
}

impl AsFd for DirectoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Held while one process works on a directory; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl Directory {
    /// The tree below `root`, which must be a directory.
    pub fn open(root: impl Into<PathBuf>) -> Result<Directory, StorageError> {
        let root = root.into();
        match fs::metadata(&root) {
            Ok(found) if found.is_dir() => Ok(Directory { root }),
            Ok(_) => Err(Directory { root }.failed(Operation::List, "", 0, &Errno::ENOTDIR.into())),
            Err(error) => Err(Directory { root }.failed(Operation::List, "", 0, &error)),
        }
    }

    /// Makes `root` and missing directories above it, durably, and opens it.
    pub fn create(root: impl Into<PathBuf>) -> Result<Directory, StorageError> {
        let directory = Directory { root: root.into() };
        let made = directory.make_missing(&directory.root);
        made.map_err(|error| directory.failed(Operation::CreateDirectory, "", 0, &error))?;
        Ok(directory)
    }

    /// Where the tree lies.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Takes the directory for this process: two launchers on one job would roll back each other's work.
    /// [`StorageError::Locked`] if another one has it.
    pub fn lock(&self) -> Result<DirectoryLock, StorageError> {
        let path = "lock";
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(FILE_MODE);
        let file =
            options.open(self.full(path)).map_err(|error| self.failed(Operation::Lock, path, 0, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(DirectoryLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StorageError::Locked { path: self.shown(path) }),
            Err(TryLockError::Error(error)) => Err(self.failed(Operation::Lock, path, 0, &error)),
        }
    }

    /// The next bytes of `file` come after `bytes` that another writer has written.
    pub(crate) fn pass_over(&self, file: &mut DirectoryFile, bytes: u64) -> Result<(), StorageError> {
        let failed = |error: io::Error| self.failed(Operation::Append, &file.path, 0, &error);
        let end = i64::try_from(bytes).map_err(|_| failed(Errno::EFBIG.into()))?;
        (&file.file).seek(SeekFrom::Current(end)).map_err(failed)?;
        Ok(())
    }

    fn make_missing(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        self.make_missing(parent)?;
        match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
            Ok(()) => File::open(parent)?.sync_all(),
        }
    }

    fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn shown(&self, path: &str) -> String {
        self.full(path).display().to_string()
    }

    fn failed(&self, operation: Operation, path: &str, wanted_bytes: u64, error: &io::Error) -> StorageError {
        let path = self.shown(path);
        let errno = error.raw_os_error().unwrap_or(0);
        match Errno::from_raw(errno) {
            Errno::ENOENT => StorageError::NotFound { operation, path },
            Errno::EEXIST => StorageError::AlreadyExists { operation, path },
            Errno::ENOTEMPTY => StorageError::NotEmpty { operation, path },
            Errno::EACCES | Errno::EPERM => StorageError::Permission { operation, path },
            Errno::EROFS => StorageError::ReadOnly { operation, path },
            Errno::ENOSPC | Errno::EDQUOT => {
                StorageError::NoSpace { path, wanted_bytes, free_bytes: free_bytes(&self.root).ok() }
            }
            Errno::EISDIR | Errno::ENOTDIR => StorageError::WrongType { operation, path },
            Errno::EIO => StorageError::Device { operation, path },
            _ => StorageError::Io { operation, path, errno },
        }
    }
}

fn free_bytes(root: &Path) -> Result<u64, Errno> {
    let found = statvfs(root)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

impl StoreError {
    /// The Linux error number that describes it best, for control messages, which do not carry the words.
    #[must_use]
    pub fn errno(&self) -> u32 {
        let errno = match self {
            StoreError::Storage(StorageError::NoSpace { .. }) => Errno::ENOSPC as i32,
            StoreError::Storage(StorageError::Permission { .. }) => Errno::EACCES as i32,
            StoreError::Storage(StorageError::ReadOnly { .. }) => Errno::EROFS as i32,
            StoreError::Storage(StorageError::NotFound { .. }) => Errno::ENOENT as i32,
            StoreError::Storage(StorageError::Io { errno, .. }) => *errno,
            _ => Errno::EIO as i32,
        };
        u32::try_from(errno).unwrap_or(0)
    }
}

/// Renames without replacing. A hard link is the one exclusive way that NFS, Lustre and BeeGFS know as well as the
/// local file systems; where there are no hard links the kernel's own exclusive rename is tried.
fn rename_exclusive(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK) => {
                rename_exclusive_by_kernel(from, to)
            }
            _ => Err(error),
        },
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename_exclusive_by_kernel(from: &Path, to: &Path) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    Ok(renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE)?)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn rename_exclusive_by_kernel(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(Errno::EOPNOTSUPP.into())
}

impl Directory {
    /// Gives a file another name, which must be free.
    pub(crate) fn link(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let linked = fs::hard_link(self.full(from), self.full(to));
        linked.map_err(|error| self.failed(Operation::Publish, to, 0, &error))
    }
}

/// A file of a [`Directory`] that is read again and again, by several threads at once.
#[derive(Debug)]
pub struct DirectoryReader {
    file: File,
    directory: Directory,
    path: String,
    bytes: u64,
}

impl Directory {
    /// Opens the file `path` for reading. It stays readable when its name goes.
    pub fn open_file(&self, path: &str) -> Result<DirectoryReader, StorageError> {
        let failed = |error| self.failed(Operation::Read, path, 0, &error);
        let file = File::open(self.full(path)).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(failed(Errno::EISDIR.into()));
        }
        Ok(DirectoryReader { file, directory: self.clone(), path: path.to_owned(), bytes: found.len() })
    }
}

impl Source for DirectoryReader {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StorageError::Short {
                path: self.directory.shown(&self.path),
                offset,
                wanted_bytes: length_u64(into),
                found_bytes: self.bytes,
            },
            _ => self.directory.failed(Operation::Read, &self.path, 0, &error),
        })
    }
}

fn length_u64(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

impl Storage for Directory {
    type File = DirectoryFile;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(self.full(path));
        made.map_err(|error| self.failed(Operation::CreateDirectory, path, 0, &error))
    }

    fn create(&mut self, path: &str) -> Result<DirectoryFile, StorageError> {
        let made = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(self.full(path));
        made.map(|file| DirectoryFile { file, path: path.to_owned() })
            .map_err(|error| self.failed(Operation::Create, path, 0, &error))
    }

    fn reopen(&mut self, path: &str) -> Result<DirectoryFile, StorageError> {
        let opened = OpenOptions::new().write(true).open(self.full(path)).and_then(|mut file| {
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        });
        opened
            .map(|file| DirectoryFile { file, path: path.to_owned() })
            .map_err(|error| self.failed(Operation::Reopen, path, 0, &error))
    }

    fn append(&mut self, file: &mut DirectoryFile, bytes: &[u8]) -> Result<(), StorageError> {
        let written = file.file.write_all(bytes);
        written.map_err(|error| self.failed(Operation::Append, &file.path, length_u64(bytes), &error))
    }

    fn overwrite(&mut self, file: &mut DirectoryFile, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let written = file.file.write_all_at(bytes, offset);
        written.map_err(|error| self.failed(Operation::Overwrite, &file.path, length_u64(bytes), &error))
    }

    fn sync_file(&mut self, file: &mut DirectoryFile) -> Result<(), StorageError> {
        file.file.sync_all().map_err(|error| self.failed(Operation::SyncFile, &file.path, 0, &error))
    }

    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        let synced = File::open(self.full(path)).and_then(|directory| directory.sync_all());
        synced.map_err(|error| self.failed(Operation::SyncDirectory, path, 0, &error))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let renamed = fs::rename(self.full(from), self.full(to));
        renamed.map_err(|error| self.failed(Operation::Rename, to, 0, &error))
    }

    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let renamed = rename_exclusive(&self.full(from), &self.full(to));
        renamed.map_err(|error| self.failed(Operation::Publish, to, 0, &error))
    }

    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        let removed = fs::remove_file(self.full(path));
        removed.map_err(|error| self.failed(Operation::RemoveFile, path, 0, &error))
    }

    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        let removed = fs::remove_dir(self.full(path));
        removed.map_err(|error| self.failed(Operation::RemoveDirectory, path, 0, &error))
    }

    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        let found = fs::metadata(self.full(path));
        let found = found.map_err(|error| self.failed(Operation::Length, path, 0, &error))?;
        if found.is_file() {
            return Ok(found.len());
        }
        Err(self.failed(Operation::Length, path, 0, &Errno::EISDIR.into()))
    }

    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let read = File::open(self.full(path)).and_then(|file| {
            file.read_exact_at(into, offset)?;
            Ok(())
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let found_bytes = self.length(path)?;
                let wanted_bytes = length_u64(into);
                Err(StorageError::Short { path: self.shown(path), offset, wanted_bytes, found_bytes })
            }
            other => other.map_err(|error| self.failed(Operation::Read, path, 0, &error)),
        }
    }

    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError> {
        let failed = |error: io::Error| self.failed(Operation::List, path, 0, &error);
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.full(path)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A name that is not UTF-8 is not ours; a file that vanished since was being removed by its owner.
            let (Ok(name), Ok(found)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
            let kind = if found.is_dir() {
                EntryKind::Directory
            } else if found.is_file() {
                EntryKind::File { bytes: found.len() }
            } else {
                EntryKind::Other
            };
            if entries.len() == DIRECTORY_ENTRIES_MAX {
                let path = self.shown(path);
                return Err(StorageError::TooMany { path, entries_max: DIRECTORY_ENTRIES_MAX });
            }
            entries.push(DirectoryEntry { name, kind });
        }
        entries.sort();
        Ok(entries)
    }

    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        let free = free_bytes(&self.root);
        free.map(Some).map_err(|errno| self.failed(Operation::FreeBytes, "", 0, &errno.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_is_named_with_what_was_wanted() {
        let mut directory = Directory::open("/dev").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut file = DirectoryFile { file: full, path: "full".to_owned() };
        let error = directory.append(&mut file, &[0; 1000]).unwrap_err();
        let StorageError::NoSpace { path, wanted_bytes: 1000, free_bytes: Some(_) } = &error else {
            panic!("{error}")
        };
        assert_eq!(path, "/dev/full");
        assert!(error.to_string().starts_with("disk full: 1000 bytes more are needed"), "{error}");
    }

    #[test]
    fn every_refusal_of_the_system_has_its_name() {
        let directory = Directory { root: PathBuf::from("/somewhere") };
        let reported =
            |errno: Errno| directory.failed(Operation::Create, "job", 0, &errno.into()).to_string();
        for (errno, text) in [
            (Errno::EACCES, "cannot create /somewhere/job: permission denied"),
            (Errno::EPERM, "permission denied"),
            (Errno::EROFS, "Read-only file system"),
            (Errno::ENOENT, "there is no such file or directory"),
            (Errno::EEXIST, "the name is taken already"),
            (Errno::ENOTEMPTY, "it still has files that are not the store's"),
            (Errno::ENOSPC, "disk full"),
            (Errno::EDQUOT, "disk full"),
            (Errno::EIO, "the device failed"),
            (Errno::ENOTDIR, "a directory stands where a file was expected"),
            (Errno::ENAMETOOLONG, "File name too long"),
        ] {
            assert!(reported(errno).contains(text), "{}", reported(errno));
        }
    }

    #[test]
    fn without_hard_links_the_kernel_s_rename_is_exclusive_too() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::write(&from, b"new").unwrap();
        fs::write(&to, b"old").unwrap();
        let taken = rename_exclusive_by_kernel(&from, &to).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&to).unwrap();
        rename_exclusive_by_kernel(&from, &to).unwrap();
        assert_eq!((fs::read(&to).unwrap(), from.exists()), (b"new".to_vec(), false));
    }
}
