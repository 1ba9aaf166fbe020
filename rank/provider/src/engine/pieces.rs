//! Long requests to peers' memory, in pieces: a few are open at a time, and the next is asked for when one has ended. So a target never holds
//! more for a request than a few pieces, however long it is.
//!
//! The last piece counts at the target (its counters, its completion queue). For a write it is requested when all
//! others have ended: a program that sees its completion finds all bytes.

use transport::LinkIndex;
use transport::slab::SlabKey;

use super::rma_initiator::Ends;
use super::wire::{Kind, Record};
use super::{Engine, Request, State};
use crate::boundary::{EAGAIN, ENOMEM, Result};
use crate::limits::{PIECE_BYTES_MAX, PIECES_OPEN_MAX, REQUEST_HEAD_BYTES};
use crate::memory::Segments;

/// A request that is asked for in pieces.
pub(super) struct Pieces {
    link: LinkIndex,
    /// The request for the first byte onwards.
    record: Record,
    /// Local memory.
    buffer: Segments,
    /// Bytes that have been asked for.
    asked: usize,
    open: usize,
    failure: u32,
    ends: Ends,
}

impl Pieces {
    /// Offset and length of the piece that may be asked for now.
    fn next(&self) -> Option<(usize, usize)> {
        let rest = self.buffer.bytes() - self.asked;
        let last = rest <= PIECE_BYTES_MAX;
        let waits = last && self.open > 0 && self.record.kind == Kind::WriteLong;
        let may = self.failure == 0 && rest > 0 && self.open < PIECES_OPEN_MAX && !waits;
        may.then(|| (self.asked, rest.min(PIECE_BYTES_MAX)))
    }

    fn is_over(&self) -> bool {
        self.open == 0 && (self.failure != 0 || self.asked == self.buffer.bytes())
    }
}

impl Engine {
    /// Begins with a request that is longer than a piece.
    pub(super) fn ask_in_pieces(
        &self,
        state: &mut State,
        link: LinkIndex,
        record: Record,
        buffer: &Segments,
        ends: Ends,
    ) -> Result<()> {
        if !self.endpoint.can_send(link, REQUEST_HEAD_BYTES) || !state.rma_target.may_write_long(link) {
            return Err(EAGAIN);
        }
        let pieces = Pieces { link, record, buffer: buffer.clone(), asked: 0, open: 0, failure: 0, ends };
        let whole = state.requests.insert(Request::Pieces(Box::new(pieces)));
        self.ask_pieces(state, whole);
        Ok(())
    }

    /// Asks for as many pieces as may be open. Those that find no room are asked for when the link has some.
    pub(super) fn ask_pieces(&self, state: &mut State, whole: SlabKey) {
        loop {
            let Some(Request::Pieces(pieces)) = state.requests.get_mut(whole) else { return };
            let Some((offset, bytes)) = pieces.next() else { break };
            let last = offset + bytes == pieces.buffer.bytes();
            let record = Record {
                address: pieces.record.address.wrapping_add(offset as u64),
                bytes: bytes as u64,
                data: pieces.record.data.filter(|_| last),
                partial: !last,
                ..pieces.record
            };
            let (link, buffer) = (pieces.link, pieces.buffer.part(offset, bytes));
            // Counted before it is asked for: one that fails at once has ended when the call returns.
            pieces.asked += bytes;
            pieces.open += 1;
            let asked = match record.kind {
                Kind::Read => self.read_once(state, link, record, &buffer, Ends::Whole(whole)),
                _ => self.write_long(state, link, record, &buffer, Ends::Whole(whole)),
            };
            let Err(error) = asked else { continue };
            let Some(Request::Pieces(pieces)) = state.requests.get_mut(whole) else { return };
            pieces.asked -= bytes;
            pieces.open -= 1;
            if error != EAGAIN {
                pieces.failure = u32::try_from(error.0).unwrap_or(ENOMEM.0 as u32);
            } else if pieces.open == 0 {
                // No end of a piece will bring us back here.
                state.rma_target.ask_later(whole);
            }
            break;
        }
        self.end_pieces(state, whole);
    }

    /// A piece has ended.
    pub(super) fn piece_ended(&self, state: &mut State, whole: SlabKey, failure: u32) {
        let Some(Request::Pieces(pieces)) = state.requests.get_mut(whole) else { return };
        pieces.open -= 1;
        pieces.failure = pieces.failure.max(failure);
        self.ask_pieces(state, whole);
    }

    fn end_pieces(&self, state: &mut State, whole: SlabKey) {
        if let Some(Request::Pieces(pieces)) = state.requests.get_mut(whole)
            && pieces.is_over()
        {
            let (ends, failure) = (pieces.ends, pieces.failure);
            state.requests.remove(whole);
            self.rma_ended(state, ends, failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(kind: Kind, bytes: usize) -> Pieces {
        // SAFETY: the memory is never touched.
        let buffer = unsafe { Segments::one(core::ptr::without_provenance(1 << 20), bytes) }.unwrap();
        let record = Record { kind, ..Record::answer(0, 0, 0) };
        let ends = Ends::Program { context: 0, flags: 0, wanted: false };
        Pieces { link: LinkIndex(0), record, buffer, asked: 0, open: 0, failure: 0, ends }
    }

    #[test]
    fn a_few_pieces_are_open_and_the_last_of_a_write_waits_for_the_others() {
        for kind in [Kind::Read, Kind::WriteLong] {
            let mut pieces = pieces(kind, 2 * PIECE_BYTES_MAX + 5);
            for at in 0..2 {
                assert_eq!(pieces.next(), Some((at * PIECE_BYTES_MAX, PIECE_BYTES_MAX)));
                pieces.asked += PIECE_BYTES_MAX;
                pieces.open += 1;
            }
            let last = Some((2 * PIECE_BYTES_MAX, 5));
            assert_eq!(pieces.next(), if kind == Kind::Read { last } else { None });
            pieces.open = 0;
            assert_eq!(pieces.next(), last);
            pieces.open = PIECES_OPEN_MAX;
            assert_eq!(pieces.next(), None);
            pieces.open = 0;
            assert!(!pieces.is_over());
            pieces.failure = 1;
            assert!(pieces.is_over() && pieces.next().is_none(), "nothing more is asked for after a failure");
        }
    }
}
