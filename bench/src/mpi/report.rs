//! The report of `bench mpi`.

use std::fmt;

use serde::Serialize;

use super::figures::Kind;
use super::stacks::{OURS_SHM, OURS_UDP, RXD, Reach, TCP};
use super::{Measured, MpiOptions};
use crate::chart::{self, Chart, Line, Panel};
use crate::machine::Machine;
use crate::report::{self, Bar};
use crate::statistics::Summary;

/// The lengths that the bars of the design are about.
const SHORT_BYTES: u64 = 8;
const LONG_BYTES: u64 = 4 << 20;

const UDP_TO_TCP_MAX: f64 = 0.8;
const UDP_TO_RXD_MAX: f64 = 0.5;
const SHM_BANDWIDTH_MIN: f64 = 0.95;

/// A stack that could not be measured.
#[derive(Clone, Serialize, Debug)]
pub struct Left {
    /// Which.
    pub stack: &'static str,
    /// Why.
    pub reason: String,
}

/// Messages of one length under one stack.
#[derive(Clone, Serialize, Debug)]
pub struct MpiRow {
    /// Which stack.
    pub stack: &'static str,
    /// How far it reaches.
    pub reach: Reach,
    /// Length of the messages.
    pub bytes: u64,
    /// Half the round trip of a message and its answer, microseconds.
    pub half_rtt_us: f64,
    /// Messages one way, 10^9 bytes per second.
    pub gbytes_per_s: f64,
    /// Messages one way, per second.
    pub messages_per_s: f64,
    /// The half round trips of the repetitions.
    pub half_rtt_us_spread: Summary,
    /// By half round trip.
    #[serde(flatten)]
    pub ranking: Ranking,
    /// Of ours: messages per second, to those of the stack with the most that reaches as far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_ratio_to_best: Option<f64>,
    /// That stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_best: Option<&'static str>,
    /// Of ours: messages per second, to those of libfabric's tcp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_ratio_to_tcp: Option<f64>,
}

/// A collective or one-sided operation under one stack.
#[derive(Clone, Serialize, Debug)]
pub struct OperationRow {
    /// Which stack.
    pub stack: &'static str,
    /// "allreduce", "alltoall", "put" or "get".
    pub operation: &'static str,
    /// Length: of an allreduce's vector, to each rank in an alltoall, of a transfer.
    pub bytes: u64,
    /// One operation, microseconds; a put or get with its flush.
    pub us: f64,
    /// The repetitions.
    pub us_spread: Summary,
    /// By its time.
    #[serde(flatten)]
    pub ranking: Ranking,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct MpiReport {
    /// "mpi".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Runs of each stack.
    pub repetitions: usize,
    /// Messages, by length and stack.
    pub rows: Vec<MpiRow>,
    /// Collectives and one-sided operations.
    pub operations: Vec<OperationRow>,
    /// Stacks that could not be measured.
    pub left_out: Vec<Left>,
    /// The design's bars, as far as their stacks were measured.
    pub bars: Vec<Bar>,
}

impl Measured {
    /// Seconds for one transfer, by repetition.
    fn seconds(&self, kind: Kind, bytes: u64) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.get(&(kind, bytes)).copied()).collect()
    }

    fn median(&self, kind: Kind, bytes: u64) -> f64 {
        Summary::of(&self.seconds(kind, bytes)).median
    }
}

/// Comparisons of all that was measured.
struct Field<'a>(&'a [Measured]);

impl Field<'_> {
    /// Time of one stack to that of another: median of the ratios within repetitions.
    fn ratio(&self, ours: &str, to: &str, kind: Kind, bytes: u64) -> Option<f64> {
        let seconds = |name: &str| {
            let found = self.0.iter().find(|measured| measured.stack.name == name)?;
            Some(found.seconds(kind, bytes)).filter(|seconds| !seconds.is_empty())
        };
        let pairs = seconds(ours)?.into_iter().zip(seconds(to)?);
        Some(Summary::of(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>()).median)
    }

    /// The fastest stack that is not ours.
    fn best(&self, reach: Reach, kind: Kind, bytes: u64) -> Option<&'static str> {
        let peers = self.0.iter().filter(|peer| !peer.stack.ours && peer.stack.reach == reach);
        let fastest = peers
            .filter(|peer| !peer.seconds(kind, bytes).is_empty())
            .min_by(|a, b| a.median(kind, bytes).total_cmp(&b.median(kind, bytes)));
        fastest.map(|peer| peer.stack.name)
    }
}

/// How one of ours stands, as ratios of times; nothing for the others.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Ranking {
    /// To the fastest stack that reaches as far and is not ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_best: Option<f64>,
    /// That stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<&'static str>,
    /// To libfabric's tcp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_tcp: Option<f64>,
}

impl Ranking {
    fn of(field: &Field<'_>, measured: &Measured, kind: Kind, bytes: u64) -> Ranking {
        let stack = measured.stack;
        if !stack.ours {
            return Ranking::default();
        }
        let best = field.best(stack.reach, kind, bytes);
        let ratio_to_best = best.and_then(|best| field.ratio(stack.name, best, kind, bytes));
        Ranking { ratio_to_best, best, ratio_to_tcp: field.ratio(stack.name, TCP, kind, bytes) }
    }
}

impl MpiReport {
    pub(super) fn new(
        machine: Machine,
        options: &MpiOptions,
        measured: &[Measured],
        left_out: Vec<Left>,
    ) -> MpiReport {
        let field = Field(measured);
        let mut rows = Vec::new();
        for &bytes in &options.bytes {
            rows.extend(measured.iter().map(|measured| row(&field, measured, bytes)));
        }
        let mut operations = Vec::new();
        for (kind, bytes) in places(measured) {
            operations.extend(measured.iter().map(|measured| operation(&field, measured, kind, bytes)));
        }
        let bars = bars(&field);
        let repetitions = options.repetitions;
        MpiReport { bench: "mpi", machine, repetitions, rows, operations, left_out, bars }
    }

    /// Half round trips and bandwidth, one line for each stack.
    #[must_use]
    pub fn svg(&self) -> String {
        let lines = |value: fn(&MpiRow) -> f64| {
            let line = |stack: &'static str| {
                let rows = self.rows.iter().filter(|row| row.stack == stack);
                let dashed = ![OURS_SHM, OURS_UDP].contains(&stack);
                Line { label: stack.to_owned(), dashed, values: rows.map(value).collect() }
            };
            self.stacks().into_iter().map(line).collect()
        };
        let places = self.lengths().into_iter().map(length).collect();
        chart::svg(&Chart {
            title: "MPI messages between two ranks of one host, by the network under MPICH".to_owned(),
            subtitle: format!("{}, median of {} repetitions", self.machine.cpu, self.repetitions),
            vertical: String::new(),
            horizontal: "bytes of a message".to_owned(),
            places,
            panels: vec![
                Panel {
                    title: "half round trip, us".to_owned(),
                    lines: lines(|row| row.half_rtt_us),
                    reference: None,
                },
                Panel {
                    title: "one way, GB/s".to_owned(),
                    lines: lines(|row| row.gbytes_per_s),
                    reference: None,
                },
            ],
            own_axes: true,
        })
    }

    fn stacks(&self) -> Vec<&'static str> {
        let mut stacks = Vec::new();
        for row in &self.rows {
            if !stacks.contains(&row.stack) {
                stacks.push(row.stack);
            }
        }
        stacks
    }

    fn lengths(&self) -> Vec<u64> {
        let mut lengths: Vec<u64> = self.rows.iter().map(|row| row.bytes).collect();
        lengths.dedup();
        lengths
    }
}

/// The operations that were measured, with their lengths.
fn places(measured: &[Measured]) -> Vec<(Kind, u64)> {
    let run = measured.first().and_then(|measured| measured.runs.first());
    let places = run.into_iter().flat_map(|run| run.keys().copied());
    places.filter(|(kind, _)| Kind::OPERATIONS.contains(kind)).collect()
}

fn row(field: &Field<'_>, measured: &Measured, bytes: u64) -> MpiRow {
    let halves: Vec<f64> =
        measured.seconds(Kind::Pingpong, bytes).iter().map(|seconds| seconds * 1e6 / 2.0).collect();
    let half_rtt_us_spread = Summary::of(&halves);
    let messages_per_s = 1.0 / measured.median(Kind::Stream, bytes);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let gbytes_per_s = messages_per_s * bytes as f64 / 1e9;
    let rate = Ranking::of(field, measured, Kind::Stream, bytes);
    MpiRow {
        stack: measured.stack.name,
        reach: measured.stack.reach,
        bytes,
        half_rtt_us: half_rtt_us_spread.median,
        gbytes_per_s,
        messages_per_s,
        half_rtt_us_spread,
        ranking: Ranking::of(field, measured, Kind::Pingpong, bytes),
        rate_ratio_to_best: rate.ratio_to_best.map(f64::recip),
        rate_best: rate.best,
        rate_ratio_to_tcp: rate.ratio_to_tcp.map(f64::recip),
    }
}

fn operation(field: &Field<'_>, measured: &Measured, kind: Kind, bytes: u64) -> OperationRow {
    let times: Vec<f64> = measured.seconds(kind, bytes).iter().map(|seconds| seconds * 1e6).collect();
    let us_spread = Summary::of(&times);
    OperationRow {
        stack: measured.stack.name,
        operation: kind.name(),
        bytes,
        us: us_spread.median,
        us_spread,
        ranking: Ranking::of(field, measured, kind, bytes),
    }
}

fn bars(field: &Field<'_>) -> Vec<Bar> {
    let best = |stack: &str, reach, kind, bytes| {
        field.best(reach, kind, bytes).and_then(|best| field.ratio(stack, best, kind, bytes))
    };
    let below = |name, ratio: Option<f64>, limit| ratio.map(|ratio| Bar::below(name, ratio, limit));
    // Ratios of times become ratios of rates.
    let above = |name, ratio: Option<f64>, limit| ratio.map(|ratio| Bar::above(name, ratio.recip(), limit));
    let to_tcp = |kind, bytes| field.ratio(OURS_UDP, TCP, kind, bytes);
    let to_rxd = field.ratio(OURS_UDP, RXD, Kind::Pingpong, SHORT_BYTES);
    let (ping, stream) = (Kind::Pingpong, Kind::Stream);
    [
        below("shm, 8 B, half round trip to the best", best(OURS_SHM, Reach::Host, ping, SHORT_BYTES), 1.0),
        below("UDP, 8 B, half round trip to libfabric tcp", to_tcp(ping, SHORT_BYTES), UDP_TO_TCP_MAX),
        below("UDP, 8 B, half round trip to udp;ofi_rxd", to_rxd, UDP_TO_RXD_MAX),
        above(
            "shm, 4 MiB, bandwidth to the best",
            best(OURS_SHM, Reach::Host, stream, LONG_BYTES),
            SHM_BANDWIDTH_MIN,
        ),
        above("UDP, 4 MiB, bandwidth to libfabric tcp", to_tcp(stream, LONG_BYTES), 1.0),
        above(
            "shm, 8 B, messages per second to the best",
            best(OURS_SHM, Reach::Host, stream, SHORT_BYTES),
            1.0,
        ),
        above(
            "UDP, 8 B, messages per second to the best",
            best(OURS_UDP, Reach::Network, stream, SHORT_BYTES),
            1.0,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl fmt::Display for MpiReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(
            f,
            "mpi      two ranks under MPICH; median of {} runs of each stack, in turns",
            self.repetitions
        )?;
        self.messages(f, "half round trip, us", |row| row.half_rtt_us)?;
        self.messages(f, "one way, GB/s", |row| row.gbytes_per_s)?;
        self.messages(f, "one way, 1000 messages/s", |row| row.messages_per_s / 1e3)?;
        self.heading(f, "operation, us")?;
        let stacks = self.stacks().len().max(1);
        for rows in self.operations.chunks(stacks) {
            write!(
                f,
                "{:>26}",
                rows.first()
                    .map(|row| format!("{} {}", row.operation, length(row.bytes)))
                    .unwrap_or_default()
            )?;
            for row in rows {
                write!(f, " {:>13}", number(row.us))?;
            }
            writeln!(f)?;
        }
        self.ratios(f)?;
        for Left { stack, reason } in &self.left_out {
            writeln!(f, "left out: {stack}: {reason}")?;
        }
        report::show(f, &self.bars)
    }
}

impl MpiReport {
    fn heading(&self, f: &mut fmt::Formatter<'_>, title: &str) -> fmt::Result {
        write!(f, "\n{title:>26}")?;
        for stack in self.stacks() {
            write!(f, " {stack:>13}")?;
        }
        writeln!(f)
    }

    fn messages(&self, f: &mut fmt::Formatter<'_>, title: &str, value: fn(&MpiRow) -> f64) -> fmt::Result {
        self.heading(f, title)?;
        for bytes in self.lengths() {
            write!(f, "{:>26}", length(bytes))?;
            for row in self.rows.iter().filter(|row| row.bytes == bytes) {
                write!(f, " {:>13}", number(value(row)))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// Ours to the others.
    fn ratios(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |ratio: Option<f64>, best: Option<&str>| match (ratio, best) {
            (Some(ratio), Some(best)) => format!("{ratio:.2} ({best})"),
            (Some(ratio), None) => format!("{ratio:.2}"),
            _ => "-".to_owned(),
        };
        for stack in [OURS_SHM, OURS_UDP] {
            let rows: Vec<&MpiRow> = self.rows.iter().filter(|row| row.stack == stack).collect();
            if rows.is_empty() {
                continue;
            }
            writeln!(
                f,
                "\n{:>26} {:>20} {:>8} {:>20} {:>8}",
                format!("{stack}, ratio of"),
                "time to best",
                "to tcp",
                "rate to best",
                "to tcp"
            )?;
            let mut line = |name: String, cells: [String; 4]| {
                let [time, time_tcp, rate, rate_tcp] = cells;
                writeln!(f, "{name:>26} {time:>20} {time_tcp:>8} {rate:>20} {rate_tcp:>8}")
            };
            for row in rows {
                let time = shown(row.ranking.ratio_to_best, row.ranking.best);
                let rate = shown(row.rate_ratio_to_best, row.rate_best);
                let to_tcp =
                    [row.ranking.ratio_to_tcp, row.rate_ratio_to_tcp].map(|ratio| shown(ratio, None));
                let [time_tcp, rate_tcp] = to_tcp;
                line(length(row.bytes), [time, time_tcp, rate, rate_tcp])?;
            }
            for row in self.operations.iter().filter(|row| row.stack == stack) {
                let name = format!("{} {}", row.operation, length(row.bytes));
                let none = String::new;
                line(
                    name,
                    [
                        shown(row.ranking.ratio_to_best, row.ranking.best),
                        shown(row.ranking.ratio_to_tcp, None),
                        none(),
                        none(),
                    ],
                )?;
            }
        }
        Ok(())
    }
}

/// Three digits that count, or all before the point.
fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn length(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpi::figures;
    use crate::mpi::stacks;

    fn measured(name: &str, pings: &[f64], streams: &[f64]) -> Measured {
        let stack = stacks::named(&[name.to_owned()]).expect("known")[0];
        let run = |(ping, stream): (&f64, &f64)| {
            let output = format!(
                "figure pingpong 8 1 {ping:.9}\nfigure stream 8 1 {stream:.9}\nfigure put 8 1 0.000004\nmeasured\n"
            );
            figures::parse(&output).expect("figures")
        };
        Measured { stack, runs: pings.iter().zip(streams).map(run).collect() }
    }

    fn report(measured: &[Measured]) -> MpiReport {
        let options = MpiOptions { bytes: vec![8], repetitions: 3, ..MpiOptions::default() };
        let left = vec![Left { stack: RXD, reason: "it does not run".to_owned() }];
        MpiReport::new(Machine::here(), &options, measured, left)
    }

    #[test]
    fn ours_is_compared_within_repetitions_with_the_best_that_reaches_as_far() {
        let report = report(&[
            measured(OURS_SHM, &[2e-6, 4e-6, 8e-6], &[1e-7, 1e-7, 1e-7]),
            measured("ofi-shm", &[1e-6, 2e-6, 4e-6], &[4e-7, 4e-7, 4e-7]),
            measured("mpich-shm", &[3e-6, 3e-6, 3e-6], &[2e-7, 2e-7, 2e-7]),
            measured(TCP, &[8e-6, 16e-6, 32e-6], &[1e-6, 1e-6, 1e-6]),
        ]);
        let ours = &report.rows[0];
        assert_eq!(
            (ours.stack, ours.bytes, ours.ranking.best, ours.rate_best),
            (OURS_SHM, 8, Some("ofi-shm"), Some("mpich-shm"))
        );
        let near = |value: Option<f64>, expected: f64| {
            let value = value.expect("a ratio");
            assert!((value - expected).abs() < 1e-6, "{value} {expected}");
        };
        near(Some(ours.half_rtt_us), 2.0);
        near(Some(ours.messages_per_s), 1e7);
        near(Some(ours.gbytes_per_s), 0.08);
        near(ours.ranking.ratio_to_best, 2.0);
        near(ours.ranking.ratio_to_tcp, 0.25);
        near(ours.rate_ratio_to_best, 2.0);
        near(ours.rate_ratio_to_tcp, 10.0);
        assert!(report.rows[1].ranking.ratio_to_best.is_none());
        assert_eq!((report.operations.len(), report.operations[0].operation), (4, "put"));
        let met: Vec<(&str, bool)> = report.bars.iter().map(|bar| (bar.name, bar.met)).collect();
        assert_eq!(
            met,
            [
                ("shm, 8 B, half round trip to the best", false),
                ("shm, 8 B, messages per second to the best", true)
            ]
        );
    }

    #[test]
    fn text_names_what_was_left_out_and_the_chart_has_every_stack() {
        let report =
            report(&[measured(OURS_UDP, &[4e-6; 3], &[1e-6; 3]), measured(TCP, &[8e-6; 3], &[2e-6; 3])]);
        let text = report.to_string();
        assert!(text.contains("left out: ofi-rxd: it does not run\n"), "{text}");
        assert!(text.contains("0.50 (ofi-tcp)") && text.contains("2.00 (ofi-tcp)"), "{text}");
        let drawn = report.svg();
        assert!(drawn.contains("stillwire-udp") && drawn.contains("ofi-tcp") && !drawn.contains("NaN"));
    }
}
