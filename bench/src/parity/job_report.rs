//! Times of checkpoints of jobs, as rows, as a table and as a chart.

use std::fmt;

use serde::Serialize;

use super::cluster::Plan;
use super::group::{Measured, Point};
use super::group_report::{GroupRow, Through, distinct, percent};
use super::job::{Series, Taken};
use super::memory::Memory;
use crate::chart::{self, Chart, Line, Panel};
use crate::machine::Machine;
use crate::statistics::{percentile, sorted};

/// One point: medians of its jobs, each figure by itself. Seconds since the order.
#[derive(Clone, Serialize, Debug)]
pub struct JobRow {
    /// Which checkpoint of its job: `first`, before which nothing was there, or `next`.
    pub checkpoint: &'static str,
    /// Whether images were encrypted.
    pub encrypted: bool,
    /// Bytes of a node's image, as it was written.
    pub image_bytes: u64,
    /// The longest time for which a rank stood.
    pub pause_s: f64,
    /// Until all images were durable where they were written: below the same limit of the disk.
    pub written_s: f64,
    /// Until all nodes kept their parity.
    pub protected_s: f64,
    /// Until it was committed.
    pub committed_s: f64,
    /// The bare time of the busiest node's link for the bytes through it: of the reported encoding.
    pub link_alone_s: f64,
    /// The same of its disk.
    pub disk_alone_s: f64,
    /// The encoding, `seconds` of it from written to protected: that of them all which took the median time. Processors are those of all processes of the job, over the whole
    /// checkpoint.
    #[serde(flatten)]
    pub encoding: GroupRow,
}

impl JobRow {
    pub(super) fn new(
        (checkpoint, encrypted): (&'static str, bool),
        plan: &Plan,
        memory: &Memory,
        point: Point,
        series: Series,
    ) -> JobRow {
        let Series { taken, bare } = series;
        let median = |of: &dyn Fn(&Taken) -> f64| percentile(&sorted(taken.iter().map(of).collect()), 0.5);
        let [pause_s, written_s, protected_s, committed_s] = [
            median(&|taken| taken.pause_s),
            median(&|taken| taken.written_s),
            median(&|taken| taken.protected_s),
            median(&|taken| taken.committed_s),
        ];
        let image_bytes =
            taken.iter().map(|taken| taken.image_bytes).sum::<u64>() / taken.len().max(1) as u64;
        // Every one of them counts for some median.
        let exhausted = taken.iter().any(|taken| taken.encoded.processor.is_exhausted());
        let measured = Measured { encoded: taken.into_iter().map(|taken| taken.encoded).collect(), bare };
        let through = Through::of(&measured.median().statistics);
        let alone = through.alone(measured.bare_median());
        let mut encoding = GroupRow::new(plan, memory, point, &measured);
        encoding.machine_limited |= exhausted;
        JobRow {
            checkpoint,
            encrypted,
            image_bytes,
            pause_s,
            written_s,
            protected_s,
            committed_s,
            link_alone_s: alone.link,
            disk_alone_s: alone.disk,
            encoding,
        }
    }

    /// The shape that was asked for.
    fn way(&self) -> &str {
        if self.encoding.chosen { "auto" } else { &self.encoding.shape }
    }

    fn place(&self, by_nodes: bool) -> String {
        if by_nodes { self.encoding.nodes.to_string() } else { (self.encoding.bytes >> 20).to_string() }
    }
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct JobReport {
    /// "parity".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Two for each point, and two more with encrypted images, if they were asked for.
    pub rows: Vec<JobRow>,
}

impl JobReport {
    pub(super) fn new(machine: Machine, rows: Vec<JobRow>) -> JobReport {
        JobReport { bench: "parity", machine, rows }
    }

    /// The plain row that was measured in turns with an encrypted one.
    fn plain(&self, row: &JobRow) -> Option<&JobRow> {
        let is_other = |other: &&JobRow| {
            !other.encrypted
                && other.checkpoint == row.checkpoint
                && other.way() == row.way()
                && [true, false].iter().all(|by_nodes| other.place(*by_nodes) == row.place(*by_nodes))
                && other.encoding.dirty_percent == row.encoding.dirty_percent
        };
        self.rows.iter().find(is_other).filter(|_| row.encrypted)
    }

    /// By the number of nodes, or by the length of images, whichever has more values: a panel for each combination of the rest.
    #[must_use]
    pub fn svg(&self) -> String {
        let places = |by_nodes| distinct(self.rows.iter().map(|row| row.place(by_nodes)));
        let by_nodes = places(true).len() >= places(false).len();
        let (horizontal, unit) =
            if by_nodes { ("nodes", "MiB of a node") } else { ("MiB of a node's memory", "nodes") };
        let has_ways = distinct(self.rows.iter().map(|row| row.way().to_owned())).len() > 1;
        let title = |row: &JobRow| {
            let changed = row.encoding.dirty_percent;
            let way = if has_ways { format!("{}, ", row.way()) } else { String::new() };
            format!(
                "{}{} checkpoint, {way}{} {unit}, {changed} % changed",
                if row.encrypted { "encrypted: " } else { "" },
                row.checkpoint,
                row.place(!by_nodes)
            )
        };
        let panel = |of: String| {
            let line = |label: &str, dashed, value: fn(&JobRow) -> f64| {
                let at = |place: &String| {
                    self.rows.iter().find(|row| title(row) == of && row.place(by_nodes) == *place)
                };
                let values = places(by_nodes).iter().map(|place| at(place).map_or(f64::NAN, value)).collect();
                Line { label: label.to_owned(), dashed, values }
            };
            let lines = vec![
                line("committed", false, |row| row.committed_s),
                line("protected", false, |row| row.protected_s),
                line("written", false, |row| row.written_s),
                line("pause", false, |row| row.pause_s),
                line("link alone", true, |row| row.link_alone_s),
                line("disk alone", true, |row| row.disk_alone_s),
                line("sum of both", true, |row| row.link_alone_s + row.disk_alone_s),
            ];
            Panel { title: of, lines, reference: None }
        };
        let first = self.rows.first();
        chart::svg(&Chart {
            title: format!(
                "Checkpoints of jobs from the order on, {}",
                first.map_or("", |row| &row.encoding.scheme)
            ),
            subtitle: format!(
                "{}, {} cores, load {}; dashed: the time of link and disk by themselves for the encoded bytes",
                self.machine.cpu, self.machine.cores, self.machine.load
            ),
            vertical: "seconds".to_owned(),
            horizontal: horizontal.to_owned(),
            places: places(by_nodes),
            panels: distinct(self.rows.iter().map(title)).into_iter().map(panel).collect(),
            own_axes: false,
        })
    }
}

impl fmt::Display for JobReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        write!(
            f,
            "checkpoints of jobs, a rank, a keeper and a directory for each node; seconds since the order, medians of jobs; alone: link and disk by themselves, for the encoded bytes; cpu: the job, and all, by all cores"
        )?;
        write!(
            f,
            "\n{:>5} {:>8} {:>9} {:>6} {:>6} {:>5} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>5} {:>5}",
            "nodes",
            "scheme",
            "shape",
            "MiB",
            "change",
            "which",
            "image",
            "sent",
            "pause",
            "written",
            "protected",
            "committed",
            "encoded",
            "link",
            "disk",
            "ratio",
            "net",
            "disk",
            "arith",
            "SCore",
            "max",
            "cpu",
            "all"
        )?;
        for row in &self.rows {
            let encoding = &row.encoding;
            write!(
                f,
                "\n{:>5} {:>8} {:>9} {:>6} {:>5}% {:>5} {:>8.1} {:>8.1} {:>7.4} {:>7.3} {:>9.3} {:>9.3} {:>7.3} {:>7.3} {:>7.3} {:>6.2} {:>6.2} {:>6.2} {:>6.3} {:>6.2} {:>7.2} {:>4.0}% {:>5}{}",
                encoding.nodes,
                encoding.scheme,
                encoding.shape,
                encoding.bytes >> 20,
                encoding.dirty_percent,
                row.checkpoint,
                mib(row.image_bytes),
                mib(encoding.sent_bytes),
                row.pause_s,
                row.written_s,
                row.protected_s,
                row.committed_s,
                encoding.seconds,
                row.link_alone_s,
                row.disk_alone_s,
                encoding.ratio_to_slowest,
                encoding.network_s,
                encoding.disk_s,
                encoding.arithmetic_s,
                encoding.formula_sum_s,
                encoding.formula_max_s,
                encoding.processor.machine_used * 100.0,
                percent(encoding.processor.machine_busy),
                if encoding.machine_limited { " MACHINE" } else { "" },
            )?;
            if let Some(plain) = self.plain(row) {
                let ratio = |of: fn(&JobRow) -> f64| of(row) / of(plain);
                write!(
                    f,
                    "\n      encrypted; to plain: pause {:.2}, written {:.2}, protected {:.2}, committed {:.2}, processors {:.2}",
                    ratio(|row| row.pause_s),
                    ratio(|row| row.written_s),
                    ratio(|row| row.protected_s),
                    ratio(|row| row.committed_s),
                    ratio(|row| row.encoding.processor.cores_used * row.committed_s),
                )?;
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
