//! From one life to the next: fence, decide, start (R7, R9, R36).
//!
//! The order makes a second crash harmless:
//!
//! 1. *Fence.* All keepers end the processes of the old life, and the store takes no commit of it any more. Which
//!    generation is the newest committed one is asked only afterwards, so the answer cannot change.
//! 2. *Decide.* A new life and that generation, durable before anything acts on it. A restart after a crash finds the
//!    decision.
//! 3. *Start.* Every rank restores the generation of the decision. A fault here is a fault like any other: back to 1, with a new
//!    life.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use transport::{Instant, Life};

use super::{
    Beginning, Confidence, Ending, Fallback, Fault, FaultModel, Input, Output, Phase, Plan, Settings,
    StopReason,
};
use crate::control::{Decision, FaultReport};
use crate::limits::BACK_OFF_MAX;
use crate::names::{GenerationId, NodeIndex};
use crate::queue::Queue;
use crate::sabotage::Rule;

/// The next step once everything of the old life is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AfterFence {
    Restart { after: Duration },
    End(Ending),
}

/// ```text
///           Begin                fenced        pause over      durable         all running
///   Idle -----------> Fencing ---------> BackingOff ----> Deciding ----> Starting ----------> Running
///                      ^   |                                 |               |                  |  |
///                      |   | to end, or time over            |               |                  |  | all ended
///                      |   v                                 v  fault        v  fault           |  |
///                      |  Over <--+                          +---------------+------------------+  |
///                      |          +--------------------------------------------------------------- (Over)
///                      +------- fault, stop: from anywhere but Over
/// ```
#[derive(Clone, Debug)]
enum State {
    Idle,
    Fencing {
        counter: u32,
        until: Instant,
        /// Ranks of an earlier launcher may run until then, which has not come yet.
        not_before: Option<Instant>,
        fenced: BTreeSet<NodeIndex>,
        /// Nothing that these had runs, and nobody has their place.
        lost: BTreeSet<NodeIndex>,
        /// Another host is to take their place when they have answered (R36).
        leaving: BTreeMap<NodeIndex, Leaving>,
        votes: u32,
        /// If nodes are missing when the time is over, they have so much more, once.
        more: Duration,
        store: Option<StoreAnswer>,
        after_fence: AfterFence,
    },
    BackingOff {
        until: Instant,
        decision: Decision,
    },
    Deciding {
        decision: Decision,
    },
    /// A program that begins anew may never connect, and has all the time that it wants (`None`) until one of its ranks does. One that is restored
    /// has been connected.
    Starting {
        until: Option<Instant>,
    },
    Running {
        since: Instant,
    },
    Over,
}

/// A node that leaves the job.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// If there is no other host.
    fallback: Fallback,
    /// It has answered, and its place is being given away.
    is_offered: bool,
}

#[derive(Clone, Copy, Debug)]
struct StoreAnswer {
    newest: Option<GenerationId>,
    committed: bool,
    nonce: u64,
}

/// The job's way through its lives.
#[derive(Debug)]
pub struct Recovery {
    settings: Settings,
    state: State,
    beginning: Beginning,
    life: Option<Life>,
    /// Highest counter of a durable decision (R7). A number whose decision could not be written is free again: the
    /// store promises that it will never be found.
    counter_used: u32,
    restored: Option<GenerationId>,
    committed: Option<GenerationId>,
    last_fault: Option<Fault>,
    attempts: u32,
    in_a_row: u32,
    rollbacks: u32,
    outputs: Queue<Output>,
}

impl Recovery {
    /// A recovery that waits for its beginning.
    #[must_use]
    pub fn new(settings: Settings) -> Recovery {
        Recovery {
            settings,
            state: State::Idle,
            beginning: Beginning::Fresh,
            life: None,
            counter_used: settings.counter_last,
            restored: None,
            committed: None,
            last_fault: None,
            attempts: 0,
            in_a_row: 0,
            rollbacks: 0,
            outputs: Queue::default(),
        }
    }

    /// The life that runs or is being started.
    #[must_use]
    pub fn life(&self) -> Option<Life> {
        self.life
    }

    /// The generation from which the current life began.
    #[must_use]
    pub fn restored(&self) -> Option<GenerationId> {
        self.restored
    }

    /// Newest committed generation, as far as known.
    #[must_use]
    pub fn committed(&self) -> Option<GenerationId> {
        self.committed
    }

    /// Attempts to recover since the last committed generation.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Of these, those since the last life whose ranks ran for [`BACK_OFF_MAX`], the one that runs now included.
    #[must_use]
    pub fn attempts_in_a_row(&self, now: Instant) -> u32 {
        match self.state {
            State::Running { since } if now.since(since) >= BACK_OFF_MAX => 0,
            _ => self.in_a_row,
        }
    }

    /// Attempts to recover since the launcher started.
    #[must_use]
    pub fn rollbacks(&self) -> u32 {
        self.rollbacks
    }

    /// Nothing that this node had runs, it does not answer, and nobody has its place.
    #[must_use]
    pub fn is_lost(&self, node: NodeIndex) -> bool {
        matches!(&self.state, State::Fencing { lost, .. } if lost.contains(&node))
    }

    /// The job ends when everything of the old life is dead.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        matches!(&self.state, State::Fencing { after_fence: AfterFence::End(_), .. })
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Idle => Phase::Idle,
            State::Fencing { .. } => Phase::Fencing,
            State::BackingOff { .. } => Phase::BackingOff,
            State::Deciding { .. } => Phase::Deciding,
            State::Starting { .. } => Phase::Starting,
            State::Running { .. } => Phase::Running,
            State::Over => Phase::Over,
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Begin(beginning) => {
                if matches!(self.state, State::Idle) {
                    self.beginning = beginning;
                    self.fence(now, AfterFence::Restart { after: Duration::ZERO });
                }
            }
            Input::Fault(fault, plan) => self.on_fault(now, fault, plan),
            Input::Stop => self.on_stop(now),
            Input::NodeFenced { counter, node, votes } => self.on_node_fenced(now, counter, node, votes),
            Input::NodeLost { node } => self.on_node_lost(now, node),
            Input::NodeReplaced { node } => {
                let fence_max = self.settings.fence_max;
                if let State::Fencing { until, lost, leaving, .. } = &mut self.state {
                    lost.remove(&node);
                    leaving.remove(&node);
                    *until = (*until).max(now + fence_max);
                }
            }
            Input::NotReplaced { node } => self.on_not_replaced(now, node),
            Input::StoreFenced { counter, newest, committed, nonce } => {
                if let State::Fencing { counter: asked, store, .. } = &mut self.state
                    && *asked == counter
                {
                    *store = Some(StoreAnswer { newest, committed, nonce });
                    self.go_on(now);
                }
            }
            Input::StoreWithdrawn { counter } => {
                if let State::Fencing { counter: asked, store, until, .. } = &mut self.state
                    && *asked == counter
                {
                    *store = None;
                    *until = (*until).max(now + self.settings.fence_max);
                }
            }
            Input::StoreBusy { counter } => {
                if let State::Fencing { counter: asked, until, .. } = &mut self.state
                    && *asked == counter
                {
                    *until = (*until).max(now + self.settings.fence_max);
                }
            }
            Input::LivesFound { counter_last } => {
                // R7: no number is used twice. A node fenced below the last one is fenced below the next.
                if let State::Fencing { after_fence, .. } = self.state
                    && self.life.is_none()
                {
                    self.counter_used = self.counter_used.max(counter_last);
                    self.fence(now, after_fence);
                }
            }
            Input::DecisionDurable { life } => self.on_decision_durable(now, life),
            Input::Connecting => {
                if let State::Starting { until } = &mut self.state {
                    until.get_or_insert(now + self.settings.start_timeout);
                }
            }
            Input::AllRunning => {
                if matches!(self.state, State::Starting { .. }) {
                    self.state = State::Running { since: now };
                }
            }
            Input::Committed(generation) => {
                self.committed = Some(generation);
                self.attempts = 0;
                self.in_a_row = 0;
            }
            Input::AllEnded => {
                if matches!(self.state, State::Running { .. } | State::Starting { .. }) {
                    self.over(Ending::Finished);
                }
            }
        }
    }

    /// R32: the coordinator has not run for so long, or its clock has jumped ahead. Ranks of an earlier launcher may run on by its clock.
    pub fn postpone(&mut self, late: Duration) {
        if let State::Fencing { until, not_before: Some(not_before), .. } = &mut self.state {
            *until = *until + late;
            *not_before = *not_before + late;
        }
    }

    /// Handles timeouts that are due. The caller reports a life that does not come up in time as a fault: see
    /// [`Recovery::start_timed_out`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Fencing { not_before, .. } = &mut self.state
            && not_before.take_if(|time| now >= *time).is_some()
        {
            self.go_on(now);
        }
        match &mut self.state {
            State::Fencing { until, more, fenced, after_fence: AfterFence::Restart { .. }, .. }
                if now >= *until && !more.is_zero() && fenced.len() < self.settings.nodes as usize =>
            {
                *until = *until + core::mem::take(more);
            }
            State::Fencing { until, after_fence, fenced, votes, .. } if now >= *until => {
                let answered = u32::try_from(fenced.len()).unwrap_or(u32::MAX);
                let reason = if *votes < self.settings.quorum {
                    StopReason::NoMajority { answered: *votes, needed: self.settings.quorum }
                } else if answered < self.settings.nodes {
                    StopReason::NodesMissing { answered, nodes: self.settings.nodes }
                } else {
                    StopReason::StoreSilent
                };
                match after_fence {
                    AfterFence::End(ending) => {
                        let ending = *ending;
                        self.over(ending);
                    }
                    AfterFence::Restart { .. } => {
                        self.over(Ending::Failed { fault: self.last_fault, reason })
                    }
                }
            }
            State::BackingOff { until, decision } if now >= *until => {
                let decision = *decision;
                self.decide(decision);
            }
            _ => {}
        }
    }

    /// Whether the ranks have had the time they may take to connect.
    #[must_use]
    pub fn start_timed_out(&self, now: Instant) -> bool {
        matches!(self.state, State::Starting { until: Some(until) } if now >= until)
    }

    /// When [`Recovery::handle_timeout`] or [`Recovery::start_timed_out`] may report something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Fencing { until, not_before, .. } => {
                Some(not_before.map_or(until, |time| time.min(until)))
            }
            State::BackingOff { until, .. } => Some(until),
            State::Starting { until } => until,
            State::Idle | State::Deciding { .. } | State::Running { .. } | State::Over => None,
        }
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
    }

    fn on_fault(&mut self, now: Instant, fault: Fault, plan: Plan) {
        if matches!(plan, Plan::Ignore { .. }) {
            // R37: the life goes on.
            return;
        }
        let undecided = matches!(fault.report, FaultReport::DecisionFailed { .. });
        match &mut self.state {
            State::Idle | State::Over => return,
            // Nothing runs, so nothing can be at fault; and the outcome of the write must be known, or its number would
            // be used twice.
            State::Deciding { .. } if !undecided => return,
            State::Fencing { after_fence, .. } => {
                // Running processes are being ended already. Several processes die, or end themselves, of one cause; only a
                // contradiction, which is there the next time as well, or a node that is lost for good overrides the current work.
                let ends = matches!(fault.model, FaultModel::Inconsistent | FaultModel::Permanent);
                if let (true, AfterFence::Restart { .. }, Plan::Stop { reason }) = (ends, &after_fence, plan)
                {
                    *after_fence = AfterFence::End(Ending::Failed { fault: Some(fault), reason });
                }
                return;
            }
            State::BackingOff { .. }
            | State::Deciding { .. }
            | State::Starting { .. }
            | State::Running { .. } => {}
        }
        self.last_fault = Some(fault);
        match plan {
            Plan::Ignore { .. } => {}
            Plan::Restart { after } => {
                self.count(now, fault);
                self.fence(now, AfterFence::Restart { after });
            }
            Plan::Migrate { node, after, fallback } => {
                self.count(now, fault);
                self.fence(now, AfterFence::Restart { after });
                self.leave(node, fallback);
            }
            Plan::Stop { reason } => {
                self.fence(now, AfterFence::End(Ending::Failed { fault: Some(fault), reason }));
            }
        }
    }

    /// One more rollback. A person's wish is no attempt to recover.
    fn count(&mut self, now: Instant, fault: Fault) {
        if fault.confidence != Confidence::Person {
            self.attempts = self.attempts.saturating_add(1);
            self.in_a_row = self.attempts_in_a_row(now).saturating_add(1);
        }
        self.rollbacks = self.rollbacks.saturating_add(1);
    }

    fn leave(&mut self, node: NodeIndex, fallback: Fallback) {
        let early = self.settings.sabotage.is_out(Rule::MovedWhileRunning);
        if let State::Fencing { leaving, .. } = &mut self.state {
            leaving.insert(node, Leaving { fallback, is_offered: early });
            if early {
                self.outputs.push(Output::Replace { node, answers: true });
            }
        }
    }

    fn on_stop(&mut self, now: Instant) {
        match &mut self.state {
            State::Idle => self.over(Ending::Stopped),
            State::Over => {}
            State::Fencing { after_fence, .. } => {
                *after_fence = AfterFence::End(Ending::Stopped);
                self.go_on(now);
            }
            State::BackingOff { .. }
            | State::Deciding { .. }
            | State::Starting { .. }
            | State::Running { .. } => {
                self.fence(now, AfterFence::End(Ending::Stopped));
            }
        }
    }

    /// R9: first nothing of the old life runs or is committed.
    fn fence(&mut self, now: Instant, after_fence: AfterFence) {
        let counter = self.counter_used.saturating_add(1);
        let earlier =
            Some(self.settings.earlier_lease).filter(|lease| self.life.is_none() && !lease.is_zero());
        let earlier = earlier.filter(|_| !self.settings.sabotage.is_out(Rule::PlaceTooEarly));
        // A launcher that continues a job waits for slow logins here (`JobSettings::gather_max`).
        let logins = Some(self.settings.start_timeout)
            .filter(|_| self.life.is_none() && self.beginning != Beginning::Fresh);
        let fence_max = self.settings.fence_max.max(logins.unwrap_or_default());
        let until = now + fence_max + earlier.unwrap_or_default();
        let not_before = earlier.map(|lease| now + lease);
        let (fenced, lost) = (BTreeSet::new(), BTreeSet::new());
        let goes_on = self.life.is_some() && matches!(after_fence, AfterFence::Restart { .. });
        let more = if goes_on { self.settings.transient_within } else { Duration::ZERO };
        self.state = State::Fencing {
            counter,
            until,
            not_before,
            fenced,
            lost,
            leaving: BTreeMap::new(),
            votes: 0,
            more,
            store: None,
            after_fence,
        };
        self.outputs.push(Output::FenceNodes { counter, first: self.life.is_none() });
        let refuse_below = if self.settings.sabotage.is_out(Rule::NoFence) { 0 } else { counter };
        self.outputs.push(Output::FenceStore { counter, refuse_below });
    }

    fn on_node_fenced(&mut self, now: Instant, counter: u32, node: NodeIndex, votes_too: bool) {
        if let State::Fencing { counter: asked, fenced, leaving, votes, after_fence, .. } = &mut self.state
            && *asked == counter
            && fenced.insert(node)
        {
            *votes += u32::from(votes_too);
            // R36: nothing runs there any more, and the answer to come is that of the other host.
            if let (AfterFence::Restart { .. }, Some(leaving)) = (after_fence, leaving.get_mut(&node)) {
                fenced.remove(&node);
                if !core::mem::replace(&mut leaving.is_offered, true) {
                    self.outputs.push(Output::Replace { node, answers: true });
                }
                return;
            }
            self.go_on(now);
        }
    }

    /// There is no other host for the node's place. One that does not answer is waited for.
    fn on_not_replaced(&mut self, now: Instant, node: NodeIndex) {
        let State::Fencing { fenced, lost, leaving, after_fence, .. } = &mut self.state else { return };
        let Some(Leaving { fallback, .. }) = leaving.remove(&node) else { return };
        if !lost.contains(&node) {
            fenced.insert(node);
        }
        if let (Fallback::Stop, AfterFence::Restart { .. }) = (fallback, &after_fence) {
            let reason = StopReason::NoOtherHost { node };
            *after_fence = AfterFence::End(Ending::Failed { fault: self.last_fault, reason });
        }
        self.go_on(now);
    }

    /// R32: nothing that it had runs. A job that ends need not wait for it; one that goes on needs another host in its place.
    fn on_node_lost(&mut self, now: Instant, node: NodeIndex) {
        let State::Fencing { fenced, lost, after_fence, .. } = &mut self.state else { return };
        if fenced.contains(&node) {
            return;
        }
        lost.insert(node);
        match after_fence {
            AfterFence::Restart { .. } => self.outputs.push(Output::Replace { node, answers: false }),
            AfterFence::End(_) => self.go_on(now),
        }
    }

    /// Leaves [`State::Fencing`] when everything has answered.
    fn go_on(&mut self, now: Instant) {
        let State::Fencing { counter, not_before, fenced, lost, votes, store, after_fence, .. } = &self.state
        else {
            return;
        };
        // Those that end the job need not wait for a node that is lost.
        let ended = match after_fence {
            AfterFence::End(_) => fenced.union(lost).count(),
            AfterFence::Restart { .. } => fenced.len(),
        };
        if u32::try_from(ended).unwrap_or(u32::MAX) < self.settings.nodes {
            return;
        }
        match *after_fence {
            // Committed state stays unchanged, regardless of the store's answer.
            AfterFence::End(ending) => self.over(ending),
            AfterFence::Restart { after } => {
                if *votes < self.settings.quorum || not_before.is_some() {
                    return;
                }
                let Some(store) = store else { return };
                let (decision, committed) = (self.decision(*counter, *store), store.committed);
                self.committed = store.newest.or(self.committed);
                if decision.restore.is_none() && !self.may_begin_anew(committed) {
                    let reason = StopReason::NothingToRestore;
                    self.over(Ending::Failed { fault: self.last_fault, reason });
                } else if after.is_zero() {
                    self.decide(decision);
                } else {
                    self.state = State::BackingOff { until: now + after, decision };
                }
            }
        }
    }

    fn decision(&self, counter: u32, store: StoreAnswer) -> Decision {
        let restore = match (self.life, self.beginning) {
            (None, Beginning::Fresh) => None,
            (None, Beginning::Named(generation)) => Some(generation),
            // A job that was restarted from a named generation and has committed none since goes back to that one:
            // the user did not want the newer ones.
            (Some(_), Beginning::Named(generation)) if !self.committed_since_beginning(store.newest) => {
                Some(generation)
            }
            (None, Beginning::Newest) | (Some(_), _) => store.newest,
        };
        let life = match self.life {
            // R7
            Some(life) if self.settings.sabotage.is_out(Rule::LifeReuse) && self.attempts > 0 => life,
            _ => Life { counter, nonce: store.nonce },
        };
        Decision { life, restore }
    }

    /// Whether the program may start from the beginning, there being nothing to restore. Once something is
    /// committed it never does by itself: a lost generation may come back, and would not count in a life that
    /// began without it (R9).
    fn may_begin_anew(&self, committed: bool) -> bool {
        let is_first = self.life.is_none();
        let nothing_is_lost = !committed && self.committed.is_none();
        self.beginning == Beginning::Fresh
            && (is_first || nothing_is_lost || self.settings.sabotage.is_out(Rule::BeginsAnew))
    }

    /// Whether the newest generation was written by this launcher, and not by one before it.
    fn committed_since_beginning(&self, newest: Option<GenerationId>) -> bool {
        newest.is_some_and(|newest| newest.life.counter > self.settings.counter_last)
    }

    /// R7: a life is durable before its first process runs.
    fn decide(&mut self, decision: Decision) {
        self.state = State::Deciding { decision };
        self.outputs.push(Output::WriteDecision(decision));
    }

    fn on_decision_durable(&mut self, now: Instant, life: Life) {
        let State::Deciding { decision } = self.state else { return };
        if decision.life != life {
            return;
        }
        self.life = Some(life);
        self.counter_used = self.counter_used.max(life.counter);
        self.restored = decision.restore;
        let is_awaited = self.settings.connects || decision.restore.is_some();
        let until = is_awaited.then(|| now + self.settings.start_timeout);
        self.state = State::Starting { until };
        self.outputs.push(Output::StartLife(decision));
    }

    fn over(&mut self, ending: Ending) {
        self.state = State::Over;
        self.outputs.push(Output::Over(ending));
    }
}

#[cfg(test)]
mod tests;
