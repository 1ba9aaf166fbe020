//! The procedure: its waits, and its rollback.

use std::task::Poll;
use std::time::Duration;

use crate::common::world::{Fate, LIFE, World, config, pattern};
use crate::common::{MS, received_once};
use nic_freeze::{Freeze, FreezeError, Rail, Refused, restart};
use transport::{AddressId, Epoch, Life, OpId, Port, RailIndex, RawAddress};

/// A rail that gives its buffers back after being asked some times.
struct Nic {
    asks_left: u32,
    asked: u32,
}

impl Nic {
    fn drain(&mut self) -> Result<Poll<()>, &'static str> {
        self.asked += 1;
        match self.asks_left {
            0 => Ok(Poll::Ready(())),
            u32::MAX => Err("the cable is out"),
            _ => {
                self.asks_left -= 1;
                Ok(Poll::Pending)
            }
        }
    }
}

/// A port in the middle of a conversation whose peer never answers.
fn unanswered() -> World {
    let mut world = World::new(2, &config(), 1500);
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    world.send(0, 1, 1, b"nobody listens");
    world.send_user(0, 1, 2, pattern(2, 100_000));
    world.run(MS);
    world
}

fn port(world: &mut World) -> Port {
    world.nodes[0].port.take().expect("it runs")
}

#[test]
fn frozen_when_the_last_rail_is_drained_and_no_rail_is_asked_again() {
    let mut world = unanswered();
    let mut now = world.now;
    let mut nics =
        [Nic { asks_left: 0, asked: 0 }, Nic { asks_left: 3, asked: 0 }, Nic { asks_left: 1, asked: 0 }];
    let mut freeze = Freeze::quiesce(port(&mut world), nics.len(), now, MS);
    let mut waited_for = Vec::new();
    while let Freeze::Quiescing(quiescing) = &freeze {
        waited_for.push(quiescing.waits_for().map(|rail| rail.0).collect::<Vec<_>>());
        assert_eq!(quiescing.until(), world.now + MS);
        now = now + Duration::from_micros(1);
        freeze = freeze
            .poll(now, |rail| nics[usize::from(rail.0)].drain())
            .expect("every rail is drained in time");
    }
    // Three rounds of it: the silent peer has no influence on this either.
    assert_eq!(waited_for, [vec![0, 1, 2], vec![1, 2], vec![1], vec![1]]);
    assert_eq!(nics.map(|nic| nic.asked), [1, 4, 2]);
    let Freeze::Frozen(frozen) = freeze else { panic!("it is frozen") };
    assert_eq!(frozen.check(), Ok(()));
    assert!(frozen.census().sent_unacknowledged > 0);
}

#[test]
fn a_port_without_rails_is_frozen_at_once_and_stays_so() {
    let mut world = unanswered();
    let freeze = Freeze::quiesce(port(&mut world), 0, world.now, Duration::ZERO);
    let freeze = freeze.poll(world.now, |_| -> Result<_, ()> { panic!("there is no rail") });
    assert!(matches!(freeze, Ok(Freeze::Frozen(_))));
}

#[test]
fn a_rail_that_takes_too_long_is_named_and_the_port_runs_on() {
    let mut world = unanswered();
    let before = world.port(0).counters().frames_sent;
    let now = world.now;
    let mut freeze = Freeze::quiesce(port(&mut world), 2, now, MS);
    let mut slow = Nic { asks_left: 1000, asked: 0 };
    let mut drain = |rail: RailIndex| if rail.0 == 0 { Ok(Poll::Ready(())) } else { slow.drain() };
    let mut at = now;
    let refused = loop {
        at = at + MS / 4;
        match freeze.poll(at, &mut drain) {
            Ok(next) => freeze = next,
            Err(refused) => break refused,
        }
    };
    let Refused { port, reason } = refused;
    assert_eq!(reason, FreezeError::TooLate { rail: RailIndex(1), waited: MS });
    assert!(reason.to_string().contains("rail 1 still held buffers after 1ms"), "{reason}");
    assert_eq!(slow.asked, 4, "the deadline is the caller's clock and nothing else");
    goes_on(world, *port, before);
}

#[test]
fn a_rail_that_fails_gives_the_running_port_back_with_the_reason() {
    let mut world = unanswered();
    let before = world.port(0).counters().frames_sent;
    let freeze = Freeze::quiesce(port(&mut world), 1, world.now, MS);
    let mut dead = Nic { asks_left: u32::MAX, asked: 0 };
    let Err(Refused { port, reason }) = freeze.poll(world.now, |_| dead.drain()) else { panic!("it cannot") };
    assert_eq!(reason, FreezeError::Rail { rail: RailIndex(0), error: "the cable is out" });
    goes_on(world, *port, before);
}

/// As if nothing had been asked: the same frames reach the peer once it listens.
fn goes_on(mut world: World, port: Port, frames_before: u64) {
    assert_eq!(port.counters().frames_sent, frames_before);
    world.nodes[0].port = Some(port);
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.receive(1, Some(0), Some(1), 100);
    world.receive(1, Some(0), Some(2), 1 << 20);
    world.run(200 * MS);
    received_once(&world, 1, 1, b"nobody listens");
    received_once(&world, 1, 2, &pattern(2, 100_000));
    assert_eq!(world.sends_done(0), 2);
}

#[test]
fn other_rails_other_addresses_and_shorter_frames_in_a_new_life() {
    // 9,000 bytes a frame before, 700 after; the peers have changed places.
    let mut world = World::new(2, &config(), 9000);
    world.receive(1, Some(0), Some(1), 1 << 20);
    world.receive(1, Some(0), Some(2), 1 << 20);
    world.fate =
        Box::new(|from, _, _, number| if from == 0 && number > 3 { Fate::Lose } else { Fate::Deliver });
    let eager = world.send(0, 1, 1, &pattern(1, 8000));
    world.send_user(0, 1, 2, pattern(2, 300_000));
    world.run(Duration::from_micros(300));
    let life = Life { counter: LIFE.counter + 1, nonce: 9 };
    let mut rebound = World::new(2, &config(), 700);
    for node in 0..2 {
        let mut frozen = world.freeze(node);
        frozen.set_epoch(Epoch(1));
        let peer = crate::common::world::port_id(1 - node);
        let rails = [
            Rail { address: RawAddress::new(&[7]).expect("short"), frame_bytes_max: 700 },
            Rail { address: RawAddress::new(&[8]).expect("short"), frame_bytes_max: 900 },
        ];
        let address = AddressId(1 - u32::try_from(node).expect("small"));
        let port = restart(frozen, rebound.now, life, &rails, [(peer, RailIndex(0), address)]);
        assert_eq!(port.life(), life);
        rebound.nodes[node].port = Some(port);
        rebound.nodes[node].memory = world.nodes[node].memory.clone();
        rebound.nodes[node].events = world.nodes[node].events.clone();
    }
    rebound.fate = Box::new(|_, _, frame, _| {
        assert!(frame.head_bytes + frame.payload.len() <= 700, "{frame:?}");
        Fate::Deliver
    });
    rebound.run(300 * MS);
    received_once(&rebound, 1, 1, &pattern(1, 8000));
    received_once(&rebound, 1, 2, &pattern(2, 300_000));
    assert_eq!(rebound.sends_done(0), 2);
    assert_ne!(eager, OpId(0));
    for node in 0..2 {
        let frozen = rebound.freeze(node);
        assert_eq!(frozen.census().sent_unacknowledged, 0);
    }
}
