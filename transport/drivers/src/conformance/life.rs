//! Addresses and ends.

use std::sync::Arc;

use transport::{AddressId, RawAddress};

use super::{Fixture, collect, deliver, flush_all, pair, pattern, stage};
use crate::error::DriverError;
use crate::payload::Payload;

pub(super) fn resolving_is_idempotent(fixture: &mut dyn Fixture) {
    let (mut a, b, to) = pair(fixture);
    assert_eq!(a.resolve(&b.local_address()), Ok(to));
    let own = a.resolve(&a.local_address()).expect("the own address");
    assert_ne!(own, to, "two addresses, one id");
    a.forget(own);
    assert_eq!(a.path(own), None, "a forgotten address has no path");
    assert_eq!(a.resolve(&b.local_address()), Ok(to), "forgetting one address changed another");
    let mut b = b;
    deliver(fixture, a.as_mut(), to, b.as_mut(), b"still known", &|| Payload::EMPTY);
    a.forget(to);
    a.forget(to);
    let again = a.resolve(&b.local_address()).expect("resolves again");
    // The same bytes: a copy of an earlier frame may be late.
    deliver(fixture, a.as_mut(), again, b.as_mut(), b"still known", &|| Payload::EMPTY);
}

pub(super) fn foreign_addresses_are_refused(fixture: &mut dyn Fixture) {
    let (mut a, b, _) = pair(fixture);
    let good = b.local_address();
    let mut foreign = vec![RawAddress::NONE];
    let mut damaged = good.as_bytes().to_vec();
    // The first byte is the kind of driver, the second the version of its encoding.
    for at in 0..2 {
        damaged[at] ^= 0x55;
        foreign.extend(RawAddress::new(&damaged));
        damaged[at] ^= 0x55;
    }
    foreign.extend((1..damaged.len()).filter_map(|bytes| RawAddress::new(&damaged[..bytes])));
    for address in foreign {
        let error = a.resolve(&address).expect_err("not an address of this driver");
        assert!(matches!(error, DriverError::AddressUnusable { .. }), "{address:?}: {error}");
        assert!(!error.is_rail_dead());
    }
}

pub(super) fn unknown_addresses_lose_frames(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let owner = Arc::new(pattern(1, 500));
    let payload = || Payload::shared(&owner, 0..500).expect("in range");
    stage(fixture, a.as_mut(), AddressId(u32::MAX), b"to nobody", payload());
    stage(fixture, a.as_mut(), to, b"to somebody", Payload::EMPTY);
    flush_all(fixture, a.as_mut());
    assert_eq!(a.counters().lost_no_address, 1);
    assert_eq!(Arc::strong_count(&owner), 1);
    let came = collect(fixture, b.as_mut(), 1);
    assert!(came.iter().all(|frame| frame == b"to somebody"));
    // Forgotten with a frame staged: that one may be dropped or sent, later ones are dropped.
    stage(fixture, a.as_mut(), to, b"to somebody", payload());
    a.forget(to);
    flush_all(fixture, a.as_mut());
    let lost = a.counters().lost_no_address;
    stage(fixture, a.as_mut(), to, b"to nobody", payload());
    flush_all(fixture, a.as_mut());
    assert_eq!(a.counters().lost_no_address, lost + 1);
    assert_eq!(Arc::strong_count(&owner), 1);
}

pub(super) fn a_dropped_receiver_is_only_silent(fixture: &mut dyn Fixture) {
    let (mut a, mut b, to) = pair(fixture);
    let mut c = fixture.open();
    let to_c = a.resolve(&c.local_address()).expect("reachable");
    deliver(fixture, a.as_mut(), to, b.as_mut(), b"while it lives", &|| Payload::EMPTY);
    drop(b);
    for round in 0..50u64 {
        stage(fixture, a.as_mut(), to, &round.to_le_bytes(), Payload::EMPTY);
        flush_all(fixture, a.as_mut());
        a.receive(8, &mut |_| panic!("nobody sends to it")).expect("the peer's end is no error of ours");
    }
    deliver(fixture, a.as_mut(), to_c, c.as_mut(), b"others are reached", &|| Payload::EMPTY);
}

pub(super) fn dropping_a_driver_gives_payload_back(fixture: &mut dyn Fixture) {
    let (mut a, _b, to) = pair(fixture);
    let owner = Arc::new(pattern(1, 500));
    for i in 0..10 {
        let payload = Payload::shared(&owner, 0..500).expect("in range");
        stage(fixture, a.as_mut(), to, b"head", payload);
        if i == 5 {
            a.flush().expect("a live rail");
        }
    }
    drop(a);
    assert_eq!(Arc::strong_count(&owner), 1, "dropped, but payload is still referred to");
}
