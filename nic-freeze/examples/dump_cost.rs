//! The cost of a dump: 1,024 links, 64 of them with 32 unacknowledged frames of 64 bytes each, and the user's payload
//! timed apart, beside a copy of as many bytes.
//!
//! `cargo run --release -p stillwire-nic-freeze --example dump_cost`

use std::hint::black_box;
use std::time::{Duration, Instant};

use nic_freeze::{Payloads, append_payloads, dump};
use transport::{
    AddressId, AuthLevel, Epoch, FrozenPort, JobId, Life, LinkIndex, OpId, Outgoing, Payload, Port,
    PortConfig, PortId, RailIndex, Rank, RawAddress, Space,
};

const LINKS: u32 = 1024;
const ACTIVE: u32 = 64;
const FRAMES: u64 = 32;
const ROUNDS: usize = 5000;
const PAYLOADS: usize = 64;
const PAYLOAD_BYTES: usize = 1 << 20;

struct User(Vec<(OpId, Vec<u8>)>);

impl Payloads for User {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        let place = self.0.binary_search_by_key(&op, |(op, _)| *op).ok()?;
        Some(&self.0[place].1)
    }

    fn receive_buffer(&self, _: OpId) -> Option<&[u8]> {
        None
    }
}

fn port() -> Port {
    let mut config = PortConfig::new(JobId(7).tag());
    config.auth = AuthLevel::Off;
    let life = Life { counter: 1, nonce: 2 };
    let mut port = Port::new(config, PortId::of_rank(Rank(0), 0), life, Epoch(0), None);
    let rail = port.add_rail(RawAddress::NONE, 1500);
    for peer in 1..=LINKS {
        let link = port.connect(PortId::of_rank(Rank(peer), 0));
        port.set_path(link, rail, AddressId(peer));
    }
    for number in 0..FRAMES {
        for link in 0..ACTIVE {
            let outgoing = Outgoing { space: Space(0), tag: number, data: 0, context: number, silent: false };
            // Every sixteenth link, as a program's neighbours lie about.
            let link = LinkIndex(link * (LINKS / ACTIVE));
            port.send(link, outgoing, Payload::Copied(&[0x5a; 64])).expect("there is room");
        }
    }
    transmit(&mut port);
    port
}

fn transmit(port: &mut Port) {
    let mut frame = [0; 1500];
    while port.poll_transmit(transport::Instant::ZERO, RailIndex(0), &mut frame).is_some() {}
}

/// Median and 99th percentile.
fn spread(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn measure(rounds: usize, mut round: impl FnMut()) -> (Duration, Duration) {
    for _ in 0..rounds / 10 {
        round();
    }
    let times = (0..rounds).map(|_| {
        let started = Instant::now();
        round();
        started.elapsed()
    });
    spread(times.collect())
}

fn references(frozen: &FrozenPort) {
    let mut out = Vec::new();
    let (median, p99) = measure(ROUNDS, || {
        dump(black_box(frozen), &mut out);
        black_box(&out);
    });
    println!(
        "dump, {LINKS} links, {ACTIVE} with {FRAMES} frames of 64 bytes: {} bytes, median {median:?}, p99 {p99:?}",
        out.len()
    );
    let copied = out.clone();
    let (median, p99) = measure(ROUNDS, || {
        out.clear();
        out.extend_from_slice(black_box(&copied));
        black_box(&out);
    });
    println!("copy of as many bytes: median {median:?}, p99 {p99:?}");
    // As after a while in which the program used the caches for itself.
    let mut program = vec![1u8; 64 << 20];
    let times = (0..200).map(|_| {
        program.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        let started = Instant::now();
        dump(black_box(frozen), &mut out);
        started.elapsed()
    });
    let (median, p99) = spread(times.collect());
    println!("dump with cold caches: median {median:?}, p99 {p99:?}");
}

fn payloads() {
    let mut port = port();
    let mut user = User(Vec::new());
    for i in 0..PAYLOADS {
        let outgoing = Outgoing { space: Space(0), tag: 1, data: 0, context: 0, silent: false };
        let link = LinkIndex(u32::try_from(i).expect("a few"));
        let payload = vec![0x33; PAYLOAD_BYTES];
        let op =
            port.send(link, outgoing, Payload::User { bytes: PAYLOAD_BYTES as u64 }).expect("there is room");
        user.0.push((op, payload));
    }
    transmit(&mut port);
    let frozen = port.freeze(transport::Instant::ZERO);
    let mut out = Vec::new();
    let (median, p99) = measure(20, || {
        dump(&frozen, &mut out);
        append_payloads(&frozen, black_box(&user), &mut out).expect("the memory is this port's");
    });
    let bytes = (PAYLOADS * PAYLOAD_BYTES) as f64;
    let speed = |time: Duration| bytes / time.as_secs_f64() / 1e9;
    println!(
        "dump with {PAYLOADS} payloads of 1 MiB: median {median:?}, p99 {p99:?}, {:.2} GB/s",
        speed(median)
    );
    let mut copy = vec![0u8; PAYLOADS * PAYLOAD_BYTES];
    let (plain, _) = measure(20, || {
        for (to, (_, from)) in copy.chunks_exact_mut(PAYLOAD_BYTES).zip(&user.0) {
            to.copy_from_slice(black_box(from));
        }
        black_box(&copy);
    });
    println!(
        "memory copy of as much: median {plain:?}, {:.2} GB/s; the dump reaches {:.0} %",
        speed(plain),
        100.0 * plain.as_secs_f64() / median.as_secs_f64()
    );
}

fn main() {
    references(&port().freeze(transport::Instant::ZERO));
    payloads();
}
