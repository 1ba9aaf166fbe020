//! The messages between a rank's agent and the server, and their persistent part: requests, answers, and a rank's
//! state.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use transport::Epoch;

use crate::control::wire::{Reader, Wire, put_list, wire_enum, wire_struct};
use crate::error::Malformed;
use crate::limits::{PMI_PART_BYTES_MAX, PMI_PART_ENTRIES_MAX, PMI_REQUEST_BYTES_MAX};

/// Words of PMI as they travel: a whole request, an answer, a name.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.as_bytes().to_vec())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Wire for Text {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(from: &mut Reader<'_>) -> Result<Text, Malformed> {
        const WHAT: &str = "bytes of a PMI request";
        let found = usize::try_from(u32::take(from)?).unwrap_or(usize::MAX);
        if found > PMI_REQUEST_BYTES_MAX {
            return Err(Malformed::Entries { what: WHAT, expected: PMI_REQUEST_BYTES_MAX, found });
        }
        Ok(Text(from.bytes(WHAT, found)?.to_vec()))
    }
}

/// A request of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number, from 1 on over all lives of the rank.
    pub number: u64,
    /// All its lines.
    pub text: Text,
}

wire_struct!(Request, 12, { number, text });

/// A message of the server to a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The request.
    pub number: u64,
    /// R25: the highest epoch of all requests that the server had taken when it answered.
    pub depends: Epoch,
    /// The effect of the request.
    pub effect: Effect,
    /// For the program: a line, or nothing.
    pub text: Text,
}

wire_struct!(Answer, 17, { number, depends, effect, text });

/// The effect of a request, as far as a server of a later life needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing that lasts.
    Nothing,
    /// The rank has begun.
    Began {
        /// Of its space of keys.
        name: Text,
    },
    /// Others see it: a key was put, a service published or taken back.
    Published {
        /// Its place in the order of all those.
        place: u64,
    },
    /// The rank has met all others at a barrier.
    Met,
    /// The rank has finished.
    Finished,
}

wire_enum!(Effect, "what a PMI request did", {
    0 => Nothing {}, 1 => Began { name }, 2 => Published { place }, 3 => Met {}, 4 => Finished {},
});

/// A request that others see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// Its place in the order of all those.
    pub place: u64,
    /// The request.
    pub text: Text,
}

wire_struct!(Published, 12, { place, text });

/// A rank's PMI state: all that a server of a later life needs (R26).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RankState {
    /// Of its space of keys; empty: it has not begun.
    pub name: Text,
    /// Whether it has finished.
    pub finished: bool,
    /// Barriers at which it has met all others.
    pub barriers: u64,
    /// Requests that it has been answered.
    pub answered: u64,
    /// Those that others see, in their order.
    pub published: Vec<Published>,
    /// The request that has no answer yet.
    pub pending: Option<Request>,
}

/// Bytes of an entry's head.
const PUBLISHED_HEAD_BYTES: usize = 12;

impl Wire for RankState {
    const BYTES_MIN: usize = 26;
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.finished.put(out);
        self.barriers.put(out);
        self.answered.put(out);
        put_list(&self.published, out);
        self.pending.put(out);
    }
    fn take(from: &mut Reader<'_>) -> Result<RankState, Malformed> {
        Ok(RankState {
            name: Wire::take(from)?,
            finished: Wire::take(from)?,
            barriers: Wire::take(from)?,
            answered: Wire::take(from)?,
            published: from.list("PMI requests that others see", PMI_PART_ENTRIES_MAX)?,
            pending: Wire::take(from)?,
        })
    }
}

impl RankState {
    /// The next part of it, which has the entries from `at` on, and whether it is the last one.
    pub(super) fn part(&self, at: usize) -> (RankState, bool) {
        let mut bytes = 0;
        let rest = self.published.get(at..).unwrap_or_default();
        let fits = |published: &&Published| {
            bytes += PUBLISHED_HEAD_BYTES + published.text.0.len();
            bytes <= PMI_PART_BYTES_MAX
        };
        let count = rest.iter().take(PMI_PART_ENTRIES_MAX).take_while(fits).count();
        let is_last = count == rest.len();
        let pending = self.pending.clone().filter(|_| is_last);
        let published = rest[..count].to_vec();
        (RankState { name: self.name.clone(), published, pending, ..*self }, is_last)
    }

    /// Adds the next part.
    pub(super) fn join(&mut self, part: RankState) {
        let mut published = core::mem::take(&mut self.published);
        published.extend(part.published);
        *self = RankState { published, ..part };
    }

    /// The bytes for the image of a rank that has ended.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut at = 0;
        loop {
            let (part, is_last) = self.part(at);
            is_last.put(&mut out);
            part.put(&mut out);
            at += part.published.len();
            if is_last {
                return out;
            }
        }
    }

    /// Reads the bytes back.
    ///
    /// # Errors
    /// If they are not an output of [`RankState::emit`].
    pub fn parse(bytes: &[u8]) -> Result<RankState, Malformed> {
        let mut from = Reader::new(bytes);
        let mut state = RankState::default();
        loop {
            let is_last = bool::take(&mut from)?;
            state.join(RankState::take(&mut from)?);
            if is_last {
                from.end()?;
                return Ok(state);
            }
        }
    }
}
