//! Which pages a process has made its own: `PAGEMAP_SCAN` where the kernel has it (6.7), else `/proc/self/pagemap`.

use std::ops::Range;
use std::os::fd::RawFd;

use super::{Run, Runs};
use crate::arch::PAGE_BYTES;
use crate::sys::{self, Answer, Errno};

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_entries: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: usize = 0xc060_6610;
/// A tracker watches the region: only here [`IS_WRITTEN`] has a meaning.
const IS_WATCHED: u64 = 1 << 0;
/// Written since it was armed, or never armed.
const IS_WRITTEN: u64 = 1 << 1;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
const IS_GUARD: u64 = 1 << 8;

/// Arms the pages that it finds: the next write to such a page makes it a written one.
const ARMING: u64 = 1 << 0;
/// Fails with `EPERM` where the memory is not watched.
const WATCHED_ONLY: u64 = 1 << 1;

/// Entries of `/proc/self/pagemap`.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_GUARD: u64 = 1 << 58;

/// Ranges that one call returns. The kernel gathers 512; asked for more, it was seen to report some pages twice.
const FOUND_MAX: usize = 256;

/// Looks at the page tables of the process that made it.
pub(crate) struct Scanner {
    pagemap: RawFd,
    has_scan: bool,
    knows_guards: bool,
    found: [Found; FOUND_MAX],
}

impl Scanner {
    pub(crate) fn open() -> Answer<Scanner> {
        let pagemap = sys::open_read(c"/proc/self/pagemap")?;
        let mut scanner =
            Scanner { pagemap, has_scan: true, knows_guards: true, found: [Found::default(); FOUND_MAX] };
        // An empty range asks which requests the kernel knows.
        let guards = Scan { any_of: IS_GUARD, returned: IS_GUARD, ..Scan::default() };
        scanner.knows_guards = scanner.ask(&guards, PAGE_BYTES..PAGE_BYTES).is_ok();
        let present = Scan { any_of: IS_PRESENT, returned: IS_PRESENT, ..Scan::default() };
        scanner.has_scan = scanner.ask(&present, PAGE_BYTES..PAGE_BYTES).is_ok();
        Ok(scanner)
    }

    /// Adds the private pages of `range` that are not as their backing has them. The page of zeros is not among them.
    pub(crate) fn changed(&mut self, range: Range<u64>, runs: &mut Runs<'_>) -> Answer<()> {
        if !self.has_scan {
            return self.entries(range, |at, entry| {
                let is_own =
                    entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 && entry & (ENTRY_FILE | ENTRY_GUARD) == 0;
                if is_own { runs.push(Run::in_place(at, PAGE_BYTES)) } else { Ok(()) }
            });
        }
        let guard = if self.knows_guards { IS_GUARD } else { 0 };
        let without = IS_FILE | IS_ZERO | guard;
        self.scan(range, without, without, IS_PRESENT | IS_SWAPPED, runs)
    }

    /// Whether the kernel has the call that arms pages and reports written ones.
    pub(crate) fn can_track(&self) -> bool {
        self.has_scan
    }

    /// Reports the private pages of `range` that are not as their backing has them, as [`Scanner::changed`] finds them,
    /// and whether they may have been written since they were armed. `is_anonymous`: no file lies behind any of it, so
    /// that the kernel need not look at each page for one.
    pub(crate) fn own(
        &mut self,
        range: Range<u64>,
        is_anonymous: bool,
        mut each: impl FnMut(Range<u64>, bool) -> Answer<()>,
    ) -> Answer<()> {
        let guard = if self.knows_guards { IS_GUARD } else { 0 };
        let without = IS_ZERO | guard | if is_anonymous { 0 } else { IS_FILE };
        let scan = Scan {
            inverted: without,
            all_of: without,
            any_of: IS_PRESENT | IS_SWAPPED,
            returned: IS_WATCHED | IS_WRITTEN,
            ..Scan::default()
        };
        self.walk(range, &scan, |found| {
            let is_clean = found.categories & (IS_WATCHED | IS_WRITTEN) == IS_WATCHED;
            each(found.start..found.end, !is_clean)
        })
    }

    /// Arms the pages of `range` that are there; none of it may be unwatched (`EPERM`). Missing pages are not armed:
    /// that would cost page tables, and a page that appears there is written then.
    pub(crate) fn arm(&mut self, range: Range<u64>) -> Answer<()> {
        let scan = Scan {
            flags: ARMING | WATCHED_ONLY,
            any_of: IS_PRESENT | IS_SWAPPED,
            returned: IS_PRESENT,
            ..Scan::default()
        };
        self.walk(range, &scan, |_| Ok(()))
    }

    /// Reports the parts of `range` that no tracker watches, also those without pages.
    pub(crate) fn unwatched(
        &mut self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>) -> Answer<()>,
    ) -> Answer<()> {
        let scan = Scan { inverted: IS_WATCHED, all_of: IS_WATCHED, returned: IS_WATCHED, ..Scan::default() };
        self.walk(range, &scan, |found| each(found.start..found.end))
    }

    /// Arms and reports, at the same moment, the pages of `range` that [`Scanner::own`] would report as written. Memory
    /// that is not watched is passed over.
    pub(crate) fn take_written(
        &mut self,
        range: Range<u64>,
        is_anonymous: bool,
        each: impl FnMut(Range<u64>) -> Answer<()>,
    ) -> Answer<()> {
        self.take(range, is_anonymous, IS_WRITTEN, each)
    }

    /// The same with pages that were not written, too.
    pub(crate) fn take_own(
        &mut self,
        range: Range<u64>,
        is_anonymous: bool,
        each: impl FnMut(Range<u64>) -> Answer<()>,
    ) -> Answer<()> {
        self.take(range, is_anonymous, 0, each)
    }

    /// Without [`WATCHED_ONLY`]: the error would come after pages were armed, and instead of their list.
    fn take(
        &mut self,
        range: Range<u64>,
        is_anonymous: bool,
        with: u64,
        mut each: impl FnMut(Range<u64>) -> Answer<()>,
    ) -> Answer<()> {
        let guard = if self.knows_guards { IS_GUARD } else { 0 };
        let without = IS_ZERO | guard | if is_anonymous { 0 } else { IS_FILE };
        let scan = Scan {
            flags: ARMING,
            inverted: without,
            all_of: without | with,
            any_of: IS_PRESENT | IS_SWAPPED,
            returned: IS_PRESENT,
            ..Scan::default()
        };
        self.walk(range, &scan, |found| each(found.start..found.end))
    }

    /// Adds the pages of `range` that `madvise(2)` has made guards.
    pub(crate) fn guards(&mut self, range: Range<u64>, runs: &mut Runs<'_>) -> Answer<()> {
        if self.has_scan && self.knows_guards { self.scan(range, 0, IS_GUARD, 0, runs) } else { Ok(()) }
    }

    /// Sets the lowest bit for every page from `address` on that is mapped or swapped out.
    pub(crate) fn mark_mapped(&mut self, address: u64, answers: &mut [u8]) -> Answer<()> {
        let range = address..address + answers.len() as u64 * PAGE_BYTES;
        self.entries(range, |at, entry| {
            let page = ((at - address) / PAGE_BYTES) as usize;
            if let Some(answer) = answers.get_mut(page) {
                *answer |= u8::from(entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0);
            }
            Ok(())
        })
    }

    fn scan(
        &mut self,
        range: Range<u64>,
        inverted: u64,
        all_of: u64,
        any_of: u64,
        runs: &mut Runs<'_>,
    ) -> Answer<()> {
        let scan = Scan { inverted, all_of, any_of, returned: IS_PRESENT, ..Scan::default() };
        self.walk(range, &scan, |found| runs.push(Run::in_place(found.start, found.end - found.start)))
    }

    /// Reports everything in `range` that `scan` asks for, by rising address.
    fn walk(
        &mut self,
        range: Range<u64>,
        scan: &Scan,
        mut each: impl FnMut(&Found) -> Answer<()>,
    ) -> Answer<()> {
        let mut at = range.start;
        while at < range.end {
            let (entries, walked) = self.ask(scan, at..range.end)?;
            for found in self.found.get(..entries).unwrap_or(&[]) {
                each(found)?;
            }
            if walked <= at {
                return Err(Errno(libc::EIO));
            }
            at = walked;
        }
        Ok(())
    }

    /// One call: how many ranges it found, and how far it came.
    fn ask(&mut self, scan: &Scan, range: Range<u64>) -> Answer<(usize, u64)> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: range.start,
            end: range.end,
            vector: self.found.as_mut_ptr() as u64,
            vector_entries: FOUND_MAX as u64,
            ..*scan
        };
        // SAFETY: the kernel fills the vector within its length, and the argument.
        let entries = unsafe {
            sys::call(libc::SYS_ioctl, [self.pagemap as usize, PAGEMAP_SCAN, &raw mut scan as usize, 0, 0, 0])
        }?;
        Ok((entries, scan.walk_end))
    }

    fn entries(&mut self, range: Range<u64>, mut each: impl FnMut(u64, u64) -> Answer<()>) -> Answer<()> {
        let mut entries = [0u64; 512];
        let mut at = range.start;
        while at < range.end {
            let pages = ((range.end - at) / PAGE_BYTES).min(entries.len() as u64);
            let offset = at / PAGE_BYTES * size_of::<u64>() as u64;
            let bytes = pages as usize * size_of::<u64>();
            // SAFETY: the entries have as many bytes.
            let read = unsafe { sys::read_at(self.pagemap, entries.as_mut_ptr() as u64, bytes, offset) }?;
            let read = read / size_of::<u64>();
            if read == 0 {
                return Err(Errno(libc::EIO));
            }
            for entry in entries.get(..read).unwrap_or(&[]) {
                each(at, *entry)?;
                at += PAGE_BYTES;
            }
        }
        Ok(())
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        sys::close(self.pagemap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh mapping of eight pages, of which pages 1, 2 and 5 are written, and page 7 is read.
    fn touched() -> Range<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), 8 * 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        for page in [1, 2, 5] {
            // SAFETY: within the mapping.
            unsafe { base.add(page * 4096).write_volatile(1) };
        }
        // SAFETY: within the mapping.
        assert_eq!(unsafe { base.add(7 * 4096).read_volatile() }, 0);
        base as u64..base as u64 + 8 * 4096
    }

    fn runs_of(scanner: &mut Scanner, range: &Range<u64>) -> Vec<(u64, u64)> {
        let mut room = [Run::in_place(0, 0); 16];
        let mut runs = Runs::new(&mut room);
        scanner.changed(range.clone(), &mut runs).expect("a look at our own memory");
        runs.as_slice().iter().map(|run| ((run.address - range.start) / 4096, run.pages)).collect()
    }

    #[test]
    fn written_pages_are_found_and_the_page_of_zeros_is_not() {
        let range = touched();
        let mut scanner = Scanner::open().expect("this kernel has /proc");
        if scanner.has_scan {
            assert_eq!(runs_of(&mut scanner, &range), [(1, 2), (5, 1)]);
        }
    }

    /// Kernels before 6.7. The page of zeros cannot be distinguished from another there.
    #[test]
    fn written_pages_are_found_without_the_scan() {
        let range = touched();
        let mut scanner = Scanner::open().expect("this kernel has /proc");
        scanner.has_scan = false;
        assert_eq!(runs_of(&mut scanner, &range), [(1, 2), (5, 1), (7, 1)]);
    }

    #[test]
    fn more_runs_than_room_are_reported() {
        let range = touched();
        let mut scanner = Scanner::open().expect("this kernel has /proc");
        let mut room = [Run::in_place(0, 0); 1];
        let full = scanner.changed(range, &mut Runs::new(&mut room));
        assert_eq!(full, Err(Errno(libc::ENOBUFS)));
    }
}
