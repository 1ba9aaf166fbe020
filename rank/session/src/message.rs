//! Messages, and how they are asked for.

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The rank that sent it.
    pub source: u32,
    /// Its tag.
    pub tag: u64,
    /// Its contents, as far as the receive had room for them.
    pub bytes: Vec<u8>,
    /// Bytes that were sent; more than there are in `bytes` if the receive had less room.
    pub sent_bytes: u64,
}

/// A message that has arrived and has not been received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The rank that sent it.
    pub source: u32,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Whose messages are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// Of this rank.
    Rank(u32),
    /// Of any rank.
    Any,
}

impl core::convert::From<u32> for From {
    fn from(rank: u32) -> From {
        From::Rank(rank)
    }
}

/// Which tags are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// The tag...
    pub tag: u64,
    /// ...and the bits of it that may differ.
    pub ignore: u64,
}

impl Tags {
    /// Any tag.
    pub const ANY: Tags = Tags { tag: 0, ignore: u64::MAX };
}

impl core::convert::From<u64> for Tags {
    fn from(tag: u64) -> Tags {
        Tags { tag, ignore: 0 }
    }
}

/// A send or receive that has been begun.
///
/// Its number survives a cut and a restart: a program that keeps [`Request::number`] among its protected regions finds its
/// request again with [`crate::Session::request`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request(pub(crate) u64);

impl Request {
    /// Its number, never used twice in one rank.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The state of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The message has been received by its peer's port.
    Sent,
    /// A message has come.
    Received(Message),
    /// The peer's process has ended, and the job goes on without it ([`crate::Session::lost_ranks`]). How much of a message it has
    /// received is unknown.
    Failed,
}

impl Outcome {
    /// The message, if the request was a receive.
    #[must_use]
    pub fn message(self) -> Option<Message> {
        match self {
            Outcome::Received(message) => Some(message),
            Outcome::Sent | Outcome::Failed => None,
        }
    }
}
