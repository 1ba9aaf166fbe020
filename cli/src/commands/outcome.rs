//! How a job has ended: its exit code, and its report.

use std::ffi::OsStr;
use std::time::Duration;

use ckpt_glue::control::FaultReport;
use ckpt_glue::job::StopCause;
use ckpt_glue::names::ExitStatus;
use ckpt_glue::recovery::{Ending, StopReason};
use ckpt_glue::write_duration;
use launcher::text;
use launcher::{Flush, Outcome, Plan, Saves};
use serde::Serialize;

use crate::exit::Exit;

/// The result of a job, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    pub(crate) job: String,
    pub(crate) directory: String,
    /// `finished`, `stopped`, `time-limit` (and all is saved) or `failed`.
    pub(crate) outcome: &'static str,
    /// Unless it finished: why it ended.
    pub(crate) reason: Option<String>,
    /// The newest committed generation.
    pub(crate) committed: Option<String>,
    /// The newest generation of which this run has made a copy outside the nodes.
    pub(crate) copied: Option<String>,
    /// Generations committed.
    pub(crate) generations: u32,
    pub(crate) rollbacks: u32,
    /// The exit code that a shell sees.
    pub(crate) exit_code: u8,
    pub(crate) seconds: f64,
    /// How whole processes are captured: `auto`, `fork`, `scan`, `content` or `sync`; `null`: none is.
    pub(crate) capture: Option<String>,
    /// The MPI library that programs got in place of their own (--mpi-from).
    pub(crate) mpi_from: Option<String>,
    /// Why checkpoints have failed.
    pub(crate) failed_checkpoints: Vec<FailedCheckpoints>,
    /// Problems that have not made the job fail.
    pub(crate) warnings: Vec<String>,
}

/// Checkpoints that have failed for one reason: those whose reasons differ in numbers alone.
#[derive(Debug, Serialize)]
pub(crate) struct FailedCheckpoints {
    /// The last of them.
    pub(crate) reason: String,
    pub(crate) times: u64,
}

pub(crate) fn exit_of(outcome: &Outcome) -> Exit {
    if let Some(verdict) = &outcome.verdict {
        return verdict.exit_code.map_or(Exit::JobFailed, Exit::Program);
    }
    match outcome.report.ending {
        Ending::Finished => Exit::Success,
        Ending::Stopped => match outcome.report.stopped_by {
            Some(StopCause::TimeLimit { unsaved: None }) => Exit::TimeLimit,
            Some(StopCause::TimeLimit { unsaved: Some(_) }) => Exit::JobFailed,
            Some(StopCause::Person) | None => Exit::Stopped,
        },
        Ending::Failed { fault: Some(fault), reason } if is_of_program(reason) => program_exit(&fault.report),
        Ending::Failed { .. } => Exit::JobFailed,
    }
}

/// Whether the job has ended because of its last fault, and not because it could not be recovered.
fn is_of_program(reason: StopReason) -> bool {
    match reason {
        StopReason::OnFaultAbort
        | StopReason::ProgramAborted
        | StopReason::ProgramExited
        | StopReason::AttemptsUsedUp { .. } => true,
        StopReason::NotAllConnected
        | StopReason::Inconsistent
        | StopReason::NoMajority { .. }
        | StopReason::NodesMissing { .. }
        | StopReason::StoreSilent
        | StopReason::NothingToRestore
        | StopReason::Policy { .. }
        | StopReason::NoOtherHost { .. } => false,
    }
}

/// The exit of the program itself, as a shell would see it: its exit code, or 128 plus its signal. Otherwise `JobFailed`.
fn program_exit(report: &FaultReport) -> Exit {
    match report {
        FaultReport::Aborted { code: code @ 1.., .. }
        | FaultReport::RankDied { status: ExitStatus::Code(code @ 1..), .. } => Exit::Program(*code),
        FaultReport::RankDied { status: ExitStatus::Signal(number @ 1..), .. } => {
            Exit::Program(number.saturating_add(128))
        }
        _ => Exit::JobFailed,
    }
}

pub(crate) fn summarize(plan: &Plan, outcome: &Outcome, took: Duration) -> RunReport {
    let exit_code = exit_of(outcome).code();
    let Outcome { report, is_mpi, verdict, warnings, copied, failing, unsaved, .. } = outcome;
    let (outcome, reason) = match report.ending {
        _ if verdict.is_some() => ("failed", verdict.as_ref().map(|verdict| verdict.words.clone())),
        Ending::Finished => ("finished", None),
        Ending::Stopped => match report.stopped_by {
            Some(StopCause::TimeLimit { unsaved }) => {
                let limit = plan.config.time_limit.map(write_duration).unwrap_or_default();
                let outcome = if unsaved.is_none() { "time-limit" } else { "failed" };
                let words = text::time_limit(
                    &limit,
                    unsaved.as_ref(),
                    failing.as_deref(),
                    report.committed.is_some(),
                );
                (outcome, Some(words))
            }
            Some(StopCause::Person) | None => ("stopped", Some("the job was stopped".to_owned())),
        },
        Ending::Failed { fault: Some(fault), reason: StopReason::OnFaultAbort }
            if *is_mpi && plan.saves != Saves::Process =>
        {
            let fault = text::report(&fault.report);
            let why = "an MPI program that was started without checkpoints cannot be rolled back";
            ("failed", Some(format!("{fault}; the job ends: {why}")))
        }
        Ending::Failed {
            fault: Some(fault),
            reason: StopReason::ProgramExited | StopReason::ProgramAborted,
        } => {
            let code = exit_of_report(&fault.report);
            ("failed", Some(format!("{}; the job ends{code}", text::report(&fault.report))))
        }
        Ending::Failed { fault, reason } => {
            let fault = fault
                .map_or_else(|| "the job could not start".to_owned(), |fault| text::report(&fault.report));
            let elsewhere = match &plan.flush {
                Some(Flush { to, .. }) if reason == StopReason::NothingToRestore => {
                    let path = plan.directory.display();
                    format!("; if there is a copy, `stillwire restart {path} --from {to}` brings it")
                }
                _ => String::new(),
            };
            ("failed", Some(format!("{fault}; the job ends: {}{elsewhere}", text::stop_reason(reason))))
        }
    };
    RunReport {
        job: plan.job.to_string(),
        directory: plan.directory.display().to_string(),
        outcome,
        reason,
        committed: report.committed.map(|generation| generation.to_string()),
        copied: copied.map(|generation| generation.to_string()),
        generations: report.commits,
        rollbacks: report.rollbacks,
        exit_code,
        seconds: took.as_secs_f64(),
        capture: (plan.saves == Saves::Process).then(|| {
            let wish = plan.program.variable(OsStr::new(agent::CAPTURE_VARIABLE));
            wish.map_or_else(|| "auto".to_owned(), |wish| wish.to_string_lossy().into_owned())
        }),
        mpi_from: plan.replacement.as_ref().map(|given| given.library.display().to_string()),
        failed_checkpoints: unsaved
            .iter()
            .map(|(reason, times)| FailedCheckpoints { reason: reason.clone(), times: *times })
            .collect(),
        warnings: warnings.clone(),
    }
}

/// The code with which the job ends, if it is the program's own.
fn exit_of_report(report: &FaultReport) -> String {
    match program_exit(report) {
        Exit::Program(code) => format!(" with code {code}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use ckpt_glue::job::FinalReport;
    use ckpt_glue::recovery::{Confidence, Fault, FaultModel, FaultSite};
    use transport::Rank;

    use super::*;

    fn failed(report: FaultReport, is_mpi: bool) -> Outcome {
        let (model, site, confidence) = (FaultModel::Process, FaultSite::Job, Confidence::Certain);
        let fault = Some(Fault { model, site, confidence, report });
        let ending = Ending::Failed { fault, reason: StopReason::OnFaultAbort };
        let status = ExitStatus::Code(0);
        let report =
            FinalReport { ending, stopped_by: None, status, committed: None, commits: 0, rollbacks: 0 };
        Outcome {
            report,
            is_mpi,
            verdict: None,
            unsaved: Vec::new(),
            failing: None,
            warnings: Vec::new(),
            copied: None,
            repairs: Default::default(),
            is_interrupted: false,
        }
    }

    #[test]
    fn the_exit_code_is_the_program_s_whatever_the_program_is() {
        let rank = Rank(1);
        for is_mpi in [false, true] {
            for (report, code) in [
                (FaultReport::RankDied { rank, status: ExitStatus::Code(3) }, 3),
                (FaultReport::RankDied { rank, status: ExitStatus::Code(0) }, 4),
                (FaultReport::RankDied { rank, status: ExitStatus::Signal(9) }, 137),
                (FaultReport::Aborted { rank, code: 255 }, 255),
                (FaultReport::StartTimedOut { running: 0, ranks: 2 }, 4),
                (FaultReport::RankNotRestored { rank, status: ExitStatus::Code(126) }, 4),
            ] {
                assert_eq!(exit_of(&failed(report, is_mpi)).code(), code, "{report:?}, {is_mpi}");
            }
        }
    }
}
