//! Writing frames.

use alloc::vec;

use crate::auth::Context;
use crate::config::{CHECKPOINTABLE, PTO_MAX, SLOW_AFTER};
use crate::ids::{LinkIndex, RailIndex};
use crate::link::queues::{Control, Envelope, Pending, Sent, SentBody, Stream};
use crate::link::record::FrameRecord;
use crate::link::send::Action;
use crate::link::timer::NEVER;
use crate::link::{Flags, Link, low};
use crate::message::{Announced, Transmit, UserPayload};
use crate::port::{Port, SendOp, nanos};
use crate::time::Instant;
use crate::wire::{self, Body, Contact, Flags as HeaderFlags, HEADER_BYTES, Header};

/// Where the payload of a frame is.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Nothing,
    /// In the link's ring.
    Ring {
        start: u64,
        bytes: usize,
    },
    /// With the operation: owned by it, or in the user's buffer.
    Operation {
        payload: UserPayload,
    },
}

/// Whether a frame has a number.
#[derive(Clone, Copy)]
enum Number {
    /// It has; `wait`: its acknowledgement should not be delayed.
    Of { number: u64, wait: bool },
    /// It has none.
    None(Unnumbered),
}

/// The contents of a frame without a number.
#[derive(Clone, Copy)]
enum Unnumbered {
    /// How things are.
    Now,
    /// How things were at our last cut, for a peer that has not cut.
    Past,
}

impl Port {
    /// Writes the next frame that should leave over `rail` into `frame`, which is at least as long as the rail's frames.
    /// `None`: nothing may be sent over this rail now.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant, rail: RailIndex, frame: &mut [u8]) -> Option<Transmit> {
        self.catch_up();
        let now = self.port_time(now);
        if !self.rail_is_usable(rail, now) {
            return None;
        }
        if CHECKPOINTABLE && self.news_due {
            self.report_news(now);
        }
        for _ in 0..self.ready.len() {
            let index = self.ready.pop_front()?;
            let link = &mut self.links[index.0 as usize];
            let action = link.next_action(now, self.sabotage);
            if action == Action::Idle {
                link.flags.remove(Flags::READY);
                if link.timers.probe == NEVER && link.is_held_back() {
                    link.timers.probe = now + link.recovery.probe_timeout_ns();
                }
                self.arm(index);
                continue;
            }
            // Round robin: the next frame is another link's, if one waits.
            self.ready.push_back(index);
            if self.links[index.0 as usize].paths[usize::from(rail.0)].is_none() {
                if !self.has_path(index) {
                    self.ready.pop_back();
                    self.links[index.0 as usize].flags.remove(Flags::READY);
                }
                continue;
            }
            if self.rails.len() > 1 && self.prefers_another_rail(index, action, rail, now) {
                continue;
            }
            if let Some(transmit) = self.perform(index, action, rail, now, frame) {
                let link = &mut self.links[index.0 as usize];
                if link.has_nothing_to_send() && self.ready.back() == Some(&index) {
                    // Saves asking it again.
                    self.ready.pop_back();
                    link.flags.remove(Flags::READY);
                }
                self.arm(index);
                return Some(transmit);
            }
        }
        None
    }

    /// After a thaw: a frame to every peer that may be waiting for us ends its wait (STOPPED), and carries
    /// our epoch: the peer retransmits at once the frames that it sent before our cut (R3).
    fn report_news(&mut self, now: u64) {
        self.news_due = false;
        let recent = now.saturating_sub(nanos(SLOW_AFTER));
        for i in 0..self.links.len() {
            let link = &mut self.links[i];
            if link.is_active(recent) {
                link.flags.insert(Flags::ACK_NOW);
                self.make_ready(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
            }
        }
    }

    fn has_path(&self, index: LinkIndex) -> bool {
        self.links[index.0 as usize].paths.iter().any(Option::is_some)
    }

    /// Longest payload behind a body of `body_bytes` in one frame of this link on this rail. A frame fits all rails of its
    /// link: another may have to carry it when it is sent again.
    pub(super) fn room(&self, index: LinkIndex, rail: RailIndex, body_bytes: usize, frame: &[u8]) -> usize {
        let link = &self.links[index.0 as usize];
        let paths = link.paths.iter().take(self.rails.len()).flatten();
        let shortest = paths.map(|path| path.frame_bytes_max.get()).min();
        let frame_bytes = (shortest.unwrap_or(0) as usize)
            .min(self.rails[usize::from(rail.0)].frame_bytes_max)
            .min(frame.len());
        let contact = if link.needs_contact() { wire::CONTACT_BYTES } else { 0 };
        frame_bytes.saturating_sub(HEADER_BYTES + contact + body_bytes)
    }

    fn perform(
        &mut self,
        index: LinkIndex,
        action: Action,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        match action {
            Action::Idle => None,
            Action::Hint => {
                self.links[index.0 as usize].flags.remove(Flags::HINT_DUE);
                let stopped = wire::Stopped { pause: self.pause, expected_ns: self.pause_expected_ns };
                Some(self.write(
                    index,
                    rail,
                    now,
                    &Body::Stopped(stopped),
                    Number::None(Unnumbered::Now),
                    Source::Nothing,
                    frame,
                ))
            }
            Action::Resync => Some(self.perform_resync(index, rail, now, frame)),
            Action::Ack => {
                self.counters.acks_alone += 1;
                let past = self.links[index.0 as usize].takes_past_turn(self.epoch);
                let kind = if past { Unnumbered::Past } else { Unnumbered::Now };
                Some(self.write(index, rail, now, &Body::Ack, Number::None(kind), Source::Nothing, frame))
            }
            Action::Probe => {
                self.links[index.0 as usize].flags.remove(Flags::PROBE_DUE);
                Some(self.write(
                    index,
                    rail,
                    now,
                    &Body::Probe,
                    Number::None(Unnumbered::Now),
                    Source::Nothing,
                    frame,
                ))
            }
            Action::Resend(place) => self.perform_resend(index, place, rail, now, frame),
            Action::Control => self.perform_control(index, rail, now, frame),
            Action::Copied => self.perform_copied(index, rail, now, frame),
            Action::Rts { convert } => self.perform_rts(index, convert, rail, now, frame),
            Action::Stream => self.perform_stream(index, rail, now, frame),
            Action::Close => {
                self.links[index.0 as usize].flags.insert(Flags::CLOSE_SENT);
                let start = self.ring_end(index);
                Some(self.number(
                    index,
                    FrameRecord::of_operation(FrameRecord::CLOSE, crate::ids::OpId(0)),
                    &Body::Close,
                    start,
                    Source::Nothing,
                    rail,
                    now,
                    frame,
                ))
            }
        }
    }

    fn perform_resync(&mut self, index: LinkIndex, rail: RailIndex, now: u64, frame: &mut [u8]) -> Transmit {
        let epoch = self.epoch;
        let link = &mut self.links[index.0 as usize];
        let resyncing = link.flags.contains(Flags::RESYNC);
        if resyncing {
            link.timers.probe = now + link.recovery.probe_timeout_ns().min(nanos(PTO_MAX));
        }
        let past = link.takes_past_turn(epoch);
        let (next, expected) = match link.before_cut(epoch) {
            Some(before) if past => (before.next, before.expected),
            _ => (link.next, link.expected),
        };
        link.flags.set(Flags::RESYNC_DUE, past);
        let kind = if past { Unnumbered::Past } else { Unnumbered::Now };
        let resync = wire::Resync { expected, next, heard: u64::from(!resyncing) };
        self.write(index, rail, now, &Body::Resync(resync), Number::None(kind), Source::Nothing, frame)
    }

    /// R24: frames whose loss is not noticed must not stick to a dead rail. An acknowledgement goes back the way the
    /// peer was last heard, which works in one direction at least, and whose choice moves when the peer has to send
    /// again; probes and the like try one rail after the other. All others stay within the host as long as that works.
    fn prefers_another_rail(&self, index: LinkIndex, action: Action, rail: RailIndex, now: u64) -> bool {
        let link = &self.links[index.0 as usize];
        let usable =
            |i: usize| link.paths[i].is_some() && self.rails.get(i).is_some_and(|rail| rail.is_trusted(now));
        let preferred = match action {
            Action::Ack => usize::from(link.heard_rail),
            Action::Probe | Action::Resync | Action::Hint => {
                let turn = usize::try_from(link.transmissions).unwrap_or(0);
                (0..self.rails.len()).map(|i| (i + turn) % self.rails.len()).find(|i| usable(*i)).unwrap_or(0)
            }
            _ => {
                let own = self.rails.get(usize::from(rail.0)).is_some_and(|rail| rail.within_host);
                return !own && self.has_way_within_host(index, now);
            }
        };
        preferred != usize::from(rail.0) && usable(preferred)
    }

    fn perform_resend(
        &mut self,
        index: LinkIndex,
        place: usize,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let queues = self.links[index.0 as usize].queues.as_ref()?;
        let (kept, sent) = (*queues.frames.get(place)?, queues.sent.get(place)?);
        let frame_bytes = self.links[index.0 as usize].bytes_again(&kept, sent);
        if frame_bytes > self.rails[usize::from(rail.0)].frame_bytes_max.min(frame.len()) {
            // Cut when the link had only rails with longer frames: it waits for one of them.
            return None;
        }
        // R24: a frame that one rail has lost goes over another.
        if sent.rail == rail.0 && self.has_other_way(index, rail, frame_bytes, now) {
            return None;
        }
        let link = &mut self.links[index.0 as usize];
        let queues = link.queues.as_mut()?;
        let number = queues.lost.pop_front()?;
        let sent = queues.sent.get_mut(place)?;
        sent.lost = false;
        sent.resent = true;
        sent.transmission = link.transmissions;
        sent.sent_at = now;
        sent.rail = rail.0;
        link.flight_bytes += sent.payload_bytes;
        link.timers.probe = now + link.recovery.probe_timeout_ns();
        link.forget_found();
        self.counters.frames_resent += 1;
        let (body, source) = self.rebuild(index, &kept)?;
        Some(self.write(index, rail, now, &body, Number::Of { number, wait: true }, source, frame))
    }

    /// The body of a frame that was sent before: headers are built anew, never resent as bytes (R4).
    fn rebuild(&self, index: LinkIndex, kept: &FrameRecord) -> Option<(Body, Source)> {
        let ring = Source::Ring { start: kept.start.get(), bytes: kept.bytes.get() as usize };
        Some(match kept.body()? {
            SentBody::Eager { envelope, .. } => (eager(&envelope), ring),
            SentBody::More { .. } => (Body::More, ring),
            SentBody::Rts { op } => (rts_of(self.sends.get(&op)?), Source::Nothing),
            SentBody::Cts { op, total } => (Body::Cts(wire::Cts { operation: op, total }), Source::Nothing),
            SentBody::Data { op, offset } => {
                debug_assert!(self.sends.get(&op).is_some_and(|send| send.link == index));
                let payload = UserPayload { op, offset, bytes: kept.bytes.get() };
                (Body::Data(wire::Data { operation: op, offset }), Source::Operation { payload })
            }
            SentBody::Close => (Body::Close, Source::Nothing),
        })
    }

    fn perform_control(
        &mut self,
        index: LinkIndex,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let start = self.ring_end(index);
        let queues = self.links[index.0 as usize].queues.as_mut()?;
        let Control::Cts { op, total } = queues.control.pop_front()?;
        let body = Body::Cts(wire::Cts { operation: op, total });
        Some(self.number(
            index,
            FrameRecord { total: total.into(), ..FrameRecord::of_operation(FrameRecord::CTS, op) },
            &body,
            start,
            Source::Nothing,
            rail,
            now,
            frame,
        ))
    }

    fn perform_copied(
        &mut self,
        index: LinkIndex,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let queues = self.links[index.0 as usize].queues.as_ref()?;
        let Some(&Pending::Copied { envelope, start, sent: before }) = queues.pending.front() else {
            return None;
        };
        let room = self.room(index, rail, if before == 0 { wire::EAGER_BYTES } else { 0 }, frame);
        let link = &mut self.links[index.0 as usize];
        let queues = link.queues.as_mut()?;
        let left = usize::try_from(envelope.total).unwrap_or(usize::MAX) - before as usize;
        // The whole message fitted the window when its first fragment left: the receiver keeps room for the rest.
        let bytes = left.min(room);
        let last = bytes == left;
        if last {
            queues.pending.pop_front();
        } else if let Some(Pending::Copied { sent, .. }) = queues.pending.front_mut() {
            *sent += u32::try_from(bytes).unwrap_or(u32::MAX);
        }
        link.flags.remove(Flags::STREAM_TURN);
        let start = start + u64::from(before);
        let source = Source::Ring { start, bytes };
        let (kind, body) = if before == 0 {
            (FrameRecord::EAGER, eager(&envelope))
        } else {
            (FrameRecord::MORE, Body::More)
        };
        let mut kept = FrameRecord::of_message(kind, &envelope);
        kept.flags |= u8::from(last);
        kept.offset = u64::from(before).into();
        Some(self.number(index, kept, &body, start, source, rail, now, frame))
    }

    fn perform_rts(
        &mut self,
        index: LinkIndex,
        convert: bool,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let mut start = self.ring_end(index);
        let link = &mut self.links[index.0 as usize];
        link.announced += 1;
        link.flags.remove(Flags::STREAM_TURN);
        let queues = link.queues.as_mut()?;
        let op = match queues.pending.pop_front()? {
            Pending::Rts { op } => op,
            Pending::Copied { envelope, start: at, .. } => {
                debug_assert!(convert);
                let mut owned = vec![0; usize::try_from(envelope.total).unwrap_or(usize::MAX)];
                queues.copied.copy_to(at, &mut owned);
                start = at + envelope.total;
                self.counters.messages_converted += 1;
                let send = SendOp { link: index, envelope, owned: Some(owned), granted: None, acked: 0 };
                self.sends.insert(envelope.op, send);
                envelope.op
            }
        };
        let body = rts_of(self.sends.get(&op)?);
        let kept = FrameRecord::of_operation(FrameRecord::RTS, op);
        Some(self.number(index, kept, &body, start, Source::Nothing, rail, now, frame))
    }

    fn perform_stream(
        &mut self,
        index: LinkIndex,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let room = self.room(index, rail, wire::DATA_BYTES, frame) as u64;
        let start = self.ring_end(index);
        let link = &mut self.links[index.0 as usize];
        link.flags.insert(Flags::STREAM_TURN);
        let queues = link.queues.as_mut()?;
        let Stream { op, offset, end } = *queues.streams.front()?;
        let bytes = u32::try_from((end - offset).min(room)).unwrap_or(u32::MAX);
        if offset + u64::from(bytes) == end {
            queues.streams.pop_front();
        } else if let Some(stream) = queues.streams.front_mut() {
            stream.offset += u64::from(bytes);
        }
        let body = Body::Data(wire::Data { operation: op, offset });
        let source = Source::Operation { payload: UserPayload { op, offset, bytes } };
        let kept = FrameRecord { offset: offset.into(), ..FrameRecord::of_operation(FrameRecord::DATA, op) };
        Some(self.number(index, kept, &body, start, source, rail, now, frame))
    }

    /// Up to where the ring has been handed to frames. A frame without copied payload records this, so that
    /// its acknowledgement frees the part before it.
    fn ring_end(&self, index: LinkIndex) -> u64 {
        let Some(queues) = &self.links[index.0 as usize].queues else { return 0 };
        queues.frames.back().map_or(queues.copied.start(), FrameRecord::ring_end)
    }

    /// Gives a frame its number and sends it for the first time.
    #[expect(clippy::too_many_arguments, reason = "one frame's worth of facts, each of its own type")]
    pub(super) fn number(
        &mut self,
        index: LinkIndex,
        mut kept: FrameRecord,
        wire_body: &Body,
        start: u64,
        source: Source,
        rail: RailIndex,
        now: u64,
        frame: &mut [u8],
    ) -> Transmit {
        let payload_bytes = match source {
            Source::Nothing => 0,
            Source::Ring { bytes, .. } => u32::try_from(bytes).unwrap_or(u32::MAX),
            Source::Operation { payload } => payload.bytes,
        };
        kept.start = start.into();
        kept.bytes = payload_bytes.into();
        let wait = self.waits_for_ack(&self.links[index.0 as usize], payload_bytes, kept.is_copied());
        let number = self.keep(index, kept, rail, now);
        self.write(index, rail, now, wire_body, Number::Of { number, wait }, source, frame)
    }

    /// Whether the link is held back behind a frame with so much payload: then we wait for its acknowledgement.
    pub(super) fn waits_for_ack(&self, link: &Link, payload_bytes: u32, copied: bool) -> bool {
        let copied_bytes = link.copied_bytes + if copied { payload_bytes } else { 0 };
        link.flight_bytes + payload_bytes >= link.congestion_bytes
            || copied_bytes as usize + self.config.eager_bytes_max > link.peer_window_bytes as usize
    }

    /// Keeps the contents of a frame that is the link's next transmission, until it is acknowledged. Returns
    /// its number.
    pub(super) fn keep(&mut self, index: LinkIndex, kept: FrameRecord, rail: RailIndex, now: u64) -> u64 {
        let payload_bytes = kept.bytes.get();
        let copied_bytes_max = self.config.link_copied_bytes_max;
        let link = &mut self.links[index.0 as usize];
        let number = link.next;
        link.next += 1;
        if link.acked == number {
            // The peer owes us something from now on, not since it last spoke.
            link.heard_at = link.heard_at.max(now);
        }
        let sent = Sent {
            transmission: link.transmissions,
            sent_at: now,
            payload_bytes,
            rail: rail.0,
            selected: false,
            lost: false,
            resent: false,
        };
        link.flight_bytes += payload_bytes;
        if kept.is_copied() {
            link.copied_bytes += payload_bytes;
            link.copied_frames += 1;
        }
        link.queues(copied_bytes_max).keep(kept, sent);
        link.timers.probe = now + link.recovery.probe_timeout_ns();
        number
    }

    /// Writes one frame.
    #[expect(clippy::too_many_arguments, reason = "one frame's worth of facts, each of its own type")]
    fn write(
        &mut self,
        index: LinkIndex,
        rail: RailIndex,
        _now: u64,
        body: &Body,
        numbered: Number,
        source: Source,
        frame: &mut [u8],
    ) -> Transmit {
        self.counters.frames_sent += 1;
        let (window_bytes, window_frames) = (self.window_bytes(), self.window_frames());
        let starving = self.is_starving(window_bytes, window_frames);
        let (job, life, epoch, own) = (self.config.job, self.life_of_link(index), self.epoch, self.id);
        let address = self.rails[usize::from(rail.0)].address;
        let link = &mut self.links[index.0 as usize];
        if starving && !link.flags.contains(Flags::STARVED) {
            link.flags.insert(Flags::STARVED);
            self.starved.push(index);
        }
        let transmission = link.count_transmission(window_bytes, window_frames);
        let mut flags = HeaderFlags::empty();
        flags.set(HeaderFlags::CONTACT, link.needs_contact());
        flags.set(HeaderFlags::ACK_NOW, matches!(numbered, Number::Of { wait: true, .. }));
        let payload_bytes = match source {
            Source::Nothing => 0,
            Source::Ring { bytes, .. } => u32::try_from(bytes).unwrap_or(u32::MAX),
            Source::Operation { payload } => payload.bytes,
        };
        let before = link.before_cut(epoch);
        let past = match numbered {
            Number::Of { number, .. } => before.filter(|before| number < before.next),
            Number::None(Unnumbered::Past) => before,
            Number::None(Unnumbered::Now) => None,
        };
        let seq = match numbered {
            Number::Of { number, .. } => number,
            Number::None(_) => past.map_or(link.next, |before| before.next),
        };
        // R4: numbers and counts, as they were before our cut or as they are now; never a mixture of both.
        // Transmission, echo, windows and contact are always those of now, for they carry neither.
        let (epoch, expected, selective) = match past {
            Some(before) => (link.peer_epoch, before.expected, 0),
            None => {
                let selective = link.queues.as_ref().map_or(0, |queues| queues.reorder.bitmap());
                (epoch, link.expected, selective)
            }
        };
        let header = Header {
            kind: body.kind(),
            job,
            life,
            epoch,
            link: link.peer_index,
            seq: low(seq),
            ack: low(expected),
            transmission: low(transmission),
            echo: low(link.newest),
            window_bytes,
            selective,
            window_frames,
            flags,
            payload_bytes,
            tag: [0; wire::TAG_BYTES],
        };
        header.emit(frame);
        let mut at = HEADER_BYTES;
        if flags.contains(HeaderFlags::CONTACT) {
            let contact = Contact { from: own, to: link.peer, link: index, address };
            at += contact.emit(&mut frame[at..]);
        }
        let body_bytes = body.emit(&mut frame[at..]);
        at += body_bytes;
        // A peer that has not cut cannot read this frame, so it is no answer: the answer is sent in a frame
        // of its own.
        let answers = before.is_none() || matches!(numbered, Number::None(Unnumbered::Now));
        if answers {
            link.answer();
        }
        let body_at = at - body_bytes;
        let context = Context { seq, transmission, from: own, to: link.peer };
        let to = link.paths[usize::from(rail.0)];
        let (copied, payload) = match source {
            Source::Nothing => (0, None),
            Source::Ring { start, bytes } => {
                if let Some(queues) = &link.queues {
                    queues.copied.copy_to(start, &mut frame[at..at + bytes]);
                }
                (bytes, None)
            }
            Source::Operation { payload } => match owned_piece(self.sends.get(&payload.op), payload) {
                Some(piece) => {
                    frame[at..at + piece.len()].copy_from_slice(piece);
                    (piece.len(), None)
                }
                None => (0, Some(payload)),
            },
        };
        let seal = self
            .authenticator_of(rail)
            .and_then(|auth| auth.seal(context, &mut frame[..at + copied], at, payload.is_some()));
        Transmit {
            to: to.map_or(crate::ids::AddressId(u32::MAX), |path| path.address),
            frame_bytes: at + copied,
            payload,
            seal,
            announced: self.announced_place(rail, body, body_at),
        }
    }

    /// R11: a peer on this host gets the address of the user's payload.
    fn announced_place(&self, rail: RailIndex, body: &Body, body_at: usize) -> Option<Announced> {
        let Body::Rts(wire::Rts { operation: op, .. }) = *body else { return None };
        let within_host = self.rails[usize::from(rail.0)].within_host;
        let users = self.sends.get(&op)?.owned.is_none();
        (within_host && users).then_some(Announced { op, body: body_at })
    }
}

fn owned_piece(send: Option<&SendOp>, payload: UserPayload) -> Option<&[u8]> {
    let owned = send?.owned.as_ref()?;
    let from = usize::try_from(payload.offset).ok()?;
    owned.get(from..from + payload.bytes as usize)
}

pub(super) fn eager(envelope: &Envelope) -> Body {
    Body::Eager(wire::Eager {
        tag: envelope.tag,
        data: envelope.data,
        total: envelope.total,
        space: envelope.space,
    })
}

fn rts_of(send: &SendOp) -> Body {
    let envelope = &send.envelope;
    Body::Rts(wire::Rts {
        operation: envelope.op,
        tag: envelope.tag,
        data: envelope.data,
        total: envelope.total,
        space: envelope.space,
        // Only the shell knows.
        place: 0,
    })
}
