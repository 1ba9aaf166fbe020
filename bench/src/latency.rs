//! Half round trip of 8-byte messages, against a bare ping-pong, and against UDP.
//!
//! Two processes. Ours: two endpoints, header authentication, helper threads running. Bare: the same NIC with nothing above it, both ends spinning,
//! as many bytes in a datagram as our frames have: connected non-blocking sockets, or the rings of AF_XDP. UDP: ours, over sockets beside the
//! measured NIC. Runs alternate.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use drivers::xdp::bare::{BareAddress, BareXdp};
use endpoint::{Completion, Endpoint, ReceiveBuffer, SendBuffer};
use serde::{Deserialize, Serialize};
use transport::LinkIndex;

use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::pair::{self, Address, Auth, FRAME_BYTES, MESSAGE_BYTES, Watchdog};
use crate::progress::Steps;
use crate::statistics::{Summary, paired_ratios, percentile, sorted};
use crate::testbed::{Nic, Program, RailSpec, Testbed, Wire};
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "latency";

/// The bar of the design: half round trip to that of the bare ping-pong.
pub const RATIO_MAX: f64 = 1.25;

/// The bar of AF_XDP: half round trip to that over UDP between devices like these.
pub const RATIO_TO_UDP_MAX: f64 = 0.6;

/// Settings of the latency benchmark.
#[derive(Clone, Copy, Debug)]
pub struct LatencyOptions {
    /// NIC kind to measure.
    pub nic: Nic,
    /// How AF_XDP's program is attached.
    pub program: Program,
    /// Pairs of processes, one after the other: where memory happens to lie moves a pair's figures by some percent.
    pub pairs: usize,
    /// Runs of ours, and of each baseline, per pair.
    pub runs: usize,
    /// Round trips per run.
    pub rounds: usize,
}

impl Default for LatencyOptions {
    fn default() -> LatencyOptions {
        LatencyOptions { nic: Nic::Udp, program: Program::Native, pairs: 10, runs: 10, rounds: 2000 }
    }
}

/// The result. Figures that are not measured beside this NIC are null.
#[derive(Clone, Serialize, Debug)]
pub struct LatencyReport {
    /// "latency".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// The measured NIC kind.
    pub nic: Nic,
    /// Between which devices.
    pub device: Option<String>,
    /// Half round trip of ours: median over the runs of each run's median, microseconds.
    pub half_rtt_us: f64,
    /// The same of the bare ping-pong.
    pub bare_half_rtt_us: Option<f64>,
    /// The same of ours over UDP.
    pub udp_half_rtt_us: Option<f64>,
    /// To the bare ping-pong: median of the ratios of neighbouring runs.
    pub ratio: Option<f64>,
    /// The most that this ratio may be.
    pub ratio_max: f64,
    /// The same to ours over UDP.
    pub ratio_to_udp: Option<f64>,
    /// The most that this ratio may be.
    pub ratio_to_udp_max: Option<f64>,
    /// Median over the runs of each run's 99th percentile, microseconds.
    pub half_rtt_us_p99: f64,
    /// The same of the bare ping-pong.
    pub bare_half_rtt_us_p99: Option<f64>,
    /// The same of ours over UDP.
    pub udp_half_rtt_us_p99: Option<f64>,
    /// Bytes of a datagram, without the network's headers in front of it, on all sides.
    pub datagram_bytes: usize,
    /// Round trips per run.
    pub rounds: usize,
    /// Spread over the runs.
    pub half_rtt_us_spread: Summary,
    /// Spread over the runs.
    pub bare_half_rtt_us_spread: Option<Summary>,
    /// Spread over the runs.
    pub udp_half_rtt_us_spread: Option<Summary>,
    /// Spread over the runs.
    pub ratio_spread: Option<Summary>,
    /// Spread over the runs.
    pub ratio_to_udp_spread: Option<Summary>,
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        if let Some(device) = &self.device {
            writeln!(f, "device   {device}")?;
        }
        writeln!(f, "latency  half round trip of 8 bytes, us; {} datagram bytes", self.datagram_bytes)?;
        writeln!(f, "{:>14} {:>8} {:>8} {:>8} {:>8}", "", "median", "p99", "least", "p90")?;
        let name = |path: &str| format!("{path} {}", self.nic.name());
        for (name, p99, spread) in [
            (name("stillwire"), Some(self.half_rtt_us_p99), Some(self.half_rtt_us_spread)),
            (name("bare"), self.bare_half_rtt_us_p99, self.bare_half_rtt_us_spread),
            ("stillwire udp".to_owned(), self.udp_half_rtt_us_p99, self.udp_half_rtt_us_spread),
        ] {
            if let Some((p99, spread)) = p99.zip(spread) {
                let Summary { median, min, p90, .. } = spread;
                writeln!(f, "{name:>14} {median:>8.3} {p99:>8.3} {min:>8.3} {p90:>8.3}")?;
            }
        }
        for (to, spread, most) in [
            ("bare", self.ratio_spread, Some(self.ratio_max)),
            ("udp", self.ratio_to_udp_spread, self.ratio_to_udp_max),
        ] {
            let Some(spread) = spread else { continue };
            let most = most.map_or(String::new(), |most| format!(" (at most {most})"));
            let Summary { median, p10, p90, .. } = spread;
            writeln!(f, "ratio to {to} {median:.3}{most}, p10 {p10:.3}, p90 {p90:.3}")?;
        }
        write!(f, "{} alternating runs of {} round trips", self.half_rtt_us_spread.runs, self.rounds)
    }
}

#[derive(Serialize, Deserialize)]
struct Hello {
    ours: Address,
    udp: Address,
    bare: BareAt,
}

/// Where the bare end is.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum BareAt {
    Socket(SocketAddr),
    Queue(BareAddress),
    Nowhere,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Bare,
    Udp,
    Ours,
}

impl Side {
    /// Measured in turns; ours is the last one.
    fn all(nic: Nic) -> &'static [Side] {
        match nic {
            Nic::Udp => &[Side::Bare, Side::Ours],
            Nic::Shm | Nic::Verbs => &[Side::Udp, Side::Ours],
            Nic::Xdp => &[Side::Bare, Side::Udp, Side::Ours],
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Run {
    side: Side,
    rounds: usize,
}

/// Medians of one run's half round trips.
#[derive(Serialize, Deserialize)]
struct RunResult {
    half_rtt_us: f64,
    half_rtt_us_p99: f64,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a socket or a message fails, or the process lacks rights for the measurement.
pub fn run(options: &LatencyOptions) -> Result<LatencyReport, BenchError> {
    let machine = Machine::here();
    let testbed = Testbed::make(options.nic, options.program)?;
    let mut results = [const { Vec::new() }; 3];
    let mut ratios = [const { Vec::new() }; 3];
    let steps = Steps::new("latency", options.pairs);
    for _ in 0..options.pairs {
        steps.step(format_args!("a pair of processes"));
        let here = measure_pair(options, &testbed)?;
        for (ratios, side) in ratios.iter_mut().zip(&here) {
            ratios.extend(paired_ratios(&medians(&here[Side::Ours as usize]), &medians(side)));
        }
        results.iter_mut().zip(here).for_each(|(all, here)| all.extend(here));
    }
    let of = |side: Side| &results[side as usize];
    let p99 = |side: Side| {
        Summary::of(&of(side).iter().map(|result| result.half_rtt_us_p99).collect::<Vec<_>>()).median
    };
    let is_beside = |side: Side| !of(side).is_empty();
    let spread = |side: Side| is_beside(side).then(|| Summary::of(&medians(of(side))));
    let ratio = |side: Side| is_beside(side).then(|| Summary::of(&ratios[side as usize]));
    let ours = Summary::of(&medians(of(Side::Ours)));
    let median = |summary: Option<Summary>| summary.map(|summary| summary.median);
    Ok(LatencyReport {
        bench: "latency",
        machine,
        nic: options.nic,
        device: testbed.device(),
        half_rtt_us: ours.median,
        bare_half_rtt_us: median(spread(Side::Bare)),
        udp_half_rtt_us: median(spread(Side::Udp)),
        ratio: median(ratio(Side::Bare)),
        ratio_max: RATIO_MAX,
        ratio_to_udp: median(ratio(Side::Udp)),
        ratio_to_udp_max: (options.nic == Nic::Xdp).then_some(RATIO_TO_UDP_MAX),
        half_rtt_us_p99: p99(Side::Ours),
        bare_half_rtt_us_p99: is_beside(Side::Bare).then(|| p99(Side::Bare)),
        udp_half_rtt_us_p99: is_beside(Side::Udp).then(|| p99(Side::Udp)),
        datagram_bytes: FRAME_BYTES,
        rounds: options.rounds,
        half_rtt_us_spread: ours,
        bare_half_rtt_us_spread: spread(Side::Bare),
        udp_half_rtt_us_spread: spread(Side::Udp),
        ratio_spread: ratio(Side::Bare),
        ratio_to_udp_spread: ratio(Side::Udp),
    })
}

fn medians(results: &[RunResult]) -> Vec<f64> {
    results.iter().map(|result| result.half_rtt_us).collect()
}

/// Two processes that know each other.
pub(crate) struct LatencyPair([Worker; 2]);

impl LatencyPair {
    pub(crate) fn start(workers: [Worker; 2], testbed: &Testbed) -> Result<LatencyPair, BenchError> {
        Ok(LatencyPair(pair::introduce::<Hello>(workers, testbed)?))
    }

    fn run(&mut self, side: Side, rounds: usize) -> Result<RunResult, BenchError> {
        for worker in self.0.iter_mut().rev() {
            worker.send(&Run { side, rounds })?;
        }
        let result = self.0[0].hear()?;
        self.0[1].hear::<()>()?;
        Ok(result)
    }

    /// Half round trip of ours, microseconds: the median of one run.
    pub(crate) fn ours(&mut self, rounds: usize) -> Result<f64, BenchError> {
        Ok(self.run(Side::Ours, rounds)?.half_rtt_us)
    }
}

/// The runs of one pair of processes, by side: ours, and the others around them.
fn measure_pair(options: &LatencyOptions, testbed: &Testbed) -> Result<[Vec<RunResult>; 3], BenchError> {
    let mut pair = LatencyPair::start(testbed.start_two(ROLE)?, testbed)?;
    let mut results = [const { Vec::new() }; 3];
    let sides = Side::all(options.nic);
    let turns = sides.iter().cycle().take(sides.len() * (options.runs + 1) - 1);
    for side in turns {
        results[*side as usize].push(pair.run(*side, options.rounds)?);
    }
    Ok(results)
}

/// One of the two processes: rank 0 measures, rank 1 echoes.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(spec) = parent.hear::<RailSpec>()? else { return Ok(()) };
    let rank = spec.rank;
    machine::pin(rank as usize);
    let ours = pair::open_on(spec.rail(Wire::Ours)?, rank, Auth::Header)?;
    let udp = pair::open_on(spec.udp_rail()?, rank, Auth::Header)?;
    let mut bare = Bare::open(&spec)?;
    parent.send(&Hello { ours: Address::of(&ours), udp: Address::of(&udp), bare: bare.at()? })?;
    let Some(peer) = parent.hear::<Hello>()? else { return Ok(()) };
    bare.connect(peer.bare)?;
    let mut ours = Ours::connect(ours, rank, &peer.ours)?;
    let mut udp = Ours::connect(udp, rank, &peer.udp)?;
    while let Some(run) = parent.hear::<Run>()? {
        let ends: &mut dyn End = match run.side {
            Side::Ours => &mut ours,
            Side::Udp => &mut udp,
            Side::Bare => &mut bare,
        };
        if rank == 0 {
            let result = ping(ends, run.rounds)?;
            parent.send(&result)?;
        } else {
            for _ in 0..run.rounds {
                ends.receive()?;
                ends.send()?;
            }
            parent.send(&())?;
        }
    }
    Ok(())
}

fn ping(end: &mut dyn End, rounds: usize) -> Result<RunResult, BenchError> {
    let mut samples = Vec::with_capacity(rounds);
    let mut before = Instant::now();
    for _ in 0..rounds {
        end.send()?;
        end.receive()?;
        let now = Instant::now();
        samples.push((now - before).as_secs_f64() * 1e6 / 2.0);
        before = now;
    }
    let samples = sorted(samples);
    Ok(RunResult { half_rtt_us: percentile(&samples, 0.5), half_rtt_us_p99: percentile(&samples, 0.99) })
}

/// One end of a ping-pong.
trait End {
    fn send(&mut self) -> Result<(), BenchError>;
    fn receive(&mut self) -> Result<(), BenchError>;
}

struct Ours {
    endpoint: Endpoint,
    link: LinkIndex,
    buffer: Vec<u8>,
}

impl Ours {
    fn connect(endpoint: Endpoint, rank: u32, peer: &Address) -> Result<Ours, BenchError> {
        let link = endpoint.connect(pair::port_id(1 - rank), &[peer.raw()])?;
        Ok(Ours { endpoint, link, buffer: vec![0; MESSAGE_BYTES] })
    }
}

impl End for Ours {
    fn send(&mut self) -> Result<(), BenchError> {
        self.endpoint.send(self.link, pair::silent(1), SendBuffer::Copied(&[7; MESSAGE_BYTES]))?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BenchError> {
        let buffer = std::mem::take(&mut self.buffer);
        self.endpoint
            .post_receive(pair::receive(1, MESSAGE_BYTES as u64, 0), ReceiveBuffer::Owned(buffer))?;
        let mut watchdog = Watchdog::new("a message");
        loop {
            if let Some(Completion::Received { buffer: Some(buffer), .. }) = self.endpoint.poll() {
                self.buffer = buffer;
                return Ok(());
            }
            watchdog.check()?;
        }
    }
}

/// The NIC with nothing above it.
enum Bare {
    Socket { socket: UdpSocket, datagram: Vec<u8> },
    Queue { queue: Box<BareXdp>, datagram: Vec<u8> },
    Nowhere,
}

impl Bare {
    fn open(spec: &RailSpec) -> Result<Bare, BenchError> {
        Ok(match spec.nic {
            Nic::Udp => {
                let socket = UdpSocket::bind(pair::ANY)?;
                socket.set_nonblocking(true)?;
                Bare::Socket { socket, datagram: vec![0; FRAME_BYTES] }
            }
            Nic::Xdp => Bare::Queue { queue: Box::new(spec.bare_xdp()?), datagram: vec![0; FRAME_BYTES] },
            Nic::Shm | Nic::Verbs => Bare::Nowhere,
        })
    }

    fn at(&self) -> Result<BareAt, BenchError> {
        Ok(match self {
            Bare::Socket { socket, .. } => BareAt::Socket(socket.local_addr()?),
            Bare::Queue { queue, .. } => BareAt::Queue(queue.address()),
            Bare::Nowhere => BareAt::Nowhere,
        })
    }

    fn connect(&mut self, peer: BareAt) -> Result<(), BenchError> {
        match (self, peer) {
            (Bare::Socket { socket, .. }, BareAt::Socket(peer)) => Ok(socket.connect(peer)?),
            (Bare::Queue { queue, .. }, BareAt::Queue(peer)) => Ok(queue.prepare(peer, FRAME_BYTES)?),
            _ => Ok(()),
        }
    }
}

impl End for Bare {
    fn send(&mut self) -> Result<(), BenchError> {
        match self {
            Bare::Socket { socket, datagram } => drop(socket.send(datagram)?),
            Bare::Queue { queue, datagram } => queue.send(1, datagram)?,
            Bare::Nowhere => {}
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BenchError> {
        let mut watchdog = Watchdog::new("a datagram");
        loop {
            match self {
                Bare::Socket { socket, datagram } => match socket.recv(datagram) {
                    Ok(_) => return Ok(()),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                },
                Bare::Queue { queue, datagram } => {
                    if queue.receive(1, datagram) == 1 {
                        return Ok(());
                    }
                }
                Bare::Nowhere => return Ok(()),
            }
            watchdog.check()?;
        }
    }
}
