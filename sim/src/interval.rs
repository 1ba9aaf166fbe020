//! Large jobs over months: the interval that the production machine chooses, beside fixed ones, under the same failures.
//!
//! One job is a program with a given amount of work. A checkpoint delays it, and is durable some time after it began. A failure
//! takes the program back to the beginning of the last durable checkpoint. Failures come as a Poisson process, while the job
//! runs: the same ones for every interval. Everything else about a job, messages and machines, is left out; [`crate::world`] and
//! [`crate::scale`] have them.

use core::time::Duration;

use ckpt_glue::Layout;
use ckpt_glue::control::{CutStatistics, ImageContent, ImageReport};
use ckpt_glue::interval::{AutoInterval, Percentage, daly};
use ckpt_glue::names::ImageDigest;
use serde::Serialize;
use transport::{Instant, Rank};

use crate::engine::random::Random;

/// Mean time between failures of one node: five years.
pub const NODE_MTBF_S: f64 = 5.0 * 365.25 * 86_400.0;

/// Fixed intervals of the sweep lie apart by this factor.
const SWEEP_FACTOR: f64 = 1.25;

/// Intervals of the sweep on each side of the one that Daly's formula gives.
const SWEEP_STEPS: i32 = 8;

/// A job takes so many times its mean time between failures, without failures and checkpoints.
const WORK_MTBFS: f64 = 20.0;

/// A program that has not ended after so many times its work never will.
const TIMES_MAX: f64 = 100.0;

/// What checkpoints and failures of a job cost, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Costs {
    /// By how much a checkpoint delays the program, on average: each by half to one and a half times as much.
    pub delay_s: f64,
    /// From a checkpoint's beginning until it is durable.
    pub durable_s: f64,
    /// From a failure until all ranks run again.
    pub recovery_s: f64,
}

/// The mean over several jobs of one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Ranks of the job.
    pub ranks: u32,
    /// Its nodes.
    pub nodes: u32,
    /// Mean time between failures of the job.
    pub mtbf_s: f64,
    /// The interval of Daly's formula, for a cost and a mean time that are known exactly.
    pub daly_s: f64,
    /// The time that the program takes with intervals that are chosen while it runs, over that without failures and checkpoints.
    pub auto_time: f64,
    /// The same with the best fixed interval.
    pub fixed_time: f64,
    /// That interval.
    pub fixed_s: f64,
    /// `auto_time` over `fixed_time`.
    pub ratio: f64,
    /// The loss to checkpoints and failures, over the loss with the best fixed interval.
    pub loss_ratio: f64,
}

/// Who decides the interval.
#[derive(Clone, Copy, Debug)]
enum Chooser {
    Fixed(f64),
    /// With what a person says of the mean time between failures.
    Auto(Option<Duration>),
}

/// A job of each size: `jobs` of each, whose failures follow from `seed`. `given`: what a person says of the mean time between failures, as a multiple of the
/// true one.
#[must_use]
pub fn compare(
    sizes: &[u32],
    ranks_per_node: u32,
    costs: Costs,
    jobs: u64,
    seed: u64,
    given: Option<f64>,
) -> Vec<Row> {
    sizes.iter().map(|ranks| row(*ranks, ranks_per_node, costs, jobs, seed, given)).collect()
}

fn row(ranks: u32, ranks_per_node: u32, costs: Costs, jobs: u64, seed: u64, given: Option<f64>) -> Row {
    let nodes = ranks.div_ceil(ranks_per_node);
    let mtbf = NODE_MTBF_S / f64::from(nodes);
    let best = daly(costs.delay_s, mtbf) + costs.delay_s;
    let mean = |chooser: Chooser| {
        let job = |job| run(chooser, mtbf, costs, seed.wrapping_add(job));
        #[expect(clippy::cast_precision_loss, reason = "a handful of jobs")]
        let jobs_f = jobs as f64;
        (0..jobs).map(job).sum::<f64>() / jobs_f
    };
    let fixed = (-SWEEP_STEPS..=SWEEP_STEPS).map(|step| best * SWEEP_FACTOR.powi(step));
    let fixed = fixed.map(|every| (mean(Chooser::Fixed(every)), every));
    let (fixed_time, fixed_s) = fixed.fold((f64::INFINITY, 0.0), |a, b| if b.0 < a.0 { b } else { a });
    let auto_time = mean(Chooser::Auto(given.map(|factor| Duration::from_secs_f64(factor * mtbf))));
    let (ratio, loss_ratio) = (auto_time / fixed_time, (auto_time - 1.0) / (fixed_time - 1.0));
    Row { ranks, nodes, mtbf_s: mtbf, daly_s: best, auto_time, fixed_time, fixed_s, ratio, loss_ratio }
}

/// The time that one job takes, over its work.
fn run(chooser: Chooser, mtbf: f64, costs: Costs, seed: u64) -> f64 {
    // Each of its own: the failures do not depend on how many checkpoints are taken.
    let (mut failures, mut delays) = (Random::stream(seed, 1), Random::stream(seed, 2));
    let work = WORK_MTBFS * mtbf;
    let mut auto = AutoInterval::new(
        match chooser {
            Chooser::Fixed(_) => None,
            Chooser::Auto(given) => given,
        },
        Percentage(100_000),
    );
    let layout = Layout::even(1, 1, 1).expect("one rank");
    let (mut now, mut saved, mut last_delay) = (0.0, 0.0, None);
    let mut failure = exponential(&mut failures, mtbf);
    // Each turn is a life.
    loop {
        auto.begin_life(at(now));
        let life_ends = now + failure;
        let (mut done, mut counted_from) = (saved, now);
        loop {
            let every = match chooser {
                Chooser::Fixed(every) => every,
                Chooser::Auto(_) => auto.estimate(at(now)).every.as_secs_f64(),
            };
            let delay = costs.delay_s * (0.5 + unit(&mut delays));
            let begins = now.max(counted_from + every);
            let computes = begins - now;
            if done + computes >= work && now + (work - done) <= life_ends {
                return (now + work - done) / work;
            }
            let durable = begins + costs.durable_s.max(delay);
            if durable > life_ends {
                break;
            }
            // While it is written the program computes on.
            let during = costs.durable_s.max(delay) - delay;
            saved = done + computes;
            done = saved + during;
            (now, counted_from) = (durable, begins);
            auto.begun(at(begins));
            auto.committed(Duration::from_secs_f64(durable - begins), &[image(delay, last_delay)], &layout);
            last_delay = Some(delay);
        }
        now = life_ends;
        auto.end_life(at(now), true);
        last_delay = None;
        now += costs.recovery_s;
        failure = exponential(&mut failures, mtbf);
        if now > TIMES_MAX * work {
            return TIMES_MAX;
        }
    }
}

fn image(pause: f64, delay: Option<f64>) -> ImageReport {
    let nanos = |seconds: f64| u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX);
    let statistics = CutStatistics {
        // A hundredth of the delay is the pause.
        stop_ns: nanos(pause / 100.0),
        delay_ns: delay.map(|delay| nanos(delay).cast_signed()),
        ..CutStatistics::default()
    };
    ImageReport {
        rank: Rank(0),
        digest: ImageDigest(0),
        bytes: 0,
        content: ImageContent::Commanded,
        statistics,
    }
}

fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

/// Above 0, and up to 1.
fn unit(random: &mut Random) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let number = ((random.bits() >> 11) + 1) as f64;
    number / f64::exp2(53.0)
}

fn exponential(random: &mut Random, mean: f64) -> f64 {
    -unit(random).ln() * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { delay_s: 1.0, durable_s: 10.0, recovery_s: 60.0 };

    #[test]
    fn no_fixed_interval_loses_much_less() {
        for row in compare(&[1000, 8192, 65_536], 16, COSTS, 4, 1, None) {
            assert!(row.loss_ratio <= 1.1, "{row:?}");
        }
        // A failure a minute, and expensive checkpoints; the first failures of a job are without experience.
        let scaled = Costs { delay_s: 0.2, durable_s: 0.3, recovery_s: 0.5 };
        for row in compare(&[2_600_000], 1, scaled, 16, 1, None) {
            assert!(row.loss_ratio <= 1.25 && row.ratio <= 1.10, "{row:?}");
        }
    }

    #[test]
    fn a_wrong_figure_is_given_up() {
        for factor in [0.01, 1.0, 100.0] {
            for row in compare(&[65_536], 16, COSTS, 16, 1, Some(factor)) {
                assert!(row.loss_ratio <= 1.5, "{factor}: {row:?}");
            }
        }
    }
}
