//! Heartbeats along the tree, and the lease that lets a keeper's ranks run.
//!
//! A heartbeat goes up: "I am here, and so are these many", and asks for a lease. The coordinator grants it only while a majority of keepers is there,
//! and every keeper passes the rest of its own on to the keepers below. So a part of the cluster that is cut off stops its ranks by itself, before
//! anybody else decides about their future.
//!
//! A keeper that looks later than its own heartbeat was due has not run meanwhile, or its clock has jumped ahead. That time is no silence of others: their
//! leases may still run.
//!
//! A lease runs from the instant of the question, on the clock of the keeper that asked (R31). An answer that was held up on its way is worth less, or
//! nothing; and a keeper that has not been heard for longer than a lease lasts has none.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use transport::Instant;

use crate::control::Watch;
use crate::names::NodeIndex;

#[derive(Clone, Copy, Debug)]
struct Child {
    heard: Instant,
    keepers: u32,
    /// It is reported as overdue (R33), and has not been heard since.
    overdue: bool,
    /// It is reported as silent, and gets no lease of this life any more: the report proves that its ranks have ended.
    reported: bool,
    /// The instant of its question, on its clock, until it is answered.
    asked_ns: Option<u64>,
}

/// One keeper's view of the keepers around it.
#[derive(Clone, Debug)]
pub(crate) struct Watcher {
    watch: Watch,
    children: BTreeMap<NodeIndex, Child>,
    next_beat: Instant,
    /// `None`: not granted yet.
    lease_until: Option<Instant>,
    /// A rank runs here, or will.
    is_needed: bool,
}

/// The due actions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Due {
    /// A heartbeat upwards with this many keepers.
    pub(crate) beat: Option<u32>,
    /// Children that are suspected from now on (R33).
    pub(crate) overdue: Vec<NodeIndex>,
    /// Children that have become silent.
    pub(crate) silent: Vec<NodeIndex>,
    /// The lease has run out.
    pub(crate) lease_over: bool,
}

/// A lease that was granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    /// How long it lasts from now.
    pub(crate) left: Duration,
    /// The first one of the life: ranks may begin.
    pub(crate) is_first: bool,
    /// A rank needs it.
    pub(crate) is_needed: bool,
    /// Keepers below that wait for one, and the instants of their questions.
    pub(crate) waiting: Vec<(NodeIndex, u64)>,
}

impl Watcher {
    /// `children`: the keepers below, and how many are in the part of the tree that each is the top of.
    pub(crate) fn new(
        now: Instant,
        watch: Watch,
        children: impl Iterator<Item = (NodeIndex, u32)>,
    ) -> Watcher {
        // A new node counts as alive until its first heartbeat is overdue.
        let child = |keepers| Child { heard: now, keepers, overdue: false, reported: false, asked_ns: None };
        Watcher {
            watch,
            children: children.map(|(node, keepers)| (node, child(keepers))).collect(),
            next_beat: now,
            lease_until: None,
            is_needed: true,
        }
    }

    /// A heartbeat of a child. Returns the lease that it gets at once.
    pub(crate) fn heard(
        &mut self,
        now: Instant,
        from: NodeIndex,
        keepers: u32,
        asked_ns: u64,
    ) -> Option<Duration> {
        let left = self.left(now);
        let child = self.children.get_mut(&from).filter(|child| !child.reported)?;
        (child.heard, child.keepers, child.overdue) = (now, keepers, false);
        child.asked_ns = left.is_none().then_some(asked_ns);
        left
    }

    /// R33: it was reported as overdue, not as silent, and has not been heard since.
    pub(crate) fn is_overdue(&self, node: NodeIndex) -> bool {
        self.children.get(&node).is_some_and(|child| child.overdue && !child.reported)
    }

    /// The rest of the lease.
    fn left(&self, now: Instant) -> Option<Duration> {
        let until = self.lease_until.filter(|until| now < *until)?;
        Some(until.since(now))
    }

    /// R31: an answer from above. `anyway`: the rule is out, and a lease runs from the answer's arrival.
    pub(crate) fn leased(
        &mut self,
        now: Instant,
        asked_ns: u64,
        left_ns: u64,
        anyway: bool,
    ) -> Option<Granted> {
        let lease = Duration::from_nanos(left_ns).min(self.watch.lease());
        // A clock that was set back makes no lease longer.
        let from = if anyway { now } else { Instant::from_nanos(asked_ns).min(now) };
        let until = (from + lease).max(self.lease_until.unwrap_or(from));
        if until <= now {
            return None;
        }
        let is_first = self.lease_until.replace(until).is_none();
        let waiting = self.children.iter_mut().filter(|(_, child)| !child.reported);
        let waiting = waiting.filter_map(|(node, child)| Some((*node, child.asked_ns.take()?))).collect();
        Some(Granted { left: until.since(now), is_first, is_needed: self.is_needed, waiting })
    }

    /// The last rank has ended.
    pub(crate) fn end_lease(&mut self) {
        self.is_needed = false;
    }

    /// Keepers that are there, this one not counted.
    pub(crate) fn keepers_below(&self, now: Instant) -> u32 {
        let silence = self.watch.silence();
        let present = self.children.values().filter(|child| now < child.heard + silence);
        present.map(|child| child.keepers).fold(0, u32::saturating_add)
    }

    pub(crate) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        let late = now.since(self.next_beat);
        for child in self.children.values_mut() {
            child.heard = child.heard.max(now.min(child.heard + late));
        }
        let (suspicion, silence) = (self.watch.suspicion(), self.watch.silence());
        for (node, child) in &mut self.children {
            if now >= child.heard + suspicion && !child.overdue {
                child.overdue = true;
                due.overdue.push(*node);
            }
            if now >= child.heard + silence && !child.reported {
                child.reported = true;
                due.silent.push(*node);
            }
        }
        if now >= self.next_beat {
            self.next_beat = now + self.watch.beat();
            due.beat = Some(self.keepers_below(now).saturating_add(1));
        }
        due.lease_over = self.needed_until().is_some_and(|until| now >= until);
        due
    }

    fn needed_until(&self) -> Option<Instant> {
        self.lease_until.filter(|_| self.is_needed)
    }

    pub(crate) fn next(&self) -> Instant {
        let (suspicion, silence) = (self.watch.suspicion(), self.watch.silence());
        let due = |child: &Child| child.heard + if child.overdue { silence } else { suspicion };
        let silent = self.children.values().filter(|child| !child.reported).map(due);
        silent.chain([self.next_beat]).chain(self.needed_until()).min().unwrap_or(self.next_beat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_millis(250);

    fn at(beats: u32) -> Instant {
        Instant::ZERO + BEAT * beats
    }

    /// R31: a clock that jumps ahead, or a keeper that did not run, declares nobody lost whose lease may still run.
    #[test]
    fn a_jump_of_the_own_clock_is_no_silence_of_others() {
        let child = NodeIndex(1);
        let watch = Watch::new(BEAT, BEAT * 20);
        let mut watcher = Watcher::new(at(0), watch, [(child, 1)].into_iter());
        for beat in 0..=10 {
            watcher.heard(at(beat), child, 1, 0);
            watcher.due(at(beat));
        }
        // The child's last heartbeat came at 10; the clock shows 40 where it would have shown 11.
        let jumped = watcher.due(at(40));
        assert_eq!((jumped.silent, jumped.overdue), (Vec::new(), Vec::new()));
        // The 29 beats of the jump do not count: 1 + 19 of silence are over at 59.
        for beat in 41..59 {
            assert_eq!(watcher.due(at(beat)).silent, [], "{beat}");
        }
        assert_eq!(watcher.due(at(59)).silent, [child]);
    }
}
