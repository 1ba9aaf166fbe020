//! A thousand peers: their cost while they are idle, and that none is lost for want of descriptors when they
//! are not.

use std::net::UdpSocket;
use std::ptr::null_mut;

use crate::processes::{Peer, at, is_child, say};
use crate::rig::{ADDRESS_BYTES, Rig, accepted, pair};

const PEERS: u64 = 1000;

/// The address of an endpoint that does not exist: an id, and a UDP socket on this host.
fn address(number: u64, place: u16) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..2].copy_from_slice(b"S\x02");
    bytes[2..10].copy_from_slice(&(0b01 << 62 | number).to_le_bytes());
    bytes[10..13].copy_from_slice(&[10, 2, 2]);
    bytes[13..15].copy_from_slice(&place.to_le_bytes());
    bytes[17..21].copy_from_slice(&[127, 0, 0, 1]);
    bytes
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The child, whose memory and descriptors are its own: inserts, names as sources, and speaks to so many.
fn acquainted() {
    let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: fewer descriptors for this process alone.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let place = sink.local_addr().unwrap().port();
    let rig = Rig::new();
    let mut byte = [0u8; 1];
    let start = resident_bytes();
    let numbers: Vec<u64> = (0..PEERS).map(|number| rig.insert(&address(number, place))).collect();
    let inserted = resident_bytes();
    for number in &numbers {
        // SAFETY: the buffer outlives the endpoint.
        accepted(&[], || unsafe {
            (rig.plain().recv)(rig.ep, byte.as_mut_ptr().cast(), 1, null_mut(), *number, at(1))
        });
    }
    let linked = resident_bytes();
    for number in &numbers {
        // SAFETY: injected bytes are copied at once.
        accepted(&[], || unsafe { (rig.plain().inject)(rig.ep, b"x".as_ptr().cast(), 1, *number) });
    }
    let contacted = resident_bytes();
    let each = |more: u64, less: u64| more.saturating_sub(less) / PEERS;
    say(&format!(
        "{} {} {} {}",
        each(inserted, start),
        each(linked, inserted),
        each(contacted, linked),
        descriptors()
    ));
    // Ends without closing: no peer will ever answer.
    std::process::exit(0);
}

#[test]
fn a_thousand_peers_cost_little_until_they_are_spoken_to() {
    if is_child() {
        return acquainted();
    }
    let mut peer = Peer::start("many::a_thousand_peers_cost_little_until_they_are_spoken_to");
    let said = peer.hear();
    println!(
        "bytes for a peer that is inserted, named as a source besides, spoken to besides; descriptors: {said}"
    );
    let figures: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
    assert!(figures[0] <= 1 << 10, "inserted: {said}");
    assert!(figures[1] <= 4 << 10, "named as a source: {said}");
    assert!(figures[3] < 1024, "descriptors: {said}");
    drop(pair());
}
