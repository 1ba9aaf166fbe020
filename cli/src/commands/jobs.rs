//! Commands to running jobs: `ps`, `checkpoint`, `kill`.

use serde::Serialize;

use super::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::launch::registry::{self, JobInfo};
use crate::launch::requests::{Answer, Request, Status, ask};
use crate::text;

/// A job, as `ps --json` prints it.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    info: JobInfo,
    /// What it is doing; `null` if its launcher does not answer.
    status: Option<Status>,
}

pub(crate) fn list(json: bool) -> Result<Exit, CliError> {
    let mut listed = Vec::new();
    for info in registry::jobs()? {
        let status = match ask(&info, Request::Status) {
            Ok(Answer::Status(status)) => Some(status),
            _ if !is_alive(info.pid) => {
                // Its launcher and the guard were killed together.
                registry::remove_abandoned(transport::JobId(
                    u128::from_str_radix(&info.job, 16).unwrap_or(0),
                ));
                continue;
            }
            _ => None,
        };
        listed.push(Listed { info, status });
    }
    if json {
        print_json(&serde_json::json!({ "jobs": listed }))?;
        return Ok(Exit::Success);
    }
    say!(
        "{:<8}  {:>7}  {:>5}  {:<11}  {:>11}  {:>9}  COMMAND",
        "JOB",
        "PID",
        "RANKS",
        "PHASE",
        "GENERATIONS",
        "ROLLBACKS"
    )?;
    for Listed { info, status } in listed {
        let (phase, commits, rollbacks) = match &status {
            Some(status) => (status.phase.as_str(), status.commits.to_string(), status.rollbacks.to_string()),
            None => ("silent", "-".to_owned(), "-".to_owned()),
        };
        let command = info.command.join(" ");
        let job = info.job.get(..8).unwrap_or(&info.job);
        say!(
            "{job:<8}  {:>7}  {:>5}  {phase:<11}  {commits:>11}  {rollbacks:>9}  {command}",
            info.pid,
            info.ranks
        )?;
    }
    Ok(Exit::Success)
}

pub(crate) fn checkpoint(job: &str, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(job)?;
    let answer = ask(&info, Request::Checkpoint)?;
    if json {
        print_json(&answer)?;
    }
    match answer {
        Answer::Committed { generation, milliseconds, bytes } => {
            if !json {
                say!("generation {generation} committed after {milliseconds} ms, {}", text::bytes(bytes))?;
            }
            Ok(Exit::Success)
        }
        Answer::Failed { reason } => Err(CliError::CheckpointFailed { reason }),
        Answer::Status(_) | Answer::Stopping => {
            Err(CliError::CheckpointFailed { reason: "the job is ending".to_owned() })
        }
    }
}

pub(crate) fn kill(job: &str, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(job)?;
    let answer = ask(&info, Request::Stop)?;
    if json {
        print_json(&answer)?;
    }
    Ok(Exit::Success)
}

fn is_alive(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok())
}
