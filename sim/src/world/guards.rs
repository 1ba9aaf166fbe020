//! The lock of a node, its guards, and keepers that stand still (R30).

use ckpt_glue::keeper::Input;

use super::event::Task;
use super::{World, at};
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::judge::Violation;
use crate::trace;

/// Time between two attempts to take a lock.
const LOCK_EVERY: Nanos = 50 * MICRO;
/// A guard waits for so long after a lease, because the keeper ends its ranks itself.
const GUARD_GRACE: Nanos = MILLI;
/// After this time no rank may run whose lease is over: clocks drift, and killing takes its time.
const OUTLIVED_GRACE: Nanos = 2 * MILLI;
/// A keeper without a life that has heard nothing from its launcher for so long ends.
pub(crate) const LINK_SILENT: Nanos = 100 * MILLI;

impl World {
    /// A keeper takes the lock of its node: as soon as the keeper that has it, and all processes that this one has begun, are gone.
    pub(crate) fn take_lock(&mut self, keeper: u32) {
        let shell = &self.keepers[at(keeper)];
        if !shell.alive {
            return;
        }
        let (node, is_stopped) = (shell.node, shell.stopped_until > self.queue.now());
        let place = (node, shell.host);
        let is_held = self.locks.get(&place).copied().is_some_and(|holder| {
            holder != keeper
                && (self.keepers[at(holder)].alive
                    || self.processes.iter().any(|p| p.keeper == holder && p.is_alive()))
        });
        if is_held || is_stopped {
            return self.task_after(LOCK_EVERY, Task::TakeLock { keeper });
        }
        self.locks.insert(place, keeper);
        self.feed_keeper(keeper, Input::Locked);
    }

    /// The guard learns how long the ranks may run.
    pub(crate) fn lease(&mut self, keeper: u32, lease: Option<core::time::Duration>) {
        let until =
            lease.map(|lease| self.queue.now() + u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX / 2));
        self.keepers[at(keeper)].lease_until = until;
        if let Some(until) = until {
            self.task_at(until + GUARD_GRACE, Task::LeaseOver { keeper, until });
        }
    }

    /// A lease is over, if no other one has followed: the guard ends what the keeper has not ended itself.
    pub(crate) fn lease_over(&mut self, keeper: u32, until: Nanos) {
        let shell = &self.keepers[at(keeper)];
        if !shell.alive || shell.lease_until != Some(until) {
            return;
        }
        if !self.sabotage.guardless() {
            trace!(self.trace, self.queue.now(), Actor::Keeper(shell.node), "its guard ends it");
            self.end_keeper(keeper);
        }
        self.task_after(OUTLIVED_GRACE, Task::JudgeLease { keeper, until });
    }

    pub(crate) fn judge_lease(&mut self, keeper: u32, until: Nanos) {
        let shell = &self.keepers[at(keeper)];
        let (node, is_over) = (shell.node, shell.lease_until == Some(until));
        let outlived = self.processes.iter().find(|p| p.keeper == keeper && p.is_alive());
        if let Some(rank) = outlived.filter(|_| is_over).map(|p| p.rank) {
            self.judges.report(Violation::OutlivedLease { node, rank });
        }
    }

    /// A keeper ends, with its ranks; its launcher, if there is one, starts another.
    pub(crate) fn end_keeper(&mut self, keeper: u32) {
        let shell = &self.keepers[at(keeper)];
        let (node, job) = (shell.node, shell.job);
        self.keeper_orphaned(keeper);
        let again = self.timing.below(MILLI);
        self.task_after(again, Task::KeeperAgain { node, job });
    }

    /// The keeper of a node is stopped, or swapped out, or waits for a disk; its ranks run on.
    pub(crate) fn stop_keeper(&mut self, node: u32, lasts: Nanos) {
        let Some(keeper) = self.keepers.iter().rposition(|k| k.alive && k.node == node) else { return };
        self.counts.add(Fault::KeeperStopped);
        self.keepers[keeper].stopped_until = self.queue.now() + lasts;
        let keeper = u32::try_from(keeper).unwrap_or(u32::MAX);
        self.task_after(lasts, Task::KeeperResumes { keeper });
    }

    pub(crate) fn keeper_resumes(&mut self, keeper: u32) {
        if self.keepers[at(keeper)].stopped_until > self.queue.now() {
            return;
        }
        for input in core::mem::take(&mut self.keepers[at(keeper)].waiting) {
            self.feed_keeper(keeper, input);
        }
        if self.keepers[at(keeper)].alive {
            self.handle_keeper_timeout(keeper);
        }
    }

    /// The launcher dies. `cut_off`: no keeper on another node sees the end of its connection.
    pub(crate) fn kill_launcher(&mut self, cut_off: bool) {
        if self.job.is_none() {
            return;
        }
        self.counts.add(if cut_off { Fault::LauncherCutOff } else { Fault::LauncherCrash });
        self.crash_life.get_or_insert(self.life_number);
        self.crashes += 1;
        self.job = None;
        self.orphan_keepers(if cut_off { 0 } else { 75 });
    }

    /// R30: no process of a life begins while one of another life runs.
    pub(crate) fn judge_lives(&mut self, number: u32) {
        let begun = &self.processes[at(number)];
        let other = self.processes.iter().find(|p| p.is_alive() && p.life_number != begun.life_number);
        if let Some(other) = other {
            let found = Violation::TwoLives {
                life: begun.life_number,
                other: other.life_number,
                rank: other.rank,
                node: other.node,
            };
            self.judges.report(found);
        }
    }
}
