//! Deltas: speed of finding differences, and their savings.
//!
//! Hashing alternates with `memcpy`, on buffers beyond four times the last cache. Then each strategy saves two computing programs again and again;
//! the report gives the stored bytes and the time per checkpoint.

pub(crate) mod programs;
mod report;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use store::Directory;
use store::delta::{DeltaOptions, DeltaWriter, Making, Rules, Series, Signature, Strategy};
use store::packets::{Compression, Sink};
use store::storage::StorageError;

use crate::error::BenchError;
use crate::machine::{Busy, Machine, pin};
use crate::parity::last_level_cache_bytes;
use crate::progress::Steps;
use crate::statistics::{Summary, paired_ratios};
use programs::{Multiplication, Program, Relaxation};
pub use report::{DeltaReport, RateRow, SeriesRow};

/// Settings of the delta benchmark.
#[derive(Clone, Debug)]
pub struct DeltaBenchOptions {
    /// Runs of each rate.
    pub runs: usize,
    /// Lengths of blocks, bytes.
    pub block_bytes: Vec<u32>,
    /// Checkpoints of each series after the first, full one.
    pub checkpoints: usize,
    /// Rows and columns of the matrices, and rows that are computed between two checkpoints.
    pub matrix: (usize, usize),
    /// Points of the grid in each direction.
    pub grid: usize,
    /// Buffers are more than so many times as long as the last cache.
    pub caches: usize,
    /// Where series are written.
    pub folder: PathBuf,
}

impl Default for DeltaBenchOptions {
    fn default() -> DeltaBenchOptions {
        DeltaBenchOptions {
            runs: 9,
            block_bytes: vec![512, 1024, 4096, 16 << 10, 64 << 10],
            checkpoints: 10,
            matrix: (1024, 4),
            grid: 64,
            caches: 4,
            folder: std::env::temp_dir(),
        }
    }
}

/// The block that the bars are about.
const BLOCK_BYTES: u32 = 4096;

/// Buffers are at least so long.
const BUFFER_BYTES_MIN: usize = 16 << 20;
/// Assumed if the system does not report the last cache.
const CACHE_BYTES: usize = 32 << 20;

struct Nowhere;

impl Sink for Nowhere {
    fn put(&mut self, _: &[u8]) -> Result<(), StorageError> {
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &DeltaBenchOptions) -> Result<DeltaReport, BenchError> {
    let machine = Machine::here();
    pin(0);
    let buffer_bytes =
        (last_level_cache_bytes().unwrap_or(CACHE_BYTES) * options.caches * 5 / 4).max(BUFFER_BYTES_MIN);
    let steps = Steps::new("delta", options.block_bytes.len() + 3);
    let rates = rates(options, buffer_bytes, &steps)?;
    steps.step(format_args!("a matrix multiplication, saved {} times in each way", options.checkpoints + 1));
    let mut series = saved(Multiplication::new(options.matrix.0, options.matrix.1, 0), options)?;
    steps.step(format_args!("a relaxation, saved {} times in each way", options.checkpoints + 1));
    series.extend(saved(Relaxation::new(options.grid, 0), options)?);
    Ok(DeltaReport::new(machine, buffer_bytes, rates, series))
}

fn rates(options: &DeltaBenchOptions, bytes: usize, steps: &Steps) -> Result<Vec<RateRow>, BenchError> {
    let mut state = 1u64;
    let mut words = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state
    };
    let from: Vec<u8> = (0..bytes / 8).flat_map(|_| words().to_le_bytes()).collect();
    let mut to = vec![1u8; from.len()];
    let mut rows = Vec::new();
    let mut measure = |what, block_bytes, ours: &mut dyn FnMut() -> Result<(), BenchError>| {
        let (mut own, mut copies) = (Vec::new(), Vec::new());
        let busy = Busy::begin();
        #[expect(clippy::cast_precision_loss, reason = "a length")]
        let rate = |began: Instant| bytes as f64 / began.elapsed().as_secs_f64() / 1e9;
        for _ in 0..=options.runs {
            let began = Instant::now();
            to.copy_from_slice(&from);
            std::hint::black_box(&mut to);
            copies.push(rate(began));
            let began = Instant::now();
            ours()?;
            own.push(rate(began));
        }
        // The first of each finds caches and pages as others left them.
        let (own, copies) = (&own[1..], &copies[1..]);
        rows.push(RateRow {
            what,
            block_bytes,
            gbytes_per_s: Summary::of(own),
            memcpy_gbytes_per_s: Summary::of(copies),
            ratio_to_memcpy: Summary::of(&paired_ratios(own, copies)).median,
            processor: busy.end(),
        });
        Ok::<(), BenchError>(())
    };
    for block_bytes in &options.block_bytes {
        steps.step(format_args!("hashing blocks of {block_bytes} bytes"));
        measure("hash", *block_bytes, &mut || {
            std::hint::black_box(sign(&from, *block_bytes)?);
            Ok(())
        })?;
    }
    steps.step(format_args!("a delta of what has not changed"));
    let base = Arc::new(sign(&from, BLOCK_BYTES)?);
    measure("delta of nothing", BLOCK_BYTES, &mut || {
        let options = DeltaOptions { base: Some(Arc::clone(&base)), ..DeltaOptions::default() };
        let mut writer = DeltaWriter::begin(&mut Nowhere, BLOCK_BYTES, 1, options)?;
        for (place, block) in (0..).zip(from.chunks(BLOCK_BYTES as usize)) {
            writer.push(&mut Nowhere, place, block)?;
        }
        std::hint::black_box(writer.finish(&mut Nowhere, 0, 0, false)?);
        Ok(())
    })?;
    Ok(rows)
}

fn sign(content: &[u8], block_bytes: u32) -> Result<Signature, BenchError> {
    let mut signature = Signature::new(block_bytes, 1);
    for (place, block) in (0..).zip(content.chunks(block_bytes as usize)) {
        signature.push(place, block)?;
    }
    Ok(signature)
}

/// A way to save.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    strategy: Strategy,
    compression: Compression,
    /// The delta gets the blocks that the program has written.
    gets_written_blocks: bool,
}

const WAYS: [Way; 7] = {
    let plain = Compression::None;
    let adaptive = Strategy::Adaptive { threshold: 2.0 };
    [
        Way { name: "full", strategy: Strategy::Full, compression: plain, gets_written_blocks: false },
        Way {
            name: "incremental",
            strategy: Strategy::Incremental,
            compression: plain,
            gets_written_blocks: false,
        },
        Way {
            name: "differential",
            strategy: Strategy::Differential,
            compression: plain,
            gets_written_blocks: false,
        },
        Way { name: "adaptive", strategy: adaptive, compression: plain, gets_written_blocks: false },
        Way { name: "adaptive, told", strategy: adaptive, compression: plain, gets_written_blocks: true },
        Way {
            name: "full, packed",
            strategy: Strategy::Full,
            compression: Compression::Auto,
            gets_written_blocks: false,
        },
        Way {
            name: "adaptive, packed",
            strategy: adaptive,
            compression: Compression::Auto,
            gets_written_blocks: false,
        },
    ]
};

/// Saves the program after each of its steps in all ways, side by side.
fn saved(mut program: impl Program, options: &DeltaBenchOptions) -> Result<Vec<SeriesRow>, BenchError> {
    let scratch = Scratch::new(&options.folder)?;
    let mut content = Vec::new();
    let mut rows: Vec<SeriesRow> = WAYS.iter().map(|way| SeriesRow::new(program.name(), way.name)).collect();
    for checkpoint in 0..=options.checkpoints {
        if checkpoint > 0 {
            program.step();
        }
        program.content(&mut content);
        let written = written_blocks(&program);
        for (way, row) in WAYS.iter().zip(&mut rows) {
            row.content_bytes = content.len() as u64;
            add(&scratch, way, &content, &written, row)?;
        }
    }
    for (way, row) in WAYS.iter().zip(&mut rows) {
        restore(&scratch, way, &content, row)?;
    }
    Ok(rows)
}

/// Of each block, whether the last step has written in it.
fn written_blocks(program: &impl Program) -> Vec<bool> {
    let mut written = Vec::new();
    let mut offset = 0;
    for (array, part) in program.arrays().iter().zip(program.written()) {
        let end = offset + array.len() * 8;
        written.resize(end.div_ceil(BLOCK_BYTES as usize), false);
        if !part.is_empty() {
            let (first, last) = (offset + part.start * 8, offset + part.end * 8 - 1);
            written[first / BLOCK_BYTES as usize..=last / BLOCK_BYTES as usize].fill(true);
        }
        offset = end;
    }
    written
}

fn open(scratch: &Scratch, way: &Way) -> Result<Series<Directory>, BenchError> {
    let directory = Directory::create(scratch.path.join(way.name)).map_err(store::StoreError::from)?;
    Ok(Series::open(directory, "", Rules { strategy: way.strategy, files_max: 64 }, None)?)
}

fn add(
    scratch: &Scratch,
    way: &Way,
    content: &[u8],
    written: &[bool],
    row: &mut SeriesRow,
) -> Result<(), BenchError> {
    let mut series = open(scratch, way)?;
    let before = series.newest();
    let (began, busy) = (Instant::now(), Busy::begin());
    let making = Making { block_bytes: BLOCK_BYTES, seed: 1, compression: way.compression, salt: [0; 24] };
    let mut adding = series.begin(&making)?;
    for (place, block) in (0u64..).zip(content.chunks(BLOCK_BYTES as usize)) {
        let is_written = usize::try_from(place).is_ok_and(|place| written[place]);
        if let (true, false, Some(before)) = (way.gets_written_blocks, is_written, before)
            && adding.unwritten(place, before)?
        {
            continue;
        }
        adding.push(place, block)?;
    }
    let summary = adding.finish()?;
    if before.is_some() {
        row.make_ms.push(began.elapsed().as_secs_f64() * 1e3);
        row.cores_used.push(busy.end().cores_used);
        row.stored_bytes.push(summary.stored_bytes);
    }
    Ok(())
}

fn restore(scratch: &Scratch, way: &Way, content: &[u8], row: &mut SeriesRow) -> Result<(), BenchError> {
    let series = open(scratch, way)?;
    let newest = series.newest().unwrap_or(0);
    let directory = Directory::open(scratch.path.join(way.name)).map_err(store::StoreError::from)?;
    let began = Instant::now();
    let chain = series.chain(newest, |path| directory.open_file(path))?;
    let restored = Mutex::new(vec![0; content.len()]);
    chain.restore(NonZeroUsize::MIN, |place, blocks| {
        let offset = usize::try_from(place).unwrap_or(usize::MAX) * BLOCK_BYTES as usize;
        let mut restored = restored.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        restored[offset..offset + blocks.len()].copy_from_slice(blocks);
        Ok(())
    })?;
    row.restore_ms = began.elapsed().as_secs_f64() * 1e3;
    row.files = chain.files();
    row.is_right = restored.into_inner().is_ok_and(|restored| restored == content);
    Ok(())
}

/// A folder that goes with this.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new(folder: &std::path::Path) -> Result<Scratch, BenchError> {
        let path = folder.join(format!("stillwire-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| BenchError::Write { path: path.clone(), error })?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
