//! Shared memory between two rails: the driver itself, over a segment of the checker's words. A ring has two slots there.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drivers::shm::{ShmConfig, ShmDriver};
use drivers::sync::model;
use drivers::{Armed, Driver, Payload};
use loom::thread;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use transport::AddressId;

use crate::explore;

/// A frame that fits a slot, with bytes on both sides of its first line.
const SHORT: usize = 80;

/// A frame that lies in the area, which has room for two.
const LONG: usize = 300;

/// The head of a frame whose payload is offered, and that payload.
const HEAD: usize = 24;
const OFFERED: usize = 256;

/// Payload is copied through the ring, and what a model does not look for costs it no executions.
fn copying() -> ShmConfig {
    ShmConfig { pull: false, ..ShmConfig::default() }
}

/// Every long payload is offered, for so long.
fn offering(offer_patience: Duration) -> ShmConfig {
    ShmConfig { pull: true, copied_ahead: 0, offer_patience }
}

/// A sender, its receiver, and the receiver's address at the sender.
fn pair(config: ShmConfig) -> (ShmDriver, ShmDriver, AddressId) {
    let open = || ShmDriver::open(&config).expect("memory and /proc");
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    (a, b, to)
}

fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((number * 91 + at) % 251).unwrap_or(0)).collect()
}

fn stage(rail: &mut ShmDriver, to: AddressId, frame: &[u8]) {
    rail.lease().expect("all is completed")[..frame.len()].copy_from_slice(frame);
    rail.commit(to, frame.len(), Payload::EMPTY);
}

/// Sends one frame; where the ring is full, until it is not.
fn send(rail: &mut ShmDriver, to: AddressId, frame: &[u8]) {
    loop {
        stage(rail, to, frame);
        if rail.flush().expect("a live rail") == 1 {
            return;
        }
        thread::yield_now();
    }
}

/// Receives a frame, if one is there, and compares it.
fn receive(rail: &mut ShmDriver, number: usize, bytes: usize) -> bool {
    let given = rail.receive(1, &mut |frame| assert_eq!(frame, content(number, bytes), "frame {number}"));
    given.expect("a live rail") == 1
}

/// Frames of these sizes come in their order and whole, through a ring with fewer slots, to a receiver that looks all
/// the time, and stops looking at a ring when it is quiet.
fn stream(preemptions: usize, sizes: &'static [usize]) {
    explore(preemptions, move || {
        let (mut a, mut b, to) = pair(copying());
        let sender = thread::spawn(move || {
            for (number, bytes) in sizes.iter().enumerate() {
                send(&mut a, to, &content(number, *bytes));
            }
            a
        });
        for (number, bytes) in sizes.iter().enumerate() {
            while !receive(&mut b, number, *bytes) {
                thread::yield_now();
            }
        }
        drop(sender.join());
    });
}

pub fn short_frames() {
    stream(2, &[SHORT; 4]);
}

pub fn long_frames() {
    stream(2, &[LONG; 4]);
}

fn is_readable(rail: &ShmDriver) -> bool {
    let mut fds = [PollFd::new(rail.fd().expect("a bell"), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(1)
}

/// A receiver that sleeps is woken by each frame.
fn doorbell(barriers: bool, fast: bool) {
    const FRAMES: usize = 3;
    explore(2, move || {
        model::set_barriers(barriers);
        let (mut a, mut b, to) = pair(copying());
        send(&mut a, to, &content(0, SHORT));
        assert!(receive(&mut b, 0, SHORT));
        let sent = Arc::new(AtomicBool::new(false));
        let all_sent = sent.clone();
        let sender = thread::spawn(move || {
            for number in 1..FRAMES {
                let frame = content(number, SHORT);
                if !fast {
                    send(&mut a, to, &frame);
                } else {
                    while !a.send_fast(to, &frame) {
                        thread::yield_now();
                    }
                }
            }
            all_sent.store(true, Ordering::Relaxed);
            a
        });
        for number in 1..FRAMES {
            while !receive(&mut b, number, SHORT) {
                if b.arm() != Ok(Armed::Sleep) {
                    continue;
                }
                while !is_readable(&b) {
                    assert!(!sent.load(Ordering::Relaxed), "it sleeps, and nobody will wake it");
                    thread::yield_now();
                }
            }
        }
        drop(sender.join());
    });
}

pub fn doorbell_with_fences() {
    doorbell(false, false);
}

pub fn doorbell_with_barriers() {
    doorbell(true, false);
}

pub fn doorbell_of_the_fast_path() {
    doorbell(true, true);
}

/// A receiver that stops looking at a quiet ring finds, after all, the frame that came at that moment.
fn quiet_ring(barriers: bool) {
    explore(3, move || {
        model::set_barriers(barriers);
        let (mut a, mut b, to) = pair(copying());
        send(&mut a, to, &content(0, SHORT));
        assert!(receive(&mut b, 0, SHORT));
        let sender = thread::spawn(move || {
            send(&mut a, to, &content(1, SHORT));
            a
        });
        let mut come = (0..2).filter(|_| receive(&mut b, 1, SHORT)).count();
        drop(sender.join());
        come += usize::from(receive(&mut b, 1, SHORT));
        assert_eq!(come, 1, "the frame is in a ring that is not looked at");
    });
}

pub fn quiet_ring_with_fences() {
    quiet_ring(false);
}

pub fn quiet_ring_with_barriers() {
    quiet_ring(true);
}

/// Two senders get rings of their own, or one continues behind the frames that the other left.
pub fn claims() {
    explore(3, || {
        let (mut a, mut b, to) = pair(copying());
        let mut c = ShmDriver::open(&copying()).expect("memory and /proc");
        let to_too = c.resolve(&b.local_address()).expect("this host");
        let first = thread::spawn(move || send(&mut a, to, &content(0, SHORT)));
        send(&mut c, to_too, &content(1, SHORT));
        first.join().expect("it does not panic");
        let mut come = Vec::new();
        while b.receive(1, &mut |frame| come.push(frame.to_vec())).expect("a live rail") > 0 {}
        come.sort();
        let mut expected = [content(0, SHORT), content(1, SHORT)];
        expected.sort();
        assert_eq!(come, expected);
    });
}

/// A sender that takes a ring over does not write where the last one's frames are still being read.
pub fn succession() {
    explore(2, || {
        let (mut a, mut b, to) = pair(copying());
        let mut c = ShmDriver::open(&copying()).expect("memory and /proc");
        let to_too = c.resolve(&b.local_address()).expect("this host");
        let senders = thread::spawn(move || {
            (0..2).for_each(|number| send(&mut a, to, &content(number, SHORT)));
            drop(a);
            send(&mut c, to_too, &content(2, SHORT));
            c
        });
        for number in 0..3 {
            while !receive(&mut b, number, SHORT) {
                thread::yield_now();
            }
        }
        drop(senders.join());
    });
}

/// A pair that has met: the sender knows that its memory can be read.
fn met(patience: Duration) -> (ShmDriver, ShmDriver, AddressId) {
    let (mut a, mut b, to) = pair(offering(patience));
    send(&mut a, to, &content(0, SHORT));
    assert!(receive(&mut b, 0, SHORT));
    (a, b, to)
}

fn stage_offer(rail: &mut ShmDriver, to: AddressId, payload: &[u8]) {
    rail.lease().expect("all is completed")[..HEAD].copy_from_slice(&content(2, HEAD));
    // SAFETY: the models below keep the payload until the frame has been completed, or the rail drained.
    let payload = unsafe { Payload::borrowed(payload.as_ptr(), payload.len()) };
    rail.commit(to, HEAD, payload);
    assert_eq!(rail.flush(), Ok(1));
}

/// R11: a payload that was read counts only if its owner had to keep it until it was read.
pub fn withdrawn_offer() {
    explore(3, || {
        let (mut a, mut b, to) = met(Duration::MAX);
        let sender = thread::spawn(move || {
            let mut payload = content(3, OFFERED);
            let read = model::watch_reads(payload.as_ptr() as u64);
            stage_offer(&mut a, to, &payload);
            assert_eq!(a.drain().map(|drained| drained.is_ready()), Ok(true));
            // From here on it is the owner's.
            let was_read = read.load(Ordering::Relaxed);
            payload.fill(255);
            (a.counters().lost_drained == 1, was_read, a)
        });
        let mut come = 0;
        for _ in 0..2 {
            let whole = [content(2, HEAD), content(3, OFFERED)].concat();
            come += b.receive(1, &mut |frame| assert_eq!(frame, whole)).expect("a live rail");
        }
        let (lost, was_read, a) = sender.join().expect("it does not panic");
        assert!(come == 0 || !lost, "it was taken back, and taken");
        assert!(come == 0 || was_read, "it was still being read when its owner got it back");
        drop(a);
    });
}

/// A payload that waits too long is copied; its receiver gets it from either place.
pub fn copied_offer() {
    explore(3, || {
        let (mut a, mut b, to) = met(Duration::ZERO);
        let sender = thread::spawn(move || {
            let mut payload = content(3, OFFERED);
            stage_offer(&mut a, to, &payload);
            while a.completed_total() < a.staged_total() {
                thread::yield_now();
                a.flush().expect("a live rail");
            }
            payload.fill(255);
            a
        });
        let whole = [content(2, HEAD), content(3, OFFERED)].concat();
        while b.receive(1, &mut |frame| assert_eq!(frame, whole)) == Ok(0) {
            thread::yield_now();
        }
        drop(sender.join());
    });
}
