//! A real directory.

mod limit;
mod root;

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::libc;
use nix::sys::stat::{FileStat, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

pub use limit::Limit;
use root::{DIRECTORY_MODE, Root};
pub use root::{ExposedPart, Exposure};

use super::{DirectoryEntry, EntryKind, Operation, Storage, StorageError};
use crate::error::StoreError;
use crate::limits::DIRECTORY_ENTRIES_MAX;
use crate::packets::Source;

/// A directory that only we and root can change: a job's, or a node's own.
#[derive(Clone, Copy, Debug)]
pub enum Private {}

/// A directory that others may change too: a place of copies, or of files that a person names. Nothing in it is executed before it is checked.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// A directory of the file system. It was opened once, and checked if it is [`Private`]; everything below is reached from that descriptor.
#[derive(Clone, Debug)]
pub struct Directory<Users = Private> {
    root: Arc<Root>,
    users: PhantomData<Users>,
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
    /// The tree below `root`, which must be a directory that only we and root can change; else [`StorageError::Exposed`].
    pub fn open(root: impl Into<PathBuf>) -> Result<Directory, StorageError> {
        Root::private(&root.into()).map(Directory::of)
    }

    /// Makes `root` and missing directories above it, durably, and opens it as [`Directory::open`] does.
    pub fn create(root: impl Into<PathBuf>) -> Result<Directory, StorageError> {
        Root::make_private(&root.into()).map(Directory::of)
    }

    /// The root itself, to be locked.
    pub fn lock_root(&self) -> io::Result<File> {
        self.root.open_at("", OFlag::O_RDONLY | OFlag::O_DIRECTORY)
    }

    /// The next bytes of `file` come after `bytes` that another writer has written.
    pub(crate) fn pass_over(&self, file: &mut DirectoryFile, bytes: u64) -> Result<(), StorageError> {
        let failed = |error: io::Error| self.failed(Operation::Append, &file.path, 0, &error);
        let end = i64::try_from(bytes).map_err(|_| failed(Errno::EFBIG.into()))?;
        (&file.file).seek(SeekFrom::Current(end)).map_err(failed)?;
        Ok(())
    }

    /// Gives a file another name, which must be free.
    pub(crate) fn link(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let linked = linkat(self.root.fd(), from, self.root.fd(), to, AtFlags::empty());
        linked.map_err(|errno| self.failed(Operation::Publish, to, 0, &errno.into()))
    }
}

impl Directory<Shared> {
    /// The tree below `root`, which others may change as well.
    pub fn open_shared(root: impl Into<PathBuf>) -> Result<Directory<Shared>, StorageError> {
        Root::shared(&root.into()).map(Directory::of)
    }

    /// Makes `root` and missing directories above it, durably, and opens it as [`Directory::open_shared`] does.
    pub fn create_shared(root: impl Into<PathBuf>) -> Result<Directory<Shared>, StorageError> {
        Root::make_shared(&root.into()).map(Directory::of)
    }
}

impl<Users> Directory<Users> {
    fn of(root: Root) -> Directory<Users> {
        Directory { root: Arc::new(root), users: PhantomData }
    }

    /// Where the tree lies. While it is [`Private`], the path leads there until we or root change that.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Takes the directory for this process: two launchers on one job would roll back each other's work.
    /// [`StorageError::Locked`] if another one has it.
    pub fn lock(&self) -> Result<DirectoryLock, StorageError> {
        let path = "lock";
        let file = self.lock_file(path).map_err(|error| self.failed(Operation::Lock, path, 0, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(DirectoryLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StorageError::Locked { path: self.shown(path) }),
            Err(TryLockError::Error(error)) => Err(self.failed(Operation::Lock, path, 0, &error)),
        }
    }

    /// A file to be locked, made if it is missing. On a disk that is full or cannot be written, one that is there serves.
    pub fn lock_file(&self, path: &str) -> io::Result<File> {
        let made = self.root.open_at(path, OFlag::O_WRONLY | OFlag::O_CREAT);
        made.or_else(|error| self.root.open_at(path, OFlag::O_RDONLY).map_err(|_| error))
    }

    /// Whether it has no name any more, so that nothing can be made in it.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        fstat(self.root.fd()).is_ok_and(|found| found.st_nlink == 0)
    }

    fn shown(&self, path: &str) -> String {
        self.root.shown(path)
    }

    fn failed(&self, operation: Operation, path: &str, wanted_bytes: u64, error: &io::Error) -> StorageError {
        self.root.failed(operation, path, wanted_bytes, error)
    }

    fn stat(&self, path: &str) -> Result<FileStat, Errno> {
        let links = if self.root.follows_links() { AtFlags::empty() } else { AtFlags::AT_SYMLINK_NOFOLLOW };
        fstatat(self.root.fd(), path, links)
    }
}

impl StoreError {
    /// The Linux error number that describes it best, for control messages, which do not carry the words.
    #[must_use]
    pub fn errno(&self) -> u32 {
        let errno = match self {
            StoreError::Storage(StorageError::NoSpace { .. }) => Errno::ENOSPC as i32,
            StoreError::Storage(StorageError::Permission { .. } | StorageError::Exposed { .. }) => {
                Errno::EACCES as i32
            }
            StoreError::Storage(StorageError::ReadOnly { .. }) => Errno::EROFS as i32,
            StoreError::Storage(StorageError::NotFound { .. }) => Errno::ENOENT as i32,
            StoreError::Storage(StorageError::Io { errno, .. }) => *errno,
            _ => Errno::EIO as i32,
        };
        u32::try_from(errno).unwrap_or(0)
    }
}

/// Renames without replacing, both names in `directory`. A hard link is the one exclusive way that NFS, Lustre and BeeGFS know as well as the
/// local file systems; where there are no hard links the kernel's own exclusive rename is tried.
fn rename_exclusive(directory: impl AsFd, from: &str, to: &str) -> Result<(), Errno> {
    let directory = directory.as_fd();
    match linkat(directory, from, directory, to, AtFlags::empty()) {
        Ok(()) => unlinkat(directory, from, UnlinkatFlags::NoRemoveDir),
        Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK) => {
            rename_exclusive_by_kernel(directory, from, to)
        }
        Err(error) => Err(error),
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename_exclusive_by_kernel(directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
    use nix::fcntl::{RenameFlags, renameat2};
    renameat2(directory, from, directory, to, RenameFlags::RENAME_NOREPLACE)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn rename_exclusive_by_kernel(_directory: BorrowedFd<'_>, _from: &str, _to: &str) -> Result<(), Errno> {
    Err(Errno::EOPNOTSUPP)
}

/// A file of a [`Directory`] that is read again and again, by several threads at once.
#[derive(Debug)]
pub struct DirectoryReader {
    file: File,
    root: Arc<Root>,
    path: String,
    bytes: u64,
}

impl DirectoryReader {
    /// The open file.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }
}

impl<Users> Directory<Users> {
    /// Opens the file `path` for reading. It stays readable when its name goes.
    pub fn open_file(&self, path: &str) -> Result<DirectoryReader, StorageError> {
        let failed = |error| self.failed(Operation::Read, path, 0, &error);
        let file = self.root.open_at(path, OFlag::O_RDONLY).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(failed(Errno::EISDIR.into()));
        }
        Ok(DirectoryReader { file, root: Arc::clone(&self.root), path: path.to_owned(), bytes: found.len() })
    }
}

impl Source for DirectoryReader {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StorageError::Short {
                path: self.root.shown(&self.path),
                offset,
                wanted_bytes: length_u64(into),
                found_bytes: self.bytes,
            },
            _ => self.root.failed(Operation::Read, &self.path, 0, &error),
        })
    }
}

fn length_u64(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

impl<Users> Storage for Directory<Users> {
    type File = DirectoryFile;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        let made = mkdirat(self.root.fd(), path, DIRECTORY_MODE);
        made.map_err(|errno| self.failed(Operation::CreateDirectory, path, 0, &errno.into()))
    }

    fn create(&mut self, path: &str) -> Result<DirectoryFile, StorageError> {
        let made = self.root.open_at(path, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL);
        made.map(|file| DirectoryFile { file, path: path.to_owned() })
            .map_err(|error| self.failed(Operation::Create, path, 0, &error))
    }

    fn reopen(&mut self, path: &str) -> Result<DirectoryFile, StorageError> {
        let opened = self.root.open_at(path, OFlag::O_WRONLY).and_then(|mut file| {
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
        let opened = self.root.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let synced = opened.and_then(|directory| directory.sync_all());
        synced.map_err(|error| self.failed(Operation::SyncDirectory, path, 0, &error))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let renamed = renameat(self.root.fd(), from, self.root.fd(), to);
        renamed.map_err(|errno| self.failed(Operation::Rename, to, 0, &errno.into()))
    }

    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let renamed = rename_exclusive(self.root.fd(), from, to);
        renamed.map_err(|errno| self.failed(Operation::Publish, to, 0, &errno.into()))
    }

    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        let removed = unlinkat(self.root.fd(), path, UnlinkatFlags::NoRemoveDir);
        removed.map_err(|errno| self.failed(Operation::RemoveFile, path, 0, &errno.into()))
    }

    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        let removed = unlinkat(self.root.fd(), path, UnlinkatFlags::RemoveDir);
        removed.map_err(|errno| self.failed(Operation::RemoveDirectory, path, 0, &errno.into()))
    }

    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        let found = self.stat(path);
        let found = found.map_err(|errno| self.failed(Operation::Length, path, 0, &errno.into()))?;
        if found.st_mode & libc::S_IFMT == libc::S_IFREG {
            return Ok(u64::try_from(found.st_size).unwrap_or(0));
        }
        Err(self.failed(Operation::Length, path, 0, &Errno::EISDIR.into()))
    }

    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let read = self.root.open_at(path, OFlag::O_RDONLY).and_then(|file| {
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
        let opened = self.root.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        // The kernel goes from this name straight to the open directory; the library opens directories by name only.
        let through = format!("/proc/self/fd/{}", opened.as_raw_fd());
        for entry in fs::read_dir(through).map_err(failed)? {
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
        let free = self.root.free_bytes();
        free.map(Some).map_err(|errno| self.failed(Operation::FreeBytes, "", 0, &errno.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_is_named_with_what_was_wanted() {
        let mut directory = Directory::open_shared("/dev").unwrap();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
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
        let directory = Directory::open_shared("/dev").unwrap();
        let reported =
            |errno: Errno| directory.failed(Operation::Create, "job", 0, &errno.into()).to_string();
        for (errno, text) in [
            (Errno::EACCES, "cannot create /dev/job: permission denied"),
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
        let directory = File::open(scratch.path()).unwrap();
        let rename = || rename_exclusive_by_kernel(directory.as_fd(), "from", "to");
        assert_eq!(rename(), Err(Errno::EEXIST));
        fs::remove_file(&to).unwrap();
        rename().unwrap();
        assert_eq!((fs::read(&to).unwrap(), from.exists()), (b"new".to_vec(), false));
    }
}
