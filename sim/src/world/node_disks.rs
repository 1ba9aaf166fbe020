//! Nodes with directories of their own: what each holds of every generation, and the shell of the machine that decides about it (R27, R28).
//!
//! The bytes of images stay in the one store of this world. A node's disk here says which of them, and whether what it keeps for the others of its
//! group, can be read there.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use ckpt_glue::job::Input as JobInput;
use ckpt_glue::protection::nodes::{
    Answer, Found, Input, Output, Question, Records, Refusal, Settings, Survey, Times,
};
use ckpt_glue::protection::seat::{Authority, Claimant, Known};
use ckpt_glue::protection::{Nodes, ProtectionGroup, Terms};
use ckpt_glue::{GenerationId, NodeIndex};
use transport::{Life, Rank};

use super::coordinator::JobShell;
use super::event::{Event, Task};
use super::keepers::KeeperShell;
use super::process::NEVER;
use super::{World, at};
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::judge::{Generation, Violation};
use crate::plan::Moment;
use crate::trace;

/// Longest time until the launcher sees that the connection to a keeper is gone.
const LINK_END_MAX: Nanos = 3 * MILLI;
/// Of a hundred protections on a node, so many find the disk full.
const FULL_PERCENT: u64 = 2;

/// A node's part of a generation.
#[derive(Clone, Debug, Default)]
struct Part {
    /// Ranks whose images can be read here.
    images: BTreeSet<u32>,
    /// What it keeps for the others of its group can be read.
    is_sealed: bool,
}

/// A node's own directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeDisk {
    parts: BTreeMap<GenerationId, Part>,
    /// The seats that it knows (R34).
    seats: Known,
}

/// The machine of one launcher, and its shell's state.
#[derive(Debug)]
pub(crate) struct NodesShell {
    machine: Nodes<()>,
    timer_at: Nanos,
    /// The generations of the survey, newest first.
    surveyed: Vec<GenerationId>,
    has_committed: bool,
    kept: Vec<GenerationId>,
    /// Keepers that the launcher is connected to, by node.
    keepers: BTreeMap<u32, u32>,
    /// A keeper works off its questions in order: until then it is at one.
    busy_until: BTreeMap<u32, Nanos>,
}

fn times() -> Times {
    let ms = core::time::Duration::from_millis;
    Times { answer: ms(20), protect: ms(40), late: ms(5), fetch_silent: ms(20), progress_every: ms(5) }
}

impl World {
    /// Whether nodes have directories of their own.
    pub(crate) fn has_node_disks(&self) -> bool {
        self.plan.losses > 0 && self.plan.nodes > self.plan.losses
    }

    pub(crate) fn new_nodes(&self) -> Option<NodesShell> {
        if !self.has_node_disks() {
            return None;
        }
        let losses_max = at(self.plan.losses);
        let group =
            |nodes: Range<u32>| ProtectionGroup { members: nodes.map(NodeIndex).collect(), losses_max };
        let settings = Settings {
            nodes: self.plan.nodes,
            groups: self.plan.groups().map(group).collect(),
            times: times(),
            sabotage: self.sabotage.glue(),
        };
        Some(NodesShell {
            machine: Nodes::new(settings),
            timer_at: NEVER,
            surveyed: Vec::new(),
            has_committed: false,
            kept: Vec::new(),
            keepers: BTreeMap::new(),
            busy_until: BTreeMap::new(),
        })
    }

    fn nodes_shell(&mut self, job: u32) -> Option<&mut NodesShell> {
        self.job.as_mut().filter(|shell| shell.number == job)?.nodes.as_mut()
    }

    /// Whether the launcher `job` has such a machine; then `input` was for it.
    pub(crate) fn feed_nodes(&mut self, job: u32, input: Input<()>) -> bool {
        let now = self.head_time();
        let Some(nodes) = self.nodes_shell(job) else { return false };
        nodes.machine.handle(now, input);
        self.run_nodes(job);
        true
    }

    pub(crate) fn on_nodes_timer(&mut self, job: u32) {
        let (now, local) = (self.queue.now(), self.head_time());
        let Some(nodes) = self.nodes_shell(job).filter(|nodes| nodes.timer_at == now) else { return };
        nodes.timer_at = NEVER;
        nodes.machine.handle_timeout(local);
        self.run_nodes(job);
    }

    fn run_nodes(&mut self, job: u32) {
        while let Some(output) = self.nodes_shell(job).and_then(|nodes| nodes.machine.poll_output()) {
            self.on_nodes(job, output);
        }
        let now = self.queue.now();
        let clock = &self.nodes[at(super::coordinator::HEAD_NODE)].clock;
        let Some(JobShell { nodes: Some(nodes), .. }) = self.job.as_mut().filter(|shell| shell.number == job)
        else {
            return;
        };
        let due = nodes.machine.poll_timeout().map_or(NEVER, |due| clock.when(due, now));
        if due != NEVER && due != nodes.timer_at {
            nodes.timer_at = due;
            self.queue.at(due, Event::NodesTimer(job));
        }
    }

    fn on_nodes(&mut self, job: u32, output: Output<()>) {
        match output {
            Output::Ask { number, question, nodes } => {
                for node in nodes {
                    self.ask_node(job, node.0, number, Some(question));
                }
            }
            Output::Abandon(generation) => {
                for node in 0..self.plan.nodes {
                    self.ask_node(job, node, 0, Some(Question::Late(generation)));
                }
            }
            Output::Remind(nodes) => nodes.iter().for_each(|node| self.ask_node(job, node.0, 0, None)),
            Output::Surveyed { .. } => {
                if !self.lives.is_empty() {
                    self.moment(Moment::Surveyed, None);
                }
                self.feed_nodes(job, Input::Records(Records::Agree(BTreeMap::new())));
            }
            Output::SeatTaken(seat) => {
                self.held_seat = Some(seat);
                self.feed_nodes(job, Input::SeatHeld(seat));
            }
            // No directory of this world is unfit, and an operator knows which are gone.
            Output::Unfit(..) | Output::Unseated(_) => {}
            Output::Busy { counter } => self.feed_job(job, JobInput::StoreBusy { counter }),
            Output::Withdraw { counter } => self.feed_job(job, JobInput::StoreWithdrawn { counter }),
            Output::Begin { life: Life { counter, nonce }, from, .. } => {
                let Some(nodes) = self.nodes_shell(job) else { return };
                let committed = nodes.has_committed;
                self.feed_job(job, JobInput::StoreFenced { counter, newest: from, committed, nonce });
            }
            Output::DecisionNoted(life) => self.feed_job(job, JobInput::DecisionDurable { life }),
            Output::Protected { generation, images, .. } => self.begin_commit(job, generation, images),
            Output::NotProtected { generation, errno } => {
                self.feed_job(job, JobInput::CommitFailed { generation, errno });
            }
            Output::CommitNoted(generation) => self.feed_job(job, JobInput::CommitDurable(generation)),
            Output::Event(event) => trace!(self.trace, self.queue.now(), Actor::Coordinator, "{event:?}"),
        }
    }

    /// The store has been fenced: the nodes are surveyed.
    pub(crate) fn survey_nodes(
        &mut self,
        job: u32,
        counter: u32,
        nonce: u64,
        generations: Vec<GenerationId>,
    ) {
        let (held, is_first) = (self.held_seat, self.life_number == 0);
        let Some(nodes) = self.nodes_shell(job) else { return };
        nodes.surveyed.clone_from(&generations);
        nodes.has_committed = !generations.is_empty();
        let (authority, is_new) = (Authority::Person, held.is_none());
        let claimant = Claimant { held, authority, is_new, id: nonce };
        let survey = Survey { counter, nonce, generations, terms: Terms::default(), claimant, is_first };
        self.feed_nodes(job, Input::Survey(survey));
    }

    /// Old generations have been removed from the job's directory.
    pub(crate) fn nodes_collect(&mut self, job: u32, kept: Vec<GenerationId>) {
        let Some(nodes) = self.nodes_shell(job) else { return };
        nodes.kept.clone_from(&kept);
        self.feed_nodes(job, Input::Collected(kept));
    }

    /// A keeper has connected to its launcher.
    pub(crate) fn keeper_connects(&mut self, keeper: u32) {
        let shell = &self.keepers[at(keeper)];
        let (node, job) = (shell.node, shell.job);
        // A launcher has given up the connection to a host whose place it has given away.
        let counts = shell.alive && self.hosts[at(node)] == shell.host;
        let Some(nodes) = self.nodes_shell(job).filter(|_| counts) else { return };
        let before = nodes.keepers.insert(node, keeper);
        nodes.busy_until.remove(&node);
        if before.is_some() {
            self.feed_nodes(job, Input::KeeperLost(NodeIndex(node)));
        }
        self.feed_nodes(job, Input::KeeperReady(NodeIndex(node)));
    }

    /// A keeper is gone: its launcher sees the end of the connection after a while.
    pub(crate) fn keeper_gone(&mut self, keeper: u32) {
        let job = self.keepers[at(keeper)].job;
        if self.nodes_shell(job).is_some() {
            let sees = self.queue.now() + self.timing.log_between(10 * MICRO, LINK_END_MAX);
            let sees = self.past_cut(self.keepers[at(keeper)].host, sees);
            self.task_at(sees, Task::KeeperDisconnected { keeper });
        }
    }

    pub(crate) fn keeper_disconnected(&mut self, keeper: u32) {
        let shell = &self.keepers[at(keeper)];
        let (node, job) = (shell.node, shell.job);
        let Some(nodes) = self.nodes_shell(job) else { return };
        if nodes.keepers.get(&node) == Some(&keeper) {
            nodes.keepers.remove(&node);
            self.feed_nodes(job, Input::KeeperLost(NodeIndex(node)));
        }
    }

    /// `None`: an order without an answer.
    fn ask_node(&mut self, job: u32, node: u32, number: u64, question: Option<Question>) {
        let (now, control, work) = (self.queue.now(), self.plan.control_ns_max, self.plan.write_ns_max);
        let delay = 1 + self.timing.below(control);
        let work = 1 + self.timing.below(work);
        let arrives = self.past_cut(self.hosts[at(node)], now + delay);
        let Some(nodes) = self.nodes_shell(job) else { return };
        let Some(keeper) = nodes.keepers.get(&node).copied() else { return };
        let busy = nodes.busy_until.entry(node).or_default();
        *busy = (*busy).max(arrives) + work;
        let done_at = *busy;
        if let Some(question) = question {
            self.task_at(done_at, Task::NodeWorks { keeper, number, question });
        }
    }

    /// A keeper has done what it was asked, and answers.
    pub(crate) fn node_works(&mut self, keeper: u32, number: u64, question: Question) {
        let shell = &self.keepers[at(keeper)];
        let (node, job, is_alive) = (shell.node, shell.job, shell.alive);
        if !is_alive || self.nodes_shell(job).is_none_or(|nodes| nodes.keepers.get(&node) != Some(&keeper)) {
            return;
        }
        let stopped_until = self.keepers[at(keeper)].stopped_until;
        if stopped_until > self.queue.now() {
            return self.task_at(stopped_until, Task::NodeWorks { keeper, number, question });
        }
        let answer = self.work(keeper, question);
        trace!(self.trace, self.queue.now(), Actor::Keeper(node), "{question:?}: {answer:?}");
        let arrives = self.queue.now() + 1 + self.timing.below(self.plan.control_ns_max);
        let arrives = self.past_cut(self.keepers[at(keeper)].host, arrives);
        self.task_at(arrives, Task::NodeAnswers { keeper, number, answer: Box::new(answer) });
    }

    pub(crate) fn node_answers(&mut self, keeper: u32, number: u64, answer: Result<Answer, Refusal>) {
        let shell = &self.keepers[at(keeper)];
        let (node, job) = (shell.node, shell.job);
        if self.nodes_shell(job).is_some_and(|nodes| nodes.keepers.get(&node) == Some(&keeper)) {
            let answer = answer.map(|answer| (answer, ()));
            self.feed_nodes(job, Input::Answered { node: NodeIndex(node), number, answer });
        }
    }

    fn work(&mut self, keeper: u32, question: Question) -> Result<Answer, Refusal> {
        let shell = &mut self.keepers[at(keeper)];
        let (node, job) = (shell.node, shell.job);
        match question {
            Question::Open(life) => (shell.opened, shell.has_met) = (Some(life), false),
            Question::Meet(life) => shell.has_met = shell.opened == Some(life),
            Question::Survey => {
                let surveyed = self.nodes_shell(job).map(|nodes| nodes.surveyed.clone()).unwrap_or_default();
                let found = surveyed.iter().map(|generation| self.found(node, *generation)).collect();
                let seats = self.node_disks[at(node)].seats.clone();
                return Ok(Answer::Surveyed { found, seats, end: None });
            }
            Question::Seat { seat, is_taken } => {
                let seats = &mut self.node_disks[at(node)].seats;
                if is_taken { seats.confirm(seat) } else { seats.attempt(seat) }
            }
            Question::Look(generation) => return Ok(Answer::Looked(self.found(node, generation))),
            Question::Protect(generation, base) => {
                self.has_met(keeper, Some(generation))?;
                self.seal(job, node, generation, base)?;
            }
            Question::Repair(generation) | Question::Rebuild(generation) => {
                self.has_met(keeper, None)?;
                self.rebuild(job, node, generation)?;
            }
            Question::Late(generation) => {
                if let Some(part) = self.node_disks[at(node)].parts.get_mut(&generation) {
                    part.is_sealed = false;
                }
                return Ok(Answer::GivenUp(None));
            }
            Question::Collect => {
                let kept = self.nodes_shell(job).map(|nodes| nodes.kept.clone()).unwrap_or_default();
                self.node_disks[at(node)].parts.retain(|generation, _| kept.contains(generation));
            }
            Question::Fetch(_) | Question::Decide(_) | Question::Commit(_) => {}
        }
        Ok(Answer::Done)
    }

    fn ranks_on(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.plan.ranks).filter(move |rank| self.node_of(*rank) == node)
    }

    fn has_images(&self, node: u32, generation: GenerationId) -> bool {
        let part = self.node_disks[at(node)].parts.get(&generation);
        part.is_some_and(|part| self.ranks_on(node).all(|rank| part.images.contains(&rank)))
    }

    fn is_whole(&self, node: u32, generation: GenerationId) -> bool {
        let part = self.node_disks[at(node)].parts.get(&generation);
        part.is_some_and(|part| part.is_sealed) && self.has_images(node, generation)
    }

    fn found(&self, node: u32, generation: GenerationId) -> Found {
        let has_images = self.has_images(node, generation);
        Found {
            problem: (!has_images).then(|| "an image is missing".to_owned()),
            is_whole: self.is_whole(node, generation),
            has_some: self.node_disks[at(node)].parts.contains_key(&generation),
        }
    }

    /// Members of the node's group that take part in nothing just now.
    fn absent(&mut self, job: u32, group: Range<u32>) -> BTreeSet<u32> {
        let alive: BTreeSet<u32> =
            self.keepers.iter().filter(|k| k.alive && k.job == job).map(|k| k.node).collect();
        group.filter(|node| !alive.contains(node)).collect()
    }

    /// Its protector knows the others. To protect a generation, in that one's life.
    fn has_met(&self, keeper: u32, protects: Option<GenerationId>) -> Result<(), Refusal> {
        let KeeperShell { opened, has_met, .. } = self.keepers[at(keeper)];
        let is_of = |life: Life| protects.is_none_or(|generation| generation.life.counter == life.counter);
        if has_met && opened.is_some_and(is_of) {
            return Ok(());
        }
        Err(Refusal { errno: 5, why: "it does not know the addresses of its group".to_owned() })
    }

    /// All members exchange parity of their images, which takes all of them.
    fn seal(
        &mut self,
        job: u32,
        node: u32,
        generation: GenerationId,
        base: Option<GenerationId>,
    ) -> Result<(), Refusal> {
        let refuse = |errno, why: &str| Err(Refusal { errno, why: why.to_owned() });
        if self.timing.percent(FULL_PERCENT) {
            self.disk_refuses();
            return refuse(Refusal::NO_ROOM, "no room");
        }
        let mut group = self.plan.group_of(node);
        if !self.absent(job, group.clone()).is_empty() || group.any(|node| !self.has_images(node, generation))
        {
            return refuse(5, "another member of the group does not take part");
        }
        if base.is_some_and(|base| !self.is_whole(node, base)) {
            return refuse(5, "the generation that it builds upon is damaged");
        }
        if let Some(part) = self.node_disks[at(node)].parts.get_mut(&generation) {
            part.is_sealed = true;
        }
        self.sealed_at.insert((generation, node), self.queue.now());
        Ok(())
    }

    /// From the data of the members that have lost nothing; or, if all images are left, from those.
    fn rebuild(&mut self, job: u32, node: u32, generation: GenerationId) -> Result<(), Refusal> {
        let group = self.plan.group_of(node);
        let absent = self.absent(job, group.clone());
        if !absent.is_empty() {
            return Err(Refusal {
                errno: 5,
                why: "another member of the group does not take part".to_owned(),
            });
        }
        let damaged = group.clone().filter(|node| !self.is_whole(*node, generation)).count();
        let all_images = group.clone().all(|node| self.has_images(node, generation));
        if damaged > at(self.plan.losses) && !all_images {
            let why = "the others lack it, too".to_owned();
            return Err(Refusal { errno: Refusal::BEYOND_REPAIR, why });
        }
        let ranks: BTreeSet<u32> = self.ranks_on(node).collect();
        let part = self.node_disks[at(node)].parts.entry(generation).or_default();
        (part.images, part.is_sealed) = (ranks, true);
        let newest = self.judges.restored.newest();
        if newest.is_some() && self.judged_generation(generation) == newest {
            self.gone.remove(&node);
        }
        Ok(())
    }

    /// An image is durable on the node of its rank.
    pub(crate) fn note_image(&mut self, life: Life, epoch: transport::Epoch, rank: Rank) {
        let node = self.node_of(rank.0);
        let part = self.node_disks[at(node)].parts.entry(GenerationId { life, epoch }).or_default();
        part.images.insert(rank.0);
    }

    /// Whether the node of the rank has its image of this generation.
    pub(crate) fn is_image_there(&self, generation: GenerationId, rank: Rank) -> bool {
        let part = self.node_disks[at(self.node_of(rank.0))].parts.get(&generation);
        !self.has_node_disks() || part.is_some_and(|part| part.images.contains(&rank.0))
    }

    /// Whether the newest committed generation still survives if this node's directory is lost, by what its commit has promised.
    pub(crate) fn may_lose(&self, node: u32) -> bool {
        let gone = self.gone.range(self.plan.group_of(node)).count();
        self.has_node_disks() && (self.gone.contains_key(&node) || gone < at(self.plan.losses))
    }

    /// The directory of a node is gone.
    pub(crate) fn destroy(&mut self, node: u32) {
        self.counts.add(Fault::NodeLost);
        self.node_disks[at(node)] = NodeDisk::default();
        self.gone.insert(node, self.queue.now());
    }

    /// R27: a commit record is durable, so every member of every group holds what it keeps for the others.
    pub(crate) fn judge_protected(&mut self, generation: GenerationId, judged: Generation) {
        if !self.has_node_disks() {
            return;
        }
        // Since a node has sealed it, its directory may have been lost again.
        let sealed_at = &self.sealed_at;
        self.gone.retain(|node, at| sealed_at.get(&(generation, *node)).is_some_and(|sealed| sealed <= at));
        for node in 0..self.plan.nodes {
            if !self.gone.contains_key(&node) && !self.is_whole(node, generation) {
                self.judges.report(Violation::CommittedUnprotected { generation: judged, node });
            }
        }
    }

    /// R28: a decision names a generation of which every node has its images.
    pub(crate) fn judge_rebuilt(&mut self, generation: GenerationId, judged: Generation) {
        if !self.has_node_disks() {
            return;
        }
        // A node may have been lost between its answer and the decision.
        let lately = self.queue.now().saturating_sub(self.plan.write_ns_max + LINK_END_MAX + MILLI);
        for node in 0..self.plan.nodes {
            let is_lost_since = self.gone.get(&node).is_some_and(|at| *at >= lately);
            if !self.has_images(node, generation) && !is_lost_since {
                self.judges.report(Violation::DecidedWithoutImages { generation: judged, node });
            }
        }
    }
}
