//! Where people's commands find running jobs.
//!
//! A folder for each job below `$XDG_RUNTIME_DIR/stillwire` (else `/tmp/stillwire-UID`), which only the user can enter: a
//! file that describes the job, and a socket on which its launcher answers.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use store::{Directory, StorageError};
use transport::JobId;

use super::Plan;
use super::limits::JOBS_MAX;
use super::storage::unix_ms;
use crate::error::LauncherError;

const INFO: &str = "info.json";
const SOCKET: &str = "control";

/// A job, for `ps`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its id, 32 hexadecimal digits.
    pub job: String,
    /// Process id of its launcher.
    pub pid: u32,
    /// Ranks.
    pub(crate) ranks: u32,
    /// Program and arguments; bytes that are not text are replaced.
    pub command: Vec<String>,
    /// The job's directory.
    pub directory: String,
    /// Time that one of its checkpoints may take, in milliseconds.
    pub(crate) checkpoint_timeout_ms: u64,
    /// When it was started, in milliseconds since 1970-01-01 UTC.
    pub(crate) started_unix_ms: u64,
}

/// A job's folder, removed when this is dropped.
#[derive(Debug)]
pub struct Registration {
    folder: PathBuf,
}

impl Registration {
    /// Makes the entry of a job that is about to run.
    pub fn create(plan: &Plan) -> Result<Registration, LauncherError> {
        let root = runtime_directory()?;
        let _lock = lock(&root)?;
        let folder = root.join(plan.job.to_string());
        if let Some(JobInfo { job, pid, .. }) = read_info(&folder).filter(|info| is_of_another(info.pid)) {
            return Err(LauncherError::JobRuns { job, pid });
        }
        make(&folder)?;
        let registration = Registration { folder };
        let text = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
        let timeout = plan.config.checkpoint.timeout;
        let info = JobInfo {
            job: plan.job.to_string(),
            pid: std::process::id(),
            ranks: plan.ranks,
            command: plan.program.command.iter().map(text).collect(),
            directory: plan.directory.display().to_string(),
            checkpoint_timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            started_unix_ms: unix_ms(),
        };
        let path = registration.folder.join(INFO);
        let text = serde_json::to_string(&info).map_err(io::Error::from)?;
        fs::write(&path, text).map_err(|error| LauncherError::Registry { path, error })?;
        Ok(registration)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _lock = self.folder.parent().map(lock);
        if read_info(&self.folder).is_none_or(|info| info.pid == std::process::id()) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Whether this is another process of this program that lives. Its number may have become that of any other process.
fn is_of_another(pid: u32) -> bool {
    let name = |path: &str| fs::read_link(path).ok()?.file_name().map(std::ffi::OsStr::to_os_string);
    let runs = name(&format!("/proc/{pid}/exe"));
    pid != std::process::id() && runs.is_some() && runs == name("/proc/self/exe")
}

/// The socket of a listed job.
pub(crate) fn socket_of(info: &JobInfo) -> Result<PathBuf, LauncherError> {
    Ok(runtime_directory()?.join(&info.job).join(SOCKET))
}

/// Held while an entry is made or removed.
fn lock(root: &Path) -> io::Result<fs::File> {
    let folder = fs::File::open(root)?;
    folder.lock()?;
    Ok(folder)
}

/// Removes the folder of a job whose launcher, of this process id, is dead. Another launcher may have continued the job meanwhile: its entry stays.
pub fn remove_abandoned(job: JobId, launcher: u32) {
    let Ok(root) = runtime_directory() else { return };
    let Ok(_lock) = lock(&root) else { return };
    let folder = root.join(job.to_string());
    if read_info(&folder).is_some_and(|info| info.pid == launcher) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Removes the folder of a job that no launcher has.
pub(crate) fn remove(job: JobId) {
    if let Ok(root) = runtime_directory() {
        let _ = fs::remove_dir_all(root.join(job.to_string()));
    }
}

fn read_info(folder: &Path) -> Option<JobInfo> {
    serde_json::from_str(&fs::read_to_string(folder.join(INFO)).ok()?).ok()
}

/// Every registered job, oldest first. One whose launcher was killed together with its guard is still among them.
pub fn jobs() -> Result<Vec<JobInfo>, LauncherError> {
    let root = runtime_directory()?;
    let failed = |error| LauncherError::Registry { path: root.clone(), error };
    let mut jobs = Vec::new();
    for entry in fs::read_dir(&root).map_err(failed)?.take(JOBS_MAX) {
        let Ok(entry) = entry else { continue };
        jobs.extend(read_info(&entry.path()));
    }
    jobs.sort_by_key(|info| info.started_unix_ms);
    Ok(jobs)
}

/// The job that a person means by the beginning of its id.
pub fn find(name: &str) -> Result<JobInfo, LauncherError> {
    let mut found: Vec<JobInfo> = jobs()?.into_iter().filter(|info| info.job.starts_with(name)).collect();
    match (found.pop(), found.len()) {
        (Some(info), 0) => Ok(info),
        (Some(_), more) => Err(LauncherError::JobAmbiguous { name: name.to_owned(), found: more + 1 }),
        (None, _) => Err(LauncherError::NoSuchJob { name: name.to_owned() }),
    }
}

/// The user's own folder. Nobody else may enter it: anyone who can reach a job's socket can stop the job.
pub fn runtime_directory() -> Result<PathBuf, LauncherError> {
    let root = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(root) if root.is_absolute() && root.is_dir() => root.join("stillwire"),
        _ => PathBuf::from(format!("/tmp/stillwire-{}", geteuid())),
    };
    match Directory::create(&root) {
        Ok(_) => {}
        Err(StorageError::Exposed { exposure, .. }) => {
            return Err(LauncherError::RegistryExposed { path: root, exposure });
        }
        Err(error) => return Err(error.into()),
    }
    let failed = |error| LauncherError::Registry { path: root.clone(), error };
    // The path leads to the directory that was checked: only we and root can change that.
    if fs::metadata(&root).map_err(failed)?.mode() & 0o077 != 0 {
        return Err(LauncherError::RegistryNotOurs { path: root });
    }
    Ok(root)
}

fn make(path: &Path) -> Result<(), LauncherError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(LauncherError::Registry { path: path.to_path_buf(), error }),
    }
}
