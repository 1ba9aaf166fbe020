//! The ring of frames that were committed and not yet handed over, for drivers whose buffers are plain memory.

use transport::AddressId;

use crate::payload::Payload;

/// Distance between two frame buffers, in bytes: a cache line, so that no two share one.
const ALIGN_BYTES: usize = 64;

/// Frames staged for the NIC, oldest first. Buffers are touched only when used: a large ring costs address space, not memory.
pub(crate) struct Staging {
    buffers: Vec<u8>,
    frame_bytes_max: usize,
    stride: usize,
    slots: Vec<Slot>,
    /// Slot of the oldest staged frame.
    head: usize,
    /// Staged frames.
    len: usize,
    leased: bool,
    staged_total: u64,
    completed_total: u64,
}

struct Slot {
    to: AddressId,
    /// Bytes in the buffer, before the payload; `None`: refused at commit, to be skipped and completed in its turn.
    frame_bytes: Option<usize>,
    payload: Payload,
}

/// One staged frame.
#[derive(Clone, Copy)]
pub(crate) struct Staged<'a> {
    pub(crate) to: AddressId,
    pub(crate) head: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Staged<'_> {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

impl Staging {
    pub(crate) fn new(frames: usize, frame_bytes_max: usize) -> Staging {
        let stride = frame_bytes_max.next_multiple_of(ALIGN_BYTES);
        let slots = (0..frames)
            .map(|_| Slot { to: AddressId(0), frame_bytes: None, payload: Payload::EMPTY })
            .collect();
        Staging {
            buffers: vec![0; stride * frames],
            frame_bytes_max,
            stride,
            slots,
            head: 0,
            len: 0,
            leased: false,
            staged_total: 0,
            completed_total: 0,
        }
    }

    fn slot(&self, i: usize) -> usize {
        let at = self.head + i;
        if at >= self.slots.len() { at - self.slots.len() } else { at }
    }

    pub(crate) fn lease(&mut self) -> Option<&mut [u8]> {
        if self.len == self.slots.len() {
            return None;
        }
        self.leased = true;
        let start = self.slot(self.len) * self.stride;
        Some(&mut self.buffers[start..start + self.frame_bytes_max])
    }

    /// Stages the leased buffer. `false`: nothing was leased, nothing is staged.
    #[must_use]
    pub(crate) fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) -> bool {
        if !core::mem::take(&mut self.leased) {
            return false;
        }
        debug_assert!(frame_bytes <= self.frame_bytes_max, "a frame longer than its buffer");
        let at = self.slot(self.len);
        self.slots[at] = Slot { to, frame_bytes: Some(frame_bytes.min(self.frame_bytes_max)), payload };
        self.len += 1;
        self.staged_total += 1;
        true
    }

    /// Takes the leased buffer as a frame that will not be sent; it completes when those before it have.
    pub(crate) fn commit_refused(&mut self, to: AddressId) {
        if self.commit(to, 0, Payload::EMPTY) {
            let at = self.slot(self.len - 1);
            self.slots[at].frame_bytes = None;
        }
    }

    /// Counts a frame that was handed over without being staged, while none is.
    pub(crate) fn pass(&mut self) {
        debug_assert_eq!(self.len, 0, "frames complete in the order of their commits");
        self.staged_total += 1;
        self.completed_total += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The `i`th staged frame, oldest first; `None` if it was refused at commit.
    pub(crate) fn frame(&self, i: usize) -> Option<Staged<'_>> {
        debug_assert!(i < self.len, "a frame that is not staged");
        let at = self.slot(i);
        let slot = &self.slots[at];
        let start = at * self.stride;
        let head = &self.buffers[start..start + slot.frame_bytes?];
        Some(Staged { to: slot.to, head, payload: slot.payload.as_slice() })
    }

    /// The oldest `frames` frames are done with: their payload is let go, their buffers are free.
    pub(crate) fn complete(&mut self, frames: usize) {
        debug_assert!(frames <= self.len, "more completed than staged");
        for _ in 0..frames {
            self.slots[self.head].payload = Payload::EMPTY;
            self.head = self.slot(1);
        }
        self.len -= frames;
        self.completed_total += frames as u64;
        // A leased buffer may not move under its holder. Otherwise start over with the buffers that are in the cache.
        if self.len == 0 && !self.leased {
            self.head = 0;
        }
    }

    /// Discards the staged frames. Returns the number of those that were not refused at commit.
    pub(crate) fn drain(&mut self) -> usize {
        let lost = (0..self.len).filter(|i| self.frame(*i).is_some()).count();
        self.complete(self.len);
        lost
    }

    pub(crate) fn staged_total(&self) -> u64 {
        self.staged_total
    }

    pub(crate) fn completed_total(&self) -> u64 {
        self.completed_total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: AddressId = AddressId(7);

    fn stage(staging: &mut Staging, byte: u8) -> bool {
        let Some(buffer) = staging.lease() else { return false };
        buffer[0] = byte;
        staging.commit(TO, 1, Payload::EMPTY)
    }

    #[test]
    fn a_full_ring_leases_nothing_until_frames_complete() {
        let mut staging = Staging::new(3, 100);
        assert!((0..3).all(|i| stage(&mut staging, i)));
        assert!(staging.lease().is_none());
        staging.complete(1);
        assert!(stage(&mut staging, 3));
        let bytes: Vec<u8> = (0..3).map(|i| staging.frame(i).expect("staged").head[0]).collect();
        assert_eq!(bytes, [1, 2, 3]);
        assert_eq!((staging.staged_total(), staging.completed_total()), (4, 1));
    }

    #[test]
    fn a_lease_keeps_its_contents_while_older_frames_complete() {
        let mut staging = Staging::new(4, 100);
        assert!(stage(&mut staging, 1));
        staging.lease().expect("free")[0] = 42;
        staging.complete(1);
        assert_eq!(staging.lease().expect("free")[0], 42);
        assert!(staging.commit(TO, 1, Payload::EMPTY));
        assert_eq!(staging.frame(0).expect("staged").head, [42]);
    }

    #[test]
    fn a_commit_without_a_lease_takes_nothing() {
        let mut staging = Staging::new(4, 100);
        assert!(!staging.commit(TO, 0, Payload::EMPTY));
        assert_eq!((staging.len(), staging.staged_total()), (0, 0));
    }

    #[test]
    fn a_refused_frame_completes_after_those_before_it() {
        let mut staging = Staging::new(4, 100);
        assert!(stage(&mut staging, 1));
        staging.lease().expect("free");
        staging.commit_refused(TO);
        assert!(staging.frame(1).is_none());
        assert_eq!(staging.completed_total(), 0);
        staging.complete(2);
        assert_eq!(staging.completed_total(), staging.staged_total());
    }
}
