//! The findings.

use std::fmt;

use serde::Serialize;

use crate::chart::{Chart, Line, Panel, svg};
use crate::machine::{Machine, Processor};

/// A codec on a kind of content.
#[derive(Clone, Serialize, Debug)]
pub struct CodecRow {
    /// Kind of content.
    pub content: &'static str,
    /// Requested codec.
    pub codec: &'static str,
    /// Bytes of the content for each that is stored.
    pub ratio: f64,
    /// Packing, one thread.
    pub pack_gbytes_per_s: f64,
    /// Unpacking, one thread.
    pub unpack_gbytes_per_s: f64,
    /// Unpacking, a thread for each processor.
    pub unpack_all_threads_gbytes_per_s: f64,
    /// The processors' load meanwhile, all runs together.
    #[serde(flatten)]
    pub processor: Processor,
}

/// A length of packets.
#[derive(Clone, Serialize, Debug)]
pub struct LengthRow {
    /// Bytes of a packet's content.
    pub packet_bytes: u32,
    /// Bytes of the content for each that is stored.
    pub ratio: f64,
    /// The same, compressed as one stream.
    pub ratio_whole: f64,
    /// To read one block.
    pub block_us: f64,
    /// The processors' load meanwhile, all runs together.
    #[serde(flatten)]
    pub processor: Processor,
}

/// A chain of checkpoints, stored in one way.
#[derive(Clone, Serialize, Debug)]
pub struct SetRow {
    /// Plain, each file compressed as a whole, or packets.
    pub way: &'static str,
    /// Of one checkpoint.
    pub content_bytes: u64,
    /// Of all files.
    pub stored_bytes: u64,
    /// To restore the newest one, one thread.
    pub restore_ms: f64,
    /// The same, a thread for each processor.
    pub restore_all_threads_ms: f64,
    /// To open the chain: its indexes. Part of both.
    pub open_ms: f64,
    /// To read one block; of a chain that is open, where there is one.
    pub block_us: f64,
    /// The restored data equals the saved data.
    pub is_right: bool,
    /// The processors' load meanwhile, all runs together.
    #[serde(flatten)]
    pub processor: Processor,
}

/// The report.
#[derive(Clone, Serialize, Debug)]
pub struct StoreReport {
    bench: &'static str,
    machine: Machine,
    codecs: Vec<CodecRow>,
    lengths: Vec<LengthRow>,
    sets: Vec<SetRow>,
}

impl StoreReport {
    pub(super) fn new(
        machine: Machine,
        codecs: Vec<CodecRow>,
        lengths: Vec<LengthRow>,
        sets: Vec<SetRow>,
    ) -> StoreReport {
        StoreReport { bench: "store", machine, codecs, lengths, sets }
    }

    /// Everything that was restored was right.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.sets.iter().all(|row| row.is_right)
    }

    /// Time to restore, and to read a block, by the length of the content.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut places: Vec<u64> = self.sets.iter().map(|row| row.content_bytes).collect();
        places.dedup();
        let line = |label: &str, way: &str, value: fn(&SetRow) -> f64| Line {
            label: label.to_owned(),
            dashed: false,
            values: self.sets.iter().filter(|row| row.way == way).map(value).collect(),
        };
        svg(&Chart {
            title: "A chain of 8 checkpoints, stored in three ways".to_owned(),
            subtitle: "each checkpoint changes a twentieth of the blocks; files in the page cache".to_owned(),
            vertical: String::new(),
            horizontal: "MiB of a checkpoint".to_owned(),
            places: places.iter().map(|bytes| (bytes >> 20).to_string()).collect(),
            panels: vec![
                Panel {
                    title: "restoring the newest, ms".to_owned(),
                    lines: vec![
                        line("plain", "plain", |row| row.restore_ms),
                        line("whole files", "whole files", |row| row.restore_ms),
                        line("packets", "packets", |row| row.restore_ms),
                        line("packets, all cores", "packets", |row| row.restore_all_threads_ms),
                    ],
                    reference: None,
                },
                Panel {
                    title: "reading one block, us".to_owned(),
                    lines: vec![
                        line("plain", "plain", |row| row.block_us),
                        line("whole files", "whole files", |row| row.block_us),
                        line("packets", "packets", |row| row.block_us),
                    ],
                    reference: None,
                },
            ],
            own_axes: true,
        })
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(
            f,
            "{:<12}{:<7}{:>8}{:>12}{:>14}{:>12}{:>8}",
            "CONTENT", "CODEC", "RATIO", "PACK, GB/s", "UNPACK, GB/s", "ALL CORES", "CPU"
        )?;
        for row in &self.codecs {
            writeln!(
                f,
                "{:<12}{:<7}{:>8.2}{:>12.2}{:>14.2}{:>12.2}{:>8.2}",
                row.content,
                row.codec,
                row.ratio,
                row.pack_gbytes_per_s,
                row.unpack_gbytes_per_s,
                row.unpack_all_threads_gbytes_per_s,
                row.processor.cores_used
            )?;
        }
        writeln!(
            f,
            "\n{:<12}{:>8}{:>12}{:>14}{:>8}",
            "PACKET, KiB", "RATIO", "OF WHOLE", "BLOCK, us", "CPU"
        )?;
        for row in &self.lengths {
            writeln!(
                f,
                "{:<12}{:>8.2}{:>12.2}{:>14.1}{:>8.2}",
                row.packet_bytes >> 10,
                row.ratio,
                row.ratio_whole,
                row.block_us,
                row.processor.cores_used
            )?;
        }
        writeln!(
            f,
            "\n{:>6}  {:<12}{:>11}{:>13}{:>12}{:>10}{:>14}{:>8}",
            "MiB", "STORED AS", "STORED, MB", "RESTORE, ms", "ALL CORES", "OPEN, ms", "ONE BLOCK, us", "CPU"
        )?;
        for row in &self.sets {
            #[expect(clippy::cast_precision_loss, reason = "a length")]
            let stored = row.stored_bytes as f64 / 1e6;
            writeln!(
                f,
                "{:>6}  {:<12}{:>11.1}{:>13.1}{:>12.1}{:>10.2}{:>14.1}{:>8.2}{}",
                row.content_bytes >> 20,
                row.way,
                stored,
                row.restore_ms,
                row.restore_all_threads_ms,
                row.open_ms,
                row.block_us,
                row.processor.cores_used,
                if row.is_right { "" } else { "  WRONG" }
            )?;
        }
        write!(
            f,
            "one block of packets: the chain is open; of whole files: from opening on; CPU: cores that this process used, all of the row together"
        )
    }
}
