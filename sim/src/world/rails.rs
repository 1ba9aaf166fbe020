//! R29: all ranks go over another NIC while they run. The coordinator's machine leads; here are its shell and that of the ranks.
//!
//! A history with such a change has two places for a NIC for each port, one of which is free.

use std::collections::VecDeque;

use ckpt_glue::control::{JobPhase, Message, NicText, PortEntry};
use ckpt_glue::enrolment::AddressTable;
use ckpt_glue::rails::{Input, Output, RailChange};
use drivers::Driver as _;
use transport::{Instant, Life, LinkIndex, RailIndex, Rank};

use super::event::Task;
use super::process::Phase;
use super::{World, at};
use crate::engine::queue::{MICRO, Nanos};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::trace;

/// Time between two looks of a rank whether anything needs its old NIC.
const LOOK: Nanos = 20 * MICRO;
/// Of so many ranks one cannot open the NIC.
const OPENED_OF: u64 = 24;

/// The coordinator's part.
#[derive(Debug)]
pub(crate) struct Change {
    machine: RailChange,
    life: Life,
    frame_bytes_max: u32,
}

/// A rank's part.
#[derive(Debug, Default)]
pub(crate) struct RankRails {
    /// Unread messages, in order; when the next may come.
    mailbox: VecDeque<Message>,
    reported_at: Nanos,
    /// The rail that it has.
    rail: u32,
    /// Number of the change for which it has another one.
    number: Option<u64>,
    places: AddressTable,
    /// It looks whether anything needs the old one, before the decision or after it.
    step: Option<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Meeting,
    Closing,
}

fn index(rail: u32) -> RailIndex {
    RailIndex(u8::try_from(rail).unwrap_or(0))
}

impl World {
    /// Requests the change; tries again until `until` if the job does not run.
    pub(crate) fn change_rails(&mut self, frame_bytes_max: u32, until: Nanos) {
        if self.plan.rails != 2 {
            return;
        }
        let now = self.queue.now();
        let status = self.job.as_ref().map(|job| job.machine.status());
        let runs = |phase| matches!(phase, JobPhase::Running | JobPhase::Finishing);
        let life = status.filter(|status| runs(status.phase)).and_then(|status| status.life);
        let Some(life) = life.filter(|_| self.change.is_none()) else {
            if now < until {
                self.task_after(200 * MICRO, Task::ChangeRails { frame_bytes_max, until });
            }
            return;
        };
        let ranks = (0..self.plan.ranks).map(Rank).filter(|rank| {
            self.process_of(*rank).is_some_and(|process| self.processes[at(process)].life == life)
        });
        let (ranks, number) = (ranks.collect(), now);
        let nic = NicText::new(&frame_bytes_max);
        let machine = RailChange::new(Instant::from_nanos(now), number, nic, ranks, self.sabotage.glue());
        self.change = Some(Change { machine, life, frame_bytes_max });
        self.run_change();
    }

    fn run_change(&mut self) {
        while let Some(change) = &mut self.change
            && let Some(output) = change.machine.poll_output()
        {
            let life = change.life;
            match output {
                Output::Tell { ranks, message } => {
                    for rank in ranks {
                        let Some(process) = self.process_of(rank) else { continue };
                        let delay = 500 + self.timing.below(self.plan.control_ns_max);
                        let rails = &mut self.processes[at(process)].rails;
                        // A stream keeps its order.
                        rails.reported_at = (rails.reported_at + 1).max(self.queue.now() + delay);
                        let (when, message) = (rails.reported_at, Box::new(message.clone()));
                        self.task_at(when, Task::RailMessage { process, life, message });
                    }
                }
                Output::Decided => self.frame_bytes_max = change.frame_bytes_max,
                Output::Over { changed, refused } => {
                    let now = self.queue.now();
                    trace!(self.trace, now, Actor::Plan, "change of rails: {changed}, {refused:?}");
                    if changed {
                        self.counts.add(Fault::RailsChanged);
                    }
                    self.change = None;
                }
            }
        }
        if let Some(due) = self.change.as_ref().and_then(|change| change.machine.poll_timeout()) {
            self.task_at(due.as_nanos().max(self.queue.now()), Task::RailsDue);
        }
    }

    fn report_change(&mut self, life: Life, input: Input) {
        let now = Instant::from_nanos(self.queue.now());
        if let Some(change) = self.change.as_mut().filter(|change| change.life == life) {
            change.machine.handle(now, input);
            self.run_change();
        }
    }

    pub(crate) fn rails_due(&mut self) {
        let now = Instant::from_nanos(self.queue.now());
        if let Some(change) = &mut self.change {
            change.machine.handle_timeout(now);
            if change.machine.poll_timeout().is_none_or(|due| due > now) {
                self.run_change();
            }
        }
    }

    /// A rank's answer has come.
    pub(crate) fn rail_said(&mut self, life: Life, rank: Rank, message: Message) {
        self.report_change(life, Input::Said { rank, message });
    }

    /// A process is gone.
    pub(crate) fn rails_of_dead(&mut self, life: Life, rank: Rank) {
        self.report_change(life, Input::Ended { rank });
    }

    /// A life begins: changes under way in another one are over.
    pub(crate) fn rails_of_new_life(&mut self, life: Life) {
        let other = self.change.as_ref().map(|change| change.life).filter(|of| *of != life);
        if let Some(other) = other {
            self.report_change(other, Input::LifeOver);
        }
    }

    pub(crate) fn rail_message(&mut self, number: u32, life: Life, message: Message) {
        let process = &mut self.processes[at(number)];
        if process.is_alive() && process.life == life {
            process.rails.mailbox.push_back(message);
            self.look_at_rails(number);
        }
    }

    /// Reads a rank's messages, and checks whether anything needs its old NIC: as soon as it runs.
    pub(crate) fn look_at_rails(&mut self, number: u32) {
        loop {
            let process = &mut self.processes[at(number)];
            if !process.is_alive() {
                return;
            }
            if process.phase != Phase::Running || process.stalled_until > self.queue.now() {
                let again = process.rails.step.is_some() || !process.rails.mailbox.is_empty();
                if again {
                    self.task_after(LOOK, Task::RailLook { process: number });
                }
                return;
            }
            let Some(message) = process.rails.mailbox.pop_front() else { break };
            match message {
                Message::OpenRail { number: change, nic, .. } => self.open_rail(number, change, &nic),
                Message::MeetRails { number: change, ports, last } => {
                    self.meet_rails(number, change, ports, last);
                }
                Message::ChangeRails { number: change, decided } => {
                    let rails = &mut self.processes[at(number)].rails;
                    if rails.number == Some(change) && decided {
                        rails.step = Some(Step::Closing);
                    } else if rails.number == Some(change) {
                        let new = 1 - rails.rail;
                        self.close_rail(number, new);
                    }
                }
                _ => {}
            }
        }
        self.end_step(number);
    }

    fn say(&mut self, number: u32, message: Message) {
        let process = &self.processes[at(number)];
        let (life, rank) = (process.life, Rank(process.rank));
        let delay = 500 + self.timing.below(self.plan.control_ns_max);
        self.task_after(delay, Task::RailSaid { life, rank, message: Box::new(message) });
    }

    fn open_rail(&mut self, number: u32, change: u64, nic: &NicText) {
        let free = 1 - self.processes[at(number)].rails.rail;
        let is_taken = (0..self.plan.ports).any(|port| {
            let station = self.processes[at(number)].stations[at(port * self.plan.rails + free)];
            self.stations[station].process.is_some()
        });
        let refuses = self.timing.below(OPENED_OF) == 0 || is_taken;
        let (Ok(bytes), false) = (nic.as_str().parse::<u32>(), refuses) else {
            let refused = NicText::new(&"it has none");
            let answer = Message::RailOpened { number: change, in_place: false, ports: Vec::new(), refused };
            return self.say(number, answer);
        };
        let new = 1 - self.processes[at(number)].rails.rail;
        let mut ports = Vec::new();
        for port in 0..self.plan.ports {
            let process = &mut self.processes[at(number)];
            let station = &mut self.stations[process.stations[at(port * self.plan.rails + new)]];
            station.open_for(number, at(bytes));
            let address = station.nic.local_address();
            let machine = &mut process.ports[at(port)];
            let added = machine.add_further_rail(address, at(bytes));
            assert_eq!(added, Some(index(new)), "a port has two places for rails here");
            ports.push(PortEntry { port: machine.id(), rails: vec![address] });
        }
        let rails = &mut self.processes[at(number)].rails;
        (rails.number, rails.step) = (Some(change), None);
        rails.places.clear();
        let refused = NicText::default();
        self.say(number, Message::RailOpened { number: change, in_place: false, ports, refused });
    }

    fn meet_rails(&mut self, number: u32, change: u64, ports: Vec<PortEntry>, last: bool) {
        let rails = &mut self.processes[at(number)].rails;
        if rails.number == Some(change) {
            rails.places.extend(ports.into_iter().map(|entry| (entry.port, entry.rails)));
            rails.step = last.then_some(Step::Meeting);
        }
    }

    /// Says where all peers are on the new rail; ends the step if nothing needs the old one.
    fn end_step(&mut self, number: u32) {
        let Some(step) = self.processes[at(number)].rails.step else { return };
        let (old, rails_of_port) = (self.processes[at(number)].rails.rail, self.plan.rails);
        let new = 1 - old;
        let mut needed = 0;
        for port in 0..self.plan.ports {
            let process = &mut self.processes[at(number)];
            let nic = &mut self.stations[process.stations[at(port * rails_of_port + new)]].nic;
            let machine = &mut process.ports[at(port)];
            for link in (0..machine.links()).filter_map(|link| u32::try_from(link).ok()).map(LinkIndex) {
                let peer = machine.peer(link);
                let place = peer.and_then(|peer| process.rails.places.get(&peer)?.last());
                if let Some(Ok(place)) = place.map(|place| nic.resolve(place)) {
                    machine.set_path(link, index(new), place);
                }
            }
            needed = needed.max(machine.longest_on_its_way(index(old)));
        }
        let wake = self.queue.now() + 1;
        self.wake(number, wake);
        if needed > 0 {
            return self.task_after(LOOK, Task::RailLook { process: number });
        }
        let rails = &mut self.processes[at(number)].rails;
        rails.step = None;
        let change = rails.number.unwrap_or(0);
        let refused = NicText::default();
        match step {
            Step::Meeting => self.say(number, Message::RailsMet { number: change, refused }),
            Step::Closing => {
                self.close_rail(number, old);
                self.processes[at(number)].rails.rail = new;
                self.say(number, Message::HandedOver { number: change, refused });
            }
        }
    }

    fn close_rail(&mut self, number: u32, rail: u32) {
        for port in 0..self.plan.ports {
            let process = &mut self.processes[at(number)];
            self.stations[process.stations[at(port * self.plan.rails + rail)]].leave();
            process.ports[at(port)].retire_rail(index(rail));
        }
        let rails = &mut self.processes[at(number)].rails;
        (rails.number, rails.step) = (None, None);
        let wake = self.queue.now() + 1;
        self.wake(number, wake);
    }
}
