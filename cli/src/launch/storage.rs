//! The thread that writes records: the launcher itself never waits for a disk.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use ckpt_glue::control::{Decision, ImageReport};
use ckpt_glue::layout::Layout;
use ckpt_glue::names as glue;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use store::error::CommitError;
use store::job::{Damage, Depth};
use store::{
    CommitRequest, Directory, GenerationId, ImageClaim, ImageDigest, JobDirectory, StorageError, StoreError,
};
use transport::Life;

use crate::convert;

/// What the store is asked to do, in this order.
#[derive(Debug)]
pub(crate) enum Task {
    /// Refuse commits of older lives, then say what is the newest generation.
    Fence {
        counter: u32,
        refuse_below: u32,
    },
    Decide(Decision),
    /// Every rank has restored what the decision named, and so read every byte of it.
    Restored,
    Commit {
        generation: glue::GenerationId,
        images: Vec<ImageReport>,
    },
    Collect {
        life: Life,
        keep: u32,
    },
    /// The job has finished.
    End(Life),
    /// Nothing runs any more: leave nothing half done behind.
    Discard,
}

/// What has become of it.
#[derive(Debug)]
pub(crate) enum Done {
    Fenced {
        counter: u32,
        newest: Option<glue::GenerationId>,
        nonce: u64,
        /// Newer generations that cannot be restored.
        refused: Vec<(GenerationId, Vec<Damage>)>,
    },
    /// The store cannot be read; nobody knows what is committed.
    FenceFailed(StoreError),
    Decided(Life),
    Noted,
    NotDecided {
        life: Life,
        errno: u32,
        error: StoreError,
    },
    Committed(glue::GenerationId),
    NotCommitted {
        generation: glue::GenerationId,
        errno: u32,
        error: StoreError,
    },
    Collected,
    NotCollected(StoreError),
    Ended(Result<(), StoreError>),
    Discarded(Result<Vec<GenerationId>, StoreError>),
}

/// The thread's other end.
#[derive(Debug)]
pub(crate) struct StoreWorker {
    tasks: Option<Sender<Task>>,
    done: Receiver<Done>,
    bell: Arc<EventFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Worker {
    directory: JobDirectory<Directory>,
    layout: Layout,
    /// The nodes' names, in the order of the layout.
    hosts: Vec<String>,
    refuse_below: u32,
    /// Generations that were found damaged, or that a life was to restore and not every rank has.
    suspects: BTreeSet<GenerationId>,
    restoring: Option<GenerationId>,
}

impl StoreWorker {
    /// `suspects`: generations to be read before they are restored.
    pub(crate) fn start(
        directory: JobDirectory<Directory>,
        layout: Layout,
        hosts: Vec<String>,
        suspects: BTreeSet<GenerationId>,
    ) -> std::io::Result<StoreWorker> {
        let (tasks, waiting) = channel();
        let (results, done) = channel();
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let ring = Arc::clone(&bell);
        let mut worker = Worker { directory, layout, hosts, refuse_below: 0, suspects, restoring: None };
        let run = move || {
            for task in waiting {
                if results.send(worker.perform(task)).is_err() {
                    return;
                }
                // Full means that it rings already.
                let _ = ring.write(1);
            }
        };
        let thread = std::thread::Builder::new().name("stillwire-store".into()).spawn(run)?;
        Ok(StoreWorker { tasks: Some(tasks), done, bell, thread: Some(thread) })
    }

    pub(crate) fn ask(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // The thread ends only when this end is dropped.
            let _ = tasks.send(task);
        }
    }

    /// Rings when something is done.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn next(&self) -> Option<Done> {
        let _ = self.bell.read();
        self.done.try_recv().ok()
    }

    /// Waits for the next result, when nothing else is left to do.
    pub(crate) fn wait(&self) -> Option<Done> {
        self.done.recv().ok()
    }
}

impl Drop for StoreWorker {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn perform(&mut self, task: Task) -> Done {
        match task {
            Task::Fence { counter, refuse_below } => {
                self.refuse_below = refuse_below;
                self.fence(counter)
            }
            Task::Decide(decision) => {
                let life = decision.life;
                let from = decision.restore.map(convert::to_store);
                match self.directory.write_decision(&store::Decision {
                    job: self.directory.job(),
                    life,
                    from,
                }) {
                    Ok(()) => {
                        self.suspects.extend(from);
                        self.restoring = from;
                        Done::Decided(life)
                    }
                    Err(error) => Done::NotDecided { life, errno: error.errno(), error },
                }
            }
            Task::Restored => {
                if let Some(restored) = self.restoring.take() {
                    self.suspects.remove(&restored);
                }
                Done::Noted
            }
            Task::Commit { generation, images } => self.commit(generation, &images),
            Task::Collect { life, keep } => match self.directory.collect(life, keep, &[]) {
                Ok(_) => Done::Collected,
                Err(error) => Done::NotCollected(error),
            },
            Task::End(life) => Done::Ended(self.directory.write_end(life, unix_ms())),
            Task::Discard => Done::Discarded(self.directory.discard_unfinished()),
        }
    }

    fn fence(&mut self, counter: u32) -> Done {
        let nonce = match getrandom::u64() {
            Ok(nonce) => nonce,
            Err(_) => return Done::FenceFailed(no_randomness()),
        };
        // A rank checks every byte that it restores, and ends if one is wrong. So only a generation whose restoring has
        // failed is read before the next decision (rule 9): images may be as large as memory, and the ranks read them anyway.
        let suspects = &self.suspects;
        let depth = |id| if suspects.contains(&id) { Depth::Everything } else { Depth::Tables };
        match self.directory.newest_restorable_at(depth, |_, _, _| ()) {
            Ok(found) => {
                let newest = found.manifest.map(|manifest| convert::to_glue(manifest.generation));
                Done::Fenced { counter, newest, nonce, refused: found.refused }
            }
            Err(error) => Done::FenceFailed(error),
        }
    }

    fn commit(&mut self, generation: glue::GenerationId, images: &[ImageReport]) -> Done {
        let id = convert::to_store(generation);
        if id.life.counter < self.refuse_below {
            let life = Life { counter: self.refuse_below, nonce: 0 };
            let error = StoreError::Commit { generation: id, error: CommitError::Fenced { life } };
            return Done::NotCommitted { generation, errno: error.errno(), error };
        }
        let claim = |report: &ImageReport| ImageClaim {
            rank: report.rank,
            node: self.layout.node_of(report.rank).map_or(0, |node| node.0),
            digest: ImageDigest(report.digest.0),
            bytes: report.bytes,
        };
        let request = CommitRequest {
            generation: id,
            ranks: self.layout.ranks(),
            taken_unix_ms: unix_ms(),
            nodes: self.hosts.clone(),
            images: images.iter().map(claim).collect(),
        };
        match self.directory.commit(&request) {
            Ok(_) => Done::Committed(generation),
            // It must not be found later after this answer; if it cannot be taken back, it is committed.
            Err(error) => match self.directory.abandon(id) {
                Err(StoreError::Commit { error: CommitError::AlreadyCommitted, .. }) => {
                    Done::Committed(generation)
                }
                _ => Done::NotCommitted { generation, errno: error.errno(), error },
            },
        }
    }
}

fn no_randomness() -> StoreError {
    let operation = store::storage::Operation::Read;
    StorageError::Io { operation, path: "getrandom".to_owned(), errno: Errno::EIO as i32 }.into()
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
