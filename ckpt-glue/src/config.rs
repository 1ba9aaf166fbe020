//! A job's settings of checkpoints and recovery, as they stand in its job file. The launcher sets those that it has options
//! for: `every`, `timeout`, `policy`, `on_fault`, `on_exit`, `restarts_max`, `start_timeout`, `time_limit`. The others have their defaults; they are here for the machines,
//! which the simulator runs with other values too.
//!
//! ```json
//! { "checkpoint": { "protocol": "coordinated", "every": "5m", "timeout": "1m" },
//!   "fault":      { "policy": { "on": { "repeated": "restart" } }, "on_fault": "restart", "restarts_max": 5 } }
//! ```
//!
//! Every field has a default; unknown fields are refused, so that a misspelt one is noticed.

use alloc::string::{String, ToString as _};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::Watch;
use crate::duration::{optional_text, text, write_duration};
use crate::error::ConfigError;
use crate::interval::{Every, MTBF_MIN, Percentage};
use crate::limits::{
    BACK_OFF_MAX, CHECKPOINT_EVERY_MIN, EARLIER_SILENCES, FAN_OUT_MAX, FENCE_MAX, HEARTBEAT_MIN,
    HEARTBEATS_MISSED_MIN, JOB_FILE_BYTES_MAX, RECONNECT_BEATS, REPLACE_SILENCES, RESTARTS_MAX,
};
use crate::protocols::CHECKPOINT_PROTOCOLS;
use crate::recovery::Policy;

/// The reaction to a detected fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFault {
    /// Roll back and go on.
    #[default]
    Restart,
    /// End the job with a report; its committed generations stay.
    Abort,
}

/// The reaction to a rank that ends by itself with an exit code, in the middle of its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExit {
    /// The job ends with that code: the program would end in the same way the next time.
    #[default]
    Fail,
    /// It is a fault as any other: [`OnFault`] sets the reaction.
    Restart,
}

/// How checkpoints are taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Name of the checkpoint protocol.
    pub protocol: String,
    /// When they are taken.
    pub every: Every,
    /// A person's figure of the job's mean time between failures, for [`Every::Auto`].
    #[serde(with = "optional_text")]
    pub mtbf: Option<Duration>,
    /// The largest part of the running time that checkpoints may cost, for [`Every::Auto`].
    pub budget: Percentage,
    /// Time for one checkpoint, from the command until all images are durable; then it is abandoned.
    #[serde(with = "text")]
    pub timeout: Duration,
}

impl Default for CheckpointConfig {
    fn default() -> CheckpointConfig {
        CheckpointConfig {
            protocol: "coordinated".to_string(),
            every: Every::OnRequest,
            mtbf: None,
            budget: Percentage(100_000),
            timeout: Duration::from_secs(60),
        }
    }
}

/// Which endings are faults, and the reaction to them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Models of faults, and the recovery protocols for each.
    pub policy: Policy,
    /// Whether to recover at all.
    pub on_fault: OnFault,
    /// Whether an exit code of a rank is a fault.
    pub on_exit: OnExit,
    /// Attempts to recover since the last committed generation, before the job gives up.
    pub restarts_max: u32,
    /// Pause before the second attempt in a row; doubled for each further one, up to [`BACK_OFF_MAX`].
    #[serde(with = "text")]
    pub back_off: Duration,
    /// Time for all ranks to connect once the first has, or since the start of a life that is restored; then the attempt counts as failed.
    #[serde(with = "text")]
    pub start_timeout: Duration,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            policy: Policy::default(),
            on_fault: OnFault::Restart,
            on_exit: OnExit::Fail,
            restarts_max: 5,
            back_off: Duration::from_millis(200),
            start_timeout: Duration::from_secs(60),
        }
    }
}

/// How keepers form a tree and watch each other; of no effect in a job of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeeperConfig {
    /// Children of one keeper.
    pub fan_out: u32,
    /// Time between heartbeats.
    #[serde(with = "text")]
    pub heartbeat: Duration,
    /// Heartbeats missed in a row after which a keeper counts as silent. Its own ranks have ended a little earlier: see `Watch`.
    pub heartbeats_missed_max: u32,
}

impl Default for KeeperConfig {
    fn default() -> KeeperConfig {
        KeeperConfig { fan_out: 16, heartbeat: Duration::from_millis(250), heartbeats_missed_max: 20 }
    }
}

impl KeeperConfig {
    /// The times, as keepers need them.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.heartbeat, self.heartbeat * self.heartbeats_missed_max)
    }

    /// Longest wait for keepers before the first fence of a restart, which waits for the others.
    #[must_use]
    pub fn restart_gather_max(&self) -> Duration {
        self.watch().beat() * RECONNECT_BEATS
    }

    /// The time in which a node has to answer a restart before its place is given to another host, if half of the nodes are there at once (R32).
    /// `former_silence`: the time-out of earlier launchers.
    #[must_use]
    pub fn restart_absence(&self, former_silence: Duration) -> Duration {
        let silence = self.watch().silence().max(former_silence);
        self.restart_gather_max() + silence.saturating_mul(EARLIER_SILENCES)
    }

    /// Longest wait for a node that does not answer: another host may take its place meanwhile, or its own may come back.
    #[must_use]
    pub fn absence_max(&self) -> Duration {
        self.watch().silence().saturating_mul(REPLACE_SILENCES + 1).max(FENCE_MAX)
    }
}

/// The fault-tolerance part of a job file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobConfig {
    /// How checkpoints are taken.
    pub checkpoint: CheckpointConfig,
    /// Which endings are faults, and the reaction to them.
    pub fault: FaultConfig,
    /// How keepers watch each other.
    pub keeper: KeeperConfig,
    /// Time from each start of the job until it has saved itself and ended; `None`: no limit.
    #[serde(with = "optional_text")]
    pub time_limit: Option<Duration>,
}

impl JobConfig {
    /// Reads the JSON of a job file and checks it.
    ///
    /// # Errors
    /// With the field, the expected and the found value.
    pub fn parse(json: &[u8]) -> Result<JobConfig, ConfigError> {
        if json.len() > JOB_FILE_BYTES_MAX {
            return Err(ConfigError::TooLong { expected: JOB_FILE_BYTES_MAX, found: json.len() });
        }
        // `serde` would take a list for an object whose fields are in the right order.
        if let Some(at) = json.iter().position(|byte| *byte == b'[') {
            let before = &json[..at];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            let column = 1 + before.iter().rev().take_while(|byte| **byte != b'\n').count();
            return Err(ConfigError::Syntax {
                line,
                column,
                what: "a list is not expected anywhere".to_string(),
            });
        }
        let config: JobConfig = serde_json::from_slice(json).map_err(|error| ConfigError::Syntax {
            line: error.line(),
            column: error.column(),
            what: error.to_string(),
        })?;
        config.validate()?;
        Ok(config)
    }

    /// The JSON that [`JobConfig::parse`] reads back.
    #[must_use]
    pub fn emit(&self) -> String {
        // Strings, numbers and options of them only: serialisation has nothing to fail at.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// With the first field that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let checkpoint = &self.checkpoint;
        component("checkpoint.protocol", &checkpoint.protocol, CHECKPOINT_PROTOCOLS)?;
        self.fault.policy.validate()?;
        let every = checkpoint.every.fixed().unwrap_or(CHECKPOINT_EVERY_MIN);
        range(every >= CHECKPOINT_EVERY_MIN, "checkpoint.every", "at least 1ms", &write_duration(every))?;
        let mtbf = checkpoint.mtbf.unwrap_or(MTBF_MIN);
        range(mtbf >= MTBF_MIN, "checkpoint.mtbf", "at least 1s", &write_duration(mtbf))?;
        let timeout = checkpoint.timeout;
        range(
            timeout >= CHECKPOINT_EVERY_MIN,
            "checkpoint.timeout",
            "at least 1ms",
            &write_duration(timeout),
        )?;
        let limit = self.time_limit.unwrap_or(CHECKPOINT_EVERY_MIN);
        range(limit >= CHECKPOINT_EVERY_MIN, "time_limit", "at least 1ms", &write_duration(limit))?;
        let fault = &self.fault;
        range(
            fault.restarts_max <= RESTARTS_MAX,
            "fault.restarts_max",
            "0 to 65536",
            &fault.restarts_max.to_string(),
        )?;
        let back_off = fault.back_off;
        range(back_off <= BACK_OFF_MAX, "fault.back_off", "at most 5s", &write_duration(back_off))?;
        let start = fault.start_timeout;
        range(start >= CHECKPOINT_EVERY_MIN, "fault.start_timeout", "at least 1ms", &write_duration(start))?;
        let keeper = &self.keeper;
        let fan_out = keeper.fan_out;
        range((1..=FAN_OUT_MAX).contains(&fan_out), "keeper.fan_out", "1 to 1024", &fan_out.to_string())?;
        let beat = keeper.heartbeat;
        range(beat >= HEARTBEAT_MIN, "keeper.heartbeat", "at least 1ms", &write_duration(beat))?;
        range(
            keeper.heartbeats_missed_max >= HEARTBEATS_MISSED_MIN,
            "keeper.heartbeats_missed_max",
            "at least 2",
            &keeper.heartbeats_missed_max.to_string(),
        )
    }
}

fn range(holds: bool, field: &'static str, expected: &'static str, found: &str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::Range { field, expected, found: found.to_string() }) }
}

/// `expected` lists the names between backticks.
fn component(field: &'static str, found: &str, expected: &'static str) -> Result<(), ConfigError> {
    if expected.split('`').skip(1).step_by(2).any(|name| name == found) {
        return Ok(());
    }
    Err(ConfigError::Component { field, expected, found: found.chars().take(40).collect() })
}
