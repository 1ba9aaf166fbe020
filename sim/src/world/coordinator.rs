//! The shell of the coordinator: it carries out the job's decisions.

use ckpt_glue::control::{Decision, FaultReport, ImageReport, Source};
use ckpt_glue::job::{Event as JobEvent, Input, JobSettings, Output, SuspicionEvent};
use ckpt_glue::protection::nodes::Input as NodesInput;
use ckpt_glue::protocols::CheckpointEvent;
use ckpt_glue::recovery::{Beginning, Ending, FaultModel, Plan};
use ckpt_glue::{GenerationId, Job, JobConfig, Layout};
use transport::Rank;

use super::event::{Endpoint, Event, Task};
use super::node_disks::NodesShell;
use super::process::NEVER;
use super::{JOB, World, at};
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::judge::bounds::BoundsJudge;
use crate::judge::{Generation, Violation};
use crate::plan::{Moment, Reactions};
use crate::trace;

/// Longest time of fencing the store.
const FENCE_STORE_MAX: Nanos = 100 * MICRO;
/// After this time an operator notices that the job has ended in failure and starts it again.
const OPERATOR_DELAY: Nanos = 5 * MILLI;
/// Restarts by hand in one history. More means that the job cannot be saved.
const OPERATOR_RESTARTS_MAX: u32 = 12;
/// Node that the coordinator and the checkpoint directory are on.
pub(crate) const HEAD_NODE: u32 = 0;

/// A coordinator and its shell's state.
#[derive(Debug)]
pub(crate) struct JobShell {
    pub(crate) number: u32,
    pub(crate) machine: Job,
    timer_at: Nanos,
    /// Where nodes have directories of their own.
    pub(crate) nodes: Option<NodesShell>,
    /// Commits of lives with a counter below this are refused.
    refuse_below: u32,
}

fn config(reactions: Reactions) -> JobConfig {
    let mut config = JobConfig::default();
    let policy = &mut config.fault.policy;
    let changes: &[&str] = match reactions {
        Reactions::Usual => &[],
        Reactions::Moving => &["process=migration,restart", "transient=migration,restart"],
        Reactions::Waiting => &["permanent=restart"],
        Reactions::Ending => &["process=migration,stop", "permanent=migration,stop"],
        Reactions::Ignoring => &["process=ignore,restart", "repeated=ignore,restart"],
    };
    if reactions == Reactions::Waiting {
        policy.thresholds.transient_within = core::time::Duration::from_millis(30);
    }
    // A wrong change would leave the usual reaction: see the test.
    changes.iter().for_each(|change| drop(policy.change(change)));
    config.checkpoint.timeout = core::time::Duration::from_millis(40);
    config.fault.restarts_max = 1000;
    config.fault.back_off = core::time::Duration::from_micros(100);
    config.fault.start_timeout = core::time::Duration::from_millis(200);
    config.keeper.fan_out = 2;
    config.keeper.heartbeat = core::time::Duration::from_millis(3);
    config.keeper.heartbeats_missed_max = 10;
    config
}

impl World {
    /// Starts a coordinator, and keepers on all nodes that have power; the others get theirs when they are up.
    /// `leaves_out`: a host on which an earlier launcher had ranks.
    pub(crate) fn start_job(&mut self, beginning: Beginning, counter_last: u32, leaves_out: bool) {
        let config = config(self.plan.reactions);
        let silence = config.keeper.watch().silence();
        let layout = Layout::even(self.plan.ranks, self.plan.nodes, config.keeper.fan_out);
        let Ok(layout) = layout else { return };
        let settings = JobSettings {
            job: JOB,
            config,
            layout,
            beginning,
            counter_last,
            is_remote: false,
            // All launchers have the same time-out here.
            former_silence: core::time::Duration::ZERO,
            earlier_lease: if leaves_out { silence } else { core::time::Duration::ZERO },
            connects: true,
            sabotage: self.sabotage.glue(),
        };
        let number = self.jobs_started;
        self.jobs_started += 1;
        let now = self.head_time();
        let nodes = self.new_nodes();
        match Job::new(settings, now) {
            Ok(machine) => {
                self.job = Some(JobShell { number, machine, timer_at: NEVER, nodes, refuse_below: 0 });
            }
            Err(error) => {
                let message = error.to_string();
                self.judges.report(Violation::Panic { message });
                return;
            }
        }
        self.run_job();
        for node in 0..self.plan.nodes {
            if self.nodes[at(node)].up {
                self.start_keeper(number, node);
            }
        }
    }

    pub(crate) fn head_time(&self) -> transport::Instant {
        self.nodes[at(HEAD_NODE)].clock.read(self.queue.now())
    }

    /// Gives `input` to the coordinator `number`, if that is still the one.
    pub(crate) fn feed_job(&mut self, number: u32, input: Input) {
        let now = self.head_time();
        if let Some(job) = self.job.as_mut().filter(|job| job.number == number) {
            job.machine.handle(now, input);
            self.run_job();
        }
    }

    pub(crate) fn request_checkpoint(&mut self) {
        self.checkpoint_commands += 1;
        let now = self.head_time();
        if let Some(job) = &mut self.job {
            job.machine.handle(now, Input::Request(Source::Command));
            self.run_job();
        }
    }

    pub(crate) fn on_job_timer(&mut self, number: u32) {
        let (now, local) = (self.queue.now(), self.head_time());
        let Some(job) = self.job.as_mut().filter(|job| job.number == number && job.timer_at == now) else {
            return;
        };
        job.timer_at = NEVER;
        job.machine.handle_timeout(local);
        self.run_job();
    }

    pub(crate) fn run_job(&mut self) {
        while let Some((number, output)) =
            self.job.as_mut().and_then(|job| job.machine.poll_output().map(|output| (job.number, output)))
        {
            match output {
                Output::Send { to, control } => self.send_control(Endpoint::Job(number), to, control),
                Output::FenceStore { counter, refuse_below } => {
                    if let Some(job) = &mut self.job {
                        job.refuse_below = job.refuse_below.max(refuse_below);
                    }
                    self.feed_nodes(number, NodesInput::LifeOver);
                    let delay = self.timing.below(FENCE_STORE_MAX);
                    self.task_after(delay, Task::StoreFenced { job: number, counter });
                }
                Output::WriteDecision(decision) => {
                    let delay = self.timing.below(self.plan.write_ns_max);
                    self.task_after(delay, Task::DecisionWritten { job: number, decision });
                }
                Output::WriteCommit { generation, images } => {
                    if self.has_node_disks() {
                        self.feed_nodes(number, NodesInput::Written { generation, images });
                    } else {
                        self.begin_commit(number, generation, images);
                    }
                }
                // A keeper here that stands still is ended by its guard.
                Output::Reconnect { .. }
                | Output::Await { .. }
                | Output::Ask { .. }
                | Output::Diagnosed(_) => {}
                Output::Replace { node, .. } => self.replace(number, node.0),
                Output::Collect { .. } => self.collect(number),
                Output::Event(event) => self.on_job_event(number, &event),
                Output::Over(report) => {
                    trace!(self.trace, self.queue.now(), Actor::Coordinator, "over: {:?}", report.ending);
                    self.job = None;
                    if report.ending == Ending::Finished {
                        self.over = true;
                    } else {
                        // The launcher's last word to its keepers.
                        self.orphan_keepers(100);
                        self.call_operator(OPERATOR_DELAY);
                    }
                }
            }
        }
        let now = self.queue.now();
        let clock = &self.nodes[at(HEAD_NODE)].clock;
        if let Some(job) = &mut self.job {
            let found = BoundsJudge::coordinator(&job.machine.status());
            self.judges.check(found);
            let deadline = job.machine.poll_timeout();
            let due = deadline.map_or(NEVER, |deadline| clock.when(deadline, now));
            if due != NEVER && due != job.timer_at {
                job.timer_at = due;
                self.queue.at(due, Event::JobTimer(job.number));
            }
        }
    }

    pub(crate) fn begin_commit(&mut self, job: u32, generation: GenerationId, images: Vec<ImageReport>) {
        let delay = self.timing.below(self.plan.write_ns_max);
        self.task_after(delay, Task::CommitWritten { job, generation, images });
        self.moment(Moment::Committing, None);
    }

    fn on_job_event(&mut self, job: u32, event: &JobEvent) {
        trace!(self.trace, self.queue.now(), Actor::Coordinator, "{event:?}");
        match event {
            JobEvent::Checkpoint(CheckpointEvent::Begun { epoch, .. }) => {
                self.checkpoints_begun += 1;
                self.checkpoint_begins();
                let generation = Generation { life: self.life_number, epoch: epoch.0 };
                let found = self.judges.naming.begun(generation);
                self.judges.check(found);
            }
            JobEvent::Checkpoint(CheckpointEvent::Abandoned { epoch, reason, .. }) => {
                self.asking = false;
                let generation = Generation { life: self.life_number, epoch: epoch.0 };
                self.judges.naming.abandoned(generation);
                self.judge_abandoned(generation, *reason);
                self.feed_nodes(job, NodesInput::CheckpointFailed);
            }
            JobEvent::Checkpoint(CheckpointEvent::Committed { .. }) => {
                self.asking = false;
                self.checkpoint_commits();
            }
            JobEvent::Checkpoint(CheckpointEvent::Refused { .. }) => self.asking = false,
            JobEvent::LifeBegun { .. } => {
                self.asking = false;
                self.suspected.clear();
                self.is_maimed = false;
            }
            JobEvent::Reported { action: Some((_, Plan::Ignore { .. })), .. } => self.is_maimed = true,
            JobEvent::Suspicion(SuspicionEvent::Raised { node, .. }) => drop(self.suspected.insert(node.0)),
            // A node that a policy gives up in a fence ends the job, and no life: that has ended before.
            JobEvent::Reported { report: FaultReport::KeeperSilent { node }, action: Some((fault, _)) }
                if fault.model == FaultModel::Transient =>
            {
                self.judge_declared(job, node.0);
            }
            JobEvent::AllRunning { .. } => {
                self.note_hosts();
                self.feed_nodes(job, NodesInput::AllRunning);
            }
            _ => {}
        }
    }

    /// The launcher gives up; an operator has to start the job again.
    pub(crate) fn end_launcher(&mut self) {
        self.job = None;
        self.orphan_keepers(75);
        self.call_operator(OPERATOR_DELAY);
    }

    /// An operator will start the job again.
    pub(crate) fn call_operator(&mut self, delay: Nanos) {
        if !self.operator_called {
            self.operator_called = true;
            self.task_after(delay, Task::Operator);
        }
    }

    pub(crate) fn operator_restarts(&mut self) {
        self.operator_called = false;
        if self.job.is_some() || !self.nodes[at(HEAD_NODE)].up {
            return;
        }
        self.operator_restarts += 1;
        if self.operator_restarts > OPERATOR_RESTARTS_MAX {
            self.stuck("the job ends in failure each time that it is started".to_owned());
            return;
        }
        let counter_last = self.newest_counter();
        trace!(
            self.trace,
            self.queue.now(),
            Actor::Plan,
            "the job is started again after life {counter_last}"
        );
        let saved = !self.judges.restored.commits().is_empty();
        let leaves_out = self.leave_out();
        self.start_job(if saved { Beginning::Newest } else { Beginning::Fresh }, counter_last, leaves_out);
    }

    pub(crate) fn store_fenced(&mut self, job: u32, counter: u32) {
        let nonce = self.timing.bits();
        if self.has_node_disks() {
            let Some(generations) = self.committed_generations() else { return };
            return self.survey_nodes(job, counter, nonce, generations);
        }
        let Some(newest) = self.newest_committed() else { return };
        let committed = newest.is_some();
        let newest = newest.filter(|_| self.queue.now() >= self.unreadable_until);
        if committed && newest.is_none() {
            self.counts.add(Fault::Unreadable);
        }
        self.feed_job(job, Input::StoreFenced { counter, newest, committed, nonce });
    }

    pub(crate) fn decision_written(&mut self, job: u32, decision: Decision) {
        if self.job.as_ref().is_none_or(|j| j.number != job) {
            return;
        }
        let input = match self.store_decision(&decision) {
            Some(Ok(())) => {
                self.lives.push(decision.life);
                if decision.life.counter > 1 {
                    self.moment(Moment::Decided, None);
                }
                if self.feed_nodes(job, NodesInput::Decided(decision.life)) {
                    return;
                }
                Input::DecisionDurable { life: decision.life }
            }
            Some(Err(errno)) => Input::DecisionFailed { life: decision.life, errno },
            None => return,
        };
        self.feed_job(job, input);
    }

    pub(crate) fn commit_written(&mut self, job: u32, generation: GenerationId, images: &[ImageReport]) {
        let Some(shell) = self.job.as_ref().filter(|j| j.number == job) else { return };
        let input = if generation.life.counter < shell.refuse_below {
            Input::CommitFailed { generation, errno: 1 }
        } else {
            match self.store_commit(generation, images) {
                Some(Ok(())) if self.feed_nodes(job, NodesInput::Committed(generation)) => return,
                Some(Ok(())) => Input::CommitDurable(generation),
                Some(Err(errno)) => Input::CommitFailed { generation, errno },
                None => return,
            }
        };
        self.feed_job(job, input);
    }

    /// The rank that a step is about.
    pub(crate) fn rank_number(&self, which: crate::plan::Which, cause: Option<u32>) -> Rank {
        use crate::plan::Which;
        let ranks = self.plan.ranks;
        Rank(match which {
            Which::Number(number) => number % ranks,
            Which::Cause => cause.unwrap_or(0) % ranks,
            Which::Other(further) => (cause.unwrap_or(0) + further) % ranks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reactions_are_those_of_their_names() {
        let on = |reactions| config(reactions).fault.policy.on;
        assert_eq!(on(Reactions::Usual), ckpt_glue::recovery::Protocols::default());
        assert_eq!(on(Reactions::Moving).transient.to_string(), "migration, restart");
        assert_eq!(on(Reactions::Waiting).permanent.to_string(), "restart");
        assert_eq!(on(Reactions::Ending).process.to_string(), "migration, stop");
        assert_eq!(on(Reactions::Ignoring).repeated.to_string(), "ignore, restart");
    }
}
