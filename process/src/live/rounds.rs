//! Memory of a running process, handed over in rounds.

use std::fmt;
use std::io;
use std::ops::Range;

use crate::arch::PAGE_BYTES;
use crate::declared::Declared;
use crate::maps::{self, Line};
use crate::page_set::PageSet;
use crate::pages::{Plan, Saved, Scanner};
use crate::preflight;
use crate::scratch::Scratch;
use crate::state::memory::{PageRun, Protection};
use crate::sys::{self, Errno};
use crate::track::{self, REGION_BYTES_MIN, Tracker};

/// Bytes that are read at once, at most.
const READ_BYTES: u64 = 1 << 20;

/// Runs that are read at once, at most.
const READ_RUNS: usize = 64;

/// Memory of this process, read in rounds while it runs.
///
/// A page that a round finds written is armed at the same moment, before it is read: a write during or after the
/// reading makes it part of the next round. Whether a page was handed over is noted only when it was read and its
/// receiver took it; all others count as written.
pub struct Rounds {
    tracker: Tracker,
    /// Memory that the tracker was ever given.
    watched: PageSet,
    /// Pages whose content of when they were last found written was handed over.
    handed_over: PageSet,
    /// Armed, but not handed over: unreadable or given back at that moment, or refused by the receiver.
    owed: PageSet,
    /// Through which pages go. In no image, and never written by the program.
    buffer: Scratch,
}

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// Handed over, bytes.
    pub bytes: u64,
    /// Its duration, with the receiver's part, ns.
    pub took_ns: u64,
}

/// Why a round ended early. The pages that it did not hand over are part of the next one.
#[derive(Debug)]
pub enum RoundError {
    /// The kernel refused a call.
    Call {
        /// Which one.
        call: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The receiver of pages failed.
    Receiver(io::Error),
}

impl fmt::Display for RoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoundError::Call { call, errno } => {
                write!(f, "a round of memory ended early: {call}: {errno}; move the process without rounds")
            }
            RoundError::Receiver(error) => {
                write!(f, "a round of memory ended early: its pages could not be handed over: {error}")
            }
        }
    }
}

impl std::error::Error for RoundError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RoundError::Call { .. } => None,
            RoundError::Receiver(error) => Some(error),
        }
    }
}

fn call(call: &'static str) -> impl Fn(Errno) -> RoundError {
    move |errno| RoundError::Call { call, errno }
}

impl Rounds {
    /// Opens the kernel's tracking of written pages. An error: this kernel, or a filter of system calls, has none; the
    /// process can be moved without rounds.
    pub fn open() -> Result<Rounds, Errno> {
        Ok(Rounds {
            tracker: Tracker::open()?,
            watched: PageSet::default(),
            handed_over: PageSet::default(),
            owed: PageSet::default(),
            buffer: Scratch::new(READ_BYTES)?,
        })
    }

    /// One round: the first hands over all pages of the process's own that a capture would save from private memory
    /// (small regions are left to the capture); later ones hand over pages that were written since the round before,
    /// and memory that was mapped since. `each` gets an address and whole pages, at most 1 MiB at a time; the same page
    /// may come more than once. Memory that is unmapped meanwhile is passed over.
    pub fn round(
        &mut self,
        declared: &Declared,
        each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<Round, RoundError> {
        let began = sys::now_ns();
        self.tracker.check().map_err(call("the tracker of written pages"))?;
        let plan = self.plan(declared);
        let maps = track::read("/proc/self/maps").map_err(call("reading /proc/self/maps"))?;
        let mut scanner = Scanner::open().map_err(call("opening /proc/self/pagemap"))?;
        let mut bytes = 0;
        for line in maps::lines(&maps).flatten().filter(|line| is_sent(&plan, line)) {
            for piece in plan.parts(&line).flat_map(track::pieces) {
                bytes += self.piece(&mut scanner, &line, piece, each)?;
            }
        }
        self.tracker.set_ranges(self.watched.ranges().collect());
        Ok(Round { bytes, took_ns: sys::now_ns() - began })
    }

    /// Hands over the due pages of a part of a region. Returns their bytes.
    fn piece(
        &mut self,
        scanner: &mut Scanner,
        line: &Line<'_>,
        piece: Range<u64>,
        each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<u64, RoundError> {
        let mut due: Vec<Range<u64>> = self.owed.within(piece.clone()).collect();
        let mut unwatched = Vec::new();
        let looked = scanner.unwatched(piece.clone(), |range| {
            unwatched.push(range);
            Ok(())
        });
        looked.map_err(call("looking for unwatched memory (PAGEMAP_SCAN)"))?;
        for range in unwatched {
            // Memory that is gone meanwhile, or of the program's own watching, is left to the capture.
            if self.tracker.register(range.clone()) {
                self.watched.insert(range.clone());
                due.push(range);
            }
        }
        // Of memory that was moved here with its pages, the kernel may take pages for armed: all of it is due.
        let mut found = PageSet::default();
        let mut scanned = Ok(());
        for (range, is_whole) in due.into_iter().map(|range| (range, true)).chain([(piece, false)]) {
            let add = |pages: Range<u64>| {
                found.insert(pages);
                Ok(())
            };
            let taken = if is_whole {
                scanner.take_own(range, line.is_anonymous(), add)
            } else {
                scanner.take_written(range, line.is_anonymous(), add)
            };
            scanned = taken.map_err(call("arming written pages (PAGEMAP_SCAN)"));
            if scanned.is_err() {
                break;
            }
        }
        let mut pages: Vec<Range<u64>> = Vec::new();
        for range in found.ranges() {
            // Armed: nobody else knows now that they were written.
            self.owed.insert(range.clone());
            self.handed_over.remove(range.clone());
            pages.extend(
                range
                    .clone()
                    .step_by(READ_BYTES as usize)
                    .map(|start| start..range.end.min(start + READ_BYTES)),
            );
        }
        scanned?;
        self.hand_over(&pages, each)
    }

    /// Reads pages, each range at most [`READ_BYTES`], and hands over those that are there.
    fn hand_over(
        &mut self,
        pages: &[Range<u64>],
        each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<u64, RoundError> {
        let mut sent = 0;
        let mut left = pages;
        while let Some(first) = left.first() {
            let (mut runs, mut bytes) = (0, 0);
            while let Some(next) = left.get(runs).filter(|_| runs < READ_RUNS) {
                let more = next.end - next.start;
                if bytes + more > READ_BYTES {
                    break;
                }
                bytes += more;
                runs += 1;
            }
            let (batch, after) = left.split_at(runs.max(1).min(left.len()));
            left = after;
            if self.read(batch) == bytes {
                sent += self.receive(batch, each)?;
                continue;
            }
            // Something of it is gone: page by page.
            debug_assert!(first.start < first.end);
            for start in batch.iter().flat_map(|range| range.clone().step_by(PAGE_BYTES as usize)) {
                let page = start..start + PAGE_BYTES;
                if self.read(std::slice::from_ref(&page)) == PAGE_BYTES {
                    sent += self.receive(std::slice::from_ref(&page), each)?;
                }
            }
        }
        Ok(sent)
    }

    /// Fills the buffer with the pages of so many ranges; returns how much was there of them before something was not.
    fn read(&mut self, ranges: &[Range<u64>]) -> u64 {
        let piece = |range: &Range<u64>| libc::iovec {
            iov_base: range.start as *mut _,
            iov_len: (range.end - range.start) as usize,
        };
        let pieces: Vec<libc::iovec> = ranges.iter().map(piece).collect();
        let local =
            libc::iovec { iov_base: self.buffer.range().start as *mut _, iov_len: READ_BYTES as usize };
        let (local, remote) = (&raw const local as usize, pieces.as_ptr() as usize);
        let arguments = [sys::process_id() as usize, local, 1, remote, pieces.len(), 0];
        // SAFETY: the kernel writes into the buffer, which has room for as many bytes, and which nothing else refers
        // to; it does not read memory that is not there.
        unsafe { sys::call(libc::SYS_process_vm_readv, arguments) }.map_or(0, |read| read as u64)
    }

    /// Gives the buffer's pages to their receiver, and notes them as handed over.
    fn receive(
        &mut self,
        ranges: &[Range<u64>],
        each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<u64, RoundError> {
        // SAFETY: only this type writes to it, and not while this borrows it.
        let buffer: &[u8] = unsafe { self.buffer.slice(0, READ_BYTES as usize) };
        let mut at = 0;
        for range in ranges {
            let bytes = (range.end - range.start) as usize;
            let pages = buffer.get(at..at + bytes).unwrap_or(&[]);
            each(range.start, pages).map_err(RoundError::Receiver)?;
            self.owed.remove(range.clone());
            self.handed_over.insert(range.clone());
            at += bytes;
        }
        Ok(at as u64)
    }

    /// Written and not yet handed over, bytes: what a capture in [`crate::capture::Mode::Scan`] would copy now.
    pub fn left(&self, declared: &Declared) -> Result<u64, Errno> {
        self.tracker.check()?;
        let plan = self.plan(declared);
        let maps = track::read("/proc/self/maps")?;
        let mut scanner = Scanner::open()?;
        let mut left = 0;
        for line in maps::lines(&maps).flatten() {
            let saved = plan.saved(&line);
            for piece in plan.parts(&line).flat_map(track::pieces) {
                match saved {
                    Saved::Changed => scanner.own(piece, line.is_anonymous(), |pages, is_written| {
                        let handed_over: u64 = if is_written {
                            0
                        } else {
                            self.handed_over.within(pages.clone()).map(|part| part.end - part.start).sum()
                        };
                        left += pages.end - pages.start - handed_over;
                        Ok(())
                    })?,
                    Saved::Whole => left += piece.end - piece.start,
                    // Copied in every mode, in room of their own.
                    Saved::Copied | Saved::Vdso | Saved::Not => {}
                }
            }
        }
        Ok(left)
    }

    /// Declares that the tracker, its watched memory and the memory of this value are ours.
    pub fn declare(&self, declared: &mut Declared) {
        self.tracker.declare(declared);
        declared.ignored_memory.push(self.buffer.range());
    }

    /// For a restored process: the tracker's number is unused there, or has another owner, and so has its memory.
    pub fn forget(self) {
        self.tracker.forget();
        std::mem::forget(self.buffer);
    }

    /// The pages that were handed over and whose content was not found written since, by rising address: a capture may
    /// leave out no others ([`crate::capture::Prepared::handed_over`]).
    #[must_use]
    pub fn handed_over(&self) -> Vec<PageRun> {
        let run = |range: Range<u64>| PageRun {
            address: range.start,
            pages: (range.end - range.start) / PAGE_BYTES,
        };
        self.handed_over.ranges().map(run).collect()
    }

    fn plan(&self, declared: &Declared) -> Plan {
        let mut plan = preflight::plan(declared);
        plan.ignored.push(self.buffer.range());
        plan.ignored.sort_by_key(|range| range.start);
        plan
    }
}

impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rounds")
            .field("tracker", &self.tracker)
            .field("handed_over_bytes", &self.handed_over.bytes())
            .field("owed_bytes", &self.owed.bytes())
            .finish_non_exhaustive()
    }
}

/// Whether a region is worth the calls. All others are left to the capture, which takes unwatched memory for written.
fn is_sent(plan: &Plan, line: &Line<'_>) -> bool {
    plan.saved(line) == Saved::Changed
        && line.protection.contains(Protection::READ)
        && (line.is_anonymous() || line.protection.contains(Protection::WRITE))
        && line.bytes() >= REGION_BYTES_MIN
}
