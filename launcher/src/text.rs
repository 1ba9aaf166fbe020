//! Descriptions of a job's events, in words.

use std::time::Duration;

use ckpt_glue::control::{FaultReport, NoImageReason, Source};
use ckpt_glue::interval::Cause;
use ckpt_glue::job::Unsaved;
use ckpt_glue::names::ExitStatus;
use ckpt_glue::protocols::{AbandonReason, RefuseReason};
use ckpt_glue::recovery::{Plan, Price, RecoveryProtocol, StopReason};
use nix::errno::Errno;

pub use console::{bytes, nanos};

/// Who asked for a checkpoint.
pub fn source(source: Source) -> &'static str {
    match source {
        Source::Timer => "timer",
        Source::Signal => "signal",
        Source::Command => "command",
        Source::TimeLimit => "time limit",
    }
}

/// Why an interval is another one than before; `None`: nothing has changed.
pub fn cause(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::First => None,
        Cause::Failures => Some("the job fails more often than was expected"),
        Cause::NoFailures => Some("the job fails less often than was expected"),
        Cause::DearerCheckpoints => Some("a checkpoint costs more than before"),
        Cause::CheaperCheckpoints => Some("a checkpoint costs less than before"),
        Cause::FailedCheckpoints => Some("checkpoints fail"),
        Cause::CommittedCheckpoints => Some("checkpoints do not fail any more"),
    }
}

/// A fault, with the system's error in words.
pub fn report(report: &FaultReport) -> String {
    match report {
        FaultReport::RankNotStarted { rank, errno: number } => {
            format!("rank {rank} could not be started: {}", errno(*number))
        }
        FaultReport::DecisionFailed { errno: number } => {
            format!("the decision about the next life could not be written: {}", errno(*number))
        }
        FaultReport::StartTimedOut { running, ranks } => {
            format!("only {running} of {ranks} ranks ran in time (--start-timeout)")
        }
        FaultReport::RankDied { rank, status: ExitStatus::Code(0) } => {
            format!(
                "rank {rank} exited with code 0 before it had finished (MPI_Finalize, or the session's finalize)"
            )
        }
        FaultReport::RankDied { rank, status: ExitStatus::Code(code) } => {
            format!("rank {rank} exited with code {code}")
        }
        FaultReport::RankNotRestored { rank, status: how } => {
            format!("rank {rank} ended before it was restored ({})", status(*how))
        }
        report => report.to_string(),
    }
}

/// Why a checkpoint was abandoned.
pub fn abandoned(reason: &AbandonReason) -> String {
    match reason {
        AbandonReason::NoImage { rank, reason: NoImageReason::WriteFailed { errno: number } } => {
            format!("rank {rank} could not write its image: {}", errno(*number))
        }
        AbandonReason::NoImage { rank, reason: NoImageReason::Unsavable { .. } } => {
            format!("rank {rank} cannot be saved")
        }
        AbandonReason::NoImage { rank, reason } => format!("rank {rank} {reason}"),
        AbandonReason::TimedOut { images, ranks } => {
            format!(
                "only {images} of {ranks} images were durable in time: --ckpt-timeout gives them more, and a disk limit (--encode-budget disk=RATE) delays them"
            )
        }
        AbandonReason::CommitFailed { errno: number } => {
            format!("it could not be protected, or its record could not be written: {}", errno(*number))
        }
        AbandonReason::RankLost { rank } => format!("the job goes on without rank {rank}"),
        AbandonReason::Finishing => "the program has finished".to_owned(),
        AbandonReason::LifeOver => "its life is over".to_owned(),
    }
}

/// Why a checkpoint was refused.
pub fn refused(reason: RefuseReason) -> String {
    match reason {
        RefuseReason::NotRunning => {
            "not all ranks run: the job is starting, recovering or over, or its program opens no session; try again later"
        }
        RefuseReason::Finishing => "the program has finished: there is nothing left to save",
        RefuseReason::RankLost { rank } => {
            return format!(
                "the job goes on without rank {rank}, of which there can be no image; a restart brings it back"
            );
        }
        RefuseReason::NoAnswer => "not all ranks reported their progress in time; try again later",
        RefuseReason::EpochsUsedUp => {
            "the job has used up its epoch numbers and cannot be saved any more; it continues, and starts anew with `stillwire run`"
        }
    }
    .to_owned()
}

/// A time limit has ended a job. `failed`: why the last checkpoint has, in words of a rank; `any`: some generation is committed.
pub fn time_limit(limit: &str, unsaved: Option<&Unsaved>, failed: Option<&str>, any: bool) -> String {
    let why = match unsaved {
        None => return format!("the time limit of {limit} has come; the job is saved"),
        Some(Unsaved::Abandoned(reason)) => failed.map_or_else(|| abandoned(reason), str::to_owned),
        Some(Unsaved::Refused(reason)) => refused(*reason),
        Some(Unsaved::TooLate) => "it was not durable in time".to_owned(),
        Some(Unsaved::NotRunning) => {
            "not all ranks ran: the job was starting or rolling back, or its program never connected"
                .to_owned()
        }
    };
    let lost = if any { "the work since the checkpoint before it is lost" } else { "nothing is saved" };
    format!("the time limit of {limit} has come without a last checkpoint: {why}; {lost}")
}

/// Why the launcher ends a job.
pub fn stop_reason(reason: StopReason) -> String {
    match reason {
        StopReason::OnFaultAbort => "a fault ends it (--on-fault abort, and every MPI program without checkpoints)".to_owned(),
        StopReason::Policy { model } => format!("the reaction to {model} faults is stop (--recovery, `stillwire tune --on`)"),
        StopReason::NoOtherHost { node } => {
            format!("no other host can take the place of node {node}, and the job is not to go on without one")
        }
        StopReason::ProgramAborted | StopReason::ProgramExited => "the program ended itself".to_owned(),
        StopReason::NotAllConnected => "the next attempt would end in the same way".to_owned(),
        StopReason::AttemptsUsedUp { attempts } => {
            format!("{attempts} attempts to recover since the last checkpoint have failed (--retries)")
        }
        StopReason::Inconsistent => {
            "the saved state contradicts itself; restart from an older generation".to_owned()
        }
        StopReason::NoMajority { answered, needed } => {
            format!("{answered} node daemons (keepers) answer, {needed} are needed to decide")
        }
        StopReason::NodesMissing { answered, nodes } => format!("{answered} of {nodes} nodes answer"),
        StopReason::StoreSilent => "the job's directory could not be read; see the message above".to_owned(),
        StopReason::NothingToRestore => {
            "no generation is left that can be restored, and a job that has committed one does not begin anew by itself; `stillwire ls` shows what is there"
                .to_owned()
        }
    }
}

/// What follows a fault.
pub fn plan(plan: Plan) -> String {
    match plan {
        Plan::Ignore { .. } => {
            "the job goes on without it, and takes no more checkpoints (1 rank lost, 0 rolled back)"
                .to_owned()
        }
        Plan::Restart { after } => format!("rolling back{}", pause(after)),
        Plan::Migrate { node, after, .. } => {
            format!("rolling back{}, and another host is to take the place of node {node}", pause(after))
        }
        Plan::Stop { reason } => format!("ending the job: {}", stop_reason(reason)),
    }
}

fn pause(after: Duration) -> String {
    if after.is_zero() { String::new() } else { format!(" after a pause of {after:?}") }
}

/// What a recovery has cost besides its time.
pub fn price(price: &Price) -> String {
    let nodes: Vec<String> = price.moved.iter().map(ToString::to_string).collect();
    let ranks = match price.ranks {
        1 => "1 rank rolled back".to_owned(),
        ranks => format!("{ranks} ranks rolled back"),
    };
    match price.protocol {
        RecoveryProtocol::Migration => {
            let node = if nodes.len() == 1 { "node" } else { "nodes" };
            format!("{} fault, migration of {node} {}: {ranks}", price.model, nodes.join(", "))
        }
        protocol => format!("{} fault, {protocol}: {ranks}", price.model),
    }
}

/// The system's message for an error, without its number.
pub fn io(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned())
}

pub(crate) fn errno(number: u32) -> String {
    i32::try_from(number)
        .map_or_else(|_| format!("error {number}"), |number| Errno::from_raw(number).desc().to_owned())
}

/// How a process ended.
pub fn status(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal(number) => match nix::sys::signal::Signal::try_from(i32::from(number)) {
            Ok(signal) => signal.as_str().to_owned(),
            Err(_) => format!("signal {number}"),
        },
    }
}
