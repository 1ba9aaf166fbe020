//! The faults that the wrapper injects, their rates, and that each run repeats them exactly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drivers::fault::{FaultDriver, Faults};
use drivers::mem::{Hub, MemDriver};
use drivers::{Armed, Driver, DriverError, Payload};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use transport::{AddressId, Instant};

type Rail = FaultDriver<MemDriver>;

fn pair(faults: &str) -> (Rail, Rail, AddressId) {
    let hub = Hub::new();
    let faults: Faults = faults.parse().expect(faults);
    let open = || FaultDriver::new(hub.open().expect("a port"), faults);
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("same hub");
    (a, b, to)
}

fn send(rail: &mut Rail, to: AddressId, head: &[u8], payload: Payload) {
    for _ in 0..10_000 {
        if let Some(buffer) = rail.lease() {
            buffer[..head.len()].copy_from_slice(head);
            rail.commit(to, head.len(), payload);
            rail.flush().expect("a live rail");
            return;
        }
        rail.flush().expect("a live rail");
    }
    panic!("no buffer for 10,000 calls");
}

fn receive(rail: &mut Rail) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while rail.receive(64, &mut |frame| frames.push(frame.to_vec())).expect("a live rail") > 0 {}
    frames
}

const FRAMES: u64 = 20_000;

/// Sends numbered frames of 48 bytes; returns the received ones, in order.
fn run(faults: &str) -> (Vec<Vec<u8>>, Rail, Rail) {
    let (mut a, mut b, to) = pair(faults);
    let user = Arc::new(vec![0x5a; 40]);
    let mut came = Vec::new();
    for number in 0..FRAMES {
        send(&mut a, to, &number.to_le_bytes(), Payload::shared(&user, 0..40).expect("in range"));
        came.append(&mut receive(&mut b));
    }
    for _ in 0..10_100 {
        a.flush().expect("a live rail");
        came.append(&mut receive(&mut b));
    }
    assert_eq!(a.completed_total(), a.staged_total());
    assert_eq!(Arc::strong_count(&user), 1);
    (came, a, b)
}

fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[..8].try_into().expect("8 bytes"))
}

fn times_seen(came: &[Vec<u8>]) -> BTreeMap<u64, u32> {
    came.iter().fold(BTreeMap::new(), |mut seen, frame| {
        *seen.entry(number(frame)).or_default() += 1;
        seen
    })
}

/// Within a quarter of the expected count: six standard deviations and more for these rates and counts.
fn assert_near(found: u64, expected: u64) {
    assert!(found.abs_diff(expected) * 4 <= expected, "{found} found, about {expected} expected");
}

#[test]
fn loss_loses_at_its_rate() {
    for faults in ["loss=10%,seed=1", "loss=10%,seed=1,side=receive"] {
        let (came, a, b) = run(faults);
        let lost = FRAMES - came.len() as u64;
        assert_near(lost, 2000);
        assert_eq!(a.tally().lost + b.tally().lost, lost);
        assert_eq!(a.counters().lost_injected + b.counters().lost_injected, lost);
        assert!(times_seen(&came).values().all(|times| *times == 1));
    }
}

#[test]
fn dup_repeats_at_its_rate() {
    for faults in ["dup=10%,seed=2", "dup=10%,seed=2,side=receive"] {
        let (came, ..) = run(faults);
        let seen = times_seen(&came);
        assert_eq!(seen.len() as u64, FRAMES, "none is lost");
        assert_near((came.len() - seen.len()) as u64, 2000);
        assert!(seen.values().all(|times| *times <= 2));
    }
}

#[test]
fn reorder_lets_later_frames_pass() {
    for faults in ["reorder=10%,seed=3", "reorder=10%,seed=3,side=receive", "delay=10%:20,seed=3"] {
        let (came, a, b) = run(faults);
        assert_eq!(times_seen(&came).len() as u64, FRAMES, "none is lost");
        let late = came.windows(2).filter(|pair| number(&pair[0]) > number(&pair[1])).count();
        assert_near(late as u64, 2000);
        assert_near(a.tally().held + b.tally().held, 2000);
    }
}

#[test]
fn corruption_and_truncation_damage_at_their_rates() {
    for faults in ["corrupt=10%,seed=4", "corrupt=10%,seed=4,side=receive"] {
        let (came, ..) = run(faults);
        assert_eq!(came.len() as u64, FRAMES);
        let sent = |n: u64| [n.to_le_bytes().as_slice(), &[0x5a; 40]].concat();
        let damaged = (0..).zip(&came).filter(|(n, frame)| **frame != sent(*n)).count();
        assert_near(damaged as u64, 2000);
    }
    let (came, a, _) = run("truncate=10%,seed=5");
    assert_near(came.iter().filter(|frame| frame.len() < 48).count() as u64, 2000);
    assert!(a.tally().truncated > 0);
}

#[test]
fn one_seed_gives_one_history() {
    let all = "loss=3%,dup=3%,reorder=3%,delay=3%:7,corrupt=3%,truncate=3%,late=3%,starve=3%,side=both";
    let history = |seed: &str| run(&format!("{all},seed={seed}")).0;
    assert_eq!(history("6"), history("6"));
    assert_ne!(history("6"), history("7"));
}

#[test]
fn a_payload_that_is_read_late_shows_who_reuses_it_early() {
    let (mut a, mut b, to) = pair("late=100%,seed=8");
    let mut wrong = 0;
    for number in 0..200u64 {
        let mut user = [1u8; 32];
        let start = user.as_mut_ptr();
        // SAFETY: this call breaks the promise: the bytes are written while they are referred to. They stay
        // readable, the write goes through the same pointer, and this thread alone reads and writes them, one
        // after the other.
        let payload = unsafe { Payload::borrowed(start, 32) };
        send(&mut a, to, &number.to_le_bytes(), payload);
        let completed_at_once = a.completed_total() == a.staged_total();
        // SAFETY: `start` points at the 32 bytes of `user`, which no reference is used for from here on.
        unsafe { start.write_bytes(2, 32) };
        for _ in 0..100 {
            a.flush().expect("a live rail");
        }
        assert_eq!(a.completed_total(), a.staged_total());
        let frames = receive(&mut b);
        assert_eq!(frames.len(), 1);
        wrong += u64::from(frames[0][8..] == [2; 32]);
        assert!(!completed_at_once, "a late frame is never completed in the flush that sends it");
    }
    assert_near(wrong, 100);
}

#[test]
fn starving_ends() {
    let (mut a, mut b, to) = pair("starve=50%,seed=9");
    for number in 0..1000u64 {
        send(&mut a, to, &number.to_le_bytes(), Payload::EMPTY);
    }
    assert_eq!(receive(&mut b).len(), 1000);
    assert!(a.tally().starved > 1000);
}

#[test]
fn a_delay_ends_by_the_given_clock() {
    let hub = Hub::new();
    let clock = Arc::new(AtomicU64::new(0));
    let read = clock.clone();
    let faults = "delay=100%:5ms".parse().expect("faults");
    let clock_of_driver = Box::new(move || Instant::from_nanos(read.load(Ordering::Relaxed)));
    let mut a = FaultDriver::with_clock(hub.open().expect("a port"), faults, clock_of_driver);
    let mut b = FaultDriver::new(hub.open().expect("a port"), Faults::NONE);
    let to = a.resolve(&b.local_address()).expect("same hub");
    send(&mut a, to, b"delayed", Payload::EMPTY);
    clock.store(4_999_999, Ordering::Relaxed);
    a.flush().expect("a live rail");
    assert!(receive(&mut b).is_empty());
    clock.store(5_000_000, Ordering::Relaxed);
    a.flush().expect("a live rail");
    assert_eq!(receive(&mut b), [b"delayed"]);
}

/// Whether the driver's descriptor becomes readable within this time.
fn wakes(rail: &Rail, within: Duration) -> bool {
    let mut fds = [PollFd::new(rail.fd().expect("a descriptor"), PollFlags::POLLIN)];
    ppoll(&mut fds, Some(TimeSpec::from_duration(within)), None).expect("a descriptor") == 1
}

#[test]
fn who_sleeps_over_delayed_frames_is_woken_when_the_first_is_due() {
    const LONG: Duration = Duration::from_secs(20);
    let hold = Duration::from_millis(40);
    for side in ["send", "receive"] {
        let (mut a, mut b, to) = pair(&format!("delay=100%:40ms,side={side}"));
        let held_since = std::time::Instant::now();
        send(&mut a, to, b"first", Payload::EMPTY);
        std::thread::sleep(Duration::from_millis(10));
        send(&mut a, to, b"second", Payload::EMPTY);
        assert!(receive(&mut b).is_empty());
        let mut frames = Vec::new();
        while frames.len() < 2 {
            // A holder with nothing to send or to receive is polled only when it wakes its sleeper.
            let holds = if side == "send" { &mut a } else { &mut b };
            assert_eq!(holds.arm(), Ok(Armed::Sleep), "it would be looked at without end");
            assert!(wakes(holds, LONG), "they would lie there for ever");
            assert!(held_since.elapsed() >= hold, "nothing was due");
            assert!(receive(&mut a).is_empty());
            frames.append(&mut receive(&mut b));
            assert!(held_since.elapsed() < LONG, "nothing lets them go");
        }
        assert_eq!(frames, [&b"first"[..], b"second"]);
        for rail in [&mut a, &mut b] {
            assert_eq!(rail.arm(), Ok(Armed::Sleep));
            assert!(!wakes(rail, Duration::from_millis(5)), "awake without a reason");
        }
    }
}

#[test]
fn nobody_sleeps_over_frames_that_only_calls_release() {
    let (mut a, _b, to) = pair("delay=100%:3");
    send(&mut a, to, b"held", Payload::EMPTY);
    assert_eq!(a.arm(), Ok(Armed::FrameWaiting));
}

#[test]
fn a_frame_held_for_later_ones_goes_on_if_none_come() {
    let (mut a, mut b, to) = pair("reorder=100%,seed=1");
    send(&mut a, to, b"last", Payload::EMPTY);
    assert!(receive(&mut b).is_empty());
    for _ in 0..10_000 {
        a.flush().expect("a live rail");
    }
    assert_eq!(receive(&mut b), [b"last"]);
}

#[test]
fn switches_work_while_the_rail_is_in_use() {
    let (mut a, mut b, to) = pair("");
    let (switch_a, switch_b, address_b) = (a.switch(), b.switch(), b.local_address());
    let passes = |a: &mut Rail, b: &mut Rail| {
        send(a, to, b"there?", Payload::EMPTY);
        receive(b).len()
    };
    assert_eq!(passes(&mut a, &mut b), 1);
    switch_a.set_blacked_out(&address_b, true);
    assert_eq!(passes(&mut a, &mut b), 0);
    switch_a.set_blacked_out(&address_b, false);
    switch_b.set_deaf(true);
    assert_eq!(passes(&mut a, &mut b), 0);
    switch_b.set_deaf(false);
    switch_a.set_faults("loss=100%".parse().expect("faults"));
    assert_eq!(passes(&mut a, &mut b), 0);
    switch_a.set_faults(Faults::NONE);
    assert_eq!(passes(&mut a, &mut b), 1);
    assert_eq!((a.tally().blacked_out, b.tally().blacked_out, a.tally().lost), (1, 1, 1));
}

fn assert_dead(rail: &mut Rail) {
    let dead = |result: Result<(), DriverError>| result.expect_err("a dead rail").is_rail_dead();
    assert!(rail.lease().is_none());
    assert!(dead(rail.flush().map(drop)));
    assert!(dead(rail.receive(1, &mut |_| ()).map(drop)));
    assert!(dead(rail.drain().map(drop)));
    assert!(dead(rail.arm().map(drop)));
    let own = rail.local_address();
    assert!(dead(rail.resolve(&own).map(drop)));
}

#[test]
fn a_dead_rail_fails_every_call_and_gives_payload_back_when_dropped() {
    let (mut a, _b, to) = pair("late=100%");
    let user = Arc::new(vec![1u8; 10]);
    send(&mut a, to, b"held", Payload::shared(&user, 0..10).expect("in range"));
    a.switch().kill();
    assert_dead(&mut a);
    drop(a);
    assert_eq!(Arc::strong_count(&user), 1);

    let (mut a, _b, to) = pair("die=10");
    for _ in 0..9 {
        send(&mut a, to, b"before", Payload::EMPTY);
    }
    let buffer = a.lease().expect("a free buffer");
    buffer[0] = 0;
    a.commit(to, 1, Payload::EMPTY);
    assert_dead(&mut a);
}
