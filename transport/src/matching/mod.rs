//! Tag matching: which message goes into which receive.
//!
//! The rules are those of libfabric's `fi_tagged(3)` and of MPI (4.0, section 3.5): a receive takes a message if spaces are
//! equal, the source is the one asked for (or any), and the tags are equal in every bit that the receive does not ignore.
//! A message goes to the receive posted first of those that take it, whether addressed or from any source; a receive takes
//! the message that arrived first of those it can take. The caller hands the messages of one link over in the order of that link.
//!
//! A message is matched by its envelope and may lack part of its payload, or all of it: the caller goes on
//! assembling it under its [`MessageKey`], and under the receive's operation once that has taken it. The
//! caller chooses the type `U` of a waiting message's payload, and bounds its bytes. This module bounds the
//! *number* of receives and of messages.
//!
//! Nothing allocates in the steady state, and equal histories make equal states: there is no hash seed.

mod chain;
mod matcher;
mod posted;
#[cfg(test)]
mod tests;
mod unexpected;

pub use matcher::Matcher;

use crate::ids::{LinkIndex, OpId};
use crate::slab::SlabKey;

/// A set of messages and receives that never meets another: tagged and untagged messages are two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Space(pub u8);

/// Known facts about a message before its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The link it came on.
    pub source: LinkIndex,
    /// Where it may be matched.
    pub space: Space,
    /// Compared with the receives' tags.
    pub tag: u64,
    /// The sender's word to the program, delivered with the message; never compared.
    pub data: u64,
    /// Length of the payload.
    pub bytes: u64,
}

/// The pattern of a receive, or of a look at the waiting messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// Only messages of this space.
    pub space: Space,
    /// Only messages of this link; any if `None`.
    pub source: Option<LinkIndex>,
    /// Only messages with this tag...
    pub tag: u64,
    /// ...apart from these of its bits.
    pub ignore: u64,
}

impl Pattern {
    /// Whether a message with this envelope fits.
    #[must_use]
    pub fn takes(&self, envelope: &Envelope) -> bool {
        (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.space == envelope.space
            && self.source.is_none_or(|source| source == envelope.source)
    }
}

/// How one buffer takes several messages, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiReceive {
    /// With less room than this many bytes (or none at all) the buffer is used up.
    pub free_bytes_min: u64,
    /// Bytes filled so far: where the next message goes. 0 for a new receive.
    pub filled_bytes: u64,
}

/// A buffer of the program that waits for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// The operation; posted once at a time.
    pub op: OpId,
    /// The messages it takes.
    pub pattern: Pattern,
    /// Room in the buffer; a longer message is cut off there.
    pub bytes_max: u64,
    /// The program's own word, given back with the completion.
    pub context: u64,
    /// Present if the buffer takes several messages.
    pub multi: Option<MultiReceive>,
}

impl Receive {
    /// Where in the buffer a message of `bytes` goes; a multi-receive moves on behind it.
    pub fn place(&mut self, bytes: u64) -> Placement {
        let Some(multi) = &mut self.multi else {
            return Placement { offset: 0, bytes: bytes.min(self.bytes_max), last: true };
        };
        let offset = multi.filled_bytes;
        let bytes = bytes.min(self.bytes_max.saturating_sub(offset));
        multi.filled_bytes = offset + bytes;
        let free = self.bytes_max.saturating_sub(multi.filled_bytes);
        Placement { offset, bytes, last: free < multi.free_bytes_min.max(1) }
    }
}

/// The part of a receive's buffer that a message fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// From this byte of the buffer on; not 0 only in a multi-receive.
    pub offset: u64,
    /// Bytes stored; fewer than the envelope's: the message is truncated.
    pub bytes: u64,
    /// The receive takes no more messages: its buffer goes back to the program with this one.
    pub last: bool,
}

/// Names a waiting message until it is taken out; it is the same before and after claiming.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MessageKey(pub SlabKey);

/// A message that waits for a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<U> {
    /// The envelope that it is matched by.
    pub envelope: Envelope,
    /// Whether the caller has all of its payload. Matching does not ask.
    pub finished: bool,
    /// The caller's own description of the payload.
    pub payload: U,
}

/// The outcome of a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostOutcome<U> {
    /// It waits.
    Posted,
    /// It took a message that had waited.
    Matched {
        /// The message's former key; finds nothing any more.
        key: MessageKey,
        /// The message.
        message: Message<U>,
        /// Where in the receive's buffer it goes.
        placement: Placement,
        /// A multi-receive that can take more: post it again, before anything else is done. It cannot meet
        /// [`MatchError::PostedFull`], which is found out before the first message.
        rest: Option<Receive>,
    },
}

/// The outcome of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A posted receive took it.
    Matched {
        /// The receive as it was before this message; no longer posted if `placement.last`.
        receive: Receive,
        /// Where in the receive's buffer the message goes.
        placement: Placement,
    },
    /// It waits under this key.
    Unexpected(MessageKey),
}

/// The bounds of a [`Matcher`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatcherBounds {
    /// Receives that may wait.
    pub posted_max: usize,
    /// Messages that may wait, claimed ones included.
    pub unexpected_max: usize,
}

/// Why matching refused something; nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MatchError {
    /// The program posts more than the port was made for.
    #[error(
        "{posted_max} receives are posted, as many as this port may hold; wait for one of them, cancel one, or raise posted_max"
    )]
    PostedFull {
        /// The bound.
        posted_max: usize,
    },
    /// The peers send more than the program receives.
    #[error(
        "{unexpected_max} messages wait for a receive, as many as this port may hold; post receives for them, or raise unexpected_max"
    )]
    UnexpectedFull {
        /// The bound.
        unexpected_max: usize,
    },
    /// Two receives with one operation.
    #[error("receive {} is posted already; every receive needs an operation of its own", op.0)]
    AlreadyPosted {
        /// The operation.
        op: OpId,
    },
    /// A handle that names no claimed message.
    #[error("no claimed message {:#x}; claim it first, and receive or discard it once", key.0.to_bits())]
    NotClaimed {
        /// The handle.
        key: MessageKey,
    },
}
