//! The books of a job's machine: counts and times of the current life.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use transport::{Instant, Rank};

use super::Record;
use crate::control::{PortEntry, Watch};
use crate::recovery::Fault;

/// Everything counted in the current life.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    pub(super) ports: Vec<PortEntry>,
    pub(super) registered: u32,
    pub(super) running: u32,
    pub(super) finalizing: u32,
    pub(super) finished: bool,
    /// A rank has opened a session, and waits in there for all others.
    pub(super) connecting: bool,
    /// A rank has ended well, and never will.
    pub(super) left: Option<Rank>,
    /// Ranks without which the life goes on (R37).
    pub(super) lost: BTreeSet<Rank>,
}

/// The keepers as the coordinator knows them, in a job of several nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leases {
    pub(super) watch: Watch,
    pub(super) root_heard: Instant,
    /// It is suspected (R33).
    pub(super) is_overdue: bool,
}

impl Leases {
    /// When the next step of the root's silence is due.
    pub(super) fn due(&self) -> Instant {
        let silence = if self.is_overdue { self.watch.silence() } else { self.watch.suspicion() };
        self.root_heard + silence
    }
}

/// A rank has ended by itself, or wants the end of all. A fault that is reported within [`EXIT_GRACE`] is why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) fault: Fault,
    pub(super) until: Instant,
}

/// A record whose fate is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    pub(super) record: Record,
    pub(super) since: Instant,
    pub(super) report: Instant,
}
