//! The time between checkpoints, chosen from their cost and from how often the job fails.
//!
//! A longer interval costs less in checkpoints, and more work when the job fails. Daly gives the interval for which the sum is
//! least (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
//! Systems 22, 2006, equation 37). Its two inputs are measured while the job runs: [`AutoInterval`] has them.

mod failure_rate;
mod text;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use transport::Instant;

use crate::config::CheckpointConfig;
use crate::control::ImageReport;
use crate::layout::Layout;
use crate::limits::{
    AUTO_DOUBLINGS_MAX, AUTO_EVERY_DURATIONS, AUTO_EVERY_MAX, AUTO_EVERY_MIN, AUTO_FIRST, COSTS_REMEMBERED,
    DURATION_MAX,
};

pub use failure_rate::{FailureRate, MTBF_MIN};

/// When checkpoints are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Every {
    /// Only on request.
    #[default]
    OnRequest,
    /// From the beginning of one checkpoint to that of the next.
    Fixed(Duration),
    /// As [`AutoInterval`] chooses.
    Auto,
}

impl Every {
    /// A time that a person has named.
    #[must_use]
    pub fn fixed(self) -> Option<Duration> {
        match self {
            Every::Fixed(every) => Some(every),
            Every::OnRequest | Every::Auto => None,
        }
    }
}

/// A part of the running time, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Percentage(pub u32);

impl Percentage {
    /// The whole.
    pub const ALL: Percentage = Percentage(1_000_000);

    fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// A person's change of a job's interval; `None`: as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    /// When checkpoints are taken.
    pub every: Option<Every>,
    /// The job's mean time between failures.
    pub mtbf: Option<Duration>,
    /// The largest part of the running time for checkpoints.
    pub budget: Option<Percentage>,
}

impl Tuning {
    /// Changes a job's settings.
    pub fn apply(&self, to: &mut CheckpointConfig) {
        to.every = self.every.unwrap_or(to.every);
        to.mtbf = self.mtbf.or(to.mtbf);
        to.budget = self.budget.unwrap_or(to.budget);
    }
}

/// What an interval was chosen from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// The interval.
    pub every: Duration,
    /// By how much a checkpoint delays the program; `None`: none has been measured.
    pub cost: Option<Duration>,
    /// Mean time between failures.
    pub mtbf: Duration,
    /// What keeps the interval from being the cheapest one.
    pub bound: Option<Bound>,
}

/// What keeps an interval from being the cheapest one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// More checkpoints would cost more of the running time than they may.
    Budget,
    /// For as long as a checkpoint is written, none is.
    Duration,
    /// The longest or shortest interval that is ever chosen.
    Range,
    /// The last checkpoints have failed.
    Failing,
}

/// Why an interval is another one than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It is the first that was chosen.
    First,
    /// The job fails more often than was expected.
    Failures,
    /// It fails less often.
    NoFailures,
    /// A checkpoint costs more than before.
    DearerCheckpoints,
    /// It costs less.
    CheaperCheckpoints,
    /// Checkpoints fail.
    FailedCheckpoints,
    /// They do not fail any more.
    CommittedCheckpoints,
}

impl Estimate {
    /// The largest change since `before`.
    #[must_use]
    pub fn cause(&self, before: Option<&Estimate>) -> Cause {
        let Some(before) = before.filter(|before| before.cost.is_some()) else { return Cause::First };
        let failing = |estimate: &Estimate| estimate.bound == Some(Bound::Failing);
        if failing(self) || failing(before) {
            return if failing(self) { Cause::FailedCheckpoints } else { Cause::CommittedCheckpoints };
        }
        let ratio = |now: Duration, then: Duration| {
            now.as_secs_f64().max(f64::MIN_POSITIVE) / then.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        let cost = ratio(self.cost.unwrap_or_default(), before.cost.unwrap_or_default());
        let mtbf = ratio(self.mtbf, before.mtbf);
        match (cost.max(1.0 / cost) > mtbf.max(1.0 / mtbf), cost > 1.0, mtbf > 1.0) {
            (true, true, _) => Cause::DearerCheckpoints,
            (true, false, _) => Cause::CheaperCheckpoints,
            (false, _, true) => Cause::NoFailures,
            (false, _, false) => Cause::Failures,
        }
    }
}

/// A committed checkpoint.
#[derive(Clone, Copy, Debug)]
struct Measured {
    pause: Duration,
    took: Duration,
    /// Of the checkpoint before it, whose end the ranks have known.
    delay: Option<Duration>,
}

/// Measures what checkpoints cost and how often the job fails, and chooses the interval.
#[derive(Clone, Debug)]
pub struct AutoInterval {
    rate: FailureRate,
    budget: Percentage,
    /// The last ones, oldest first; at most [`COSTS_REMEMBERED`].
    measured: VecDeque<Measured>,
    /// When the checkpoint that is under way began.
    begun: Option<Instant>,
    /// Checkpoints that have failed since the last one was committed, and how long the last of them took.
    failed: (u32, Duration),
    /// The life that runs was observed until then.
    observed: Option<Instant>,
}

impl AutoInterval {
    /// `mtbf`: a person's figure of the job's mean time between failures. `budget`: the largest part of the running time for checkpoints.
    #[must_use]
    pub fn new(mtbf: Option<Duration>, budget: Percentage) -> AutoInterval {
        AutoInterval {
            rate: FailureRate::new(mtbf),
            budget,
            measured: VecDeque::new(),
            begun: None,
            failed: (0, Duration::ZERO),
            observed: None,
        }
    }

    /// A person gives other figures; earlier observations still count.
    pub fn tune(&mut self, tuning: &Tuning) {
        if let Some(mtbf) = tuning.mtbf {
            self.rate.expect(mtbf);
        }
        self.budget = tuning.budget.unwrap_or(self.budget);
    }

    /// All ranks of a life run.
    pub fn begin_life(&mut self, now: Instant) {
        self.observed = Some(now);
    }

    /// The life is over. `failed`: by a fault that rolls the job back. One whose ranks have never run had nothing to lose.
    pub fn end_life(&mut self, now: Instant, failed: bool) {
        self.observe(now);
        self.begun = None;
        if self.observed.take().is_some() && failed {
            self.rate.fail();
        }
    }

    /// A checkpoint begins.
    pub fn begun(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// It is durable, so long after its beginning.
    pub fn committed(&mut self, took: Duration, images: &[ImageReport], layout: &Layout) {
        let pause = images.iter().map(|image| image.statistics.pause_ns()).max().unwrap_or(0);
        let measured = Measured { pause: Duration::from_nanos(pause), took, delay: delay(images, layout) };
        self.measured.push_back(measured);
        if self.measured.len() > COSTS_REMEMBERED {
            self.measured.pop_front();
        }
        self.begun = None;
        self.failed = (0, Duration::ZERO);
    }

    /// It has failed.
    pub fn failed(&mut self, now: Instant) {
        let took = self.begun.take().map_or(Duration::ZERO, |begun| now.since(begun));
        self.failed = (self.failed.0.saturating_add(1), took);
    }

    /// The interval for the time from now on.
    #[must_use]
    pub fn estimate(&mut self, now: Instant) -> Estimate {
        self.observe(now);
        let mut estimate = self.without_failed();
        let (failed, took) = self.failed;
        if failed > 0 {
            let every = estimate.every.max(took * AUTO_EVERY_DURATIONS);
            let doubled = every.saturating_mul(1 << failed.min(AUTO_DOUBLINGS_MAX));
            estimate.every = doubled.min(AUTO_EVERY_MAX).max(estimate.every);
            estimate.bound = Some(Bound::Failing);
        }
        estimate
    }

    /// The interval if checkpoints succeed.
    fn without_failed(&self) -> Estimate {
        let mtbf = self.rate.mtbf();
        let of =
            |part: fn(&Measured) -> Option<Duration>| median(self.measured.iter().filter_map(part).collect());
        let took = self.measured.iter().map(|measured| measured.took).max();
        let (Some(pause), Some(took)) = (of(|measured| Some(measured.pause)), took) else {
            return Estimate { every: AUTO_FIRST, cost: None, mtbf, bound: None };
        };
        // Until ranks have reported a delay: while an image is written, the program runs at less than its full speed.
        let cost = of(|measured| measured.delay).unwrap_or(pause + took / 4).max(pause);
        let cheapest = daly(cost.as_secs_f64(), mtbf.as_secs_f64()) + cost.as_secs_f64();
        let (least, most) = (AUTO_EVERY_MIN.as_secs_f64(), AUTO_EVERY_MAX.as_secs_f64());
        let mut every = cheapest.clamp(least, most);
        let mut bound = (every != cheapest).then_some(Bound::Range);
        let by_duration = (took * AUTO_EVERY_DURATIONS).as_secs_f64();
        let by_budget = cost.as_secs_f64() / self.budget.as_f64();
        for (other, why) in [(by_duration, Bound::Duration), (by_budget, Bound::Budget)] {
            if other > every {
                (every, bound) = (other, Some(why));
            }
        }
        let every = Duration::from_secs_f64(every.min(DURATION_MAX.as_secs_f64()));
        Estimate { every, cost: Some(cost), mtbf, bound }
    }

    fn observe(&mut self, now: Instant) {
        if let Some(until) = &mut self.observed {
            self.rate.observe(now.since(*until));
            *until = now;
        }
    }
}

/// By how much a checkpoint has delayed the program. Ranks of a node share what delays them, so their mean counts; nodes wait for the slowest one.
fn delay(images: &[ImageReport], layout: &Layout) -> Option<Duration> {
    let mut nodes: BTreeMap<_, (i128, i128)> = BTreeMap::new();
    for image in images {
        if let Some(delay) = image.statistics.delay_ns {
            let (sum, ranks) = nodes.entry(layout.node_of(image.rank)).or_default();
            *sum += i128::from(delay);
            *ranks += 1;
        }
    }
    let slowest = nodes.values().map(|(sum, ranks)| sum / ranks).max()?;
    Some(Duration::from_nanos(u64::try_from(slowest.max(0)).unwrap_or(u64::MAX)))
}

fn median(mut values: Vec<Duration>) -> Option<Duration> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// The running time between two checkpoints for which the least time is lost (Daly, equation 37), in seconds: `cost` of a checkpoint, `mtbf` between failures.
#[must_use]
pub fn daly(cost: f64, mtbf: f64) -> f64 {
    if cost >= 2.0 * mtbf {
        return mtbf;
    }
    let ratio = cost / (2.0 * mtbf);
    libm::sqrt(2.0 * cost * mtbf) * (1.0 + libm::sqrt(ratio) / 3.0 + ratio / 9.0) - cost
}

#[cfg(test)]
mod tests;
