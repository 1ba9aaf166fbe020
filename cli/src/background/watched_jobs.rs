//! Where detached jobs are found by their ids: also while a launcher was killed, and its successor has not registered yet.
//!
//! A folder beside the entries of the registry holds a link for each watcher: from the job's id to its directory.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use launcher::registry::runtime_directory;

use super::records::Records;
use crate::error::CliError;

const FOLDER: &str = "watched";

/// Links that are read at most.
const JOBS_MAX: usize = 4096;

/// The link of a watcher, removed when this is dropped.
#[derive(Debug)]
pub(super) struct WatchedJob {
    link: PathBuf,
}

impl WatchedJob {
    pub(super) fn list(job: &str, directory: &Path) -> Result<WatchedJob, CliError> {
        WatchedJob::list_in(&runtime_directory()?.join(FOLDER), job, directory).map_err(CliError::from)
    }

    fn list_in(folder: &Path, job: &str, directory: &Path) -> io::Result<WatchedJob> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let link = folder.join(job);
        // Of a watcher that was killed.
        let _ = fs::remove_file(&link);
        symlink(directory, &link)?;
        Ok(WatchedJob { link })
    }
}

impl Drop for WatchedJob {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.link);
    }
}

/// The jobs whose ids begin so, that have not ended, and whose launcher or watcher lives: each with its directory.
pub(crate) fn find(name: &str) -> Result<Vec<(String, PathBuf)>, CliError> {
    Ok(find_in(&runtime_directory()?.join(FOLDER), name))
}

fn find_in(folder: &Path, name: &str) -> Vec<(String, PathBuf)> {
    // Without the folder there is no watcher.
    let links = fs::read_dir(folder).into_iter().flatten().take(JOBS_MAX).flatten();
    let named = links.filter_map(|link| {
        let job = link.file_name().into_string().ok().filter(|job| job.starts_with(name))?;
        Some((job, fs::read_link(link.path()).ok()?))
    });
    named.filter(|(_, directory)| is_under_way(directory)).collect()
}

fn is_under_way(directory: &Path) -> bool {
    let records = Records::of(directory);
    records.is_held().is_ok_and(|held| held) && records.end().is_ok_and(|end| end.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_listed_while_its_watcher_lives() {
        let place = tempfile::tempdir().expect("a folder");
        let (folder, job) = (place.path().join(FOLDER), place.path().join("job"));
        fs::create_dir(&job).expect("a folder");
        assert_eq!(find_in(&folder, ""), []);
        let records = Records::of(&job);
        records.begin("ab12".to_owned()).expect("a folder that can be written");
        let held = records.hold().expect("a lock");
        let listed = WatchedJob::list_in(&folder, "ab12", &job).expect("a link");
        assert_eq!(find_in(&folder, "ab"), [("ab12".to_owned(), job.clone())]);
        assert_eq!(find_in(&folder, "b"), []);
        drop(held);
        assert_eq!(find_in(&folder, "ab"), [], "its watcher was killed");
        let _held = records.hold().expect("a lock");
        drop(listed);
        assert_eq!(find_in(&folder, "ab"), []);
    }
}
