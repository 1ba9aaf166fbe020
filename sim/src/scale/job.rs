//! A large job: the production machines, each with a processor of its own, in virtual time.

use std::collections::VecDeque;

use ckpt_glue::control::{Control, ControlKey, CutMode, CutStatistics, JobPhase, Message, Source, stream};
use ckpt_glue::job::{Event as JobEvent, Input as JobInput, JobSettings, Output as JobOutput};
use ckpt_glue::keeper::{Input as KeeperInput, Output as KeeperOutput};
use ckpt_glue::participant::{Input as RankInput, Output as RankOutput};
use ckpt_glue::protection::nodes::Input as NodesInput;
use ckpt_glue::protocols::CheckpointEvent;
use ckpt_glue::recovery::Beginning;
use ckpt_glue::{
    GenerationId, ImageDigest, Job, JobConfig, Keeper, Layout, NodeIndex, Participant, Party, Sabotage,
};
use transport::{Epoch, Instant, JobId, Life, Rank};

use super::agenda::{Agenda, Event};
use super::aggregate::Aggregate;
use super::costs::{CUT_NS, IMAGE_NS, LATENCY_NS, MARKER_BYTES, RECORD_NS, message_ns};
use super::flush::{Flush, Input as FlushInput, Output as FlushOutput};
use super::loss::Failover;
use super::{ScaleError, Taken};
use crate::engine::queue::Nanos;

pub(super) const JOB: JobId = JobId(1);
const KEY: [u8; 16] = [7; 16];
/// Party number of the coordinator; keepers follow it, then ranks.
pub(super) const COORDINATOR: u32 = 0;

/// Whether ranks flush their channels before they cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flushing {
    No,
    /// Each marker is an event.
    EventByEvent,
    /// The times of markers are computed.
    Aggregate,
}

/// A message on its way.
struct OnItsWay {
    control: Control,
    bytes: u64,
}

/// A job and its world.
pub(super) struct LargeJob {
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) layout: Layout,
    flushing: Flushing,
    pub(super) life: Life,
    pub(super) job: Job,
    pub(super) keepers: Vec<Keeper>,
    pub(super) participants: Vec<Participant>,
    flushes: Vec<Flush>,
    aggregate: Aggregate,
    key: ControlKey,
    bytes: Vec<u8>,
    pub(super) agenda: Agenda,
    pub(super) now: Nanos,
    /// Until when the processor of each party is busy.
    pub(super) busy: Vec<Nanos>,
    on_their_way: Vec<Option<OnItsWay>>,
    free: Vec<u32>,
    /// While the job starts, messages cost nothing and are not counted.
    starting: Option<VecDeque<(u32, Control)>>,
    /// The record that is being written.
    record: Option<GenerationId>,
    /// Since when each rank stands still.
    still_since: Vec<Nanos>,
    committed_at: Option<Nanos>,
    /// The newest committed generation.
    pub(super) committed: Option<GenerationId>,
    pub(super) taken: Taken,
    /// Where a node is lost.
    pub(super) failover: Option<Failover>,
}

pub(super) fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl LargeJob {
    /// A job whose ranks all run.
    pub(super) fn start(
        ranks: u32,
        nodes: u32,
        fan_out: u32,
        flushing: Flushing,
    ) -> Result<LargeJob, ScaleError> {
        let layout = Layout::even(ranks, nodes, fan_out)?;
        let mut config = JobConfig::default();
        config.keeper.fan_out = fan_out;
        let settings = JobSettings {
            job: JOB,
            config,
            layout: layout.clone(),
            beginning: Beginning::Fresh,
            counter_last: 0,
            is_remote: false,
            earlier_lease: core::time::Duration::ZERO,
            former_silence: core::time::Duration::ZERO,
            connects: true,
            sabotage: Sabotage::default(),
        };
        let job = Job::new(settings, Instant::from_nanos(0))?;
        let parties = at(1 + nodes + ranks);
        let mut large = LargeJob {
            ranks,
            nodes,
            flushing,
            life: Life { counter: 0, nonce: 0 },
            job,
            keepers: (0..nodes).map(|node| Keeper::new(JOB, NodeIndex(node), Sabotage::default())).collect(),
            participants: (0..ranks)
                .map(|rank| Participant::new(Rank(rank), CutMode::Instant, Epoch(0), 0, Sabotage::default()))
                .collect(),
            flushes: (0..ranks).map(|rank| Flush::new(rank, ranks)).collect(),
            aggregate: Aggregate::new(ranks),
            layout,
            key: ControlKey::new(&KEY),
            bytes: Vec::new(),
            agenda: Agenda::default(),
            now: 0,
            busy: vec![0; parties],
            on_their_way: Vec::new(),
            free: Vec::new(),
            starting: Some(VecDeque::new()),
            record: None,
            still_since: vec![0; at(ranks)],
            committed_at: None,
            committed: None,
            taken: Taken::default(),
            failover: None,
        };
        large.bring_up()?;
        Ok(large)
    }

    fn bring_up(&mut self) -> Result<(), ScaleError> {
        self.run_job();
        for node in 0..self.nodes {
            self.run_keeper(node);
        }
        self.take_all();
        // Ranks begin with the first lease, for which their keepers ask.
        for node in 0..self.nodes {
            self.keepers[at(node)].handle_timeout(Instant::from_nanos(0));
            self.run_keeper(node);
        }
        self.take_all();
        self.starting = None;
        if self.job.status().phase == JobPhase::Running {
            Ok(())
        } else {
            Err(ScaleError::Machines { ranks: self.ranks, what: "start" })
        }
    }

    fn take_all(&mut self) {
        while let Some((party, control)) = self.starting.as_mut().and_then(VecDeque::pop_front) {
            self.take(party, control);
        }
    }

    /// One checkpoint, from the request until nothing is on its way any more.
    pub(super) fn checkpoint(&mut self) -> Result<Taken, ScaleError> {
        self.taken = Taken::default();
        self.aggregate = Aggregate::new(self.ranks);
        self.committed_at = None;
        // The times of the machines' clocks begin above zero, and later checkpoints behind all that was done before.
        self.now = self.busy.iter().copied().max().unwrap_or(0).max(self.now) + LATENCY_NS;
        let requested = self.now;
        self.busy[at(COORDINATOR)] = self.now;
        self.job.handle(Instant::from_nanos(self.now), JobInput::Request(Source::Command));
        self.run_job();
        while let Some((now, event)) = self.agenda.next() {
            self.now = now;
            self.on_event(event);
        }
        let strays: u64 = self.flushes.iter().map(Flush::strays).sum();
        match self.committed_at {
            Some(committed) if strays == 0 => {
                self.taken.durable_ns = committed - requested;
                Ok(self.taken)
            }
            _ => Err(ScaleError::Machines { ranks: self.ranks, what: "commit a checkpoint" }),
        }
    }

    pub(super) fn on_event(&mut self, event: Event) {
        match event {
            Event::Control { party, place } => {
                let message = self.on_their_way.get_mut(at(place)).and_then(Option::take);
                self.free.push(place);
                let Some(OnItsWay { control, bytes }) = message else { return };
                if self.is_gone(party) {
                    return;
                }
                if party == COORDINATOR {
                    self.count_launcher(bytes);
                }
                let is_cut = matches!(control.message, Message::Cut { .. });
                if self.flushing == Flushing::Aggregate && is_cut && party > self.nodes {
                    self.take_early_markers(party);
                }
                self.work(party, message_ns(bytes));
                self.take(party, control);
            }
            Event::Relay { party, place } => {
                let bytes = self.on_their_way[at(place)].as_ref().map_or(0, |message| message.bytes);
                self.count_launcher(bytes);
                self.count(bytes);
                self.work(COORDINATOR, 2 * message_ns(bytes));
                self.agenda.at(self.busy[at(COORDINATOR)] + LATENCY_NS, Event::Control { party, place });
            }
            Event::Timer { party } => self.on_timer(party),
            Event::NodesTimer => self.on_nodes_timer(),
            Event::Killed { rank, counter } => self.on_killed(rank, counter),
            Event::Restored { rank } => self.on_restored(rank),
            Event::KeeperStarts { node } => self.on_keeper_starts(node),
            Event::Fenced { counter } => self.on_fenced(counter),
            Event::Decided => self.on_decided(),
            Event::Asked { node, place } => self.on_asked(node, place),
            Event::Answers { node, place } => self.on_answers(node, place),
            Event::Written { rank } => {
                self.work(1 + self.nodes + rank, 0);
                let participant = &mut self.participants[at(rank)];
                let input = RankInput::Captured {
                    epoch: participant.epoch(),
                    digest: ImageDigest(rank.into()),
                    bytes: 1 << 20,
                    statistics: CutStatistics::default(),
                };
                participant.handle(Instant::from_nanos(self.busy[at(1 + self.nodes + rank)]), input);
                self.run_rank(rank);
            }
            Event::Committed => {
                self.work(COORDINATOR, 0);
                if let Some(generation) = self.record.take() {
                    let now = Instant::from_nanos(self.busy[at(COORDINATOR)]);
                    self.job.handle(now, JobInput::CommitDurable(generation));
                    self.run_job();
                }
            }
            Event::Marker { rank } => {
                self.work(1 + self.nodes + rank, message_ns(MARKER_BYTES));
                let flush = &mut self.flushes[at(rank)];
                // The epoch that its sender cuts to; a marker may be faster than the command.
                let epoch = self.job.status().saving.unwrap_or(Epoch(0));
                flush.handle(FlushInput::Marker { epoch });
                self.run_flush(rank);
            }
        }
    }

    /// The party's processor is busy for so long, as soon as it can be.
    pub(super) fn work(&mut self, party: u32, takes: Nanos) {
        let busy = &mut self.busy[at(party)];
        *busy = (*busy).max(self.now) + takes;
    }

    fn party(&self, party: Party) -> Option<u32> {
        match party {
            Party::Coordinator => Some(COORDINATOR),
            Party::Keeper(node) => Some(1 + node.0),
            Party::Rank(rank) => Some(1 + self.nodes + rank.0),
            Party::Tool => None,
        }
    }

    fn send(&mut self, from: u32, to: Party, control: Control) {
        let Some(to) = self.party(to) else { return };
        if let Some(starting) = &mut self.starting {
            starting.push_back((to, control));
            return;
        }
        self.bytes.clear();
        stream::emit(&self.key, 1, &control, &mut self.bytes);
        let bytes = self.bytes.len() as u64;
        self.taken.messages += 1;
        self.taken.bytes += bytes;
        self.work(from, message_ns(bytes));
        let message = Some(OnItsWay { control, bytes });
        let place = match self.free.pop() {
            Some(place) => {
                self.on_their_way[at(place)] = message;
                place
            }
            None => {
                self.on_their_way.push(message);
                u32::try_from(self.on_their_way.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if from == COORDINATOR {
            self.count_launcher(bytes);
        }
        let is_keeper = |party: u32| (1..=self.nodes).contains(&party);
        let is_relayed = self.failover.is_some() && is_keeper(from) && is_keeper(to);
        let arrives = self.busy[at(from)] + LATENCY_NS;
        let event =
            if is_relayed { Event::Relay { party: to, place } } else { Event::Control { party: to, place } };
        self.agenda.at(arrives, event);
    }

    /// A party takes a message; its processor has done the work already.
    fn take(&mut self, party: u32, control: Control) {
        let now = Instant::from_nanos(self.busy[at(party)]);
        if party == COORDINATOR {
            self.job.handle(now, JobInput::Control(control));
            self.run_job();
        } else if party <= self.nodes {
            self.keepers[at(party - 1)].handle(now, KeeperInput::Control(control));
            self.run_keeper(party - 1);
        } else {
            let rank = party - 1 - self.nodes;
            match control.message {
                // A rank that starts: its program runs at once.
                Message::Addresses { .. } => {}
                Message::Start { .. } => self.rank_says(rank, Message::Running { ranks: 1, counted: 0 }),
                message => {
                    self.participants[at(rank)].handle(now, RankInput::Message(message));
                    self.run_rank(rank);
                }
            }
        }
    }

    pub(super) fn rank_says(&mut self, rank: u32, message: Message) {
        let Some(node) = self.layout.node_of(Rank(rank)) else { return };
        let epoch = self.participants[at(rank)].epoch();
        let sender = Party::Rank(Rank(rank));
        let control = Control { job: JOB, life: self.life, epoch, sender, message };
        self.send(1 + self.nodes + rank, Party::Keeper(node), control);
    }

    pub(super) fn run_job(&mut self) {
        while let Some(output) = self.job.poll_output() {
            let now = Instant::from_nanos(self.busy[at(COORDINATOR)]);
            match output {
                JobOutput::Send { to, control } => self.send(COORDINATOR, to, control),
                JobOutput::FenceStore { counter, .. } if self.failover.is_some() => {
                    self.feed_nodes(NodesInput::LifeOver);
                    self.agenda.at(self.busy[at(COORDINATOR)] + RECORD_NS, Event::Fenced { counter });
                }
                JobOutput::FenceStore { counter, .. } => {
                    self.job.handle(
                        now,
                        JobInput::StoreFenced { counter, newest: None, committed: false, nonce: 1 },
                    );
                }
                JobOutput::WriteDecision(decision) => {
                    self.life = decision.life;
                    if self.failover.is_some() {
                        self.agenda.at(self.busy[at(COORDINATOR)] + RECORD_NS, Event::Decided);
                        continue;
                    }
                    self.job.handle(now, JobInput::DecisionDurable { life: decision.life });
                }
                JobOutput::WriteCommit { generation, .. } => {
                    self.record = Some(generation);
                    self.agenda.at(self.busy[at(COORDINATOR)] + RECORD_NS, Event::Committed);
                }
                JobOutput::Event(JobEvent::Checkpoint(CheckpointEvent::Committed { generation, .. })) => {
                    self.committed = Some(generation);
                    self.committed_at = Some(self.busy[at(COORDINATOR)]);
                }
                JobOutput::Replace { node, .. } => self.replace(node),
                JobOutput::Event(event) => self.note(&event),
                JobOutput::Over(_) => self.over(),
                // A keeper that is started on the lost host does not come up.
                JobOutput::Reconnect { .. }
                | JobOutput::Await { .. }
                | JobOutput::Ask { .. }
                | JobOutput::Collect { .. }
                | JobOutput::Diagnosed(_) => {}
            }
        }
        self.arm_job();
    }

    pub(super) fn run_keeper(&mut self, node: u32) {
        while let Some(output) = self.keepers[at(node)].poll_output() {
            match output {
                KeeperOutput::Send { to, control } => self.send(1 + node, to, control),
                KeeperOutput::Spawn { rank, .. } => self.spawn(rank),
                KeeperOutput::Kill { rank, life } => self.kill(rank, life),
                // No rank ends by itself, and none speaks PMI.
                KeeperOutput::Pmi(_)
                | KeeperOutput::WriteExitedImage { .. }
                | KeeperOutput::Lease(_)
                | KeeperOutput::LeaseOver => {}
                KeeperOutput::Lock => {
                    let now = Instant::from_nanos(self.busy[at(1 + node)]);
                    self.keepers[at(node)].handle(now, KeeperInput::Locked);
                }
            }
        }
        self.arm_keeper(node);
    }

    fn run_rank(&mut self, rank: u32) {
        while let Some(output) = self.participants[at(rank)].poll_output() {
            match output {
                RankOutput::Send(message) => self.rank_says(rank, message),
                RankOutput::TakeCut { epoch } => {
                    self.still_since[at(rank)] = self.busy[at(1 + self.nodes + rank)];
                    match self.flushing {
                        Flushing::No => self.cut(rank),
                        Flushing::EventByEvent => {
                            self.flushes[at(rank)].handle(FlushInput::Begin { epoch });
                            self.run_flush(rank);
                        }
                        Flushing::Aggregate => self.begin_aggregate(rank, epoch),
                    }
                }
                // Nothing is cancelled where nothing fails.
                _ => {}
            }
        }
    }

    /// Freeze, capture, thaw; the image is written beside the program.
    fn cut(&mut self, rank: u32) {
        let party = 1 + self.nodes + rank;
        self.busy[at(party)] += CUT_NS;
        let thawed = self.busy[at(party)];
        self.taken.still_ns = self.taken.still_ns.max(thawed - self.still_since[at(rank)]);
        self.agenda.at(thawed + IMAGE_NS, Event::Written { rank });
    }

    fn count_marker(&mut self) {
        self.taken.messages += 1;
        self.taken.markers += 1;
        self.taken.bytes += MARKER_BYTES;
    }

    fn run_flush(&mut self, rank: u32) {
        while let Some(output) = self.flushes[at(rank)].poll_output() {
            match output {
                FlushOutput::Send { to, .. } => {
                    self.count_marker();
                    let busy = &mut self.busy[at(1 + self.nodes + rank)];
                    *busy += message_ns(MARKER_BYTES);
                    self.agenda.at(*busy + LATENCY_NS, Event::Marker { rank: to });
                }
                FlushOutput::Flushed { .. } => self.cut(rank),
            }
        }
    }

    /// Markers that were faster than the command that arrives now.
    fn take_early_markers(&mut self, party: u32) {
        let rank = party - 1 - self.nodes;
        let (early, until) = self.aggregate.take_early(rank, self.now);
        let epoch = self.participants[at(rank)].epoch().next();
        for _ in 0..early {
            self.flushes[at(rank)].handle(FlushInput::Marker { epoch });
        }
        let busy = &mut self.busy[at(party)];
        *busy = (*busy).max(until);
    }

    fn begin_aggregate(&mut self, rank: u32, epoch: Epoch) {
        let party = 1 + self.nodes + rank;
        let flush = &mut self.flushes[at(rank)];
        flush.handle(FlushInput::Begin { epoch });
        let mut markers = 0;
        for _ in 1..self.ranks {
            if let Some(FlushOutput::Send { .. }) = flush.poll_output() {
                markers += 1;
            }
        }
        self.taken.messages += markers;
        self.taken.markers += markers;
        self.taken.bytes += markers * MARKER_BYTES;
        let all = self.aggregate.begin(rank, self.busy[at(party)]);
        self.busy[at(party)] += markers * message_ns(MARKER_BYTES);
        if all {
            for rank in 0..self.ranks {
                self.finish_aggregate(rank, epoch);
            }
        }
    }

    fn finish_aggregate(&mut self, rank: u32, epoch: Epoch) {
        let (rest, done) = self.aggregate.finish(rank);
        let flush = &mut self.flushes[at(rank)];
        for _ in 0..rest {
            flush.handle(FlushInput::Marker { epoch });
        }
        if let Some(FlushOutput::Flushed { .. }) = flush.poll_output() {
            self.busy[at(1 + self.nodes + rank)] = done;
            self.cut(rank);
        }
    }
}
