//! A shell stops the job (Ctrl-Z) and lets it go on: all ranks of the node stand still meanwhile, and so does the machine's time, so that nobody is
//! missed.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use transport::Rank;

use super::super::wire::FromKeeper;
use super::Shell;

/// How long ranks have stood still.
#[derive(Debug, Default)]
pub(super) struct Suspension {
    since: Option<Instant>,
    before: Duration,
}

impl Suspension {
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Time that has passed, without that.
    pub(super) fn running_for(&self, started: Instant) -> Duration {
        let until = self.since.unwrap_or_else(Instant::now);
        until.saturating_duration_since(started).saturating_sub(self.before)
    }
}

impl Shell {
    fn signal_all(&self, signal: Signal) {
        self.ranks.processes.values().for_each(|process| process.group.signal(signal));
        self.spawned.iter().for_each(|(_, group)| group.signal(signal));
    }

    pub(super) fn suspend(&mut self) {
        self.suspension.since.get_or_insert_with(Instant::now);
        self.signal_all(Signal::SIGSTOP);
        // Leases stand still, too.
        self.guard.suspend_lease();
        self.send_to_launcher(&FromKeeper::Suspended);
    }

    pub(super) fn resume(&mut self) {
        if let Some(since) = self.suspension.since.take() {
            self.suspension.before += since.elapsed();
            self.guard.resume_lease();
            self.signal_all(Signal::SIGCONT);
            self.redraw();
            self.resume_inputs();
        }
    }

    /// A rank that is started while all others stand still waits with them.
    pub(super) fn suspend_new(&self, rank: Rank) {
        if let Some(process) = self.ranks.processes.get(&rank).filter(|_| self.suspension.is_on()) {
            process.group.signal(Signal::SIGSTOP);
        }
    }
}
