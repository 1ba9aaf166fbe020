//! Roots of layouts that a job has left (R35). No life begins from them, and their images are removed when a generation of a later layout is committed.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_glue::protection::relayout::former_layouts;
use store::{Decision, Directory, JobDirectory, Storage as _, StorageError, StoreError};
use transport::JobId;

use super::NodeRoot;
use crate::limits::LOCK_LOOK_EVERY;

/// A file in the root of a layout that the job has left. It stays when the images are removed: a launcher in an older state of the job's directory
/// would find empty directories otherwise, as on a host that is new.
const LEFT: &str = "left";

/// The name of a node's lock, before the node's number.
const LOCK: &str = "lock-";

/// The file in the directory of a node that names its job.
const JOB: &str = "job";

/// Longest wait for the lock of a former node: keepers of the new nodes on one host ask at the same time, and a server of images may be about to end.
const FORMER_LOCK_MAX: Duration = Duration::from_secs(5);

/// The job is not only where this launcher continues it.
#[derive(Debug)]
pub(crate) enum FormerInUse {
    /// The directory of a node of a former layout knows a life that this launcher does not.
    GoneOn(PathBuf),
    /// Somebody holds this lock of a node of a former layout (R30).
    Locked(PathBuf),
}

/// Whether the job has left this root for another layout.
pub(crate) fn is_left(root: &Path) -> bool {
    root.join(LEFT).exists()
}

/// Marks a root, durably.
pub(crate) fn leave(root: &Path) -> Result<(), StorageError> {
    if is_left(root) {
        return Ok(());
    }
    let mut storage = Directory::open(root)?;
    let mut file = storage.create(LEFT)?;
    storage.sync_file(&mut file)?;
    storage.sync_directory("")
}

/// Marks the roots of former layouts beside this one, which the job file names: the launcher that has moved the images may not have come to it. The locks of
/// former nodes are held meanwhile. `progress` is called while it waits for one.
///
/// # Errors
/// [`FormerInUse`]: the job has gone on, or goes on, in a former layout.
pub(crate) fn leave_former(
    root: &Path,
    job: JobId,
    decisions: &[Decision],
    progress: &mut dyn FnMut(),
) -> Result<(), FormerInUse> {
    for former in former_roots(root).iter().filter(|former| former.is_dir() && !is_left(former)) {
        let mut locks = Vec::new();
        for node in node_numbers(former) {
            // One that cannot be locked at all runs nothing.
            let Ok((path, lock)) = open_lock(former, node) else { continue };
            let until = Instant::now() + FORMER_LOCK_MAX;
            while let Err(TryLockError::WouldBlock) = lock.try_lock() {
                if Instant::now() >= until {
                    return Err(FormerInUse::Locked(path));
                }
                progress();
                std::thread::sleep(LOCK_LOOK_EVERY);
            }
            locks.push(lock);
        }
        for node in node_directories(former) {
            let known = open(&node, job).and_then(|mut directory| expect_known(&mut directory, decisions));
            if matches!(known, Err(StoreError::LifeTaken { .. })) {
                return Err(FormerInUse::GoneOn(node));
            }
        }
        // If it cannot be marked, the next survey tries again.
        let _ = leave(former);
    }
    Ok(())
}

/// The lock of a node, as its keeper opens it, and its path: it lies beside the node's directory. Where it cannot be made, the directory itself serves.
pub(crate) fn open_lock(root: &Path, node: u32) -> io::Result<(PathBuf, File)> {
    let name = format!("{LOCK}{node}");
    let above = Directory::open(root).map_err(io::Error::other)?;
    let opened = above.lock_file(&name).or_else(|error| {
        let directory = Directory::open(root.join(node.to_string())).map_err(|_| error)?;
        directory.lock_root()
    });
    Ok((root.join(name), opened?))
}

/// Removes the images of former layouts beside this root. One that cannot be removed only takes room. A directory that holds a seat (R34) is the one
/// in which a launcher works, and stays.
pub(crate) fn remove_former(root: &Path, job: JobId) {
    for node in former_roots(root).iter().flat_map(|former| node_directories(former)) {
        if matches!(open(&node, job).and_then(|mut directory| directory.held_seat()), Ok(None)) {
            let _ = remove_node(&node, job);
        }
    }
}

/// Removes the directory of a node of this job, and no other one. The job's file is removed last: until then it says whose directory it is. An
/// unfinished one is removed, too.
pub(crate) fn remove_node(node: &Path, job: JobId) -> io::Result<()> {
    let mut storage = Directory::open(node).map_err(io::Error::other)?;
    if JobDirectory::remove_unfinished(&mut storage).map_err(io::Error::other)? {
        // Fails if there is anything else, such as a name that is no text.
        return std::fs::remove_dir(node);
    }
    if !JobDirectory::open(storage).is_ok_and(|(_, file)| file.job == job) {
        let path = node.display();
        return Err(io::Error::other(format!(
            "{path} is no directory of this job: remove it, or name another host"
        )));
    }
    for entry in node.read_dir()? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == JOB => {}
            false => std::fs::remove_file(entry.path())?,
        }
    }
    std::fs::remove_dir_all(node)
}

/// A node that knows a life of which the launcher does not belongs to a later state of the job.
pub(crate) fn expect_known(
    directory: &mut JobDirectory<Directory>,
    decisions: &[Decision],
) -> Result<(), StoreError> {
    let last = decisions.last().map_or(0, |last| last.life.counter);
    let is_other = |known: &Decision| {
        let same = decisions.iter().find(|decision| decision.life.counter == known.life.counter);
        known.life.counter > last || same.is_some_and(|same| same != known)
    };
    match directory.decisions()?.iter().find(|known| is_other(known)) {
        Some(Decision { life, .. }) => Err(StoreError::LifeTaken { counter: life.counter }),
        None => Ok(()),
    }
}

fn open(node: &Path, job: JobId) -> Result<JobDirectory<Directory>, StoreError> {
    Ok(JobDirectory::attach(Directory::open(node)?, job))
}

fn former_roots(root: &Path) -> Vec<PathBuf> {
    let root = NodeRoot::Path(root.into());
    let former = former_layouts(root.layout()).into_iter();
    former.filter_map(|layout| root.with_layout(layout).here().ok()).collect()
}

/// Nodes that have a directory or a lock in this root.
fn node_numbers(root: &Path) -> BTreeSet<u32> {
    let entries = root.read_dir().into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        name.strip_prefix(LOCK).unwrap_or(name).parse().ok()
    };
    entries.filter_map(number).collect()
}

fn node_directories(root: &Path) -> Vec<PathBuf> {
    let entries = root.read_dir().into_iter().flatten().flatten();
    let is_node = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.parse::<u32>().is_ok())
    };
    entries.filter(is_node).map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::test_job::job_file;

    const JOB_ID: JobId = JobId(7);

    fn node(root: &Path, number: u32, job: JobId) -> PathBuf {
        let path = root.join(number.to_string());
        let storage = Directory::create(&path).expect("a directory");
        drop(JobDirectory::create(storage, &job_file(job)).expect("a job"));
        std::fs::create_dir(path.join("life-1")).expect("a folder");
        path
    }

    #[test]
    fn a_former_layout_in_use_is_not_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let (former, root) = (folder.path().join("nodes"), folder.path().join("nodes.2"));
        node(&former, 3, JOB_ID);
        let (path, lock) = open_lock(&former, 3).expect("a lock");
        lock.lock().expect("nobody else has it");
        let mut waits = 0;
        let left = leave_former(&root, JOB_ID, &[], &mut || waits += 1);
        assert!(matches!(left, Err(FormerInUse::Locked(found)) if found == path));
        assert!(waits > 0 && !is_left(&former));
        drop(lock);
        leave_former(&root, JOB_ID, &[], &mut || ()).expect("nobody is there");
        assert!(is_left(&former));
    }

    #[test]
    fn only_directories_of_the_job_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let former = folder.path().join("nodes");
        let (own, other) = (node(&former, 0, JOB_ID), node(&former, 1, JobId(8)));
        let unknown = former.join("2");
        std::fs::create_dir_all(unknown.join("mine")).expect("a folder");
        remove_former(&folder.path().join("nodes.2"), JOB_ID);
        assert_eq!([&own, &other, &unknown].map(|path| path.exists()), [false, true, true]);
        assert!(other.join("life-1").exists() && unknown.join("mine").exists());
        let problem = remove_node(&other, JOB_ID).expect_err("of another job").to_string();
        assert!(problem.contains("no directory of this job"), "{problem}");
        // Killed before the job file had its name.
        let unfinished = former.join("3");
        std::fs::create_dir(&unfinished).expect("a folder");
        std::fs::write(unfinished.join("job.tmp"), "stillwire").expect("a file");
        let foreign = unfinished.join(OsStr::from_bytes(b"\xff"));
        std::fs::write(&foreign, "mine").expect("a file");
        remove_node(&unfinished, JOB_ID).expect_err("somebody's");
        std::fs::remove_file(&foreign).expect("it is there");
        remove_node(&unfinished, JOB_ID).expect("nobody's");
        assert!(!unfinished.exists());
    }
}
