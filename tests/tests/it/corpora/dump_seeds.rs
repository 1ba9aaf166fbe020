//! Port sections of every kind of content, made by ports that have talked.

use std::time::Duration;

use nic_freeze::{Payloads, append_payloads, dump};
use transport::matching::Pattern;
use transport::{Epoch, FrozenPort, Instant, LinkIndex, OpId, RailIndex, Receive, Space};

#[path = "../../../../transport/tests/it/world/mod.rs"]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
mod world;

use crate::corpora::seeds::Seed;
use world::{Fate, Memory, World, pattern};

const FRAME_BYTES: usize = 400;

struct User<'a>(&'a Memory);

impl Payloads for User<'_> {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.0.sending.get(&op).map(Vec::as_slice)
    }

    fn receive_buffer(&self, op: OpId) -> Option<&[u8]> {
        self.0.posted.get(&op).map(Vec::as_slice)
    }
}

fn opened() -> World {
    let mut config = crate::corpora::properties::dump_config();
    // Two frames in flight, so that a payload stops half-way.
    config.flight_bytes_max = 500;
    World::new(2, &config, FRAME_BYTES)
}

fn seed(name: &str, world: &mut World, node: usize, payloads: bool) -> Seed {
    let frozen: FrozenPort = world.freeze(node);
    let mut bytes = Vec::new();
    dump(&frozen, &mut bytes);
    if payloads {
        let memory = &world.nodes[node].memory;
        append_payloads(&frozen, &User(memory), &mut bytes).expect("the memory is this port's");
    }
    (name.to_owned(), bytes)
}

pub(crate) fn all() -> Vec<Seed> {
    let mut seeds = vec![seed("empty", &mut opened(), 0, false)];
    seeds.extend(posted());
    seeds.extend(copied());
    seeds.extend(waiting());
    seeds.extend(announced());
    seeds.extend(converted());
    seeds.extend(closed());
    seeds
}

fn posted() -> Option<Seed> {
    let mut world = opened();
    world.receive(0, None, None, 100);
    world.receive(0, Some(1), Some(7), 1000);
    let node = &mut world.nodes[0];
    let multi = Receive {
        space: Space(1),
        source: None,
        tag: 1,
        ignore: 3,
        bytes_max: 500,
        context: 9,
        multi: Some(100),
    };
    node.port.as_mut()?.post_receive(multi, &mut node.memory).ok()?;
    Some(seed("posted", &mut world, 0, false))
}

/// Frames in flight, one message half-way, more behind it.
fn copied() -> Vec<Seed> {
    let mut world = opened();
    world.send(0, 1, 1, b"acknowledged");
    world.run(Duration::from_millis(1));
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    world.send(0, 1, 2, &pattern(2, 100));
    world.send(0, 1, 3, &pattern(3, 600));
    world.send(0, 1, 4, b"");
    let mut frame = [0; FRAME_BYTES];
    let now = world.now;
    for _ in 0..2 {
        let _ = world.port(0).poll_transmit(now, RailIndex(0), &mut frame);
    }
    vec![seed("copied", &mut world, 0, false)]
}

/// Messages that nobody has asked for: whole, claimed, announced, under assembly.
fn waiting() -> Vec<Seed> {
    let mut world = opened();
    world.send(0, 1, 1, b"whole");
    world.send(0, 1, 2, b"claimed");
    world.send_user(0, 1, 3, pattern(3, 10_000));
    world.run(Duration::from_millis(1));
    let claimed = Pattern { space: Space(0), source: None, tag: 2, ignore: 0 };
    world.port(1).claim(&claimed).expect("it has arrived");
    let mut fragments = 0;
    world.fate = Box::new(move |from, _, frame, _| {
        fragments += u32::from(from == 0 && frame.header.kind.numbered());
        if fragments > 2 { Fate::Lose } else { Fate::Deliver }
    });
    world.send(0, 1, 4, &pattern(4, 1000));
    world.run(Duration::from_micros(20));
    vec![seed("waiting", &mut world, 1, false)]
}

/// A payload half-way, at its sender and at its receiver, with the user's memory.
fn announced() -> Vec<Seed> {
    let mut world = opened();
    world.receive(1, Some(0), Some(1), 2000);
    world.send_user(0, 1, 1, pattern(1, 900));
    world.send_user(0, 1, 2, pattern(2, 300));
    let mut pieces = 0;
    world.fate = Box::new(move |_, _, frame, _| {
        pieces += u32::from(frame.header.kind == transport::wire::Kind::Data);
        if pieces > 2 { Fate::Lose } else { Fate::Deliver }
    });
    world.run(Duration::from_micros(200));
    let sender = world.freeze(0);
    let mut references = Vec::new();
    dump(&sender, &mut references);
    world.thaw(0, sender);
    let mut seeds = vec![("announced".to_owned(), references)];
    seeds.push(seed("announced-payload", &mut world, 0, true));
    seeds.push(seed("incoming-payload", &mut world, 1, true));
    let mut world = opened();
    world.receive(1, Some(0), Some(1), 2000);
    world.send_user(0, 1, 1, pattern(1, 900));
    world.run(Duration::from_micros(5));
    seeds.push(seed("granting", &mut world, 1, false));
    seeds
}

/// Copied messages that the port keeps because the peer had no window.
fn converted() -> Vec<Seed> {
    let mut config = crate::corpora::properties::dump_config();
    config.link_window_bytes = 64;
    config.eager_bytes_max = 200;
    let mut world = World::new(2, &config, FRAME_BYTES);
    for tag in 0..3 {
        world.send(0, 1, tag, &pattern(tag, 60));
    }
    world.pump();
    world.send(0, 1, 4, b"behind");
    vec![seed("converted", &mut world, 0, false)]
}

/// An ended conversation whose completions nobody has polled.
fn closed() -> Vec<Seed> {
    let mut world = opened();
    world.receive(1, None, None, 100);
    world.send(0, 1, 1, b"last words");
    world.port(0).close_link(LinkIndex(0));
    let mut memory = Memory::default();
    let mut frame = [0; FRAME_BYTES];
    let mut now = Instant::from_nanos(2_000_000);
    for round in 0..6 {
        now = now + Duration::from_micros(30);
        let (from, to) = (round % 2, 1 - round % 2);
        world.port(from).handle_timeout(now);
        while let Some(transmit) = world.port(from).poll_transmit(now, RailIndex(0), &mut frame) {
            let bytes = frame[..transmit.frame_bytes].to_vec();
            world.port(to).handle_frame(now, RailIndex(0), &bytes, &mut memory);
            if to == 1 {
                world.link(1, 0);
            }
        }
    }
    let ends = |world: &mut World, node: usize, name: &str| {
        let mut frozen = world.nodes[node].port.take().expect("it runs").freeze(now);
        frozen.set_epoch(Epoch(3));
        assert!(frozen.completions().count() >= 2, "{name}");
        let mut bytes = Vec::new();
        dump(&frozen, &mut bytes);
        (name.to_owned(), bytes)
    };
    vec![ends(&mut world, 0, "closed"), ends(&mut world, 1, "closed-by-peer")]
}
