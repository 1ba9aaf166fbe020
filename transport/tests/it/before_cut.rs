//! R4: a rank that has cut helps one that has not, with frames that it could have sent before its cut, and nothing
//! else.

use std::time::Duration;

use crate::world::{Fate, World, config, port_id};
use transport::wire::Kind;
use transport::{Epoch, Event, Life, RailIndex};

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
        // Only frames of the old epoch get through: the peer receives them without a cut.
        if frame.header.epoch > Epoch(0) { Fate::Lose } else { Fate::Deliver }
    });
    let op = world.receive(1, None, Some(1), 100);
    world.run(50 * MS);
    assert_eq!(world.received(1), [(op, 1, 6)]);
    assert!(!cut_required(&world, 1));
    // A frame sent after the cut is of the new epoch, and makes the peer cut.
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

#[test]
fn what_is_said_of_before_the_cut_names_the_numbers_of_before_the_cut() {
    let mut world = acquainted();
    world.fate = Box::new(|from, _, _, _| if from == 0 { Fate::Lose } else { Fate::Deliver });
    world.send(1, 0, 1, b"counted before the cut");
    world.run(Duration::from_micros(20));
    let next = 1;
    cut(&mut world, 0, 1);
    let (said, past) = std::sync::mpsc::channel();
    world.fate = Box::new(move |from, _, frame, _| {
        if from == 0 && frame.header.epoch == Epoch(0) && !frame.header.kind.numbered() {
            said.send((frame.header.seq, frame.header.ack)).expect("somebody listens");
        }
        Fate::Lose
    });
    for tag in 2..5 {
        world.send(0, 1, tag, b"numbered after the cut");
    }
    // A retransmission of the peer is acknowledged again.
    world.run(50 * MS);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    let past: Vec<_> = past.iter().collect();
    assert!(!past.is_empty());
    assert!(past.iter().all(|said| *said == (next, 2)), "{past:?}");
}

#[test]
fn an_acknowledgement_is_repeated_on_a_link_that_only_receives() {
    let mut world = World::new(2, &config(), 1500);
    world.fate = Box::new(|from, _, _, _| if from == 0 { Fate::Lose } else { Fate::Deliver });
    world.receive(0, None, Some(1), 100);
    world.send(1, 0, 1, b"counted before the cut");
    world.run(Duration::from_micros(20));
    assert_eq!(world.received(0).len(), 1);
    cut(&mut world, 0, 1);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(50 * MS);
    assert_eq!(world.sends_done(1), 1);
}

#[test]
fn what_is_sent_after_the_cut_takes_no_acknowledgement_from_a_peer_that_cannot_read_it() {
    let mut world = acquainted();
    let done = world.sends_done(1);
    world.receive(0, None, Some(1), 100);
    world.send(1, 0, 1, b"counted before the cut");
    world.step(world.now + MS);
    world.step(world.now + MS);
    assert_eq!(world.received(0).len(), 2);
    cut(&mut world, 0, 1);
    // Whenever the acknowledgement is due, there is data that could carry it, in the new epoch. Resends are lost: nothing but
    // that acknowledgement helps.
    world.fate = Box::new(|from, _, frame, _| match frame.header.kind {
        Kind::Eager if from == 1 => Fate::Lose,
        _ => Fate::Deliver,
    });
    world.send(0, 1, 7, b"after");
    world.run(MS);
    assert_eq!(world.sends_done(1), done + 1);
}

/// Two ports with a past, in a new life; the first has cut before it hears the second. `late`: messages of the first
/// that were not delivered in the old life.
fn cut_before_the_resync(late: impl FnOnce(&mut World)) -> World {
    let mut world = acquainted();
    world.fate = Box::new(|from, _, _, _| if from == 0 { Fate::Lose } else { Fate::Deliver });
    late(&mut world);
    world.run(Duration::from_micros(20));
    let life = Life { counter: 2, nonce: 3 };
    for node in 0..2 {
        let frozen = world.freeze(node);
        world.restart(node, frozen, life, 1500);
    }
    cut(&mut world, 0, 1);
    world.nodes[1].events.clear();
    // Nothing of the new epoch gets through: the second learns everything before its cut.
    world.fate =
        Box::new(|_, _, frame, _| if frame.header.epoch > Epoch(0) { Fate::Lose } else { Fate::Deliver });
    world
}

#[test]
fn a_link_resynchronises_across_a_cut() {
    let mut world = cut_before_the_resync(|_| ());
    world.receive(0, None, Some(1), 100);
    world.send(1, 0, 1, b"can be sent once the peer is heard");
    world.run(200 * MS);
    assert_eq!(world.received(0).iter().filter(|(_, tag, _)| *tag == 1).count(), 1);
    // Counted after the cut, so it is not acknowledged before the peer's own.
    assert_eq!(world.sends_done(1), 0);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    cut(&mut world, 1, 1);
    world.run(200 * MS);
    assert_eq!(world.sends_done(1), 1);
    let inconsistent = |event: &Event| matches!(event, Event::Inconsistent { .. });
    assert!(!world.nodes.iter().flat_map(|node| &node.events).any(inconsistent));
}

#[test]
fn a_number_as_of_the_cut_may_follow_a_newer_acknowledgement() {
    // The first had sent nothing when both were saved, and the second holds a message for it.
    let mut world = World::new(2, &config(), 1500);
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    world.send(1, 0, 1, b"held by its sender");
    world.link(0, 1);
    world.run(Duration::from_micros(20));
    for node in 0..2 {
        let frozen = world.freeze(node);
        world.restart(node, frozen, Life { counter: 2, nonce: 3 }, 1500);
    }
    world.receive(0, None, Some(1), 100);
    world.receive(1, None, Some(2), 100);
    world.send(0, 1, 2, b"the second hears it and may send");
    world.fate =
        Box::new(|from, _, _, _| if from == 1 { Fate::Late(Duration::from_secs(1)) } else { Fate::Deliver });
    world.run(Duration::from_micros(50));
    // Both cut. The first still owes its hint, and receives all frames on their way before it sends anything.
    let now = world.now;
    assert_eq!(world.port(0).announce_pause(now, 10 * MS), 1);
    cut(&mut world, 0, 1);
    cut(&mut world, 1, 1);
    let on_their_way = std::mem::take(&mut world.wire);
    assert!(on_their_way.len() >= 2 && on_their_way.iter().all(|(_, to, ..)| *to == 0));
    for (_, _, rail, bytes) in on_their_way {
        let node = &mut world.nodes[0];
        let port = node.port.as_mut().expect("it runs");
        port.handle_frame(now, RailIndex(rail), &bytes, &mut node.memory);
    }
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(200 * MS);
    let inconsistent = |event: &Event| matches!(event, Event::Inconsistent { .. });
    assert!(!world.nodes.iter().flat_map(|node| &node.events).any(inconsistent), "{}", world.transcript());
    assert_eq!((world.received(0).len(), world.received(1).len()), (1, 1));
}

#[test]
fn a_number_that_is_given_out_again_says_nothing_of_before_the_cut() {
    // The peer has announced a message; in the image there is a frame without acknowledgement.
    let mut world = cut_before_the_resync(|world| {
        world.send_user(1, 0, 1, vec![9; 3000]);
        world.send(0, 1, 5, b"numbered in the old life");
    });
    // Its number goes to the CTS of a receive that is posted after the cut, which the peer must not see before its own.
    let op = world.receive(0, None, Some(1), 5000);
    world.receive(1, None, Some(5), 100);
    world.run(100 * MS);
    assert_eq!(world.received(0).iter().filter(|(got, ..)| *got == op).count(), 0);
    assert_eq!(world.received(1).iter().filter(|(_, tag, _)| *tag == 5).count(), 0);
    cut(&mut world, 1, 1);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(100 * MS);
    assert_eq!(world.received(0).iter().filter(|(got, ..)| *got == op).count(), 1);
    assert_eq!(world.received(1).iter().filter(|(_, tag, _)| *tag == 5).count(), 1);
}

#[test]
fn a_port_knows_which_messages_a_cut_would_keep_from_their_receivers() {
    let mut config = config();
    config.link_window_bytes = 2000;
    let mut world = World::new(2, &config, 1500);
    let unreceived = |world: &World, context: u64| {
        world.nodes[0].port.as_ref().unwrap().unreceived(|found| found == context)
    };
    // Messages have the context of their tag and 1000. To itself a rank can send anything.
    world.send(0, 0, 1, b"to itself");
    world.send_user(0, 0, 2, vec![1; 5000]);
    assert_eq!((unreceived(&world, 1001), unreceived(&world, 1002)), (None, None));
    // A short one as long as it has no number, acknowledged or not.
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    world.send(0, 1, 3, b"short");
    assert_eq!(unreceived(&world, 1003), Some(port_id(1)));
    assert_eq!(unreceived(&world, 1004), None, "others do not matter");
    world.pump();
    assert_eq!(unreceived(&world, 1003), None);
    // A long one until all its pieces have numbers; and so a short one that had to be announced.
    world.send_user(0, 1, 4, vec![2; 5000]);
    world.send(0, 1, 5, &[3; 1900]);
    world.send(0, 1, 6, &[4; 1900]);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(20 * MS);
    assert_eq!((unreceived(&world, 1004), unreceived(&world, 1005)), (Some(port_id(1)), None));
    world.send(0, 1, 7, &[5; 1900]);
    world.send(0, 1, 8, &[5; 1900]);
    world.pump();
    assert_eq!(unreceived(&world, 1008), Some(port_id(1)), "no window for it");
    for tag in 3..9 {
        world.receive(1, None, Some(tag), 5000);
    }
    world.run(20 * MS);
    assert_eq!((unreceived(&world, 1004), unreceived(&world, 1008)), (None, None));
    assert_eq!(world.received(1).len(), 6);
}
