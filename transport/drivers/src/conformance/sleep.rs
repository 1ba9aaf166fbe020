//! Waiting without spinning.

use std::time::{Duration, Instant};

use super::{Fixture, flush_all, pair, stage};
use crate::driver::{Armed, Driver, Wake};
use crate::payload::Payload;
use crate::sleep::wait_readable;

/// Long against anything a busy machine does between two steps.
const LONG: Duration = Duration::from_secs(20);

pub(super) fn waiting_ends_in_time(fixture: &mut dyn Fixture) {
    if !fixture.has_real_time() {
        return;
    }
    let mut rail = fixture.open();
    assert_eq!(rail.wait(Duration::ZERO), Ok(Wake::Timeout));
    let start = Instant::now();
    let wake = rail.wait(Duration::from_millis(20)).expect("a live rail");
    assert!(wake != Wake::Frame, "nobody sent");
    assert!(wake == Wake::Interrupted || start.elapsed() >= Duration::from_millis(20), "it returned early");
    assert!(start.elapsed() < LONG);
}

/// Waits and receives until one frame is there.
fn wait_for_frame(rail: &mut dyn Driver) -> Vec<u8> {
    let start = Instant::now();
    let mut came = None;
    while came.is_none() {
        assert!(start.elapsed() < LONG, "nothing came");
        assert_ne!(rail.wait(LONG), Ok(Wake::Timeout), "the frame woke nobody");
        rail.receive(1, &mut |frame| came = Some(frame.to_vec())).expect("a live rail");
    }
    came.unwrap_or_default()
}

pub(super) fn a_frame_wakes_the_waiter(fixture: &mut dyn Fixture) {
    if !fixture.has_real_time() {
        return;
    }
    let (mut a, mut b, to) = pair(fixture);
    for round in 0..3u8 {
        let waiter = std::thread::spawn(move || {
            let frame = wait_for_frame(b.as_mut());
            (b, frame)
        });
        // Long enough that the waiter sleeps; if it does not yet, the case holds all the same.
        std::thread::sleep(Duration::from_millis(10));
        // Loss is permitted: another one follows.
        while !waiter.is_finished() {
            stage(fixture, a.as_mut(), to, &[round], Payload::EMPTY);
            flush_all(fixture, a.as_mut());
            std::thread::sleep(Duration::from_millis(200));
        }
        let frame;
        (b, frame) = waiter.join().expect("the waiter");
        assert_eq!(frame, [round]);
        // The repeats are not for the next round.
        while b.receive(64, &mut |_| ()).expect("a live rail") > 0 {}
    }
    // Frames that the driver has already taken from the NIC must not be slept over. Bursts, because it may take one at a time
    // otherwise.
    for _ in 0..10 {
        let frames = a.caps().burst.min(32);
        for i in 0..frames {
            stage(fixture, a.as_mut(), to, &[i.to_le_bytes()[0]; 100], Payload::EMPTY);
        }
        flush_all(fixture, a.as_mut());
        let mut came = 0;
        while came < frames {
            let timed_out = b.wait(Duration::from_millis(200)) == Ok(Wake::Timeout);
            let given = b.receive(1, &mut |_| ()).expect("a live rail");
            assert!(!timed_out || given == 0, "slept over a frame");
            if timed_out {
                break;
            }
            came += given;
        }
    }
}

pub(super) fn the_descriptor_reports_of_frames(fixture: &mut dyn Fixture) {
    if !fixture.has_real_time() {
        return;
    }
    let (mut a, mut b, to) = pair(fixture);
    if b.fd().is_none() {
        return;
    }
    assert_eq!(b.arm(), Ok(Armed::Sleep));
    let quiet = wait_readable(b.fd().expect("has one"), Duration::from_millis(5));
    assert_eq!(quiet, Ok(Wake::Timeout), "readable without a frame");
    for attempt in 0.. {
        assert!(attempt < 10, "ten frames made nothing readable");
        stage(fixture, a.as_mut(), to, b"wake", Payload::EMPTY);
        flush_all(fixture, a.as_mut());
        if wait_readable(b.fd().expect("has one"), LONG / 10) == Ok(Wake::Frame) {
            break;
        }
    }
    let mut frames = 0;
    while b.receive(64, &mut |_| frames += 1).expect("a live rail") > 0 {}
    assert!(frames > 0, "readable, but nothing came");
    assert_eq!(b.arm(), Ok(Armed::Sleep));
    let quiet = wait_readable(b.fd().expect("has one"), Duration::from_millis(5));
    assert_eq!(quiet, Ok(Wake::Timeout), "readable although everything was received");
}
