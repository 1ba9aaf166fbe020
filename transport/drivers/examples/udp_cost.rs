//! The cost of a message over UDP: bare sockets against the driver, alternating in one run.
//!
//! ```text
//! cargo run --release -p stillwire-drivers --example udp_cost [-- FRAME_BYTES ROUNDS ADDRESS]
//! ```
//!
//! Prints half round trips (median over the rounds, lowest and highest round) and bulk rates. Both ends spin, each on its own
//! thread, so half round trips need two idle cores. Bulk is processor time of one thread that sends and then receives. Ratios
//! within one run are reliable; absolute times are the machine's.

use std::hint::spin_loop;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use drivers::udp::{UdpConfig, UdpDriver};
use drivers::{Driver, Payload};
use transport::AddressId;

/// Messages of one round, and those before them that are not counted.
const MESSAGES: u32 = 20_000;
const WARM_UP: u32 = 1_000;

/// One end of a ping-pong.
trait End: Send {
    fn send(&mut self, frame: &[u8]);
    /// Whether a message was there.
    fn receive(&mut self) -> bool;
}

/// Sockets as a program without a driver uses them.
struct Bare {
    receive: UdpSocket,
    send: Way,
    buffer: Vec<u8>,
}

enum Way {
    Same,
    Own(UdpSocket),
    ByAddress(SocketAddr),
}

impl End for Bare {
    fn send(&mut self, frame: &[u8]) {
        match &self.send {
            Way::Same => self.receive.send(frame),
            Way::Own(socket) => socket.send(frame),
            Way::ByAddress(to) => self.receive.send_to(frame, to),
        }
        .expect("loopback takes it");
    }

    fn receive(&mut self) -> bool {
        self.receive.recv(&mut self.buffer).is_ok()
    }
}

struct Driven {
    rail: UdpDriver,
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

fn bound(ip: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).expect("a free port");
    socket.set_nonblocking(true).expect("a socket option");
    socket
}

fn bare_pair(ip: IpAddr, way: &str) -> (Bare, Bare) {
    let (a, b) = (bound(ip), bound(ip));
    let (at_a, at_b) = (a.local_addr().expect("bound"), b.local_addr().expect("bound"));
    let end = |receive: UdpSocket, to: SocketAddr| {
        let send = match way {
            "same" => {
                receive.connect(to).expect("reachable");
                Way::Same
            }
            "own" => {
                let socket = bound(ip);
                socket.connect(to).expect("reachable");
                Way::Own(socket)
            }
            _ => Way::ByAddress(to),
        };
        Bare { receive, send, buffer: vec![0; 65_536] }
    };
    (end(a, at_b), end(b, at_a))
}

fn driven_pair(config: &UdpConfig) -> (Driven, Driven) {
    let open = || UdpDriver::open(config).expect("sockets");
    let (mut a, mut b) = (open(), open());
    let to_b = a.resolve(&b.local_address()).expect("reachable");
    let to_a = b.resolve(&a.local_address()).expect("reachable");
    (Driven { rail: a, to: to_b }, Driven { rail: b, to: to_a })
}

/// Half round trip of one round, in nanoseconds.
fn ping_pong(a: &mut dyn End, b: &mut dyn End, frame: &[u8]) -> f64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if b.receive() {
                    b.send(frame);
                } else {
                    spin_loop();
                }
            }
        });
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

/// Processor time of this thread, in nanoseconds: unlike the clock, it does not run while others have the core.
fn processor_ns() -> f64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
}

/// Gigabytes per second of processor time, sending and receiving, of bursts of `frames` frames.
fn bulk(config: &UdpConfig, frame_bytes: usize, frames: usize) -> (f64, f64) {
    const HEAD_BYTES: usize = 80;
    let (mut a, mut b) = driven_pair(config);
    start_coalescing(&mut a, &mut b);
    let user = Arc::new(vec![1u8; frame_bytes - HEAD_BYTES]);
    let (mut sending, mut receiving, mut bytes) = (0.0, 0.0, 0usize);
    while bytes < 200 << 20 {
        let start = processor_ns();
        for _ in 0..frames {
            let payload = Payload::shared(&user, 0..user.len()).expect("in range");
            a.rail.lease().expect("all earlier frames are completed");
            a.rail.commit(a.to, HEAD_BYTES, payload);
        }
        a.rail.flush().expect("a live rail");
        let sent = processor_ns();
        let mut left = frames;
        while left > 0 {
            let given = b.rail.receive(left, &mut |frame| bytes += frame.len()).expect("a live rail");
            assert!(given > 0, "loopback lost a frame; raise net.core.rmem_max");
            left -= given;
        }
        sending += sent - start;
        receiving += processor_ns() - sent;
    }
    (bytes as f64 / sending, bytes as f64 / receiving)
}

/// The same with bare connected sockets.
fn bare_bulk(ip: IpAddr, frame_bytes: usize, frames: usize) -> (f64, f64) {
    let (mut a, mut b) = bare_pair(ip, "same");
    let frame = vec![1u8; frame_bytes];
    let (mut sending, mut receiving, mut bytes) = (0.0, 0.0, 0usize);
    while bytes < 200 << 20 {
        let start = processor_ns();
        (0..frames).for_each(|_| a.send(&frame));
        let sent = processor_ns();
        (0..frames).for_each(|_| assert!(b.receive(), "loopback lost a frame"));
        sending += sent - start;
        receiving += processor_ns() - sent;
        bytes += frames * frame_bytes;
    }
    (bytes as f64 / sending, bytes as f64 / receiving)
}

/// Bursts until the receiver asks the kernel to coalesce, as it does in a program that moves bulk data.
fn start_coalescing(from: &mut Driven, to: &mut Driven) {
    for _ in 0..100 {
        for _ in 0..32 {
            from.rail.lease().expect("all earlier frames are completed");
            from.rail.commit(from.to, 1000, Payload::EMPTY);
        }
        from.rail.flush().expect("a live rail");
        while to.receive() {}
    }
}

/// A pair of ends, and the half round trips of its rounds.
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
    let number = |at: usize, otherwise: usize| {
        arguments
            .get(at)
            .map_or(otherwise, |text| text.parse().expect("a number: FRAME_BYTES ROUNDS ADDRESS"))
    };
    let (frame_bytes, rounds) = (number(0, 88), number(1, 15));
    let ip: IpAddr = arguments
        .get(2)
        .map_or(Ipv4Addr::LOCALHOST.into(), |text| text.parse().expect("an IP address of this host"));
    let frame = vec![1u8; frame_bytes];
    let config = UdpConfig::new(SocketAddr::new(ip, 0));

    let mut variants: Vec<Variant> = Vec::new();
    for (name, way) in [
        ("bare, one connected socket each", "same"),
        ("bare, bound receive + connected send", "own"),
        ("bare, bound receive + sendto", "address"),
    ] {
        let (a, b) = bare_pair(ip, way);
        variants.push(Variant { name, a: Box::new(a), b: Box::new(b), times: Vec::new() });
    }
    for (name, config) in [
        ("driver", config.clone()),
        ("driver, no connected socket", UdpConfig { connected_max: 0, ..config.clone() }),
    ] {
        let (a, b) = driven_pair(&config);
        variants.push(Variant { name, a: Box::new(a), b: Box::new(b), times: Vec::new() });
    }
    for _ in 0..rounds {
        for variant in &mut variants {
            variant.times.push(ping_pong(variant.a.as_mut(), variant.b.as_mut(), &frame));
        }
    }
    println!("half round trip, {frame_bytes} bytes on {ip}, {rounds} alternating rounds of {MESSAGES}");
    let (bare, ..) = median(&mut variants[0].times);
    for Variant { name, times, .. } in &mut variants {
        let (middle, low, high) = median(times);
        println!(
            "  {name:<38} {:>7.3} us  ({:.3} ... {:.3})  ratio {:.3}",
            middle / 1e3,
            low / 1e3,
            high / 1e3,
            middle / bare
        );
    }
    println!("bulk on one thread, GB per second of processor time, medians of {rounds} rounds of 200 MiB");
    let plain = UdpConfig { segment: false, coalesce: false, ..config.clone() };
    let merged = UdpConfig { coalesce: false, ..config.clone() };
    for (bytes, frames) in [(1400, 46), (8192, 35), (65_000, 4)] {
        let bare_frames = frames.min(50_000 / bytes).max(1);
        let row = |name: &str, run: &dyn Fn() -> (f64, f64)| {
            let (mut sending, mut receiving): (Vec<f64>, Vec<f64>) = (0..rounds).map(|_| run()).unzip();
            let (sending, receiving) = (median(&mut sending).0, median(&mut receiving).0);
            println!("  {bytes:>5}-byte frames, {name:<26} send {sending:>5.2}  receive {receiving:>5.2}");
        };
        row("bare sockets", &|| bare_bulk(ip, bytes, bare_frames));
        row("driver, neither", &|| bulk(&plain, bytes, frames));
        row("driver, merged only", &|| bulk(&merged, bytes, frames));
        row("driver, merged, coalesced", &|| bulk(&config, bytes, frames));
    }
}
