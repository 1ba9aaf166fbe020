//! Results as rows, as a table, and as a chart.

use std::fmt;

use super::{Found, Sequence};
use serde::Serialize;

use crate::chart::{self, Chart, Line, Panel};
use crate::machine::Machine;
use crate::report::{self, Bar};

/// The bars.
const SMALL_BYTES: u64 = 64 << 20;
const SMALL_MS_MAX: f64 = 3.0;
pub(super) const LARGE_BYTES: u64 = 1 << 30;
const LARGE_MS_MAX: f64 = 10.0;
/// Of a large process with small pages: how much it may write for that.
const LARGE_FRACTION_MAX: f64 = 0.02;
const FORK_RATIO_MAX: f64 = 1.2;
const APART_US_MAX: f64 = 500.0;
const CRIU_RATIO_MIN: f64 = 10.0;
/// A sequence with one every so many seconds.
const SEQUENCE_S: f64 = 10.0;
const SEQUENCE_PERCENT_MAX: f64 = 2.0;

/// One kind of process, one share of its pages written between two images.
#[derive(Clone, Serialize, Debug)]
pub struct PauseRow {
    /// Bytes of its memory, besides those that every process has.
    pub resident_bytes: u64,
    /// `4k` or `thp`.
    pub pages: &'static str,
    /// Share of its pages of 4 KiB that are written between two images.
    pub dirty_fraction: f64,
    /// Samples.
    pub samples: usize,
    /// Of images after the first: median of the pauses.
    pub pause_ms_p50: f64,
    /// 99th percentile.
    pub pause_ms_p99: f64,
    /// Share of them that were copies of written pages; the others were forks.
    pub copies_fraction: f64,
    /// Until all threads stand still, median.
    pub stop_us: f64,
    /// Writing down the kernel's state of the process, median.
    pub state_us: f64,
    /// Copy or fork, median.
    pub memory_ms: f64,
    /// The pause without that, median.
    pub apart_from_memory_us: f64,
    /// Of the port: from the call until no thread can touch its memory, median.
    pub freeze_us: f64,
    /// Writing it down, median.
    pub dump_us: f64,
    /// From the call until its first frame can be sent, median.
    pub thaw_us: f64,
    /// Of first images, which are forks: median.
    pub first_pause_ms_p50: f64,
    /// Arming before them, outside of the pause; 0: nothing was armed.
    pub arm_ms: f64,
    /// A bare fork of the same process, median.
    pub bare_fork_ms: f64,
    /// First images to bare forks, median of the ratios of neighbours.
    pub first_to_bare_fork: f64,
    /// The same, of the fork in them alone.
    pub first_memory_to_bare_fork: f64,
    /// Later images to bare forks.
    pub pause_to_bare_fork: f64,
    /// The same, of the copy or fork in them alone.
    pub memory_to_bare_fork: f64,
    /// How long CRIU kept the process frozen; `null` without CRIU.
    pub criu_pause_ms: Option<f64>,
    /// From the start of a new process until it is the old one and has touched all of its memory.
    pub restart_ms: f64,
}

/// The cost of checkpoints to a program that works.
#[derive(Clone, Serialize, Debug)]
pub struct Overhead {
    /// Bytes of its memory.
    pub resident_bytes: u64,
    /// `4k` or `thp`.
    pub pages: &'static str,
    /// Share of its pages to which it writes again and again.
    pub dirty_fraction: f64,
    /// Time that a whole image costs it, written to a file meanwhile; arming and the first writes to armed pages included.
    pub lost_ms_per_whole_image: f64,
    /// The same of the next one, which is a delta where the agent takes one.
    pub lost_ms_per_next_image: f64,
    /// The same of the next one by content, which a fork compares.
    pub lost_ms_per_content_image: f64,
    /// From the pause until a whole image was written.
    pub whole_write_ms: f64,
    /// From the pause until all memory was compared, and changed pages were written.
    pub content_write_ms: f64,
    /// Spread over intervals.
    pub at_intervals: Vec<AtInterval>,
}

/// The overhead of a checkpoint every so often.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct AtInterval {
    /// From one checkpoint to the next.
    pub interval_s: f64,
    /// Share of the time that whole images cost.
    pub whole_percent: f64,
    /// Share of the time that later ones cost.
    pub next_percent: f64,
    /// Share of the time that later ones by content cost.
    pub content_percent: f64,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct PauseReport {
    /// "pause".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Each kind of process.
    pub rows: Vec<PauseRow>,
    /// Its cost.
    pub overhead: Vec<Overhead>,
    /// The cost over minutes.
    pub sequences: Vec<Sequence>,
    /// Rows skipped for lack of memory.
    pub skipped: Vec<String>,
    /// The design's bars.
    pub bars: Vec<Bar>,
}

impl PauseReport {
    pub(super) fn new(machine: Machine, found: Found) -> PauseReport {
        let Found { rows, overhead, sequences, skipped } = found;
        let bars = bars(&rows, &sequences);
        PauseReport { bench: "pause", machine, rows, overhead, sequences, skipped, bars }
    }

    /// The rows as a chart.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut fractions: Vec<f64> = self.rows.iter().map(|row| row.dirty_fraction).collect();
        fractions.sort_by(f64::total_cmp);
        fractions.dedup();
        let mut kinds: Vec<(u64, &str)> =
            self.rows.iter().map(|row| (row.resident_bytes, row.pages)).collect();
        kinds.dedup();
        let panel = |(bytes, pages): (u64, &str)| {
            let line = |label: &str, dashed: bool, value: fn(&PauseRow) -> Option<f64>| Line {
                label: label.to_owned(),
                dashed,
                values: self
                    .rows
                    .iter()
                    .filter(|row| (row.resident_bytes, row.pages) == (bytes, pages))
                    .filter_map(value)
                    .collect(),
            };
            let lines = vec![
                line("pause", true, |row| Some(row.pause_ms_p99)),
                line("pause", false, |row| Some(row.pause_ms_p50)),
                line("first image", false, |row| Some(row.first_pause_ms_p50)),
                line("bare fork", false, |row| Some(row.bare_fork_ms)),
                line("CRIU", false, |row| row.criu_pause_ms),
            ];
            Panel {
                title: format!("{} MiB, {pages}", bytes >> 20),
                lines: lines.into_iter().filter(|line| !line.values.is_empty()).collect(),
                reference: None,
            }
        };
        chart::svg(&Chart {
            title: "Pause of a process that is saved as a whole".to_owned(),
            subtitle: format!(
                "{}, {} cores, load {}; line: median, dashed: 99th percentile",
                self.machine.cpu, self.machine.cores, self.machine.load
            ),
            vertical: "milliseconds".to_owned(),
            horizontal: "share of pages written since the first image".to_owned(),
            places: fractions.iter().map(ToString::to_string).collect(),
            panels: kinds.into_iter().map(panel).collect(),
            own_axes: false,
        })
    }
}

fn bars(rows: &[PauseRow], sequences: &[Sequence]) -> Vec<Bar> {
    let worst = |name, limit, values: Vec<f64>| {
        let found = values
            .into_iter()
            .fold(None, |worst: Option<f64>, value| Some(worst.map_or(value, |worst| worst.max(value))));
        found.map(|value| Bar::below(name, value, limit))
    };
    let of = |wanted: &dyn Fn(&&PauseRow) -> bool, value: fn(&PauseRow) -> f64| {
        rows.iter().filter(|row| wanted(row)).map(value).collect::<Vec<f64>>()
    };
    let is_easy = |row: &&PauseRow| row.pages == "thp" || row.dirty_fraction <= LARGE_FRACTION_MAX;
    let criu = rows.iter().filter_map(|row| Some(row.criu_pause_ms? / row.pause_ms_p50));
    let criu =
        criu.fold(None, |least: Option<f64>, ratio| Some(least.map_or(ratio, |least| least.min(ratio))));
    [
        worst(
            "64 MiB: pause, ms",
            SMALL_MS_MAX,
            of(&|row| row.resident_bytes == SMALL_BYTES, |row| row.pause_ms_p50.max(row.first_pause_ms_p50)),
        ),
        worst(
            "1 GiB: pause from the second image on with at most 2 % of small pages written, or with huge pages, ms",
            LARGE_MS_MAX,
            of(&|row| row.resident_bytes == LARGE_BYTES && is_easy(row), |row| row.pause_ms_p50),
        ),
        worst(
            "memory of the first image to a bare fork",
            FORK_RATIO_MAX,
            of(&|_| true, |row| row.first_memory_to_bare_fork),
        ),
        worst(
            "all pages written: memory to a bare fork",
            FORK_RATIO_MAX,
            of(&|row| row.dirty_fraction >= 1.0, |row| row.memory_to_bare_fork),
        ),
        worst("pause apart from memory, us", APART_US_MAX, of(&|_| true, |row| row.apart_from_memory_us)),
        worst(
            "1 GiB of small pages, 5 % written, a checkpoint every 10 s: overhead, %",
            SEQUENCE_PERCENT_MAX,
            sequences
                .iter()
                .filter(|sequence| sequence.pages == "4k" && sequence.interval_s >= SEQUENCE_S)
                .filter(|sequence| sequence.resident_bytes == LARGE_BYTES)
                .map(|sequence| (sequence.time_ratio - 1.0) * 100.0)
                .collect(),
        ),
        criu.map(|ratio| Bar::above("CRIU's pause to ours", ratio, CRIU_RATIO_MIN)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl fmt::Display for PauseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "pause    ms, medians; ratios to a bare fork of the same process in turns")?;
        writeln!(
            f,
            "{:>9} {:>5} {:>8}  {:>8} {:>8} {:>6} {:>6}  {:>6} {:>6} {:>6} {:>6} {:>6} {:>8}  {:>8} {:>6} {:>7} {:>8}  {:>8}  {:>8}",
            "memory",
            "pages",
            "written",
            "pause",
            "p99",
            "ratio",
            "copies",
            "freeze",
            "dump",
            "thaw",
            "stop",
            "state",
            "memory",
            "first",
            "ratio",
            "arming",
            "fork",
            "CRIU",
            "restart"
        )?;
        for row in &self.rows {
            let criu = row.criu_pause_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
            writeln!(
                f,
                "{:>5} MiB {:>5} {:>7}%  {:>8.3} {:>8.3} {:>6.2} {:>5.0}%  {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>8.3}  {:>8.3} {:>6.2} {:>7.2} {:>8.3}  {criu:>8}  {:>8.0}",
                row.resident_bytes >> 20,
                row.pages,
                row.dirty_fraction * 100.0,
                row.pause_ms_p50,
                row.pause_ms_p99,
                row.pause_to_bare_fork,
                row.copies_fraction * 100.0,
                row.freeze_us / 1e3,
                row.dump_us / 1e3,
                row.thaw_us / 1e3,
                row.stop_us / 1e3,
                row.state_us / 1e3,
                row.memory_ms,
                row.first_pause_ms_p50,
                row.first_to_bare_fork,
                row.arm_ms,
                row.bare_fork_ms,
                row.restart_ms,
            )?;
        }
        for cost in &self.overhead {
            let at: Vec<String> = cost
                .at_intervals
                .iter()
                .map(|at| {
                    format!(
                        "{:.2}, {:.2} and {:.2} % at one every {} s",
                        at.whole_percent, at.next_percent, at.content_percent, at.interval_s
                    )
                })
                .collect();
            writeln!(
                f,
                "{:>5} MiB {:>5}: to a program that writes to {} % of it a whole image costs {:.1} ms, the next one {:.1} ms, one by content {:.1} ms: {}; written in {:.0} ms, by content in {:.0}",
                cost.resident_bytes >> 20,
                cost.pages,
                cost.dirty_fraction * 100.0,
                cost.lost_ms_per_whole_image,
                cost.lost_ms_per_next_image,
                cost.lost_ms_per_content_image,
                at.join(", "),
                cost.whole_write_ms,
                cost.content_write_ms
            )?;
        }
        for sequence in &self.sequences {
            writeln!(
                f,
                "{:>5} MiB {:>5}: {} % written, {}, a checkpoint every {} s: {:.4} times as long ({:.4} to {:.4}) in {} pairs, {} of the images whole; without, {:.4} times as long as before the first",
                sequence.resident_bytes >> 20,
                sequence.pages,
                sequence.dirty_fraction * 100.0,
                sequence.writes_to,
                sequence.interval_s,
                sequence.time_ratio,
                sequence.time_ratio_low,
                sequence.time_ratio_high,
                sequence.pairs,
                sequence.whole_images,
                sequence.lasting_ratio
            )?;
        }
        for skipped in &self.skipped {
            writeln!(f, "left out: {skipped}")?;
        }
        report::show(f, &self.bars)
    }
}
