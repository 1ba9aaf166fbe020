//! The fast path of a short message that comes: it is the frame that its link expects, nothing about the link or the frame is out of the ordinary, and
//! a receive waits for it.

use crate::auth::Context;
use crate::config::{CHECKPOINTABLE, EVENTS_MAX};
use crate::ids::{LinkIndex, RailIndex};
use crate::link::timer::NEVER;
use crate::link::{Flags, Link, expand_sequence};
use crate::matching::Envelope;
use crate::message::Buffers;
use crate::port::Port;
use crate::port::deferred_ack::DeferredAck;
use crate::wire::{SINGLE_HEAD_BYTES, Single};

impl Port {
    /// Takes a frame as [`Port::handle_frame`] does, in one go. `now` is port time. False: something wants the slow path; nothing has happened then.
    #[inline]
    pub(super) fn receive_fast(
        &mut self,
        now: u64,
        rail: RailIndex,
        bytes: &[u8],
        frame: &Single<'_>,
        buffers: &mut impl Buffers,
    ) -> bool {
        let slot = frame.link();
        let Some(link) = self.links.get(slot as usize) else { return false };
        // R7, R13, R3: of our job, the life of the link and our epoch, whose sender we know to be in it.
        let own = if CHECKPOINTABLE {
            frame.is_of(self.config.job, self.life_of_link(LinkIndex(slot)), self.epoch)
        } else {
            frame.is_of_job(self.config.job)
        };
        if !own || self.events.len() >= EVENTS_MAX {
            return false;
        }
        let transmission = expand_sequence(link.newest, frame.transmission());
        let ack = expand_sequence(link.acked, frame.ack());
        let usual = expand_sequence(link.expected, frame.seq()) == link.expected
            && transmission > link.newest
            && (link.acked..=link.next).contains(&ack)
            && (!CHECKPOINTABLE || link.peer_epoch == self.epoch)
            && link.receives_fast();
        if !usual {
            return false;
        }
        let index = LinkIndex(slot);
        if let Some(auth) = self.authenticator_of(rail) {
            let context = Context { seq: link.expected, transmission, from: link.peer, to: self.id };
            if !auth.verify(context, bytes, SINGLE_HEAD_BYTES) {
                return false;
            }
        }
        // R16: its acknowledgement is not new, and nothing waits to leave.
        let has_nothing_to_do = link.has_nothing_to_do();
        let reports_nothing = ack == link.acked && has_nothing_to_do;
        let eager = frame.eager();
        let envelope = Envelope {
            source: index,
            space: eager.space,
            tag: eager.tag,
            data: eager.data,
            bytes: eager.total,
        };
        let Some((receive, placement)) = self.matcher.take_receive(&envelope) else { return false };
        // From here on it counts.
        self.counters.messages_fast += 1;
        let link = &mut self.links[slot as usize];
        link.peer_window_bytes = frame.window_bytes();
        link.peer_window_frames = frame.window_frames();
        if reports_nothing {
            link.timers.reorder = NEVER;
        } else {
            let echo = expand_sequence(link.transmissions, frame.echo());
            if ack == link.next && has_nothing_to_do {
                // Nothing that waits could leave because of it, and nothing is lost.
                debug_assert!(self.deferred_ack.is_none(), "only one acknowledgement is put off");
                self.deferred_ack = Some(DeferredAck { link: index, ack, echo, now });
            } else {
                self.acknowledge(index, ack, echo, None, now);
            }
        }
        let link = &mut self.links[slot as usize];
        link.newest = transmission;
        link.heard_rail = rail.0;
        if transmission > link.heard {
            link.heard = transmission;
            link.heard_at = now;
        }
        if frame.wants_ack_now() {
            self.ack_now(index);
        }
        let payload = frame.payload;
        let stored = payload.len().min(usize::try_from(placement.bytes).unwrap_or(usize::MAX));
        if stored > 0 {
            buffers.place(receive.op, placement.offset, &payload[..stored]);
        }
        self.report_received(index, &eager, &receive, placement);
        self.use_promise(index, payload.len(), 1);
        self.count(index, payload.len(), now);
        if self.deferred_ack.is_none() {
            self.arm(index);
        }
        true
    }
}

impl Link {
    /// Whether a message that comes now has nothing to end, and nothing to wait for: no hint, no resync, no silence, no frame out of turn, no message half here.
    fn receives_fast(&self) -> bool {
        const OUT_OF_THE_ORDINARY: Flags = Flags::RESYNC
            .union(Flags::BROKEN)
            .union(Flags::PEER_CLOSED)
            .union(Flags::SLOW)
            .union(Flags::GONE);
        !self.flags.intersects(OUT_OF_THE_ORDINARY)
            && self.flags.contains(Flags::KNOWN_BY_PEER)
            && self.timers.stopped == NEVER
            && self.queues.as_ref().is_none_or(|queues| queues.open.is_none() && queues.reorder.is_empty())
    }

    /// Whether nothing waits to be sent and no sent frame has been overtaken.
    #[inline]
    fn has_nothing_to_do(&self) -> bool {
        !self.flags.contains(Flags::CLOSING)
            && self.queues.as_ref().is_none_or(|queues| {
                queues.nothing_to_send()
                    && queues.lost.is_empty()
                    && queues
                        .sent
                        .front()
                        .is_none_or(|first| first.transmission >= self.recovery.rack_transmission)
            })
    }
}

#[cfg(test)]
mod tests {
    use crate::message::Event;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::auth::JobKey;
    use crate::config::{AuthLevel, PortConfig};
    use crate::ids::{AddressId, Epoch, JobTag, Life, OpId, PortId, Rank, RawAddress};
    use crate::matching::Space;
    use crate::message::{Outgoing, Payload, Piece, Receive};
    use crate::time::Instant;
    use crate::wire::Frame;

    const RAIL: RailIndex = RailIndex(0);
    const KEY: JobKey = JobKey([7; 16]);

    /// The placed bytes, in order.
    #[derive(Default, PartialEq, Debug)]
    struct Memory(Vec<(OpId, u64, Vec<u8>)>);

    impl Buffers for Memory {
        fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
            self.0.push((receive, offset, bytes.to_vec()));
        }
    }

    /// Two ports and the frames in flight between them.
    struct World {
        ports: [Port; 2],
        memory: Memory,
        events: Vec<Event>,
        wire: Vec<(usize, Vec<u8>)>,
        now: u64,
        /// Frames take the slow path.
        slow: bool,
        fast: u64,
    }

    impl World {
        fn new(slow: bool, auth: AuthLevel) -> World {
            let config = PortConfig { auth, unexpected_entries_max: 64, ..PortConfig::new(JobTag(5)) };
            let life = Life { counter: 1, nonce: 9 };
            let ports = [0, 1].map(|i: u32| {
                let id = PortId::of_rank(Rank(i), 0);
                let mut port = Port::new(config.clone(), id, life, Epoch(3), Some(&KEY));
                let place = RawAddress::new(&[u8::try_from(i).unwrap()]).unwrap();
                port.add_rail(place, 1500);
                let link = port.connect(PortId::of_rank(Rank(1 - i), 0));
                port.set_path(link, RAIL, AddressId(1 - i));
                port
            });
            let (memory, events, wire) = (Memory::default(), Vec::new(), Vec::new());
            World { ports, memory, events, wire, now: 1_000_000, slow, fast: 0 }
        }

        fn take(&mut self, to: usize, bytes: &[u8]) {
            let World { ports, memory, now, .. } = self;
            let (port, now) = (&mut ports[to], Instant::from_nanos(*now));
            let frame = Frame::parse(bytes).unwrap();
            port.catch_up();
            port.counters.frames_received += 1;
            let time = port.port_time(now);
            let single = Single::of(bytes).filter(|_| !self.slow);
            if single.is_some_and(|single| port.receive_fast(time, RAIL, bytes, &single, memory)) {
                self.fast += core::mem::take(&mut port.counters.messages_fast);
            } else {
                port.handle(now, RAIL, bytes, &frame, Piece::InFrame(frame.payload), memory);
            }
        }

        /// All events since the last call, in no order.
        fn reported(&mut self) -> Vec<String> {
            let mut reported: Vec<_> =
                core::mem::take(&mut self.events).iter().map(|e| format!("{e:?}")).collect();
            for port in &mut self.ports {
                while let Some(event) = port.poll_event() {
                    reported.push(format!("{event:?}"));
                }
            }
            reported.sort();
            reported
        }

        /// One thing happens, which `chance` names.
        fn step(&mut self, chance: u64) {
            let what = chance >> 8;
            let one_in = |at: u64, n: u64| (what / at).is_multiple_of(n);
            let of = usize::try_from(what % 2).unwrap();
            let port = &mut self.ports[of];
            match chance % 16 {
                0..=4 => {
                    let bytes = vec![1; [0, 8, 8, 100, 3000][usize::try_from(what / 2 % 5).unwrap()]];
                    let tag = what / 16 % 4;
                    let silent = one_in(64, 2);
                    let outgoing = Outgoing { space: Space(0), tag, data: what, context: what, silent };
                    let _ = port.send(LinkIndex(0), outgoing, Payload::Copied(&bytes));
                }
                5..=9 => {
                    let ignore = if one_in(2, 8) { 3 } else { 0 };
                    let multi = one_in(16, 8).then_some(50);
                    let source = one_in(128, 2).then_some(LinkIndex(0));
                    let bytes_max = if one_in(256, 8) { 5 } else { 4000 };
                    let (space, tag, context) = (Space(0), what / 2048 % 4, what);
                    let receive = Receive { space, source, tag, ignore, bytes_max, context, multi };
                    port.post_receive(receive, &mut self.memory).unwrap();
                }
                10..=13 => {
                    // Most arrive, in order; one may be late, lost or doubled.
                    let fate = what / 2 % 32;
                    if fate == 0 && self.wire.len() > 1 {
                        self.wire.swap(0, 1);
                    }
                    for (i, (to, bytes)) in core::mem::take(&mut self.wire).into_iter().enumerate() {
                        let times = match fate {
                            1 if i == 0 => 0,
                            2 if i == 0 => 2,
                            _ => 1,
                        };
                        for _ in 0..times {
                            self.take(to, &bytes);
                        }
                    }
                }
                14 => self.now += what % 100_000,
                _ => {
                    let now = Instant::from_nanos(self.now);
                    port.handle_timeout(now);
                    while let Some(event) = port.poll_event() {
                        self.events.push(event);
                    }
                }
            }
            let now = Instant::from_nanos(self.now);
            for (i, port) in self.ports.iter_mut().enumerate() {
                let mut frame = [0; 1500];
                while let Some(transmit) = port.poll_transmit(now, RAIL, &mut frame) {
                    self.wire.push((1 - i, frame[..transmit.frame_bytes].to_vec()));
                }
            }
        }
    }

    /// Everything that a port knows is the same after every step, on both paths: among them frames reordered, doubled
    /// and lost, unexpected messages, messages of several frames, cut off, and into buffers for several.
    #[test]
    fn a_frame_that_is_taken_at_once_leaves_what_the_long_way_leaves() {
        for auth in [AuthLevel::Off, AuthLevel::Header] {
            let (mut quick, mut slow) = (World::new(false, auth), World::new(true, auth));
            let mut chance = 0x1234_5678_9abc_def1u64;
            for step in 0..2000 {
                chance =
                    chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                for world in [&mut quick, &mut slow] {
                    world.step(chance >> 20);
                }
                if step % 16 == 0 {
                    // One path reports the frame's message first, the other its acknowledgement.
                    let reported = [&mut quick, &mut slow].map(World::reported);
                    assert_eq!(reported[0], reported[1], "step {step}");
                    assert_eq!(format!("{:?}", quick.ports), format!("{:?}", slow.ports), "step {step}");
                }
                assert_eq!(quick.wire, slow.wire, "step {step}");
                assert_eq!(quick.memory, slow.memory, "step {step}");
            }
            let counted: u64 = quick.ports.iter().map(|port| port.counters.frames_counted).sum();
            let fast = quick.fast;
            assert!(slow.fast == 0 && fast > 100 && counted > fast + 100, "{fast} of {counted}");
        }
    }
}
