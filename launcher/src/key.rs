//! A job's key for programs that know the provider, and nothing of the launcher.
//!
//! The key lies in memory that only this process has, and is opened by way of /proc, which asks for the right to look into this process:
//! another user does not have it. So it stands in no argument, no environment and no directory, is found behind any script and any mpirun on
//! this host, and is gone with the launcher.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};

/// One that a person has set counts: jobs that are to meet need a common key.
pub use client::user_key::KEY_FILE_VARIABLE;

/// The file. It is there as long as this is.
#[derive(Debug)]
pub struct KeyFile {
    file: OwnedFd,
}

impl KeyFile {
    pub(crate) fn new(key: &[u8; 16]) -> io::Result<KeyFile> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"stillwire-key", flags)?);
        fchmod(file.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)?;
        file.write_all(key)?;
        let seals =
            SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;
        Ok(KeyFile { file: file.into() })
    }

    /// With a key that nobody else has.
    pub fn fresh() -> io::Result<KeyFile> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        KeyFile::new(&key)
    }

    /// The variable with its place; `None` if a person has named another file.
    pub fn variable(&self) -> Option<(&'static str, PathBuf)> {
        if std::env::var_os(KEY_FILE_VARIABLE).is_some() {
            return None;
        }
        let place = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        Some((KEY_FILE_VARIABLE, place.into()))
    }

    /// The same for a process in a pid namespace, whose first process has the file under its number.
    pub(crate) fn variable_inside(&self) -> Option<(&'static str, PathBuf)> {
        let (name, _) = self.variable()?;
        Some((name, format!("/proc/1/fd/{}", self.number()).into()))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_key_is_there_for_this_user_as_long_as_the_launcher_says() {
        let file = KeyFile::new(b"sixteen bytes...").unwrap();
        let Some((_, place)) = file.variable() else { return };
        assert_eq!(std::fs::read(&place).unwrap(), b"sixteen bytes...");
        assert_eq!(std::fs::metadata(&place).unwrap().mode() & 0o777, 0o600);
        assert!(
            std::fs::OpenOptions::new()
                .append(true)
                .open(&place)
                .and_then(|mut file| file.write_all(b"x"))
                .is_err()
        );
        // Another test may open something else under the same number meanwhile.
        let number =
            |place: &std::path::Path| std::fs::metadata(place).map(|file| (file.dev(), file.ino())).ok();
        let before = number(&place);
        drop(file);
        assert_ne!(number(&place), before);
    }
}
