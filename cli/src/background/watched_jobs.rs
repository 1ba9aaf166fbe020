//! Where detached jobs are found by their ids: also while a launcher was killed, and its successor has not registered yet.
//!
//! A folder beside the entries of the registry holds a link for each watcher: from the job's id to its directory. A file `ID.PID` names the process of each
//! watcher and candidate, and when that was started.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use launcher::error::LauncherError;
use launcher::registry::runtime_directory;
use launcher::spawn::pidfd::PidFd;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::records::Records;
use crate::error::CliError;

const FOLDER: &str = "watched";

/// Links that are read at most.
const JOBS_MAX: usize = 4096;

/// The link of a watcher, and its process, removed when this is dropped.
#[derive(Debug)]
pub(super) struct WatchedJob {
    link: PathBuf,
    _process: WatchingProcess,
}

/// The file of a watcher or candidate, removed when this is dropped.
#[derive(Debug)]
pub(super) struct WatchingProcess {
    file: PathBuf,
}

impl WatchingProcess {
    pub(super) fn list(job: &str) -> Result<WatchingProcess, CliError> {
        WatchingProcess::list_in(&runtime_directory()?.join(FOLDER), job).map_err(CliError::from)
    }

    fn list_in(folder: &Path, job: &str) -> io::Result<WatchingProcess> {
        make(folder)?;
        let pid = std::process::id();
        let file = folder.join(format!("{job}.{pid}"));
        fs::write(&file, start_time(pid).unwrap_or_default())?;
        Ok(WatchingProcess { file })
    }
}

impl Drop for WatchingProcess {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// When a process that runs was started, in clock ticks since the system was: no two processes of one number have it in common.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let runs = fields.next().is_some_and(|state| !matches!(state, "Z" | "X"));
    fields.nth(18).filter(|_| runs).map(str::to_owned)
}

impl WatchedJob {
    pub(super) fn list(job: &str, directory: &Path) -> Result<WatchedJob, CliError> {
        WatchedJob::list_in(&runtime_directory()?.join(FOLDER), job, directory).map_err(CliError::from)
    }

    fn list_in(folder: &Path, job: &str, directory: &Path) -> io::Result<WatchedJob> {
        let process = WatchingProcess::list_in(folder, job)?;
        let link = folder.join(job);
        // Of a watcher that was killed.
        let _ = fs::remove_file(&link);
        symlink(directory, &link)?;
        Ok(WatchedJob { link, _process: process })
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

/// Ends the job whose id begins so, by a signal to each of its watchers and candidates on this host. False: it has none.
pub(crate) fn stop(name: &str) -> Result<bool, CliError> {
    let watching = watching_in(&runtime_directory()?.join(FOLDER), name);
    let jobs: BTreeSet<&String> = watching.iter().map(|(job, _)| job).collect();
    if jobs.len() > 1 {
        return Err(LauncherError::JobAmbiguous { name: name.to_owned(), found: jobs.len() }.into());
    }
    let signalled = watching.iter().filter(|(_, process)| process.signal(Signal::SIGTERM).is_ok());
    Ok(signalled.count() > 0)
}

/// Jobs whose ids begin so, each with a process that watches it or may continue it.
fn watching_in(folder: &Path, name: &str) -> Vec<(String, PidFd)> {
    let files = fs::read_dir(folder).into_iter().flatten().take(JOBS_MAX).flatten();
    let named = files.filter_map(|file| {
        let text = file.file_name().into_string().ok().filter(|text| text.starts_with(name))?;
        let (job, pid) = text.split_once('.')?;
        let pid: u32 = pid.parse().ok()?;
        let started = fs::read_to_string(file.path()).ok()?;
        // Opened before its start time is read: the number may be reused.
        let process = PidFd::open(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
        let is_it = start_time(pid).is_some_and(|time| time == started);
        is_it.then_some((job.to_owned(), process))
    });
    named.collect()
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
        let me = Pid::this();
        let watching =
            |name| -> Vec<String> { watching_in(&folder, name).into_iter().map(|(job, _)| job).collect() };
        assert_eq!(watching("ab"), ["ab12"]);
        assert!(watching("b").is_empty());
        assert_eq!(find_in(&folder, "ab"), [("ab12".to_owned(), job.clone())]);
        assert_eq!(find_in(&folder, "b"), []);
        drop(held);
        assert_eq!(find_in(&folder, "ab"), [], "its watcher was killed");
        let _held = records.hold().expect("a lock");
        drop(listed);
        assert_eq!(find_in(&folder, "ab"), []);
        assert!(watching("").is_empty());
        fs::write(folder.join(format!("ab12.{me}")), b"1").expect("a file");
        assert!(watching("").is_empty(), "an earlier process of this number");
    }
}
