//! The short way of a short message: nothing stands before it and only one rail comes into question, so it becomes a frame at once, and waits in no
//! queue.

use crate::ids::{AddressId, LinkIndex, OpId, RailIndex};
use crate::link::queues::Envelope;
use crate::link::record::FrameRecord;
use crate::link::timer::NEVER;
use crate::link::{Flags, Link, Path};
use crate::message::Outgoing;
use crate::port::Port;
use crate::port::rails::Rail;
use crate::port::transmit::{Source, eager};
use crate::time::Instant;
use crate::{config, wire};

/// A message that has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// Its operation.
    pub op: OpId,
    /// Where its frame goes, as the rail's driver knows it.
    pub to: AddressId,
    /// Bytes written into the frame buffer.
    pub frame_bytes: usize,
}

impl Port {
    /// Sends a message over `rail`, which ends at this host or is the only one to the peer, in one frame, which it writes into `frame`: exactly what
    /// [`Port::send`] and then [`Port::poll_transmit`] would do if nothing else waits. `None`: something does, or something about the link, the window
    /// or the rails wants the longer way; nothing has happened then.
    #[inline]
    pub fn send_short(
        &mut self,
        now: Instant,
        rail: RailIndex,
        index: LinkIndex,
        outgoing: &Outgoing,
        payload: &[u8],
        frame: &mut [u8],
    ) -> Option<Short> {
        let now = self.port_time(now);
        let way = self.rails.get(usize::from(rail.0))?;
        if !way.is_trusted(now) || config::CHECKPOINTABLE && self.news_due {
            return None;
        }
        let link = self.links.get(index.0 as usize)?;
        let to = link.paths[usize::from(rail.0)]?.address;
        if !way.within_host && self.has_choice(link) {
            return None;
        }
        if !link.may_send_at_once(payload.len()) || link.before_cut(self.epoch).is_some() {
            return None;
        }
        if payload.len() > self.room(index, rail, wire::EAGER_BYTES, frame) {
            return None;
        }
        let start = self.links[index.0 as usize].queues.as_mut()?.copied.push(payload).ok()?;
        let op = OpId(self.next_op);
        self.next_op += 1;
        let envelope = Envelope {
            space: outgoing.space,
            tag: outgoing.tag,
            data: outgoing.data,
            total: payload.len() as u64,
            op,
            context: outgoing.context,
            silent: outgoing.silent,
        };
        let mut kept = FrameRecord::of_message(FrameRecord::EAGER, &envelope);
        kept.flags |= FrameRecord::LAST;
        let source = Source::Ring { start, bytes: payload.len() };
        self.links[index.0 as usize].flags.remove(Flags::STREAM_TURN);
        let transmit = self.number(index, kept, &eager(&envelope), start, source, rail, now, frame);
        self.arm(index);
        Some(Short { op, to, frame_bytes: transmit.frame_bytes })
    }

    /// Whether several rails lead to the peer: which of them carries a frame is decided the longer way (R24).
    fn has_choice(&self, link: &Link) -> bool {
        let leads = |(rail, path): &(&Rail, &Option<Path>)| rail.alive && path.is_some();
        self.rails.iter().zip(&link.paths).filter(leads).nth(1).is_some()
    }
}

impl Link {
    /// Whether a message of so many bytes, sent now, would be the link's next frame: nothing waits, and the window is open for it.
    fn may_send_at_once(&self, bytes: usize) -> bool {
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
            && self.queues.as_ref().is_some_and(|queues| queues.nothing_to_send() && queues.lost.is_empty())
    }
}
