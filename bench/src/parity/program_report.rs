//! Times and sizes of checkpoints of programs, whole ones and incremental ones, as rows, as a table and as a chart.

use std::fmt;

use serde::Serialize;

use super::cluster::Plan;
use super::group::{Measured, Point};
use super::group_report::{GroupRow, percent};
use super::memory::Memory;
use crate::chart::{self, Chart, Line, Panel};
use crate::machine::Machine;

/// The subject of a row.
pub(super) struct Saved {
    pub(super) program: String,
    pub(super) checkpoint: usize,
    pub(super) way: &'static str,
    pub(super) image_bytes: u64,
    pub(super) write_s: f64,
    pub(super) collect_s: Option<f64>,
}

/// The outcome of the nodes that were lost at the end of a series.
pub(super) struct Repair {
    pub(super) program: String,
    pub(super) nodes: usize,
    pub(super) repair_s: f64,
    /// All images are the memory that was saved.
    pub(super) is_right: bool,
}

/// One checkpoint, taken in one way.
#[derive(Clone, Serialize, Debug)]
pub struct ProgramRow {
    /// `mat` or `lu`.
    pub program: String,
    /// The first one is not among them: it is always whole.
    pub checkpoint: usize,
    /// `full` or `incremental`.
    pub way: &'static str,
    /// Bytes of a node's image, on average.
    pub image_bytes: u64,
    /// Until the images were durable on their nodes.
    pub write_s: f64,
    /// After the commit: until parity was folded, and the checkpoint before was gone. `null`: it was not committed.
    pub collect_s: Option<f64>,
    /// How it was protected.
    #[serde(flatten)]
    pub encoding: GroupRow,
}

impl ProgramRow {
    pub(super) fn new(
        saved: Saved,
        plan: &Plan,
        memory: &Memory,
        point: Point,
        measured: &Measured,
    ) -> ProgramRow {
        let Saved { program, checkpoint, way, image_bytes, write_s, collect_s } = saved;
        let encoding = GroupRow::new(plan, memory, point, measured);
        ProgramRow { program, checkpoint, way, image_bytes, write_s, collect_s, encoding }
    }

    /// Until it could be committed.
    fn total_s(&self) -> f64 {
        self.write_s + self.encoding.seconds
    }
}

/// Savings of incremental checkpoints of one program, over all of them.
#[derive(Clone, Serialize, Debug)]
pub struct ProgramTotal {
    /// `mat` or `lu`.
    pub program: String,
    /// Nodes of the group.
    pub nodes: usize,
    /// `xor`, `rs:K+M`, `partner`.
    pub scheme: String,
    /// Fewer bytes of images.
    pub fewer_image_bytes_percent: f64,
    /// Fewer bytes sent.
    pub fewer_sent_bytes_percent: f64,
    /// Less time to write.
    pub less_write_time_percent: f64,
    /// Less time to encode.
    pub less_encode_time_percent: f64,
    /// Less time from the first byte written until it could be committed.
    pub less_time_percent: f64,
    /// Until the lost nodes had the last checkpoint again, computed from the others' data.
    pub repair_s: f64,
    /// In some checkpoint the machine was the limit: times are not to be counted.
    pub machine_limited: bool,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct ProgramReport {
    /// "parity".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Each checkpoint, twice.
    pub rows: Vec<ProgramRow>,
    /// Each program.
    pub totals: Vec<ProgramTotal>,
    /// The last images equal the memory that was saved, also on the nodes that were lost and repaired.
    pub is_right: bool,
}

#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Rows of one program on one group.
fn series<'a>(rows: &'a [ProgramRow], of: &'a ProgramRow) -> impl Iterator<Item = &'a ProgramRow> {
    rows.iter().filter(|row| (&row.program, row.encoding.nodes) == (&of.program, of.encoding.nodes))
}

/// The first row of each program on each group.
fn firsts(rows: &[ProgramRow]) -> impl Iterator<Item = &ProgramRow> {
    rows.iter().enumerate().filter(|(at, row)| series(&rows[..*at], row).next().is_none()).map(|(_, row)| row)
}

fn total(rows: &[ProgramRow], of: &ProgramRow, repairs: &[Repair]) -> ProgramTotal {
    let repair =
        repairs.iter().find(|found| (&found.program, found.nodes) == (&of.program, of.encoding.nodes));
    let sum = |way: &str, value: &dyn Fn(&ProgramRow) -> f64| {
        series(rows, of).filter(|row| row.way == way).map(value).sum::<f64>()
    };
    let less =
        |value: &dyn Fn(&ProgramRow) -> f64| 100.0 * (1.0 - sum("incremental", value) / sum("full", value));
    ProgramTotal {
        program: of.program.clone(),
        nodes: of.encoding.nodes,
        scheme: of.encoding.scheme.clone(),
        fewer_image_bytes_percent: less(&|row| mb(row.image_bytes)),
        fewer_sent_bytes_percent: less(&|row| mb(row.encoding.sent_bytes)),
        less_write_time_percent: less(&|row| row.write_s),
        less_encode_time_percent: less(&|row| row.encoding.seconds),
        less_time_percent: less(&ProgramRow::total_s),
        repair_s: repair.map_or(0.0, |repair| repair.repair_s),
        machine_limited: series(rows, of).any(|row| row.encoding.machine_limited),
    }
}

impl ProgramReport {
    pub(super) fn new(machine: Machine, rows: Vec<ProgramRow>, repairs: &[Repair]) -> ProgramReport {
        let totals = firsts(&rows).map(|first| total(&rows, first, repairs)).collect();
        let is_right = repairs.iter().all(|repair| repair.is_right);
        ProgramReport { bench: "parity", machine, rows, totals, is_right }
    }

    /// Bytes and time of each checkpoint.
    #[must_use]
    pub fn svg(&self) -> String {
        let checkpoints = self.rows.iter().map(|row| row.checkpoint).max().unwrap_or(0);
        let mut panels = Vec::new();
        for first in firsts(&self.rows) {
            let line = |way: &str, label: &str, dashed: bool, value: fn(&ProgramRow) -> f64| Line {
                label: format!("{way}{label}"),
                dashed,
                values: series(&self.rows, first).filter(|row| row.way == way).map(value).collect(),
            };
            let both = |label: &str, dashed: bool, value: fn(&ProgramRow) -> f64| {
                ["full", "incremental"].map(|way| line(way, label, dashed, value))
            };
            let of = format!("{}, {} nodes", first.program.to_uppercase(), first.encoding.nodes);
            let bytes = [
                both(": image", false, |row| mb(row.image_bytes)),
                both(": sent", true, |row| mb(row.encoding.sent_bytes)),
            ];
            let time = [
                both(": encoded", false, |row| row.encoding.seconds),
                both(": written", true, |row| row.write_s),
            ];
            for (unit, lines) in [("MB of a node", bytes), ("seconds", time)] {
                let lines = lines.into_iter().flatten().collect();
                panels.push(Panel { title: format!("{of}: {unit}"), lines, reference: None });
            }
        }
        let first = self.rows.first().map(|row| &row.encoding);
        chart::svg(&Chart {
            title: format!("Checkpoints of programs, {}", first.map_or("", |row| &row.scheme)),
            subtitle: format!(
                "{}, {} cores, load {}; MAT: a product of matrices, some rows between two checkpoints; LU: one lower and one upper sweep",
                self.machine.cpu, self.machine.cores, self.machine.load
            ),
            vertical: String::new(),
            horizontal: "checkpoint".to_owned(),
            places: (1..=checkpoints).map(|number| number.to_string()).collect(),
            panels,
            own_axes: true,
        })
    }
}

impl fmt::Display for ProgramReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(
            f,
            "checkpoints of programs, a protector for each node; MB of a node, seconds, MB/s; link, disk: by themselves, in turns with it; cpu: this process, and all, by all cores"
        )?;
        writeln!(
            f,
            "{:>7} {:>5} {:>8} {:>9} {:>3} {:>11} {:>7} {:>8} {:>8} {:>7} {:>7} {:>7} {:>6} {:>6} {:>6} {:>5} {:>5}",
            "program",
            "nodes",
            "scheme",
            "shape",
            "#",
            "way",
            "changed",
            "image",
            "sent",
            "write",
            "encode",
            "collect",
            "link",
            "disk",
            "ratio",
            "cpu",
            "all"
        )?;
        for row in &self.rows {
            let encoding = &row.encoding;
            writeln!(
                f,
                "{:>7} {:>5} {:>8} {:>9} {:>3} {:>11} {:>6.2}% {:>8.3} {:>8.3} {:>7.3} {:>7.3} {:>7} {:>6.1} {:>6.1} {:>6.2} {:>4.0}% {:>5}{}",
                row.program,
                encoding.nodes,
                encoding.scheme,
                encoding.shape,
                row.checkpoint,
                row.way,
                encoding.dirty_percent,
                mb(row.image_bytes),
                mb(encoding.sent_bytes),
                row.write_s,
                encoding.seconds,
                row.collect_s.map_or("-".to_owned(), |seconds| format!("{seconds:.3}")),
                encoding.link_gbytes_per_s * 1e3,
                encoding.disk_gbytes_per_s * 1e3,
                encoding.ratio_to_slowest,
                encoding.processor.machine_used * 100.0,
                percent(encoding.processor.machine_busy),
                if encoding.machine_limited { " MACHINE" } else { "" },
            )?;
        }
        for total in &self.totals {
            writeln!(
                f,
                "{} on {} nodes, {}: incremental checkpoints have {:.1} % fewer bytes, send {:.1} % fewer, take {:.1} % less time to write, {:.1} % to encode, {:.1} % together; the loss of the permitted nodes was repaired in {:.3} s{}",
                total.program,
                total.nodes,
                total.scheme,
                total.fewer_image_bytes_percent,
                total.fewer_sent_bytes_percent,
                total.less_write_time_percent,
                total.less_encode_time_percent,
                total.less_time_percent,
                total.repair_s,
                if total.machine_limited { "; in some of them the MACHINE was the limit" } else { "" },
            )?;
        }
        write!(
            f,
            "{}",
            if self.is_right {
                "what the last images hold, repaired ones too, is what was saved"
            } else {
                "WRONG: the last images differ from the saved memory"
            }
        )
    }
}
