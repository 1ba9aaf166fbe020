//! What encodings from end to end took, as rows and as a table.

use std::fmt;

use protector::Limits;
use serde::Serialize;

use super::group::{GroupOptions, Measured, Memory};
use crate::machine::Machine;
use crate::report::{self, Bar};

/// Part of what link and disk allow that encoding must come to.
const RATIO_MIN: f64 = 0.8;

/// One point: the median run.
#[derive(Clone, Serialize, Debug)]
pub struct GroupRow {
    /// Nodes of the group.
    pub nodes: usize,
    /// `xor`, `rs:K+M`, `partner`.
    pub scheme: String,
    /// The way that parity took.
    pub shape: String,
    /// Bytes of a node's image.
    pub bytes: usize,
    /// Percent of its pages that have changed; 100: a whole image.
    pub dirty_percent: f64,
    /// From the first order to the last answer.
    pub seconds: f64,
    /// What changed of one node's image by that time.
    pub gbytes_per_s: f64,
    /// A plain copy on one core of this machine.
    pub memcpy_gbytes_per_s: f64,
    /// How they compare.
    pub ratio_to_memcpy: f64,
    /// The link's limit, in each direction.
    pub link_gbytes_per_s: Option<f64>,
    /// The disk's limit, reads and writes together.
    pub disk_gbytes_per_s: Option<f64>,
    /// What the slower one of link and disk would take for what really went through it on the busiest node.
    pub slowest_s: f64,
    /// That by what it took.
    pub ratio_to_slowest: f64,
    /// Seconds with something under way, on average of the nodes.
    pub network_s: f64,
    /// Seconds in reads and writes, waiting for the limit included.
    pub disk_s: f64,
    /// Seconds of arithmetic.
    pub arithmetic_s: f64,
    /// The papers' formula with these limits and this machine's exclusive or: one after the other.
    pub formula_sum_s: Option<f64>,
    /// The longest term of it.
    pub formula_max_s: Option<f64>,
    /// What the cost model had said.
    pub predicted_s: f64,
    /// Bytes that each node sent, on average.
    pub sent_bytes: u64,
    /// Bytes that each node read.
    pub read_bytes: u64,
    /// Bytes that each node wrote.
    pub written_bytes: u64,
    /// Part of all cores that this process used.
    pub machine_used: f64,
    /// The machine was the limit: not to be counted.
    pub machine_limited: bool,
}

impl GroupRow {
    #[expect(clippy::cast_precision_loss, reason = "bytes and nodes are far below 2^52")]
    pub(super) fn new(
        options: &GroupOptions,
        memory: &Memory,
        nodes: usize,
        bytes: usize,
        dirty: f64,
        measured: &Measured,
    ) -> GroupRow {
        let statistics = &measured.statistics;
        let count = statistics.len().max(1) as u64;
        let mean =
            |of: &dyn Fn(&protector::Statistics) -> u64| statistics.iter().map(of).sum::<u64>() / count;
        let mean_s = |of: &dyn Fn(&protector::Seconds) -> f64| {
            statistics.iter().map(|found| of(&found.seconds)).sum::<f64>() / count as f64
        };
        let rate = |limit: Option<u64>| limit.map(|rate| rate as f64);
        let (link, disk) = (rate(options.limits.link_bytes_per_s), rate(options.limits.disk_bytes_per_s));
        let busiest =
            |of: &dyn Fn(&protector::Statistics) -> u64| statistics.iter().map(of).max().unwrap_or(0) as f64;
        let through_link = busiest(&|found| found.sent_bytes.max(found.received_bytes));
        let through_disk = busiest(&|found| found.read_bytes + found.written_bytes);
        let slowest_s = [link.map(|rate| through_link / rate), disk.map(|rate| through_disk / rate)]
            .into_iter()
            .flatten()
            .fold(0.0, f64::max);
        // D / B_n + N / (N - 1) D / B_d + (N - 2) / (N - 1) D / B_x for one parity; for M of them M, (K + M) / K and M (K - 1) / K.
        let (m, k) = (options.scheme.losses() as f64, (nodes - options.scheme.losses()) as f64);
        let changed = bytes as f64 * dirty / 100.0;
        let terms = link.zip(disk).map(|(link, disk)| {
            [m * changed / link, (k + m) / k * changed / disk, m * (k - 1.0) / k * changed / memory.add]
        });
        let gbytes_per_s = changed / measured.seconds / 1e9;
        GroupRow {
            nodes,
            scheme: options.scheme.to_string(),
            shape: statistics
                .first()
                .and_then(|found| found.shape)
                .map_or(String::new(), |shape| shape.to_string()),
            bytes,
            dirty_percent: dirty,
            seconds: measured.seconds,
            gbytes_per_s,
            memcpy_gbytes_per_s: memory.copy / 1e9,
            ratio_to_memcpy: gbytes_per_s * 1e9 / memory.copy,
            link_gbytes_per_s: link.map(|rate| rate / 1e9),
            disk_gbytes_per_s: disk.map(|rate| rate / 1e9),
            slowest_s,
            ratio_to_slowest: slowest_s / measured.seconds,
            network_s: mean_s(&|seconds| seconds.network),
            disk_s: mean_s(&|seconds| seconds.disk),
            arithmetic_s: mean_s(&|seconds| seconds.arithmetic),
            formula_sum_s: terms.map(|terms| terms.iter().sum()),
            formula_max_s: terms.map(|terms| terms.into_iter().fold(0.0, f64::max)),
            predicted_s: mean_s(&|seconds| seconds.predicted),
            sent_bytes: mean(&|found| found.sent_bytes),
            read_bytes: mean(&|found| found.read_bytes),
            written_bytes: mean(&|found| found.written_bytes),
            machine_used: measured.machine_used,
            machine_limited: measured.machine_limited,
        }
    }
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct GroupReport {
    /// "parity".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// One for each point.
    pub rows: Vec<GroupRow>,
    /// The design's bar, where whole images of more than a second were protected and the machine was not the limit.
    pub bars: Vec<Bar>,
}

impl GroupReport {
    pub(super) fn new(machine: Machine, limits: Limits, rows: Vec<GroupRow>) -> GroupReport {
        let limited = limits.link_bytes_per_s.is_some() || limits.disk_bytes_per_s.is_some();
        let counts = |row: &&GroupRow| {
            limited && !row.machine_limited && row.dirty_percent >= 100.0 && row.seconds > 1.0
        };
        let worst = rows.iter().filter(counts).map(|row| row.ratio_to_slowest).reduce(f64::min);
        let bar = |worst| {
            Bar::above("encoding to the slower one of link and disk, worst whole image", worst, RATIO_MIN)
        };
        GroupReport { bench: "parity", machine, rows, bars: worst.map(bar).into_iter().collect() }
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "encoding from end to end, a protector for each node; seconds, medians")?;
        writeln!(
            f,
            "{:>5} {:>8} {:>9} {:>6} {:>6} {:>7} {:>6} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>7} {:>5}",
            "nodes",
            "scheme",
            "shape",
            "MiB",
            "dirty",
            "took",
            "GB/s",
            "slowest",
            "ratio",
            "net",
            "disk",
            "arith",
            "SCore",
            "max",
            "model",
            "sent",
            "cpu"
        )?;
        for row in &self.rows {
            let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
            writeln!(
                f,
                "{:>5} {:>8} {:>9} {:>6} {:>5}% {:>7.3} {:>6.3} {:>7.3} {:>6.2} {:>6.2} {:>6.2} {:>6.3} {:>6} {:>7} {:>6.2} {:>7.1} {:>4.0}%{}",
                row.nodes,
                row.scheme,
                row.shape,
                row.bytes >> 20,
                row.dirty_percent,
                row.seconds,
                row.gbytes_per_s,
                row.slowest_s,
                row.ratio_to_slowest,
                row.network_s,
                row.disk_s,
                row.arithmetic_s,
                optional(row.formula_sum_s),
                optional(row.formula_max_s),
                row.predicted_s,
                mib(row.sent_bytes),
                row.machine_used * 100.0,
                if row.machine_limited { " MACHINE" } else { "" },
            )?;
        }
        report::show(f, &self.bars)
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
