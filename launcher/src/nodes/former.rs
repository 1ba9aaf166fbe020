//! Roots of layouts that a job has left (R35). No life begins from them, and their images are removed when a generation of a later layout is committed.

use std::path::{Path, PathBuf};

use ckpt_glue::protection::relayout::former_layouts;
use store::{Decision, Directory, JobDirectory, Storage as _, StorageError, StoreError};
use transport::JobId;

use super::NodeRoot;

/// A file in the root of a layout that the job has left. It stays when the images are removed: a launcher in an older state of the job's directory
/// would find empty directories otherwise, as on a host that is new.
const LEFT: &str = "left";

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

/// Marks the roots of former layouts beside this one, which the job file names: the launcher that has moved the images may not have come to it.
///
/// # Errors
/// The directory of a node of a former layout that knows a life which is not in `decisions`: the job has gone on there.
pub(crate) fn leave_former(root: &Path, job: JobId, decisions: &[Decision]) -> Result<(), PathBuf> {
    for former in former_roots(root).iter().filter(|former| former.is_dir() && !is_left(former)) {
        for node in node_directories(former) {
            let known = open(&node, job).and_then(|mut directory| expect_known(&mut directory, decisions));
            if matches!(known, Err(StoreError::LifeTaken { .. })) {
                return Err(node);
            }
        }
        // If it cannot be marked, the next survey tries again.
        let _ = leave(former);
    }
    Ok(())
}

/// Removes the images of former layouts beside this root. One that cannot be removed only takes room. A directory that holds a seat (R34) is the one
/// in which a launcher works, and stays.
pub(crate) fn remove_former(root: &Path, job: JobId) {
    for node in former_roots(root).iter().flat_map(|former| node_directories(former)) {
        if matches!(open(&node, job).and_then(|mut directory| directory.held_seat()), Ok(None)) {
            let _ = std::fs::remove_dir_all(node);
        }
    }
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

fn node_directories(root: &Path) -> Vec<PathBuf> {
    let entries = root.read_dir().into_iter().flatten().flatten();
    let is_node = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.parse::<u32>().is_ok())
    };
    entries.filter(is_node).map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
