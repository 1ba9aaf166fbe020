//! Ports that start in a new life: both ends of a link find together, or find out that they cannot (R10, R12).
#![expect(clippy::cast_possible_truncation, reason = "test data")]

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::world::{DELAY, Fate, KEY, LIFE, World, config, pattern, port_id};
use transport::auth::Authenticator;
use transport::port::state::PortState;
use transport::wire::Kind;
use transport::{
    AuthLevel, Epoch, Event, FrozenPort, Instant, Life, LinkIndex, OpId, Outgoing, Payload, Port, RailIndex,
    Reach, Restart, SendError, Space,
};

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);

fn cut(world: &mut World, node: usize, epoch: u32) {
    let mut frozen = world.freeze(node);
    frozen.set_epoch(Epoch(epoch));
    world.thaw(node, frozen);
}

fn resync_pair(edit: impl Fn(usize, &mut PortState)) -> World {
    let mut world = World::new(2, &config(), 1500);
    for node in 0..2 {
        world.link(node, 1 - node);
        let mut state = world.freeze(node).state();
        edit(node, &mut state);
        let (frozen, _) = FrozenPort::from_state(config(), Some(&KEY), state).expect("a possible state");
        world.restart(node, frozen, Life { counter: 2, nonce: 3 }, 1500);
    }
    world
}

// ---- Resynchronisation (R10).

fn inconsistent(world: &World, node: usize) -> Vec<(u64, u64, u64)> {
    let numbers = |event: &Event| match event {
        Event::Inconsistent { link, peer, peer_expected, oldest_held, next } => {
            assert_eq!((*link, *peer), (LinkIndex(0), port_id(1 - node)));
            Some((*peer_expected, *oldest_held, *next))
        }
        _ => None,
    };
    world.nodes[node].events.iter().filter_map(numbers).collect()
}

#[test]
fn ends_that_do_not_fit_are_named_with_their_numbers() {
    // Expected by node 1, held from and next of node 0, and node 0's report.
    for (expected, next, report) in [
        (9, 5, Some((9, 5, 5))),
        (3, 5, Some((3, 5, 5))),
        (5, 5, None),
        (0, 7, Some((0, 7, 7))),
        (1 << 32, 0, Some((1 << 32, 0, 0))),
        ((1 << 32) + 5, 5, Some(((1 << 32) + 5, 5, 5))),
    ] {
        let mut world = resync_pair(|node, state| {
            if node == 0 {
                state.links[0].next = next;
            } else {
                state.links[0].expected = expected;
                // It has a history of its own, so that both begin to talk.
                state.links[0].next = 2;
            }
            if node == 0 {
                state.links[0].expected = 2;
            }
        });
        world.run(50 * MS);
        let reported: Vec<_> = report.into_iter().collect();
        assert_eq!(inconsistent(&world, 0), reported, "expected {expected}, next {next}");
        assert_eq!(inconsistent(&world, 1), [], "its own numbers are in order");
        world.receive(1, None, None, 100);
        if report.is_none() {
            world.send(0, 1, 1, b"never over a broken link");
        }
        let frames = world.port(0).counters().frames_sent;
        world.run(50 * MS);
        assert_eq!(world.received(1).len(), usize::from(report.is_none()));
        let more = world.port(0).counters().frames_sent - frames;
        assert!(report.is_none() || more == 0, "a broken link is silent, it sent {more} frames");
    }
}

#[test]
fn a_peer_without_any_history_is_found_out_from_either_side() {
    for (next, expected) in [(5, 4), (5, 0), (0, 4)] {
        let mut world = World::new(2, &config(), 1500);
        world.link(0, 1);
        let mut state = world.freeze(0).state();
        state.links[0].next = next;
        state.links[0].expected = expected;
        let (frozen, _) = FrozenPort::from_state(config(), Some(&KEY), state).expect("a possible state");
        world.restart(0, frozen, LIFE, 1500);
        world.run(50 * MS);
        let (ours, theirs) = (inconsistent(&world, 0), inconsistent(&world, 1));
        if expected > 0 {
            assert_eq!((ours, theirs), (vec![], vec![(expected, 0, 0)]));
        } else {
            assert_eq!((ours, theirs), (vec![(0, next, next)], vec![]));
        }
    }
}

#[test]
fn numbers_go_round_the_32_bits_of_the_wire() {
    for start in [(1u64 << 32) - 10, (1 << 33) - 10, (1 << 31) - 10, (7 << 32) - 1] {
        let mut world = resync_pair(|_, state| {
            state.links[0].next = start;
            state.links[0].expected = start;
        });
        world.fate = Box::new(|_, _, _, number| match number % 9 {
            3 => Fate::Lose,
            5 => Fate::Double,
            7 => Fate::Late(30 * US),
            _ => Fate::Deliver,
        });
        let mut ops = Vec::new();
        for tag in 0..120u64 {
            ops.push(world.receive(1, None, None, 3000));
            world.receive(0, None, None, 100);
            world.send(0, 1, tag, &pattern(tag, tag as usize * 20));
            world.send(1, 0, tag, b"back");
            if tag % 10 == 0 {
                world.run(60 * US);
            }
            if tag == 60 {
                // The numbers survive another restart here, with frames in flight.
                for node in 0..2 {
                    let frozen = world.freeze(node);
                    world.restart(node, frozen, Life { counter: 3, nonce: 3 }, 1500);
                }
            }
        }
        world.run(500 * MS);
        assert_eq!(
            world.received(1).iter().map(|(_, tag, _)| *tag).collect::<Vec<_>>(),
            (0..120).collect::<Vec<_>>()
        );
        assert_eq!(world.received(0).len(), 120, "from {start:#x}");
        for (tag, op) in ops.iter().enumerate().skip(1) {
            assert_eq!(world.nodes[1].memory.posted[op], pattern(tag as u64, tag * 20));
        }
        assert!(world.freeze(0).state().links[0].next > start + 120);
    }
}

#[test]
fn fragments_of_the_old_life_fit_the_first_frames_of_the_new_one() {
    // Full frames, unacknowledged: with the contact of a first frame they would be too long.
    for frame_bytes in [1500, 400] {
        let mut world = World::new(2, &config(), 1500);
        world.receive(1, None, None, 100);
        world.send(0, 1, 0, b"warm");
        world.run(MS);
        world.fate = Box::new(|_, _, _, _| Fate::Lose);
        let op = world.receive(1, None, Some(1), 10_000);
        let large = world.receive(1, None, Some(2), 100_000);
        world.send(0, 1, 1, &pattern(1, 8000));
        world.send_user(0, 1, 2, pattern(2, 60_000));
        world.pump();
        world.fate = Box::new(|_, _, _, _| Fate::Deliver);
        for node in 0..2 {
            let frozen = world.freeze(node);
            world.restart(node, frozen, Life { counter: 2, nonce: 3 }, frame_bytes);
        }
        world.run(50 * MS);
        assert_eq!(world.nodes[1].memory.posted[&op], pattern(1, 8000));
        assert_eq!(world.nodes[1].memory.posted[&large], pattern(2, 60_000));
        assert_eq!(world.port(1).counters().dropped_duplicate, 0, "what was not counted goes once");
    }
}

#[test]
fn a_port_restarts_with_a_link_to_itself() {
    for steps in 0..12 {
        let mut world = World::new(1, &config(), 700);
        let small = world.receive(0, Some(0), Some(1), 10_000);
        let large = world.receive(0, None, Some(2), 100_000);
        world.send(0, 0, 1, &pattern(1, 3000));
        world.send_user(0, 0, 2, pattern(2, 20_000));
        let until = world.now + MS;
        for _ in 0..steps {
            world.step(until);
        }
        let frozen = world.freeze(0);
        world.restart(0, frozen, Life { counter: 2, nonce: 3 }, 700);
        world.run(50 * MS);
        assert_eq!(world.nodes[0].memory.posted[&small], pattern(1, 3000), "{steps}");
        assert_eq!(world.nodes[0].memory.posted[&large], pattern(2, 20_000), "{steps}");
        assert_eq!((world.received(0).len(), world.sends_done(0)), (2, 2), "{steps}");
    }
}

#[test]
fn reports_of_the_old_life_are_not_delivered_in_the_new_one() {
    let mut world = World::new(2, &config(), 1500);
    let op = world.receive(1, None, Some(1), 100);
    world.send(0, 1, 1, b"x");
    world.pump();
    cut(&mut world, 0, 1);
    world.send(0, 1, 2, b"y");
    world.pump();
    // Received and required, but not polled.
    let mut memory = crate::world::Memory::default();
    let mut port = world.nodes[1].port.take().expect("it runs");
    for (.., bytes) in &world.wire {
        port.handle_frame(world.now, RailIndex(0), bytes, &mut memory);
    }
    let life = Life { counter: 2, nonce: 3 };
    let mut port = port.freeze(world.now).restart(world.now, transport::Restart::in_life(life));
    let events: Vec<_> = std::iter::from_fn(|| port.poll_event()).collect();
    assert!(matches!(events.as_slice(), [Event::Received { op: found, .. }] if *found == op), "{events:?}");
    assert_ne!(op, OpId(0));
}

/// Ranks continue elsewhere: links within one host now go over a network, where tags cover the payload, too.
#[test]
fn a_restarted_port_understands_its_peers_by_how_they_are_reached_now() {
    let mut world = World::new(1, &config(), 1500);
    let life = Life { counter: 2, nonce: 3 };
    let mut port = world.freeze(0);
    let elsewhere = Ipv4Addr::new(10, 1, 2, 3);
    for (address, level) in [(Ipv4Addr::LOCALHOST, AuthLevel::Header), (elsewhere, AuthLevel::Full)] {
        let reach = Some(Reach::at(address.into(), AuthLevel::Header));
        let restarted = port.restart(world.now, Restart { reach, ..Restart::in_life(life) });
        assert_eq!(restarted.authenticator().map(Authenticator::level), Some(level));
        port = restarted.freeze(world.now);
        assert_eq!(port.auth_level(), level);
    }
}

/// Operations that ended with an error, in the order of the reports: sends as they are, receives with whether they are finished.
fn failed(world: &World, node: usize) -> (Vec<OpId>, Vec<(OpId, bool)>) {
    let events = &world.nodes[node].events;
    let is_reason = |event: &Event| matches!(event, Event::Inconsistent { .. } | Event::PeerLost { .. });
    let broken = events.iter().position(is_reason);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::SendFailed { op, context } => {
                assert!(*context >= 1000, "the context of the send");
                sends.push(*op);
            }
            Event::ReceiveFailed { op, context, source, finished, .. } => {
                assert_eq!((*context, *source), (5, LinkIndex(0)));
                receives.push((*op, *finished));
            }
            _ => continue,
        }
        assert!(broken.is_some_and(|broken| broken < at), "the reason comes first");
    }
    (sends, receives)
}

#[test]
fn what_waits_on_a_broken_link_ends_with_an_error() {
    waiting_ends_with_an_error(|port, now| {
        let next = port.final_counters().next().expect("a link").next;
        port.peer_has_closed(now, port_id(1), next + 1);
    });
}

/// R37
#[test]
fn what_waits_for_a_peer_that_is_lost_ends_with_an_error() {
    waiting_ends_with_an_error(|port, _| {
        port.lose_peer(port_id(1));
        port.lose_peer(port_id(7));
        assert_eq!(port.links(), 1, "a peer without a link stays without one");
    });
}

fn waiting_ends_with_an_error(break_link: impl Fn(&mut Port, Instant)) {
    let mut world = World::new(3, &config(), 1500);
    // Everything that can be under way over the link of node 0 to node 1, in both directions.
    world.receive(1, None, Some(900), 10);
    world.send(0, 1, 900, b"there");
    world.receive(0, None, Some(901), 10);
    world.send(1, 0, 901, b"back");
    world.run(5 * MS);
    // Of node 1: one that no receive takes, one that one takes half-way, one whose rest is lost and that waits.
    world.send_user(1, 0, 10, pattern(10, 50_000));
    let half = world.receive(0, None, Some(11), 100_000);
    let kept = world.receive(0, Some(1), Some(12), 100);
    let other = world.receive(0, None, Some(13), 100);
    world.send_user(1, 0, 11, pattern(11, 50_000));
    let mut pieces = 0;
    world.fate = Box::new(move |from, _, frame, _| {
        let piece = from == 1 && matches!(frame.header.kind, Kind::More | Kind::Data);
        pieces += u32::from(piece);
        if piece && pieces > 1 { Fate::Lose } else { Fate::Deliver }
    });
    world.send(1, 0, 14, &pattern(14, 8000));
    world.run(3 * DELAY);
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    // Ours: unacknowledged, announced, without a number.
    let sent: Vec<OpId> = vec![
        world.send(0, 1, 20, b"unacknowledged"),
        world.send(0, 1, 21, &pattern(21, 8000)),
        world.send_user(0, 1, 22, pattern(22, 40_000)),
    ];
    world.run(DELAY);
    let frozen = world.freeze(0);
    let state = frozen.state();
    world.thaw(0, frozen);
    let unfinished = state.waiting.iter().filter(|waiting| !waiting.message.finished).count();
    assert_eq!((state.waiting.len(), unfinished), (2, 1), "{:?}", state.waiting);
    assert_eq!((state.sends.len(), state.links[0].incoming.len()), (1, 1));
    assert!(failed(&world, 0).0.is_empty());

    let now = world.now;
    break_link(world.port(0), now);
    world.collect(0);
    let (mut sends, receives) = failed(&world, 0);
    sends.sort_unstable();
    assert_eq!(sends, sent);
    assert_eq!(receives, [(half, true), (kept, true)], "and {other:?} may still be given to others");

    // Later events are reported at once.
    let late = [world.receive(0, Some(1), Some(99), 10), world.receive(0, None, Some(10), 100_000)];
    let assembled = world.receive(0, None, Some(14), 10_000);
    world.collect(0);
    assert_eq!(failed(&world, 0).1[2..], [(late[0], true), (late[1], true), (assembled, true)]);
    let outgoing = Outgoing { space: Space(0), tag: 0, data: 0, context: 0, silent: false };
    let refused = world.port(0).send(LinkIndex(0), outgoing, Payload::Copied(b"never"));
    assert_eq!(refused, Err(SendError::Broken { link: LinkIndex(0) }));
    assert_eq!(world.port(0).unexpected_bytes(), 0);
    assert!(world.port(0).is_settled());

    // The port goes on with others, freezes in a possible state, and does not fail twice.
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.send(2, 0, 13, b"from another");
    world.run(5 * MS);
    let frozen = world.freeze(0);
    world.thaw(0, frozen);
    world.run(5 * MS);
    assert!(world.received(0).iter().any(|(op, ..)| *op == other));
    assert_eq!((failed(&world, 0).0.len(), failed(&world, 0).1.len()), (3, 5));
}

#[test]
fn a_buffer_for_several_messages_outlives_the_link_of_one_of_them() {
    let mut world = World::new(3, &config(), 1500);
    world.link(0, 1);
    let receive = transport::Receive {
        space: Space(0),
        source: None,
        tag: 0,
        ignore: u64::MAX,
        bytes_max: 200_000,
        context: 5,
        multi: Some(1000),
    };
    let node = &mut world.nodes[0];
    let op = node.port.as_mut().expect("open").post_receive(receive, &mut node.memory).expect("room");
    world.send_user(1, 0, 1, pattern(1, 50_000));
    world.fate =
        Box::new(
            |from, _, frame, _| {
                if from == 1 && frame.header.kind == Kind::Data { Fate::Lose } else { Fate::Deliver }
            },
        );
    world.run(5 * DELAY);
    let now = world.now;
    world.port(0).peer_has_closed(now, port_id(1), 1000);
    world.collect(0);
    assert_eq!(failed(&world, 0).1, [(op, false)]);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.send(2, 0, 2, b"from another");
    world.run(5 * MS);
    assert_eq!(world.received(0), [(op, 2, 12)]);
}

// ---- Ends (R12).

#[test]
fn a_close_waits_for_what_has_been_announced() {
    let mut world = World::new(2, &config(), 1500);
    world.send_user(0, 1, 1, pattern(1, 50_000));
    world.port(0).close_link(LinkIndex(0));
    world.run(5 * MS);
    assert!(!world.port(0).is_settled(), "nobody has asked for the payload");
    let op = world.receive(1, None, None, 1 << 20);
    world.run(20 * MS);
    assert_eq!(world.nodes[1].memory.posted[&op], pattern(1, 50_000));
    assert_eq!(world.sends_done(0), 1);
    assert!(world.nodes[0].events.iter().any(|event| matches!(event, Event::LinkClosed { .. })));
    assert!(world.nodes[1].events.iter().any(|event| matches!(event, Event::PeerClosed { .. })));
}

#[test]
fn thousands_of_announced_payloads_stay_within_the_bound() {
    let mut world = World::new(2, &config(), 1500);
    let count = 3500;
    for tag in 0..count {
        world.receive(1, None, Some(tag), 5000);
        world.send_user(0, 1, tag, pattern(tag, 3000));
    }
    let until = world.now + SECOND;
    let mut most = 0;
    while world.received(1).len() < count as usize {
        assert!(world.step(until), "{} of {count}", world.received(1).len());
        if world.frames.is_multiple_of(7) {
            let frozen = world.freeze(1);
            most = most.max(
                frozen
                    .links()
                    .filter_map(|link| link.queues())
                    .map(|queues| queues.incoming().len())
                    .max()
                    .unwrap_or(0),
            );
            world.thaw(1, frozen);
        }
    }
    assert!(most > 100 && most <= transport::config::INCOMING_MAX, "{most}");
    world.run(5 * MS);
    assert_eq!(world.sends_done(0), count as usize);
}
