//! The shared state of a stop and the handlers of its threads. It lies in the library's own memory, is never taken
//! down, and so may be read by a thread that comes too late.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::arch::{Frame, PAGE_BYTES};

/// Threads of one process that can be stopped.
pub(crate) const THREADS_MAX: usize = 4096;

/// A thread's record of itself in the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Noted {
    /// Address of its signal frame's context.
    pub(crate) frame: u64,
    pub(crate) tls_base: u64,
    pub(crate) gs_base: u64,
    pub(crate) tid_address: u64,
    pub(crate) robust_list: (u64, u64),
    pub(crate) timer_slack_ns: u64,
    pub(crate) rseq: RseqAnswer,
    /// Signals that wait for it, or for the process as a whole.
    pub(crate) pending: u64,
    pub(crate) name: [u8; 16],
    pub(crate) parent_death_signal: u8,
    /// Words of its set of processors; all zero: unknown.
    pub(crate) processors: [u64; PROCESSOR_WORDS],
    /// `struct sched_attr`; zero: unknown.
    pub(crate) scheduling: [u64; 6],
}

/// Words of the largest set of processors that is saved.
pub(crate) const PROCESSOR_WORDS: usize = 16;

/// The kernel's answer about a thread's registration of `rseq(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RseqAnswer {
    /// There is none.
    Nothing,
    /// The C library's, at this address with this length.
    Library { address: u64, bytes: u32 },
    /// One that the C library does not know.
    Foreign,
}

impl Noted {
    pub(crate) const NOTHING: Noted = Noted {
        frame: 0,
        tls_base: 0,
        gs_base: 0,
        tid_address: 0,
        robust_list: (0, 0),
        timer_slack_ns: 0,
        rseq: RseqAnswer::Nothing,
        pending: 0,
        name: [0; 16],
        parent_death_signal: 0,
        processors: [0; PROCESSOR_WORDS],
        scheduling: [0; 6],
    };

    /// The handler's own frames fit in so many pages.
    const HANDLER_PAGES: u64 = 2;
    /// Most pages of [`Noted::used_pages`].
    pub(crate) const USED_PAGES: usize = Noted::HANDLER_PAGES as usize + 3;

    /// Pages that change while the thread waits: below its signal frame are the frames of its handler, and into its `struct rseq` the
    /// kernel writes on which processor it runs.
    pub(crate) fn used_pages(&self) -> impl Iterator<Item = u64> {
        let page_of = |address: u64| address / PAGE_BYTES * PAGE_BYTES;
        let stack = page_of(self.frame.saturating_sub(Noted::HANDLER_PAGES * PAGE_BYTES))..=self.frame;
        let rseq = match self.rseq {
            RseqAnswer::Library { address, bytes } => address..address + u64::from(bytes),
            RseqAnswer::Nothing | RseqAnswer::Foreign => 0..0,
        };
        let rseq = page_of(rseq.start)..rseq.end;
        stack.step_by(PAGE_BYTES as usize).chain(rseq.step_by(PAGE_BYTES as usize))
    }
}

/// Stages of a slot. Above them stands the number of the stop, so that a thread that comes late finds another word.
pub(super) const WANTED: u32 = 1;
/// The thread is in its handler and writes.
pub(super) const ENTERED: u32 = 2;
/// It has written, and waits.
pub(super) const STOPPED: u32 = 3;
/// It ended before it came.
pub(super) const GONE: u32 = 4;
/// It is not waited for any more.
pub(super) const CANCELLED: u32 = 5;
/// It was at a place where it cannot be stopped, continued, and the order is to be repeated.
pub(super) const PASSED: u32 = 6;
/// Bits of a stage.
const STAGE_BITS: u32 = 3;

pub(super) struct Slot {
    pub(super) stage: AtomicU32,
    pub(super) tid: AtomicU32,
    /// How often it passed.
    pub(super) passes: AtomicU32,
    noted: UnsafeCell<Noted>,
    /// The call in which the thread waited just before its signal; written by the stopping thread.
    call: UnsafeCell<Option<crate::arch::Call>>,
    /// Whether that call was interrupted, and is made again.
    pub(super) is_rewound: AtomicBool,
}

// SAFETY: `noted` is written by the thread that moved `stage` from WANTED to ENTERED, and read after it stored STOPPED; `call`
// is written before the signal is sent, and read by its thread before STOPPED, and by the one that stops others.
unsafe impl Sync for Slot {}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            stage: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            passes: AtomicU32::new(0),
            noted: UnsafeCell::new(Noted::NOTHING),
            call: UnsafeCell::new(None),
            is_rewound: AtomicBool::new(false),
        }
    }

    /// The call in which its thread was seen waiting; for that thread, between ENTERED and STOPPED, and for
    /// the one that stops.
    pub(super) fn call(&self) -> Option<crate::arch::Call> {
        // SAFETY: the stopping thread wrote it before it sent the signal, and writes it next in another stop.
        unsafe { *self.call.get() }
    }

    /// Sets the call in which its thread waits; only the thread that stops may call this, before its signal
    /// and while the thread stands still.
    pub(super) fn set_call(&self, call: Option<crate::arch::Call>) {
        // SAFETY: the thread looks at it when it is ordered to stop, and again when it continues.
        unsafe { *self.call.get() = call }
    }

    /// The notes of its thread, which must have stopped.
    pub(super) fn noted(&self) -> Noted {
        // SAFETY: the caller has seen STOPPED, after which the thread writes no more.
        unsafe { *self.noted.get() }
    }

    /// The frame in which its thread goes on; it must have stopped.
    pub(super) fn frame(&self) -> Frame {
        // SAFETY: the thread waits in its handler, above its frame.
        unsafe { Frame::of(self.noted().frame as *mut std::ffi::c_void) }
    }

    /// Where its thread notes; only that thread, between ENTERED and STOPPED.
    pub(super) fn note(&self, noted: Noted) {
        // SAFETY: see above.
        unsafe { *self.noted.get() = noted }
    }
}

/// `stage` of a slot in the stop `number`.
pub(super) fn staged(number: u32, stage: u32) -> u32 {
    number << STAGE_BITS | stage
}

pub(super) struct Table {
    /// Number of the stop: odd while threads must wait. A futex.
    pub(super) held: AtomicU32,
    /// Threads that have come in this stop. A futex.
    pub(super) arrived: AtomicU32,
    /// Changes as long as the stopping thread lives.
    pub(super) heartbeat: AtomicU64,
    /// Seconds without heartbeat after which threads go on by themselves.
    pub(super) patience_s: AtomicU32,
    /// The thread that stops the others.
    pub(super) agent: AtomicU32,
    /// When threads had stopped, by the clock of `sys::now_ns`.
    pub(super) stopped_ns: AtomicU64,
    /// Handler that was there before ours, and its flags.
    pub(super) earlier: [AtomicU64; 2],
    /// Where the C library keeps `struct rseq`, from the thread pointer; 0 bytes: nowhere.
    pub(super) rseq_offset: AtomicU64,
    pub(super) rseq_bytes: AtomicU32,
    pub(super) slots: [Slot; THREADS_MAX],
}

pub(super) static TABLE: Table = Table {
    held: AtomicU32::new(0),
    arrived: AtomicU32::new(0),
    heartbeat: AtomicU64::new(0),
    patience_s: AtomicU32::new(0),
    agent: AtomicU32::new(0),
    stopped_ns: AtomicU64::new(0),
    earlier: [AtomicU64::new(0), AtomicU64::new(0)],
    rseq_offset: AtomicU64::new(0),
    rseq_bytes: AtomicU32::new(0),
    slots: [const { Slot::empty() }; THREADS_MAX],
};

/// Ends the stop `number`, if it is not over; whether it was not.
pub(super) fn let_go(number: u32) -> bool {
    let ended = TABLE
        .held
        .compare_exchange(number, number.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire)
        .is_ok();
    crate::sys::futex_wake(&TABLE.held);
    ended
}
