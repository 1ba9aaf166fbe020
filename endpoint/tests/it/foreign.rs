//! Functions for a user of the endpoint with foreign buffers and without a keeper: borrowed memory, claims, an
//! attendant, and leaving.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::fault::{FaultDriver, Faults, Rate};
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{
    BorrowedPayload, Completion, Endpoint, EndpointConfig, EndpointError, Linger, ReceiveBuffer, SendBuffer,
    ShutdownHooks,
};
use transport::matching::Pattern;
use transport::{
    Epoch, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, Receive, Space,
};

/// A keeper's answers about silent peers, and the ports for which the endpoint has reported a wait.
struct TestKeeper<F> {
    keeper: F,
    reported: Vec<Vec<PortId>>,
}

impl<F: FnMut(&[PortId]) -> Vec<(PortId, u64)>> ShutdownHooks for TestKeeper<F> {
    fn completed(&mut self, _: Completion) {}

    fn closed(&mut self, silent: &[PortId]) -> Vec<(PortId, u64)> {
        (self.keeper)(silent)
    }

    fn waiting(&mut self, waited: Duration, peers: &[PortId]) {
        assert!(waited >= WARN_AFTER);
        self.reported.push(peers.to_vec());
    }
}

fn asking<F: FnMut(&[PortId]) -> Vec<(PortId, u64)>>(keeper: F) -> TestKeeper<F> {
    TestKeeper { keeper, reported: Vec::new() }
}

/// There is no keeper.
fn nobody(_: &[PortId]) -> Vec<(PortId, u64)> {
    Vec::new()
}

const WARN_AFTER: Duration = Duration::from_millis(100);

fn linger(silence: Duration) -> Linger {
    Linger { silence, quiet: Duration::from_millis(2), warn_after: WARN_AFTER, most: DEADLINE }
}

/// Longest wait for anything here: the time that a busy machine may need, many times over.
const DEADLINE: Duration = Duration::from_secs(60);

fn open(rank: u32) -> Endpoint {
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    open_over(rank, Box::new(UdpDriver::open(&UdpConfig::new(here)).expect("a socket")))
}

fn open_over(rank: u32, rail: Box<dyn Driver>) -> Endpoint {
    let life = Life { counter: 1, nonce: 5 };
    let config = PortConfig::new(JobId(1).tag());
    let port = Port::new(config, PortId::of_rank(Rank(rank), 0), life, Epoch(0), Some(&JobKey([9; 16])));
    Endpoint::open(port, vec![rail], EndpointConfig::default()).expect("an endpoint")
}

fn pair() -> (Endpoint, Endpoint, LinkIndex) {
    let (a, b) = (open(0), open(1));
    let link = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
    (a, b, link)
}

fn outgoing(tag: u64) -> Outgoing {
    Outgoing { space: Space(0), tag, data: 0, context: tag, silent: false }
}

fn any(tag: u64) -> Pattern {
    Pattern { space: Space(0), source: None, tag, ignore: 0 }
}

fn next(endpoint: &Endpoint, other: &Endpoint) -> Completion {
    let started = Instant::now();
    loop {
        if let Some(completion) = endpoint.poll() {
            return completion;
        }
        other.progress();
        assert!(started.elapsed() < DEADLINE);
    }
}

#[test]
fn a_borrowed_payload_is_sent_from_where_it_lies() {
    let (a, b, link) = pair();
    let bytes: Vec<u8> = (0..=255).cycle().take(500_000).collect();
    // SAFETY: the bytes live, unwritten, until the end of the test.
    let borrowed = unsafe { BorrowedPayload::new(bytes.as_ptr(), bytes.len()) };
    a.send(link, outgoing(1), SendBuffer::Borrowed(borrowed)).expect("there is room");
    let receive = Receive {
        space: Space(0),
        source: None,
        tag: 1,
        ignore: 0,
        bytes_max: 500_000,
        context: 3,
        multi: None,
    };
    b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 500_000])).expect("there is room");
    let Completion::Received { context: 3, buffer: Some(received), .. } = next(&b, &a) else {
        panic!("the message first");
    };
    assert_eq!(received, bytes);
    assert!(matches!(next(&a, &b), Completion::SendDone { context: 1, buffer: None, .. }));
}

#[test]
fn a_claimed_message_is_received_or_thrown_away_once() {
    let (a, b, link) = pair();
    for payload in [b"first", b"other"] {
        a.send(link, outgoing(1), SendBuffer::Copied(payload)).expect("there is room");
    }
    let started = Instant::now();
    let first = loop {
        b.progress();
        if let Some((key, envelope)) = b.claim(&any(1)) {
            assert_eq!(envelope.bytes, 5);
            break key;
        }
        assert!(started.elapsed() < DEADLINE);
    };
    let other = loop {
        b.progress();
        if let Some((key, _)) = b.claim(&any(1)) {
            break key;
        }
        assert!(started.elapsed() < DEADLINE);
    };
    b.receive_claimed(first, 8, ReceiveBuffer::Owned(vec![0; 5])).expect("it was claimed");
    let Completion::Received { context: 8, buffer: Some(received), .. } = next(&b, &a) else {
        panic!("the claimed message");
    };
    assert_eq!(received, b"first");
    assert!(b.receive_claimed(first, 8, ReceiveBuffer::Owned(vec![0; 5])).is_err());
    assert!(b.discard(other));
    assert!(!b.discard(other));
    for _ in 0..2 {
        assert!(matches!(next(&a, &b), Completion::SendDone { .. }), "both senders are done");
    }
}

#[test]
fn the_attendant_is_called_while_the_program_is_elsewhere() {
    let (a, b, link) = pair();
    let seen = Arc::new(AtomicUsize::new(0));
    let receive =
        Receive { space: Space(0), source: None, tag: 1, ignore: 0, bytes_max: 5, context: 0, multi: None };
    b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 5])).expect("there is room");
    let attendant = {
        let (b, seen) = (b.clone(), seen.clone());
        move || {
            while b.take_completion().is_some() {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    assert!(b.attend(attendant));
    assert!(!b.attend(|| ()), "one attendant");
    a.send(link, outgoing(1), SendBuffer::Copied(b"hello")).expect("there is room");
    let started = Instant::now();
    while seen.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(started.elapsed() < DEADLINE, "the helper alone could have seen it");
    }
}

#[test]
fn leaving_waits_for_peers_that_live_and_gives_up_those_that_do_not() {
    let silence = Duration::from_millis(500);
    let (a, b, link) = pair();
    a.send(link, outgoing(1), SendBuffer::Copied(b"hello")).expect("there is room");
    // The helper of the other end acknowledges; its program does nothing.
    a.leave(linger(silence), &mut asking(nobody)).1.expect("the peer lives");
    assert!(b.peek(&any(1)).is_some(), "left before the message was there");

    let (a, b, link) = pair();
    drop(b);
    a.send(link, outgoing(1), SendBuffer::Copied(b"hello")).expect("there is room");
    let (counters, left) = a.leave(linger(silence), &mut asking(nobody));
    assert!(matches!(left, Err(EndpointError::Linger { links: 1, .. })), "{left:?}");
    assert_eq!(counters.len(), 1, "the keeper answers all the same (R12)");
}

/// R12: the last acknowledgement of all is lost, and the port that owed it has gone. Only its keeper can confirm it.
#[test]
fn a_keeper_answers_for_a_peer_whose_last_acknowledgement_is_lost() {
    let silence = Duration::from_millis(500);
    for kept in [true, false] {
        let here = UdpConfig::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        let rail = FaultDriver::new(UdpDriver::open(&here).expect("a socket"), Faults::NONE);
        let switch = rail.switch();
        let (a, b) = (open(0), open_over(1, Box::new(rail)));
        let link = a.connect(PortId::of_rank(Rank(1), 0), &b.addresses()).expect("reachable");
        a.send(link, outgoing(1), SendBuffer::Copied(b"hello")).expect("there is room");
        let started = Instant::now();
        while b.peek(&any(1)).is_none() {
            b.progress();
            assert!(started.elapsed() < DEADLINE, "the message does not come");
        }
        switch.set_faults(Faults { loss: Rate::percent(100), ..Faults::NONE });
        // Without a keeper it has to give up; with one it waits however long the other takes to leave.
        let silence = if kept { DEADLINE } else { silence };
        let closed = std::sync::OnceLock::new();
        let left = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (heard, left) = b.leave(linger(DEADLINE), &mut asking(nobody));
                left.expect("it has heard that its peer closes");
                let to_a = heard
                    .iter()
                    .find(|link| link.peer == PortId::of_rank(Rank(0), 0))
                    .expect("they have spoken");
                closed.set((PortId::of_rank(Rank(1), 0), to_a.expected)).expect("once");
                drop(b);
            });
            let keeper = |asked: &[PortId]| {
                assert!(asked.iter().all(|peer| *peer == PortId::of_rank(Rank(1), 0)), "{asked:?}");
                closed.get().filter(|_| kept && !asked.is_empty()).copied().into_iter().collect()
            };
            a.leave(linger(silence), &mut asking(keeper)).1
        });
        match left {
            Ok(()) => assert!(kept, "nobody has said that the peer has everything"),
            Err(EndpointError::Linger { links: 1, .. }) => assert!(!kept, "the keeper was not believed"),
            other => panic!("{other:?}"),
        }
    }
}

/// A keeper that answers for peers may have to wait until this very port has been frozen for a cut.
#[test]
fn a_port_that_leaves_is_free_while_its_keeper_is_asked() {
    let (a, b, link) = pair();
    drop(b);
    a.send(link, outgoing(1), SendBuffer::Copied(b"hello")).expect("there is room");
    let freeze_first = |_: &[PortId]| {
        let (a, (to, frozen)) = (a.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || to.send(a.freeze(DEADLINE).is_ok()));
        assert_eq!(frozen.recv_timeout(DEADLINE), Ok(true), "nobody can freeze it");
        Vec::new()
    };
    let (_, left) = a.leave(linger(Duration::from_millis(300)), &mut asking(freeze_first));
    assert!(matches!(left, Err(EndpointError::Linger { links: 1, .. })), "{left:?}");
}

#[test]
fn leaving_waits_for_a_receive_however_long_the_peers_program_takes() {
    let silence = Duration::from_millis(300);
    let (a, b, link) = pair();
    let bytes = vec![7u8; 100_000];
    a.send(link, outgoing(1), SendBuffer::Owned(bytes)).expect("there is room");
    let receiver = std::thread::spawn(move || {
        std::thread::sleep(4 * silence);
        let receive = Receive {
            space: Space(0),
            source: None,
            tag: 1,
            ignore: 0,
            bytes_max: 100_000,
            context: 0,
            multi: None,
        };
        b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 100_000])).expect("there is room");
        let started = Instant::now();
        loop {
            match b.poll() {
                // The endpoint goes on living: it has to acknowledge the end.
                Some(Completion::Received { bytes, .. }) => return (bytes, b),
                _ => assert!(started.elapsed() < DEADLINE),
            }
        }
    });
    a.leave(linger(silence), &mut asking(nobody)).1.expect("the peer lives");
    let (bytes, _) = receiver.join().expect("the receiver ends");
    assert_eq!(bytes, 100_000);
}

#[test]
fn a_peer_that_lives_and_never_receives_is_named_and_given_up_after_a_time() {
    let (a, b, link) = pair();
    a.send(link, outgoing(1), SendBuffer::Owned(vec![7; 100_000])).expect("there is room");
    let most = 7 * WARN_AFTER;
    let mut asked = asking(nobody);
    let (counters, left) = a.leave(Linger { most, ..linger(DEADLINE) }, &mut asked);
    match left {
        Err(EndpointError::Unreceived { waited, links: 1 }) => assert!(waited >= most),
        other => panic!("{other:?}"),
    }
    let peer = vec![PortId::of_rank(Rank(1), 0)];
    assert!(
        !asked.reported.is_empty() && asked.reported.iter().all(|reported| *reported == peer),
        "{:?}",
        asked.reported
    );
    assert_eq!(counters.len(), 1, "the keeper answers all the same (R12)");
    drop(b);
}
