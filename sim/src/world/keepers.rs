//! The shells of keepers: they start, end and watch processes.

use ckpt_glue::control::{Decision, ExitedRecord};
use ckpt_glue::keeper::{Input, Output};
use ckpt_glue::{ExitStatus, GenerationId, Keeper, NodeIndex};
use transport::{Life, Rank};

use super::event::{Endpoint, Event, Task};
use super::process::NEVER;
use super::{JOB, World, at};
use crate::engine::queue::{MICRO, Nanos};
use crate::engine::trace::Actor;
use crate::judge::bounds::BoundsJudge;
use crate::trace;

/// Longest time until a process has been started, or ended.
const SPAWN_MAX: Nanos = 200 * MICRO;
/// Longest time until a keeper learns that a process has ended.
const REAP_MAX: Nanos = 60 * MICRO;
/// Exit status after SIGKILL.
pub(crate) const KILLED: ExitStatus = ExitStatus::Signal(9);

/// A keeper and its shell's state.
#[derive(Debug)]
pub(crate) struct KeeperShell {
    pub(crate) node: u32,
    /// Where it runs.
    pub(crate) host: u32,
    /// Number of the coordinator that it belongs to.
    pub(crate) job: u32,
    pub(crate) alive: bool,
    /// It is stopped until then; inputs that have come meanwhile.
    pub(crate) stopped_until: Nanos,
    pub(crate) waiting: Vec<Input>,
    /// Until when its guard lets its ranks run.
    pub(crate) lease_until: Option<Nanos>,
    /// Its node's protector has this endpoint open.
    pub(crate) opened: Option<Life>,
    /// It knows those of the others.
    pub(crate) has_met: bool,
    pub(crate) machine: Keeper,
    timer_at: Nanos,
}

impl World {
    /// A keeper begins on `node` and says so to the coordinator `job`.
    pub(crate) fn start_keeper(&mut self, job: u32, node: u32) {
        let machine = Keeper::new(JOB, NodeIndex(node), self.sabotage.glue());
        self.keepers.push(KeeperShell {
            node,
            host: self.hosts[at(node)],
            job,
            alive: true,
            stopped_until: 0,
            waiting: Vec::new(),
            lease_until: None,
            opened: None,
            has_met: false,
            machine,
            timer_at: NEVER,
        });
        let number = u32::try_from(self.keepers.len() - 1).unwrap_or(u32::MAX);
        if self.has_node_disks() {
            let connects = self.queue.now() + 1 + self.timing.below(self.plan.control_ns_max);
            let connects = self.past_cut(self.hosts[at(node)], connects);
            self.task_at(connects, Task::KeeperConnects { keeper: number });
        }
        self.run_keeper(number);
    }

    pub(crate) fn feed_keeper(&mut self, number: u32, input: Input) {
        let keeper = &mut self.keepers[at(number)];
        if !keeper.alive {
            return;
        }
        if keeper.stopped_until > self.queue.now() {
            return keeper.waiting.push(input);
        }
        let now = self.nodes[at(keeper.node)].clock.read(self.queue.now());
        keeper.machine.handle(now, input);
        self.run_keeper(number);
    }

    pub(crate) fn on_keeper_timer(&mut self, number: u32) {
        let keeper = &mut self.keepers[at(number)];
        if !keeper.alive || keeper.timer_at != self.queue.now() {
            return;
        }
        keeper.timer_at = NEVER;
        // One that is stopped looks when it goes on.
        if keeper.stopped_until <= self.queue.now() {
            self.handle_keeper_timeout(number);
        }
    }

    pub(crate) fn handle_keeper_timeout(&mut self, number: u32) {
        let keeper = &mut self.keepers[at(number)];
        let now = self.nodes[at(keeper.node)].clock.read(self.queue.now());
        keeper.machine.handle_timeout(now);
        self.run_keeper(number);
    }

    pub(crate) fn run_keeper(&mut self, number: u32) {
        while let Some(output) = self.keepers[at(number)].machine.poll_output() {
            match output {
                Output::Send { to, control } => self.send_control(Endpoint::Keeper(number), to, control),
                Output::Spawn { rank, decision } => {
                    let delay = 1 + self.timing.below(SPAWN_MAX);
                    self.task_after(delay, Task::Spawn { keeper: number, rank, decision });
                }
                Output::Kill { rank, life } => {
                    let delay = 1 + self.timing.below(SPAWN_MAX);
                    self.task_after(delay, Task::Kill { keeper: number, rank, life });
                }
                Output::WriteExitedImage { rank, generation, record } => {
                    let delay = self.timing.below(self.plan.write_ns_max);
                    let task = Task::ExitedImageWritten { keeper: number, rank, generation, record };
                    self.task_after(delay, task);
                }
                // No rank of this world speaks PMI.
                Output::Pmi(_) => {}
                Output::Lock => self.take_lock(number),
                Output::Lease(lease) => self.lease(number, lease),
                Output::LeaseOver => {
                    let who = Actor::Keeper(self.keepers[at(number)].node);
                    trace!(self.trace, self.queue.now(), who, "lease over: ends its ranks, and itself");
                    self.end_keeper(number);
                }
            }
        }
        let keeper = &mut self.keepers[at(number)];
        let found = BoundsJudge::keeper(keeper.node, &keeper.machine);
        self.judges.check(found);
        let deadline = keeper.machine.poll_timeout();
        let clock = &self.nodes[at(keeper.node)].clock;
        let due = deadline.map_or(NEVER, |deadline| clock.when(deadline, self.queue.now()));
        if due != NEVER && due != keeper.timer_at {
            keeper.timer_at = due;
            self.queue.at(due, Event::KeeperTimer(number));
        }
    }

    pub(crate) fn spawn(&mut self, keeper: u32, rank: Rank, decision: Decision) {
        let shell = &self.keepers[at(keeper)];
        if shell.alive && shell.stopped_until > self.queue.now() {
            let until = shell.stopped_until;
            return self.task_at(until, Task::Spawn { keeper, rank, decision });
        }
        if !shell.alive || shell.machine.life() != Some(decision.life) {
            // The life was over before its process began; the kill has been answered.
            return;
        }
        self.start_process(keeper, rank, &decision);
        self.feed_keeper(keeper, Input::Spawned { rank });
    }

    pub(crate) fn kill(&mut self, keeper: u32, rank: Rank, life: Life) {
        let shell = &self.keepers[at(keeper)];
        if shell.alive && shell.stopped_until > self.queue.now() {
            let until = shell.stopped_until;
            return self.task_at(until, Task::Kill { keeper, rank, life });
        }
        let mine =
            |p: &&super::Process| p.keeper == keeper && p.rank == rank.0 && p.life == life && p.is_alive();
        let process = self.processes.iter().rfind(mine).map(|p| p.number);
        match process {
            Some(process) => self.end_process(process, KILLED),
            None => self.reaped(keeper, rank, life, KILLED),
        }
    }

    /// A process is gone; its keeper will be informed.
    pub(crate) fn end_process(&mut self, number: u32, status: ExitStatus) {
        let process = &self.processes[at(number)];
        if !process.is_alive() {
            return;
        }
        let (keeper, rank, life) = (process.keeper, Rank(process.rank), process.life);
        trace!(self.trace, self.queue.now(), Actor::Rank(rank.0), "process {number} ends: {status}");
        self.bury(number);
        let delay = 1 + self.timing.below(REAP_MAX);
        self.task_after(delay, Task::Reaped { keeper, rank, life, status });
    }

    pub(crate) fn reaped(&mut self, keeper: u32, rank: Rank, life: Life, status: ExitStatus) {
        self.feed_keeper(keeper, Input::ProcessEnded { rank, life, status });
    }

    pub(crate) fn exited_image_written(
        &mut self,
        keeper: u32,
        rank: Rank,
        generation: GenerationId,
        record: &ExitedRecord,
    ) {
        if !self.keepers[at(keeper)].alive {
            return;
        }
        let input = match self.store_exited(generation, rank, record) {
            Some(Ok((digest, bytes))) => Input::ExitedImageDone { rank, generation, digest, bytes },
            Some(Err(errno)) => Input::ExitedImageFailed { rank, generation, errno },
            // The power is out.
            None => return,
        };
        self.feed_keeper(keeper, input);
    }

    /// A keeper has lost its coordinator: it ends its ranks and itself.
    pub(crate) fn keeper_orphaned(&mut self, keeper: u32) {
        let shell = &mut self.keepers[at(keeper)];
        if !shell.alive {
            return;
        }
        shell.alive = false;
        self.keeper_gone(keeper);
        let mine = self.processes.iter().filter(|p| p.keeper == keeper && p.is_alive());
        for process in mine.map(|p| p.number).collect::<Vec<_>>() {
            self.bury(process);
        }
    }
}
