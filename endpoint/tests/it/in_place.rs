//! Endpoints that are frozen and continue in a new life, in the same memory, on new rails (R5, R7, R10). A
//! restored process does the same with its ports. Messages of all lengths are under way meanwhile; none is
//! lost, doubled or changed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use crate::support::{End, exchange, id, post_rest, settle};
use drivers::Driver;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Endpoint, EndpointConfig, Frozen, SendBuffer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use transport::{Epoch, JobId, JobKey, Life, Outgoing, Port, PortConfig, Rank, Restart, Space};

const LIMIT: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(1);
const LIVES: u32 = 12;
/// Of each side, in each life.
const MESSAGES: u64 = 30;
/// Bytes of messages, in turn.
const LENGTHS: [u64; 6] = [8, 5000, 1_500_000, 70_000, 300_001, 0];

fn rails(count: usize) -> Vec<Box<dyn Driver>> {
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let udp: Box<dyn Driver> = Box::new(UdpDriver::open(&UdpConfig::new(here)).expect("a socket"));
    let shm =
        || -> Box<dyn Driver> { Box::new(ShmDriver::open(&ShmConfig::default()).expect("memory and /proc")) };
    if count == 2 { vec![shm(), udp] } else { vec![udp] }
}

fn open(rank: u32, count: usize, helper: bool) -> Endpoint {
    let life = Life { counter: 1, nonce: 5 };
    let config = PortConfig::new(JobId(1).tag());
    let port = Port::new(config, id(rank), life, Epoch(0), Some(&JobKey([9; 16])));
    Endpoint::open(port, rails(count), EndpointConfig { helper, ..EndpointConfig::default() })
        .expect("an endpoint")
}

fn connected(a: &Endpoint, b: &Endpoint) -> [End; 2] {
    [(0, a, b), (1, b, a)].map(|(rank, endpoint, other)| {
        let link = endpoint.connect(id(1 - rank), &other.addresses()).expect("reachable");
        End::new(rank, endpoint.clone(), link, LENGTHS)
    })
}

fn restart(frozen: Frozen<'_>, life: u32, count: usize) {
    let restart = Restart {
        key: Some(JobKey([life.to_le_bytes()[0]; 16])),
        ..Restart::in_life(Life { counter: life, nonce: 5 })
    };
    frozen.restart(rails(count), restart).expect("rails");
}

#[test]
fn messages_survive_new_lives_in_place() {
    let (a, b) = (open(0, 2, true), open(1, 2, true));
    let mut ends = connected(&a, &b);
    let asleep = a.descriptor().expect("a descriptor");
    for life in 2..LIVES + 2 {
        let before = u64::from(life) % 7 * 4;
        exchange(&mut ends, MESSAGES, before);
        for _ in 0..life * 3 {
            ends.iter_mut().for_each(End::poll);
        }
        let mut frozen = [&a, &b].map(|end| end.freeze(DRAIN).expect("nothing is held"));
        let (descriptors, mappings) = frozen[0].system();
        assert!(!descriptors.is_empty() && (mappings.is_empty() == (life > 2 && life % 3 == 0)));
        frozen.iter_mut().for_each(|end| end.port_mut().set_epoch(Epoch(life)));
        // Now and then without shared memory, as on hosts of their own.
        let count = if (life + 1) % 3 == 0 { 1 } else { 2 };
        frozen.into_iter().for_each(|end| restart(end, life, count));
        for end in &ends {
            let other = if end.rank == 0 { &b } else { &a };
            let link = end.endpoint.connect(id(1 - end.rank), &other.addresses()).expect("reachable");
            assert_eq!(link, end.link, "a link keeps its index");
        }
        post_rest(&ends, MESSAGES, before);
        settle(&mut ends, LIMIT, &format!("life {life}"));
    }
    // A thread that slept on a descriptor before all this is woken by the newest rails, unless the helper is there
    // first.
    while a.poll().is_some() || b.poll().is_some() {}
    let link = ends[1].link;
    let mut woken = false;
    for tag in 0..20 {
        if !a.prepare_sleep() {
            continue;
        }
        let outgoing = Outgoing { space: Space(0), tag, data: 0, context: 0, silent: true };
        b.send(link, outgoing, SendBuffer::Copied(b"wake up")).expect("room");
        let mut ready = [PollFd::new(asleep.as_fd(), PollFlags::POLLIN)];
        woken |= poll(&mut ready, PollTimeout::from(500u16)) == Ok(1);
        while a.poll().is_some() || b.poll().is_some() {}
        if woken {
            break;
        }
    }
    assert!(woken, "{}", asleep.as_raw_fd());
}

/// One end goes on elsewhere, on other rails, while the other runs and hears of it later (R13).
#[test]
fn messages_survive_the_moves_of_one_end() {
    let (a, b) = (open(0, 2, true), open(1, 2, true));
    let mut ends = connected(&a, &b);
    for moves in 1..=LIVES {
        let before = u64::from(moves) % 7 * 4;
        exchange(&mut ends, MESSAGES, before);
        for _ in 0..moves * 3 {
            ends.iter_mut().for_each(End::poll);
        }
        let frozen = a.freeze(DRAIN).expect("nothing is held");
        for _ in 0..moves * 5 {
            ends[1].poll();
        }
        // Now and then to another host, without shared memory.
        let count = if moves % 3 == 0 { 1 } else { 2 };
        frozen.go_on_elsewhere(rails(count), moves, None).expect("rails");
        a.connect(id(1), &b.addresses()).expect("reachable");
        let (news, at) = (Rank(0), [(id(0), a.addresses())]);
        for _ in 0..moves * 7 {
            ends.iter_mut().for_each(End::poll);
        }
        assert!(b.peer_moved(news, moves, &at).expect("a way"));
        assert!(!b.peer_moved(news, moves, &at).expect("a way"), "told twice");
        post_rest(&ends, MESSAGES, before);
        settle(&mut ends, LIMIT, &format!("move {moves}"));
    }
    assert!(a.with_port(|port| port.counters().dropped_life) < 1000 && b.poll().is_none());
}

/// The receiver has everything, and the sender does not know yet: nothing of the payload is sent again on the new rail, whose frames are counted
/// from zero. (Over shared memory payloads are pulled.)
#[test]
fn a_send_that_is_over_but_for_its_acknowledgement_completes_in_the_new_life() {
    let (a, b) = (open(0, 1, false), open(1, 1, false));
    let link = a.connect(id(1), &b.addresses()).expect("reachable");
    b.connect(id(0), &a.addresses()).expect("reachable");
    let mut ends =
        [(0, a.clone()), (1, b.clone())].map(|(rank, endpoint)| End::new(rank, endpoint, link, LENGTHS));
    let started = Instant::now();
    // Many frames on the old rail.
    for i in 0..500 {
        ends[0].send();
        ends[1].post(i);
        while ends[1].received <= i || ends[0].done <= i {
            ends.iter_mut().for_each(End::poll);
            assert!(started.elapsed() < LIMIT, "message {i}");
        }
    }
    // A long one, without the last acknowledgement: it is sent until the receiver has it all.
    ends[0].sent = 502;
    ends[1].post(502);
    ends[0].send();
    while ends[1].received == 500 {
        ends[1].poll();
        if ends[1].received == 500 {
            ends[0].poll();
        }
        assert!(started.elapsed() < LIMIT, "the long one");
    }
    let done = ends[0].done;
    for frozen in [&a, &b].map(|end| end.freeze(DRAIN).expect("nothing is held")) {
        restart(frozen, 2, 1);
    }
    a.connect(id(1), &b.addresses()).expect("reachable");
    b.connect(id(0), &a.addresses()).expect("reachable");
    while ends[0].done == done {
        ends.iter_mut().for_each(End::poll);
        assert!(started.elapsed() < LIMIT, "the send is over, and nobody says so");
    }
}
