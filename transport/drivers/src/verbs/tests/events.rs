//! The effect of each event of the device on a rail.

use core::time::Duration;

use super::super::fake::{Fake, PORT_DOWN, Port};
use super::{commit, open};
use crate::driver::{Driver as _, Wake};
use crate::error::{DriverError, Errno, Operation};
use crate::verbs::{LOOK_CALLS, VerbsDriver};

/// `ibv_event_type`.
const PORT_IS_ACTIVE: u32 = 9;
const PORT_ERROR: u32 = 10;
const LID_CHANGE: u32 = 11;
const GID_CHANGE: u32 = 18;
/// Of queues, pairs and the device, after which nothing works.
const FATAL: [(u32, &str); 5] =
    [(0, "CQ_ERR"), (1, "QP_FATAL"), (2, "QP_REQ_ERR"), (3, "QP_ACCESS_ERR"), (8, "DEVICE_FATAL")];
/// COMM_EST, SQ_DRAINED, PATH_MIG, PATH_MIG_ERR, PORT_ACTIVE, PORT_ERR, LID_CHANGE, PKEY_CHANGE, SM_CHANGE, SRQ_ERR, SRQ_LIMIT_REACHED, QP_LAST_WQE_REACHED,
/// CLIENT_REREGISTER, GID_CHANGE, WQ_FATAL (of objects that we have none of), and one that there is not yet.
const HARMLESS: [u32; 16] = [4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 99];

/// A rail that has looked at the device's events before.
fn open_and_look() -> VerbsDriver {
    let mut rail = open();
    assert_eq!(rail.receive(1, &mut |_| ()), Ok(0));
    rail
}

/// As one does that has slept.
fn look(rail: &mut VerbsDriver) -> Result<(), DriverError> {
    rail.arm()?;
    rail.receive(1, &mut |_| ()).map(|_| ())
}

fn dead(errno: i32) -> DriverError {
    DriverError::RailDead { operation: Operation::WatchPort, errno: Errno(errno) }
}

/// Every event was answered, without which the device's objects cannot end; and they have.
fn all_is_ended(fake: &Fake, rails: impl IntoIterator<Item = VerbsDriver>) {
    assert_eq!(fake.with(|state| state.unacknowledged), 0);
    rails.into_iter().for_each(drop);
    assert_eq!(fake.with(|state| (state.living, state.handles.len())), (0, 0));
}

#[test]
fn what_ends_the_device_or_its_queues_ends_the_rail() {
    let fake = Fake::new();
    for (kind, name) in FATAL {
        let mut rails = [open_and_look(), open_and_look()];
        let to = rails[1].local_address();
        rails[0].resolve(&to).expect("room");
        fake.report(kind);
        for rail in &mut rails {
            assert_eq!(look(rail), Err(dead(libc::EIO)), "{name}");
        }
        all_is_ended(&fake, rails);
    }
}

#[test]
fn all_events_are_taken_at_one_look() {
    let fake = Fake::new();
    let mut rail = open_and_look();
    fake.report(PORT_IS_ACTIVE);
    fake.report(FATAL[4].0);
    assert_eq!(look(&mut rail), Err(dead(libc::EIO)));
    all_is_ended(&fake, [rail]);
}

#[test]
fn an_event_is_found_by_who_never_sleeps() {
    let fake = Fake::new();
    let mut rail = open_and_look();
    fake.report(FATAL[4].0);
    for _ in 1..LOOK_CALLS {
        assert_eq!(rail.receive(1, &mut |_| ()), Ok(0));
    }
    assert_eq!(rail.receive(1, &mut |_| ()), Err(dead(libc::EIO)));
    all_is_ended(&fake, [rail]);
}

#[test]
fn events_that_leave_the_port_as_it_was_are_harmless() {
    let fake = Fake::new();
    for port in [Port::default(), Port::infiniband(0xfe80 << 48, 7)] {
        fake.with(|state| state.port = port);
        let (mut a, mut b) = (open_and_look(), open_and_look());
        let to = a.resolve(&b.local_address()).expect("room");
        for (kind, round) in HARMLESS.into_iter().zip(1..) {
            fake.report(kind);
            assert_eq!((look(&mut a), look(&mut b)), (Ok(()), Ok(())), "event {kind}");
            commit(&mut a, to, 1);
            assert_eq!(a.flush(), Ok(1), "event {kind}");
            assert_eq!(super::came(&mut b), round);
        }
        assert_eq!((a.handles_made(), a.counters().resets), (1, 0));
        all_is_ended(&fake, [a, b]);
    }
}

#[test]
fn a_port_that_is_down_ends_the_rail() {
    let fake = Fake::new();
    let mut rail = open_and_look();
    fake.with(|state| state.port.state = PORT_DOWN);
    fake.report(PORT_ERROR);
    assert_eq!(look(&mut rail), Err(dead(libc::ENETDOWN)));
    let error = dead(libc::ENETDOWN).to_string();
    assert!(error.contains("watching the port of the device failed (Network is down"), "{error}");
    all_is_ended(&fake, [rail]);
}

#[test]
fn a_port_that_was_down_for_a_moment_goes_on() {
    let fake = Fake::new();
    let mut rail = open_and_look();
    fake.report(PORT_ERROR);
    fake.report(PORT_IS_ACTIVE);
    assert_eq!(look(&mut rail), Ok(()));
    all_is_ended(&fake, [rail]);
}

#[test]
fn a_port_that_peers_would_not_find_any_more_ends_the_rail() {
    let fake = Fake::new();
    let unreachable = Err(dead(libc::EADDRNOTAVAIL));
    let infiniband = Port::infiniband(0xfe80 << 48, 7);
    let moved = Port { lid: 8, ..infiniband.clone() };
    let other_prefix = Port { lid: 7, ..Port::infiniband(0xfec0 << 48, 7) };
    let gone = Port { gids: vec![[0; 16]], ..Port::default() };
    let longer = |mut port: Port| {
        port.gids.push([1; 16]);
        port
    };
    let changes = [
        (LID_CHANGE, infiniband.clone(), moved, unreachable),
        (GID_CHANGE, infiniband.clone(), other_prefix, unreachable),
        (GID_CHANGE, infiniband.clone(), longer(infiniband), Ok(())),
        (GID_CHANGE, Port::default(), gone, unreachable),
        (GID_CHANGE, Port::default(), longer(Port::default()), Ok(())),
        // Over Ethernet, LIDs lead nowhere.
        (LID_CHANGE, Port::default(), Port { lid: 8, ..Port::default() }, Ok(())),
    ];
    for (number, (kind, before, after, expected)) in changes.into_iter().enumerate() {
        fake.with(|state| state.port = before);
        let mut rail = open_and_look();
        fake.with(|state| state.port = after);
        assert_eq!(look(&mut rail), Ok(()), "nothing tells of change {number}");
        fake.report(kind);
        assert_eq!(look(&mut rail), expected, "change {number}");
        all_is_ended(&fake, [rail]);
    }
}

#[test]
fn a_device_that_does_not_answer_after_an_event_ends_the_rail() {
    let fake = Fake::new();
    let mut rail = open_and_look();
    fake.with(|state| state.refuse("query_port", 0, libc::ENODEV));
    fake.report(PORT_ERROR);
    assert_eq!(look(&mut rail), Err(dead(libc::ENODEV)));
    all_is_ended(&fake, [rail]);
}

#[test]
fn an_event_ends_a_sleep() {
    let fake = Fake::new();
    let mut rail = open_and_look();
    let moment = Duration::from_millis(1);
    assert_eq!(rail.wait(moment), Ok(Wake::Timeout));
    fake.report(PORT_IS_ACTIVE);
    assert_eq!(rail.wait(moment), Ok(Wake::Frame));
    assert_eq!(rail.receive(1, &mut |_| ()), Ok(0));
    assert_eq!(rail.wait(moment), Ok(Wake::Timeout), "the event has been taken");
    all_is_ended(&fake, [rail]);
}
