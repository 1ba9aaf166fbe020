//! Lives as a keeper sees them: begin, processes that end, the fence.

use alloc::vec::Vec;
use core::time::Duration;

use transport::{Instant, Life, Rank};

use super::gather::{Count, Registrations};
use super::ranks::{KeptRank, KeptRanks, RankPhase};
use super::watch::Watcher;
use super::{Held, Keeper, Output, State};
use crate::control::{ExitedRecord, FaultReport, Message, NewLife, NoImageReason};
use crate::names::{ExitStatus, NodeIndex, Party};
use crate::sabotage::Rule;

impl Keeper {
    /// R9: a process that is not dead when this is answered could still write an image of the old life.
    pub(super) fn on_fence(&mut self, counter: u32, first: bool) {
        match core::mem::replace(&mut self.state, State::Empty { fenced_below: 0, votes: false }) {
            State::Empty { fenced_below, votes } => {
                let votes = votes || first;
                self.state = State::Empty { fenced_below: fenced_below.max(counter), votes };
                self.answer_empty(counter, votes);
            }
            State::Holding(held) if held.life().counter < counter => {
                self.state = State::Ending { held, counter };
                let node = self.node;
                self.send_as(crate::control::NO_LIFE, Party::Coordinator, Message::Ending { counter, node });
                self.kill_all();
                self.settle();
            }
            State::Ending { held, counter: asked } => {
                self.state = State::Ending { held, counter: asked.max(counter) };
                self.settle();
            }
            State::Fenced { counter: promised } => {
                let counter = promised.max(counter);
                self.state = State::Fenced { counter };
                self.answer_fence(counter, true);
            }
            holding @ State::Holding(_) => self.state = holding,
        }
    }

    pub(super) fn answer_fence(&mut self, counter: u32, votes: bool) {
        let node = self.node;
        self.send_as(crate::control::NO_LIFE, Party::Coordinator, Message::Fenced { counter, node, votes });
    }

    pub(super) fn on_new_life(&mut self, now: Instant, new_life: NewLife) {
        let counter = new_life.decision.life.counter;
        let reuse = self.sabotage.is_out(Rule::LifeReuse);
        let accepts = match &self.state {
            State::Empty { fenced_below: promised, .. } | State::Fenced { counter: promised } => {
                self.has_lock() && (counter >= *promised || reuse)
            }
            // No life begins while another one's processes are there, and none twice.
            State::Holding(_) | State::Ending { .. } => false,
        };
        let Some(parent) = new_life.layout.parent(self.node).filter(|_| accepts) else {
            self.counters.stray_messages += 1;
            return;
        };
        let NewLife { decision, layout, watch } = new_life.clone();
        self.epoch = decision.epoch();
        let children = layout.children(self.node).map(|child| (child, layout.nodes_below(child)));
        let watcher = watch.map(|watch| Watcher::new(now, watch, children));
        let own = layout.ranks_of(self.node);
        let ranks: KeptRanks = own.clone().map(|rank| (Rank(rank), KeptRank::new(self.epoch))).collect();
        let ranks_below = layout.ranks_below(self.node);
        self.state = State::Holding(Held {
            decision,
            layout,
            parent,
            ranks_below,
            ranks,
            watcher,
            registrations: Registrations::default(),
            registered: 0,
            connecting: false,
            left: false,
            running: Count::default(),
            finalizing: Count::default(),
            ended: Count::default(),
            end_status: ExitStatus::Code(0),
            points: None,
            waits: None,
            images: None,
            spoiled: None,
            released: false,
        });
        for child in self.children() {
            self.send(Party::Keeper(child), Message::NewLife { new_life: new_life.clone() });
        }
        // Else with the first lease (R31).
        if watch.is_none() {
            self.spawn_all();
        }
    }

    fn spawn_all(&mut self) {
        let Some(held) = self.holding() else { return };
        let decision = held.decision;
        let ranks: Vec<Rank> = held.ranks.keys().copied().collect();
        for rank in ranks {
            self.outputs.push(Output::Spawn { rank, decision });
        }
    }

    /// R31: an answer to a heartbeat. The command that begins a life may have been held up as well, so its ranks begin with the first lease.
    pub(super) fn on_lease(&mut self, now: Instant, asked_ns: u64, left_ns: u64) {
        let anyway = self.sabotage.is_out(Rule::LeaseFromArrival);
        let watcher = self.held().and_then(|held| held.watcher.as_mut());
        let Some(granted) = watcher.and_then(|watcher| watcher.leased(now, asked_ns, left_ns, anyway)) else {
            return;
        };
        if granted.is_needed {
            self.outputs.push(Output::Lease(Some(granted.left)));
        }
        for (child, asked_ns) in granted.waiting {
            self.send_lease(child, asked_ns, granted.left);
        }
        if granted.is_first {
            self.spawn_all();
        }
    }

    pub(super) fn send_lease(&mut self, child: NodeIndex, asked_ns: u64, left: Duration) {
        let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        self.send(Party::Keeper(child), Message::Lease { asked_ns, left_ns });
    }

    pub(super) fn kill_all(&mut self) {
        let (State::Holding(held) | State::Ending { held, .. }) = &self.state else { return };
        let life = held.life();
        for (rank, _) in held.ranks.iter().filter(|(_, kept)| kept.alive) {
            self.outputs.push(Output::Kill { rank: *rank, life });
        }
    }

    /// Answers the fence once the last process is dead.
    pub(super) fn settle(&mut self) {
        let State::Ending { held, counter } = &self.state else { return };
        if held.ranks.values().any(|kept| kept.alive) {
            return;
        }
        let counter = *counter;
        self.state = State::Fenced { counter };
        self.outputs.push(Output::Lease(None));
        self.answer_fence(counter, true);
    }

    pub(super) fn on_exited_in_image(&mut self, rank: Rank, record: ExitedRecord) {
        let epoch = self.epoch;
        let (State::Holding(held) | State::Ending { held, .. }) = &mut self.state else { return };
        let Some(kept) = held.ranks.get_mut(&rank).filter(|kept| kept.phase == RankPhase::Spawning) else {
            return;
        };
        let status = record.status;
        // It ended in an epoch before the one that is restored, and so has the image "exited" in every later one.
        *kept = KeptRank::exited(epoch, record);
        self.settle();
        self.count_ended(rank, RankPhase::Spawning, status);
    }

    pub(super) fn on_ports_abandoned(&mut self, rank: Rank, life: Life) {
        let Some(held) = self.holding().filter(|held| held.life() == life) else { return };
        if let Some(kept) = held.ranks.get_mut(&rank) {
            kept.abandon_ports();
        }
    }

    pub(super) fn on_process_ended(&mut self, rank: Rank, life: Life, status: ExitStatus) {
        let (State::Holding(held) | State::Ending { held, .. }) = &mut self.state else { return };
        let released = held.released;
        if held.life() != life {
            return;
        }
        let Some(kept) = held.ranks.get_mut(&rank).filter(|kept| kept.alive) else { return };
        let phase = kept.phase;
        // The process was to become the one in an image, and has not.
        let is_restored = held.decision.restore.is_some() && phase == RankPhase::Spawning;
        let meant = kept.end(status, released);
        let rank_epoch = kept.epoch;
        let is_empty = held.ranks.values().all(|kept| !kept.alive);
        if let Some(watcher) = held.watcher.as_mut().filter(|_| is_empty) {
            watcher.end_lease();
            self.outputs.push(Output::Lease(None));
        }
        if matches!(self.state, State::Ending { .. }) {
            self.settle();
            return;
        }
        if !meant {
            let report = match status {
                ExitStatus::Code(_) if is_restored => FaultReport::RankNotRestored { rank, status },
                _ => FaultReport::RankDied { rank, status },
            };
            self.send_up(Message::Fault { report });
            return;
        }
        if phase == RankPhase::Spawning && !is_restored {
            self.on_left(rank);
        }
        self.count_ended(rank, phase, status);
        let Some(images) = self.holding().and_then(|held| held.images.as_ref()) else { return };
        let epoch = images.epoch;
        if images.has(rank) {
            return;
        }
        if rank_epoch < epoch {
            self.write_exited_image(rank);
        } else {
            self.on_no_image(epoch, rank, NoImageReason::Ended {});
        }
    }

    /// R37: the job goes on without a rank, which its keeper counts as ended. One that still runs is ended: the report of its end
    /// brings this message again.
    pub(super) fn on_rank_lost(&mut self, rank: Rank, status: ExitStatus) {
        let Some(held) = self.holding() else { return };
        let life = held.life();
        let Some(kept) = held.ranks.get_mut(&rank) else { return };
        if kept.alive {
            self.outputs.push(Output::Kill { rank, life });
        } else if let Some(phase) = kept.lose(status) {
            self.count_ended(rank, phase, status);
        }
    }

    /// A rank that has ended counts wherever the others are waited for: it will not come.
    fn count_ended(&mut self, rank: Rank, phase: RankPhase, status: ExitStatus) {
        if self.holding().is_none() {
            return;
        }
        if phase == RankPhase::Spawning {
            self.on_registered(Vec::new(), 1);
        }
        if matches!(phase, RankPhase::Spawning | RankPhase::Attached) {
            self.on_running(1, 0);
        }
        if phase != RankPhase::Finalizing {
            self.on_finalize(1);
        }
        if let Some(points) = self.holding().and_then(|held| held.points.as_mut()) {
            points.add_rank(rank, crate::control::PointSummary::FINALIZING);
            self.flush_points();
        }
        self.on_ended(1, status);
    }
}
