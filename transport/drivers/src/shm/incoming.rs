//! A ring as its receiver sees it. The sender is not trusted: every place and length is checked before it is used,
//! bytes are copied before they are parsed, and a call ends after one lap.

use super::host::is_apart;
use super::layout::{
    AREA, AREA_BYTES, COPIED, ENTRY_KEY, ENTRY_KEY_ADDRESS, ENTRY_OWNER, ENTRY_PULL, ENTRY_TAKEN,
    HEAD_BYTES_MAX, Kind, OFFERED, PULL_PERMITTED, PULL_REFUSED, SLOT_ADDRESS, SLOT_BODY, SLOT_HEAD,
    SLOT_LINE_BYTES, SLOT_LONG_BYTES, SLOT_PAYLOAD_BYTES, SLOT_PLACE, SLOT_STATE, SLOTS, SlotWord, TAKEN,
    entry, slot_at,
};
use super::map::Mapping;
use super::pull::{Key, pull};
use crate::counters::Counters;
use crate::driver::DeferredPayload;
use crate::sync::Ordering;

/// The state for receiving, besides the ring.
pub(super) struct Desk<'a> {
    pub(super) front: &'a Mapping,
    pub(super) counters: &'a mut Counters,
    /// Where a frame is copied to before it is parsed; as long as the longest.
    pub(super) scratch: &'a mut [u8],
    /// Whether senders' memory may be read.
    pub(super) pull: bool,
}

/// Takes a whole frame, or a head and its payload, and answers whether it took it.
pub(super) type EachFetch<'a> = dyn FnMut(&[u8], Option<&mut Fetch<'_>>) -> bool + 'a;

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
        SlotWord::decode(word, self.next).is_some()
    }

    /// Gives up to `frames_max` frames to `each`, which answers whether it took them; returns how many.
    pub(super) fn receive(
        &mut self,
        desk: &mut Desk<'_>,
        frames_max: usize,
        each: &mut EachFetch<'_>,
    ) -> usize {
        let (before, mut given) = (self.next, 0);
        for _ in 0..SLOTS {
            if given == frames_max {
                break;
            }
            let slot = slot_at(self.next);
            let word = self.map.u64(slot).load(Ordering::Acquire);
            let Some(word) = SlotWord::decode(word, self.next) else { break };
            self.next += 1;
            self.look_ahead();
            let taken = word.and_then(|word| {
                if word.first {
                    self.meet(desk);
                }
                self.take(desk, slot, word, each)
            });
            match taken {
                Ok(Some(bytes)) => {
                    given += 1;
                    desk.counters.frames_received += 1;
                    desk.counters.bytes_received += bytes as u64;
                }
                Ok(None) => desk.counters.lost_not_fetched += 1,
                Err(()) => desk.counters.lost_malformed += 1,
            }
        }
        if self.next != before {
            // Release: bytes read before may be overwritten.
            desk.front.u64(entry(self.ring, ENTRY_TAKEN)).store(self.next, Ordering::Release);
        }
        given
    }

    /// Has the lines of the next slot on their way while this frame is handled: they come from another core's cache.
    fn look_ahead(&self) {
        if cfg!(loom) {
            // The words are not used, and no ordering depends on them.
            return;
        }
        let next = slot_at(self.next);
        self.map.u64(next).load(Ordering::Relaxed);
        self.map.u64(next + SLOT_LINE_BYTES).load(Ordering::Relaxed);
    }

    /// A new sender: finds out whether its memory can be read, and informs it.
    #[cold]
    fn meet(&mut self, desk: &Desk<'_>) {
        let field = |at| desk.front.u64(entry(self.ring, at)).load(Ordering::Acquire);
        let key = Key { address: field(ENTRY_KEY_ADDRESS), value: field(ENTRY_KEY) };
        let pid = u32::try_from(field(ENTRY_OWNER) >> 32).unwrap_or(0);
        // Ids of a namespace of its own mean nothing to process_vm_readv(2) in another.
        let may_pull = desk.pull && !is_apart();
        self.source = (may_pull && pull(pid, key, key.address, &mut [0; 8])).then_some((pid, key));
        let answer = if self.source.is_some() { PULL_PERMITTED } else { PULL_REFUSED };
        desk.front.u32(entry(self.ring, ENTRY_PULL)).store(answer, Ordering::Relaxed);
    }

    fn get(&self, at: usize) -> usize {
        self.map.u32(at).load(Ordering::Relaxed) as usize
    }

    /// Gives the frame in `slot` to `each`; its length. `None`: it was not taken, because its payload is no longer
    /// available.
    fn take(
        &self,
        desk: &mut Desk<'_>,
        slot: usize,
        word: SlotWord,
        each: &mut EachFetch<'_>,
    ) -> Result<Option<usize>, ()> {
        match word.kind {
            Kind::Inline => {
                let frame = &mut desk.scratch[..word.bytes];
                self.map.read(slot + SLOT_BODY, frame);
                Ok(each(frame, None).then_some(word.bytes))
            }
            Kind::Long => {
                let (place, bytes) = (self.get(slot + SLOT_PLACE), self.get(slot + SLOT_LONG_BYTES));
                let frame = desk.scratch.get_mut(..bytes).ok_or(())?;
                self.read_area(place, frame)?;
                Ok(each(frame, None).then_some(bytes))
            }
            Kind::Split => {
                let payload_bytes = self.get(slot + SLOT_PAYLOAD_BYTES);
                let bytes = word.bytes + payload_bytes;
                if bytes > desk.scratch.len() {
                    return Err(());
                }
                let mut head = [0; HEAD_BYTES_MAX];
                let head = &mut head[..word.bytes];
                self.map.read(slot + SLOT_HEAD, head);
                let mut fetch =
                    Fetch { ring: self, front: desk.front, slot, bytes: payload_bytes, malformed: false };
                let taken = each(head, Some(&mut fetch));
                let malformed = fetch.malformed;
                // Not wanted: it will not be pulled.
                let state = self.map.u32(slot + SLOT_STATE);
                let _ = state.compare_exchange(OFFERED, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
                if malformed { Err(()) } else { Ok(taken.then_some(bytes)) }
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
}

/// The payload of a split frame, on its way.
pub(super) struct Fetch<'a> {
    ring: &'a Incoming,
    front: &'a Mapping,
    slot: usize,
    bytes: usize,
    malformed: bool,
}

impl DeferredPayload for Fetch<'_> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn fetch(&mut self, to: &mut [u8]) -> bool {
        if to.len() != self.bytes {
            debug_assert!(false, "a payload of {} bytes in a buffer of {}", self.bytes, to.len());
            return false;
        }
        let Fetch { ring, slot, .. } = *self;
        let word = ring.map.u32(slot + SLOT_STATE);
        let mut state = word.load(Ordering::Acquire);
        if state == OFFERED {
            let address = ring.map.u64(slot + SLOT_ADDRESS).load(Ordering::Relaxed);
            let read = ring.source.is_some_and(|(pid, key)| pull(pid, key, address, to));
            // R11: the bytes read count only if the offer stood until now, for until then the sender keeps
            // the bytes as they are.
            match word.compare_exchange(OFFERED, TAKEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if !read {
                        self.front.u32(entry(ring.ring, ENTRY_PULL)).store(PULL_REFUSED, Ordering::Relaxed);
                    }
                    return read;
                }
                Err(now) => state = now,
            }
        }
        if state != COPIED {
            return false;
        }
        self.malformed = ring.read_area(ring.get(slot + SLOT_PLACE), to).is_err();
        !self.malformed
    }
}
