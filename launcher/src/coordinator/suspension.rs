//! Ctrl-Z and `fg`: the ranks stand still while the launcher does, on all nodes, and time with them.
//!
//! The terminal stops the launcher alone: keepers and ranks have process groups of their own. So it first has the keepers stop their
//! ranks, then stops itself as it would have without that, and has them go on when it does.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ckpt_glue::names::NodeIndex;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::unistd::Pid;

use super::super::limits::SUSPEND_MAX;
use super::super::notice::Notice;
use super::super::wire::ToKeeper;
use super::Shell;

/// The job is about to stop, and how long it has stood still.
#[derive(Debug, Default)]
pub(super) struct Suspension {
    begun: Option<Begun>,
    before: Duration,
    is_by_key: bool,
}

#[derive(Debug)]
struct Begun {
    since: Instant,
    until: Instant,
    /// Keepers that have not reported that their ranks stand still.
    waiting: BTreeSet<NodeIndex>,
}

impl Suspension {
    /// Time that has passed, without that.
    pub(super) fn running_for(&self, started: Instant) -> Duration {
        let until = self.begun.as_ref().map_or_else(Instant::now, |begun| begun.since);
        until.saturating_duration_since(started).saturating_sub(self.before)
    }

    pub(super) fn is_on(&self) -> bool {
        self.begun.is_some()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.begun.as_ref().map(|begun| begun.until)
    }
}

impl Shell<'_> {
    /// A person has typed the key that stops a job, into a terminal that no longer acts on it.
    pub(super) fn suspend_by_key(&mut self) {
        self.suspension.is_by_key = true;
        self.suspend();
    }

    /// A shell wants the job to stop.
    pub(super) fn suspend(&mut self) {
        if self.suspension.begun.is_some() {
            return;
        }
        let (since, until) = (Instant::now(), Instant::now() + SUSPEND_MAX);
        let waiting = self.keepers.nodes().into_iter().filter(|node| self.keepers.is_ready(*node)).collect();
        self.suspension.begun = Some(Begun { since, until, waiting });
        self.keepers.send_to_all(&ToKeeper::Suspend);
        self.suspend_due(since);
    }

    pub(super) fn on_suspended(&mut self, node: NodeIndex) {
        if let Some(begun) = &mut self.suspension.begun {
            begun.waiting.remove(&node);
        }
        self.suspend_due(Instant::now());
    }

    /// Stops this process, if all ranks stand still or a keeper does not answer; returns when it goes on.
    pub(super) fn suspend_due(&mut self, now: Instant) {
        let is_due = |begun: &Begun| begun.waiting.is_empty() || begun.until <= now;
        if !self.suspension.begun.as_ref().is_some_and(is_due) {
            return;
        }
        self.notify(&Notice::Suspended);
        self.observer.settle(SUSPEND_MAX / 4);
        if let Some(terminal) = &mut self.terminal {
            terminal.launcher.leave();
        }
        stop_here(core::mem::take(&mut self.suspension.is_by_key));
        if let Some(begun) = self.suspension.begun.take() {
            let stood = begun.since.elapsed();
            self.suspension.before += stood;
        }
        self.keepers.send_to_all(&ToKeeper::Resume);
        self.notify(&Notice::Resumed);
    }
}

/// Stops this process, as the signal does that it has taken. Without a shell that could let it go on, the kernel does nothing.
/// `with_group`: and to the other processes of a pipeline or a script, as the terminal would have done.
fn stop_here(with_group: bool) {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTSTP);
    // Fails for no set of signals, and no signal.
    let _ = if with_group { kill(Pid::from_raw(0), Signal::SIGTSTP) } else { raise(Signal::SIGTSTP) };
    let _ = mask.thread_unblock();
    let _ = mask.thread_block();
}
