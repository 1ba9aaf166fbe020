//! Long after the last fault, a checkpoint has to be committed: nothing that a fault has left behind may keep the job from being saved.

use ckpt_glue::control::{JobPhase, NoImageReason};
use ckpt_glue::protocols::AbandonReason;

use super::World;
use super::event::Task;
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::trace::Actor;
use crate::judge::{Generation, Violation};
use crate::trace;

/// After the last fault: connections that nobody closes are noticed after [`LINK_SILENT`](super::guards::LINK_SILENT), and a life begins anew after it.
const SETTLED_AFTER: Nanos = 120 * MILLI;
/// For so long a program computes between steps while it is waited for that, lest its messages run out.
pub(crate) const CALM_PACE: Nanos = 2 * MILLI;
/// So many in a row are no coincidence.
const ABANDONED_MAX: u32 = 4;
/// How often somebody looks whether it is calm.
const LOOK_EVERY: Nanos = 500 * MICRO;

impl World {
    fn is_settled(&self, when: Nanos) -> bool {
        when >= self.calm_at + SETTLED_AFTER
    }

    /// Only a checkpoint in calm is missing before the program may end.
    pub(crate) fn awaits_calm(&self) -> bool {
        self.plan.calm && !self.has_saved_in_calm && self.other_floors_reached()
    }

    /// Asks for checkpoints until one is committed that has begun when all faults had been over for long.
    pub(crate) fn ask_in_calm(&mut self) {
        if self.has_saved_in_calm {
            return;
        }
        let runs = self.job.as_ref().is_some_and(|job| {
            let status = job.machine.status();
            status.phase == JobPhase::Running && status.saving.is_none()
        });
        if runs && !self.asking && self.is_settled(self.queue.now()) {
            self.asking = true;
            trace!(self.trace, self.queue.now(), Actor::Plan, "asks for a checkpoint in calm");
            self.request_checkpoint();
        }
        self.task_after(LOOK_EVERY, Task::AskInCalm);
    }

    pub(crate) fn checkpoint_begins(&mut self) {
        self.begun_at = self.queue.now();
    }

    pub(crate) fn checkpoint_commits(&mut self) {
        self.abandoned_in_calm = 0;
        self.has_saved_in_calm |= self.is_settled(self.begun_at);
    }

    pub(crate) fn judge_abandoned(&mut self, generation: Generation, reason: AbandonReason) {
        let is_the_programs = match reason {
            // It has ended, or its points come at other times than before.
            AbandonReason::Finishing | AbandonReason::RankLost { .. } => true,
            AbandonReason::NoImage { reason, .. } => {
                matches!(reason, NoImageReason::PointMissed { .. } | NoImageReason::PointPassed { .. })
            }
            _ => false,
        };
        if is_the_programs || !self.is_settled(self.begun_at) {
            return;
        }
        self.abandoned_in_calm += 1;
        if self.abandoned_in_calm == ABANDONED_MAX {
            self.judges.report(Violation::AbandonedInCalm { generation, reason: format!("{reason:?}") });
        }
    }
}
