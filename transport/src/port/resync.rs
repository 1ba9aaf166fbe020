//! After a restart: both ends of a link report their counters, and messages that the peer has not counted are queued
//! again (R10).

use crate::ids::{Epoch, LinkIndex};
use crate::link::queues::{Pending, SentBody, Stream};
use crate::link::timer::NEVER;
use crate::link::{Flags, expand_sequence};
use crate::message::Event;
use crate::port::Port;
use crate::sabotage::Rule;
use crate::wire::{Body, Frame};

impl Port {
    /// R10: the peer's number, reported in that epoch, must lie between the oldest frame that we hold and the next that
    /// we would send.
    pub(crate) fn fits_ours(&mut self, index: LinkIndex, peer_expected: u64, epoch: Epoch) -> bool {
        let link = &self.links[index.0 as usize];
        let (oldest_held, next, peer) = (link.acked, link.next, link.peer);
        // R4: a number as of the peer's cut. It may have counted, and acknowledged, more since.
        let is_past = epoch < link.peer_epoch && !self.sabotage.has(Rule::StaleResync);
        if (oldest_held..=next).contains(&peer_expected) || is_past && peer_expected < oldest_held {
            return true;
        }
        let event = Event::Inconsistent { link: index, peer, peer_expected, oldest_held, next };
        self.break_link(index, event);
        false
    }

    /// The first frame heard after a restart carries the number that the peer expects (R10).
    pub(crate) fn finish_resync(&mut self, index: LinkIndex, frame: &Frame<'_>, now: u64) -> bool {
        let peer_expected = match frame.body {
            Body::Resync(resync) => resync.expected,
            _ => expand_sequence(self.links[index.0 as usize].acked, frame.header.ack),
        };
        if !self.fits_ours(index, peer_expected, frame.header.epoch) {
            return false;
        }
        let link = &mut self.links[index.0 as usize];
        link.flags.remove(Flags::RESYNC);
        if let Body::Resync(resync) = frame.body
            && resync.heard != 0
        {
            link.flags.remove(Flags::RESYNC_DUE);
        }
        self.acknowledge(index, peer_expected, 0, None, now);
        self.unnumber(index);
        let link = &mut self.links[index.0 as usize];
        link.recovery.back_off = 0;
        link.timers.probe = NEVER;
        self.make_ready(index);
        true
    }

    /// Takes the numbers back from everything that the peer has not counted. In this life nothing of it has been sent, so
    /// the numbers may be given out again, to fragments cut for the frames of the rails that there are now.
    fn unnumber(&mut self, index: LinkIndex) {
        let link = &mut self.links[index.0 as usize];
        link.next = link.acked;
        // R4: a number that is given out again does not name the frame that it named at our cut.
        link.before_cut.next = link.before_cut.next.min(link.next);
        link.flight_bytes = 0;
        link.copied_bytes = 0;
        link.copied_frames = 0;
        let Some(queues) = &mut link.queues else { return };
        queues.lost.clear();
        // From the newest to the oldest, each to the head of its queue: their order stays.
        while let Some((frame, _)) = queues.pop_newest() {
            let start = frame.start.get();
            let Some(body) = frame.body() else { continue };
            match body {
                SentBody::Eager { envelope, .. } => queues.queue_again(envelope, start, 0),
                SentBody::More { envelope, offset, .. } => queues.queue_again(envelope, start, offset),
                SentBody::Rts { op } => {
                    link.announced = link.announced.saturating_sub(1);
                    let converted = self.sends.get(&op).filter(|send| send.owned.is_some());
                    match converted.map(|send| send.envelope) {
                        Some(envelope) => {
                            // Its payload is still in the ring, and the peer may have a window by now.
                            queues.queue_again(envelope, start - envelope.total, 0);
                            self.sends.remove(&op);
                        }
                        None => queues.pending.push_front(Pending::Rts { op }),
                    }
                }
                SentBody::Cts { op, total } => {
                    queues.control.push_front(crate::link::queues::Control::Cts { op, total });
                }
                SentBody::Data { op, offset } => {
                    let end = self.sends.get(&op).and_then(|send| send.granted).unwrap_or(offset);
                    match queues.streams.iter_mut().find(|stream| stream.op == op) {
                        Some(stream) => stream.offset = offset,
                        None => queues.streams.push_front(Stream { op, offset, end }),
                    }
                }
                SentBody::Close => link.flags.remove(Flags::CLOSE_SENT),
            }
        }
    }
}
