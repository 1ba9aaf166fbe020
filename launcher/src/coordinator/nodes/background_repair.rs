//! Behind a life that runs: rebuilds lost data of generations that are kept besides the restored one, one generation at a time, the newest first.
//!
//! ```text
//!   all ranks run ---> Repair (nodes with losses) ---> Look (all: the outcome) ---> the next one
//!        ^                 | a checkpoint goes first
//!        +--- Collect <----+
//! ```
//!
//! Nothing depends on it. The survey before the next life finds data that was not rebuilt, or it is not kept any more.

use std::collections::{BTreeSet, VecDeque};

use ckpt_glue::names::NodeIndex;
use nix::errno::Errno;
use store::{GenerationId, Manifest};

use super::super::super::limits::NODE_ANSWER_MAX;
use super::super::super::nodes::wire::{NodeDone, NodeTask};
use super::super::super::notice::Notice;
use super::super::Shell;
use super::restore_plan::rebuilt_words;
use super::{Nodes, Round, What};

/// A generation that nodes have lost something of.
#[derive(Debug)]
pub(super) struct Older {
    pub(super) manifest: Manifest,
    pub(super) lost: BTreeSet<NodeIndex>,
}

impl Older {
    fn generation(&self) -> GenerationId {
        self.manifest.generation
    }
}

#[derive(Debug, Default)]
pub(super) struct BackgroundRepair {
    /// The newest first.
    waiting: VecDeque<Older>,
    under_way: Option<Older>,
    /// The ranks of the life run: their start goes first.
    is_begun: bool,
    /// From a checkpoint's protection until old generations have been removed: R27, and the checkpoint goes first.
    is_held: bool,
}

impl BackgroundRepair {
    pub(super) fn new(waiting: VecDeque<Older>) -> BackgroundRepair {
        BackgroundRepair { waiting, ..BackgroundRepair::default() }
    }

    /// A checkpoint is protected: the rebuild that is under way ends, and is begun again later.
    pub(super) fn hold(&mut self) {
        self.is_held = true;
    }

    /// These generations are kept.
    pub(super) fn retain(&mut self, kept: &[GenerationId]) {
        self.waiting.retain(|older| kept.contains(&older.generation()));
        self.under_way.take_if(|older| !kept.contains(&older.generation()));
    }

    /// The next generation to rebuild, if no other one is under way.
    fn next(&mut self) -> Option<&Older> {
        if !self.is_begun || self.is_held || self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way.as_ref()
    }

    /// Has it begun again later.
    fn put_back(&mut self) {
        let older = self.under_way.take();
        older.into_iter().for_each(|older| self.waiting.push_front(older));
    }

    fn is_under_way(&self, generation: GenerationId) -> bool {
        self.under_way.as_ref().is_some_and(|older| older.generation() == generation)
    }
}

impl Shell<'_> {
    fn background_repair(&mut self) -> Option<&mut BackgroundRepair> {
        self.nodes.as_mut().map(|nodes: &mut Nodes| &mut nodes.background_repair)
    }

    /// All ranks run.
    pub(in super::super) fn begin_background_repair(&mut self) {
        if let Some(repair) = self.background_repair() {
            repair.is_begun = true;
        }
        self.rebuild_next();
    }

    /// The checkpoint that went first is over.
    pub(super) fn resume_background_repair(&mut self) {
        if let Some(repair) = self.background_repair() {
            repair.is_held = false;
        }
        self.rebuild_next();
    }

    fn rebuild_next(&mut self) {
        if self.leaving {
            return;
        }
        let Some(older) = self.background_repair().and_then(BackgroundRepair::next) else { return };
        let (generation, lost) = (older.generation(), older.lost.clone());
        let names: Vec<String> = lost.iter().map(|node| self.plan.nodes[node.0 as usize].name()).collect();
        let words = format!(
            "generation {generation}, which is kept: rebuilding what {} had of it, while the job runs",
            names.join(", ")
        );
        self.notify(&Notice::Repair { words: &words });
        self.ask_some(What::Rebuild(generation), None, &lost, |_| NodeTask::Repair { generation });
        // A keeper may be gone already.
        self.end_rounds(std::time::Instant::now());
    }

    pub(super) fn end_background_repair(&mut self, generation: GenerationId, round: &Round) {
        let Some(repair) = self.background_repair().filter(|repair| repair.is_under_way(generation)) else {
            return;
        };
        let is_gone = round.refused.values().any(|refusal| refusal.errno == Errno::EHOSTDOWN as u32);
        if !round.refused.is_empty() && (repair.is_held || is_gone) {
            return repair.put_back();
        }
        if !round.refused.is_empty() {
            repair.under_way = None;
            let why = self.refusals(&round.refused);
            self.report_not_rebuilt(generation, &why);
            return self.rebuild_next();
        }
        for (node, done) in &round.done {
            let NodeDone::Repaired(rebuilt) = done else { continue };
            let host = self.plan.nodes[node.0 as usize].name();
            let words =
                format!("generation {generation}: {host} has what it had: {}", rebuilt_words(*rebuilt));
            self.notify(&Notice::Repair { words: &words });
        }
        let Some(older) = self.background_repair().and_then(|repair| repair.under_way.as_ref()) else {
            return;
        };
        let task = NodeTask::Look(older.manifest.clone());
        self.ask_nodes(What::Look(generation), Some(NODE_ANSWER_MAX), |_| task.clone());
    }

    /// A node that has rebuilt it has committed it, too, if all its data of it is whole.
    pub(super) fn end_look(&mut self, generation: GenerationId, round: &Round) {
        let Some(repair) = self.background_repair().filter(|repair| repair.is_under_way(generation)) else {
            return;
        };
        repair.under_way = None;
        let mut problems = Vec::new();
        for (node, done) in &round.done {
            let host = || self.plan.nodes[node.0 as usize].name();
            match done {
                NodeDone::Looked(found) if found.is_held && found.problem.is_none() => {}
                NodeDone::Looked(found) => {
                    let problem = found.problem.clone();
                    let problem =
                        problem.unwrap_or_else(|| "what it keeps for others is not whole".to_owned());
                    problems.push(format!("{}: {problem}", host()));
                }
                _ => problems.push(format!("{}: it does not report its images", host())),
            }
        }
        if !round.refused.is_empty() {
            problems.push(self.refusals(&round.refused));
        }
        if problems.is_empty() {
            let words = format!("generation {generation} is whole on all nodes again");
            self.notify(&Notice::Repair { words: &words });
        } else {
            self.report_not_rebuilt(generation, &problems.join("; "));
        }
        self.rebuild_next();
    }

    pub(super) fn report_not_rebuilt(&mut self, generation: GenerationId, why: &str) {
        let words = format!("generation {generation}, which is kept, is not rebuilt: {why}");
        self.notify(&Notice::Repair { words: &words });
    }
}
