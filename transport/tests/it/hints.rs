//! R20: a port that pauses announces that, and nothing depends on it.

use std::time::Duration;

use crate::world::{DELAY, Fate, World, config, pattern};
use transport::config::STOPPED_MAX;
use transport::wire::Kind;
use transport::{Event, FrozenPort};

const MS: Duration = Duration::from_millis(1);

/// The ranks know each other, and twenty messages have just left rank 0.
fn talking() -> World {
    let mut world = World::new(2, &config(), 1500);
    for (from, to) in [(0, 1), (1, 0)] {
        world.receive(to, Some(from), Some(99), 10);
        world.send(from, to, 99, b"hello");
    }
    world.run(20 * MS);
    world.nodes[1].events.clear();
    for tag in 0..20 {
        world.receive(1, Some(0), Some(tag), 8192);
        world.send(0, 1, tag, &pattern(tag, 8192));
    }
    world.run(DELAY / 2);
    assert!(world.wire.len() > 20, "they are on their way");
    world
}

/// Rank 1 announces a pause, its hint is delivered unless the network loses it, and it freezes.
fn pause(world: &mut World, expected: Duration) -> FrozenPort {
    let now = world.now;
    assert!(world.port(1).announce_pause(now, expected) > 0, "there is somebody to tell");
    world.pump();
    let frozen = world.freeze(1);
    world.run(Duration::from_micros(100));
    world.log.clear();
    frozen
}

fn thawed_and_complete(world: &mut World, frozen: FrozenPort) {
    world.thaw(1, frozen);
    world.run(50 * MS);
    let tags: Vec<u64> = world.received(1).iter().map(|(_, tag, _)| *tag).collect();
    assert_eq!(tags, (0..20).collect::<Vec<u64>>(), "each message once, in order");
}

fn silences(world: &World) -> usize {
    world.nodes[0].events.iter().filter(|event| matches!(event, Event::PeerSilent { .. })).count()
}

#[test]
fn nothing_is_sent_to_a_peer_that_has_announced_a_pause() {
    let mut world = talking();
    let resent = world.port(0).counters().frames_resent;
    let frozen = pause(&mut world, 10 * MS);
    world.run(9 * MS);
    assert_eq!(world.transcript(), "", "neither new frames, nor old ones again, nor probes");
    assert_eq!(world.port(0).counters().frames_resent, resent);
    thawed_and_complete(&mut world, frozen);
}

#[test]
fn any_later_frame_ends_the_wait_long_before_the_stated_time() {
    let mut world = talking();
    let frozen = pause(&mut world, Duration::from_secs(5));
    world.run(2 * MS);
    world.thaw(1, frozen);
    world.run(20 * MS);
    assert_eq!(world.received(1).len(), 20);
    assert!(world.port(0).is_settled());
}

#[test]
fn after_the_stated_time_the_peer_asks_and_goes_on_asking() {
    let mut world = talking();
    let frozen = pause(&mut world, 10 * MS);
    world.run(10 * MS);
    world.log.clear();
    world.run(400 * MS);
    let asked = world.log.len();
    assert!((3..40).contains(&asked), "asked {asked} times in 400 ms, with growing pauses");
    thawed_and_complete(&mut world, frozen);
}

#[test]
fn a_pause_of_a_year_is_waited_for_no_longer_than_the_bound() {
    let mut world = talking();
    let frozen = pause(&mut world, Duration::from_secs(31_536_000));
    world.run(STOPPED_MAX - MS);
    assert_eq!(world.transcript(), "");
    world.run(2 * MS);
    assert!(world.transcript().contains("a>b"), "it asks");
    thawed_and_complete(&mut world, frozen);
}

#[test]
fn a_lost_hint_costs_probes_and_nothing_else() {
    let mut world = talking();
    world.fate = Box::new(
        |_, _, frame, _| if frame.header.kind == Kind::Stopped { Fate::Lose } else { Fate::Deliver },
    );
    let frozen = pause(&mut world, 10 * MS);
    world.run(9 * MS);
    assert!(world.transcript().contains("a>b"), "rank 0 knows nothing of a pause");
    thawed_and_complete(&mut world, frozen);
    assert_eq!(silences(&world), 0, "a pause of milliseconds is nothing to report");
}

#[test]
fn a_hint_that_comes_late_or_twice_is_not_believed() {
    let mut world = talking();
    world.fate = Box::new(|_, _, frame, _| match frame.header.kind {
        Kind::Stopped => Fate::Double,
        _ => Fate::Deliver,
    });
    let frozen = pause(&mut world, 10 * MS);
    let counters = world.port(0).counters();
    assert_eq!(counters.hints_stale + counters.dropped_replayed, 1, "the copy");
    world.thaw(1, frozen);
    // The hint of the second pause overtakes nothing: it arrives after that pause is over.
    world.fate = Box::new(|_, _, frame, _| match frame.header.kind {
        Kind::Stopped => Fate::Late(5 * MS),
        _ => Fate::Deliver,
    });
    let frozen = pause(&mut world, Duration::from_secs(5));
    thawed_and_complete(&mut world, frozen);
    assert!(world.port(0).is_settled(), "the late hint has stopped nothing");
}

#[test]
fn short_pauses_are_not_worth_a_hint() {
    let mut world = talking();
    let now = world.now;
    assert_eq!(world.port(1).announce_pause(now, MS / 2), 0);
}
