//! Messages between ports: every size, every order, every loss.
#![expect(clippy::cast_possible_truncation, reason = "test data")]

use std::time::Duration;

use crate::world::{Fate, World, config, pattern};
use transport::port::Arrived;
use transport::{Event, LinkIndex, OpId};

const MS: Duration = Duration::from_millis(1);

/// R14, R16, R23: one frame, one number; the contact goes with it and the acknowledgement comes by itself.
#[test]
fn a_copied_message_travels_in_one_frame_and_is_acknowledged() {
    let mut world = World::new(2, &config(), 2000);
    let op = world.receive(1, Some(0), Some(3), 100);
    world.send(0, 1, 3, b"hello");
    world.run(MS);
    assert_eq!(world.received(1), [(op, 3, 5)]);
    assert_eq!(&world.nodes[1].memory.posted[&op], b"hello");
    assert_eq!(world.sends_done(0), 1);
    expect_test::expect![[r#"
        0us a>b Eager 0 5B ack 0
        30us b>a Ack 0B ack 1"#]]
    .assert_eq(&world.transcript());
}

/// R15, R17.
#[test]
fn every_size_arrives_whole_posted_or_not() {
    for frame_bytes in [300, 1500, 65_000] {
        for posted_first in [true, false] {
            let mut world = World::new(2, &config(), frame_bytes);
            let sizes = [0usize, 1, 2, 63, 64, 1000, 1500, 8191, 8192];
            let mut ops = Vec::new();
            if posted_first {
                ops = sizes.iter().map(|_| world.receive(1, None, None, 1 << 20)).collect();
            }
            for (i, &size) in sizes.iter().enumerate() {
                world.send(0, 1, i as u64, &pattern(i as u64, size));
            }
            world.run(5 * MS);
            if !posted_first {
                ops = sizes.iter().map(|_| world.receive(1, None, None, 1 << 20)).collect();
                world.run(20 * MS);
            }
            let received = world.received(1);
            assert_eq!(received.len(), sizes.len(), "frames of {frame_bytes}");
            for (i, &size) in sizes.iter().enumerate() {
                assert_eq!(received[i], (ops[i], i as u64, size as u64));
                if size > 0 {
                    assert_eq!(world.nodes[1].memory.posted[&ops[i]], pattern(i as u64, size));
                }
            }
            assert_eq!(world.sends_done(0), sizes.len());
            assert!(world.port(0).is_settled());
            assert_eq!(world.port(1).unexpected_bytes(), 0);
        }
    }
}

/// R18.
#[test]
fn large_messages_go_straight_into_the_posted_buffer() {
    let mut world = World::new(2, &config(), 9000);
    let payload = pattern(1, 3_000_000);
    world.send_user(0, 1, 9, payload.clone());
    world.send(0, 1, 10, b"after");
    let first = world.receive(1, None, None, 1 << 30);
    let second = world.receive(1, None, None, 1 << 30);
    world.run(50 * MS);
    assert_eq!(world.nodes[1].memory.posted[&first], payload);
    assert_eq!(world.nodes[1].memory.posted[&second], b"after");
    assert_eq!(world.sends_done(0), 2);
    let sent = world.port(0).counters().frames_sent;
    assert_eq!(world.port(1).counters().frames_received, sent);
}

#[test]
fn a_short_receive_gets_what_fits_and_learns_the_length() {
    let mut world = World::new(2, &config(), 1500);
    world.send_user(0, 1, 1, pattern(1, 50_000));
    world.send(0, 1, 2, &pattern(2, 4000));
    let long = world.receive(1, None, Some(1), 10_000);
    let short = world.receive(1, None, Some(2), 1000);
    world.run(10 * MS);
    assert_eq!(world.nodes[1].memory.posted[&long], pattern(1, 10_000));
    assert_eq!(world.nodes[1].memory.posted[&short], pattern(2, 1000));
    for event in &world.nodes[1].events {
        if let Event::Received { tag, bytes, sent_bytes, .. } = event {
            assert_eq!((*bytes, *sent_bytes), if *tag == 1 { (10_000, 50_000) } else { (1000, 4000) });
        }
    }
    assert_eq!(world.sends_done(0), 2);
}

#[test]
fn a_port_sends_to_itself() {
    let mut world = World::new(1, &config(), 1500);
    world.send(0, 0, 1, b"me");
    world.send_user(0, 0, 2, pattern(3, 100_000));
    let small = world.receive(0, Some(0), Some(1), 100);
    let large = world.receive(0, None, Some(2), 1 << 20);
    world.run(20 * MS);
    assert_eq!(world.nodes[0].memory.posted[&small], b"me");
    assert_eq!(world.nodes[0].memory.posted[&large], pattern(3, 100_000));
    assert_eq!(world.sends_done(0), 2);
    assert!(world.port(0).is_settled());
}

/// R19.
#[test]
fn a_lost_frame_is_found_by_the_frames_that_overtake_it() {
    let mut world = World::new(2, &config(), 1500);
    let mut lost = false;
    world.fate = Box::new(move |from, _, frame, _| {
        if from == 0 && frame.header.seq == 1 && !lost {
            lost = true;
            return Fate::Lose;
        }
        Fate::Deliver
    });
    for i in 0..4 {
        world.receive(1, None, Some(i), 100);
        world.send(0, 1, i, b"x");
    }
    world.run(MS);
    assert_eq!(world.received(1).iter().map(|(_, tag, _)| *tag).collect::<Vec<_>>(), [0, 1, 2, 3]);
    expect_test::expect![[r#"
        0us a>b Eager 0 1B ack 0
        0us a>b Eager 1 1B ack 0 LOST
        0us a>b Eager 2 1B ack 0
        0us a>b Eager 3 1B ack 0
        5us b>a Ack 0B ack 1 sel 11
        18us a>b Eager 1 1B ack 0
        23us b>a Ack 0B ack 4"#]]
    .assert_eq(&world.transcript());
}

/// R19: with nothing behind it, the probe.
#[test]
fn a_lost_tail_is_found_by_a_probe() {
    let mut world = World::new(2, &config(), 1500);
    for i in 0..20 {
        world.receive(1, None, None, 100);
        world.send(0, 1, i, b"warm");
        world.run(MS);
    }
    world.transcript();
    let mut lost = false;
    world.fate = Box::new(move |from, _, _, _| {
        if from == 0 && !lost {
            lost = true;
            return Fate::Lose;
        }
        Fate::Deliver
    });
    let started = world.now;
    world.receive(1, None, None, 100);
    world.send(0, 1, 99, b"x");
    while world.received(1).len() < 21 {
        assert!(world.step(started + 10 * MS), "the message is lost for good");
    }
    let waited = world.now - started;
    assert!(waited < Duration::from_micros(200), "recovered after {waited:?}");
}

/// R6, R15, R16, R19.
#[test]
fn everything_arrives_once_and_in_order_over_a_bad_network() {
    for seed in 1..20u64 {
        let mut world = World::new(3, &config(), 700);
        let mut state = seed;
        world.fate = Box::new(move |_, _, _, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match (state >> 33) % 100 {
                0..=9 => Fate::Lose,
                10..=14 => Fate::Double,
                15..=24 => Fate::Late(Duration::from_micros((state >> 50) % 300)),
                _ => Fate::Deliver,
            }
        });
        let mut expected = Vec::new();
        for i in 0..60u64 {
            for from in 0..2 {
                let tag = i * 10 + from as u64;
                let size = (i as usize * 97) % 3000;
                if i % 7 == 3 {
                    world.send_user(from, 2, tag, pattern(tag, size * 5));
                    expected.push((from, tag, size * 5));
                } else {
                    world.send(from, 2, tag, &pattern(tag, size));
                    expected.push((from, tag, size));
                }
            }
            if i % 3 == 0 {
                world.run(Duration::from_micros(100));
            }
        }
        let mut ops = Vec::new();
        for (from, _, _) in &expected {
            ops.push(world.receive(2, Some(*from), None, 1 << 20));
        }
        world.run(3000 * MS);
        let received = world.received(2);
        assert_eq!(received.len(), expected.len(), "seed {seed}");
        for (op, (from, tag, size)) in ops.iter().zip(&expected) {
            let (_, got_tag, bytes) = received.iter().find(|(got, _, _)| got == op).unwrap();
            assert_eq!((*got_tag, *bytes), (*tag, *size as u64), "seed {seed} from {from}");
            if *size > 0 {
                assert_eq!(world.nodes[2].memory.posted[op], pattern(*tag, *size), "seed {seed} tag {tag}");
            }
        }
        assert!(world.port(0).is_settled() && world.port(1).is_settled(), "seed {seed}");
        assert_eq!(world.sends_done(0) + world.sends_done(1), expected.len());
    }
}

/// R17.
#[test]
fn a_receiver_that_never_asks_is_not_flooded_and_matching_goes_on() {
    let mut small = config();
    small.unexpected_bytes_max = 64 << 10;
    small.link_window_bytes = 32 << 10;
    let mut world = World::new(2, &small, 1500);
    let mut sent = 0u64;
    for _ in 0..600 {
        let link = world.link(0, 1);
        let outgoing =
            transport::Outgoing { space: transport::Space(0), tag: sent, data: 0, context: 0, silent: true };
        let payload = pattern(sent, 1000);
        if world.port(0).send(link, outgoing, transport::Payload::Copied(&payload)).is_ok() {
            sent += 1;
        }
        world.run(Duration::from_micros(200));
    }
    let held = world.port(1).unexpected_bytes();
    assert!(held <= (64 << 10) + (32 << 10), "{held} bytes are held");
    // The last message sent can be received although none before it was.
    let last = world.receive(1, None, Some(sent - 1), 2000);
    world.run(20 * MS);
    assert_eq!(world.nodes[1].memory.posted[&last], pattern(sent - 1, 1000));
    for tag in 0..sent - 1 {
        let op = world.receive(1, None, Some(tag), 2000);
        world.run(Duration::from_micros(500));
        assert_eq!(world.nodes[1].memory.posted[&op], pattern(tag, 1000), "tag {tag} of {sent}");
    }
    world.run(20 * MS);
    assert!(world.port(0).is_settled());
    assert_eq!(world.port(1).unexpected_bytes(), 0);
    assert!(world.port(0).counters().messages_converted > 0);
}

/// R18: the last message sent must not be taken for the last complete one, even if all are short.
#[test]
fn messages_that_were_matched_in_order_may_be_complete_in_another() {
    let mut world = World::new(2, &config(), 1500);
    let (burst, last) = (256, 256);
    for tag in 0..burst {
        world.receive(1, Some(0), Some(tag), 8);
        world.send(0, 1, tag, &pattern(tag, 8));
    }
    // More than the peer's window before it has been heard: the others are announced.
    world.pump();
    world.receive(1, Some(0), Some(last), 8);
    world.send(0, 1, last, &pattern(last, 8));
    world.run(20 * MS);
    let tags: Vec<u64> = world.received(1).iter().map(|(_, tag, _)| *tag).collect();
    assert!(world.port(0).counters().messages_converted > 0);
    assert_eq!(tags.iter().copied().collect::<std::collections::BTreeSet<_>>().len() as u64, burst + 1);
    assert_ne!(tags.last(), Some(&last), "the last one sent has overtaken announced ones");
    for (op, tag, _) in world.received(1) {
        assert_eq!(world.nodes[1].memory.posted[&op], pattern(tag, 8));
    }
}

/// A buffer of node 1 for several messages, and a long one (its RTS has come, its payload is lost on the way) and a short one into it.
fn half_filled(bytes_max: u64) -> (World, OpId, Vec<u8>, Vec<u8>) {
    let mut world = World::new(2, &config(), 1500);
    let source = Some(world.link(1, 0));
    let (long, short) = (pattern(1, 20_000), pattern(2, 100));
    let many = transport::Receive {
        space: transport::Space(0),
        source,
        tag: 0,
        ignore: u64::MAX,
        bytes_max,
        context: 0,
        multi: Some(100),
    };
    let node = &mut world.nodes[1];
    let op = node.port.as_mut().expect("it runs").post_receive(many, &mut node.memory).expect("room");
    world.fate =
        Box::new(
            |_, _, frame, _| {
                if frame.header.kind == transport::wire::Kind::Data { Fate::Lose } else { Fate::Deliver }
            },
        );
    world.send_user(0, 1, 1, long.clone());
    world.send(0, 1, 2, &short);
    world.run(MS);
    assert_eq!(world.received(1), [(op, 2, 100)]);
    (world, op, long, short)
}

/// Both nodes go on, perhaps from their images, and nothing is lost any more: which messages came, and whether the buffer was finished then.
fn go_on(world: &mut World, restarted: bool) -> Vec<(u64, bool)> {
    if restarted {
        for node in 0..2 {
            let state = world.freeze(node).state();
            let loaded = transport::FrozenPort::from_state(config(), Some(&crate::world::KEY), state);
            let (frozen, _) = loaded.expect("a possible state");
            let life = transport::Life { counter: 2, nonce: 78 };
            world.restart(node, frozen, life, 1500);
        }
    }
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(100 * MS);
    let finished = world.nodes[1].events.iter().filter_map(|event| match event {
        Event::Received { tag, finished, .. } => Some((*tag, *finished)),
        _ => None,
    });
    finished.collect()
}

/// R18: a buffer for several messages goes back to the program when the last one is complete, whichever that is, also if the port comes
/// from an image.
#[test]
fn a_buffer_for_several_messages_is_finished_when_nothing_more_comes() {
    for restarted in [false, true] {
        let (mut world, op, long, short) = half_filled(20_150);
        assert_eq!(go_on(&mut world, restarted), [(2, false), (1, true)], "restarted: {restarted}");
        assert_eq!(world.nodes[1].memory.posted[&op], [long, short].concat());
    }
}

/// R18: a buffer for several messages that is taken back is finished when the messages that it has taken have
/// come, also if the port comes from an image. Later messages wait for another receive.
#[test]
fn a_buffer_that_is_taken_back_keeps_the_messages_on_their_way_into_it() {
    for restarted in [false, true] {
        let (mut world, op, long, short) = half_filled(100_000);
        assert_eq!(world.port(1).stop(op), Some(transport::port::Stopped::WithTheLastMessage));
        assert_eq!(world.port(1).stop(op), None, "it takes none any more");
        world.send(0, 1, 3, &short);
        world.run(MS);
        assert_eq!(go_on(&mut world, restarted), [(2, false), (1, true)], "restarted: {restarted}");
        assert_eq!(world.nodes[1].memory.posted[&op], [long, short.clone()].concat());
        let later = world.receive(1, None, Some(3), 100);
        world.run(MS);
        assert_eq!(world.received(1).last(), Some(&(later, 3, 100)));
    }
    let mut world = World::new(2, &config(), 1500);
    let op = world.receive(1, None, None, 100);
    assert_eq!(world.port(1).stop(op), Some(transport::port::Stopped::AtOnce), "nothing is on its way");
}

/// R12.
#[test]
fn closing_is_reported_and_acknowledged() {
    let mut world = World::new(2, &config(), 1500);
    world.receive(1, None, None, 100);
    world.send(0, 1, 1, b"last words");
    world.port(0).close_link(LinkIndex(0));
    world.run(5 * MS);
    assert!(world.nodes[1].events.iter().any(|event| matches!(event, Event::PeerClosed { .. })));
    assert!(world.nodes[0].events.iter().any(|event| matches!(event, Event::LinkClosed { .. })));
    let finals: Vec<_> = world.port(0).final_counters().collect();
    assert_eq!((finals[0].next, finals[0].expected), (2, 0));
}

/// R22: silence is reported, and the link goes on trying.
#[test]
fn a_silent_peer_is_reported_and_never_given_up() {
    let mut world = World::new(2, &config(), 1500);
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    world.send(0, 1, 1, b"anybody?");
    world.run(12_000 * MS);
    let silences: Vec<_> = world.nodes[0]
        .events
        .iter()
        .filter_map(|event| match event {
            Event::PeerSilent { silence, .. } => Some(*silence),
            _ => None,
        })
        .collect();
    assert_eq!(silences, [transport::Silence::Slow, transport::Silence::Gone]);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    let op = world.receive(1, None, None, 100);
    world.run(500 * MS);
    assert_eq!(world.received(1), [(op, 1, 8)]);
    assert!(world.nodes[0].events.iter().any(|event| matches!(event, Event::PeerBack { .. })));
}

/// R21: a stranger's frame, an altered one, another job's and a replayed one are counted and have no effect.
#[test]
fn frames_that_must_not_count_are_counted_by_reason() {
    let mut world = World::new(2, &config(), 1500);
    world.send(0, 1, 1, b"genuine");
    world.pump();
    let genuine = world.wire[0].3.clone();
    let give = |world: &mut World, bytes: &[u8]| {
        let now = world.now;
        let node = &mut world.nodes[1];
        let port = node.port.as_mut().expect("running");
        port.handle_frame(now, transport::RailIndex(0), bytes, &mut node.memory);
        *port.counters()
    };
    let mut stranger = genuine.clone();
    stranger[64] ^= 1;
    assert_eq!(give(&mut world, &stranger).dropped_tag, 1);
    let mut payload = genuine.clone();
    *payload.last_mut().expect("not empty") ^= 1;
    assert_eq!(give(&mut world, &payload).dropped_tag, 2, "level full covers the payload");
    let mut job = genuine.clone();
    job[4] ^= 1;
    assert_eq!(give(&mut world, &job).dropped_job, 1);
    let mut life = genuine.clone();
    life[16] ^= 1;
    assert_eq!(give(&mut world, &life).dropped_life, 1);
    assert_eq!(give(&mut world, &genuine[..30]).dropped_malformed, 1);
    let before = give(&mut world, &genuine);
    assert_eq!(before.frames_counted, 1);
    let after = give(&mut world, &genuine);
    assert_eq!((after.frames_counted, after.dropped_duplicate), (1, 1), "a replayed frame is a duplicate");
    assert_eq!(world.port(1).unexpected_bytes(), 7);
    // A replayed frame without a number is not newer than an earlier one.
    world.run(MS);
    let ack = world.nodes[0].port.as_ref().map(|port| port.counters().dropped_replayed);
    world.fate = Box::new(|from, _, _, _| if from == 1 { Fate::Double } else { Fate::Deliver });
    world.send(0, 1, 2, b"again");
    world.run(MS);
    assert_eq!(world.port(0).counters().dropped_replayed, ack.unwrap_or(0) + 1);
}

/// Two ports that reach each other over two rails.
fn with_two_rails() -> World {
    let mut world = World::new(2, &config(), 1500);
    for i in 0..2 {
        world.port(i).add_rail(transport::RawAddress::new(&[9, i as u8]).expect("short"), 1500);
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let link = world.link(from, to);
        world.port(from).set_path(link, transport::RailIndex(1), transport::AddressId(to as u32));
    }
    world.rails = 2;
    world
}

/// R24: a rail that loses everything is passed over, and no message is lost by it; it comes back when it works again.
#[test]
fn a_dead_rail_is_passed_over_and_tried_again() {
    let mut world = with_two_rails();
    world.dead_rail = Some(1);
    for tag in 0..200 {
        world.receive(1, Some(0), Some(tag), 100);
        world.send(0, 1, tag, &pattern(tag, 50));
        if tag % 10 == 0 {
            world.run(MS);
        }
    }
    world.run(200 * MS);
    assert_eq!(world.received(1).len(), 200);
    assert!(world.nodes[0].events.iter().any(|event| matches!(event, Event::RailSuspect { .. })));
    world.dead_rail = None;
    for tag in 200..400 {
        world.receive(1, Some(0), Some(tag), 100);
        world.send(0, 1, tag, &pattern(tag, 50));
        world.run(MS);
    }
    assert_eq!(world.received(1).len(), 400);
    assert!(world.nodes[0].events.iter().any(|event| matches!(event, Event::RailBack { .. })));
}

/// R24: a rail that loses one frame of eight is not passed over, though acknowledgements answer frames of the other
/// one.
#[test]
fn a_rail_that_loses_a_few_frames_is_not_passed_over() {
    let mut world = with_two_rails();
    for round in 0..40 {
        // Sixteen frames, by turns: the first leaves over rail 1 and is lost, the last over rail 0.
        let mut first = true;
        world.fate =
            Box::new(
                move |from, _, _, _| {
                    if from == 0 && core::mem::take(&mut first) { Fate::Lose } else { Fate::Deliver }
                },
            );
        for tag in round * 16..(round + 1) * 16 {
            world.receive(1, Some(0), Some(tag), 100);
            world.send(0, 1, tag, &pattern(tag, 50));
        }
        world.run(10 * MS);
    }
    assert_eq!(world.received(1).len(), 640);
    assert!(world.port(0).counters().frames_resent >= 40, "nothing was lost");
    assert!(!world.nodes[0].events.iter().any(|event| matches!(event, Event::RailSuspect { .. })));
}

/// Sends messages of all kinds, and waits for them: frames that left over each rail meanwhile.
fn exchange(world: &mut World, tags: std::ops::Range<u64>) -> [u64; 2] {
    let before = (world.received(1).len(), world.frames_over);
    for tag in tags.clone() {
        world.receive(1, Some(0), Some(tag), 40_000);
        if tag % 3 == 0 {
            world.send_user(0, 1, tag, pattern(tag, 30_000));
        } else {
            world.send(0, 1, tag, &pattern(tag, 50));
        }
        world.run(2 * MS);
    }
    world.run(200 * MS);
    assert_eq!(world.received(1).len() - before.0, tags.count());
    [0, 1].map(|rail| world.frames_over[rail] - before.1[rail])
}

/// R24: a link that has a rail within the host uses no other, while it works.
#[test]
fn peers_on_one_host_talk_within_it() {
    let mut world = World::on_one_host();
    let [network, within] = exchange(&mut world, 0..30);
    assert!(network == 0 && within > 60, "{network} and {within}");
    world.dead_rail = Some(1);
    let [network, _] = exchange(&mut world, 30..60);
    assert!(network > 60, "nothing is lost by the rail's death: {network}");
    world.dead_rail = None;
    exchange(&mut world, 60..70);
    let [network, within] = exchange(&mut world, 70..100);
    assert!(network == 0 && within > 60, "{network} and {within}");
}

/// R24: a frame that was lost within the host is sent again there.
#[test]
fn a_loss_within_the_host_is_mended_within_it() {
    let mut world = World::on_one_host();
    world.fate = Box::new(|_, _, _, n| if n % 10 == 3 { Fate::Lose } else { Fate::Deliver });
    let [network, within] = exchange(&mut world, 0..60);
    let resent = world.port(0).counters().frames_resent;
    assert!(resent > 20 && within > 120, "{resent} resent, {within} sent");
    assert!(network < 20, "only probes try the other rail: {network}");
}

/// R24: one peer that cannot be reached within the host does not keep others from it, and is reached over the network.
#[test]
fn a_lost_path_is_done_without() {
    let mut world = World::on_one_host();
    for i in 0..2 {
        world.port(i).lose_path(transport::RailIndex(1), transport::AddressId(1 - i as u32));
    }
    let [network, within] = exchange(&mut world, 0..30);
    assert!(within == 0 && network > 60, "{network} and {within}");
    world.port(0).lose_path(transport::RailIndex(0), transport::AddressId(1));
    let [network, _] = exchange(&mut world, 30..40);
    assert!(network > 10, "the last path of a link stays: {network}");
}

/// R21: a frame that needs no tag within the host is a stranger's anywhere else.
#[test]
fn a_frame_without_a_tag_counts_only_within_the_host() {
    let mut world = World::on_one_host();
    world.send(0, 1, 1, b"within the host");
    world.pump();
    let (_, to, rail, bytes) = world.wire.pop_front().expect("a frame");
    assert_eq!((to, rail), (1, 1));
    let node = &mut world.nodes[1];
    let port = node.port.as_mut().expect("not frozen");
    port.handle_frame(world.now, transport::RailIndex(0), &bytes, &mut node.memory);
    assert_eq!((port.counters().dropped_tag, port.unexpected_bytes()), (1, 0));
    port.handle_frame(world.now, transport::RailIndex(1), &bytes, &mut node.memory);
    assert_eq!((port.counters().dropped_tag, port.unexpected_bytes()), (1, 15));
}

/// R17: messages are bounded like bytes, also those without any.
#[test]
fn empty_messages_do_not_outgrow_their_table() {
    let mut config = config();
    config.unexpected_entries_max = 16;
    let mut world = World::new(2, &config, 2000);
    for tag in 0..200 {
        world.send(0, 1, tag, b"");
    }
    world.run(5 * MS);
    let frozen = world.freeze(1);
    let copied = frozen.unexpected().filter(|(_, message)| matches!(message.payload, Arrived::Copied(_)));
    let (copied, all) = (copied.count(), frozen.waiting_len());
    assert!(copied <= 16 + 4, "{copied} of {all}: the bound, and what a peer was promised");
    assert_eq!(all, 200, "the others are announced");
    world.thaw(1, frozen);
    for _ in 0..200 {
        world.receive(1, None, None, 0);
    }
    world.run(20 * MS);
    let tags: Vec<u64> = world.received(1).iter().map(|(_, tag, _)| *tag).collect();
    assert_eq!(tags, (0..200).collect::<Vec<_>>());
}

/// R17: a peer that got a zero window is informed when there is room, also if the message that left the table was only
/// announced.
#[test]
fn room_that_an_announced_message_leaves_is_reported_to_the_others() {
    let mut config = config();
    config.unexpected_entries_max = 8;
    for discard in [false, true] {
        let mut world = World::new(3, &config, 1500);
        for tag in 0..8 {
            world.send_user(0, 1, tag, pattern(tag, 3000));
        }
        world.run(5 * MS);
        world.send(2, 1, 100, b"fills the window of its sender");
        world.run(200 * MS);
        let reported = std::rc::Rc::new(std::cell::Cell::new(0));
        let window = reported.clone();
        world.fate = Box::new(move |from, to, frame, _| {
            if (from, to) == (1, 2) {
                window.set(window.get().max(frame.header.window_frames));
            }
            Fate::Deliver
        });
        for tag in 0..8 {
            let source = Some(world.link(1, 0));
            let space = transport::Space(0);
            let pattern = transport::matching::Pattern { space, source, tag, ignore: 0 };
            if discard {
                let (key, _) = world.port(1).claim(&pattern).expect("it waits");
                assert!(world.port(1).discard(key));
            } else {
                world.receive(1, Some(0), Some(tag), 3000);
            }
        }
        world.run(Duration::from_micros(100));
        assert!(reported.get() > 0, "discarded: {discard}");
    }
}

/// R23: a peer does not decide how many peers there are.
#[test]
fn a_peer_too_many_is_not_heard() {
    let mut world = World::new(2, &config(), 1500);
    for number in 0..transport::config::LINKS_MAX as u64 {
        world.port(0).connect(transport::PortId((number + 1000) << 32));
    }
    world.send(1, 0, 0, b"first contact");
    world.run(MS);
    let counters = *world.port(0).counters();
    assert!(
        counters.dropped_no_room > 0 && counters.dropped_no_room == counters.frames_received,
        "{counters:?}"
    );
    assert_eq!(world.port(0).links(), transport::config::LINKS_MAX);
}

/// Most pieces of bulk that left node 0 at one instant, since the last transcript.
fn widest_volley(world: &mut World) -> usize {
    let mut pieces = std::collections::BTreeMap::<String, usize>::new();
    for line in world.transcript().lines().filter(|line| line.contains(" a>b Data ")) {
        let at = line.split(' ').next().expect("a line begins with its time");
        *pieces.entry(at.to_owned()).or_default() += 1;
    }
    pieces.into_values().max().unwrap_or(0)
}

/// R19: within a host the window is fixed. It is wide enough to lose several frames at once, and nothing would widen it again.
#[test]
fn losses_within_a_host_do_not_narrow_the_window() {
    let bytes = 4 << 20;
    let mut world = World::new(2, &config(), 65_000);
    let mut transfer = |lost: std::ops::Range<u64>| {
        let mut data = 0;
        world.fate = Box::new(move |_, _, frame, _| {
            data += u64::from(frame.header.kind == transport::wire::Kind::Data);
            if frame.header.kind == transport::wire::Kind::Data && lost.contains(&data) {
                return Fate::Lose;
            }
            Fate::Deliver
        });
        world.receive(1, Some(0), Some(3), bytes);
        world.send_user(0, 1, 3, pattern(3, bytes as usize));
        world.run(100 * MS);
        assert!(world.port(0).is_settled());
        widest_volley(&mut world)
    };
    let before = transfer(0..0);
    assert!(before > 8, "a window of {before} frames");
    transfer(5..9);
    transfer(5..9);
    assert_eq!(transfer(0..0), before);
}
