//! The table of rare events.

use super::World;
use super::event::{Event, Task};
use crate::engine::queue::Nanos;

/// Tasks by place; places are used again.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    entries: Vec<Option<Task>>,
    free: Vec<u32>,
}

impl Tasks {
    fn add(&mut self, task: Task) -> u32 {
        if let Some(place) = self.free.pop() {
            self.entries[super::at(place)] = Some(task);
            return place;
        }
        self.entries.push(Some(task));
        u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn take(&mut self, place: u32) -> Option<Task> {
        let task = self.entries.get_mut(super::at(place))?.take();
        self.free.push(place);
        task
    }
}

impl World {
    pub(crate) fn task_after(&mut self, delay: Nanos, task: Task) {
        let when = self.queue.now() + delay;
        self.task_at(when, task);
    }

    pub(crate) fn task_at(&mut self, when: Nanos, task: Task) {
        let place = self.tasks.add(task);
        self.queue.at(when, Event::Task(place));
    }

    pub(crate) fn on_task(&mut self, place: u32) {
        let Some(task) = self.tasks.take(place) else { return };
        match task {
            Task::Control { to, from, control, connection } => {
                self.deliver_control(to, from, *control, connection)
            }
            Task::Spawn { keeper, rank, decision } => self.spawn(keeper, rank, decision),
            Task::Restore { process, decision } => self.restore(process, &decision),
            Task::Kill { keeper, rank, life } => self.kill(keeper, rank, life),
            Task::Reaped { keeper, rank, life, status } => self.reaped(keeper, rank, life, status),
            Task::Freeze { process } => self.look_at_freeze(process),
            Task::Thaw { process } => self.thaw(process),
            Task::Arrive { process } => self.arrive(process),
            Task::HearMoved { process, moved } => self.hear_moved(process, moved),
            Task::ImageWritten { process, epoch, attempt } => self.image_written(process, epoch, attempt),
            Task::ExitedImageWritten { keeper, rank, generation, record } => {
                self.exited_image_written(keeper, rank, generation, &record);
            }
            Task::CommitWritten { job, generation, images } => self.commit_written(job, generation, &images),
            Task::DecisionWritten { job, decision } => self.decision_written(job, decision),
            Task::StoreFenced { job, counter } => self.store_fenced(job, counter),
            Task::Step { step, cause } => self.perform_step(step, cause),
            Task::RailUp { process, port, rail } => self.rail_up(process, port, rail),
            Task::ChangeRails { frame_bytes_max, until } => self.change_rails(frame_bytes_max, until),
            Task::RailMessage { process, life, message } => self.rail_message(process, life, *message),
            Task::RailSaid { life, rank, message } => self.rail_said(life, rank, *message),
            Task::RailLook { process } => self.look_at_rails(process),
            Task::RailsDue => self.rails_due(),
            Task::NodeUp { node } => self.node_up(node),
            Task::KeeperOrphaned { keeper } => self.keeper_orphaned(keeper),
            Task::KeeperAgain { node, job } => self.keeper_again(node, job),
            Task::TakeLock { keeper } => self.take_lock(keeper),
            Task::LeaseOver { keeper, until } => self.lease_over(keeper, until),
            Task::JudgeLease { keeper, until } => self.judge_lease(keeper, until),
            Task::KeeperResumes { keeper } => self.keeper_resumes(keeper),
            Task::KeeperConnects { keeper } => self.keeper_connects(keeper),
            Task::KeeperDisconnected { keeper } => self.keeper_disconnected(keeper),
            Task::NodeWorks { keeper, number, question } => self.node_works(keeper, number, question),
            Task::NodeAnswers { keeper, number, answer } => self.node_answers(keeper, number, *answer),
            Task::Operator => self.operator_restarts(),
            Task::AskInCalm => self.ask_in_calm(),
            Task::Ask { until } => self.ask_for_checkpoint(until),
            Task::Savable { process } => self.set_unsavable(process, None),
            Task::Calm { conditions } => self.network.set_conditions(conditions),
        }
    }
}
