//! The order of simplicity: the plain setting, the smaller number, the rounder time.

use super::Shrinker;
use crate::engine::queue::{MICRO, Nanos};
use crate::limits::RANKS_SMALL_MAX;
use crate::network::NetworkConditions;
use crate::plan::{Action, Plan, When};
use crate::scenario::plain;

/// Times shorter than this are not worth a run.
const TIME_MIN: Nanos = MICRO;

/// The chances of network conditions.
fn chances(conditions: &mut NetworkConditions) -> [&mut u16; 5] {
    let NetworkConditions { loss, duplication, reordering, corruption, delay, jitter_ns: _ } = conditions;
    [loss, duplication, reordering, corruption, delay]
}

/// How long an action lasts, if it does.
fn lasting(action: &mut Action) -> Option<&mut Nanos> {
    match action {
        Action::CrashNode { down: lasts, .. }
        | Action::DestroyNode { down: lasts, .. }
        | Action::KillLauncher { down: lasts, .. }
        | Action::StopKeeper { lasts, .. }
        | Action::CutOff { lasts, .. }
        | Action::PowerLoss { down: lasts, .. }
        | Action::Partition { lasts, .. }
        | Action::Move { lasts, .. }
        | Action::RailDown { lasts, .. }
        | Action::Unsavable { lasts, .. }
        | Action::Unreadable { lasts }
        | Action::Storm { lasts, .. }
        | Action::Stall { lasts, .. } => Some(lasts),
        Action::Checkpoint { .. }
        | Action::CrashProcess(_)
        | Action::ChangeRails { .. }
        | Action::Suspect { .. }
        | Action::ClockJump { .. }
        | Action::BreakControl { .. }
        | Action::DiskError { .. } => None,
    }
}

/// Half of a time, with one digit that is not zero.
fn half(time: Nanos) -> Nanos {
    let half = time / 2;
    let unit = 10u64.pow(half.max(1).ilog10());
    half / unit * unit
}

/// Fewer nodes, with as much of their protection as these can have.
fn set_nodes(plan: &mut Plan, nodes: u32) {
    plan.nodes = nodes;
    if plan.group > nodes {
        plan.group = 0;
    }
    plan.losses = plan.losses.min(nodes - 1);
}

impl Shrinker<'_> {
    /// Settings, one at a time.
    pub(super) fn reduce_settings(&mut self) {
        let plain = plain();
        self.take_with(|plan| plan.floors = plain.floors);
        self.take_with(|plan| plan.calm = plain.calm);
        self.take_with(|plan| plan.messages_reserved = 0);
        self.take_with(|plan| plan.conditions = plain.conditions);
        for kind in 0..5 {
            self.take_with(|plan| *chances(&mut plan.conditions)[kind] = 0);
        }
        self.take_with(|plan| plan.conditions.jitter_ns = plain.conditions.jitter_ns);
        self.take_with(|plan| plan.drift = plain.drift);
        self.take_with(|plan| plan.auth = plain.auth);
        self.take_with(|plan| plan.mode = plain.mode);
        self.take_with(|plan| (plan.losses, plan.group) = (plain.losses, plain.group));
        self.take_with(|plan| plan.group = plain.group);
        self.take_with(|plan| plan.spares = plain.spares);
        self.take_with(|plan| plan.reactions = plain.reactions);
        self.take_with(|plan| plan.rails = 1);
        self.take_with(|plan| plan.ports = 1);
        self.reduce_size(
            2,
            |plan| plan.ranks,
            |plan, ranks| {
                plan.ranks = ranks;
                set_nodes(plan, plan.nodes.min(ranks));
            },
        );
        self.reduce_size(1, |plan| plan.nodes, set_nodes);
        self.take_with(|plan| plan.tight_bounds = plain.tight_bounds);
        self.take_with(|plan| plan.congested = plain.congested);
        self.take_with(|plan| plan.pulls = plain.pulls);
        self.take_with(|plan| plan.helper = plain.helper);
        self.take_with(|plan| plan.frame_bytes_max = plain.frame_bytes_max);
        self.take_with(|plan| plan.message_bytes_max = plain.message_bytes_max);
        self.take_with(|plan| plan.control_ns_max = plain.control_ns_max);
        self.take_with(|plan| plan.write_ns_max = plain.write_ns_max);
        self.take_with(|plan| plan.pause_ns_max = plain.pause_ns_max);
        self.take_with(|plan| plan.nic_frames = plain.nic_frames);
        self.take_with(|plan| plan.completion_ns_max = plain.completion_ns_max);
        self.reduce_messages();
    }

    /// A smaller number of ranks or nodes: first the powers of two, whose runs are short, then one by one below the smallest of them that fails. Of a large job the numbers below the power before are not tried again.
    fn reduce_size(&mut self, from: u32, size: fn(&Plan) -> u32, set: fn(&mut Plan, u32)) {
        let mut power = from.next_power_of_two();
        while power < size(&self.best) && !self.take_with(|plan| set(plan, power)) {
            power *= 2;
        }
        let at_most = size(&self.best);
        let begin = if at_most > RANKS_SMALL_MAX { power / 2 + 1 } else { from };
        for smaller in begin.max(from)..at_most {
            if self.take_with(|plan| set(plan, smaller)) {
                return;
            }
        }
    }

    /// A shorter program; steps that wait for frames come as much earlier.
    fn reduce_messages(&mut self) {
        while self.best.messages_min > 1 {
            let halved = |plan: &mut Plan| {
                plan.messages_min /= 2;
                plan.floors.frames /= 2;
                plan.floors.crash_by_frames /= 2;
                for step in &mut plan.steps {
                    if let When::Frames(frames) = &mut step.when {
                        *frames /= 2;
                    }
                }
            };
            if !self.take_with(halved) && !self.take_with(|plan| plan.messages_min /= 2) {
                return;
            }
        }
    }

    /// Times and places of the steps that are left.
    pub(super) fn reduce_details(&mut self) {
        for step in 0..self.best.steps.len() {
            self.reduce_when(step);
            while let Some(lasts) = lasting(&mut self.best.steps[step].action.clone()).copied()
                && lasts > TIME_MIN
                && self.take_with(|plan| {
                    if let Some(lasts) = lasting(&mut plan.steps[step].action) {
                        *lasts = half(*lasts);
                    }
                })
            {}
            for kind in 0..5 {
                self.take_with(|plan| {
                    if let Action::Storm { conditions, .. } = &mut plan.steps[step].action {
                        *chances(conditions)[kind] = 0;
                    }
                });
            }
        }
    }

    fn reduce_when(&mut self, step: usize) {
        match self.best.steps[step].when {
            When::On { moment, nth, after } => {
                let earlier = [(0, 0), (0, after), (nth, 0), (nth, half(after))];
                for (nth, after) in earlier {
                    if self.take_with(|plan| plan.steps[step].when = When::On { moment, nth, after }) {
                        return;
                    }
                }
            }
            When::Frames(frames) => {
                // Only ever earlier, or the reduction would never end.
                let earlier = [1, frames / 4, frames / 2, frames / 10 * 10];
                for frames in earlier.into_iter().filter(|earlier| *earlier < frames) {
                    if self.take_with(|plan| plan.steps[step].when = When::Frames(frames)) {
                        return;
                    }
                }
            }
            When::At(at) => {
                self.take_with(|plan| plan.steps[step].when = When::At(half(at)));
            }
        }
    }
}
