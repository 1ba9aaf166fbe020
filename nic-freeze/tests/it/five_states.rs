//! A message in each of the five states in which a checkpoint can find it (Huo et al. 2006), frozen there, killed, loaded
//! from the dumps and brought to its end: delivered once, reported once (R5, R6, R10).

use std::time::Duration;

use crate::common::world::{Fate, World, config, pattern};
use crate::common::{Image, MS, cut, received_once, restart};
use transport::{Epoch, Life, OpId};

const FRAME_BYTES: usize = 1500;
const NEXT_LIFE: Life = Life { counter: 2, nonce: 1234 };

/// Kinds of messages, by how they travel over frames of 1,500 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// In one frame, copied.
    Eager,
    /// In several, copied.
    Fragments,
    /// Announced, then pulled.
    Rendezvous,
}

const WAYS: [Way; 3] = [Way::Eager, Way::Fragments, Way::Rendezvous];

impl Way {
    fn payload(self) -> Vec<u8> {
        match self {
            Way::Eager => pattern(1, 600),
            Way::Fragments => pattern(2, 8000),
            Way::Rendezvous => pattern(3, 100_000),
        }
    }

    fn send(self, world: &mut World) -> OpId {
        match self {
            Way::Rendezvous => world.send_user(0, 1, 7, self.payload()),
            _ => world.send(0, 1, 7, &self.payload()),
        }
    }
}

/// Kills both processes and starts them from their images; then the program at node 1 posts its receive, if it has not.
fn end_to_end(images: &[Image], way: Way, posted: bool) {
    for image in images {
        assert_eq!(image.unpolled, 0, "the owner had polled everything");
    }
    let mut world = restart(images, &config(), FRAME_BYTES, NEXT_LIFE);
    if !posted {
        world.run(5 * MS);
        assert!(world.received(1).is_empty() || !images[1].events.is_empty());
        world.receive(1, Some(0), Some(7), 1 << 20);
    }
    world.run(300 * MS);
    received_once(&world, 1, 7, &way.payload());
    assert_eq!(world.sends_done(0), 1, "{way:?}");
    for node in 0..2 {
        assert!(world.port(node).is_settled(), "{way:?}");
        let frozen = world.freeze(node);
        assert_eq!(frozen.posted_len() + frozen.waiting_len() + frozen.sends().len(), 0, "{way:?}");
    }
    // The message again, and one behind it: the link is in order.
    let mut world = restart(images, &config(), FRAME_BYTES, Life { counter: 3, nonce: 5 });
    if !posted {
        world.receive(1, Some(0), Some(7), 1 << 20);
    }
    let next = world.receive(1, Some(0), Some(8), 100);
    world.send(0, 1, 8, b"behind it");
    world.run(300 * MS);
    received_once(&world, 1, 7, &way.payload());
    assert_eq!(world.nodes[1].memory.posted[&next], b"behind it");
}

/// Two frames in flight: a payload goes piece by piece.
fn narrow() -> transport::PortConfig {
    let mut narrow = config();
    narrow.flight_bytes_max = 3000;
    narrow
}

fn both(world: &mut World) -> [Image; 2] {
    [cut(world, 0, Epoch(1)), cut(world, 1, Epoch(1))]
}

/// Steps until `reached`, at most 5 ms.
fn step_until(world: &mut World, mut reached: impl FnMut(&mut World) -> bool) {
    let until = world.now + 5 * MS;
    while !reached(world) {
        assert!(world.step(until), "the state is never reached");
    }
}

#[test]
fn state_1_to_be_sent() {
    for way in WAYS {
        for posted in [false, true] {
            let mut world = World::new(2, &config(), FRAME_BYTES);
            if posted {
                world.receive(1, Some(0), Some(7), 1 << 20);
            }
            way.send(&mut world);
            let images = both(&mut world);
            assert_eq!(images[0].census.to_be_sent, 1);
            assert_eq!(images[0].census.sent_unacknowledged, 0);
            end_to_end(&images, way, posted);
        }
    }
}

#[test]
fn state_1_half_of_it_sent() {
    for way in [Way::Fragments, Way::Rendezvous] {
        let mut world = World::new(2, &narrow(), FRAME_BYTES);
        world.receive(1, Some(0), Some(7), 1 << 20);
        way.send(&mut world);
        let reached = |world: &mut World| {
            let census = world.census(0);
            census.to_be_sent > 0 && census.sent_unacknowledged > 0
        };
        if way == Way::Rendezvous {
            step_until(&mut world, reached);
        } else {
            let mut frame = vec![0; FRAME_BYTES];
            let now = world.now;
            for _ in 0..3 {
                let _ = world.port(0).poll_transmit(now, transport::RailIndex(0), &mut frame);
            }
            assert!(reached(&mut world));
        }
        let images = both(&mut world);
        assert!(images[0].census.to_be_sent > 0 && images[0].census.sent_unacknowledged > 0, "{way:?}");
        end_to_end(&images, way, true);
    }
}

#[test]
fn state_2_sent_and_lost() {
    for way in WAYS {
        for posted in [false, true] {
            let mut world = World::new(2, &config(), FRAME_BYTES);
            if posted {
                world.receive(1, Some(0), Some(7), 1 << 20);
            }
            world.fate = Box::new(|_, _, _, _| Fate::Lose);
            way.send(&mut world);
            world.run(Duration::from_micros(500));
            let images = both(&mut world);
            assert!(images[0].census.sent_unacknowledged > 0);
            assert_eq!(images[1].census, Default::default());
            end_to_end(&images, way, posted);
        }
    }
}

#[test]
fn state_2_arrived_but_the_acknowledgement_is_lost() {
    for way in WAYS {
        for posted in [false, true] {
            let mut world = World::new(2, &narrow(), FRAME_BYTES);
            if posted {
                world.receive(1, Some(0), Some(7), 1 << 20);
            }
            way.send(&mut world);
            if way == Way::Rendezvous && posted {
                // Half of the pieces first.
                let mut pieces = 0;
                while pieces < 30 {
                    assert!(world.step(world.now + MS));
                    pieces += world.census(0).acknowledged;
                }
            }
            world.fate = Box::new(|from, _, _, _| if from == 1 { Fate::Lose } else { Fate::Deliver });
            world.run(Duration::from_micros(500));
            let images = both(&mut world);
            assert!(images[0].census.sent_unacknowledged > 0, "{way:?} {posted}");
            end_to_end(&images, way, posted);
        }
    }
}

#[test]
fn state_3_sent_and_acknowledged() {
    for way in WAYS {
        let mut world = World::new(2, &config(), FRAME_BYTES);
        world.receive(1, Some(0), Some(7), 1 << 20);
        way.send(&mut world);
        world.run(5 * MS);
        let images = both(&mut world);
        assert!(images[0].census.acknowledged > 0);
        assert_eq!(images[0].census.sent_unacknowledged + images[0].census.to_be_sent, 0);
        assert_eq!(world.sends_done(0), 1);
        end_to_end(&images, way, true);
    }
}

#[test]
fn state_4_received_and_the_acknowledgement_is_not_sent_yet() {
    for way in WAYS {
        for posted in [false, true] {
            let mut world = World::new(2, &config(), FRAME_BYTES);
            if posted {
                world.receive(1, Some(0), Some(7), 1 << 20);
            }
            way.send(&mut world);
            // A step ends with frames handled and nothing sent: the acknowledgement is owed then.
            let until = world.now + MS;
            let (images, owed) = loop {
                assert!(world.step(until), "{way:?} {posted}: no acknowledgement was ever owed");
                let frozen = world.freeze(1);
                let owed = frozen.census().received_unacknowledged;
                if owed > 0 {
                    world.nodes[1].port = Some(frozen.thaw(world.now));
                    break (both(&mut world), owed);
                }
                world.thaw(1, frozen);
            };
            assert_eq!(images[1].census.received_unacknowledged, owed);
            assert!(images[0].census.sent_unacknowledged > 0, "the sender holds what is not acknowledged");
            end_to_end(&images, way, posted);
        }
    }
}

#[test]
fn state_5_delivered_and_waiting_for_the_program() {
    for way in WAYS {
        let mut world = World::new(2, &config(), FRAME_BYTES);
        way.send(&mut world);
        world.run(5 * MS);
        let images = both(&mut world);
        assert_eq!(images[1].census.delivered_waiting, 1);
        assert_eq!(images[0].census.sent_unacknowledged, 0);
        end_to_end(&images, way, false);
    }
}

#[test]
fn state_5_given_to_the_program() {
    for way in WAYS {
        let mut world = World::new(2, &config(), FRAME_BYTES);
        world.receive(1, Some(0), Some(7), 1 << 20);
        way.send(&mut world);
        // The receiver has it, every acknowledgement is lost.
        world.fate = Box::new(|from, _, frame, _| {
            let cts = frame.header.kind == transport::wire::Kind::Cts;
            if from == 1 && !cts { Fate::Lose } else { Fate::Deliver }
        });
        step_until(&mut world, |world| !world.received(1).is_empty());
        let images = both(&mut world);
        assert_eq!(images[1].events.len(), 1, "the program has seen it");
        end_to_end(&images, way, true);
    }
}

#[test]
fn a_completion_that_nobody_polled_is_not_lost() {
    for way in WAYS {
        let mut world = World::new(2, &config(), FRAME_BYTES);
        let op = world.receive(1, Some(0), Some(7), 1 << 20);
        way.send(&mut world);
        world.run(5 * MS);
        // Another one, received by the port and not polled by its owner.
        world.receive(1, Some(0), Some(9), 1000);
        world.send(0, 1, 9, b"unseen");
        world.pump();
        let (_, _, _, frame) = world.wire.pop_front().expect("one frame");
        let now = world.now + Duration::from_micros(5);
        let node = &mut world.nodes[1];
        let port = node.port.as_mut().unwrap();
        port.handle_frame(now, transport::RailIndex(0), &frame, &mut node.memory);
        let frozen = world.nodes[1].port.take().unwrap().freeze(now);
        assert_eq!(frozen.completions().count(), 1);
        let image = Image {
            section: crate::common::section(&frozen, &world.nodes[1].memory),
            census: frozen.census(),
            events: world.nodes[1].events.clone(),
            done: world.nodes[1].memory.clone(),
            unpolled: 1,
        };
        world.thaw(1, frozen);
        let images = [cut(&mut world, 0, Epoch(1)), image];
        let mut world = restart(&images, &config(), FRAME_BYTES, NEXT_LIFE);
        world.run(20 * MS);
        assert_eq!(world.received(1).len(), 2);
        assert_eq!(world.nodes[1].memory.posted[&op], way.payload());
        received_once(&world, 1, 9, b"unseen");
        assert_eq!(world.sends_done(0), 2);
    }
}
