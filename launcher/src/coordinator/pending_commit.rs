//! Between the last image of a checkpoint and its commit record: output from before the ranks' cuts is shown first, for it does not come again
//! after a rollback to it. And every rank of an MPI program has reported its network ([`super::networks`]): until then a generation may lack messages.

use std::collections::BTreeSet;
use std::time::Instant;

use ckpt_glue::control::{ImageReport, JobPhase};
use ckpt_glue::job;
use ckpt_glue::names::{GenerationId, NodeIndex};
use nix::errno::Errno;

use super::super::limits::SHOWN_MAX;
use super::super::notice::Notice;
use super::super::storage::Task;
use super::super::wire::ToKeeper;
use super::Shell;

/// A record that is about to be written.
#[derive(Debug)]
struct Awaited {
    number: u64,
    generation: GenerationId,
    images: Vec<ImageReport>,
    /// Keepers that have not handed over the ranks' earlier output.
    nodes: BTreeSet<NodeIndex>,
    until: Instant,
}

/// Records that wait for output.
#[derive(Debug, Default)]
pub(super) struct PendingCommit {
    awaited: Vec<Awaited>,
    last: u64,
}

impl PendingCommit {
    pub(super) fn due(&self) -> Option<Instant> {
        let awaited = self.awaited.iter().filter(|awaited| !awaited.nodes.is_empty());
        awaited.map(|awaited| awaited.until).min()
    }
}

impl Shell<'_> {
    pub(super) fn begin_commit(&mut self, generation: GenerationId, images: Vec<ImageReport>) {
        self.pending_commit.last += 1;
        let number = self.pending_commit.last;
        let mut nodes = BTreeSet::new();
        // A reader that does not read delays no checkpoint.
        if self.observer.takes_lines() {
            nodes.extend(self.keepers.nodes());
            self.keepers.send_to_all(&ToKeeper::Drain { number });
        }
        let until = Instant::now() + SHOWN_MAX;
        self.pending_commit.awaited.push(Awaited { number, generation, images, nodes, until });
        if self.awaits_networks() {
            self.look_at_ranks();
        }
        self.commit_due(Instant::now());
    }

    /// A keeper has handed over the ranks' earlier output: for this checkpoint, or it is gone.
    pub(super) fn drained(&mut self, node: NodeIndex, number: Option<u64>) {
        for awaited in &mut self.pending_commit.awaited {
            if number.is_none_or(|number| number == awaited.number) {
                awaited.nodes.remove(&node);
            }
        }
        self.commit_due(Instant::now());
    }

    /// Writes the records that need not wait any longer, in their order.
    pub(super) fn commit_due(&mut self, now: Instant) {
        for awaited in &mut self.pending_commit.awaited {
            if awaited.until <= now {
                awaited.nodes.clear();
            }
        }
        let ready = |awaited: &Awaited| awaited.nodes.is_empty();
        while !self.awaits_networks() && self.pending_commit.awaited.first().is_some_and(ready) {
            self.commit_first();
        }
    }

    /// A life ends: no output is waited for. A generation that may lack messages is none.
    pub(super) fn commit_all(&mut self) {
        if self.awaits_networks() {
            return self.drop_all();
        }
        while !self.pending_commit.awaited.is_empty() {
            self.commit_first();
        }
    }

    fn drop_all(&mut self) {
        for Awaited { generation, .. } in core::mem::take(&mut self.pending_commit.awaited) {
            if self.job.status().phase == JobPhase::Fencing {
                let why = "its life ended before every rank had reported its network";
                self.notify(&Notice::Lost { generation, why });
            }
            self.feed_job(job::Input::CommitFailed { generation, errno: Errno::ECANCELED as u32 });
        }
    }

    fn commit_first(&mut self) {
        let Awaited { generation, images, .. } = self.pending_commit.awaited.remove(0);
        self.observer.settle(SHOWN_MAX);
        let positions = self.note_positions(generation, &images);
        self.store.ask(Task::Commit { generation, images, positions });
    }
}
