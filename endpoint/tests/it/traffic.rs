//! Endpoints over real sockets: messages of all sizes, while the port is frozen and thawed under them.
#![expect(clippy::cast_possible_truncation, reason = "test data")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use transport::{
    Epoch, Event, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, Receive,
    SendError, Space,
};

const KEY: JobKey = JobKey([9; 16]);

fn open(rank: u32) -> Endpoint {
    open_with(rank, 1)
}

fn open_with(rank: u32, rails: usize) -> Endpoint {
    open_as(rank, rails, EndpointConfig::default())
}

fn open_as(rank: u32, rails: usize, settings: EndpointConfig) -> Endpoint {
    let life = Life { counter: 1, nonce: 5 };
    let config = PortConfig::new(JobId(1).tag());
    let port = Port::new(config, PortId::of_rank(Rank(rank), 0), life, Epoch(0), Some(&KEY));
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let rails = (0..rails)
        .map(|_| Box::new(UdpDriver::open(&UdpConfig::new(here)).expect("a socket")) as Box<dyn Driver>)
        .collect();
    Endpoint::open(port, rails, settings).expect("an endpoint")
}

fn payload(i: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (i as usize * 7 + at * 13) as u8).collect()
}

fn size(i: u64) -> usize {
    match i % 5 {
        0 => 8,
        1 => 4000,
        2 => 100_000,
        3 => 0,
        _ => 300,
    }
}

fn outgoing(tag: u64) -> Outgoing {
    Outgoing { space: Space(0), tag, data: 0, context: tag, silent: false }
}

fn receive(tag: u64, bytes_max: u64) -> Receive {
    Receive { space: Space(0), source: None, tag, ignore: 0, bytes_max, context: tag, multi: None }
}

fn send(endpoint: &Endpoint, link: LinkIndex, i: u64) {
    let bytes = payload(i, size(i));
    while !endpoint.can_send(link, bytes.len()) {
        endpoint.progress();
    }
    if bytes.len() <= endpoint.copied_bytes_max() {
        endpoint.send(link, outgoing(i), SendBuffer::Copied(&bytes)).expect("there is room");
    } else {
        endpoint.send(link, outgoing(i), SendBuffer::Owned(bytes)).expect("there is room");
    }
}

#[test]
fn messages_arrive_while_both_ends_are_frozen_and_thawed() {
    const MESSAGES: u64 = 2000;
    let (a, b) = (open(0), open(1));
    let to_b = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for end in [&a, &b] {
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let frozen = end.freeze(Duration::from_secs(1)).expect("nothing to wait for");
                    drop(frozen);
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        }
        scope.spawn(|| {
            for i in 0..MESSAGES {
                send(&a, to_b, i);
            }
            let started = Instant::now();
            while !a.with_port(Port::is_settled) {
                a.wait(Duration::from_millis(1));
                while a.poll().is_some() {}
                assert!(started.elapsed() < Duration::from_secs(30), "unacknowledged for ever");
            }
        });
        let started = Instant::now();
        for i in 0..MESSAGES {
            b.post_receive(receive(i, 200_000), ReceiveBuffer::Owned(vec![0; 200_000])).expect("room");
            'this: loop {
                assert!(started.elapsed() < Duration::from_secs(60), "message {i} does not come");
                while let Some(completion) = b.poll() {
                    if let Completion::Received { tag, bytes, buffer: Some(buffer), .. } = completion {
                        assert_eq!((tag, bytes), (i, size(i) as u64));
                        assert_eq!(buffer[..size(i)], payload(i, size(i)));
                        break 'this;
                    }
                }
                b.wait(Duration::from_millis(1));
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_program_that_computes_is_acknowledged_by_its_helper() {
    let (a, b) = (open(0), open(1));
    let to_b = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
    b.post_receive(receive(0, 100), ReceiveBuffer::Owned(vec![0; 100])).expect("room");
    a.send(to_b, outgoing(0), SendBuffer::Copied(b"ping")).expect("room");
    // `b` never polls.
    let started = Instant::now();
    loop {
        if let Some(Completion::SendDone { .. }) = a.poll() {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "nobody acknowledges");
    }
}

#[test]
fn closing_waits_for_the_last_acknowledgement() {
    let (a, b) = (open(0), open(1));
    let to_b = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
    for i in 0..20 {
        a.send(to_b, outgoing(i), SendBuffer::Copied(b"bye")).expect("room");
    }
    let counters = a.close(Duration::from_secs(5)).expect("b acknowledges");
    assert_eq!(counters.len(), 1);
    assert_eq!(counters[0].next, 21, "twenty messages and the close");
}

/// R24: a message is spread over the rails, and each of them carries a part.
#[test]
fn two_rails_share_the_work() {
    let (a, b) = (open_with(0, 2), open_with(1, 2));
    let to_b = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
    let bytes = payload(3, 4 << 20);
    b.post_receive(receive(3, 8 << 20), ReceiveBuffer::Owned(vec![0; 8 << 20])).expect("room");
    a.send(to_b, outgoing(3), SendBuffer::Owned(bytes.clone())).expect("room");
    let started = Instant::now();
    loop {
        while a.poll().is_some() {}
        if let Some(Completion::Received { buffer: Some(buffer), .. }) = b.poll() {
            assert_eq!(buffer[..bytes.len()], bytes);
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "the message does not come");
    }
    let frames = a.frames_by_rail();
    assert!(frames.iter().all(|frames| *frames >= 8), "frames by rail: {frames:?}");
}

/// R37: nothing waits for a rank without which the job goes on; what it had sent is still there.
#[test]
fn operations_with_a_lost_rank_end_also_over_links_that_are_made_later() {
    // No helper thread takes its frames in between.
    let by_hand = EndpointConfig { helper: false, ..EndpointConfig::default() };
    let (a, b) = (open_as(0, 1, by_hand), open(1));
    let to_b = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
    let to_a = b.connect(PortId::of_rank(Rank(0), 0), &a.addresses()).expect("reachable");
    send(&b, to_a, 0);
    let started = Instant::now();
    while !matches!(b.poll(), Some(Completion::SendDone { .. })) {
        a.progress();
        assert!(started.elapsed() < Duration::from_secs(20), "message 0 has not arrived");
    }
    let from_b = |link, tag| {
        a.post_receive(
            Receive { source: Some(link), ..receive(tag, 100) },
            ReceiveBuffer::Owned(vec![0; 100]),
        )
    };
    from_b(to_b, 1).expect("room");
    let addresses = b.addresses();
    // Nobody looks for it before the loss is known.
    send(&b, to_a, 5);
    drop(b);
    a.lose_rank(Rank(1));
    let ended = || core::iter::from_fn(|| a.poll()).collect::<Vec<_>>();
    let ends = ended();
    assert!(
        matches!(
            ends[..],
            [Completion::Report(Event::PeerLost { .. }), Completion::ReceiveFailed { context: 1, .. }]
        ),
        "{ends:?}"
    );
    for tag in [0, 5] {
        from_b(to_b, tag).expect("it was there before");
        assert!(matches!(ended()[..], [Completion::Received { context, .. }] if context == tag), "{tag}");
    }
    from_b(to_b, 2).expect("it is accepted");
    assert!(matches!(ended()[..], [Completion::ReceiveFailed { context: 2, .. }]));
    assert!(matches!(a.send(to_b, outgoing(3), SendBuffer::Copied(&[3])), Err(SendError::Broken { .. })));
    // A port of it that nobody had been in touch with.
    let later = a.connect(PortId::of_rank(Rank(1), 1), &addresses).expect("a link");
    assert!(matches!(ended()[..], [Completion::Report(Event::PeerLost { link, .. })] if link == later));
    assert!(matches!(a.send(later, outgoing(4), SendBuffer::Copied(&[4])), Err(SendError::Broken { .. })));
}
