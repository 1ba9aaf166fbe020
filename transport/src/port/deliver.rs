//! The effect of a numbered frame once it is its turn.

use alloc::vec::Vec;

use crate::config::INCOMING_MAX;
use crate::ids::LinkIndex;
use crate::link::Flags;
use crate::link::queues::Stream;
use crate::link::receive::{Incoming, Open, Target};
use crate::matching::{Envelope, Message, Placement, Receive};
use crate::message::{Buffers, Event, Piece};
use crate::port::receive::fits;
use crate::port::{Arrived, Port, received};
use crate::sabotage::Rule;
use crate::wire::{Body, Cts, Data, Eager, Rts};

impl Port {
    /// Performs a numbered frame. False: it could not be counted now and must be retransmitted.
    pub(crate) fn deliver(
        &mut self,
        index: LinkIndex,
        body: Body,
        payload: Piece<'_>,
        buffers: &mut impl Buffers,
    ) -> bool {
        if self.links[index.0 as usize].flags.contains(Flags::PEER_CLOSED) && !matches!(body, Body::Cts(_)) {
            self.counters.dropped_out_of_turn += 1;
            return true;
        }
        match body {
            Body::Eager(eager) => self.deliver_eager(index, &eager, payload.here(), buffers),
            Body::More => self.deliver_more(index, payload.here(), buffers),
            Body::Rts(rts) => self.deliver_rts(index, &rts),
            Body::Cts(cts) => self.deliver_cts(index, &cts),
            Body::Data(data) => self.deliver_data(index, &data, payload, buffers),
            Body::Close => {
                let link = &mut self.links[index.0 as usize];
                link.flags.insert(Flags::PEER_CLOSED);
                let peer = link.peer;
                self.events.push_back(Event::PeerClosed { link: index, peer });
                self.ack_now(index);
                true
            }
            Body::Ack | Body::Probe | Body::Stopped(_) | Body::Resync(_) => true,
        }
    }

    /// R17: whether `bytes` of unexpected payload, and so many new messages, may be kept: within the bounds,
    /// or within the promise to this link.
    fn has_room(&self, index: LinkIndex, bytes: usize, messages: u16) -> bool {
        let link = &self.links[index.0 as usize];
        let bounds = self.unexpected_bytes + bytes <= self.config.unexpected_bytes_max
            && self.matcher.unexpected_len() + usize::from(messages) <= self.config.unexpected_entries_max;
        let promised = bytes <= link.promised_bytes as usize && messages <= link.promised_frames;
        bounds || promised || self.sabotage.has(Rule::WindowBounds)
    }

    pub(super) fn use_promise(&mut self, index: LinkIndex, bytes: usize, messages: u16) {
        let link = &mut self.links[index.0 as usize];
        link.promised_bytes = link.promised_bytes.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        link.promised_frames = link.promised_frames.saturating_sub(messages);
    }

    /// A message that came in one frame is where its receive wants it.
    #[inline]
    pub(super) fn report_received(
        &mut self,
        index: LinkIndex,
        eager: &Eager,
        receive: &Receive,
        placement: Placement,
    ) {
        let finished = self.fill_at_once(receive.op, placement.last);
        self.events.push_back(Event::Received {
            op: receive.op,
            context: receive.context,
            source: index,
            tag: eager.tag,
            data: eager.data,
            offset: placement.offset,
            bytes: placement.bytes,
            sent_bytes: eager.total,
            finished,
        });
    }

    fn deliver_eager(
        &mut self,
        index: LinkIndex,
        eager: &Eager,
        payload: &[u8],
        buffers: &mut impl Buffers,
    ) -> bool {
        let bytes = payload.len() as u64;
        let already_open =
            self.links[index.0 as usize].queues.as_ref().is_some_and(|queues| queues.open.is_some());
        if bytes > eager.total || already_open {
            self.counters.dropped_nonsense += 1;
            return true;
        }
        let envelope = Envelope {
            source: index,
            space: eager.space,
            tag: eager.tag,
            data: eager.data,
            bytes: eager.total,
        };
        let whole = bytes == eager.total;
        let target = if let Some((receive, placement)) = self.matcher.take_receive(&envelope) {
            let stored = payload.len().min(usize::try_from(placement.bytes).unwrap_or(usize::MAX));
            if stored > 0 {
                buffers.place(receive.op, placement.offset, &payload[..stored]);
            }
            if whole {
                self.report_received(index, eager, &receive, placement);
            } else if receive.multi.is_some() {
                self.begin_multi_recv(receive.op);
            }
            Target::Posted {
                op: receive.op,
                context: receive.context,
                base: placement.offset,
                bytes: placement.bytes,
                finished: placement.last,
            }
        } else {
            if !self.has_room(index, payload.len(), 1) {
                self.counters.dropped_window += 1;
                return false;
            }
            let message = Message { envelope, finished: whole, payload: Arrived::Copied(payload.to_vec()) };
            let Ok(key) = self.matcher.hold(message) else {
                self.counters.dropped_no_room += 1;
                return false;
            };
            self.counters.messages_unexpected += 1;
            self.unexpected_bytes += payload.len();
            Target::Waiting(key)
        };
        self.use_promise(index, payload.len(), 1);
        if !whole {
            let open = Open { target, tag: eager.tag, data: eager.data, total: eager.total, received: bytes };
            let copied_bytes_max = self.config.link_copied_bytes_max;
            self.links[index.0 as usize].queues(copied_bytes_max).open = Some(open);
        }
        true
    }

    fn deliver_more(&mut self, index: LinkIndex, payload: &[u8], buffers: &mut impl Buffers) -> bool {
        let open = self.links[index.0 as usize].queues.as_ref().and_then(|queues| queues.open);
        let Some(mut open) = open.filter(|open| fits(open.received, payload.len(), open.total)) else {
            self.counters.dropped_nonsense += 1;
            return true;
        };
        let at = open.received;
        let whole = at + payload.len() as u64 == open.total;
        match open.target {
            Target::Posted { op, context, base, bytes, finished } => {
                let stored = bytes.saturating_sub(at).min(payload.len() as u64);
                if stored > 0 {
                    let stored = usize::try_from(stored).unwrap_or(usize::MAX);
                    buffers.place(op, base + at, &payload[..stored]);
                }
                if whole {
                    let finished = self.end_multi_recv(op, finished);
                    self.events.push_back(Event::Received {
                        op,
                        context,
                        source: index,
                        tag: open.tag,
                        data: open.data,
                        offset: base,
                        bytes,
                        sent_bytes: open.total,
                        finished,
                    });
                }
            }
            Target::Waiting(key) => {
                if !self.has_room(index, payload.len(), 0) {
                    self.counters.dropped_window += 1;
                    return false;
                }
                if let Some(Arrived::Copied(held)) = self.matcher.payload_mut(key) {
                    held.extend_from_slice(payload);
                    self.unexpected_bytes += payload.len();
                }
                if whole {
                    self.matcher.finish(key);
                }
            }
            Target::Nowhere => {}
        }
        self.use_promise(index, payload.len(), 0);
        open.received += payload.len() as u64;
        if let Some(queues) = &mut self.links[index.0 as usize].queues {
            queues.open = (!whole).then_some(open);
        }
        true
    }

    fn deliver_rts(&mut self, index: LinkIndex, rts: &Rts) -> bool {
        let envelope =
            Envelope { source: index, space: rts.space, tag: rts.tag, data: rts.data, bytes: rts.total };
        if let Some((receive, placement)) = self.matcher.take_receive(&envelope) {
            self.keep_place(index, rts.operation, rts.place);
            let incoming = Incoming {
                peer_op: rts.operation,
                op: receive.op,
                context: receive.context,
                base: placement.offset,
                finished: placement.last,
                tag: rts.tag,
                data: rts.data,
                total: rts.total,
                granted: placement.bytes,
                received: 0,
            };
            self.send_cts(index, incoming, receive.multi.is_some());
            return true;
        }
        let message = Message { envelope, finished: true, payload: Arrived::Announced(rts.operation) };
        if self.matcher.hold(message).is_err() {
            self.counters.dropped_no_room += 1;
            return false;
        }
        self.keep_place(index, rts.operation, rts.place);
        self.counters.messages_unexpected += 1;
        true
    }

    fn deliver_cts(&mut self, index: LinkIndex, cts: &Cts) -> bool {
        let op = cts.operation;
        let known = self
            .sends
            .get_mut(&op)
            .filter(|send| send.link == index && send.granted.is_none() && cts.total <= send.envelope.total);
        let Some(send) = known else {
            self.counters.dropped_nonsense += 1;
            return true;
        };
        send.granted = Some(cts.total);
        let link = &mut self.links[index.0 as usize];
        link.announced = link.announced.saturating_sub(1);
        if cts.total == 0 {
            self.finish_send(op);
        } else {
            let copied_bytes_max = self.config.link_copied_bytes_max;
            let stream = Stream { op, offset: 0, end: cts.total };
            link.queues(copied_bytes_max).streams.push_back(stream);
        }
        self.make_ready(index);
        true
    }

    /// R18: a piece, named by operation and offset.
    fn deliver_data(
        &mut self,
        index: LinkIndex,
        data: &Data,
        payload: Piece<'_>,
        buffers: &mut impl Buffers,
    ) -> bool {
        let incomings: &mut Vec<Incoming> = match &mut self.links[index.0 as usize].queues {
            Some(queues) => &mut queues.incoming,
            None => {
                self.counters.dropped_nonsense += 1;
                return true;
            }
        };
        debug_assert!(incomings.len() <= INCOMING_MAX);
        let place = incomings.iter().position(|incoming| incoming.peer_op == data.operation);
        let Some((place, incoming)) = place
            .and_then(|place| Some((place, incomings.get_mut(place)?)))
            .filter(|(_, incoming)| fits(data.offset, payload.len(), incoming.granted))
        else {
            self.counters.dropped_nonsense += 1;
            return true;
        };
        if !payload.store(incoming.op, incoming.base + data.offset, buffers) {
            self.counters.dropped_not_fetched += 1;
            return false;
        }
        incoming.received += payload.len() as u64;
        if incoming.received >= incoming.granted {
            let mut done = incomings.remove(place);
            done.finished = self.end_multi_recv(done.op, done.finished);
            self.events.push_back(received(index, &done));
        }
        true
    }
}
