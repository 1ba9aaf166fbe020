//! A launcher that vanishes behind a connection that nobody closes. Ranks have a lease for that (R30); a keeper without ranks would keep the lock of its node
//! until the remote shell's server notices, which may take hours.

use std::io;
use std::time::Instant;

use nix::sys::epoll::EpollFlags;

use super::super::limits::{LAUNCHER_SILENT_MAX, LINK_QUEUE_BYTES_MAX};
use super::super::node_name;
use super::super::wire::{FromKeeper, Link};
use super::Shell;

pub(super) struct LauncherLink {
    pub(super) link: Link,
    token: u64,
    /// It has events for room to write.
    watches_room: bool,
    /// When the launcher was heard of.
    heard: Instant,
}

impl LauncherLink {
    pub(super) fn new(link: Link, token: u64) -> LauncherLink {
        LauncherLink { link, token, watches_room: false, heard: Instant::now() }
    }

    /// A message has come, of any kind.
    pub(super) fn has_spoken(&mut self) {
        self.heard = Instant::now();
    }
}

impl Shell {
    pub(super) fn send_to_launcher(&mut self, message: &FromKeeper) {
        if self.launcher.link.send(message) > LINK_QUEUE_BYTES_MAX {
            crate::print_message(format_args!(
                "keeper of {}: the launcher does not read any more",
                node_name()
            ));
            self.give_up();
        }
    }

    /// Asks `epoll` for room to write only while something waits.
    pub(super) fn watch_link(&mut self) -> io::Result<()> {
        let LauncherLink { link, token, watches_room, .. } = &mut self.launcher;
        let waits = link.has_waiting();
        if waits != core::mem::replace(watches_room, waits) {
            if waits {
                self.events.add(link.to(), *token, EpollFlags::EPOLLOUT)?;
            } else {
                self.events.take_out(link.to());
            }
        }
        Ok(())
    }

    /// When the launcher counts as gone. On its own host the system closes the connection of one that ends; and one that stands still, with all ranks
    /// (Ctrl-Z), says nothing.
    pub(super) fn launcher_due(&self) -> Option<Instant> {
        let is_remote = self.site.program.inherited.is_some();
        let is_waiting = is_remote && self.ranks.processes.is_empty() && !self.suspension.is_on();
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
