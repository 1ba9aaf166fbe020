//! Nodes with directories of their own: the shell of [`ckpt_glue::protection::nodes`], which decides.
//!
//! The job's own directory decides which generation is committed. The nodes hold copies of its records, for their ranks and for a user who loses that
//! directory.

mod metadata_sync;
mod outcomes;
mod record_repair;
mod survey;
mod words;

use std::collections::BTreeSet;
use std::time::Instant;

use ckpt_glue::control::{ImageReport, JobPhase};
use ckpt_glue::job;
use ckpt_glue::names::{GenerationId, NodeIndex};
use ckpt_glue::protection::ProtectionGroup;
use ckpt_glue::protection::nodes::{
    Answer, Input, Nodes as Machine, Output, Question, Refusal, Settings, Times,
};
use ckpt_glue::protection::seat::end_of_job;
use ckpt_glue::recovery::Ending;
use ckpt_glue::sabotage::Sabotage;
use nix::errno::Errno;
use store::protect::Group;
use transport::Life;

use super::super::flush::wire::CopyAccess;
use super::super::limits::{COPY_SILENT_MAX, LATE_ANSWER_MAX, NODE_ANSWER_MAX, REPAIR_NEWS_EVERY};
use super::super::nodes::Repairs;
use super::super::nodes::wire::{NodeDone, NodeTask};
use super::super::requests::NodeEffort;
use super::super::setting;
use super::super::storage::{Records, Task};
use super::super::wire::{Frame, ToKeeper};
use super::super::{Plan, Purpose};
use super::Shell;
use survey::PendingSurvey;

/// The machine, and the records that its questions take along.
#[derive(Debug)]
pub(super) struct Nodes {
    machine: Machine<NodeDone>,
    survey: Option<PendingSurvey>,
    /// The committed generations when the life began.
    manifests: Vec<store::Manifest>,
    /// The newest decision, commit record, and list of kept generations of a life.
    decision: Option<store::Decision>,
    manifest: Option<store::Manifest>,
    kept: Option<(Life, Vec<store::GenerationId>)>,
    /// Of the protectors of the life to come.
    addresses: Vec<(u32, Vec<u8>)>,
    repairs: Repairs,
    /// Bytes that have come from a copy, and when that was reported.
    brought: u64,
    brought_reported: Option<Instant>,
}

impl Nodes {
    pub(super) fn new(plan: &Plan) -> Option<Nodes> {
        let own = plan.own_directories.as_ref()?;
        let group = |group: &Group| ProtectionGroup {
            members: group.nodes().iter().copied().map(NodeIndex).collect(),
            losses_max: group.losses(),
        };
        let settings = Settings {
            nodes: u32::try_from(plan.nodes.len()).unwrap_or(u32::MAX),
            groups: own.groups().iter().map(group).collect(),
            times: Times {
                answer: NODE_ANSWER_MAX,
                protect: plan.config.checkpoint.timeout,
                late: LATE_ANSWER_MAX,
                fetch_silent: COPY_SILENT_MAX,
                progress_every: REPAIR_NEWS_EVERY,
            },
            sabotage: Sabotage::none(),
        };
        Some(Nodes {
            machine: Machine::new(settings),
            survey: None,
            manifests: Vec::new(),
            decision: None,
            manifest: None,
            kept: None,
            addresses: Vec::new(),
            repairs: Repairs::default(),
            brought: 0,
            brought_reported: None,
        })
    }

    pub(super) fn into_repairs(self) -> Repairs {
        self.repairs
    }

    pub(super) fn poll_timeout(&self) -> Option<transport::Instant> {
        self.machine.poll_timeout()
    }
}

impl Shell<'_> {
    /// Gives the machine an input, and carries out its outputs.
    pub(super) fn feed_nodes(&mut self, input: Input<NodeDone>) {
        let now = self.now();
        if let Some(nodes) = &mut self.nodes {
            nodes.machine.handle(now, input);
        }
        self.drain_nodes();
    }

    pub(super) fn nodes_due(&mut self, now: transport::Instant) {
        let Some(nodes) = &mut self.nodes else { return };
        if nodes.poll_timeout().is_some_and(|due| due <= now) {
            nodes.machine.handle_timeout(now);
            self.drain_nodes();
        }
    }

    fn drain_nodes(&mut self) {
        while let Some(output) = self.nodes.as_mut().and_then(|nodes| nodes.machine.poll_output()) {
            self.on_nodes(output);
        }
    }

    fn on_nodes(&mut self, output: Output<NodeDone>) {
        match output {
            Output::Ask { number, question, nodes } => self.ask_nodes(number, question, &nodes),
            Output::Abandon(generation) => {
                let task = NodeTask::Abandon { generation };
                self.keepers.send_to_all(&ToKeeper::Node { number: 0, task });
            }
            Output::Remind(nodes) => {
                let Some(decision) = self.nodes.as_ref().and_then(|nodes| nodes.decision) else { return };
                let frame = Frame::new(&ToKeeper::Node { number: 0, task: NodeTask::Decide(decision) });
                nodes.into_iter().for_each(|node| self.keepers.send_frame(node, &frame));
            }
            Output::Surveyed { answers } => self.on_surveyed(&answers),
            Output::SeatTaken(seat) => self.store.ask(Task::HoldSeat(seat)),
            Output::Unseated(unseated) => self.on_unseated(unseated),
            Output::Unfit(node, refusal) => self.on_unfit_directory(node, refusal),
            Output::Busy { counter } => {
                self.report_brought();
                self.feed_job(job::Input::StoreBusy { counter });
            }
            Output::Withdraw { counter } => self.feed_job(job::Input::StoreWithdrawn { counter }),
            Output::Begin { life, from, is_protected } => self.begin_from(life, from, is_protected),
            Output::DecisionNoted(life) => self.feed_job(job::Input::DecisionDurable { life }),
            Output::Protected { .. } | Output::NotProtected { .. }
                if self.plan.purpose == Purpose::Protect =>
            {
                if let (Some(nodes), Output::Protected { .. }) = (&mut self.nodes, &output) {
                    nodes.repairs.protected = true;
                }
                self.stop();
            }
            Output::Protected { generation, images, answers } => {
                if !answers.is_empty() {
                    let effort = |(node, done): (&NodeIndex, &NodeDone)| match done {
                        NodeDone::Protected(effort) => {
                            Some(NodeEffort { node: node.0, effort: effort.clone() })
                        }
                        _ => None,
                    };
                    let efforts = answers.iter().filter_map(effort).collect();
                    self.requests.note_protected(generation, Instant::now(), efforts);
                }
                self.begin_commit(generation, images);
            }
            Output::NotProtected { generation, errno } => {
                self.feed_job(job::Input::CommitFailed { generation, errno });
            }
            Output::CommitNoted(generation) => self.feed_job(job::Input::CommitDurable(generation)),
            Output::Event(event) => self.on_nodes_event(event),
        }
    }

    /// Sends these nodes a question.
    fn ask_nodes(&mut self, number: u64, question: Question, to: &BTreeSet<NodeIndex>) {
        if let Question::Protect(generation, from) = question {
            for node in to {
                let ranks = self.layout.ranks_of(*node);
                let task = NodeTask::Protect { generation, from, ranks: (ranks.start, ranks.end) };
                self.keepers.send(*node, &ToKeeper::Node { number, task });
            }
            return;
        }
        let Some(task) = self.task(question) else {
            return self.refuse_question(number, question, to);
        };
        let frame = Frame::new(&ToKeeper::Node { number, task });
        to.iter().for_each(|node| self.keepers.send_frame(*node, &frame));
    }

    /// No question stays open for want of a record.
    fn refuse_question(&mut self, number: u64, question: Question, to: &BTreeSet<NodeIndex>) {
        let why = format!("the launcher has no record for {}; that is a bug", words::question(question));
        for node in to {
            let refusal = Refusal { errno: Errno::EINVAL as u32, why: why.clone() };
            self.feed_nodes(Input::Answered { node: *node, number, answer: Err(refusal) });
        }
    }

    /// The question with the records that it takes along. `None` only if the machine asks for something that this shell has not given it.
    fn task(&self, question: Question) -> Option<NodeTask> {
        let nodes = self.nodes.as_ref()?;
        Some(match question {
            Question::Survey => nodes.survey.as_ref()?.task(self.sees()),
            Question::Seat { seat, is_taken } => NodeTask::Seat { seat, is_taken },
            Question::Open(life) => NodeTask::Open { life },
            Question::Meet(life) => NodeTask::Meet { life, addresses: nodes.addresses.clone() },
            Question::Repair(generation) | Question::Rebuild(generation) => NodeTask::Repair { generation },
            Question::Fetch(generation) => {
                let fetch = self.plan.fetch.as_ref()?;
                NodeTask::Fetch { generation, from: CopyAccess::new(&fetch.from, fetch.key.as_ref()) }
            }
            Question::Decide(_) => NodeTask::Decide(nodes.decision?),
            Question::Protect(..) => return None,
            Question::Late(generation) => NodeTask::Abandon { generation },
            Question::Commit(_) => NodeTask::Commit(nodes.manifest.clone()?),
            Question::Collect => {
                let (life, kept) = nodes.kept.clone()?;
                NodeTask::Collect { life, keep: self.plan.keep, kept }
            }
            Question::Look(generation) => {
                let manifest = nodes.manifests.iter().find(|known| known.generation == generation)?;
                NodeTask::Look(manifest.clone())
            }
        })
    }

    pub(super) fn on_node_done(&mut self, node: NodeIndex, number: u64, outcome: Result<NodeDone, Refusal>) {
        let answer = outcome.map(|done| {
            let answer = match &done {
                NodeDone::Surveyed { found, seats, end, .. } => {
                    Answer::Surveyed { found: found.clone(), seats: seats.clone(), end: *end }
                }
                NodeDone::Looked(found) => Answer::Looked(found.clone()),
                NodeDone::GivenUp(account) => Answer::GivenUp(account.clone()),
                _ => Answer::Done,
            };
            (answer, done)
        });
        self.feed_nodes(Input::Answered { node, number, answer });
    }

    pub(super) fn on_node_busy(&mut self, node: NodeIndex, number: u64, bytes: u64) {
        if let Some(nodes) = &mut self.nodes {
            nodes.brought += bytes;
        }
        self.feed_nodes(Input::Busy { node, number });
    }

    /// Every image is durable.
    pub(super) fn begin_protection(&mut self, generation: GenerationId, images: Vec<ImageReport>) {
        self.requests.note_written(generation, Instant::now());
        if self.nodes.is_none() {
            return self.begin_commit(generation, images);
        }
        self.feed_nodes(Input::Written { generation, images });
    }

    /// The decision is durable in the job's directory.
    pub(super) fn decided(&mut self, decision: &store::Decision) {
        let life = decision.life;
        let Some(nodes) = &mut self.nodes else {
            return self.feed_job(job::Input::DecisionDurable { life });
        };
        (nodes.decision, nodes.survey) = (Some(*decision), None);
        self.feed_nodes(Input::Decided(life));
    }

    /// The commit record is durable in the job's directory.
    pub(super) fn committed(&mut self, manifest: &store::Manifest) {
        let generation = manifest.generation;
        // R35: a later generation is protected.
        let file = self.job_file.as_mut();
        if file.is_some_and(|file| file.settings.remove(setting::UNPROTECTED).is_some()) {
            self.keep_settings();
        }
        let Some(nodes) = &mut self.nodes else {
            return self.feed_job(job::Input::CommitDurable(generation));
        };
        nodes.manifest = Some(manifest.clone());
        self.feed_nodes(Input::Committed(generation));
        // While a life is being ended nobody waits for the nodes' answers, and if it was the last one, the final report names the generation on disk.
        if self.job.status().phase == JobPhase::Fencing {
            self.feed_job(job::Input::CommitDurable(generation));
        }
    }

    /// The store has removed the job directory's old generations.
    pub(super) fn collected(&mut self, life: Life, kept: &[store::GenerationId]) {
        self.forget_input(kept);
        let Some(nodes) = &mut self.nodes else { return };
        nodes.kept = Some((life, kept.to_vec()));
        self.feed_nodes(Input::Collected(kept.to_vec()));
    }

    /// R34: no host continues the job by itself from now on. A repair ends no job, and without the seat it is another launcher's.
    pub(super) fn report_end(&mut self, ending: Ending) {
        let Some(nodes) = self.nodes.as_ref().filter(|_| self.plan.purpose == Purpose::Run) else { return };
        if self.end.is_unseated {
            return;
        }
        let known = || nodes.survey.as_ref()?.records.decisions.last();
        let life = nodes.decision.as_ref().or_else(known).map(|newest| newest.life);
        let how = (self.end.has_run, self.end.verdict.is_some());
        if let Some(end) = end_of_job(self.plan.authority, ending, life, how) {
            self.keepers.send_to_all(&ToKeeper::Node { number: 0, task: NodeTask::JobEnd(end) });
        }
    }

    /// The last message to the nodes: the committed generations. They remove everything else.
    pub(super) fn settle_nodes(&mut self, records: &Records) {
        let manifests = records.manifests.iter().map(|(manifest, _)| manifest.clone()).collect();
        let task = NodeTask::Settle { manifests };
        self.keepers.send_to_all(&ToKeeper::Node { number: 0, task });
    }
}
