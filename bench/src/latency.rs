//! Half round trip of 8-byte messages, against a bare ping-pong.
//!
//! Two processes. Ours: two endpoints over UDP on loopback, header authentication, helper threads running. Bare: connected
//! non-blocking sockets, both ends spinning, as many bytes in a datagram as our frames have. Runs alternate.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use endpoint::{Completion, Endpoint, ReceiveBuffer, SendBuffer};
use serde::{Deserialize, Serialize};
use transport::LinkIndex;

use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::pair::{self, Address, Auth, FRAME_BYTES, MESSAGE_BYTES, Watchdog};
use crate::statistics::{Summary, paired_ratios, percentile, sorted};
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "latency";

/// The bar of the design.
pub const RATIO_MAX: f64 = 1.25;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct LatencyOptions {
    /// Pairs of processes, one after the other: where memory happens to lie moves a pair's figures by some percent.
    pub pairs: usize,
    /// Runs of ours, and of the baseline, per pair.
    pub runs: usize,
    /// Round trips per run.
    pub rounds: usize,
}

impl Default for LatencyOptions {
    fn default() -> LatencyOptions {
        LatencyOptions { pairs: 10, runs: 10, rounds: 2000 }
    }
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct LatencyReport {
    /// "latency".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Half round trip of ours: median over the runs of each run's median, microseconds.
    pub half_rtt_us: f64,
    /// The same of the bare ping-pong.
    pub bare_half_rtt_us: f64,
    /// Median of the ratios of neighbouring runs.
    pub ratio: f64,
    /// The most that the ratio may be.
    pub ratio_max: f64,
    /// Median over the runs of each run's 99th percentile, microseconds.
    pub half_rtt_us_p99: f64,
    /// The same of the bare ping-pong.
    pub bare_half_rtt_us_p99: f64,
    /// Bytes of a datagram, on both sides.
    pub datagram_bytes: usize,
    /// Round trips per run.
    pub rounds: usize,
    /// Spread over the runs.
    pub half_rtt_us_spread: Summary,
    /// Spread over the runs.
    pub bare_half_rtt_us_spread: Summary,
    /// Spread over the runs.
    pub ratio_spread: Summary,
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "latency  half round trip of 8 bytes, us; {} datagram bytes", self.datagram_bytes)?;
        writeln!(f, "{:>10} {:>8} {:>8} {:>8} {:>8}", "", "median", "p99", "least", "p90")?;
        let ours = &self.half_rtt_us_spread;
        let bare = &self.bare_half_rtt_us_spread;
        for (name, median, p99, spread) in [
            ("stillwire", self.half_rtt_us, self.half_rtt_us_p99, ours),
            ("bare udp", self.bare_half_rtt_us, self.bare_half_rtt_us_p99, bare),
        ] {
            writeln!(f, "{name:>10} {median:>8.3} {p99:>8.3} {:>8.3} {:>8.3}", spread.min, spread.p90)?;
        }
        write!(
            f,
            "ratio {:.3} (at most {}), p10 {:.3}, p90 {:.3}, {} alternating runs of {} round trips",
            self.ratio,
            self.ratio_max,
            self.ratio_spread.p10,
            self.ratio_spread.p90,
            self.ratio_spread.runs,
            self.rounds
        )
    }
}

#[derive(Serialize, Deserialize)]
struct Hello {
    ours: Address,
    bare: SocketAddr,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Ours,
    Bare,
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
/// [`BenchError`] if a process, a socket or a message fails.
pub fn run(options: &LatencyOptions) -> Result<LatencyReport, BenchError> {
    let machine = Machine::here();
    let mut results = [Vec::new(), Vec::new()];
    let mut ratios = Vec::new();
    for _ in 0..options.pairs {
        let [ours, bare] = measure_pair(options)?;
        ratios.extend(paired_ratios(&medians(&ours), &medians(&bare)));
        results[0].extend(ours);
        results[1].extend(bare);
    }
    let [ours, bare] = &results;
    let p99 = |side: &[RunResult]| {
        Summary::of(&side.iter().map(|result| result.half_rtt_us_p99).collect::<Vec<_>>()).median
    };
    let (ours_spread, bare_spread) = (Summary::of(&medians(ours)), Summary::of(&medians(bare)));
    let ratios = Summary::of(&ratios);
    Ok(LatencyReport {
        bench: "latency",
        machine,
        half_rtt_us: ours_spread.median,
        bare_half_rtt_us: bare_spread.median,
        ratio: ratios.median,
        ratio_max: RATIO_MAX,
        half_rtt_us_p99: p99(ours),
        bare_half_rtt_us_p99: p99(bare),
        datagram_bytes: FRAME_BYTES,
        rounds: options.rounds,
        half_rtt_us_spread: ours_spread,
        bare_half_rtt_us_spread: bare_spread,
        ratio_spread: ratios,
    })
}

fn medians(results: &[RunResult]) -> Vec<f64> {
    results.iter().map(|result| result.half_rtt_us).collect()
}

/// Two processes that know each other.
pub(crate) struct LatencyPair([Worker; 2]);

impl LatencyPair {
    pub(crate) fn start(workers: [Worker; 2]) -> Result<LatencyPair, BenchError> {
        Ok(LatencyPair(pair::introduce::<Hello>(workers)?))
    }

    fn run(&mut self, side: Side, rounds: usize) -> Result<RunResult, BenchError> {
        for worker in self.0.iter_mut().rev() {
            worker.tell(&Run { side, rounds })?;
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

/// The runs of one pair of processes: ours, and the bare ones around them.
fn measure_pair(options: &LatencyOptions) -> Result<[Vec<RunResult>; 2], BenchError> {
    let mut pair = LatencyPair::start([Worker::start(ROLE)?, Worker::start(ROLE)?])?;
    let mut results = [Vec::new(), Vec::new()];
    for i in 0..=2 * options.runs {
        let side = if i % 2 == 0 { Side::Bare } else { Side::Ours };
        let result = pair.run(side, options.rounds)?;
        results[usize::from(side == Side::Bare)].push(result);
    }
    Ok(results)
}

/// One of the two processes: rank 0 measures, rank 1 echoes.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(rank) = parent.hear::<u32>()? else { return Ok(()) };
    machine::pin(rank as usize);
    let endpoint = pair::open(rank, Auth::Header)?;
    let bare = UdpSocket::bind(pair::ANY)?;
    bare.set_nonblocking(true)?;
    parent.tell(&Hello { ours: Address::of(&endpoint), bare: bare.local_addr()? })?;
    let Some(peer) = parent.hear::<Hello>()? else { return Ok(()) };
    bare.connect(peer.bare)?;
    let link = endpoint.connect(pair::port_id(1 - rank), &[peer.ours.raw()])?;
    let mut ours = Ours { endpoint, link, buffer: vec![0; MESSAGE_BYTES] };
    let mut bare = Bare { socket: bare, datagram: vec![0; FRAME_BYTES] };
    while let Some(run) = parent.hear::<Run>()? {
        let ends: &mut dyn End = match run.side {
            Side::Ours => &mut ours,
            Side::Bare => &mut bare,
        };
        if rank == 0 {
            let result = ping(ends, run.rounds)?;
            parent.tell(&result)?;
        } else {
            for _ in 0..run.rounds {
                ends.receive()?;
                ends.send()?;
            }
            parent.tell(&())?;
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

struct Bare {
    socket: UdpSocket,
    datagram: Vec<u8>,
}

impl End for Bare {
    fn send(&mut self) -> Result<(), BenchError> {
        self.socket.send(&self.datagram)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BenchError> {
        let mut watchdog = Watchdog::new("a datagram");
        loop {
            match self.socket.recv(&mut self.datagram) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => watchdog.check()?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
