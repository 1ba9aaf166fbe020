//! The user's memory: payloads that are being sent, buffers that wait for messages.

use core::hash::BuildHasherDefault;

use drivers::{DeferredPayload, Payload};
use hashbrown::HashMap;
use nic_freeze::{Carried, CarriedReceive, Payloads};
use transport::config::RAILS_MAX;
use transport::hash::PlainHasher;
use transport::{Buffers, OpId, UserPayload};

type Table<V> = HashMap<OpId, V, BuildHasherDefault<PlainHasher>>;

/// The payload of a message to be sent.
pub enum SendBuffer<'a> {
    /// Copied at once, up to the port's bound for copied payload.
    Copied(&'a [u8]),
    /// Handed over; comes back with the completion.
    Owned(Vec<u8>),
    /// Stays with the caller.
    Borrowed(BorrowedPayload),
}

/// Memory of the caller that an operation reads from.
pub struct BorrowedPayload {
    start: *const u8,
    bytes: usize,
}

// SAFETY: the pointer is only read, and `BorrowedPayload::new`'s contract says that no thread writes to the bytes
// meanwhile.
unsafe impl Send for BorrowedPayload {}

impl BorrowedPayload {
    /// `bytes` bytes from `start`.
    ///
    /// # Safety
    /// Until the operation completes, or the endpoint is gone, the bytes stay valid for reads and are not written to.
    #[must_use]
    pub unsafe fn new(start: *const u8, bytes: usize) -> BorrowedPayload {
        BorrowedPayload { start, bytes }
    }

    /// Length in bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    fn as_slice(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: valid for reads of `bytes` bytes and not written by anybody, by the contract of `BorrowedPayload::new`.
        unsafe { core::slice::from_raw_parts(self.start, self.bytes) }
    }
}

/// Where a message goes.
pub enum ReceiveBuffer {
    /// Handed over, with as many bytes as may be received; comes back with the completion.
    Owned(Vec<u8>),
    /// Stays with the caller.
    Borrowed(BorrowedBuffer),
}

/// Memory of the caller that an operation writes to.
pub struct BorrowedBuffer {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is only used under the gate, and `BorrowedBuffer::new`'s contract says that no other code on any
// thread uses the bytes meanwhile.
unsafe impl Send for BorrowedBuffer {}

impl BorrowedBuffer {
    /// `bytes` bytes from `start`.
    ///
    /// # Safety
    /// Until the operation completes or is cancelled, the bytes stay valid for writes and are not read or written
    /// elsewhere.
    #[must_use]
    pub unsafe fn new(start: *mut u8, bytes: usize) -> BorrowedBuffer {
        // A zero-length buffer may have no place at all; a slice of it needs one.
        let start = if bytes == 0 { core::ptr::NonNull::dangling().as_ptr() } else { start };
        BorrowedBuffer { start, bytes }
    }
}

impl ReceiveBuffer {
    pub(crate) fn len(&self) -> usize {
        match self {
            ReceiveBuffer::Owned(bytes) => bytes.len(),
            ReceiveBuffer::Borrowed(buffer) => buffer.bytes,
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            ReceiveBuffer::Owned(bytes) => bytes,
            // SAFETY: valid for `bytes` bytes and not written by anybody else, by the contract of `BorrowedBuffer::new`.
            ReceiveBuffer::Borrowed(buffer) => unsafe {
                core::slice::from_raw_parts(buffer.start, buffer.bytes)
            },
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            ReceiveBuffer::Owned(bytes) => bytes,
            // SAFETY: as above, and `&mut self` makes this the only reference.
            ReceiveBuffer::Borrowed(buffer) => unsafe {
                core::slice::from_raw_parts_mut(buffer.start, buffer.bytes)
            },
        }
    }
}

/// Bytes of a payload under way.
enum Sent {
    Owned(Vec<u8>),
    Borrowed(BorrowedPayload),
}

impl Sent {
    fn as_slice(&self) -> &[u8] {
        match self {
            Sent::Owned(bytes) => bytes,
            Sent::Borrowed(payload) => payload.as_slice(),
        }
    }
}

/// A payload under way.
pub(crate) struct Sending {
    bytes: Sent,
    /// Per rail: `staged_total` after the last frame that refers to this payload. The payload may go back to the user when
    /// every rail's `completed_total` has reached it.
    staged: [u64; RAILS_MAX],
}

/// Buffers of receives, by operation. Operations are numbers that are given out in turn and most receives are over soon, so nearly all have a place of
/// their own; a receive whose place is taken by an older one lies in the table.
struct Receives {
    places: Box<[Option<(OpId, ReceiveBuffer)>]>,
    others: Table<ReceiveBuffer>,
}

/// Places, a power of two: receives that a program has posted at one time, if it is no exception.
const PLACES: usize = 256;

impl Default for Receives {
    fn default() -> Receives {
        Receives { places: (0..PLACES).map(|_| None).collect(), others: Table::default() }
    }
}

impl Receives {
    fn place(op: OpId) -> usize {
        usize::try_from(op.0 % PLACES as u64).unwrap_or(0)
    }

    #[inline]
    fn insert(&mut self, op: OpId, buffer: ReceiveBuffer) {
        let place = &mut self.places[Receives::place(op)];
        if place.is_none() {
            *place = Some((op, buffer));
        } else {
            self.others.insert(op, buffer);
        }
    }

    #[inline]
    fn get(&self, op: OpId) -> Option<&ReceiveBuffer> {
        match &self.places[Receives::place(op)] {
            Some((here, buffer)) if *here == op => Some(buffer),
            _ => self.others.get(&op),
        }
    }

    #[inline]
    fn get_mut(&mut self, op: OpId) -> Option<&mut ReceiveBuffer> {
        match &mut self.places[Receives::place(op)] {
            Some((here, buffer)) if *here == op => Some(buffer),
            _ => self.others.get_mut(&op),
        }
    }

    #[inline]
    fn remove(&mut self, op: OpId) -> Option<ReceiveBuffer> {
        let place = &mut self.places[Receives::place(op)];
        match place.take_if(|(here, _)| *here == op) {
            Some((_, buffer)) => Some(buffer),
            None => self.others.remove(&op),
        }
    }
}

/// All buffers of one endpoint, by operation.
#[derive(Default)]
pub struct BufferTable {
    sends: Table<Sending>,
    receives: Receives,
}

impl BufferTable {
    pub(crate) fn from_carried(carried: Carried) -> BufferTable {
        let mut table = BufferTable::default();
        for (op, bytes) in carried.sends {
            table.keep_send(op, bytes);
        }
        for CarriedReceive { op, mut filled, buffer_bytes } in carried.receives {
            // The image has the digest that was committed, so its lengths are those of buffers that existed.
            filled.resize(usize::try_from(buffer_bytes).unwrap_or(usize::MAX), 0);
            table.keep_receive(op, ReceiveBuffer::Owned(filled));
        }
        table
    }

    pub(crate) fn keep_send(&mut self, op: OpId, bytes: Vec<u8>) {
        self.sends.insert(op, Sending { bytes: Sent::Owned(bytes), staged: [0; RAILS_MAX] });
    }

    pub(crate) fn keep_borrowed(&mut self, op: OpId, payload: BorrowedPayload) {
        self.sends.insert(op, Sending { bytes: Sent::Borrowed(payload), staged: [0; RAILS_MAX] });
    }

    pub(crate) fn keep_receive(&mut self, op: OpId, buffer: ReceiveBuffer) {
        self.receives.insert(op, buffer);
    }

    /// The piece as a driver takes it, without a copy; empty if the operation is unknown, which would be a bug of the port.
    pub(crate) fn piece(&mut self, piece: UserPayload, rail: usize, staged: u64) -> Payload {
        let Some(sending) = self.sends.get_mut(&piece.op) else {
            debug_assert!(false, "operation {:?} has no payload", piece.op);
            return Payload::EMPTY;
        };
        let from = usize::try_from(piece.offset).unwrap_or(usize::MAX);
        let whole = sending.bytes.as_slice();
        let Some(bytes) = whole.get(from..from.saturating_add(piece.bytes as usize)) else {
            debug_assert!(false, "{piece:?} lies outside of its payload");
            return Payload::EMPTY;
        };
        let (start, bytes) = (bytes.as_ptr(), bytes.len());
        sending.staged[rail] = staged;
        // SAFETY: the bytes lie in a vector that this table keeps, unmoved and unwritten, or in memory whose owner
        // keeps it so, until `take_send` is asked with the rail's `completed_total` at `staged` or later: then the
        // driver has dropped the payload. Only after that is the completion reported to the owner.
        unsafe { Payload::borrowed(start, bytes) }
    }

    /// Where the payload of a send lies in this process's memory; 0: the operation is unknown, or its memory is not to be named.
    pub(crate) fn place_of(&self, op: OpId) -> u64 {
        self.sends.get(&op).map_or(0, |sending| sending.bytes.as_slice().as_ptr() as u64)
    }

    /// Gives a payload back to its user if no NIC can read it any more. `Err`: not yet.
    pub(crate) fn take_send(&mut self, op: OpId, completed: [u64; RAILS_MAX]) -> Result<Option<Vec<u8>>, ()> {
        let Some(sending) = self.sends.get(&op) else { return Ok(None) };
        if sending.staged.iter().zip(completed).any(|(staged, completed)| completed < *staged) {
            return Err(());
        }
        Ok(self.sends.remove(&op).and_then(|sending| match sending.bytes {
            Sent::Owned(bytes) => Some(bytes),
            Sent::Borrowed(_) => None,
        }))
    }

    pub(crate) fn take_receive(&mut self, op: OpId) -> Option<ReceiveBuffer> {
        self.receives.remove(op)
    }

    /// A rail has been replaced or dropped.
    pub(crate) fn forget_rail(&mut self, rail: usize) {
        for sending in self.sends.values_mut() {
            sending.staged[rail] = 0;
        }
    }
}

impl Payloads for BufferTable {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.sends.get(&op).map(|sending| sending.bytes.as_slice())
    }

    fn receive_buffer(&self, op: OpId) -> Option<&[u8]> {
        self.receives.get(op).map(ReceiveBuffer::as_slice)
    }
}

impl BufferTable {
    /// Where a piece belongs. `None`: nowhere. A multi-receive may be taken back, and a buffer abandoned, while a
    /// message is on its way into it: the rest of that message is discarded.
    pub(crate) fn target(&mut self, receive: OpId, offset: u64, bytes: usize) -> Option<&mut [u8]> {
        let buffer = self.receives.get_mut(receive)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let place = buffer.as_mut_slice().get_mut(from..from.saturating_add(bytes));
        debug_assert!(place.is_some(), "{bytes} bytes at {offset} lie outside of receive {receive:?}");
        place
    }
}

impl Buffers for BufferTable {
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
        if let Some(place) = self.target(receive, offset, bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// The buffers, while a frame is handled whose payload its driver has not brought yet.
pub(crate) struct Bringing<'a> {
    pub(crate) buffers: &'a mut BufferTable,
    pub(crate) deferred: &'a mut dyn DeferredPayload,
}

impl Buffers for Bringing<'_> {
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
        self.buffers.place(receive, offset, bytes);
    }

    fn fetch(&mut self, receive: OpId, offset: u64, bytes: usize) -> bool {
        self.buffers.target(receive, offset, bytes).is_none_or(|place| self.deferred.fetch(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_that_share_a_place_are_kept_apart() {
        let mut table = BufferTable::default();
        let ops: Vec<OpId> = [5, 5 + PLACES as u64, 6, 5 + 7 * PLACES as u64].map(OpId).into();
        for (byte, op) in (0..).zip(&ops) {
            table.keep_receive(*op, ReceiveBuffer::Owned(vec![byte; 4]));
        }
        for (byte, op) in (0u8..).zip(&ops) {
            assert_eq!(table.receive_buffer(*op), Some(&[byte; 4][..]));
            table.place(*op, 1, &[9, 9]);
            assert_eq!(table.receive_buffer(*op), Some(&[byte, 9, 9, byte][..]));
        }
        assert!(table.receive_buffer(OpId(5 + 2 * PLACES as u64)).is_none());
        for (byte, op) in (0u8..).zip(&ops) {
            let Some(ReceiveBuffer::Owned(bytes)) = table.take_receive(*op) else { panic!("{op:?} is gone") };
            assert_eq!(bytes, [byte, 9, 9, byte]);
            assert!(table.take_receive(*op).is_none());
        }
    }
}
