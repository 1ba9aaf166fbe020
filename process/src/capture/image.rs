//! The image of a capture: its state, put together from the notes of the stop. Ordinary code, that calls nothing of the C
//! library that allocates: it also runs while threads stand still.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::describe::{self, Regions, Smaps};
use super::facts::Facts;
use super::{CaptureError, Content, Prepared};
use crate::content::Hashes;
use crate::files::{self, FileId};
use crate::signals;
use crate::state::memory::PageRun;
use crate::state::signals::Pending;
use crate::state::threads::At;
use crate::state::{Files, ProcessState};
use crate::stop::Noted;

/// The result of a capture, once all pages are written.
pub struct Image {
    /// Everything but pages and descriptors.
    pub state: ProcessState,
    /// Descriptors.
    pub files: Files,
    /// Bytes that were written from the sink's offset on.
    pub pages_bytes: u64,
    /// Their checksum.
    pub pages_sum: u64,
    /// Pages that were not written, because the image below has them as they are; only if [`super::Captured::is_delta`].
    pub unchanged: Vec<PageRun>,
    /// Hashes of the pages, if [`Prepared::note_content`] was asked for.
    pub hashes: Option<Arc<Hashes>>,
}

/// What the stop noted outside of its room.
pub(super) struct Notes<'a> {
    pub(super) facts: &'a Facts,
    pub(super) threads: &'a [(u32, Noted)],
    pub(super) agent: &'a At,
    pub(super) maps_bytes: usize,
    /// Whether threads stand still.
    pub(super) is_held: bool,
}

impl Prepared {
    /// Puts the image together from the lists in the room.
    pub(super) fn image(&mut self, notes: &Notes<'_>) -> Result<Image, CaptureError> {
        let room = &self.room;
        let report = room.report;
        let maps = room.maps.get(..notes.maps_bytes).unwrap_or(&[]);
        let smaps = room.smaps.get(..report.smaps.load(Ordering::Relaxed) as usize).unwrap_or(&[]);
        let (runs, guards) = (report.runs.load(Ordering::Relaxed), report.guards.load(Ordering::Relaxed));
        let unchanged = report.unchanged.load(Ordering::Relaxed) as usize;
        let unchanged = describe::page_runs(room.unchanged.get(..unchanged).unwrap_or(&[]));
        let written = match self.content {
            Content::Compared(_) => &*room.changed,
            Content::Unknown | Content::Noted(_) => &*room.runs,
        };
        let regions = Regions {
            maps,
            in_child: Smaps::parse(smaps),
            before: &self.look.smaps,
            plan: &self.look.plan,
            runs: written.get(..runs as usize).unwrap_or(&[]),
            guards: room.guards.get(..guards as usize).unwrap_or(&[]),
            known_files: &self.known_files,
        };
        let mut state = describe::state(&regions, notes.facts, notes.threads, notes.agent, &self.look)?;
        let seen = self.signals.finish().map_err(CaptureError::Timers)?;
        state.signals.pending = pending(seen.pending, notes.threads);
        (state.signals.interval_timers, state.signals.timers) = (seen.interval_timers, seen.timers);
        let objects: Vec<FileId> = describe::objects(&regions);
        let refused = |refusals| CaptureError::from(files::PrepareError::Refused(refusals));
        let files = if notes.is_held {
            self.files.finish_without_marks(&objects)
        } else {
            self.files.finish(&objects)
        };
        let files = files.map_err(refused)?;
        let hashes = match std::mem::replace(&mut self.content, Content::Unknown) {
            Content::Noted(hashes) => Some(hashes.belong_to(&state.memory.runs)),
            Content::Unknown | Content::Compared(_) => None,
        };
        Ok(Image {
            state,
            files,
            pages_bytes: report.bytes.load(Ordering::Relaxed),
            pages_sum: report.sum.load(Ordering::Relaxed),
            unchanged,
            hashes,
        })
    }
}

/// Signals that wait for the process, and those that wait for single threads.
fn pending(of_process: Vec<Pending>, threads: &[(u32, Noted)]) -> Vec<Pending> {
    let of_all = of_process.iter().fold(0, |set, waiting| set | 1u64 << (waiting.signal - 1));
    let mut pending = of_process;
    for (tid, noted) in threads {
        pending.extend(signals::pending(Some(*tid), noted.pending & !of_all));
    }
    pending
}
