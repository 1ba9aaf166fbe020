//! From page tables to pages in a file: done by the forked child, or by the capturing thread while all others stand still.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::Content;
use super::room::{DONE, FAILED, Report};
use crate::arch::PAGE_BYTES;
use crate::content::{self, Noting};
use crate::maps::{self, Line};
use crate::pages::{Cover, InUse, Pace, Plan, Run, Runs, Saved, Scanner, Sum, Target, write};
use crate::state::memory::{PageRun, Protection};
use crate::sys::{self, Answer, Errno};

/// Failures, by number in a [`Report`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Fault {
    /// The list of regions could not be read.
    Maps,
    /// The page tables could not be read.
    Scan,
    /// A region is missing in the child.
    Missing,
    /// A region could not be made readable.
    Unreadable,
    /// Pages could not be written.
    Write,
}

impl Fault {
    pub(super) const ALL: [Fault; 5] =
        [Fault::Maps, Fault::Scan, Fault::Missing, Fault::Unreadable, Fault::Write];
}

/// A fault, its place, and the kernel's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SaveFault {
    pub(super) fault: Fault,
    pub(super) address: u64,
    pub(super) errno: Errno,
}

/// The bytes to write, and their target.
pub(super) struct Work<'a> {
    pub(super) plan: &'a Plan,
    /// `/proc/self/maps` at the cut.
    pub(super) maps: &'a [u8],
    /// Copies of shared memory, rising.
    pub(super) shared: &'a [Run],
    /// Pages that threads use which wait for the end of the stop, rising; none in a child, which has no other threads.
    pub(super) waiting: &'a [u64],
    pub(super) content: &'a Content,
    /// Pages that may be left out if they were not written, rising; `None`: all.
    pub(super) handed_over: Option<&'a [PageRun]>,
    pub(super) sink: RawFd,
    pub(super) offset: u64,
    pub(super) cover: Option<&'a dyn Cover>,
    /// Where the pace lies, if there is one.
    pub(super) pace: Range<u64>,
}

/// Where lists are written to, and a buffer.
pub(super) struct SaveRoom<'a> {
    pub(super) runs: &'a mut [Run],
    pub(super) guards: &'a mut [Run],
    pub(super) unchanged: &'a mut [Run],
    pub(super) changed: &'a mut [Run],
    pub(super) buffer: &'a mut [u8],
}

/// Finds the pages, and writes them. Lists are left filled.
pub(super) fn save(
    work: &Work<'_>,
    room: SaveRoom<'_>,
    sum: &mut dyn Sum,
    pace: Option<&mut (dyn Pace + 'static)>,
    report: &Report,
) -> Result<(), SaveFault> {
    let SaveRoom { runs, guards, unchanged, changed, buffer } = room;
    let outcome = find(work, runs, guards).and_then(|(mut runs, guards)| {
        let mut in_use = InUse { ranges: in_use(work, sum), waiting: work.waiting, buffer };
        let (mut changed, mut unchanged) = (Runs::new(changed), Runs::new(unchanged));
        if let Content::Compared(hashes) = work.content {
            content::part(runs.as_slice(), work.maps, &in_use, hashes, (&mut changed, &mut unchanged))
                .map_err(|errno| SaveFault { fault: Fault::Scan, address: 0, errno })?;
            runs = changed;
        }
        report.runs.store(runs.as_slice().len() as u64, Ordering::Relaxed);
        report.unchanged.store(unchanged.as_slice().len() as u64, Ordering::Relaxed);
        report.guards.store(guards.as_slice().len() as u64, Ordering::Relaxed);
        report.bytes.store(runs.bytes(), Ordering::Relaxed);
        let (sink, offset, cover) = (work.sink, work.offset, work.cover);
        let tags_at = offset + runs.bytes();
        let piece_bytes = pace.as_ref().map(|pace| pace.piece_bytes());
        let target = Target { sink, offset, written: &report.written, cover, tags_at, piece_bytes };
        let mut noting = match work.content {
            Content::Noted(hashes) => Some(Noting::new(hashes)),
            Content::Unknown | Content::Compared(_) => None,
        };
        let written = write(runs.as_slice(), target, &mut in_use, sum, noting.as_mut(), pace);
        written.map_err(|fault| SaveFault { fault: Fault::Write, address: fault.address, errno: fault.errno })
    });
    report.sum.store(sum.value(), Ordering::Relaxed);
    match outcome {
        Ok(()) => report.stage.store(DONE, Ordering::Release),
        Err(fault) => record_fault(report, fault),
    }
    outcome
}

/// Memory that the writer changes while it writes: its stack, the checksum and the pace, wherever they lie.
pub(super) fn in_use(work: &Work<'_>, sum: &dyn Sum) -> [Range<u64>; 3] {
    /// The writer's own frames are far smaller.
    const STACK_BYTES: u64 = 1 << 20;
    let pages =
        |range: Range<u64>| range.start / PAGE_BYTES * PAGE_BYTES..range.end.next_multiple_of(PAGE_BYTES);
    let here = std::ptr::from_ref(&work) as u64;
    let stack = maps::lines(work.maps).flatten().find(|line| line.start <= here && here < line.end);
    let stack = stack.map_or(here..here, |line| {
        line.start.max(here.saturating_sub(STACK_BYTES))..line.end.min(here + STACK_BYTES)
    });
    let mut ranges = [pages(stack), pages(memory_of(sum)), pages(work.pace.clone())];
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}

/// Where something lies that changes while pages are written.
pub(super) fn memory_of<T: ?Sized>(what: &T) -> Range<u64> {
    let start = std::ptr::from_ref(what).cast::<u8>() as u64;
    start..start + size_of_val(what) as u64
}

pub(super) fn record_fault(report: &Report, fault: SaveFault) {
    report.fault.store(fault.fault as u32, Ordering::Relaxed);
    report.errno.store(fault.errno.0.cast_unsigned(), Ordering::Relaxed);
    report.address.store(fault.address, Ordering::Relaxed);
    report.stage.store(FAILED, Ordering::Release);
}

/// Pages, and guards.
pub(super) fn find<'a>(
    work: &Work<'_>,
    runs: &'a mut [Run],
    guards: &'a mut [Run],
) -> Result<(Runs<'a>, Runs<'a>), SaveFault> {
    let fault = |address: u64| move |errno| SaveFault { fault: Fault::Scan, address, errno };
    let mut scanner = Scanner::open().map_err(fault(0))?;
    let (mut runs, mut guards) = (Runs::new(runs), Runs::new(guards));
    let mut shared = work.shared.iter().copied().peekable();
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
                    scanner.changed(part.clone(), &mut runs).map_err(at)?;
                    scanner.guards(part, &mut guards).map_err(at)?;
                }
                Saved::Whole => {
                    let end = readable_end(&part);
                    runs.push(Run::in_place(part.start, end - part.start)).map_err(at)?;
                }
                Saved::Copied | Saved::Vdso => {
                    while let Some(run) = shared.next_if(|run| run.address < part.end) {
                        runs.push(run).map_err(at)?;
                    }
                }
            }
        }
    }
    Ok((runs, guards))
}

/// Where the file behind a mapping ends: pages after that cannot be read.
pub(super) fn readable_end(part: &Range<u64>) -> u64 {
    let is_readable = |page: u64| {
        const MADV_POPULATE_READ: usize = 22;
        let address = (part.start + page * PAGE_BYTES) as usize;
        // SAFETY: reads the page in, nothing else.
        unsafe { sys::call(libc::SYS_madvise, [address, PAGE_BYTES as usize, MADV_POPULATE_READ, 0, 0, 0]) }
            .is_ok()
    };
    // All that can be read lies before all that cannot.
    let (mut readable, mut unreadable) = (0, (part.end - part.start) / PAGE_BYTES);
    while readable < unreadable {
        let middle = readable + (unreadable - readable) / 2;
        if is_readable(middle) { readable = middle + 1 } else { unreadable = middle }
    }
    part.start + readable * PAGE_BYTES
}

/// Lets the pages of every region that is saved be read, or puts its protection back.
pub(super) fn protect(work_maps: &[u8], plan: &Plan, readable: bool) -> Result<(), SaveFault> {
    for line in maps::lines(work_maps).flatten() {
        let needs_it = !line.protection.contains(Protection::READ) && plan.saved(&line) != Saved::Not;
        if !needs_it {
            continue;
        }
        for part in plan.parts(&line) {
            let protection = if readable { Protection::READ } else { line.protection };
            let result = set_protection(part.start, part.end - part.start, protection);
            result.map_err(|errno| SaveFault { fault: Fault::Unreadable, address: part.start, errno })?;
        }
    }
    Ok(())
}

pub(super) fn set_protection(address: u64, bytes: u64, protection: Protection) -> Answer<()> {
    let mut flags = 0;
    for (set, flag) in [
        (Protection::READ, libc::PROT_READ),
        (Protection::WRITE, libc::PROT_WRITE),
        (Protection::EXECUTE, libc::PROT_EXEC),
    ] {
        flags |= if protection.contains(set) { flag } else { 0 };
    }
    // SAFETY: no other thread runs, and removed mappings are put back before any does.
    unsafe { sys::call(libc::SYS_mprotect, [address as usize, bytes as usize, flags as usize, 0, 0, 0]) }
        .map(drop)
}

/// Copies shared memory and the vdso. Returns the runs and the bytes that it filled.
pub(super) fn copy_shared(
    maps: &[u8],
    plan: &Plan,
    runs: &mut [Run],
    copies: &mut [u8],
) -> Result<usize, SaveFault> {
    let (mut filled_runs, mut filled) = (0, 0usize);
    let mut scanner: Option<Scanner> = None;
    for line in maps::lines(maps).flatten() {
        let saved = plan.saved(&line);
        if saved != Saved::Vdso && (saved != Saved::Copied || is_seen(maps, plan, &line)) {
            continue;
        }
        for part in plan.parts(&line) {
            let fault = |errno| SaveFault { fault: Fault::Scan, address: part.start, errno };
            let mut found = Runs::new(runs.get_mut(filled_runs..).unwrap_or(&mut []));
            let bytes = part.end - part.start;
            if saved == Saved::Vdso {
                found.push(Run::in_place(part.start, bytes)).map_err(fault)?;
            } else {
                if scanner.is_none() {
                    scanner = Some(Scanner::open().map_err(fault)?);
                }
                let Some(scanner) = &mut scanner else { continue };
                resident(scanner, part.clone(), copies.get_mut(filled..).unwrap_or(&mut []), &mut found)
                    .map_err(fault)?;
            }
            let found = found.as_slice().len();
            let is_readable = line.protection.contains(Protection::READ);
            if !is_readable {
                set_protection(part.start, bytes, Protection::READ).map_err(fault)?;
            }
            for run in runs.iter_mut().skip(filled_runs).take(found) {
                let bytes = run.bytes() as usize;
                let Some(copy) = copies.get_mut(filled..).and_then(|rest| rest.get_mut(..bytes)) else {
                    return Err(fault(Errno(libc::ENOBUFS)));
                };
                // SAFETY: the pages are mapped, readable, and no other thread runs.
                unsafe { std::ptr::copy_nonoverlapping(run.address as *const u8, copy.as_mut_ptr(), bytes) };
                run.source = copy.as_ptr() as u64;
                filled += bytes;
            }
            if !is_readable {
                set_protection(part.start, bytes, line.protection).map_err(fault)?;
            }
            filled_runs += found;
        }
    }
    Ok(filled_runs)
}

/// Whether all that `line` maps is also mapped by an earlier region.
fn is_seen(maps: &[u8], plan: &Plan, line: &Line<'_>) -> bool {
    let end = line.offset + line.bytes();
    maps::lines(maps).flatten().take_while(|earlier| earlier.start < line.start).any(|earlier| {
        plan.is_memory(&earlier)
            && (earlier.device, earlier.inode) == (line.device, line.inode)
            && earlier.offset <= line.offset
            && end <= earlier.offset + earlier.bytes()
    })
}

/// The existing pages of shared memory, also those touched by other processes, and those that are swapped out. `room`
/// is for the answer of `mincore(2)`: a byte for a page.
fn resident(scanner: &mut Scanner, part: Range<u64>, room: &mut [u8], found: &mut Runs<'_>) -> Answer<()> {
    const AT_ONCE: u64 = 64 << 20;
    let mut at = part.start;
    while at < part.end {
        let bytes = (part.end - at).min(AT_ONCE);
        let pages = (bytes / PAGE_BYTES) as usize;
        let answers = room.get_mut(..pages).ok_or(Errno(libc::ENOBUFS))?;
        // SAFETY: a byte for each page.
        unsafe {
            sys::call(
                libc::SYS_mincore,
                [at as usize, bytes as usize, answers.as_mut_ptr() as usize, 0, 0, 0],
            )
        }?;
        scanner.mark_mapped(at, answers)?;
        for (page, answer) in (0u64..).zip(&*answers) {
            if answer & 1 != 0 {
                found.push(Run::in_place(at + page * PAGE_BYTES, PAGE_BYTES))?;
            }
        }
        at += bytes;
    }
    Ok(())
}

/// Whether `range` is mapped throughout by the regions of `maps`.
pub(super) fn covers(maps: &[u8], range: Range<u64>) -> bool {
    let mut at = range.start;
    for line in maps::lines(maps).flatten() {
        if line.start <= at && at < line.end {
            at = line.end;
        }
        if at >= range.end {
            return true;
        }
    }
    at >= range.end
}
