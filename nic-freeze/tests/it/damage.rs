//! Sections that have been cut, flipped, and tampered with: refused with the place named, or a port that works.

#[expect(unreachable_pub, reason = "the file is also a fuzz target")]
#[path = "../../../fuzz/src/dump.rs"]
mod property;

use crate::common::MS;
use crate::common::world::{Fate, World, pattern};
use nic_freeze::{LoadError, Mismatch, SECTION_VERSION, compare, dump, load};
use proptest::prelude::*;
use transport::port::{StateError, StatePart};
use transport::{JobId, LinkIndex};

/// Two ports in the middle of everything.
fn busy() -> World {
    let mut config = property::dump_config();
    config.flight_bytes_max = 1500;
    config.link_window_bytes = 4000;
    config.eager_bytes_max = 1200;
    let mut world = World::new(2, &config, 400);
    world.receive(1, None, Some(3), 5000);
    world.receive(1, Some(0), Some(9), 100);
    world.receive(0, Some(1), None, 3000);
    for tag in 0..8 {
        world.send(0, 1, tag, &pattern(tag, 90 * usize::try_from(tag).expect("a few")));
    }
    world.send_user(1, 0, 1, pattern(1, 2900));
    world.send_user(0, 1, 30, pattern(1, 900));
    let mut frames = 0;
    world.fate = Box::new(move |_, _, _, _| {
        frames += 1;
        if frames > 14 { Fate::Lose } else { Fate::Deliver }
    });
    world.run(MS / 4);
    for tag in 10..14 {
        world.send(0, 1, tag, &pattern(tag, 1000));
    }
    world.pump();
    world.send(0, 1, 14, &pattern(14, 400));
    world
}

fn sections() -> [Vec<u8>; 2] {
    let mut world = busy();
    [0, 1].map(|node| {
        let frozen = world.freeze(node);
        let mut bytes = Vec::new();
        dump(&frozen, &mut bytes);
        bytes
    })
}

#[test]
fn the_busy_ports_hold_something_of_everything() {
    let mut sent = 0;
    for bytes in sections() {
        property::dump(&bytes);
        let report = nic_freeze::describe(SECTION_VERSION, &bytes).expect("it is whole");
        sent += report.frames.sent_unacknowledged;
        assert!(report.frames.sent_unacknowledged > 0 && !report.sends.is_empty(), "{report:#?}");
        assert!(serde_json::to_string(&report).expect("a report is plain data").contains("oldest_held"));
    }
    assert!(sent > 10);
}

#[test]
fn every_truncation_and_every_tail_is_refused() {
    for bytes in sections() {
        for length in 0..bytes.len() {
            let refused = load(SECTION_VERSION, &bytes[..length], property::dump_config(), None);
            assert!(
                matches!(refused, Err(LoadError::Short { .. } | LoadError::Length { .. })),
                "{length} of {} bytes: {refused:?}",
                bytes.len()
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        let refused = load(SECTION_VERSION, &longer, property::dump_config(), None);
        assert!(matches!(refused, Err(LoadError::Length { .. })), "{refused:?}");
    }
}

#[test]
fn another_version_or_job_or_too_small_a_configuration_is_refused_by_name() {
    let [bytes, _] = sections();
    let refused =
        load(SECTION_VERSION + 1, &bytes, property::dump_config(), None).expect_err("a later version");
    assert_eq!(refused, LoadError::Version { found: 2, expected: 1 });
    assert!(refused.to_string().contains("version 2, this build reads 1"));
    let mut config = property::dump_config();
    config.job = JobId(99).tag();
    let refused = load(SECTION_VERSION, &bytes, config, None).expect_err("another job");
    assert!(matches!(refused, LoadError::State(StateError::Job { .. })), "{refused}");
    let mut config = property::dump_config();
    config.link_copied_bytes_max = 100;
    let refused = load(SECTION_VERSION, &bytes, config, None).expect_err("a smaller ring");
    let LoadError::State(StateError::Value { place, field, .. }) = refused else { panic!("{refused}") };
    assert_eq!((place, field), (StatePart::Link(LinkIndex(0)), "copied bytes"));
}

#[test]
fn counts_that_promise_more_than_there_is_allocate_nothing() {
    let [bytes, _] = sections();
    // The counts of the header: links to payloads.
    for at in (36..64).step_by(4) {
        let mut damaged = bytes.clone();
        damaged[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let refused =
            load(SECTION_VERSION, &damaged, property::dump_config(), None).expect_err("far too many");
        assert!(matches!(refused, LoadError::Short { .. }), "{at}: {refused}");
    }
}

#[test]
fn every_flipped_bit_gives_an_error_or_a_port_that_works() {
    for bytes in sections() {
        let mut damaged = bytes.clone();
        let mut refused = 0;
        for bit in 0..bytes.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            property::dump(&damaged);
            refused += u32::from(load(SECTION_VERSION, &damaged, property::dump_config(), None).is_err());
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(refused > 2000, "{refused} of {} flips were noticed", bytes.len() * 8);
    }
}

#[test]
fn a_section_that_differs_from_memory_is_refused_with_the_place() {
    let mut world = busy();
    let frozen = world.freeze(0);
    let mut bytes = Vec::new();
    dump(&frozen, &mut bytes);
    assert_eq!(compare(SECTION_VERSION, &bytes, &frozen), Ok(()));
    let mut unnoticed = Vec::new();
    for at in 0..bytes.len() {
        bytes[at] ^= 0x10;
        if compare(SECTION_VERSION, &bytes, &frozen).is_ok() {
            unnoticed.push(at);
        }
        bytes[at] ^= 0x10;
    }
    // Fields that a record does not use, and nothing else.
    assert!(unnoticed.len() < bytes.len() / 4, "{} of {} bytes", unnoticed.len(), bytes.len());
    // `next` of the first link.
    bytes[96 + 8] ^= 1;
    let mismatch = compare(SECTION_VERSION, &bytes, &frozen).expect_err("they differ");
    let Mismatch::Number { place, field, image, memory } = mismatch else { panic!("{mismatch}") };
    assert_eq!((place, field, image), (StatePart::Link(LinkIndex(0)), "next", memory ^ 1));
    bytes[96 + 8] ^= 1;
    // The last byte: copied payload or an entry of a list, by index.
    let mut again = world;
    again.thaw(0, frozen);
    let link = again.link(0, 1);
    again.port(0).close_link(link);
    let frozen = again.freeze(0);
    let mismatch = compare(SECTION_VERSION, &bytes, &frozen).expect_err("the link is closing");
    assert!(mismatch.to_string().contains("link 0: closing is 1 in memory and 0 in the image"), "{mismatch}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 4000 }))]

    /// Damage that keeps more in step than a flipped bit: numbers moved a little, the same in several places.
    #[test]
    fn numbers_moved_a_little(
        node in 0usize..2,
        delta in prop_oneof![-3i64..=3, Just(-90i64), Just(90i64), Just(i64::MIN), Just(304i64)],
        places in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let sections = sections();
        let mut damaged = sections[node].clone();
        for place in places {
            let at = place.index(damaged.len() / 8 - 1) * 8;
            let mut number = [0; 8];
            number.copy_from_slice(&damaged[at..at + 8]);
            let number = u64::from_le_bytes(number).wrapping_add_signed(delta);
            damaged[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        property::dump(&damaged);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        property::dump(&bytes);
        let mut sized = bytes;
        if sized.len() >= 8 {
            let length = (sized.len() as u64).to_le_bytes();
            sized[..8].copy_from_slice(&length);
            property::dump(&sized);
        }
    }
}
