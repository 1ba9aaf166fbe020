//! A link whose ends contradict each other (R10), or whose peer is gone for good (R37): it carries no more messages, and
//! waiting operations end with an error, so that no operation waits for ever.
//!
//! No image shows it: a port that is restarted from one finds out again, by the same numbers, that the generation must not be
//! used; and with a peer that was lost no image is taken.

use alloc::vec::Vec;

use crate::ids::{LinkIndex, OpId, PortId};
use crate::link::Flags;
use crate::link::queues::{Pending, Queues};
use crate::link::receive::Target;
use crate::link::record::FrameRecord;
use crate::link::timer::Timers;
use crate::matching::{Envelope, MessageKey};
use crate::message::Event;
use crate::port::{Arrived, Port};

impl Port {
    /// Gives a link up. `event` gives the reason, and is reported before the ends of open operations.
    pub(crate) fn break_link(&mut self, index: LinkIndex, event: Event) {
        let link = &mut self.links[index.0 as usize];
        if link.flags.contains(Flags::BROKEN) {
            return;
        }
        link.flags.insert(Flags::BROKEN);
        self.events.push_back(event);
        link.acked = link.next;
        link.announced = 0;
        link.copied_frames = 0;
        link.copied_bytes = 0;
        link.flight_bytes = 0;
        link.timers = Timers { armed: link.timers.armed, ..Timers::default() };
        if let Some(queues) = link.queues.take() {
            self.reorder_bytes -= queues.reorder.bytes();
            self.fail_receives_under_way(index, &queues);
            self.fail_copied_sends(&queues);
        }
        self.fail_announced_sends(index);
        self.fail_posted(index);
        self.pulling.retain(|pulled| *pulled != index);
    }

    /// R37: the process of `peer` has ended, and none takes its place in this life. Messages of it that are here stay.
    /// Nothing happens without a link to it.
    pub fn lose_peer(&mut self, peer: PortId) {
        if let Some(link) = self.link_to(peer) {
            self.break_link(link, Event::PeerLost { link, peer });
        }
    }

    /// Whether nothing comes over a link any more.
    pub(crate) fn is_broken(&self, index: LinkIndex) -> bool {
        self.links.get(index.0 as usize).is_some_and(|link| link.flags.contains(Flags::BROKEN))
    }

    /// A message that a receive has taken will not be complete. `finished`: the receive takes no further ones.
    pub(crate) fn fail_receive(&mut self, op: OpId, context: u64, message: &Envelope, finished: bool) {
        let (source, tag) = (message.source, message.tag);
        self.events.push_back(Event::ReceiveFailed { op, context, source, tag, finished });
    }

    fn fail_receives_under_way(&mut self, index: LinkIndex, queues: &Queues) {
        for incoming in &queues.incoming {
            let finished = self.end_multi_recv(incoming.op, incoming.finished);
            let (op, context, tag) = (incoming.op, incoming.context, incoming.tag);
            self.events.push_back(Event::ReceiveFailed { op, context, source: index, tag, finished });
        }
        let Some(open) = queues.open else { return };
        match open.target {
            Target::Posted { op, context, finished, .. } => {
                let finished = self.end_multi_recv(op, finished);
                self.events.push_back(Event::ReceiveFailed {
                    op,
                    context,
                    source: index,
                    tag: open.tag,
                    finished,
                });
            }
            Target::Waiting(key) => self.lose_rest(key),
            Target::Nowhere => {}
        }
    }

    /// The rest of a waiting message will not come: it waits like one of which nothing has come.
    fn lose_rest(&mut self, key: MessageKey) {
        let payload = self.matcher.payload_mut(key);
        if let Some(Arrived::Copied(held)) =
            payload.map(|payload| core::mem::replace(payload, Arrived::Announced(OpId(0))))
        {
            self.unexpected_bytes -= held.len();
            self.matcher.finish(key);
        }
    }

    fn fail_copied_sends(&mut self, queues: &Queues) {
        let numbered = queues.frames.iter().filter_map(FrameRecord::completes);
        let waiting = queues.pending.iter().filter_map(|pending| match pending {
            Pending::Copied { envelope, .. } if !envelope.silent => Some((envelope.op, envelope.context)),
            Pending::Copied { .. } | Pending::Rts { .. } => None,
        });
        self.events.extend(numbered.chain(waiting).map(|(op, context)| Event::SendFailed { op, context }));
    }

    fn fail_announced_sends(&mut self, index: LinkIndex) {
        let of_link = self.sends.values().filter(|send| send.link == index);
        let mut ops: Vec<OpId> = of_link.map(|send| send.envelope.op).collect();
        ops.sort_unstable();
        for op in ops {
            if let Some(send) = self.sends.remove(&op)
                && !send.envelope.silent
            {
                self.events.push_back(Event::SendFailed { op, context: send.envelope.context });
            }
        }
    }

    /// Receives for messages of this peer alone. Others may be given to any peer's.
    fn fail_posted(&mut self, index: LinkIndex) {
        let of_peer: Vec<(OpId, u64)> = self
            .matcher
            .posted()
            .filter(|receive| receive.pattern.source == Some(index))
            .map(|receive| (receive.op, receive.context))
            .collect();
        for (op, context) in of_peer {
            self.fail_one_posted(index, op, context);
        }
    }

    /// A receive that only the peer of a broken link could fill.
    pub(crate) fn fail_one_posted(&mut self, index: LinkIndex, op: OpId, context: u64) {
        self.matcher.cancel(op);
        self.events.push_back(Event::ReceiveFailed { op, context, source: index, tag: 0, finished: true });
    }
}
