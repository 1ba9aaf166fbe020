//! A rank that goes on elsewhere: its process stands still, and continues with its memory and the state of its ports behind other NICs (R13).
//! The others run, and hear of it in their own time.

use ckpt_glue::enrolment::AddressTable;
use drivers::Driver as _;
use transport::{Port, Rank};

use super::event::Task;
use super::port_freeze::Purpose;
use super::process::Phase;
use super::station::Station;
use super::{World, at};
use crate::engine::queue::MICRO;
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::network::nic::{NicId, SimNic};
use crate::trace;

/// The news of a move.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    rank: Rank,
    /// How often it has moved in its life.
    moves: u32,
    /// Where its ports are.
    addresses: AddressTable,
}

impl World {
    /// A rank stands still to go on elsewhere, if it runs and its image is not being written.
    pub(crate) fn move_rank(&mut self, rank: u32, lasts: u64) {
        let Some(number) = self.process_of(Rank(rank)) else { return };
        let process = &self.processes[at(number)];
        if process.phase != Phase::Running || process.writing.is_some() {
            return;
        }
        self.counts.add(Fault::RankMoved);
        trace!(self.trace, self.queue.now(), Actor::Rank(rank), "stands still to move");
        self.freeze_for(number, Purpose::Move { lasts });
    }

    /// It goes on. Half of the NICs have the addresses of before: frames to the old process may reach the new one.
    pub(crate) fn arrive(&mut self, number: u32) {
        if self.processes[at(number)].phase != Phase::Frozen {
            return;
        }
        let (local, rails) = (self.local_time(number), at(self.plan.rails));
        let (rank, moves) = (Rank(self.processes[at(number)].rank), self.processes[at(number)].moves + 1);
        let old = core::mem::take(&mut self.processes[at(number)].stations);
        let stations: Vec<usize> = old.into_iter().map(|station| self.elsewhere(number, station)).collect();
        let process = &mut self.processes[at(number)];
        process.moves = moves;
        process.stations = stations;
        let mut ports: Vec<Port> =
            process.frozen.drain(..).map(|port| port.go_on_elsewhere(local, moves, None)).collect();
        let mut addresses = AddressTable::new();
        for (port, places) in ports.iter_mut().zip(process.stations.chunks(rails)) {
            let add = if self.plan.pulls { Port::add_rail_within_host } else { Port::add_rail };
            let mut own = Vec::new();
            for place in places {
                let nic = &self.stations[*place].nic;
                add(port, nic.local_address(), nic.caps().frame_bytes_max);
                own.push(nic.local_address());
            }
            addresses.insert(port.id(), own);
        }
        process.ports = ports;
        process.addresses.extend(addresses.clone());
        self.set_all_paths(number);
        trace!(self.trace, self.queue.now(), Actor::Rank(rank.0), "has moved, for the {moves}. time");
        let life = self.processes[at(number)].life;
        let peers = self.processes.iter().filter(|p| p.is_alive() && p.life == life && p.number != number);
        for peer in peers.map(|p| p.number).collect::<Vec<_>>() {
            let moved = Box::new(Moved { rank, moves, addresses: addresses.clone() });
            let delay = 1 + self.timing.below(self.plan.control_ns_max);
            self.task_after(delay, Task::HearMoved { process: peer, moved });
        }
        self.runs_again(number);
    }

    /// The NIC in the place of one that the process has left behind.
    fn elsewhere(&mut self, number: u32, old: usize) -> usize {
        let bytes = at(self.frame_bytes_max);
        self.stations[old].close();
        if self.timing.percent(50) {
            self.stations[old].open_for(number, bytes);
            return old;
        }
        let id = NicId(u32::try_from(self.stations.len()).unwrap_or(u32::MAX));
        let Station { rank, slot, node, .. } = self.stations[old];
        let nic = SimNic::new(id, bytes, at(self.plan.nic_frames));
        self.stations.push(Station::new(nic, rank, slot, node));
        let new = self.stations.len() - 1;
        self.stations[new].open_for(number, bytes);
        new
    }

    fn set_all_paths(&mut self, number: u32) {
        for port in 0..self.plan.ports {
            for rail in 0..self.plan.rails {
                self.set_paths(number, port, rail);
            }
        }
    }

    /// A rank hears that another one has moved.
    pub(crate) fn hear_moved(&mut self, number: u32, moved: Box<Moved>) {
        let local = self.local_time(number);
        let process = &mut self.processes[at(number)];
        if !process.is_alive() {
            return;
        }
        if process.phase != Phase::Running {
            return self.task_after(20 * MICRO, Task::HearMoved { process: number, moved });
        }
        let Moved { rank, moves, addresses } = *moved;
        let are_news = process.ports.iter_mut().map(|port| port.peer_moved(local, rank, moves));
        if !are_news.fold(false, core::ops::BitOr::bitor) {
            return;
        }
        process.addresses.extend(addresses);
        trace!(self.trace, self.queue.now(), Actor::Rank(process.rank), "hears that rank {rank} has moved");
        self.set_all_paths(number);
        self.wake(number, self.queue.now() + 1);
    }
}
