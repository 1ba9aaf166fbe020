//! Threads that wait in an endpoint, the gate, and the helper: a real port over real rails. No time passes in a model, so a thread that
//! is not woken sleeps for ever, and the checker reports that.

use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use drivers::Driver;
use drivers::mem::Hub;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::sync::{AtomicBool, Ordering};
use endpoint::{Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use loom::thread;
use transport::config::AuthLevel;
use transport::matching::Pattern;
use transport::{Epoch, JobId, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, Receive, Space};

use crate::explore;
use crate::mailbox::Mailbox;

const LONG: Duration = Duration::from_secs(60);

fn id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

fn open(rank: u32, rail: Box<dyn Driver>, helper: bool) -> Endpoint {
    let config = PortConfig { auth: AuthLevel::Off, ..PortConfig::new(JobId(1).tag()) };
    let port = Port::new(config, id(rank), Life { counter: 1, nonce: 1 }, Epoch(0), None);
    let config = EndpointConfig { helper, spin: Duration::ZERO, ..EndpointConfig::default() };
    Endpoint::open(port, vec![rail], config).expect("an endpoint")
}

/// An endpoint without peers.
fn alone() -> Endpoint {
    open(0, Box::new(Hub::new().open().expect("a port")), false)
}

/// Two endpoints over shared memory that have met, and the link from the first to the second.
fn pair(helper: bool) -> (Endpoint, Endpoint, LinkIndex) {
    let rail =
        || Box::new(ShmDriver::open(&ShmConfig { pull: false, ..ShmConfig::default() }).expect("memory"));
    let (a, b) = (open(0, rail(), false), open(1, rail(), helper));
    let link = a.connect(id(1), &b.addresses()).expect("this host");
    b.connect(id(0), &a.addresses()).expect("this host");
    (a, b, link)
}

fn send(from: &Endpoint, link: LinkIndex, tag: u64) {
    let outgoing = Outgoing { space: Space(0), tag, data: 0, context: 0, silent: true };
    from.send(link, outgoing, SendBuffer::Copied(b"found")).expect("room");
}

fn pattern(tag: u64) -> Pattern {
    Pattern { space: Space(0), source: None, tag, ignore: 0 }
}

/// A thread that waits for a state of its own is woken by the thread that changes it.
pub fn own_condition() {
    explore(3, || {
        let endpoint = alone();
        let changed = Arc::new(AtomicBool::new(false));
        let changer = {
            let (endpoint, changed) = (endpoint.clone(), changed.clone());
            thread::spawn(move || {
                changed.store(true, Ordering::Relaxed);
                endpoint.wake();
            })
        };
        assert!(endpoint.wait_for(LONG, |_| changed.load(Ordering::Relaxed)));
        changer.join().expect("it does not panic");
    });
}

/// A worker of the protector that sleeps in its endpoint is woken by each task.
pub fn mailbox() {
    explore(3, || {
        let mailbox = Arc::new(Mailbox::new());
        mailbox.sleep_in(Some(alone()));
        let poster = {
            let mailbox = mailbox.clone();
            thread::spawn(move || (1..=2).for_each(|task| mailbox.post(task)))
        };
        for task in 1..=2 {
            let taken = loop {
                if let Some(taken) = mailbox.take() {
                    break taken;
                }
                mailbox.wait(LONG, |_| false);
            };
            assert_eq!(taken, task);
        }
        poster.join().expect("it does not panic");
        mailbox.sleep_in(None);
    });
}

/// As [`mailbox`], before the worker has an endpoint.
pub fn mailbox_without_endpoint() {
    explore(3, || {
        let mailbox = Arc::new(Mailbox::new());
        let poster = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.post(1))
        };
        while mailbox.take().is_none() {
            mailbox.wait(LONG, |_| false);
        }
        poster.join().expect("it does not panic");
    });
}

/// Two threads sleep for a message each, and one of them may take both frames.
pub fn two_sleepers() {
    explore(2, || {
        let (a, b, link) = pair(false);
        let other = {
            let b = b.clone();
            thread::spawn(move || assert!(b.wait_message(&pattern(1), LONG)))
        };
        send(&a, link, 2);
        send(&a, link, 1);
        assert!(b.wait_message(&pattern(2), LONG));
        other.join().expect("it does not panic");
    });
}

/// A thread that looks once and goes away undoes the preparations of one that sleeps.
pub fn sleeper_and_poller() {
    explore(2, || {
        let (a, b, link) = pair(false);
        let poller = {
            let b = b.clone();
            thread::spawn(move || {
                b.progress();
            })
        };
        let sender = thread::spawn(move || {
            send(&a, link, 1);
            a
        });
        assert!(b.wait_message(&pattern(1), LONG));
        poller.join().expect("it does not panic");
        drop(sender.join());
    });
}

/// The helper receives in the place of a program that computes, has its completions attended to, and ends with the
/// endpoint.
pub fn helper() {
    explore(2, || {
        let (a, b, link) = pair(true);
        let receive = Receive {
            space: Space(0),
            source: None,
            tag: 1,
            ignore: 0,
            bytes_max: 10,
            context: 0,
            multi: None,
        };
        b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 10])).expect("room");
        let attended = Arc::new(AtomicBool::new(false));
        let handle = Arc::new(Mutex::new(Some(b.clone())));
        let by_helper = (attended.clone(), handle.clone());
        assert!(b.attend(move || {
            let (attended, handle) = &by_helper;
            let handle = handle.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if handle.is_some_and(|endpoint| endpoint.take_completion().is_some()) {
                attended.store(true, Ordering::Relaxed);
            }
        }));
        send(&a, link, 1);
        while !attended.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        drop(handle.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(b);
    });
}

/// The helper ends with an endpoint that is dropped at any moment.
pub fn helper_ends() {
    explore(3, || drop(open(0, Box::new(Hub::new().open().expect("a port")), true)));
}
