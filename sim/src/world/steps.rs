//! The plan, carried out: commands and faults.

use ckpt_glue::control::JobPhase;
use store::storage::Fault as DiskFault;

use super::coordinator::HEAD_NODE;
use super::event::{Endpoint, Task};
use super::guards::LINK_SILENT;
use super::keepers::KILLED;
use super::process::Phase;
use super::{Partition, World, at};
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::trace::Actor;
use crate::faults::Fault;
use crate::plan::{Action, Moment, When, Which};
use crate::trace;

/// Longest time until a keeper on another node sees that its coordinator is gone.
const ORPHAN_MAX: Nanos = 3 * MILLI;
/// For how long a patient person waits before asking for a checkpoint.
const PATIENCE_MAX: Nanos = 5 * MILLI;
/// How often such a person looks.
const LOOK_EVERY: Nanos = 25 * MICRO;

impl World {
    /// Puts the steps that wait for a time into the queue, and sorts those that wait for frames.
    pub(crate) fn prepare_steps(&mut self) {
        if self.plan.calm {
            self.task_after(0, Task::AskInCalm);
        }
        for (index, step) in self.plan.steps.iter().enumerate() {
            match step.when {
                When::Frames(frames) => self.steps_by_frames.push((frames, index)),
                When::At(_) | When::On { .. } => {}
            }
        }
        self.steps_by_frames.sort_unstable_by(|a, b| b.cmp(a));
        for index in 0..self.plan.steps.len() {
            if let When::At(when) = self.plan.steps[index].when {
                self.task_at(when, Task::Step { step: index, cause: None });
            }
        }
    }

    /// Steps that wait for so many frames.
    pub(crate) fn frames_passed(&mut self) {
        while let Some((_, step)) =
            self.steps_by_frames.pop_if(|(frames, _)| *frames <= self.frames_delivered)
        {
            self.task_after(0, Task::Step { step, cause: None });
        }
    }

    /// Whether everything has happened that must happen before the program may end.
    fn floors_reached(&self) -> bool {
        self.other_floors_reached() && !self.awaits_calm()
    }

    /// All but a checkpoint in calm.
    pub(crate) fn other_floors_reached(&self) -> bool {
        let floors = &self.plan.floors;
        self.frames_delivered >= floors.frames
            && self.checkpoint_commands >= floors.commands
            && self.restarts >= floors.restarts
    }

    /// A rank has come to the last round: the program gets another one if the history is not whole yet.
    pub(crate) fn last_round(&mut self) {
        if !self.floors_reached() {
            self.script.lengthen();
        }
    }

    /// The moment of the first crash has not come in time, or there was nothing to crash: it happens now.
    pub(crate) fn crash_overdue(&mut self) {
        let floors = &self.plan.floors;
        if self.crashes > 0 || floors.restarts == 0 || self.frames_delivered < floors.crash_by_frames {
            return;
        }
        let crashes = |action: &Action| matches!(action, Action::CrashProcess(_) | Action::CrashNode { .. });
        let step = self.plan.steps.iter().position(|step| crashes(&step.action));
        if let Some(step) = step {
            self.perform_step(step, None);
        }
    }

    /// All ranks of the newest life run, perhaps after a crash.
    pub(crate) fn count_restart(&mut self) {
        let life = self.life_number;
        let runs = |rank| {
            let newest = self.newest_process(rank, |_| true);
            newest.is_some_and(|p| {
                p.life_number == life && matches!(p.phase, Phase::Running | Phase::Quiescing | Phase::Frozen)
            })
        };
        if self.crash_life.is_some_and(|crashed| crashed < life) && (0..self.plan.ranks).all(runs) {
            self.crash_life = None;
            self.restarts += 1;
        }
    }

    /// A moment that steps may wait for; `cause` is the rank that brought it.
    pub(crate) fn moment(&mut self, moment: Moment, cause: Option<u32>) {
        let count = &mut self.moments[moment as usize];
        let this = *count;
        *count += 1;
        for index in 0..self.plan.steps.len() {
            if let When::On { moment: awaited, nth, after } = self.plan.steps[index].when
                && awaited == moment
                && nth == this
            {
                self.task_after(after, Task::Step { step: index, cause });
            }
        }
    }

    pub(crate) fn perform_step(&mut self, step: usize, cause: Option<u32>) {
        let Some(action) = self.plan.steps.get(step).map(|step| step.action) else { return };
        let now = self.queue.now();
        trace!(self.trace, now, Actor::Plan, "{action:?} cause {cause:?}");
        let mut calm_at = now;
        match action {
            Action::Checkpoint { patient } => {
                let patience = if patient { PATIENCE_MAX } else { 0 };
                self.ask_for_checkpoint(now + patience);
            }
            Action::CrashProcess(which) => self.crash_process(which, cause),
            Action::CrashNode { node, down } => {
                let node = match node {
                    Which::Number(node) => node % self.plan.nodes,
                    which => self.node_of(self.rank_number(which, cause).0),
                };
                calm_at = now + down;
                self.crash_node(node, down);
            }
            Action::StopKeeper { node, lasts } => {
                calm_at = now + lasts;
                self.stop_keeper(node % self.plan.nodes, lasts);
            }
            Action::KillLauncher { cut_off, down } => {
                calm_at = now + down;
                self.kill_launcher(cut_off);
                self.call_operator(down);
            }
            Action::CutOff { node, lasts } => {
                calm_at = now + lasts;
                self.cut_off(node % self.plan.nodes, lasts);
            }
            Action::Suspect { node } => self.suspect(node % self.plan.nodes),
            Action::Move { rank, lasts } => {
                calm_at = now + lasts;
                self.move_rank(rank, lasts);
            }
            Action::DestroyNode { node, down } => {
                let node = node % self.plan.nodes;
                calm_at = now + down;
                if self.may_lose(node) {
                    self.destroy(node);
                }
                self.crash_node(node, down);
            }
            Action::PowerLoss { after, down } => {
                self.power_down = down;
                self.directory.storage().fault_after(after, DiskFault::Crash);
            }
            Action::Partition { one, other, lasts } => {
                self.counts.add(Fault::Partition);
                calm_at = now + lasts;
                self.partitions.push(Partition { one, other, until: now + lasts });
            }
            Action::RailDown { rank, rail, lasts } => {
                calm_at = now + lasts;
                self.rail_down(rank, rail, lasts);
            }
            Action::ChangeRails { frame_bytes_max } => {
                self.change_rails(frame_bytes_max, now + PATIENCE_MAX);
            }
            Action::ClockJump { node, by } => self.jump_clock(node % self.plan.nodes, by),
            Action::BreakControl { node } => self.break_control(node % self.plan.nodes),
            Action::Unsavable { rank, lasts } => {
                if let Some(process) = self.process_of(transport::Rank(rank)) {
                    calm_at = now + lasts;
                    self.set_unsavable(process, Some(1));
                    self.task_after(lasts, Task::Savable { process });
                }
            }
            Action::DiskError { after, full } => {
                let fault = if full { DiskFault::NoSpace } else { DiskFault::Device };
                self.directory.storage().fault_after(after, fault);
            }
            Action::Unreadable { lasts } => {
                calm_at = now + lasts;
                self.unreadable_until = self.unreadable_until.max(now + lasts);
            }
            Action::Storm { conditions, lasts } => {
                calm_at = now + lasts;
                self.network.set_conditions(conditions);
                let conditions = self.plan.conditions;
                self.task_after(lasts, Task::Calm { conditions });
            }
            Action::Stall { rank, lasts } => {
                if let Some(process) = self.process_of(transport::Rank(rank)) {
                    calm_at = now + lasts;
                    let until = now + lasts;
                    self.processes[at(process)].stalled_until = until;
                    self.wake(process, until);
                }
            }
        }
        self.calm_at = self.calm_at.max(calm_at);
    }

    /// Asks for a checkpoint as soon as none is under way, at the latest at `until`.
    pub(crate) fn ask_for_checkpoint(&mut self, until: Nanos) {
        let ready = self.job.as_ref().is_some_and(|job| {
            let status = job.machine.status();
            status.phase == JobPhase::Running && status.saving.is_none() && !self.asking
        });
        // Without a launcher there is nothing to ask.
        if ready || self.job.is_some() && self.queue.now() >= until {
            self.asking = true;
            self.request_checkpoint();
        } else {
            self.task_after(LOOK_EVERY, Task::Ask { until });
        }
    }

    pub(crate) fn node_of(&self, rank: u32) -> u32 {
        // As `Layout::even` lays them out.
        let (ranks, nodes) = (self.plan.ranks, self.plan.nodes);
        let (share, more) = (ranks / nodes, ranks % nodes);
        let wide = more * (share + 1);
        if rank < wide { rank / (share + 1) } else { more + (rank - wide) / share }
    }

    fn crash_process(&mut self, which: Which, cause: Option<u32>) {
        let rank = self.rank_number(which, cause);
        let Some(process) = self.process_of(rank) else { return };
        self.counts.add(Fault::ProcessCrash);
        self.crashes += 1;
        let entry = &self.processes[at(process)];
        // It may be one that an earlier life has left behind.
        self.crash_life = self.crash_life.max(Some(entry.life_number));
        match entry.phase {
            Phase::Quiescing | Phase::Frozen => self.counts.add(Fault::CrashInFreeze),
            Phase::Restoring | Phase::Enrolling => self.counts.add(Fault::CrashInRestart),
            Phase::Running | Phase::Dead => {}
        }
        if entry.phase == Phase::Running && entry.writing.is_some() {
            self.counts.add(Fault::CrashInDump);
        }
        self.count_crash_in_recovery();
        self.end_process(process, KILLED);
    }

    fn count_crash_in_recovery(&mut self) {
        let phase = self.job.as_ref().map(|job| job.machine.status().phase);
        let recovering = matches!(
            phase,
            Some(JobPhase::Fencing | JobPhase::BackingOff | JobPhase::Deciding | JobPhase::Starting)
        );
        if recovering && self.life_number > 1 {
            self.counts.add(Fault::CrashInRecovery);
        }
    }

    pub(crate) fn crash_node(&mut self, node: u32, down: Nanos) {
        if !self.nodes[at(node)].up {
            return;
        }
        self.counts.add(Fault::NodeCrash);
        self.crashes += 1;
        self.crash_life.get_or_insert(self.life_number);
        self.count_crash_in_recovery();
        trace!(self.trace, self.queue.now(), Actor::Plan, "node {node} loses power for {down} ns");
        self.nodes[at(node)].up = false;
        let host = self.hosts[at(node)];
        let is_there = |p: &&super::Process| self.keepers[at(p.keeper)].host == host && p.is_alive();
        for process in self.processes.iter().filter(is_there).map(|p| p.number).collect::<Vec<_>>() {
            self.bury(process);
        }
        let keepers =
            self.keepers.iter().enumerate().filter(|(_, k)| k.host == host && k.alive).map(|(n, _)| n);
        for keeper in keepers.collect::<Vec<_>>() {
            self.keepers[keeper].alive = false;
            self.keeper_gone(u32::try_from(keeper).unwrap_or(u32::MAX));
        }
        if node == HEAD_NODE {
            if self.job.take().is_some_and(|job| job.machine.status().saving.is_some()) {
                self.counts.add(Fault::CrashInCommit);
            }
            self.lose_unsynced();
            self.judge_newest();
            self.orphan_keepers(75);
        }
        self.task_after(down, Task::NodeUp { node });
        self.calm_at = self.calm_at.max(self.queue.now() + down);
    }

    /// The connections of a node's keeper break. Lost messages are unknown, so that keeper ends its ranks and itself,
    /// and the launcher starts another.
    fn break_control(&mut self, node: u32) {
        let mine = |k: &super::keepers::KeeperShell| k.alive && k.node == node;
        let Some(keeper) = self.keepers.iter().rposition(mine) else { return };
        let job = self.keepers[keeper].job;
        let keeper = u32::try_from(keeper).unwrap_or(u32::MAX);
        self.counts.add(Fault::ControlLost);
        self.break_connections(Endpoint::Keeper(keeper));
        let delay = self.timing.log_between(10 * MICRO, ORPHAN_MAX);
        self.task_after(delay, Task::KeeperOrphaned { keeper });
        let again = delay + self.timing.below(MILLI);
        self.task_after(again, Task::KeeperAgain { node, job });
        self.calm_at = self.calm_at.max(self.queue.now() + again);
    }

    /// The launcher starts a keeper where there is none.
    pub(crate) fn keeper_again(&mut self, node: u32, job: u32) {
        let there = self.keepers.iter().any(|k| k.alive && k.node == node && k.job == job);
        let wanted = self.job.as_ref().is_some_and(|j| j.number == job);
        if wanted && !there && self.nodes[at(node)].up {
            self.start_keeper(job, node);
        }
    }

    /// The coordinator is gone. So many of a hundred keepers elsewhere see it soon, and the one beside it always; the others' leases run out, or they hear
    /// nothing for too long.
    pub(crate) fn orphan_keepers(&mut self, seeing_percent: u64) {
        let alive = self.keepers.iter().enumerate().filter(|(_, k)| k.alive).map(|(n, k)| (n, k.node));
        for (keeper, node) in alive.collect::<Vec<_>>() {
            let sees = node == HEAD_NODE || self.timing.percent(seeing_percent);
            let delay = if sees { self.timing.log_between(10 * MICRO, ORPHAN_MAX) } else { LINK_SILENT };
            let keeper = u32::try_from(keeper).unwrap_or(u32::MAX);
            let sees = self.past_cut(self.keepers[at(keeper)].host, self.queue.now() + delay);
            self.task_at(sees, Task::KeeperOrphaned { keeper });
        }
    }

    pub(crate) fn node_up(&mut self, node: u32) {
        if self.nodes[at(node)].up {
            return;
        }
        self.nodes[at(node)].up = true;
        trace!(self.trace, self.queue.now(), Actor::Plan, "node {node} is up");
        match &self.job {
            Some(job) => {
                let number = job.number;
                self.start_keeper(number, node);
            }
            None => self.call_operator(100 * MICRO),
        }
    }

    fn rail_down(&mut self, rank: u32, rail: u32, lasts: Nanos) {
        let Some(process) = self.process_of(transport::Rank(rank)) else { return };
        self.counts.add(Fault::RailDeath);
        for port in 0..self.plan.ports {
            let slot = at(port * self.plan.rails + rail);
            let station = self.processes[at(process)].stations[slot];
            self.stations[station].nic.die();
            self.task_after(lasts, Task::RailUp { process, port, rail });
        }
        let wake = self.queue.now() + MICRO;
        self.wake(process, wake);
    }

    fn jump_clock(&mut self, node: u32, by: i64) {
        self.counts.add(Fault::ClockJump);
        self.nodes[at(node)].clock.jump(by);
        // Every deadline lies elsewhere in the world's time now.
        let processes = self.processes.iter().filter(|p| p.node == node && p.is_alive());
        for process in processes.map(|p| p.number).collect::<Vec<_>>() {
            let wake = self.queue.now() + 1;
            self.wake(process, wake);
        }
        let keepers =
            self.keepers.iter().enumerate().filter(|(_, k)| k.alive && k.node == node).map(|(n, _)| n);
        for keeper in keepers.collect::<Vec<_>>() {
            self.run_keeper(u32::try_from(keeper).unwrap_or(u32::MAX));
        }
        if node == HEAD_NODE {
            self.run_job();
        }
    }
}
