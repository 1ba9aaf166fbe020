//! Thousands of links that have fallen silent: they ask for nothing, and change nothing for the one that is used.
#![expect(clippy::cast_possible_truncation, reason = "test data")]

use std::time::Duration;

use crate::world::{World, config};
use transport::FrozenPort;
use transport::port::state::LinkState;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const IDLE: usize = 2000;
const ROUNDS: u64 = 20;

/// Node 0 talks to node 1 after it has heard `idle` others, long ago. Returns its frames meanwhile, by the
/// world's transcript.
fn conversation(idle: usize) -> (World, String) {
    let mut world = World::new(2 + idle, &config(), 1500);
    for peer in 1..2 + idle {
        world.receive(0, None, None, 100);
        world.send(peer, 0, 1, b"a first message");
        world.receive(peer, None, None, 100);
        world.send(0, peer, 2, b"and an answer");
    }
    world.run(10 * SECOND);
    assert_eq!(world.received(0).len(), 1 + idle, "contact was made");
    assert_eq!(world.port(0).links(), 1 + idle);
    // Both conversations begin at the same instant.
    world.now = transport::Instant::from_nanos(60_000_000_000);
    world.transcript();
    for i in 0..ROUNDS {
        world.receive(1, None, None, 100);
        world.send(0, 1, 10 + i, b"to the one that is used");
        world.receive(0, None, None, 100);
        world.send(1, 0, 10 + i, b"and back");
        world.run(MS);
    }
    world.run(SECOND);
    let transcript = world.transcript();
    (world, transcript)
}

#[test]
fn idle_links_want_no_timer_and_no_frame() {
    let (mut world, _) = conversation(IDLE);
    let port = world.port(0);
    assert_eq!(port.poll_timeout(), None, "a port whose links are idle may sleep for ever");
    assert!(!port.wants_to_transmit());
}

#[test]
fn the_used_link_behaves_as_if_it_were_alone() {
    let (_, alone) = conversation(0);
    let (_, among) = conversation(IDLE);
    assert!(alone.lines().count() >= 2 * ROUNDS as usize, "{alone}");
    assert_eq!(alone, among, "the same frames at the same instants");
}

#[test]
fn all_links_are_warmed_in_pieces() {
    let (mut world, _) = conversation(IDLE);
    let port = world.port(0);
    for at_a_time in [1, 128, IDLE, IDLE + 1, IDLE + 2] {
        let pieces = std::iter::successors(Some(0), |first| port.warm(*first, at_a_time));
        assert_eq!(pieces.count(), (IDLE + 1).div_ceil(at_a_time), "pieces of {at_a_time}");
    }
    assert_eq!(port.warm(usize::MAX, 1), None);
}

#[test]
fn nothing_is_queued_on_idle_links() {
    let (mut world, _) = conversation(IDLE);
    let frozen: FrozenPort = world.freeze(0);
    let held =
        |link: &LinkState| link.sent.len() + link.pending.len() + link.control.len() + link.copied.len();
    let state = frozen.state();
    assert_eq!(state.links.iter().map(held).sum::<usize>(), 0);
}
