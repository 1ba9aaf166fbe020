//! What a link holds while there is traffic: everything that waits, is in flight, or is half received.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::bytering::ByteRing;
use crate::ids::OpId;
use crate::link::receive::{Incoming, Open, Reorder};
use crate::matching::Space;

/// Envelope of a message that we send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    pub(crate) space: Space,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) total: u64,
    pub(crate) op: OpId,
    pub(crate) context: u64,
    /// Nobody waits for the completion.
    pub(crate) silent: bool,
}

/// A message that has not got its (first) number yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pending {
    /// Payload at `start` of the ring; the first `sent` bytes have been numbered.
    Copied { envelope: Envelope, start: u64, sent: u32 },
    /// To be announced; the payload is with the user, or owned by the operation.
    Announce { op: OpId },
}

/// A numbered frame without payload that answers the peer. Never waits for a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// The peer may send the payload of its operation.
    Grant { op: OpId, total: u64 },
}

/// A granted send: bytes from `offset` to `end` have not been numbered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    pub(crate) op: OpId,
    pub(crate) offset: u64,
    pub(crate) end: u64,
}

/// What a numbered frame carries, as far as it is needed to build it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SentBody {
    /// First fragment; `last` if it is the only one.
    Eager { envelope: Envelope, last: bool },
    /// Later fragment of the message of `op`.
    More { op: OpId, context: u64, silent: bool, last: bool },
    /// Announcement of `op`.
    Announce { op: OpId },
    /// Grant of the peer's `op`.
    Grant { op: OpId, total: u64 },
    /// Piece of our granted `op`.
    Data { op: OpId, offset: u64 },
    /// End of our direction.
    Close,
}

/// A numbered frame that has not been cumulatively acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) body: SentBody,
    /// Where its copied payload starts in the ring; with the length, also up to where the ring is free once this frame
    /// is acknowledged.
    pub(crate) start: u64,
    pub(crate) payload_bytes: u32,
    /// Last transmission: its number, its time (port time, nanoseconds), its rail.
    pub(crate) transmission: u64,
    pub(crate) sent_at: u64,
    pub(crate) rail: u8,
    /// Reported as received out of order: not sent again, but kept (R5).
    pub(crate) selected: bool,
    /// Counted as lost and waiting to be sent again.
    pub(crate) lost: bool,
    /// Sent more than once.
    pub(crate) resent: bool,
}

impl Sent {
    /// Whether its payload is held in the link's ring.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self.body, SentBody::Eager { .. } | SentBody::More { .. })
    }
}

/// The queues of one link.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Frames `acked..next`, in order.
    pub(crate) sent: VecDeque<Sent>,
    /// Copied payload of `sent` and `pending`, in order.
    pub(crate) copied: ByteRing,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) control: VecDeque<Control>,
    pub(crate) streams: VecDeque<Stream>,
    /// Numbers of lost frames, to be sent again first.
    pub(crate) lost: VecDeque<u64>,
    /// Payloads that the peer has announced and a receive has matched.
    pub(crate) incoming: Vec<Incoming>,
    /// Copied message of which fragments are missing.
    pub(crate) open: Option<Open>,
    pub(crate) reorder: Reorder,
}

impl Queues {
    pub(crate) fn new(copied_bytes_max: usize) -> Queues {
        Queues {
            sent: VecDeque::new(),
            copied: ByteRing::new(copied_bytes_max),
            pending: VecDeque::new(),
            control: VecDeque::new(),
            streams: VecDeque::new(),
            lost: VecDeque::new(),
            incoming: Vec::new(),
            open: None,
            reorder: Reorder::default(),
        }
    }

    pub(crate) fn nothing_to_send(&self) -> bool {
        self.pending.is_empty() && self.control.is_empty() && self.streams.is_empty()
    }
}
