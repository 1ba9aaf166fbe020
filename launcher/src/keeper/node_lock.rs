//! The lock of the job on this node (R30): an open file that the keeper and its guard share. The kernel frees it when both are gone, however they
//! end. A guard whose keeper has ended frees it when no process of a rank is left.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_glue::keeper::Input;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::nodes::Refusal;
use nix::errno::Errno;
use store::Directory;

use super::super::limits::{EARLY_REQUESTS_MAX, LOCK_LOOK_EVERY, LOCK_REPORT_AFTER};
use super::super::nodes::wire::NodeTask;
use super::super::wire::FromKeeper;
use super::Shell;
use crate::error::LauncherError;

/// The lock, and whether it is taken.
#[derive(Debug)]
pub(super) struct NodeLock {
    file: File,
    path: PathBuf,
    /// Since when it is wanted, and when it is tried again; `None`: not yet, or it is taken.
    wanted: Option<(Instant, Instant)>,
    is_reported: bool,
    /// Requests about the node's directory that came before it was taken: nobody else changes that directory afterwards.
    requests: Vec<(u64, NodeTask)>,
    is_taken: bool,
}

impl NodeLock {
    /// Opens the file, and does not take it. `beside`: the node has a directory of its own, whose loss must not lose the lock.
    pub(super) fn open(
        directory: &Directory,
        node: NodeIndex,
        beside: bool,
    ) -> Result<NodeLock, LauncherError> {
        let above = match directory.root().parent().filter(|_| beside) {
            Some(above) => Some(Directory::open(above)?),
            None => None,
        };
        let (place, name) = (above.as_ref().unwrap_or(directory), format!("lock-{node}"));
        // Where it cannot be made, the directory itself serves.
        let opened = place.lock_file(&name).or_else(|error| directory.lock_root().map_err(|_| error));
        let path = place.root().join(name);
        Ok(NodeLock {
            file: opened?,
            path,
            wanted: None,
            is_reported: false,
            requests: Vec::new(),
            is_taken: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// For the guard.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Keeps a request until the lock is taken. Returns it if it need not wait.
    pub(super) fn keep(&mut self, number: u64, task: NodeTask) -> Result<Option<NodeTask>, Refusal> {
        if self.is_taken || matches!(task, NodeTask::Settle { .. }) {
            return Ok(Some(task));
        }
        if self.requests.len() >= EARLY_REQUESTS_MAX {
            let why = format!("{EARLY_REQUESTS_MAX} requests wait for the lock of the node already");
            return Err(Refusal { errno: Errno::EBUSY as u32, why });
        }
        self.requests.push((number, task));
        Ok(None)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.wanted.map(|(_, again)| again)
    }

    /// Takes it, if it is free.
    fn take(&mut self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Shell {
    /// The machine wants the lock.
    pub(super) fn want_lock(&mut self) {
        let now = Instant::now();
        self.lock.wanted.get_or_insert((now, now));
        self.look_at_lock();
    }

    /// Takes the lock as soon as the keeper that has it, and everything that this one has started, is gone.
    pub(super) fn look_at_lock(&mut self) {
        let now = Instant::now();
        let Some((since, _)) = self.lock.wanted.filter(|(_, again)| *again <= now) else { return };
        match self.lock.take() {
            Ok(true) => {
                self.lock.wanted = None;
                self.lock.is_taken = true;
                let requests = core::mem::take(&mut self.lock.requests);
                requests.into_iter().for_each(|(number, task)| self.begin_node_task(number, task));
                self.feed_keeper(Input::Locked);
            }
            Ok(false) => {
                self.lock.wanted = Some((since, now + LOCK_LOOK_EVERY));
                self.report_lock(since.elapsed(), None);
            }
            // It cannot be known who runs here; the launcher's wait has an end.
            Err(error) => {
                self.lock.wanted = Some((since, now + LOCK_REPORT_AFTER));
                self.report_lock(since.elapsed(), Some(&error));
            }
        }
    }

    fn report_lock(&mut self, waited: Duration, error: Option<&io::Error>) {
        if self.lock.is_reported || error.is_none() && waited < LOCK_REPORT_AFTER {
            return;
        }
        self.lock.is_reported = true;
        let path = self.lock.path.display();
        let words = match error {
            None => format!(
                "processes of an earlier launcher of this job still run here ({path} is locked); the next life begins when they have ended, at the latest when \
                 their lease is over. `fuser -v {path}` lists them"
            ),
            Some(error) => format!("{path} cannot be locked: {error}; no rank starts here"),
        };
        self.send_to_launcher(&FromKeeper::LockHeld { words });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_for_the_lock_are_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::create(folder.path()).expect("a directory");
        let mut lock = NodeLock::open(&directory, NodeIndex(3), false).expect("a lock");
        let task = || NodeTask::Keep { job_file: Vec::new() };
        for number in 0..EARLY_REQUESTS_MAX as u64 {
            assert!(matches!(lock.keep(number, task()), Ok(None)));
        }
        let refused = lock.keep(99, task()).expect_err("nothing is done without the lock");
        assert_eq!(refused.errno, Errno::EBUSY as u32);
        assert_eq!(lock.requests.len(), EARLY_REQUESTS_MAX);
    }
}
