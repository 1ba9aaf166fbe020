//! The programs' command line.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

use crate::burst::{self, BurstConfig};
use crate::communicator::Communicator;
use crate::error::ExampleError;
use crate::is::{self, Class, IsConfig};
use crate::limits::{IS_ITERATIONS_MAX, THREAD_RANKS_MAX};
use crate::{ring, tasks, threads};
use ::session::Session;

/// A verification failed: the program ran, and its result is wrong.
pub const EXIT_UNVERIFIED: u8 = 3;

#[derive(Debug, Parser)]
#[command(name = "example", about = "Real parallel programs over the native interface")]
struct Command {
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Program {
    /// NAS integer sort, with the official verification
    Is(IsArguments),
    /// Bursts of asynchronous messages from every rank to every other one
    Burst(BurstArguments),
    /// Tokens that go round: the smallest program that survives a restart
    Ring(RingArguments),
    /// Tasks that one rank hands out: a program that goes on without ranks that are gone
    Tasks(TasksArguments),
}

#[derive(Debug, Args)]
struct Common {
    /// Run this many ranks as threads of this process, without a launcher
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=i64::from(THREAD_RANKS_MAX)))]
    threads: Option<u32>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct IsArguments {
    /// Problem class: S, W, A or B
    #[arg(long, default_value = "S")]
    class: Class,
    /// Iterations of a round
    #[arg(long, default_value_t = IS_ITERATIONS_MAX)]
    iterations: u32,
    /// Repeat the benchmark, with all its verifications
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct BurstArguments {
    /// Messages to each peer in each burst
    #[arg(long, default_value_t = BurstConfig::default().messages)]
    messages: u32,
    /// Bytes of each message
    #[arg(long, default_value_t = BurstConfig::default().bytes)]
    bytes: usize,
    /// Bursts
    #[arg(long, default_value_t = BurstConfig::default().rounds)]
    rounds: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct RingArguments {
    /// Steps of each token
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct TasksArguments {
    /// Tasks
    #[arg(long, default_value_t = 100)]
    tasks: u64,
    /// Milliseconds that each takes
    #[arg(long, default_value_t = 10)]
    task_ms: u64,
    #[command(flatten)]
    common: Common,
}

/// Runs the program that the arguments name; the first argument is the command's own name, as the system gives it.
/// Options alone mean the integer sort.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let option_first =
        arguments.get(1).is_some_and(|first| first.to_str().is_some_and(|text| text.starts_with("--")));
    if option_first && arguments[1] != "--help" {
        arguments.insert(1, OsString::from("is"));
    }
    let command = match Command::try_parse_from(arguments) {
        Ok(command) => command,
        Err(usage) => {
            // Where the message cannot be written, the exit code still reports the failure.
            let _ = usage.print();
            return if usage.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    match command.program.start() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_UNVERIFIED),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one program by name with this process's arguments, for the programs' own executables.
pub fn main_of(program: &str) -> ExitCode {
    main(["example", program].map(OsString::from).into_iter().chain(std::env::args_os().skip(1)))
}

impl Program {
    fn common(&self) -> &Common {
        match self {
            Program::Is(arguments) => &arguments.common,
            Program::Burst(arguments) => &arguments.common,
            Program::Ring(arguments) => &arguments.common,
            Program::Tasks(arguments) => &arguments.common,
        }
    }

    /// Runs as one rank of a job if a launcher started this process, else all ranks as threads; `true` when the result is
    /// verified.
    fn start(&self) -> Result<bool, ExampleError> {
        if self.common().threads.is_none() && Session::is_launched() {
            return self.run_launched();
        }
        let ranks = self.common().threads.unwrap_or(1);
        let outcome = threads::run(ranks, &threads::Plan::default(), |world| self.run(world));
        // A rank that stopped because of another one knows less about the reason.
        let (faults, results): (Vec<_>, Vec<_>) = outcome.ranks.into_iter().partition(Result::is_err);
        let waited = |fault: &ExampleError| matches!(fault, ExampleError::Communication(_));
        let mut faults: Vec<_> = faults.into_iter().filter_map(Result::err).collect();
        faults.sort_by_key(waited);
        match faults.into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(results.into_iter().all(|result| result.unwrap_or(false))),
        }
    }

    /// As one rank of a job.
    fn run_launched(&self) -> Result<bool, ExampleError> {
        let failed = |error: ::session::SessionError| ExampleError::Communication(error.into());
        let mut session = Session::open().map_err(failed)?;
        let verified = session.had_finished()
            || match self {
                Program::Tasks(arguments) => arguments.run(&mut session)?,
                program => program.run(&mut session)?,
            };
        session.finalize().map_err(failed)?;
        Ok(verified)
    }

    /// One rank; `true` when the result is verified. Only the first rank prints.
    fn run(&self, world: &mut dyn Communicator) -> Result<bool, ExampleError> {
        let json = self.common().json;
        match self {
            Program::Is(arguments) => {
                let IsArguments { class, iterations, rounds, .. } = *arguments;
                let mut progress = Progress::of(world);
                let report = is::run(world, &IsConfig { class, iterations, rounds }, &mut |done| {
                    let is::IterationDone { round, iteration, .. } = done;
                    progress.say(format_args!(
                        "round {round} of {rounds}, iteration {iteration} of {iterations} done"
                    ));
                })?;
                print(world, json, &report)?;
                Ok(report.verified)
            }
            Program::Burst(arguments) => {
                let BurstArguments { messages, bytes, rounds, .. } = *arguments;
                let mut progress = Progress::of(world);
                let report = burst::run(world, &BurstConfig { messages, bytes, rounds }, &mut |done| {
                    progress.say(format_args!("burst {} of {rounds} received", done.rounds_done));
                })?;
                print(world, json, &report)?;
                Ok(report.verified)
            }
            Program::Ring(arguments) => {
                let value = ring::run(world, arguments.steps)?;
                print(world, json, &ring::RingReport { value, steps: arguments.steps, verified: true })?;
                Ok(true)
            }
            Program::Tasks(_) => Err(ExampleError::NotLaunched),
        }
    }
}

impl TasksArguments {
    /// As one rank of a job: only its session reports ranks that are gone.
    fn run(&self, session: &mut Session) -> Result<bool, ExampleError> {
        let report = tasks::run(session, self.tasks, Duration::from_millis(self.task_ms))?;
        let Some(report) = report else { return Ok(true) };
        print(session, self.common.json, &report)?;
        Ok(report.verified)
    }
}

/// Prints on standard error how far the first rank is, and not more often than a person reads.
struct Progress {
    silent: bool,
    spoken: Instant,
}

/// Between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

impl Progress {
    fn of(world: &dyn Communicator) -> Progress {
        Progress { silent: world.rank() != 0, spoken: Instant::now() }
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        if !self.silent && self.spoken.elapsed() >= PROGRESS_INTERVAL {
            eprintln!("{line}");
            self.spoken = Instant::now();
        }
    }
}

fn print<R: serde::Serialize + std::fmt::Display>(
    world: &dyn Communicator,
    json: bool,
    report: &R,
) -> Result<(), ExampleError> {
    if world.rank() != 0 {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{report}")?;
    }
    Ok(())
}
