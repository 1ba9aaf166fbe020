//! Where things lie in a segment.
//!
//! A segment is the inbox of one receiver: a header, a table of rings, and the rings. A sender claims a ring in it and is that ring's
//! only writer, but for the words that are the receiver's. Numbers are of this host and of no other: native byte order.
//!
//! ```text
//! header    at 0        the kind of the segment; see `HEADER_*`
//! doorbell  at 64       one cache line: does the receiver sleep, which rings does it look at
//! table     at 4096     per ring two cache lines: the sender's claim, the receiver's position
//! rings     at 65,536   per ring: slots, then the area for frames that do not fit a slot
//! ```
//!
//! Rings begin at multiples of 64 KiB, the largest page size in use, so that each can be mapped by itself. Nothing is backed by memory
//! before it is written to.
//!
//! A slot is one frame:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | the word, written last: lap of the ring (32 bits), kind (8), first frame of its sender (8), bytes in the slot (16) |
//! | 8 | up to 248 | *inline*: the frame |
//! | 8 | 4 + 4 | *long*: place of the frame in the area, its bytes |
//! | 8 | 4 + 4 + 4 + 4 + 8 | *split*: place of the payload in the area, 0, its bytes, its state, its address at the sender |
//! | 32 | up to 224 | *split*: the head |

/// "Stilwire", and so that no other program's file passes for a segment.
pub(super) const MAGIC: u64 = 0x5374_696c_7769_7265;
/// Of this layout.
pub(super) const VERSION: u32 = 1;

pub(super) const HEADER_MAGIC: usize = 0;
pub(super) const HEADER_VERSION: usize = 8;
pub(super) const HEADER_RINGS: usize = 12;
pub(super) const HEADER_SLOTS: usize = 16;
pub(super) const HEADER_SLOT_BYTES: usize = 20;
pub(super) const HEADER_AREA_BYTES: usize = 24;
/// The segment's owner: process, its start, and which of its segments.
pub(super) const HEADER_PID: usize = 28;
pub(super) const HEADER_START: usize = 32;
pub(super) const HEADER_SERIAL: usize = 40;
/// The owner's descriptor of the bell.
pub(super) const HEADER_BELL: usize = 44;
/// 1: the owner has gone.
pub(super) const HEADER_CLOSED: usize = 48;
/// 1: the owner makes a barrier in all processes between saying that it looks no more and its last look.
pub(super) const HEADER_BARRIER: usize = 52;
/// Where in the owner's memory its key lies; 0: its memory is not to be read.
pub(super) const HEADER_KEY_ADDRESS: usize = 56;

/// 1: the receiver sleeps, or is about to; the sender that makes it 0 rings.
pub(super) const ARMED: usize = 64;
/// A bit per ring: the receiver looks at it.
pub(super) const ACTIVE: usize = 72;
/// 64-bit words of those bits.
pub(super) const ACTIVE_WORDS: usize = RINGS_MAX / 64;
const _: () = assert!(ACTIVE + ACTIVE_WORDS * 8 <= ARMED + 64, "the doorbell is one cache line");

/// Rings of one segment: senders on this host that one port can hear.
pub(super) const RINGS_MAX: usize = if cfg!(loom) { 64 } else { 256 };

const TABLE: usize = 4096;
const ENTRY_BYTES: usize = 128;
/// The writer: process and the low half of its start; 0: none.
pub(super) const ENTRY_OWNER: usize = 0;
/// Whether the receiver can read the sender's memory: 0 not known, or one of `PULL_*`.
pub(super) const ENTRY_PULL: usize = 8;
/// Where in the sender's memory its key lies, and the key: if the key lies there, the process id still means the
/// sender.
pub(super) const ENTRY_KEY_ADDRESS: usize = 16;
pub(super) const ENTRY_KEY: usize = 24;
/// Frames that the receiver has taken; a cache line of its own.
pub(super) const ENTRY_TAKEN: usize = 64;

/// Bytes of header and table.
pub(super) const FRONT_BYTES: usize = 64 << 10;
const _: () = assert!(TABLE + RINGS_MAX * ENTRY_BYTES <= FRONT_BYTES);

/// Place of a field of a ring's entry.
pub(super) const fn entry(ring: usize, field: usize) -> usize {
    TABLE + ring * ENTRY_BYTES + field
}

/// Frames that can wait in one ring: a link's window (256 frames), which at most a few unnumbered frames exceed.
/// In a model (`cfg(loom)`, here and below) so few that frames meet the ring's end.
pub(super) const SLOTS: usize = if cfg!(loom) { 2 } else { 256 };
/// Four cache lines. An 8-byte message takes two of them.
pub(super) const SLOT_BYTES: usize = 256;
/// Bytes for frames that do not fit slots: four of the longest frames, and four windows of copied payload.
pub(super) const AREA_BYTES: usize = if cfg!(loom) { 640 } else { 1 << 20 };
/// Where the area begins in a ring.
pub(super) const AREA: usize = SLOTS * SLOT_BYTES;
/// Bytes of one ring.
pub(super) const RING_BYTES: usize = AREA + AREA_BYTES;
const _: () = assert!((cfg!(loom) || RING_BYTES.is_multiple_of(64 << 10)) && SLOTS.is_power_of_two());

/// Bytes of a whole segment.
pub(super) const SEGMENT_BYTES: usize = FRONT_BYTES + RINGS_MAX * RING_BYTES;

/// Where ring `ring` begins in the segment.
pub(super) const fn ring_at(ring: usize) -> usize {
    FRONT_BYTES + ring * RING_BYTES
}

/// Where slot of frame `number` begins in its ring.
pub(super) fn slot_at(number: u64) -> usize {
    usize::try_from(number % SLOTS as u64).unwrap_or(0) * SLOT_BYTES
}

/// Bytes of a cache line: the first one of a slot has its word.
pub(super) const SLOT_LINE_BYTES: usize = 64;
pub(super) const SLOT_BODY: usize = 8;
pub(super) const SLOT_PLACE: usize = 8;
pub(super) const SLOT_LONG_BYTES: usize = 12;
pub(super) const SLOT_PAYLOAD_BYTES: usize = 16;
pub(super) const SLOT_STATE: usize = 20;
pub(super) const SLOT_ADDRESS: usize = 24;
pub(super) const SLOT_HEAD: usize = 32;
/// Longest frame of kind inline.
pub(super) const INLINE_BYTES_MAX: usize = SLOT_BYTES - SLOT_BODY;
/// Longest head of kind split.
pub(super) const HEAD_BYTES_MAX: usize = SLOT_BYTES - SLOT_HEAD;

/// How a frame lies in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Inline,
    Long,
    Split,
}

/// The word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotWord {
    pub(super) kind: Kind,
    /// The first frame since its sender claimed the ring.
    pub(super) first: bool,
    /// Bytes of the frame (inline) or of the head (split).
    pub(super) bytes: usize,
}

impl SlotWord {
    /// The word for frame `number`.
    pub(super) fn encode(self, number: u64) -> u64 {
        let kind = match self.kind {
            Kind::Inline => 1,
            Kind::Long => 2,
            Kind::Split => 3,
        };
        debug_assert!(self.bytes < SLOT_BYTES);
        u64::from(lap(number)) | kind << 32 | u64::from(self.first) << 40 | (self.bytes as u64) << 48
    }

    /// `None`: frame `number` has not been written yet. `Err`: the writer writes nonsense.
    pub(super) fn decode(word: u64, number: u64) -> Option<Result<SlotWord, ()>> {
        if word & 0xffff_ffff != u64::from(lap(number)) {
            return None;
        }
        let kind = match word >> 32 & 0xff {
            1 => Kind::Inline,
            2 => Kind::Long,
            3 => Kind::Split,
            _ => return Some(Err(())),
        };
        let bytes_max = match kind {
            Kind::Inline => INLINE_BYTES_MAX,
            Kind::Long => 0,
            Kind::Split => HEAD_BYTES_MAX,
        };
        let bytes = usize::try_from(word >> 48).unwrap_or(usize::MAX);
        Some(if bytes <= bytes_max {
            Ok(SlotWord { kind, first: word >> 40 & 1 == 1, bytes })
        } else {
            Err(())
        })
    }
}

/// The mark by which a slot's word is of frame `number` and not of an earlier one: the lap of the ring, from
/// 1, modulo 2^32.
fn lap(number: u64) -> u32 {
    let laps = number / SLOTS as u64 + 1;
    u32::try_from(laps & 0xffff_ffff).unwrap_or(0)
}

// States of a payload that lies outside its slot.

/// In the area.
pub(super) const COPIED: u32 = 1;
/// In the sender's memory, which does not change before this state does.
pub(super) const OFFERED: u32 = 2;
/// Was offered, has been read.
pub(super) const TAKEN: u32 = 3;
/// Was offered, is not any more: the frame is lost.
pub(super) const WITHDRAWN: u32 = 4;

/// The receiver can read the sender's memory.
pub(super) const PULL_PERMITTED: u32 = 1;
/// It cannot.
pub(super) const PULL_REFUSED: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_of_one_lap_only() {
        let word = SlotWord { kind: Kind::Split, first: true, bytes: 96 };
        let number = 5 * SLOTS as u64 + 3;
        let encoded = word.encode(number);
        assert_eq!(SlotWord::decode(encoded, number), Some(Ok(word)));
        assert_eq!(SlotWord::decode(encoded, number + SLOTS as u64), None);
        assert_eq!(SlotWord::decode(encoded, number - SLOTS as u64), None);
        assert_eq!(SlotWord::decode(0, 0), None, "fresh memory holds no frame");
    }

    #[test]
    fn lengths_beyond_the_slot_are_nonsense() {
        let good = SlotWord { kind: Kind::Inline, first: false, bytes: INLINE_BYTES_MAX }.encode(0);
        assert!(SlotWord::decode(good, 0).is_some_and(|word| word.is_ok()));
        assert_eq!(SlotWord::decode(good + (1 << 48), 0), Some(Err(())));
        assert_eq!(SlotWord::decode(good | 0xf << 32, 0), Some(Err(())));
    }
}
