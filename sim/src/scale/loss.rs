//! The loss of one node of a large job: its host vanishes without a word, and a spare host takes its place.
//!
//! Keepers send heartbeats, the coordinator's probe circulates (R33). The last node is lost: a keeper without others below it, in the middle between two
//! heartbeats, while no checkpoint is under way. The coordinator suspects it, declares it lost when its lease is over (R31), ends all other ranks, gives the
//! place to a spare host (R32), lets that rebuild the images from the others of its group (R28), and starts all ranks again. All of that is decided by
//! the production machines; [`super::costs`] lists the times of everything that they wait for.

use core::time::Duration;
use std::collections::BTreeMap;

use ckpt_glue::control::{CutMode, FaultReport, Message, Registration};
use ckpt_glue::job::{Event as JobEvent, Input as JobInput, SuspicionEvent};
use ckpt_glue::keeper::Input as KeeperInput;
use ckpt_glue::protection::nodes::{
    Answer, Found, Input as NodesInput, Output as NodesOutput, Question, Records, Settings, Survey, Times,
};
use ckpt_glue::protection::seat::{Authority, Claimant, Known, Seat};
use ckpt_glue::protection::{Nodes, ProtectionGroup, Terms};
use ckpt_glue::{ExitStatus, GenerationId, Keeper, NodeIndex, Participant, Sabotage};
use transport::{Instant, Life, Rank};

use super::agenda::Event;
use super::costs::{
    IMAGE_BYTES, IMAGE_NS, KEEPER_NS, KILL_NS, LATENCY_NS, PROCESS_NS, QUESTION_BYTES, REBUILT_BYTES_PER_NS,
    RECORD_NS, message_ns,
};
use super::job::{COORDINATOR, JOB, LargeJob, at};
use super::{Loss, ScaleError};
use crate::engine::queue::{MILLI, Nanos, SECOND};

/// Nodes of a group that protect each other with one parity: as many as `xor` makes at most.
const GROUP: u32 = 16;
/// The job runs for so long before heartbeats are counted, and they are counted for so long.
const WARM_UP: Nanos = SECOND;
const COUNTED: Nanos = SECOND;
/// From the last heartbeats to the loss: half the time between two of them.
const LOST_AFTER: Nanos = 125 * MILLI;
/// Virtual time within which all ranks must run again.
const RECOVERED_MAX: Nanos = 120 * SECOND;
/// The seat that the launcher holds (R34).
const SEAT: Seat = Seat { number: 1, id: 1, parent: 0, is_inherited: true };
/// A timer that is not set.
const NEVER: Nanos = Nanos::MAX;

/// State of a job that loses a node.
pub(super) struct Failover {
    nodes: Nodes<()>,
    nodes_timer: Nanos,
    /// When the timer of the coordinator and of each keeper is due.
    timers: Vec<Nanos>,
    /// The node, while its place has no host.
    gone: Option<u32>,
    lost: u32,
    has_images: bool,
    generation: GenerationId,
    lives: Vec<Life>,
    questions: Vec<(u64, Question)>,
    /// Messages that the launcher has sent, taken, or passed on, and their bytes.
    pub(super) launcher: (u64, u64),
    suspected: Option<Nanos>,
    declared: Option<Nanos>,
    begun: Option<Nanos>,
    running: Option<Nanos>,
    is_over: bool,
}

fn instant(time: Nanos) -> Instant {
    Instant::from_nanos(time)
}

fn nanos(due: Option<Instant>) -> Nanos {
    due.map_or(NEVER, Instant::as_nanos)
}

fn groups(nodes: u32) -> Vec<ProtectionGroup> {
    let count = nodes.div_ceil(GROUP);
    // As even as can be: a group of one node protects nothing.
    let first = |group: u32| group * nodes / count;
    let members = |group| (first(group)..first(group + 1)).map(NodeIndex).collect();
    (0..count).map(|group| ProtectionGroup { members: members(group), losses_max: 1 }).collect()
}

impl LargeJob {
    /// The loss of the last node. A generation is committed, and protected.
    pub(super) fn lose_node(&mut self, generation: GenerationId) -> Result<Loss, ScaleError> {
        let lost = self.nodes - 1;
        let settings = Settings {
            nodes: self.nodes,
            groups: groups(self.nodes),
            times: Times {
                answer: Duration::from_secs(10),
                protect: Duration::from_secs(60),
                late: Duration::from_secs(2),
                fetch_silent: Duration::from_secs(10),
                progress_every: Duration::from_secs(1),
            },
            sabotage: Sabotage::default(),
        };
        self.failover = Some(Failover {
            nodes: Nodes::new(settings),
            nodes_timer: NEVER,
            timers: vec![NEVER; at(1 + self.nodes)],
            gone: None,
            lost,
            has_images: true,
            generation,
            lives: vec![self.life],
            questions: Vec::new(),
            launcher: (0, 0),
            suspected: None,
            declared: None,
            begun: None,
            running: None,
            is_over: false,
        });
        for node in 0..self.nodes {
            self.feed_nodes(NodesInput::KeeperReady(NodeIndex(node)));
            self.arm_keeper(node);
        }
        self.feed_nodes(NodesInput::AllRunning);
        self.arm_job();
        let begin = self.now;
        self.run_until(begin + WARM_UP, |_| false);
        let before = self.failover().launcher;
        self.run_until(begin + WARM_UP + COUNTED, |_| false);
        let beats = self.failover().launcher;
        // Heartbeats come at multiples of their interval since the start.
        self.run_until(self.now.next_multiple_of(2 * LOST_AFTER) + LOST_AFTER, |_| false);
        let failover = self.failover();
        failover.gone = Some(lost);
        failover.has_images = false;
        let (lost_at, taken) = (self.now, self.taken);
        let done = |job: &LargeJob| {
            job.failover.as_ref().is_some_and(|failover| failover.running.is_some() || failover.is_over)
        };
        self.run_until(lost_at + RECOVERED_MAX, done);
        let (messages, bytes) = (self.taken.messages - taken.messages, self.taken.bytes - taken.bytes);
        let Failover { suspected, declared, begun, running, .. } = *self.failover();
        let since = |time: Option<Nanos>, what| match time {
            Some(time) => Ok(time - lost_at),
            None => Err(ScaleError::Machines { ranks: self.ranks, what }),
        };
        Ok(Loss {
            launcher_messages_per_s: beats.0 - before.0,
            launcher_bytes_per_s: beats.1 - before.1,
            suspected_ns: since(suspected, "suspect a lost node")?,
            declared_ns: since(declared, "declare a lost node")?,
            decided_ns: since(begun, "begin a life after the loss of a node")?,
            running_ns: since(running, "run again after the loss of a node")?,
            messages,
            bytes,
        })
    }

    fn failover(&mut self) -> &mut Failover {
        self.failover.as_mut().expect("only a job that loses a node comes here")
    }

    fn run_until(&mut self, until: Nanos, is_done: impl Fn(&LargeJob) -> bool) {
        while !is_done(self)
            && let Some((now, event)) = self.agenda.next_until(until)
        {
            self.now = now;
            self.on_event(event);
        }
        if !is_done(self) {
            self.now = until;
        }
    }

    /// Whether a party is on the host that has vanished.
    pub(super) fn is_gone(&self, party: u32) -> bool {
        let Some(gone) = self.failover.as_ref().and_then(|failover| failover.gone) else { return false };
        let node = match party {
            COORDINATOR => return false,
            party if party <= self.nodes => Some(NodeIndex(party - 1)),
            party => self.layout.node_of(Rank(party - 1 - self.nodes)),
        };
        node == Some(NodeIndex(gone))
    }

    pub(super) fn arm_job(&mut self) {
        let due = nanos(self.job.poll_timeout());
        self.arm(COORDINATOR, due);
    }

    pub(super) fn arm_keeper(&mut self, node: u32) {
        let due = nanos(self.keepers[at(node)].poll_timeout());
        self.arm(1 + node, due);
    }

    fn arm(&mut self, party: u32, due: Nanos) {
        let Some(failover) = &mut self.failover else { return };
        let timer = &mut failover.timers[at(party)];
        let due = due.max(self.now);
        if due != NEVER && due != *timer {
            *timer = due;
            self.agenda.at(due, Event::Timer { party });
        }
    }

    pub(super) fn on_timer(&mut self, party: u32) {
        let now = self.now;
        let timer = &mut self.failover().timers[at(party)];
        if *timer != now {
            return;
        }
        *timer = NEVER;
        if self.is_gone(party) {
            return;
        }
        self.work(party, 0);
        let time = instant(self.busy[at(party)]);
        if party == COORDINATOR {
            self.job.handle_timeout(time);
            self.run_job();
        } else {
            self.keepers[at(party - 1)].handle_timeout(time);
            self.run_keeper(party - 1);
        }
    }

    /// A rank's process has been killed.
    pub(super) fn on_killed(&mut self, rank: u32, counter: u32) {
        let life = self.failover().lives.iter().find(|life| life.counter == counter).copied();
        let (Some(life), Some(node)) = (life, self.layout.node_of(Rank(rank))) else { return };
        if self.is_gone(1 + node.0) {
            return;
        }
        self.work(1 + node.0, 0);
        let now = instant(self.busy[at(1 + node.0)]);
        let input = KeeperInput::ProcessEnded { rank: Rank(rank), life, status: ExitStatus::Signal(9) };
        self.keepers[at(node.0)].handle(now, input);
        self.run_keeper(node.0);
    }

    pub(super) fn kill(&mut self, rank: Rank, life: Life) {
        if self.failover.is_some() {
            self.agenda.at(self.now + KILL_NS, Event::Killed { rank: rank.0, counter: life.counter });
        }
    }

    /// A keeper starts the process of a rank, which reads its image.
    pub(super) fn spawn(&mut self, rank: Rank) {
        if self.failover.is_some() {
            self.agenda.at(self.now + PROCESS_NS + IMAGE_NS, Event::Restored { rank: rank.0 });
        } else {
            self.hello(rank.0);
        }
    }

    pub(super) fn on_restored(&mut self, rank: u32) {
        if self.is_gone(1 + self.nodes + rank) {
            return;
        }
        let epoch = self.failover().generation.epoch;
        self.participants[at(rank)] =
            Participant::new(Rank(rank), CutMode::Instant, epoch, 0, Sabotage::default());
        self.work(1 + self.nodes + rank, 0);
        self.hello(rank);
    }

    fn hello(&mut self, rank: u32) {
        let registration = Registration {
            rank: Rank(rank),
            pid: 1 + rank,
            mode: CutMode::Instant,
            // Addresses are for data, of which there is none here.
            ports: Vec::new(),
        };
        self.rank_says(rank, Message::Hello { registration });
    }

    /// A spare host takes the place of the lost node.
    pub(super) fn replace(&mut self, node: NodeIndex) {
        if self.failover().gone != Some(node.0) {
            return;
        }
        self.feed_nodes(NodesInput::KeeperLost(node));
        let now = instant(self.busy[at(COORDINATOR)]);
        self.job.handle(now, JobInput::NodeReplaced { node });
        self.agenda.at(self.now + KEEPER_NS, Event::KeeperStarts { node: node.0 });
    }

    pub(super) fn on_keeper_starts(&mut self, node: u32) {
        self.failover().gone = None;
        self.keepers[at(node)] = Keeper::new(JOB, NodeIndex(node), Sabotage::default());
        self.work(1 + node, 0);
        self.run_keeper(node);
        self.feed_nodes(NodesInput::KeeperReady(NodeIndex(node)));
    }

    pub(super) fn on_fenced(&mut self, counter: u32) {
        let generations = vec![self.failover().generation];
        let claimant = Claimant { held: Some(SEAT), authority: Authority::Person, is_new: false, id: 2 };
        let terms = Terms::default();
        let survey = Survey { counter, nonce: 2, generations, terms, claimant, is_first: false };
        self.feed_nodes(NodesInput::Survey(survey));
    }

    pub(super) fn on_decided(&mut self) {
        let life = self.life;
        self.failover().lives.push(life);
        self.feed_nodes(NodesInput::Decided(life));
    }

    pub(super) fn feed_nodes(&mut self, input: NodesInput<()>) {
        self.work(COORDINATOR, 0);
        let now = instant(self.busy[at(COORDINATOR)]);
        self.failover().nodes.handle(now, input);
        self.run_nodes();
    }

    pub(super) fn on_nodes_timer(&mut self) {
        let now = self.now;
        let timer = &mut self.failover().nodes_timer;
        if *timer == now {
            *timer = NEVER;
            self.work(COORDINATOR, 0);
            let now = instant(self.busy[at(COORDINATOR)]);
            self.failover().nodes.handle_timeout(now);
            self.run_nodes();
        }
    }

    fn run_nodes(&mut self) {
        while let Some(output) = self.failover().nodes.poll_output() {
            self.on_nodes(output);
        }
        let now = self.now;
        let failover = self.failover();
        let due = nanos(failover.nodes.poll_timeout()).max(now);
        if due != NEVER && due != failover.nodes_timer {
            failover.nodes_timer = due;
            self.agenda.at(due, Event::NodesTimer);
        }
    }

    fn on_nodes(&mut self, output: NodesOutput<()>) {
        let input = match output {
            NodesOutput::Ask { number, question, nodes } => {
                self.failover().questions.push((number, question));
                let place = u32::try_from(self.failover().questions.len() - 1).unwrap_or(u32::MAX);
                for node in nodes {
                    self.count(QUESTION_BYTES);
                    self.work(COORDINATOR, message_ns(QUESTION_BYTES));
                    let arrives = self.busy[at(COORDINATOR)] + LATENCY_NS;
                    self.agenda.at(arrives, Event::Asked { node: node.0, place });
                }
                return;
            }
            NodesOutput::Surveyed { .. } => {
                return self.feed_nodes(NodesInput::Records(Records::Agree(BTreeMap::new())));
            }
            NodesOutput::SeatTaken(seat) => return self.feed_nodes(NodesInput::SeatHeld(seat)),
            NodesOutput::Busy { counter } => JobInput::StoreBusy { counter },
            NodesOutput::Withdraw { counter } => JobInput::StoreWithdrawn { counter },
            NodesOutput::Begin { life: Life { counter, nonce }, from, .. } => {
                JobInput::StoreFenced { counter, newest: from, committed: true, nonce }
            }
            NodesOutput::DecisionNoted(life) => JobInput::DecisionDurable { life },
            // No checkpoint is under way, and reminders are for keepers that come late.
            _ => return,
        };
        let now = instant(self.busy[at(COORDINATOR)]);
        self.job.handle(now, input);
        self.run_job();
    }

    /// A message of a fixed length at the launcher.
    pub(super) fn count(&mut self, bytes: u64) {
        self.taken.messages += 1;
        self.taken.bytes += bytes;
        self.count_launcher(bytes);
    }

    pub(super) fn count_launcher(&mut self, bytes: u64) {
        if let Some(failover) = &mut self.failover {
            failover.launcher.0 += 1;
            failover.launcher.1 += bytes;
        }
    }

    /// A keeper gets a question about its directory; its disk answers, not its processor.
    pub(super) fn on_asked(&mut self, node: u32, place: u32) {
        if self.is_gone(1 + node) {
            return;
        }
        let (_, question) = self.failover().questions[at(place)];
        let is_new = self.failover().lost == node && !self.failover().has_images;
        let takes = match question {
            Question::Repair(_) if is_new => {
                let ranks = self.layout.ranks_of(NodeIndex(node)).len() as u64;
                ranks * IMAGE_BYTES / REBUILT_BYTES_PER_NS
            }
            Question::Open(_) | Question::Meet(_) => 0,
            _ => RECORD_NS,
        };
        self.work(1 + node, message_ns(QUESTION_BYTES));
        self.agenda.at(self.busy[at(1 + node)] + takes + LATENCY_NS, Event::Answers { node, place });
    }

    pub(super) fn on_answers(&mut self, node: u32, place: u32) {
        let (number, question) = self.failover().questions[at(place)];
        self.count(QUESTION_BYTES);
        self.work(COORDINATOR, message_ns(QUESTION_BYTES));
        let failover = self.failover();
        if let Question::Repair(_) = question
            && node == failover.lost
        {
            failover.has_images = true;
        }
        let is_whole = node != failover.lost || failover.has_images;
        let problem = (!is_whole).then(|| "an image is missing".to_owned());
        let found = Found { problem, is_whole, has_some: is_whole };
        let answer = match question {
            Question::Survey => {
                // The lost node's new directory is empty.
                let taken = (node != failover.lost).then_some(SEAT);
                Answer::Surveyed { found: vec![found], seats: Known { taken, tried: Vec::new() }, end: None }
            }
            Question::Look(_) => Answer::Looked(found),
            _ => Answer::Done,
        };
        let answer = Ok((answer, ()));
        self.feed_nodes(NodesInput::Answered { node: NodeIndex(node), number, answer });
    }

    /// Notes when something of the recovery has come.
    pub(super) fn note(&mut self, event: &JobEvent) {
        let time = self.busy[at(COORDINATOR)];
        let Some(failover) = &mut self.failover else { return };
        let lost = NodeIndex(failover.lost);
        let note = match event {
            JobEvent::Suspicion(SuspicionEvent::Raised { node, .. }) if *node == lost => {
                &mut failover.suspected
            }
            JobEvent::Reported { report: FaultReport::KeeperSilent { node }, action: Some(_) }
                if *node == lost =>
            {
                &mut failover.declared
            }
            JobEvent::LifeBegun { .. } => &mut failover.begun,
            JobEvent::AllRunning { .. } => {
                failover.running = Some(time);
                return self.feed_nodes(NodesInput::AllRunning);
            }
            _ => return,
        };
        note.get_or_insert(time);
    }

    /// The job has ended.
    pub(super) fn over(&mut self) {
        if let Some(failover) = &mut self.failover {
            failover.is_over = true;
        }
    }
}
