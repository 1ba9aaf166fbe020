//! Which pages were written since an image was taken: `userfaultfd(2)` in its asynchronous write-protecting mode (Linux 6.7).
//!
//! [`Tracker::arm`] takes from pages the right to be written; the first write to each gives it back, in the kernel, and
//! leaves a mark that `PAGEMAP_SCAN` reads. It is called *before* an image of all pages is taken: pages written between
//! arming and the cut count as written, and all others are in that image as they are in memory. Everything that the
//! kernel does not watch (memory mapped or moved since) counts as written, too. So a capture in
//! [`crate::capture::Mode::Scan`] errs to one side only.

mod costs;
mod kernel;

use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::arch::PAGE_BYTES;
use crate::declared::Declared;
use crate::maps::{self, Line};
use crate::pages::{Saved, Scanner};
use crate::preflight;
use crate::smaps::Smaps;
use crate::state::memory::Protection;
use crate::sys::{self, Answer, Errno};

pub use costs::{ARMED_BYTES_MIN, Costs, DELTA_FRACTION, Way};
pub(crate) use kernel::{is_descriptor, is_tracker};

/// A region with fewer bytes of its own is not worth the calls: it counts as written.
pub(crate) const REGION_BYTES_MIN: u64 = 64 << 10;

/// Arming delays threads that map memory meanwhile: some 10 ms for a GiB of small pages. So it is done in pieces.
const PIECE_BYTES: u64 = 64 << 20;

/// The name of the descriptor in images.
const OWNER: &str = "the tracker of written pages";

/// Watches memory of this process.
#[derive(Debug)]
pub struct Tracker {
    descriptor: OwnedFd,
    /// The watched ranges, rising, without overlap.
    ranges: Vec<Range<u64>>,
}

/// Which regions are armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Those of small pages. A huge page falls apart when it is written while it is armed, and a fork copies huge pages quickly.
    Small,
    /// All.
    Everything,
}

/// The existing pages, and those that a capture in [`crate::capture::Mode::Scan`] would copy now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Bytes of the process's own pages.
    pub own_bytes: u64,
    /// Of these, written since they were armed, or never armed.
    pub written_bytes: u64,
    /// How long finding this out took, ns.
    pub scan_ns: u64,
}

impl Tracker {
    /// Asks the kernel for one, and tries it on two pages. An error: this kernel, or a filter of system calls, has none.
    pub fn open() -> Result<Tracker, Errno> {
        let descriptor = kernel::open()?;
        let tracker = Tracker { descriptor, ranges: Vec::new() };
        kernel::try_out(tracker.descriptor.as_raw_fd())?;
        Ok(tracker)
    }

    /// Arms all pages of the process's own that a capture would save: none counts as written afterwards, until it is written, or
    /// if the kernel or `scope` leaves it out.
    pub fn arm(&mut self, declared: &Declared, scope: Scope) -> Result<(), Errno> {
        self.check()?;
        let plan = preflight::plan(declared);
        let (maps, smaps) = (read("/proc/self/maps")?, read("/proc/self/smaps")?);
        let smaps = Smaps::parse(&smaps);
        let mut scanner = Scanner::open()?;
        self.ranges.clear();
        for line in maps::lines(&maps).flatten() {
            let Some(entry) = smaps.at(line.start) else { continue };
            let is_huge = entry.huge_bytes * 2 > entry.private_bytes;
            let is_wanted = plan.saved(&line) == Saved::Changed
                && line.protection.contains(Protection::READ)
                && entry.private_bytes >= REGION_BYTES_MIN
                && (scope == Scope::Everything || !is_huge);
            if !is_wanted {
                // Memory watched before stays watched, and still has the same content when the next image is
                // taken.
                if entry.special.is_watched {
                    self.watches(line.start..line.end);
                }
                continue;
            }
            for part in plan.parts(&line) {
                // Of the program's own watching, or gone meanwhile: it counts as written.
                if kernel::register(self.descriptor.as_raw_fd(), part.clone()).is_ok() {
                    self.watches(part.clone());
                    arm(&mut scanner, part)?;
                }
            }
        }
        Ok(())
    }

    /// How much is there, and how much was written. The program runs meanwhile.
    pub fn extent(&self, declared: &Declared) -> Result<Extent, Errno> {
        self.check()?;
        let plan = preflight::plan(declared);
        let maps = read("/proc/self/maps")?;
        let mut scanner = Scanner::open()?;
        let mut extent = Extent::default();
        let began = sys::now_ns();
        for line in maps::lines(&maps).flatten() {
            match plan.saved(&line) {
                Saved::Changed => {
                    for part in plan.parts(&line) {
                        own(&mut scanner, &line, part, &mut extent)?;
                    }
                }
                Saved::Whole => {
                    extent.own_bytes += line.bytes();
                    extent.written_bytes += line.bytes();
                }
                // Copied in every mode.
                Saved::Copied | Saved::Vdso | Saved::Not => {}
            }
        }
        extent.scan_ns = sys::now_ns() - began;
        Ok(extent)
    }

    /// Declares that the descriptor and its watched memory are ours.
    pub fn declare(&self, declared: &mut Declared) {
        declared.remade.push((OWNER.to_owned(), self.descriptor.as_raw_fd()));
        declared.tracked_memory.clone_from(&self.ranges);
    }

    /// For a restored process, and for one that has closed our descriptor: the number is unused there, or has another
    /// owner.
    pub fn forget(self) {
        std::mem::forget(self.descriptor);
    }

    /// Watches more memory; `false`: it is gone, or is watched by the program itself.
    pub(crate) fn register(&self, range: Range<u64>) -> bool {
        kernel::register(self.descriptor.as_raw_fd(), range).is_ok()
    }

    /// Everything that it watches, rising, without overlap.
    pub(crate) fn set_ranges(&mut self, ranges: Vec<Range<u64>>) {
        self.ranges = ranges;
    }

    /// A program may have closed descriptors that it did not know.
    pub(crate) fn check(&self) -> Answer<()> {
        if kernel::is_ours(self.descriptor.as_raw_fd()) { Ok(()) } else { Err(Errno(libc::EBADF)) }
    }

    fn watches(&mut self, range: Range<u64>) {
        match self.ranges.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => self.ranges.push(range),
        }
    }
}

pub(crate) fn read(path: &str) -> Answer<Vec<u8>> {
    fs::read(path).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

pub(crate) fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(PIECE_BYTES as usize).map(move |start| start..end.min(start.saturating_add(PIECE_BYTES)))
}

fn arm(scanner: &mut Scanner, part: Range<u64>) -> Answer<()> {
    for piece in pieces(part) {
        match scanner.arm(piece) {
            Ok(()) => {}
            // Mapped anew since the list was read. Unarmed memory counts as written.
            Err(Errno(libc::EPERM | libc::ENOMEM)) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn own(scanner: &mut Scanner, line: &Line<'_>, part: Range<u64>, extent: &mut Extent) -> Answer<()> {
    for piece in pieces(part) {
        scanner.own(piece, line.is_anonymous(), |pages, is_written| {
            let bytes = pages.end - pages.start;
            extent.own_bytes += bytes;
            extent.written_bytes += if is_written { bytes } else { 0 };
            Ok(())
        })?;
    }
    Ok(())
}

/// How many bytes of its own the process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bytes {
    /// In all.
    pub own: u64,
    /// In small pages, which a fork copies page by page.
    pub small: u64,
}

impl Bytes {
    /// Whether it is worth while to arm small pages before a whole image.
    #[must_use]
    pub fn are_armed(&self) -> bool {
        self.small >= ARMED_BYTES_MIN
    }

    /// Whether nearly all of many bytes are huge pages: a fork copies them quickly, and writing few of them is worth
    /// while.
    #[must_use]
    pub fn are_huge(&self) -> bool {
        !self.are_armed() && self.own >= ARMED_BYTES_MIN
    }
}

/// Counts them.
pub fn bytes() -> Result<Bytes, Errno> {
    let mut bytes = Bytes::default();
    for entry in Smaps::parse(&read("/proc/self/smaps")?).0 {
        bytes.own += entry.private_bytes;
        bytes.small += entry.private_bytes.saturating_sub(entry.huge_bytes);
    }
    Ok(bytes)
}

const _: () = assert!(PIECE_BYTES.is_multiple_of(PAGE_BYTES));

#[cfg(test)]
mod tests;
