//! The table of requests, and the section that carries it across a restart.
//!
//! | bytes | field    | meaning                                                                      |
//! |-------|----------|------------------------------------------------------------------------------|
//! | 8     | points   | counted points passed since the program began                                |
//! | 8     | next     | number of the next request                                                   |
//! | 1     | finished | 1: the program had finished its work                                         |
//! | 4     | count    | of the requests that follow                                                  |
//! | 8, 1  | request  | number; 0 sending, 1 receiving, 2 sent, 3 received, 4 failed                 |
//! | ..    | message  | only of received ones: source (4), tag (8), bytes sent (8), length (8), bytes |

use std::collections::BTreeMap;

use crate::error::StateError;
use crate::limits::REQUESTS_MAX;
use crate::message::{Message, Outcome, Request};

/// Version of the section.
pub(crate) const VERSION: u16 = 1;

/// Comes back with operations without a request.
pub(crate) const NOBODY: u64 = 0;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Slot {
    Sending,
    Receiving,
    Done(Outcome),
}

/// The state of a session besides the port and the protected regions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionState {
    /// Counted points passed since the program began, over all lives.
    pub(crate) points: u64,
    /// The program has finished its work.
    pub(crate) finished: bool,
    next: u64,
    slots: BTreeMap<u64, Slot>,
}

impl SessionState {
    pub(crate) fn new() -> SessionState {
        SessionState { points: 0, finished: false, next: NOBODY + 1, slots: BTreeMap::new() }
    }

    /// `None` if the table is full.
    pub(crate) fn begin(&mut self, receives: bool) -> Option<Request> {
        if self.slots.len() >= REQUESTS_MAX {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.slots.insert(number, if receives { Slot::Receiving } else { Slot::Sending });
        Some(Request(number))
    }

    /// Takes a request back that the port did not accept.
    pub(crate) fn forget(&mut self, request: Request) {
        self.slots.remove(&request.0);
    }

    pub(crate) fn finish(&mut self, number: u64, outcome: Outcome) {
        if let Some(slot) = self.slots.get_mut(&number) {
            *slot = Slot::Done(outcome);
        }
    }

    pub(crate) fn knows(&self, request: Request) -> bool {
        self.slots.contains_key(&request.0)
    }

    /// The outcome, if it is there; the request then ends.
    pub(crate) fn take(&mut self, request: Request) -> Option<Outcome> {
        match self.slots.get(&request.0) {
            Some(Slot::Done(_)) => match self.slots.remove(&request.0) {
                Some(Slot::Done(outcome)) => Some(outcome),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.points.to_le_bytes());
        out.extend(self.next.to_le_bytes());
        out.push(u8::from(self.finished));
        out.extend(u32::try_from(self.slots.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (number, slot) in &self.slots {
            out.extend(number.to_le_bytes());
            match slot {
                Slot::Sending => out.push(0),
                Slot::Receiving => out.push(1),
                Slot::Done(Outcome::Sent) => out.push(2),
                Slot::Done(Outcome::Failed) => out.push(4),
                Slot::Done(Outcome::Received(message)) => {
                    out.push(3);
                    out.extend(message.source.to_le_bytes());
                    out.extend(message.tag.to_le_bytes());
                    out.extend(message.sent_bytes.to_le_bytes());
                    out.extend((message.bytes.len() as u64).to_le_bytes());
                    out.extend(&message.bytes);
                }
            }
        }
        out
    }

    pub(crate) fn parse(version: u16, bytes: &[u8]) -> Result<SessionState, StateError> {
        if version != VERSION {
            return Err(StateError::Version { expected: VERSION, found: version });
        }
        let mut from = Reader(bytes);
        let points = from.u64()?;
        let next = from.u64()?;
        let finished = from.byte()? != 0;
        let count = from.u32()?;
        if count as usize > REQUESTS_MAX {
            return Err(StateError::Requests { expected: REQUESTS_MAX, found: count });
        }
        let mut slots = BTreeMap::new();
        for _ in 0..count {
            let number = from.u64()?;
            let slot = match from.byte()? {
                0 => Slot::Sending,
                1 => Slot::Receiving,
                2 => Slot::Done(Outcome::Sent),
                3 => Slot::Done(Outcome::Received(from.message()?)),
                4 => Slot::Done(Outcome::Failed),
                found => return Err(StateError::Kind { number, found }),
            };
            if number == NOBODY || number >= next || slots.insert(number, slot).is_some() {
                return Err(StateError::Number { number, next });
            }
        }
        if !from.0.is_empty() {
            return Err(StateError::Trailing { found: from.0.len() });
        }
        Ok(SessionState { points, finished, next, slots })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let (array, rest) = self
            .0
            .split_first_chunk()
            .ok_or(StateError::Short { expected: N as u64, found: self.0.len() })?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, StateError> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, StateError> {
        self.array().map(u64::from_le_bytes)
    }

    fn message(&mut self) -> Result<Message, StateError> {
        let (source, tag, sent_bytes) = (self.u32()?, self.u64()?, self.u64()?);
        let expected = self.u64()?;
        let bytes = self.take(expected)?.to_vec();
        Ok(Message { source, tag, bytes, sent_bytes })
    }

    fn take(&mut self, expected: u64) -> Result<&'a [u8], StateError> {
        let short = StateError::Short { expected, found: self.0.len() };
        let length = usize::try_from(expected).map_err(|_| short.clone())?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> SessionState {
        let mut state = SessionState::new();
        state.points = 7;
        state.finished = true;
        let sending = state.begin(false).unwrap();
        let receiving = state.begin(true).unwrap();
        let received = state.begin(true).unwrap();
        assert_eq!((sending, receiving), (Request(1), Request(2)));
        let message = Message { source: 3, tag: 9, bytes: vec![1, 2, 3], sent_bytes: 5 };
        state.finish(received.0, Outcome::Received(message));
        let sent = state.begin(false).unwrap();
        state.finish(sent.0, Outcome::Sent);
        state
    }

    #[test]
    fn requests_survive_with_their_numbers() {
        let state = state();
        let mut again = SessionState::parse(VERSION, &state.emit()).unwrap();
        assert_eq!(again, state);
        assert!(again.knows(Request(2)) && again.take(Request(2)).is_none());
        let message = again.take(Request(3)).unwrap().message().unwrap();
        assert_eq!((message.source, message.bytes, message.sent_bytes), (3, vec![1, 2, 3], 5));
        assert!(!again.knows(Request(3)), "an outcome is taken once");
        assert_eq!(again.begin(false), Some(Request(5)), "numbers are never used twice");
    }

    #[test]
    fn damaged_sections_are_refused() {
        let bytes = state().emit();
        for length in 0..bytes.len() {
            assert!(SessionState::parse(VERSION, &bytes[..length]).is_err(), "{length} bytes");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(SessionState::parse(VERSION, &longer), Err(StateError::Trailing { found: 1 }));
        assert!(SessionState::parse(VERSION + 1, &bytes).is_err());
        let mut huge = bytes.clone();
        huge[17..21].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(SessionState::parse(VERSION, &huge), Err(StateError::Requests { .. })));
    }
}
