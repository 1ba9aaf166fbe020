//! What checkpoints cost a program over minutes, as users take them: one every few seconds, the first whole and the others as it comes.
//!
//! Two processes of one kind work in turns; one of them is saved once in each turn, the other never. Where there are enough pairs they change
//! places after half of them, so that what the one's memory happens to be quicker than the other's counts on both sides.

use std::path::Path;
use std::time::Duration;

use super::worker::{Answer, Kind, Order};
use super::{WORKING_FRACTION, begin, out_of_turn, pages, text};
use crate::error::BenchError;
use crate::statistics::{Interval, paired_ratios};
use crate::worker::Worker;

/// With fewer pairs most of the images would be first ones, if the processes changed places.
const CHANGING_PAIRS_MIN: usize = 6;

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

/// What it costs.
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
    /// What the checkpoint of each turn was.
    pub kinds: Vec<&'static str>,
}

/// How long a step took, ns, and what the checkpoint was.
fn turn(worker: &mut Worker, order: &Order) -> Result<(f64, Option<Kind>), BenchError> {
    worker.tell(order)?;
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
    let mut workers = [begin(bytes, huge, &[])?, begin(bytes, huge, &[])?];
    let (mut ratios, mut kinds) = (Vec::new(), Vec::new());
    let halves = if pairs < CHANGING_PAIRS_MIN { [pairs, 0] } else { [pairs.div_ceil(2), pairs / 2] };
    let ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    for (half, pairs) in halves.into_iter().enumerate().filter(|(_, pairs)| *pairs > 0) {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for pair in 0..=pairs {
            let order = |checkpoint| Order::Turn {
                fraction: WORKING_FRACTION,
                place: if working == Working::Others { half * (halves[0] + 1) + pair } else { 0 },
                ms,
                checkpoint,
                folder: text(folder),
            };
            without.push(turn(&mut workers[1 - half], &order(false))?.0);
            if pair < pairs {
                let (step_ns, kind) = turn(&mut workers[half], &order(true))?;
                with.push(step_ns);
                kinds.extend(kind);
            }
        }
        ratios.extend(paired_ratios(&with, &without));
        workers[half].tell(&Order::Disarm)?;
        let Answer::Ready = workers[half].hear()? else { return Err(out_of_turn()) };
    }
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
        kinds: kinds.into_iter().map(Kind::name).collect(),
    })
}
