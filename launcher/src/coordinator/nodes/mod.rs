//! Nodes with directories of their own: requests to all of them, and the answers that are missing.
//!
//! ```text
//!   life to begin:  Survey (all) ---> a generation is chosen ---> decision durable here ---> Decide (all) ---> ranks start
//!   checkpoint:     images durable ---> Protect (all) ---> commit record durable here ---> Commit (all) ---> Collect (all)
//! ```
//!
//! The job's own directory decides; the nodes' copies of its records serve the ranks, and a user who has lost that directory.

mod background_repair;
mod late_nodes;
mod metadata_sync;
mod protection;
mod record_repair;
mod restore_plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ckpt_glue::control::JobPhase;
use ckpt_glue::job;
use ckpt_glue::names::{GenerationId, NodeIndex};
use nix::errno::Errno;
use transport::Life;

use super::super::limits::NODE_ANSWER_MAX;
use super::super::nodes::Repairs;
use super::super::nodes::wire::{NodeDone, NodeTask, Refusal};
use super::super::notice::Notice;
use super::super::storage::Records;
use super::super::wire::ToKeeper;
use super::Shell;
use background_repair::BackgroundRepair;
use late_nodes::LateNodes;
use protection::PendingProtection;
use restore_plan::PendingRestore;

/// A request to the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Their generations and decisions, before a life begins.
    Survey,
    /// To take over a decision.
    Decide(Life),
    /// To take over a commit record.
    Commit(GenerationId),
    /// To remove generations that are not kept.
    Collect,
    /// To open their protectors' endpoints.
    Open(Life),
    /// To know where the others' are.
    Meet,
    /// To protect a generation.
    Protect(GenerationId),
    /// To give up a generation that was not protected in time, and to report how far they were with it.
    Late(GenerationId),
    /// To compute their lost data of a generation.
    Repair(store::GenerationId),
    /// The same, behind a life that runs.
    Rebuild(store::GenerationId),
    /// The result of that.
    Look(store::GenerationId),
    /// To bring their lost data of a generation from a place of copies.
    Fetch(store::GenerationId),
}

impl What {
    fn words(self) -> String {
        match self {
            What::Survey => "what the nodes have".to_owned(),
            What::Decide(life) => format!("the decision about life {life}, on its nodes"),
            What::Commit(generation) => format!("the commit record of generation {generation}, on its nodes"),
            What::Open(_) | What::Meet => {
                "the nodes' protectors, without which nothing is protected".to_owned()
            }
            What::Protect(generation) | What::Late(generation) => {
                format!("protecting generation {generation}")
            }
            What::Repair(generation) | What::Rebuild(generation) | What::Look(generation) => {
                format!("rebuilding generation {generation}")
            }
            What::Fetch(generation) => format!("bringing generation {generation} from a copy"),
            What::Collect => "removing old generations, on the nodes".to_owned(),
        }
    }
}

/// A question to several nodes.
#[derive(Debug)]
struct Round {
    number: u64,
    what: What,
    waiting: BTreeSet<NodeIndex>,
    done: BTreeMap<NodeIndex, NodeDone>,
    refused: BTreeMap<NodeIndex, Refusal>,
    /// A node that has not answered by then does not count; `None`: somebody else watches the time.
    until: Option<Instant>,
    limit: Duration,
}

/// Rounds that are under way.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    rounds: Vec<Round>,
    last: u64,
    restore: Option<PendingRestore>,
    pending_protection: Option<PendingProtection>,
    late: Option<LateNodes>,
    /// The newest committed generation, if every member of every group holds its protection data: the next one builds upon it.
    base: Option<GenerationId>,
    background_repair: BackgroundRepair,
    repairs: Repairs,
    /// The decision about the newest life, and the nodes that could not write it down: nothing is saved there before they have.
    decision: Option<store::Decision>,
    untold: BTreeSet<NodeIndex>,
}

impl Nodes {
    /// Time stood still for so long.
    pub(super) fn put_off(&mut self, by: Duration) {
        for until in self.rounds.iter_mut().filter_map(|round| round.until.as_mut()) {
            *until += by;
        }
    }
}

impl Round {
    fn is_over(&self, now: Instant) -> bool {
        // If one node refuses, the generation is not protected, and the other answers do not matter.
        let is_spoilt = matches!(self.what, What::Protect(_)) && !self.refused.is_empty();
        self.waiting.is_empty() || is_spoilt || self.until.is_some_and(|until| until <= now)
    }
}

impl Nodes {
    pub(super) fn into_repairs(self) -> Repairs {
        self.repairs
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let repair = self.restore.as_ref().and_then(PendingRestore::due);
        self.rounds.iter().filter_map(|round| round.until).chain(repair).min()
    }
}

impl Shell<'_> {
    /// Sends every node its `task`.
    fn ask_nodes(&mut self, what: What, limit: Option<Duration>, task: impl Fn(NodeIndex) -> NodeTask) {
        self.ask_some(what, limit, &self.keepers.nodes().into_iter().collect(), task);
    }

    fn ask_some(
        &mut self,
        what: What,
        limit: Option<Duration>,
        some: &BTreeSet<NodeIndex>,
        task: impl Fn(NodeIndex) -> NodeTask,
    ) {
        let Some(nodes) = &mut self.nodes else { return };
        nodes.last += 1;
        let mut round = Round {
            number: nodes.last,
            what,
            waiting: BTreeSet::new(),
            done: BTreeMap::new(),
            refused: BTreeMap::new(),
            until: limit.map(|limit| Instant::now() + limit),
            limit: limit.unwrap_or_default(),
        };
        for node in some.iter().copied() {
            if self.keepers.is_ready(node) {
                let message = ToKeeper::Node { number: round.number, task: task(node) };
                self.keepers.send(node, &message);
            } else if what != What::Survey {
                round.refused.insert(node, gone());
                continue;
            }
            round.waiting.insert(node);
        }
        nodes.rounds.push(round);
    }

    pub(super) fn on_node_done(&mut self, node: NodeIndex, number: u64, outcome: Result<NodeDone, Refusal>) {
        let Some(nodes) = &mut self.nodes else { return };
        let Some(round) = nodes.rounds.iter_mut().find(|round| round.number == number) else { return };
        if !round.waiting.remove(&node) {
            return;
        }
        match outcome {
            Ok(done) => drop(round.done.insert(node, done)),
            Err(refusal) => drop(round.refused.insert(node, refusal)),
        }
        self.end_rounds(Instant::now());
    }

    pub(super) fn on_node_busy(&mut self, node: NodeIndex, number: u64, bytes: u64) {
        let Some(nodes) = &mut self.nodes else { return };
        // A node works off its requests in order, so progress on an older request counts for the newer ones that wait behind it.
        let is_it = |round: &&mut Round| {
            round.number == number || round.number > number && round.waiting.contains(&node)
        };
        let Some(round) = nodes.rounds.iter_mut().find(is_it) else { return };
        if let Some(until) = &mut round.until {
            *until = (*until).max(Instant::now() + round.limit);
        }
        if let Some(restore) = &mut nodes.restore {
            restore.note_brought(bytes);
        }
        if let Some(counter) = nodes.restore.as_ref().map(PendingRestore::counter) {
            self.feed_job(job::Input::StoreBusy { counter });
        }
    }

    /// A node's keeper is gone: it does not answer the open requests. Before a life begins, its successor is surveyed again.
    pub(super) fn lose_node(&mut self, node: NodeIndex) {
        let Some(nodes) = &mut self.nodes else { return };
        if let Some(restore) = &mut nodes.restore {
            let fetch = nodes.rounds.iter_mut().find(|round| matches!(round.what, What::Fetch(_)));
            let Some(fetch) = fetch else { return self.survey_again() };
            // The other nodes go on fetching; all are asked again when they are done.
            restore.lost_keeper();
            if fetch.waiting.remove(&node) {
                fetch.refused.insert(node, gone());
            }
            return self.end_rounds(Instant::now());
        }
        for round in &mut nodes.rounds {
            if round.waiting.remove(&node) {
                round.refused.insert(node, gone());
            }
        }
        self.end_rounds(Instant::now());
    }

    /// Ends the rounds in which everybody has answered, or whose time is over.
    pub(super) fn end_rounds(&mut self, now: Instant) {
        self.report_repair(now);
        loop {
            let Some(nodes) = &mut self.nodes else { return };
            let Some(place) = nodes.rounds.iter().position(|round| round.is_over(now)) else { return };
            let mut round = nodes.rounds.remove(place);
            if round.until.is_some_and(|until| until <= now) {
                for node in core::mem::take(&mut round.waiting) {
                    let why = format!("no answer in {} s", round.limit.as_secs());
                    round.refused.insert(node, Refusal { errno: Errno::ETIMEDOUT as u32, why });
                }
            }
            self.end_round(round);
            self.pump();
        }
    }

    fn end_round(&mut self, round: Round) {
        match round.what {
            What::Survey => return self.end_survey(round),
            What::Open(life) => return self.end_opening(life, &round),
            What::Meet => return self.end_meeting(&round),
            What::Repair(generation) => return self.end_repair(generation, &round),
            What::Fetch(generation) => return self.end_fetch(generation, &round),
            What::Rebuild(generation) => return self.end_background_repair(generation, &round),
            What::Look(generation) => return self.end_look(generation, &round),
            What::Protect(_) => return self.end_protection(&round),
            What::Late(_) => return self.end_late(&round),
            What::Decide(_) | What::Commit(_) | What::Collect => {}
        }
        if !round.refused.is_empty() {
            let error = self.refusals(&round.refused);
            self.notify(&Notice::Store { what: &round.what.words(), error: &error });
        }
        if let (What::Decide(_), Some(nodes)) = (round.what, &mut self.nodes) {
            nodes.untold = round.refused.keys().copied().collect();
        }
        match round.what {
            // The decision stands in the job's directory. A node that does not know it can save nothing, and reports that.
            What::Decide(life) => self.feed_job(job::Input::DecisionDurable { life }),
            // R8: the record in the job's directory decides.
            What::Commit(generation) => self.end_commit(generation),
            // The rest may have waited for this round.
            _ => {
                self.protect();
                let is_over = self.nodes.as_ref().is_some_and(|nodes| nodes.pending_protection.is_none());
                if is_over {
                    self.resume_background_repair();
                }
            }
        }
    }

    fn end_commit(&mut self, generation: GenerationId) {
        let is_protected = self.plan.own_directories.as_ref().is_some_and(|own| !own.groups().is_empty());
        if let Some(nodes) = self.nodes.as_mut().filter(|_| is_protected) {
            nodes.base = Some(generation);
        }
        self.feed_job(job::Input::CommitDurable(generation));
    }

    /// Which nodes have refused, and why.
    fn refusals(&self, refused: &BTreeMap<NodeIndex, Refusal>) -> String {
        let one = |(node, refusal): (&NodeIndex, &Refusal)| {
            format!("{}: {}", self.plan.nodes[node.0 as usize].name(), refusal.why)
        };
        refused.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// The decision is durable in the job's directory.
    pub(super) fn decided(&mut self, decision: &store::Decision) {
        let life = decision.life;
        let Some(nodes) = &mut self.nodes else {
            return self.feed_job(job::Input::DecisionDurable { life });
        };
        nodes.decision = Some(*decision);
        self.ask_nodes(What::Decide(life), Some(NODE_ANSWER_MAX), |_| NodeTask::Decide(*decision));
    }

    /// A checkpoint has failed. A node that had no room for the decision may have it now.
    pub(super) fn decide_again(&mut self) {
        let Some(Nodes { decision: Some(decision), untold, .. }) = &self.nodes else { return };
        for node in untold {
            let task = NodeTask::Decide(*decision);
            self.keepers.send(*node, &ToKeeper::Node { number: 0, task });
        }
    }

    /// The commit record is durable in the job's directory.
    pub(super) fn committed(&mut self, manifest: &store::Manifest) {
        let generation = manifest.generation;
        if self.nodes.is_none() {
            return self.feed_job(job::Input::CommitDurable(generation));
        }
        self.ask_nodes(What::Commit(generation), Some(NODE_ANSWER_MAX), |_| {
            NodeTask::Commit(manifest.clone())
        });
        // While a life is being ended nobody waits for the nodes' answers, and if it was the last one, the final report names the generation on disk.
        if self.job.status().phase == JobPhase::Fencing {
            self.feed_job(job::Input::CommitDurable(generation));
        }
    }

    /// The store has removed the job directory's old generations.
    pub(super) fn collected(&mut self, life: Life, kept: &[store::GenerationId]) {
        self.forget_input(kept);
        if let Some(nodes) = &mut self.nodes {
            nodes.background_repair.retain(kept);
        }
        let keep = self.plan.keep;
        self.ask_nodes(What::Collect, Some(NODE_ANSWER_MAX), |_| NodeTask::Collect {
            life,
            keep,
            kept: kept.to_vec(),
        });
    }

    /// A life ends: nothing of it is waited for.
    pub(super) fn end_rounds_of_life(&mut self) {
        let Some(nodes) = &mut self.nodes else { return };
        nodes.restore = None;
        nodes.background_repair = BackgroundRepair::default();
        let pending_protection =
            nodes.pending_protection.take().map(|pending_protection| pending_protection.generation);
        let given_up = pending_protection.or(nodes.late.take().map(|late| late.generation));
        for round in core::mem::take(&mut nodes.rounds) {
            if let What::Commit(generation) = round.what {
                self.feed_job(job::Input::CommitDurable(generation));
            }
        }
        if let Some(generation) = given_up {
            self.give_up_protection(generation, Errno::ECANCELED as u32);
        }
    }

    /// The last message to the nodes: the committed generations. They remove everything else.
    pub(super) fn settle_nodes(&mut self, records: &Records) {
        let manifests = || records.manifests.iter().map(|(manifest, _)| manifest.clone()).collect();
        for node in self.keepers.nodes() {
            let task = NodeTask::Settle { manifests: manifests() };
            self.keepers.send(node, &ToKeeper::Node { number: 0, task });
        }
    }
}

fn gone() -> Refusal {
    Refusal { errno: Errno::EHOSTDOWN as u32, why: "its keeper is gone".to_owned() }
}
