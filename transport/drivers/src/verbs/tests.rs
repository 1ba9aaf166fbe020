//! Device behaviour that no device here shows by itself.

mod events;
mod failures;
mod infiniband;
mod layouts;

use core::task::Poll;

use transport::AddressId;

use super::fake::{Fake, LIBRARY};
use super::{VerbsConfig, VerbsDriver};
use crate::driver::Driver as _;
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{ADDRESSES_MAX, VERBS_RESTARTS_MAX};
use crate::payload::Payload;

/// A status other than success (IBV_WC_RETRY_EXC_ERR).
const FAILED: u32 = 12;
/// Too long to go inside its request.
const LONG_BYTES: usize = 1000;

fn open() -> VerbsDriver {
    VerbsDriver::open_by(&LIBRARY, &VerbsConfig::new("fake0")).expect("the fake device")
}

fn commit(rail: &mut VerbsDriver, to: AddressId, count: usize) {
    for _ in 0..count {
        rail.lease().expect("few are used")[..8].fill(1);
        rail.commit(to, LONG_BYTES, Payload::EMPTY);
    }
}

/// Frames that have come to this rail since it was opened.
fn came(rail: &mut VerbsDriver) -> u64 {
    while rail.receive(64, &mut |frame| assert_eq!(frame.len(), LONG_BYTES)).expect("a live rail") > 0 {}
    rail.counters().frames_received
}

/// Each committed frame is sent, staged, or in one counter of losses.
fn all_are_counted(rail: &VerbsDriver) {
    let counters = rail.counters();
    let staged = rail.staged.len() as u64;
    assert_eq!(rail.staged_total(), counters.frames_sent + staged + counters.lost_on_send(), "{counters:?}");
}

#[test]
fn a_chain_that_is_taken_in_part_holds_up_no_drain() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 5);
    fake.with(|state| state.takes = Some(2));
    assert_eq!(a.flush(), Ok(2));
    // Two are with the device, which will report none; three are staged, and discarded.
    assert_eq!(a.drain(), Ok(Poll::Ready(())));
    assert_eq!((a.completed_total(), a.staged_total()), (5, 5));
    let counters = a.counters();
    assert_eq!((counters.lost_drained, counters.lost_reset, counters.resets), (3, 2, 1));
    all_are_counted(&a);
    // It continues, and the next chain is reported.
    commit(&mut a, to, 5);
    assert_eq!(a.flush(), Ok(5));
    assert_eq!(a.drain(), Ok(Poll::Ready(())));
    assert_eq!(a.counters().resets, 1);
    assert_eq!(came(&mut b), 2 + 5);
    all_are_counted(&a);
}

#[test]
fn what_follows_a_chain_that_was_taken_in_part_reports_of_it() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 5);
    fake.with(|state| state.takes = Some(2));
    assert_eq!(a.flush(), Ok(2));
    assert_eq!(a.flush(), Ok(3));
    assert_eq!(a.completed_total(), 5);
    assert_eq!((a.counters().resets, came(&mut b)), (0, 5));
}

#[test]
fn a_queue_full_of_requests_that_nothing_reports_of_is_begun_anew() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 5);
    fake.with(|state| state.takes = Some(2));
    assert_eq!(a.flush(), Ok(2));
    fake.with(|state| state.takes = Some(0));
    assert_eq!(a.flush(), Ok(3), "the rest, after a reset");
    assert_eq!((a.counters().resets, a.counters().lost_reset), (1, 2));
    all_are_counted(&a);
}

#[test]
fn what_a_reset_loses_is_counted() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let (to_b, to_a) =
        (a.resolve(&b.local_address()).expect("room"), b.resolve(&a.local_address()).expect("room"));
    commit(&mut b, to_a, 7);
    assert_eq!(b.flush(), Ok(7));
    // One is given to the caller, three have been taken from the device, three it has reported.
    a.take_in(4).expect("a live rail");
    assert_eq!(a.receive(1, &mut |_| ()), Ok(1));
    commit(&mut a, to_b, 4);
    fake.with(|state| state.fails_with = Some(FAILED));
    assert_eq!(a.flush(), Ok(4));
    let counters = *a.counters();
    assert_eq!((counters.resets, counters.lost_reset, counters.lost_receive_reset), (1, 4, 6));
    assert_eq!((counters.frames_sent, counters.bytes_sent), (0, 0));
    all_are_counted(&a);
    // Every slot is there again.
    commit(&mut a, to_b, 256);
    assert!(a.lease().is_none());
    commit(&mut b, to_a, 200);
    while b.flush().expect("a live rail") > 0 {}
    assert_eq!(came(&mut a), 1 + 200);
}

#[test]
fn a_pair_that_fails_again_and_again_is_dead_although_frames_pass_between() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    for _ in 0..VERBS_RESTARTS_MAX {
        fake.with(|state| state.fails_with = Some(FAILED));
        commit(&mut a, to, 1);
        a.flush().expect("it goes on");
        commit(&mut a, to, 1);
        a.flush().expect("and sends");
    }
    assert_eq!(came(&mut b), u64::from(VERBS_RESTARTS_MAX));
    fake.with(|state| state.fails_with = Some(FAILED));
    commit(&mut a, to, 1);
    let dead = DriverError::RailDead { operation: Operation::Send, errno: Errno(libc::EIO) };
    assert_eq!(a.flush(), Err(dead));
    assert_eq!(fake.with(|state| state.resets), VERBS_RESTARTS_MAX);
}

#[test]
fn a_handle_goes_with_its_peer_when_no_request_uses_it() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 1);
    a.flush().expect("a live rail");
    assert_eq!(fake.with(|state| state.handles.len()), 1);
    a.forget(to);
    assert_eq!(fake.with(|state| state.handles.len()), 0, "nothing is sent after it");
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| state.is_slow = true);
    commit(&mut a, to, 1);
    a.flush().expect("a live rail");
    a.forget(to);
    assert_eq!(fake.with(|state| state.handles.len()), 1, "a request uses it");
    fake.hurry();
    a.flush().expect("a live rail");
    assert_eq!(fake.with(|state| state.handles.len()), 0);
    assert_eq!(came(&mut b), 2);
}

#[test]
fn frames_to_a_forgotten_peer_go_to_nobody_else() {
    let _fake = Fake::new();
    let (mut a, mut b, mut c) = (open(), open(), open());
    let to_b = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to_b, 3);
    a.forget(to_b);
    // All ids that never were are given out, then those that were forgotten.
    let mut address = b.own_address();
    address.number = 99;
    let mut to_c = to_b;
    for i in 0..ADDRESSES_MAX - 1 {
        address.key = u32::try_from(i).expect("few");
        a.resolve(&address.into()).expect("room");
    }
    to_c.0 = a.resolve(&c.local_address()).expect("room").0;
    assert_eq!(to_c, to_b, "the id is given out again");
    commit(&mut a, to_c, 1);
    assert_eq!(a.flush(), Ok(1));
    assert_eq!((came(&mut b), came(&mut c)), (0, 1));
    assert_eq!(a.counters().lost_no_address, 3);
    all_are_counted(&a);
}

#[test]
fn memory_that_the_device_refuses_on_huge_pages_lies_on_ordinary_ones() {
    let fake = Fake::new();
    let has_huge = open().is_on_huge_pages();
    fake.with(|state| state.refused = 1);
    let on_ordinary = VerbsDriver::open_by(&LIBRARY, &VerbsConfig::new("fake0"));
    // Without huge pages on this machine, the one that is refused is the ordinary one.
    assert_eq!(on_ordinary.map(|rail| rail.is_on_huge_pages()).ok(), has_huge.then_some(false));
    fake.with(|state| state.refused = 2);
    let refused = VerbsDriver::open_by(&LIBRARY, &VerbsConfig::new("fake0")).err();
    let Some(DriverError::CannotOpen { operation: Operation::RegisterFrames, .. }) = refused else {
        panic!("{refused:?}")
    };
}
