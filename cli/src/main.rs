//! stillwire: run, checkpoint and restart parallel programs that survive failures.

mod arguments;
mod commands;
mod convert;
mod demo;
mod error;
mod exit;
mod launch;
mod mpi;
mod text;

use std::process::ExitCode;

use clap::Parser as _;
use nix::sys::signal::{SigHandler, Signal, signal};

use arguments::{Arguments, Command};
use error::CliError;
use exit::Exit;

fn main() -> ExitCode {
    // A bench measures between processes, which are this program started again.
    bench::run_if_worker();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => {
            // Where the message cannot be written, the exit code still says what it is.
            let _ = usage.print();
            return if usage.use_stderr() { Exit::Usage.into() } else { Exit::Success.into() };
        }
    };
    let json = arguments.json;
    let result = match arguments.command {
        Command::Example(passed) => return commands::example(passed.arguments),
        Command::Guard { job, directory } => {
            launch::guard::watch(&job, &directory);
            Ok(Exit::Success)
        }
        Command::DemoRank(rank) => return demo::program::main(&rank),
        command => perform(command, json),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            commands::tell(format_args!("{error}"));
            error.exit().into()
        }
    }
}

/// Commands that only print end when nobody reads what they print (`stillwire ls | head`). A job goes on, and so does a
/// simulation.
fn end_with_reader(command: &Command) {
    if !matches!(command, Command::Ps | Command::Ls(_) | Command::Inspect(_) | Command::Verify(_)) {
        return;
    }
    // SAFETY: the default action runs no code of ours, and no other thread has been started.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

fn perform(command: Command, json: bool) -> Result<Exit, CliError> {
    end_with_reader(&command);
    match command {
        Command::Run(run) => commands::run::run(run, json),
        Command::Restart(restart) => commands::restart::restart(restart, json),
        Command::Checkpoint(job) => commands::jobs::checkpoint(&job.job, json),
        Command::Ps => commands::jobs::list(json),
        Command::Kill(job) => commands::jobs::kill(&job.job, json),
        Command::Ls(ls) => commands::files::list(&ls.directory, json),
        Command::Inspect(inspect) => commands::files::inspect(&inspect.file, json),
        Command::Verify(verify) => commands::files::verify(&verify.directory, verify.generation, json),
        Command::Doctor { program } => commands::doctor::doctor(program, json),
        Command::Probe { probe } => commands::doctor::probe::answer(&probe),
        Command::Env { provider_dir } => commands::env::env(provider_dir, json),
        Command::Demo(demo) => demo::demo(&demo, json),
        Command::Sim(sim) => commands::sim::simulate(sim.command, json),
        Command::Bench(bench) => {
            let outcome = bench.command.run(json)?;
            commands::say!("{}", outcome.report)?;
            Ok(if outcome.right { Exit::Success } else { Exit::Unverified })
        }
        Command::Example(_) | Command::Guard { .. } | Command::DemoRank(_) => Ok(Exit::Success),
    }
}
