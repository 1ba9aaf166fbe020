//! The fast path of a short message: nothing stands before it and only one rail comes into question, so it becomes a frame at once, and waits in no
//! queue.

use crate::auth::Context;
use crate::ids::{AddressId, LinkIndex, OpId, RailIndex};
use crate::link::queues::Envelope;
use crate::link::record::FrameRecord;
use crate::link::timer::NEVER;
use crate::link::{Flags, Link, Path, low};
use crate::message::Outgoing;
use crate::port::Port;
use crate::port::rails::Rail;
use crate::time::Instant;
use crate::wire::{Eager, Flags as HeaderFlags, Header, Kind, SINGLE_HEAD_BYTES, TAG_BYTES, emit_single};
use crate::{config, wire};

impl Port {
    /// Sends a message over `rail`, which ends at this host or is the only one to the peer, in one frame. It
    /// writes the frame into `frame` and gives it to `hand` with the address that it goes to. The effect is
    /// exactly that of [`Port::send`] and then [`Port::poll_transmit`] if nothing else waits, but the frame
    /// is on its way before the port writes down that it was sent. `hand` reports the time of that: nothing
    /// before needs to know. `None`: something waits, or something about the link, the window or the rails
    /// wants the slow path; nothing has happened then.
    #[inline]
    pub fn send_fast(
        &mut self,
        rail: RailIndex,
        index: LinkIndex,
        outgoing: &Outgoing,
        payload: &[u8],
        frame: &mut [u8],
        hand: impl FnOnce(AddressId, &[u8]) -> Instant,
    ) -> Option<OpId> {
        let way = self.rails.get(usize::from(rail.0))?;
        let link = self.links.get(index.0 as usize)?;
        // By a time in the past, for the clock is read when the frame has left: a suspicion that was over then is over now.
        if !way.is_trusted(link.heard_at) || config::CHECKPOINTABLE && self.news_due {
            return None;
        }
        let to = link.paths[usize::from(rail.0)]?.address;
        if !way.within_host && self.has_choice(link) {
            return None;
        }
        if !link.may_send_fast(payload.len()) || link.before_cut(self.epoch).is_some() {
            return None;
        }
        let (window_bytes, window_frames) = (self.window_bytes(), self.window_frames());
        if payload.len() > self.room(index, rail, wire::EAGER_BYTES, frame)
            || self.is_starving(window_bytes, window_frames)
        {
            return None;
        }
        let payload_bytes = u32::try_from(payload.len()).ok()?;
        let mut flags = HeaderFlags::empty();
        flags.set(HeaderFlags::ACK_NOW, self.waits_for_ack(link, payload_bytes, true));
        let header = Header {
            kind: Kind::Eager,
            job: self.config.job,
            life: self.life_of_link(index),
            epoch: self.epoch,
            link: link.peer_index,
            seq: low(link.next),
            ack: low(link.expected),
            transmission: low(link.transmissions),
            echo: low(link.newest),
            window_bytes,
            selective: 0,
            window_frames,
            flags,
            payload_bytes,
            tag: [0; TAG_BYTES],
        };
        let total = u64::from(payload_bytes);
        let Outgoing { space, tag, data, context, silent } = *outgoing;
        let (header, body) = (header.words(), Eager { tag, data, total, space }.words());
        let head_bytes = SINGLE_HEAD_BYTES;
        let frame = &mut frame[..head_bytes + payload.len()];
        frame[head_bytes..].copy_from_slice(payload);
        let place = emit_single(frame, &header, &body);
        if let Some(auth) = self.authenticator_of(rail) {
            let context =
                Context { seq: link.next, transmission: link.transmissions, from: self.id, to: link.peer };
            if !auth.seal_short(context, header, body, place) {
                let unfinished = auth.seal(context, frame, head_bytes, false);
                debug_assert!(unfinished.is_none(), "the payload lies in the frame");
            }
        }
        let sent_at = hand(to, frame);
        let now = self.port_time(sent_at);
        // Before this frame is among those that wait for an acknowledgement.
        self.catch_up();
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.counters.frames_sent += 1;
        let mut kept = FrameRecord::of_message(
            FrameRecord::EAGER,
            &Envelope { space, tag, data, total, op, context, silent },
        );
        kept.flags |= FrameRecord::LAST;
        kept.bytes = payload_bytes.into();
        let link = &mut self.links[index.0 as usize];
        let start = link.queues.as_mut().and_then(|queues| queues.copied.push(payload).ok());
        kept.start = start.unwrap_or_else(|| unreachable!("the ring had room for it")).into();
        self.keep(index, kept, rail, now);
        let link = &mut self.links[index.0 as usize];
        link.flags.remove(Flags::STREAM_TURN);
        link.count_transmission(window_bytes, window_frames);
        link.answer();
        self.arm(index);
        Some(op)
    }

    /// Whether several rails lead to the peer: which of them carries a frame is decided on the slow path (R24).
    fn has_choice(&self, link: &Link) -> bool {
        let leads = |(rail, path): &(&Rail, &Option<Path>)| rail.alive && path.is_some();
        self.rails.iter().zip(&link.paths).filter(leads).nth(1).is_some()
    }
}

impl Link {
    /// Whether a message of so many bytes, sent now, would be the link's next frame: nothing waits, and the window is open for it.
    fn may_send_fast(&self, bytes: usize) -> bool {
        const WAITING: Flags = Flags::READY
            .union(Flags::ACK_NOW)
            .union(Flags::RESYNC)
            .union(Flags::RESYNC_DUE)
            .union(Flags::HINT_DUE)
            .union(Flags::PROBE_DUE)
            .union(Flags::CLOSING)
            .union(Flags::BROKEN);
        let room = self.peer_window_bytes.saturating_sub(self.copied_bytes) as usize;
        !self.flags.intersects(WAITING)
            && !self.needs_contact()
            && self.timers.stopped == NEVER
            && self.in_flight() < config::WINDOW_FRAMES_MAX
            && self.copied_frames < self.peer_window_frames
            && bytes <= room
            && self.queues.as_ref().is_some_and(|queues| {
                queues.nothing_to_send()
                    && queues.lost.is_empty()
                    && queues.reorder.is_empty()
                    && queues.copied.free() >= bytes
            })
    }
}
