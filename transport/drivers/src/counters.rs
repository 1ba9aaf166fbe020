//! The counters of a driver. Every frame that it takes and does not send is in exactly one of the `lost_*` counters.

/// Counts since the driver was opened. Plain numbers: only the owner of the driver touches them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames handed to the NIC.
    pub frames_sent: u64,
    /// Bytes of those frames.
    pub bytes_sent: u64,
    /// Of them, those that were cut for a longer path than there is now, and left in fragments.
    pub sent_in_fragments: u64,
    /// Calls (system calls, doorbells) that it took.
    pub send_calls: u64,
    /// Frames given to the caller of `receive`.
    pub frames_received: u64,
    /// Bytes of those frames.
    pub bytes_received: u64,
    /// Calls that looked for frames and found some.
    pub receive_calls: u64,
    /// Calls that looked for frames and found none.
    pub empty_polls: u64,

    /// Frames to an address that is not, or no longer, in the table.
    pub lost_no_address: u64,
    /// Frames longer than their path takes.
    pub lost_too_long: u64,
    /// Frames that the receiver's host or a firewall refused (ECONNREFUSED, EPERM).
    pub lost_refused: u64,
    /// Frames for which there was no route or no link (ENETUNREACH, EHOSTUNREACH, ENETDOWN).
    pub lost_unreachable: u64,
    /// Frames for which the system had no memory (ENOBUFS, ENOMEM).
    pub lost_no_memory: u64,
    /// Frames that met another error of the system; the driver's log names it.
    pub lost_other: u64,
    /// Staged frames discarded by `drain`.
    pub lost_drained: u64,
    /// Frames that were with the NIC, or had completed with an error, when it was begun anew after one. Some of them may have been sent.
    pub lost_reset: u64,
    /// Frames lost on purpose, by a fault wrapper, in either direction.
    pub lost_injected: u64,
    /// Frames lost because the receiver's queue was full, where the driver can know it.
    pub lost_receiver_full: u64,
    /// Frames that the system dropped on our side before we looked, where it reports them.
    pub lost_receive_overflow: u64,
    /// Received datagrams that could not be taken apart any more, because they came while coalescing was being switched off: each one frame or
    /// several.
    pub lost_coalesced: u64,
    /// Received datagrams that did not fit their buffer.
    pub lost_truncated: u64,
    /// Received frames whose payload could not be fetched from the sender any more.
    pub lost_not_fetched: u64,
    /// Received frames that were discarded when the NIC was begun anew after an error, as far as they are
    /// known of.
    pub lost_receive_reset: u64,
    /// Received entries of a shared queue that no sender can have meant, and datagrams that begin as a pack and are
    /// none.
    pub lost_malformed: u64,

    /// Times that the NIC would take no more (EAGAIN): frames stayed staged.
    pub blocked: u64,
    /// Times that the NIC was begun anew after an error.
    pub resets: u64,
    /// Offloads that were tried, refused, and are not used any more.
    pub offloads_lost: u64,
    /// Offered payloads that were copied after all, because the receiver did not come for them.
    pub offers_copied: u64,
}

impl Counters {
    /// Frames that were taken and did not reach the NIC, for any reason.
    #[must_use]
    pub fn lost_on_send(&self) -> u64 {
        self.lost_no_address
            + self.lost_too_long
            + self.lost_refused
            + self.lost_unreachable
            + self.lost_no_memory
            + self.lost_other
            + self.lost_drained
            + self.lost_reset
            + self.lost_injected
            + self.lost_receiver_full
    }
}
