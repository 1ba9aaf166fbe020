//! The thread that writes records: the launcher itself never waits for a disk.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use ckpt_glue::control::{Decision, ImageReport};
use ckpt_glue::layout::Layout;
use ckpt_glue::names as glue;
use ckpt_glue::protection::seat::Seat;
use nix::errno::Errno;
use store::error::CommitError;
use store::job::{Damage, Depth, GenerationState};
use store::{
    CommitRequest, Directory, GenerationId, ImageClaim, JobDirectory, JobFile, Manifest, StorageError,
    StoreError,
};
use transport::Life;

use super::input::positions::{self, Positions};
use super::limits::GENERATIONS_TOLD_MAX;
use super::nodes::NO_NODE;
use super::setting;
use super::worker::Worker;
use super::{Encryption, Plan};
use crate::error::LauncherError;

/// The tasks of the store, in this order.
#[derive(Debug)]
pub(crate) enum Task {
    /// Refuse commits of older lives, then report the newest generation.
    Fence {
        counter: u32,
        refuse_below: u32,
    },
    Decide(Decision),
    /// Take over decisions that others know; one of them may have gone on without this generation.
    Adopt {
        decisions: Vec<store::Decision>,
        generation: GenerationId,
    },
    /// Repair records that are damaged or lost, from the nodes' copies.
    RepairRecords {
        decisions: Vec<store::Decision>,
        /// Oldest first.
        manifests: Vec<Manifest>,
    },
    /// Another host has taken the place of a node's: later records name it. There is no answer to wait for.
    Move {
        node: glue::NodeIndex,
        host: String,
    },
    /// Replace the job file by this one.
    Keep(Box<JobFile>),
    /// Every rank has restored the generation of the decision, and so read every byte of it.
    Restored,
    Commit {
        generation: glue::GenerationId,
        images: Vec<ImageReport>,
        /// The readers' positions in standard input, if somebody may need them.
        positions: Option<Positions>,
    },
    /// The launcher has taken a seat (R34).
    HoldSeat(Seat),
    /// Remove old generations, but for those that are being copied.
    Collect {
        life: Life,
        keep: u32,
        in_use: Vec<GenerationId>,
    },
    /// The job has finished.
    End(Life),
    /// Nothing runs any more: leave nothing half done behind.
    Discard,
    /// Read the decisions and commits.
    Records,
}

/// Decisions and commits, from the job's own directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    /// Oldest first.
    pub(crate) decisions: Vec<store::Decision>,
    /// Of committed generations, the newest first; whether every byte of the generation has to be looked at.
    pub(crate) manifests: Vec<(Manifest, bool)>,
    /// Committed generations whose records cannot be read, the newest first, and why.
    pub(crate) damaged: Vec<(GenerationId, String)>,
    /// Counters of the decisions that cannot be read.
    pub(crate) damaged_lives: Vec<u32>,
    /// The seat that the directory holds. One that cannot be read is not held.
    pub(crate) held: Option<Seat>,
}

impl Records {
    /// Some generation is committed, whether or not it can be read.
    pub(crate) fn are_of_any(&self) -> bool {
        !self.manifests.is_empty() || !self.damaged.is_empty()
    }
}

/// The outcome of a task.
#[derive(Debug)]
pub(crate) enum Done {
    Fenced {
        counter: u32,
        newest: Option<glue::GenerationId>,
        nonce: u64,
        /// Newer generations that cannot be restored.
        refused: Vec<(GenerationId, Vec<Damage>)>,
        /// The records that nodes with directories of their own need.
        records: Records,
    },
    /// The store cannot be read; nobody knows which generations are committed.
    FenceFailed(StoreError),
    Decided(store::Decision),
    /// All of them, and the life that has gone on without the generation.
    Adopted {
        generation: GenerationId,
        outcome: Result<(Vec<store::Decision>, Option<Life>), StoreError>,
    },
    /// So many decisions, these generations; and the decisions and commits after that.
    RecordsRepaired(Result<(usize, Vec<GenerationId>, Records), StoreError>),
    SeatHeld(Seat),
    SeatNotHeld(StoreError),
    Noted,
    /// The new contents of all copies of the job file.
    Kept(Result<Box<JobFile>, StoreError>),
    NotDecided {
        life: Life,
        errno: u32,
        error: StoreError,
    },
    Committed(Box<Manifest>),
    NotCommitted {
        generation: glue::GenerationId,
        errno: u32,
        error: StoreError,
    },
    /// These stay.
    Collected {
        life: Life,
        kept: Vec<GenerationId>,
    },
    NotCollected(StoreError),
    Ended(Result<(), StoreError>),
    Discarded(Result<Vec<GenerationId>, StoreError>),
    Records(Result<Records, StoreError>),
}

/// The thread.
pub(crate) type StoreWorker = Worker<Task, Done>;

struct Disk {
    directory: JobDirectory<Directory>,
    layout: Layout,
    /// The nodes' names, in the order of the layout.
    hosts: Vec<String>,
    /// Images lie elsewhere: nobody else makes the directories of generations here.
    is_alone: bool,
    refuse_below: u32,
    /// Generations that were found damaged, or that a life was to restore and not every rank has.
    suspects: BTreeSet<GenerationId>,
    restoring: Option<GenerationId>,
}

/// Starts it. `hosts`: the nodes' names, in the order of the layout.
pub(crate) fn start(plan: &Plan, layout: Layout, hosts: Vec<String>) -> Result<StoreWorker, LauncherError> {
    let key = plan.encryption.as_ref().and_then(Encryption::image_key);
    let directory = JobDirectory::attach(Directory::open(&plan.directory)?, plan.job).encrypted(key);
    let is_alone = plan.own_directories.is_some();
    let mut disk = Disk {
        directory: if is_alone { directory.on_node(NO_NODE) } else { directory },
        layout,
        hosts,
        is_alone,
        refuse_below: 0,
        suspects: plan.suspects.clone(),
        restoring: None,
    };
    Worker::start("stillwire-store", move |task, results| results.report(disk.perform(task)))
        .map_err(LauncherError::from)
}

impl Disk {
    fn perform(&mut self, task: Task) -> Done {
        match task {
            Task::Fence { counter, refuse_below } => {
                self.refuse_below = refuse_below;
                self.fence(counter)
            }
            Task::Decide(decision) => {
                let life = decision.life;
                let from = decision.restore;
                let decision = store::Decision { job: self.directory.job(), life, from };
                match self.directory.write_decision(&decision) {
                    Ok(()) => {
                        self.suspects.extend(from);
                        self.restoring = from;
                        Done::Decided(decision)
                    }
                    Err(error) => Done::NotDecided { life, errno: error.errno(), error },
                }
            }
            Task::Adopt { decisions, generation } => {
                let adopted = self.directory.adopt_decisions(&decisions);
                let passed_over = adopted.and_then(|()| self.directory.passed_over(generation));
                let outcome = passed_over.map(|life| (decisions, life));
                Done::Adopted { generation, outcome }
            }
            Task::RepairRecords { decisions, manifests } => {
                Done::RecordsRepaired(self.repair_records(&decisions, &manifests))
            }
            Task::Move { node, host } => {
                if let Some(name) = self.hosts.get_mut(node.0 as usize) {
                    *name = host;
                }
                Done::Noted
            }
            Task::Keep(file) => Done::Kept(self.keep(&file).map(|()| file)),
            Task::Restored => {
                if let Some(restored) = self.restoring.take() {
                    self.suspects.remove(&restored);
                }
                Done::Noted
            }
            Task::Commit { generation, images, positions } => {
                self.commit(generation, &images, positions.as_ref())
            }
            Task::HoldSeat(seat) => match self.directory.hold_seat(seat) {
                Ok(()) => Done::SeatHeld(seat),
                Err(error) => Done::SeatNotHeld(error),
            },
            Task::Collect { life, keep, in_use } => match self.directory.collect(life, keep, &in_use) {
                Ok(report) => Done::Collected { life, kept: report.kept },
                Err(error) => Done::NotCollected(error),
            },
            Task::End(life) => Done::Ended(self.directory.write_end(life, unix_ms())),
            Task::Discard => Done::Discarded(self.directory.discard_unfinished()),
            Task::Records => Done::Records(self.records()),
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
                let newest = found.manifest.map(|manifest| manifest.generation);
                match self.records() {
                    Ok(records) => Done::Fenced { counter, newest, nonce, refused: found.refused, records },
                    Err(error) => Done::FenceFailed(error),
                }
            }
            Err(error) => Done::FenceFailed(error),
        }
    }

    /// Writes the job file anew if it differs.
    fn keep(&mut self, file: &JobFile) -> Result<(), StoreError> {
        let storage = self.directory.storage().clone();
        let mut file = file.clone();
        if let Ok((_, found)) = JobDirectory::open(storage.clone()) {
            // It may be moved, with the nodes' directories in it.
            let own = found.settings.get(setting::NODE_DIRECTORY).cloned();
            file.settings.extend(own.map(|own| (setting::NODE_DIRECTORY.to_owned(), own)));
            if found == file {
                return Ok(());
            }
        }
        JobDirectory::renew(storage, &file).map(drop)
    }

    fn repair_records(
        &mut self,
        decisions: &[store::Decision],
        manifests: &[Manifest],
    ) -> Result<(usize, Vec<GenerationId>, Records), StoreError> {
        let (mut lives, mut repaired) = (0, Vec::new());
        // Which generations count depends on the lives.
        for decision in decisions {
            lives += usize::from(self.directory.repair_decision(decision)?);
        }
        for manifest in manifests {
            if self.directory.repair_manifest(manifest)? {
                repaired.push(manifest.generation);
            }
        }
        Ok((lives, repaired, self.records()?))
    }

    fn records(&mut self) -> Result<Records, StoreError> {
        let mut records = Records {
            decisions: self.directory.decisions()?,
            damaged_lives: self.directory.damaged_lives()?,
            held: self.directory.held_seat().unwrap_or_default(),
            ..Records::default()
        };
        let generations = self.directory.generations()?;
        let committed = generations.iter().rev().filter(|found| found.state == GenerationState::Committed);
        for found in committed.take(GENERATIONS_TOLD_MAX) {
            match self.directory.manifest(found.id) {
                Ok(manifest) => records.manifests.push((manifest, self.suspects.contains(&found.id))),
                Err(error) => records.damaged.push((found.id, error.to_string())),
            }
        }
        Ok(records)
    }

    fn commit(
        &mut self,
        generation: glue::GenerationId,
        images: &[ImageReport],
        positions: Option<&Positions>,
    ) -> Done {
        let id = generation;
        if id.life.counter < self.refuse_below {
            let life = Life { counter: self.refuse_below, nonce: 0 };
            let error = StoreError::Commit { generation: id, error: CommitError::Fenced { life } };
            return Done::NotCommitted { generation, errno: error.errno(), error };
        }
        let claim = |report: &ImageReport| ImageClaim {
            rank: report.rank,
            node: self.layout.node_of(report.rank).map_or(0, |node| node.0),
            digest: report.digest,
            bytes: report.bytes,
        };
        let request = CommitRequest {
            generation: id,
            ranks: self.layout.ranks(),
            taken_unix_ms: unix_ms(),
            nodes: self.hosts.clone(),
            images: images.iter().map(claim).collect(),
        };
        if let Some(Err(error)) =
            positions.map(|positions| positions::write(self.directory.storage().root(), id, positions))
        {
            let (path, errno) = ("input".to_owned(), error.raw_os_error().unwrap_or(Errno::EIO as i32));
            let error = StorageError::Io { operation: store::storage::Operation::Create, path, errno }.into();
            return Done::NotCommitted { generation, errno: errno.cast_unsigned(), error };
        }
        let begun = if self.is_alone { self.directory.begin_generation(id) } else { Ok(()) };
        match begun.and_then(|()| self.directory.commit(&request)) {
            Ok(manifest) => Done::Committed(Box::new(manifest)),
            // It must not be found later after this answer; if it cannot be taken back, it is committed.
            Err(error) => match (self.directory.abandon(id), self.directory.manifest(id)) {
                (Err(StoreError::Commit { error: CommitError::AlreadyCommitted, .. }), Ok(manifest)) => {
                    Done::Committed(Box::new(manifest))
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
