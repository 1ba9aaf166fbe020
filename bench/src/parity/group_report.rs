//! Times of encodings from end to end, as rows, as a table and as a chart.

use std::fmt;

use protector::{Limits, Seconds, Statistics};
use serde::Serialize;

use super::cluster::{Bare, Encoded, Plan};
use super::group::{Dirty, Measured, Point};
use super::memory::Memory;
use crate::chart::{self, Chart, Line, Panel};
use crate::machine::{Machine, Processor};
use crate::report::{self, Bar};
use crate::statistics::{percentile, sorted};

/// The least share of the bare speed that encoding must reach.
const RATIO_MIN: f64 = 0.8;

/// A link or a disk that gives less than this part of its limit is not held back by it: the machine is.
const LIMIT_REACHED: f64 = 0.9;

/// How many times as long as the fastest shape the one that the cost model chooses may take.
const CHOICE_MAX: f64 = 1.3;

/// One point: the median run.
#[derive(Clone, Serialize, Debug)]
pub struct GroupRow {
    /// Nodes of the group.
    pub nodes: usize,
    /// Rails of each node.
    pub rails: usize,
    /// Of the frames of a node, how many its busiest rail carried, on the node where that is most: 1 by the number of rails, if they share.
    pub busiest_rail: f64,
    /// `xor`, `rs:K+M`, `partner`.
    pub scheme: String,
    /// The way that parity took.
    pub shape: String,
    /// It was the cost model's choice.
    pub chosen: bool,
    /// A choice's time by that of the fastest shape measured at the same point.
    pub ratio_to_best: Option<f64>,
    /// Milliseconds for which each frame was held back.
    pub delay_ms: f64,
    /// Bytes of a node's image.
    pub bytes: usize,
    /// Percent of its pages that have changed.
    pub dirty_percent: f64,
    /// A whole image, where nothing was before; else its pages are in the places of others.
    pub whole: bool,
    /// From the first order to the last answer.
    pub seconds: f64,
    /// Changed bytes of one node's image by that time.
    pub gbytes_per_s: f64,
    /// A plain copy on one core of this machine.
    pub memcpy_gbytes_per_s: f64,
    /// How they compare.
    pub ratio_to_memcpy: f64,
    /// Bare speed of all rails of a node in each direction, in turns with the encodings.
    pub link_gbytes_per_s: f64,
    /// Bare speed of the disk, reads and writes together, in the proportion in which an encoding reads and writes.
    pub disk_gbytes_per_s: f64,
    /// The limit on all rails of a node together; `null`: none.
    pub link_limit_gbytes_per_s: Option<f64>,
    /// The disk's limit.
    pub disk_limit_gbytes_per_s: Option<f64>,
    /// Time that the slower one of link and disk took by itself for as many bytes as went through it on the busiest node.
    pub slowest_s: f64,
    /// That by the time of encoding: median of the ratios of neighbouring runs.
    pub ratio_to_slowest: f64,
    /// Seconds with something under way, on average of the nodes.
    pub network_s: f64,
    /// Seconds in which something was read or written, or waited for the limit.
    pub disk_s: f64,
    /// Seconds of arithmetic.
    pub arithmetic_s: f64,
    /// The papers' formula with the link and disk that were measured and this machine's exclusive or: one after the other.
    pub formula_sum_s: f64,
    /// The longest term of it.
    pub formula_max_s: f64,
    /// The time predicted by the cost model.
    pub predicted_s: f64,
    /// Bytes that each node sent, on average.
    pub sent_bytes: u64,
    /// Bytes that each node read.
    pub read_bytes: u64,
    /// Bytes that each node wrote.
    pub written_bytes: u64,
    /// The processors' load meanwhile.
    #[serde(flatten)]
    pub processor: Processor,
    /// The machine was the limit, of the encoding, or of link and disk by themselves, or one rail carried more than its share of the limit: not to be counted.
    pub machine_limited: bool,
}

/// How many times its even share of a node's frames a rail may carry: rails take turns by frames, and not all frames are alike.
const SHARE_TOLERATED: f64 = 1.1;

/// Of a node's frames, those of its busiest rail.
fn busiest_rail(found: &Statistics) -> f64 {
    let most = found.rail_frames.iter().copied().max().unwrap_or(0);
    float(most) / float(found.rail_frames.iter().sum::<u64>().max(1))
}

#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

/// Bytes that went through link and disk where those were busiest.
pub(super) struct Through {
    link: u64,
    disk: u64,
}

/// Seconds that link and disk would take by themselves.
pub(super) struct Alone {
    pub(super) link: f64,
    pub(super) disk: f64,
}

impl Through {
    pub(super) fn of(statistics: &[Statistics]) -> Through {
        let busiest = |of: &dyn Fn(&Statistics) -> u64| statistics.iter().map(of).max().unwrap_or(0);
        Through {
            link: busiest(&|found| found.sent_bytes.max(found.received_bytes)),
            disk: busiest(&|found| found.read_bytes + found.written_bytes),
        }
    }

    pub(super) fn alone(&self, bare: Bare) -> Alone {
        Alone { link: float(self.link) / bare.link, disk: float(self.disk) / bare.disk }
    }
}

/// The longer one of both.
fn slowest_s(encoded: &Encoded, bare: Bare) -> f64 {
    let alone = Through::of(&encoded.statistics).alone(bare);
    alone.link.max(alone.disk)
}

impl Measured {
    /// The encoding that took the median time.
    pub(super) fn median(&self) -> &Encoded {
        let mut encoded: Vec<&Encoded> = self.encoded.iter().collect();
        encoded.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        encoded[encoded.len() / 2]
    }

    /// Median bare speeds of link and disk.
    pub(super) fn bare_median(&self) -> Bare {
        let median = |of: &dyn Fn(&Bare) -> f64| percentile(&sorted(self.bare.iter().map(of).collect()), 0.5);
        Bare { link: median(&|bare| bare.link), disk: median(&|bare| bare.disk) }
    }
}

impl GroupRow {
    #[expect(clippy::cast_precision_loss, reason = "nodes are few")]
    pub(super) fn new(plan: &Plan, memory: &Memory, point: Point, measured: &Measured) -> GroupRow {
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        let beside = |run: usize| {
            let (before, after) = (measured.bare[run], measured.bare[run + 1]);
            Bare { link: mean(before.link, after.link), disk: mean(before.disk, after.disk) }
        };
        let runs = measured.encoded.iter().enumerate();
        let ratios = runs.map(|(run, encoded)| slowest_s(encoded, beside(run)) / encoded.seconds);
        let ratio_to_slowest = percentile(&sorted(ratios.collect()), 0.5);
        let (bare, encoded) = (measured.bare_median(), measured.median());
        let statistics = &encoded.statistics;
        let count = statistics.len().max(1) as u64;
        let mean = |of: &dyn Fn(&Statistics) -> u64| statistics.iter().map(of).sum::<u64>() / count;
        let mean_s = |of: &dyn Fn(&Seconds) -> f64| {
            statistics.iter().map(|found| of(&found.seconds)).sum::<f64>() / float(count)
        };
        // D / B_n + N / (N - 1) D / B_d + (N - 2) / (N - 1) D / B_x for one parity; for M of them M, (K + M) / K and M (K - 1) / K.
        let (m, k) = (plan.scheme.losses() as f64, plan.data() as f64);
        let changed = float(point.changed_bytes());
        let terms = [
            m * changed / bare.link,
            (k + m) / k * changed / bare.disk,
            m * (k - 1.0) / k * changed / (memory.add * 1e9),
        ];
        let gbytes_per_s = changed / encoded.seconds / 1e9;
        let limit = |limit: Option<u64>| limit.map(|rate| float(rate) / 1e9);
        let link_limit_gbytes_per_s = limit(plan.limits.link_bytes_per_s);
        let disk_limit_gbytes_per_s = limit(plan.limits.disk_bytes_per_s);
        let missed =
            |found: f64, limit: Option<f64>| limit.is_some_and(|limit| found / 1e9 < limit * LIMIT_REACHED);
        let busiest_rail = statistics.iter().map(busiest_rail).fold(0.0, f64::max);
        // The limit is on all rails of a node together: with a link of its own for each rail, the surplus of a busy rail would have waited.
        let is_lopsided = busiest_rail * plan.rails as f64 > SHARE_TOLERATED;
        let machine_limited = encoded.processor.is_exhausted()
            || is_lopsided
            || missed(bare.link, link_limit_gbytes_per_s)
            || missed(bare.disk, disk_limit_gbytes_per_s);
        GroupRow {
            nodes: plan.nodes,
            rails: plan.rails,
            busiest_rail,
            scheme: plan.scheme.to_string(),
            shape: statistics
                .first()
                .and_then(|found| found.shape)
                .map_or(String::new(), |shape| shape.to_string()),
            chosen: plan.shape.is_none(),
            ratio_to_best: None,
            delay_ms: plan.delay.as_secs_f64() * 1e3,
            bytes: point.bytes,
            dirty_percent: point.dirty.percent(),
            whole: point.dirty == Dirty::Whole,
            seconds: encoded.seconds,
            gbytes_per_s,
            memcpy_gbytes_per_s: memory.copy,
            ratio_to_memcpy: gbytes_per_s / memory.copy,
            link_gbytes_per_s: bare.link / 1e9,
            disk_gbytes_per_s: bare.disk / 1e9,
            link_limit_gbytes_per_s,
            disk_limit_gbytes_per_s,
            slowest_s: slowest_s(encoded, bare),
            ratio_to_slowest,
            network_s: mean_s(&|seconds| seconds.network),
            disk_s: mean_s(&|seconds| seconds.disk),
            arithmetic_s: mean_s(&|seconds| seconds.arithmetic),
            formula_sum_s: terms.iter().sum(),
            formula_max_s: terms.into_iter().fold(0.0, f64::max),
            predicted_s: mean_s(&|seconds| seconds.predicted),
            sent_bytes: mean(&|found| found.sent_bytes),
            read_bytes: mean(&|found| found.read_bytes),
            written_bytes: mean(&|found| found.written_bytes),
            processor: encoded.processor,
            machine_limited,
        }
    }
}

impl GroupRow {
    fn dirty(&self) -> Dirty {
        if self.whole { Dirty::Whole } else { Dirty::Percent(self.dirty_percent) }
    }

    fn dirty_words(&self) -> String {
        if self.whole { Dirty::Whole.to_string() } else { format!("{}%", self.dirty_percent) }
    }

    /// Everything but the shape.
    fn point(&self) -> String {
        AXES[..5].iter().map(|axis| (axis.of)(self)).collect::<Vec<_>>().join(" ")
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

/// A dimension in which rows differ.
struct Axis {
    name: &'static str,
    unit: &'static str,
    of: fn(&GroupRow) -> String,
}

const AXES: [Axis; 6] = [
    Axis { name: "nodes", unit: " nodes", of: |row| row.nodes.to_string() },
    Axis { name: "MiB of a node's image", unit: " MiB", of: |row| (row.bytes >> 20).to_string() },
    Axis { name: "% of the pages changed", unit: " % changed", of: |row| row.dirty().to_string() },
    Axis { name: "rails of a node", unit: " rails", of: |row| row.rails.to_string() },
    Axis { name: "ms on the way", unit: " ms on the way", of: |row| row.delay_ms.to_string() },
    Axis { name: "shape", unit: "", of: |row| row.shape.clone() },
];

pub(super) fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

impl GroupReport {
    pub(super) fn new(machine: Machine, limits: Limits, mut rows: Vec<GroupRow>) -> GroupReport {
        let forced: Vec<(String, f64)> =
            rows.iter().filter(|row| !row.chosen).map(|row| (row.point(), row.seconds)).collect();
        for row in rows.iter_mut().filter(|row| row.chosen) {
            let at_point = forced.iter().filter(|(point, _)| *point == row.point());
            row.ratio_to_best =
                at_point.map(|(_, seconds)| *seconds).reduce(f64::min).map(|best| row.seconds / best);
        }
        let choices = rows.iter().filter(|row| !row.machine_limited).filter_map(|row| row.ratio_to_best);
        let choice = |worst| {
            Bar::below("the cost model's choice to the fastest shape, worst point", worst, CHOICE_MAX)
        };
        let choice = choices.reduce(f64::max).map(choice);
        let limited = limits.link_bytes_per_s.is_some() || limits.disk_bytes_per_s.is_some();
        let counts = |row: &&GroupRow| limited && !row.machine_limited && row.whole && row.seconds > 1.0;
        let worst = rows.iter().filter(counts).map(|row| row.ratio_to_slowest).reduce(f64::min);
        let bar = |worst| {
            Bar::above("encoding to the slower one of link and disk, worst whole image", worst, RATIO_MIN)
        };
        GroupReport {
            bench: "parity",
            machine,
            rows,
            bars: worst.map(bar).into_iter().chain(choice).collect(),
        }
    }

    /// Its times by phase, by the fields that rows differ in most: a panel for each combination of the rest.
    #[must_use]
    pub fn svg(&self) -> String {
        let values = |axis: &Axis| distinct(self.rows.iter().map(axis.of));
        // Where the shape was chosen for each point, points do not differ in it.
        let chosen = distinct(self.rows.iter().map(GroupRow::point)).len() == self.rows.len();
        let axes = if chosen { &AXES[..5] } else { &AXES[..] };
        // The first of those with most values.
        let axis = axes.iter().rev().max_by_key(|axis| values(axis).len()).unwrap_or(&AXES[0]);
        let rest = |row: &GroupRow| {
            let others = axes.iter().filter(|other| other.name != axis.name);
            others.map(|other| format!("{}{}", (other.of)(row), other.unit)).collect::<Vec<_>>().join(", ")
        };
        let places = values(axis);
        let panel = |title: String| {
            let line = |label: &str, dashed: bool, value: fn(&GroupRow) -> f64| Line {
                label: label.to_owned(),
                dashed,
                values: places
                    .iter()
                    .map(|place| {
                        let row = self.rows.iter().find(|row| rest(row) == title && (axis.of)(row) == *place);
                        row.map_or(f64::NAN, value)
                    })
                    .collect(),
            };
            let lines = vec![
                line("took", false, |row| row.seconds),
                line("network", false, |row| row.network_s),
                line("disk", false, |row| row.disk_s),
                line("arithmetic", false, |row| row.arithmetic_s),
                line("bare link or disk", true, |row| row.slowest_s),
                line("SCore: sum", true, |row| row.formula_sum_s),
                line("SCore: longest term", true, |row| row.formula_max_s),
            ];
            Panel { title, lines, reference: None }
        };
        let first = self.rows.first();
        let scheme = first.map_or("", |row| &row.scheme);
        let rates = first.map_or(String::new(), |row| {
            let (link, disk) = (row.link_gbytes_per_s * 1e3, row.disk_gbytes_per_s * 1e3);
            format!("; the first row's link {link:.0} MB/s, its disk {disk:.0} MB/s")
        });
        chart::svg(&Chart {
            title: format!("Encoding from end to end, {scheme}"),
            subtitle: format!(
                "{}, {} cores, load {}{rates}; dashed: not the time of an encoding",
                self.machine.cpu, self.machine.cores, self.machine.load
            ),
            vertical: "seconds".to_owned(),
            horizontal: axis.name.to_owned(),
            panels: distinct(self.rows.iter().map(rest)).into_iter().map(panel).collect(),
            places,
            own_axes: false,
        })
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(
            f,
            "encoding from end to end, a protector for each node; seconds and MB/s, medians; link, disk: by themselves, in turns with it, all rails together; cpu: this process, and all, by all cores"
        )?;
        writeln!(
            f,
            "{:>5} {:>5} {:>8} {:>9} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>7} {:>5} {:>5}",
            "nodes",
            "rails",
            "scheme",
            "shape",
            "MiB",
            "dirty",
            "took",
            "MB/s",
            "link",
            "disk",
            "slowest",
            "ratio",
            "net",
            "disk",
            "arith",
            "SCore",
            "max",
            "model",
            "sent",
            "cpu",
            "all"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:>5} {:>5} {:>8} {:>9} {:>6} {:>6} {:>7.3} {:>6.1} {:>6.1} {:>6.1} {:>7.3} {:>6.2} {:>6.2} {:>6.2} {:>6.3} {:>6.2} {:>7.2} {:>6.2} {:>7.1} {:>4.0}% {:>5}{}",
                row.nodes,
                row.rails,
                row.scheme,
                row.shape,
                row.bytes >> 20,
                row.dirty_words(),
                row.seconds,
                row.gbytes_per_s * 1e3,
                row.link_gbytes_per_s * 1e3,
                row.disk_gbytes_per_s * 1e3,
                row.slowest_s,
                row.ratio_to_slowest,
                row.network_s,
                row.disk_s,
                row.arithmetic_s,
                row.formula_sum_s,
                row.formula_max_s,
                row.predicted_s,
                float(row.sent_bytes) / f64::from(1 << 20),
                row.processor.machine_used * 100.0,
                percent(row.processor.machine_busy),
                if row.machine_limited { " MACHINE" } else { "" },
            )?;
        }
        for row in &self.rows {
            let Some(ratio) = row.ratio_to_best else { continue };
            writeln!(
                f,
                "{} nodes, {} MiB, changed {}, {} ms on the way: the model chose {}, {ratio:.2} times the fastest",
                row.nodes,
                row.bytes >> 20,
                row.dirty_words(),
                row.delay_ms,
                row.shape
            )?;
        }
        report::show(f, &self.bars)
    }
}

/// A share of all cores, if it is known.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}
