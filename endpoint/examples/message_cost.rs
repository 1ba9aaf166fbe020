//! The cost of an 8-byte message from endpoint to endpoint through shared memory, beside the driver's part of it.
//!
//! ```text
//! cargo run --release -p stillwire-endpoint --example message_cost [-- ROUNDS [BYTES]]
//! ```
//!
//! Both ends poll, each on a core of its own, without a helper. Half round trips are medians over the rounds, the variants alternate.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use drivers::Driver;
use drivers::shm::{ShmConfig, ShmDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use transport::config::AuthLevel;
use transport::{
    Epoch, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, Receive, Space,
};

/// Round trips of one round, and those before them that are not counted.
const ROUND_TRIPS: u32 = 50_000;
const WARM_UP: u32 = 2_000;

struct End {
    endpoint: Endpoint,
    link: LinkIndex,
    message: Vec<u8>,
    buffer: Option<Vec<u8>>,
}

fn open(rank: u32, auth: AuthLevel) -> Endpoint {
    let mut config = PortConfig::new(JobId(1).tag());
    config.auth = auth;
    let key = JobKey([7; 16]);
    let life = Life { counter: 1, nonce: 5 };
    let port = Port::new(config, PortId::of_rank(Rank(rank), 0), life, Epoch(0), Some(&key));
    let rail = ShmDriver::open(&ShmConfig::default()).expect("memory and /proc");
    let config = EndpointConfig { helper: false, ..EndpointConfig::default() };
    Endpoint::open(port, vec![Box::new(rail) as Box<dyn Driver>], config).expect("an endpoint")
}

fn pair(auth: AuthLevel, bytes: usize) -> (End, End) {
    let (a, b) = (open(0, auth), open(1, auth));
    let end = |endpoint: Endpoint, rank: u32, addresses| {
        let link = endpoint.connect(PortId::of_rank(Rank(rank), 0), addresses).expect("this host");
        End { endpoint, link, message: vec![3; bytes], buffer: Some(vec![0; bytes]) }
    };
    let (at_a, at_b) = (a.addresses(), b.addresses());
    (end(a, 1, &at_b), end(b, 0, &at_a))
}

impl End {
    fn post(&mut self) {
        let buffer = self.buffer.take().expect("the last receive is complete");
        let receive = Receive {
            space: Space(0),
            source: Some(self.link),
            tag: 1,
            ignore: 0,
            bytes_max: buffer.len() as u64,
            context: 0,
            multi: None,
        };
        self.endpoint.post_receive(receive, ReceiveBuffer::Owned(buffer)).expect("few are posted");
    }

    fn send(&mut self) {
        let outgoing = Outgoing { space: Space(0), tag: 1, data: 0, context: 0, silent: true };
        if self.message.len() <= self.endpoint.copied_bytes_max() {
            let copied = SendBuffer::Copied(&self.message);
            self.endpoint.send(self.link, outgoing, copied).expect("little is on its way");
        } else {
            let outgoing = Outgoing { silent: false, ..outgoing };
            let owned = SendBuffer::Owned(std::mem::take(&mut self.message));
            self.endpoint.send(self.link, outgoing, owned).expect("little is on its way");
        }
    }

    /// One look. True if the message that was waited for is there.
    fn look(&mut self) -> bool {
        match self.endpoint.poll() {
            Some(Completion::Received { buffer, .. }) => {
                self.buffer = buffer;
                true
            }
            Some(Completion::SendDone { buffer, .. }) => {
                self.message = buffer.unwrap_or_default();
                false
            }
            _ => false,
        }
    }

    fn ready(&self) -> bool {
        !self.message.is_empty()
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// Half round trip, nanoseconds.
fn round(a: &mut End, b: &mut End, round_trips: u32) -> f64 {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            b.post();
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                if b.look() {
                    b.post();
                    while !b.ready() {
                        b.look();
                    }
                    b.send();
                }
                spin_loop();
            }
            b.buffer = Some(vec![0; b.message.len()]);
        });
        ready.wait();
        let mut start = Instant::now();
        let warm_up = WARM_UP.min(round_trips);
        for message in 0..warm_up + round_trips {
            if message == warm_up {
                start = Instant::now();
            }
            while !a.ready() {
                a.look();
            }
            a.post();
            a.send();
            while !a.look() {
                spin_loop();
            }
        }
        let taken = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        taken.as_nanos() as f64 / f64::from(round_trips) / 2.0
    })
}

/// Processor time of this thread, nanoseconds.
fn processor_ns() -> f64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
}

/// Work per message without any waiting: one thread is both ends. And an idle look.
fn work(a: &mut End, b: &mut End, messages: u32) -> (f64, f64) {
    let start = processor_ns();
    for _ in 0..messages / 2 {
        b.post();
        a.send();
        while !b.look() {}
        a.post();
        b.send();
        while !a.look() {}
    }
    let messaging = processor_ns() - start;
    let start = processor_ns();
    for _ in 0..messages {
        a.look();
    }
    (messaging / f64::from(messages), (processor_ns() - start) / f64::from(messages))
}

fn main() {
    let number = |at: usize, otherwise: usize| {
        std::env::args().nth(at).map_or(otherwise, |text| text.parse().expect("a number: ROUNDS BYTES"))
    };
    let (rounds, bytes) = (number(1, 9), number(2, 8));
    pin(0);
    for (name, auth) in [("without tags", AuthLevel::Off), ("header tags", AuthLevel::Header)] {
        let mut times: Vec<f64> = (0..rounds)
            .map(|_| {
                let (mut a, mut b) = pair(auth, bytes);
                let round_trips = if bytes > 100_000 { 500 } else { ROUND_TRIPS };
                round(&mut a, &mut b, round_trips)
            })
            .collect();
        if bytes <= 4096 {
            let (mut messaging, mut idle): (Vec<f64>, Vec<f64>) = (0..rounds)
                .map(|_| {
                    let (mut a, mut b) = pair(auth, bytes);
                    work(&mut a, &mut b, 2 * WARM_UP);
                    work(&mut a, &mut b, ROUND_TRIPS)
                })
                .unzip();
            messaging.sort_by(f64::total_cmp);
            idle.sort_by(f64::total_cmp);
            let (messaging, idle) = (messaging[rounds / 2], idle[rounds / 2]);
            println!(
                "{name:<13} {bytes} bytes: work {messaging:.0} ns per message, {idle:.0} ns per idle look"
            );
        }
        times.sort_by(f64::total_cmp);
        let middle = times[times.len() / 2];
        println!(
            "{name:<13} {bytes} bytes: half round trip {middle:.0} ns ({:.0} ... {:.0}), {:.2} GB/s",
            times[0],
            times[times.len() - 1],
            bytes as f64 / middle
        );
    }
}
