//! Files, with or without a name.

use std::io;
use std::os::fd::RawFd;

use super::super::marks;
use super::{Changed, Grown, Maker, RemakeError, Unknown, calls};
use crate::state::files::{LockKind, Regular, What};

/// Flags that `open(2)` gets back.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DIRECT
    | libc::O_SYNC
    | libc::O_NOATIME
    | libc::O_PATH
    | libc::O_DIRECTORY;

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Maker<'_> {
    pub(super) fn open_path(&self, index: usize, path: &[u8], flags: i32) -> Result<RawFd, RemakeError> {
        let opened = calls::open(path, flags & OPEN_FLAGS).map_err(|error| RemakeError::Open {
            number: self.numbers[index],
            path: shown(path),
            error,
        })?;
        self.lift(index, Ok(opened), "moving it")
    }

    pub(super) fn make_regular(
        &mut self,
        index: usize,
        regular: &Regular,
        flags: i32,
    ) -> Result<RawFd, RemakeError> {
        let fd = match &regular.content {
            Some(content) => self.make_unnamed(index, regular, content, flags)?,
            None => {
                let fd = self.open_path(index, &regular.path, flags)?;
                if flags & libc::O_PATH == 0 {
                    self.check_file(index, regular, fd, flags)?;
                }
                fd
            }
        };
        self.seek(index, fd, regular.position)?;
        for lock in &regular.locks {
            let locked = match lock.kind {
                LockKind::Whole => calls::lock_whole(fd, lock.is_exclusive),
                LockKind::Description => {
                    calls::lock_range(fd, libc::F_OFD_SETLK, lock.is_exclusive, lock.start, lock.last)
                }
                LockKind::Process => Ok(()),
            };
            locked.map_err(|error| self.not_locked(index, &regular.path, error))?;
        }
        Ok(fd)
    }

    pub(super) fn not_locked(&self, index: usize, path: &[u8], error: io::Error) -> RemakeError {
        RemakeError::Lock { number: self.numbers[index], path: shown(path), error }
    }

    /// Compares a file with its state at the cut, and truncates later bytes.
    fn check_file(
        &mut self,
        index: usize,
        regular: &Regular,
        fd: RawFd,
        flags: i32,
    ) -> Result<(), RemakeError> {
        let number = self.numbers[index];
        let path = shown(&regular.path);
        let stat = calls::stat(fd).map_err(self.failed(index, "fstat"))?;
        let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let (device, inode) = regular.identity;
        if !is_file || (stat.st_dev == device && stat.st_ino != inode) {
            // On another host the file system has another number, and a copy of a file has another inode.
            self.unless_accepted(RemakeError::Replaced { number, path: path.clone() })?;
        }
        let found = stat.st_size.cast_unsigned();
        if found < regular.bytes {
            return self.unless_accepted(RemakeError::Shorter {
                number,
                path,
                found,
                expected: regular.bytes,
            });
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            if found > regular.bytes && regular.is_shared {
                let more = found - regular.bytes;
                self.remade.warnings.push(format!(
                    "{path}: {more} bytes came after the checkpoint and stay, because another process writes the file, too; bytes that this one wrote among them may be there twice"
                ));
            } else if found > regular.bytes && self.policy.grown == Grown::Truncate {
                self.keep_unknown(index, regular, fd, found)?;
                calls::truncate(fd, regular.bytes)
                    .map_err(self.failed(index, "cutting off what came after"))?;
            }
            return Ok(());
        }
        let modified_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec);
        let is_changed = found != regular.bytes || modified_ns != regular.modified_ns;
        if is_changed && !self.is_written_here(regular) {
            return self.unless_accepted(RemakeError::Changed { number, path });
        }
        Ok(())
    }

    /// Keeps a copy of a file that may be another one than that of the cut.
    fn keep_unknown(
        &mut self,
        index: usize,
        regular: &Regular,
        fd: RawFd,
        found: u64,
    ) -> Result<(), RemakeError> {
        if marks::is_known(regular, fd) {
            return Ok(());
        }
        let (number, path, expected) = (self.numbers[index], shown(&regular.path), regular.bytes);
        if self.policy.unknown == Unknown::Refuse {
            return Err(RemakeError::Unknown { number, path, found, expected });
        }
        let kept = marks::keep(&regular.path, fd).map_err(|error| RemakeError::NotKept {
            number,
            path: path.clone(),
            error,
        })?;
        self.remade.warnings.push(format!(
            "{path}: it is cut from {found} bytes to {expected}, its length at the checkpoint, and cannot be recognised as the file of then; {} is a copy of it as it was found: remove it, or put it back",
            kept.display()
        ));
        Ok(())
    }

    /// Whether another descriptor of the process writes the same file.
    fn is_written_here(&self, regular: &Regular) -> bool {
        self.files.open.iter().any(|other| {
            let writes = other.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY;
            matches!(&other.what, What::Regular(file) if writes && file.identity == regular.identity)
        })
    }

    fn unless_accepted(&mut self, error: RemakeError) -> Result<(), RemakeError> {
        match self.policy.changed {
            Changed::Refuse => Err(error),
            Changed::Accept => {
                self.remade.warnings.push(error.to_string());
                Ok(())
            }
        }
    }

    fn make_unnamed(
        &self,
        index: usize,
        regular: &Regular,
        content: &[u8],
        flags: i32,
    ) -> Result<RawFd, RemakeError> {
        let before =
            self.files.open[..index].iter().zip(&self.made).find_map(|(other, made)| match &other.what {
                What::Regular(file) if file.content.is_some() && file.identity == regular.identity => *made,
                _ => None,
            });
        if let Some(same) = before {
            return self.reopen(index, same, flags & OPEN_FLAGS);
        }
        let name = regular.path.strip_prefix(b"/memfd:");
        let fd = match name {
            Some(name) => {
                let takes_seals = regular.seals != libc::F_SEAL_SEAL.cast_unsigned();
                self.lift(index, calls::memory_file(name, takes_seals), "memfd_create")?
            }
            None => self.lift(index, unnamed(&regular.path), "making a file without a name")?,
        };
        calls::write_all(fd, content).map_err(self.failed(index, "writing a file without a name"))?;
        calls::seek(fd, 0).map_err(self.failed(index, "lseek"))?;
        if name.is_some() && regular.seals != 0 && regular.seals != libc::F_SEAL_SEAL.cast_unsigned() {
            calls::add_seals(fd, regular.seals).map_err(self.failed(index, "F_ADD_SEALS"))?;
        }
        if flags & OPEN_FLAGS == libc::O_RDWR {
            return Ok(fd);
        }
        let reopened = self.reopen(index, fd, flags & OPEN_FLAGS);
        calls::close(fd);
        reopened
    }
}

/// A file without a name, where the saved one was if that directory is still there.
fn unnamed(path: &[u8]) -> io::Result<RawFd> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let directory = path.get(..end.max(1)).unwrap_or(b"/");
    let flags = libc::O_TMPFILE | libc::O_RDWR;
    calls::open(directory, flags).or_else(|_| calls::open(b"/tmp", flags)).or_else(|_| {
        let name = path.get(end + 1..).unwrap_or(b"unnamed");
        calls::memory_file(name, false)
    })
}
