//! The cost of lost frames: goodput of a stream, and the delay of a single message.
//!
//! Two processes, UDP on loopback, header authentication, helper threads running; under each port a wrapper that loses frames at a
//! stated rate as they are sent, acknowledgements included, so both directions lose. Lossless runs go over ports of their own, which never lose
//! anything, through a wrapper too.
//!
//! * goodput: a one-way stream of 1 MiB messages, frames as long as loopback takes them (64 KiB). Runs with losses alternate with lossless
//!   ones; the ratio is the median of the ratios of neighbours.
//! * recovery: 8-byte round trips, both ends polling. A frame that carries a message and is lost is found by its process having lost
//!   a frame, and one of the two having sent one again, in that round trip. Its recovery is the time of that round trip above the median of
//!   the undisturbed ones of the same run, halved if a frame was lost in each direction. A frame that is lost twice is one frame, and its
//!   recovery takes both times.

use std::fmt;
use std::time::Instant;

use drivers::Driver;
use drivers::fault::{FaultDriver, FaultSwitch, Faults, Rate};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use serde::{Deserialize, Serialize};
use transport::LinkIndex;

use crate::bulk;
use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::pair::{self, Address, Auth, MESSAGE_BYTES, Watchdog};
use crate::progress;
use crate::report::Bar;
use crate::statistics::{Summary, paired_ratios, percentile, sorted};
use crate::testbed::{RailSpec, Testbed};
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "loss";

/// The bars of the design, at [`BAR_RATE_PPM`].
const GOODPUT_RATIO_MIN: f64 = 0.8;
const RECOVERY_US_MAX: f64 = 200.0;
const BAR_RATE_PPM: u32 = 10_000;

const BULK_BYTES: usize = 1 << 20;

/// Lost frames per rate at which a run is long enough, and round trips at which it is too long.
const LOSSES_WANTED: usize = 2000;
const ROUNDS_MAX: usize = 500_000;

/// Settings of the loss benchmark.
#[derive(Clone, Debug)]
pub struct LossOptions {
    /// Runs with losses, per rate.
    pub runs: usize,
    /// Rates of loss, in a million.
    pub rates_ppm: Vec<u32>,
    /// Bytes of one run of the stream.
    pub run_bytes: usize,
    /// Lost frames that are wanted per rate.
    pub losses: usize,
}

impl Default for LossOptions {
    fn default() -> LossOptions {
        LossOptions {
            runs: 15,
            rates_ppm: vec![0, 1_000, 10_000, 50_000],
            run_bytes: 256 << 20,
            losses: LOSSES_WANTED,
        }
    }
}

/// Results at one rate of loss.
#[derive(Clone, Serialize, Debug)]
pub struct LossRow {
    /// Share of frames that are lost, in a hundred.
    pub loss_percent: f64,
    /// Goodput with losses to goodput without, median of neighbouring runs.
    pub goodput_ratio: f64,
    /// Spread of the ratios.
    pub goodput_ratio_spread: Summary,
    /// 10^9 bytes per second.
    pub goodput_gbytes_per_s: f64,
    /// Lossless, 10^9 bytes per second.
    pub lossless_gbytes_per_s: f64,
    /// Median of the recoveries; nothing if no frame was lost.
    pub recovery_p50_us: Option<f64>,
    /// 99th percentile.
    pub recovery_p99_us: Option<f64>,
    /// The longest.
    pub recovery_max_us: Option<f64>,
    /// Frames lost and recovered; the percentiles are of these.
    pub losses: usize,
    /// Round trips, those without a loss included.
    pub rounds: usize,
    /// Median of the undisturbed round trips.
    pub round_trip_us: f64,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct LossReport {
    /// "loss".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Each rate.
    pub rows: Vec<LossRow>,
    /// The design's bars.
    pub bars: Vec<Bar>,
}

impl fmt::Display for LossReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "loss     stream of 1 MiB messages; delay of 8-byte messages, us above the round trip")?;
        writeln!(
            f,
            "{:>7} {:>9} {:>9} {:>18}  {:>9} {:>7} {:>9} {:>9} {:>9}",
            "loss", "GB/s", "lossless", "ratio (p10..p90)", "rtt", "losses", "p50", "p99", "longest"
        )?;
        for row in &self.rows {
            let time = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.1}"));
            let spread = &row.goodput_ratio_spread;
            writeln!(
                f,
                "{:>6}% {:>9.2} {:>9.2} {:>18}  {:>9.2} {:>7} {:>9} {:>9} {:>9}",
                row.loss_percent,
                row.goodput_gbytes_per_s,
                row.lossless_gbytes_per_s,
                format!("{:.2} ({:.2}..{:.2})", row.goodput_ratio, spread.p10, spread.p90),
                row.round_trip_us,
                row.losses,
                time(row.recovery_p50_us),
                time(row.recovery_p99_us),
                time(row.recovery_max_us),
            )?;
        }
        crate::report::show(f, &self.bars)
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Kind {
    Stream { messages: usize },
    RoundTrips { rounds: usize },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Run {
    kind: Kind,
    loss_ppm: u32,
    seed: u64,
}

/// Round trips of one run.
#[derive(Serialize, Deserialize)]
struct RoundTrips {
    undisturbed_us: f64,
    recoveries_us: Vec<f64>,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a socket or a message fails.
pub fn run(options: &LossOptions) -> Result<LossReport, BenchError> {
    let machine = Machine::here();
    let mut ends = Ends::start()?;
    let progress = progress::Steps::new("loss", options.rates_ppm.len());
    let mut rows = Vec::new();
    for &loss_ppm in &options.rates_ppm {
        progress.step(format_args!("{} % of frames lost", percent(loss_ppm)));
        rows.push(measure_rate(&mut ends, options, loss_ppm)?);
    }
    let bars = bars(&rows);
    Ok(LossReport { bench: "loss", machine, rows, bars })
}

fn bars(rows: &[LossRow]) -> Vec<Bar> {
    let Some(row) = rows.iter().find(|row| row.loss_percent == percent(BAR_RATE_PPM)) else {
        return Vec::new();
    };
    let goodput = Bar::above("goodput at 1 % loss, of the lossless", row.goodput_ratio, GOODPUT_RATIO_MIN);
    let recovery =
        row.recovery_p99_us.map(|us| Bar::below("recovery at 1 % loss, us, p99", us, RECOVERY_US_MAX));
    [Some(goodput), recovery].into_iter().flatten().collect()
}

fn percent(ppm: u32) -> f64 {
    f64::from(ppm) / 10_000.0
}

fn measure_rate(ends: &mut Ends, options: &LossOptions, loss_ppm: u32) -> Result<LossRow, BenchError> {
    let messages = options.run_bytes.div_ceil(BULK_BYTES);
    let stream = Kind::Stream { messages };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let gbytes = (messages * BULK_BYTES) as f64 / 1e9;
    let (mut lossy, mut lossless) = (Vec::new(), Vec::new());
    for i in 0..=2 * options.runs {
        let loss = if i % 2 == 0 { 0 } else { loss_ppm };
        let seconds: f64 = ends.run(stream, loss)?;
        if i % 2 == 0 { &mut lossless } else { &mut lossy }.push(gbytes / seconds);
    }
    let ratios = Summary::of(&paired_ratios(&lossy, &lossless));
    let expected = options.losses as u64 * 1_000_000 / (2 * u64::from(loss_ppm.max(1)));
    let rounds = usize::try_from(expected).unwrap_or(ROUNDS_MAX).clamp(1000, ROUNDS_MAX);
    // A rate of 0 needs no more than its median.
    let rounds = if loss_ppm == 0 { rounds.min(20_000) } else { rounds };
    let trips: RoundTrips = ends.run(Kind::RoundTrips { rounds }, loss_ppm)?;
    let recoveries = sorted(trips.recoveries_us);
    let recovery = |part: f64| (!recoveries.is_empty()).then(|| percentile(&recoveries, part));
    Ok(LossRow {
        loss_percent: percent(loss_ppm),
        goodput_ratio: ratios.median,
        goodput_ratio_spread: ratios,
        goodput_gbytes_per_s: Summary::of(&lossy).median,
        lossless_gbytes_per_s: Summary::of(&lossless).median,
        recovery_p50_us: recovery(0.5),
        recovery_p99_us: recovery(0.99),
        recovery_max_us: recovery(1.0),
        losses: recoveries.len(),
        rounds,
        round_trip_us: trips.undisturbed_us,
    })
}

/// The two processes, as the bench sees them.
struct Ends {
    workers: [Worker; 2],
    runs: u64,
}

impl Ends {
    fn start() -> Result<Ends, BenchError> {
        let testbed = Testbed::LOOPBACK;
        let workers = pair::introduce::<[Address; 2]>(testbed.start_two(ROLE)?, &testbed)?;
        Ok(Ends { workers, runs: 0 })
    }

    /// Makes one run and returns rank 0's result.
    fn run<T: serde::de::DeserializeOwned>(&mut self, kind: Kind, loss_ppm: u32) -> Result<T, BenchError> {
        self.runs += 1;
        for (rank, worker) in [0, 1].into_iter().zip(&mut self.workers).rev() {
            worker.send(&Run { kind, loss_ppm, seed: 2 * self.runs + rank })?;
            // The receiver is ready before the sender begins.
            worker.hear::<()>()?;
        }
        self.workers[0].send(&())?;
        let found = self.workers[0].hear()?;
        self.workers[1].hear::<()>()?;
        Ok(found)
    }
}

/// One of the two processes: rank 0 sends and measures.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(RailSpec { rank, .. }) = parent.hear()? else { return Ok(()) };
    machine::pin(rank as usize);
    let (lossless, _) = open(rank)?;
    let (lossy, switch) = open(rank)?;
    parent.send(&[Address::of(&lossless), Address::of(&lossy)])?;
    let Some(peer) = parent.hear::<[Address; 2]>()? else { return Ok(()) };
    let connect =
        |endpoint: &Endpoint, peer: &Address| endpoint.connect(pair::port_id(1 - rank), &[peer.raw()]);
    let links = [connect(&lossless, &peer[0])?, connect(&lossy, &peer[1])?];
    let mut end = End {
        endpoints: [lossless, lossy],
        links,
        used: 0,
        switch,
        buffer: vec![0; MESSAGE_BYTES],
        bulk: Vec::new(),
    };
    while let Some(run) = parent.hear::<Run>()? {
        let loss = Faults { loss: Rate::per_million(run.loss_ppm), seed: run.seed, ..Faults::NONE };
        end.switch.set_faults(loss);
        end.used = usize::from(run.loss_ppm > 0);
        parent.send(&())?;
        if rank == 0 {
            parent.hear::<()>()?;
        }
        match (run.kind, rank) {
            (Kind::Stream { messages }, 0) => parent.send(&end.send_stream(messages)?)?,
            (Kind::Stream { messages }, _) => parent.send(&end.receive_stream(messages)?)?,
            (Kind::RoundTrips { rounds }, 0) => parent.send(&end.ping(rounds)?)?,
            (Kind::RoundTrips { rounds }, _) => parent.send(&end.pong(rounds)?)?,
        }
    }
    Ok(())
}

/// An endpoint whose frames can be lost.
fn open(rank: u32) -> Result<(Endpoint, FaultSwitch), BenchError> {
    let driver = FaultDriver::new(pair::rail()?, Faults::NONE);
    let switch = driver.switch();
    let rails: Vec<Box<dyn Driver>> = vec![Box::new(driver)];
    let port = pair::port(rank, Auth::Header);
    Ok((Endpoint::open(port, rails, EndpointConfig::default())?, switch))
}

/// Frames lost and sent again by one process so far; in an echo they are its payload.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tally {
    lost: u32,
    resent: u32,
}

impl Tally {
    fn emit(self) -> [u8; MESSAGE_BYTES] {
        (u64::from(self.lost) << 32 | u64::from(self.resent)).to_le_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Tally> {
        let both = u64::from_le_bytes(bytes.try_into().ok()?);
        Some(Tally { lost: u32::try_from(both >> 32).ok()?, resent: u32::try_from(both & 0xffff_ffff).ok()? })
    }

    fn since(self, before: Tally) -> Tally {
        Tally { lost: self.lost.wrapping_sub(before.lost), resent: self.resent.wrapping_sub(before.resent) }
    }
}

struct End {
    /// The one that never loses anything, and the other.
    endpoints: [Endpoint; 2],
    links: [LinkIndex; 2],
    /// Which of the two this run is about.
    used: usize,
    /// Of the second.
    switch: FaultSwitch,
    buffer: Vec<u8>,
    bulk: Vec<Vec<u8>>,
}

impl End {
    fn send_stream(&mut self, messages: usize) -> Result<f64, BenchError> {
        self.bulk.resize_with(bulk::DEPTH, || vec![7; BULK_BYTES]);
        let started = Instant::now();
        bulk::send_ours(&self.endpoints[self.used], self.links[self.used], &mut self.bulk, messages)?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn receive_stream(&mut self, messages: usize) -> Result<(), BenchError> {
        self.bulk.resize_with(bulk::DEPTH, || vec![7; BULK_BYTES]);
        bulk::receive_ours(&self.endpoints[self.used], &mut self.bulk, messages)
    }

    /// Losses and retransmissions in this process since it began.
    fn tally(&self) -> Tally {
        let resent = self.endpoints[self.used].with_port(|port| port.counters().frames_resent);
        let low = |count: u64| u32::try_from(count & u64::from(u32::MAX)).unwrap_or(0);
        Tally { lost: low(self.switch.lost_total()), resent: low(resent) }
    }

    fn send(&self, payload: &[u8]) -> Result<(), BenchError> {
        self.endpoints[self.used].send(
            self.links[self.used],
            pair::silent(1),
            SendBuffer::Copied(payload),
        )?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BenchError> {
        let buffer = ReceiveBuffer::Owned(std::mem::take(&mut self.buffer));
        self.endpoints[self.used].post_receive(pair::receive(1, MESSAGE_BYTES as u64, 0), buffer)?;
        let mut watchdog = Watchdog::new("a message");
        loop {
            if let Some(Completion::Received { buffer: Some(buffer), .. }) = self.endpoints[self.used].poll()
            {
                self.buffer = buffer;
                return Ok(());
            }
            watchdog.check()?;
        }
    }

    /// Echoes each message; the echo carries the losses here before it.
    fn pong(&mut self, rounds: usize) -> Result<(), BenchError> {
        for _ in 0..rounds {
            self.receive()?;
            self.send(&self.tally().emit())?;
        }
        Ok(())
    }

    fn ping(&mut self, rounds: usize) -> Result<RoundTrips, BenchError> {
        let mut trips: Vec<Trip> = Vec::with_capacity(rounds);
        let mut theirs_before = None;
        for _ in 0..rounds {
            let before = self.tally();
            let started = Instant::now();
            self.send(&[0; MESSAGE_BYTES])?;
            self.receive()?;
            let micros = started.elapsed().as_secs_f64() * 1e6;
            let ours = self.tally().since(before);
            let theirs = Tally::parse(&self.buffer).unwrap_or(before);
            // Their losses after one echo and before the next hit that echo.
            let hit = theirs_before.map(|before| theirs.since(before));
            if let (Some(trip), Some(hit)) = (trips.last_mut(), hit) {
                trip.theirs = hit;
            }
            theirs_before = Some(theirs);
            trips.push(Trip { micros, ours, theirs: Tally { lost: 0, resent: 0 } });
        }
        Ok(recoveries(&trips))
    }
}

/// One round trip, and its losses.
struct Trip {
    micros: f64,
    ours: Tally,
    theirs: Tally,
}

fn recoveries(trips: &[Trip]) -> RoundTrips {
    let calm =
        |trip: &&Trip| [trip.ours, trip.theirs].iter().all(|tally| tally.lost == 0 && tally.resent == 0);
    let undisturbed = sorted(trips.iter().filter(calm).map(|trip| trip.micros).collect());
    let undisturbed_us = percentile(&undisturbed, 0.5);
    let mut recoveries_us = Vec::new();
    for trip in trips {
        if trip.ours.resent + trip.theirs.resent == 0 {
            // Only an acknowledgement can have been lost: no message waited for it.
            continue;
        }
        let frames = u8::from(trip.ours.lost > 0) + u8::from(trip.theirs.lost > 0);
        for _ in 0..frames {
            recoveries_us.push((trip.micros - undisturbed_us) / f64::from(frames));
        }
    }
    RoundTrips { undisturbed_us, recoveries_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trip(micros: f64, ours: (u32, u32), theirs: (u32, u32)) -> Trip {
        let tally = |(lost, resent)| Tally { lost, resent };
        Trip { micros, ours: tally(ours), theirs: tally(theirs) }
    }

    #[test]
    fn a_lost_frame_is_one_that_was_lost_and_sent_again() {
        let none = (0, 0);
        let trips = [
            trip(10.0, none, none),
            trip(10.0, none, none),
            trip(500.0, none, (0, 1)),
            trip(11.0, (1, 0), none),
            trip(110.0, (1, 1), none),
            trip(310.0, none, (2, 2)),
            trip(210.0, (1, 1), (1, 1)),
        ];
        let found = recoveries(&trips);
        assert_eq!(found.undisturbed_us, 10.0);
        assert_eq!(found.recoveries_us, [100.0, 300.0, 100.0, 100.0]);
    }

    #[test]
    fn an_echo_carries_the_tally() {
        let tally = Tally { lost: 3, resent: u32::MAX };
        assert!(Tally::parse(&tally.emit()) == Some(tally));
        assert!(Tally::parse(&[]).is_none());
    }
}
