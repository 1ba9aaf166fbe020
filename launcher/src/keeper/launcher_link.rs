//! A launcher that vanishes behind a connection that nobody closes. Ranks have a lease for that (R30); a keeper without ranks would keep the lock of its node
//! until the remote shell's server notices, which may take hours.

use std::time::Instant;

use super::super::limits::LAUNCHER_SILENT_MAX;
use super::super::node_name;
use super::Shell;

/// When the launcher was heard of.
#[derive(Debug)]
pub(super) struct LauncherLink {
    heard: Instant,
}

impl LauncherLink {
    pub(super) fn new() -> LauncherLink {
        LauncherLink { heard: Instant::now() }
    }

    /// A message has come, of any kind.
    pub(super) fn has_spoken(&mut self) {
        self.heard = Instant::now();
    }
}

impl Shell {
    /// When the launcher counts as gone. On its own host the system closes the connection of one that ends; and one that stands still, with all ranks
    /// (Ctrl-Z), says nothing.
    pub(super) fn launcher_due(&self) -> Option<Instant> {
        let is_remote = self.site.program.inherited.is_some();
        let is_waiting = is_remote && self.processes.is_empty() && !self.suspension.is_on();
        is_waiting.then(|| self.launcher.heard + LAUNCHER_SILENT_MAX)
    }

    pub(super) fn launcher_is_gone(&self) -> bool {
        let is_gone = self.launcher_due().is_some_and(|due| due <= Instant::now());
        if is_gone {
            crate::print_message(format_args!(
                "keeper of {}: nothing came from the launcher for {LAUNCHER_SILENT_MAX:?}: it ends",
                node_name()
            ));
        }
        is_gone
    }
}
