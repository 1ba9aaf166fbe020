//! Room for everything that is written while threads stand still, and by the forked child.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::arch::PAGE_BYTES;
use crate::pages::Run;
use crate::scratch::Scratch;
use crate::stop::Noted;
use crate::sys::Answer;

/// The report of the pages' writer, in the first page of the scratch.
#[repr(C)]
pub(super) struct Report {
    /// [`DONE`], [`FAILED`], or neither yet.
    pub(super) stage: AtomicU32,
    /// The kind of failure: a [`super::save::Fault`].
    pub(super) fault: AtomicU32,
    pub(super) errno: AtomicU32,
    /// Where it failed.
    pub(super) address: AtomicU64,
    pub(super) runs: AtomicU64,
    /// Runs of pages that were not copied, because they are in the image below.
    pub(super) unchanged: AtomicU64,
    pub(super) guards: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Bytes that are written.
    pub(super) written: AtomicU64,
    pub(super) sum: AtomicU64,
    /// Bytes of the child's `/proc/self/smaps`.
    pub(super) smaps: AtomicU64,
}

pub(super) const DONE: u32 = 1;
pub(super) const FAILED: u32 = 2;

/// How much there is to write down, as far as it can be known beforehand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Bytes of `/proc/self/maps`.
    pub(super) maps: u64,
    /// Bytes of `/proc/self/smaps`.
    pub(super) smaps: u64,
    /// Pages that are not as their backing has them.
    pub(super) pages: u64,
    /// Bytes of shared memory that may have to be copied.
    pub(super) shared: u64,
    /// Bytes of pages that are copied because they were written.
    pub(super) written: u64,
    pub(super) threads: usize,
}

impl Size {
    /// Twice as much, and some: a process may grow between the look and the stop.
    pub(super) fn with_margin(self) -> Size {
        Size {
            maps: self.maps * 2 + (64 << 10),
            smaps: self.smaps * 2 + (1 << 20),
            pages: self.pages * 2 + (64 << 10),
            shared: self.shared + self.shared / 4 + (64 << 10),
            written: self.written,
            threads: self.threads * 2 + 64,
        }
    }
}

/// The parts of the scratch.
pub(super) struct Room {
    pub(super) report: &'static Report,
    pub(super) maps: &'static mut [u8],
    pub(super) child_maps: &'static mut [u8],
    pub(super) smaps: &'static mut [u8],
    pub(super) runs: &'static mut [Run],
    pub(super) guards: &'static mut [Run],
    pub(super) shared_runs: &'static mut [Run],
    pub(super) copies: &'static mut [u8],
    /// Copies of private pages that were written.
    pub(super) written: &'static mut [u8],
    pub(super) unchanged: &'static mut [Run],
    /// Of the pages that were found, those whose content is another one now.
    pub(super) changed: &'static mut [Run],
    /// Through which go the pages that their writer uses.
    pub(super) buffer: &'static mut [u8],
    /// Copies of pages that change while code runs and threads stand still.
    pub(super) used: &'static mut [u8],
}

/// Memory that every stop fills, populated before it; mapped shared memory may be far larger than its existing pages.
const POPULATED_BYTES: u64 = 256 << 10;

const BUFFER_BYTES: u64 = 256 << 10;

/// The stack of the capturing thread, as far as it is copied, and some.
const USED_BYTES: u64 = 3 << 20;

/// Runs of guard pages.
const GUARD_RUNS: usize = 64 << 10;

impl Room {
    /// The parts live as long as the scratch, which the caller keeps.
    pub(super) fn new(size: Size) -> Answer<(Scratch, Room)> {
        let mut end = 0u64;
        let mut take = |bytes: u64| -> Range<u64> {
            let start = end;
            end = (start + bytes).next_multiple_of(PAGE_BYTES);
            start..end
        };
        let run = size_of::<Run>() as u64;
        // In the worst case every second page is a run (and, of two lists, every second one of the other); shared memory is scanned apart, and has pages of its own.
        let runs = size.pages / 2 + 1;
        let shared_runs = size.shared / PAGE_BYTES + 1;
        let report = take(PAGE_BYTES);
        let texts = [take(size.maps), take(size.maps), take(size.smaps)];
        let lists =
            [take((runs + shared_runs) * run), take(GUARD_RUNS as u64 * run), take(shared_runs * run)];
        let (copies, buffer) = (take(size.shared), take(BUFFER_BYTES));
        // Without need they are not touched, and cost nothing.
        let (written, unchanged) = (take(size.written), take((runs + shared_runs) * run));
        let changed = take((runs + shared_runs) * run);
        let used = take(USED_BYTES + (size.threads * Noted::USED_PAGES) as u64 * PAGE_BYTES);
        let scratch = Scratch::new(end)?;
        // In the stop nothing is to wait for the kernel to make pages.
        scratch.populate(written.clone());
        for part in [&report, &texts[0], &lists[2], &copies] {
            scratch.populate(part.start..part.end.min(part.start + POPULATED_BYTES));
        }
        let bytes = |range: &Range<u64>| (range.end - range.start) as usize;
        // SAFETY: the parts do not overlap, start at pages, and are of types that may be all zeros.
        let room = unsafe {
            Room {
                report: &scratch.slice::<Report>(report.start, 1)[0],
                maps: scratch.slice(texts[0].start, bytes(&texts[0])),
                child_maps: scratch.slice(texts[1].start, bytes(&texts[1])),
                smaps: scratch.slice(texts[2].start, bytes(&texts[2])),
                runs: scratch.slice(lists[0].start, bytes(&lists[0]) / size_of::<Run>()),
                guards: scratch.slice(lists[1].start, bytes(&lists[1]) / size_of::<Run>()),
                shared_runs: scratch.slice(lists[2].start, bytes(&lists[2]) / size_of::<Run>()),
                copies: scratch.slice(copies.start, bytes(&copies)),
                buffer: scratch.slice(buffer.start, bytes(&buffer)),
                used: scratch.slice(used.start, bytes(&used)),
                written: scratch.slice(written.start, bytes(&written)),
                unchanged: scratch.slice(unchanged.start, bytes(&unchanged) / size_of::<Run>()),
                changed: scratch.slice(changed.start, bytes(&changed) / size_of::<Run>()),
            }
        };
        Ok((scratch, room))
    }
}
