//! A file that is there whole or not at all, and the check whether its writing has to stop.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use store::storage::{self, Appended, DirectoryFile, Operation};
use store::{Directory, Storage as _, StorageError};

use crate::commands::interrupt::is_stopped;
use crate::error::CliError;

/// Err: the user ends this command.
pub(super) fn go_on() -> Result<(), CliError> {
    if is_stopped() { Err(CliError::Stopped) } else { Ok(()) }
}

/// A file under a temporary name beside its own.
pub(super) struct Output {
    directory: Directory<storage::Shared>,
    file: Option<DirectoryFile>,
    name: String,
    path: PathBuf,
}

impl Output {
    /// Begins the file `path`. An error if there is one already: nothing is ever written over.
    pub(super) fn begin(path: &Path) -> Result<Output, CliError> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| CliError::OutputName { path: path.to_owned() })?.to_owned();
        if path.symlink_metadata().is_ok() {
            return Err(CliError::OutputExists { path: path.to_owned() });
        }
        let mut directory = Directory::open_shared(parent)?;
        let file = Some(directory.create(&temporary(&name))?);
        Ok(Output { directory, file, name, path: path.to_owned() })
    }

    /// Where packets go.
    pub(super) fn sink(&mut self) -> Appended<'_, Directory<storage::Shared>> {
        let file = self.file.as_mut().expect("it is taken when the output ends");
        Appended { storage: &mut self.directory, file }
    }

    /// The file, for several threads that write to places of their own.
    pub(super) fn shared(&self) -> Result<Shared, StorageError> {
        let path = self.path.display().to_string();
        let file = self.file.as_ref().expect("it is taken when the output ends");
        let file = file.as_fd().try_clone_to_owned().map_err(|error| failed(&path, 0, &error))?;
        Ok(Shared { file: File::from(file), path })
    }

    /// Makes it durable, and gives it its name.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        let mut file = self.file.take().expect("once");
        let named = self.directory.sync_file(&mut file).and_then(|()| {
            self.directory.publish(&temporary(&self.name), &self.name)?;
            self.directory.sync_directory("")
        });
        if named.is_err() {
            let _ = self.directory.remove_file(&temporary(&self.name));
        }
        Ok(named?)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = self.directory.remove_file(&temporary(&self.name));
        }
    }
}

fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// An output that several threads write.
pub(super) struct Shared {
    file: File,
    path: String,
}

impl Shared {
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.file.write_all_at(bytes, offset).map_err(|error| failed(&self.path, bytes.len() as u64, &error))
    }

    /// So long, and zero where nothing is written.
    pub(super) fn set_length(&self, bytes: u64) -> Result<(), StorageError> {
        self.file.set_len(bytes).map_err(|error| failed(&self.path, bytes, &error))
    }
}

fn failed(path: &str, wanted_bytes: u64, error: &io::Error) -> StorageError {
    let (operation, path) = (Operation::Append, path.to_owned());
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => StorageError::NoSpace { path, wanted_bytes, free_bytes: None },
        errno => {
            StorageError::Io { operation, path, errno: errno.map_or(Errno::EIO as i32, |errno| errno as i32) }
        }
    }
}
