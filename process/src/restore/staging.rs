//! Pages of another process that lie ready in this one, and become its memory without being copied.
//!
//! Each terabyte of the other process's addresses that has pages lies in a terabyte of this one, at the same
//! offset. So neighbours stay neighbours, and a region becomes one of the restored process by one mremap(2), which
//! moves whole page tables.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use super::plan::{Move, Piece, Staged};
use super::table::Span;
use super::x86_64::ADDRESSES_END;
use super::{Filled, Ids, Policy, RestoreError, Target, become_process, call, plan};
use crate::arch::PAGE_BYTES;
use crate::maps;
use crate::page_set::PageSet;
use crate::state::memory::{Advice, Backing, PageRun, Region};
use crate::state::{Files, ProcessState};

/// Bytes of the parts of the address space that keep their order.
const SLOT_BYTES: u64 = 1 << 40;

/// Where pages lie ready, in slots: far from where kernels put programs, libraries and stacks.
const SLOTS: Range<u64> = 0x20..0x50;

/// Memory is mapped in blocks, so that neighbouring pages are one mapping.
// Tests of this crate look at all memory of their process.
const BLOCK_BYTES: u64 = if cfg!(test) { 2 << 20 } else { 64 << 20 };

/// Pages of fewer bytes are made when they are written.
const POPULATED_BYTES_MIN: u64 = 256 << 10;

/// Pages of another process, laid ready in this one.
#[derive(Debug)]
pub struct Staging {
    /// Of each used slot of the other process, the one here.
    slots: Vec<(u64, u64)>,
    /// Memory that is mapped for it, by its addresses here.
    mapped: PageSet,
    /// Pages that lie ready, by their addresses in the other process.
    placed: PageSet,
    populates: bool,
}

fn inconsistent(what: String) -> RestoreError {
    RestoreError::Inconsistent { what }
}

fn read_maps() -> Result<Vec<u8>, RestoreError> {
    std::fs::read("/proc/self/maps").map_err(call("read /proc/self/maps"))
}

fn slot_of(address: u64) -> u64 {
    address / SLOT_BYTES
}

fn slot_range(slot: u64) -> Range<u64> {
    slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES
}

/// The parts of a range that lie in one slot each.
fn by_slot(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = slot_range(slot_of(at)).end.min(range.end);
        (at < range.end).then(|| std::mem::replace(&mut at, end)..end)
    })
}

impl Staging {
    /// Nothing lies ready yet. An error is kept for kernels that need more; there is none now.
    pub fn new() -> Result<Staging, RestoreError> {
        let (mapped, placed) = (PageSet::default(), PageSet::default());
        Ok(Staging { slots: Vec::new(), mapped, placed, populates: super::populates() })
    }

    /// Lays whole pages ready, or replaces them. `address` is a multiple of a page: where they lie in the other process. An
    /// error: they are no such pages, or there is no memory for them.
    pub fn place(&mut self, address: u64, pages: &[u8]) -> Result<(), RestoreError> {
        let bytes = pages.len() as u64;
        let end = address.checked_add(bytes).filter(|end| *end <= ADDRESSES_END);
        let (Some(end), true) = (end, (address | bytes).is_multiple_of(PAGE_BYTES)) else {
            return Err(inconsistent(format!("{bytes} bytes at {address:#x} are no pages of a process")));
        };
        let mut left = pages;
        for part in by_slot(address..end) {
            let here = self.reserve(part.start, &[])?;
            let blocks = here / BLOCK_BYTES * BLOCK_BYTES
                ..(here + (part.end - part.start)).next_multiple_of(BLOCK_BYTES);
            self.map(blocks)?;
            let (now, after) = left.split_at((part.end - part.start) as usize);
            left = after;
            if self.populates
                && now.len() as u64 >= POPULATED_BYTES_MIN
                && self.placed.within(part.clone()).next().is_none()
            {
                const MADV_POPULATE_WRITE: i32 = 23;
                // SAFETY: makes pages of this type's own memory. Where it cannot, they are made when they are written.
                unsafe { libc::madvise(here as *mut _, now.len(), MADV_POPULATE_WRITE) };
            }
            // SAFETY: memory of this type's own, mapped and writable, which nothing else refers to.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), here as *mut u8, now.len()) };
            self.placed.insert(part);
        }
        Ok(())
    }

    /// Bytes of the pages that lie ready.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.placed.bytes()
    }

    /// Where an address of the other process lies here, if its slot has pages.
    fn here(&self, address: u64) -> Option<u64> {
        let slot = slot_of(address);
        let (_, here) = self.slots.iter().find(|(there, _)| *there == slot)?;
        Some(here * SLOT_BYTES + address % SLOT_BYTES)
    }

    /// The same; gives its slot a place where no part of `regions` is.
    fn reserve(&mut self, address: u64, regions: &[Region]) -> Result<u64, RestoreError> {
        if let Some(here) = self.here(address) {
            return Ok(here);
        }
        let free = self.free_slot(regions)?;
        self.slots.push((slot_of(address), free));
        Ok(free * SLOT_BYTES + address % SLOT_BYTES)
    }

    /// A slot in which nothing is mapped, and that has no part of `regions`.
    fn free_slot(&self, regions: &[Region]) -> Result<u64, RestoreError> {
        let text = read_maps()?;
        let own = maps::lines(&text).flatten().map(|line| line.start..line.end);
        let used: Vec<Range<u64>> =
            own.chain(regions.iter().map(|region| region.start..region.end)).collect();
        let is_free = |slot: &u64| {
            let range = slot_range(*slot);
            !self.slots.iter().any(|(_, here)| here == slot)
                && !used.iter().any(|used| used.start < range.end && range.start < used.end)
        };
        SLOTS.clone().find(is_free).ok_or(RestoreError::NoRoom { bytes: SLOT_BYTES })
    }

    /// Maps the parts of a range of this process that are not mapped yet.
    fn map(&mut self, range: Range<u64>) -> Result<(), RestoreError> {
        for part in self.mapped.missing(range) {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let (access, bytes) = (libc::PROT_READ | libc::PROT_WRITE, (part.end - part.start) as usize);
            // SAFETY: new memory, where nothing is mapped.
            let at = unsafe { libc::mmap(part.start as *mut _, bytes, access, flags, -1, 0) };
            let error = if at == libc::MAP_FAILED {
                Some(io::Error::last_os_error())
            } else {
                (at as u64 != part.start).then(|| io::Error::from_raw_os_error(libc::EEXIST))
            };
            if let Some(error) = error {
                let what = format!("map {bytes} bytes at {:#x} for pages of the process", part.start);
                return Err(call(what)(error));
            }
            self.mapped.insert(part);
        }
        Ok(())
    }

    /// Moves slots that have a part of a region of the process.
    fn avoid(&mut self, regions: &[Region]) -> Result<(), RestoreError> {
        for index in 0..self.slots.len() {
            let (there, here) = self.slots[index];
            let range = slot_range(here);
            if !regions.iter().any(|region| region.start < range.end && range.start < region.end) {
                continue;
            }
            let free = self.free_slot(regions)?;
            let text = read_maps()?;
            for line in maps::lines(&text).flatten().filter(|line| range.contains(&line.start)) {
                let to = free * SLOT_BYTES + line.start % SLOT_BYTES;
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let (bytes, target) = (line.bytes() as usize, to as *mut libc::c_void);
                // SAFETY: memory of this type's own, to where nothing is mapped.
                let at =
                    unsafe { libc::mremap(line.start as *mut libc::c_void, bytes, bytes, flags, target) };
                if at == libc::MAP_FAILED {
                    let what = format!("move pages of the process from {:#x} to {to:#x}", line.start);
                    return Err(call(what)(io::Error::last_os_error()));
                }
                self.mapped.remove(line.start..line.end);
                self.mapped.insert(to..to + line.bytes());
            }
            self.slots[index] = (there, free);
        }
        Ok(())
    }

    /// Pages of the other process; they must lie ready, in one slot.
    fn bytes_at(&self, range: Range<u64>) -> Result<&[u8], RestoreError> {
        let here = self.here(range.start).filter(|_| self.placed.missing(range.clone()).is_empty());
        let here = here.ok_or_else(|| missing(&range))?;
        // SAFETY: pages that were placed are mapped and readable, and are written by `place` only.
        Ok(unsafe { std::slice::from_raw_parts(here as *const u8, (range.end - range.start) as usize) })
    }

    /// Writes pages of the other process to a file.
    fn write(&self, range: Range<u64>, file: &File, offset: u64) -> Result<(), RestoreError> {
        for part in by_slot(range.clone()) {
            let at = offset + (part.start - range.start);
            file.write_all_at(self.bytes_at(part)?, at)
                .map_err(call("copy pages of the process to where they are shared or read"))?;
        }
        Ok(())
    }

    /// Makes memory ready to become the regions of `state`, whose runs are all pages of the process. `opened` are mapped
    /// files, `shared` shared memory; pages of which copies are needed are written to `copies`.
    fn lay_out(
        &mut self,
        state: &ProcessState,
        opened: &[Option<File>],
        shared: &[OwnedFd],
        copies: &File,
    ) -> Result<Staged, RestoreError> {
        let regions = &state.memory.regions;
        let pages: PageSet = state.memory.runs.iter().map(addresses).collect();
        for range in pages.ranges() {
            if let Some(missing) = self.placed.missing(range).first() {
                return Err(self::missing(missing));
            }
        }
        self.avoid(regions)?;
        let pieces = plan::pieces(state);
        let mut staged = Staged::default();
        let mut copied = 0;
        let mut is_moved = vec![false; regions.len()];
        for piece in pieces {
            let (range, region) = (piece.address..piece.address + piece.bytes, &regions[piece.region]);
            match region.backing {
                Backing::Shared { object, offset } => {
                    let fd = shared.get(object as usize).ok_or_else(|| {
                        inconsistent(format!("region {:#x} refers to no shared memory", region.start))
                    })?;
                    let file = File::from(fd.try_clone().map_err(call("duplicate a descriptor"))?);
                    self.write(range, &file, offset + (piece.address - region.start))?;
                }
                _ if can_be_moved(region, opened) => is_moved[piece.region] = true,
                _ => {
                    self.write(range, copies, copied)?;
                    staged.pieces.push(Piece { offset: copied, ..piece });
                    copied += piece.bytes;
                }
            }
        }
        let moved =
            || (0..).zip(regions).zip(&is_moved).filter(|(_, is_moved)| **is_moved).map(|(region, _)| region);
        for (_, region) in moved() {
            for part in by_slot(region.start..region.end) {
                let here = self.reserve(part.start, regions)?;
                self.map(here..here + (part.end - part.start))?;
            }
            self.drop_others(region, &pages)?;
        }
        let text = read_maps()?;
        let lines: Vec<Range<u64>> = maps::lines(&text).flatten().map(|line| line.start..line.end).collect();
        for (index, region) in moved() {
            for part in by_slot(region.start..region.end) {
                let here = self.here(part.start).ok_or_else(|| missing(&part))?;
                staged.moves.extend(moves(&lines, index, here, part));
            }
        }
        staged.spans =
            self.mapped.ranges().map(|range| Span { start: range.start, end: range.end }).collect();
        Ok(staged)
    }

    /// Empties pages that the process has no more.
    fn drop_others(&self, region: &Region, pages: &PageSet) -> Result<(), RestoreError> {
        for placed in self.placed.within(region.start..region.end) {
            for other in pages.missing(placed).into_iter().flat_map(by_slot) {
                let Some(here) = self.here(other.start) else { continue };
                let bytes = (other.end - other.start) as usize;
                // SAFETY: memory of this type's own, which nothing refers to.
                if unsafe { libc::madvise(here as *mut _, bytes, libc::MADV_DONTNEED) } != 0 {
                    return Err(
                        call(format!("empty {bytes} bytes at {here:#x}"))(io::Error::last_os_error()),
                    );
                }
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for range in self.mapped.ranges() {
            // SAFETY: memory of this type's own, which nothing refers to any more.
            unsafe { libc::munmap(range.start as *mut _, (range.end - range.start) as usize) };
        }
    }
}

fn missing(range: &Range<u64>) -> RestoreError {
    RestoreError::Incomplete { address: range.start, pages: (range.end - range.start) / PAGE_BYTES }
}

fn addresses(run: &PageRun) -> Range<u64> {
    run.address..run.address.saturating_add(run.pages.saturating_mul(PAGE_BYTES))
}

/// Whether private memory without a file becomes a region as it is. A mapping that grows downwards does not.
fn can_be_moved(region: &Region, opened: &[Option<File>]) -> bool {
    let is_private = match region.backing {
        Backing::Anonymous => true,
        Backing::File { file, is_shared, .. } => {
            !is_shared && opened.get(file as usize).is_none_or(Option::is_none)
        }
        Backing::Shared { .. } | Backing::Vdso | Backing::Vvar => false,
    };
    is_private && !region.advice.contains(Advice::GROWS_DOWN)
}

/// One for each mapping that has a part of `there`, which lies at `here`. A kernel moves one mapping at a time.
fn moves(lines: &[Range<u64>], region: usize, here: u64, there: Range<u64>) -> Vec<Move> {
    let end = here + (there.end - there.start);
    let first = lines.partition_point(|line| line.end <= here);
    let parts = lines.get(first..).unwrap_or(&[]).iter().take_while(|line| line.start < end);
    parts
        .map(|line| {
            let (from, to) = (line.start.max(here), line.end.min(end));
            Move { region, from, to: there.start + (from - here), bytes: to - from }
        })
        .collect()
}

/// All pages of a process as the runs of its state. `unchanged` are those that the capture left out.
fn whole(state: &ProcessState, unchanged: &[PageRun]) -> Result<ProcessState, RestoreError> {
    let all = || state.memory.runs.iter().chain(unchanged).map(addresses);
    let is_page = |range: &Range<u64>| range.start.is_multiple_of(PAGE_BYTES) && range.end <= ADDRESSES_END;
    if let Some(range) = all().find(|range| !is_page(range)) {
        return Err(inconsistent(format!("{:#x}..{:#x} are no pages of a process", range.start, range.end)));
    }
    let pages: PageSet = all().collect();
    let twice = all().map(|range| range.end - range.start).sum::<u64>() - pages.bytes();
    if twice > 0 {
        return Err(inconsistent(format!("{twice} bytes of pages are changed and unchanged")));
    }
    let mut state = state.clone();
    let run =
        |range: Range<u64>| PageRun { address: range.start, pages: (range.end - range.start) / PAGE_BYTES };
    state.memory.runs = pages.ranges().map(run).collect();
    let in_regions: u64 = plan::pieces(&state).iter().map(|piece| piece.bytes).sum();
    if in_regions == pages.bytes() {
        Ok(state)
    } else {
        Err(inconsistent(format!(
            "{} bytes of pages lie in no region of the process",
            pages.bytes() - in_regions
        )))
    }
}

fn file_of_copies() -> Result<File, RestoreError> {
    // SAFETY: a name that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"stillwire-pages".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(call("make a file in memory for pages of the process")(io::Error::last_os_error()));
    }
    // SAFETY: it has just been made.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Becomes the process whose pages lie ready, as [`super::restore`] does: this one should be a fresh start of the same
/// program. `unchanged` are the pages that the last capture left out. `ready` runs when nothing is left that can fail in
/// ordinary code: files are open, and descriptors have the numbers that they have in the process, those of `handed_in`, too. It
/// waits for the word; its error ends the attempt ([`RestoreError::Withdrawn`]).
///
/// Comes back only if it failed before anything was removed; but descriptors may have been replaced by then.
#[expect(clippy::too_many_arguments, reason = "as many things make a process; `restore` has as many")]
pub fn restore_staged(
    state: &ProcessState,
    files: &Files,
    staging: Staging,
    unchanged: &[PageRun],
    handed_in: &[(String, RawFd)],
    policy: Policy,
    ids: Ids,
    ready: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Infallible, RestoreError> {
    let state = whole(state, unchanged)?;
    let mut staging = staging;
    let copies = file_of_copies()?;
    let fill = |opened: &[Option<File>], shared: &[OwnedFd]| {
        let staged = staging.lay_out(&state, opened, shared, &copies)?;
        Ok(Filled {
            pages: (copies.as_raw_fd(), 0),
            base_pages: None,
            are_freed: false,
            staged: Some(staged),
        })
    };
    let failed = become_process(&state, files, &Target { handed_in, policy, ids }, fill, ready);
    // Its number may be another file's by now.
    std::mem::forget(copies);
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory::Protection;

    const PAGE: usize = PAGE_BYTES as usize;

    fn region(start: u64, pages: u64) -> Region {
        let (protection, backing) = (Protection::READ, Backing::Anonymous);
        Region { start, end: start + pages * PAGE_BYTES, protection, backing, advice: Advice::empty() }
    }

    fn page(value: u8) -> Vec<u8> {
        vec![value; PAGE]
    }

    #[test]
    fn neighbours_stay_neighbours_at_the_same_place_in_a_huge_page() {
        let mut staging = Staging::new().expect("nothing fails");
        let places = [0x40_0000, 0x5555_5555_4000, 0x5555_5575_4000, 0x7f00_0000_0000, 0x7fff_f7fd_1000];
        for (value, address) in (1..).zip(places) {
            staging.place(address + PAGE_BYTES, &page(value + 100)).expect("memory");
            staging.place(address, &page(value)).expect("memory");
        }
        assert_eq!(staging.bytes(), 10 * PAGE_BYTES);
        for (value, address) in (1..).zip(places) {
            let here = staging.here(address).expect("it lies ready");
            assert_eq!(here % (2 << 20), address % (2 << 20));
            assert!(SLOTS.contains(&slot_of(here)), "{here:#x}");
            let both = staging.bytes_at(address..address + 2 * PAGE_BYTES).expect("they lie ready");
            assert!(both[..PAGE] == page(value) && both[PAGE..] == page(value + 100));
        }
        staging.place(places[0], &page(9)).expect("memory");
        assert_eq!(staging.bytes_at(places[0]..places[0] + PAGE_BYTES).expect("it lies ready"), page(9));
        assert_eq!(staging.bytes(), 10 * PAGE_BYTES);
        let far = staging.here(0x5555_5575_4000).zip(staging.here(0x5555_5555_4000)).expect("both lie ready");
        assert_eq!(far.0 - far.1, 0x20_0000);
    }

    #[test]
    fn pages_on_both_sides_of_a_border_of_slots_are_placed() {
        let mut staging = Staging::new().expect("nothing fails");
        let border = 0x7f * SLOT_BYTES;
        staging.place(border - PAGE_BYTES, &[page(1), page(2)].concat()).expect("memory");
        for (value, at) in [(1, border - PAGE_BYTES), (2, border)] {
            assert_eq!(staging.bytes_at(at..at + PAGE_BYTES).expect("it lies ready"), page(value));
        }
        let file = tempfile::tempfile().expect("a file");
        staging.write(border - PAGE_BYTES..border + PAGE_BYTES, &file, PAGE_BYTES).expect("written");
        let mut read = vec![0; 2 * PAGE];
        file.read_exact_at(&mut read, PAGE_BYTES).expect("as many bytes");
        assert_eq!(read, [page(1), page(2)].concat());
    }

    #[test]
    fn what_are_no_pages_is_refused() {
        let mut staging = Staging::new().expect("nothing fails");
        for (address, bytes) in
            [(0x1001, PAGE), (0x1000, PAGE + 1), (ADDRESSES_END, PAGE), (u64::MAX - 4095, PAGE)]
        {
            let refused = staging.place(address, &vec![0; bytes]).expect_err("no pages");
            assert!(refused.to_string().contains("are no pages of a process"), "{refused}");
        }
        assert_eq!(staging.bytes(), 0);
    }

    #[test]
    fn memory_that_lies_ready_makes_way_for_regions() {
        let mut staging = Staging::new().expect("nothing fails");
        staging.place(0x5555_5555_4000, &page(1)).expect("memory");
        staging.place(0x5555_9555_4000, &page(2)).expect("memory");
        let before = staging.here(0x5555_5555_4000).expect("it lies ready");
        staging.avoid(&[region(before + (1 << 30), 4)]).expect("another slot");
        let after = staging.here(0x5555_5555_4000).expect("it lies ready");
        assert_ne!(slot_of(before), slot_of(after));
        for (value, at) in [(1, 0x5555_5555_4000), (2, 0x5555_9555_4000)] {
            assert_eq!(staging.bytes_at(at..at + PAGE_BYTES).expect("it lies ready"), page(value));
        }
        let ranges: Vec<Range<u64>> = staging.mapped.ranges().collect();
        assert!(ranges.iter().all(|range| slot_of(range.start) == slot_of(after)), "{ranges:x?}");
    }

    #[test]
    fn pages_that_the_process_has_no_more_are_emptied() {
        let mut staging = Staging::new().expect("nothing fails");
        let start = 0x7f12_3456_7000;
        for number in 0..6u64 {
            staging.place(start + number * PAGE_BYTES, &page(number as u8 + 1)).expect("memory");
        }
        let kept = [1, 2, 4].map(|number| start + number * PAGE_BYTES);
        let pages: PageSet = kept.iter().map(|at| *at..at + PAGE_BYTES).collect();
        staging.drop_others(&region(start, 5), &pages).expect("emptied");
        let here = staging.bytes_at(start..start + 6 * PAGE_BYTES).expect("mapped");
        let first: Vec<u8> = here.chunks(PAGE).map(|page| page[0]).collect();
        assert_eq!(first, [0, 2, 3, 0, 5, 6], "only those of the region");
    }

    #[test]
    fn a_region_is_moved_mapping_by_mapping() {
        let lines = [0x1000..0x3000, 0x3000..0x8000, 0x9000..0xa000];
        let found = moves(&lines, 7, 0x2000, 0x52000..0x56000);
        let part = |from, to, bytes| Move { region: 7, from, to, bytes };
        assert_eq!(found, [part(0x2000, 0x52000, 0x1000), part(0x3000, 0x53000, 0x3000)]);
    }
}
