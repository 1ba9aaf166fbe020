//! Shared memory between real processes, and offers that end while they are being read.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drivers::shm::{ShmConfig, ShmDriver};
use drivers::{Driver, Payload};
use transport::{AddressId, RawAddress};

/// Long against anything a busy machine does between two steps.
const LONG: Duration = Duration::from_secs(60);

/// Payload that is offered rather than copied.
const LARGE: usize = 100_000;

/// Every large payload is offered.
fn open() -> ShmDriver {
    ShmDriver::open(&ShmConfig { copied_ahead: 0, ..ShmConfig::default() }).expect("memory and /proc")
}

fn hex(address: &RawAddress) -> String {
    address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> RawAddress {
    let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex");
    RawAddress::new(&(0..text.len() / 2).map(byte).collect::<Vec<u8>>()).expect("short enough")
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(31) ^ seed ^ at >> 8).to_le_bytes()[0]).collect()
}

fn stage(rail: &mut ShmDriver, to: AddressId, head: &[u8], payload: Payload) {
    let start = Instant::now();
    while rail.lease().is_none() {
        rail.flush().expect("a live rail");
        assert!(start.elapsed() < LONG, "no buffer came back");
    }
    rail.lease().expect("leased before")[..head.len()].copy_from_slice(head);
    rail.commit(to, head.len(), payload);
}

fn complete(rail: &mut ShmDriver) {
    let start = Instant::now();
    while rail.completed_total() < rail.staged_total() {
        rail.receive(1, &mut |_| ()).expect("a live rail");
        assert!(start.elapsed() < LONG, "frames never completed");
    }
}

/// Another process that runs one of the functions below on the address of a rail; killed at the end.
struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, address: &RawAddress) -> Peer {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--ignored", "--exact", "--nocapture", &format!("shm::{role}")])
            .env("RAIL", hex(address))
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Peer { child, lines }
    }

    /// The next line of the peer.
    fn said(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("text") > 0, "the peer said nothing more");
            // Lines of the test harness in between are not the peer's.
            if let Some((_, said)) = line.trim_end().split_once("SAYS ") {
                return said.to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: &str) {
    println!("SAYS {what}");
    std::io::stdout().flush().expect("a pipe");
}

fn given_rail() -> RawAddress {
    from_hex(&std::env::var("RAIL").expect("started by a test"))
}

/// At least so many.
const FRAMES: u64 = 200;

/// Behind the last of them.
const OVER: &[u8] = b"over";

#[test]
#[ignore = "the other process of a test"]
fn sends_large_frames() {
    let mut rail = open();
    let to = rail.resolve(&given_rail()).expect("this host");
    // The receiver answers whether it can read our memory with the first frame that it takes.
    stage(&mut rail, to, b"hello", Payload::EMPTY);
    rail.flush().expect("a live rail");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let (start, mut next, mut pulled) = (Instant::now(), 0, 0);
    // On a busy machine both ends are seldom on their processors at the same time, and then all is copied.
    while next < FRAMES || (pulled == 0 && start.elapsed() < LONG / 2) {
        let owner = Arc::new(pattern(next, LARGE));
        let payload = Payload::shared(&owner, 0..LARGE).expect("in range");
        let counters = rail.counters();
        let (lost, copied) = (counters.lost_on_send(), counters.offers_copied);
        stage(&mut rail, to, &next.to_le_bytes(), payload);
        rail.flush().expect("a live rail");
        complete(&mut rail);
        assert!(start.elapsed() < LONG);
        // A receiver that is off its processor does not come in time, and an offer ends.
        let counters = rail.counters();
        if counters.lost_on_send() == lost {
            next += 1;
            pulled += u64::from(counters.offers_copied == copied);
        }
    }
    stage(&mut rail, to, OVER, Payload::EMPTY);
    rail.flush().expect("a live rail");
    complete(&mut rail);
    say(&pulled.to_string());
    // Until it is killed: sent frames stay readable.
    loop {
        std::thread::park();
    }
}

#[test]
fn large_payloads_are_pulled_from_another_process() {
    let mut rail = open();
    let mut peer = Command::new(std::env::current_exe().expect("this test"));
    let mut child = peer
        .args(["--ignored", "--exact", "--nocapture", "shm::sends_large_frames"])
        .env("RAIL", hex(&rail.local_address()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test");
    let mut ready = child.stdin.take().expect("piped");
    let lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut peer = Peer { child, lines };
    let (start, mut came, mut over) = (Instant::now(), 0u64, false);
    while !over {
        rail.receive(8, &mut |frame| {
            if came == 0 {
                assert_eq!(frame, b"hello");
                ready.write_all(b"go on\n").expect("the peer listens");
            } else if frame == OVER {
                over = true;
            } else {
                let (head, payload) = frame.split_at(8);
                assert_eq!(head, (came - 1).to_le_bytes());
                assert!(payload == pattern(came - 1, LARGE), "frame {came} was altered");
            }
            came += 1;
        })
        .expect("a live rail");
        assert!(start.elapsed() < LONG, "only {came} frames came");
    }
    let pulled: u64 = peer.said().parse().expect("a number");
    assert!(
        came > FRAMES && pulled > 0,
        "every payload was copied, none was pulled: is process_vm_readv permitted here?"
    );
}

#[test]
#[ignore = "the other process of a test"]
fn listens_and_never_looks() {
    let rail = open();
    say(&hex(&rail.local_address()));
    loop {
        std::thread::park();
    }
}

#[test]
fn a_receiver_that_stands_still_or_dies_blocks_nobody() {
    let (mut rail, mut other) = (open(), open());
    let mut peer = Peer::start("listens_and_never_looks", &RawAddress::NONE);
    let to = rail.resolve(&from_hex(&peer.said())).expect("this host");
    let to_other = rail.resolve(&other.local_address()).expect("this host");
    let owner = Arc::new(pattern(1, LARGE));
    let send = |rail: &mut ShmDriver, frames: u64| {
        for i in 0..frames {
            let payload = if i % 50 == 0 { Payload::shared(&owner, 0..LARGE) } else { None };
            stage(rail, to, &i.to_le_bytes(), payload.unwrap_or_default());
            rail.flush().expect("its peer's silence is no error");
        }
        complete(rail);
    };
    send(&mut rail, 1000);
    let full = rail.counters().lost_receiver_full;
    assert!(full > 0, "a ring has a bound");
    assert_eq!(rail.counters().lost_refused, 0, "it stands still, but it lives");
    peer.kill();
    send(&mut rail, 1000);
    assert!(rail.counters().lost_refused > 0, "it is dead, and that should have been noticed");
    stage(&mut rail, to_other, b"others are reached", Payload::EMPTY);
    rail.flush().expect("a live rail");
    let mut came = Vec::new();
    other.receive(1, &mut |frame| came = frame.to_vec()).expect("a live rail");
    assert_eq!(came, b"others are reached");
    let counters = rail.counters();
    assert_eq!(counters.frames_sent + counters.lost_on_send(), rail.staged_total(), "{counters:?}");
}

#[test]
#[ignore = "the other process of a test"]
fn sends_until_it_is_killed() {
    let mut rail = open();
    let to = rail.resolve(&given_rail()).expect("this host");
    let owner = Arc::new(pattern(7, LARGE));
    for i in 0u64.. {
        let payload = if i % 3 == 0 { Payload::shared(&owner, 0..LARGE) } else { None };
        stage(&mut rail, to, &pattern(7, 100), payload.unwrap_or_default());
        rail.flush().expect("a live rail");
        if i == 20 {
            say("sending");
        }
        rail.receive(1, &mut |_| ()).expect("a live rail");
    }
}

#[test]
fn senders_that_are_killed_leave_whole_frames_and_nothing_else() {
    let mut rail = open();
    let whole = [pattern(7, 100), [pattern(7, 100), pattern(7, LARGE)].concat()];
    for _ in 0..8 {
        let mut peer = Peer::start("sends_until_it_is_killed", &rail.local_address());
        let mut came = 0;
        let look = |rail: &mut ShmDriver, came: &mut u64| {
            rail.receive(8, &mut |frame| {
                assert!(whole.iter().any(|whole| frame == whole), "a frame of {} bytes", frame.len());
                *came += 1;
            })
            .expect("a live rail")
        };
        peer.said();
        for _ in 0..200 {
            look(&mut rail, &mut came);
        }
        peer.kill();
        while look(&mut rail, &mut came) > 0 {}
        assert!(came > 0);
    }
    assert_eq!(rail.counters().lost_malformed, 0);
}

#[test]
fn an_offer_that_nobody_comes_for_is_copied() {
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    stage(&mut a, to, b"hello", Payload::EMPTY);
    a.flush().expect("a live rail");
    b.receive(1, &mut |_| ()).expect("a live rail");
    let owner = Arc::new(pattern(3, LARGE));
    stage(&mut a, to, b"head", Payload::shared(&owner, 0..LARGE).expect("in range"));
    a.flush().expect("a live rail");
    assert_eq!(Arc::strong_count(&owner), 2, "offered, not copied");
    complete(&mut a);
    assert_eq!((Arc::strong_count(&owner), a.counters().offers_copied), (1, 1));
    let mut came = Vec::new();
    b.receive(1, &mut |frame| came = frame.to_vec()).expect("a live rail");
    assert!(came[..4] == *b"head" && came[4..] == *owner.as_slice());
}

#[test]
fn what_is_read_from_an_offer_that_ends_meanwhile_does_not_count() {
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0)));
    let seen = shared.clone();
    let receiver = std::thread::spawn(move || {
        let (stop, whole, not_fetched) = &*seen;
        while !stop.load(Ordering::Relaxed) {
            b.receive(8, &mut |frame| {
                if let Some((first, rest)) = frame.get(4..).and_then(<[u8]>::split_first) {
                    assert!(
                        rest.iter().all(|byte| byte == first),
                        "a payload that was changed while it was read"
                    );
                    whole.fetch_add(1, Ordering::Relaxed);
                }
            })
            .expect("a live rail");
            not_fetched.store(b.counters().lost_not_fetched, Ordering::Relaxed);
        }
    });
    stage(&mut a, to, b"", Payload::EMPTY);
    a.flush().expect("a live rail");
    let mut user = vec![0u8; LARGE];
    let (start, mut rounds) = (Instant::now(), 0u32);
    let (stop, whole, not_fetched) = &*shared;
    let both = || whole.load(Ordering::Relaxed) > 0 && not_fetched.load(Ordering::Relaxed) > 0;
    while !receiver.is_finished() && (rounds < 6000 || !both()) {
        assert!(start.elapsed() < LONG, "{shared:?}: one of the cases was never met");
        rounds += 1;
        let bytes = user.len();
        // SAFETY: the bytes are written only after `drain` has completed every frame, and live until the end of the test.
        let payload = unsafe { Payload::borrowed(user.as_ptr(), bytes) };
        stage(&mut a, to, b"head", payload);
        a.flush().expect("a live rail");
        for _ in 0..rounds % 64 * 50 {
            std::hint::spin_loop();
        }
        assert!(a.drain().expect("a live rail").is_ready(), "draining waits for nobody");
        assert_eq!(a.completed_total(), a.staged_total());
        user.fill(rounds.to_le_bytes()[0]);
    }
    stop.store(true, Ordering::Relaxed);
    receiver.join().expect("every payload was whole");
}

#[test]
fn what_is_pulled_out_of_a_peers_memory_had_lain_there_while_it_had_its_driver() {
    let (a, mut b) = (open(), open());
    let from = b.resolve(&a.local_address()).expect("this host");
    let (user, mut pulled) = (pattern(5, LARGE), vec![0; LARGE]);
    assert!(b.pull(from, user.as_ptr() as u64, &mut pulled));
    assert!(pulled == user);
    assert!(!b.pull(from, 8, &mut pulled), "nothing can lie there");
    let from = b.resolve(&open().local_address()).expect("this host");
    assert!(!b.pull(from, user.as_ptr() as u64, &mut pulled), "its driver is gone");
    let mut unwilling = ShmDriver::open(&ShmConfig { pull: false, ..ShmConfig::default() }).expect("memory");
    let from = b.resolve(&unwilling.local_address()).expect("this host");
    assert!(!b.pull(from, user.as_ptr() as u64, &mut pulled), "its memory is not to be read");
    let from = unwilling.resolve(&a.local_address()).expect("this host");
    assert!(!unwilling.pull(from, user.as_ptr() as u64, &mut pulled), "it reads nobody's");
    let from = b.resolve(&a.local_address()).expect("this host");
    b.forget(from);
    assert!(!b.pull(from, user.as_ptr() as u64, &mut pulled), "it has been forgotten");
    let from = b.resolve(&a.local_address()).expect("this host");
    drop(a);
    assert!(!b.pull(from, user.as_ptr() as u64, &mut pulled), "its driver was dropped meanwhile");
}

#[test]
fn short_frames_go_at_once_unless_something_stands_before_them() {
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("on this host");
    assert!(!a.send_fast(to, b"who is first claims a ring"), "that takes longer");
    stage(&mut a, to, b"who is first claims a ring", Payload::EMPTY);
    a.flush().expect("a live rail");
    assert!(a.send_fast(to, b"at once"));
    assert!(!a.send_fast(to, &[0; 300]), "more than a slot has room for");
    stage(&mut a, to, b"staged", Payload::EMPTY);
    assert!(!a.send_fast(to, b"it would overtake"));
    a.flush().expect("a live rail");
    // An offer is with the receiver until it has been read.
    let large = Arc::new(pattern(1, LARGE));
    stage(&mut a, to, b"head", Payload::shared(&large, 0..LARGE).expect("in range"));
    a.flush().expect("a live rail");
    let offered = a.completed_total() < a.staged_total();
    assert_eq!(a.send_fast(to, b"completions are in order"), !offered);
    let mut came = Vec::new();
    let start = Instant::now();
    while came.len() < 4 + usize::from(!offered) {
        b.receive(8, &mut |frame| came.push(frame.len())).expect("a live rail");
        assert!(start.elapsed() < LONG, "{came:?}");
    }
    assert_eq!(came[..4], [26, 7, 6, 4 + LARGE]);
    complete(&mut a);
    let mut room = 0;
    while a.send_fast(to, b"until the ring is full") {
        room += 1;
        assert!(room <= 256, "a ring without end");
    }
    assert_eq!(room, 256);
    drop(b);
    assert!(!a.send_fast(to, b"to nobody"));
}
