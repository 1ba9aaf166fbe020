//! `stillwire doctor`: the libraries that a program would really run over, the features that the machine allows, and the cure of each problem.

mod key;
mod machine;
pub(crate) mod probe;
mod process;
mod program;

use std::ffi::OsString;

use launcher::mpi::provider;
use serde::Serialize;

use super::{print_json, say};
use crate::arguments::MpiArguments;
use crate::error::CliError;
use crate::exit::Exit;

/// How something stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Ok,
    /// It works, and could work better.
    Slow,
    /// It does not work.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    what: &'static str,
    state: State,
    found: String,
    /// The cure, unless all is well.
    fix: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Finding {
        Finding { what, state: State::Ok, found: found.into(), fix: None }
    }

    fn slow(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { what, state: State::Slow, found: found.into(), fix: Some(fix.into()) }
    }

    fn problem(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { what, state: State::Problem, found: found.into(), fix: Some(fix.into()) }
    }
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    findings: Vec<Finding>,
    problems: usize,
}

pub(crate) fn doctor(command: Vec<OsString>, mpi: &MpiArguments, json: bool) -> Result<Exit, CliError> {
    let mut findings = Vec::new();
    let provider = provider::find(None);
    findings.push(match &provider {
        Ok(path) => Finding::ok("provider", path.display().to_string()),
        Err(error) => Finding::problem(
            "provider",
            error.to_string(),
            "cargo build --release --package stillwire-provider, or set STILLWIRE_PROVIDER",
        ),
    });
    let provider = provider.ok();
    if command.is_empty() {
        findings.extend(program::fabric_of_the_system(provider.as_deref()));
    } else {
        findings.extend(program::look(command, mpi, provider.as_deref())?);
    }
    findings.push(key::look());
    findings.extend(machine::look()?);
    report(findings, json)
}

/// Whether a process that runs could be saved.
pub(crate) fn process(pid: u32, json: bool) -> Result<Exit, CliError> {
    report(process::look(pid), json)
}

fn report(findings: Vec<Finding>, json: bool) -> Result<Exit, CliError> {
    let problems = findings.iter().filter(|finding| finding.state == State::Problem).count();
    if json {
        print_json(&DoctorReport { findings, problems })?;
    } else {
        print(&findings)?;
    }
    Ok(if problems == 0 { Exit::Success } else { Exit::Unverified })
}

fn print(findings: &[Finding]) -> Result<(), CliError> {
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    for Finding { what, state, found, fix } in findings {
        let state = match state {
            State::Ok => "ok",
            State::Slow => "slow",
            State::Problem => "PROBLEM",
        };
        say!("{state:8} {what:width$}  {found}")?;
        if let Some(fix) = fix {
            say!("{:8} {:width$}  -> {fix}", "", "")?;
        }
    }
    Ok(())
}
