//! Jobs of many thousand ranks: one checkpoint in virtual time, messages counted as the machines send them.
//!
//! Two coordinators are compared. Ours is the production one: [`Job`](ckpt_glue::Job), [`Keeper`](ckpt_glue::Keeper)s in a tree,
//! [`Participant`](ckpt_glue::Participant)s, with the control frames that they would put on a wire. The other one is the same in everything, but each
//! rank flushes its channels before it cuts ([`flush`]): only the flush differs. [`costs`] lists the costs.
//!
//! Checkpoints are without faults, data traffic and heartbeats, and the start of the job is not counted. After them a job of several nodes loses one (`loss.rs`):
//! heartbeats and the circulating probe, the suspicion, the lost node's declaration, the end of all ranks, a spare host, the rebuild of its
//! images as the production machine of the nodes' directories asks for it, and the start of all ranks. [`costs`] lists the modelled costs and those that are left out.
//!
//! Markers grow with the square of the ranks. Up to [`EVENTS_RANKS_MAX`] ranks each is an event. Above, the machines still
//! send and take every marker, but when the last one reaches a rank is computed from the times at which the ranks begin,
//! without a queue; a test shows that both ways agree to the nanosecond.

mod agenda;
mod aggregate;
pub mod costs;
pub mod flush;
mod job;
mod loss;

use ckpt_glue::error::{ConfigError, LayoutError};
use serde::Serialize;

use crate::engine::queue::Nanos;
use job::{Flushing, LargeJob};

/// Most ranks for which each marker is an event: more do not fit into memory.
pub const EVENTS_RANKS_MAX: u32 = 2048;
/// Most nodes: each keeper knows the place of every node, so memory grows with the square.
pub const NODES_MAX: u32 = 4096;
/// Fewest ranks of a row.
pub const RANKS_MIN: u32 = 16;

/// The simulated job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Ranks of the largest job.
    pub ranks: u32,
    /// Ranks of a node.
    pub ranks_per_node: u32,
    /// Keepers below one keeper.
    pub fan_out: u32,
    /// Checkpoints, one after the other.
    pub checkpoints: u32,
}

/// Why a large job could not be simulated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScaleError {
    /// Too few, or too many.
    #[error("expected {RANKS_MIN} to {} ranks, found {found}", ckpt_glue::limits::RANKS_MAX)]
    Ranks {
        /// Ranks asked for.
        found: u32,
    },
    /// Too many keepers.
    #[error("expected at most {NODES_MAX} nodes, found {found}: put more ranks on each")]
    Nodes {
        /// Nodes that the ranks need.
        found: u32,
    },
    /// Nothing can be divided among no ranks.
    #[error("expected at least one checkpoint, found none")]
    Checkpoints,
    /// The layout cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The machines did not work as specified, in a world without faults.
    #[error("a job of {ranks} ranks did not {what}: a bug of the machines or of this simulation")]
    Machines {
        /// Ranks of the job.
        ranks: u32,
        /// The awaited event.
        what: &'static str,
    },
}

/// How markers were simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Markers {
    /// Each is an event.
    EventByEvent,
    /// Each is sent and taken by the machines; their times are computed.
    Aggregate,
}

/// Messages and times of one checkpoint of one coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Taken {
    /// Messages sent, markers included.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Markers among them.
    pub markers: u64,
    /// From the request until the coordinator knows that the commit record is durable.
    pub durable_ns: Nanos,
    /// Longest time that one rank stood still.
    pub still_ns: Nanos,
}

/// The loss of one node of a job of one size: heartbeats before it, and the recovery from it. Times run from the loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Loss {
    /// Messages that the launcher sends and takes in a second in which nothing happens. One that it passes from keeper to keeper is two.
    pub launcher_messages_per_s: u64,
    /// Their bytes.
    pub launcher_bytes_per_s: u64,
    /// Until the node is suspected.
    pub suspected_ns: Nanos,
    /// Until it is declared lost.
    pub declared_ns: Nanos,
    /// Until the next life is decided: all ranks have ended, and the lost images are rebuilt.
    pub decided_ns: Nanos,
    /// Until all ranks run again.
    pub running_ns: Nanos,
    /// Messages from the loss until then, heartbeats included.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A job of one size under both coordinators.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Row {
    /// Ranks.
    pub ranks: u32,
    /// Nodes, each with a keeper.
    pub nodes: u32,
    /// Ours.
    pub ours: Taken,
    /// The one that flushes.
    pub flush: Taken,
    /// How its markers were simulated.
    pub markers: Markers,
    /// The loss of a node. A job of one node has none to lose.
    pub loss: Option<Loss>,
}

/// All sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The requested value.
    pub settings: Settings,
    /// From small to large.
    pub rows: Vec<Row>,
    /// Ours: messages grow with this power of the ranks. One size alone has none.
    pub ours_exponent: Option<f64>,
    /// The one that flushes.
    pub flush_exponent: Option<f64>,
}

impl Settings {
    fn nodes(&self, ranks: u32) -> u32 {
        ranks.div_ceil(self.ranks_per_node.max(1))
    }

    /// The sizes: powers of two, and the largest.
    fn sizes(&self) -> Vec<u32> {
        let powers = (RANKS_MIN.ilog2()..32).map(|power| 1u32 << power);
        let mut sizes: Vec<u32> = powers.take_while(|ranks| *ranks < self.ranks).collect();
        sizes.push(self.ranks);
        sizes
    }

    fn validate(&self) -> Result<(), ScaleError> {
        let (ranks, nodes) = (self.ranks, self.nodes(self.ranks));
        if !(RANKS_MIN..=ckpt_glue::limits::RANKS_MAX).contains(&ranks) {
            return Err(ScaleError::Ranks { found: ranks });
        }
        if nodes > NODES_MAX {
            return Err(ScaleError::Nodes { found: nodes });
        }
        if self.checkpoints == 0 {
            return Err(ScaleError::Checkpoints);
        }
        Ok(())
    }
}

/// Checkpoints of jobs of all sizes under both coordinators; `done` gets each row.
///
/// # Errors
/// If the settings cannot be.
pub fn scale(settings: Settings, done: &mut dyn FnMut(&Row)) -> Result<Report, ScaleError> {
    settings.validate()?;
    let mut rows = Vec::new();
    for ranks in settings.sizes() {
        let (flushing, markers) = if ranks <= EVENTS_RANKS_MAX {
            (Flushing::EventByEvent, Markers::EventByEvent)
        } else {
            (Flushing::Aggregate, Markers::Aggregate)
        };
        let ours = take(&settings, ranks, Flushing::No)?;
        let flush = take(&settings, ranks, flushing)?;
        let nodes = settings.nodes(ranks);
        let loss = if nodes > 1 { Some(lose(&settings, ranks)?) } else { None };
        let row = Row { ranks, nodes, ours, flush, markers, loss };
        done(&row);
        rows.push(row);
    }
    let exponent = |messages: fn(&Row) -> u64| {
        let points: Vec<(f64, f64)> =
            rows.iter().map(|row| (logarithm(row.ranks.into()), logarithm(messages(row)))).collect();
        slope(&points)
    };
    let ours_exponent = exponent(|row| row.ours.messages);
    let flush_exponent = exponent(|row| row.flush.messages);
    Ok(Report { settings, rows, ours_exponent, flush_exponent })
}

/// The checkpoints of one job: messages of one of them, the longest times of all.
fn take(settings: &Settings, ranks: u32, flushing: Flushing) -> Result<Taken, ScaleError> {
    let mut job = LargeJob::start(ranks, settings.nodes(ranks), settings.fan_out, flushing)?;
    let mut all = Taken::default();
    for _ in 0..settings.checkpoints {
        let one = job.checkpoint()?;
        all = Taken {
            durable_ns: all.durable_ns.max(one.durable_ns),
            still_ns: all.still_ns.max(one.still_ns),
            messages: all.messages + one.messages,
            bytes: all.bytes + one.bytes,
            markers: all.markers + one.markers,
        };
    }
    let checkpoints = u64::from(settings.checkpoints);
    Ok(Taken {
        messages: all.messages / checkpoints,
        bytes: all.bytes / checkpoints,
        markers: all.markers / checkpoints,
        ..all
    })
}

/// A checkpoint of one job, and then the loss of a node.
fn lose(settings: &Settings, ranks: u32) -> Result<Loss, ScaleError> {
    let mut job = LargeJob::start(ranks, settings.nodes(ranks), settings.fan_out, Flushing::No)?;
    job.checkpoint()?;
    match job.committed {
        Some(generation) => job.lose_node(generation),
        None => Err(ScaleError::Machines { ranks, what: "commit a checkpoint" }),
    }
}

fn logarithm(number: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "three digits of a logarithm are shown")]
    let number = number as f64;
    number.max(1.0).log2()
}

/// Least squares; `None` if all points lie above each other.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n: f64 = points.iter().map(|_| 1.0).sum();
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    (variance > 0.0).then(|| covariance / variance)
}

#[cfg(test)]
mod tests;
