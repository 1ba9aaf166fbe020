//! Requests of one process to the memory of another, as messages in a matching space of their own. A message holds one or
//! several records; all numbers are little-endian.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: see [`Kind`] |
//! | 1 | 1 | flags: 1: data for the target's completion queue follows at 4; 2: a piece of a longer request, which is not counted yet |
//! | 2 | 1, 1 | atomic operations: type and operation, as the interface numbers them |
//! | 4 | 4 | data for the completion queue; of an answer: 0, or an error number |
//! | 8 | 8 | request, as its asker numbers it |
//! | 16 | 8 | address, as the interface means it: an offset, or a virtual address |
//! | 24 | 8 | key of the memory region |
//! | 32 | 8 | bytes that are written, read or operated on; at most [`crate::limits::PIECE_BYTES_MAX`] |
//! | 40 | .. | payload: bytes to write, operands, or the content of an answer |
//!
//! A long write is followed by a message with its payload, matched by the request's number; a read is answered by one.

use crate::boundary::{Errno, Result};
use crate::limits::REQUEST_HEAD_BYTES;

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Write the payload.
    Write = 1,
    /// Write the payload of a message of its own.
    WriteLong = 2,
    /// Read.
    Read = 3,
    /// Combine with the operands in the payload.
    Atomic = 4,
    /// Likewise, and answer with the previous value.
    AtomicFetch = 5,
    /// Compare with the second half of the payload, perhaps exchange, and answer with the previous value.
    AtomicCompare = 6,
    /// The answer.
    Done = 16,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Write,
            2 => Kind::WriteLong,
            3 => Kind::Read,
            4 => Kind::Atomic,
            5 => Kind::AtomicFetch,
            6 => Kind::AtomicCompare,
            16 => Kind::Done,
            _ => return None,
        })
    }
}

/// A record without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    /// Type and operation of an atomic request.
    pub(crate) atomic: (u8, u8),
    /// Data for the target's completion queue.
    pub(crate) data: Option<u32>,
    /// More of the same request follows.
    pub(crate) partial: bool,
    /// Error number of an answer.
    pub(crate) failure: u32,
    pub(crate) request: u64,
    pub(crate) address: u64,
    pub(crate) key: u64,
    pub(crate) bytes: u64,
}

impl Record {
    pub(crate) fn answer(request: u64, failure: u32, bytes: u64) -> Record {
        Record {
            kind: Kind::Done,
            atomic: (0, 0),
            data: None,
            partial: false,
            failure,
            request,
            address: 0,
            key: 0,
            bytes,
        }
    }

    /// Bytes of payload that follow in the same message.
    pub(crate) fn payload_bytes(&self) -> u64 {
        match self.kind {
            Kind::Write | Kind::Atomic | Kind::AtomicFetch | Kind::Done => self.bytes,
            Kind::AtomicCompare => self.bytes.saturating_mul(2),
            Kind::WriteLong | Kind::Read => 0,
        }
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let word = self.data.unwrap_or(self.failure);
        let flags = u8::from(self.data.is_some()) | u8::from(self.partial) << 1;
        out.extend([self.kind as u8, flags, self.atomic.0, self.atomic.1]);
        out.extend(word.to_le_bytes());
        for field in [self.request, self.address, self.key, self.bytes] {
            out.extend(field.to_le_bytes());
        }
    }

    /// The record at the start of `bytes`, its payload, and the rest.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Record, &[u8], &[u8])> {
        let malformed = Errno(libc::EPROTO);
        let (head, rest) = bytes.split_first_chunk::<REQUEST_HEAD_BYTES>().ok_or(malformed)?;
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let word = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let has_data = head[1] & 1 != 0;
        let record = Record {
            kind: Kind::of(head[0]).filter(|_| head[1] <= 3).ok_or(malformed)?,
            atomic: (head[2], head[3]),
            data: has_data.then_some(word),
            partial: head[1] & 2 != 0,
            failure: if has_data { 0 } else { word },
            request: number(8),
            address: number(16),
            key: number(24),
            bytes: number(32),
        };
        let payload = usize::try_from(record.payload_bytes()).ok().filter(|length| *length <= rest.len());
        let (payload, rest) = rest.split_at(payload.ok_or(malformed)?);
        Ok((record, payload, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            kind: Kind::Write,
            atomic: (3, 4),
            data: Some(0x0102_0304),
            partial: true,
            failure: 0,
            request: 7,
            address: 8,
            key: 9,
            bytes: 3,
        }
    }

    #[test]
    fn records_come_back_one_after_the_other() {
        let mut message = Vec::new();
        record().emit(&mut message);
        message.extend(b"abc");
        Record::answer(5, 266, 0).emit(&mut message);
        let (first, payload, rest) = Record::parse(&message).unwrap();
        assert_eq!((first, payload), (record(), &b"abc"[..]));
        let (second, payload, rest) = Record::parse(rest).unwrap();
        assert_eq!((second, payload, rest), (Record::answer(5, 266, 0), &[][..], &[][..]));
    }

    #[test]
    fn what_is_short_or_unknown_is_refused() {
        let mut message = Vec::new();
        record().emit(&mut message);
        message.extend(b"abc");
        for length in 0..message.len() {
            assert!(Record::parse(&message[..length]).is_err(), "{length} bytes");
        }
        message[0] = 99;
        assert!(Record::parse(&message).is_err());
    }
}
