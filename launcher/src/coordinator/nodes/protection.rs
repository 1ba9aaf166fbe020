//! Between the last image of a checkpoint and its commit record: every node of every group has to hold its protection data (R27).
//!
//! ```text
//!   WriteCommit ---> Protect (all) ---> output is shown ---> commit record
//!                        | refused, lost; late ---> by which node?
//!                        v
//!                    Abandon (all): the checkpoint failed, and the generation before it is as it was
//! ```

use std::time::Instant;

use ckpt_glue::control::ImageReport;
use ckpt_glue::job;
use ckpt_glue::names::{GenerationId, NodeIndex};
use nix::errno::Errno;

use super::super::super::nodes::wire::{NodeDone, NodeTask};
use super::super::super::notice::Notice;
use super::super::super::requests::NodeEffort;
use super::super::super::wire::ToKeeper;
use super::super::Shell;
use super::{Round, What};

/// A generation whose images are durable where they were written.
#[derive(Debug)]
pub(super) struct PendingProtection {
    pub(super) generation: GenerationId,
    images: Vec<ImageReport>,
}

impl Shell<'_> {
    /// Every image is durable.
    pub(in super::super) fn begin_protection(&mut self, generation: GenerationId, images: Vec<ImageReport>) {
        self.requests.note_written(generation, Instant::now());
        let is_protected = self.plan.own_directories.as_ref().is_some_and(|own| !own.groups().is_empty());
        let Some(nodes) = self.nodes.as_mut().filter(|_| is_protected) else {
            return self.begin_commit(generation, images);
        };
        nodes.pending_protection = Some(PendingProtection { generation, images });
        // Parity of the kept generations is folded just now.
        if nodes.rounds.iter().all(|round| round.what != What::Collect) {
            self.protect();
        }
    }

    /// Asks the nodes to protect the pending generation.
    pub(super) fn protect(&mut self) {
        let Some(nodes) = &mut self.nodes else { return };
        let Some(PendingProtection { generation, .. }) = nodes.pending_protection else { return };
        nodes.background_repair.hold();
        let from = nodes.base;
        let layout = self.layout.clone();
        self.ask_nodes(What::Protect(generation), Some(self.plan.config.checkpoint.timeout), |node| {
            let ranks = layout.ranks_of(node);
            NodeTask::Protect { generation, from, ranks: (ranks.start, ranks.end) }
        });
        self.end_rounds(Instant::now());
    }

    /// R27: only a generation that every node protects is committed.
    pub(super) fn end_protection(&mut self, round: &Round) {
        let Some(PendingProtection { generation, images }) =
            self.nodes.as_mut().and_then(|nodes| nodes.pending_protection.take())
        else {
            return;
        };
        if round.refused.is_empty() {
            let effort = |(node, done): (&NodeIndex, &NodeDone)| match done {
                NodeDone::Protected(effort) => Some(NodeEffort { node: node.0, effort: effort.clone() }),
                _ => None,
            };
            let nodes = round.done.iter().filter_map(effort).collect();
            self.requests.note_protected(generation, Instant::now(), nodes);
            return self.begin_commit(generation, images);
        }
        // If all wait for one, each of them is late.
        if round.refused.values().any(|refusal| refusal.errno == Errno::ETIMEDOUT as u32) {
            return self.ask_who_is_late(generation, round.refused.clone());
        }
        let error = self.refusals(&round.refused);
        self.notify(&Notice::Store { what: &round.what.words(), error: &error });
        let errno = round.refused.values().next().map_or(0, |refusal| refusal.errno);
        self.give_up_protection(generation, errno);
        // If its base is damaged, the next one stands for itself.
        if errno != Errno::ENOSPC as u32
            && let Some(nodes) = &mut self.nodes
        {
            nodes.base = None;
        }
    }

    pub(super) fn give_up_protection(&mut self, generation: GenerationId, errno: u32) {
        for node in self.keepers.nodes() {
            let task = NodeTask::Abandon { generation };
            self.keepers.send(node, &ToKeeper::Node { number: 0, task });
        }
        self.feed_job(job::Input::CommitFailed { generation, errno });
        self.resume_background_repair();
    }
}
