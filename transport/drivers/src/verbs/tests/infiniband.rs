//! Ports whose link layer is InfiniBand, of which no machine here has one.

use super::super::VerbsAddress;
use super::super::abi::{Gid, ROUTE_REQUIRED};
use super::super::fake::{Fake, Port, Target};
use super::open;
use crate::driver::Driver as _;
use crate::error::DriverError;
use crate::payload::Payload;
use crate::verbs::VerbsDriver;

/// The default name of a subnet.
const SUBNET: u64 = 0xfe80 << 48;
const OTHER_SUBNET: u64 = 0xfec0_0000_0000_0042;

fn open_on(fake: &Fake, port: Port) -> VerbsDriver {
    fake.with(|state| state.port = port);
    open()
}

fn open_at(fake: &Fake, lid: u16) -> VerbsDriver {
    open_on(fake, Port::infiniband(SUBNET, lid))
}

fn needing_a_route(lid: u16) -> Port {
    Port { flags: ROUTE_REQUIRED, ..Port::infiniband(SUBNET, lid) }
}

fn targets(fake: &Fake) -> Vec<Target> {
    fake.with(|state| state.handles.values().copied().collect())
}

/// A frame that no other of these is like.
fn frame(number: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at % 251).expect("small") ^ number).collect()
}

fn received(rail: &mut VerbsDriver) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while rail.receive(3, &mut |frame| frames.push(frame.to_vec())).expect("a live rail") > 0 {}
    frames
}

#[test]
fn the_address_has_the_lid_and_the_first_gid() {
    let fake = Fake::new();
    let mut port = Port::infiniband(SUBNET, 0x0107);
    let first: Gid = port.gids[0];
    // Over Ethernet this one would be worth more.
    port.gids.push(std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets());
    let rail = open_on(&fake, port);
    let own = rail.own_address();
    assert_eq!((own.lid, own.gid, own.is_ethernet()), (0x0107, first, false));
    assert_eq!(rail.local_address().as_bytes()[3..5], [0x07, 0x01]);
    assert_eq!(VerbsAddress::try_from(&rail.local_address()), Ok(own));
    assert!(rail.ways.is_none(), "LIDs need no neighbours");
}

#[test]
fn a_handle_in_the_subnet_leads_to_a_lid_without_a_route() {
    let fake = Fake::new();
    let (mut a, b) = (open_at(&fake, 7), open_at(&fake, 9));
    let to_b = a.resolve(&b.local_address()).expect("room");
    let [made] = targets(&fake)[..] else { panic!("{:?}", targets(&fake)) };
    assert_eq!((made.lid, made.has_route, made.port), (9, 0, 1));
    assert_eq!(a.handles_made(), 1);
    assert!(!a.path(to_b).expect("resolved").on_host);
    let to_itself = a.resolve(&a.local_address()).expect("room");
    assert!(a.path(to_itself).expect("resolved").on_host);
}

#[test]
fn a_port_that_takes_no_handle_without_a_route_gets_one() {
    let fake = Fake::new();
    let b = open_at(&fake, 9);
    let mut a = open_on(&fake, needing_a_route(7));
    a.resolve(&b.local_address()).expect("a handle that the port takes");
    let gid = b.own_address().gid;
    assert_eq!(targets(&fake), [Target { lid: 9, has_route: 1, gid, own_gid_index: 0, port: 1 }]);
}

/// At a LID that several ports share, the route decides for which of them a frame is.
#[test]
fn a_peer_whose_port_takes_no_frame_without_a_route_gets_them_with_one() {
    let fake = Fake::new();
    let b = open_on(&fake, needing_a_route(9));
    let mut a = open_at(&fake, 7);
    a.resolve(&b.local_address()).expect("a handle");
    let gid = b.own_address().gid;
    assert_eq!(targets(&fake), [Target { lid: 9, has_route: 1, gid, own_gid_index: 0, port: 1 }]);
}

#[test]
fn over_ethernet_every_handle_has_a_route() {
    let fake = Fake::new();
    let (mut a, b) = (open(), open());
    a.resolve(&b.local_address()).expect("room");
    let gid = b.own_address().gid;
    assert_eq!(targets(&fake), [Target { lid: 0, has_route: 1, gid, own_gid_index: 0, port: 1 }]);
}

#[test]
fn frames_come_whole_with_and_without_a_route_header() {
    let fake = Fake::new();
    let (mut a, mut b) = (open_at(&fake, 7), open_at(&fake, 9));
    let mut c = open_on(&fake, needing_a_route(11));
    let b_address = b.local_address();
    let (from_a, from_c) = (a.resolve(&b_address).expect("room"), c.resolve(&b_address).expect("room"));
    let lengths = [0, 1, 39, 40, 41, 79, 80, 81, 219, 220, 221, 256, 2048, 4055, 4056, 4095, 4096];
    let mut sent = Vec::new();
    for (number, bytes) in (1..).zip(lengths) {
        for (rail, to, number) in [(&mut a, from_a, number), (&mut c, from_c, number | 0x80)] {
            let frame = frame(number, bytes);
            rail.lease().expect("few are used")[..bytes].copy_from_slice(&frame);
            rail.commit(to, bytes, Payload::EMPTY);
            assert_eq!(rail.flush(), Ok(1));
            sent.push(frame);
        }
    }
    for bytes in [0, 1, 40, 220] {
        for (rail, to) in [(&mut a, from_a), (&mut c, from_c)] {
            let frame = frame(0x55, bytes);
            assert!(rail.send_fast(to, &frame));
            sent.push(frame);
        }
    }
    // Compared at once would print it all.
    let came = received(&mut b);
    assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), sent.iter().map(Vec::len).collect::<Vec<_>>());
    assert!(came == sent);
    assert_eq!(b.counters().bytes_received, a.counters().bytes_sent + c.counters().bytes_sent);
}

#[test]
fn frames_go_to_the_lid_of_their_peer() {
    let fake = Fake::new();
    let (mut a, mut b) = (open_at(&fake, 7), open_at(&fake, 9));
    let mut moved = b.own_address();
    moved.lid = 10;
    for (address, number) in [(moved, 1), (b.own_address(), 2)] {
        let to = a.resolve(&address.into()).expect("room");
        a.lease().expect("few are used")[..8].copy_from_slice(&frame(number, 8));
        a.commit(to, 8, Payload::EMPTY);
    }
    assert_eq!(a.flush(), Ok(2));
    assert_eq!(received(&mut b), [frame(2, 8)]);
}

/// The one reason for which an address is refused, and that nothing was made of it.
fn refused(fake: &Fake, rail: &mut VerbsDriver, of: &VerbsDriver) -> String {
    let address = of.local_address();
    let error = rail.resolve(&address).expect_err("an address that cannot be reached");
    let DriverError::AddressUnusable { address: named, expected } = error else { panic!("{error}") };
    assert_eq!(named, address);
    assert!(!error.is_rail_dead() && error.to_string().contains(expected), "{error}");
    assert_eq!((targets(fake), rail.handles_made()), (vec![], 0));
    expected.to_owned()
}

#[test]
fn a_peer_in_another_subnet_is_refused() {
    let fake = Fake::new();
    let mut a = open_at(&fake, 7);
    // As many ports may have it as there are subnets.
    let b = open_on(&fake, Port::infiniband(OTHER_SUBNET, 9));
    let expected = "the address of a queue pair in the InfiniBand subnet of this port";
    assert_eq!(refused(&fake, &mut a, &b), expected);
    let mut on_route = open_on(&fake, needing_a_route(8));
    assert_eq!(refused(&fake, &mut on_route, &b), expected, "a route is of no use without its first router");
}

#[test]
fn a_peer_over_another_link_layer_is_refused() {
    let fake = Fake::new();
    let (mut ethernet, mut infiniband) = (open(), open_at(&fake, 7));
    let expected = "the address of a queue pair over InfiniBand, version 1";
    assert_eq!(refused(&fake, &mut infiniband, &ethernet), expected);
    let expected = "the address of a queue pair over Ethernet, version 1";
    assert_eq!(refused(&fake, &mut ethernet, &infiniband), expected);
}

#[test]
fn frames_are_as_long_as_the_smaller_mtu() {
    let fake = Fake::new();
    let mut a = open_at(&fake, 7);
    let mut b = open_on(&fake, Port { mtu: 4, ..Port::infiniband(SUBNET, 9) });
    assert_eq!((a.caps().frame_bytes_max, b.caps().frame_bytes_max), (4096, 2048));
    let (to_b, to_a) =
        (a.resolve(&b.local_address()).expect("room"), b.resolve(&a.local_address()).expect("room"));
    assert_eq!(a.path(to_b).map(|path| path.frame_bytes_max), Some(2048));
    assert_eq!(b.path(to_a).map(|path| path.frame_bytes_max), Some(2048));
    for bytes in [2048, 2049] {
        a.lease().expect("few are used")[..bytes].copy_from_slice(&frame(1, bytes));
        a.commit(to_b, bytes, Payload::EMPTY);
    }
    assert_eq!(a.flush(), Ok(1));
    assert_eq!(a.counters().lost_too_long, 1);
    assert!(received(&mut b) == [frame(1, 2048)]);
}
