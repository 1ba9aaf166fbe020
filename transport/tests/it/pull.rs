//! R11: payloads that are pulled out of the sender's memory, and all interruptions of that.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::world::{Fate, KEY, LIFE, World, config, pattern};
use transport::port::state::Control;
use transport::wire::Kind;
use transport::{FrozenPort, Life, OpId, RailIndex};

const MS: Duration = Duration::from_millis(1);
const BYTES: usize = 100_000;
const TAG: u64 = 7;

/// Two ports on one host, and how many frames have carried pieces of payload.
fn on_one_host() -> (World, Rc<Cell<u32>>) {
    let mut world = World::on_one_host();
    world.announces_places = true;
    let data = Rc::new(Cell::new(0));
    let counted = Rc::clone(&data);
    world.fate = Box::new(move |_, _, frame, _| {
        counted.set(counted.get() + u32::from(frame.header.kind == Kind::Data));
        Fate::Deliver
    });
    (world, data)
}

fn send(world: &mut World) {
    world.send_user(0, 1, TAG, pattern(TAG, BYTES));
}

/// The message is where it belongs, once, and its sender knows.
fn arrived(world: &World, receive: OpId) {
    assert_eq!(world.received(1), [(receive, TAG, BYTES as u64)]);
    assert_eq!(world.nodes[1].memory.posted[&receive], pattern(TAG, BYTES));
    assert_eq!(world.sends_done(0), 1);
}

#[test]
fn a_payload_on_the_host_is_pulled_and_no_frame_carries_any_of_it() {
    for expected in [true, false] {
        let (mut world, data) = on_one_host();
        let early = expected.then(|| world.receive(1, Some(0), Some(TAG), BYTES as u64));
        send(&mut world);
        world.run(MS);
        let receive = early.unwrap_or_else(|| world.receive(1, Some(0), Some(TAG), BYTES as u64));
        let mut pieces = 0;
        while world.pull(1, 30_000, true).is_some() {
            world.run(MS);
            pieces += 1;
            assert_eq!(world.sends_done(0), usize::from(pieces == 4), "done when all is there");
        }
        world.run(MS);
        arrived(&world, receive);
        assert_eq!((pieces, data.get(), world.port(1).counters().messages_pulled), (4, 0, 1));
    }
}

#[test]
fn what_is_not_to_be_had_comes_in_frames() {
    for pulled_before in 0..3 {
        let (mut world, data) = on_one_host();
        let receive = world.receive(1, Some(0), Some(TAG), BYTES as u64);
        send(&mut world);
        world.run(MS);
        for _ in 0..pulled_before {
            world.pull(1, 30_000, true).expect("a piece");
        }
        world.pull(1, 30_000, false).expect("a piece");
        world.run(10 * MS);
        arrived(&world, receive);
        assert!(data.get() >= 70, "{} frames", data.get());
        assert!(!world.port(1).wants_to_pull());
    }
}

#[test]
fn a_peer_that_is_not_reached_within_the_host_any_more_is_asked_for_frames() {
    let (mut world, data) = on_one_host();
    let receive = world.receive(1, Some(0), Some(TAG), BYTES as u64);
    send(&mut world);
    world.run(MS);
    world.pull(1, 30_000, true).expect("a piece");
    for node in 0..2 {
        world.port(node).set_rail_alive(RailIndex(1), false);
    }
    assert!(world.pull(1, 30_000, true).is_none());
    world.run(10 * MS);
    arrived(&world, receive);
    assert!(data.get() >= 70, "{} frames", data.get());
}

#[test]
fn a_short_buffer_pulls_no_more_than_it_takes_and_none_at_all_nothing() {
    let (mut world, data) = on_one_host();
    let receive = world.receive(1, Some(0), Some(TAG), 1000);
    send(&mut world);
    world.run(MS);
    assert_eq!(world.pull(1, 30_000, true).expect("a piece").bytes, 1000);
    world.run(MS);
    assert_eq!(world.nodes[1].memory.posted[&receive], pattern(TAG, BYTES)[..1000]);
    world.receive(1, Some(0), Some(TAG), 0);
    send(&mut world);
    world.run(MS);
    assert!(world.pull(1, 30_000, true).is_none());
    assert_eq!((world.sends_done(0), world.received(1).len(), data.get()), (2, 2, 0));
}

/// R5: pulling is of this process. A port that is frozen in the middle has an ordinary CTS to send; it continues when
/// it thaws, and a port loaded from its image requests the payload by frames.
#[test]
fn no_image_knows_of_a_payload_that_is_being_pulled() {
    for restarted in [false, true] {
        let (mut world, data) = on_one_host();
        let receive = world.receive(1, Some(0), Some(TAG), BYTES as u64);
        send(&mut world);
        world.run(MS);
        world.pull(1, 30_000, true).expect("a piece");
        let frozen = world.freeze(1);
        let state = frozen.state();
        let link = state.links.iter().find(|link| !link.incoming.is_empty()).expect("a link");
        assert_eq!(link.control, [Control::Cts { op: link.incoming[0].peer_op, total: BYTES as u64 }]);
        assert_eq!(link.incoming[0].received, 0);
        if restarted {
            let life = Life { counter: LIFE.counter + 1, nonce: 5 };
            let load =
                |state| FrozenPort::from_state(config(), Some(&KEY), state).expect("it is consistent").0;
            let (sender, loaded) = (load(world.freeze(0).state()), load(state));
            world.wire.clear();
            world.rails = 1;
            world.restart(0, sender, life, 1500);
            world.restart(1, loaded, life, 1500);
            assert!(!world.port(1).wants_to_pull());
        } else {
            world.thaw(1, frozen);
            while world.pull(1, 30_000, true).is_some() {}
        }
        world.run(50 * MS);
        arrived(&world, receive);
        assert_eq!(data.get() == 0, !restarted, "{} frames", data.get());
    }
}
