//! R4: a rank that has cut helps one that has not, with what it could have said before its cut and nothing else.

#[expect(clippy::cast_possible_truncation, reason = "test data")]
mod world;

use std::time::Duration;

use transport::{Epoch, Event};
use world::{Fate, World, config};

const MS: Duration = Duration::from_millis(1);

fn cut(world: &mut World, node: usize, epoch: u32) {
    let now = world.now;
    let port = world.nodes[node].port.take().expect("running");
    let mut frozen = port.freeze(now);
    frozen.set_epoch(Epoch(epoch));
    world.nodes[node].port = Some(frozen.thaw(now));
}

fn cut_required(world: &World, node: usize) -> bool {
    world.nodes[node].events.iter().any(|event| matches!(event, Event::CutRequired { .. }))
}

/// Both ends know each other and owe each other nothing.
fn acquainted() -> World {
    let mut world = World::new(2, &config(), 1500);
    for (from, to) in [(0, 1), (1, 0)] {
        world.receive(to, None, Some(0), 10);
        world.send(from, to, 0, b"hello");
    }
    world.run(20 * MS);
    world.nodes[1].events.clear();
    world
}

#[test]
fn a_frame_lost_before_the_cut_reaches_a_peer_that_has_not_cut() {
    let mut world = acquainted();
    world.fate = Box::new(|from, _, _, _| if from == 0 { Fate::Lose } else { Fate::Deliver });
    world.send(0, 1, 1, b"before");
    world.pump();
    cut(&mut world, 0, 1);
    world.fate = Box::new(|_, _, frame, _| {
        // Only what is of the old epoch gets through: what the peer receives, it receives without a cut.
        if frame.header.epoch > Epoch(0) { Fate::Lose } else { Fate::Deliver }
    });
    let op = world.receive(1, None, Some(1), 100);
    world.run(50 * MS);
    assert_eq!(world.received(1), [(op, 1, 6)]);
    assert!(!cut_required(&world, 1));
    // What is sent after the cut is of the new epoch, and makes the peer cut.
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.send(0, 1, 2, b"after");
    world.receive(1, None, Some(2), 100);
    world.run(50 * MS);
    assert!(cut_required(&world, 1));
    assert_eq!(world.received(1).len(), 1, "nothing sent after the cut is received before it");
    cut(&mut world, 1, 1);
    world.run(50 * MS);
    assert_eq!(world.received(1).len(), 2);
}

#[test]
fn an_acknowledgement_lost_before_the_cut_is_repeated_as_it_was() {
    let mut world = acquainted();
    world.fate = Box::new(|from, _, _, _| if from == 0 { Fate::Lose } else { Fate::Deliver });
    let done = world.sends_done(1);
    world.receive(0, None, Some(1), 100);
    world.send(1, 0, 1, b"counted before the cut");
    world.run(Duration::from_micros(20));
    assert_eq!(world.received(0).len(), 2);
    cut(&mut world, 0, 1);
    // Counted after the cut: its acknowledgement must not be seen by a peer that has not cut (R3).
    world.receive(0, None, Some(2), 100);
    world.send(1, 0, 2, b"counted after the cut");
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(100 * MS);
    assert_eq!(world.received(0).len(), 3);
    assert_eq!(world.sends_done(1), done + 1, "the first is acknowledged, the second is not");
    assert!(cut_required(&world, 1));
    cut(&mut world, 1, 1);
    world.run(100 * MS);
    assert_eq!(world.sends_done(1), done + 2);
}
