//! The launcher's terminal in a job with `--tty`: the job's while a rank reads from it and this process is in its foreground, and this process's
//! otherwise, so that Ctrl-C ends a job that starts, recovers or waits.

use std::time::Instant;

use super::super::limits::INPUT_LOOK_EVERY;
use super::super::terminal::{LauncherTerminal, Size};
use super::super::wire::ToKeeper;
use super::Shell;

/// The terminal, and when to look whether this process has come into its foreground: a shell does not say so.
#[derive(Debug)]
pub(super) struct JobTerminal {
    pub(super) launcher: LauncherTerminal,
    due: Option<Instant>,
}

impl JobTerminal {
    pub(super) fn new() -> JobTerminal {
        JobTerminal { launcher: LauncherTerminal::new(), due: None }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Shell<'_> {
    /// Takes or gives back the launcher's terminal, as the job needs it now.
    pub(super) fn tend_terminal(&mut self, now: Instant) {
        let is_read = self.input.as_ref().is_some_and(|input| input.is_read());
        let is_wanted = is_read && self.end.over.is_none() && !self.suspension.is_on();
        let Some(terminal) = &mut self.terminal else { return };
        if !is_wanted {
            terminal.due = None;
            return terminal.launcher.leave();
        }
        if terminal.launcher.is_settled() || terminal.due.is_some_and(|due| due > now) {
            return;
        }
        let is_new = terminal.launcher.enter();
        terminal.due = Some(now + INPUT_LOOK_EVERY).filter(|_| !terminal.launcher.is_settled());
        if is_new {
            self.resize();
        }
    }

    /// The launcher's terminal has another size, perhaps.
    pub(super) fn resize(&mut self) {
        if self.terminal.is_some() {
            self.keepers.send_to_all(&ToKeeper::Resize(Size::here()));
        }
    }
}
