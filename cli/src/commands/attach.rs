//! `stillwire attach`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use launcher::error::LauncherError;
use launcher::registry;

use super::interrupt::{InterruptGuard, is_stopped};
use super::{print_json, print_message};
use crate::arguments::AttachArguments;
use crate::background::records::{EndRecord, Records};
use crate::background::viewer::{Start, Viewer};
use crate::background::watched_jobs;
use crate::error::CliError;
use crate::exit::Exit;

pub(crate) const LONG_ABOUT: &str = "\
Show the output of a job that was started with --detach, from the beginning of its run to its end, and pass on its exit code.

Several of these commands may show one job. Ctrl-C ends this command, not the job (exit code 130). With the job's directory in place of its id, \
`attach` also shows the output of a job that has ended. Standard input does not reach the job.";

/// How often the command reads the job's output.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often the command checks that the launcher or its watcher lives.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn attach(arguments: &AttachArguments, json: bool) -> Result<Exit, CliError> {
    let (directory, records, job) = find(&arguments.job)?;
    let failed = |error| LauncherError::File {
        path: directory.clone(),
        error,
        expected: "the directory of a job that was started with --detach",
    };
    let start = if arguments.new { Start::Now } else { Start::Run };
    let mut viewer = Viewer::open(&records, start, json).map_err(failed)?;
    let _interrupts = InterruptGuard::begin();
    let mut alive_due = Instant::now();
    loop {
        // The end is read first: all output before it is in the files by then.
        let is_held = if alive_due <= Instant::now() {
            alive_due = Instant::now() + ALIVE_EVERY;
            records.is_held().map_err(failed)?
        } else {
            true
        };
        let end = records.end().map_err(failed)?;
        viewer.show()?;
        if let Some(end) = end {
            return ended(&end, &job, &directory, json);
        }
        if !is_held {
            return Err(CliError::NobodyWatches { path: directory });
        }
        if arguments.no_wait {
            if json {
                print_json(&serde_json::json!({ "job": job, "directory": directory, "exit_code": null }))?;
            }
            return Ok(Exit::Success);
        }
        if is_stopped() {
            let name = job.get(..8).unwrap_or(&job);
            print_message(format_args!("the job runs on; `stillwire kill {name}` ends it"));
            return Ok(Exit::Stopped);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn ended(end: &EndRecord, job: &str, directory: &Path, json: bool) -> Result<Exit, CliError> {
    if json {
        let without_report = || {
            serde_json::json!({
                "job": job, "directory": directory, "outcome": "failed", "reason": end.error, "exit_code": end.exit_code
            })
        };
        print_json(&end.report.clone().unwrap_or_else(without_report))?;
    }
    Ok(Exit::Program(end.exit_code))
}

/// The directory of a detached job, its records, and its id. A running job goes by the beginning of its id, any by its directory.
fn find(name: &str) -> Result<(PathBuf, Records, String), CliError> {
    // The registry has no entry of a job whose launcher was killed and has no successor yet.
    let running = registry::jobs()?.into_iter().map(|info| (info.job, PathBuf::from(info.directory)));
    let mut found: BTreeMap<String, PathBuf> = running.filter(|(job, _)| job.starts_with(name)).collect();
    found.extend(watched_jobs::find(name)?);
    let directory = match (found.len(), found.pop_first()) {
        (1, Some((_, directory))) => directory,
        (0, _) | (_, None) if Path::new(name).is_dir() => PathBuf::from(name),
        (0, _) | (_, None) => return Err(CliError::NothingToAttach { name: name.to_owned() }),
        (found, _) => return Err(LauncherError::JobAmbiguous { name: name.to_owned(), found }.into()),
    };
    let records = Records::of(&directory);
    let read = records.run();
    let read = read.map_err(|error| LauncherError::File {
        path: directory.clone(),
        error,
        expected: "the directory of a job that was started with --detach",
    })?;
    match read {
        Some(run) => Ok((directory, records, run.job)),
        None => Err(CliError::NotDetached { path: directory }),
    }
}
