//! Results as rows and as a table.

use std::fmt;

use serde::Serialize;

use crate::chart::{self, Chart, Line, Panel};
use crate::machine::{Machine, Processor};
use crate::report::{self, Bar};
use crate::statistics::Summary;

/// The design's bar: this part of the speed of a copy.
const RATIO_MIN: f64 = 0.8;

/// One kind of work.
#[derive(Clone, Serialize, Debug)]
pub struct ParityRow {
    /// Nodes of the group; none where the work does not depend on it.
    pub nodes: Option<usize>,
    /// `xor`, `rs` or `rs:K+M`.
    pub scheme: String,
    /// Kind of work: `add`, `encode` and `update` are arithmetic alone.
    pub shape: &'static str,
    /// Bytes of the sources.
    pub bytes: usize,
    /// Bytes of the sources by time, median of the runs.
    pub gbytes_per_s: f64,
    /// A plain copy of as many bytes.
    pub memcpy_gbytes_per_s: f64,
    /// Median of the ratios of neighbouring runs.
    pub ratio_to_memcpy: f64,
    /// Spread of these ratios.
    pub ratio_spread: Summary,
    /// Speed of the link between nodes; none in arithmetic.
    pub link_gbytes_per_s: Option<f64>,
    /// Speed of a node's disk; none in arithmetic.
    pub disk_gbytes_per_s: Option<f64>,
    /// Intel's storage library, same data, same coefficients, same parity.
    pub isal_gbytes_per_s: Option<f64>,
    /// How they compare: median of the ratios of neighbouring runs.
    pub ratio_to_isal: Option<f64>,
    /// The crate reed-solomon-simd, same data.
    pub reed_solomon_simd_gbytes_per_s: Option<f64>,
    /// The processors' load meanwhile.
    #[serde(flatten)]
    pub processor: Processor,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct ParityReport {
    /// "parity".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Which instructions were used.
    pub kernel: &'static str,
    /// Bytes of the last-level cache, if the system reports it.
    pub cache_bytes: Option<usize>,
    /// One for each kind of work.
    pub rows: Vec<ParityRow>,
    /// The design's bar.
    pub bars: Vec<Bar>,
}

impl ParityReport {
    pub(super) fn new(
        machine: Machine,
        kernel: &'static str,
        cache_bytes: Option<usize>,
        rows: Vec<ParityRow>,
    ) -> ParityReport {
        let worst = rows.iter().map(|row| row.ratio_to_memcpy).fold(f64::INFINITY, f64::min);
        let bars = vec![Bar::above("arithmetic to memcpy, worst row", worst, RATIO_MIN)];
        ParityReport { bench: "parity", machine, kernel, cache_bytes, rows, bars }
    }

    /// The rows as a chart.
    #[must_use]
    pub fn svg(&self) -> String {
        let line = |label: &str, value: fn(&ParityRow) -> Option<f64>| Line {
            label: label.to_owned(),
            dashed: false,
            values: self.rows.iter().map(|row| value(row).unwrap_or(f64::NAN)).collect(),
        };
        let panel = |title: &str, shapes: &[&str]| {
            let mut lines = vec![
                line("ours", |row| Some(row.gbytes_per_s)),
                line("memcpy", |row| Some(row.memcpy_gbytes_per_s)),
                line("ISA-L", |row| row.isal_gbytes_per_s),
                line("reed-solomon-simd", |row| row.reed_solomon_simd_gbytes_per_s),
            ];
            for line in &mut lines {
                let rows = line.values.iter_mut().zip(&self.rows);
                rows.filter(|(_, row)| !shapes.contains(&row.shape)).for_each(|(value, _)| *value = f64::NAN);
            }
            lines.retain(|line| line.values.iter().any(|value| !value.is_nan()));
            Panel { title: title.to_owned(), lines, reference: None }
        };
        chart::svg(&Chart {
            title: "Arithmetic of parity, one core".to_owned(),
            subtitle: format!(
                "{}, {}, load {}; GB/s of the sources",
                self.machine.cpu, self.kernel, self.machine.load
            ),
            vertical: "GB/s".to_owned(),
            horizontal: "scheme".to_owned(),
            places: self.rows.iter().map(|row| row.scheme.trim_start_matches("rs:").to_owned()).collect(),
            panels: vec![
                panel("adding a slice, updating parity", &["add", "update"]),
                panel("encoding", &["encode"]),
            ],
            own_axes: false,
        })
    }
}

impl fmt::Display for ParityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        let cache = self.cache_bytes.map_or("unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let bytes = self.rows.first().map_or(0, |row| row.bytes);
        writeln!(
            f,
            "parity   {} MiB of data, last-level cache {cache}, one core, {}; GB/s of sources, medians of runs in turns with copies",
            bytes >> 20,
            self.kernel
        )?;
        writeln!(
            f,
            "{:>8} {:>8} {:>8} {:>8} {:>7} {:>14} {:>8} {:>8} {:>9} {:>6}",
            "scheme", "work", "ours", "memcpy", "ratio", "p10 to p90", "isa-l", "to it", "rs-simd", "cores"
        )?;
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let ratio = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        for row in &self.rows {
            writeln!(
                f,
                "{:>8} {:>8} {:>8.1} {:>8.1} {:>7.2} {:>6.2} to {:.2} {:>8} {:>8} {:>9} {:>6.2}",
                row.scheme,
                row.shape,
                row.gbytes_per_s,
                row.memcpy_gbytes_per_s,
                row.ratio_to_memcpy,
                row.ratio_spread.p10,
                row.ratio_spread.p90,
                optional(row.isal_gbytes_per_s),
                ratio(row.ratio_to_isal),
                optional(row.reed_solomon_simd_gbytes_per_s),
                row.processor.cores_used
            )?;
        }
        report::show(f, &self.bars)
    }
}
