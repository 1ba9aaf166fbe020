//! The findings.

use std::fmt;

use serde::Serialize;

use crate::chart::{Chart, Line, Panel, svg};
use crate::machine::{Machine, Processor};
use crate::report::{Bar, show};
use crate::statistics::{Summary, percentile, sorted};

/// How quickly a buffer was read.
#[derive(Clone, Serialize, Debug)]
pub struct RateRow {
    /// The work done.
    pub what: &'static str,
    /// Length of a block.
    pub block_bytes: u32,
    /// Of the buffer.
    pub gbytes_per_s: Summary,
    /// Of `memcpy` of the same buffer, in turns.
    pub memcpy_gbytes_per_s: Summary,
    /// Median of the ratios of neighbours.
    pub ratio_to_memcpy: f64,
    /// The processors' load meanwhile.
    #[serde(flatten)]
    pub processor: Processor,
}

/// A program that was saved in one way. The first checkpoint, which is always full, does not count.
#[derive(Clone, Serialize, Debug)]
pub struct SeriesRow {
    /// The program.
    pub program: &'static str,
    /// The way.
    pub way: &'static str,
    /// Of the program's memory.
    pub content_bytes: u64,
    /// Of each checkpoint.
    pub stored_bytes: Vec<u64>,
    /// How long each took, until it was durable.
    pub make_ms: Vec<f64>,
    /// Processor time of each by that time: 1 is one core; waiting for the disk uses none.
    pub cores_used: Vec<f64>,
    /// Files that restoring the last one took.
    pub files: usize,
    /// How long that took, on one thread, from warm files.
    pub restore_ms: f64,
    /// The restored data equals the saved data.
    pub is_right: bool,
    /// Less bytes than full ones, of all checkpoints.
    pub fewer_bytes_percent: f64,
    /// Less time than full ones, of all checkpoints.
    pub less_time_percent: f64,
}

impl SeriesRow {
    pub(super) fn new(program: &'static str, way: &'static str) -> SeriesRow {
        SeriesRow {
            program,
            way,
            content_bytes: 0,
            stored_bytes: Vec::new(),
            make_ms: Vec::new(),
            cores_used: Vec::new(),
            files: 0,
            restore_ms: 0.0,
            is_right: false,
            fewer_bytes_percent: 0.0,
            less_time_percent: 0.0,
        }
    }

    fn bytes(&self) -> f64 {
        self.stored_bytes.iter().map(|bytes| float(*bytes)).sum()
    }
}

/// The report.
#[derive(Clone, Serialize, Debug)]
pub struct DeltaReport {
    bench: &'static str,
    machine: Machine,
    buffer_bytes: usize,
    rates: Vec<RateRow>,
    series: Vec<SeriesRow>,
    bars: Vec<Bar>,
}

/// Hashing is at least this part of a copy.
const RATIO_MIN: f64 = 0.8;

fn float(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a length")]
    let float = bytes as f64;
    float
}

impl DeltaReport {
    pub(super) fn new(
        machine: Machine,
        buffer_bytes: usize,
        rates: Vec<RateRow>,
        mut series: Vec<SeriesRow>,
    ) -> DeltaReport {
        let full: Vec<(&'static str, f64, f64)> = series
            .iter()
            .filter(|row| row.way == "full")
            .map(|row| (row.program, row.bytes(), row.make_ms.iter().sum()))
            .collect();
        for row in &mut series {
            let Some((_, bytes, ms)) = full.iter().find(|(program, ..)| *program == row.program) else {
                continue;
            };
            row.fewer_bytes_percent = 100.0 * (1.0 - row.bytes() / bytes);
            row.less_time_percent = 100.0 * (1.0 - row.make_ms.iter().sum::<f64>() / ms);
        }
        let bars = rates.iter().filter(|row| row.block_bytes == super::BLOCK_BYTES).map(|row| {
            let name = if row.what == "hash" {
                "hashing blocks of 4 KiB, of memcpy"
            } else {
                "a delta of nothing, of memcpy"
            };
            Bar::above(name, row.ratio_to_memcpy, RATIO_MIN)
        });
        let bars = bars.collect();
        DeltaReport { bench: "delta", machine, buffer_bytes, rates, series, bars }
    }

    /// Everything that was restored was right.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.series.iter().all(|row| row.is_right)
    }

    /// Bytes and time of each checkpoint, by strategy.
    #[must_use]
    pub fn svg(&self) -> String {
        let checkpoints = self.series.iter().map(|row| row.stored_bytes.len()).max().unwrap_or(0);
        let panel = |program: &str, unit: &str, values: &dyn Fn(&SeriesRow) -> Vec<f64>| Panel {
            title: format!("{program}, {unit}"),
            lines: self
                .series
                .iter()
                .filter(|row| row.program == program)
                .map(|row| Line { label: row.way.to_owned(), dashed: false, values: values(row) })
                .collect(),
            reference: None,
        };
        let megabytes = |row: &SeriesRow| row.stored_bytes.iter().map(|bytes| float(*bytes) / 1e6).collect();
        let make_ms = |row: &SeriesRow| row.make_ms.clone();
        svg(&Chart {
            title: "Bytes of each checkpoint, and time until it is durable".to_owned(),
            subtitle:
                "MAT: four rows of a product between two checkpoints; LU: one lower and one upper sweep"
                    .to_owned(),
            vertical: String::new(),
            horizontal: "checkpoint".to_owned(),
            places: (1..=checkpoints).map(|number| number.to_string()).collect(),
            panels: vec![
                panel("MAT", "MB", &megabytes),
                panel("LU", "MB", &megabytes),
                panel("MAT", "ms", &make_ms),
                panel("LU", "ms", &make_ms),
            ],
            own_axes: true,
        })
    }
}

impl fmt::Display for DeltaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "buffers of {} MiB, one core", self.buffer_bytes >> 20)?;
        writeln!(f, "{:<18}{:>9}{:>9}{:>9}{:>8}{:>7}", "", "BLOCK", "GB/s", "MEMCPY", "RATIO", "CPU")?;
        for row in &self.rates {
            writeln!(
                f,
                "{:<18}{:>9}{:>9.1}{:>9.1}{:>8.2}{:>7.2}",
                row.what,
                row.block_bytes,
                row.gbytes_per_s.median,
                row.memcpy_gbytes_per_s.median,
                row.ratio_to_memcpy,
                row.processor.cores_used
            )?;
        }
        writeln!(
            f,
            "\n{:<5}{:<18}{:>9}{:>13}{:>9}{:>10}{:>9}{:>6}{:>7}{:>12}",
            "", "WAY", "MB", "STORED, MB", "LESS, %", "MAKE, ms", "LESS, %", "CPU", "FILES", "RESTORE, ms"
        )?;
        for row in &self.series {
            let checkpoints = float(row.stored_bytes.len().max(1) as u64);
            writeln!(
                f,
                "{:<5}{:<18}{:>9.1}{:>13.3}{:>9.1}{:>10.1}{:>9.1}{:>6.2}{:>7}{:>12.1}{}",
                row.program,
                row.way,
                float(row.content_bytes) / 1e6,
                row.bytes() / checkpoints / 1e6,
                row.fewer_bytes_percent,
                percentile(&sorted(row.make_ms.clone()), 0.5),
                row.less_time_percent,
                percentile(&sorted(row.cores_used.clone()), 0.5),
                row.files,
                row.restore_ms,
                if row.is_right { "" } else { "  WRONG" }
            )?;
        }
        writeln!(
            f,
            "STORED: mean of a checkpoint; MAKE: median, until it is durable; LESS: than full ones; CPU: cores that this process used\n"
        )?;
        show(f, &self.bars)
    }
}
