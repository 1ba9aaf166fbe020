//! Flags of the benches of deltas and packets.

use std::path::PathBuf;

use clap::Args;

use super::RUNS_MAX;
use crate::delta::DeltaBenchOptions;
use crate::packets::StoreOptions;
use console::number;

/// Checkpoints of a series, and MiB of one.
const CHECKPOINTS_MAX: u64 = 1000;
const CHECKPOINT_MIB_MAX: u64 = 16 << 10;

/// Arguments of the delta benchmark.
#[derive(Args, Clone, Debug)]
pub struct DeltaArguments {
    /// Runs of each rate
    #[arg(long, default_value_t = DeltaBenchOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Checkpoints of each series after the first
    #[arg(long, default_value_t = DeltaBenchOptions::default().checkpoints, value_parser = number::<usize>(1..=CHECKPOINTS_MAX))]
    checkpoints: usize,
    /// Small programs and buffers: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["runs", "checkpoints"])]
    pub(super) quick: bool,
    /// Where checkpoints are written [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Write a chart
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}

impl From<&DeltaArguments> for DeltaBenchOptions {
    fn from(arguments: &DeltaArguments) -> DeltaBenchOptions {
        let defaults = DeltaBenchOptions::default();
        let folder = arguments.folder.clone().unwrap_or(defaults.folder.clone());
        if arguments.quick {
            return DeltaBenchOptions { folder, ..quick_delta() };
        }
        DeltaBenchOptions { runs: arguments.runs, checkpoints: arguments.checkpoints, folder, ..defaults }
    }
}

pub(super) fn quick_delta() -> DeltaBenchOptions {
    let defaults = DeltaBenchOptions::default();
    DeltaBenchOptions { runs: 2, checkpoints: 4, matrix: (128, 4), grid: 12, caches: 0, ..defaults }
}

/// Arguments of the packet store benchmark.
#[derive(Args, Clone, Debug)]
pub struct StoreArguments {
    /// Runs of each figure
    #[arg(long, default_value_t = StoreOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// MiB of a checkpoint
    #[arg(long, value_delimiter = ',', default_values_t = StoreOptions::default().bytes.iter().map(|bytes| bytes >> 20), value_parser = number::<usize>(1..=CHECKPOINT_MIB_MAX))]
    mib: Vec<usize>,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["runs", "mib"])]
    pub(super) quick: bool,
    /// Where checkpoints are written [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Write a chart
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}

impl From<&StoreArguments> for StoreOptions {
    fn from(arguments: &StoreArguments) -> StoreOptions {
        let defaults = StoreOptions::default();
        let bytes = arguments.mib.iter().map(|mib| mib << 20).collect();
        let folder = arguments.folder.clone().unwrap_or(defaults.folder);
        if arguments.quick {
            return StoreOptions { folder, ..quick_store() };
        }
        StoreOptions { runs: arguments.runs, bytes, folder }
    }
}

pub(super) fn quick_store() -> StoreOptions {
    StoreOptions { runs: 1, bytes: vec![2 << 20], ..StoreOptions::default() }
}
