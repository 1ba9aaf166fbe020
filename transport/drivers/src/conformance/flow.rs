//! Leases, back-pressure, completions, draining.

use core::task::Poll;
use std::sync::Arc;

use super::{Fixture, collect, deliver, flush_all, pair, pattern, stage};
use crate::driver::Driver;
use crate::payload::Payload;

pub(super) fn a_lease_is_stable_until_its_commit(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    stage(fixture, a.as_mut(), to, &[1; 60], Payload::EMPTY);
    let buffer = a.lease().expect("a free buffer");
    assert_eq!(buffer.len(), a.caps().frame_bytes_max, "a lease has room for the longest frame");
    a.lease().expect("leased before")[..50].fill(0xa5);
    // Neither other calls meanwhile nor asking again may change it.
    a.flush().expect("a live rail");
    a.receive(8, &mut |_| ()).expect("a live rail");
    a.flush().expect("a live rail");
    assert!(a.lease().expect("leased before")[..50].iter().all(|byte| *byte == 0xa5), "the lease has moved");
    a.commit(to, 50, Payload::EMPTY);
    flush_all(fixture, a.as_mut());
    let came = collect(fixture, b.as_mut(), 2);
    for frame in came {
        assert!(frame == [1; 60] || frame == [0xa5; 50], "an altered frame: {frame:?}");
    }
    deliver(fixture, a.as_mut(), to, b.as_mut(), &[7; 10], &|| Payload::EMPTY);
}

/// Commits without flushing until there is no buffer; returns how many frames it took.
fn fill(driver: &mut dyn Driver, to: transport::AddressId, owner: &Arc<Vec<u8>>) -> usize {
    let mut frames = 0;
    while let Some(buffer) = driver.lease() {
        buffer[..8].fill(9);
        driver.commit(to, 8, Payload::shared(owner, 0..100).expect("in range"));
        frames += 1;
        assert!(frames < 1 << 20, "the ring has no bound");
    }
    frames
}

pub(super) fn a_full_ring_pushes_back(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let owner = Arc::new(pattern(1, 100));
    for _ in 0..5 {
        let staged_before = a.staged_total();
        let frames = fill(a.as_mut(), to, &owner);
        assert!(frames >= a.caps().burst, "room for {frames} frames, {} promised", a.caps().burst);
        assert_eq!(a.staged_total() - staged_before, frames as u64);
        flush_all(fixture, a.as_mut());
        assert!(a.lease().is_some(), "no buffer although all are completed");
        let whole = [&[9; 8], owner.as_slice()].concat();
        assert!(collect(fixture, b.as_mut(), frames).iter().all(|frame| *frame == whole));
    }
}

pub(super) fn nothing_to_do_is_no_error(fixture: &mut dyn Fixture) {
    let mut rail = fixture.open();
    assert_eq!(rail.flush(), Ok(0));
    assert_eq!(rail.receive(0, &mut |_| panic!("asked for none")), Ok(0));
    assert_eq!(rail.receive(8, &mut |_| panic!("nobody sent")), Ok(0));
    assert_eq!((rail.staged_total(), rail.completed_total()), (0, 0));
    assert_eq!(rail.drain(), Ok(Poll::Ready(())));
    assert_eq!(rail.poll_notice(), None);
    for mapping in rail.device_mappings() {
        assert!(mapping.start < mapping.end, "an empty mapping");
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
        let page =
            usize::try_from(page.expect("every system has pages").expect("of some size")).expect("a size");
        let is_whole = mapping.start.is_multiple_of(page) && mapping.end.is_multiple_of(page);
        assert!(is_whole, "{mapping:x?} is no range of whole pages, and images are made of such");
    }
}

pub(super) fn completions_catch_up(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let mut completed = 0;
    for round in 0..200u64 {
        let owner = Arc::new(pattern(round, 3000));
        for part in 0..3 {
            let payload = Payload::shared(&owner, part * 1000..(part + 1) * 1000).expect("in range");
            stage(fixture, a.as_mut(), to, &round.to_le_bytes(), payload);
        }
        assert_eq!(a.staged_total(), (round + 1) * 3);
        let target = a.staged_total();
        for _ in 0..fixture.hang_steps() {
            a.flush().expect("a live rail");
            assert!(a.completed_total() >= completed, "completions went backwards");
            completed = a.completed_total();
            if completed >= target {
                break;
            }
            fixture.step();
        }
        assert_eq!(completed, target, "round {round}: frames never completed");
        assert_eq!(Arc::strong_count(&owner), 1, "completed, but the payload is still referred to");
        b.receive(64, &mut |_| ()).expect("a live rail");
    }
}

pub(super) fn drain_gives_every_buffer_back(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let owner = Arc::new(pattern(1, 2000));
    // Each frame that comes was flushed, in this round or, if it is late, in one before.
    let is_whole = |frame: &[u8], round: u64| {
        let parts = frame.split_first_chunk();
        parts.is_some_and(|(head, rest)| u64::from_le_bytes(*head) <= round && *rest == owner[..])
    };
    for round in 0..20u64 {
        let half = a.caps().burst / 2;
        for i in 0..half * 2 {
            if i == half {
                a.flush().expect("a live rail");
            }
            let payload = Payload::shared(&owner, 0..2000).expect("in range");
            stage(fixture, a.as_mut(), to, &round.to_le_bytes(), payload);
        }
        let mut steps = 0;
        while a.drain().expect("a live rail").is_pending() {
            fixture.step();
            steps += 1;
            assert!(steps < fixture.hang_steps(), "draining never ends");
        }
        assert_eq!(a.completed_total(), a.staged_total(), "drained, but frames are outstanding");
        assert_eq!(Arc::strong_count(&owner), 1, "drained, but payload is still referred to");
        assert_eq!(a.drain(), Ok(Poll::Ready(())), "a drained driver stays drained");
        let came = collect_quickly(fixture, b.as_mut());
        assert!(came.iter().all(|frame| is_whole(frame, round)), "round {round}: an altered frame");
    }
    // A late frame must not arrive among the frames of the next one.
    let staged = usize::try_from(a.staged_total()).expect("some hundreds");
    assert!(collect(fixture, b.as_mut(), staged).iter().all(|frame| is_whole(frame, 19)), "an altered frame");
    deliver(fixture, a.as_mut(), to, b.as_mut(), b"usable again", &|| Payload::EMPTY);
}

/// The frames that arrive within a few steps.
fn collect_quickly(fixture: &mut dyn Fixture, driver: &mut dyn Driver) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..10 {
        while driver.receive(64, &mut |frame| frames.push(frame.to_vec())).expect("a live rail") > 0 {}
        fixture.step();
    }
    frames
}

pub(super) fn every_loss_is_counted(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let frame_bytes_max = a.path(to).expect("resolved").frame_bytes_max;
    let long = Arc::new(pattern(1, frame_bytes_max));
    for i in 0..30u64 {
        match i % 3 {
            0 => stage(fixture, a.as_mut(), to, &i.to_le_bytes(), Payload::EMPTY),
            1 => {
                // One byte more than the path takes.
                let payload = Payload::shared(&long, 0..frame_bytes_max - 7).expect("in range");
                stage(fixture, a.as_mut(), to, &i.to_le_bytes(), payload);
            }
            _ => {
                let nobody = transport::AddressId(u32::MAX);
                stage(fixture, a.as_mut(), nobody, &i.to_le_bytes(), Payload::EMPTY);
            }
        }
    }
    a.commit(to, 8, Payload::EMPTY);
    flush_all(fixture, a.as_mut());
    let counters = *a.counters();
    assert_eq!(a.staged_total(), 30, "a commit without a lease stages nothing");
    assert_eq!((counters.lost_too_long, counters.lost_no_address, counters.lost_other), (10, 10, 1));
    assert_eq!(counters.frames_sent + counters.lost_on_send(), 31, "{counters:?}");
    assert_eq!(counters.bytes_sent, counters.frames_sent * 8);
    let came = collect(fixture, b.as_mut(), 10);
    assert!(came.iter().all(|frame| frame.len() == 8), "a refused frame was sent");
    assert_eq!(b.counters().frames_received, came.len() as u64);
    assert_eq!(b.counters().bytes_received, came.len() as u64 * 8);
}

/// One after the other, whichever way they go: a short frame that was refused has not been sent. Those before the first that takes the fast path may be overtaken: a
/// driver that has to find the peer first may have them go round about meanwhile.
pub(super) fn short_frames_keep_their_turn(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let (mut sent, mut direct, mut before) = (Vec::new(), 0, 0);
    let longest = a.path(to).expect("resolved").frame_bytes_max;
    assert!(!a.send_fast(to, &vec![0; longest + 1]), "the path takes no more than {longest} bytes");
    for i in 0..40u8 {
        let frame = vec![i; 40 + usize::from(i)];
        let staged = a.staged_total();
        if a.send_fast(to, &frame) {
            direct += 1;
            if direct == 1 {
                before = sent.len();
            }
            assert_eq!(a.staged_total(), staged + 1, "it is counted");
            flush_all(fixture, a.as_mut());
            assert_eq!(a.completed_total(), staged + 1, "and is done when the NIC says so");
        } else {
            assert_eq!(a.staged_total(), staged);
            stage(fixture, a.as_mut(), to, &frame, Payload::EMPTY);
            if i % 3 == 0 {
                assert!(!a.send_fast(to, &frame), "a frame is staged before it");
                stage(fixture, a.as_mut(), to, &[i; 20], Payload::EMPTY);
                flush_all(fixture, a.as_mut());
                sent.push(frame);
                sent.push(vec![i; 20]);
                continue;
            }
            flush_all(fixture, a.as_mut());
        }
        sent.push(frame);
    }
    let came = collect(fixture, b.as_mut(), sent.len());
    if direct > 0 {
        let (early, in_turn): (Vec<_>, Vec<_>) =
            came.into_iter().partition(|frame| sent[..before].contains(frame));
        let mut rest = sent[before..].iter();
        let strange = in_turn.iter().find(|frame| !rest.any(|expected| expected == *frame));
        assert_eq!(strange, None, "out of its turn, doubled or altered; {direct} took the fast path");
        let is_doubled = |(i, frame): (usize, &Vec<u8>)| early[..i].contains(frame);
        assert!(!early.iter().enumerate().any(is_doubled), "an early frame came twice");
        let found = (early.len(), in_turn.len());
        if fixture.loses() {
            assert!(found.0 + found.1 > sent.len() / 2, "{found:?} of {} came", sent.len());
        } else {
            assert_eq!(
                found,
                (before, sent.len() - before),
                "before the first on the fast path, and from it on"
            );
        }
    } else {
        assert!(came.iter().all(|frame| sent.contains(frame)), "a frame that was never sent, or was altered");
    }
}
