//! The code with which a restored process goes on: it runs in the restored memory, before its threads do.
//!
//! Until [`resume`] has set the segment of thread-local storage there is none, and locks of the C library may be held by threads
//! that do not exist yet. So here are raw system calls and plain memory only: nothing allocates, locks, or panics.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::ids::{self, CloneArguments};
use super::mutex::{self, Tids};
use super::table::{PendingEntry, TABLE_VERSION, Table, ThreadEntry, TimerEntry};
use super::waiter::Memory;
use super::x86_64::{
    SET_FS, SET_GS, registers_of, stillwire_clone, stillwire_clone_under_id,
    stillwire_leave_by_signal_return, stillwire_leave_to_agent,
};
use super::{STACK_BYTES, failure_message, waiter};
use crate::arch::RESTORED;
use crate::{stop, sys};

/// A call of the program's own (a `fn()`), made before its threads go on; null: none. It lies in the memory of the image.
static BEFORE_THREADS: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has a restored process make this call before its threads go on. It must not allocate, nor take a lock: their owners do not exist yet.
pub fn before_threads(call: fn()) {
    BEFORE_THREADS.store(call as *mut (), Ordering::Relaxed);
}

/// Set when all threads have come to the end of their restore.
pub(super) static RELEASED: AtomicU32 = AtomicU32::new(0);

/// Timer ids tried, at most, where the kernel does not let one choose.
const TIMER_TRIES_MAX: u32 = 1 << 24;

/// `PR_TIMER_CREATE_RESTORE_IDS`, Linux 6.15.
const TIMER_IDS: i32 = 77;

const CLONE_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Address of the function that [`super::restore`] jumps to: `resume.entry` of an image.
#[must_use]
pub fn entry() -> u64 {
    resume as *const () as u64
}

/// Makes the threads, and is the first of them from then on.
unsafe extern "C" fn resume(table: *mut Table) -> ! {
    // SAFETY: the loop hands in the table that `super::restore` has made; it stays until all threads are done with it.
    let all = unsafe { &*table };
    if all.version != TABLE_VERSION {
        fail(all, b"the image's code does not know the restorer's table: use the same build for both", 0);
    }
    RELEASED.store(0, Ordering::SeqCst);
    crate::live::restored();
    let threads = all.threads.address as *mut ThreadEntry;
    let entries = all.threads.entries as usize;
    // SAFETY: entries of the table. Only the kernel writes to them meanwhile, to ids that are read after it has.
    unsafe {
        let first = &mut *threads;
        if sys::call(libc::SYS_arch_prctl, [SET_FS as usize, first.tls_base as usize, 0, 0, 0, 0]).is_err() {
            fail(all, b"cannot set the base of thread-local storage", 0);
        }
        // Where the C library has it, and where the kernel clears it.
        first.tid = sys::process_id();
        *(first.tid_address as *mut u32) = first.tid;
        let _ = sys::call(libc::SYS_set_tid_address, [first.tid_address as usize, 0, 0, 0, 0, 0]);
        let call = BEFORE_THREADS.load(Ordering::Relaxed);
        if !call.is_null() {
            // A `fn()` was stored there, of code that is mapped again.
            core::mem::transmute::<*mut (), fn()>(call)();
        }
        for at in 1..entries {
            make_thread(threads.add(at), table);
        }
        let threads = all.threads.as_slice::<ThreadEntry>();
        let ids = Ids::of(threads);
        if all.keeps_ids == 0 {
            mend(all, &ids);
        }
        for timer in all.timers.as_slice::<TimerEntry>() {
            if let Err(error) = make_timer(timer, &ids) {
                fail(
                    all,
                    b"cannot make a timer of timer_create(2) under its old number",
                    -i64::from(error.0),
                );
            }
        }
        for (which, time) in all.interval_timers.iter().enumerate() {
            if let Err(error) = sys::call(libc::SYS_setitimer, [which, time.as_ptr() as usize, 0, 0, 0, 0]) {
                fail(all, b"cannot set a timer of setitimer(2)", -i64::from(error.0));
            }
        }
        for pending in all.pending.as_slice::<PendingEntry>() {
            send(pending, first.tid, &ids);
        }
        register_barriers(all);
        for thread in threads.iter().filter(|thread| thread.is_agent == 0) {
            stop::note_call(thread.frame);
        }
        start(first, table)
    }
}

/// Makes a thread, which begins with [`start`].
///
/// # Safety
///
/// An entry of the table, which stays.
unsafe fn make_thread(thread: *mut ThreadEntry, table: *const Table) {
    // SAFETY: the kernel writes the id to the entry and to the thread's own memory, and reads the arguments before the call returns. The
    // thread's stack is part of the scaffold.
    unsafe {
        let all = &*table;
        let (stack, tid_address, tls) = ((*thread).stack, (*thread).tid_address, (*thread).tls_base);
        let tid = &raw mut (*thread).tid;
        if all.keeps_ids == 0 {
            let made = stillwire_clone(CLONE_FLAGS as u64, stack, tid, tid_address, tls, thread, table);
            if made < 0 {
                fail(all, b"cannot make a thread of the process", made);
            }
            return;
        }
        let arguments = CloneArguments {
            flags: CLONE_FLAGS as u64,
            pidfd: 0,
            child_tid: tid_address,
            parent_tid: tid as u64,
            exit_signal: 0,
            stack: stack - STACK_BYTES,
            stack_bytes: STACK_BYTES,
            tls,
            ids: &raw const (*thread).old_tid as u64,
            ids_count: 1,
        };
        let made = stillwire_clone_under_id(&raw const arguments, size_of::<CloneArguments>(), thread, table);
        if made < 0 {
            let what = b"cannot make a thread under the id that it had (17: it is taken; 1: not permitted; 38: Linux 5.9 can)";
            fail(all, what, made);
        }
    }
}

/// Puts new ids to where the C library has the old ones.
///
/// # Safety
///
/// All memory is restored, and nothing else uses it.
unsafe fn mend(all: &Table, ids: &Ids<'_>) {
    // SAFETY: the table's spans are mapped and may be written; the caller's promise.
    unsafe {
        let mut memory = Memory {
            spans: all.written.as_slice(),
            mapped: all.mapped.as_slice(),
            lock_code: all.lock_code.as_slice(),
        };
        for thread in ids.threads.iter().filter(|thread| thread.is_agent == 0) {
            let (registers, stack, at) = registers_of(thread.frame);
            // `struct robust_list_head`: the entry of the lock being taken is its third word.
            let head = (thread.robust_list as *const u64).as_ref();
            let pending = head.map_or(0, |head| *std::ptr::from_ref(head).add(2));
            let renamed = (thread.old_tid, thread.tid);
            waiter::mend(&mut memory, registers, (stack, at), pending, renamed, ids.threads.len());
        }
        for span in memory.spans {
            let words = (span.end - span.start) as usize / size_of::<u32>();
            mutex::mend(std::slice::from_raw_parts_mut(span.start as *mut u32, words), ids);
        }
    }
}

/// Restores the state that only the thread itself can set, then leaves to its program.
pub(super) unsafe extern "C" fn start(thread: *const ThreadEntry, table: *const Table) -> ! {
    // SAFETY: entries of the table, which is not written any more; the addresses are those that the thread had.
    unsafe {
        let (thread, all) = (&*thread, &*table);
        if thread.gs_base != 0
            && sys::call(libc::SYS_arch_prctl, [SET_GS as usize, thread.gs_base as usize, 0, 0, 0, 0])
                .is_err()
        {
            fail(all, b"cannot set a thread's second segment base", 0);
        }
        if thread.robust_list != 0 {
            let list = [thread.robust_list as usize, thread.robust_list_bytes as usize, 0, 0, 0, 0];
            if let Err(error) = sys::call(libc::SYS_set_robust_list, list) {
                fail(all, b"cannot set a thread's list of robust mutexes", -i64::from(error.0));
            }
        }
        if thread.rseq != 0 {
            let (bytes, signature) = (thread.rseq_bytes as usize, thread.rseq_signature as usize);
            let area = [thread.rseq as usize, bytes, 0, signature, 0, 0];
            if let Err(error) = sys::call(libc::SYS_rseq, area) {
                fail(all, b"cannot register a thread's restartable sequences (rseq)", -i64::from(error.0));
            }
        }
        // Nothing depends on the answers of these; they fail only for values that the kernel did not give.
        let _ = sys::prctl(libc::PR_SET_NAME, thread.name.as_ptr() as usize);
        let _ = sys::prctl(libc::PR_SET_PDEATHSIG, thread.parent_death_signal as usize);
        let _ = sys::prctl(libc::PR_SET_TIMERSLACK, thread.timer_slack_ns as usize);
        if thread.processors_bytes != 0 {
            let set = [0, thread.processors_bytes as usize, thread.processors.as_ptr() as usize, 0, 0, 0];
            if sys::call(libc::SYS_sched_setaffinity, set).is_err() {
                say(all, b"a thread was bound to processors that are not here, and runs on any now");
            }
        }
        if thread.scheduling[0] != 0 {
            let attributes = [0, thread.scheduling.as_ptr() as usize, 0, 0, 0, 0];
            if sys::call(libc::SYS_sched_setattr, attributes).is_err() {
                say(
                    all,
                    b"a thread had a priority (nice, sched) that it may not have here, and runs without",
                );
            }
        }
        if all.gives_up_right != 0 {
            let rights = [ids::HEADER.as_ptr() as usize, all.rights.as_ptr() as usize, 0, 0, 0, 0];
            if let Err(error) = sys::call(libc::SYS_capset, rights) {
                fail(all, b"cannot give up the right over ids (capset)", -i64::from(error.0));
            }
        }
        if thread.is_agent == 0 {
            stillwire_leave_by_signal_return(table, thread.frame)
        } else {
            stillwire_leave_to_agent(table, thread.registers.as_ptr(), thread.mask, RESTORED)
        }
    }
}

/// The program's registrations with `membarrier(2)`.
fn register_barriers(all: &Table) {
    let registered = (0..u64::BITS).map(|bit| 1u64 << bit).filter(|command| all.barriers & command != 0);
    for command in registered {
        // SAFETY: registers the process's use of the command.
        if unsafe { sys::call(libc::SYS_membarrier, [command as usize, 0, 0, 0, 0, 0]) }.is_err() {
            say(all, b"this kernel lacks a memory barrier (membarrier) that the program may use");
        }
    }
}

struct Ids<'a> {
    threads: &'a [ThreadEntry],
    lowest: u32,
    highest: u32,
}

impl Ids<'_> {
    fn of(threads: &[ThreadEntry]) -> Ids<'_> {
        let (mut lowest, mut highest) = (u32::MAX, 0);
        for thread in threads {
            lowest = lowest.min(thread.old_tid);
            highest = highest.max(thread.old_tid);
        }
        Ids { threads, lowest, highest }
    }
}

impl Tids for Ids<'_> {
    fn renamed(&self, old: u32) -> Option<u32> {
        self.threads.iter().find(|thread| thread.old_tid == old).map(|thread| thread.tid)
    }

    fn bounds(&self) -> (u32, u32) {
        (self.lowest, self.highest)
    }

    fn threads(&self) -> usize {
        self.threads.len()
    }
}

/// `struct sigevent` as the kernel has it.
#[repr(C)]
struct Event {
    value: u64,
    signal: i32,
    notify: i32,
    tid: u32,
    pad: [u32; 11],
}

/// A clock of a process or a thread (clock_getcpuclockid(3)) names it in its upper bits.
fn clock_of(clock: i32, ids: &Ids<'_>) -> i32 {
    let old = (!(clock >> 3)).cast_unsigned();
    match ids.renamed(old) {
        Some(new) if clock < 0 => (!new.cast_signed()) << 3 | clock & 7,
        _ => clock,
    }
}

/// # Safety
///
/// Raw calls on memory of the table's.
unsafe fn make_timer(timer: &TimerEntry, ids: &Ids<'_>) -> Result<(), sys::Errno> {
    let event = Event {
        value: timer.value,
        signal: timer.signal,
        notify: timer.notify,
        tid: ids.renamed(timer.tid).unwrap_or(timer.tid),
        pad: [0; 11],
    };
    let clock = clock_of(timer.clock, ids) as usize;
    // SAFETY: the kernel reads the event and writes the id; both live through the calls.
    unsafe {
        let chosen = sys::prctl(TIMER_IDS, 1).is_ok();
        let mut made = Err(sys::Errno(libc::EAGAIN));
        for _ in 0..TIMER_TRIES_MAX {
            let mut id = timer.id;
            let arguments = [clock, &raw const event as usize, &raw mut id as usize, 0, 0, 0];
            made = sys::call(libc::SYS_timer_create, arguments).map(drop);
            if made.is_err() || id == timer.id {
                break;
            }
            let _ = sys::call(libc::SYS_timer_delete, [id as usize, 0, 0, 0, 0, 0]);
            made = Err(sys::Errno(libc::EAGAIN));
        }
        if chosen {
            let _ = sys::prctl(TIMER_IDS, 0);
        }
        made?;
        let time = timer.time.as_ptr() as usize;
        sys::call(libc::SYS_timer_settime, [timer.id as usize, 0, time, 0, 0, 0]).map(drop)
    }
}

/// A signal's information, with the sender's new id if it was of this process.
fn renamed(info: [u64; 16], ids: &Ids<'_>) -> [u64; 16] {
    let mut info = info;
    let [_, code, sender, ..] = &mut info;
    let is_sent =
        matches!(*code as u32 as i32, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL | libc::SI_MESGQ);
    if let Some(new) = ids.renamed(*sender as u32).filter(|_| is_sent) {
        *sender = *sender >> 32 << 32 | u64::from(new);
    }
    info
}

/// # Safety
///
/// All signals are blocked in every thread.
unsafe fn send(pending: &PendingEntry, pid: u32, ids: &Ids<'_>) {
    let (pid, signal) = (pid as usize, pending.signal as usize);
    // A signal that cannot be sent again finds its limit of waiting signals reached; the kernel would have lost it, too.
    // SAFETY: no memory is touched.
    let _ = unsafe {
        match ids.renamed(pending.tid) {
            Some(tid) => sys::call(libc::SYS_tgkill, [pid, tid as usize, signal, 0, 0, 0]),
            None if pending.has_info != 0 => {
                let info = renamed(pending.info, ids);
                let arguments = [pid, signal, info.as_ptr() as usize, 0, 0, 0];
                sys::call(libc::SYS_rt_sigqueueinfo, arguments)
            }
            None => sys::call(libc::SYS_kill, [pid, signal, 0, 0, 0, 0]),
        }
    };
}

/// Reports a difference from the saved process, and continues.
fn say(table: &Table, what: &[u8]) {
    // Each sentence is reported once, by the first that has it: they differ in length.
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let bit = 1u64 << (what.len() % 64);
    if TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        for text in [failure_message::OPENING, what, b"\n"] {
            // SAFETY: the kernel reads the text.
            let _ = unsafe {
                let arguments = [table.reports as usize, text.as_ptr() as usize, text.len(), 0, 0, 0];
                sys::call(libc::SYS_write, arguments)
            };
        }
    }
}

/// Reports the failure, and ends the process.
fn fail(table: &Table, what: &[u8], answer: i64) -> ! {
    let mut number = [b'0'; 4];
    let mut left = answer.unsigned_abs();
    for digit in number.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    for text in [failure_message::OPENING, what, b" (errno ", &number, b")\n"] {
        // SAFETY: the kernel reads the text.
        let _ = unsafe {
            let arguments = [table.reports as usize, text.as_ptr() as usize, text.len(), 0, 0, 0];
            sys::call(libc::SYS_write, arguments)
        };
    }
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [table.exit_code as usize, 0, 0, 0, 0, 0]) };
    }
}
