//! Heartbeats along the tree, and the lease that lets a keeper's ranks run.
//!
//! Upwards a heartbeat says "I am here, and so are these many". Downwards it is a lease: the coordinator gives it only
//! while a majority of keepers is there, so a part of the cluster that is cut off stops its ranks by itself, before
//! anybody else decides about their future.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use transport::Instant;

use crate::control::Watch;
use crate::names::NodeIndex;

#[derive(Clone, Copy, Debug)]
struct Child {
    heard: Instant,
    keepers: u32,
    reported: bool,
}

/// One keeper's view of the keepers around it.
#[derive(Clone, Debug)]
pub(crate) struct Watcher {
    watch: Watch,
    children: BTreeMap<NodeIndex, Child>,
    next_beat: Instant,
    lease_until: Instant,
}

/// The due actions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Due {
    /// A heartbeat upwards with this many keepers.
    pub(crate) beat: Option<u32>,
    /// Children that have become silent.
    pub(crate) silent: Vec<NodeIndex>,
    /// The lease has run out.
    pub(crate) lease_over: bool,
}

impl Watcher {
    pub(crate) fn new(now: Instant, watch: Watch, children: impl Iterator<Item = NodeIndex>) -> Watcher {
        // A new node counts as alive until its first heartbeat is overdue.
        let child = Child { heard: now, keepers: 1, reported: false };
        Watcher {
            watch,
            children: children.map(|node| (node, child)).collect(),
            next_beat: now,
            lease_until: now + watch.lease(),
        }
    }

    pub(crate) fn heard(&mut self, now: Instant, from: NodeIndex, keepers: u32) {
        if let Some(child) = self.children.get_mut(&from) {
            *child = Child { heard: now, keepers, reported: false };
        }
    }

    pub(crate) fn leased(&mut self, now: Instant) {
        self.lease_until = now + self.watch.lease();
    }

    /// Keepers that are there, this one not counted.
    pub(crate) fn keepers_below(&self, now: Instant) -> u32 {
        let silence = self.watch.silence();
        let present = self.children.values().filter(|child| now < child.heard + silence);
        present.map(|child| child.keepers).fold(0, u32::saturating_add)
    }

    pub(crate) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        let silence = self.watch.silence();
        for (node, child) in &mut self.children {
            if now >= child.heard + silence && !child.reported {
                child.reported = true;
                due.silent.push(*node);
            }
        }
        if now >= self.next_beat {
            self.next_beat = now + self.watch.beat();
            due.beat = Some(self.keepers_below(now).saturating_add(1));
        }
        due.lease_over = now >= self.lease_until;
        due
    }

    pub(crate) fn next(&self) -> Instant {
        let silence = self.watch.silence();
        let silent =
            self.children.values().filter(|child| !child.reported).map(|child| child.heard + silence);
        silent.min().unwrap_or(self.next_beat).min(self.next_beat).min(self.lease_until)
    }
}
