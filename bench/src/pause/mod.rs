//! The pause of a process that is saved as a whole, against a bare fork of the same process, and against CRIU.
//!
//! A process has so much memory, a thread that computes, one that waits, and a port with a helper thread and eight links, each with 32 unacknowledged
//! frames. It captures itself as the agent of a saved program does. For each sample it is captured whole, writes to a share of its pages, spread over
//! all of them, and is captured again. Bare forks of the same process come before, between and after, each after the look that comes before a
//! capture. Pauses alone are timed: from the freeze of the port until all threads could go on and the port is thawed. The output of a forked child is
//! discarded, and the child is ended at once.
//!
//! * first: the whole image, by a fork; arming comes before it and is timed apart;
//! * pause: the next image, the way that takes less time, as the agent chooses: a copy of pages written since, or a
//!   fork;
//! * freeze, dump, thaw: of the port; stop: until all threads stand still; state: the kernel's knowledge of them, files, timers; memory: copy or
//!   fork;
//! * restart: both images are written to files; the time from the start of a new process until it is the old one and has touched all of its memory.
//!   The files may be in the page cache;
//! * CRIU, if it is named: how long `criu dump --leave-running` says that it kept such a process frozen, in turns with the samples;
//! * overhead: a program that writes to its working set again and again, with a checkpoint that is written to files meanwhile, and without, in turns.
//!   The cost of a checkpoint, spread over an interval, is the overhead at that interval: of a whole image, arming included, of the next one, and of
//!   one by content;
//! * sequence: minutes of checkpoints as users take them, see `sequence`.
//!
//! The process that is restarted or works has no port: `bench/mpi/recovery` times ports that come back. Where there is not enough memory for a
//! process of that length, its images and its restored life, it is left out, which the report says.

mod criu;
mod port;
mod report;
mod sequence;
mod system;
mod worker;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::pair::Address;
use crate::progress::Steps;
use crate::statistics::{paired_ratios, percentile, sorted};
use crate::worker::Worker;
pub use report::{Overhead, PauseReport, PauseRow};
pub use sequence::{Sequence, Working};
use worker::{Answer, Checkpoint, Sample, WorkerCommand};
pub(crate) use worker::{RESTORED, ROLE, restore, work};

/// Share of memory that the program writes to while the overhead is measured.
const WORKING_FRACTION: f64 = 0.05;

/// Intervals between checkpoints for which the overhead is reported, s.
const INTERVALS_S: [f64; 3] = [1.0, 10.0, 60.0];

/// How long the program works in one turn, s.
const TURN_S: f64 = 1.5;

/// Settings of the pause benchmark.
#[derive(Clone, Debug)]
pub struct PauseOptions {
    /// Samples per row.
    pub samples: usize,
    /// Bytes of the process's memory.
    pub bytes: Vec<u64>,
    /// Shares of pages that are written between two images.
    pub fractions: Vec<f64>,
    /// Small pages, huge pages, or both.
    pub huge: Vec<bool>,
    /// CRIU.
    pub criu: Option<PathBuf>,
    /// Turns with a checkpoint and without, for the overhead; 0: it is not measured.
    pub turns: usize,
    /// Turns with a checkpoint in a sequence, each beside turns without; 0: there is none.
    pub pairs: usize,
    /// Where its program writes.
    pub writes: Vec<Working>,
    /// Bytes of the memory of its processes.
    pub sequence_bytes: u64,
    /// From one checkpoint of a sequence to the next.
    pub interval: Duration,
    /// Where images are written.
    pub folder: PathBuf,
}

impl Default for PauseOptions {
    fn default() -> PauseOptions {
        PauseOptions {
            samples: 30,
            bytes: vec![64 << 20, 1 << 30, 4 << 30],
            fractions: vec![0.001, 0.01, 0.1, 1.0],
            huge: vec![false, true],
            criu: None,
            turns: 5,
            pairs: 6,
            writes: vec![Working::Same, Working::Others],
            sequence_bytes: report::LARGE_BYTES,
            interval: Duration::from_secs(10),
            folder: std::env::temp_dir(),
        }
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a capture or a restore fails.
pub fn run(options: &PauseOptions) -> Result<PauseReport, BenchError> {
    let machine = Machine::here();
    let folder = options.folder.join(format!("stillwire-bench-pause-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = measure(options, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    Ok(PauseReport::new(machine, measured?))
}

/// Measurements in their order.
#[derive(Default)]
struct Found {
    rows: Vec<PauseRow>,
    overhead: Vec<Overhead>,
    sequences: Vec<Sequence>,
    skipped: Vec<String>,
}

/// Bytes that have to be available for a process of that length: itself, with CRIU another one, its images, its restored life.
fn needed_bytes(bytes: u64, with_criu: bool) -> u64 {
    const BESIDES: u64 = 1 << 30;
    (if with_criu { 4 } else { 3 }) * bytes + BESIDES
}

/// `MemAvailable` of `/proc/meminfo`.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Seconds that the steps take on some machine: an image for each sample, by far most of which are copies of memory; then turns of a known length.
fn weights(options: &PauseOptions) -> Vec<f64> {
    const SAMPLE_S: f64 = 0.05;
    const GIB_S: f64 = 0.5;
    let mut weights = Vec::new();
    for &bytes in &options.bytes {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let gib = bytes as f64 / f64::from(1 << 30);
        for _ in &options.huge {
            let samples = count(options.samples) * (SAMPLE_S + GIB_S * gib);
            weights.extend(options.fractions.iter().map(|_| samples));
            let turns = if options.turns > 0 { count(6 * options.turns + 2) * TURN_S } else { 0.0 };
            weights.push(turns + count(options.fractions.len()) * gib);
        }
    }
    let sequences = if options.pairs > 0 { options.writes.len() * options.huge.len() } else { 0 };
    let turns = sequence::turns(options.pairs);
    weights.extend(std::iter::repeat_n(count(turns) * options.interval.as_secs_f64(), sequences));
    weights
}

fn measure(options: &PauseOptions, folder: &Path) -> Result<Found, BenchError> {
    let progress = Steps::weighted("pause", weights(options));
    let mut found = Found::default();
    let silent = port::Silent::new()?;
    for &bytes in &options.bytes {
        for &huge in &options.huge {
            let (needed, available) = (needed_bytes(bytes, options.criu.is_some()), available_bytes());
            if needed > available {
                found.skipped.push(format!(
                    "{} MiB, {}: {} MiB of memory are needed, {} are available",
                    bytes >> 20,
                    pages(huge),
                    needed >> 20,
                    available >> 20
                ));
                progress.skip(options.fractions.len() + 1);
                continue;
            }
            let mut worker = begin(bytes, huge, &silent.addresses()?)?;
            // Another one of the same kind: CRIU refuses processes whose written pages are tracked.
            let for_criu =
                options.criu.as_ref().map(|criu| Ok::<_, BenchError>((criu, begin(bytes, huge, &[])?)));
            let for_criu = for_criu.transpose()?;
            let mut sampled = Vec::new();
            for &fraction in &options.fractions {
                let (mib, percent) = (bytes >> 20, fraction * 100.0);
                progress.step(format_args!("{mib} MiB of {} pages, {percent} % written", pages(huge)));
                let mut samples = Vec::new();
                let mut frozen_ms = Vec::new();
                for round in 0..options.samples {
                    samples.push(sample(&mut worker, fraction, round)?);
                    // It takes seconds, and hardly varies.
                    if let Some((criu, process)) = for_criu.as_ref().filter(|_| round % 10 == 0) {
                        frozen_ms.push(criu::frozen_ms(criu, process.pid(), folder)?);
                    }
                }
                sampled.push((fraction, samples, frozen_ms));
            }
            drop((worker, for_criu));
            progress.step(format_args!("{} MiB of {} pages, restored", bytes >> 20, pages(huge)));
            let mut worker = begin(bytes, huge, &[])?;
            for (fraction, samples, frozen_ms) in sampled {
                let restart_ms = restart(&mut worker, fraction, folder)?;
                found.rows.push(row((bytes, huge, fraction), &samples, frozen_ms, restart_ms));
            }
            if options.turns > 0 {
                found.overhead.push(cost(&mut worker, (bytes, huge), options.turns, folder)?);
            }
        }
    }
    for &huge in options.huge.iter().filter(|_| options.pairs > 0) {
        for &working in &options.writes {
            progress.step(format_args!("a sequence, {}, {working:?}", pages(huge)));
            let turns = (options.interval, options.pairs);
            found.sequences.push(sequence::run((options.sequence_bytes, huge), turns, working, folder)?);
        }
    }
    Ok(found)
}

/// A process to measure; with a port, if it has peers.
fn begin(bytes: u64, huge: bool, peers: &[Address]) -> Result<Worker, BenchError> {
    let mut worker = Worker::start(ROLE)?;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    worker.send(&WorkerCommand::Begin { bytes, huge, peers: peers.to_vec() })?;
    match worker.hear()? {
        Answer::Ready => Ok(worker),
        _ => Err(out_of_turn()),
    }
}

fn out_of_turn() -> BenchError {
    BenchError::Worker { role: ROLE, what: "answered something else" }
}

fn sample(worker: &mut Worker, fraction: f64, round: usize) -> Result<Sample, BenchError> {
    worker.send(&WorkerCommand::Sample { fraction, round })?;
    match worker.hear()? {
        Answer::Sampled(sample) => Ok(sample),
        _ => Err(out_of_turn()),
    }
}

/// Saves the process, and starts another one that becomes it. How long that takes, ms.
fn restart(worker: &mut Worker, fraction: f64, folder: &Path) -> Result<f64, BenchError> {
    let _ = std::fs::remove_file(folder.join("next.unchanged"));
    worker.send(&WorkerCommand::Save { fraction, folder: text(folder) })?;
    let Answer::Saved = worker.hear()? else { return Err(out_of_turn()) };
    worker.send(&WorkerCommand::Touch)?;
    let Answer::Touched { sum: wanted } = worker.hear()? else { return Err(out_of_turn()) };
    let began = Instant::now();
    let mut restored = Worker::start(RESTORED)?;
    restored.send(&text(folder))?;
    let Answer::Restored = restored.hear()? else { return Err(out_of_turn()) };
    restored.send(&WorkerCommand::Touch)?;
    let Answer::Touched { sum } = restored.hear()? else { return Err(out_of_turn()) };
    let took = began.elapsed();
    if sum != wanted {
        return Err(BenchError::Restore("its memory is not what it was".to_owned()));
    }
    Ok(took.as_secs_f64() * 1e3)
}

/// Measures the cost of checkpoints to a program that works.
fn cost(
    worker: &mut Worker,
    (bytes, huge): (u64, bool),
    turns: usize,
    folder: &Path,
) -> Result<Overhead, BenchError> {
    let mut turn = |steps: usize, checkpoint: Checkpoint| {
        let folder = text(folder);
        worker.send(&WorkerCommand::Work { fraction: WORKING_FRACTION, steps, checkpoint, folder })?;
        match worker.hear()? {
            #[expect(clippy::cast_precision_loss, reason = "times")]
            Answer::Worked { ns, write_ns } => Ok((ns as f64 / 1e6, write_ns as f64 / 1e6)),
            _ => Err(out_of_turn()),
        }
    };
    const TRIED: usize = 20;
    let step_ms = turn(TRIED, Checkpoint::Nothing)?.0 / count(TRIED);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of steps")]
    let steps = ((TURN_S * 1e3 / step_ms) as usize).max(1);
    let (mut before, _) = turn(steps, Checkpoint::Nothing)?;
    let [mut whole, mut next, mut content] = [(); 3].map(|()| (Vec::new(), Vec::new()));
    for _ in 0..turns {
        for (checkpoint, (lost, writes)) in [
            (Checkpoint::Whole, &mut whole),
            (Checkpoint::Next, &mut next),
            (Checkpoint::Content, &mut content),
        ] {
            let (with, write_ms) = turn(steps, checkpoint)?;
            let (after, _) = turn(steps, Checkpoint::Nothing)?;
            lost.push(with - (before + after) / 2.0);
            writes.push(write_ms);
            before = after;
        }
    }
    let median = |values| percentile(&sorted(values), 0.5);
    let [(whole_ms, whole_write_ms), (next_ms, _), (content_ms, content_write_ms)] =
        [whole, next, content].map(|(lost, writes)| (median(lost), median(writes)));
    let percents = INTERVALS_S.map(|interval_s| report::AtInterval {
        interval_s,
        whole_percent: whole_ms / interval_s / 10.0,
        next_percent: next_ms / interval_s / 10.0,
        content_percent: content_ms / interval_s / 10.0,
    });
    Ok(Overhead {
        resident_bytes: bytes,
        pages: pages(huge),
        dirty_fraction: WORKING_FRACTION,
        lost_ms_per_whole_image: whole_ms,
        lost_ms_per_next_image: next_ms,
        lost_ms_per_content_image: content_ms,
        whole_write_ms,
        content_write_ms,
        at_intervals: percents.to_vec(),
    })
}

/// A folder, for a measuring process.
fn text(folder: &Path) -> String {
    folder.to_string_lossy().into_owned()
}

fn pages(huge: bool) -> &'static str {
    if huge { "thp" } else { "4k" }
}

fn row(
    (bytes, huge, fraction): (u64, bool, f64),
    samples: &[Sample],
    frozen_ms: Vec<f64>,
    restart_ms: f64,
) -> PauseRow {
    let of = |value: &dyn Fn(&Sample) -> u64, unit: f64| {
        #[expect(clippy::cast_precision_loss, reason = "times and lengths of a measurement")]
        let values = samples.iter().map(|sample| value(sample) as f64 / unit).collect();
        sorted(values)
    };
    let median = |value: &dyn Fn(&Sample) -> u64, unit: f64| percentile(&of(value, unit), 0.5);
    let (ms, us) = (1e6, 1e3);
    let pauses = of(&|sample| sample.second.total_ns, ms);
    let ratio = |ours: fn(&Sample) -> u64, before: usize| {
        #[expect(clippy::cast_precision_loss, reason = "times")]
        let ratios = samples.iter().map(|sample| {
            let ours = [ours(sample) as f64];
            let forks = [sample.forks_ns[before] as f64, sample.forks_ns[before + 1] as f64];
            paired_ratios(&ours, &forks)[0]
        });
        percentile(&sorted(ratios.collect()), 0.5)
    };
    let copies = samples.iter().filter(|sample| sample.second.is_copy).count();
    PauseRow {
        resident_bytes: bytes,
        pages: pages(huge),
        dirty_fraction: fraction,
        samples: samples.len(),
        pause_ms_p50: percentile(&pauses, 0.5),
        pause_ms_p99: percentile(&pauses, 0.99),
        copies_fraction: count(copies) / count(samples.len().max(1)),
        stop_us: median(&|sample| sample.second.stop_ns, us),
        state_us: median(&|sample| sample.second.state_ns, us),
        memory_ms: median(&|sample| sample.second.memory_ns, ms),
        apart_from_memory_us: median(
            &|sample| sample.second.total_ns.saturating_sub(sample.second.memory_ns),
            us,
        ),
        freeze_us: median(&|sample| sample.second.freeze_ns, us),
        dump_us: median(&|sample| sample.second.dump_ns, us),
        thaw_us: median(&|sample| sample.second.thaw_ns, us),
        first_pause_ms_p50: median(&|sample| sample.first.total_ns, ms),
        arm_ms: median(&|sample| sample.arm_ns, ms),
        bare_fork_ms: median(&|sample| sample.forks_ns[1], ms),
        first_to_bare_fork: ratio(|sample| sample.first.total_ns, 0),
        first_memory_to_bare_fork: ratio(|sample| sample.first.memory_ns, 0),
        pause_to_bare_fork: ratio(|sample| sample.second.total_ns, 1),
        memory_to_bare_fork: ratio(|sample| sample.second.memory_ns, 1),
        criu_pause_ms: (!frozen_ms.is_empty()).then(|| percentile(&sorted(frozen_ms), 0.5)),
        restart_ms,
    }
}

fn count(items: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let count = items as f64;
    count
}
