//! Files of a detached job in its directory: output of its ranks, messages of its launchers, and a record of its end.
//!
//! `DIR/detached/` holds `output` and `messages`, which grow; `run.json`, with the lengths of both at the beginning of the run; `ended.json`, written after
//! all output of the run; and `lock`, which the launcher and its watcher share as long as they live. The job's directory is the user's own (ADR 0120).

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::commands::Stream;

const FOLDER: &str = "detached";
const RUN: &str = "run.json";
const ENDED: &str = "ended.json";
const LOCK: &str = "lock";

/// The run that is under way, or that ended last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// The job's id, 32 hexadecimal digits.
    pub(crate) job: String,
    /// Bytes of each stream that earlier runs have written.
    pub(crate) output_from: u64,
    pub(crate) messages_from: u64,
}

/// How a run has ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct EndRecord {
    /// The exit code that `run` would have had in the foreground.
    pub(crate) exit_code: u8,
    /// The error, if the job has no report.
    pub(crate) error: Option<String>,
    /// The object that `run --json` prints.
    pub(crate) report: Option<serde_json::Value>,
}

/// The folder of these files.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

impl Records {
    /// The folder of the job in this directory.
    pub(crate) fn of(directory: &Path) -> Records {
        Records { folder: directory.join(FOLDER) }
    }

    /// A run begins, whose streams follow those of earlier ones.
    pub(crate) fn begin(&self, job: String) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        match fs::remove_file(self.folder.join(ENDED)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let written = |stream| Ok::<u64, io::Error>(self.append(stream)?.metadata()?.len());
        let (output_from, messages_from) = (written(Stream::Output)?, written(Stream::Error)?);
        self.write(RUN, &RunRecord { job, output_from, messages_from })
    }

    /// The run that is under way, or was last; `None`: the job was never detached.
    pub(crate) fn run(&self) -> io::Result<Option<RunRecord>> {
        self.read(RUN)
    }

    /// The run is over, and all of its output is written.
    pub(crate) fn note_end(&self, end: &EndRecord) -> io::Result<()> {
        self.write(ENDED, end)
    }

    /// How the last run has ended, if it has.
    pub(crate) fn end(&self) -> io::Result<Option<EndRecord>> {
        self.read(ENDED)
    }

    fn path(&self, stream: Stream) -> PathBuf {
        self.folder.join(match stream {
            Stream::Output => "output",
            Stream::Error => "messages",
        })
    }

    /// Opens a stream, to append to it.
    pub(crate) fn append(&self, stream: Stream) -> io::Result<File> {
        let flags = OFlag::O_NOFOLLOW.bits();
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(self.path(stream))
    }

    /// Opens a stream, to read it.
    pub(crate) fn open(&self, stream: Stream) -> io::Result<File> {
        File::open(self.path(stream))
    }

    /// The lock of a living launcher or watcher, shared between them ([`Records::is_held`]).
    pub(crate) fn hold(&self) -> io::Result<File> {
        let flags = OFlag::O_NOFOLLOW.bits();
        let path = self.folder.join(LOCK);
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)?;
        // Waits only for a reader in `is_held`, which has the lock for an instant.
        file.lock_shared()?;
        Ok(file)
    }

    /// Whether a launcher or its watcher lives.
    pub(crate) fn is_held(&self) -> io::Result<bool> {
        let file = File::open(self.folder.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn read<T: for<'a> Deserialize<'a>>(&self, name: &str) -> io::Result<Option<T>> {
        match fs::read(self.folder.join(name)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file in one step: a reader never sees a part of it.
    fn write(&self, name: &str, record: &impl Serialize) -> io::Result<()> {
        let unfinished = self.folder.join(format!("{name}.new"));
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(unfinished, self.folder.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_knows_where_its_streams_begin() {
        let job = tempfile::tempdir().expect("a folder");
        let records = Records::of(job.path());
        assert_eq!(records.run().expect("no record is no error"), None);
        records.begin("1".to_owned()).expect("a folder that can be written");
        records.append(Stream::Output).expect("a file").write_all(b"first\n").expect("it is written");
        let end = EndRecord { exit_code: 3, error: None, report: None };
        records.note_end(&end).expect("it is written");
        assert_eq!(records.end().expect("a record"), Some(end));
        records.begin("1".to_owned()).expect("again");
        assert_eq!(records.end().expect("readable"), None, "the new run has not ended");
        let run = records.run().expect("readable").expect("a record");
        assert_eq!((run.output_from, run.messages_from), (6, 0));
    }

    #[test]
    fn a_lock_that_is_shared_is_held_until_the_last_one_is_gone() {
        let job = tempfile::tempdir().expect("a folder");
        let records = Records::of(job.path());
        records.begin("1".to_owned()).expect("a folder that can be written");
        let (one, other) = (records.hold().expect("a lock"), records.hold().expect("shared"));
        assert!(records.is_held().expect("a lock"));
        drop(one);
        assert!(records.is_held().expect("a lock"));
        drop(other);
        assert!(!records.is_held().expect("a lock"));
    }

    #[test]
    fn records_that_are_damaged_are_an_error() {
        let job = tempfile::tempdir().expect("a folder");
        let records = Records::of(job.path());
        records.begin("1".to_owned()).expect("a folder that can be written");
        fs::write(records.folder.join(ENDED), b"{\"exit_code\":").expect("a file");
        assert!(records.end().is_err());
    }
}
