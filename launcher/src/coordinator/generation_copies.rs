//! Copies of generations outside the nodes: when they begin, how they are reported, and how long a job's end waits for one.

use std::time::{Duration, Instant};

use ckpt_glue::job::FinalReport;
use ckpt_glue::recovery::Ending;
use copies::{Copies, CopyLocation};
use nix::sys::epoll::EpollEvent;
use store::{GenerationId, Manifest};
use transport::Life;

use super::super::Plan;
use super::super::events::epoll_timeout;
use super::super::flush::{Copied, CopyEvent, Flusher};
use super::super::limits::{COPY_NEWS_EVERY, EVENTS_PER_ROUND};
use super::super::notice::{CopyNotice, Notice};
use super::super::storage::Task;
use super::Shell;
use super::parts::Parts;
use crate::error::LauncherError;

/// Signals by which a person ends the wait for a copy.
const STOPS: u32 = 2;

/// Copies outside the nodes.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) flusher: Option<Flusher>,
    /// Parts of a copy that the nodes' keepers write, and the number of the last one.
    pub(super) parts: Option<Parts>,
    pub(super) parts_last: u64,
    /// Lies in the directory of copies until all nodes have seen it.
    pub(super) sign: Option<u64>,
    /// The newest generation of which there is a copy.
    pub(super) newest: Option<GenerationId>,
}

impl Copying {
    pub(super) fn start(plan: &Plan) -> Result<Copying, LauncherError> {
        let sign = leave_sign(plan)?;
        let flusher = plan.flush.as_ref().map(|flush| Flusher::start(flush, plan)).transpose()?;
        Ok(Copying { flusher, parts: None, parts_last: 0, sign, newest: None })
    }
}

/// Leaves something in the directory of copies that all nodes are to see. An object store has the same name everywhere, and a job begins without one that
/// does not answer yet.
fn leave_sign(plan: &Plan) -> Result<Option<u64>, LauncherError> {
    let Some(flush) = plan.flush.as_ref().filter(|_| plan.has_images_elsewhere()) else { return Ok(None) };
    match &flush.to {
        CopyLocation::Folder(_) => Ok(Some(Copies::new(&*flush.to.open()?, plan.job, None).leave_sign()?)),
        CopyLocation::Objects { .. } => Ok(None),
    }
}

impl Shell<'_> {
    /// A generation is committed: it is copied if it is its turn.
    pub(super) fn copy(&mut self, manifest: &Manifest) {
        let left_out = self.copying.flusher.as_mut().and_then(|flusher| flusher.committed(manifest));
        if let Some(generation) = left_out {
            self.notify(&Notice::Copy(CopyNotice::LeftOut { generation }));
        }
    }

    /// Has old generations removed, but for those that are being copied.
    pub(super) fn collect(&mut self, life: Life) {
        let in_use = self.copying.flusher.as_ref().map(Flusher::in_use).unwrap_or_default();
        self.store.ask(Task::Collect { life, keep: self.plan.keep, in_use });
    }

    pub(super) fn on_copies(&mut self) {
        while let Some(said) = self.copying.flusher.as_mut().and_then(Flusher::next) {
            let done = match said {
                CopyEvent::Asks(order, manifest) => {
                    self.ask_parts(&order, *manifest);
                    continue;
                }
                CopyEvent::Done(done) => done,
            };
            match &done {
                Copied::Written { generation, bytes, new_bytes, took, unremoved } => {
                    let (generation, bytes, new_bytes, took) = (*generation, *bytes, *new_bytes, *took);
                    self.copying.newest = Some(generation);
                    self.notify(&Notice::Copy(CopyNotice::Written { generation, bytes, new_bytes, took }));
                    if let Some(error) = unremoved {
                        self.notify(&Notice::Copy(CopyNotice::Unremoved { error }));
                    }
                }
                Copied::Failed { generation, error } => {
                    self.notify(&Notice::Copy(CopyNotice::Failed { generation: *generation, error }));
                }
            }
        }
    }

    /// Reports from time to time how far a copy is, and gives up one that makes no progress.
    pub(super) fn report_copying(&mut self, now: Instant) {
        self.give_up_silent_parts(now);
        if let Some(flusher) = &mut self.copying.flusher
            && let Some(so_far) = flusher.give_up_silent(now)
        {
            let patience = flusher.patience();
            self.notify(&Notice::Copy(CopyNotice::Silent { so_far, patience }));
        }
        let progress = self.copying.flusher.as_mut().and_then(|flusher| flusher.progress(now));
        if let Some(so_far) = progress {
            self.notify(&Notice::Copy(CopyNotice::Progress(so_far)));
        }
    }

    /// Waits for the copy that is being written; of a job that can go on also for the one that waits. Not for ever, and not if a person wants
    /// the end for the second time.
    pub(super) fn finish_copies(&mut self, report: &FinalReport) {
        self.on_copies();
        let Some(flusher) = &mut self.copying.flusher else { return };
        if report.ending == Ending::Finished {
            flusher.forget_waiting();
        }
        let Some(so_far) = flusher.under_way() else { return };
        self.notify(&Notice::Copy(CopyNotice::Awaited(so_far)));
        while let Some(so_far) = self.copying.flusher.as_ref().and_then(Flusher::under_way) {
            let why = if self.end.stops >= STOPS {
                "it was asked for"
            } else if self.copying.flusher.as_ref().is_some_and(Flusher::is_given_up) {
                "it makes no progress"
            } else {
                self.await_copies();
                continue;
            };
            let newest = self.copying.newest;
            self.notify(&Notice::Copy(CopyNotice::GivenUp { so_far, why, newest }));
            self.give_up_parts();
            self.copying.flusher = None;
            return;
        }
    }

    /// Until something happens, or it is time to look.
    fn await_copies(&mut self) {
        let limit = COPY_NEWS_EVERY.min(Duration::from_secs(1));
        let mut events = vec![EpollEvent::empty(); EVENTS_PER_ROUND];
        let before = self.end.stops;
        // Fails only for a descriptor that is being closed.
        let _ = self.keepers.watch_links(&self.events);
        let count = self.events.wait(&mut events, epoll_timeout(Some(limit))).unwrap_or(0);
        for event in &events[..count] {
            self.on_event(event.data(), event.events());
        }
        if self.end.stops > before && self.end.stops < STOPS {
            self.notify(&Notice::Copy(CopyNotice::Again));
        }
        self.on_copies();
        self.report_copying(Instant::now());
    }
}
