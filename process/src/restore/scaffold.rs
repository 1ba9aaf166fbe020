//! The memory in which the last steps of a restore lie: the loop, its calls, the table, and stacks.

use std::convert::Infallible;
use std::io;

use super::plan::Kernel;
use super::table::{PendingEntry, Program, Slice, Span, Table, ThreadEntry, TimerEntry};
use super::*;
use crate::state::threads::At;
use crate::stop::PROCESSOR_WORDS;

/// All of it, filled, before anything is taken away.
pub(super) struct Scaffold {
    code: u64,
    program: u64,
}

/// The kernel's regions of this process.
struct KernelHere {
    group: Span,
    code: Vec<u8>,
}

impl Scaffold {
    pub(super) fn build(
        state: &ProcessState,
        files: &Files,
        opened: &Opened,
        reports: u32,
        ids: Ids,
    ) -> Result<Scaffold, RestoreError> {
        let text = std::fs::read("/proc/self/maps").map_err(call("read /proc/self/maps"))?;
        let own: Vec<Span> = maps::lines(&text)
            .flatten()
            .filter(|line| !line.is_everywhere())
            .map(|line| Span { start: line.start, end: line.end })
            .collect();
        let old = state.memory.regions.iter().map(|region| Span { start: region.start, end: region.end });
        let no_room = || RestoreError::NoRoom { bytes: 2 * SCAFFOLD_BYTES_MAX };
        // The kernel's code, where it cannot lie where it was, stays there; the scaffold goes.
        let spare =
            space::place(old.chain(own.iter().copied()), 2 * SCAFFOLD_BYTES_MAX).ok_or_else(no_room)?;
        let base = spare + SCAFFOLD_BYTES_MAX;

        let (kernel, redirected) = kernel(state, &text, opened, spare, base + PAGE_BYTES)?;
        let redirected_bytes = (redirected.len() as u64).next_multiple_of(PAGE_BYTES);
        let stacks = base + PAGE_BYTES + redirected_bytes;
        let data = stacks + STACK_BYTES * state.threads.len() as u64;

        let base_pages = opened.base_pages.as_ref().map_or(&[][..], |base_pages| &base_pages.pieces);
        let base_fd = opened.base_pages.as_ref().map(|base_pages| &base_pages.pages.0);
        let mut calls = Calls::new(data);
        let errors = calls.put(&failure_message::errors());
        let threads: Vec<ThreadEntry> = (1u64..)
            .zip(&state.threads)
            .map(|(place, thread)| thread_entry(thread, stacks + STACK_BYTES * place))
            .collect();
        let end = own.iter().map(|span| span.end).fold(ADDRESSES_END, u64::max);
        let rights = ids::without_right()?;
        // Its size is known when all has been put there; the two calls that spare it are made anew then.
        let mut table = Table {
            version: table::TABLE_VERSION,
            scaffold: base,
            scaffold_bytes: 0,
            waiting: AtomicU32::new(u32::try_from(threads.len()).unwrap_or(u32::MAX)),
            reports,
            exit_code: EXIT_FAILED.into(),
            threads: calls.put_all(&threads),
            timers: calls.put_all(&timers(state)),
            pending: calls.put_all(&pending(state)),
            interval_timers: process::interval_timers(state),
            barriers: state.program.barriers.into(),
            written: calls.put_all(&plan::written(state, base_pages)),
            mapped: calls.put_all(&plan::mapped(state)),
            lock_code: calls.put_all(&plan::lock_code(state)),
            keeps_ids: (ids == Ids::Kept).into(),
            gives_up_right: rights.is_some().into(),
            rights: rights.unwrap_or_default(),
        };
        let clear = calls.call_later("unmap the memory of the process that takes over", plan::gaps(opened));
        plan::memory(&mut calls, state, opened, &kernel);
        plan::clear_staged(&mut calls, opened);
        plan::parts(&mut calls, state);
        process::settings(&mut calls, state)?;
        for fd in opened.files.iter().flatten().chain(&opened.shared).chain([&opened.pages.0]).chain(base_fd)
        {
            calls.call(libc::SYS_close, &[u64::from(*fd)], 0, "close a file of the restore");
        }
        process::locks(&mut calls, files);
        let steps_bytes = calls.steps_bytes();
        let bytes =
            (data - base + calls.bytes.len() as u64 + steps_bytes + 4096).next_multiple_of(PAGE_BYTES);
        if bytes > SCAFFOLD_BYTES_MAX {
            return Err(RestoreError::NoRoom { bytes });
        }
        plan::clear(&mut calls, clear, opened, Span { start: base, end: base + bytes }, end);
        table.scaffold_bytes = bytes;
        let argument = calls.put_all(std::slice::from_ref(&table)).address;
        let Slice { address: steps, entries } = calls.finish();
        let program = Program {
            steps,
            steps_end: steps + entries * size_of::<table::Step>() as u64,
            // As after a call: a multiple of 16 less the return address.
            stack: stacks + STACK_BYTES - 8,
            argument,
            entry: state.resume.entry,
            errors,
            reports,
            exit_code: EXIT_FAILED.into(),
        };
        let program = calls.put_all(std::slice::from_ref(&program)).address;
        assert!(data + calls.bytes.len() as u64 <= base + bytes, "room for the last two was counted");
        fill(base, bytes, &redirected, stacks - redirected_bytes, data, &calls.bytes)
            .map_err(call(format!("map {bytes} bytes at {base:#x} for the restore itself")))?;
        Ok(Scaffold { code: base, program })
    }

    /// There is no way back from here.
    pub(super) fn run(self) -> Result<Infallible, RestoreError> {
        // SAFETY: `build` has put the loop and a whole program there. The calls unmap all other memory, this code included, and
        // nothing of this process runs afterwards.
        unsafe { x86_64::run_loop(self.code, self.program as *const Program) }
    }
}

fn fill(base: u64, bytes: u64, code: &[u8], code_at: u64, data: u64, content: &[u8]) -> io::Result<()> {
    // SAFETY: new memory at an address where nothing is mapped; all pieces lie inside of it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(base as *mut _, bytes as usize, access, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if at as u64 != base {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let pieces: [(u64, &[u8]); 3] = [(base, x86_64::loop_code()), (code_at, code), (data, content)];
        for (address, piece) in pieces {
            std::ptr::copy_nonoverlapping(piece.as_ptr(), address as *mut u8, piece.len());
        }
        if libc::mprotect(at, PAGE_BYTES as usize, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Where the kernel's code goes, and the old kernel's with jumps if it differs; that will lie at `copy`.
fn kernel(
    state: &ProcessState,
    maps_text: &[u8],
    opened: &Opened,
    spare: u64,
    copy: u64,
) -> Result<(Kernel, Vec<u8>), RestoreError> {
    let inconsistent = |what: &str| RestoreError::Inconsistent { what: what.to_owned() };
    let regions = &state.memory.regions;
    let Some(index) = regions.iter().position(|region| region.backing == Backing::Vdso) else {
        return Ok((Kernel::default(), Vec::new()));
    };
    let region = &regions[index];
    if regions.iter().filter(|region| region.backing == Backing::Vdso).count() > 1 {
        return Err(inconsistent("the kernel's code (vdso) is mapped twice"));
    }
    let bytes = region.end - region.start;
    let piece = opened.pieces(state).into_iter().find(|piece| piece.region == index);
    let piece = piece
        .filter(|piece| piece.bytes == bytes)
        .ok_or_else(|| inconsistent("the kernel's code (vdso) is not in the image"))?;
    let mut old =
        vec![0; usize::try_from(bytes).map_err(|_| inconsistent("the kernel's code (vdso) is too long"))?];
    // SAFETY: the descriptor is open and this borrows it for two calls.
    let pages = unsafe { BorrowedFd::borrow_raw(opened.pages.0.cast_signed()) };
    let pages = File::from(pages.try_clone_to_owned().map_err(call("read the image"))?);
    pages
        .read_exact_at(&mut old, opened.pages.1 + piece.offset)
        .map_err(call("read the kernel's code (vdso) in the image"))?;

    let mut old_start = region.start;
    for before in regions[..index].iter().rev() {
        if before.backing != Backing::Vvar || before.end != old_start {
            break;
        }
        old_start = before.start;
    }
    let Some(here) = kernel_here(maps_text) else {
        let code = vdso::redirect(&old, None, 0)?;
        return Ok((Kernel { group: None, code_bytes: 0, redirected: Some(copy) }, code));
    };
    let (group_bytes, code_bytes) = (here.group.end - here.group.start, here.code.len() as u64);
    let is_same = here.code == old && region.end - old_start == group_bytes;
    if is_same {
        let kernel = Kernel { group: Some((old_start, group_bytes)), code_bytes, redirected: None };
        return Ok((kernel, Vec::new()));
    }
    let code = vdso::redirect(&old, Some(&here.code), spare + group_bytes - code_bytes)?;
    Ok((Kernel { group: Some((spare, group_bytes)), code_bytes, redirected: Some(copy) }, code))
}

fn kernel_here(maps_text: &[u8]) -> Option<KernelHere> {
    let lines: Vec<maps::Line<'_>> = maps::lines(maps_text).flatten().collect();
    let at = lines.iter().position(|line| line.is_vdso())?;
    let vdso = lines.get(at)?;
    let mut start = vdso.start;
    for before in lines.get(..at)?.iter().rev().take_while(|line| line.is_vvar()) {
        start = before.start;
    }
    let bytes = usize::try_from(vdso.end - vdso.start).ok()?;
    // SAFETY: the kernel keeps these pages mapped and readable, and they have not been unmapped.
    let code = unsafe { std::slice::from_raw_parts(vdso.start as *const u8, bytes) }.to_vec();
    Some(KernelHere { group: Span { start, end: vdso.end }, code })
}

fn thread_entry(thread: &crate::state::threads::Thread, stack: u64) -> ThreadEntry {
    let (is_agent, frame, saved, mask) = match &thread.at {
        At::Handler { frame } => (0, *frame, &[][..], 0),
        At::Agent { registers, mask } => (1, 0, &registers[..], *mask),
    };
    let mut registers = [0; arch::REGISTERS];
    registers.iter_mut().zip(saved).for_each(|(slot, register)| *slot = *register);
    let rseq = thread.rseq;
    let mut processors = [0; PROCESSOR_WORDS];
    let saved = thread.processors.iter().flatten();
    processors.iter_mut().zip(saved).for_each(|(slot, word)| *slot = *word);
    ThreadEntry {
        old_tid: thread.tid,
        tid: 0,
        stack,
        tls_base: thread.tls_base,
        gs_base: thread.gs_base,
        tid_address: thread.tid_address,
        robust_list: thread.robust_list.0,
        robust_list_bytes: thread.robust_list.1,
        rseq: rseq.map_or(0, |rseq| rseq.address),
        rseq_bytes: rseq.map_or(0, |rseq| rseq.bytes),
        rseq_signature: rseq.map_or(0, |rseq| rseq.signature),
        parent_death_signal: thread.parent_death_signal.into(),
        timer_slack_ns: thread.timer_slack_ns,
        name: thread.name,
        processors_bytes: thread.processors.as_ref().map_or(0, |_| size_of_val(&processors) as u64),
        processors,
        scheduling: thread.scheduling.map_or([0; 6], |scheduling| scheduling.0),
        is_agent,
        frame,
        registers,
        mask,
    }
}

/// Rising, for kernels that give ids in turn.
fn timers(state: &ProcessState) -> Vec<TimerEntry> {
    let mut timers: Vec<TimerEntry> = state
        .signals
        .timers
        .iter()
        .map(|timer| TimerEntry {
            id: timer.id,
            clock: timer.clock,
            notify: timer.notify,
            signal: timer.signal,
            value: timer.value,
            tid: timer.tid,
            time: process::seconds(process::delayed(timer.time), 1_000_000_000, 1),
        })
        .collect();
    timers.sort_unstable_by_key(|timer| timer.id);
    timers
}

fn pending(state: &ProcessState) -> Vec<PendingEntry> {
    let entry = |pending: &crate::state::signals::Pending| PendingEntry {
        tid: pending.tid.unwrap_or(0),
        signal: pending.signal.into(),
        has_info: pending.info.is_some().into(),
        info: pending.info.unwrap_or_default(),
    };
    state.signals.pending.iter().map(entry).collect()
}
