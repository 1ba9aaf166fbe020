//! Steps that fail: of opening, and of a rail in use.

use core::task::Poll;
use std::time::Instant;

use super::super::fake::{Fake, LIBRARY, PORT_DOWN, Port};
use super::{FAILED, LONG_BYTES, all_are_counted, came, commit, open};
use crate::driver::Driver as _;
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{VERBS_RESTARTS_MAX, VERBS_RESTARTS_WINDOW};
use crate::payload::Payload;
use crate::verbs::{VerbsConfig, VerbsDriver};

fn dead(operation: Operation, errno: i32) -> DriverError {
    DriverError::RailDead { operation, errno: Errno(errno) }
}

/// The error of an opening that fails, after which nothing is left.
fn refused(fake: &Fake, config: &VerbsConfig, what: &str) -> DriverError {
    let error = VerbsDriver::open_by(&LIBRARY, config).err();
    assert_eq!(fake.with(|state| state.living), 0, "{what} leaves something");
    fake.with(|state| state.refusal = None);
    error.unwrap_or_else(|| panic!("{what} is not told"))
}

#[test]
fn each_step_of_opening_that_fails_is_named_and_leaves_nothing() {
    let fake = Fake::new();
    let steps = [
        ("get_device_list", 0, Operation::FindDevice),
        ("open_device", 0, Operation::OpenDevice),
        ("query_device", 0, Operation::OpenDevice),
        ("query_port", 0, Operation::FindPort),
        ("alloc_domain", 0, Operation::MakeQueuePair),
        ("register", 0, Operation::RegisterFrames),
        ("create_channel", 0, Operation::MakeQueuePair),
        ("create_queue", 0, Operation::MakeQueuePair),
        ("create_queue", 1, Operation::MakeQueuePair),
        ("create_pair", 0, Operation::MakeQueuePair),
        ("modify_pair", 0, Operation::MakeQueuePair),
        ("post_receive", 0, Operation::MakeQueuePair),
        ("modify_pair", 1, Operation::MakeQueuePair),
        ("modify_pair", 2, Operation::MakeQueuePair),
    ];
    for (call, passes, operation) in steps {
        // Where a pair or memory is refused, another one is tried.
        match call {
            "create_pair" | "register" => fake.with(|state| state.refuse(call, passes, libc::ENOSPC)),
            _ => fake.with(|state| state.refuse_once(call, passes, libc::ENOSPC)),
        }
        let error = refused(&fake, &VerbsConfig::new("fake0"), call);
        let expected = DriverError::CannotOpen { operation, errno: Errno(libc::ENOSPC) };
        assert_eq!(error, expected, "{call} after {passes}");
    }
    assert_eq!(open().local_address().as_bytes().len(), 28, "and then it opens");
}

#[test]
fn a_library_that_lacks_a_call_cannot_be_used() {
    let fake = Fake::new();
    fake.with(|state| state.refuse("calls", 0, libc::ENOSYS));
    let error = refused(&fake, &VerbsConfig::new("fake0"), "a missing call");
    let expected =
        DriverError::CannotOpen { operation: Operation::MakeQueuePair, errno: Errno(libc::ENOSYS) };
    assert_eq!(error, expected);
}

#[test]
fn memory_that_may_not_be_locked_is_reported_with_the_limit() {
    let fake = Fake::new();
    fake.with(|state| state.refuse("register", 0, libc::ENOMEM));
    let error = refused(&fake, &VerbsConfig::new("fake0"), "memory").to_string();
    assert!(error.contains("`ulimit -l` bounds it) failed (Cannot allocate memory"), "{error}");
}

#[test]
fn devices_ports_and_gids_that_are_not_there_are_reported() {
    let fake = Fake::new();
    let config = VerbsConfig::new("fake0");
    let cannot = |operation, errno| DriverError::CannotOpen { operation, errno: Errno(errno) };
    assert_eq!(
        refused(&fake, &VerbsConfig::new("fake"), "no device"),
        DriverError::DeviceMissing { others: 1 }
    );
    fake.with(|state| state.refuse("get_device_list", 0, libc::ENOSYS));
    assert_eq!(refused(&fake, &config, "no RDMA"), DriverError::DeviceMissing { others: 0 });
    let other_port = VerbsConfig { port: Some(2), ..config.clone() };
    assert_eq!(refused(&fake, &other_port, "no port"), cannot(Operation::FindPort, libc::EINVAL));
    let no_gid = cannot(Operation::FindGid, libc::EADDRNOTAVAIL);
    let other_gid = VerbsConfig { gid_index: Some(1), ..config.clone() };
    assert_eq!(refused(&fake, &other_gid, "no such GID"), no_gid);
    fake.with(|state| state.port.gids = vec![[0; 16]; 3]);
    assert_eq!(refused(&fake, &config, "no GID"), no_gid);
    // IBV_PORT_ARMED.
    fake.with(|state| state.port = Port { state: 3, ..Port::default() });
    assert_eq!(refused(&fake, &config, "no active port"), cannot(Operation::FindPort, libc::ENETDOWN));
}

#[test]
fn a_gid_that_is_named_is_taken() {
    let fake = Fake::new();
    let gid = std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 5);
    fake.with(|state| state.port.gids.push(gid.octets()));
    let config = VerbsConfig { gid_index: Some(1), port: Some(1), ..VerbsConfig::new("fake0") };
    let mut rail = VerbsDriver::open_by(&LIBRARY, &config).expect("the fake device");
    assert_eq!(rail.gid(), gid);
    rail.resolve(&rail.local_address()).expect("room");
    assert_eq!(fake.with(|state| state.handles.values().next().map(|made| made.own_gid_index)), Some(1));
}

#[test]
fn the_first_active_port_is_taken() {
    let fake = Fake::new();
    fake.with(|state| state.ports_down = 2);
    let mut rail = open();
    rail.resolve(&rail.local_address()).expect("room");
    assert_eq!(fake.with(|state| state.handles.values().next().map(|made| made.port)), Some(3));
    assert_eq!((rail.arm().is_ok(), rail.receive(1, &mut |_| ())), (true, Ok(0)));
    fake.report(10);
    assert_eq!((rail.arm().is_ok(), rail.receive(1, &mut |_| ())), (true, Ok(0)), "another port is down");
    drop(rail);
    let down = VerbsConfig { port: Some(2), ..VerbsConfig::new("fake0") };
    let cannot = DriverError::CannotOpen { operation: Operation::FindPort, errno: Errno(libc::ENETDOWN) };
    assert_eq!(refused(&fake, &down, "a port that is down"), cannot);
}

#[test]
fn queues_are_as_long_as_the_device_has_them() {
    let fake = Fake::new();
    for limits in [(100, 4096), (4096, 100)] {
        fake.with(|state| state.queues_hold = Some(limits));
        let (mut a, mut b) = (open(), open());
        assert_eq!(a.caps().receive_bytes, 100 * 4096);
        let to = a.resolve(&b.local_address()).expect("room");
        for round in 1..4 {
            commit(&mut a, to, 100);
            assert!(a.lease().is_none());
            assert_eq!(a.flush(), Ok(100));
            assert_eq!(came(&mut b), round * 100);
        }
    }
}

#[test]
fn an_mtu_that_there_is_not_is_the_nearest() {
    let fake = Fake::new();
    for (mtu, bytes) in [(0, 256), (1, 256), (3, 1024), (5, 4096), (6, 4096)] {
        fake.with(|state| state.port.mtu = mtu);
        assert_eq!(open().caps().frame_bytes_max, bytes, "{mtu}");
    }
}

#[test]
fn what_a_request_may_carry_is_what_the_device_takes() {
    let fake = Fake::new();
    // Asked for are 220 bytes, and half of that after each refusal.
    for (most, granted, short) in
        [(None, None, 220), (Some(64), None, 55), (Some(0), None, 0), (None, Some(60), 60)]
    {
        fake.with(|state| (state.inline_bytes_max, state.inline_bytes_granted) = (most, granted));
        let (mut a, mut b) = (open(), open());
        let to = a.resolve(&b.local_address()).expect("room");
        assert!(a.send_fast(to, &vec![1; short]), "{short}");
        assert!(!a.send_fast(to, &vec![1; short + 1]), "{short}");
        let mut lengths = Vec::new();
        b.receive(8, &mut |frame| lengths.push(frame.len())).expect("a live rail");
        assert_eq!(lengths, [short]);
    }
}

#[test]
fn a_handle_that_cannot_be_made_now_is_made_later() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    fake.with(|state| state.refuse("create_handle", 0, libc::EHOSTUNREACH));
    let failed = DriverError::Transient { operation: Operation::FindPeer, errno: Errno(libc::EHOSTUNREACH) };
    assert_eq!(a.resolve(&b.local_address()), Err(failed));
    assert_eq!(a.handles_made(), 0);
    fake.with(|state| state.refusal = None);
    a.resolve(&b.local_address()).expect("room");
    assert_eq!(a.handles_made(), 1);
}

#[test]
fn a_device_that_takes_no_request_is_dead_and_a_full_one_is_not() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 3);
    for full in [libc::ENOMEM, libc::EAGAIN] {
        fake.with(|state| state.refuse("post_send", 0, full));
        assert_eq!(a.flush(), Ok(0));
    }
    assert_eq!(a.counters().blocked, 2);
    fake.with(|state| state.refuse("post_send", 0, libc::EINVAL));
    assert_eq!(a.flush(), Err(dead(Operation::Send, libc::EINVAL)));
    assert_eq!((a.counters().frames_sent, came(&mut b)), (0, 0));
    all_are_counted(&a);
}

#[test]
fn a_short_frame_that_the_device_does_not_take_was_not_sent() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| state.refuse("post_send", 0, libc::ENOMEM));
    assert!(!a.send_fast(to, &[1; 8]));
    assert_eq!((a.staged_total(), a.counters().frames_sent), (0, 0));
    fake.with(|state| state.refusal = None);
    assert!(a.send_fast(to, &[1; 8]));
    assert_eq!((a.staged_total(), a.completed_total()), (1, 1));
    assert_eq!(b.receive(2, &mut |frame| assert_eq!(frame, [1; 8])), Ok(1));
}

#[test]
fn completions_that_cannot_be_polled_end_the_rail() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| state.refuse("poll", 0, 1));
    assert_eq!(a.receive(1, &mut |_| ()), Err(dead(Operation::Receive, libc::EIO)));
    assert_eq!(a.arm().err(), Some(dead(Operation::Receive, libc::EIO)));
    commit(&mut a, to, 1);
    assert_eq!(a.flush(), Err(dead(Operation::Send, libc::EIO)));
}

#[test]
fn what_a_short_send_cannot_report_the_next_call_does() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| state.is_slow = true);
    commit(&mut a, to, 1);
    assert_eq!(a.flush(), Ok(1));
    assert!(!a.send_fast(to, &[1; 8]), "a frame before it has not completed");
    fake.with(|state| state.refuse("poll", 0, 1));
    assert!(!a.send_fast(to, &[1; 8]));
    fake.with(|state| state.refusal = None);
    let error = dead(Operation::Send, libc::EIO);
    assert_eq!(a.receive(1, &mut |_| ()), Err(error));
    assert_eq!(a.flush(), Err(error));
    assert_eq!(a.drain(), Err(error));
}

#[test]
fn slots_that_the_device_does_not_take_back_end_the_rail() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 1);
    assert_eq!(a.flush(), Ok(1));
    fake.with(|state| state.refuse("post_receive", 0, libc::EINVAL));
    assert_eq!(b.receive(1, &mut |_| ()), Err(dead(Operation::Receive, libc::EINVAL)));
}

#[test]
fn a_channel_that_cannot_be_asked_ends_the_rail() {
    let fake = Fake::new();
    let mut rail = open();
    fake.with(|state| state.refuse("request_notify", 0, libc::EINVAL));
    assert_eq!(rail.arm().err(), Some(dead(Operation::Wait, libc::EINVAL)));
}

#[test]
fn a_frame_that_fails_to_come_begins_the_pair_anew() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    commit(&mut a, to, 2);
    assert_eq!(a.flush(), Ok(2));
    fake.with(|state| state.receives_with = Some(FAILED));
    commit(&mut a, to, 4);
    assert_eq!(a.flush(), Ok(4));
    // Two came, one is the failure; of three after it, one was taken from the device.
    let mut given = 0;
    assert_eq!(b.receive(4, &mut |frame| given += usize::from(frame.len() == LONG_BYTES)), Ok(3));
    assert_eq!(given, 3);
    let counters = *b.counters();
    assert_eq!((counters.resets, counters.frames_received, counters.lost_receive_reset), (1, 3, 2));
    assert_eq!(b.receive(8, &mut |_| ()), Ok(0));
    // Every slot is there again, once.
    for _ in 0..5 {
        for _ in 0..2 {
            commit(&mut a, to, 250);
            while a.flush().expect("a live rail") > 0 {}
        }
        let before = b.counters().frames_received;
        assert_eq!(came(&mut b), before + 500);
    }
    assert_eq!(b.counters().resets, 1);
}

#[test]
fn a_forgotten_peer_is_gone_after_a_reset() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| (state.is_slow, state.fails_with) = (true, Some(FAILED)));
    commit(&mut a, to, 1);
    assert_eq!(a.flush(), Ok(1));
    a.forget(to);
    assert_eq!(fake.with(|state| state.handles.len()), 1, "a request uses it");
    fake.hurry();
    assert_eq!(a.flush(), Ok(0));
    assert_eq!((a.counters().resets, fake.with(|state| state.handles.len())), (1, 0));
}

#[test]
fn a_pair_that_fails_now_and_then_goes_on() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    for _ in 0..2 {
        for _ in 0..VERBS_RESTARTS_MAX {
            fake.with(|state| state.fails_with = Some(FAILED));
            commit(&mut a, to, 1);
            a.flush().expect("it goes on");
        }
        // As if all of it had been long ago.
        a.restarts.1 = Instant::now().checked_sub(VERBS_RESTARTS_WINDOW * 2).expect("clocks go below zero");
    }
    assert_eq!(a.counters().resets, 2 * u64::from(VERBS_RESTARTS_MAX));
}

#[test]
fn a_pair_that_cannot_be_begun_anew_is_dead() {
    let fake = Fake::new();
    for passes in 0..4 {
        let (mut a, b) = (open(), open());
        let to = a.resolve(&b.local_address()).expect("room");
        fake.with(|state| {
            state.fails_with = Some(FAILED);
            state.refuse_once("modify_pair", passes, libc::EIO);
        });
        commit(&mut a, to, 1);
        assert_eq!(a.flush(), Err(dead(Operation::MakeQueuePair, libc::EIO)), "step {passes}");
        fake.with(|state| state.refusal = None);
    }
}

#[test]
fn a_pair_that_fails_because_its_port_is_down_is_not_begun_anew() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| {
        state.fails_with = Some(FAILED);
        state.port.state = PORT_DOWN;
    });
    commit(&mut a, to, 1);
    assert_eq!(a.flush(), Err(dead(Operation::WatchPort, libc::ENETDOWN)));
    assert_eq!((a.counters().resets, fake.with(|state| state.resets)), (0, 0));
}

#[test]
fn a_drain_waits_for_what_is_with_the_device() {
    let fake = Fake::new();
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    fake.with(|state| state.is_slow = true);
    commit(&mut a, to, 2);
    assert_eq!(a.flush(), Ok(2));
    commit(&mut a, to, 1);
    assert_eq!(a.drain(), Ok(Poll::Pending));
    assert_eq!((a.completed_total(), a.counters().lost_drained), (1, 1));
    fake.hurry();
    assert_eq!(a.drain(), Ok(Poll::Ready(())));
    assert_eq!((a.completed_total(), came(&mut b)), (3, 2));
    all_are_counted(&a);
}

#[test]
fn what_is_committed_without_a_lease_or_beyond_the_frame_is_counted_as_lost() {
    let _fake = Fake::new();
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("room");
    a.commit(to, 8, Payload::EMPTY);
    assert_eq!((a.counters().lost_other, a.staged_total()), (1, 0));
    a.lease().expect("none is used");
    a.commit(to, 4097, Payload::EMPTY);
    assert_eq!((a.counters().lost_too_long, a.staged_total(), a.completed_total()), (1, 1, 1));
    assert_eq!(a.flush(), Ok(0));
    commit(&mut a, to, 256);
    assert!(a.lease().is_none(), "every slot was used");
}
