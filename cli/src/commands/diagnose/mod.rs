//! Why a job hangs: the command `diagnose`.

mod graph;
mod words;

use std::path::PathBuf;

use ckpt_glue::diagnosis::Diagnosis;
use clap::Args;
use launcher::registry;
use launcher::requests::{Answer, Request, ask};

use super::{print_json, say};
use crate::arguments::JobArgument;
use crate::error::CliError;
use crate::exit::Exit;
use words::Places;

/// The text of `diagnose --help`.
pub(crate) const LONG_ABOUT: &str = "\
Show why a job hangs: which ranks wait for which, in what operation, and since when.

The ranks are asked twice, 0.3s apart, over the node daemons. Nothing is stopped: each rank reads the open sends and receives of its port, which takes \
microseconds. A rank waits if it looks for messages, has the same open operations in both answers, and has begun no other in between. \
A rank that does not answer in 2s is named.

The command prints the causes first:

  deadlock        ranks wait for each other, and for no other rank; no message can end that
  no answer       the process is stopped, its host does not respond, or a thread holds a port of it
  lost link       a rank that runs has not acknowledged frames of another one for 1s or more
  ended           a rank has ended, and others wait for it
  straggler       a rank computes, and waits for nothing, while others wait for it
  circular wait   ranks wait for each other, but one of them has another open operation that may complete

A program of an MPI library may wait for any of its open operations: the library does not say for which. A receive from any source waits for any other rank. \
Such ranks are in a deadlock only if everything that they may wait for is. A rank that looks for messages and has no open operation, as in MPI_Probe, counts as \
one that waits for any other rank. A rank in MPI_Init or MPI_Finalize waits for all others.

Tags are those of the transport. Of an MPI program they hold the library's context and often the sender, too; the MPI tag is in the low bits. \
Times are lower bounds: a rank notes once in a second which operations have begun.

The exit code is 0 also if a cause is found. Programs of an MPI library can be asked only if they were started with a checkpoint option.";

#[derive(Debug, Args)]
pub(crate) struct DiagnoseArguments {
    #[command(flatten)]
    pub(crate) job: JobArgument,
    /// Draw the graph of waits into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

pub(crate) fn diagnose(arguments: &DiagnoseArguments, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(&arguments.job.job)?;
    let answer = ask(&info, &Request::Diagnose)?;
    if json {
        print_json(&answer)?;
    }
    let diagnosis: Box<Diagnosis> = match answer {
        Answer::Diagnosed(diagnosis) => diagnosis,
        Answer::Failed { reason } => return Err(CliError::NotDiagnosed { reason }),
        _ => return Err(CliError::NotDiagnosed { reason: "the job is ending".to_owned() }),
    };
    if !json {
        // Where its ranks are helps to find one, but is no part of the diagnosis.
        let places = match ask(&info, &Request::Status) {
            Ok(Answer::Status(status)) => Places::of(&status),
            _ => Places::default(),
        };
        for line in words::lines(&diagnosis, &places) {
            say!("{line}")?;
        }
    }
    if let Some(path) = &arguments.svg {
        std::fs::write(path, graph::svg(&diagnosis))
            .map_err(|error| CliError::NotWritten { path: path.clone(), error })?;
    }
    Ok(Exit::Success)
}
