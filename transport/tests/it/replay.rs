//! R21, R22: a frame is no sign of life when it is sent a second time.

use std::time::Duration;

use crate::world::{Fate, World, config, pattern};
use transport::config::{GONE_AFTER, SLOW_AFTER};
use transport::{AddressId, Epoch, Event, RailIndex, RawAddress};

const MS: Duration = Duration::from_millis(1);

/// Two ports with two rails each, which know each other and owe each other nothing.
fn acquainted() -> World {
    let mut world = World::new(2, &config(), 1500);
    for (i, address) in [[9, 0], [9, 1]].iter().enumerate() {
        world.port(i).add_rail(RawAddress::new(address).expect("short"), 1500);
    }
    world.rails = 2;
    for (from, to, address) in [(0, 1, AddressId(1)), (1, 0, AddressId(0))] {
        let link = world.link(from, to);
        world.port(from).set_path(link, RailIndex(1), address);
        world.receive(to, None, Some(0), 10);
        world.send(from, to, 0, b"hello");
    }
    world.run(20 * MS);
    world
}

/// Runs for a while; returns the frames that node 1 has sent to node 0.
fn recorded(world: &mut World, time: Duration) -> Vec<Vec<u8>> {
    let (mut heard, until) = (Vec::new(), world.now + time);
    loop {
        world.pump();
        for (_, to, _, bytes) in &world.wire {
            if *to == 0 && !heard.contains(bytes) {
                heard.push(bytes.clone());
            }
        }
        if !world.step(until) {
            return heard;
        }
    }
}

/// From here on node 1 is not heard any more.
fn falls_silent(world: &mut World) {
    world.fate = Box::new(|from, _, _, _| if from == 1 { Fate::Lose } else { Fate::Deliver });
    world.nodes[0].events.clear();
    world.send(0, 1, 5, b"is anybody there?");
}

fn silences(world: &World) -> usize {
    world.nodes[0].events.iter().filter(|event| matches!(event, Event::PeerSilent { .. })).count()
}

fn replay(world: &mut World, frames: &[Vec<u8>]) {
    for bytes in frames {
        let (now, node) = (world.now, &mut world.nodes[0]);
        let port = node.port.as_mut().expect("running");
        port.handle_frame(now, RailIndex(1), bytes, &mut node.memory);
        world.collect(0);
    }
}

#[test]
fn a_frame_sent_again_is_no_sign_of_life() {
    let mut world = acquainted();
    world.send(0, 1, 1, b"to be acknowledged");
    world.receive(0, None, Some(2), 5000);
    world.send(1, 0, 2, &pattern(2, 5000));
    let old = recorded(&mut world, 20 * MS);
    assert!(old.len() > 2, "numbered frames and acknowledgements");
    falls_silent(&mut world);
    world.run(GONE_AFTER + 2 * SLOW_AFTER);
    assert_eq!(silences(&world), 2, "slow, then gone");
    let events = world.nodes[0].events.len();
    let seen = |world: &mut World| {
        let counters = world.port(0).counters();
        (counters.dropped_replayed, counters.dropped_duplicate)
    };
    let before = seen(&mut world);
    replay(&mut world, &old);
    let after = seen(&mut world);
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    assert_eq!(world.nodes[0].events.len(), events, "{:?}", world.nodes[0].events.last());
    // The peer itself is heard.
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(SLOW_AFTER);
    assert!(world.nodes[0].events.iter().any(|event| matches!(event, Event::PeerBack { .. })));
}

/// R24.
#[test]
fn acknowledgements_do_not_follow_a_frame_sent_again_to_its_rail() {
    let mut world = acquainted();
    world.send(1, 0, 1, b"old");
    let old = recorded(&mut world, 20 * MS);
    world.send(1, 0, 2, b"new");
    world.pump();
    let new: Vec<_> = world.wire.drain(..).map(|(.., bytes)| bytes).collect();
    let node = &mut world.nodes[0];
    let port = node.port.as_mut().expect("running");
    new.iter().for_each(|bytes| port.handle_frame(world.now, RailIndex(0), bytes, &mut node.memory));
    replay(&mut world, &old);
    world.pump();
    let rails: Vec<u8> = world.wire.iter().map(|(_, _, rail, _)| *rail).collect();
    assert_eq!(rails, [0], "one acknowledgement, to where the peer was heard");
}

/// R3: a peer of a higher epoch, which must not be heard otherwise, is not silent; a frame of it is a sign of
/// life only once.
#[test]
fn a_peer_of_a_higher_epoch_is_heard_to_live_and_no_longer_than_it_does() {
    let mut world = acquainted();
    let now = world.now;
    let mut frozen = world.nodes[1].port.take().expect("running").freeze(now);
    frozen.set_epoch(Epoch(1));
    world.nodes[1].port = Some(frozen.thaw(now));
    world.fate =
        Box::new(
            |from, _, frame, _| {
                if from == 1 && frame.header.epoch == Epoch(0) { Fate::Lose } else { Fate::Deliver }
            },
        );
    world.nodes[0].events.clear();
    world.send(0, 1, 1, b"counted after the cut");
    world.send(1, 0, 2, b"of the higher epoch");
    let old = recorded(&mut world, GONE_AFTER + SLOW_AFTER);
    assert_eq!(silences(&world), 0);
    assert_eq!(world.sends_done(0), 0, "its acknowledgement is not heard");
    falls_silent(&mut world);
    for _ in 0..24 {
        world.run(SLOW_AFTER / 2);
        replay(&mut world, &old);
    }
    assert_eq!(silences(&world), 2, "slow, then gone");
    assert!(!world.nodes[0].events.iter().any(|event| matches!(event, Event::PeerBack { .. })));
}
