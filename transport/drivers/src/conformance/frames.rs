//! Frames arrive as they were sent.

use std::collections::BTreeSet;
use std::sync::Arc;

use transport::AddressId;

use super::{Fixture, collect, deliver, digest, flush_all, pair, pattern, stage};
use crate::driver::Driver;
use crate::payload::Payload;

/// Sizes at which behaviour may change: powers of two, and both sides of them, up to the path's limit.
fn sizes(frame_bytes_max: usize) -> BTreeSet<usize> {
    let powers = (0..20).map(|power| 1usize << power);
    let around = powers.flat_map(|power| [power.saturating_sub(1), power, power + 1]);
    around
        .chain([frame_bytes_max - 1, frame_bytes_max])
        .filter(|n| (1..=frame_bytes_max).contains(n))
        .collect()
}

pub(super) fn every_size_arrives_whole(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let frame_bytes_max = a.path(to).expect("resolved").frame_bytes_max;
    assert!(frame_bytes_max <= a.caps().frame_bytes_max, "a path beyond the driver's own limit");
    for bytes in sizes(frame_bytes_max) {
        let frame = pattern(bytes as u64, bytes);
        deliver(fixture, a.as_mut(), to, b.as_mut(), &frame, &|| Payload::EMPTY);
    }
}

pub(super) fn gathered_payload_follows_its_head(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let frame_bytes_max = a.path(to).expect("resolved").frame_bytes_max;
    let user = Arc::new(pattern(3, frame_bytes_max + 64));
    for bytes in sizes(frame_bytes_max) {
        for head_bytes in [0, 1, 80, bytes / 2].into_iter().filter(|head_bytes| *head_bytes < bytes) {
            // An odd start, so that the payload is not aligned.
            let range = 7..7 + bytes - head_bytes;
            let head = pattern(bytes as u64, head_bytes);
            let payload = || Payload::shared(&user, range.clone()).expect("in range");
            deliver(fixture, a.as_mut(), to, b.as_mut(), &head, &payload);
        }
    }
    assert_eq!(Arc::strong_count(&user), 1, "completed frames still refer to their payload");
}

pub(super) fn bursts_arrive(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let burst = a.caps().burst;
    let longest = a.path(to).expect("resolved").frame_bytes_max - 16;
    // Small ones, and ones of which only a few go into one call of any kind.
    for bytes in [800, 8000, 40_000].into_iter().filter(|bytes| *bytes <= longest) {
        for frames in [burst, 1, burst, 2, burst / 2, burst] {
            // No more than any receive queue holds.
            one_burst(fixture, a.as_mut(), to, b.as_mut(), frames.min((1 << 20) / bytes), bytes);
        }
    }
    assert_eq!(a.poll_notice(), None, "nothing was too long");
}

/// Runs of frames of `bytes` bytes, broken now and then by a shorter one.
fn one_burst(
    fixture: &mut dyn Fixture,
    a: &mut dyn Driver,
    to: AddressId,
    b: &mut dyn Driver,
    frames: usize,
    bytes: usize,
) {
    let user = Arc::new(pattern(5, bytes));
    let mut sent = Vec::new();
    for i in 0..frames {
        let head = i.to_le_bytes();
        let bytes = if i % 9 == 8 { bytes - 7 * i } else { bytes };
        sent.push([head.as_slice(), &user[..bytes]].concat());
        stage(fixture, a, to, &head, Payload::shared(&user, 0..bytes).expect("in range"));
    }
    flush_all(fixture, a);
    let came = collect(fixture, b, frames);
    assert!(came.len() * 2 >= frames, "most of a burst of {frames} was lost: {} came", came.len());
    let places: Vec<usize> = came
        .iter()
        .map(|frame| sent.iter().position(|sent| sent == frame).expect("a frame nobody sent"))
        .collect();
    assert!(!a.caps().ordered || places.is_sorted(), "out of order: {places:?}");
}

/// Frames in the random run, and how many may be on their way: about a socket buffer of small ones.
const RANDOM_FRAMES: u64 = 100_000;
const RANDOM_WINDOW: usize = 64;

pub(super) fn random_frames_arrive_unaltered(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let frame_bytes_max = a.path(to).expect("resolved").frame_bytes_max;
    let user = Arc::new(pattern(11, frame_bytes_max));
    let mut seen = BTreeSet::new();
    let mut next = 0u64;
    while next < RANDOM_FRAMES {
        let frames = RANDOM_WINDOW.min(usize::try_from(RANDOM_FRAMES - next).unwrap_or(RANDOM_WINDOW));
        for number in next..next + frames as u64 {
            let (head, range) = random_frame(number, &user, frame_bytes_max);
            stage(fixture, a.as_mut(), to, &head, Payload::shared(&user, range).expect("in range"));
        }
        flush_all(fixture, a.as_mut());
        let came = collect(fixture, b.as_mut(), frames);
        for frame in &came {
            seen.insert(checked_number(frame, next + frames as u64));
        }
        next += frames as u64;
    }
    let lost = RANDOM_FRAMES - seen.len() as u64;
    assert!(lost * 100 <= RANDOM_FRAMES, "{lost} of {RANDOM_FRAMES} frames were lost without need");
}

/// Number and digest of the payload, then some of the user's bytes; mostly short, sometimes up to the longest.
fn random_frame(number: u64, user: &[u8], frame_bytes_max: usize) -> (Vec<u8>, core::ops::Range<usize>) {
    let dice = digest(&number.to_le_bytes());
    let room = frame_bytes_max - 16;
    let bound = if dice.is_multiple_of(64) { room } else { room.min(1500) };
    let bytes = usize::try_from(dice >> 32).unwrap_or(0) % (bound + 1);
    let start = usize::try_from(dice >> 8 & 0xffff).unwrap_or(0) % (user.len() - bytes + 1);
    let range = start..start + bytes;
    let check = digest(&user[range.clone()]) ^ dice;
    ([number.to_le_bytes(), check.to_le_bytes()].concat(), range)
}

fn checked_number(frame: &[u8], sent: u64) -> u64 {
    let (number, rest) = frame.split_first_chunk::<8>().expect("a frame shorter than any sent");
    let (check, payload) = rest.split_first_chunk::<8>().expect("a frame shorter than any sent");
    let number = u64::from_le_bytes(*number);
    assert!(number < sent, "frame {number} came before it was sent");
    let dice = digest(&number.to_le_bytes());
    assert_eq!(digest(payload) ^ dice, u64::from_le_bytes(*check), "frame {number} was altered");
    number
}

pub(super) fn a_rail_reaches_itself(fixture: &mut dyn Fixture) {
    let mut rail = fixture.open();
    let own = rail.resolve(&rail.local_address()).expect("the own address");
    for number in 0..20u64 {
        let frame = pattern(number, 100);
        let mut came = Vec::new();
        for _ in 0..10 {
            stage(fixture, rail.as_mut(), own, &frame, Payload::EMPTY);
            flush_all(fixture, rail.as_mut());
            came = collect(fixture, rail.as_mut(), 1);
            if !came.is_empty() {
                break;
            }
        }
        assert_eq!(came, [frame], "frame {number} to ourselves");
    }
}

pub(super) fn rails_do_not_mix(fixture: &mut dyn Fixture) {
    let mut rails: Vec<_> = (0..4).map(|_| fixture.open()).collect();
    let addresses: Vec<_> = rails.iter().map(|rail| rail.local_address()).collect();
    let everybody: Vec<Vec<_>> = rails
        .iter_mut()
        .map(|rail| addresses.iter().map(|address| rail.resolve(address).expect("reachable")).collect())
        .collect();
    let mut came = 0;
    for round in 0..50u8 {
        for (from, rail) in rails.iter_mut().enumerate() {
            for (to, id) in everybody[from].iter().enumerate() {
                let head = [round, from.to_le_bytes()[0], to.to_le_bytes()[0]];
                stage(fixture, rail.as_mut(), *id, &head, Payload::EMPTY);
            }
        }
        for rail in &mut rails {
            flush_all(fixture, rail.as_mut());
        }
        for (at, rail) in rails.iter_mut().enumerate() {
            let frames = collect(fixture, rail.as_mut(), 4);
            came += frames.len();
            for frame in frames {
                assert_eq!(
                    usize::from(frame[2]),
                    at,
                    "rail {at} received what rail {} should have",
                    frame[2]
                );
                assert!(frame[0] <= round, "a frame came before it was sent");
            }
        }
    }
    assert!(came >= 50 * 4 * 4 / 2, "only {came} of 800 frames came");
}

pub(super) fn receive_gives_no_more_than_asked(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let frames = a.caps().burst.min(20);
    for i in 0..frames {
        stage(fixture, a.as_mut(), to, &[i.to_le_bytes()[0]; 100], Payload::EMPTY);
    }
    flush_all(fixture, a.as_mut());
    let (mut came, mut silent) = (0, 0);
    // Not all of them are lost: the first one may take long where the machine is busy.
    while came < frames && silent < if came == 0 { fixture.hang_steps() } else { fixture.patience_steps() } {
        let ask = 1 + came % 3;
        let mut given = 0;
        let result = b.receive(ask, &mut |frame| {
            assert!(frame.len() == 100 && frame.iter().all(|byte| *byte == frame[0]), "a mixed frame");
            given += 1;
        });
        assert_eq!(result, Ok(given));
        assert!(given <= ask, "asked for {ask} frames, got {given}");
        came += given;
        silent = if given == 0 { silent + 1 } else { 0 };
        if given == 0 {
            fixture.step();
        }
    }
    assert!(came * 2 >= frames, "only {came} of {frames} came");
}
