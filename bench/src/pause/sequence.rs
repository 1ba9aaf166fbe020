//! The cost of checkpoints to a program over minutes, as users take them: one every few seconds, the first whole and the others as it comes.
//!
//! One process works all the time, in turns that are as long as the interval, every other one of them with a checkpoint: each is compared to the
//! turns without next to it. Two processes would differ by some per cent for which physical pages they were given. Effects of a checkpoint that last
//! longer than a turn slow the turns without, too. So some turns come before the first checkpoint, and the later ones without are compared to those.

use std::path::Path;
use std::time::Duration;

use super::worker::{Answer, Kind, WorkerCommand};
use super::{WORKING_FRACTION, begin, out_of_turn, pages, text};
use crate::error::BenchError;
use crate::statistics::{Interval, paired_ratios, percentile, sorted};
use crate::worker::Worker;

/// Turns before the first checkpoint.
const TURNS_BEFORE: usize = 3;

/// Turns of one sequence, each as long as the interval.
pub(super) fn turns(pairs: usize) -> usize {
    TURNS_BEFORE + 2 * pairs + 1
}

/// Where the program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Working {
    /// To the same pages all the time.
    Same,
    /// To others after each turn.
    Others,
}

impl Working {
    /// `same` or `others`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Working::Same => "same",
            Working::Others => "others",
        }
    }
}

/// Its cost.
#[derive(Clone, serde::Serialize, Debug)]
pub struct Sequence {
    /// Bytes of the program's memory.
    pub resident_bytes: u64,
    /// `4k` or `thp`.
    pub pages: &'static str,
    /// Share of its pages that it writes to between two checkpoints.
    pub dirty_fraction: f64,
    /// `same`: to the same pages again and again; `others`: to others after each checkpoint.
    pub writes_to: &'static str,
    /// From one checkpoint to the next.
    pub interval_s: f64,
    /// Turns with a checkpoint, each beside turns without.
    pub pairs: usize,
    /// Checkpoints that were whole images; the others were deltas.
    pub whole_images: usize,
    /// Time that a step took, to that in the turns without next to it: the mean, and where it lies with 95 % confidence.
    pub time_ratio: f64,
    /// Lower end.
    pub time_ratio_low: f64,
    /// Upper end.
    pub time_ratio_high: f64,
    /// Of each turn, in their order.
    pub ratios: Vec<f64>,
    /// Time that a step took in the turns without after the first checkpoint, to that in the turns before it: medians.
    pub lasting_ratio: f64,
    /// The kind of each turn's checkpoint.
    pub kinds: Vec<&'static str>,
}

/// How long a step took, ns, and the kind of checkpoint.
fn turn(worker: &mut Worker, order: &WorkerCommand) -> Result<(f64, Option<Kind>), BenchError> {
    worker.send(order)?;
    match worker.hear()? {
        #[expect(clippy::cast_precision_loss, reason = "a time, and some thousand steps")]
        Answer::Turned { steps, ns, kind } => Ok((ns as f64 / steps.max(1) as f64, kind)),
        _ => Err(out_of_turn()),
    }
}

pub(super) fn run(
    (bytes, huge): (u64, bool),
    (interval, pairs): (Duration, usize),
    working: Working,
    folder: &Path,
) -> Result<Sequence, BenchError> {
    let mut worker = begin(bytes, huge, &[])?;
    let ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let order = |pair, checkpoint| WorkerCommand::Turn {
        fraction: WORKING_FRACTION,
        place: if working == Working::Others { pair } else { 0 },
        ms,
        checkpoint,
        folder: text(folder),
    };
    let mut before = Vec::new();
    for _ in 0..TURNS_BEFORE {
        before.push(turn(&mut worker, &order(0, false))?.0);
    }
    let (mut with, mut without, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..=pairs {
        without.push(turn(&mut worker, &order(pair, false))?.0);
        if pair < pairs {
            let (step_ns, kind) = turn(&mut worker, &order(pair, true))?;
            with.push(step_ns);
            kinds.extend(kind);
        }
    }
    let ratios = paired_ratios(&with, &without);
    let middle = |times: &[f64]| percentile(&sorted(times.to_vec()), 0.5);
    #[expect(clippy::cast_precision_loss, reason = "few turns")]
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    let confident = Interval::of_mean(&ratios);
    Ok(Sequence {
        resident_bytes: bytes,
        pages: pages(huge),
        dirty_fraction: WORKING_FRACTION,
        writes_to: working.name(),
        interval_s: interval.as_secs_f64(),
        pairs,
        whole_images: kinds.iter().filter(|kind| **kind == Kind::Whole).count(),
        time_ratio: mean,
        time_ratio_low: confident.low,
        time_ratio_high: confident.high,
        ratios,
        lasting_ratio: middle(&without[1..]) / middle(&before),
        kinds: kinds.into_iter().map(Kind::name).collect(),
    })
}
