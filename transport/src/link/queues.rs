//! The memory of a link with traffic: everything that waits, is in flight, or is half received.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::bytering::ByteRing;
use crate::ids::OpId;
use crate::link::receive::{Incoming, Open, Reorder};
use crate::link::record::FrameRecord;
use crate::matching::Space;
use crate::port::pull::Pulling;

/// Envelope of a message that we send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Matching space.
    pub space: Space,
    /// The key that receives match.
    pub tag: u64,
    /// User data beside the payload.
    pub data: u64,
    /// Bytes of the payload.
    pub total: u64,
    /// The operation.
    pub op: OpId,
    /// Comes back with the completion.
    pub context: u64,
    /// No completion is reported.
    pub silent: bool,
}

/// A message that has not got its (first) number yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pending {
    /// Payload at `start` of the ring; the first `sent` bytes have been numbered.
    Copied {
        /// The sent data.
        envelope: Envelope,
        /// Where its first byte lies or lay in the ring.
        start: u64,
        /// Bytes that have been numbered.
        sent: u32,
    },
    /// To be announced; the payload is with the user, or owned by the operation.
    Rts {
        /// The operation.
        op: OpId,
    },
}

/// A numbered frame without payload that answers the peer. Never waits for a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The peer may send the payload of its operation.
    Cts {
        /// The peer's operation.
        op: OpId,
        /// Bytes that we take of it.
        total: u64,
    },
}

/// A granted send: bytes from `offset` to `end` have not been numbered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// The operation.
    pub op: OpId,
    /// Next byte to be numbered.
    pub offset: u64,
    /// Bytes that the peer wants.
    pub end: u64,
}

/// The contents of a numbered frame, as far as it is needed to build it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SentBody {
    /// First fragment of a copied message.
    Eager {
        /// The message.
        envelope: Envelope,
        /// It is the only fragment.
        last: bool,
    },
    /// Later fragment.
    More {
        /// The message.
        envelope: Envelope,
        /// Where in the message the fragment begins.
        offset: u32,
        /// It is the last one.
        last: bool,
    },
    /// RTS.
    Rts {
        /// Our operation.
        op: OpId,
    },
    /// CTS.
    Cts {
        /// The peer's operation.
        op: OpId,
        /// Bytes that we take of it.
        total: u64,
    },
    /// Piece of a granted payload.
    Data {
        /// Our operation.
        op: OpId,
        /// Where in the payload the piece begins.
        offset: u64,
    },
    /// End of our direction.
    Close,
}

impl SentBody {
    /// Whether its payload is held in the link's ring.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        matches!(self, SentBody::Eager { .. } | SentBody::More { .. })
    }
}

/// The transmission state of a numbered frame that has not been cumulatively acknowledged: no image holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// Last transmission: its number, its time (port time, nanoseconds), its rail.
    pub(crate) transmission: u64,
    pub(crate) sent_at: u64,
    /// Also in the frame's record; here for code that counts bytes and looks at nothing else.
    pub(crate) payload_bytes: u32,
    pub(crate) rail: u8,
    /// Reported as received out of order: not sent again, but kept (R5).
    pub(crate) selected: bool,
    /// Counted as lost and waiting to be sent again.
    pub(crate) lost: bool,
    /// Sent more than once.
    pub(crate) resent: bool,
}

/// The queues of one link.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Frames `acked..next`, in order: their contents.
    pub(crate) frames: VecDeque<FrameRecord>,
    /// The same frames: how things stand with them.
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
    /// Payloads that are being pulled, in the order of their CTS frames in `control`. In no image, like the next.
    pub(crate) pulls: VecDeque<Pulling>,
    /// Where the payloads of RTS frames lie that no receive has matched, as far as the peer has sent that.
    pub(crate) places: VecDeque<(OpId, u64)>,
}

impl Queues {
    pub(crate) fn new(copied_bytes_max: usize) -> Queues {
        Queues {
            frames: VecDeque::new(),
            sent: VecDeque::new(),
            copied: ByteRing::new(copied_bytes_max),
            pending: VecDeque::new(),
            control: VecDeque::new(),
            streams: VecDeque::new(),
            lost: VecDeque::new(),
            incoming: Vec::new(),
            open: None,
            reorder: Reorder::default(),
            pulls: VecDeque::new(),
            places: VecDeque::new(),
        }
    }

    /// Keeps a frame that has just got the next number.
    pub(crate) fn keep(&mut self, frame: FrameRecord, sent: Sent) {
        self.frames.push_back(frame);
        self.sent.push_back(sent);
    }

    /// Takes out the oldest frame.
    pub(crate) fn pop_oldest(&mut self) -> Option<(FrameRecord, Sent)> {
        Some((self.frames.pop_front()?, self.sent.pop_front()?))
    }

    /// Takes out the newest frame.
    pub(crate) fn pop_newest(&mut self) -> Option<(FrameRecord, Sent)> {
        Some((self.frames.pop_back()?, self.sent.pop_back()?))
    }

    /// Puts a copied message back to the head of the queue, or a fragment back to the message that is there; `start` is
    /// the ring offset of the fragment, `sent` its offset in the message.
    pub(crate) fn queue_again(&mut self, envelope: Envelope, start: u64, sent: u32) {
        match self.pending.front_mut() {
            Some(Pending::Copied { envelope: waiting, sent: already, .. }) if waiting.op == envelope.op => {
                *already = sent;
            }
            _ => self.pending.push_front(Pending::Copied { envelope, start: start - u64::from(sent), sent }),
        }
    }

    pub(crate) fn nothing_to_send(&self) -> bool {
        self.pending.is_empty() && self.control.is_empty() && self.streams.is_empty()
    }
}
