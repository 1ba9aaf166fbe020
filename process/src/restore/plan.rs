//! From a state to the system calls that bring it about. Nothing is called here.

use std::fmt::Display;

use crate::arch::PAGE_BYTES;
use crate::state::ProcessState;
use crate::state::memory::{Advice, Backing, PageRun, Protection, Region};

use super::failure_message;
use super::table::{Slice, Span, Step};
use super::x86_64::MAP_VDSO;

/// Pieces of one `preadv(2)`: `IOV_MAX`.
const PIECES_MAX: usize = 1024;
/// Bytes of one `preadv(2)`; the kernel's bound is 2 GiB.
const READ_BYTES_MAX: u64 = 1 << 30;
/// Memory is filled piece by piece: the kernel makes the pages of a piece at once, which costs half as much as making
/// each at its first write, and finds them in the cache when it writes them.
const POPULATED_BYTES: u64 = 2 << 20;
/// For less the additional call does not pay.
const POPULATED_BYTES_MIN: u64 = 256 << 10;
/// A lock reaches at most that far beyond the words that name its owner.
const LOCK_BYTES: u64 = 64;

const MADV_GUARD_INSTALL: u64 = 102;
const MADV_POPULATE_WRITE: u64 = 23;

/// Descriptors that the calls use.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    /// For each of [`crate::state::memory::Memory::files`], unless the image holds all that is needed of it.
    pub(super) files: Vec<Option<u32>>,
    /// For each of [`crate::state::memory::Memory::shared`].
    pub(super) shared: Vec<u32>,
    /// The file with the pages, and where they begin.
    pub(super) pages: (u32, u64),
    /// The pages that are read from the image below.
    pub(super) base_pages: Option<FromBase>,
    /// Pages that lie ready in this process.
    pub(super) staged: Option<Staged>,
    /// Whether the kernel makes pages on request (`MADV_POPULATE_WRITE`, Linux 5.14).
    pub(super) populates: bool,
    /// The parts of the files with pages that have been read are freed: the files are memory.
    pub(super) are_freed: bool,
}

/// Pages that are read from the image below.
#[derive(Clone, Debug)]
pub(super) struct FromBase {
    /// The file, and where its pages begin.
    pub(super) pages: (u32, u64),
    pub(super) pieces: Vec<Piece>,
}

/// Pages that lie ready in this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Staged {
    /// Those that are read from the file of pages all the same, and their places in it.
    pub(super) pieces: Vec<Piece>,
    /// Memory that becomes regions as it is, rising.
    pub(super) moves: Vec<Move>,
    /// All memory that lies ready, rising, without overlap.
    pub(super) spans: Vec<Span>,
}

/// Memory that becomes a part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    /// Index of the region.
    pub(super) region: usize,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes: u64,
}

impl Opened {
    /// The pages that are read from the file of pages.
    pub(super) fn pieces(&self, state: &ProcessState) -> Vec<Piece> {
        self.staged.as_ref().map_or_else(|| pieces(state), |staged| staged.pieces.clone())
    }

    fn moves(&self) -> &[Move] {
        self.staged.as_ref().map_or(&[], |staged| &staged.moves)
    }
}

/// The kernel's code and data in the image and here.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel {
    /// Where the group of this kernel's regions goes, and its bytes; the code comes last.
    pub(super) group: Option<(u64, u64)>,
    /// Bytes of the code alone: the answer of the call that maps it.
    pub(super) code_bytes: u64,
    /// The old kernel's code with jumps, where it lies now, if it differs.
    pub(super) redirected: Option<u64>,
}

/// Memory that is filled before the loop runs, at an address known beforehand.
pub(super) struct Calls {
    base: u64,
    pub(super) bytes: Vec<u8>,
    steps: Vec<Step>,
}

impl Calls {
    pub(super) fn new(base: u64) -> Calls {
        Calls { base, bytes: Vec::new(), steps: Vec::new() }
    }

    /// Puts bytes there; returns their address, a multiple of 16.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let address = self.base + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        address
    }

    pub(super) fn put_words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes)
    }

    /// Puts plain structures there.
    pub(super) fn put_all<T>(&mut self, entries: &[T]) -> Slice {
        // SAFETY: any value is readable as bytes for as long as it is borrowed; all types that come here are `repr(C)`
        // and their padding is never read.
        let bytes = unsafe {
            std::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), std::mem::size_of_val(entries))
        };
        Slice { address: self.put(bytes), entries: entries.len() as u64 }
    }

    /// A call that must return `want`; `what` completes the sentence "cannot ...".
    pub(super) fn call(&mut self, number: i64, arguments: &[u64], want: u64, what: impl Display) {
        let mut all = [0; 6];
        all.iter_mut().zip(arguments).for_each(|(slot, argument)| *slot = *argument);
        let text = format!("{}cannot {what}: ", String::from_utf8_lossy(failure_message::OPENING));
        let (text, text_bytes) = (self.put(text.as_bytes()), text.len() as u64);
        self.steps.push(Step { number: number.cast_unsigned(), arguments: all, want, text, text_bytes });
    }

    /// Room for calls whose arguments are not known yet; returns the index of the first.
    pub(super) fn call_later(&mut self, what: &str, calls: usize) -> usize {
        let first = self.steps.len();
        for _ in 0..calls {
            self.call(0, &[], 0, what);
        }
        first
    }

    /// Sets number and arguments of such a call.
    pub(super) fn set(&mut self, index: usize, number: i64, arguments: &[u64]) {
        if let Some(step) = self.steps.get_mut(index) {
            step.number = number.cast_unsigned();
            step.arguments.iter_mut().zip(arguments).for_each(|(slot, argument)| *slot = *argument);
        }
    }

    pub(super) fn steps_bytes(&self) -> u64 {
        std::mem::size_of_val(self.steps.as_slice()) as u64
    }

    /// Puts the calls there, too.
    pub(super) fn finish(&mut self) -> Slice {
        let steps = std::mem::take(&mut self.steps);
        self.put_all(&steps)
    }

    #[cfg(test)]
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }
}

fn named(region: &Region, state: &ProcessState) -> String {
    let name = match region.backing {
        Backing::Anonymous => "memory".into(),
        Backing::File { file, .. } => {
            String::from_utf8_lossy(state.memory.files.get(file as usize).map_or(&[][..], |file| &file.path))
        }
        Backing::Shared { object, .. } => String::from_utf8_lossy(
            state.memory.shared.get(object as usize).map_or(&[][..], |object| &object.name),
        ),
        Backing::Vdso | Backing::Vvar => "the kernel's code".into(),
    };
    format!("{:#x}-{:#x} ({name})", region.start, region.end)
}

fn bits(protection: Protection) -> u64 {
    let mut bits = 0;
    for (flag, bit) in [
        (Protection::READ, libc::PROT_READ),
        (Protection::WRITE, libc::PROT_WRITE),
        (Protection::EXECUTE, libc::PROT_EXEC),
    ] {
        if protection.contains(flag) {
            bits |= bit as u64;
        }
    }
    bits
}

/// A piece of a run inside of one region, and where its bytes lie in the section of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) offset: u64,
    /// Index of the region.
    pub(super) region: usize,
}

/// The runs cut at the borders of regions.
pub(super) fn pieces(state: &ProcessState) -> Vec<Piece> {
    let page = u64::from(state.machine.page_bytes);
    let (mut pieces, mut offset) = (Vec::new(), 0);
    for run in &state.memory.runs {
        cut(state, run.address, run.pages * page, offset, &mut pieces);
        offset += run.pages * page;
    }
    pieces
}

pub(super) fn cut(state: &ProcessState, start: u64, bytes: u64, offset: u64, pieces: &mut Vec<Piece>) {
    let regions = &state.memory.regions;
    let end = start + bytes;
    let mut address = start;
    while address < end {
        let region = regions.partition_point(|region| region.end <= address);
        let Some(found) = regions.get(region).filter(|found| found.start <= address) else { break };
        let bytes = found.end.min(end) - address;
        pieces.push(Piece { address, bytes, offset: offset + (address - start), region });
        address += bytes;
    }
}

/// The pieces of memory that are read from the image below, whose pages are `runs`; or the reason why the
/// pages cannot come from there.
pub(super) fn pieces_of_base(
    state: &ProcessState,
    runs: &[PageRun],
    unchanged: &[PageRun],
) -> Result<Vec<Piece>, String> {
    let page = u64::from(state.machine.page_bytes);
    let end = |run: &PageRun| run.pages.checked_mul(page).and_then(|bytes| run.address.checked_add(bytes));
    let mut offsets = Vec::with_capacity(runs.len());
    let mut offset = 0;
    for run in runs {
        offsets.push(offset);
        offset = u64::saturating_add(offset, run.pages.saturating_mul(page));
    }
    let (mut pieces, mut from) = (Vec::new(), 0);
    for run in unchanged {
        let lost = || format!("{} pages from {:#x} are not in the image below", run.pages, run.address);
        let run_end = end(run).filter(|end| *end > run.address).ok_or_else(lost)?;
        if run.address < from || run.address % page != 0 {
            return Err(format!("the unchanged pages from {:#x} come twice, or out of order", run.address));
        }
        from = run_end;
        let mut address = run.address;
        while address < run_end {
            let after = runs.partition_point(|base_pages| base_pages.address <= address);
            let (source, offset) =
                after.checked_sub(1).and_then(|at| runs.get(at).zip(offsets.get(at))).ok_or_else(lost)?;
            let until = end(source).filter(|end| *end > address).ok_or_else(lost)?.min(run_end);
            let before = pieces.len();
            cut(state, address, until - address, offset + (address - source.address), &mut pieces);
            let filled: u64 = pieces.iter().skip(before).map(|piece| piece.bytes).sum();
            if filled != until - address {
                return Err(format!("unchanged pages from {address:#x} lie in no region"));
            }
            address = until;
        }
    }
    let own = |piece: &Piece| {
        let after = state.memory.runs.partition_point(|run| run.address < piece.address + piece.bytes);
        let last = after.checked_sub(1).and_then(|at| state.memory.runs.get(at));
        last.is_some_and(|run| end(run).is_none_or(|end| end > piece.address))
    };
    match pieces.iter().find(|piece| own(piece)) {
        Some(piece) => Err(format!("pages from {:#x} are changed and unchanged", piece.address)),
        None => Ok(pieces),
    }
}

/// Where addresses of the program may point, rising.
pub(super) fn mapped(state: &ProcessState) -> Vec<Span> {
    let regions = state.memory.regions.iter();
    let mut spans: Vec<Span> = regions.map(|region| Span { start: region.start, end: region.end }).collect();
    spans.sort_unstable_by_key(|span| span.start);
    spans
}

/// Where the code of the C library lies that takes its locks, rising; of a program without such a library, all code.
pub(super) fn lock_code(state: &ProcessState) -> Vec<Span> {
    let code = |is_wanted: &dyn Fn(&[u8]) -> bool| {
        let regions = state.memory.regions.iter();
        let regions = regions.filter(|region| match region.backing {
            _ if !region.protection.contains(Protection::EXECUTE) => false,
            Backing::File { file, .. } => {
                state.memory.files.get(file as usize).is_some_and(|file| is_wanted(&file.path))
            }
            _ => false,
        });
        let mut spans: Vec<Span> =
            regions.map(|region| Span { start: region.start, end: region.end }).collect();
        spans.sort_unstable_by_key(|span| span.start);
        spans
    };
    // Before glibc 2.34, threads were a library of their own. Old ones are named by version: libc-2.31.so.
    let is_library = |path: &[u8]| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        [b"libc.so".as_slice(), b"libc-", b"libpthread"].iter().any(|start| name.starts_with(start))
    };
    let of_library = code(&is_library);
    if of_library.is_empty() { code(&|_| true) } else { of_library }
}

/// Where thread ids may lie: the written memory, with the end of a lock that begins there.
pub(super) fn written(state: &ProcessState, base_pages: &[Piece]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut pieces = pieces(state);
    pieces.extend_from_slice(base_pages);
    pieces.sort_by_key(|piece| piece.address);
    for piece in pieces {
        let Some(region) = state.memory.regions.get(piece.region) else { continue };
        if !region.protection.contains(Protection::READ | Protection::WRITE) {
            continue;
        }
        if matches!(region.backing, Backing::Vdso | Backing::Vvar) {
            continue;
        }
        let start = piece.address.saturating_sub(LOCK_BYTES).max(region.start);
        let end = piece.address.saturating_add(piece.bytes + LOCK_BYTES).min(region.end);
        match spans.last_mut().filter(|last| start <= last.end) {
            Some(last) => last.end = last.end.max(end),
            None => spans.push(Span { start, end }),
        }
    }
    without_guards(spans, &state.memory.guards, u64::from(state.machine.page_bytes))
}

fn without_guards(spans: Vec<Span>, guards: &[PageRun], page: u64) -> Vec<Span> {
    let mut left = Vec::with_capacity(spans.len());
    for mut span in spans {
        let first = guards.partition_point(|guard| guard.address + guard.pages * page <= span.start);
        for guard in guards.get(first..).unwrap_or(&[]).iter().take_while(|guard| guard.address < span.end) {
            if guard.address > span.start {
                left.push(Span { start: span.start, end: guard.address });
            }
            span.start = (guard.address + guard.pages * page).min(span.end);
        }
        if span.start < span.end {
            left.push(span);
        }
    }
    left
}

/// Takes away the memory of the process that takes over, but for memory that lies ready and `scaffold`. `first` is the
/// index of as many calls as [`gaps`] has.
pub(super) fn clear(calls: &mut Calls, first: usize, opened: &Opened, scaffold: Span, end: u64) {
    let mut kept: Vec<Span> = opened.staged.iter().flat_map(|staged| staged.spans.iter().copied()).collect();
    kept.push(scaffold);
    kept.sort_unstable_by_key(|span| span.start);
    let mut at = 0;
    for (index, span) in (first..).zip(kept.into_iter().chain([Span { start: end, end }])) {
        // Where two lie side by side: of a page that is nobody's.
        let bytes = (span.start - at).max(PAGE_BYTES);
        let start = if span.start > at { at } else { 0 };
        calls.set(index, libc::SYS_munmap, &[start, bytes]);
        at = span.end;
    }
}

/// How many ranges there are beside the scaffold and the memory that lies ready.
pub(super) fn gaps(opened: &Opened) -> usize {
    opened.staged.as_ref().map_or(0, |staged| staged.spans.len()) + 2
}

/// Unmaps the rest of the memory in which pages lay ready.
pub(super) fn clear_staged(calls: &mut Calls, opened: &Opened) {
    for span in opened.staged.iter().flat_map(|staged| &staged.spans) {
        let what = format!("unmap the rest of the memory in which pages lay ready, at {:#x}", span.start);
        calls.call(libc::SYS_munmap, &[span.start, span.end - span.start], 0, what);
    }
}

/// All regions with their pages.
pub(super) fn memory(calls: &mut Calls, state: &ProcessState, opened: &Opened, kernel: &Kernel) {
    if let Some((address, bytes)) = kernel.group {
        let what = "map the kernel's code (vdso)";
        calls.call(libc::SYS_arch_prctl, &[MAP_VDSO, address], kernel.code_bytes, what);
        // The address is a wish to the kernel. Nothing else is mapped, so any mapping there is the code.
        let what = format!("have the kernel's code (vdso) at {address:#x}");
        calls.call(libc::SYS_msync, &[address, bytes, libc::MS_ASYNC as u64], 0, what);
    }
    let pieces = opened.pieces(state);
    let regions = &state.memory.regions;
    let mut has_pages = vec![false; regions.len()];
    let base_pages = opened.base_pages.as_ref();
    for piece in pieces.iter().chain(base_pages.iter().flat_map(|base_pages| &base_pages.pieces)) {
        has_pages[piece.region] = true;
    }
    for moved in opened.moves() {
        has_pages[moved.region] = true;
    }
    let mut moves = opened.moves().iter().peekable();
    for (index, (region, has_pages)) in regions.iter().zip(&has_pages).enumerate() {
        if moves.peek().is_none_or(|next| next.region != index) {
            map(calls, state, opened, kernel, region, *has_pages);
            continue;
        }
        while let Some(part) = moves.next_if(|next| next.region == index) {
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
            let what =
                format!("move {} bytes to {:#x}, a part of {}", part.bytes, part.to, named(region, state));
            calls.call(libc::SYS_mremap, &[part.from, part.bytes, part.bytes, flags, part.to], part.to, what);
        }
        advise(calls, state, region, &KINDS);
    }
    if let Some(base_pages) = base_pages {
        read(calls, state, opened, base_pages.pages, &base_pages.pieces);
    }
    read(calls, state, opened, opened.pages, &pieces);
    for (region, has_pages) in regions.iter().zip(&has_pages) {
        settle(calls, state, region, *has_pages);
    }
    for guard in &state.memory.guards {
        let bytes = guard.pages * u64::from(state.machine.page_bytes);
        let what =
            format!("put a guard at {:#x}, {bytes} bytes (kernels from 6.13 on have them)", guard.address);
        calls.call(libc::SYS_madvise, &[guard.address, bytes, MADV_GUARD_INSTALL], 0, what);
    }
}

fn protection_while_read(region: &Region, has_pages: bool) -> Protection {
    if has_pages { Protection::READ | Protection::WRITE } else { region.protection }
}

fn map(
    calls: &mut Calls,
    state: &ProcessState,
    opened: &Opened,
    kernel: &Kernel,
    region: &Region,
    has_pages: bool,
) {
    let (mut flags, mut fd, mut from) = (libc::MAP_FIXED_NOREPLACE, u64::MAX, 0);
    let mut protection = protection_while_read(region, has_pages);
    let file = |file: u32| opened.files.get(file as usize).copied().flatten();
    match region.backing {
        Backing::Anonymous => flags |= libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        Backing::File { file: index, offset, is_shared } => match file(index) {
            Some(file) if is_shared => {
                flags |= libc::MAP_SHARED;
                (fd, from) = (u64::from(file), offset);
            }
            Some(file) => {
                flags |= libc::MAP_PRIVATE;
                (fd, from) = (u64::from(file), offset);
            }
            None => flags |= libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        },
        Backing::Shared { object, offset } => {
            flags |= libc::MAP_SHARED;
            (fd, from) = (opened.shared.get(object as usize).map_or(u64::MAX, |fd| u64::from(*fd)), offset);
        }
        Backing::Vdso => {
            if let Some(code) = kernel.redirected {
                let bytes = region.end - region.start;
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                let what = format!("put the old kernel's code at {}", named(region, state));
                calls.call(libc::SYS_mremap, &[code, bytes, bytes, flags, region.start], region.start, what);
                let what = format!("make the old kernel's code at {} executable", named(region, state));
                let bits = bits(Protection::READ | Protection::EXECUTE);
                calls.call(libc::SYS_mprotect, &[region.start, bytes, bits], 0, what);
            }
            return;
        }
        Backing::Vvar => {
            if kernel.redirected.is_none() {
                return;
            }
            // A thread that was stopped inside of the old code finds zeros there: no clock that can be read, so it
            // makes a system call.
            protection = Protection::READ;
            flags |= libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        }
    }
    for (advice, flag) in
        [(Advice::GROWS_DOWN, libc::MAP_GROWSDOWN), (Advice::NO_RESERVE, libc::MAP_NORESERVE)]
    {
        if region.advice.contains(advice) {
            flags |= flag;
        }
    }
    let bytes = region.end - region.start;
    let arguments = [region.start, bytes, bits(protection), flags as u64, fd, from];
    calls.call(libc::SYS_mmap, &arguments, region.start, format!("map {}", named(region, state)));
    // Before pages are read, so that they have the kind that the program wanted.
    advise(calls, state, region, &KINDS);
}

/// The kinds of pages that a program may want.
const KINDS: [(Advice, i32); 2] =
    [(Advice::HUGE, libc::MADV_HUGEPAGE), (Advice::NO_HUGE, libc::MADV_NOHUGEPAGE)];

fn advise(calls: &mut Calls, state: &ProcessState, region: &Region, advices: &[(Advice, i32)]) {
    for (advice, code) in advices {
        if region.advice.contains(*advice) {
            let arguments = [region.start, region.end - region.start, *code as u64];
            let what = format!("give advice {code} (madvise) about {}", named(region, state));
            calls.call(libc::SYS_madvise, &arguments, 0, what);
        }
    }
}

/// Pages lie one after the other in the file, so one call fills as many places as it may name.
fn read(calls: &mut Calls, state: &ProcessState, opened: &Opened, pages: (u32, u64), pieces: &[Piece]) {
    let mut batch = Batch { pieces: Vec::new(), bytes: 0, end: 0, pages, are_freed: opened.are_freed };
    for piece in pieces {
        // Pages of the image below that lie between were changed since.
        if piece.offset != batch.end {
            batch.flush(calls);
        }
        let backing = state.memory.regions.get(piece.region).map(|region| region.backing);
        let is_own = matches!(backing, Some(Backing::Anonymous | Backing::Shared { .. }));
        if matches!(backing, None | Some(Backing::Vdso | Backing::Vvar)) {
            batch.flush(calls);
            continue;
        }
        let populates = opened.populates && is_own && piece.bytes >= POPULATED_BYTES_MIN;
        if populates {
            batch.flush(calls);
        }
        let bytes_max = if populates { POPULATED_BYTES } else { READ_BYTES_MAX };
        let mut left = *piece;
        while left.bytes > 0 {
            let part = Piece { bytes: left.bytes.min(bytes_max - batch.bytes), ..left };
            if populates {
                let what = format!("make {} pages at {:#x}", part.bytes / PAGE_BYTES, part.address);
                let arguments = [part.address, part.bytes, MADV_POPULATE_WRITE];
                calls.call(libc::SYS_madvise, &arguments, 0, what);
            }
            batch.push(part);
            left.address += part.bytes;
            left.offset += part.bytes;
            left.bytes -= part.bytes;
            if batch.bytes >= bytes_max || batch.pieces.len() == PIECES_MAX {
                batch.flush(calls);
            }
        }
        if populates {
            batch.flush(calls);
        }
    }
    batch.flush(calls);
}

/// The pieces that the next call reads.
struct Batch {
    pieces: Vec<Piece>,
    bytes: u64,
    /// Where the next piece has to lie in the section.
    end: u64,
    /// The file, and where its pages begin.
    pages: (u32, u64),
    are_freed: bool,
}

impl Batch {
    fn push(&mut self, part: Piece) {
        self.end = part.offset + part.bytes;
        match self.pieces.last_mut().filter(|last| last.address + last.bytes == part.address) {
            Some(last) => last.bytes += part.bytes,
            None => self.pieces.push(part),
        }
        self.bytes += part.bytes;
    }

    fn flush(&mut self, calls: &mut Calls) {
        let (fd, start) = self.pages;
        if let (Some(first), Some(last)) = (self.pieces.first(), self.pieces.last()) {
            let words: Vec<u64> = self.pieces.iter().flat_map(|piece| [piece.address, piece.bytes]).collect();
            let vector = calls.put_words(&words);
            let (bytes, offset, end) = (self.bytes, start + first.offset, last.address + last.bytes);
            let what = format!(
                "read {bytes} bytes at {offset} of the image, the pages of {:#x}-{end:#x}",
                first.address
            );
            let arguments = [u64::from(fd), vector, self.pieces.len() as u64, offset, 0];
            calls.call(libc::SYS_preadv, &arguments, bytes, what);
            if self.are_freed {
                let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
                let what = format!("free {bytes} bytes that have been read");
                calls.call(libc::SYS_fallocate, &[u64::from(fd), mode, offset, bytes], 0, what);
            }
        }
        self.pieces.clear();
        self.bytes = 0;
    }
}

fn settle(calls: &mut Calls, state: &ProcessState, region: &Region, has_pages: bool) {
    if matches!(region.backing, Backing::Vdso | Backing::Vvar) {
        return;
    }
    let bytes = region.end - region.start;
    if protection_while_read(region, has_pages) != region.protection {
        let what = format!("protect {}", named(region, state));
        calls.call(libc::SYS_mprotect, &[region.start, bytes, bits(region.protection)], 0, what);
    }
    advise(
        calls,
        state,
        region,
        &[
            (Advice::DONT_FORK, libc::MADV_DONTFORK),
            (Advice::WIPE_ON_FORK, libc::MADV_WIPEONFORK),
            (Advice::DONT_DUMP, libc::MADV_DONTDUMP),
            (Advice::MERGEABLE, libc::MADV_MERGEABLE),
            (Advice::SEQUENTIAL, libc::MADV_SEQUENTIAL),
            (Advice::RANDOM, libc::MADV_RANDOM),
        ],
    );
    if region.advice.contains(Advice::LOCKED) {
        let what = format!("lock {} in memory (ulimit -l)", named(region, state));
        calls.call(libc::SYS_mlock, &[region.start, bytes], 0, what);
    }
}

/// The kernel's facts about the program's parts.
pub(super) fn parts(calls: &mut Calls, state: &ProcessState) {
    let auxiliary = calls.put_words(&state.memory.auxiliary);
    let parts = &state.memory.parts;
    let auxiliary_bytes = state.memory.auxiliary.len() as u64 * 8;
    // `struct prctl_mm_map`; its last two fields are of four bytes, the second a descriptor: none.
    let map = calls.put_words(&[
        parts.start_code,
        parts.end_code,
        parts.start_data,
        parts.end_data,
        parts.start_brk,
        parts.brk,
        parts.start_stack,
        parts.arg_start,
        parts.arg_end,
        parts.env_start,
        parts.env_end,
        auxiliary,
        auxiliary_bytes & 0xffff_ffff | 0xffff_ffff << 32,
    ]);
    let arguments = [libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64, map, 13 * 8];
    let what = "set the program's memory layout (PR_SET_MM_MAP; kernels with CONFIG_CHECKPOINT_RESTORE can)";
    calls.call(libc::SYS_prctl, &arguments, 0, what);
}

#[cfg(test)]
mod tests;
