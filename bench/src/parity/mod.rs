//! The arithmetic of parity against plain copies of memory, on one core; and encoding from end to end ([`run_group`]), also of
//! programs whose checkpoints are incremental ([`run_programs`]), and of jobs of `stillwire run` ([`run_jobs`]).
//!
//! Of the arithmetic: one thread, bound to a processor. Each row does one operation over data that is larger than four
//! of the machine's last-level caches, in turns with a plain copy of as many bytes, so that both come from memory and
//! go there. The figure is bytes of the sources by time: of the added slices, of the K data slices, of the old and new
//! bytes of an update.

mod arguments;
mod changes;
mod cluster;
mod figures;
mod group;
mod group_report;
mod isal;
mod job;
mod job_report;
mod launched;
mod memory;
mod program_report;
mod programs;
mod report;

use std::path::PathBuf;
use std::time::Instant;

use ::parity::{Code, Kernel, Matrix};
use reed_solomon_simd::ReedSolomonEncoder;

use crate::error::BenchError;
use crate::machine::{self, Busy, Machine};
use crate::progress::Steps;
use crate::statistics::{Summary, paired_ratios};
use isal::{Isal, Tables};

pub use arguments::ParityArguments;
pub use figures::{group_figures, program_figures};
pub use group::{Dirty, GroupOptions, run as run_group};
pub use group_report::{GroupReport, GroupRow};
pub use job::run as run_jobs;
pub use job_report::{JobReport, JobRow};
pub use program_report::{ProgramReport, ProgramRow, ProgramTotal};
pub use programs::{ProgramKind, ProgramOptions, run as run_programs};
pub use report::{ParityReport, ParityRow};

/// How many times the data is larger than the last-level cache: more than four.
const CACHES: usize = 5;

/// Assumed where the system does not report the size of its caches.
const CACHE_BYTES_ASSUMED: usize = 64 << 20;

/// Length of a shard that the crate reed-solomon-simd gets at once: it copies its input, so it is given pieces that stay in the cache.
const PIECE_BYTES: usize = 16 << 10;

/// Settings of the parity benchmark.
#[derive(Clone, Debug)]
pub struct ParityOptions {
    /// Runs of each row, and of the copies beside them.
    pub runs: usize,
    /// Bytes of data; `None`: more than four last-level caches.
    pub bytes: Option<usize>,
    /// Shapes K+M of codes.
    pub shapes: Vec<(usize, usize)>,
    /// Intel's storage library, to be measured beside.
    pub isal: Option<PathBuf>,
}

impl Default for ParityOptions {
    fn default() -> ParityOptions {
        ParityOptions {
            runs: 15,
            bytes: None,
            shapes: vec![(3, 1), (4, 2), (8, 2), (8, 4), (32, 2)],
            isal: None,
        }
    }
}

impl ParityOptions {
    /// Two runs of each row over a MiB, which caches hold: rough figures.
    #[must_use]
    pub fn quick() -> ParityOptions {
        ParityOptions { runs: 2, bytes: Some(1 << 20), ..ParityOptions::default() }
    }
}

/// The work of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Adds one slice to another, as a member of a ring of exclusive ors does with each block.
    Xor,
    /// Adds one slice, multiplied by a constant, to another, as a member of a pipeline does.
    MultiplyAdd,
    /// Computes M parity slices from K data slices.
    Encode,
    /// Changes M parity slices as data changes.
    Update,
}

impl Work {
    fn shape(self) -> &'static str {
        match self {
            Work::Xor | Work::MultiplyAdd => "add",
            Work::Encode => "encode",
            Work::Update => "update",
        }
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a library cannot be loaded, or computes something else.
pub fn run(options: &ParityOptions) -> Result<ParityReport, BenchError> {
    let machine = Machine::here();
    machine::pin(0);
    let isal = options.isal.as_deref().map(Isal::load).transpose()?;
    let cache_bytes = last_level_cache_bytes();
    let bytes = options.bytes.unwrap_or(CACHES * cache_bytes.unwrap_or(CACHE_BYTES_ASSUMED));
    let mut buffers = Buffers::new(bytes);
    let mut rows = Vec::new();
    let steps = Steps::new("parity", 4 + options.shapes.len());
    let (one, two) = (Code::new(3, 1)?, Code::new(4, 2)?);
    for (work, code) in
        [(Work::Xor, &two), (Work::MultiplyAdd, &two), (Work::Update, &one), (Work::Update, &two)]
    {
        steps.step(format_args!("{}", work.shape()));
        rows.push(row(options, isal, &mut buffers, work, code)?);
    }
    for (data, parity) in &options.shapes {
        steps.step(format_args!("encode {data}+{parity}"));
        rows.push(row(options, isal, &mut buffers, Work::Encode, &Code::new(*data, *parity)?)?);
    }
    Ok(ParityReport::new(machine, Kernel::best().name(), cache_bytes, rows))
}

/// Buffers shared by all rows.
struct Buffers {
    data: Vec<u8>,
    /// Where copies go.
    copy: Vec<u8>,
    parity: Vec<u8>,
    expected: Vec<u8>,
}

impl Buffers {
    fn new(bytes: usize) -> Buffers {
        let mut state = 1u64;
        let mut words = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_le_bytes()
        };
        let mut random = || (0..bytes.div_ceil(8)).flat_map(|_| words()).take(bytes).collect::<Vec<u8>>();
        Buffers { data: random(), copy: vec![1; bytes], parity: vec![1; bytes], expected: vec![1; bytes] }
    }
}

fn row(
    options: &ParityOptions,
    isal: Option<Isal>,
    buffers: &mut Buffers,
    work: Work,
    code: &Code,
) -> Result<ParityRow, BenchError> {
    let bytes = buffers.data.len();
    let tables = isal.map(|isal| isal.tables(code.matrix()));
    let slices = if work == Work::Encode { code.data() } else { 2 };
    let slice_bytes = (bytes / slices) & !63;
    let simd = (work == Work::Encode && code.parity() > 1)
        .then(|| ReedSolomonEncoder::new(code.data(), code.parity(), PIECE_BYTES.min(slice_bytes)));
    let mut simd = simd.transpose().expect("it has every shape that our code has");
    let (mut ours, mut copies, mut by_isal, mut by_simd) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let busy = Busy::begin();
    // The first round warms up.
    for round in 0..=options.runs {
        let copy = timed(bytes, || buffers.copy.copy_from_slice(&buffers.data));
        let done = timed(bytes, || ours_once(work, code, slice_bytes, buffers));
        if round > 0 {
            copies.push(copy);
            ours.push(done);
        }
        if let Some(tables) = &tables {
            let done = timed(bytes, || isal_once(work, tables, code, slice_bytes, buffers));
            by_isal.extend((round > 0).then_some(done));
        }
        if let Some(simd) = &mut simd {
            let done = timed(bytes, || simd_once(simd, code, slice_bytes, buffers));
            by_simd.extend((round > 0).then_some(done));
        }
    }
    copies.push(timed(bytes, || buffers.copy.copy_from_slice(&buffers.data)));
    if tables.is_some() && buffers.parity != buffers.expected {
        return Err(BenchError::Library {
            path: options.isal.clone().unwrap_or_default(),
            what: format!("its parity of {}+{} is another one", code.data(), code.parity()),
        });
    }
    let ratios = Summary::of(&paired_ratios(&ours, &copies));
    let median = |values: &[f64]| (!values.is_empty()).then(|| Summary::of(values).median);
    let gbytes_per_s = Summary::of(&ours).median;
    Ok(ParityRow {
        nodes: (work == Work::Encode).then(|| code.data() + code.parity()),
        scheme: match work {
            Work::Xor => "xor".to_owned(),
            Work::MultiplyAdd => "rs".to_owned(),
            Work::Update | Work::Encode => format!("rs:{}+{}", code.data(), code.parity()),
        },
        shape: work.shape(),
        bytes,
        gbytes_per_s,
        memcpy_gbytes_per_s: Summary::of(&copies).median,
        ratio_to_memcpy: ratios.median,
        ratio_spread: ratios,
        link_gbytes_per_s: None,
        disk_gbytes_per_s: None,
        isal_gbytes_per_s: median(&by_isal),
        ratio_to_isal: (!by_isal.is_empty()).then(|| Summary::of(&paired_ratios(&ours, &by_isal)).median),
        reed_solomon_simd_gbytes_per_s: median(&by_simd),
        processor: busy.end(),
    })
}

/// Data before an update, and after it.
fn halves(data: &[u8], slice_bytes: usize) -> (&[u8], &[u8]) {
    (&data[..slice_bytes], &data[slice_bytes..2 * slice_bytes])
}

/// Gigabytes per second.
fn timed(bytes: usize, work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let bytes = bytes as f64;
    bytes / started.elapsed().as_secs_f64() / 1e9
}

fn ours_once(work: Work, code: &Code, slice_bytes: usize, buffers: &mut Buffers) {
    let kernel = Kernel::best();
    let Buffers { data, parity, .. } = buffers;
    match work {
        Work::Xor | Work::MultiplyAdd => {
            let factor = code.matrix().get(usize::from(work == Work::MultiplyAdd), 1);
            kernel.multiply_add(&Matrix::from_fn(1, 1, |_, _| factor), &[data], &mut [parity]);
        }
        Work::Update => {
            let (before, after) = halves(data, slice_bytes);
            let mut parity: Vec<&mut [u8]> =
                parity.chunks_exact_mut(slice_bytes).take(code.parity()).collect();
            code.update(kernel, 1, before, after, &mut parity);
        }
        Work::Encode => {
            let data: Vec<&[u8]> = data.chunks_exact(slice_bytes).take(code.data()).collect();
            let mut parity: Vec<&mut [u8]> =
                parity.chunks_exact_mut(slice_bytes).take(code.parity()).collect();
            code.encode(kernel, &data, &mut parity);
        }
    }
}

fn isal_once(work: Work, tables: &Tables, code: &Code, slice_bytes: usize, buffers: &mut Buffers) {
    let Buffers { data, expected, .. } = buffers;
    match work {
        Work::Xor | Work::MultiplyAdd => {
            let factor = code.matrix().get(usize::from(work == Work::MultiplyAdd), 1);
            tables.one(factor).update(0, data, &mut [expected]);
        }
        Work::Update => {
            let (before, after) = halves(data, slice_bytes);
            let mut parity: Vec<&mut [u8]> =
                expected.chunks_exact_mut(slice_bytes).take(code.parity()).collect();
            tables.update(1, before, &mut parity);
            tables.update(1, after, &mut parity);
        }
        Work::Encode => {
            let data: Vec<&[u8]> = data.chunks_exact(slice_bytes).take(code.data()).collect();
            let mut parity: Vec<&mut [u8]> =
                expected.chunks_exact_mut(slice_bytes).take(code.parity()).collect();
            tables.encode(&data, &mut parity);
        }
    }
}

/// The crate copies its input, and its parity is another one (it computes with 16 bits), so there is nothing to compare.
fn simd_once(encoder: &mut ReedSolomonEncoder, code: &Code, slice_bytes: usize, buffers: &mut Buffers) {
    let piece = PIECE_BYTES.min(slice_bytes);
    for at in (0..slice_bytes / piece).map(|i| i * piece) {
        for slice in buffers.data.chunks_exact(slice_bytes).take(code.data()) {
            encoder
                .add_original_shard(&slice[at..at + piece])
                .expect("a shard of the length that was announced");
        }
        let result = encoder.encode().expect("all shards are there");
        for (slice, shard) in buffers.copy.chunks_exact_mut(slice_bytes).zip(result.recovery_iter()) {
            slice[at..at + piece].copy_from_slice(shard);
        }
    }
}

/// Bytes of the largest cache that the first processor can use, as the system reports it.
pub(crate) fn last_level_cache_bytes() -> Option<usize> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    caches.filter_map(size).max()
}
