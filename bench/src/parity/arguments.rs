//! Arguments of the parity benchmark, as written on a command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use protector::{Limits, Shape};
use store::protect::Scheme;
use transport::config::RAILS_MAX;

use super::{Dirty, GroupOptions, ParityOptions, ProgramKind, ProgramOptions};
use console::{number, positive};

/// Most runs of one row.
const RUNS_MAX: u64 = 100_000;

/// Most cores that a protector can be allowed: more than its threads can use.
const CORES_MAX: f64 = 64.0;

/// Arguments of the parity benchmark.
#[derive(Args, Clone, Debug)]
pub struct ParityArguments {
    /// Runs of each row, and of the copies beside them [default: 15; 3 from end to end]
    #[arg(long, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: Option<usize>,
    /// MiB of data, or of a node's image [default: five last-level caches; 64 from end to end, 24 of programs]
    #[arg(long, value_delimiter = ',', value_parser = number::<usize>(1..=1 << 20))]
    mib: Vec<usize>,
    /// Intel's storage library, to be measured beside, such as libisal.so.2
    #[arg(long, value_name = "LIBRARY", conflicts_with = "nodes")]
    isal: Option<PathBuf>,
    /// Measure encoding from end to end, by so many nodes, a protector each
    #[arg(long, value_delimiter = ',', value_parser = number::<usize>(2..=64))]
    nodes: Vec<usize>,
    /// How the nodes protect each other: partner, xor, rs:K+M (of which M counts) [default: xor]
    #[arg(long, requires = "nodes", default_value = "xor")]
    scheme: Scheme,
    /// Ways that parity takes: pipeline, ring, broadcast, fan-in, auto (by the cost model), all of them
    #[arg(long, requires = "nodes", value_delimiter = ',', default_value = "auto")]
    shape: Vec<String>,
    /// Changes since the last image: `whole`, an image without a predecessor, or percent of the pages, in place of earlier ones
    #[arg(
        long,
        requires = "nodes",
        value_delimiter = ',',
        default_value = "whole",
        allow_negative_numbers = true
    )]
    dirty: Vec<Dirty>,
    /// Protect checkpoints of these programs instead, whole ones and incremental ones: mat, lu
    #[arg(long, requires = "nodes", value_delimiter = ',', conflicts_with_all = ["dirty", "runs"])]
    program: Vec<ProgramKind>,
    /// Take checkpoints of real jobs instead, each node with a keeper and a rank, and report when they are written,
    /// protected and committed
    #[arg(long, requires = "nodes", conflicts_with_all = ["program", "rails", "delay_ms"])]
    job: bool,
    /// Take those of jobs with encrypted images (`run --encrypt`) as well, in turns
    #[arg(long, requires = "job")]
    encrypt: bool,
    /// Checkpoints of each program after the first
    #[arg(long, requires = "program", default_value_t = ProgramOptions::default().checkpoints, value_parser = number::<usize>(1..=CHECKPOINTS_MAX))]
    checkpoints: usize,
    /// Rails that each node has, each an address of its own on the loopback interface
    #[arg(long, requires = "nodes", value_delimiter = ',', default_value = "1", value_parser = number::<usize>(1..=RAILS_MAX as u64))]
    rails: Vec<usize>,
    /// For how many milliseconds each frame is held back on its way: the distance of the nodes
    #[arg(long, requires = "nodes", value_delimiter = ',', default_value = "0", conflicts_with = "program", value_parser = number::<usize>(0..=DELAY_MS_MAX))]
    delay_ms: Vec<usize>,
    /// The rate of each rail of a node in each direction, such as 50MB/s: the limit is on all rails of a node together, so many times as much
    #[arg(long, requires = "nodes")]
    link: Option<Rate>,
    /// The rate of each node's disk, such as 50MB/s
    #[arg(long, requires = "nodes")]
    disk: Option<Rate>,
    /// Cores that each node's protector may use, such as 0.25
    #[arg(long, requires = "nodes", allow_negative_numbers = true, value_parser = positive(CORES_MAX))]
    budget: Option<f64>,
    /// Where the nodes' directories are [default: the folder for temporary files]
    #[arg(long, requires = "nodes")]
    folder: Option<PathBuf>,
    /// One run of each row with small images: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["runs", "mib", "checkpoints"])]
    pub(crate) quick: bool,
    /// Write a chart
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// MiB of a node's image, and checkpoints of a program, where figures may be rough.
const QUICK_MIB: usize = 2;
const QUICK_CHECKPOINTS: usize = 2;

/// Most checkpoints of a program.
const CHECKPOINTS_MAX: u64 = 1000;

/// Longest time that a frame is held back: around the world.
const DELAY_MS_MAX: u64 = 1000;

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate(u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let units = [("GB/s", 1_000_000_000), ("MB/s", 1_000_000), ("kB/s", 1000)];
        let found = units.into_iter().find_map(|(unit, factor)| {
            let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            number.checked_mul(factor).filter(|rate| *rate > 0)
        });
        found
            .map(Rate)
            .ok_or_else(|| format!("`{text}` is no rate; write it such as 50MB/s (kB/s, MB/s, GB/s)"))
    }
}

impl ParityArguments {
    /// Arithmetic alone.
    pub(crate) fn arithmetic(&self) -> ParityOptions {
        let defaults = ParityOptions::default();
        if self.quick {
            return ParityOptions { isal: self.isal.clone(), ..ParityOptions::quick() };
        }
        ParityOptions {
            runs: self.runs.unwrap_or(defaults.runs),
            bytes: self.mib.first().map(|mib| mib << 20),
            isal: self.isal.clone(),
            ..defaults
        }
    }

    /// From end to end with programs, if they were named.
    pub(crate) fn programs(&self) -> Result<Option<ProgramOptions>, protector::NoSuchShape> {
        let defaults = ProgramOptions::default();
        let Some(mut group) = self.group()?.filter(|_| !self.program.is_empty()) else { return Ok(None) };
        if self.mib.is_empty() && !self.quick {
            group.bytes = defaults.group.bytes;
        }
        let checkpoints = if self.quick { QUICK_CHECKPOINTS } else { self.checkpoints };
        Ok(Some(ProgramOptions { group, programs: self.program.clone(), checkpoints }))
    }

    /// Of jobs, if those were asked for.
    pub(crate) fn jobs(&self) -> Result<Option<GroupOptions>, protector::NoSuchShape> {
        Ok(self.group()?.filter(|_| self.job))
    }

    /// From end to end, if nodes were named.
    pub(crate) fn group(&self) -> Result<Option<GroupOptions>, protector::NoSuchShape> {
        if self.nodes.is_empty() {
            return Ok(None);
        }
        let mut shapes = Vec::new();
        for name in &self.shape {
            match name.as_str() {
                "auto" => shapes.push(None),
                "all" => shapes.extend(Shape::ALL.map(Some)),
                name => shapes.push(Some(name.parse()?)),
            }
        }
        let mib = match (&self.mib[..], self.quick) {
            ([], true) => &[QUICK_MIB][..],
            ([], false) => &[64],
            (named, _) => named,
        };
        Ok(Some(GroupOptions {
            nodes: self.nodes.clone(),
            scheme: self.scheme,
            shapes,
            bytes: mib.iter().map(|mib| mib << 20).collect(),
            dirty: self.dirty.clone(),
            rails: self.rails.clone(),
            delays: self.delay_ms.iter().map(|ms| Duration::from_millis(*ms as u64)).collect(),
            limits: Limits {
                link_bytes_per_s: self.link.map(|rate| rate.0),
                disk_bytes_per_s: self.disk.map(|rate| rate.0),
                cores: self.budget,
            },
            runs: self.runs.unwrap_or(if self.quick { 1 } else { 3 }),
            encrypt: self.encrypt,
            folder: self.folder.clone().unwrap_or_else(std::env::temp_dir),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!(
            ["50MB/s", "1GB/s", "7 kB/s"].map(|text| text.parse()),
            [Ok(Rate(50_000_000)), Ok(Rate(1_000_000_000)), Ok(Rate(7000))]
        );
        for text in ["50", "0MB/s", "MB/s", "-1MB/s", "50MB"] {
            assert!(text.parse::<Rate>().expect_err(text).contains("50MB/s"));
        }
    }
}
