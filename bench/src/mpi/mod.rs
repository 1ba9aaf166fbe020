//! Ours under MPICH, against the stacks that MPICH ships with: one MPI library, one program, several stacks under it.
//!
//! The program `bench/mpi/figures.c` is compiled with the library's own compiler and run by its own launcher, two ranks.
//! First each stack moves every kind of transfer with every byte compared; a stack that fails there, or that MPICH does not
//! take, is named with the reason. Then the stacks are measured in turns: one run of each per repetition. A figure is the
//! median over repetitions of the median over a run's blocks; a ratio is the median of the ratios within repetitions.

mod error;
mod figures;
mod launcher;
mod report;
mod setup;
mod stacks;

use std::path::PathBuf;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::progress::Steps;

pub use error::MpiError;
use figures::{CHECKED, Figures};
pub(crate) use launcher::{Launch, ROLE, work};
pub use report::{Left, MpiReport, MpiRow, OperationRow, Ranking};
pub(crate) use setup::Setup;
pub use stacks::Reach;
use stacks::Stack;

/// The longest message of the measuring program.
pub const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// The measuring program.
const SOURCE: &str = include_str!("../../mpi/figures.c");

/// Ranks of every run: more than processors would measure the scheduler.
const RANKS: u32 = 2;

/// Settings of the MPI benchmark.
#[derive(Clone, Debug)]
pub struct MpiOptions {
    /// Folder of the MPI library; none: where `tests/mpi/run` sets it up.
    pub mpich: Option<PathBuf>,
    /// Folder of the provider's library; none: that of this program.
    pub provider: Option<PathBuf>,
    /// Names of stacks; none: all.
    pub stacks: Vec<String>,
    /// Lengths of messages.
    pub bytes: Vec<u64>,
    /// Runs of each stack.
    pub repetitions: usize,
    /// Blocks per figure and run.
    pub blocks: usize,
    /// Length of a block, microseconds.
    pub block_us: u64,
    /// A run that takes longer is ended, and its stack left out.
    pub run_seconds_max: u64,
}

impl Default for MpiOptions {
    fn default() -> MpiOptions {
        MpiOptions {
            mpich: None,
            provider: None,
            stacks: Vec::new(),
            bytes: vec![
                0,
                8,
                64,
                512,
                4 << 10,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
                4 << 20,
                16 << 20,
                64 << 20,
            ],
            repetitions: 7,
            blocks: 5,
            block_us: 20_000,
            run_seconds_max: 150,
        }
    }
}

/// A stack and the results of its runs.
struct Measured {
    stack: &'static Stack,
    /// One for each repetition.
    runs: Vec<Figures>,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if the MPI library, the provider or the compiler is missing, or no stack runs.
pub fn run(options: &MpiOptions) -> Result<MpiReport, BenchError> {
    let stacks = stacks::named(&options.stacks)?;
    let ours = stacks.iter().any(|stack| stack.ours);
    let setup = Setup::find(options.mpich.as_deref(), options.provider.as_deref(), ours)?;
    let program = setup.compile("figures", SOURCE)?;
    let launch = |stack: &Stack, arguments: &[String], checks: bool| {
        let mut variables: Vec<_> =
            stack.variables.iter().map(|(name, value)| (*name, value.into())).collect();
        if checks {
            variables.push(("MPIR_CVAR_DEBUG_SUMMARY", "1".into()));
        }
        let program = std::iter::once(program.clone().into()).chain(arguments.iter().map(Into::into));
        Launch {
            setup: &setup,
            ranks: RANKS,
            program: program.collect(),
            ours: stack.ours,
            variables,
            seconds_max: options.run_seconds_max,
            purpose: if checks { "check every byte" } else { "measure" },
        }
        .run()
    };
    let machine = Machine::here();
    let progress = Steps::new("mpi", stacks.len() * (options.repetitions + 1));
    let lengths = options.bytes.iter().map(u64::to_string);
    let check: Vec<String> = std::iter::once("check".to_owned()).chain(lengths.clone()).collect();
    let measure = ["measure".to_owned(), options.blocks.to_string(), options.block_us.to_string()];
    let measure: Vec<String> = measure.into_iter().chain(lengths).collect();
    let mut left = Vec::new();
    let mut leave = |stack: &Stack, reason: String| {
        progress.note(format_args!("mpi: {} is left out: {reason}", stack.name));
        left.push(Left { stack: stack.name, reason });
    };
    let mut measured: Vec<Measured> = Vec::new();
    for stack in stacks {
        progress.step(format_args!("{}, every byte compared", stack.name));
        match launch(stack, &check, true).and_then(|output| is_checked(stack, &output)) {
            Ok(()) => measured.push(Measured { stack, runs: Vec::new() }),
            Err(reason) => leave(stack, reason),
        }
    }
    for repetition in 1..=options.repetitions {
        measured.retain_mut(|Measured { stack, runs }| {
            progress.step(format_args!("{}, repetition {repetition}", stack.name));
            match launch(stack, &measure, false).and_then(|output| figures::parse(&output)) {
                Ok(figures) => {
                    runs.push(figures);
                    true
                }
                Err(reason) => {
                    leave(stack, format!("repetition {repetition}: {reason}"));
                    false
                }
            }
        });
    }
    if measured.is_empty() {
        let reasons: Vec<String> =
            left.iter().map(|left| format!("{}: {}", left.stack, left.reason)).collect();
        return Err(MpiError::Nothing { reasons: reasons.join("; ") }.into());
    }
    Ok(MpiReport::new(machine, options, &measured, left))
}

/// Whether every byte was compared, and MPICH took the stack.
fn is_checked(stack: &Stack, output: &str) -> Result<(), String> {
    if !output.lines().any(|line| line == CHECKED) {
        return Err(format!("the measuring program ended before it said '{CHECKED}'"));
    }
    if !output.contains(stack.summary) {
        return Err(format!("MPICH did not take it: its summary does not say '{}'", stack.summary));
    }
    Ok(())
}
