//! Messages that pass through a keeper: down to everybody, up in sums, across to the keeper of a closed port.

use alloc::vec::Vec;

use transport::{Epoch, Instant, PortId, Rank};

use super::gather::{Images, Points};
use super::ranks::RankPhase;
use super::{Keeper, Output};
use crate::control::{
    CutMode, FaultReport, ImageReport, Message, NoImageReason, PointSummary, PortEntry, Registration,
};
use crate::names::{ExitStatus, GenerationId, NodeIndex, Party};
use crate::pmi;
use crate::sabotage::Rule;

impl Keeper {
    /// A message of our life.
    pub(super) fn on_message(&mut self, now: Instant, sender: Party, epoch: Epoch, message: Message) {
        let node = self.node;
        let Some(held) = self.held() else { return };
        match sender {
            Party::Rank(rank) => match held.ranks.get_mut(&rank) {
                Some(kept) => {
                    kept.epoch = kept.epoch.max(epoch);
                    self.on_rank_message(rank, epoch, message);
                }
                None => self.counters.stray_messages += 1,
            },
            sender if sender == held.parent => self.on_message_from_above(now, message),
            Party::Keeper(child) if held.layout.children(node).any(|known| known == child) => {
                self.on_child_message(now, child, message);
            }
            Party::Coordinator | Party::Keeper(_) | Party::Tool => self.counters.stray_messages += 1,
        }
    }

    fn on_rank_message(&mut self, rank: Rank, epoch: Epoch, message: Message) {
        match message {
            Message::Hello { registration } if registration.rank == rank => self.on_hello(rank, registration),
            Message::Running { .. } => {
                if let Some(mode) = self.advance(rank, RankPhase::Attached, RankPhase::Running) {
                    self.on_running(1, u32::from(mode == CutMode::Counted));
                }
            }
            Message::Finalize { .. } => {
                if self.advance(rank, RankPhase::Running, RankPhase::Finalizing).is_some() {
                    self.on_finalize(1);
                }
            }
            Message::PointReport { query, summary } => {
                if let Some(points) = self.points(query) {
                    points.add_rank(rank, summary);
                    self.flush_points();
                }
            }
            Message::WaitReports { query, reports } => self.on_rank_waits(rank, query, reports),
            Message::ImageDone { epoch, report } if report.rank == rank => self.on_images(epoch, &[report]),
            Message::NoImage { epoch, rank: named, reason } if named == rank => {
                self.on_no_image(epoch, rank, reason);
            }
            Message::Fault { .. } | Message::Request { .. } => self.send_up(message),
            Message::Closed { port, links, last } if port.rank() == rank => {
                if let Some(kept) = self.held().and_then(|held| held.ranks.get_mut(&rank)) {
                    kept.close(port, links, last);
                }
            }
            Message::ClosedQuery { port, peer } => self.on_closed_query(port, peer),
            Message::PmiRequest { request } => {
                self.outputs.push(Output::Pmi(pmi::Input::Request { rank, epoch, request }));
            }
            Message::PmiState { part, last } => {
                self.outputs.push(Output::Pmi(pmi::Input::State { rank, part, last }));
            }
            // Its epoch, in every message, has shown it already.
            Message::CutSeen { .. } => {}
            _ => self.counters.stray_messages += 1,
        }
    }

    fn on_child_message(&mut self, now: Instant, child: NodeIndex, message: Message) {
        match message {
            Message::Registered { ports, ranks } => self.on_registered(ports, ranks),
            Message::Running { ranks, counted } => self.on_running(ranks, counted),
            Message::Finalize { ranks } => self.on_finalize(ranks),
            Message::Ended { ranks, status } => self.on_ended(ranks, status),
            Message::Connecting { rank } => self.on_connecting(rank),
            Message::Left { rank } => self.on_left(rank),
            Message::PointReport { query, summary } => {
                if let Some(points) = self.points(query) {
                    points.add_child(child, summary);
                    self.flush_points();
                }
            }
            Message::WaitReports { query, reports } => self.on_child_waits(child, query, reports),
            Message::Images { epoch, reports } => self.on_images(epoch, &reports),
            Message::NoImage { epoch, rank, reason } => self.on_no_image(epoch, rank, reason),
            Message::Fault { .. } | Message::Request { .. } => self.send_up(message),
            Message::Heartbeat { keepers, asked_ns } => {
                let Some(watcher) = self.held().and_then(|held| held.watcher.as_mut()) else { return };
                let was_overdue = watcher.is_overdue(child);
                if let Some(left) = watcher.heard(now, child, keepers, asked_ns) {
                    self.send_lease(child, asked_ns, left);
                }
                if was_overdue {
                    self.send_up(Message::Fault { report: FaultReport::KeeperHeard { node: child } });
                }
            }
            Message::ClosedQuery { port, peer } => self.on_closed_query(port, peer),
            Message::ClosedAnswer { peer, .. } => self.route(peer.rank(), message),
            _ => self.counters.stray_messages += 1,
        }
    }

    fn on_message_from_above(&mut self, now: Instant, message: Message) {
        match message {
            Message::Lease { asked_ns, left_ns } => self.on_lease(now, asked_ns, left_ns),
            Message::ClosedQuery { port, peer } => self.on_closed_query(port, peer),
            Message::ClosedAnswer { peer, .. } => self.route(peer.rank(), message),
            Message::Cut { epoch, .. } => {
                self.epoch = self.epoch.max(epoch);
                self.broadcast(&message);
                self.gather_images(epoch);
            }
            Message::PointQuery { query } => {
                self.broadcast(&message);
                self.gather_points(now, query);
            }
            Message::WaitQuery { query, time_left_ns } => self.on_wait_query(now, query, time_left_ns),
            Message::FinalizeDone => {
                if let Some(held) = self.held() {
                    held.released = true;
                }
                self.broadcast(&message);
            }
            Message::Abandon { epoch } => {
                if let Some(held) = self.held() {
                    held.spoiled = held.spoiled.max(Some(epoch));
                    held.images.take_if(|images| images.epoch <= epoch);
                }
                self.broadcast(&message);
            }
            Message::RankLost { rank, status } => {
                self.broadcast(&message);
                self.on_rank_lost(rank, status);
            }
            Message::Addresses { .. } | Message::Start { .. } | Message::Committed { .. } => {
                self.broadcast(&message);
            }
            _ => self.counters.stray_messages += 1,
        }
    }

    /// To every child and every own rank that lives.
    fn broadcast(&mut self, message: &Message) {
        let ranks: Vec<Rank> = match self.held() {
            Some(held) => held.ranks.iter().filter(|(_, kept)| kept.alive).map(|(rank, _)| *rank).collect(),
            None => return,
        };
        for child in self.children() {
            self.send(Party::Keeper(child), message.clone());
        }
        for rank in ranks {
            self.send(Party::Rank(rank), message.clone());
        }
    }

    /// One step towards a rank.
    fn route(&mut self, rank: Rank, message: Message) {
        let node = self.node;
        match self.held().and_then(|held| held.layout.towards(node, rank)) {
            // The coordinator is no way to anywhere: above the root there is no rank.
            Some(Party::Coordinator) | None => self.counters.stray_messages += 1,
            Some(to) => self.send(to, message),
        }
    }

    /// Moves a rank on. Returns how it can be saved; `None` if it is not where it should be.
    fn advance(&mut self, rank: Rank, from: RankPhase, to: RankPhase) -> Option<CutMode> {
        match self.held().and_then(|held| held.ranks.get_mut(&rank)) {
            Some(kept) if kept.phase == from => {
                kept.phase = to;
                Some(kept.mode)
            }
            _ => {
                self.counters.stray_messages += 1;
                None
            }
        }
    }

    fn on_hello(&mut self, rank: Rank, registration: Registration) {
        let owned = registration.ports.iter().all(|entry| entry.port.rank() == rank);
        let few = registration.ports.len() <= crate::limits::PORTS_PER_RANK_MAX;
        match self.held().and_then(|held| held.ranks.get_mut(&rank)) {
            Some(kept) if owned && few && kept.phase == RankPhase::Spawning => {
                kept.attach(registration.mode, registration.ports.iter().map(|entry| entry.port).collect());
                // A program that opens a session stands there until all others have. An agent is there before its program does anything, which waits for
                // nobody.
                if registration.mode == CutMode::Counted {
                    self.on_connecting(rank);
                }
                self.on_registered(registration.ports, 1);
            }
            _ => self.counters.stray_messages += 1,
        }
    }

    fn on_connecting(&mut self, rank: Rank) {
        let Some(held) = self.held() else { return };
        if !core::mem::replace(&mut held.connecting, true) {
            self.send_up(Message::Connecting { rank });
        }
    }

    pub(super) fn on_left(&mut self, rank: Rank) {
        let Some(held) = self.held() else { return };
        if !core::mem::replace(&mut held.left, true) {
            self.send_up(Message::Left { rank });
        }
    }

    pub(super) fn on_registered(&mut self, ports: Vec<PortEntry>, ranks: u32) {
        let Some(held) = self.held() else { return };
        let messages = held.registrations.add(ports, ranks, &mut held.registered, held.ranks_below);
        for (ports, ranks) in messages {
            self.send_up(Message::Registered { ports, ranks });
        }
    }

    pub(super) fn on_running(&mut self, ranks: u32, counted: u32) {
        let Some(held) = self.held() else { return };
        if held.running.add(ranks, counted, held.ranks_below) {
            let (ranks, counted) = (held.running.ranks, held.running.extra);
            self.send_up(Message::Running { ranks, counted });
        }
    }

    pub(super) fn on_finalize(&mut self, ranks: u32) {
        let Some(held) = self.held() else { return };
        if held.finalizing.add(ranks, 0, held.ranks_below) {
            let ranks = held.finalizing.ranks;
            self.send_up(Message::Finalize { ranks });
        }
    }

    pub(super) fn on_ended(&mut self, ranks: u32, status: ExitStatus) {
        let Some(held) = self.held() else { return };
        if held.end_status.is_success() {
            held.end_status = status;
        }
        if held.ended.add(ranks, 0, held.ranks_below) {
            let (ranks, status) = (held.ended.ranks, held.end_status);
            self.send_up(Message::Ended { ranks, status });
        }
    }

    fn points(&mut self, query: u32) -> Option<&mut Points> {
        self.held()?.points.as_mut().filter(|points| points.query == query)
    }

    fn gather_points(&mut self, now: Instant, query: u32) {
        let Some(held) = self.held() else { return };
        let mut points = Points::new(now, query);
        for (rank, _) in held.ranks.iter().filter(|(_, kept)| matches!(kept.phase, RankPhase::Exited(_))) {
            points.add_rank(*rank, PointSummary::FINALIZING);
        }
        held.points = Some(points);
        self.flush_points();
    }

    pub(super) fn flush_points(&mut self) {
        let Some(held) = self.held() else { return };
        if let Some(points) = held.points.take_if(|points| points.summary.ranks >= held.ranks_below) {
            self.send_up(Message::PointReport { query: points.query, summary: points.summary });
        }
    }

    fn gather_images(&mut self, epoch: Epoch) {
        let Some(held) = self.held() else { return };
        // Images of ranks that cut because of traffic may have come before the command.
        if held.images.as_ref().is_none_or(|images| images.epoch < epoch) {
            held.images = Some(Images::new(epoch));
        }
        let ended = held.ranks.iter().filter(|(_, kept)| matches!(kept.phase, RankPhase::Exited(_)));
        let ended: Vec<Rank> = ended.map(|(rank, _)| *rank).collect();
        for rank in ended {
            self.write_exited_image(rank);
        }
    }

    /// R12: the keeper writes the image of a rank that cannot.
    pub(super) fn write_exited_image(&mut self, rank: Rank) {
        let Some(held) = self.held() else { return };
        let life = held.life();
        let Some(epoch) = held.images.as_ref().map(|images| images.epoch) else { return };
        let Some(record) = held.ranks.get(&rank).and_then(super::ranks::KeptRank::record) else { return };
        let generation = GenerationId { life, epoch };
        self.outputs.push(Output::WriteExitedImage { rank, generation, record });
    }

    pub(super) fn on_images(&mut self, epoch: Epoch, reports: &[ImageReport]) {
        let at_once = self.sabotage.is_out(Rule::CommitFirst);
        let Some(held) = self.held() else { return };
        let current = held.images.as_ref().map(|images| images.epoch);
        if current.is_none_or(|current| current < epoch) {
            held.images = Some(Images::new(epoch));
        }
        let Some(images) = held.images.as_mut().filter(|images| images.epoch == epoch) else { return };
        for reports in images.add(reports, held.ranks_below, at_once) {
            self.send_up(Message::Images { epoch, reports });
        }
    }

    /// Passes on the first word that an epoch is spoiled, and no further one.
    pub(super) fn on_no_image(&mut self, epoch: Epoch, rank: Rank, reason: NoImageReason) {
        let again = self.sabotage.is_out(Rule::EpochReuse);
        let Some(held) = self.held() else { return };
        if held.spoiled < Some(epoch) || again {
            held.spoiled = Some(epoch);
            self.send_up(Message::NoImage { epoch, rank, reason });
        }
    }

    fn on_closed_query(&mut self, port: PortId, peer: PortId) {
        let node = self.node;
        let here = self.held().and_then(|held| held.layout.towards(node, port.rank()))
            == Some(Party::Rank(port.rank()));
        if !here {
            self.route(port.rank(), Message::ClosedQuery { port, peer });
            return;
        }
        let link = self.held().and_then(|held| held.ranks.get(&port.rank())?.closed_link(port, peer));
        self.route(peer.rank(), Message::ClosedAnswer { port, peer, link });
    }
}
