//! The actor.

mod components;
mod diagnosis;
mod faults;
mod interval;
mod keepers;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use transport::{Epoch, Instant, Life};

use super::absent::Absent;
use super::books::{Counted, Ended, Leases, Writing};
use super::limit::TimeLimit;
use super::suspicion::Suspicions;
use super::{Event, FinalReport, Input, JobSettings, Output, Record, StopCause, Unsaved};
use crate::config::OnFault;
use crate::control::{
    Control, Decision, FaultReport, JobPhase, JobStatus, Message, NO_LIFE, NewLife, Source,
};
use crate::error::ConfigError;
use crate::limits::{COMMIT_OUTCOME_MAX, DISK_REPORT_AFTER, ENTRIES_MAX};
use crate::names::{ExitStatus, GenerationId, NodeIndex, Party};
use crate::protocols::{
    CHECKPOINT_PROTOCOLS, CheckpointEvent, CheckpointInput, CheckpointOutput, CheckpointProtocol, LifeView,
    checkpoint_protocol,
};
use crate::queue::Queue;
use crate::recovery::{self, Detector, Phase, Price, Recovery};
use crate::sabotage::Rule;
use interval::Interval;

/// ```text
///   Gathering --all keepers are there--> (recovery: Fencing, Deciding, Starting, Running, ...) --> Over
/// ```
/// All further states are those of [`Recovery`]; see its diagram.
#[derive(Debug)]
pub struct Job {
    settings: JobSettings,
    checkpoint: Box<dyn CheckpointProtocol>,
    detector: Detector,
    recovery: Recovery,
    /// Of the recovery that is under way.
    price: Option<Price>,
    /// Some host may take a node's place.
    has_other_hosts: bool,
    questions: components::Questions,
    /// The program can go back to something: a generation, or its beginning.
    rolls_back: bool,
    here: BTreeSet<NodeIndex>,
    gather_until: Option<Instant>,
    /// Counter of the life to come, and whether it is the first: for keepers that come late.
    fence: (u32, bool),
    counted: Counted,
    leases: Option<Leases>,
    absent: Absent,
    /// Where leases are granted: when the coordinator looks next, at the latest. The time by which it is late is no silence of others.
    next_look: Option<Instant>,
    suspicions: Suspicions,
    interval: Interval,
    diagnosis: diagnosis::Diagnosing,
    limit: Option<TimeLimit>,
    /// The time limit has come while the last checkpoint was on its way.
    on_its_way: bool,
    stopped_by: Option<StopCause>,
    fault_at: Option<Instant>,
    ended: Option<Ended>,
    /// All ranks have ended, and a commit record is still being written: its outcome is waited for until then.
    closing: Option<Instant>,
    /// Became durable after the fence: it is no news to a life, but it is on disk, and the last words name it.
    late: Option<GenerationId>,
    /// Few: a decision, and the commit records of this life and the one before.
    writing: Vec<Writing>,
    status: ExitStatus,
    commits: u32,
    outputs: Queue<Output>,
}

impl Job {
    /// A job that waits for its keepers.
    ///
    /// # Errors
    /// If the configuration is not valid, or names a component that this build does not have.
    pub fn new(settings: JobSettings, now: Instant) -> Result<Job, ConfigError> {
        let config = &settings.config;
        config.validate()?;
        let missing =
            |field, expected, found: &str| ConfigError::Component { field, expected, found: found.into() };
        let name = &config.checkpoint.protocol;
        let checkpoint = checkpoint_protocol(name, config, settings.sabotage)
            .ok_or_else(|| missing("checkpoint.protocol", CHECKPOINT_PROTOCOLS, name))?;
        let recovery = Recovery::new(recovery::Settings {
            nodes: settings.layout.nodes(),
            quorum: settings.layout.quorum(),
            earlier_lease: settings.earlier_lease,
            counter_last: settings.counter_last,
            start_timeout: config.fault.start_timeout,
            connects: settings.connects,
            fence_max: config.keeper.absence_max(),
            transient_within: config.fault.policy.thresholds.transient_within,
            sabotage: settings.sabotage,
        });
        let mut job = Job {
            checkpoint,
            detector: Detector::default(),
            recovery,
            price: None,
            has_other_hosts: true,
            questions: components::Questions::default(),
            rolls_back: true,
            here: BTreeSet::new(),
            gather_until: Some(now + settings.gather_max()),
            fence: (0, false),
            counted: Counted::default(),
            leases: None,
            absent: Absent::default(),
            next_look: None,
            suspicions: Suspicions::new(settings.sabotage.is_out(Rule::NeverSuspected)),
            interval: Interval::new(&config.checkpoint),
            diagnosis: diagnosis::Diagnosing::default(),
            limit: config.time_limit.map(|limit| TimeLimit::new(limit, config.checkpoint.timeout, now)),
            stopped_by: None,
            fault_at: None,
            ended: None,
            closing: None,
            on_its_way: false,
            late: None,
            writing: Vec::new(),
            status: ExitStatus::Code(0),
            commits: 0,
            outputs: Queue::default(),
            settings,
        };
        job.next_look = job.watch().map(|watch| now + watch.beat());
        Ok(job)
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Control(control) => self.on_control(now, control),
            Input::Request(source) => self.checkpoint.handle(now, CheckpointInput::Request(source)),
            Input::Tune(tuning) => self.tune(now, tuning),
            Input::Diagnose => self.diagnose(now),
            Input::StoreFenced { counter, newest, committed, nonce } => {
                self.recovery.handle(now, recovery::Input::StoreFenced { counter, newest, committed, nonce });
            }
            Input::StoreWithdrawn { counter } => {
                self.recovery.handle(now, recovery::Input::StoreWithdrawn { counter });
            }
            Input::NodeReplaced { node } => self.on_replaced(now, node),
            Input::NotReplaced { node } => self.on_not_replaced(now, node),
            Input::Suspect { node } => self.on_report(now, FaultReport::NodeSuspected { node }),
            Input::SetPolicy(policy) => self.set_policy(policy),
            Input::OtherHosts(any) => self.has_other_hosts = any,
            Input::Detected { node } => self.on_detected(now, node),
            Input::Loaded(loaded) => self.questions.loaded = loaded,
            Input::Answered { number, answer } => self.on_answer(now, number, answer),
            Input::StoreBusy { counter } => {
                self.recovery.handle(now, recovery::Input::StoreBusy { counter });
            }
            Input::LivesFound { counter_last } => {
                self.recovery.handle(now, recovery::Input::LivesFound { counter_last });
            }
            Input::DecisionDurable { life } => {
                self.written(Record::Decision(life));
                self.recovery.handle(now, recovery::Input::DecisionDurable { life })
            }
            Input::DecisionFailed { life, errno } => {
                self.written(Record::Decision(life));
                if self.recovery.phase() == Phase::Deciding {
                    self.on_report(now, FaultReport::DecisionFailed { errno });
                }
            }
            Input::CommitDurable(generation) => {
                self.written(Record::Commit(generation));
                let ended = self.recovery.phase() == Phase::Fencing && self.checkpoint.saving().is_none();
                // Said twice where nodes keep records of their own: on disk, and by all of them.
                if ended && self.recovery.life() == Some(generation.life) && self.late != Some(generation) {
                    self.late = Some(generation);
                    self.commits += 1;
                }
                self.checkpoint.handle(now, CheckpointInput::CommitDurable(generation));
            }
            Input::CommitFailed { generation, errno } => {
                self.written(Record::Commit(generation));
                self.checkpoint.handle(now, CheckpointInput::CommitFailed { generation, errno });
            }
            Input::Stop => self.stop(now, StopCause::Person),
        }
        self.settle(now);
    }

    /// Handles timeouts that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.look(now);
        if self.gather_until.is_some_and(|until| now >= until) {
            self.gather_until = None;
            // Ends with the nodes that are missing once the fence has had its time.
            self.begin(now);
        }
        self.checkpoint.handle_timeout(now);
        self.recovery.handle_timeout(now);
        if self.recovery.start_timed_out(now) {
            self.answer_at_once(now);
            let ranks = self.settings.layout.ranks();
            self.on_report(now, FaultReport::StartTimedOut { running: self.counted.running, ranks });
        }
        if self.ended_due().is_some_and(|due| now >= due)
            && let Some(ended) = self.ended.take()
        {
            self.act_on(now, ended.fault);
        }
        self.watch_time(now);
        self.watch_diagnosis(now);
        self.watch_suspects(now);
        self.watch_keepers(now);
        self.watch_absent(now);
        self.watch_disk(now);
        if self.closing.is_some_and(|until| now >= until) {
            self.close(now);
        }
        self.settle(now);
    }

    /// When [`Job::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lease = self.leases.map(|leases| leases.due());
        let absent = self.absent.poll_timeout().filter(|_| self.recovery.phase() == Phase::Fencing);
        let all = [
            self.gather_until,
            self.limit.map(|limit| limit.due(self.can_save())),
            self.closing,
            self.ended_due(),
            self.writing.iter().map(|writing| writing.report).min(),
            lease,
            self.next_look,
            self.suspicions.poll_timeout(),
            self.cut_off_due(),
            self.diagnosis.poll_timeout(),
            absent,
            self.checkpoint.poll_timeout(),
            self.recovery.poll_timeout(),
        ];
        if self.recovery.phase() == Phase::Over { None } else { all.into_iter().flatten().min() }
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
    }

    /// The program cannot be rolled back: a fault ends the job, unless the job goes on without the rank.
    pub fn never_rolls_back(&mut self) {
        self.rolls_back = false;
    }

    /// From now on a fault ends the job, regardless of its configuration.
    pub fn end_on_fault(&mut self) {
        self.settings.config.fault.on_fault = OnFault::Abort;
    }

    /// The job's phase.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        let phase = match self.recovery.phase() {
            Phase::Idle => JobPhase::Gathering,
            Phase::Fencing => JobPhase::Fencing,
            Phase::BackingOff => JobPhase::BackingOff,
            Phase::Deciding => JobPhase::Deciding,
            Phase::Starting => JobPhase::Starting,
            Phase::Running if self.counted.finished => JobPhase::Finishing,
            Phase::Running => JobPhase::Running,
            Phase::Over => JobPhase::Over,
        };
        JobStatus {
            phase,
            life: self.recovery.life(),
            committed: self.recovery.committed(),
            commits: self.commits,
            rollbacks: self.recovery.rollbacks(),
            ranks: self.settings.layout.ranks(),
            running: self.counted.running,
            finalizing: self.counted.finalizing,
            saving: self.checkpoint.saving(),
        }
    }

    fn on_control(&mut self, now: Instant, control: Control) {
        if control.job != self.settings.job {
            return;
        }
        match (control.sender, control.message) {
            (Party::Tool, Message::StatusQuery) => {
                let status = self.status();
                self.send_as(NO_LIFE, Party::Tool, Message::StatusReport { status });
            }
            (Party::Tool, Message::Request { source }) => {
                self.checkpoint.handle(now, CheckpointInput::Request(source));
            }
            (Party::Keeper(sender), Message::KeeperHello { node }) if sender == node => {
                self.on_hello(now, node)
            }
            (Party::Keeper(sender), Message::ProbeAnswer { number, node }) if sender == node => {
                self.suspicions.answered(now, node, number);
            }
            (Party::Keeper(sender), Message::Ending { counter, node })
                if sender == node && counter == self.fence.0 =>
            {
                self.absent.is_there(now, node);
            }
            (Party::Keeper(sender), Message::Fenced { counter, node, votes }) if sender == node => {
                if counter == self.fence.0 {
                    self.absent.has_answered(now, node);
                }
                self.recovery.handle(now, recovery::Input::NodeFenced { counter, node, votes });
            }
            (Party::Keeper(sender), message) if sender == self.settings.layout.root() => {
                self.on_root_message(now, control.life, message);
            }
            _ => {}
        }
    }

    fn on_hello(&mut self, now: Instant, node: NodeIndex) {
        if self.settings.layout.ranks_of(node).is_empty() {
            return;
        }
        let known = !self.here.insert(node);
        match self.recovery.phase() {
            Phase::Idle => {
                if u32::try_from(self.here.len()) == Ok(self.settings.layout.nodes()) {
                    self.gather_until = None;
                    self.begin(now);
                }
            }
            Phase::Fencing => {
                self.absent.is_there(now, node);
                self.send_fence(node);
            }
            // A keeper that sends a hello runs nothing: the ranks that it kept are gone with the one before
            // it.
            Phase::Starting | Phase::Running if known => {
                self.absent.is_new(node);
                self.on_report(now, FaultReport::KeeperSilent { node })
            }
            Phase::BackingOff | Phase::Deciding | Phase::Starting | Phase::Running | Phase::Over => {}
        }
    }

    fn begin(&mut self, now: Instant) {
        self.recovery.handle(now, recovery::Input::Begin(self.settings.beginning));
    }

    /// A message of the keeper at the top of the tree, for all keepers.
    fn on_root_message(&mut self, now: Instant, life: Life, message: Message) {
        let current = self.recovery.life() == Some(life)
            && matches!(self.recovery.phase(), Phase::Starting | Phase::Running);
        // R7. Late images are the checkpoint protocol's own to refuse: it compares their life too (R8).
        let late_images = matches!(message, Message::Images { .. })
            && (self.settings.sabotage.is_out(Rule::NoFence)
                || self.settings.sabotage.is_out(Rule::KeyWithoutLife));
        if !current && !late_images {
            return;
        }
        let ranks = self.settings.layout.ranks();
        match message {
            Message::Registered { ports, ranks: more } => {
                self.counted.ports.extend(ports);
                self.counted.registered = self.counted.registered.saturating_add(more);
                if self.counted.registered == ranks {
                    // All are there, and each has an answer to give.
                    self.recovery.handle(now, recovery::Input::Connecting);
                    self.send_addresses();
                }
            }
            Message::Connecting { .. } => {
                self.counted.connecting = true;
                self.recovery.handle(now, recovery::Input::Connecting);
                self.watch_left(now);
            }
            Message::Left { rank } => {
                self.counted.left.get_or_insert(rank);
                self.watch_left(now);
            }
            Message::Running { ranks: running, counted } => self.on_running(now, life, running, counted),
            Message::PointReport { query, summary } => {
                self.checkpoint.handle(now, CheckpointInput::Points { query, summary });
            }
            Message::Images { epoch, reports } => {
                self.checkpoint.handle(now, CheckpointInput::Images { life, epoch, reports });
            }
            Message::NoImage { epoch, rank, reason } => {
                self.checkpoint.handle(now, CheckpointInput::NoImage { epoch, rank, reason });
            }
            Message::WaitReports { query, reports } => self.on_wait_reports(now, query, reports),
            Message::Request { source } => self.checkpoint.handle(now, CheckpointInput::Request(source)),
            Message::Fault { report } => {
                if let FaultReport::KeeperSilent { node } = report {
                    self.absent.is_silent(node);
                }
                self.on_report(now, report);
            }
            Message::Finalize { ranks: finalizing } => {
                self.counted.finalizing = finalizing;
                if finalizing == ranks && !self.counted.finished {
                    self.counted.finished = true;
                    self.checkpoint.handle(now, CheckpointInput::Finishing);
                    self.relay_checkpoint(now);
                    self.broadcast(Message::FinalizeDone);
                    self.outputs.push(Output::Event(Event::AllFinished));
                }
            }
            Message::Ended { ranks: ended, status } if ended == ranks => {
                self.status = status;
                self.give_up_diagnosis();
                // Nothing runs that could be silent, or be saved.
                self.leases = None;
                self.suspicions.end();
                self.checkpoint.handle(now, CheckpointInput::Finishing);
                self.closing.get_or_insert(now + COMMIT_OUTCOME_MAX);
            }
            Message::Heartbeat { keepers, asked_ns } => self.on_heartbeat(now, keepers, asked_ns),
            _ => {}
        }
    }

    fn on_running(&mut self, now: Instant, life: Life, running: u32, counted: u32) {
        self.counted.running = running;
        if running != self.settings.layout.ranks() || self.recovery.phase() != Phase::Starting {
            return;
        }
        self.recovery.handle(now, recovery::Input::AllRunning);
        let epoch = self.recovery.restored().map_or(Epoch(0), |generation| generation.epoch);
        self.checkpoint.begin(now, LifeView { life, epoch, ranks: running, counted });
        if let Some(limit) = &mut self.limit {
            limit.begin_life(now);
        }
        let since_fault = self.fault_at.take().map(|at| now.since(at));
        let price = self.price.take();
        self.outputs.push(Output::Event(Event::AllRunning { life, since_fault, price }));
        self.interval.measure.begin_life(now);
        self.set_interval(now);
    }

    fn send_addresses(&mut self) {
        let ports = core::mem::take(&mut self.counted.ports);
        for chunk in ports.chunks(ENTRIES_MAX) {
            self.broadcast(Message::Addresses { ports: chunk.to_vec() });
        }
        let restore = self.recovery.restored();
        let epoch = restore.map_or(Epoch(0), |generation| generation.epoch);
        let ports = u32::try_from(ports.len()).unwrap_or(u32::MAX);
        self.broadcast(Message::Start { epoch, restore, ports });
    }

    fn stop(&mut self, now: Instant, cause: StopCause) {
        self.limit = None;
        if self.closing.is_some() {
            // All ranks have ended as they should; only the wait is cut short.
            self.close(now);
        } else if self.recovery.phase() != Phase::Over {
            self.stopped_by = Some(cause);
            self.end_life(now);
            self.absent.hurry();
            self.recovery.handle(now, recovery::Input::Stop);
        }
    }

    /// The end of a job whose ranks have all ended.
    fn close(&mut self, now: Instant) {
        self.closing = None;
        self.recovery.handle(now, recovery::Input::AllEnded);
    }

    /// Whether a checkpoint can be asked for.
    fn can_save(&self) -> bool {
        self.recovery.phase() == Phase::Running && !self.counted.finished
    }

    fn watch_time(&mut self, now: Instant) {
        let runs = self.can_save();
        let Some(limit) = &mut self.limit else { return };
        if limit.is_over(now) {
            self.stop_in_time(now);
        } else if limit.asks(now, runs) {
            self.checkpoint.handle(now, CheckpointInput::Request(Source::TimeLimit));
        }
    }

    /// The time limit has come, or everything that there was to save before it is saved.
    fn stop_in_time(&mut self, now: Instant) {
        let runs = self.recovery.phase() == Phase::Running;
        let Some(limit) = self.limit.take() else { return };
        self.on_its_way = limit.is_saving();
        self.stop(now, StopCause::TimeLimit { unsaved: limit.unsaved(runs) });
    }

    fn write(&mut self, now: Instant, record: Record) {
        self.writing.push(Writing { record, since: now, report: now + DISK_REPORT_AFTER });
    }

    fn written(&mut self, record: Record) {
        self.writing.retain(|writing| writing.record != record);
    }

    fn watch_disk(&mut self, now: Instant) {
        for writing in self.writing.iter_mut().filter(|writing| now >= writing.report) {
            let waited = now.since(writing.since);
            writing.report = now + waited;
            self.outputs.push(Output::Event(Event::DiskSilent { record: writing.record, waited }));
        }
    }

    /// Carries out the outputs of the parts, until there are none.
    fn settle(&mut self, now: Instant) {
        loop {
            self.relay_checkpoint(now);
            self.relay_suspicions(now);
            // The job's final report names the committed generation, so the outcome of a commit comes first.
            if self.closing.is_some() && self.checkpoint.saving().is_none() {
                self.close(now);
            }
            let Some(output) = self.recovery.poll_output() else { return };
            self.on_recovery(now, output);
        }
    }

    fn relay_checkpoint(&mut self, now: Instant) {
        while let Some(output) = self.checkpoint.poll_output() {
            match output {
                CheckpointOutput::Broadcast(message) => self.broadcast(message),
                CheckpointOutput::WriteCommit { generation, images } => {
                    self.write(now, Record::Commit(generation));
                    self.outputs.push(Output::WriteCommit { generation, images });
                }
                CheckpointOutput::Collect { keep } => self.outputs.push(Output::Collect { keep }),
                CheckpointOutput::Event(event) => self.on_checkpoint_event(now, event),
            }
        }
    }

    fn on_checkpoint_event(&mut self, now: Instant, event: CheckpointEvent) {
        if let CheckpointEvent::Committed { generation, .. } = &event {
            self.commits += 1;
            self.recovery.handle(now, recovery::Input::Committed(*generation));
        }
        let is_measured = self.measure(now, &event);
        let mut saved = false;
        if let Some(limit) = &mut self.limit {
            match &event {
                CheckpointEvent::Committed { source, took, .. } => {
                    saved = *source == Source::TimeLimit;
                    limit.committed(*took, saved);
                }
                CheckpointEvent::Abandoned { source: Source::TimeLimit, reason, .. } => {
                    limit.attempt_failed(now, Unsaved::Abandoned(*reason));
                }
                CheckpointEvent::Refused { source: Source::TimeLimit, reason } => {
                    limit.attempt_failed(now, Unsaved::Refused(*reason));
                }
                _ => {}
            }
        }
        self.outputs.push(Output::Event(Event::Checkpoint(event)));
        if is_measured {
            self.set_interval(now);
        }
        if saved && !self.counted.finished {
            self.stop_in_time(now);
        }
    }

    fn on_recovery(&mut self, now: Instant, output: recovery::Output) {
        match output {
            recovery::Output::FenceNodes { counter, first } => {
                self.fence = (counter, first);
                self.fence_nodes(now, first);
                if self.recovery.is_ending() {
                    self.absent.hurry();
                }
            }
            recovery::Output::FenceStore { counter, refuse_below } => {
                self.outputs.push(Output::FenceStore { counter, refuse_below });
            }
            recovery::Output::Replace { node, answers } => {
                self.outputs.push(Output::Replace { node, answers });
            }
            recovery::Output::WriteDecision(decision) => {
                self.write(now, Record::Decision(decision.life));
                self.outputs.push(Output::WriteDecision(decision));
            }
            recovery::Output::StartLife(decision) => self.start_life(now, decision),
            recovery::Output::Over(ending) => {
                if let Some(keep) = self.late {
                    self.outputs.push(Output::Collect { keep });
                    // It was the last checkpoint, whose record was being written when the time was over.
                    if let Some(StopCause::TimeLimit { unsaved }) = &mut self.stopped_by {
                        unsaved.take_if(|unsaved| self.on_its_way || *unsaved == Unsaved::TooLate);
                    }
                }
                let report = FinalReport {
                    ending,
                    stopped_by: self.stopped_by,
                    status: self.status,
                    committed: self.late.or(self.recovery.committed()),
                    commits: self.commits,
                    rollbacks: self.recovery.rollbacks(),
                };
                self.outputs.push(Output::Over(report));
            }
        }
    }

    fn start_life(&mut self, now: Instant, decision: Decision) {
        self.counted = Counted::default();
        self.late = None;
        let attempt = self.recovery.attempts();
        self.outputs.push(Output::Event(Event::LifeBegun { decision, attempt }));
        let layout = self.settings.layout.clone();
        let watch = self.watch();
        self.next_look = watch.map(|watch| now + watch.beat());
        self.leases = watch.map(|watch| Leases { watch, root_heard: now, is_overdue: false });
        if let Some(watch) = watch {
            self.suspicions.begin(now, watch, &layout);
        }
        self.absent.begin_life();
        self.broadcast(Message::NewLife { new_life: NewLife { decision, layout, watch } });
    }

    /// Along the tree, from its top.
    fn broadcast(&mut self, message: Message) {
        if let Some(life) = self.recovery.life() {
            self.send_as(life, Party::Keeper(self.settings.layout.root()), message);
        }
    }

    fn send_as(&mut self, life: Life, to: Party, message: Message) {
        let epoch = self.checkpoint.saving().unwrap_or(Epoch(0));
        let control = Control { job: self.settings.job, life, epoch, sender: Party::Coordinator, message };
        self.outputs.push(Output::Send { to, control });
    }
}
