//! stillwire: run, checkpoint and restart parallel programs that survive failures.

mod arguments;
mod background;
mod commands;
mod demo;
mod error;
mod exit;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser as _, Subcommand as _};
use nix::sys::signal::{SigHandler, Signal, signal};

use arguments::{Arguments, Command, OwnArguments, OwnCommand};
use background::Launch;
use error::CliError;
use exit::Exit;

fn main() -> ExitCode {
    let is_own = |name: OsString| name.to_str().is_some_and(OwnCommand::has_subcommand);
    if std::env::args_os().nth(1).is_some_and(is_own) {
        return match OwnArguments::try_parse() {
            Ok(own) => serve(own.command),
            Err(usage) => explain(&usage),
        };
    }
    match Arguments::try_parse() {
        Ok(Arguments { command: Command::Example(passed), .. }) => commands::example(passed.arguments),
        Ok(arguments) => end(perform(arguments.command, arguments.json)),
        Err(usage) => explain(&usage),
    }
}

/// Carries out a request of another process of this program.
fn serve(command: OwnCommand) -> ExitCode {
    match command {
        OwnCommand::Guard { job, directory, keeper } => {
            launcher::guard_node(&job, &directory, keeper);
            ExitCode::SUCCESS
        }
        OwnCommand::Keeper => {
            if launcher::keep_node() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        OwnCommand::Images => {
            if launcher::serve_images() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        OwnCommand::Component => {
            if launcher::components::serve_component() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        OwnCommand::Successor => end(background::succeed()),
        OwnCommand::First => launcher::spawn::namespace::be_first(),
        OwnCommand::Probe { probe } => end(commands::doctor::probe::answer(&probe)),
        OwnCommand::DemoRank(rank) => demo::program::main(&rank),
    }
}

fn explain(usage: &clap::Error) -> ExitCode {
    // Where the message cannot be written, the exit code still shows its kind.
    let _ = usage.print();
    if usage.use_stderr() { Exit::Usage.into() } else { Exit::Success.into() }
}

fn end(result: Result<Exit, CliError>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            commands::print_message(format_args!("{error}"));
            error.exit().into()
        }
    }
}

/// Commands that only print end when nobody reads their output (`stillwire ls | head`). A job goes on.
fn end_with_reader(command: &Command) {
    if !matches!(
        command,
        Command::Ps
            | Command::Diagnose(_)
            | Command::Attach(_)
            | Command::Ls(_)
            | Command::Inspect(_)
            | Command::Verify(_)
    ) {
        return;
    }
    // SAFETY: the default action runs no code of ours, and no other thread has been started.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

fn perform(command: Command, json: bool) -> Result<Exit, CliError> {
    end_with_reader(&command);
    match command {
        Command::Run(run) if run.detach => {
            let is_quiet = run.quiet;
            background::detach(Launch::Run(run), is_quiet, json)
        }
        Command::Run(run) => commands::run::run(*run, json, None),
        Command::Restart(restart) if restart.detach => {
            let is_quiet = restart.quiet;
            background::detach(Launch::Restart(restart), is_quiet, json)
        }
        Command::Restart(restart) => commands::restart::restart(*restart, json, None),
        Command::Attach(attach) => commands::attach::attach(&attach, json),
        Command::Repair(repair) => commands::repair::repair(repair, json),
        Command::Checkpoint(job) => commands::jobs::checkpoint(&job.job, json),
        Command::Ps => commands::jobs::list(json),
        Command::Rail(rail) => commands::jobs::rail(&rail, json),
        Command::Tune(tune) => commands::interval::tune(&tune, json),
        Command::Suspect(suspect) => commands::recovery::suspect(&suspect, json),
        Command::Recovery { command } => commands::recovery::recovery(&command, json),
        Command::Diagnose(diagnose) => commands::diagnose::diagnose(&diagnose, json),
        Command::Kill(job) => commands::jobs::kill(&job.job, json),
        Command::Ls(ls) => commands::files::list(&ls.directory, json),
        Command::Inspect(inspect) => commands::inspect::inspect(&inspect, json),
        Command::Verify(verify) => commands::verify::verify(&verify, json),
        Command::Doctor { pid: Some(pid), .. } => commands::doctor::process(pid, json),
        Command::Doctor { program, mpi, .. } => commands::doctor::doctor(program, &mpi, json),
        Command::Env { provider_dir } => commands::env::env(provider_dir, json),
        Command::InstallCompletions(arguments) => commands::completions::install(&arguments, json),
        Command::Delta { command } => commands::delta::delta(&command, json),
        Command::Demo(demo) => demo::demo(&demo, json),
        Command::Sim(_) => Err(CliError::ForDevelopers { command: "sim" }),
        Command::Bench(_) => Err(CliError::ForDevelopers { command: "bench" }),
        Command::NicHelper(helper) => commands::nic_helper::serve(helper, json),
        Command::Example(_) => Ok(Exit::Success),
    }
}
