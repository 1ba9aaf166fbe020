//! A job's status, as its launcher reports it to people's commands.

use std::time::{Duration, Instant};

use ckpt_glue::control::{ImageReport, JobPhase, JobStatus};
use ckpt_glue::interval::{Bound, Estimate, Every};
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::recovery::Policy;
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
    /// When checkpoints are taken.
    pub checkpoints: Checkpoints,
    /// Checkpoints have failed since the last one that was committed.
    pub failing: Option<Failing>,
    /// Which faults there are, and the reactions to them.
    pub recovery: Policy,
    /// Nodes that may be gone.
    pub suspected: Vec<SuspectedNode>,
    /// Suspicions of nodes that were there, by monitor, since the launcher started.
    pub false_alarms: FalseAlarms,
    /// Its ranks.
    pub each_rank: Vec<RankStatus>,
}

/// When checkpoints are taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Checkpoints {
    /// A time, `auto`, or `off`: only on request.
    pub every: String,
    /// For `auto`: the time, and what it was chosen from.
    pub chosen: Option<ChosenInterval>,
}

/// A time between checkpoints that the job has chosen itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChosenInterval {
    /// From the beginning of one checkpoint to that of the next.
    pub every_ms: u64,
    /// By how much one delays the program; `None`: none has been measured.
    pub cost_us: Option<u64>,
    /// Expected time between two failures of the job.
    pub mtbf_ms: u64,
    /// What makes it other than the cheapest time: `budget`, `duration` of a checkpoint, `range` of times that are chosen, or `failing` checkpoints.
    pub bound: Option<String>,
}

impl Checkpoints {
    /// As a person has asked for them.
    #[must_use]
    pub fn asked(every: Every) -> Checkpoints {
        Checkpoints { every: every.to_string(), chosen: None }
    }

    /// As the job has chosen.
    #[must_use]
    pub fn chosen(estimate: Estimate) -> Checkpoints {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bound = estimate.bound.map(|bound| match bound {
            Bound::Budget => "budget",
            Bound::Duration => "duration",
            Bound::Range => "range",
            Bound::Failing => "failing",
        });
        let chosen = ChosenInterval {
            every_ms: ms(estimate.every),
            cost_us: estimate.cost.map(|cost| u64::try_from(cost.as_micros()).unwrap_or(u64::MAX)),
            mtbf_ms: ms(estimate.mtbf),
            bound: bound.map(str::to_owned),
        };
        Checkpoints { every: Every::Auto.to_string(), chosen: Some(chosen) }
    }

    /// Whether they are taken without a request.
    #[must_use]
    pub fn comes_by_itself(&self) -> bool {
        self.every != Every::OnRequest.to_string()
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let Some(chosen) = &self.chosen else {
            return match self.every.as_str() {
                "off" => "checkpoints only on request".to_owned(),
                "auto" => "checkpoints at intervals that the job chooses".to_owned(),
                every => format!("checkpoints every {every}"),
            };
        };
        let every = time(chosen.every_ms.saturating_mul(1000));
        let bound = match chosen.bound.as_deref() {
            Some("budget") => ", which the budget makes longer",
            Some("duration") => ", twice as long as one takes",
            Some("range") => ", the limit of chosen intervals",
            Some("failing") => ", because the last ones failed",
            _ => "",
        };
        let Some(cost_us) = chosen.cost_us else {
            return format!("checkpoints every {every}{bound}, until the cost of one is measured");
        };
        format!(
            "checkpoints every {every}{bound} (each costs the program {}; a failure is expected every {})",
            time(cost_us),
            time(chosen.mtbf_ms.saturating_mul(1000))
        )
    }
}

fn time(us: u64) -> String {
    if us < 60_000_000 { console::nanos(us * 1000) } else { console::seconds(Duration::from_micros(us)) }
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
            checkpoints: Checkpoints::asked(Every::OnRequest),
            failing: None,
            recovery: Policy::default(),
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
