//! The ranks of one node, as their keeper sees them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use transport::{Epoch, PortId, Rank};

use crate::control::{ClosedLink, ClosedPort, CutMode, ExitedRecord};
use crate::limits::{CLOSED_LINKS_MAX, CLOSED_PORTS_MAX};
use crate::names::ExitStatus;

/// How far a rank is.
///
/// ```text
///   Spawning --Hello--> Attached --Running--> Running --Finalize--> Finalizing
///      |                   |                     |                      |
///      |                   |                     | all ports closed     | released
///      | status 0          |                     | and status 0         |
///      v                   |                     v                      v
///   Exited <---------------|---------------------+----------------------+
///                          v
///   Dead  <------ its process ended in any other way, from anywhere
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankPhase {
    /// Its process is being started, restored, or has not sent anything yet.
    Spawning,
    /// It can be reached.
    Attached,
    /// It runs its program.
    Running,
    /// It waits for all others to finish.
    Finalizing,
    /// It has ended as it should (R12): its keeper answers for it.
    Exited(ExitStatus),
    /// It has ended as it should not.
    Dead,
}

/// One rank.
#[derive(Clone, Debug)]
pub(crate) struct KeptRank {
    pub(crate) phase: RankPhase,
    /// Whether a process of it exists, or may come to exist.
    pub(crate) alive: bool,
    pub(crate) mode: CutMode,
    /// Highest epoch seen in its messages.
    pub(crate) epoch: Epoch,
    open_ports: Vec<PortId>,
    closed: BTreeMap<PortId, Vec<ClosedLink>>,
    /// A closed port of which parts are still coming.
    closing: Option<(PortId, Vec<ClosedLink>)>,
    /// It waited for all others to finish when it ended as it should not have.
    died_finalizing: bool,
}

impl KeptRank {
    pub(crate) fn new(epoch: Epoch) -> KeptRank {
        KeptRank {
            phase: RankPhase::Spawning,
            alive: true,
            mode: CutMode::Instant,
            epoch,
            open_ports: Vec::new(),
            closed: BTreeMap::new(),
            closing: None,
            died_finalizing: false,
        }
    }

    /// A rank that had ended before the generation was taken.
    pub(crate) fn exited(epoch: Epoch, record: ExitedRecord) -> KeptRank {
        let mut rank = KeptRank::new(epoch);
        rank.phase = RankPhase::Exited(record.status);
        rank.alive = false;
        rank.closed = record.ports.into_iter().map(|port| (port.port, port.links)).collect();
        rank
    }

    pub(crate) fn attach(&mut self, mode: CutMode, ports: Vec<PortId>) {
        self.phase = RankPhase::Attached;
        self.mode = mode;
        self.open_ports = ports;
    }

    /// Takes a part of a closed port's counters.
    pub(crate) fn close(&mut self, port: PortId, links: Vec<ClosedLink>, last: bool) {
        let held = match self.closing.take() {
            Some((closing, mut held)) if closing == port => {
                held.extend(links);
                held
            }
            _ => links,
        };
        let links_total: usize = self.closed.values().map(Vec::len).sum::<usize>() + held.len();
        if links_total > CLOSED_LINKS_MAX || self.closed.len() >= CLOSED_PORTS_MAX {
            return;
        }
        if last {
            self.open_ports.retain(|open| *open != port);
            self.closed.insert(port, held);
        } else {
            self.closing = Some((port, held));
        }
    }

    /// Nobody can need its ports any more.
    pub(crate) fn abandon_ports(&mut self) {
        self.open_ports.clear();
    }

    /// R37: the job goes on without it. Returns the phase in which it is to be counted as ended; `None` if it has been.
    pub(crate) fn lose(&mut self, status: ExitStatus) -> Option<RankPhase> {
        if self.phase != RankPhase::Dead {
            return None;
        }
        self.phase = RankPhase::Exited(status);
        self.abandon_ports();
        Some(if self.died_finalizing { RankPhase::Finalizing } else { RankPhase::Running })
    }

    /// R12: the final counters of `port` towards `peer`.
    pub(crate) fn closed_link(&self, port: PortId, peer: PortId) -> Option<ClosedLink> {
        self.closed.get(&port)?.iter().find(|link| link.peer == peer).copied()
    }

    /// The record in its image from the next cut on, if it has ended.
    pub(crate) fn record(&self) -> Option<ExitedRecord> {
        let RankPhase::Exited(status) = self.phase else { return None };
        let ports = self.closed.iter().map(|(port, links)| ClosedPort { port: *port, links: links.clone() });
        Some(ExitedRecord { status, ports: ports.collect() })
    }

    /// Notes that the process has ended. Whether it was meant to: a program that never spoke to us may simply be done; one
    /// that did must have closed its ports, or waited for all others.
    pub(crate) fn end(&mut self, status: ExitStatus, released: bool) -> bool {
        self.alive = false;
        self.died_finalizing = self.phase == RankPhase::Finalizing;
        let meant = match self.phase {
            RankPhase::Spawning => status.is_success(),
            RankPhase::Finalizing => released,
            RankPhase::Attached | RankPhase::Running => status.is_success() && self.open_ports.is_empty(),
            RankPhase::Exited(_) | RankPhase::Dead => return true,
        };
        self.phase = if meant { RankPhase::Exited(status) } else { RankPhase::Dead };
        meant
    }
}

/// Ranks by number.
pub(crate) type KeptRanks = BTreeMap<Rank, KeptRank>;
