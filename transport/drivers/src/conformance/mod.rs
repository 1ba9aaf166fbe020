//! The tests that belong to the [`Driver`] trait. Every implementation runs all of them; a new one adds only a [`Fixture`]:
//!
//! ```
//! use drivers::{Driver, conformance::Fixture, mem::Hub};
//!
//! struct Memory(Hub);
//! impl Fixture for Memory {
//!     fn open(&mut self) -> Box<dyn Driver> {
//!         Box::new(self.0.open().expect("a port"))
//!     }
//! }
//! // In a test file, one #[test] per case; Err("no such device") is reported as skipped:
//! drivers::conformance_suite!(memory, Ok::<_, String>(Memory(Hub::new())));
//! # Memory(Hub::new()).open();
//! ```
//!
//! The cases permit everything that the trait permits (loss, repetition, reordering, completions that come
//! late).

mod flow;
mod frames;
mod life;
mod sleep;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use transport::AddressId;

use crate::driver::Driver;
use crate::payload::Payload;

/// A network on which rails can be opened.
pub trait Fixture {
    /// Opens one more rail, which reaches all others of this fixture. A panic fails the test.
    fn open(&mut self) -> Box<dyn Driver>;

    /// Lets a little time pass. A simulated network takes a step here.
    fn step(&mut self) {
        std::thread::sleep(Duration::from_micros(100));
    }

    /// Steps without news after which no more is expected.
    fn patience_steps(&self) -> usize {
        2000
    }

    /// Steps after which an event that must happen counts as missing: bounds a hang alone, and a busy machine
    /// may take long.
    fn hang_steps(&self) -> usize {
        100 * self.patience_steps()
    }

    /// Whether it loses frames without need.
    fn loses(&self) -> bool {
        false
    }

    /// Whether rails can be used from several threads in real time; otherwise the cases about sleeping are left out.
    fn has_real_time(&self) -> bool {
        true
    }
}

/// One test.
pub type Case = fn(&mut dyn Fixture);

/// All tests by name, for callers that do not use [`conformance_suite`](crate::conformance_suite).
pub const CASES: &[(&str, Case)] = &[
    ("every_size_arrives_whole", frames::every_size_arrives_whole),
    ("gathered_payload_follows_its_head", frames::gathered_payload_follows_its_head),
    ("bursts_arrive", frames::bursts_arrive),
    ("random_frames_arrive_unaltered", frames::random_frames_arrive_unaltered),
    ("a_rail_reaches_itself", frames::a_rail_reaches_itself),
    ("rails_do_not_mix", frames::rails_do_not_mix),
    ("receive_gives_no_more_than_asked", frames::receive_gives_no_more_than_asked),
    ("a_lease_is_stable_until_its_commit", flow::a_lease_is_stable_until_its_commit),
    ("a_full_ring_pushes_back", flow::a_full_ring_pushes_back),
    ("nothing_to_do_is_no_error", flow::nothing_to_do_is_no_error),
    ("completions_catch_up", flow::completions_catch_up),
    ("drain_gives_every_buffer_back", flow::drain_gives_every_buffer_back),
    ("every_loss_is_counted", flow::every_loss_is_counted),
    ("short_frames_keep_their_turn", flow::short_frames_keep_their_turn),
    ("resolving_is_idempotent", life::resolving_is_idempotent),
    ("foreign_addresses_are_refused", life::foreign_addresses_are_refused),
    ("unknown_addresses_lose_frames", life::unknown_addresses_lose_frames),
    ("a_dropped_receiver_is_only_silent", life::a_dropped_receiver_is_only_silent),
    ("dropping_a_driver_gives_payload_back", life::dropping_a_driver_gives_payload_back),
    ("waiting_ends_in_time", sleep::waiting_ends_in_time),
    ("a_frame_wakes_the_waiter", sleep::a_frame_wakes_the_waiter),
    ("the_descriptor_reports_of_frames", sleep::the_descriptor_reports_of_frames),
];

/// Runs one case by name on the fixture that `made` holds; prints the reason on the terminal if there is
/// none.
///
/// # Panics
/// If the case fails, or there is none of that name.
pub fn run<F: Fixture, S: core::fmt::Display>(suite: &str, name: &str, made: Result<F, S>) {
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("a case of the suite");
    match made {
        Ok(mut fixture) => {
            let started = Instant::now();
            case(&mut fixture);
            print_when_all_have_passed(suite, started.elapsed());
        }
        Err(reason) => {
            // Not by `println`: a test's captured output would make this a silent pass.
            let _ = writeln!(std::io::stderr(), "{suite}::{name} skipped: {reason}");
        }
    }
}

/// Prints after the last case of a suite how long all of them took together, on all threads.
fn print_when_all_have_passed(suite: &str, took: Duration) {
    static PASSED: Mutex<BTreeMap<String, (usize, Duration)>> = Mutex::new(BTreeMap::new());
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    let (cases, all) = passed.entry(suite.to_owned()).or_default();
    *cases += 1;
    *all += took;
    if *cases == CASES.len() {
        let _ = writeln!(std::io::stderr(), "{suite}: {:.1} s", all.as_secs_f32());
    }
}

/// Makes a module of tests, one per case. The expression gives `Ok(fixture)`, or `Err(reason)` to skip.
#[macro_export]
macro_rules! conformance_suite {
    ($suite:ident, $make:expr) => {
        $crate::conformance_suite!(@cases $suite, $make,
            every_size_arrives_whole gathered_payload_follows_its_head bursts_arrive
            random_frames_arrive_unaltered a_rail_reaches_itself rails_do_not_mix
            receive_gives_no_more_than_asked a_lease_is_stable_until_its_commit
            a_full_ring_pushes_back nothing_to_do_is_no_error completions_catch_up
            drain_gives_every_buffer_back every_loss_is_counted short_frames_keep_their_turn
            resolving_is_idempotent foreign_addresses_are_refused unknown_addresses_lose_frames
            a_dropped_receiver_is_only_silent dropping_a_driver_gives_payload_back
            waiting_ends_in_time a_frame_wakes_the_waiter the_descriptor_reports_of_frames);
    };
    (@cases $suite:ident, $make:expr, $($case:ident)*) => {
        mod $suite {
            use super::*;
            $(#[test] fn $case() { $crate::conformance::run(stringify!($suite), stringify!($case), $make); })*

            #[test]
            fn the_macro_lists_every_case() {
                let listed = [$(stringify!($case)),*];
                assert!(listed.into_iter().eq($crate::conformance::CASES.iter().map(|(name, _)| *name)));
            }
        }
    };
}

/// Two rails, and how the first knows the second.
fn pair(fixture: &mut dyn Fixture) -> (Box<dyn Driver>, Box<dyn Driver>, AddressId) {
    let (mut a, b) = (fixture.open(), fixture.open());
    let to = a.resolve(&b.local_address()).expect("an address of the same network");
    (a, b, to)
}

/// Leases, fills and commits one frame; makes room first if there is none.
fn stage(fixture: &mut dyn Fixture, driver: &mut dyn Driver, to: AddressId, head: &[u8], payload: Payload) {
    let mut steps = 0;
    while driver.lease().is_none() {
        driver.flush().expect("a live rail");
        fixture.step();
        steps += 1;
        assert!(steps < fixture.hang_steps(), "no buffer came back");
    }
    let buffer = driver.lease().expect("leased before");
    buffer[..head.len()].copy_from_slice(head);
    driver.commit(to, head.len(), payload);
}

/// Flushes until nothing is staged or with the NIC.
fn flush_all(fixture: &mut dyn Fixture, driver: &mut dyn Driver) {
    for _ in 0..fixture.hang_steps() {
        driver.flush().expect("a live rail");
        assert!(driver.completed_total() <= driver.staged_total(), "completed what was never staged");
        if driver.completed_total() == driver.staged_total() {
            return;
        }
        fixture.step();
    }
    panic!("{} frames never completed", driver.staged_total() - driver.completed_total());
}

/// Receives until `want` frames are there, or no more can be expected.
fn collect(fixture: &mut dyn Fixture, driver: &mut dyn Driver, want: usize) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut silent = 0;
    while frames.len() < want && silent < fixture.patience_steps() {
        let before = frames.len();
        let given = driver.receive(want - before, &mut |frame| frames.push(frame.to_vec()));
        assert_eq!(given.expect("a live rail"), frames.len() - before, "the count is what was given");
        if frames.len() == before {
            silent += 1;
            fixture.step();
        } else {
            silent = 0;
        }
    }
    frames
}

/// Sends one frame until it arrives: a frame may be lost, but not for ever.
fn deliver(
    fixture: &mut dyn Fixture,
    from: &mut dyn Driver,
    to: AddressId,
    at: &mut dyn Driver,
    head: &[u8],
    payload: &dyn Fn() -> Payload,
) {
    let whole = [head, payload().as_slice()].concat();
    for sent_before in 0..10 {
        stage(fixture, from, to, head, payload());
        flush_all(fixture, from);
        let mut frames = collect(fixture, at, 1);
        if !frames.is_empty() {
            // A frame that counted as lost may have been late: it must not arrive among the frames of the
            // next one.
            frames.extend(collect(fixture, at, sent_before));
        }
        assert!(frames.iter().all(|frame| *frame == whole), "a frame of {} bytes was altered", whole.len());
        if !frames.is_empty() {
            return;
        }
    }
    panic!("a frame of {} bytes was lost ten times", whole.len());
}

/// Bytes that depend on `seed` in every place.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// FNV-1a over words, good enough to distinguish frames.
fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}
