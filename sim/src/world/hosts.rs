//! Hosts that vanish without a word, and spare ones that take the place of their nodes (R31, R32).
//!
//! A node is a number, a part of the ranks, and a directory; it lies on a host. Host `n` is that of node `n`; further ones are spare. A host that is cut
//! off runs on: messages of control to and from it arrive when the cut is over, in order, as those of a connection that nobody has closed.

use ckpt_glue::NodeIndex;
use ckpt_glue::control::JobPhase;
use ckpt_glue::job::Input;
use ckpt_glue::protection::nodes::Input as NodesInput;

use super::coordinator::HEAD_NODE;
use super::event::{Endpoint, Task};
use super::node_disks::NodeDisk;
use super::{World, at};
use crate::engine::queue::{MICRO, Nanos};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::judge::Violation;
use crate::trace;

/// Longest time from the end of a cut until a keeper sees that its launcher has closed the connection meanwhile.
const CLOSED_MAX: Nanos = 500 * MICRO;

impl World {
    /// The host of a node is cut off from all others, for messages of control. The launcher's own never is.
    pub(crate) fn cut_off(&mut self, node: u32, lasts: Nanos) {
        let host = self.hosts[at(node)];
        if node == HEAD_NODE {
            return;
        }
        self.counts.add(Fault::HostCutOff);
        let until = self.queue.now() + lasts;
        let cut = self.cuts.entry(host).or_default();
        *cut = (*cut).max(until);
    }

    /// When something that would reach or leave this host at `time` does so.
    pub(crate) fn past_cut(&self, host: u32, time: Nanos) -> Nanos {
        self.cuts.get(&host).map_or(time, |until| time.max(*until))
    }

    /// When a message of control arrives that would do so at `time`.
    pub(crate) fn past_cuts(&self, from: Endpoint, to: Endpoint, time: Nanos) -> Nanos {
        let host = |endpoint| match endpoint {
            Endpoint::Job(_) => Some(self.hosts[at(HEAD_NODE)]),
            Endpoint::Keeper(keeper) => Some(self.keepers[at(keeper)].host),
            // A rank speaks with the keeper beside it.
            Endpoint::Process(_) => None,
        };
        match (host(from), host(to)) {
            (Some(from), Some(to)) if from != to => self.past_cut(to, self.past_cut(from, time)),
            _ => time,
        }
    }

    /// Whether the launcher still has a connection to this keeper: it has closed that of a host whose node it has given away.
    pub(crate) fn is_connected(&self, keeper: u32) -> bool {
        let shell = &self.keepers[at(keeper)];
        shell.host == self.hosts[at(shell.node)]
    }

    /// The coordinator wants another host in the place of a node's (R32).
    pub(crate) fn replace(&mut self, job: u32, node: u32) {
        let old = self.hosts[at(node)];
        if !self.give_away(node) {
            self.feed_job(job, Input::NotReplaced { node: NodeIndex(node) });
        } else {
            // The launcher closes the connection to the old host.
            let there = (0..).zip(&self.keepers).filter(|(_, keeper)| keeper.alive && keeper.host == old);
            for keeper in there.map(|(number, _)| number).collect::<Vec<_>>() {
                let closed = self.past_cut(old, self.queue.now()) + self.timing.log_between(1, CLOSED_MAX);
                self.task_at(closed, Task::KeeperOrphaned { keeper });
            }
            self.feed_nodes(job, NodesInput::KeeperLost(NodeIndex(node)));
            self.start_keeper(job, node);
            self.feed_job(job, Input::NodeReplaced { node: NodeIndex(node) });
        }
    }

    /// A person says that a node is failing. Only a job that runs is asked; the launcher's own host keeps its place.
    pub(crate) fn suspect(&mut self, node: u32) {
        let Some(job) = &self.job else { return };
        if job.machine.status().phase == JobPhase::Running && node != HEAD_NODE {
            self.counts.add(Fault::NodeSuspected);
            let number = job.number;
            self.feed_job(number, Input::Suspect { node: NodeIndex(node) });
        }
    }

    /// R33: a life is ended for the silence of a node. A new keeper that says hello reports the end of the one before it, and nobody was silent.
    pub(crate) fn judge_declared(&mut self, job: u32, node: u32) {
        if self.greeting == Some(node) {
            return;
        }
        if !self.suspected.contains(&node) {
            self.judges.report(Violation::DeclaredUnsuspected { node });
        }
        let now = self.queue.now();
        let is_leased = |number: u32| {
            let keeper = &self.keepers[at(number)];
            keeper.job == job && keeper.node == node && keeper.lease_until.is_some_and(|until| until > now)
        };
        let runs = self.processes.iter().any(|process| process.is_alive() && is_leased(process.keeper));
        if runs {
            self.judges.report(Violation::EndedWhileLeased { node });
        }
    }

    /// An operator starts the job again: every other time without the hosts that do not answer, else with the same ones, whose places the launcher may give
    /// away. Returns whether ranks may run on a host that is left out now, or was by a launcher that ended before all ranks ran.
    pub(crate) fn leave_out(&mut self) -> bool {
        let now = self.queue.now();
        let is_cut = |world: &World, node: &u32| world.past_cut(world.hosts[at(*node)], now) > now;
        if !self.operator_restarts.is_multiple_of(2) {
            let cut: Vec<u32> = (0..self.plan.nodes).filter(|node| is_cut(self, node)).collect();
            for node in cut {
                self.give_away(node);
            }
        }
        self.ranked_hosts.iter().any(|host| !self.hosts.contains(host))
    }

    /// All ranks run: on no other host than these any more.
    pub(crate) fn note_hosts(&mut self) {
        self.ranked_hosts = self.hosts.iter().copied().collect();
    }

    /// A spare host takes the place of a node's. What lies in its directory there is lost; so a host is waited for whose loss is more than the nodes
    /// protect each other against.
    fn give_away(&mut self, node: u32) -> bool {
        let is_bearable = !self.has_node_disks() || self.may_lose(node);
        if self.spares_left == 0 || node == HEAD_NODE || !is_bearable {
            return false;
        }
        let host = self.plan.nodes + self.plan.spares - self.spares_left;
        self.spares_left -= 1;
        self.counts.add(Fault::HostReplaced);
        trace!(self.trace, self.queue.now(), Actor::Plan, "host {host} takes the place of node {node}");
        self.hosts[at(node)] = host;
        self.ranked_hosts.insert(host);
        self.nodes[at(node)].up = true;
        if self.has_node_disks() {
            self.node_disks[at(node)] = NodeDisk::default();
            self.gone.insert(node, self.queue.now());
        }
        true
    }
}
