//! The report of `bench freeze`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::DUMP_ROW;
use super::port::Figures;
use crate::chart::{self, Chart, Line, Panel};
use crate::machine::Machine;
use crate::report::{self, Bar};
use crate::statistics::{percentile, sorted};
use crate::testbed::{Nic, Testbed};

/// Medians that Huo, Ma and Sun report of Myrinet MX, 2006: freeze, dump, thaw, microseconds. Another machine and other work.
pub const PAPER_US: [f64; 3] = [16.0, 54.0, 8.6];

/// The bars of the design.
const FREEZE_US_MAX: f64 = 5.0;
const THAW_US_MAX: f64 = 5.0;
const DUMP_US_MAX: f64 = 50.0;
const FLATNESS_MAX: f64 = 2.0;
const COPY_RATIO_MIN: f64 = 0.5;
/// Less payload than this is dominated by the walk over the operations.
const COPY_BYTES_MIN: u64 = 1 << 20;

/// Median and tails, microseconds.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Default, Debug)]
pub struct Tail {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Tail {
    /// Of samples in any order.
    #[must_use]
    pub fn of(samples: &[f64]) -> Tail {
        let samples = sorted(samples.to_vec());
        Tail {
            p50: percentile(&samples, 0.5),
            p99: percentile(&samples, 0.99),
            p999: percentile(&samples, 0.999),
        }
    }
}

/// One combination of links and bytes in flight. Times in microseconds.
#[derive(Clone, Serialize, Debug)]
#[expect(missing_docs, reason = "the percentiles of the times that the module describes")]
pub struct FreezeRow {
    /// The name of the row.
    pub name: String,
    /// Links of the port.
    pub links: usize,
    /// Processes that send bursts to it.
    pub senders: usize,
    /// Bytes in flight, at least.
    pub bytes_in_flight: u64,
    /// Median of the bytes in flight, counted from the frozen port.
    pub bytes_in_flight_counted: u64,
    /// Freezes.
    pub samples: usize,
    pub freeze_us_p50: f64,
    pub freeze_us_p99: f64,
    pub freeze_us_p999: f64,
    /// Of the freeze: waiting for the gate.
    pub gate_us_p50: f64,
    pub gate_us_p99: f64,
    pub dump_us_p50: f64,
    pub dump_us_p99: f64,
    pub dump_us_p999: f64,
    /// Bytes of the last dump.
    pub dump_bytes: usize,
    pub thaw_us_p50: f64,
    pub thaw_us_p99: f64,
    pub thaw_us_p999: f64,
    /// The first round of progress after a thaw: it receives waiting frames, and informs peers of the end of the pause.
    pub first_round_us_p50: f64,
    pub first_round_us_p99: f64,
    pub hints_us_p50: f64,
    pub hints_us_p99: f64,
    /// Getting memory ready for the dump, before the freeze.
    pub room_us_p50: f64,
    pub room_us_p99: f64,
    /// Bringing the dump's input into the caches, before the freeze.
    pub warm_us_p50: f64,
    pub warm_us_p99: f64,
    /// Payload of the last copy; 0 if there was none.
    pub payload_copy_bytes: usize,
    pub payload_copy_us_p50: Option<f64>,
    pub payload_copy_us_p99: Option<f64>,
    /// 10^9 bytes per second.
    pub payload_copy_gbytes_per_s: Option<f64>,
    /// The same of a plain copy.
    pub memcpy_gbytes_per_s: Option<f64>,
    /// Median of each copy's speed to that of the plain copy beside it.
    pub payload_copy_ratio: Option<f64>,
    /// Messages of bursts that were received during the row.
    pub burst_messages: u64,
}

impl FreezeRow {
    pub(super) fn new(name: String, senders: usize, bytes_in_flight: u64, of: Figures) -> FreezeRow {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
        let speed = |tail: Tail| of.payload_bytes as f64 / tail.p50 / 1e3;
        FreezeRow {
            name,
            links: of.links,
            senders,
            bytes_in_flight,
            bytes_in_flight_counted: of.flight_bytes_counted,
            samples: of.samples,
            freeze_us_p50: of.freeze.p50,
            freeze_us_p99: of.freeze.p99,
            freeze_us_p999: of.freeze.p999,
            gate_us_p50: of.gate.p50,
            gate_us_p99: of.gate.p99,
            dump_us_p50: of.dump.p50,
            dump_us_p99: of.dump.p99,
            dump_us_p999: of.dump.p999,
            dump_bytes: of.dump_bytes,
            thaw_us_p50: of.thaw.p50,
            thaw_us_p99: of.thaw.p99,
            thaw_us_p999: of.thaw.p999,
            first_round_us_p50: of.first_round.p50,
            first_round_us_p99: of.first_round.p99,
            hints_us_p50: of.hints.p50,
            hints_us_p99: of.hints.p99,
            room_us_p50: of.room.p50,
            room_us_p99: of.room.p99,
            warm_us_p50: of.warm.p50,
            warm_us_p99: of.warm.p99,
            payload_copy_bytes: of.payload_bytes,
            payload_copy_us_p50: of.payload_copy.map(|tail| tail.p50),
            payload_copy_us_p99: of.payload_copy.map(|tail| tail.p99),
            payload_copy_gbytes_per_s: of.payload_copy.map(speed),
            memcpy_gbytes_per_s: of.memcpy.map(speed),
            payload_copy_ratio: of.copy_ratio,
            burst_messages: of.burst_messages,
        }
    }
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct FreezeReport {
    /// "freeze".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// The measured NIC kind.
    pub nic: Nic,
    /// Between which devices.
    pub device: Option<String>,
    /// Each combination.
    pub rows: Vec<FreezeRow>,
    /// The design's bars.
    pub bars: Vec<Bar>,
}

impl FreezeReport {
    pub(super) fn new(machine: Machine, testbed: &Testbed, rows: Vec<FreezeRow>) -> FreezeReport {
        let bars = bars(&rows);
        FreezeReport { bench: "freeze", machine, nic: testbed.nic(), device: testbed.device(), rows, bars }
    }
}

fn bars(rows: &[FreezeRow]) -> Vec<Bar> {
    let worst = |values: &mut dyn Iterator<Item = f64>| values.max_by(f64::total_cmp);
    let at_most = |name, value: Option<f64>, limit| value.map(|value| Bar::below(name, value, limit));
    let flatness = |time: fn(&FreezeRow) -> f64| {
        let spread = |links: usize| {
            let times: Vec<f64> =
                rows.iter().filter(|row| row.links == links && row.name != DUMP_ROW).map(time).collect();
            let times = sorted(times);
            Some(times.last()? / times.first()?)
        };
        worst(&mut rows.iter().filter_map(|row| spread(row.links)))
    };
    let copied = rows.iter().filter(|row| row.bytes_in_flight >= COPY_BYTES_MIN);
    let copied = copied.filter_map(|row| row.payload_copy_ratio).min_by(f64::total_cmp);
    let dumped = rows.iter().find(|row| row.name == DUMP_ROW).map(|row| row.dump_us_p50);
    [
        at_most("freeze, us, median", worst(&mut rows.iter().map(|row| row.freeze_us_p50)), FREEZE_US_MAX),
        at_most("thaw, us, median", worst(&mut rows.iter().map(|row| row.thaw_us_p50)), THAW_US_MAX),
        at_most(
            "freeze, most to least over bytes in flight",
            flatness(|row| row.freeze_us_p50),
            FLATNESS_MAX,
        ),
        at_most("thaw, most to least over bytes in flight", flatness(|row| row.thaw_us_p50), FLATNESS_MAX),
        at_most("dump of 1,024 links, us, median", dumped, DUMP_US_MAX),
        copied.map(|value| Bar::above("payload copied, of a plain copy's speed", value, COPY_RATIO_MIN)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl fmt::Display for FreezeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        if let Some(device) = &self.device {
            writeln!(f, "device   {device}")?;
        }
        let (nic, senders) = (self.nic.name(), super::SENDERS);
        writeln!(f, "freeze   over {nic}, us: median, p99, p99.9; {senders} senders at most")?;
        writeln!(
            f,
            "{:>6} {:>9} {:>6}  {:>23}  {:>23}  {:>23}  {:>7}  {:>5}  {:>5}  {:>16}",
            "links", "in flight", "n", "freeze", "dump", "thaw", "hints", "room", "warm", "copy (memcpy)"
        )?;
        for row in &self.rows {
            let three = |p50: f64, p99: f64, p999: f64| format!("{p50:.2} {p99:7.1} {p999:7.1}");
            let copy = match (row.payload_copy_gbytes_per_s, row.memcpy_gbytes_per_s) {
                (Some(ours), Some(plain)) => format!("{ours:.1} ({plain:.1}) GB/s"),
                _ => "-".to_owned(),
            };
            writeln!(
                f,
                "{:>6} {:>9} {:>6}  {:>23}  {:>23}  {:>23}  {:>7.1}  {:>5.1}  {:>5.1}  {copy:>16}{}",
                row.links,
                bytes(row.bytes_in_flight),
                row.samples,
                three(row.freeze_us_p50, row.freeze_us_p99, row.freeze_us_p999),
                three(row.dump_us_p50, row.dump_us_p99, row.dump_us_p999),
                three(row.thaw_us_p50, row.thaw_us_p99, row.thaw_us_p999),
                row.hints_us_p50,
                row.room_us_p50,
                row.warm_us_p50,
                if row.name == DUMP_ROW { "  64 links with 32 unacknowledged frames" } else { "" },
            )?;
        }
        let [freeze, dump, thaw] = PAPER_US;
        writeln!(f, "Myrinet MX, 2006, in the NIC: freeze {freeze}, dump {dump}, thaw {thaw} us")?;
        report::show(f, &self.bars)
    }
}

/// A number of bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => bytes.to_string(),
    }
}

impl FreezeReport {
    /// The rows as a chart.
    #[must_use]
    pub fn svg(&self) -> String {
        let grid: Vec<&FreezeRow> = self.rows.iter().filter(|row| row.name != DUMP_ROW).collect();
        let mut links: Vec<usize> = grid.iter().map(|row| row.links).collect();
        links.dedup();
        let mut flights: Vec<u64> = grid.iter().map(|row| row.bytes_in_flight).collect();
        flights.sort_unstable();
        flights.dedup();
        type Time = fn(&FreezeRow) -> f64;
        let panel = |title: &str, paper: f64, times: [Time; 2]| {
            let line = |links: usize, dashed: bool| Line {
                label: if links == 1 { "1 link".to_owned() } else { format!("{links} links") },
                dashed,
                values: grid
                    .iter()
                    .filter(|row| row.links == links)
                    .map(|row| times[usize::from(dashed)](row))
                    .collect(),
            };
            Panel {
                title: title.to_owned(),
                lines: links.iter().flat_map(|links| [line(*links, true), line(*links, false)]).collect(),
                reference: Some((format!("Myrinet MX, 2006: {paper}"), paper)),
            }
        };
        let [freeze, dump, thaw] = PAPER_US;
        let dumped = self.rows.iter().find(|row| row.name == DUMP_ROW);
        let dumped = dumped.map_or(String::new(), |row| {
            format!("; dump of 1,024 links, 64 with 32 frames: {:.1} us", row.dump_us_p50)
        });
        chart::svg(&Chart {
            title: format!("Freeze, dump and thaw of a port under bursts from {} processes", super::SENDERS),
            subtitle: format!(
                "{}, {} cores, load {}; line: median, dashed: 99th percentile{dumped}",
                self.machine.cpu, self.machine.cores, self.machine.load
            ),
            vertical: "microseconds".to_owned(),
            horizontal: "bytes in flight".to_owned(),
            places: flights.into_iter().map(bytes).collect(),
            panels: vec![
                panel("freeze", freeze, [|row| row.freeze_us_p50, |row| row.freeze_us_p99]),
                panel("dump", dump, [|row| row.dump_us_p50, |row| row.dump_us_p99]),
                panel("thaw", thaw, [|row| row.thaw_us_p50, |row| row.thaw_us_p99]),
            ],
            own_axes: false,
        })
    }
}
