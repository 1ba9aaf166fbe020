//! Control messages between coordinator, keepers and ranks: connections that keep order while they last.

use ckpt_glue::{Control, Message, NodeIndex, Party, job, keeper};
use transport::Rank;

use super::World;
use super::event::{Endpoint, Task};
use super::process::Process;
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::trace::Actor;
use crate::trace;

/// One message in so many is held up for long, as when a process is not scheduled.
const HELD_UP_ONE_IN: u64 = 400;
/// For so long at most.
const HELD_UP_MAX: Nanos = 8 * MILLI;

/// A connection between two parties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    one: Endpoint,
    other: Endpoint,
    /// When the last message in each direction arrives: later ones never overtake it.
    last: [Nanos; 2],
    /// Breaks so far: messages sent before a break are lost.
    breaks: u32,
}

fn same(endpoint: Endpoint, other: Endpoint) -> bool {
    endpoint == other
}

impl World {
    fn connection(&mut self, from: Endpoint, to: Endpoint) -> (usize, usize) {
        let found = self
            .connections
            .iter()
            .position(|c| same(c.one, from) && same(c.other, to) || same(c.one, to) && same(c.other, from));
        let at = found.unwrap_or_else(|| {
            self.connections.push(Connection { one: from, other: to, last: [0; 2], breaks: 0 });
            self.connections.len() - 1
        });
        (at, usize::from(self.connections[at].one != from))
    }

    /// Breaks every connection of `endpoint`: messages in flight are lost.
    pub(crate) fn break_connections(&mut self, endpoint: Endpoint) {
        for connection in &mut self.connections {
            if same(connection.one, endpoint) || same(connection.other, endpoint) {
                connection.breaks += 1;
            }
        }
    }

    /// The present incarnation of a party, as `from` is connected.
    fn endpoint(&self, from: Endpoint, to: Party) -> Option<Endpoint> {
        let keepers_job = |keeper: u32| self.keepers.get(super::at(keeper)).map(|k| k.job);
        match (from, to) {
            (Endpoint::Keeper(keeper), Party::Coordinator | Party::Keeper(_))
                if !self.is_connected(keeper) =>
            {
                None
            }
            (Endpoint::Keeper(keeper), Party::Coordinator) => keepers_job(keeper).map(Endpoint::Job),
            (Endpoint::Job(job), Party::Keeper(node)) => self.keeper_of(job, node).map(Endpoint::Keeper),
            (Endpoint::Keeper(keeper), Party::Keeper(node)) => {
                self.keeper_of(keepers_job(keeper)?, node).map(Endpoint::Keeper)
            }
            (Endpoint::Keeper(keeper), Party::Rank(rank)) => {
                let mine = |p: &&super::Process| p.keeper == keeper && p.rank == rank.0 && p.is_alive();
                self.processes.iter().rfind(mine).map(|p| Endpoint::Process(p.number))
            }
            (Endpoint::Process(process), Party::Keeper(_)) => {
                self.processes.get(super::at(process)).map(|p| Endpoint::Keeper(p.keeper))
            }
            _ => None,
        }
    }

    fn keeper_of(&self, job: u32, node: NodeIndex) -> Option<u32> {
        let at = self.keepers.iter().rposition(|k| k.job == job && k.node == node.0 && k.alive)?;
        u32::try_from(at).ok()
    }

    /// Sends `control` on its way.
    pub(crate) fn send_control(&mut self, from: Endpoint, to: Party, control: Control) {
        let Some(endpoint) = self.endpoint(from, to) else {
            trace!(
                self.trace,
                self.queue.now(),
                self.who(from),
                "ctl to {to}: not connected, {:?}",
                control.message
            );
            return;
        };
        trace!(self.trace, self.queue.now(), self.who(from), "ctl to {to}: {:?}", control.message);
        let (at, direction) = self.connection(from, endpoint);
        let mut delay = 500 + self.timing.below(self.plan.control_ns_max);
        if self.timing.below(HELD_UP_ONE_IN) == 0 {
            delay += self.timing.log_between(50 * MICRO, HELD_UP_MAX);
        }
        let now = self.queue.now();
        let connection = &mut self.connections[at];
        let arrives = (now + delay).max(connection.last[direction] + 1);
        connection.last[direction] = arrives;
        let breaks = connection.breaks;
        let control = Box::new(control);
        self.control_messages += 1;
        self.task_at(arrives, Task::Control { to: endpoint, from, control, connection: breaks });
    }

    pub(crate) fn deliver_control(&mut self, to: Endpoint, from: Endpoint, control: Control, breaks: u32) {
        let arrives = self.past_cuts(from, to, self.queue.now());
        if arrives > self.queue.now() {
            let control = Box::new(control);
            return self.task_at(arrives, Task::Control { to, from, control, connection: breaks });
        }
        let (at, _) = self.connection(from, to);
        // The launcher carries the messages of keepers to each other, too.
        let is_closed = matches!((from, to), (Endpoint::Keeper(keeper), Endpoint::Job(_) | Endpoint::Keeper(_)) if !self.is_connected(keeper));
        if self.connections[at].breaks != breaks || is_closed {
            trace!(self.trace, self.queue.now(), self.who(to), "ctl lost: {:?}", control.message);
            return;
        }
        match to {
            Endpoint::Job(job) => {
                self.greeting = match control.message {
                    Message::KeeperHello { node } => Some(node.0),
                    _ => None,
                };
                self.feed_job(job, job::Input::Control(control));
                self.greeting = None;
            }
            Endpoint::Keeper(keeper) => self.feed_keeper(keeper, keeper::Input::Control(control)),
            Endpoint::Process(process) => self.feed_rank(process, control),
        }
    }

    pub(crate) fn who(&self, endpoint: Endpoint) -> Actor {
        match endpoint {
            Endpoint::Job(_) => Actor::Coordinator,
            Endpoint::Keeper(keeper) => Actor::Keeper(self.keepers[super::at(keeper)].node),
            Endpoint::Process(process) => Actor::Rank(self.processes[super::at(process)].rank),
        }
    }

    /// The process that runs `rank` now, of the newest life.
    pub(crate) fn process_of(&self, rank: Rank) -> Option<u32> {
        self.newest_process(rank.0, Process::is_alive).map(|p| p.number)
    }

    /// The process of `rank` that began last in its newest life. A keeper that is cut off may begin one of an older life later.
    pub(crate) fn newest_process(&self, rank: u32, wanted: impl Fn(&Process) -> bool) -> Option<&Process> {
        let of_rank = self.processes.iter().filter(|p| p.rank == rank && wanted(p));
        of_rank.max_by_key(|p| (p.life_number, p.number))
    }
}
