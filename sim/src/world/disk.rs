//! The checkpoint directory, on the disk of the head node: the real store over memory that can lose power.

use std::collections::BTreeMap;

use ckpt_glue::control::{Decision, ExitedRecord, ImageReport};
use ckpt_glue::{GenerationId, ImageDigest};
use store::job::{CommitRequest, Depth, GenerationState, ImageClaim};
use store::record::{CheckpointSettings, JobFile};
use store::storage::{Memory, StorageError};
use store::{JobDirectory, Section, StoreError, kinds};
use transport::{Epoch, Life, Rank};

use super::coordinator::HEAD_NODE;
use super::image::Image;
use super::process::Writing;
use super::{JOB, World, at};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::judge::{Generation, Violation};
use crate::trace;

/// Section of a program's memory.
const MEMORY: u32 = kinds::FIRST_PRIVATE;
/// Committed generations that are kept.
const KEEP: u32 = 2;

/// EIO, for failures whose number does not matter.
const FAILED: u32 = 5;

/// Outcome of an operation of the store; `None`: the power went out during it.
type Outcome<T> = Option<Result<T, u32>>;

/// Makes the directory of a new job.
pub(crate) fn new_directory(ranks: u32) -> Result<JobDirectory<Memory>, StoreError> {
    let file = JobFile {
        job: JOB,
        ranks,
        checkpoint: CheckpointSettings { every_ms: None, keep: KEEP },
        directory: b"/".to_vec(),
        command: vec![b"script".to_vec()],
        environment: Vec::new(),
        settings: BTreeMap::new(),
    };
    JobDirectory::create(Memory::new(), &file)
}

impl World {
    /// The store's name of a generation (R8).
    fn key(&self, life: Life, epoch: Epoch) -> store::GenerationId {
        let first = self.lives.first().filter(|_| self.sabotage.keyless());
        store::GenerationId { life: first.copied().unwrap_or(life), epoch }
    }

    /// After a crash of the head node: the newest generation whose commit record was durable is still whole.
    pub(crate) fn judge_newest(&mut self) {
        let Some(newest) = self.judges.restored.newest() else { return };
        let stored = self.images.iter().rfind(|(_, _, generation)| *generation == newest);
        let Some((id, rank, _)) = stored.copied() else { return };
        let found = self.directory.open_committed_image(id, rank);
        let damages = found.and_then(|_| self.directory.verify(id, Depth::Everything));
        let broken = match damages {
            Ok(damages) => damages.into_iter().next().map(|damage| (damage.rank, damage.error)),
            Err(error) => Some((Some(rank), error)),
        };
        if let Some((rank, error)) = broken {
            let (rank, what) = (rank.map_or(0, |rank| rank.0), error.to_string());
            self.judges.report(Violation::Unreadable { generation: newest, rank, what });
        }
    }

    /// The job is over: after the last cleaning up nothing but whole generations is there, and no more than are kept.
    pub(crate) fn judge_store(&mut self) {
        // A fault that was planned and has not been met belongs to no history any more. The power may have gone out
        // while a process that was being killed wrote its image: this was not noticed since.
        self.directory.storage().clear_fault();
        if self.directory.storage().is_crashed() {
            self.lose_unsynced();
            self.judge_newest();
        }
        let discarded = self.directory.discard_unfinished().map(|_| ());
        let listed = discarded.and_then(|()| self.directory.generations());
        // A collection that has not begun, or has come to no end, has left one generation more.
        let kept_max = at(KEEP + self.collections_missed.max(1));
        let what = match listed {
            Ok(listed) => {
                let half = listed.iter().find(|found| found.state != GenerationState::Committed);
                match half {
                    Some(half) => format!("generation {} is {:?}", half.id, half.state),
                    None if listed.len() > kept_max => format!("{} generations", listed.len()),
                    None => return,
                }
            }
            Err(error) => error.to_string(),
        };
        self.judges.report(Violation::Leftover { what });
    }

    /// Turns the store's result into a machine's input; notices when the power has gone out.
    fn outcome<T>(&mut self, what: &str, result: Result<T, StoreError>) -> Outcome<T> {
        match result {
            Ok(value) => Some(Ok(value)),
            Err(error) if self.directory.storage().is_crashed() => {
                trace!(self.trace, self.queue.now(), Actor::Disk, "power lost: {what}: {error}");
                let down = self.power_down;
                self.crash_node(HEAD_NODE, down);
                None
            }
            Err(error @ StoreError::Unsettled { .. }) => {
                // The content of the disk cannot be known before a restart: this launcher ends.
                trace!(self.trace, self.queue.now(), Actor::Disk, "{what}: {error}");
                self.disk_refuses();
                self.end_launcher();
                None
            }
            Err(error) => {
                trace!(self.trace, self.queue.now(), Actor::Disk, "{what}: {error}");
                if let StoreError::Storage(StorageError::NoSpace { .. } | StorageError::Device { .. }) = error
                {
                    self.disk_refuses();
                }
                Some(Err(FAILED))
            }
        }
    }

    pub(crate) fn store_image(
        &mut self,
        life: Life,
        epoch: u32,
        rank: Rank,
        image: &Image,
    ) -> Outcome<(ImageDigest, u64)> {
        let id = self.key(life, Epoch(epoch));
        if self.sabotage.keyless()
            && let Ok(there) = self.directory.open_image(id, rank)
        {
            // R8 out: an image of any life is taken for the one of its epoch.
            let summary = there.summary();
            return Some(Ok((summary.digest, summary.bytes)));
        }
        let mut sections = Vec::with_capacity(1 + image.ports.len());
        sections.push(Section::new(MEMORY, 1, &image.memory));
        for (port, section) in &image.ports {
            let section = Section::new(nic_freeze::SECTION_KIND, nic_freeze::SECTION_VERSION, section);
            sections.push(section.with_id(*port));
        }
        let written = self
            .directory
            .begin_generation(id)
            .and_then(|()| self.directory.write_image(id, rank, &sections));
        let outcome = self.outcome("image", written)?;
        Some(outcome.map(|summary| {
            self.images.push((id, rank, image.generation));
            self.note_image(life, Epoch(epoch), rank);
            (summary.digest, summary.bytes)
        }))
    }

    /// A process has died while it wrote its image: a part of the file is there.
    pub(crate) fn leave_half_written(&mut self, number: u32, writing: &Writing) {
        let process = &self.processes[at(number)];
        if !self.nodes[at(HEAD_NODE)].up || self.timing.percent(50) {
            return;
        }
        let id = self.key(process.life, Epoch(writing.epoch));
        let rank = Rank(process.rank);
        if self.directory.begin_generation(id).is_err() {
            return;
        }
        if let Ok(mut writer) = self.directory.begin_image(id, rank) {
            // No receiver for an error is left.
            let _ = writer.section(self.directory.storage(), Section::new(MEMORY, 1, &writing.image.memory));
        }
    }

    pub(crate) fn store_exited(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        record: &ExitedRecord,
    ) -> Outcome<(ImageDigest, u64)> {
        let id = self.key(generation.life, generation.epoch);
        let bytes = record.emit();
        let sections = [Section::new(kinds::EXITED, 1, &bytes)];
        let written = self
            .directory
            .begin_generation(id)
            .and_then(|()| self.directory.write_image(id, rank, &sections));
        let outcome = self.outcome("image of an ended rank", written)?;
        Some(outcome.map(|summary| {
            self.note_image(generation.life, generation.epoch, rank);
            (summary.digest, summary.bytes)
        }))
    }

    pub(crate) fn store_commit(&mut self, generation: GenerationId, images: &[ImageReport]) -> Outcome<()> {
        let id = self.key(generation.life, generation.epoch);
        let claim = |report: &ImageReport| ImageClaim {
            rank: report.rank,
            node: 0,
            digest: report.digest,
            bytes: report.bytes,
        };
        let request = CommitRequest {
            generation: id,
            ranks: self.plan.ranks,
            taken_unix_ms: 0,
            nodes: vec!["head".to_owned()],
            images: images.iter().map(claim).collect(),
        };
        let committed = self.directory.commit(&request).map(|_| ());
        let Some(outcome) = self.outcome("commit", committed) else {
            if let Some(generation) = self.judged(id) {
                self.judges.restored.perhaps_committed(generation);
            }
            return None;
        };
        if outcome.is_ok() {
            // Until the collection that follows has come to its end.
            self.collections_missed += 1;
            self.judge_commit(id);
            if let Some(judged) = self.judged(id) {
                self.judge_protected(generation, judged);
            }
        }
        Some(outcome)
    }

    /// The judges' name of the generation that the store calls `id`.
    fn judged(&self, id: store::GenerationId) -> Option<Generation> {
        self.images.iter().rfind(|(i, ..)| *i == id).map(|(_, _, generation)| *generation)
    }

    /// A commit record is durable: from now on this generation must be consistent, and recovery must go back to it.
    fn judge_commit(&mut self, id: store::GenerationId) {
        let stored = |rank: u32| self.images.iter().rfind(|(i, r, _)| *i == id && r.0 == rank);
        let Some(generation) = self.judged(id) else { return };
        trace!(self.trace, self.queue.now(), Actor::Disk, "commit {}.{}", generation.life, generation.epoch);
        for rank in 0..self.plan.ranks {
            match stored(rank).map(|(_, _, generation)| *generation) {
                None => self.judges.report(Violation::CommittedWithoutImage { generation, rank }),
                Some(own) if own != generation => {
                    self.judges.report(Violation::CommittedMixed { generation, rank, own });
                }
                Some(_) => {}
            }
        }
        let found = self.judges.restored.committed(generation);
        self.judges.check(found);
        let found = self.judges.naming.committed(generation);
        self.judges.check(found);
        let crate::judge::Judges { cut, order, .. } = &self.judges;
        let found =
            cut.committed(generation, |to, from, port| order.received_at_cut(to, generation, from, port));
        self.judges.check(found);
    }

    pub(crate) fn store_decision(&mut self, decision: &Decision) -> Outcome<()> {
        let from = decision.restore.map(|generation| self.key(generation.life, generation.epoch));
        let decided = self.directory.start_life(decision.life.nonce, from);
        let outcome = self.outcome("decision", decided)?;
        let restore = from.and_then(|id| self.judged(id));
        if let (Ok(_), Some(id)) = (&outcome, from)
            && self.judges.restored.decided(restore)
        {
            self.judge_commit(id);
        }
        if let (Ok(_), Some(generation), Some(judged)) = (&outcome, decision.restore, restore) {
            self.judge_rebuilt(generation, judged);
        }
        Some(outcome.map(|written| {
            self.life_number += 1;
            let who = Actor::Coordinator;
            trace!(
                self.trace,
                self.queue.now(),
                who,
                "decide life {} ({}) from {from:?}",
                self.life_number,
                written.life
            );
            if written.life != decision.life {
                let (expected, found) = (decision.life.counter, written.life.counter);
                self.judges.report(Violation::LifeCounter { expected, found });
            }
        }))
    }

    /// Newest committed generation; the outer `None`: the power went out.
    pub(crate) fn newest_committed(&mut self) -> Option<Option<GenerationId>> {
        let found = self.directory.newest_committed();
        let manifest = self.outcome("newest generation", found)?.ok()?;
        Some(manifest.map(|m| GenerationId { life: m.generation.life, epoch: m.generation.epoch }))
    }

    /// All committed generations, newest first; `None`: the power went out.
    pub(crate) fn committed_generations(&mut self) -> Option<Vec<GenerationId>> {
        let listed = self.directory.generations();
        let listed = self.outcome("list of generations", listed)?.unwrap_or_default();
        let committed = listed.into_iter().filter(|found| found.state == GenerationState::Committed);
        let mut committed: Vec<GenerationId> = committed.map(|found| found.id).collect();
        committed.sort_unstable_by(|one, other| other.cmp(one));
        Some(committed)
    }

    /// The judges' name of a generation.
    pub(crate) fn judged_generation(&self, generation: GenerationId) -> Option<Generation> {
        self.judged(self.key(generation.life, generation.epoch))
    }

    /// A fault like any other: it is calm after it.
    pub(crate) fn disk_refuses(&mut self) {
        self.counts.add(Fault::DiskError);
        self.calm_at = self.calm_at.max(self.queue.now());
    }

    /// Counter of the newest decision on disk.
    pub(crate) fn newest_counter(&mut self) -> u32 {
        match self.directory.newest_decision() {
            Ok(Some(decision)) => decision.life.counter,
            _ => 0,
        }
    }

    pub(crate) fn collect(&mut self, job: u32) {
        let Some(life) = self.lives.last().copied() else { return };
        let collected = self.directory.collect(life, KEEP, &[]);
        if let Some(Ok(_)) = self.outcome("collect", collected) {
            self.collections_missed = 0;
            if let Some(kept) = self.committed_generations() {
                self.nodes_collect(job, kept);
            }
        }
    }

    /// Reads the image of a rank for its restart.
    pub(crate) fn read_image(
        &mut self,
        generation: GenerationId,
        rank: Rank,
    ) -> Option<Result<Image, String>> {
        let id = self.key(generation.life, generation.epoch);
        let stored = self.images.iter().rfind(|(i, r, _)| *i == id && *r == rank);
        let Some(generation) = stored.map(|(_, _, generation)| *generation) else {
            return Some(Err("never written".to_owned()));
        };
        let read = self.directory.open_committed_image(id, rank).and_then(|reader| {
            let mut image = Image { generation, memory: Vec::new(), ports: Vec::new() };
            for (number, entry) in (0..).zip(reader.entries()) {
                let bytes = reader.read_section(self.directory.storage(), number)?;
                match entry.kind {
                    MEMORY => image.memory = bytes,
                    _ => image.ports.push((entry.id, bytes)),
                }
            }
            Ok(image)
        });
        match read {
            Ok(image) => Some(Ok(image)),
            Err(_) if self.directory.storage().is_crashed() => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// The head node has lost power: its disk keeps arbitrary parts of unsynced data.
    pub(crate) fn lose_unsynced(&mut self) {
        let World { directory, timing, counts, .. } = self;
        let mut tearing = false;
        directory.storage().crash(&mut |n| {
            if core::mem::take(&mut tearing) {
                // Where the write is torn: so many of its bytes stay.
                let stay = timing.below(n);
                match stay {
                    0 => counts.add(Fault::UnsyncedWrite),
                    stay if stay < n - 1 => counts.add(Fault::TornWrite),
                    _ => {}
                }
                return stay;
            }
            // Half of the writes are torn, because formats have to survive that.
            let choice = if n == 3 && timing.percent(50) { 2 } else { timing.below(2) };
            tearing = choice == 2;
            if choice == 0 {
                counts.add(Fault::UnsyncedWrite);
            }
            choice
        });
    }
}
