//! A capture after which ordinary code runs before the threads go on.

use std::sync::atomic::Ordering;

use super::{Attempt, InStop, Prepared};
use crate::arch::PAGE_BYTES;
use crate::capture::image::Notes;
use crate::capture::room::{DONE, Report};
use crate::capture::save::{self, SaveFault, Work};
use crate::capture::{CaptureError, Image, Mode, Pause, describe};
use crate::live::{self, Hold, NoArena};
use crate::pages::{InUse, Run, Runs, Sum};
use crate::stop::Stopped;
use crate::sys::{self, Errno};
use crate::track;

/// Bytes of a piece of pages, at most.
const PIECE_BYTES: u64 = 1 << 20;

/// A captured process all of whose other threads stand still.
///
/// Ordinary code may run, as [`crate::live::HoldAllocator`] gives it memory. It must call no function of the C library that
/// allocates or locks (`opendir`, `getaddrinfo`, standard input and output), take no lock that another thread may hold,
/// and not panic: that ends the process.
pub struct Held<'a> {
    image: Image,
    runs: &'a [Run],
    stopped: &'a Stopped,
    pause: Pause,
    mode: Mode,
}

/// How often [`Prepared::capture_held`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldOutcome {
    /// The first time: the process goes on. With the times of the stop.
    Released(Pause),
    /// Once more: this is the process that was moved, and its threads have gone on.
    Restored,
}

impl Held<'_> {
    /// The image: state, descriptors, pages that were left out. Its checksum is that of all [`Held::pages`].
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The pages that the image has, in the order of its runs: an address, and whole pages, at most 1 MiB at a time.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        pieces(self.runs)
    }

    /// Whether pages are read where they lie, and not from a copy: all of them are in the image, for there was no
    /// tracking, or no room. Then the moved process may have in part what code wrote that ran since the stop, and must use
    /// none of it.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.mode != Mode::Scan
    }

    /// Shows that the calling thread lives: to be called at least once a second. `false`: the other threads went on by
    /// themselves, because it was not.
    pub fn beat(&self) -> bool {
        self.stopped.beat();
        self.stopped.is_held()
    }

    /// The times of the stop so far; of its total, until this value was made.
    #[must_use]
    pub fn pause(&self) -> Pause {
        self.pause
    }
}

fn pieces(runs: &[Run]) -> impl Iterator<Item = (u64, &[u8])> {
    runs.iter().flat_map(|run| {
        (0..run.bytes()).step_by(PIECE_BYTES as usize).map(move |done| {
            let bytes = (run.bytes() - done).min(PIECE_BYTES) as usize;
            // SAFETY: copies of this capture's, or pages of the process that were made readable and that nobody unmaps
            // or cuts: no other thread runs, and files' own pages are not among those that are read in place, unless
            // the file has no name.
            (run.address + done, unsafe {
                std::slice::from_raw_parts((run.source + done) as *const u8, bytes)
            })
        })
    })
}

impl Prepared {
    /// Captures as [`Prepared::capture`] does, and calls `hold` before any other thread goes on. In [`Mode::Scan`] the image
    /// has copies of the pages that were written ([`Prepared::handed_over`]). In other modes, and if the copies find no
    /// room, it has all pages, where they lie ([`Held::is_in_place`]). Nothing is written anywhere. An error after `hold`
    /// was called: threads went on by themselves ([`crate::StopFault::Lost`]).
    pub fn capture_held(
        mut self,
        sum: &mut dyn Sum,
        hold: &mut dyn FnMut(&mut Held<'_>),
    ) -> Result<HeldOutcome, CaptureError> {
        live::make_arena().map_err(|refused| match refused {
            NoArena::NotInstalled => CaptureError::Allocator,
            NoArena::Call(errno) => CaptureError::Call { call: "mmap of memory for the hold", errno },
        })?;
        let maps = track::read("/proc/self/maps");
        let maps = maps.map_err(|errno| CaptureError::Call { call: "/proc/self/maps", errno })?;
        // Files are inspected before the stop, and tables' random numbers are made: their thread-local variables may
        // need memory.
        self.known_files = describe::known_files(&maps, &self.look.plan);
        // An arena that was made now is not yet left out.
        self.look.plan.ignored.extend(live::ignored_arena());
        self.look.plan.ignored.sort_by_key(|range| range.start);
        self.look.plan.ignored.dedup();
        match self.run(None, sum, Some(hold))? {
            None => Ok(HeldOutcome::Restored),
            Some((attempt, _prepared)) => Ok(HeldOutcome::Released(attempt.pause)),
        }
    }
}

impl Attempt<'_> {
    /// Runs the caller's code, before the threads go on.
    pub(super) fn held(&mut self, stopped: &Stopped, began: u64) -> Result<(), InStop> {
        let memory = Hold::begin();
        let agent = self.agent();
        let notes = Notes {
            facts: &self.facts,
            threads: &self.threads,
            agent: &agent,
            maps_bytes: self.maps_bytes,
            is_held: true,
        };
        let is_in_place = self.mode != Mode::Scan;
        let report = self.prepared.room.report;
        let runs = report.runs.load(Ordering::Relaxed) as usize;
        for (_, pages) in pieces(self.prepared.room.runs.get(..runs).unwrap_or(&[])) {
            self.sum.update(pages);
            stopped.beat();
        }
        report.sum.store(self.sum.value(), Ordering::Relaxed);
        report.stage.store(DONE, Ordering::Release);
        match self.prepared.image(&notes) {
            Ok(image) => {
                let runs = self.prepared.room.runs.get(..runs).unwrap_or(&[]);
                stopped.beat();
                let mut pause = self.pause;
                pause.total_ns = pause.stop_ns + (sys::now_ns() - began);
                let mut held = Held { image, runs, stopped, pause, mode: self.mode };
                if let Some(hold) = &mut self.hold {
                    hold(&mut held);
                }
            }
            Err(refused) => self.refused = Some(refused),
        }
        drop(memory);
        if is_in_place {
            let room = &self.prepared.room;
            let maps = room.maps.get(..self.maps_bytes).unwrap_or(&[]);
            save::protect(maps, &self.prepared.look.plan, false).map_err(InStop::Save)?;
        }
        Ok(())
    }
}

/// Where the lists of [`in_place`] are written to, and copies.
pub(super) struct InPlaceRoom<'a> {
    pub(super) runs: &'a mut [Run],
    pub(super) guards: &'a mut [Run],
    pub(super) all: &'a mut [Run],
    pub(super) copies: &'a mut [u8],
}

/// Lists all pages where they lie, and copies those that the capturing thread and waiting ones change. Memory is left
/// readable, unless it fails.
pub(super) fn in_place(
    work: &Work<'_>,
    room: InPlaceRoom<'_>,
    sum: &dyn Sum,
    report: &Report,
) -> Result<(), SaveFault> {
    let listed =
        save::protect(work.maps, work.plan, true).and_then(|()| list_in_place(work, room, sum, report));
    if listed.is_err() {
        let _ = save::protect(work.maps, work.plan, false);
    }
    listed
}

fn list_in_place(
    work: &Work<'_>,
    room: InPlaceRoom<'_>,
    sum: &dyn Sum,
    report: &Report,
) -> Result<(), SaveFault> {
    let (found, guards) = save::find(work, room.runs, room.guards)?;
    let in_use = InUse { ranges: save::in_use(work, sum), waiting: work.waiting, buffer: &mut [] };
    let mut all = Runs::new(room.all);
    let mut filled = 0;
    for run in found.as_slice() {
        let mut done = 0;
        while done < run.bytes() {
            let (mut source, address) = (run.source + done, run.address + done);
            let (is_in_use, bytes) = in_use.kind(source, run.bytes() - done);
            let copy = room.copies.get_mut(filled..).and_then(|rest| rest.get_mut(..bytes as usize));
            if let Some(copy) = copy.filter(|_| is_in_use) {
                // SAFETY: the pages are mapped and readable; the copy is none of them.
                unsafe {
                    std::ptr::copy_nonoverlapping(source as *const u8, copy.as_mut_ptr(), copy.len());
                }
                source = copy.as_ptr() as u64;
                filled += copy.len();
            }
            let fault = |errno: Errno| SaveFault { fault: save::Fault::Scan, address, errno };
            all.push(Run { source, ..Run::in_place(address, bytes) }).map_err(fault)?;
            done += bytes;
        }
    }
    report.guards.store(guards.as_slice().len() as u64, Ordering::Relaxed);
    report.unchanged.store(0, Ordering::Relaxed);
    report.bytes.store(all.bytes(), Ordering::Relaxed);
    report.runs.store(all.as_slice().len() as u64, Ordering::Relaxed);
    Ok(())
}

const _: () = assert!(PIECE_BYTES.is_multiple_of(PAGE_BYTES));
