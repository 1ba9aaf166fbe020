//! The receiving half of a link: reordered and partly received messages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::config::{SACK_FRAMES, WINDOW_FRAMES_MAX};
use crate::ids::OpId;
use crate::matching::MessageKey;
use crate::wire::Body;

/// A payload that the peer announced and one of our receives matched: its CTS is sent, pieces come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The peer's operation.
    pub peer_op: OpId,
    /// Our receive.
    pub op: OpId,
    /// Its context.
    pub context: u64,
    /// Where in its buffer the message starts.
    pub base: u64,
    /// The buffer is used up with this message.
    pub finished: bool,
    /// Tag of the message.
    pub tag: u64,
    /// User data of the message.
    pub data: u64,
    /// Bytes announced.
    pub total: u64,
    /// Bytes that the receive takes.
    pub granted: u64,
    /// Bytes counted so far.
    pub received: u64,
}

/// Where the fragments of a copied message go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Into a posted buffer.
    Posted {
        /// Our receive.
        op: OpId,
        /// Its context.
        context: u64,
        /// Where in its buffer the message starts.
        base: u64,
        /// Bytes that it takes at most.
        bytes: u64,
        /// The buffer is used up with this message.
        finished: bool,
    },
    /// To the waiting message.
    Waiting(MessageKey),
    /// Nowhere: the message was discarded before it was complete.
    Nowhere,
}

/// The copied message whose later fragments are still to come. A link has at most one: fragments are not interleaved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Where they go.
    pub target: Target,
    /// Tag of the message.
    pub tag: u64,
    /// User data of the message.
    pub data: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// Bytes counted so far.
    pub received: u64,
}

/// A frame that came out of turn. Not counted, hence not in any image (R5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) body: Body,
    pub(crate) payload: Vec<u8>,
    /// Length of the payload on the wire; `payload` is empty if it has been placed in its buffer already.
    pub(crate) payload_bytes: usize,
}

/// Frames beyond the next expected one: slot i holds number `expected + 1 + i`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reorder {
    slots: VecDeque<Option<Held>>,
}

impl Reorder {
    /// Whether number `expected + 1 + i` is held.
    pub(crate) fn holds(&self, i: u64) -> bool {
        usize::try_from(i).ok().and_then(|i| self.slots.get(i)).is_some_and(Option::is_some)
    }

    /// Keeps a frame. `i < WINDOW_FRAMES_MAX`, and the slot is free.
    pub(crate) fn hold(&mut self, i: u64, held: Held) {
        debug_assert!(i < WINDOW_FRAMES_MAX);
        let i = usize::try_from(i).unwrap_or(usize::MAX);
        while self.slots.len() <= i {
            self.slots.push_back(None);
        }
        self.slots[i] = Some(held);
    }

    /// Called after `expected` has grown by one: the frame with that number, if it is here.
    pub(crate) fn advance(&mut self) -> Option<Held> {
        self.slots.pop_front().flatten()
    }

    /// Whether nothing came out of turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// Bytes that are held.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(|held| held.payload.len()).sum()
    }

    /// Bit i is set if number `expected + 1 + i` is here.
    pub(crate) fn bitmap(&self) -> u64 {
        self.slots
            .iter()
            .take(SACK_FRAMES)
            .enumerate()
            .fold(0, |bits, (i, slot)| bits | u64::from(slot.is_some()) << i)
    }
}
