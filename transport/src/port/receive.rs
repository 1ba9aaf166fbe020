//! Reading frames: the gates that a frame has to pass, in order, before any of its fields has an effect.

use crate::auth::Context;
use crate::config::{CHECKPOINTABLE, EPOCH_STEP_MAX, EVENTS_MAX, LINKS_MAX, WINDOW_FRAMES_MAX};
use crate::ids::{Epoch, LinkIndex, OpId, PortId, RailIndex};
use crate::link::receive::Held;
use crate::link::record::FrameRecord;
use crate::link::recovery::Sample;
use crate::link::timer::NEVER;
use crate::link::{Flags, congestion, expand_sequence};
use crate::message::{Buffers, Event, Piece};
use crate::port::{Port, nanos};
use crate::sabotage::Rule;
use crate::time::Instant;
use crate::wire::{Body, Flags as HeaderFlags, Frame, Header, Kind, Single};

/// The full numbers of a frame.
#[derive(Clone, Copy)]
struct Numbers {
    seq: u64,
    transmission: u64,
}

impl Port {
    /// Takes a frame that came over `rail`. A frame that must not count is dropped and counted by reason; that is never
    /// an error.
    pub fn handle_frame(&mut self, now: Instant, rail: RailIndex, bytes: &[u8], buffers: &mut impl Buffers) {
        self.catch_up();
        self.counters.frames_received += 1;
        if let Some(single) = Single::of(bytes)
            && self.receive_fast(self.port_time(now), rail, bytes, &single, buffers)
        {
            return;
        }
        match Frame::parse(bytes) {
            Ok(frame) => self.handle(now, rail, bytes, &frame, Piece::InFrame(frame.payload), buffers),
            Err(_) => self.counters.dropped_malformed += 1,
        }
    }

    /// As [`Port::handle_frame`], of a piece of bulk whose payload of `payload_bytes` bytes the NIC has not brought: if the frame counts,
    /// [`Buffers::fetch`] is asked to bring it to its place. A tag over payload ([`crate::config::AuthLevel::Full`]) cannot be checked this
    /// way, and counts as wrong.
    pub fn handle_head(
        &mut self,
        now: Instant,
        rail: RailIndex,
        head: &[u8],
        payload_bytes: usize,
        buffers: &mut impl Buffers,
    ) {
        self.catch_up();
        self.counters.frames_received += 1;
        match Frame::parse_head(head, payload_bytes) {
            Ok(frame) if frame.payload.is_empty() && matches!(frame.body, Body::Data(_)) => {
                self.handle(now, rail, head, &frame, Piece::Deferred(payload_bytes), buffers);
            }
            _ => self.counters.dropped_malformed += 1,
        }
    }

    pub(super) fn handle(
        &mut self,
        now: Instant,
        rail: RailIndex,
        bytes: &[u8],
        frame: &Frame<'_>,
        payload: Piece<'_>,
        buffers: &mut impl Buffers,
    ) {
        let now = self.port_time(now);
        if frame.header.job != self.config.job {
            self.counters.dropped_job += 1;
            return;
        }
        #[cfg(feature = "sabotage")]
        if self.sabotage.has(Rule::Bypass) {
            self.bypass(frame, buffers);
        }
        if CHECKPOINTABLE && !self.is_of_life(frame) && !self.sabotage.has(Rule::LifeEquality) {
            // R7: before any field has an effect.
            self.other_life(rail, frame, bytes);
            return;
        }
        let Some((known, peer)) = self.find_link(frame) else {
            self.counters.dropped_unknown_link += 1;
            return;
        };
        let numbers = self.numbers(known, &frame.header);
        let context =
            Context { seq: numbers.seq, transmission: numbers.transmission, from: peer, to: self.id };
        if self.authenticator_of(rail).is_some_and(|auth| !auth.verify(context, bytes, frame.head_bytes)) {
            // R21
            self.counters.dropped_tag += 1;
            return;
        }
        if CHECKPOINTABLE
            && frame.header.epoch > self.epoch
            && !self.passes_higher_epoch(known, frame, numbers, now)
        {
            return;
        }
        if self.events.len() >= EVENTS_MAX || known.is_none() && self.links.len() >= LINKS_MAX {
            self.counters.dropped_no_room += 1;
            return;
        }
        let index = self.learn(known, peer, rail, frame);
        if self.links[index.0 as usize].flags.contains(Flags::BROKEN) {
            return;
        }
        self.take(index, rail, frame, payload, numbers, now, buffers);
        self.arm(index);
    }

    /// R7: of our life; or, between ranks of which one has moved, of that of their link (R13).
    fn is_of_life(&self, frame: &Frame<'_>) -> bool {
        let life = frame.header.life;
        if self.moves.is_empty() {
            return life == self.life;
        }
        let expected = match self.find_link(frame) {
            Some((Some(known), _)) => self.life_of_link(known),
            Some((None, peer)) => self.life_with(peer.rank()),
            None => self.life,
        };
        life == expected || self.sabotage.has(Rule::LifeOfLink) && life == self.life
    }

    /// A frame of another life has no effect (R7). If it is authentic and later than ours, our keeper is informed.
    fn other_life(&mut self, rail: RailIndex, frame: &Frame<'_>, bytes: &[u8]) {
        self.counters.dropped_life += 1;
        let life = frame.header.life;
        let Some(contact) = frame.contact else { return };
        let known = self.newer_life.map_or(self.life, |newer| newer);
        if life.counter <= known.counter || contact.to != self.id {
            return;
        }
        // Numbers go on from life to life.
        let near = self.by_peer.get(&contact.from).map_or(0, |index| self.links[index.0 as usize].expected);
        let context = Context {
            seq: expand_sequence(near, frame.header.seq),
            transmission: expand_sequence(0, frame.header.transmission),
            from: contact.from,
            to: self.id,
        };
        if self.authenticator_of(rail).is_none_or(|auth| auth.verify(context, bytes, frame.head_bytes)) {
            self.newer_life = Some(life);
            self.events.push_back(Event::NewerLife { life });
        }
    }

    /// The link that a frame names, if we have it, and the port at its other end.
    pub(crate) fn find_link(&self, frame: &Frame<'_>) -> Option<(Option<LinkIndex>, PortId)> {
        if let Some(contact) = &frame.contact {
            if contact.to != self.id {
                return None;
            }
            return Some((self.by_peer.get(&contact.from).copied(), contact.from));
        }
        let index = LinkIndex(frame.header.link?);
        let link = self.links.get(index.0 as usize)?;
        Some((Some(index), link.peer))
    }

    fn numbers(&self, known: Option<LinkIndex>, header: &Header) -> Numbers {
        let (expected, newest) = known.map_or((0, 0), |index| {
            let link = &self.links[index.0 as usize];
            (link.expected, link.newest)
        });
        Numbers {
            seq: expand_sequence(expected, header.seq),
            transmission: expand_sequence(newest, header.transmission),
        }
    }

    /// R3: nothing in a frame of a higher epoch has any effect before our rank has cut.
    fn passes_higher_epoch(
        &mut self,
        known: Option<LinkIndex>,
        frame: &Frame<'_>,
        numbers: Numbers,
        now: u64,
    ) -> bool {
        if frame.header.epoch.0 - self.epoch.0 > EPOCH_STEP_MAX && !self.config.follows {
            self.counters.dropped_epoch_step += 1;
            return false;
        }
        self.require_cut(frame.header.epoch);
        if let Some(index) = known {
            // It lives, and may be waiting for our cut: no silence is reported, and it is informed when that is over.
            self.hear(index, numbers.transmission, now);
        }
        if self.sabotage.has(Rule::HigherEpochData) {
            return true;
        }
        if self.sabotage.has(Rule::HigherEpochAck)
            && let Some(index) = known
        {
            let header = frame.header;
            self.acknowledgement(index, &header, numbers, now);
        }
        self.counters.dropped_epoch += 1;
        false
    }

    fn require_cut(&mut self, epoch: Epoch) {
        if epoch > self.cut_asked {
            self.cut_asked = epoch;
            self.events.push_back(Event::CutRequired { epoch });
        }
    }

    /// R21, R22: a sign of life, unless something as new has been one already. No image knows of it.
    fn hear(&mut self, index: LinkIndex, transmission: u64, now: u64) {
        let link = &mut self.links[index.0 as usize];
        if transmission <= link.heard {
            return;
        }
        link.heard = transmission;
        link.heard_at = now;
        if link.flags.intersects(Flags::SLOW | Flags::GONE) {
            link.flags.remove(Flags::SLOW | Flags::GONE);
            let peer = link.peer;
            self.events.push_back(Event::PeerBack { link: index, peer });
        }
    }

    /// R23: takes over the frame's facts about its sender: identity, link index, epoch. Makes the link at
    /// first contact.
    fn learn(
        &mut self,
        known: Option<LinkIndex>,
        peer: PortId,
        rail: RailIndex,
        frame: &Frame<'_>,
    ) -> LinkIndex {
        let index = known.unwrap_or_else(|| self.connect(peer));
        let link = &mut self.links[index.0 as usize];
        if let Some(contact) = &frame.contact {
            if link.peer_index.is_none() {
                link.peer_index = Some(contact.link.0);
            }
            if known.is_none() && contact.address != crate::ids::RawAddress::NONE {
                let address = contact.address;
                self.events.push_back(Event::PeerAppeared { link: index, peer, rail, address });
            }
        }
        let link = &mut self.links[index.0 as usize];
        if frame.header.link.is_some() {
            link.flags.insert(Flags::KNOWN_BY_PEER);
        }
        if CHECKPOINTABLE && frame.header.epoch > link.peer_epoch {
            link.peer_epoch = frame.header.epoch;
            if frame.header.epoch == self.epoch {
                // The peer has cut only now: until then it had to drop the frames that we sent after our own
                // cut (R3).
                link.lose_all(true);
                link.recovery.back_off = 0;
                self.make_ready(index);
            }
        }
        index
    }

    #[expect(clippy::too_many_arguments, reason = "one frame's worth of facts, each of its own type")]
    fn take(
        &mut self,
        index: LinkIndex,
        rail: RailIndex,
        frame: &Frame<'_>,
        payload: Piece<'_>,
        numbers: Numbers,
        now: u64,
        buffers: &mut impl Buffers,
    ) {
        let newer = {
            let link = &self.links[index.0 as usize];
            numbers.transmission > link.newest
        };
        let kind = frame.header.kind;
        if !newer && !kind.numbered() {
            self.counters.dropped_replayed += 1;
            return;
        }
        if CHECKPOINTABLE && newer && kind != Kind::Stopped {
            self.resume_peer(index);
        }
        if let Body::Resync(resync) = frame.body
            && !self.fits_ours(index, resync.expected, frame.header.epoch)
        {
            return;
        }
        if CHECKPOINTABLE
            && self.links[index.0 as usize].flags.contains(Flags::RESYNC)
            && !self.finish_resync(index, frame, now)
        {
            return;
        }
        if !self.acknowledgement(index, &frame.header, numbers, now) {
            return;
        }
        if newer {
            let link = &mut self.links[index.0 as usize];
            link.newest = numbers.transmission;
            link.heard_rail = rail.0;
            self.hear(index, numbers.transmission, now);
        }
        match frame.body {
            Body::Ack => {}
            Body::Probe => self.ack_now(index),
            Body::Resync(resync) => {
                // The peer has not heard us in this life: answer with our own counters.
                if resync.heard == 0 {
                    self.links[index.0 as usize].flags.insert(Flags::RESYNC_DUE);
                    self.make_ready(index);
                }
            }
            Body::Stopped(stopped) => self.peer_stopped(index, stopped.pause, stopped.expected_ns, now),
            body => {
                if frame.header.flags.contains(HeaderFlags::ACK_NOW) {
                    self.ack_now(index);
                }
                self.numbered(index, body, payload, numbers.seq, now, buffers);
            }
        }
    }

    /// R15: a numbered frame is a duplicate, the one expected, one out of turn, or one beyond the window.
    fn numbered(
        &mut self,
        index: LinkIndex,
        body: Body,
        payload: Piece<'_>,
        number: u64,
        now: u64,
        buffers: &mut impl Buffers,
    ) {
        let expected = self.links[index.0 as usize].expected;
        if number < expected {
            self.counters.dropped_duplicate += 1;
            self.ack_now(index);
            if self.sabotage.has(Rule::DuplicateFilter) {
                self.deliver(index, body, payload, buffers);
            }
            return;
        }
        if number == expected {
            if self.deliver(index, body, payload, buffers) {
                self.count(index, payload.len(), now);
                self.drain_reorder(index, now, buffers);
            }
            return;
        }
        self.ack_now(index);
        let ahead = number - expected - 1;
        if ahead >= WINDOW_FRAMES_MAX {
            self.counters.dropped_window += 1;
            return;
        }
        self.hold(index, ahead, body, payload, buffers);
    }

    /// Keeps a frame that came out of turn. A piece of a granted payload goes into its buffer at once: that is idempotent.
    fn hold(
        &mut self,
        index: LinkIndex,
        ahead: u64,
        body: Body,
        payload: Piece<'_>,
        buffers: &mut impl Buffers,
    ) {
        let copied_bytes_max = self.config.link_copied_bytes_max;
        let queues = self.links[index.0 as usize].queues(copied_bytes_max);
        if queues.reorder.holds(ahead) {
            self.counters.dropped_duplicate += 1;
            return;
        }
        let payload_bytes = payload.len();
        let placed = match body {
            Body::Data(data) => queues
                .incoming
                .iter()
                .find(|incoming| incoming.peer_op == data.operation)
                .filter(|incoming| fits(data.offset, payload_bytes, incoming.granted))
                .is_some_and(|incoming| payload.store(incoming.op, incoming.base + data.offset, buffers)),
            _ => false,
        };
        if placed {
            queues.reorder.hold(ahead, Held { body, payload: alloc::vec::Vec::new(), payload_bytes });
            return;
        }
        let Piece::InFrame(payload) = payload else {
            self.counters.dropped_not_fetched += 1;
            return;
        };
        if self.reorder_bytes + payload_bytes > self.config.reorder_bytes_max
            && !self.sabotage.has(Rule::WindowBounds)
        {
            self.counters.dropped_no_room += 1;
            return;
        }
        self.reorder_bytes += payload_bytes;
        queues.reorder.hold(ahead, Held { body, payload: payload.to_vec(), payload_bytes });
    }

    /// Counts the frames that were waiting for the one that has just been counted.
    fn drain_reorder(&mut self, index: LinkIndex, now: u64, buffers: &mut impl Buffers) {
        loop {
            let Some(queues) = &mut self.links[index.0 as usize].queues else { return };
            if queues.reorder.is_empty() {
                return;
            }
            // Called once per counted frame: the first slot is the frame that is expected now.
            let Some(held) = queues.reorder.advance() else { return };
            self.reorder_bytes -= held.payload.len();
            let payload = if held.payload.len() == held.payload_bytes {
                Piece::InFrame(&held.payload)
            } else {
                Piece::Placed(held.payload_bytes)
            };
            if !self.deliver(index, held.body, payload, buffers) {
                // It cannot be counted now and is retransmitted; its slot is gone, those behind it are in
                // step.
                return;
            }
            self.count(index, held.payload_bytes, now);
        }
    }

    /// A frame has been counted: its number is ours, an acknowledgement is owed (R5: an image relies on counted frames,
    /// not on acknowledged ones).
    pub(super) fn count(&mut self, index: LinkIndex, payload_bytes: usize, now: u64) {
        self.counters.frames_counted += 1;
        let link = &mut self.links[index.0 as usize];
        link.expected += 1;
        // Bulk counts for several frames: the sender's congestion window is in bytes.
        let weight = 1 + u16::try_from(payload_bytes >> 13).unwrap_or(u16::MAX / 2);
        link.unacknowledged = link.unacknowledged.saturating_add(weight);
        if u32::from(link.unacknowledged) >= crate::config::ACK_EVERY_FRAMES {
            self.ack_now(index);
        } else if link.timers.ack == NEVER {
            link.timers.ack = now + nanos(crate::config::ACK_DELAY);
        }
    }

    pub(crate) fn ack_now(&mut self, index: LinkIndex) {
        self.links[index.0 as usize].flags.insert(Flags::ACK_NOW);
        self.make_ready(index);
    }

    /// R16: the frame's acknowledgement. False if it acknowledges a number that was never sent: nothing of it
    /// counts then.
    fn acknowledgement(&mut self, index: LinkIndex, header: &Header, numbers: Numbers, now: u64) -> bool {
        let link = &mut self.links[index.0 as usize];
        let ack = expand_sequence(link.acked, header.ack);
        if ack > link.next {
            self.counters.dropped_ack_beyond += 1;
            return false;
        }
        let newest = numbers.transmission >= link.newest;
        if newest {
            link.peer_window_bytes = header.window_bytes;
            link.peer_window_frames = header.window_frames;
        }
        let echo = expand_sequence(link.transmissions, header.echo);
        let selective = (ack >= link.acked && newest).then_some(header.selective);
        self.acknowledge(index, ack.max(self.links[index.0 as usize].acked), echo, selective, now);
        true
    }

    /// Frees everything before `ack`, marks the frames that `selective` reports, and looks for losses.
    pub(crate) fn acknowledge(
        &mut self,
        index: LinkIndex,
        ack: u64,
        echo: u64,
        selective: Option<u64>,
        now: u64,
    ) {
        let before = self.links[index.0 as usize].acked;
        let (mut bytes, mut spurious) = self.free_acknowledged(index, ack, echo, now);
        let link = &mut self.links[index.0 as usize];
        if let Some(bitmap) = selective.filter(|bitmap| *bitmap != 0) {
            let (selected, needless) = link.select(bitmap, echo, now);
            bytes += selected;
            spurious |= needless;
            #[cfg(feature = "sabotage")]
            if self.sabotage.has(Rule::CumulativeOnly) {
                self.free_selected(index);
            }
        }
        let link = &mut self.links[index.0 as usize];
        let progress = ack > before || bytes > 0;
        if progress {
            link.recovery.back_off = 0;
            link.forget_found();
            if self.config.network {
                link.congestion_bytes = congestion::after_ack(link.congestion_bytes, bytes, &link.recovery);
            }
            link.timers.probe = if link.acked == link.next && !link.is_held_back() {
                NEVER
            } else {
                now + link.recovery.probe_timeout_ns()
            };
        }
        if spurious {
            self.counters.resends_spurious += 1;
            link.recovery.on_spurious();
        }
        self.detect_losses(index, now);
        let link = &self.links[index.0 as usize];
        if link.queues.as_ref().is_some_and(|queues| !queues.nothing_to_send() || !queues.lost.is_empty())
            || link.flags.contains(Flags::CLOSING)
        {
            self.make_ready(index);
        }
    }

    /// Takes the frames before `ack` out of the queue of sent frames. Returns their bytes that were not yet reported as
    /// received, and whether a needless resend was seen.
    fn free_acknowledged(&mut self, index: LinkIndex, ack: u64, echo: u64, now: u64) -> (u32, bool) {
        let (mut bytes, mut spurious) = (0, false);
        while self.links[index.0 as usize].acked < ack {
            let link = &mut self.links[index.0 as usize];
            let Some(queues) = &mut link.queues else { break };
            let Some((frame, sent)) = queues.pop_oldest() else { break };
            link.acked += 1;
            // R24: it was sent over one rail alone, or the answer is to a frame sent over that.
            let mut arrived = !sent.resent;
            if !sent.selected {
                bytes += sent.payload_bytes;
                match link.recovery.on_acknowledged(&sent, echo, now) {
                    Sample::Spurious => spurious = true,
                    Sample::RoundTrip => arrived = true,
                    Sample::None => {}
                }
                if !sent.lost {
                    link.flight_bytes = link.flight_bytes.saturating_sub(sent.payload_bytes);
                }
            }
            queues.copied.release_before(frame.ring_end());
            if frame.is_copied() {
                link.copied_bytes = link.copied_bytes.saturating_sub(sent.payload_bytes);
                link.copied_frames = link.copied_frames.saturating_sub(1);
            }
            self.acked_total += 1;
            self.complete(index, &frame);
            if arrived {
                self.trust_rail(sent.rail);
            }
        }
        (bytes, spurious)
    }

    /// An acknowledged frame may have been the last of its message.
    fn complete(&mut self, index: LinkIndex, frame: &FrameRecord) {
        if let Some((op, context)) = frame.completes() {
            self.events.push_back(Event::SendDone { op, context });
        }
        match frame.kind {
            FrameRecord::DATA => {
                let op = OpId(frame.op.get());
                if let Some(send) = self.sends.get_mut(&op) {
                    send.acked += u64::from(frame.bytes.get());
                    if send.granted == Some(send.acked) {
                        self.finish_send(op);
                    }
                }
            }
            FrameRecord::CLOSE => {
                let peer = self.links[index.0 as usize].peer;
                self.events.push_back(Event::LinkClosed { link: index, peer });
            }
            _ => {}
        }
    }

    /// An announced message has been received: its payload may be reused.
    pub(crate) fn finish_send(&mut self, op: OpId) {
        if let Some(send) = self.sends.remove(&op)
            && !send.envelope.silent
        {
            self.events.push_back(Event::SendDone { op, context: send.envelope.context });
        }
    }

    /// Looks for frames that have been overtaken for too long.
    pub(crate) fn detect_losses(&mut self, index: LinkIndex, now: u64) {
        let link = &mut self.links[index.0 as usize];
        let acked = link.acked;
        let Some(queues) = &mut link.queues else { return };
        let overtaken =
            queues.sent.front().is_some_and(|first| first.transmission < link.recovery.rack_transmission);
        if !overtaken {
            link.timers.reorder = NEVER;
            return;
        }
        let rails = &mut self.rails;
        let mut lost_bytes = 0;
        let recovery = link.recovery;
        link.timers.reorder = recovery.detect(queues, acked, now, |sent| {
            lost_bytes += sent.payload_bytes;
            if let Some(rail) = rails.get_mut(usize::from(sent.rail)) {
                rail.losses = rail.losses.saturating_add(1);
            }
        });
        link.flight_bytes = link.flight_bytes.saturating_sub(lost_bytes);
        if lost_bytes > 0 {
            if self.config.network {
                link.congestion_bytes = congestion::after_loss(link.congestion_bytes, lost_bytes);
            }
            link.recovery.on_recovered();
        }
        if !queues.lost.is_empty() {
            self.suspect_rails(now);
            self.make_ready(index);
        }
    }

    /// R20: any frame that is newer than the hint ends it.
    fn resume_peer(&mut self, index: LinkIndex) {
        let link = &mut self.links[index.0 as usize];
        if link.timers.stopped != NEVER {
            link.timers.stopped = NEVER;
            self.make_ready(index);
        }
    }

    /// R20, a STOPPED hint: soft state. Frames in flight are not lost, only late.
    fn peer_stopped(&mut self, index: LinkIndex, pause: u64, expected_ns: u64, now: u64) {
        let link = &mut self.links[index.0 as usize];
        if pause <= link.peer_pause {
            self.counters.hints_stale += 1;
            return;
        }
        link.peer_pause = pause;
        let expected = expected_ns.min(nanos(crate::config::STOPPED_MAX));
        link.timers.stopped =
            if self.sabotage.has(Rule::StoppedExpiry) { now + (1 << 60) } else { now + expected };
        link.timers.reorder = NEVER;
    }
}

/// Whether a piece lies inside the granted range.
pub(crate) fn fits(offset: u64, bytes: usize, granted: u64) -> bool {
    offset.checked_add(bytes as u64).is_some_and(|end| end <= granted)
}
