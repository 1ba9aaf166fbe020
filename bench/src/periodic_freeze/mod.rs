//! Ports frozen under a running MPI program: the cost to the program, and whether it notices.
//!
//! A program that checks its own results runs under MPICH over the provider, in turns without and with every port of every rank being
//! frozen, dumped and thawed each few milliseconds, and on request with all links handed from shared memory to UDP and back. The
//! provider does it (`rank/provider/src/periodic_freeze.rs`) and leaves its samples in files, which are read here.

mod ports;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use drivers::RailChoice;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::mpi::{Launch, MpiError, Setup};
use crate::progress::Steps;

use ports::Folder;
pub use report::{PeriodicFreezeReport, RankRow};

/// The program that runs if a person names none.
const SOURCE: &str = include_str!("../../mpi/mixed.c");
const NAME: &str = "mixed";

/// Printed by the program at its end, before the number of its rounds, if every result was right.
const VERIFIED: &str = "verified";

/// How long a run of it may take above its seconds: to start, to end, to wait for a processor.
const SLACK_SECONDS: u64 = 60;

/// Settings of periodic freezes.
#[derive(Clone, Debug)]
pub struct PeriodicFreezeOptions {
    /// Folder of the MPI library; none: where `tests/mpi/run` sets it up, or the one in PATH.
    pub mpich: Option<PathBuf>,
    /// Folder of the provider's library; none: that of this program.
    pub provider: Option<PathBuf>,
    /// Milliseconds between two freezes of a port.
    pub every_ms: u32,
    /// Milliseconds that a port stands still each time, announced to its peers; 0: no longer than the dump takes.
    pub pause_ms: u32,
    /// For so long ports are frozen again and again, over all runs.
    pub seconds: u64,
    /// Runs with freezes; each has a run without before it and after it.
    pub pairs: u32,
    /// Processes.
    pub ranks: u32,
    /// Rails between the processes.
    pub rails: RailChoice,
    /// At each freeze all links are handed to the other rail.
    pub handover: bool,
    /// A program of the person's own with its arguments; empty: ours.
    pub program: Vec<OsString>,
    /// Output of the program if its result is right; none: its exit code says it.
    pub expect: Option<String>,
    /// A run of the person's program that takes longer is ended.
    pub run_seconds_max: u64,
}

impl Default for PeriodicFreezeOptions {
    fn default() -> PeriodicFreezeOptions {
        PeriodicFreezeOptions {
            mpich: None,
            provider: None,
            every_ms: 5,
            pause_ms: 0,
            seconds: 60,
            pairs: 3,
            ranks: 2,
            rails: RailChoice::Auto,
            handover: false,
            program: Vec::new(),
            expect: None,
            run_seconds_max: 3600,
        }
    }
}

/// Results of the runs.
#[derive(Default)]
struct Runs {
    /// Time of one unit of work in each run without freezes, and in each with them: seconds of the whole run, or of a round.
    plain: Vec<f64>,
    frozen: Vec<f64>,
    /// How long the runs with freezes have lasted.
    frozen_seconds: f64,
    ports: Vec<ports::Port>,
    /// Descriptions of the failures.
    problems: Vec<String>,
    /// Whether every result was right so far.
    verified: bool,
}

/// Runs the program, and reads the provider's measurements. A wrong result is part of the report.
///
/// # Errors
/// [`BenchError`] if the MPI library, the provider or the compiler is missing, or the program does not run without freezes either.
pub fn run(options: &PeriodicFreezeOptions) -> Result<PeriodicFreezeReport, BenchError> {
    let setup = Setup::find(options.mpich.as_deref(), options.provider.as_deref(), true)?;
    let program = if options.program.is_empty() {
        vec![setup.compile(NAME, SOURCE)?.into(), run_seconds(options).to_string().into()]
    } else {
        options.program.clone()
    };
    let machine = Machine::here();
    let mut runs = Runs { verified: true, ..Runs::default() };
    let one = |folder: Option<&Folder>| one_run(options, &setup, &program, folder);
    let progress = Steps::new("freeze --mpi", 1);
    progress.step(format_args!("once without freezes"));
    let first = one(None).map_err(|reason| MpiError::Program { reason })?;
    drop(progress);
    runs.plain.push(first.work_seconds);
    let pairs = pairs(options, first.seconds);
    let progress = Steps::new("freeze --mpi", 2 * pairs);
    for _ in 0..pairs {
        progress.step(format_args!("frozen every {} ms", options.every_ms));
        let folder = Folder::new(&setup.folder)?;
        let result = one(Some(&folder));
        runs.ports.extend(folder.read().unwrap_or_else(|problem| {
            runs.problems.push(problem);
            Vec::new()
        }));
        match result {
            Ok(run) => {
                runs.frozen.push(run.work_seconds);
                runs.frozen_seconds += run.seconds;
            }
            Err(reason) => {
                runs.verified = false;
                runs.problems.push(format!("with freezes: {reason}"));
                break;
            }
        }
        progress.step(format_args!("without freezes"));
        match one(None) {
            Ok(run) => runs.plain.push(run.work_seconds),
            Err(reason) => {
                runs.verified = false;
                runs.problems.push(format!("without freezes, but not the first time: {reason}"));
                break;
            }
        }
    }
    Ok(PeriodicFreezeReport::new(machine, options, runs))
}

/// Seconds of one run of our program.
fn run_seconds(options: &PeriodicFreezeOptions) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 seconds")]
    let seconds = options.seconds as f64;
    seconds / f64::from(options.pairs)
}

/// Runs with freezes. Ours last for a given time; a user's program runs until they have lasted as long together.
fn pairs(options: &PeriodicFreezeOptions, seconds_of_run: f64) -> usize {
    let least = options.pairs as usize;
    if options.program.is_empty() {
        return least;
    }
    let whole = (run_seconds(options) * f64::from(options.pairs) / seconds_of_run.max(0.001)).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 86,400 s in runs of 1 ms"
    )]
    least.max(whole as usize)
}

struct Run {
    seconds: f64,
    /// Of one unit of work.
    work_seconds: f64,
}

/// One run, with freezes if there is a folder for their measurements. Else the reason why its result is not right.
fn one_run(
    options: &PeriodicFreezeOptions,
    setup: &Setup,
    program: &[OsString],
    folder: Option<&Folder>,
) -> Result<Run, String> {
    let mut variables = vec![("STILLWIRE_RAILS", options.rails.name().into())];
    if let Some(folder) = folder {
        variables.push(("STILLWIRE_PERIODIC_FREEZE_MS", options.every_ms.to_string().into()));
        variables.push(("STILLWIRE_PERIODIC_FREEZE_REPORT", folder.path().into()));
        if options.pause_ms > 0 {
            variables.push(("STILLWIRE_PERIODIC_FREEZE_PAUSE_MS", options.pause_ms.to_string().into()));
        }
        if options.handover {
            variables.push(("STILLWIRE_PERIODIC_FREEZE_HANDOVER", "1".into()));
        }
    }
    let own = options.program.is_empty();
    let seconds_max = if own {
        Duration::from_secs_f64(run_seconds(options)).as_secs() + SLACK_SECONDS
    } else {
        options.run_seconds_max
    };
    let program = program.to_vec();
    let purpose = "finish the program";
    let launch = Launch { setup, ranks: options.ranks, program, ours: true, variables, seconds_max, purpose };
    let begun = Instant::now();
    let output = launch.run()?;
    let seconds = begun.elapsed().as_secs_f64();
    let work_seconds = if own { round_seconds(&output)? } else { seconds };
    match &options.expect {
        Some(words) if !output.contains(words) => Err(format!("the program did not print '{words}'")),
        _ => Ok(Run { seconds, work_seconds }),
    }
}

/// Seconds of one round, from our program's output: `verified 123 rounds, 45.6 rounds/s`.
fn round_seconds(output: &str) -> Result<f64, String> {
    let rate = output.lines().find_map(|line| {
        let (_, rate) = line.strip_prefix(VERIFIED)?.split_once(" rounds, ")?;
        rate.strip_suffix(" rounds/s")?.parse::<f64>().ok()
    });
    let rate = rate.filter(|rate| *rate > 0.0);
    rate.map(f64::recip).ok_or_else(|| format!("the program ended before it said '{VERIFIED}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_if_its_program_says_so_and_there_are_enough() {
        let seconds = round_seconds("noise\nverified 123 rounds, 50.0 rounds/s\n").expect("verified");
        assert!((seconds - 0.02).abs() < 1e-12);
        for output in
            ["", "verified", "verified 0 rounds, 0.0 rounds/s", "rank 1, round 7: sum: expected 3, found 4"]
        {
            assert!(round_seconds(output).expect_err(output).contains("before it said 'verified'"));
        }
    }
}
