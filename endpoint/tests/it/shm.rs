//! Endpoints over shared memory: bulk in frames and bulk that is pulled, while both ends are frozen and thawed; sleeping
//! on sockets and shared memory at one time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use transport::config::AuthLevel;
use transport::{
    Epoch, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, RawAddress, Receive,
    Space,
};

const LIMIT: Duration = Duration::from_secs(60);

fn shm(pull: bool) -> Box<dyn Driver> {
    Box::new(ShmDriver::open(&ShmConfig { pull, ..ShmConfig::default() }).expect("memory and /proc"))
}

fn udp() -> Box<dyn Driver> {
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    Box::new(UdpDriver::open(&UdpConfig::new(here)).expect("a socket"))
}

fn open(rank: u32, auth: AuthLevel, rails: Vec<Box<dyn Driver>>, helper: bool) -> Endpoint {
    let config = PortConfig { auth, ..PortConfig::new(JobId(1).tag()) };
    let life = Life { counter: 1, nonce: 5 };
    let port = Port::new(config, PortId::of_rank(Rank(rank), 0), life, Epoch(0), Some(&JobKey([9; 16])));
    let config = EndpointConfig { helper, ..EndpointConfig::default() };
    Endpoint::open(port, rails, config).expect("an endpoint")
}

fn link(from: &Endpoint, rank: u32, to: &Endpoint) -> LinkIndex {
    from.connect(PortId::of_rank(Rank(rank), 0), &to.addresses()).expect("reachable")
}

fn payload(i: u64) -> Vec<u8> {
    let bytes = [8, 5000, 1_500_000, 70_000, 300_001][usize::try_from(i % 5).expect("small")];
    (0..bytes).map(|at: u64| (i * 7 + at * 13 + at / 256).to_le_bytes()[0]).collect()
}

fn send(endpoint: &Endpoint, link: LinkIndex, i: u64) {
    let (bytes, started) = (payload(i), Instant::now());
    while !endpoint.can_send(link, bytes.len().min(endpoint.copied_bytes_max())) {
        endpoint.progress();
        assert!(started.elapsed() < LIMIT, "no room for message {i}");
    }
    let outgoing = Outgoing { space: Space(0), tag: i, data: 0, context: i, silent: false };
    let buffer = if bytes.len() <= endpoint.copied_bytes_max() {
        SendBuffer::Copied(&bytes)
    } else {
        SendBuffer::Owned(bytes)
    };
    endpoint.send(link, outgoing, buffer).expect("there is room");
}

fn receive(endpoint: &Endpoint, i: u64) {
    let receive = Receive {
        space: Space(0),
        source: None,
        tag: i,
        ignore: 0,
        bytes_max: 2 << 20,
        context: i,
        multi: None,
    };
    endpoint.post_receive(receive, ReceiveBuffer::Owned(vec![0; 2 << 20])).expect("room");
    let started = Instant::now();
    loop {
        assert!(
            started.elapsed() < LIMIT,
            "message {i} does not come: {:?}",
            endpoint.with_port(|port| *port.counters())
        );
        while let Some(completion) = endpoint.poll() {
            if let Completion::Received { tag, bytes, buffer: Some(buffer), .. } = completion {
                let expected = payload(i);
                assert_eq!((tag, bytes), (i, expected.len() as u64));
                assert!(buffer[..expected.len()] == expected, "message {i} was altered");
                return;
            }
        }
        endpoint.wait(Duration::from_millis(1));
    }
}

/// Sends through freezes of both ends, which come between the pieces of a pulled payload, and wait for no peer.
fn under_freezes(auth: AuthLevel, pull: bool) {
    const MESSAGES: u64 = 150;
    let (a, b) = (open(0, auth, vec![shm(pull)], true), open(1, auth, vec![shm(pull)], true));
    let to_b = link(&a, 1, &b);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for end in [&a, &b] {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    drop(end.freeze(Duration::ZERO).expect("draining waits for nobody"));
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        scope.spawn(|| {
            (0..MESSAGES).for_each(|i| send(&a, to_b, i));
            let started = Instant::now();
            while !a.with_port(Port::is_settled) {
                a.wait(Duration::from_millis(1));
                while a.poll().is_some() {}
                assert!(started.elapsed() < LIMIT, "unacknowledged for ever");
            }
        });
        (0..MESSAGES).for_each(|i| receive(&b, i));
        done.store(true, Ordering::Relaxed);
    });
    let counters = b.with_port(|port| *port.counters());
    assert_eq!(counters.dropped_malformed, 0);
    let long = (0..MESSAGES).filter(|i| payload(*i).len() > a.copied_bytes_max()).count() as u64;
    assert_eq!(counters.messages_pulled, if pull { long } else { 0 });
}

#[test]
fn bulk_in_frames_arrives_under_freezes() {
    under_freezes(AuthLevel::Off, false);
}

#[test]
fn bulk_that_is_pulled_arrives_under_freezes() {
    under_freezes(AuthLevel::Header, true);
}

/// R24: peers meet in shared memory where both have it, in any order of their rails, and over UDP otherwise.
#[test]
fn peers_find_the_rail_that_they_share() {
    let a = open(0, AuthLevel::Full, vec![udp(), shm(true)], true);
    let b = open(1, AuthLevel::Full, vec![shm(true), udp()], true);
    let c = open(2, AuthLevel::Full, vec![udp()], true);
    let (to_b, to_c) = (link(&a, 1, &b), link(&a, 2, &c));
    let _ = (link(&b, 0, &a), link(&c, 0, &a));
    for i in 0..10 {
        send(&a, to_b, i);
        receive(&b, i);
    }
    let frames = a.frames_by_rail();
    assert!(frames[0] == 0 && frames[1] > 10, "{frames:?}");
    for i in 0..10 {
        send(&a, to_c, i);
        receive(&c, i);
    }
    assert!(a.frames_by_rail()[0] > 10);
    assert_eq!(b.with_port(|port| port.counters().dropped_tag), 0);
}

/// R24: nothing is lost or doubled while links are handed from one rail to another and back, under traffic and freezes.
#[test]
fn links_are_handed_over_under_traffic() {
    const MESSAGES: u64 = 300;
    let rails = || vec![shm(true), udp()];
    let (a, b) = (open(0, AuthLevel::Header, rails(), true), open(1, AuthLevel::Header, rails(), true));
    let to_b = link(&a, 1, &b);
    let _ = link(&b, 0, &a);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for end in [&a, &b] {
            let done = &done;
            scope.spawn(move || {
                for round in 0.. {
                    end.use_rail(0, round % 2 == 1);
                    drop(end.freeze(Duration::from_secs(1)).expect("draining waits for nobody"));
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        scope.spawn(|| (0..MESSAGES).for_each(|i| send(&a, to_b, i)));
        (0..MESSAGES).for_each(|i| receive(&b, i));
        done.store(true, Ordering::Relaxed);
    });
    let frames = a.frames_by_rail();
    assert!(frames.iter().all(|frames| *frames > 100), "both were used: {frames:?}");
}

/// A peer whose segment has gone is still reached over the network, while others stay in shared memory.
#[test]
fn a_peer_without_its_segment_is_reached_over_udp() {
    let (a, b) = (
        open(0, AuthLevel::Header, vec![shm(true), udp()], true),
        open(1, AuthLevel::Header, vec![udp()], true),
    );
    let gone = ShmDriver::open(&ShmConfig::default()).expect("memory and /proc").local_address();
    let to_b = a.connect(PortId::of_rank(Rank(1), 0), &[gone, b.addresses()[0]]).expect("reachable");
    let _ = link(&b, 0, &a);
    // The rail as a whole works: it receives from another peer all the time.
    let c = open(2, AuthLevel::Header, vec![shm(true)], true);
    let (to_c, _) = (link(&a, 2, &c), link(&c, 0, &a));
    let reached = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (mut i, started) = (0, Instant::now());
            while !reached.load(Ordering::Relaxed) && started.elapsed() < LIMIT {
                send(&a, to_c, i);
                receive(&c, i);
                while a.poll().is_some() {}
                i += 1;
            }
        });
        for i in 0..5 {
            send(&a, to_b, i);
            receive(&b, i);
        }
        reached.store(true, Ordering::Relaxed);
        others.join().expect("the peer in shared memory is served all the time");
    });
}

#[test]
fn a_sleeper_wakes_for_either_kind_of_rail() {
    let rails = || vec![udp(), shm(true)];
    let b = open(1, AuthLevel::Header, rails(), false);
    for only in 0..2 {
        let c = open(2 + only, AuthLevel::Header, rails(), false);
        // Reached over one rail only.
        let mut addresses = b.addresses();
        addresses[usize::from(only == 0)] = RawAddress::NONE;
        let to_b = c.connect(PortId::of_rank(Rank(1), 0), &addresses).expect("reachable");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| receive(&b, 0));
            std::thread::sleep(Duration::from_millis(20));
            send(&c, to_b, 0);
            let started = Instant::now();
            while !sleeper.is_finished() {
                c.progress();
                assert!(started.elapsed() < LIMIT, "rail {only} woke nobody");
            }
        });
    }
}

/// A socket that has been quiet for long is looked at more rarely, but always after a sleep that it may have ended.
#[test]
fn the_first_round_after_a_sleep_looks_at_every_rail() {
    let (b, c) = (
        open(1, AuthLevel::Header, vec![shm(true), udp()], false),
        open(2, AuthLevel::Header, vec![udp()], false),
    );
    let to_b = link(&c, 1, &b);
    for i in 0..8 {
        for _ in 0..1000 {
            b.progress();
        }
        assert!(b.prepare_sleep());
        let known = b.with_port(|port| port.counters().frames_received);
        send(&c, to_b, 5 * i);
        // Loopback has delivered when the call returns, or soon after.
        std::thread::sleep(Duration::from_millis(5));
        b.progress();
        assert!(b.with_port(|port| port.counters().frames_received) > known, "message {i}");
        receive(&b, 5 * i);
    }
}

#[test]
fn a_program_that_computes_is_acknowledged_by_its_helper() {
    let (a, b) =
        (open(0, AuthLevel::Off, vec![shm(true)], false), open(1, AuthLevel::Off, vec![shm(true)], true));
    let to_b = link(&a, 1, &b);
    let receive = Receive {
        space: Space(0),
        source: None,
        tag: 2,
        ignore: 0,
        bytes_max: 2 << 20,
        context: 0,
        multi: None,
    };
    b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 2 << 20])).expect("room");
    send(&a, to_b, 2);
    // `b` never polls.
    let started = Instant::now();
    while !matches!(a.poll(), Some(Completion::SendDone { .. })) {
        assert!(started.elapsed() < LIMIT, "nobody pulls and acknowledges");
    }
}

/// A segment has rings for so many senders.
const RINGS: usize = 256;

#[test]
fn senders_beyond_the_rings_of_a_receiver_reach_it_over_the_other_rail_at_once() {
    const LATE: u32 = 3;
    const MESSAGES: u64 = 200;
    // All these rails are one process's here, which has more descriptors than are allowed by default.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit");
    let both = || vec![shm(true), udp()];
    let b = open(0, AuthLevel::Header, both(), true);
    let crowd: Vec<ShmDriver> = (0..RINGS)
        .map(|_| {
            let mut rail = ShmDriver::open(&ShmConfig::default()).expect("memory and /proc");
            let to = rail.resolve(&b.addresses()[0]).expect("this host");
            rail.lease().expect("room")[0] = 1;
            rail.commit(to, 1, drivers::Payload::EMPTY);
            assert_eq!(rail.flush(), Ok(1), "there is a ring for each of {RINGS}");
            rail
        })
        .collect();
    for rank in 1..=LATE {
        let a = open(rank, AuthLevel::Header, both(), true);
        let to_b = link(&a, 0, &b);
        for i in 0..MESSAGES {
            // Short ones only: messages that are lost with the first of them are retransmitted.
            let outgoing = Outgoing { space: Space(0), tag: i, data: 0, context: i, silent: false };
            a.send(to_b, outgoing, SendBuffer::Copied(&payload(0))).expect("there is room");
            let receive = Receive {
                space: Space(0),
                source: None,
                tag: i,
                ignore: 0,
                bytes_max: 8,
                context: i,
                multi: None,
            };
            b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 8])).expect("room");
            let started = Instant::now();
            while !matches!(b.poll(), Some(Completion::Received { .. })) {
                assert!(started.elapsed() < LIMIT, "message {i} of {rank} does not come");
                while a.poll().is_some() {}
            }
        }
        let frames = a.frames_by_rail();
        assert!(frames[0] <= 2, "rank {rank} tried {} frames where there is no ring", frames[0]);
        assert!(frames[1] >= MESSAGES, "{frames:?}");
    }
    drop(crowd);
}
