//! A ring as its receiver sees it. Whatever a sender writes there: every place and length is checked before it is used, what is parsed has
//! been copied before, and a call ends after one lap.

use core::sync::atomic::Ordering;

use super::layout::{
    AREA, AREA_BYTES, COPIED, ENTRY_KEY, ENTRY_KEY_ADDRESS, ENTRY_OWNER, ENTRY_PULL, ENTRY_TAKEN, Kind,
    OFFERED, PULL_PERMITTED, PULL_REFUSED, SLOT_ADDRESS, SLOT_BODY, SLOT_HEAD, SLOT_LONG_BYTES,
    SLOT_PAYLOAD_BYTES, SLOT_PLACE, SLOT_STATE, SLOTS, TAKEN, Word, entry, slot_at,
};
use super::map::Mapping;
use super::pull::{Key, pull};
use crate::counters::Counters;

/// What receiving needs besides the ring.
pub(super) struct Desk<'a> {
    pub(super) front: &'a Mapping,
    pub(super) counters: &'a mut Counters,
    /// Where a frame is put together; as long as the longest.
    pub(super) scratch: &'a mut [u8],
    /// Whether senders' memory may be read.
    pub(super) pull: bool,
}

/// A ring that this process reads.
pub(super) struct Incoming {
    ring: usize,
    map: Mapping,
    /// Number of the next frame.
    next: u64,
    /// Its sender, if its memory can be read.
    source: Option<(u32, Key)>,
    /// Looks in a row that found nothing.
    pub(super) quiet_looks: u32,
}

impl Incoming {
    pub(super) fn new(ring: usize, map: Mapping) -> Incoming {
        Incoming { ring, map, next: 0, source: None, quiet_looks: 0 }
    }

    pub(super) fn mapping(&self) -> core::ops::Range<usize> {
        self.map.range()
    }

    /// Whether a frame waits.
    pub(super) fn has_frame(&self) -> bool {
        let word = self.map.u64(slot_at(self.next)).load(Ordering::Acquire);
        Word::decode(word, self.next).is_some()
    }

    /// Gives up to `frames_max` frames to `each`; returns how many.
    pub(super) fn receive(
        &mut self,
        desk: &mut Desk<'_>,
        frames_max: usize,
        each: &mut dyn FnMut(&[u8]),
    ) -> usize {
        let (before, mut given) = (self.next, 0);
        for _ in 0..SLOTS {
            if given == frames_max {
                break;
            }
            let slot = slot_at(self.next);
            let word = self.map.u64(slot).load(Ordering::Acquire);
            let Some(word) = Word::decode(word, self.next) else { break };
            self.next += 1;
            let bytes = word.and_then(|word| {
                if word.first {
                    self.meet(desk);
                }
                self.take(desk, slot, word)
            });
            match bytes {
                Ok(Some(bytes)) => {
                    each(&desk.scratch[..bytes]);
                    given += 1;
                    desk.counters.frames_received += 1;
                    desk.counters.bytes_received += bytes as u64;
                }
                Ok(None) => desk.counters.lost_not_fetched += 1,
                Err(()) => desk.counters.lost_malformed += 1,
            }
        }
        if self.next != before {
            // Release: what has been read before may be written again.
            desk.front.u64(entry(self.ring, ENTRY_TAKEN)).store(self.next, Ordering::Release);
        }
        given
    }

    /// A new sender: finds out whether its memory can be read, and tells it.
    #[cold]
    fn meet(&mut self, desk: &Desk<'_>) {
        let field = |at| desk.front.u64(entry(self.ring, at)).load(Ordering::Acquire);
        let key = Key { address: field(ENTRY_KEY_ADDRESS), value: field(ENTRY_KEY) };
        let pid = u32::try_from(field(ENTRY_OWNER) >> 32).unwrap_or(0);
        self.source = (desk.pull && pull(pid, key, key.address, &mut [0; 8])).then_some((pid, key));
        let answer = if self.source.is_some() { PULL_PERMITTED } else { PULL_REFUSED };
        desk.front.u32(entry(self.ring, ENTRY_PULL)).store(answer, Ordering::Relaxed);
    }

    fn get(&self, at: usize) -> usize {
        self.map.u32(at).load(Ordering::Relaxed) as usize
    }

    /// Puts the frame in `slot` together; returns its length. `None`: its payload is not to be had any more.
    fn take(&self, desk: &mut Desk<'_>, slot: usize, word: Word) -> Result<Option<usize>, ()> {
        match word.kind {
            Kind::Inline => {
                self.map.read(slot + SLOT_BODY, &mut desk.scratch[..word.bytes]);
                Ok(Some(word.bytes))
            }
            Kind::Long => {
                let (place, bytes) = (self.get(slot + SLOT_PLACE), self.get(slot + SLOT_LONG_BYTES));
                self.read_area(place, desk.scratch.get_mut(..bytes).ok_or(())?)?;
                Ok(Some(bytes))
            }
            Kind::Split => {
                let bytes = word.bytes + self.get(slot + SLOT_PAYLOAD_BYTES);
                let frame = desk.scratch.get_mut(..bytes).ok_or(())?;
                let (head, payload) = frame.split_at_mut(word.bytes);
                self.map.read(slot + SLOT_HEAD, head);
                Ok(self.fetch(desk.front, slot, payload)?.then_some(bytes))
            }
        }
    }

    fn read_area(&self, place: usize, to: &mut [u8]) -> Result<(), ()> {
        if place + to.len() > AREA_BYTES {
            return Err(());
        }
        self.map.read(AREA + place, to);
        Ok(())
    }

    /// Brings the payload of the frame in `slot`. False: its sender has taken it back, or it cannot be read.
    fn fetch(&self, front: &Mapping, slot: usize, to: &mut [u8]) -> Result<bool, ()> {
        let word = self.map.u32(slot + SLOT_STATE);
        let mut state = word.load(Ordering::Acquire);
        if state == OFFERED {
            let address = self.map.u64(slot + SLOT_ADDRESS).load(Ordering::Relaxed);
            let read = self.source.is_some_and(|(pid, key)| pull(pid, key, address, to));
            // R11: what was read counts only if the offer stood until now, for until then the sender keeps the bytes as they are.
            match word.compare_exchange(OFFERED, TAKEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if !read {
                        front.u32(entry(self.ring, ENTRY_PULL)).store(PULL_REFUSED, Ordering::Relaxed);
                    }
                    return Ok(read);
                }
                Err(now) => state = now,
            }
        }
        if state != COPIED {
            return Ok(false);
        }
        self.read_area(self.get(slot + SLOT_PLACE), to)?;
        Ok(true)
    }
}
