//! Pages that were written since they were armed, copied while all threads stand still.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::room::Report;
use super::save::{Fault, SaveFault, Work, readable_end, set_protection};
use crate::arch::PAGE_BYTES;
use crate::maps::{self, Line};
use crate::pages::{Run, Runs, Saved, Scanner};
use crate::state::memory::{PageRun, Protection};
use crate::sys::{Answer, Errno};

/// Where lists and copies are written to.
pub(super) struct CopyRoom<'a> {
    pub(super) runs: &'a mut [Run],
    pub(super) guards: &'a mut [Run],
    pub(super) unchanged: &'a mut [Run],
    pub(super) copies: &'a mut [u8],
}

/// Copies, and leaves the lists filled: `runs` has their content in the copies, `unchanged` is in the image below. `ENOBUFS`:
/// there is no room for all of it.
pub(super) fn changed(work: &Work<'_>, room: CopyRoom<'_>, report: &Report) -> Result<(), SaveFault> {
    let fault = |address: u64| move |errno| SaveFault { fault: Fault::Scan, address, errno };
    let mut scanner = Scanner::open().map_err(fault(0))?;
    let (mut runs, mut guards) = (Runs::new(room.runs), Runs::new(room.guards));
    let mut unchanged = Runs::new(room.unchanged);
    let mut copies = Copies { room: room.copies, filled: 0 };
    let mut shared = work.shared.iter().copied().peekable();
    let mut handed_over = HandedOver { runs: work.handed_over, at: 0 };
    for line in maps::lines(work.maps) {
        let Some(line) = line else {
            return Err(SaveFault { fault: Fault::Maps, address: 0, errno: Errno(libc::EPROTO) });
        };
        let saved = work.plan.saved(&line);
        for part in work.plan.parts(&line) {
            let at = fault(part.start);
            match saved {
                Saved::Not => {}
                Saved::Changed => {
                    let each = |pages: Range<u64>, is_written| {
                        if is_written {
                            return copies.take(&line, pages, &mut runs);
                        }
                        handed_over.split(pages, |pages, is_handed_over| {
                            if is_handed_over {
                                unchanged.push(Run::in_place(pages.start, pages.end - pages.start))
                            } else {
                                copies.take(&line, pages, &mut runs)
                            }
                        })
                    };
                    scanner.own(part.clone(), line.is_anonymous(), each).map_err(at)?;
                    scanner.guards(part, &mut guards).map_err(at)?;
                }
                Saved::Whole => {
                    let readable = part.start..readable_end(&part);
                    copies.take(&line, readable, &mut runs).map_err(at)?;
                }
                Saved::Copied | Saved::Vdso => {
                    while let Some(run) = shared.next_if(|run| run.address < part.end) {
                        runs.push(run).map_err(at)?;
                    }
                }
            }
        }
    }
    report.runs.store(runs.as_slice().len() as u64, Ordering::Relaxed);
    report.unchanged.store(unchanged.as_slice().len() as u64, Ordering::Relaxed);
    report.guards.store(guards.as_slice().len() as u64, Ordering::Relaxed);
    report.bytes.store(runs.bytes(), Ordering::Relaxed);
    Ok(())
}

/// The pages that may be left out. Asked for rising addresses.
struct HandedOver<'a> {
    runs: Option<&'a [PageRun]>,
    /// The first run that may lie behind the last address asked for.
    at: usize,
}

impl HandedOver<'_> {
    /// Reports the parts of `pages` that are among them, and those that are not, rising.
    fn split(
        &mut self,
        pages: Range<u64>,
        mut each: impl FnMut(Range<u64>, bool) -> Answer<()>,
    ) -> Answer<()> {
        let Some(runs) = self.runs else { return each(pages, true) };
        let mut at = pages.start;
        while at < pages.end {
            let Some(run) = runs.get(self.at) else { return each(at..pages.end, false) };
            let run = run.address..run.address + run.pages * PAGE_BYTES;
            if run.end <= at {
                self.at += 1;
            } else if run.start <= at {
                let end = run.end.min(pages.end);
                each(at..end, true)?;
                at = end;
            } else {
                let end = run.start.min(pages.end);
                each(at..end, false)?;
                at = end;
            }
        }
        Ok(())
    }
}

/// Copies of pages, one after the other.
struct Copies<'a> {
    room: &'a mut [u8],
    filled: usize,
}

impl Copies<'_> {
    fn take(&mut self, line: &Line<'_>, pages: Range<u64>, runs: &mut Runs<'_>) -> Answer<()> {
        let bytes = (pages.end - pages.start) as usize;
        let room = self.room.get_mut(self.filled..).and_then(|rest| rest.get_mut(..bytes));
        let copy = room.ok_or(Errno(libc::ENOBUFS))?;
        let is_readable = line.protection.contains(Protection::READ);
        if !is_readable {
            set_protection(pages.start, bytes as u64, Protection::READ)?;
        }
        // SAFETY: the pages are mapped, readable, and no other thread runs; the copy is none of them.
        unsafe { std::ptr::copy_nonoverlapping(pages.start as *const u8, copy.as_mut_ptr(), bytes) };
        let source = copy.as_ptr() as u64;
        if !is_readable {
            set_protection(pages.start, bytes as u64, line.protection)?;
        }
        self.filled += bytes;
        runs.push(Run { source, ..Run::in_place(pages.start, bytes as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_not_handed_over_are_reported_from_the_others() {
        let page = |number: u64| number * PAGE_BYTES;
        let runs = [(2, 3), (7, 1), (8, 2), (20, 1)];
        let runs = runs.map(|(first, pages)| PageRun { address: page(first), pages });
        let mut handed_over = HandedOver { runs: Some(&runs), at: 0 };
        let mut found = Vec::new();
        for (from, to) in [(0, 1), (1, 3), (3, 9), (9, 12), (20, 22), (30, 31)] {
            let add = |pages: Range<u64>, is_in| {
                found.push((pages.start / PAGE_BYTES, pages.end / PAGE_BYTES, is_in));
                Ok(())
            };
            handed_over.split(page(from)..page(to), add).expect("nothing fails");
        }
        let expected = [
            (0, 1, false),
            (1, 2, false),
            (2, 3, true),
            (3, 5, true),
            (5, 7, false),
            (7, 8, true),
            (8, 9, true),
            (9, 10, true),
            (10, 12, false),
            (20, 21, true),
            (21, 22, false),
            (30, 31, false),
        ];
        assert_eq!(found, expected);
        let mut all = HandedOver { runs: None, at: 0 };
        let is_all = |pages: Range<u64>, is_in: bool| {
            assert_eq!((pages, is_in), (0..page(9), true));
            Ok(())
        };
        all.split(0..page(9), is_all).expect("nothing fails");
    }
}
