//! Output of processes, as keepers hand it over: shown at once, and acknowledged while the observer has room.

use ckpt_glue::control::JobPhase;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::pmi::Member;

use super::super::limits::LINE_WINDOW_BYTES;
use super::super::lines::Channel;
use super::super::notice::Notice;
use super::super::wire::ToKeeper;
use super::Shell;

impl Shell<'_> {
    pub(super) fn on_line(
        &mut self,
        node: NodeIndex,
        member: Member,
        is_error: bool,
        (line, is_part): (&[u8], bool),
    ) {
        let channel = if is_error { Channel::Error } else { Channel::Output };
        self.notify(&Notice::Line { member, channel, line, is_part });
        // If the process ends while it comes up, the last line it printed gives the reason.
        if is_error && self.restore.generation.is_some() && self.job.status().phase == JobPhase::Starting {
            self.restore.last_words.insert(member, String::from_utf8_lossy(line).into_owned());
        }
        if let Some(keeper) = self.keepers.get_mut(node) {
            keeper.shown += line.len() as u64 + 1;
        }
    }

    /// Lets keepers hand over more, if there is room for it. Not for every line: a good part of the window at once.
    pub(super) fn report_shown(&mut self) {
        self.is_full = !self.observer.takes_lines();
        if self.is_full {
            return;
        }
        for node in self.keepers.nodes() {
            let Some(keeper) = self.keepers.get_mut(node) else { continue };
            if keeper.shown >= LINE_WINDOW_BYTES / 4 {
                let bytes = core::mem::take(&mut keeper.shown);
                self.keepers.send(node, &ToKeeper::Shown { bytes });
            }
        }
    }
}
