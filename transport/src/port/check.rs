//! Invariants of every port between two steps. A loaded port is believed only if all of it holds; tests and the
//! simulator ask it of running ones.

use core::fmt;

use hashbrown::HashMap;

use crate::bytering::ByteRing;
use crate::config::{EPOCH_MAX, INCOMING_MAX, PENDING_MESSAGES_MAX, WINDOW_FRAMES_MAX};
use crate::hash::PlainHasher;
use crate::ids::{JobTag, LinkIndex, OpId};
use crate::link::queues::{Envelope, Pending, Queues, SentBody};
use crate::link::receive::{Incoming, Open, Target};
use crate::link::record::FrameRecord;
use crate::link::{Flags, Link};
use crate::matching::{MatchError, Message, MessageKey, Receive};
use crate::message::Event;
use crate::port::state::{Arrived, SendOp};
use crate::port::{FrozenPort, Port};

/// Numbers of frames, operations, pauses and bytes stay below this: adding to one of them can never overflow.
pub const NUMBER_MAX: u64 = 1 << 62;

/// The subject of a contradiction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatePart {
    /// The port as a whole.
    Port,
    /// One link.
    Link(LinkIndex),
    /// A send.
    Send(OpId),
    /// A posted receive.
    Receive(OpId),
    /// A waiting message.
    Waiting(MessageKey),
}

impl fmt::Display for StatePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatePart::Port => f.write_str("port"),
            StatePart::Link(link) => write!(f, "link {}", link.0),
            StatePart::Send(op) => write!(f, "send {}", op.0),
            StatePart::Receive(op) => write!(f, "receive {}", op.0),
            StatePart::Waiting(key) => write!(f, "waiting message {:#x}", key.0.to_bits()),
        }
    }
}

/// Why a state is none that a port can be in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// Of another job.
    #[error("the port belongs to job tag {:08x}, this is job tag {:08x}: use an image of this job", found.0, expected.0)]
    Job {
        /// In the state.
        found: JobTag,
        /// In the configuration.
        expected: JobTag,
    },
    /// More entries than this build or configuration allows.
    #[error(
        "{found} {table}, at most {max} are possible: the state is damaged, or the configuration was larger"
    )]
    Bound {
        /// Which table.
        table: &'static str,
        /// Entries.
        found: u64,
        /// Bound.
        max: u64,
    },
    /// Two entries with the same name.
    #[error("{what} {number:#x} is there twice: the state is damaged")]
    Twice {
        /// Its name.
        what: &'static str,
        /// Its name.
        number: u64,
    },
    /// A field contradicts the rest.
    #[error("{place}: {field} is {found}, but the rest of the state needs {needed}: the state is damaged")]
    Value {
        /// Where.
        place: StatePart,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The required value, or its bound.
        needed: u64,
    },
    /// The matcher refused an entry.
    #[error(transparent)]
    Matching(#[from] MatchError),
}

impl StateError {
    pub(super) fn bound(table: &'static str, found: u64, max: u64) -> Result<(), StateError> {
        if found <= max { Ok(()) } else { Err(StateError::Bound { table, found, max }) }
    }
}

impl StatePart {
    pub(super) fn at_most(self, field: &'static str, found: u64, needed: u64) -> Result<(), StateError> {
        if found <= needed { Ok(()) } else { Err(StateError::Value { place: self, field, found, needed }) }
    }

    fn operation(self, field: &'static str, op: OpId, next: u64) -> Result<(), StateError> {
        let earlier = op.0 < next;
        if earlier {
            Ok(())
        } else {
            Err(StateError::Value { place: self, field, found: op.0, needed: next })
        }
    }

    fn equal(self, field: &'static str, found: u64, needed: u64) -> Result<(), StateError> {
        if found == needed { Ok(()) } else { Err(StateError::Value { place: self, field, found, needed }) }
    }

    fn holds(self, field: &'static str, condition: bool) -> Result<(), StateError> {
        self.equal(field, u64::from(condition), 1)
    }
}

/// How far the frames of one announced send have got, as its link knows.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Waits to be announced.
    pending: bool,
    /// Bytes up to which pieces are numbered, from the acknowledged ones on.
    numbered: Option<u64>,
    /// The rest stands in the link's list of streams.
    streaming: bool,
}

type Progresses = HashMap<OpId, Progress, core::hash::BuildHasherDefault<PlainHasher>>;

impl FrozenPort {
    /// Whether the port's state is one that a port can be in.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn check(&self) -> Result<(), StateError> {
        self.port.check()
    }
}

impl Port {
    pub(crate) fn check(&self) -> Result<(), StateError> {
        let port = StatePart::Port;
        port.at_most("next operation", self.next_op, NUMBER_MAX)?;
        port.at_most("pause", self.pause, NUMBER_MAX)?;
        port.at_most("epoch", u64::from(self.epoch.0), EPOCH_MAX.into())?;
        let mut progresses = Progresses::default();
        let mut reorder_bytes = 0;
        for (i, link) in self.links.iter().enumerate() {
            let index = LinkIndex(u32::try_from(i).unwrap_or(u32::MAX));
            self.check_link(index, link, &mut progresses)?;
            reorder_bytes += link.queues.as_ref().map_or(0, |queues| queues.reorder.bytes());
        }
        port.equal("reorder bytes", self.reorder_bytes as u64, reorder_bytes as u64)?;
        self.check_sends(&progresses)?;
        self.check_matching()?;
        self.events.iter().filter(|event| event.is_completion()).try_for_each(|event| self.check_event(event))
    }

    fn check_link(
        &self,
        index: LinkIndex,
        link: &Link,
        progresses: &mut Progresses,
    ) -> Result<(), StateError> {
        let place = StatePart::Link(index);
        place.at_most("next", link.next, NUMBER_MAX)?;
        place.at_most("expected", link.expected, NUMBER_MAX)?;
        place.at_most("acknowledged", link.acked, link.next)?;
        place.at_most("unacknowledged frames", link.in_flight(), WINDOW_FRAMES_MAX)?;
        place.at_most("sent acknowledgement", link.ack_reported, link.expected)?;
        let closing = link.flags.contains(Flags::CLOSING);
        let close_sent = link.flags.contains(Flags::CLOSE_SENT);
        place.holds("closing before the close", closing || !close_sent)?;
        let Some(queues) = &link.queues else {
            return place.equal("unacknowledged frames", link.in_flight(), 0);
        };
        place.equal("frames kept", queues.frames.len() as u64, link.in_flight())?;
        place.equal("frames looked after", queues.sent.len() as u64, link.in_flight())?;
        let mut walk = Walk::new(self, index, progresses, queues.copied.start());
        queues.frames.iter().try_for_each(|frame| walk.frame(frame, &queues.copied, close_sent))?;
        walk.pending(queues)?;
        walk.streams(queues)?;
        place.equal("ring", walk.ring, queues.copied.end())?;
        if close_sent {
            place.holds(
                "nothing to send behind a close",
                queues.pending.is_empty() && queues.streams.is_empty(),
            )?;
        }
        check_flight(place, link, queues)?;
        StateError::bound("payloads coming in", queues.incoming.len() as u64, INCOMING_MAX as u64)?;
        for (i, incoming) in queues.incoming.iter().enumerate() {
            self.check_incoming(place, incoming)?;
            // Bounded by INCOMING_MAX, and nearly always a few.
            if queues.incoming[..i].iter().any(|earlier| earlier.peer_op == incoming.peer_op) {
                return Err(StateError::Twice { what: "incoming", number: incoming.peer_op.0 });
            }
        }
        // A CTS answers an RTS of the peer, or one it made before it was discarded.
        StateError::bound("CTS", queues.control.len() as u64, self.config.unexpected_entries_max as u64 * 2)?;
        queues.open.map_or(Ok(()), |open| self.check_open(index, &open))
    }

    fn check_incoming(&self, place: StatePart, incoming: &Incoming) -> Result<(), StateError> {
        let Incoming { op, base, total, granted, received, .. } = *incoming;
        place.operation("operation of a payload", op, self.next_op)?;
        place.at_most("base of a payload", base, NUMBER_MAX)?;
        place.at_most("bytes of a payload", total, NUMBER_MAX)?;
        place.at_most("bytes granted", granted, total)?;
        place.at_most("bytes received", received.saturating_add(1), granted)
    }

    fn check_open(&self, index: LinkIndex, open: &Open) -> Result<(), StateError> {
        let place = StatePart::Link(index);
        place.at_most("bytes under assembly", open.total, NUMBER_MAX)?;
        place.at_most("bytes assembled", open.received.saturating_add(1), open.total)?;
        match open.target {
            Target::Nowhere => Ok(()),
            Target::Posted { op, base, bytes, .. } => {
                place.operation("operation under assembly", op, self.next_op)?;
                place.at_most("base under assembly", base, NUMBER_MAX)?;
                place.at_most("bytes wanted under assembly", bytes, open.total)
            }
            Target::Waiting(key) => {
                let message = self.matcher.message(key);
                let Some(Message { envelope, finished: false, payload: Arrived::Copied(held) }) = message
                else {
                    return Err(StateError::Value {
                        place,
                        field: "message under assembly",
                        found: key.0.to_bits(),
                        needed: 0,
                    });
                };
                place.equal(
                    "source of the message under assembly",
                    u64::from(envelope.source.0),
                    index.0.into(),
                )?;
                place.equal("length of the message under assembly", envelope.bytes, open.total)?;
                place.equal("bytes of the message under assembly", held.len() as u64, open.received)
            }
        }
    }

    fn check_sends(&self, progresses: &Progresses) -> Result<(), StateError> {
        let mut ungranted = alloc::vec![0u16; self.links.len()];
        for (op, send) in &self.sends {
            let place = StatePart::Send(*op);
            let SendOp { link, envelope, owned, granted, acked } = send;
            place.equal("operation", envelope.op.0, op.0)?;
            place.operation("operation", *op, self.next_op)?;
            place.at_most("length", envelope.total, NUMBER_MAX)?;
            let Some(waits) = ungranted.get_mut(link.0 as usize) else {
                return place.at_most("link", u64::from(link.0), self.links.len() as u64);
            };
            if let Some(owned) = owned {
                place.equal("bytes owned", owned.len() as u64, envelope.total)?;
            }
            let progress = progresses.get(op).copied().unwrap_or_default();
            match granted {
                Some(granted) => {
                    place.at_most("bytes granted", *granted, envelope.total)?;
                    place.at_most("bytes acknowledged", acked.saturating_add(1), *granted)?;
                    let reached = progress.numbered.unwrap_or(*acked);
                    place.equal("bytes numbered", reached, *granted)?;
                }
                None => {
                    place.equal("bytes acknowledged", *acked, 0)?;
                    if !progress.pending {
                        *waits = waits.saturating_add(1);
                    }
                }
            }
        }
        for (i, (link, announced)) in self.links.iter().zip(ungranted).enumerate() {
            let place = StatePart::Link(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
            place.equal("announced sends", u64::from(link.announced), u64::from(announced))?;
        }
        Ok(())
    }

    fn check_matching(&self) -> Result<(), StateError> {
        self.matcher.posted().try_for_each(|receive| self.check_posted(receive))?;
        let mut bytes = 0;
        let all = self.matcher.unexpected().map(|(key, message)| (key, message, false));
        for (key, message, claimed) in
            all.chain(self.matcher.claimed().map(|(key, message)| (key, message, true)))
        {
            bytes += self.check_waiting(key, message)?;
            let place = StatePart::Waiting(key);
            place.holds("no receive for it", claimed || !self.matcher.is_awaited(&message.envelope))?;
        }
        StatePart::Port.equal("bytes of waiting messages", self.unexpected_bytes as u64, bytes)
    }

    fn check_posted(&self, receive: &Receive) -> Result<(), StateError> {
        let place = StatePart::Receive(receive.op);
        place.operation("operation", receive.op, self.next_op)?;
        place.at_most("room", receive.bytes_max, NUMBER_MAX)?;
        if let Some(link) = receive.pattern.source {
            place.at_most("source", u64::from(link.0) + 1, self.links.len() as u64)?;
        }
        let Some(multi) = receive.multi else { return Ok(()) };
        place.at_most("bytes filled", multi.filled_bytes, receive.bytes_max)?;
        if multi.filled_bytes > 0 {
            let free = receive.bytes_max - multi.filled_bytes;
            place.at_most("bytes that must be free", multi.free_bytes_min.max(1), free)?;
        }
        Ok(())
    }

    /// Returns the bytes that the message occupies.
    fn check_waiting(&self, key: MessageKey, message: &Message<Arrived>) -> Result<u64, StateError> {
        let place = StatePart::Waiting(key);
        let source = message.envelope.source;
        place.at_most("source", u64::from(source.0) + 1, self.links.len() as u64)?;
        place.at_most("length", message.envelope.bytes, NUMBER_MAX)?;
        let held = match &message.payload {
            Arrived::Announced(_) => {
                place.holds("finished", message.finished)?;
                return Ok(0);
            }
            Arrived::Copied(payload) => payload.len() as u64,
        };
        place.at_most("bytes", held, message.envelope.bytes)?;
        place.equal("finished", message.finished.into(), u64::from(held == message.envelope.bytes))?;
        if !message.finished {
            let queues = self.links.get(source.0 as usize).and_then(|link| link.queues.as_ref());
            let open = queues.and_then(|queues| queues.open);
            place.holds("under assembly", open.is_some_and(|open| open.target == Target::Waiting(key)))?;
        }
        Ok(held)
    }

    fn check_event(&self, event: &Event) -> Result<(), StateError> {
        let place = StatePart::Port;
        match *event {
            Event::Received { op, source, offset, bytes, .. } => {
                place.operation("operation of a completion", op, self.next_op)?;
                place.at_most("offset of a completion", offset, NUMBER_MAX)?;
                place.at_most("bytes of a completion", bytes, NUMBER_MAX)?;
                place.at_most("link of a completion", u64::from(source.0) + 1, self.links.len() as u64)
            }
            Event::SendDone { op, .. } => place.operation("operation of a completion", op, self.next_op),
            Event::PeerClosed { link, peer } | Event::LinkClosed { link, peer } => {
                place.at_most("link of a completion", u64::from(link.0) + 1, self.links.len() as u64)?;
                place.equal("peer of a completion", peer.0, self.links[link.0 as usize].peer.0)
            }
            _ => Ok(()),
        }
    }
}

/// Frames in flight are counted in three ways.
fn check_flight(place: StatePart, link: &Link, queues: &Queues) -> Result<(), StateError> {
    let copied = || queues.frames.iter().filter(|frame| frame.is_copied());
    let bytes = copied().map(|frame| u64::from(frame.bytes.get())).sum();
    place.equal("copied bytes in flight", link.copied_bytes.into(), bytes)?;
    place.equal("copied frames in flight", link.copied_frames.into(), copied().count() as u64)?;
    let flying = queues.sent.iter().filter(|sent| !sent.lost && !sent.selected);
    let flying = flying.map(|sent| u64::from(sent.payload_bytes)).sum();
    for (frame, sent) in queues.frames.iter().zip(&queues.sent) {
        place.equal(
            "payload of a frame looked after",
            sent.payload_bytes.into(),
            frame.bytes.get().into(),
        )?;
    }
    place.equal("bytes in flight", link.flight_bytes.into(), flying)
}

/// A walk over the frames and messages that a link sends, oldest first: the ring without a gap, fragments of
/// one message after each other, pieces of one payload without a gap.
struct Walk<'a> {
    port: &'a Port,
    index: LinkIndex,
    place: StatePart,
    progresses: &'a mut Progresses,
    /// Ring offset that the next copied byte has.
    ring: u64,
    /// The copied message whose next fragment is due, and that fragment's offset; unknown before the first.
    message: Option<Option<(OpId, u64)>>,
    /// The message begun last: operations are numbered in the order of sending.
    newest: Option<OpId>,
    closed: bool,
}

impl<'a> Walk<'a> {
    fn new(port: &'a Port, index: LinkIndex, progresses: &'a mut Progresses, ring: u64) -> Walk<'a> {
        Walk {
            port,
            index,
            place: StatePart::Link(index),
            progresses,
            ring,
            message: None,
            newest: None,
            closed: false,
        }
    }

    fn frame(&mut self, frame: &FrameRecord, ring: &ByteRing, close_sent: bool) -> Result<(), StateError> {
        let place = self.place;
        let payload = u64::from(frame.bytes.get());
        let cts = frame.kind == FrameRecord::CTS;
        place.holds("no frame but a CTS behind a close", !self.closed || cts)?;
        let unknown =
            StateError::Value { place, field: "kind of a frame", found: frame.kind.into(), needed: 0 };
        match frame.body().ok_or(unknown)? {
            SentBody::Eager { envelope, last } => self.fragment(&envelope, 0, payload, last)?,
            SentBody::More { envelope, offset, last } => {
                place.holds("offset of a later fragment", offset > 0)?;
                self.fragment(&envelope, offset.into(), payload, last)?;
            }
            SentBody::Rts { op } => {
                let send = self.send(op)?;
                self.begin(op)?;
                place.holds("announced but granted", send.granted.is_none())?;
                let twice = self.progresses.insert(op, Progress::default()).is_some();
                place.holds("announced once", !twice)?;
                let converted = if send.owned.is_some() { send.envelope.total } else { 0 };
                self.ring = self.ring.saturating_add(converted);
            }
            SentBody::Data { op, offset } => self.piece(op, offset, payload)?,
            SentBody::Cts { .. } => {}
            SentBody::Close => {
                place.holds("close", close_sent)?;
                self.closed = true;
            }
        }
        place.equal("place in the ring", frame.start.get(), self.ring)?;
        if frame.is_copied() {
            self.ring += payload;
        } else if frame.kind != FrameRecord::DATA {
            place.equal("payload of a frame without one", payload, 0)?;
        }
        place.at_most("place in the ring", self.ring, ring.end())
    }

    fn send(&self, op: OpId) -> Result<&'a SendOp, StateError> {
        let missing = StateError::Value { place: self.place, field: "send", found: op.0, needed: 0 };
        self.port.sends.get(&op).filter(|send| send.link == self.index).ok_or(missing)
    }

    fn begin(&mut self, op: OpId) -> Result<(), StateError> {
        self.place.holds(
            "messages in the order of their operations",
            self.newest.is_none_or(|newest| newest < op),
        )?;
        self.newest = Some(op);
        Ok(())
    }

    fn envelope(&self, envelope: &Envelope) -> Result<(), StateError> {
        self.place.operation("operation of a message", envelope.op, self.port.next_op)?;
        let max = self.port.config.link_copied_bytes_max.min(u32::MAX as usize);
        self.place.at_most("length of a copied message", envelope.total, max as u64)
    }

    fn fragment(
        &mut self,
        envelope: &Envelope,
        offset: u64,
        bytes: u64,
        last: bool,
    ) -> Result<(), StateError> {
        self.envelope(envelope)?;
        let due = if offset == 0 { None } else { Some((envelope.op, offset)) };
        let known = self.message.unwrap_or(due);
        if offset == 0 || self.message.is_none() {
            self.begin(envelope.op)?;
        }
        self.place.holds("fragments in order", known == due)?;
        let end = offset + bytes;
        self.place.at_most("end of a fragment", end, envelope.total)?;
        self.place.equal("last fragment", last.into(), u64::from(end == envelope.total))?;
        self.message = Some((!last).then_some((envelope.op, end)));
        Ok(())
    }

    fn piece(&mut self, op: OpId, offset: u64, bytes: u64) -> Result<(), StateError> {
        let send = self.send(op)?;
        let progress = self.progresses.entry(op).or_default();
        let due = progress.numbered.unwrap_or(send.acked);
        self.place.equal("offset of a piece", offset, due)?;
        self.place.holds("bytes of a piece", bytes > 0)?;
        let end = offset.saturating_add(bytes);
        self.place.at_most("end of a piece", end, send.granted.unwrap_or(0))?;
        progress.numbered = Some(end);
        Ok(())
    }

    fn pending(&mut self, queues: &Queues) -> Result<(), StateError> {
        let place = self.place;
        let max = PENDING_MESSAGES_MAX as u64 + WINDOW_FRAMES_MAX;
        StateError::bound("pending messages", queues.pending.len() as u64, max)?;
        for (i, pending) in queues.pending.iter().enumerate() {
            let due = self.message.take().flatten();
            match *pending {
                Pending::Copied { envelope, start, sent } => {
                    self.envelope(&envelope)?;
                    let sent = u64::from(sent);
                    // Of a message whose earlier fragments have all been acknowledged no frame is left.
                    let unknown = i == 0 && !queues.frames.iter().any(FrameRecord::is_copied);
                    if sent == 0 || unknown {
                        self.begin(envelope.op)?;
                    }
                    let begun = (sent > 0).then_some((envelope.op, sent));
                    place.holds("fragments in order", begun == due || unknown)?;
                    let left = envelope.total.checked_sub(sent).filter(|left| *left > 0 || sent == 0);
                    let left = left.ok_or(StateError::Value {
                        place,
                        field: "fragments sent",
                        found: sent,
                        needed: envelope.total,
                    })?;
                    place.equal("place of a message in the ring", start.wrapping_add(sent), self.ring)?;
                    place.at_most("place of a message in the ring", start, self.ring)?;
                    self.ring += left;
                    place.at_most("place of a message in the ring", self.ring, queues.copied.end())?;
                }
                Pending::Rts { op } => {
                    place.holds("fragments in order", due.is_none())?;
                    self.begin(op)?;
                    let send = self.send(op)?;
                    place.holds(
                        "payload of a message to be announced",
                        send.granted.is_none() && send.owned.is_none(),
                    )?;
                    let progress = Progress { pending: true, ..Progress::default() };
                    place.holds("announced once", self.progresses.insert(op, progress).is_none())?;
                }
            }
        }
        place.holds("fragments in order", self.message.flatten().is_none())
    }

    fn streams(&mut self, queues: &Queues) -> Result<(), StateError> {
        for stream in &queues.streams {
            let send = self.send(stream.op)?;
            let progress = self.progresses.entry(stream.op).or_default();
            self.place.holds("payload streamed once", !progress.streaming)?;
            self.place.equal("offset of a stream", stream.offset, progress.numbered.unwrap_or(send.acked))?;
            self.place.equal("end of a stream", stream.end, send.granted.unwrap_or(0))?;
            self.place.at_most("offset of a stream", stream.offset.saturating_add(1), stream.end)?;
            *progress = Progress { numbered: Some(stream.end), streaming: true, ..*progress };
        }
        Ok(())
    }
}
