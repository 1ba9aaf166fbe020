//! All reasons for which a link wants to be woken. Nothing else owns a deadline.

use crate::config::CHECKPOINTABLE;

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// Deadlines of one link, in port time (nanoseconds); [`NEVER`] where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timers {
    /// The peer owes an acknowledgement: probe (RFC 8985 section 7, `PTO`), also for resyncs and closed windows.
    pub(crate) probe: u64,
    /// A frame that was overtaken becomes lost.
    pub(crate) reorder: u64,
    /// An acknowledgement has waited long enough.
    pub(crate) ack: u64,
    /// The peer announced that it is stopped until then.
    pub(crate) stopped: u64,
    /// Earliest entry of this link in the port's queue of deadlines; spares an entry per change.
    pub(crate) armed: u64,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { probe: NEVER, reorder: NEVER, ack: NEVER, stopped: NEVER, armed: NEVER }
    }
}

impl Timers {
    /// The next time to wake up for this link. While the peer is stopped only that hint's end counts, and the
    /// acknowledgements that we owe.
    pub(crate) fn earliest(&self) -> u64 {
        if !CHECKPOINTABLE || self.stopped == NEVER {
            self.probe.min(self.reorder).min(self.ack)
        } else {
            self.stopped.min(self.ack)
        }
    }
}
