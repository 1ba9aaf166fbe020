//! The keeper of one node: starts its ranks, speaks for them, ends them.
//!
//! One machine for each node. Its shell carries out [`Output`]s in order, owns the processes and the
//! connections, and feeds back events. The shell discards a message for a party that is not connected: every
//! question of this protocol has a deadline where it was asked.

mod gather;
mod life;
mod lock;
mod ranks;
mod relay;
mod tables;
mod waits;
mod watch;

use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Instant, JobId, Life, Rank};

use crate::control::{
    Control, Decision, ExitedRecord, FaultReport, ImageContent, ImageReport, Message, NO_LIFE,
};
use crate::layout::Layout;
use crate::names::{ExitStatus, GenerationId, ImageDigest, NodeIndex, Party};
use crate::pmi::{self, Answer};
use crate::queue::Queue;
use crate::sabotage::{Rule, Sabotage};
use gather::{Count, Images, Points, Registrations};
use lock::NodeLock;
use ranks::KeptRanks;
pub use ranks::RankPhase;
pub use tables::Table;
use watch::Watcher;

/// An input of a keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A control message, from any sender.
    Control(Control),
    /// The answer to [`Output::Lock`].
    Locked,
    /// The process of a rank exists.
    Spawned {
        /// Its rank.
        rank: Rank,
    },
    /// A rank could not be started, or its image could not be restored.
    NotStarted {
        /// Its rank.
        rank: Rank,
        /// Linux error number.
        errno: u32,
    },
    /// The rank had ended in the generation that is being restored (R12): there is no process to start.
    ExitedInImage {
        /// Its rank.
        rank: Rank,
        /// Content of its image.
        record: ExitedRecord,
    },
    /// A rank has ended, and no other rank can need its ports: they count as closed, although it has not closed them.
    PortsAbandoned {
        /// Its rank.
        rank: Rank,
        /// The life it was started in.
        life: Life,
    },
    /// A process has ended, for any reason, and its status was collected.
    ProcessEnded {
        /// Its rank.
        rank: Rank,
        /// The life it was started in.
        life: Life,
        /// How it ended.
        status: ExitStatus,
    },
    /// The image of a rank that has ended is durable.
    ExitedImageDone {
        /// Its rank.
        rank: Rank,
        /// Its generation.
        generation: GenerationId,
        /// Names its content.
        digest: ImageDigest,
        /// Its size.
        bytes: u64,
    },
    /// The PMI server answers a rank.
    PmiAnswer {
        /// The rank.
        rank: Rank,
        /// The answer.
        answer: Answer,
    },
    /// The image of a rank that has ended could not be written.
    ExitedImageFailed {
        /// Its rank.
        rank: Rank,
        /// Its generation.
        generation: GenerationId,
        /// Linux error number.
        errno: u32,
    },
}

/// An output of a keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this.
    Send {
        /// The receiver.
        to: Party,
        /// Its name.
        control: Control,
    },
    /// Start the process of a rank, or restore it. The process must know job, life and the key before it speaks. Answer
    /// with [`Input::Spawned`], [`Input::NotStarted`] or [`Input::ExitedInImage`].
    Spawn {
        /// Its rank.
        rank: Rank,
        /// The life, and the generation to restore.
        decision: Decision,
    },
    /// End the process of a rank at once (SIGKILL), with all processes it started. The answer is
    /// [`Input::ProcessEnded`]; also if there never was a process.
    Kill {
        /// Its rank.
        rank: Rank,
        /// The life it was started in.
        life: Life,
    },
    /// Write the image of a rank that has ended. Answer with [`Input::ExitedImageDone`] or
    /// [`Input::ExitedImageFailed`].
    WriteExitedImage {
        /// Its rank.
        rank: Rank,
        /// The generation.
        generation: GenerationId,
        /// Its content.
        record: ExitedRecord,
    },
    /// Input for the PMI server.
    Pmi(pmi::Input),
    /// Take the node's lock of the job (R30), which an earlier keeper holds, and its guard behind it, until the last process that it has begun is gone.
    /// Answer with [`Input::Locked`] when it is taken, however long that takes.
    Lock,
    /// For so long from now the ranks may run. If nothing more is heard of this keeper by then, its guard ends them, and it (R30). `None`: no rank
    /// runs here, or none needs a lease.
    Lease(Option<Duration>),
    /// The keeper has heard from no majority for too long. Its ranks are being ended; then it ends.
    LeaseOver,
}

/// Messages that were dropped, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Of another job.
    pub wrong_job: u64,
    /// Of another life (R7).
    pub wrong_life: u64,
    /// From a sender that is not entitled to this message.
    pub stray_messages: u64,
}

/// The life that a keeper holds.
#[derive(Clone, Debug)]
struct Held {
    decision: Decision,
    layout: Layout,
    parent: Party,
    ranks_below: u32,
    ranks: KeptRanks,
    watcher: Option<Watcher>,
    registrations: Registrations,
    registered: u32,
    /// The coordinator knows that a rank has begun to connect, and that one has ended without.
    connecting: bool,
    left: bool,
    running: Count,
    finalizing: Count,
    ended: Count,
    end_status: ExitStatus,
    points: Option<Points>,
    waits: Option<waits::Waits>,
    images: Option<Images>,
    /// Newest epoch of which the coordinator knows, from here or from itself, that it will not be committed:
    /// one message is enough to abandon it, and every rank has one to send.
    spoiled: Option<Epoch>,
    released: bool,
}

impl Held {
    fn life(&self) -> Life {
        self.decision.life
    }
}

/// ```text
///            NewLife               Fence                    all dead
///   Empty -----------> Holding ------------> Ending ----------------> Fenced
///                         ^                                              |
///                         +--------------- NewLife ----------------------+
/// ```
#[derive(Clone, Debug)]
enum State {
    /// Knows no life. Keeps its word all the same: a life that was fenced off may still be on its way here along the tree.
    Empty { fenced_below: u32, votes: bool },
    /// Keeps the ranks of a life.
    Holding(Held),
    /// The life is over (R9): its processes are being ended, nothing of it is passed on.
    Ending { held: Held, counter: u32 },
    /// No process of any life runs here.
    Fenced { counter: u32 },
}

/// The keeper of a node.
#[derive(Debug)]
pub struct Keeper {
    job: JobId,
    node: NodeIndex,
    sabotage: Sabotage,
    state: State,
    epoch: Epoch,
    lock: NodeLock,
    counters: Counters,
    outputs: Queue<Output>,
}

impl Keeper {
    /// A keeper that runs nothing yet, and reports that to the coordinator.
    #[must_use]
    pub fn new(job: JobId, node: NodeIndex, sabotage: Sabotage) -> Keeper {
        let mut keeper = Keeper {
            job,
            node,
            sabotage,
            state: State::Empty { fenced_below: 0, votes: false },
            epoch: Epoch(0),
            lock: NodeLock::default(),
            counters: Counters::default(),
            outputs: Queue::default(),
        };
        keeper.send_as(NO_LIFE, Party::Coordinator, Message::KeeperHello { node });
        keeper.ask_lock();
        keeper
    }

    /// A keeper that replaces an ended one, started by the coordinator for which that one voted: the ended one has
    /// voted for no other, so this one's vote counts too.
    #[must_use]
    pub fn again(job: JobId, node: NodeIndex, sabotage: Sabotage) -> Keeper {
        Keeper { state: State::Empty { fenced_below: 0, votes: true }, ..Keeper::new(job, node, sabotage) }
    }

    /// Messages that were dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The life whose ranks are kept; `None` if none may run.
    #[must_use]
    pub fn life(&self) -> Option<Life> {
        match &self.state {
            State::Holding(held) => Some(held.life()),
            State::Empty { .. } | State::Ending { .. } | State::Fenced { .. } => None,
        }
    }

    /// The ranks that are kept, each with the highest epoch seen in its messages.
    pub fn ranks(&self) -> impl Iterator<Item = (Rank, RankPhase, Epoch)> {
        let held = match &self.state {
            State::Holding(held) | State::Ending { held, .. } => Some(held),
            State::Empty { .. } | State::Fenced { .. } => None,
        };
        held.into_iter().flat_map(|held| &held.ranks).map(|(rank, kept)| (*rank, kept.phase, kept.epoch))
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Control(control) => self.on_control(now, control),
            Input::Locked => self.on_locked(),
            // Its first message has more details.
            Input::Spawned { .. } => {}
            Input::NotStarted { rank, errno } => {
                if let State::Holding(held) | State::Ending { held, .. } = &mut self.state
                    && let Some(kept) = held.ranks.get_mut(&rank)
                {
                    kept.alive = false;
                    kept.phase = RankPhase::Dead;
                }
                if self.life().is_some() {
                    self.send_up(Message::Fault { report: FaultReport::RankNotStarted { rank, errno } });
                }
                self.settle();
            }
            Input::ExitedInImage { rank, record } => self.on_exited_in_image(rank, record),
            Input::PortsAbandoned { rank, life } => self.on_ports_abandoned(rank, life),
            Input::ProcessEnded { rank, life, status } => self.on_process_ended(rank, life, status),
            Input::ExitedImageDone { rank, generation, digest, bytes } => {
                let content = self.exited_content(rank);
                if let Some(content) = content.filter(|_| self.is_current(generation)) {
                    let statistics = crate::control::CutStatistics::default();
                    let report = ImageReport { rank, digest, bytes, content, statistics };
                    self.on_images(generation.epoch, &[report]);
                }
            }
            Input::PmiAnswer { rank, answer } => self.send(Party::Rank(rank), Message::PmiAnswer { answer }),
            Input::ExitedImageFailed { rank, generation, errno } => {
                if self.is_current(generation) {
                    let reason = crate::control::NoImageReason::WriteFailed { errno };
                    self.on_no_image(generation.epoch, rank, reason);
                }
            }
        }
    }

    /// Handles timeouts that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(held) = self.holding() else { return };
        let alive = held.ranks.iter().filter(|(_, kept)| kept.alive).map(|(rank, _)| *rank);
        let silent = held.points.as_mut().and_then(|points| points.silent(now, alive));
        if let Some((rank, silent)) = silent {
            let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            self.send_up(Message::Fault { report: FaultReport::RankSilent { rank, by: None, silent_ms } });
        }
        self.watch_waits(now);
        self.watch(now);
    }

    fn watch(&mut self, now: Instant) {
        let Some(held) = self.holding() else { return };
        let Some(watcher) = &mut held.watcher else { return };
        let due = watcher.due(now);
        if due.lease_over && held.ranks.values().any(|kept| kept.alive) {
            // A coordinator that still hears a majority decides without us; our ranks of this life must stop before
            // that.
            held.watcher = None;
            self.outputs.push(Output::LeaseOver);
            self.kill_all();
            return;
        }
        if due.lease_over {
            // No rank has begun, so none needs a lease.
            watcher.end_lease();
        }
        if let Some(keepers) = due.beat {
            self.send_up(Message::Heartbeat { keepers, asked_ns: now.as_nanos() });
        }
        for node in due.overdue {
            self.send_up(Message::Fault { report: FaultReport::KeeperOverdue { node } });
        }
        for node in due.silent {
            self.send_up(Message::Fault { report: FaultReport::KeeperSilent { node } });
        }
    }

    /// When [`Keeper::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Holding(held) => {
                let silent = held.points.as_ref().and_then(Points::patience);
                let waits = held.waits.as_ref().map(waits::Waits::due);
                [held.watcher.as_ref().map(Watcher::next), silent, waits].into_iter().flatten().min()
            }
            State::Empty { .. } | State::Ending { .. } | State::Fenced { .. } => None,
        }
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
    }

    fn on_control(&mut self, now: Instant, control: Control) {
        if control.job != self.job {
            self.counters.wrong_job += 1;
            return;
        }
        // The two messages that end and begin lives are compared by counter; all others but a probe by equality (R7).
        match control.message {
            Message::Fence { counter, first } if control.sender == Party::Coordinator => {
                self.on_fence(counter, first);
            }
            // R33: of any life, also while processes are being ended.
            Message::Probe { number } if control.sender == Party::Coordinator => {
                let node = self.node;
                self.send_as(NO_LIFE, Party::Coordinator, Message::ProbeAnswer { number, node });
            }
            Message::NewLife { new_life } if new_life.decision.life == control.life => {
                self.on_new_life(now, new_life);
            }
            message => {
                let ours = match &self.state {
                    State::Holding(held) => Some(held.life()),
                    State::Ending { held, .. } if self.sabotage.is_out(Rule::NoFence) => Some(held.life()),
                    State::Empty { .. } | State::Ending { .. } | State::Fenced { .. } => None,
                };
                // R7, and R8 for images
                let image = matches!(message, Message::ImageDone { .. } | Message::Images { .. });
                let counted_anyway = image && self.sabotage.is_out(Rule::KeyWithoutLife);
                if ours != Some(control.life) && !counted_anyway {
                    self.counters.wrong_life += 1;
                    return;
                }
                self.on_message(now, control.sender, control.epoch, message);
            }
        }
    }

    fn holding(&mut self) -> Option<&mut Held> {
        match &mut self.state {
            State::Holding(held) => Some(held),
            State::Empty { .. } | State::Ending { .. } | State::Fenced { .. } => None,
        }
    }

    /// The life that messages are taken for: that of [`State::Holding`], and with R9 out also the one being ended.
    fn held(&mut self) -> Option<&mut Held> {
        match &mut self.state {
            State::Holding(held) => Some(held),
            State::Ending { held, .. } if self.sabotage.is_out(Rule::NoFence) => Some(held),
            State::Empty { .. } | State::Ending { .. } | State::Fenced { .. } => None,
        }
    }

    fn is_current(&mut self, generation: GenerationId) -> bool {
        self.held().is_some_and(|held| held.life() == generation.life)
    }

    fn exited_content(&mut self, rank: Rank) -> Option<ImageContent> {
        match self.held()?.ranks.get(&rank)?.phase {
            RankPhase::Exited(status) => Some(ImageContent::Exited { status }),
            _ => None,
        }
    }

    fn send_as(&mut self, life: Life, to: Party, message: Message) {
        let sender = Party::Keeper(self.node);
        let control = Control { job: self.job, life, epoch: self.epoch, sender, message };
        self.outputs.push(Output::Send { to, control });
    }

    fn send(&mut self, to: Party, message: Message) {
        if let Some(life) = self.held().map(|held| held.life()) {
            self.send_as(life, to, message);
        }
    }

    fn send_up(&mut self, message: Message) {
        if let Some(parent) = self.held().map(|held| held.parent) {
            self.send(parent, message);
        }
    }

    fn children(&mut self) -> Vec<NodeIndex> {
        let node = self.node;
        self.held().map(|held| held.layout.children(node).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
