//! Copies of images that lie on other hosts' disks: each node's keeper packs those of its own ranks, and the launcher writes the record when all parts are there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ckpt_glue::names::NodeIndex;
use copies::{CopyError, PackRequest, Packed};
use store::Manifest;

use super::super::flush::wire::{CopyAccess, PartRequest};
use super::super::wire::ToKeeper;
use super::Shell;

/// A copy whose parts are being written.
#[derive(Debug)]
pub(super) struct Parts {
    number: u64,
    manifest: Manifest,
    /// Since when each of them has made no progress.
    waiting: BTreeMap<NodeIndex, Instant>,
    /// A node that makes none for this long is given up.
    patience: Duration,
    /// By image of the manifest.
    packed: Vec<Option<Packed>>,
    problem: Option<CopyError>,
}

impl Parts {
    fn due(&self) -> Option<Instant> {
        self.waiting.values().min().map(|moved| *moved + self.patience)
    }

    /// One that has made no progress for too long.
    fn silent(&self, now: Instant) -> Option<NodeIndex> {
        let is_silent = |(_, moved): &(&NodeIndex, &Instant)| **moved + self.patience <= now;
        self.waiting.iter().find(is_silent).map(|(node, _)| *node)
    }
}

impl Shell<'_> {
    /// Asks every node for its part.
    pub(super) fn ask_parts(&mut self, order: &PackRequest, manifest: Manifest) {
        let Some(flush) = &self.plan.flush else { return };
        let to = CopyAccess::new(&flush.to, flush.key.as_ref());
        self.copying.parts_last += 1;
        let number = self.copying.parts_last;
        let now = Instant::now();
        let nodes: BTreeSet<NodeIndex> = manifest.images.iter().map(|image| NodeIndex(image.node)).collect();
        let mut parts = Parts {
            number,
            packed: vec![None; manifest.images.len()],
            waiting: nodes.iter().map(|node| (*node, now)).collect(),
            patience: flush.patience,
            problem: None,
            manifest,
        };
        if let Some(node) = nodes.iter().find(|node| !self.keepers.is_ready(**node)) {
            parts.waiting.clear();
            parts.problem = Some(self.part_failed(*node, gone()));
        }
        for node in parts.waiting.keys() {
            let own = parts.manifest.images.iter().filter(|image| image.node == node.0);
            let ranks = own.map(|image| image.rank.0).collect();
            let (to, manifest) = (to.clone(), parts.manifest.clone());
            let part = PartRequest { number, to, manifest, ranks, request: order.clone() };
            self.keepers.send(*node, &ToKeeper::Copy(Box::new(part)));
        }
        self.copying.parts = Some(parts);
        self.end_parts();
    }

    pub(super) fn on_copying(&mut self, node: NodeIndex, number: u64, bytes: u64) {
        let Some(parts) = self.copying.parts.as_mut().filter(|parts| parts.number == number) else { return };
        if let Some(moved) = parts.waiting.get_mut(&node) {
            *moved = Instant::now();
        }
        if let Some(flusher) = &self.copying.flusher {
            flusher.note(bytes);
        }
    }

    /// The time when a keeper has made no progress for too long.
    pub(super) fn parts_due(&self) -> Option<Instant> {
        self.copying.parts.as_ref().and_then(Parts::due)
    }

    /// Goes on without those that have made no progress for too long: there is no copy this time. They may wait for their place for ever.
    pub(super) fn give_up_silent_parts(&mut self, now: Instant) {
        while let Some(parts) = &mut self.copying.parts
            && let Some(node) = parts.silent(now)
        {
            parts.waiting.remove(&node);
            let (number, patience) = (parts.number, parts.patience);
            self.keepers.send(node, &ToKeeper::GiveUpCopy { number });
            let problem = format!(
                "it has made no progress for {patience:?}, as if the place did not answer there: look whether it does (--flush-patience gives it more time)"
            );
            self.spoil_parts(node, problem);
            self.end_parts();
        }
    }

    pub(super) fn on_part(&mut self, node: NodeIndex, number: u64, outcome: Result<Vec<Packed>, String>) {
        let Some(parts) = self.copying.parts.as_mut().filter(|parts| parts.number == number) else { return };
        if parts.waiting.remove(&node).is_none() {
            return;
        }
        let problem = match outcome {
            Ok(packed) => {
                let own = (0..).zip(&parts.manifest.images).filter(|(_, image)| image.node == node.0);
                let places: Vec<usize> = own.map(|(place, _)| place).collect();
                let fits = places.len() == packed.len();
                for (place, packed) in places.into_iter().zip(packed) {
                    parts.packed[place] = Some(packed);
                }
                (!fits).then(|| "it has written more or fewer ranks than it was asked for".to_owned())
            }
            Err(problem) => Some(problem),
        };
        if let Some(problem) = problem {
            self.spoil_parts(node, problem);
        }
        self.end_parts();
    }

    /// A keeper is gone, and its part with it.
    pub(super) fn lose_part(&mut self, node: NodeIndex) {
        if self.copying.parts.as_mut().is_some_and(|parts| parts.waiting.remove(&node).is_some()) {
            self.spoil_parts(node, gone());
            self.end_parts();
        }
    }

    /// Without one part there is no copy: the others need not go on.
    fn spoil_parts(&mut self, node: NodeIndex, problem: String) {
        let problem = self.part_failed(node, problem);
        let Some(parts) = &mut self.copying.parts else { return };
        if parts.problem.is_none() {
            parts.problem = Some(problem);
            self.give_up_parts();
        }
    }

    /// Every writer of a part ends.
    pub(super) fn give_up_parts(&mut self) {
        let Some(parts) = &self.copying.parts else { return };
        for node in parts.waiting.keys() {
            self.keepers.send(*node, &ToKeeper::GiveUpCopy { number: parts.number });
        }
    }

    fn part_failed(&self, node: NodeIndex, problem: String) -> CopyError {
        CopyError::Part { host: self.keepers.name(node), problem }
    }

    /// Nobody writes a part any more.
    fn end_parts(&mut self) {
        let Some(Parts { packed, problem, .. }) =
            self.copying.parts.take_if(|parts| parts.waiting.is_empty())
        else {
            return;
        };
        if let Some(flusher) = &mut self.copying.flusher {
            flusher.answer(problem.map_or_else(|| Ok(packed.into_iter().flatten().collect()), Err));
        }
    }
}

fn gone() -> String {
    "its keeper is gone".to_owned()
}
