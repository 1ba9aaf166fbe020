//! The fast path of a message is the slow path in fewer steps: the same frame, the same state; and it is taken only if
//! nothing waits and no rail must be chosen.

use std::time::Duration;

use crate::world::{Node, World, pattern};
use transport::wire::HEADER_BYTES;
use transport::{
    AddressId, AuthLevel, Event, LinkIndex, Outgoing, Payload, RailIndex, RawAddress, Space, Transmit,
};

const MS: Duration = Duration::from_millis(1);
/// Header and envelope.
const HEAD_BYTES: usize = HEADER_BYTES + 32;
const NETWORK: RailIndex = RailIndex(0);
const WITHIN: RailIndex = RailIndex(1);

fn outgoing(tag: u64, silent: bool) -> Outgoing {
    Outgoing { space: Space(3), tag, data: tag << 40, context: tag + 7, silent }
}

/// Two ports on one host that know each other.
fn acquainted() -> World {
    known(World::on_one_host())
}

/// Two ports that know each other, over a network only.
fn far() -> World {
    known(World::new(2, &crate::world::config(), 1500))
}

/// Likewise, where the tag covers the head alone.
fn far_with_short_tags() -> World {
    let mut config = crate::world::config();
    config.auth = AuthLevel::Header;
    known(World::new(2, &config, 1500))
}

fn known(mut world: World) -> World {
    for (from, to) in [(0, 1), (1, 0)] {
        world.send(from, to, 1, b"hello");
    }
    world.run(MS);
    world
}

/// Where a frame goes that left by the fast path, and its length.
#[derive(PartialEq, Debug)]
struct Fast {
    to: AddressId,
    frame_bytes: usize,
}

fn fast(world: &mut World, rail: RailIndex, tag: u64, payload: &[u8], frame: &mut [u8]) -> Option<Fast> {
    let (now, outgoing) = (world.now, outgoing(tag, tag.is_multiple_of(2)));
    let mut fast = None;
    let hand = |to, frame: &[u8]| {
        fast = Some(Fast { to, frame_bytes: frame.len() });
        now
    };
    let sent = world.port(0).send_fast(rail, LinkIndex(0), &outgoing, payload, frame, hand);
    assert_eq!(sent.is_some(), fast.is_some());
    fast
}

fn long(world: &mut World, rail: RailIndex, tag: u64, payload: &[u8], frame: &mut [u8]) -> Transmit {
    let now = world.now;
    let port = world.port(0);
    let outgoing = outgoing(tag, tag.is_multiple_of(2));
    port.send(LinkIndex(0), outgoing, Payload::Copied(payload)).expect("there is room");
    if rail == WITHIN {
        assert!(port.poll_transmit(now, NETWORK, frame).is_none(), "it stays within the host");
    }
    port.poll_transmit(now, rail, frame).expect("nothing holds it back")
}

/// R19: its timer runs from when the frame left, which only the sending driver knows.
#[test]
fn the_timer_of_a_short_frame_runs_from_when_it_has_left() {
    let due = |late: Duration| {
        let (mut world, mut frame) = (far(), [0; 2000]);
        let left_at = world.now + late;
        let port = world.port(0);
        let sent =
            port.send_fast(NETWORK, LinkIndex(0), &outgoing(1, true), b"late", &mut frame, |_, _| left_at);
        sent.expect("nothing stands before it");
        port.poll_timeout().expect("it waits for an acknowledgement")
    };
    let late = Duration::from_micros(300);
    assert_eq!(due(late).since(due(Duration::ZERO)), late);
}

fn state(world: &mut World) -> String {
    let frozen = world.freeze(0);
    let state = format!("{:?}", frozen.state());
    world.thaw(0, frozen);
    state
}

/// R5, R14, R17: a message sent by the fast path is in an image, and is retransmitted, like all others.
fn writes_the_frame_and_leaves_the_state_of_the_long_way(make: fn() -> World, rail: RailIndex) {
    let (mut one, mut other) = (make(), make());
    for (tag, bytes) in [(10, 0), (11, 1), (12, 8), (13, 128), (14, 700)] {
        let payload = pattern(tag, bytes);
        let (mut fast_frame, mut long_frame) = ([0; 2000], [0; 2000]);
        let sent = fast(&mut one, rail, tag, &payload, &mut fast_frame).expect("nothing stands before it");
        let transmit = long(&mut other, rail, tag, &payload, &mut long_frame);
        assert_eq!((sent.to, sent.frame_bytes), (transmit.to, transmit.frame_bytes));
        assert!(transmit.seal.is_none(), "the tag is there");
        assert_eq!(fast_frame, long_frame);
        assert_eq!(one.port(0).poll_timeout(), other.port(0).poll_timeout());
        assert!(!one.port(0).wants_to_transmit());
    }
    assert_eq!(state(&mut one), state(&mut other));
    // None of those frames has arrived: all are retransmitted by themselves, in either world.
    for world in [&mut one, &mut other] {
        let ops: Vec<_> = (0..6).map(|_| world.receive(1, None, None, 1000)).collect();
        // A message in another space waits for none.
        world.run(20 * MS);
        assert_eq!(world.received(1).len(), 1, "space 3 is nobody's: only the first message matches");
        assert_eq!(world.port(1).unexpected_bytes(), 1 + 8 + 128 + 700);
        assert_eq!(ops.len(), 6);
        let done = |event: &&Event| matches!(event, Event::SendDone { context: 18 | 20, .. });
        assert_eq!(world.nodes[0].events.iter().filter(done).count(), 2, "the odd ones are not silent");
        assert!(world.port(0).is_settled());
    }
}

#[test]
fn within_a_host_the_ways_are_one() {
    writes_the_frame_and_leaves_the_state_of_the_long_way(acquainted, WITHIN);
}

/// With the tag over head and payload (R21).
#[test]
fn over_the_only_rail_of_a_network_the_ways_are_one() {
    writes_the_frame_and_leaves_the_state_of_the_long_way(far, NETWORK);
}

/// Likewise over the head alone, which is short.
#[test]
fn with_a_tag_over_the_head_alone_the_ways_are_one() {
    writes_the_frame_and_leaves_the_state_of_the_long_way(far_with_short_tags, NETWORK);
}

/// R16: a frame's message arrives before its acknowledgement is processed; a waiting caller is informed of that, and a
/// freeze does not forget it.
#[test]
fn an_acknowledgement_that_is_put_off_is_caught_up_with() {
    let catches_up: [(&str, Act); 5] = [
        ("a program that answers later", |world| {
            world.now = world.now + 300 * MS;
            let (now, mut frame) = (world.now, [0; 2000]);
            fast(world, NETWORK, 13, b"answered", &mut frame).expect("nothing stands before it");
            let port = world.port(0);
            port.handle_timeout(now);
            let again = port.poll_transmit(now, NETWORK, &mut [0; 2000]);
            assert!(again.is_none(), "a frame that has just left is not lost");
            assert!(port.poll_timeout().is_some_and(|due| due > now));
            let reported = port.next_event().expect("what the acknowledgement says");
            // For the frames that follow: that one arrives, too.
            let Node { port, memory, .. } = &mut world.nodes[1];
            let port = port.as_mut().expect("it runs");
            port.handle_frame(now, NETWORK, &frame[..HEAD_BYTES + 8], memory);
            world.run(MS);
            world.nodes[0].events.push(reported);
        }),
        ("whoever asks for events", |world| {
            let event = world.port(0).poll_event().expect("what the acknowledgement says");
            world.nodes[0].events.push(event);
        }),
        ("what is due", |world| {
            let now = world.now;
            world.port(0).handle_timeout(now);
        }),
        ("a frame that leaves", |world| {
            let now = world.now;
            assert!(world.port(0).poll_transmit(now, NETWORK, &mut [0; 2000]).is_none());
        }),
        ("a freeze", |world| {
            let frozen = world.nodes[0].port.take().expect("it runs").freeze(world.now);
            assert_eq!(frozen.census().sent_unacknowledged, 0);
            world.nodes[0].port = Some(frozen.thaw(world.now));
        }),
    ];
    for (what, act) in catches_up {
        let mut world = far();
        world.receive(0, None, Some(12), 100);
        let (now, mut frame) = (world.now, [0; 2000]);
        fast(&mut world, NETWORK, 11, b"asked", &mut frame).expect("nothing stands before it");
        let asked = HEAD_BYTES + 5;
        let Node { port, memory, .. } = &mut world.nodes[1];
        let port = port.as_mut().expect("it runs");
        port.handle_frame(now, NETWORK, &frame[..asked], memory);
        let answer = Outgoing { space: Space(0), ..outgoing(12, true) };
        let mut bytes = Vec::new();
        let hand = |_, frame: &[u8]| {
            bytes = frame.to_vec();
            now
        };
        port.send_fast(NETWORK, LinkIndex(0), &answer, b"answer", &mut frame, hand).expect("likewise");
        let Node { port, memory, .. } = &mut world.nodes[0];
        let port = port.as_mut().expect("it runs");
        port.handle_frame(now, NETWORK, &bytes, memory);
        assert!(matches!(port.next_event(), Some(Event::Received { tag: 12, .. })), "{what}");
        assert_eq!(port.next_event(), None, "{what}");
        assert!(port.is_behind() && !port.is_settled(), "{what}");
        assert!(port.poll_timeout().is_some_and(|due| due <= now) && !port.is_due(now), "{what}");
        act(&mut world);
        let port = world.port(0);
        let reported = port.next_event();
        assert!(!port.is_behind() && port.is_settled(), "{what}");
        let reported = reported.or_else(|| world.nodes[0].events.pop());
        assert!(matches!(reported, Some(Event::SendDone { context: 18, .. })), "{what}");
    }
}

/// R24: it goes where every frame of the link goes.
#[test]
fn where_only_the_network_is_left_it_goes_there() {
    let cases: [(&str, Act); 2] = [
        ("the rail within the host is not to be used", |world| world.port(0).set_rail_alive(WITHIN, false)),
        ("there is no path within the host", |world| world.port(0).clear_path(LinkIndex(0), WITHIN)),
    ];
    for (what, act) in cases {
        let mut world = acquainted();
        assert_eq!(fast(&mut world, NETWORK, 4, b"near", &mut [0; 2000]), None);
        act(&mut world);
        assert_eq!(fast(&mut world, WITHIN, 5, b"near", &mut [0; 2000]), None, "{what}");
        assert!(fast(&mut world, NETWORK, 6, b"far", &mut [0; 2000]).is_some(), "{what}");
    }
}

/// It is refused, and nothing has happened: the state is that of a world without the attempt.
fn refused(what: &str, make: impl Fn() -> World, bytes: usize, rail: RailIndex) {
    let (mut asked, mut other) = (make(), make());
    let mut frame = [0; 2000];
    assert_eq!(fast(&mut asked, rail, 5, &pattern(5, bytes), &mut frame), None, "{what}");
    assert!(frame == [0; 2000], "{what}");
    let wants = |world: &mut World| (world.port(0).wants_to_transmit(), world.port(0).poll_timeout());
    assert_eq!(wants(&mut asked), wants(&mut other), "{what}");
    assert!(state(&mut asked) == state(&mut other), "{what}");
}

/// Something that stands before a message.
type Act = fn(&mut World);

#[test]
fn whatever_stands_before_a_message_sends_it_the_long_way() {
    let stranger = || {
        let mut world = World::on_one_host();
        world.link(0, 1);
        world
    };
    refused("the peer does not know us yet", stranger, 8, WITHIN);
    refused("no such rail", acquainted, 8, RailIndex(3));
    refused("more than a frame", acquainted, 1450, WITHIN);
    refused("more than a frame of the network", far, 1450, NETWORK);
    let second = || {
        let mut world = far();
        let rail = world.port(0).add_rail(RawAddress::new(&[8]).expect("short"), 1500);
        world.port(0).set_path(LinkIndex(0), rail, AddressId(1));
        world
    };
    refused("two rails of a network share the load", second, 8, NETWORK);
    let dead = || {
        let mut world = far();
        world.port(0).set_rail_alive(NETWORK, false);
        world
    };
    refused("the only rail is not to be used", dead, 8, NETWORK);
    let cases: [(&str, Act); 5] = [
        ("a message waits", |world| {
            let waiting = Payload::Copied(b"first");
            world.port(0).send(LinkIndex(0), outgoing(4, true), waiting).expect("room");
        }),
        ("the link is closing", |world| world.port(0).close_link(LinkIndex(0))),
        ("the other rail takes shorter frames", |world| {
            world.port(0).shrink_path(NETWORK, AddressId(1), 119);
        }),
        ("a hint is due", |world| {
            let now = world.now;
            assert_eq!(world.port(0).announce_pause(now, 20 * MS), 1);
        }),
        ("the end of a pause is to be told", |world| {
            let frozen = world.freeze(0);
            world.thaw(0, frozen);
        }),
    ];
    for (what, act) in cases {
        let make = || {
            let mut world = acquainted();
            act(&mut world);
            world
        };
        refused(what, make, 8, WITHIN);
    }
    let mut world = acquainted();
    let mut frame = [0; 2000];
    let unknown = LinkIndex(9);
    let hand = |_, _: &[u8]| panic!("there is no such link");
    assert!(world.port(0).send_fast(WITHIN, unknown, &outgoing(1, true), b"", &mut frame, hand).is_none());
}

/// R20: a sender that has to wait waits on this path too.
#[test]
fn a_stopped_peer_is_sent_nothing() {
    let stopped = || {
        let mut world = acquainted();
        let now = world.now;
        world.port(1).announce_pause(now, 20 * MS);
        world.run(Duration::from_micros(50));
        world
    };
    refused("the peer has said that it is stopped", stopped, 8, WITHIN);
}

/// R17: the window holds the fast path back too.
#[test]
fn a_full_window_is_respected() {
    let full = || {
        let mut world = acquainted();
        let mut frame = [0; 2000];
        for i in 0..256 {
            assert!(fast(&mut world, WITHIN, 2, &[0; 8], &mut frame).is_some(), "message {i}");
        }
        world
    };
    refused("the window is full", full, 8, WITHIN);
    let mut world = full();
    // All of them are lost, and retransmitted.
    world.run(40 * MS);
    assert!(world.port(0).is_settled());
}
