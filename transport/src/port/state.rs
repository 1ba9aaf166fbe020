//! The state of a frozen port as plain data: what an image has to hold, and nothing else.

use crate::ids::PortId;

/// Final counters of one link of a closed port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinalCounters {
    /// The port at the other end.
    pub peer: PortId,
    /// Frames that the closed port has numbered.
    pub next: u64,
    /// Frames that it has counted: it has everything before this number.
    pub expected: u64,
}

/// Messages by the state in which a freeze found them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// State 1: to be sent. Saved with the sender, sent after a restart.
    pub to_be_sent: u64,
    /// State 2: sent, not acknowledged. Saved with the sender, sent again after a restart.
    pub sent_unacknowledged: u64,
    /// State 3: sent and acknowledged since the last freeze. Nothing to save.
    pub acknowledged: u64,
    /// State 4: counted, acknowledgement not sent. Saved with the receiver; the sender's copy will be a duplicate.
    pub received_unacknowledged: u64,
    /// State 5: delivered to the port and not yet to the program. Saved with the receiver.
    pub delivered_waiting: u64,
}
