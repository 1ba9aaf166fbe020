//! Heartbeats along the tree, and the lease that lets a keeper's ranks run.
//!
//! Upwards a heartbeat says "I am here, and so are these many". Downwards it is a lease: the coordinator gives it only
//! while a majority of keepers is there, so a part of the cluster that is cut off stops its ranks by itself, before
//! anybody else decides about their future.

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
    reported: bool,
}

/// One keeper's view of the keepers around it.
#[derive(Clone, Debug)]
pub(crate) struct Watcher {
    watch: Watch,
    children: BTreeMap<NodeIndex, Child>,
    next_beat: Instant,
    /// `None`: no rank runs here any more.
    lease_until: Option<Instant>,
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
            lease_until: Some(now + watch.lease()),
        }
    }

    pub(crate) fn heard(&mut self, now: Instant, from: NodeIndex, keepers: u32) {
        if let Some(child) = self.children.get_mut(&from) {
            *child = Child { heard: now, keepers, reported: false };
        }
    }

    /// A lease has come from above: its length, if a rank needs it.
    pub(crate) fn leased(&mut self, now: Instant) -> Option<Duration> {
        let until = self.lease_until.as_mut()?;
        *until = now + self.watch.lease();
        Some(self.watch.lease())
    }

    /// The last rank has ended.
    pub(crate) fn end_lease(&mut self) {
        self.lease_until = None;
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
        due.lease_over = self.lease_until.is_some_and(|until| now >= until);
        due
    }

    pub(crate) fn next(&self) -> Instant {
        let silence = self.watch.silence();
        let silent =
            self.children.values().filter(|child| !child.reported).map(|child| child.heard + silence);
        silent.chain([self.next_beat]).chain(self.lease_until).min().unwrap_or(self.next_beat)
    }
}
