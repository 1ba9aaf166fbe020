//! Signal dispositions, pending signals, and timers.

use serde::{Deserialize, Serialize};

/// A process's signal dispositions, and its pending signals.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Signals {
    /// Dispositions of signals 1 to 64; 9 and 19 as they always are.
    pub actions: Vec<Action>,
    /// Signals that wait for the process as a whole.
    pub pending: Vec<Pending>,
    /// `getitimer(2)` of real, virtual and profiling time; the rest of the time, not its end.
    pub interval_timers: [IntervalTimer; 3],
    /// `timer_create(2)`.
    pub timers: Vec<Timer>,
}

/// `struct sigaction` as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Action {
    /// Handler, or `SIG_DFL` (0), `SIG_IGN` (1).
    pub handler: u64,
    /// `SA_…`.
    pub flags: u64,
    /// Code that returns from a handler.
    pub restorer: u64,
    /// Signals that are blocked meanwhile.
    pub mask: u64,
}

/// A signal that waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pending {
    /// Whose it is; `None`: the process's.
    pub tid: Option<u32>,
    /// Its number.
    pub signal: u8,
    /// `siginfo_t`, if it could be read: the sender, and the value that it carries.
    pub info: Option<[u64; 16]>,
}

/// Time until a timer fires, and then between; ns, 0: never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntervalTimer {
    /// Until it fires.
    pub left_ns: u64,
    /// After that, again and again.
    pub interval_ns: u64,
}

/// A timer of `timer_create(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timer {
    /// The kernel's number for it, which the program keeps.
    pub id: u32,
    /// Clock.
    pub clock: i32,
    /// `SIGEV_…`.
    pub notify: i32,
    /// Signal.
    pub signal: i32,
    /// `sigev_value`.
    pub value: u64,
    /// Thread of `SIGEV_THREAD_ID`, as at the cut.
    pub tid: u32,
    /// The rest of it.
    pub time: IntervalTimer,
}
