//! R7 and R13: only an equal life counts, and the life in a header is its sender's.

use std::time::Duration;

use crate::world::{LIFE, World, config};
use transport::{Event, Life};

const MS: Duration = Duration::from_millis(1);
const NEXT: Life = Life { counter: 2, nonce: 78 };

#[test]
fn ends_of_a_link_in_different_lives_have_no_effect_on_each_other() {
    let mut world = World::new(2, &config(), 1500);
    world.receive(1, Some(0), Some(1), 10);
    world.send(0, 1, 1, b"before");
    world.run(10 * MS);
    world.nodes[1].events.clear();
    world.receive(1, Some(0), Some(2), 10);
    world.send(0, 1, 2, b"across");
    let frozen = world.freeze(0);
    world.restart(0, frozen, NEXT, 1500);
    world.run(10 * MS);
    assert_eq!((world.port(0).life(), world.port(1).life()), (NEXT, LIFE));
    assert_eq!(world.received(1), [], "rank 1 is in the old life");
    assert!(world.port(1).counters().dropped_life > 0);
    let newer = |event: &Event| matches!(event, Event::NewerLife { life } if *life == NEXT);
    assert!(world.nodes[1].events.iter().any(newer), "its keeper hears of the new life");

    let frozen = world.freeze(1);
    world.restart(1, frozen, NEXT, 1500);
    world.run(50 * MS);
    assert_eq!(world.received(1).len(), 1, "in the same life the message comes, once");
    assert!(world.port(0).is_settled());
}

#[test]
fn frames_of_a_life_that_is_over_are_dropped_and_do_not_call_a_keeper() {
    let mut world = World::new(2, &config(), 1500);
    world.send(0, 1, 1, b"before");
    world.run(10 * MS);
    let frozen = world.freeze(1);
    world.restart(1, frozen, NEXT, 1500);
    world.send(0, 1, 2, b"from the old life");
    world.run(10 * MS);
    assert!(world.port(1).counters().dropped_life > 0);
    assert!(!world.nodes[1].events.iter().any(|event| matches!(event, Event::NewerLife { .. })));
    assert_eq!(world.port(1).final_counters().map(|counters| counters.expected).collect::<Vec<_>>(), [1]);
}
