//! A small world in which the machines talk: a virtual clock, one delay for every hop, processes and a store that
//! follow orders. The transcript is compared as text.
#![allow(dead_code, reason = "each test binary uses a part of this")]

pub(crate) mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use ckpt_glue::control::{
    Control, ControlKey, ControlReader, ControlWriter, CutMode, CutStatistics, ExitedRecord, Message,
    PortEntry, RankReport, Registration, Source,
};
use ckpt_glue::diagnosis::Diagnosis;
use ckpt_glue::interval::{Every, Tuning};
use ckpt_glue::job::{self, FinalReport, Job, JobSettings};
use ckpt_glue::keeper::{self, Keeper};
use ckpt_glue::participant::{self, Participant};
use ckpt_glue::recovery::{Beginning, Question};
use ckpt_glue::{
    Decision, Enrolment, ExitStatus, GenerationId, ImageDigest, JobConfig, Layout, NodeIndex, Party, Sabotage,
};
use transport::{Epoch, Instant, JobId, Life, PortId, Rank, RawAddress};

pub(crate) const JOB: JobId = JobId(7);

/// Steps without any time passing, at most.
const STANDSTILL_MAX: u32 = 100_000;

/// How long a message, a write, a start of a process takes.
#[derive(Clone, Copy)]
pub(crate) struct Delays {
    pub(crate) hop: Duration,
    pub(crate) write: Duration,
    pub(crate) spawn: Duration,
}

pub(crate) const DELAYS: Delays = Delays {
    hop: Duration::from_millis(1),
    write: Duration::from_millis(5),
    spawn: Duration::from_millis(3),
};

/// A process with a participant in it.
pub(crate) struct Process {
    pub(crate) life: Life,
    pub(crate) enrolment: Option<Enrolment>,
    pub(crate) participant: Option<Participant>,
    pub(crate) count: u64,
    pub(crate) frozen: bool,
}

/// An image in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Process { count: u64 },
    Exited(ExitedRecord),
}

#[derive(Default)]
pub(crate) struct Store {
    pub(crate) images: BTreeMap<(GenerationId, Rank), Stored>,
    pub(crate) commits: Vec<GenerationId>,
    pub(crate) decisions: Vec<Decision>,
    pub(crate) refuse_below: u32,
    pub(crate) fail_commits: bool,
    /// Committed generations cannot be restored.
    pub(crate) is_unreadable: bool,
}

enum Happening {
    ToJob(job::Input),
    ToKeeper(NodeIndex, keeper::Input),
    ToRank(Rank, Life, Control),
    Rank(Rank, Life, participant::Input),
    Spawned(NodeIndex, Rank, Decision),
    CommitWritten(GenerationId),
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) delays: Delays,
    pub(crate) layout: Layout,
    pub(crate) mode: CutMode,
    pub(crate) job: Job,
    pub(crate) keepers: BTreeMap<NodeIndex, Keeper>,
    pub(crate) processes: BTreeMap<Rank, Process>,
    pub(crate) store: Store,
    pub(crate) over: Option<FinalReport>,
    pub(crate) transcript: String,
    pub(crate) events: Vec<job::Event>,
    /// What ranks answer when they are asked what they wait for; those without an answer are silent.
    pub(crate) waits: BTreeMap<Rank, RankReport>,
    pub(crate) diagnoses: Vec<Option<Box<Diagnosis>>>,
    /// Parts of lines that are not written down.
    pub(crate) quiet: Vec<&'static str>,
    pub(crate) messages: u64,
    pub(crate) unsavable: BTreeSet<Rank>,
    pub(crate) cut_off: BTreeSet<NodeIndex>,
    /// Questions to components.
    pub(crate) asked: Vec<(Option<u64>, Question)>,
    /// Programs that know nothing of us.
    pub(crate) mute: bool,
    /// Ranks among others that are so.
    pub(crate) mute_ranks: BTreeSet<Rank>,
    sabotage: Sabotage,
    queue: BTreeMap<(Instant, u64), Happening>,
    number: u64,
    nonce: u64,
}

impl World {
    pub(crate) fn new(ranks: u32, nodes: u32, fan_out: u32, config: JobConfig) -> World {
        World::with(ranks, nodes, fan_out, config, Sabotage::none())
    }

    pub(crate) fn with(ranks: u32, nodes: u32, fan_out: u32, config: JobConfig, sabotage: Sabotage) -> World {
        let layout = Layout::even(ranks, nodes, fan_out).unwrap();
        let settings = JobSettings {
            job: JOB,
            config,
            layout: layout.clone(),
            beginning: Beginning::Fresh,
            counter_last: 0,
            is_remote: false,
            former_silence: Duration::ZERO,
            earlier_lease: Duration::ZERO,
            connects: false,
            sabotage,
        };
        let keepers = (0..nodes).map(|node| (NodeIndex(node), Keeper::new(JOB, NodeIndex(node), sabotage)));
        World {
            now: Instant::ZERO,
            delays: DELAYS,
            mode: CutMode::Instant,
            job: Job::new(settings, Instant::ZERO).unwrap(),
            keepers: keepers.collect(),
            layout,
            processes: BTreeMap::new(),
            store: Store::default(),
            over: None,
            transcript: String::new(),
            events: Vec::new(),
            waits: BTreeMap::new(),
            diagnoses: Vec::new(),
            quiet: vec!["probe"],
            messages: 0,
            unsavable: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            asked: Vec::new(),
            mute: false,
            mute_ranks: BTreeSet::new(),
            sabotage,
            queue: BTreeMap::new(),
            number: 0,
            nonce: 100,
        }
    }

    pub(crate) fn at(&self, ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn after(&mut self, delay: Duration, happening: Happening) {
        self.number += 1;
        self.queue.insert((self.now + delay, self.number), happening);
    }

    pub(crate) fn note(&mut self, line: &str) {
        if self.quiet.iter().any(|part| line.contains(part)) {
            return;
        }
        let ms = self.now.as_nanos() / 1_000_000;
        writeln!(self.transcript, "{ms}ms {line}").unwrap();
    }

    /// The transcript since the last call.
    pub(crate) fn take_transcript(&mut self) -> String {
        std::mem::take(&mut self.transcript)
    }

    /// Runs until nothing happens before `until`.
    pub(crate) fn run_until(&mut self, until: Instant) {
        let mut standstill = 0;
        loop {
            self.settle();
            let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
            let timers = [self.job.poll_timeout()]
                .into_iter()
                .chain(self.keepers.values().map(Keeper::poll_timeout))
                .chain(self.processes.values().map(|process| process.participant.as_ref()?.poll_timeout()));
            let timer = timers.flatten().min();
            let Some(next) = queued.into_iter().chain(timer).min().filter(|next| *next <= until) else {
                break;
            };
            standstill = if next > self.now { 0 } else { standstill + 1 };
            assert!(
                standstill < STANDSTILL_MAX,
                "time stands still at {:?}: a timer is due for ever",
                self.now
            );
            self.now = self.now.max(next);
            if queued == Some(next) {
                let (_, happening) = self.queue.pop_first().unwrap();
                self.happen(happening);
            } else {
                self.time_out();
            }
        }
        self.now = self.now.max(until);
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        self.run_until(self.now + Duration::from_millis(ms));
    }

    fn time_out(&mut self) {
        let now = self.now;
        if self.job.poll_timeout().is_some_and(|at| now >= at) {
            self.job.handle_timeout(now);
        }
        for keeper in
            self.keepers.values_mut().filter(|keeper| keeper.poll_timeout().is_some_and(|at| now >= at))
        {
            keeper.handle_timeout(now);
        }
        for process in self.processes.values_mut() {
            if let Some(participant) = &mut process.participant {
                participant.handle_timeout(now);
            }
        }
    }

    fn settle(&mut self) {
        let nodes: Vec<NodeIndex> = self.keepers.keys().copied().collect();
        let ranks: Vec<Rank> = self.processes.keys().copied().collect();
        while let Some(output) = self.job.poll_output() {
            self.on_job(output);
        }
        for node in nodes {
            while let Some(output) = self.keepers.get_mut(&node).and_then(Keeper::poll_output) {
                self.on_keeper(node, output);
            }
        }
        for rank in ranks {
            let next =
                |world: &mut World| world.processes.get_mut(&rank)?.participant.as_mut()?.poll_output();
            while let Some(output) = next(self) {
                self.on_participant(rank, output);
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.now;
        match happening {
            Happening::ToJob(input) => self.job.handle(now, input),
            Happening::ToKeeper(node, input) => {
                if let Some(keeper) = self.keepers.get_mut(&node) {
                    keeper.handle(now, input);
                }
            }
            Happening::ToRank(rank, life, control) => self.on_rank_message(rank, life, control),
            Happening::Rank(rank, life, input) => self.rank_input(rank, life, input),
            Happening::Spawned(node, rank, decision) => self.on_spawned(node, rank, decision),
            Happening::CommitWritten(generation) => {
                let refused = generation.life.counter < self.store.refuse_below || self.store.fail_commits;
                let input = if refused {
                    job::Input::CommitFailed { generation, errno: 28 }
                } else {
                    self.store.commits.push(generation);
                    job::Input::CommitDurable(generation)
                };
                self.job.handle(now, input);
            }
        }
    }

    fn on_job(&mut self, output: job::Output) {
        let write = self.delays.write;
        match output {
            job::Output::Send { to, control } => self.carry(to, control),
            job::Output::FenceStore { counter, refuse_below } => {
                self.note(&format!("store refuses lives below {refuse_below}"));
                self.store.refuse_below = refuse_below;
                self.nonce += 1;
                let committed = !self.store.commits.is_empty();
                let newest = self.store.commits.last().copied().filter(|_| !self.store.is_unreadable);
                let input = job::Input::StoreFenced { counter, newest, committed, nonce: self.nonce };
                self.after(write, Happening::ToJob(input));
            }
            job::Output::WriteDecision(decision) => {
                self.note(&format!("store writes decision for life {}", decision.life.counter));
                self.store.decisions.push(decision);
                self.after(write, Happening::ToJob(job::Input::DecisionDurable { life: decision.life }));
            }
            job::Output::WriteCommit { generation, images } => {
                self.note(&format!("store writes commit {generation} of {} images", images.len()));
                self.after(write, Happening::CommitWritten(generation));
            }
            job::Output::Reconnect { .. } | job::Output::Await { .. } => {}
            job::Output::Ask { number, question } => self.asked.push((number, question)),
            job::Output::Diagnosed(diagnosis) => self.diagnoses.push(diagnosis),
            job::Output::Replace { node, .. } => {
                self.note(&format!("the place of node {node} may be given away"));
                // There is no other host.
                self.after(write, Happening::ToJob(job::Input::NotReplaced { node }));
            }
            job::Output::Collect { keep } => self.note(&format!("store collects all before {keep}")),
            job::Output::Event(event) => self.events.push(event),
            job::Output::Over(report) => {
                self.note(&format!("over: {:?}", report.ending));
                self.over = Some(report);
            }
        }
    }

    fn on_keeper(&mut self, node: NodeIndex, output: keeper::Output) {
        let Delays { write, spawn, .. } = self.delays;
        match output {
            keeper::Output::Send { to, control } => self.carry(to, control),
            keeper::Output::Spawn { rank, decision } => {
                self.note(&format!("keeper {node} spawns rank {rank}"));
                self.after(spawn, Happening::Spawned(node, rank, decision));
            }
            keeper::Output::Kill { rank, life } => {
                self.note(&format!("keeper {node} kills rank {rank}"));
                if self.processes.get(&rank).is_some_and(|process| process.life == life) {
                    self.processes.remove(&rank);
                }
                let input = keeper::Input::ProcessEnded { rank, life, status: ExitStatus::Signal(9) };
                self.after(Duration::ZERO, Happening::ToKeeper(node, input));
            }
            keeper::Output::WriteExitedImage { rank, generation, record } => {
                self.store.images.insert((generation, rank), Stored::Exited(record));
                let input =
                    keeper::Input::ExitedImageDone { rank, generation, digest: ImageDigest(1), bytes: 64 };
                self.after(write, Happening::ToKeeper(node, input));
            }
            keeper::Output::Pmi(input) => panic!("no rank of this world speaks PMI: {input:?}"),
            keeper::Output::Lock => {
                self.after(Duration::ZERO, Happening::ToKeeper(node, keeper::Input::Locked));
            }
            keeper::Output::Lease(_) => {}
            keeper::Output::LeaseOver => {
                self.note(&format!("keeper {node} has lost its lease"));
                // It ends, and its guard ends its ranks.
                self.layout.ranks_of(node).for_each(|rank| drop(self.processes.remove(&Rank(rank))));
                self.keepers.remove(&node);
            }
        }
    }

    fn on_spawned(&mut self, node: NodeIndex, rank: Rank, decision: Decision) {
        let life = decision.life;
        if self.keepers[&node].life() != Some(life) {
            return;
        }
        let image = decision.restore.map(|generation| self.store.images[&(generation, rank)].clone());
        let count = match image {
            Some(Stored::Exited(record)) => {
                let input = keeper::Input::ExitedInImage { rank, record };
                self.after(Duration::ZERO, Happening::ToKeeper(node, input));
                return;
            }
            Some(Stored::Process { count }) => count,
            None => 0,
        };
        let ports = vec![PortEntry {
            port: PortId::of_rank(rank, 0),
            rails: vec![RawAddress::new(&rank.0.to_le_bytes()).unwrap()],
        }];
        let (enrolment, hello) =
            Enrolment::new(Registration { rank, pid: 1000 + rank.0, mode: self.mode, ports });
        let process = Process { life, enrolment: Some(enrolment), participant: None, count, frozen: false };
        self.processes.insert(rank, process);
        self.after(Duration::ZERO, Happening::ToKeeper(node, keeper::Input::Spawned { rank }));
        if !self.mute && !self.mute_ranks.contains(&rank) {
            self.say(rank, hello);
        }
    }

    /// A rank that was mute connects at last.
    pub(crate) fn connect(&mut self, rank: u32) {
        let rank = Rank(rank);
        let ports = vec![PortEntry {
            port: PortId::of_rank(rank, 0),
            rails: vec![RawAddress::new(&rank.0.to_le_bytes()).unwrap()],
        }];
        let (enrolment, hello) =
            Enrolment::new(Registration { rank, pid: 1000 + rank.0, mode: self.mode, ports });
        self.processes.get_mut(&rank).unwrap().enrolment = Some(enrolment);
        self.say(rank, hello);
    }

    /// A rank speaks to its keeper.
    pub(crate) fn say(&mut self, rank: Rank, message: Message) {
        let Some(process) = self.processes.get(&rank) else { return };
        let epoch = process.participant.as_ref().map_or(Epoch(0), Participant::epoch);
        let control = Control { job: JOB, life: process.life, epoch, sender: Party::Rank(rank), message };
        let node = self.layout.node_of(rank).unwrap();
        self.carry(Party::Keeper(node), control);
    }

    /// A rank speaks, or is heard at last, in a life of its own.
    pub(crate) fn say_in(&mut self, life: Life, rank: u32, message: Message) {
        let sender = Party::Rank(Rank(rank));
        let control = Control { job: JOB, life, epoch: Epoch(1), sender, message };
        let node = self.layout.node_of(Rank(rank)).unwrap();
        self.carry(Party::Keeper(node), control);
    }

    /// Brings a message to where it goes, through the bytes that it would be on a socket.
    fn carry(&mut self, to: Party, control: Control) {
        self.messages += 1;
        self.note(&format!("{} > {to}: {}", control.sender, control.message));
        let key = ControlKey::new(&[3; 16]);
        let mut bytes = Vec::new();
        ControlWriter::new(key.clone()).emit(&control, &mut bytes);
        let mut reader = ControlReader::new(key);
        reader.feed(&bytes);
        assert_eq!(reader.next(), Ok(Some(control.clone())));
        for party in [to, control.sender] {
            if let Party::Keeper(node) = party
                && self.cut_off.contains(&node)
                && !matches!((to, control.sender), (Party::Rank(_), _) | (_, Party::Rank(_)))
            {
                return;
            }
        }
        let hop = self.delays.hop;
        match to {
            Party::Coordinator => self.after(hop, Happening::ToJob(job::Input::Control(control))),
            Party::Keeper(node) => {
                self.after(hop, Happening::ToKeeper(node, keeper::Input::Control(control)))
            }
            Party::Rank(rank) => {
                let life = control.life;
                self.after(hop, Happening::ToRank(rank, life, control));
            }
            Party::Tool => {}
        }
    }

    fn on_rank_message(&mut self, rank: Rank, life: Life, control: Control) {
        let unsavable = self.unsavable.contains(&rank).then_some(7);
        let Some(process) = self.processes.get_mut(&rank).filter(|process| process.life == life) else {
            return;
        };
        let now = self.now;
        if let Message::WaitQuery { query, .. } = control.message {
            let reports: Vec<RankReport> = self.waits.get(&rank).cloned().into_iter().collect();
            if !reports.is_empty() {
                self.say(rank, Message::WaitReports { query, reports });
            }
            return;
        }
        if let Some(participant) = &mut process.participant {
            participant.handle(now, participant::Input::Message(control.message));
            return;
        }
        let Some(enrolment) = &mut process.enrolment else { return };
        let Some(started) = enrolment.handle(control.message).unwrap() else { return };
        let mut participant = Participant::new(rank, self.mode, started.epoch, process.count, self.sabotage);
        participant.handle(now, participant::Input::Unsavable { what: unsavable });
        process.participant = Some(participant);
        let counted = u32::from(self.mode == CutMode::Counted);
        self.say(rank, Message::Running { ranks: 1, counted });
    }

    fn on_participant(&mut self, rank: Rank, output: participant::Output) {
        let Some(process) = self.processes.get(&rank) else { return };
        let (life, count) = (process.life, process.count);
        match output {
            participant::Output::TakeCut { epoch } => {
                self.note(&format!("rank {rank} cuts to {epoch}"));
                let generation = GenerationId { life, epoch };
                self.store.images.insert((generation, rank), Stored::Process { count });
                let digest = ImageDigest(count);
                let statistics = CutStatistics::default();
                let input = participant::Input::Captured { epoch, digest, bytes: 4096, statistics };
                self.after(self.delays.write, Happening::Rank(rank, life, input));
            }
            participant::Output::RaiseEpoch { epoch } => {
                self.note(&format!("rank {rank} raises its epoch to {epoch}"));
            }
            participant::Output::CancelImage { epoch } => {
                self.note(&format!("rank {rank} cancels image {epoch}"))
            }
            participant::Output::Committed { .. } => {}
            participant::Output::Send(message) => self.say(rank, message),
        }
    }

    fn rank_input(&mut self, rank: Rank, life: Life, input: participant::Input) {
        let now = self.now;
        if let Some(process) = self.processes.get_mut(&rank).filter(|process| process.life == life)
            && let Some(participant) = &mut process.participant
        {
            participant.handle(now, input);
        }
    }

    /// Something happens to a rank now.
    pub(crate) fn rank(&mut self, rank: u32, input: participant::Input) {
        let rank = Rank(rank);
        let Some(life) = self.processes.get(&rank).map(|process| process.life) else { return };
        if let participant::Input::PointReached { count } = &input {
            self.processes.get_mut(&rank).unwrap().count = *count;
        }
        self.rank_input(rank, life, input);
        self.settle();
    }

    /// Checkpoints that failed so far.
    pub(crate) fn abandoned(&self) -> usize {
        use ckpt_glue::protocols::CheckpointEvent::Abandoned;
        self.events.iter().filter(|event| matches!(event, job::Event::Checkpoint(Abandoned { .. }))).count()
    }

    /// A process ends.
    pub(crate) fn end(&mut self, rank: u32, status: ExitStatus) {
        let rank = Rank(rank);
        let Some(process) = self.processes.remove(&rank) else { return };
        self.note(&format!("rank {rank} ends, {status}"));
        let node = self.layout.node_of(rank).unwrap();
        let input = keeper::Input::ProcessEnded { rank, life: process.life, status };
        self.after(Duration::ZERO, Happening::ToKeeper(node, input));
    }

    pub(crate) fn request(&mut self, source: Source) {
        let now = self.now;
        self.job.handle(now, job::Input::Request(source));
        self.settle();
    }

    /// A person changes when checkpoints are taken.
    pub(crate) fn tune(&mut self, every: Every) {
        let now = self.now;
        let tuning = Tuning { every: Some(every), ..Tuning::default() };
        self.job.handle(now, job::Input::Tune(tuning));
        self.settle();
    }

    /// The job goes on without ranks whose processes end.
    pub(crate) fn ignore_process_faults(&mut self) {
        let (now, mut policy) = (self.now, self.job.policy().clone());
        policy.change("process=ignore").unwrap();
        self.job.handle(now, job::Input::SetPolicy(policy));
        self.settle();
    }

    /// A person says that a node is failing.
    pub(crate) fn suspect(&mut self, node: u32) {
        let now = self.now;
        self.job.handle(now, job::Input::Suspect { node: NodeIndex(node) });
        self.settle();
    }

    /// Something about components.
    pub(crate) fn component(&mut self, input: job::Input) {
        let now = self.now;
        self.job.handle(now, input);
        self.settle();
    }

    pub(crate) fn stop(&mut self) {
        let now = self.now;
        self.job.handle(now, job::Input::Stop);
        self.settle();
    }

    /// A node dies: its processes and its keeper are gone.
    pub(crate) fn crash_node(&mut self, node: u32) {
        self.note(&format!("node {node} dies"));
        let node = NodeIndex(node);
        for rank in self.layout.ranks_of(node) {
            self.processes.remove(&Rank(rank));
        }
        self.keepers.remove(&node);
    }

    /// A node comes back with a keeper that knows nothing.
    pub(crate) fn revive_node(&mut self, node: u32) {
        let node = NodeIndex(node);
        self.keepers.insert(node, Keeper::new(JOB, node, self.sabotage));
    }
}

pub(crate) fn config() -> JobConfig {
    let mut config = JobConfig::default();
    config.keeper.heartbeat = Duration::from_millis(50);
    config.keeper.heartbeats_missed_max = 4;
    config
}
