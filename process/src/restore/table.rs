//! The remaining work once ordinary code cannot run any more, as plain memory: the system calls of the loop, and the
//! table that the code in the restored memory works through.

use std::sync::atomic::AtomicU32;

use super::ids::Rights;
use crate::stop::PROCESSOR_WORDS;

/// A system call, its required result, and the message for another result.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) number: u64,
    pub(super) arguments: [u64; 6],
    /// The only good answer.
    pub(super) want: u64,
    /// Address of the sentence.
    pub(super) text: u64,
    pub(super) text_bytes: u64,
}

/// The arguments of the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) steps: u64,
    pub(super) steps_end: u64,
    /// Stack pointer for `entry`.
    pub(super) stack: u64,
    /// Address of the [`Table`]: argument of `entry`.
    pub(super) argument: u64,
    /// The function in the restored memory.
    pub(super) entry: u64,
    /// Names of errors: [`ERRORS`] cells of [`ERROR_CELL_BYTES`], each with its length before it.
    pub(super) errors: u64,
    /// Descriptor for sentences.
    pub(super) reports: u32,
    pub(super) exit_code: u32,
}

/// Errors that have a name: 0 is any other answer than the one that must come.
pub(super) const ERRORS: usize = 134;
pub(super) const ERROR_CELL_BYTES: usize = 64;

/// Of the table below; the code that reads it is part of the image.
pub(super) const TABLE_VERSION: u64 = 5;

/// For the code in the restored memory.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Table {
    pub(super) version: u64,
    /// The memory in which all this lies, to be unmapped in the end.
    pub(super) scaffold: u64,
    pub(super) scaffold_bytes: u64,
    /// Threads that have not reached the end of their restore.
    pub(super) waiting: AtomicU32,
    pub(super) reports: u32,
    pub(super) exit_code: u32,
    /// [`ThreadEntry`]s; the first is the process's own.
    pub(super) threads: Slice,
    /// [`TimerEntry`]s.
    pub(super) timers: Slice,
    /// [`PendingEntry`]s.
    pub(super) pending: Slice,
    /// `struct itimerval` of real, virtual and profiling time.
    pub(super) interval_timers: [[u64; 4]; 3],
    /// Registrations of `membarrier(2)`.
    pub(super) barriers: u64,
    /// [`Span`]s of restored memory in which thread ids may lie.
    pub(super) written: Slice,
    /// [`Span`]s of all restored memory, rising: addresses of the program point into them.
    pub(super) mapped: Slice,
    /// [`Span`]s of the code that takes the C library's locks, rising.
    pub(super) lock_code: Slice,
    /// Not 0: every thread gets the id that it had.
    pub(super) keeps_ids: u64,
    /// Not 0: [`Self::rights`] is the threads' word to continue with.
    pub(super) gives_up_right: u64,
    pub(super) rights: Rights,
}

/// Entries of one kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice {
    pub(super) address: u64,
    pub(super) entries: u64,
}

/// A thread to be made.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct ThreadEntry {
    pub(super) old_tid: u32,
    /// Written by the kernel when the thread is made.
    pub(super) tid: u32,
    /// On which it comes to life.
    pub(super) stack: u64,
    pub(super) tls_base: u64,
    pub(super) gs_base: u64,
    pub(super) tid_address: u64,
    pub(super) robust_list: u64,
    pub(super) robust_list_bytes: u64,
    pub(super) rseq: u64,
    pub(super) rseq_bytes: u32,
    pub(super) rseq_signature: u32,
    pub(super) parent_death_signal: u64,
    pub(super) timer_slack_ns: u64,
    pub(super) name: [u8; 16],
    /// Bytes of [`Self::processors`]; 0: those that the process was started with.
    pub(super) processors_bytes: u64,
    pub(super) processors: [u64; PROCESSOR_WORDS],
    /// `struct sched_attr`; of no bytes: as the process was started.
    pub(super) scheduling: [u64; 6],
    /// 0: it goes on by returning from a signal.
    pub(super) is_agent: u64,
    /// Where the signal's frame lies.
    pub(super) frame: u64,
    /// The agent's registers and signal mask.
    pub(super) registers: [u64; crate::arch::REGISTERS],
    pub(super) mask: u64,
}

/// A POSIX timer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerEntry {
    pub(super) id: u32,
    pub(super) clock: i32,
    pub(super) notify: i32,
    pub(super) signal: i32,
    pub(super) value: u64,
    /// The old id of the thread that it is for.
    pub(super) tid: u32,
    /// `struct itimerspec`.
    pub(super) time: [u64; 4],
}

/// A signal to be sent again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingEntry {
    /// The old id of its thread; 0: the process.
    pub(super) tid: u32,
    pub(super) signal: u32,
    /// Whether `info` is there.
    pub(super) has_info: u64,
    /// `siginfo_t`.
    pub(super) info: [u64; 16],
}

/// Addresses `start..end`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Slice {
    /// The entries.
    ///
    /// # Safety
    ///
    /// They lie there, are of this type, and are not written meanwhile.
    pub(super) unsafe fn as_slice<'a, T>(self) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.entries as usize) }
    }
}
