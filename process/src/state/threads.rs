//! Threads, each stopped at a place from which it can go on.

use serde::{Deserialize, Serialize};

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Thread {
    /// Its id at the cut. It gets a new one.
    pub tid: u32,
    /// Where it goes on.
    pub at: At,
    /// Base of the segment of thread-local storage (FS on x86-64).
    pub tls_base: u64,
    /// The other one (GS on x86-64).
    pub gs_base: u64,
    /// Where the kernel clears its id when it ends, and where the C library keeps it: `PR_GET_TID_ADDRESS`.
    pub tid_address: u64,
    /// `get_robust_list(2)`: head and length.
    pub robust_list: (u64, u64),
    /// `rseq(2)`: the C library's registration.
    pub rseq: Option<Rseq>,
    /// `PR_GET_NAME`.
    pub name: [u8; 16],
    /// `PR_GET_PDEATHSIG`.
    pub parent_death_signal: u8,
    /// `PR_GET_TIMERSLACK`, ns.
    pub timer_slack_ns: u64,
    /// `sched_getaffinity(2)`: bits of processors, if it has others than the thread that took the checkpoint, which has those that the
    /// process was started with.
    pub processors: Option<Vec<u64>>,
    /// `sched_getattr(2)`: class, nice value, priority, likewise.
    pub scheduling: Option<Scheduling>,
}

/// `struct sched_attr` of the kernel, in its first version: length and class, flags, nice value and priority, three times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scheduling(pub [u64; 6]);

/// Where a stopped thread goes on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum At {
    /// In the handler of the stop signal; it goes on by returning from it.
    Handler {
        /// Stack pointer with which `rt_sigreturn(2)` finds the kernel's signal frame.
        frame: u64,
    },
    /// It took the checkpoint, and goes on where that call returns.
    Agent {
        /// Registers that a call preserves, in the order that the architecture's file documents.
        registers: Vec<u64>,
        /// Its signal mask.
        mask: u64,
    },
}

/// A registration of `rseq(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rseq {
    /// Of the thread's `struct rseq`.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// Bytes before an abort handler.
    pub signature: u32,
}

impl Thread {
    /// Whether it took the checkpoint.
    #[must_use]
    pub fn is_agent(&self) -> bool {
        matches!(self.at, At::Agent { .. })
    }
}
