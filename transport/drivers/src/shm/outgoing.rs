//! A ring as its sender sees it.

use std::collections::VecDeque;

use super::host::{Process, is_alive};
use super::layout::{
    AREA, AREA_BYTES, COPIED, ENTRY_KEY, ENTRY_KEY_ADDRESS, ENTRY_OWNER, ENTRY_PULL, ENTRY_TAKEN,
    HEAD_BYTES_MAX, INLINE_BYTES_MAX, Kind, OFFERED, PULL_PERMITTED, RINGS_MAX, SLOT_ADDRESS, SLOT_BODY,
    SLOT_HEAD, SLOT_LINE_BYTES, SLOT_LONG_BYTES, SLOT_PAYLOAD_BYTES, SLOT_PLACE, SLOT_STATE, SLOTS, SlotWord,
    WITHDRAWN, entry, slot_at,
};
use super::map::Mapping;
use super::pull::Key;
use super::segment::{Outbox, Refused};
use crate::staging::Staged;
use crate::sync::Ordering;

/// Places given out after which the sender looks how far the receiver is: each look costs a cache miss, and
/// each place that is not known to be free makes the ring touch more memory.
const LOOK_AFTER: usize = 8;

/// The outcome of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Written, payload and all.
    Written,
    /// Written, but its payload is still to be read by the receiver; the frame's number.
    Offered(u64),
    /// There was no room.
    Full,
}

/// The outcome of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offer {
    /// The receiver still has to read it.
    Open,
    /// It has been read, or copied: the payload is not needed any more.
    Done,
    /// It has been taken back: the frame is lost.
    Lost,
}

/// Settings of a sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) process: Process,
    pub(super) key: Key,
    /// Payload from this many bytes on is offered, where it may be.
    pub(super) offer_bytes_min: usize,
    /// But not before so many are in the area.
    pub(super) copied_ahead: usize,
}

/// A ring that this process writes.
pub(super) struct Outgoing {
    pub(super) outbox: Outbox,
    ring: usize,
    map: Mapping,
    sender: Sender,
    /// Number of the next frame.
    next: u64,
    /// Frames that the receiver was last seen to have taken.
    taken: u64,
    area: Area,
    /// Nothing has been written since the ring was claimed.
    fresh: bool,
    /// Frames were written that have not been announced.
    written: bool,
}

impl Outgoing {
    /// Claims a ring in a peer's segment.
    pub(super) fn claim(outbox: Outbox, sender: Sender) -> Result<Outgoing, Refused> {
        let owner = sender.process.short();
        let ring = claim(&outbox.front, owner).ok_or(Refused::Full)?;
        let map = match outbox.map_ring(ring) {
            Ok(map) => map,
            Err(errno) => {
                outbox.front.u64(entry(ring, ENTRY_OWNER)).store(0, Ordering::Release);
                return Err(Refused::Forbidden(errno));
            }
        };
        let front = &outbox.front;
        front.u32(entry(ring, ENTRY_PULL)).store(0, Ordering::Relaxed);
        front.u64(entry(ring, ENTRY_KEY_ADDRESS)).store(sender.key.address, Ordering::Relaxed);
        front.u64(entry(ring, ENTRY_KEY)).store(sender.key.value, Ordering::Relaxed);
        // Far beyond any count, and far from where additions would overflow, even if the receiver writes nonsense.
        let taken = front.u64(entry(ring, ENTRY_TAKEN)).load(Ordering::Acquire) & (u64::MAX >> 2);
        // A sender before us may have left frames that are not taken yet: go on behind them.
        let left = (taken..taken + SLOTS as u64)
            .take_while(|number| {
                SlotWord::decode(map.u64(slot_at(*number)).load(Ordering::Acquire), *number).is_some()
            })
            .count() as u64;
        let next = taken + left;
        let area = if left == 0 { Area::default() } else { Area::full_until(next) };
        Ok(Outgoing { outbox, ring, map, sender, next, taken, area, fresh: true, written: false })
    }

    pub(super) fn mappings(&self) -> [core::ops::Range<usize>; 2] {
        [self.outbox.front.range(), self.map.range()]
    }

    /// Writes one frame.
    pub(super) fn write(&mut self, frame: Staged<'_>) -> Outcome {
        if self.next - self.taken >= SLOTS as u64 && !self.look_for_room() {
            return Outcome::Full;
        }
        let (number, slot) = (self.next, slot_at(self.next));
        let Staged { head, payload, .. } = frame;
        let mut outcome = Outcome::Written;
        let word = if head.len() + payload.len() <= INLINE_BYTES_MAX {
            self.write_inline(head, payload, self.fresh);
            None
        } else if payload.is_empty() || head.len() > HEAD_BYTES_MAX {
            let Some(place) = self.allocate(head.len() + payload.len(), number + 1) else {
                return Outcome::Full;
            };
            self.map.write(AREA + place, head);
            self.map.write(AREA + place + head.len(), payload);
            self.set(slot + SLOT_PLACE, place);
            self.set(slot + SLOT_LONG_BYTES, head.len() + payload.len());
            Some(SlotWord { kind: Kind::Long, first: self.fresh, bytes: 0 })
        } else {
            let state = if payload.len() >= self.sender.offer_bytes_min && self.may_offer() && self.is_ahead()
            {
                self.map.u64(slot + SLOT_ADDRESS).store(payload.as_ptr() as u64, Ordering::Relaxed);
                outcome = Outcome::Offered(number);
                OFFERED
            } else {
                let Some(place) = self.allocate(payload.len(), number + 1) else { return Outcome::Full };
                self.map.write(AREA + place, payload);
                self.set(slot + SLOT_PLACE, place);
                COPIED
            };
            self.set(slot + SLOT_PAYLOAD_BYTES, payload.len());
            self.map.u32(slot + SLOT_STATE).store(state, Ordering::Relaxed);
            self.map.write(slot + SLOT_HEAD, head);
            Some(SlotWord { kind: Kind::Split, first: self.fresh, bytes: head.len() })
        };
        if let Some(word) = word {
            // Release: a reader that sees the word sees the frame.
            self.map.u64(slot).store(word.encode(number), Ordering::Release);
        }
        self.next += 1;
        self.fresh = false;
        self.written = true;
        outcome
    }

    /// Writes one frame that fits a slot, and notifies the receiver. False: it does not fit, there is no room, or the
    /// receiver has closed its segment; nothing has happened.
    pub(super) fn write_short(&mut self, frame: &[u8]) -> bool {
        let room = self.next - self.taken < SLOTS as u64 || self.look_for_room();
        if frame.len() > INLINE_BYTES_MAX || self.fresh || self.written || !room || self.outbox.is_closed() {
            return false;
        }
        self.write_inline(frame, &[], false);
        self.next += 1;
        self.outbox.announce(self.ring);
        true
    }

    /// Puts the frame into the slot that is next.
    fn write_inline(&mut self, head: &[u8], payload: &[u8], first: bool) {
        let slot = slot_at(self.next);
        // The line of the word last, and at one go: a receiver that looks at it all the time would take it away in between.
        let (beside_word, rest) = head.split_at(head.len().min(SLOT_LINE_BYTES - SLOT_BODY));
        self.map.write(slot + SLOT_BODY + beside_word.len(), rest);
        self.map.write(slot + SLOT_BODY + head.len(), payload);
        self.map.write(slot + SLOT_BODY, beside_word);
        let word = SlotWord { kind: Kind::Inline, first, bytes: head.len() + payload.len() };
        // Release: a reader that sees the word sees the frame.
        self.map.u64(slot).store(word.encode(self.next), Ordering::Release);
    }

    fn set(&self, at: usize, value: usize) {
        self.map.u32(at).store(u32::try_from(value).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Notifies the receiver of frames written since the last call. False: it has closed its segment.
    pub(super) fn announce(&mut self) -> bool {
        if core::mem::take(&mut self.written) {
            self.outbox.announce(self.ring);
        }
        !self.outbox.is_closed()
    }

    /// Whether enough waits in the area for the receiver: then the receiver has to work.
    fn is_ahead(&mut self) -> bool {
        self.look_for_room();
        self.area.release(self.taken);
        self.area.given.len() >= self.sender.copied_ahead
    }

    fn may_offer(&self) -> bool {
        self.outbox.front.u32(entry(self.ring, ENTRY_PULL)).load(Ordering::Relaxed) == PULL_PERMITTED
    }

    /// Learns how far the receiver is. True if a slot is free.
    #[cold]
    fn look_for_room(&mut self) -> bool {
        let taken = self.outbox.front.u64(entry(self.ring, ENTRY_TAKEN)).load(Ordering::Acquire);
        // Anything else is nonsense, and then nothing has been taken.
        if taken > self.taken && taken <= self.next {
            self.taken = taken;
        }
        self.next - self.taken < SLOTS as u64
    }

    /// A place in the area that is free again when the receiver has taken `free_at` frames.
    fn allocate(&mut self, bytes: usize, free_at: u64) -> Option<usize> {
        if self.area.given.len() < LOOK_AFTER
            && let Some(place) = self.area.allocate(bytes, free_at)
        {
            return Some(place);
        }
        self.look_for_room();
        self.area.release(self.taken);
        self.area.allocate(bytes, free_at)
    }

    /// Whether the receiving process is gone without having closed its segment.
    pub(super) fn receiver_is_dead(&self) -> bool {
        !is_alive(self.outbox.owner().short())
    }

    /// The outcome of the payload of frame `number`.
    pub(super) fn offer(&self, number: u64) -> Offer {
        // Acquire: the receiver had read it before it took it.
        match self.map.u32(slot_at(number) + SLOT_STATE).load(Ordering::Acquire) {
            OFFERED => Offer::Open,
            WITHDRAWN => Offer::Lost,
            _ => Offer::Done,
        }
    }

    /// Takes an offer back. From here on no receiver will use bytes read at the payload's address.
    pub(super) fn withdraw(&self, number: u64) -> Offer {
        self.end_offer(number, WITHDRAWN)
    }

    /// Puts the payload of an offer into the area, so that it is not needed any more.
    pub(super) fn copy_offer(&mut self, number: u64, payload: &[u8]) -> Offer {
        // Frames behind it may already lie in the area, so it is freed no sooner than theirs.
        let Some(place) = self.allocate(payload.len(), self.next) else { return self.withdraw(number) };
        self.map.write(AREA + place, payload);
        self.set(slot_at(number) + SLOT_PLACE, place);
        match self.end_offer(number, COPIED) {
            Offer::Lost => Offer::Done,
            done => done,
        }
    }

    fn end_offer(&self, number: u64, state: u32) -> Offer {
        let word = self.map.u32(slot_at(number) + SLOT_STATE);
        match word.compare_exchange(OFFERED, state, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(WITHDRAWN) => Offer::Lost,
            Err(_) => Offer::Done,
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let owner = self.outbox.front.u64(entry(self.ring, ENTRY_OWNER));
        // If it is not ours any more, another process took us for dead and owns it.
        let _ = owner.compare_exchange(self.sender.process.short(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A ring without an owner, or whose owner is dead; now ours.
fn claim(front: &Mapping, owner: u64) -> Option<usize> {
    let take = |ring: usize, from: u64| {
        let word = front.u64(entry(ring, ENTRY_OWNER));
        word.compare_exchange(from, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(ring) = (0..RINGS_MAX).find(|ring| take(*ring, 0)) {
        return Some(ring);
    }
    (0..RINGS_MAX).find(|ring| {
        let other = front.u64(entry(*ring, ENTRY_OWNER)).load(Ordering::Relaxed);
        !is_alive(other) && take(*ring, other)
    })
}

/// The part of a ring for data that does not fit slots. Places are given out in order, each in one piece, and
/// come back in order.
#[derive(Default)]
struct Area {
    /// Where each begins, and how many frames the receiver has taken when it is free.
    given: VecDeque<(usize, u64)>,
    /// Behind the last one.
    next: usize,
}

impl Area {
    /// Nothing is free before the receiver has taken `number` frames.
    fn full_until(number: u64) -> Area {
        Area { given: VecDeque::from([(0, number)]), next: AREA_BYTES }
    }

    fn allocate(&mut self, bytes: usize, free_at: u64) -> Option<usize> {
        let bytes = bytes.next_multiple_of(64);
        let Some((oldest, _)) = self.given.front() else {
            // From the start: often used memory stays in the caches, and unused memory is never backed.
            self.next = 0;
            return self.give(0, bytes, AREA_BYTES, free_at);
        };
        let oldest = *oldest;
        if self.next > oldest {
            self.give(self.next, bytes, AREA_BYTES, free_at).or_else(|| self.give(0, bytes, oldest, free_at))
        } else {
            self.give(self.next, bytes, oldest, free_at)
        }
    }

    fn give(&mut self, place: usize, bytes: usize, end: usize, free_at: u64) -> Option<usize> {
        if place + bytes > end {
            return None;
        }
        self.next = place + bytes;
        self.given.push_back((place, free_at));
        Some(place)
    }

    fn release(&mut self, taken: u64) {
        while self.given.front().is_some_and(|(_, free_at)| *free_at <= taken) {
            self.given.pop_front();
        }
    }
}
