//! Two processes cut at every pair of instants of a conversation, while it goes on, then killed and started from the
//! two images: for all instants, each message is received once (R2, R3, R4, R5, R6, R10).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::world::{Fate, World, config, pattern};
use crate::common::{Image, MS, cut, received_once, restart};
use transport::{Epoch, Event, Life, PortConfig};

/// Tags, senders and payloads of the conversation.
fn messages() -> Vec<(u64, usize, Vec<u8>, bool)> {
    vec![
        (1, 0, pattern(1, 40), false),
        (2, 0, pattern(2, 3000), false),
        (3, 0, pattern(3, 5000), true),
        (4, 1, pattern(4, 900), true),
        (5, 1, pattern(5, 10), false),
        (6, 0, Vec::new(), false),
        (7, 0, pattern(7, 100), true),
    ]
}

fn frames() -> PortConfig {
    let mut config = config();
    config.flight_bytes_max = 1200;
    config
}

const FRAME_BYTES: usize = 900;

/// Half of the receives are posted from the start; the others by a program that was not far enough at the cut.
fn opened(late: bool) -> World {
    let mut world = World::new(2, &frames(), FRAME_BYTES);
    // Every frame arrives at an instant of its own, some overtake others, a few never arrive.
    world.fate = Box::new(|_, _, _, number| match number % 13 {
        5 => Fate::Lose,
        8 => Fate::Double,
        odd => Fate::Late(Duration::from_nanos(number * 7 % 11 * 700 + odd)),
    });
    for (tag, from, _, _) in messages() {
        if !late || tag % 2 == 0 {
            world.receive(1 - from, Some(from), Some(tag), 1 << 16);
        }
    }
    for (tag, from, bytes, user) in messages() {
        if user {
            world.send_user(from, 1 - from, tag, bytes);
        } else {
            world.send(from, 1 - from, tag, &bytes);
        }
    }
    world
}

/// Steps of the undisturbed conversation.
fn steps(late: bool) -> usize {
    let mut world = opened(late);
    let until = world.now + MS;
    let mut steps = 0;
    while world.step(until) {
        steps += 1;
    }
    steps
}

/// Node `first` is cut after `early` steps, the other after `between` more; frames of the higher epoch reach it meanwhile.
fn cuts(late: bool, first: usize, early: usize, between: usize) -> [Image; 2] {
    let mut world = opened(late);
    let until = world.now + MS;
    for _ in 0..early {
        world.step(until);
    }
    let one = cut(&mut world, first, Epoch(1));
    for _ in 0..between {
        world.step(until);
    }
    let other = cut(&mut world, 1 - first, Epoch(1));
    // It goes on after that, and nothing of it may matter.
    world.run(MS / 10);
    if first == 0 { [one, other] } else { [other, one] }
}

fn finish(images: &[Image; 2], late: bool, life: Life) -> World {
    let mut world = restart(images, &frames(), FRAME_BYTES, life);
    world.run(MS);
    if late {
        for (tag, from, _, _) in messages() {
            if tag % 2 == 1 {
                world.receive(1 - from, Some(from), Some(tag), 1 << 16);
            }
        }
    }
    world.run(200 * MS);
    world
}

fn judge(world: &mut World, what: &str) {
    for (tag, from, bytes, _) in messages() {
        received_once(world, 1 - from, tag, &bytes);
        let done =
            |event: &&Event| matches!(event, Event::SendDone { context, .. } if *context == tag + 1000);
        assert_eq!(world.nodes[from].events.iter().filter(done).count(), 1, "{what}: send {tag}");
    }
    for node in 0..2 {
        let inconsistent = |event: &Event| matches!(event, Event::Inconsistent { .. });
        assert!(!world.nodes[node].events.iter().any(inconsistent), "{what}");
        assert!(world.port(node).is_settled(), "{what}");
        let frozen = world.freeze(node);
        assert_eq!(frozen.posted_len() + frozen.waiting_len() + frozen.sends().len(), 0, "{what}");
    }
}

#[test]
fn every_pair_of_instants() {
    let (mut met, mut pairs) = (BTreeMap::new(), 0);
    for late in [false, true] {
        let steps = steps(late);
        assert!(steps > 30, "{steps}");
        for first in 0..2 {
            for early in 0..=steps {
                for between in (0..=steps).step_by(3) {
                    let images = cuts(late, first, early, between);
                    let what =
                        format!("late {late}, node {first} after {early} steps, the other {between} later");
                    let mut world = finish(&images, late, Life { counter: 2, nonce: pairs });
                    judge(&mut world, &what);
                    pairs += 1;
                    for image in &images {
                        for (state, count) in [
                            (1, image.census.to_be_sent),
                            (2, image.census.sent_unacknowledged),
                            (3, image.census.acknowledged),
                            (4, image.census.received_unacknowledged),
                            (5, image.census.delivered_waiting),
                        ] {
                            *met.entry(state).or_insert(0) += u64::from(count > 0);
                        }
                    }
                }
            }
        }
    }
    println!("{pairs} pairs of cuts; images with messages in each state: {met:?}");
    assert!(met.len() == 5 && met.values().all(|count| *count > 50), "{met:?}");
}

#[test]
fn the_same_images_start_as_often_as_they_are_needed() {
    let images = cuts(false, 0, 6, 4);
    for counter in 2..6 {
        let mut world = finish(&images, false, Life { counter, nonce: 1 });
        judge(&mut world, &format!("life {counter}"));
    }
}

#[test]
fn a_second_cut_and_crash_in_the_middle_of_the_recovery() {
    // The new life is cut in every one of its first steps, also in the middle of the resync, and dies too.
    for early in [0, 3, 7, 12] {
        let images = cuts(true, 0, early, 5);
        for again in 0..25 {
            let mut world = restart(&images, &frames(), FRAME_BYTES, Life { counter: 2, nonce: 1 });
            let until = world.now + MS;
            for _ in 0..again {
                world.step(until);
            }
            let one = cut(&mut world, 1, Epoch(2));
            for _ in 0..3 {
                world.step(until);
            }
            let second = [cut(&mut world, 0, Epoch(2)), one];
            let mut world = finish(&second, true, Life { counter: 3, nonce: 1 });
            judge(&mut world, &format!("{early} steps, then {again} of the second life"));
        }
    }
}
