//! The memory of a program that the transport reads and writes: buffers of posted receives and of sends that are not copied.

use std::sync::Arc;

use transport::{Buffers, OpId};

/// Content of a receive buffer that nothing has been placed in.
const BLANK: u8 = 0xa5;

/// Bytes of a message: they follow from its data word alone, so that a receiver can check them.
pub fn fill(data: u64, into: &mut [u8]) {
    let mut state = data | 1;
    let mut chunks = into.chunks_exact_mut(8);
    for chunk in &mut chunks {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23);
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23);
    let rest = chunks.into_remainder();
    let last = state.to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Whether `bytes` are those of a message with this data word.
#[must_use]
pub fn is_filled(data: u64, bytes: &[u8]) -> bool {
    let mut state = data | 1;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23);
        if chunk != state.to_le_bytes() {
            return false;
        }
    }
    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23);
    let rest = chunks.remainder();
    rest == &state.to_le_bytes()[..rest.len()]
}

/// A posted receive's buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    /// The operation; `None` while it is being posted.
    pub op: Option<OpId>,
    /// Its memory.
    pub bytes: Vec<u8>,
}

/// Buffers of the receives posted at one port.
#[derive(Clone, Default, Debug)]
pub struct ReceiveBuffers {
    /// In the order of posting.
    pub posted: Vec<Posted>,
    /// Pieces placed where no buffer was posted, or beyond its end: a fault of the transport.
    pub stray: u32,
    /// Pieces placed since the counter was last looked at, by the judge of old lives.
    pub placed: u32,
    spare: Vec<Vec<u8>>,
}

impl ReceiveBuffers {
    /// Makes the buffer of the next receive. [`ReceiveBuffers::name`] sets its operation; pieces placed before that are
    /// its own, because they can only come from the posting.
    pub fn prepare(&mut self, bytes: usize) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(bytes, BLANK);
        self.posted.push(Posted { op: None, bytes: buffer });
    }

    /// The receive prepared last has been posted as `op`, or (`None`) was refused.
    pub fn name(&mut self, op: Option<OpId>) {
        match op {
            Some(op) => {
                if let Some(last) = self.posted.last_mut() {
                    self.stray += u32::from(last.op.is_some_and(|early| early != op));
                    last.op = Some(op);
                }
            }
            None => {
                self.posted.pop();
            }
        }
    }

    /// Takes the buffer of a finished receive out.
    pub fn take(&mut self, op: OpId) -> Option<Vec<u8>> {
        let at = self.posted.iter().position(|posted| posted.op == Some(op))?;
        Some(self.posted.remove(at).bytes)
    }

    /// Gives a buffer back for use again.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < 64 {
            self.spare.push(buffer);
        }
    }
}

impl Buffers for ReceiveBuffers {
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
        self.placed += 1;
        let found = self.posted.iter().position(|posted| posted.op == Some(receive));
        let at = found.or_else(|| {
            let last = self.posted.len().checked_sub(1)?;
            self.posted[last].op.is_none().then_some(last)
        });
        let place = at.and_then(|at| {
            self.posted[at].op = Some(receive);
            let start = usize::try_from(offset).ok()?;
            self.posted[at].bytes.get_mut(start..start.checked_add(bytes.len())?)
        });
        match place {
            Some(place) => place.copy_from_slice(bytes),
            None => self.stray += 1,
        }
    }
}

/// The buffer of a send whose payload is not copied. Shared with the NICs that gather from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sending {
    /// Port that sends it.
    pub port: u32,
    /// The operation.
    pub op: OpId,
    /// The payload.
    pub bytes: Arc<Vec<u8>>,
}

/// Saved memory that differs from the program's save.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the saved memory of a program ends or contradicts itself at byte {at}: it was damaged between cut and restart"
)]
pub struct Damaged {
    /// Offset in bytes.
    pub at: usize,
}

/// Writes numbers and byte strings one behind the other, little-endian.
#[derive(Debug)]
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// A 64-bit number.
    pub fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Reads the output of a [`Writer`].
#[derive(Debug)]
pub struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `all` from its start.
    #[must_use]
    pub fn new(all: &'a [u8]) -> Reader<'a> {
        Reader { all, at: 0 }
    }

    fn part(&mut self, bytes: usize) -> Result<&'a [u8], Damaged> {
        let end = self.at.checked_add(bytes).ok_or(Damaged { at: self.at })?;
        let part = self.all.get(self.at..end).ok_or(Damaged { at: self.at })?;
        self.at = end;
        Ok(part)
    }

    /// A 64-bit number.
    ///
    /// # Errors
    /// If the memory ends before it.
    pub fn number(&mut self) -> Result<u64, Damaged> {
        let at = self.at;
        let bytes = <[u8; 8]>::try_from(self.part(8)?).map_err(|_| Damaged { at })?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A number that fits 32 bits.
    ///
    /// # Errors
    /// If it does not, or the memory ends before it.
    pub fn small(&mut self) -> Result<u32, Damaged> {
        let at = self.at;
        u32::try_from(self.number()?).map_err(|_| Damaged { at })
    }

    /// Bytes behind their length.
    ///
    /// # Errors
    /// If the memory ends before their end.
    pub fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let at = self.at;
        let length = usize::try_from(self.number()?).map_err(|_| Damaged { at })?;
        self.part(length)
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// If something does.
    pub fn end(&self) -> Result<(), Damaged> {
        if self.at == self.all.len() { Ok(()) } else { Err(Damaged { at: self.at }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_follows_from_the_data_word_alone() {
        for length in 0..40 {
            let mut bytes = vec![0; length];
            fill(77, &mut bytes);
            assert!(is_filled(77, &bytes));
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
                assert!(!is_filled(77, &bytes));
            }
        }
    }

    #[test]
    fn a_piece_without_a_buffer_is_stray() {
        let mut buffers = ReceiveBuffers::default();
        buffers.prepare(4);
        buffers.place(OpId(9), 0, b"ab");
        buffers.name(Some(OpId(9)));
        buffers.place(OpId(9), 2, b"cd");
        assert_eq!(buffers.stray, 0);
        buffers.place(OpId(9), 3, b"xx");
        buffers.place(OpId(8), 0, b"x");
        assert_eq!(buffers.stray, 2);
        assert_eq!(buffers.take(OpId(9)).as_deref(), Some(&b"abcd"[..]));
    }
}
