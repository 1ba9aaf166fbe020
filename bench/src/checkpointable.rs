//! The cost of checkpoint support in normal running.
//!
//! Two builds of this program alternate: the ordinary one, and one with `--cfg uncheckpointable`. The latter has no checks of lives and epochs, no
//! hints and no resyncs. It also lacks the clock that stands still while a port is frozen, and the check whether a port is frozen. Both builds keep
//! the header's fields and the gate's lock, which the helper thread needs even if no port is ever frozen.
//!
//! A pair of processes of each build lives at the same time; their runs alternate, and each pair of pairs gives one ratio, the median of
//! its neighbouring runs'. Where memory and code happen to lie moves a process's figures by some percent, so there are many pairs, and the
//! 95 % interval is that of the median over pairs, by bootstrap.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;
use transport::config::CHECKPOINTABLE;

use crate::error::BenchError;
use crate::latency::{self, LatencyPair};
use crate::machine::Machine;
use crate::progress;
use crate::rate::{self, RatePair};
use crate::report::{self, Bar};
use crate::statistics::{Interval, Summary, paired_ratios};
use crate::testbed::Testbed;
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "build";

/// The bar of the design: the interval lies this close to 1.
const INTERVAL_MAX: f64 = 0.01;

/// Settings of the checkpointable benchmark.
#[derive(Clone, Debug)]
pub struct CheckpointableOptions {
    /// Pairs of processes of each build, one after the other.
    pub pairs: usize,
    /// Runs of each build, per pair and figure.
    pub runs: usize,
    /// Round trips per run.
    pub rounds: usize,
    /// Messages per run.
    pub messages: usize,
    /// The two programs, with and without; built if they are not given.
    pub programs: Option<[PathBuf; 2]>,
}

impl Default for CheckpointableOptions {
    fn default() -> CheckpointableOptions {
        CheckpointableOptions { pairs: 60, runs: 8, rounds: 1000, messages: 20_000, programs: None }
    }
}

/// One figure, with and without.
#[derive(Clone, Serialize, Debug)]
pub struct Cost {
    /// "half_rtt_us" or "messages_per_s".
    pub figure: &'static str,
    /// The ordinary build, median over the pairs.
    pub with: f64,
    /// The build without.
    pub without: f64,
    /// Median of the ratios, with to without.
    pub ratio: f64,
    /// Least ratio of the 95 % interval.
    pub ratio_low: f64,
    /// Greatest ratio of the interval.
    pub ratio_high: f64,
    /// Spread over the pairs.
    pub ratio_spread: Summary,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct CheckpointableReport {
    /// "checkpointable".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Latency, and rate of messages.
    pub rows: Vec<Cost>,
    /// The design's bars.
    pub bars: Vec<Bar>,
}

impl fmt::Display for CheckpointableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "checkpointable  the ordinary build against one that cannot be checkpointed")?;
        writeln!(f, "{:>15} {:>12} {:>12} {:>8} {:>20}", "", "with", "without", "ratio", "95 % interval")?;
        for row in &self.rows {
            writeln!(
                f,
                "{:>15} {:>12.3} {:>12.3} {:>8.4} {:>20}",
                row.figure,
                row.with,
                row.without,
                row.ratio,
                format!("{:.4} .. {:.4}", row.ratio_low, row.ratio_high)
            )?;
        }
        report::show(f, &self.bars)
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a program cannot be built, or a process, a socket or a message fails.
pub fn run(options: &CheckpointableOptions) -> Result<CheckpointableReport, BenchError> {
    let programs = match &options.programs {
        Some(programs) => programs.clone(),
        None => build()?,
    };
    for (program, expected) in programs.iter().zip([true, false]) {
        check(program, expected)?;
    }
    let machine = Machine::here();
    let rounds = options.rounds;
    let messages = options.messages.next_multiple_of(rate::BATCH);
    let rows = vec![
        compare("half_rtt_us", &programs, options, &mut |program| {
            let worker = || Worker::start_program(program, latency::ROLE);
            let mut pair = LatencyPair::start([worker()?, worker()?], &Testbed::LOOPBACK)?;
            Ok(Box::new(move || pair.ours(rounds)))
        })?,
        compare("messages_per_s", &programs, options, &mut |program| {
            let worker = || Worker::start_program(program, rate::ROLE);
            let mut pair = RatePair::start([worker()?, worker()?], &Testbed::LOOPBACK)?;
            Ok(Box::new(move || pair.ours(messages)))
        })?,
    ];
    let bars = rows.iter().map(|row| {
        let away = (row.ratio_low - 1.0).abs().max((row.ratio_high - 1.0).abs());
        let name = if row.figure == "half_rtt_us" {
            "95 % interval of the latency's ratio, farthest from 1"
        } else {
            "95 % interval of the rate's ratio, farthest from 1"
        };
        Bar::below(name, away, INTERVAL_MAX)
    });
    let bars = bars.collect();
    Ok(CheckpointableReport { bench: "checkpointable", machine, rows, bars })
}

/// One run of a pair of processes.
type PairRun = Box<dyn FnMut() -> Result<f64, BenchError>>;

fn compare(
    figure: &'static str,
    programs: &[PathBuf; 2],
    options: &CheckpointableOptions,
    start: &mut dyn FnMut(&Path) -> Result<PairRun, BenchError>,
) -> Result<Cost, BenchError> {
    let progress = progress::Steps::new("checkpointable", options.pairs);
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..options.pairs {
        progress.step(format_args!("{figure}"));
        // The first one alternates: it may get the better memory.
        let first = i % 2;
        let mut early = start(&programs[first])?;
        let mut late = start(&programs[1 - first])?;
        let (ordinary, other) = if first == 0 { (&mut early, &mut late) } else { (&mut late, &mut early) };
        let (mut ordinary_runs, mut other_runs) = (Vec::new(), Vec::new());
        // The first run of each warms it up.
        ordinary()?;
        for run in 0..=2 * options.runs {
            if run % 2 == 0 {
                other_runs.push(other()?);
            } else {
                ordinary_runs.push(ordinary()?);
            }
        }
        ratios.push(Summary::of(&paired_ratios(&ordinary_runs, &other_runs)).median);
        with.push(Summary::of(&ordinary_runs).median);
        without.push(Summary::of(&other_runs).median);
    }
    let interval = Interval::of_median(&ratios);
    let ratio_spread = Summary::of(&ratios);
    Ok(Cost {
        figure,
        with: Summary::of(&with).median,
        without: Summary::of(&without).median,
        ratio: ratio_spread.median,
        ratio_low: interval.low,
        ratio_high: interval.high,
        ratio_spread,
    })
}

/// Reports to the parent whether this build has checkpoint support.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    parent.send(&CHECKPOINTABLE)
}

fn check(program: &Path, checkpointable: bool) -> Result<(), BenchError> {
    let found: bool = Worker::start_program(program, ROLE)?.hear()?;
    if found == checkpointable {
        return Ok(());
    }
    let expected = if checkpointable { "with" } else { "without" };
    Err(BenchError::WrongBuild { path: program.to_owned(), expected })
}

/// Builds both programs with the environment's flags, the same for both, into separate folders. So neither can be mixed up with the output of another
/// build of the workspace.
fn build() -> Result<[PathBuf; 2], BenchError> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = package.parent().unwrap_or(package);
    if !package.join("Cargo.toml").is_file() {
        return Err(BenchError::NoSources { path: sources.to_owned() });
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| sources.join("target"), PathBuf::from);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let build = |name: &'static str, cfg: &str| {
        let target = target.join("checkpointable").join(name);
        eprintln!("checkpointable: cargo builds the program {name}");
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args([
                "build",
                "--release",
                "--locked",
                "--package",
                "stillwire-bench",
                "--bin",
                "bench",
                "--target-dir",
            ])
            .arg(&target)
            .current_dir(sources)
            .env("RUSTFLAGS", format!("{flags} --cfg {cfg}"))
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .map_err(|error| BenchError::Build { what: error.to_string() })?;
        if !status.success() {
            return Err(BenchError::Build { what: status.to_string() });
        }
        Ok(target.join("release").join("bench"))
    };
    // The first flag means nothing to the sources; it makes the two builds differ in nothing else.
    Ok([build("with", "checkpointable")?, build("without", "uncheckpointable")?])
}
