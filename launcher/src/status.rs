//! A job's status, as its launcher reports it to people's commands.

use std::time::Instant;

use ckpt_glue::control::{ImageReport, JobPhase, JobStatus};
use ckpt_glue::keeper::RankPhase;
use serde::{Deserialize, Serialize};

/// A job's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// What the job is doing.
    pub phase: String,
    pub(crate) life: Option<String>,
    pub(crate) committed: Option<String>,
    /// Milliseconds since the last generation was committed; `None` if none has been since the launcher started.
    pub committed_ms_ago: Option<u64>,
    /// Generations that this run has committed.
    pub commits: u32,
    /// How often this run has rolled back.
    pub rollbacks: u32,
    pub(crate) ranks: u32,
    pub(crate) running: u32,
    pub(crate) finalizing: u32,
    pub(crate) saving: Option<u32>,
    /// Checkpoints have failed since the last one that was committed.
    pub failing: Option<Failing>,
    /// Nodes that may be gone.
    pub suspected: Vec<SuspectedNode>,
    /// Suspicions of nodes that were there, by monitor, since the launcher started.
    pub false_alarms: FalseAlarms,
    /// Its ranks.
    pub each_rank: Vec<RankStatus>,
}

/// Checkpoints that fail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failing {
    /// How many in a row.
    pub times: u64,
    /// Why the last one has.
    pub reason: String,
    /// Milliseconds since then.
    pub ms_ago: u64,
}

/// A node that may be gone (R33).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuspectedNode {
    /// Where it is.
    pub host: String,
    /// The monitors that suspect it: `heartbeats`, `probe`, `data-path`.
    pub by: Vec<String>,
    /// Milliseconds since the first of them did.
    pub ms_ago: u64,
}

/// How often each monitor has suspected a node that was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FalseAlarms {
    /// Heartbeats between keepers.
    pub heartbeats: u64,
    /// Questions of the launcher.
    pub probe: u64,
    /// The data network between ranks.
    #[serde(rename = "data-path")]
    pub data_path: u64,
}

/// A rank's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankStatus {
    /// The rank.
    pub rank: u32,
    /// `None`: no process of it runs.
    pub pid: Option<u32>,
    /// Where it runs.
    pub host: String,
    /// What it is doing.
    pub state: String,
    /// Over which NIC it reaches other hosts, and how, or why over no other; `None`: it has not reported that.
    pub nic: Option<String>,
    /// The last one that it has reported.
    pub epoch: u32,
    /// How long it stood still for the last generation that was committed.
    pub pause_ns: Option<u64>,
    /// The size of its image in that.
    pub image_bytes: Option<u64>,
}

/// The last generation that a launcher has seen committed.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub(crate) at: Instant,
    pub(crate) images: Vec<ImageReport>,
}

impl Status {
    pub(crate) fn of(status: &JobStatus, saved: Option<&Saved>, each_rank: Vec<RankStatus>) -> Status {
        let phase = match status.phase {
            JobPhase::Gathering => "gathering",
            JobPhase::Fencing => "fencing",
            JobPhase::BackingOff => "backing-off",
            JobPhase::Deciding => "deciding",
            JobPhase::Starting => "starting",
            JobPhase::Running => "running",
            JobPhase::Finishing => "finishing",
            JobPhase::Over => "over",
        };
        let ago = saved.map(|saved| saved.at.elapsed().as_millis());
        Status {
            phase: phase.to_owned(),
            life: status.life.map(|life| life.to_string()),
            committed: status.committed.map(|generation| generation.to_string()),
            committed_ms_ago: ago.map(|ago| u64::try_from(ago).unwrap_or(u64::MAX)),
            commits: status.commits,
            rollbacks: status.rollbacks,
            ranks: status.ranks,
            running: status.running,
            finalizing: status.finalizing,
            saving: status.saving.map(|epoch| epoch.0),
            failing: None,
            suspected: Vec::new(),
            false_alarms: FalseAlarms::default(),
            each_rank,
        }
    }
}

pub(crate) fn state(phase: RankPhase) -> &'static str {
    match phase {
        RankPhase::Spawning | RankPhase::Attached => "starting",
        RankPhase::Running => "running",
        RankPhase::Finalizing => "finishing",
        RankPhase::Exited(_) => "ended",
        RankPhase::Dead => "dead",
    }
}
