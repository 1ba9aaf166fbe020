//! Commands to running jobs: `ps`, `checkpoint`, `rail`, `kill`.

use std::str::FromStr;

use clap::Args;
use drivers::NicChoice;
use launcher::error::LauncherError;
use launcher::registry::{self, JobInfo};
use launcher::requests::{Answer, Committed, RailOutcome, Request, ask};
use launcher::status::{RankStatus, Status};
use launcher::text;
use serde::Serialize;

use super::{print_json, say};
use crate::arguments::{JobArgument, nic_argument};
use crate::background::watched_jobs;
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(crate) struct RailArguments {
    #[command(flatten)]
    pub(crate) job: JobArgument,
    /// The NIC, as for `run`: udp, udp:INTERFACE, xdp:INTERFACE, verbs, verbs:DEVICE, or auto
    #[arg(long, value_name = "NIC", value_parser = nic_argument)]
    pub(crate) nic: NicChoice,
    /// Number of the rank that changes, or all
    #[arg(long, value_name = "R", default_value = "all")]
    pub(crate) rank: RankArgument,
}

/// One rank, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RankArgument(pub(crate) Option<u32>);

impl FromStr for RankArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<RankArgument, String> {
        if text == "all" {
            return Ok(RankArgument(None));
        }
        let number = text.parse().map_err(|_| format!("expected a rank's number, or all, found `{text}`"))?;
        Ok(RankArgument(Some(number)))
    }
}

/// Ranks of a job that have a line each; of more, those that do the same share one.
const RANKS_SHOWN_MAX: usize = 16;

/// A job, as `ps --json` prints it.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    info: JobInfo,
    /// Its status; `null` if its launcher does not answer.
    status: Option<Status>,
}

pub(crate) fn list(json: bool) -> Result<Exit, CliError> {
    let mut listed = Vec::new();
    for info in registry::jobs()? {
        let status = match ask(&info, &Request::Status) {
            Ok(Answer::Status(status)) => Some(*status),
            _ if !is_alive(info.pid) => {
                // Its launcher and the guard were killed together.
                let job = u128::from_str_radix(&info.job, 16).unwrap_or(0);
                registry::remove_abandoned(transport::JobId(job), info.pid);
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
        "{:<8}  {:>7}  {:<11}  {:>11}  {:>10}  {:>9}  COMMAND",
        "JOB",
        "PID",
        "PHASE",
        "GENERATIONS",
        "COMMITTED",
        "ROLLBACKS"
    )?;
    for Listed { info, status } in listed {
        let job = info.job.get(..8).unwrap_or(&info.job);
        let (pid, command) = (info.pid, info.command.join(" "));
        let Some(status) = status else {
            say!("{job:<8}  {pid:>7}  {:<11}  {:>11}  {:>10}  {:>9}  {command}", "silent", "-", "-", "-")?;
            continue;
        };
        let ago =
            status.committed_ms_ago.map(|ms| format!("{} ago", text::nanos(ms.saturating_mul(1_000_000))));
        let (phase, ago) = (&status.phase, ago.unwrap_or_else(|| "-".to_owned()));
        let (commits, rollbacks) = (status.commits, status.rollbacks);
        say!("{job:<8}  {pid:>7}  {phase:<11}  {commits:>11}  {ago:>10}  {rollbacks:>9}  {command}")?;
        for line in rank_lines(&status.each_rank) {
            say!("{line}")?;
        }
        if status.checkpoints.comes_by_itself() {
            say!("  {}", status.checkpoints.words())?;
        }
        for suspect in &status.suspected {
            let ago = text::nanos(suspect.ms_ago.saturating_mul(1_000_000));
            say!("  {} may be gone: suspected for {ago} ({})", suspect.host, suspect.by.join(", "))?;
        }
        if let Some(failing) = &status.failing {
            let ago = text::nanos(failing.ms_ago.saturating_mul(1_000_000));
            let (times, reason) = (failing.times, &failing.reason);
            say!("  {times} checkpoints failed since the last commit, the last one {ago} ago: {reason}")?;
        }
    }
    Ok(Exit::Success)
}

/// Ranks of a job, each in a line of its own, or, of many, those beside each other that do the same in one.
fn rank_lines(ranks: &[RankStatus]) -> Vec<String> {
    let alike = |a: &RankStatus, b: &RankStatus| {
        ranks.len() > RANKS_SHOWN_MAX
            && (&a.state, a.epoch, &a.host, &a.nic) == (&b.state, b.epoch, &b.host, &b.nic)
    };
    let line = |ranks: &[RankStatus]| {
        let [first, .., last] = ranks else { return ranks.first().map(one_rank) };
        let pause = ranks.iter().filter_map(|rank| rank.pause_ns).max().map_or("-".to_owned(), text::nanos);
        let bytes = ranks.iter().filter_map(|rank| rank.image_bytes).sum();
        let nic = first.nic.as_ref().map_or_else(String::new, |nic| format!("  over {nic}"));
        let RankStatus { host, state, epoch, .. } = first;
        let (from, to, bytes) = (first.rank, last.rank, text::bytes(bytes));
        Some(format!(
            "  ranks {from} to {to}  {host}  {state}  epoch {epoch}  longest pause {pause}  images {bytes} in all{nic}"
        ))
    };
    ranks.chunk_by(alike).filter_map(line).collect()
}

fn one_rank(rank: &RankStatus) -> String {
    let pid = rank.pid.map_or("-".to_owned(), |pid| pid.to_string());
    let pause = rank.pause_ns.map_or("-".to_owned(), text::nanos);
    let bytes = rank.image_bytes.map_or("-".to_owned(), text::bytes);
    let nic = rank.nic.as_ref().map_or_else(String::new, |nic| format!("  over {nic}"));
    let RankStatus { rank, host, state, epoch, .. } = rank;
    format!(
        "  rank {rank:<4}  {pid:>7}  {host}  {state:<9}  epoch {epoch:<4}  pause {pause:>8}  image {bytes:>9}{nic}"
    )
}

pub(crate) fn checkpoint(job: &str, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(job)?;
    let answer = ask(&info, &Request::Checkpoint)?;
    if json {
        print_json(&answer)?;
    }
    match answer {
        Answer::Committed(committed) => {
            if !json {
                say!("{}", committed_words(&committed))?;
            }
            Ok(Exit::Success)
        }
        Answer::Failed { reason } => Err(CliError::CheckpointFailed { reason }),
        _ => Err(CliError::CheckpointFailed { reason: "the job is ending".to_owned() }),
    }
}

fn committed_words(committed: &Committed) -> String {
    let Committed { generation, milliseconds, bytes, pause_ns, written_ms, protected_ms, .. } = committed;
    let protected = protected_ms.map_or_else(String::new, |ms| format!(", protected after {ms} ms"));
    format!(
        "generation {generation} committed after {milliseconds} ms, {} (longest pause {}, written after {written_ms} ms{protected})",
        text::bytes(*bytes),
        text::nanos(*pause_ns)
    )
}

pub(crate) fn rail(arguments: &RailArguments, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(&arguments.job.job)?;
    let RankArgument(rank) = arguments.rank;
    let answer = ask(&info, &Request::Rail { rank, nic: arguments.nic.to_string() })?;
    if json {
        print_json(&answer)?;
    }
    let ranks = match answer {
        Answer::Rails { ranks } => ranks,
        Answer::Failed { reason } => return Err(CliError::NotMoved { reason }),
        _ => return Err(CliError::NotMoved { reason: "the job is ending".to_owned() }),
    };
    let refused = ranks.iter().filter(|outcome| outcome.refused.is_some()).count();
    if !json {
        for RailOutcome { rank, nic, refused } in &ranks {
            let nic = nic.as_deref().unwrap_or("-");
            match refused {
                None => say!("rank {rank}  over {nic}")?,
                Some(why) => say!("rank {rank}  over {nic}  refused: {why}")?,
            }
        }
    }
    if refused == 0 {
        return Ok(Exit::Success);
    }
    let reason = format!("{refused} of {} ranks do not go over {}", ranks.len(), arguments.nic);
    Err(CliError::NotMoved { reason })
}

pub(crate) fn kill(job: &str, json: bool) -> Result<Exit, CliError> {
    let answer = match registry::find(job).and_then(|info| ask(&info, &Request::Stop)) {
        Ok(answer) => answer,
        Err(error @ LauncherError::JobAmbiguous { .. }) => return Err(error.into()),
        // Between two launchers it has none to be asked.
        Err(error) if !watched_jobs::stop(job)? => return Err(error.into()),
        Err(_) => Answer::Stopping,
    };
    if json {
        print_json(&answer)?;
    }
    Ok(Exit::Success)
}

fn is_alive(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, state: &str) -> RankStatus {
        let pid = (state != "ended").then_some(1000 + rank);
        let saved = Some(u64::from(rank) * 1_000_000);
        let (host, state) = ("node1".to_owned(), state.to_owned());
        let nic = Some("udp".to_owned());
        RankStatus { rank, pid, host, state, nic, epoch: 7, pause_ns: saved, image_bytes: Some(1 << 20) }
    }

    #[test]
    fn ranks_of_a_large_job_that_do_the_same_are_one_line() {
        let few: Vec<RankStatus> = (0..4).map(|number| rank(number, "running")).collect();
        assert_eq!(rank_lines(&few).len(), 4);
        let mut many: Vec<RankStatus> = (0..4096).map(|number| rank(number, "running")).collect();
        many[100] = rank(100, "ended");
        let lines = rank_lines(&many);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(
            lines[0],
            "  ranks 0 to 99  node1  running  epoch 7  longest pause 99.0 ms  images 100.0 MiB in all  over udp"
        );
        assert!(lines[1].starts_with("  rank 100         -  node1  ended "), "{lines:?}");
        assert!(lines[2].starts_with("  ranks 101 to 4095  "), "{lines:?}");
        assert_eq!(rank_lines(&[]), [] as [String; 0]);
    }
}
