//! The UDP driver's behaviour beyond the contract of every driver: the number of its system calls, offloads,
//! path limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
use drivers::{Driver, DriverError, Payload};
use transport::{AddressId, RawAddress};

fn open(bind: &str) -> UdpDriver {
    UdpDriver::open(&UdpConfig::new(bind.parse().expect("an address"))).expect("a socket on loopback")
}

/// Two rails on loopback, and how the first knows the second.
fn pair() -> (UdpDriver, UdpDriver, AddressId) {
    let (mut a, b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let to = a.resolve(&b.local_address()).expect("a loopback address");
    (a, b, to)
}

fn stage(driver: &mut UdpDriver, to: AddressId, head: &[u8], payload: Payload) {
    let buffer = driver.lease().expect("a free buffer");
    buffer[..head.len()].copy_from_slice(head);
    driver.commit(to, head.len(), payload);
}

fn collect(driver: &mut UdpDriver, frames: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut all = Vec::new();
    while all.len() < frames && Instant::now() < deadline {
        driver.receive(frames - all.len(), &mut |frame| all.push(frame.to_vec())).expect("a live socket");
    }
    all
}

#[test]
fn a_ping_pong_costs_one_send_and_one_receive_per_message() {
    let (mut a, mut b, to_b) = pair();
    let to_a = b.resolve(&a.local_address()).expect("a loopback address");
    for round in 0..100u64 {
        stage(&mut a, to_b, &round.to_le_bytes(), Payload::EMPTY);
        assert_eq!(a.flush(), Ok(1));
        assert_eq!(collect(&mut b, 1), [round.to_le_bytes()]);
        b.receive(64, &mut |_| panic!("only one was sent")).expect("a live socket");
        stage(&mut b, to_a, &round.to_le_bytes(), Payload::EMPTY);
        assert_eq!(b.flush(), Ok(1));
        assert_eq!(collect(&mut a, 1), [round.to_le_bytes()]);
        a.receive(64, &mut |_| panic!("only one was sent")).expect("a live socket");
    }
    for counters in [a.counters(), b.counters()] {
        assert_eq!((counters.send_calls, counters.receive_calls), (100, 100));
    }
}

#[test]
fn frames_of_one_size_leave_in_one_call_and_arrive_one_by_one() {
    let (mut a, mut b, to) = pair();
    let user: Arc<Vec<u8>> = Arc::new((0..=255).cycle().take(64 * 900).collect());
    // The first burst shows the receiver that coalescing pays.
    for burst in 0..2 {
        let calls = (a.counters().send_calls, b.counters().receive_calls);
        for i in 0..64u8 {
            let at = usize::from(i) * 900;
            let payload = Payload::shared(&user, at..at + if i == 63 { 500 } else { 900 }).expect("in range");
            stage(&mut a, to, &[i; 80], payload);
        }
        assert_eq!(a.flush(), Ok(64));
        let frames = collect(&mut b, 64);
        assert_eq!(frames.len(), 64);
        for (i, frame) in frames.iter().enumerate() {
            assert!(frame[..80].iter().all(|byte| usize::from(*byte) == i));
            assert_eq!(frame[80..], user[i * 900..i * 900 + frame.len() - 80]);
        }
        if a.offloads().0 {
            assert!(a.counters().send_calls - calls.0 <= 2, "{:?}", a.counters());
        }
        if burst == 1 && b.offloads().1 {
            assert!(b.counters().receive_calls - calls.1 <= 4, "{:?}", b.counters());
        }
    }
}

#[test]
fn addresses_that_nobody_can_be_at_are_refused() {
    let mut v4 = open("127.0.0.1:0");
    for text in ["127.0.0.1:0", "0.0.0.0:4000", "[::1]:4000"] {
        let address = RawAddress::from(text.parse::<UdpAddress>().expect("an address"));
        let error = v4.resolve(&address).expect_err(text);
        assert!(matches!(error, DriverError::AddressUnusable { .. }), "{text}: {error}");
    }
    let wildcard = UdpConfig::new("0.0.0.0:0".parse().expect("an address"));
    assert_eq!(UdpDriver::open(&wildcard).err(), Some(DriverError::NoOwnAddress));
}

#[test]
fn no_path_takes_more_than_a_lease_holds() {
    // The advertised address is another host's, as behind an address translation, and so is the way there.
    let config = UdpConfig {
        advertise: Some("203.0.113.1".parse().expect("an address")),
        ..UdpConfig::new("0.0.0.0:0".parse().expect("an address"))
    };
    let mut rail = UdpDriver::open(&config).expect("a socket");
    let longest = rail.caps().frame_bytes_max;
    let near = RawAddress::from("127.0.0.1:4000".parse::<UdpAddress>().expect("an address"));
    let to = rail.resolve(&near).expect("loopback");
    assert!(rail.path(to).expect("resolved").frame_bytes_max <= longest);
    assert_eq!(rail.lease().expect("a free buffer").len(), longest);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = open("127.0.0.1:0");
    let error = UdpDriver::open(&UdpConfig::new(taken.own_address())).err().expect("in use");
    assert_eq!(
        error.to_string(),
        "cannot open the rail: binding the receive socket failed (Address already in use (os error 98)); \
         check address, port and permissions"
    );
}

#[test]
fn loopback_takes_the_largest_datagram() {
    let (mut a, mut b, to) = pair();
    assert_eq!(a.path(to).expect("resolved").frame_bytes_max, 65_507);
    assert!(a.path(to).expect("resolved").on_host);
    let user = Arc::new(vec![7u8; 65_507 - 80]);
    stage(&mut a, to, &[1; 80], Payload::shared(&user, 0..user.len()).expect("in range"));
    assert_eq!(a.flush(), Ok(1));
    assert_eq!(collect(&mut b, 1)[0].len(), 65_507);
}
