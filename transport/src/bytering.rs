//! A queue of bytes with absolute offsets: where a link keeps copied payloads until they are acknowledged.

use alloc::vec;
use alloc::vec::Vec;

/// An emptied ring that was little used keeps this many bytes of memory at most. A power of two.
pub const RING_BYTES_KEPT: usize = 64 * 1024;

/// First allocation of a ring, in bytes: a few small messages. A power of two.
const RING_BYTES_MIN: usize = 1024;

/// A ring has no room for the pushed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{bytes} bytes do not fit into the {free} free of {bytes_max}; release some, or raise the bound")]
pub struct RingFull {
    /// Bytes to push.
    pub bytes: usize,
    /// Bytes that could have been.
    pub free: usize,
    /// The ring's bound.
    pub bytes_max: usize,
}

/// A queue of bytes that are named by their offset in all that was ever pushed.
///
/// ```text
///      start              end
/// .......|------held-------|--free--|  end - start <= bytes_max
///     released          next push
/// ```
///
/// Held bytes lie in memory as at most two slices, so writing them all out is at most two copies.
#[derive(Clone)]
pub struct ByteRing {
    /// Length 0 or a power of two; the byte of offset `n` lies at `n` modulo that.
    memory: Vec<u8>,
    start: u64,
    end: u64,
    bytes_max: usize,
    /// Most bytes held at once since the ring was last empty: shows whether the memory is still needed.
    peak: usize,
}

impl core::fmt::Debug for ByteRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ByteRing({}..{})", self.start(), self.end())
    }
}

impl ByteRing {
    /// An empty ring for at most `bytes_max` bytes at once; allocates nothing. The first byte pushed has offset 0.
    #[must_use]
    pub fn new(bytes_max: usize) -> ByteRing {
        ByteRing::starting_at(bytes_max, 0)
    }

    /// An empty ring whose first byte will have offset `start`: to rebuild one from its held bytes.
    #[must_use]
    pub fn starting_at(bytes_max: usize, start: u64) -> ByteRing {
        ByteRing { memory: Vec::new(), start, end: start, bytes_max, peak: 0 }
    }

    /// Offset of the oldest byte held.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Offset that the next byte pushed will have.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        distance(self.start, self.end)
    }

    /// Whether no byte is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes that can be pushed now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.bytes_max - self.len()
    }

    /// Bytes of memory behind the ring.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Appends all of `bytes` and returns the offset of the first.
    ///
    /// # Errors
    /// [`RingFull`] if they are more than [`ByteRing::free`]; nothing is appended then.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<u64, RingFull> {
        if bytes.len() > self.free() {
            return Err(RingFull { bytes: bytes.len(), free: self.free(), bytes_max: self.bytes_max });
        }
        let held = self.len() + bytes.len();
        if held > self.memory.len() {
            self.grow(held);
        }
        let offset = self.end;
        write(&mut self.memory, offset, bytes);
        self.end += bytes.len() as u64;
        self.peak = self.peak.max(held);
        Ok(offset)
    }

    /// Forgets every byte before `offset`; an offset already passed changes nothing.
    ///
    /// # Panics
    /// If `offset` lies beyond [`ByteRing::end`]: bytes that were never pushed cannot have been acknowledged.
    pub fn release_before(&mut self, offset: u64) {
        assert!(offset <= self.end, "release before {offset}, but only {} bytes were pushed", self.end);
        self.start = self.start.max(offset);
        if self.is_empty() {
            // A ring that fills and empties in large strides keeps its memory; one that did so once gives it back.
            if self.memory.len() > RING_BYTES_KEPT && self.peak <= self.memory.len() / 4 {
                self.memory = Vec::new();
            }
            self.peak = 0;
        }
    }

    /// Gives all memory back if no byte is held, for a link that has gone quiet.
    pub fn trim(&mut self) {
        if self.is_empty() {
            self.memory = Vec::new();
        }
    }

    /// The `bytes` bytes from `offset` on, as they lie in memory: the second slice goes on where the first ends, and is
    /// empty unless they wrap around.
    ///
    /// # Panics
    /// If they are not all held.
    #[must_use]
    pub fn slices(&self, offset: u64, bytes: usize) -> (&[u8], &[u8]) {
        assert!(
            offset >= self.start && offset <= self.end && bytes <= distance(offset, self.end),
            "{bytes} bytes from {offset} on are not all in {}..{}",
            self.start,
            self.end
        );
        let place = place(&self.memory, offset);
        let first = bytes.min(self.memory.len() - place);
        (&self.memory[place..place + first], &self.memory[..bytes - first])
    }

    /// All bytes held, as they lie in memory.
    #[must_use]
    pub fn held(&self) -> (&[u8], &[u8]) {
        self.slices(self.start, self.len())
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not all held.
    #[inline]
    pub fn copy_to(&self, offset: u64, out: &mut [u8]) {
        let (first, second) = self.slices(offset, out.len());
        let (out_first, out_second) = out.split_at_mut(first.len());
        out_first.copy_from_slice(first);
        out_second.copy_from_slice(second);
    }

    /// Changes held bytes: no rule allows that.
    #[cfg(feature = "sabotage")]
    pub(crate) fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        write(&mut self.memory, offset, bytes);
    }

    fn grow(&mut self, bytes: usize) {
        let mut memory = vec![0; bytes.next_power_of_two().max(RING_BYTES_MIN)];
        let (first, second) = self.held();
        write(&mut memory, self.start, first);
        write(&mut memory, self.start + first.len() as u64, second);
        self.memory = memory;
    }
}

/// Where the byte of `offset` lies in `memory`.
fn place(memory: &[u8], offset: u64) -> usize {
    // A wide offset may lose its high bits here: only those below the length's, a power of two, are wanted.
    let mask = (memory.len() as u64).wrapping_sub(1);
    if memory.is_empty() { 0 } else { distance(0, offset & mask) }
}

/// Writes `bytes`, no more than `memory` has, from `offset` on and around the end.
fn write(memory: &mut [u8], offset: u64, bytes: &[u8]) {
    let place = place(memory, offset);
    let (first, second) = bytes.split_at(bytes.len().min(memory.len() - place));
    memory[place..place + first.len()].copy_from_slice(first);
    memory[..second.len()].copy_from_slice(second);
}

/// Bytes from one offset to a later one, both within one ring: as many as its memory has, at most.
fn distance(from: u64, to: u64) -> usize {
    usize::try_from(to - from).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn joined((first, second): (&[u8], &[u8])) -> Vec<u8> {
        [first, second].concat()
    }

    #[test]
    fn offsets_go_on_after_release() {
        let mut ring = ByteRing::new(100);
        assert_eq!(ring.push(b"hello"), Ok(0));
        assert_eq!(ring.push(b"world"), Ok(5));
        ring.release_before(5);
        assert_eq!(ring.push(b"again"), Ok(10));
        assert_eq!(joined(ring.held()), b"worldagain");
        ring.release_before(3);
        assert_eq!((ring.start(), ring.end(), ring.free()), (5, 15, 90));
        let mut out = [0; 3];
        ring.copy_to(8, &mut out);
        assert_eq!(&out, b"lda");
    }

    #[test]
    fn bound_holds_to_the_byte_and_a_refused_push_leaves_no_trace() {
        let mut ring = ByteRing::new(10);
        assert_eq!(ring.push(&[1; 10]), Ok(0));
        assert_eq!(ring.push(&[2]), Err(RingFull { bytes: 1, free: 0, bytes_max: 10 }));
        ring.release_before(4);
        assert_eq!(ring.push(&[3; 5]), Err(RingFull { bytes: 5, free: 4, bytes_max: 10 }));
        assert_eq!(ring.push(&[3; 4]), Ok(10));
        assert_eq!(joined(ring.held()), [1, 1, 1, 1, 1, 1, 3, 3, 3, 3]);
        assert_eq!(ring.push(&[]), Ok(14));
    }

    #[test]
    fn bytes_survive_growth_while_wrapped() {
        let mut ring = ByteRing::starting_at(1 << 20, u64::from(u32::MAX) - 300);
        let start = ring.push(&[7; 1000]).unwrap();
        ring.release_before(start + 200);
        let wrapped: Vec<u8> = (0..200).collect();
        ring.push(&wrapped).unwrap();
        assert!(!ring.held().1.is_empty(), "the test wants a wrapped ring");
        ring.push(&[9; 5000]).unwrap();
        let mut out = vec![0; 200];
        ring.copy_to(start + 1000, &mut out);
        assert_eq!(out, wrapped);
        assert_eq!(ring.len(), 800 + 200 + 5000);
    }

    #[test]
    fn memory_of_a_single_burst_is_given_back_but_repeated_bursts_keep_it() {
        let mut ring = ByteRing::new(1 << 20);
        let burst = vec![1; 1 << 20];
        for _ in 0..3 {
            ring.push(&burst).unwrap();
            ring.release_before(ring.end());
            assert_eq!(ring.memory_bytes(), 1 << 20);
        }
        ring.push(&[1; 100]).unwrap();
        ring.release_before(ring.end());
        assert_eq!(ring.memory_bytes(), 0);
        ring.push(&burst).unwrap();
        ring.trim();
        assert_eq!(ring.len(), 1 << 20);
        ring.release_before(ring.end());
        ring.trim();
        assert_eq!((ring.memory_bytes(), joined(ring.held()).len()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "are not all in 3..5")]
    fn released_bytes_cannot_be_read() {
        let mut ring = ByteRing::new(10);
        ring.push(b"abcde").unwrap();
        ring.release_before(3);
        let _ = ring.slices(2, 1);
    }

    #[test]
    #[should_panic(expected = "release before 6")]
    fn bytes_never_pushed_cannot_be_released() {
        let mut ring = ByteRing::new(10);
        ring.push(b"abcde").unwrap();
        ring.release_before(6);
    }

    proptest! {
        #[test]
        fn ring_is_a_queue_of_bytes(
            start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)],
            strides in prop::collection::vec((0usize..3000, 0u64..3000), 1..if cfg!(miri) { 5 } else { 80 }),
        ) {
            const BYTES_MAX: usize = 5000;
            let mut ring = ByteRing::starting_at(BYTES_MAX, start);
            let mut queue: VecDeque<u8> = VecDeque::new();
            let mut next = 0u8;
            for (pushed, released) in strides {
                let bytes: Vec<u8> = (0..pushed).map(|_| { next = next.wrapping_add(1); next }).collect();
                let end = ring.end();
                match ring.push(&bytes) {
                    Ok(offset) => {
                        prop_assert_eq!(offset, end);
                        queue.extend(bytes);
                    }
                    Err(full) => {
                        prop_assert!(queue.len() + pushed > BYTES_MAX);
                        prop_assert_eq!(full.free, BYTES_MAX - queue.len());
                    }
                }
                let released = released.min(ring.len() as u64);
                ring.release_before(ring.start() + released);
                queue.drain(..usize::try_from(released).unwrap());
                prop_assert_eq!(joined(ring.held()), queue.iter().copied().collect::<Vec<u8>>());
                prop_assert!(ring.memory_bytes() <= BYTES_MAX.next_power_of_two());
                let middle = ring.start() + ring.len() as u64 / 2;
                let mut half = vec![0; distance(middle, ring.end())];
                ring.copy_to(middle, &mut half);
                prop_assert!(half.iter().eq(queue.iter().skip(queue.len() / 2)));
            }
        }
    }
}
