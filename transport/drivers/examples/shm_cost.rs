//! The cost of a message through shared memory: bare shared words against the driver, alternating in one run.
//!
//! ```text
//! cargo run --release -p stillwire-drivers --example shm_cost [-- FRAME_BYTES ROUNDS]
//! ```
//!
//! Prints half round trips (median over the rounds, lowest and highest round) and bulk rates, each beside the
//! figure of the machine without the driver. The two ends spin on two cores of their own. The driver's ends
//! are two processes' worth of segments in one process; pulling is between two processes, as it is in use.

use std::hint::spin_loop;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use drivers::shm::{ShmConfig, ShmDriver};
use drivers::{Driver, Payload};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use transport::{AddressId, RawAddress};

/// Messages of one round, and those before them that are not counted.
const MESSAGES: u32 = 100_000;
const WARM_UP: u32 = 2_000;

/// One end of a ping-pong.
trait End: Send {
    fn send(&mut self, frame: &[u8]);
    /// Whether a message was there.
    fn receive(&mut self) -> bool;
}

/// A cache line with a counter, and the frame's bytes behind it.
#[repr(align(128))]
struct CacheLines {
    count: AtomicU64,
    words: [AtomicU64; 64],
}

impl CacheLines {
    fn new() -> Arc<CacheLines> {
        Arc::new(CacheLines { count: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 64] })
    }
}

/// Two threads with a counter for each direction.
struct Bare {
    own: Arc<CacheLines>,
    other: Arc<CacheLines>,
    sent: u64,
    received: u64,
}

impl End for Bare {
    fn send(&mut self, frame: &[u8]) {
        for (word, bytes) in self.other.words.iter().zip(frame.chunks(8)) {
            word.store(bytes.len() as u64, Ordering::Relaxed);
        }
        self.sent += 1;
        self.other.count.store(self.sent, Ordering::Release);
    }

    fn receive(&mut self) -> bool {
        let there = self.own.count.load(Ordering::Acquire) > self.received;
        if there {
            self.received += 1;
            let sum: u64 = self.own.words.iter().take(11).map(|word| word.load(Ordering::Relaxed)).sum();
            std::hint::black_box(sum);
        }
        there
    }
}

struct Driven {
    rail: ShmDriver,
    to: AddressId,
}

impl End for Driven {
    fn send(&mut self, frame: &[u8]) {
        // As a port holds it: behind a vtable.
        let rail: &mut dyn Driver = &mut self.rail;
        let buffer = rail.lease().expect("all earlier frames are completed");
        buffer[..frame.len()].copy_from_slice(frame);
        rail.commit(self.to, frame.len(), Payload::EMPTY);
        rail.flush().expect("a live rail");
    }

    fn receive(&mut self) -> bool {
        let rail: &mut dyn Driver = &mut self.rail;
        rail.receive(64, &mut |_| ()).expect("a live rail") > 0
    }
}

fn open(pull: bool) -> ShmDriver {
    ShmDriver::open(&ShmConfig { pull, ..ShmConfig::default() }).expect("memory and /proc")
}

fn driven_pair() -> (Driven, Driven) {
    let (mut a, mut b) = (open(true), open(true));
    let to_b = a.resolve(&b.local_address()).expect("this host");
    let to_a = b.resolve(&a.local_address()).expect("this host");
    (Driven { rail: a, to: to_b }, Driven { rail: b, to: to_a })
}

/// Keeps this thread on one core; a machine with one core shares it.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// Half round trip of one round, in nanoseconds.
fn ping_pong(a: &mut dyn End, b: &mut dyn End, frame: &[u8]) -> f64 {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                if b.receive() {
                    b.send(frame);
                } else {
                    spin_loop();
                }
            }
        });
        ready.wait();
        let mut start = Instant::now();
        for message in 0..WARM_UP + MESSAGES {
            if message == WARM_UP {
                start = Instant::now();
            }
            a.send(frame);
            while !a.receive() {
                spin_loop();
            }
        }
        let taken = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        taken.as_nanos() as f64 / f64::from(MESSAGES) / 2.0
    })
}

/// Nanoseconds per frame at sender and receiver, of bursts of 32 that one thread sends and then receives.
fn burst(frame: &[u8]) -> (f64, f64) {
    let (mut a, mut b) = driven_pair();
    let (mut sending, mut receiving) = (0.0, 0.0);
    let bursts = 20_000;
    for _ in 0..bursts {
        let start = Instant::now();
        for _ in 0..32 {
            a.rail.lease().expect("all earlier frames are completed")[..frame.len()].copy_from_slice(frame);
            a.rail.commit(a.to, frame.len(), Payload::EMPTY);
        }
        a.rail.flush().expect("a live rail");
        let sent = Instant::now();
        let mut left = 32;
        while left > 0 {
            left -= b.rail.receive(left, &mut |_| ()).expect("a live rail");
        }
        sending += (sent - start).as_nanos() as f64;
        receiving += sent.elapsed().as_nanos() as f64;
    }
    (sending / f64::from(bursts) / 32.0, receiving / f64::from(bursts) / 32.0)
}

/// Bytes of one transfer, and transfers of one round.
const BULK_BYTES: usize = 4 << 20;
const TRANSFERS: usize = 40;

/// The process that sends bulk: prints its segment's address on standard output, and sends until it is killed.
fn send_bulk(address: &str, pull: bool) -> ! {
    let bytes: Vec<u8> = (0..address.len() / 2)
        .map(|i| u8::from_str_radix(&address[2 * i..][..2], 16).expect("hex"))
        .collect();
    pin(1);
    let mut rail = open(pull);
    let to = rail.resolve(&RawAddress::new(&bytes).expect("short")).expect("this host");
    let user = Arc::new(vec![1u8; BULK_BYTES]);
    println!("{} {}", std::process::id(), user.as_ptr() as usize);
    let piece = rail.caps().frame_bytes_max - 96;
    loop {
        let mut from = 0;
        while from < BULK_BYTES {
            let end = (from + piece).min(BULK_BYTES);
            // Three pieces on their way, as a link's flight bound has it.
            while rail.staged_total() - rail.completed_total() >= 3 {
                rail.receive(64, &mut |_| ()).expect("a live rail");
            }
            rail.lease().expect("few are staged")[..96].fill(7);
            rail.commit(to, 96, Payload::shared(&user, from..end).expect("in range"));
            rail.flush().expect("a live rail");
            from = end;
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gigabytes per second of frames whose payload goes to the user's buffer as they come, and of plain `process_vm_readv` from the same process.
fn bulk(pull: bool) -> (f64, f64) {
    use std::io::BufRead;
    let mut rail = open(pull);
    let address: String = rail.local_address().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--send", &address, if pull { "pull" } else { "staged" }])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("this program");
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let child = Killed(child);
    let numbers: Vec<usize> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let mut user = vec![0u8; BULK_BYTES];
    let mut receive = |transfers: usize| {
        let (mut left, mut at) = (transfers * BULK_BYTES, 0);
        let start = Instant::now();
        while left > 0 {
            rail.receive_deferred(8, &mut |_, deferred| {
                let Some(deferred) = deferred else { return };
                let bytes = deferred.bytes();
                at = if at + bytes > BULK_BYTES { 0 } else { at };
                // False: this process stood still for so long that the sender has taken it back.
                if deferred.fetch(&mut user[at..at + bytes]) {
                    at += bytes;
                    left = left.saturating_sub(bytes);
                }
            })
            .expect("a live rail");
        }
        (transfers * BULK_BYTES) as f64 / start.elapsed().as_nanos() as f64
    };
    receive(4);
    let driver = receive(TRANSFERS);
    // The sender now waits until its offer is read.
    let pid = Pid::from_raw(i32::try_from(numbers[0]).expect("a process id"));
    let remote = [nix::sys::uio::RemoteIoVec { base: numbers[1], len: BULK_BYTES }];
    let start = Instant::now();
    for _ in 0..TRANSFERS {
        let mut local = [std::io::IoSliceMut::new(&mut user)];
        nix::sys::uio::process_vm_readv(pid, &mut local, &remote).expect("a child of ours");
    }
    let plain = (TRANSFERS * BULK_BYTES) as f64 / start.elapsed().as_nanos() as f64;
    drop(child);
    (driver, plain)
}

struct Variant {
    name: &'static str,
    a: Box<dyn End>,
    b: Box<dyn End>,
    times: Vec<f64>,
}

fn median(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, address, how] = arguments.as_slice()
        && flag == "--send"
    {
        send_bulk(address, how == "pull");
    }
    let number = |at: usize, otherwise: usize| {
        arguments.get(at).map_or(otherwise, |text| text.parse().expect("a number: FRAME_BYTES ROUNDS"))
    };
    let (frame_bytes, rounds) = (number(0, 120), number(1, 15));
    let frame = vec![1u8; frame_bytes];
    pin(0);
    let lines = (CacheLines::new(), CacheLines::new());
    let bare = |own: &Arc<CacheLines>, other: &Arc<CacheLines>| {
        Box::new(Bare { own: own.clone(), other: other.clone(), sent: 0, received: 0 })
    };
    let (a, b) = driven_pair();
    let mut variants = [
        Variant {
            name: "bare words",
            a: bare(&lines.0, &lines.1),
            b: bare(&lines.1, &lines.0),
            times: Vec::new(),
        },
        Variant { name: "driver", a: Box::new(a), b: Box::new(b), times: Vec::new() },
    ];
    for _ in 0..rounds {
        for variant in &mut variants {
            variant.times.push(ping_pong(variant.a.as_mut(), variant.b.as_mut(), &frame));
        }
    }
    println!("half round trip, {frame_bytes} bytes, {rounds} alternating rounds of {MESSAGES}");
    let (first, ..) = median(&mut variants[0].times);
    for Variant { name, times, .. } in &mut variants {
        let (middle, low, high) = median(times);
        println!("  {name:<12} {middle:>7.1} ns  ({low:.1} ... {high:.1})  ratio {:.2}", middle / first);
    }
    let (mut sending, mut receiving): (Vec<f64>, Vec<f64>) = (0..rounds).map(|_| burst(&frame)).unzip();
    println!("bursts of 32 on one thread, per frame");
    println!("  send {:.1} ns, receive {:.1} ns", median(&mut sending).0, median(&mut receiving).0);
    println!("4 MiB between two processes, GB/s, medians of {rounds} rounds of {TRANSFERS}");
    for (name, pull) in [("pulled", true), ("staged", false)] {
        let (mut driver, mut plain): (Vec<f64>, Vec<f64>) = (0..rounds).map(|_| bulk(pull)).unzip();
        let ((driver, _, best), (plain, ..)) = (median(&mut driver), median(&mut plain));
        let ratio = driver / plain;
        println!(
            "  {name}: driver {driver:.2} (best {best:.2}), plain process_vm_readv {plain:.2}, ratio {ratio:.2}"
        );
    }
}
