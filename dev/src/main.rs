//! stillwire-dev: the simulator and the benches, for those who work on Stillwire.

mod error;
mod exit;
mod sim;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;

use bench::command::Bench;
use error::DevError;
use exit::Exit;
use sim::SimCommand;

const ABOUT: &str = "Simulate jobs under faults, and measure against bare baselines";

const LONG_ABOUT: &str = "\
Simulate jobs under faults, and measure against bare baselines: tools for those who work on Stillwire. Jobs are run by `stillwire`, a program of its own.

Results go to standard output, as text or with --json as one object; progress goes to standard error. Each bench has --quick, which takes less than a minute and gives \
rough figures. `bench parity --job` starts jobs: it takes the program `stillwire` beside this one, or the one that STILLWIRE_BIN names.";

#[derive(Debug, Parser)]
#[command(name = "stillwire-dev", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = Exit::HELP)]
#[command(max_term_width = 110, disable_help_subcommand = true)]
struct Arguments {
    /// Print one JSON object on standard output; everything else goes to standard error
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate jobs under faults: run, swarm, sabotage, scenario, shrink, scale, interval
    Sim {
        #[command(subcommand)]
        command: SimCommand,
    },
    /// Measure against bare baselines: latency, rate, bulk, loss, freeze, moves, pause, parity, delta, store, checkpointable, protocol, mpi, all
    Bench {
        #[command(subcommand)]
        command: Box<Bench>,
    },
}

fn main() -> ExitCode {
    // A bench measures between processes, which are this program started again.
    bench::run_if_worker();
    let Arguments { json, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => {
            // Where the message cannot be written, the exit code still shows the kind of outcome.
            let _ = usage.print();
            return if usage.use_stderr() { Exit::Usage.into() } else { Exit::Success.into() };
        }
    };
    let outcome = match command {
        Command::Sim { command } => sim::simulate(command, json),
        Command::Bench { command } => measure(&command, json),
    };
    outcome.map_or_else(
        |error| {
            // Nobody may read it.
            let _ = writeln!(io::stderr().lock(), "stillwire-dev: {error}");
            error.exit().into()
        },
        Exit::into,
    )
}

fn measure(command: &Bench, json: bool) -> Result<Exit, DevError> {
    let outcome = command.run(json)?;
    writeln!(io::stdout().lock(), "{}", outcome.report)?;
    Ok(if outcome.right { Exit::Success } else { Exit::Wrong })
}

/// Prints one JSON object.
fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_bench_has_a_quick_form() {
        let arguments = Arguments::command();
        let bench = arguments.find_subcommand("bench").expect("a command");
        let mut benches = 0;
        for each in bench.get_subcommands().filter(|each| each.get_name() != "help") {
            let quick = each.get_arguments().any(|argument| argument.get_long() == Some("quick"));
            assert!(quick, "{} has no --quick", each.get_name());
            benches += 1;
        }
        assert!(benches > 10, "only {benches} benches");
    }
}
