//! One link: the reliable ordered channel between two ports, numbered frames in each direction.
//!
//! A link is data with a few small machines around it, a file each: sending and acknowledgements ([`send`]), receiving
//! and reordering ([`receive`]), loss detection ([`recovery`]), the congestion window ([`congestion`]), the timer
//! ([`timer`]). It knows no NIC, no buffer and no clock.

pub(crate) mod congestion;
pub(crate) mod queues;
pub(crate) mod receive;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod send;
pub(crate) mod timer;

use alloc::boxed::Box;
use core::num::NonZeroU32;

use crate::config::{CHECKPOINTABLE, RAILS_MAX};
use crate::ids::{AddressId, Epoch, PortId};
use crate::wire;
use queues::{Queues, Sent};
use record::FrameRecord;
use recovery::Recovery;
use timer::Timers;

/// Copied bytes that a sender may have in flight before the receiver has advertised its window.
pub(crate) const WINDOW_BYTES_INITIAL: u32 = 32 << 10;
/// Frames with copied payload, likewise.
pub(crate) const WINDOW_FRAMES_INITIAL: u16 = 64;

/// The way to a peer over one rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub(crate) address: AddressId,
    /// Bytes of the largest frame on this path.
    pub(crate) frame_bytes_max: NonZeroU32,
}

bitflags::bitflags! {
    /// The state of a link. Kept as bits because thousands of idle links cost memory.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(crate) struct Flags: u32 {
        /// The peer has sent a frame that names our link index: contacts are no longer needed.
        const KNOWN_BY_PEER = 1;
        /// Stands in the port's queue of links with something to send.
        const READY = 1 << 1;
        /// An acknowledgement is due now.
        const ACK_NOW = 1 << 2;
        /// After a restart: nothing has been heard from the peer in this life, and only resyncs may be sent.
        const RESYNC = 1 << 3;
        /// A resync has to be sent.
        const RESYNC_DUE = 1 << 4;
        /// A STOPPED hint has to be sent.
        const HINT_DUE = 1 << 5;
        /// A probe has to be sent.
        const PROBE_DUE = 1 << 6;
        /// We send no further message; a close follows the last one.
        const CLOSING = 1 << 7;
        /// The close has been numbered.
        const CLOSE_SENT = 1 << 8;
        /// The peer has closed its direction.
        const PEER_CLOSED = 1 << 9;
        /// The last advertised window was too small to be useful: advertise when there is room again.
        const STARVED = 1 << 10;
        /// [`crate::Event::PeerSilent`] with `Slow` has been reported.
        const SLOW = 1 << 11;
        /// [`crate::Event::PeerSilent`] with `Gone` has been reported.
        const GONE = 1 << 12;
        /// Counters of both ends contradict each other: nothing more is done on this link.
        const BROKEN = 1 << 13;
        /// Streams and messages take turns; set when a stream was served last.
        const STREAM_TURN = 1 << 14;
        /// A piece of bulk was held back by the congestion window.
        const FLIGHT_LIMITED = 1 << 15;
        /// A frame without a number has carried the state of our cut to a peer that has not cut; one with the
        /// present state follows.
        const PAST_TOLD = 1 << 16;
    }
}

/// The counters of a link at our last cut: a frame that was on its way at that instant could carry these.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct BeforeCut {
    /// Frames below had been numbered.
    pub(crate) next: u64,
    /// Frames below had been counted.
    pub(crate) expected: u64,
}

/// One end of a link. Numbers are the full 64-bit counts.
///
/// ```text
///      acked            next
/// .......|--in flight-----|--may be sent--|........      (sending)
///     expected
/// .......|--reorder buffer-----|...................      (receiving)
/// ```
///
/// Fields that an image holds come first and lie in one cache line: a dump of thousands of links reads no other of an
/// idle one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Link {
    /// The port at the other end.
    pub(crate) peer: PortId,
    /// Number of the next frame to send.
    pub(crate) next: u64,
    /// Number of the next frame to be counted.
    pub(crate) expected: u64,
    /// `expected` in the last frame we sent.
    pub(crate) ack_reported: u64,
    /// Everything that is waiting, in flight, or half received; `None` until there is traffic.
    pub(crate) queues: Option<Box<Queues>>,
    pub(crate) flags: Flags,
    /// Announced operations without a CTS.
    pub(crate) announced: u16,

    /// Copied frames in flight, and bytes below: they count against the peer's window.
    pub(crate) copied_frames: u16,
    /// Oldest frame not yet cumulatively acknowledged. `acked <= next`.
    pub(crate) acked: u64,
    /// Number of the next transmission: frames put on the wire, resends and unnumbered ones included, from 1.
    pub(crate) transmissions: u64,
    pub(crate) copied_bytes: u32,
    /// All payload bytes in flight: they count against the congestion window.
    pub(crate) flight_bytes: u32,
    /// Congestion window in bytes.
    pub(crate) congestion_bytes: u32,
    /// The window of the peer beyond its acknowledgement.
    pub(crate) peer_window_bytes: u32,
    pub(crate) peer_window_frames: u16,

    /// Copied messages that the peer may still send by the advertised window, and bytes below.
    pub(crate) promised_frames: u16,
    pub(crate) promised_bytes: u32,
    /// Newest transmission number of the peer; 0 before the first.
    pub(crate) newest: u64,
    /// Newest transmission number that was a sign of life: [`Link::newest`], or that of a frame of a higher epoch.
    pub(crate) heard: u64,
    /// When the peer was last heard, and since when it owes us something; port time, nanoseconds.
    pub(crate) heard_at: u64,
    /// Frames counted since the last acknowledgement.
    pub(crate) unacknowledged: u16,
    /// Rail over which the newest was heard.
    pub(crate) heard_rail: u8,

    /// Highest epoch heard from the peer.
    pub(crate) peer_epoch: Epoch,
    /// Index of the link at the peer, once known.
    pub(crate) peer_index: Option<u32>,
    /// Where the peer can be reached, per rail.
    pub(crate) paths: [Option<Path>; RAILS_MAX],
    /// Pause number of the newest STOPPED hint.
    pub(crate) peer_pause: u64,
    pub(crate) recovery: Recovery,
    pub(crate) timers: Timers,
    /// Set by every cut; of use while the peer has not been heard to have cut too.
    pub(crate) before_cut: BeforeCut,
}

const _: () = assert!(core::mem::offset_of!(Link, acked) < 64, "what an image holds lies in one cache line");
const _: () = assert!(size_of::<Link>() <= 256, "an idle link costs at most 256 bytes (design)");

impl Link {
    pub(crate) fn new(peer: PortId, congestion_bytes: u32, window_bytes: u32, window_frames: u16) -> Link {
        Link {
            peer,
            paths: [None; RAILS_MAX],
            peer_index: None,
            peer_epoch: Epoch(0),
            flags: Flags::default(),
            next: 0,
            acked: 0,
            transmissions: 1,
            peer_window_bytes: window_bytes,
            peer_window_frames: window_frames,
            copied_frames: 0,
            copied_bytes: 0,
            flight_bytes: 0,
            congestion_bytes,
            announced: 0,
            expected: 0,
            ack_reported: 0,
            newest: 0,
            promised_bytes: window_bytes,
            promised_frames: window_frames,
            heard: 0,
            heard_rail: 0,
            unacknowledged: 0,
            peer_pause: 0,
            heard_at: 0,
            recovery: Recovery::default(),
            timers: Timers::default(),
            before_cut: BeforeCut::default(),
            queues: None,
        }
    }

    /// The queues, made on first use.
    pub(crate) fn queues(&mut self, copied_bytes_max: usize) -> &mut Queues {
        self.queues.get_or_insert_with(|| Box::new(Queues::new(copied_bytes_max)))
    }

    /// Whether anything was ever sent or received: such a link has to resynchronise after a restart.
    pub(crate) fn has_history(&self) -> bool {
        self.next > 0 || self.expected > 0
    }

    /// Whether the peer may well be waiting for us or sending to us: we have something in flight, or it was heard since
    /// `recent`.
    pub(crate) fn is_active(&self, recent: u64) -> bool {
        self.in_flight() > 0 || self.has_history() && self.heard_at >= recent
    }

    /// R4: while the peer has not been heard to have cut, frames from before our own cut may be sent again, unchanged:
    /// such a frame equals one that was on its way at that instant.
    pub(crate) fn before_cut(&self, epoch: Epoch) -> Option<BeforeCut> {
        (CHECKPOINTABLE && self.peer_epoch < epoch).then_some(self.before_cut)
    }

    /// Whether the next frame without a number carries the state before our cut. Such frames and ones with
    /// the present state take turns: a peer that has not cut can read the first, and learns from the second
    /// that we have.
    pub(crate) fn takes_past_turn(&mut self, epoch: Epoch) -> bool {
        let past = self.before_cut(epoch).is_some() && !self.flags.contains(Flags::PAST_TOLD);
        self.flags.set(Flags::PAST_TOLD, past);
        past
    }

    /// Counts a frame that is put on the wire and advertises these windows; returns its transmission number.
    pub(crate) fn count_transmission(&mut self, window_bytes: u32, window_frames: u16) -> u64 {
        self.promised_bytes = self.promised_bytes.max(window_bytes);
        self.promised_frames = self.promised_frames.max(window_frames);
        let transmission = self.transmissions;
        self.transmissions += 1;
        transmission
    }

    /// A frame has acknowledged all that we have received.
    pub(crate) fn answer(&mut self) {
        self.ack_reported = self.expected;
        self.unacknowledged = 0;
        self.timers.ack = timer::NEVER;
        self.flags.remove(Flags::ACK_NOW);
    }

    /// Numbered frames that the peer has not acknowledged.
    pub(crate) fn in_flight(&self) -> u64 {
        self.next - self.acked
    }

    /// Nothing waits, nothing is unacknowledged, nothing is half sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.acked == self.next
            && self.announced == 0
            && self.queues.as_ref().is_none_or(|queues| queues.nothing_to_send())
    }

    /// Bytes of a frame when it is sent again. Bodies that come without a payload count nothing: every rail takes them.
    pub(crate) fn bytes_again(&self, kept: &FrameRecord, sent: &Sent) -> usize {
        let body_bytes = match kept.kind {
            FrameRecord::EAGER => wire::EAGER_BYTES,
            FrameRecord::DATA => wire::DATA_BYTES,
            _ => 0,
        };
        let contact = if self.needs_contact() { wire::CONTACT_BYTES } else { 0 };
        wire::HEADER_BYTES + contact + body_bytes + sent.payload_bytes as usize
    }

    /// Whether a frame to this peer still has to contain our identity.
    pub(crate) fn needs_contact(&self) -> bool {
        self.peer_index.is_none() || !self.flags.contains(Flags::KNOWN_BY_PEER)
    }
}

/// Windows and promises of a link that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    pub(crate) congestion_bytes: u32,
    pub(crate) window_bytes: u32,
    pub(crate) window_frames: u16,
    /// What the peer may have been promised before: it retransmits frames that it had in flight by that.
    pub(crate) promised_bytes: u32,
    pub(crate) promised_frames: u16,
}

impl Link {
    /// One of the two ends is another process now, at another address: everything is forgotten that the ends know about each other, except their counters and
    /// the queued messages, and a link that was used resynchronises before it sends anything else (R10). The owner of the port's queues keeps these in step.
    pub(crate) fn begin_again(&mut self, epoch: Epoch, beginning: Beginning) {
        let Beginning { congestion_bytes, window_bytes, window_frames, promised_bytes, promised_frames } =
            beginning;
        self.peer_index = None;
        self.paths = Default::default();
        // R4 would have it resynchronise by the counters of our cut, although it may have counted more in the other process.
        self.peer_epoch = epoch;
        self.flags &= Flags::CLOSING | Flags::CLOSE_SENT | Flags::PEER_CLOSED;
        self.transmissions = 1;
        self.newest = 0;
        self.heard = 0;
        self.unacknowledged = 0;
        self.ack_reported = self.expected;
        self.peer_window_bytes = window_bytes;
        self.peer_window_frames = window_frames;
        self.congestion_bytes = congestion_bytes;
        self.promised_bytes = promised_bytes;
        self.promised_frames = promised_frames;
        self.peer_pause = 0;
        self.heard_at = 0;
        self.recovery = Recovery::default();
        self.timers = Timers::default();
        if let Some(queues) = &mut self.queues {
            queues.pulls.clear();
            queues.places.clear();
            queues.reorder.clear();
        }
        self.lose_all(false);
        if self.has_history() {
            self.flags.insert(Flags::RESYNC | Flags::RESYNC_DUE);
        }
    }
}

/// R14: the full number whose low half is `low` and which lies nearest to `near` (half the 32-bit space on either side).
pub(crate) fn expand_sequence(near: u64, low: u32) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is compared")]
    let ahead = low.wrapping_sub(near as u32).cast_signed();
    near.wrapping_add_signed(i64::from(ahead))
}

/// The low half of a number, as frames carry it (R14).
pub(crate) fn low(number: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the wire carries the low half")]
    let half = number as u32;
    half
}

#[cfg(test)]
mod tests {
    use super::{expand_sequence, low};

    #[test]
    fn numbers_unwrap_to_the_nearest() {
        for near in [0u64, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000, 0x5_ffff_fff0] {
            for ahead in [-5i64, -1, 0, 1, 5, 0x7fff_0000] {
                let Some(number) = near.checked_add_signed(ahead) else { continue };
                assert_eq!(expand_sequence(near, low(number)), number, "near {near:#x} ahead {ahead}");
            }
        }
    }
}
