//! Work in a node's own directory: it takes over records of the job, looks at generations, and removes them.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ckpt_glue::protection::nodes::{Found, Refusal};
use ckpt_glue::protection::seat::JobEnd;
use copies::{Copies, CopyError, Report};
use nix::errno::Errno;
use store::job::{Damage, Depth, GenerationState};
use store::protect::{Group, Member};
use store::{
    Decision, Directory, GenerationId, JobDirectory, JobFile, Key, Manifest, Storage, StorageError,
    StoreError,
};
use transport::{JobId, Rank};

use super::super::super::flush::Directories;
use super::super::super::flush::wire::CopyAccess;
use super::super::super::image_key;
use super::super::super::limits::GENERATIONS_TOLD_MAX;
use super::super::super::nodes::former::{self, FormerInUse};
use super::super::super::nodes::wire::{Known, Membership, NodeDone, NodeTask};
use super::super::super::worker::Results;
use super::super::Site;
use super::super::copy_parts::News;

/// Time between two words of progress.
const BUSY_EVERY: Duration = Duration::from_secs(1);

/// A message from the thread.
#[derive(Debug)]
pub(super) enum DiskEvent {
    /// It is at work; so many more bytes have come.
    Busy { number: u64, bytes: u64 },
    /// The result of a task.
    Done { number: u64, outcome: Result<NodeDone, Refusal> },
}

#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    job: JobId,
    node: u32,
    membership: Membership,
    group: Option<Group>,
    /// The key of images, with which they are judged, if they are encrypted.
    key: Option<Key>,
    /// The job is over: files that are still being brought are not needed.
    is_over: Arc<AtomicBool>,
    /// See [`super::OwnDirectory::open`].
    open: Arc<AtomicUsize>,
}

/// Says from time to time that there is progress.
struct Progress<'a> {
    number: u64,
    results: &'a Results<DiskEvent>,
    reported: Instant,
}

impl Progress<'_> {
    fn made(&mut self) {
        if self.reported.elapsed() >= BUSY_EVERY {
            self.reported = Instant::now();
            self.results.report(DiskEvent::Busy { number: self.number, bytes: 0 });
        }
    }
}

type Job<S = Directory> = JobDirectory<S>;

impl Disk {
    pub(super) fn new(
        site: &Site,
        membership: Membership,
        is_over: Arc<AtomicBool>,
        open: Arc<AtomicUsize>,
    ) -> Disk {
        let group = membership.group();
        let (path, key) = (site.directory.clone(), site.encryption.clone());
        Disk { path, job: site.job, node: site.node.0, membership, group, key, is_over, open }
    }

    pub(super) fn perform(&mut self, number: u64, task: NodeTask, results: &Results<DiskEvent>) {
        let mut progress = Progress { number, results, reported: Instant::now() };
        let outcome = self.try_perform(task, &mut progress);
        results.report(DiskEvent::Done { number, outcome });
    }

    fn try_perform(&mut self, task: NodeTask, progress: &mut Progress<'_>) -> Result<NodeDone, Refusal> {
        match task {
            NodeTask::Survey { decisions, generations, sees } => {
                if let Some((copies, sign)) = sees {
                    let target = copies.open().map_err(not_copied)?;
                    Copies::new(&*target, self.job, None).see_sign(sign).map_err(not_copied)?;
                }
                self.expect_not_left()?;
                if let Some(root) = self.path.parent() {
                    former::leave_former(root, self.job, &decisions, &mut || progress.made())
                        .map_err(|found| in_use(&found))?;
                }
                let mut directory = self.make()?;
                // A disk that takes no changes keeps them.
                let _ = directory.remove_damaged_notes(is_damaged);
                match directory.adopt_decisions(&decisions) {
                    Ok(()) => {}
                    Err(StoreError::LifeTaken { .. }) => return ahead(&mut directory),
                    // R28: records that can be read count as there. Nothing is saved here in a life that this node has not learned.
                    Err(error) => drop(directory.decisions().map_err(|_| error)?),
                }
                let (mut found, mut asked) = (Vec::new(), Vec::new());
                for (manifest, every_byte) in &generations {
                    found.push(self.look(&mut directory, manifest, *every_byte, progress)?);
                    asked.push(manifest.generation);
                }
                let known = known_besides(&mut directory, &decisions, &asked)?;
                // One that cannot be read knows no seat: it has no vote.
                let seats = directory.seats().unwrap_or_default();
                // A later life may be one that could not be noted here.
                let is_newest = |end: &JobEnd| decisions.last().is_none_or(|newest| newest.life == end.life);
                let end = directory.job_end().unwrap_or_default().filter(is_newest);
                return Ok(NodeDone::Surveyed { found, seats, end, known, beside: self.beside() });
            }
            NodeTask::Seat { seat, is_taken } => {
                self.expect_not_left()?;
                self.open()?.note_seat(seat, is_taken)?;
            }
            NodeTask::Look(manifest) => {
                let mut directory = self.open()?;
                return Ok(NodeDone::Looked(self.look(&mut directory, &manifest, false, progress)?));
            }
            NodeTask::Fetch { generation, from } => {
                let files = self.fetch(generation, &from, progress).map_err(not_copied)?;
                return Ok(NodeDone::Fetched(files));
            }
            NodeTask::Decide(decision) => {
                self.expect_not_left()?;
                self.open()?.write_decision(&decision)?;
            }
            NodeTask::Keep { job_file } => {
                self.membership.job_file = job_file;
                let file = self.job_file()?;
                let storage = Directory::open(&self.path).map_err(StoreError::from)?;
                if !JobDirectory::open(storage.clone()).is_ok_and(|(_, found)| found == file) {
                    JobDirectory::renew(storage, &file)?;
                }
            }
            NodeTask::Commit(manifest) => self.open()?.replicate(&manifest)?,
            NodeTask::Collect { life, keep, kept } => {
                self.behind_the_program()?.collect_telling(life, keep, &kept, &mut || progress.made())?;
                if kept.iter().any(|generation| generation.life == life) {
                    // Nobody needs the images of former layouts any more (R35).
                    self.path.parent().inspect(|root| former::remove_former(root, self.job));
                }
            }
            NodeTask::JobEnd(end) => self.open()?.write_job_end(end)?,
            NodeTask::Settle { manifests } => {
                let mut directory = self.open()?;
                for manifest in &manifests {
                    if directory.commit_record(manifest.generation).is_err() {
                        adopt_if_whole(&mut directory, manifest, Depth::Tables, || ())?;
                    }
                }
                directory.discard_unfinished()?;
            }
            // A node that is in no group has no protector, and is asked nothing of this.
            NodeTask::Open { .. }
            | NodeTask::Meet { .. }
            | NodeTask::Protect { .. }
            | NodeTask::Abandon { .. }
            | NodeTask::Repair { .. } => {}
        }
        Ok(NodeDone::Done)
    }

    /// Brings the images that this node had of a generation, as far as they are not there. Returns how many files were brought.
    fn fetch(
        &self,
        generation: GenerationId,
        from: &CopyAccess,
        progress: &Progress<'_>,
    ) -> Result<u32, CopyError> {
        let target = from.open()?;
        let copies = Copies::new(&*target, self.job, from.key());
        let needs = copies.with_needs(generation)?;
        let manifest = copies.manifest(&needs[0])?;
        let own = manifest.images.iter().filter(|image| image.node == self.node);
        let ranks: Vec<Rank> = own.map(|image| image.rank).collect();
        let images = Directories::new(self.job, vec![self.path.clone(); manifest.nodes.len()], &manifest);
        let (news, number, results) = (News::new(), progress.number, progress.results.clone());
        let is_over = Arc::clone(&self.is_over);
        let report = Report::reporting_to(move |bytes| {
            news.add(bytes, |bytes| results.report(DiskEvent::Busy { number, bytes }));
            !is_over.load(Ordering::Relaxed)
        });
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        copies.fetch_images(&needs, &ranks, &images, threads, &report)
    }

    /// Other nodes that have a directory where this one has its own.
    fn beside(&self) -> Vec<u32> {
        let entries = self.path.parent().and_then(|parent| parent.read_dir().ok());
        let names =
            entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.parse().ok()).filter(|node| *node != self.node).collect()
    }

    /// R35: no life begins here once the job goes on in another layout.
    fn expect_not_left(&self) -> Result<(), Refusal> {
        match self.path.parent().filter(|root| former::is_left(root)) {
            Some(root) => Err(left(root)),
            None => Ok(()),
        }
    }

    fn job_file(&self) -> Result<JobFile, StoreError> {
        JobFile::parse(&self.membership.job_file).map_err(reported)
    }

    fn open(&self) -> Result<Job, StoreError> {
        Ok(self.attach(Directory::open(&self.path)?))
    }

    /// The directory, below the limit of the node's disk, for as long as nobody waits.
    fn behind_the_program(&self) -> Result<Job<protector::Disk>, StoreError> {
        let limit = self.membership.budget.limits.disk_bytes_per_s;
        let (is_over, open) = (Arc::clone(&self.is_over), Arc::clone(&self.open));
        // One is this task.
        let is_waited_for = move || is_over.load(Ordering::Relaxed) || open.load(Ordering::Relaxed) > 1;
        Ok(self.attach(protector::Disk::limited(Directory::open(&self.path)?, limit).unless(is_waited_for)))
    }

    fn attach<S: Storage>(&self, storage: S) -> Job<S> {
        JobDirectory::attach(storage, self.job).on_node(self.node).encrypted(self.key.clone().map(image_key))
    }

    /// The directory, with the job's file in it. Existing files are not written again: they can be read on a disk that takes nothing more.
    fn make(&self) -> Result<Job, StoreError> {
        let storage = Directory::create(&self.path)?;
        let file = self.job_file()?;
        match JobDirectory::open(storage.clone()) {
            Ok((_, found)) if found.job != self.job => {
                let error = store::RecordError::WrongJob { expected: self.job, found: found.job };
                return Err(StoreError::Record { path: self.path.join("job").display().to_string(), error });
            }
            Ok(_) => {}
            Err(StoreError::Storage(StorageError::NotFound { .. })) => {
                drop(JobDirectory::create(storage, &file)?);
            }
            Err(error) if is_damaged(&error) => {
                // It is a copy of the launcher's. No generation needs it, so a disk that does not take it costs none.
                let _ = JobDirectory::renew(storage, &file);
            }
            Err(error) => return Err(error),
        }
        self.open()
    }

    /// Looks at a generation. If its images are whole, it is committed here as well.
    fn look(
        &mut self,
        directory: &mut Job,
        manifest: &Manifest,
        every_byte: bool,
        progress: &mut Progress<'_>,
    ) -> Result<Found, StoreError> {
        let depth = if every_byte { Depth::Everything } else { Depth::Tables };
        // A commit record that cannot be written here costs this generation, and no other one.
        let damage = adopt_if_whole(directory, manifest, depth, || progress.made())
            .unwrap_or_else(|error| Some(Damage { rank: None, error }));
        let group = self.group.as_ref().and_then(|group| Some((group, group.member(self.node)?)));
        let (is_whole, has_some) = match group {
            Some((group, member)) => {
                let mut member = Member::new(directory.clone(), group.clone(), member);
                // A file that cannot be read for another reason than damage counts as lost.
                let is_whole = member.holds(manifest.generation, every_byte).unwrap_or(false);
                (is_whole, is_whole || member.has_some(manifest.generation).unwrap_or(false))
            }
            None => (damage.is_none(), damage.is_none()),
        };
        Ok(Found { problem: damage.map(|damage| damage.error.to_string()), is_whole, has_some })
    }
}

/// A record is there that says nothing.
fn is_damaged(error: &StoreError) -> bool {
    match error {
        StoreError::Record { .. } => true,
        StoreError::Storage(error) => {
            error.is_unreadable()
                || matches!(error, StorageError::TooLong { .. } | StorageError::Short { .. })
        }
        _ => false,
    }
}

/// Undamaged records that are here and did not come with the question: the launcher's own may be damaged.
fn known_besides(
    directory: &mut Job,
    reported: &[Decision],
    asked: &[GenerationId],
) -> Result<Known, StoreError> {
    let decisions = directory.decisions()?;
    let generations = directory.generations()?;
    let committed = generations.iter().rev().filter(|found| found.state == GenerationState::Committed);
    let others = committed.map(|found| found.id).filter(|id| !asked.contains(id));
    Ok(Known {
        decisions: decisions.iter().filter(|decision| !reported.contains(decision)).copied().collect(),
        manifests: others.take(GENERATIONS_TOLD_MAX).filter_map(|id| directory.manifest(id).ok()).collect(),
    })
}

fn not_copied(error: CopyError) -> Refusal {
    Refusal { errno: Errno::EIO as u32, why: error.to_string() }
}

/// R35: its images are part of a state of the job that another layout has taken over.
fn left(root: &Path) -> Refusal {
    let root = root.display();
    let why = format!(
        "the job goes on in another layout of its ranks, and has left {root}: name the job's directory with which it ran last. If that is lost, and no host has a newer \
         directory of this job, remove {root} to go back to an older state, such as a copy of it (--from)"
    );
    Refusal { errno: Errno::ESTALE as u32, why }
}

/// R35: the launcher's directory is one of the new layout, but the job is in the former one since the images were moved.
fn in_use(found: &FormerInUse) -> Refusal {
    let why = match found {
        FormerInUse::GoneOn(node) => format!(
            "the job has gone on in its former layout of ranks: {} knows a life that this launcher does not. Name the job's directory with which it ran last",
            node.display()
        ),
        FormerInUse::Locked(path) => {
            let path = path.display();
            format!(
                "processes of this job run in its former layout of ranks ({path} is locked): another launcher may have continued it there. `fuser -v {path}` lists them; \
                 wait until they have ended, or end the job there"
            )
        }
    };
    Refusal { errno: Errno::ESTALE as u32, why }
}

/// It knows of lives that the launcher does not.
fn ahead(directory: &mut Job) -> Result<NodeDone, Refusal> {
    if let Some(error) = directory.damaged_decisions()?.into_iter().next() {
        return Err(error.into());
    }
    Ok(NodeDone::Ahead(directory.decisions()?))
}

fn adopt_if_whole(
    directory: &mut Job,
    manifest: &Manifest,
    depth: Depth,
    mut progress: impl FnMut(),
) -> Result<Option<Damage>, StoreError> {
    let damages = directory.verify_images(manifest, depth, |_, _| progress())?;
    if damages.is_empty() {
        directory.adopt(manifest)?;
    }
    Ok(damages.into_iter().next())
}

/// A record that came over the link is not as it was sent.
fn reported(error: store::RecordError) -> StoreError {
    StoreError::Record { path: "what the launcher tells".to_owned(), error }
}

#[cfg(test)]
mod tests {
    use ckpt_glue::protection::seat::Seat;
    use transport::Life;

    use super::super::super::super::nodes::wire::Budget;
    use super::super::super::super::worker::Worker;
    use super::*;
    use crate::test_job::job_file;

    const JOB: JobId = JobId(7);
    const LIFE: Life = Life { counter: 1, nonce: 5 };
    const SEAT: Seat = Seat { number: 1, id: 9, parent: 0, is_inherited: false };

    /// The disk of node 3 of a job below this root.
    fn disk(root: &Path) -> Disk {
        Disk {
            path: root.join("3"),
            job: JOB,
            node: 3,
            membership: Membership {
                nodes: Vec::new(),
                losses: 0,
                budget: Budget::default(),
                job_file: job_file(JOB).emit(),
            },
            group: None,
            key: None,
            is_over: Arc::default(),
            open: Arc::default(),
        }
    }

    // R34, R35: each task alone, because a keeper may have surveyed before the job has left its layout.
    #[test]
    fn a_layout_that_was_left_takes_no_life_and_no_seat() {
        let root = tempfile::tempdir().expect("a folder");
        let mut disk = disk(root.path());
        drop(disk.make().expect("a directory"));
        let worker =
            Worker::start("disk", move |task, results| disk.perform(0, task, results)).expect("a thread");
        let perform = |task| {
            worker.ask(task);
            loop {
                match worker.wait().expect("it works") {
                    DiskEvent::Busy { .. } => {}
                    DiskEvent::Done { outcome, .. } => return outcome,
                }
            }
        };
        let decision = Decision { job: JOB, life: LIFE, from: None };
        let tasks = || {
            [
                NodeTask::Survey { decisions: Vec::new(), generations: Vec::new(), sees: None },
                NodeTask::Seat { seat: SEAT, is_taken: true },
                NodeTask::Decide(decision),
            ]
        };
        former::leave(root.path()).expect("a mark");
        for task in tasks() {
            let refused = perform(task).expect_err("it has left");
            assert_eq!(refused.errno, Errno::ESTALE as u32, "{refused:?}");
            assert!(refused.why.contains("has left"), "{refused:?}");
        }
        let open = || JobDirectory::attach(Directory::open(root.path().join("3")).expect("a folder"), JOB);
        assert_eq!(open().decisions().expect("readable"), []);
        std::fs::remove_file(root.path().join("left")).expect("the mark");
        tasks().into_iter().for_each(|task| drop(perform(task).expect("the job is here")));
        assert_eq!(open().decisions().expect("readable"), [decision]);
    }
}
