//! How often a job fails, as far as it is known.

use core::time::Duration;

/// The shortest mean time between failures that is considered: a job that fails more often makes no progress.
pub const MTBF_MIN: Duration = Duration::from_secs(1);

/// Candidates of the mean time between failures: each is longer than the one before by the square root of two, up to 272 years.
const CANDIDATES: u32 = 67;

/// The part of the prior that doubts a mean time that a person gives: a figure that is wrong is given up after few failures.
const DOUBT: f64 = 0.01;

/// Standard deviation of the natural logarithm of a mean time that a person gives.
const GIVEN_SPREAD: f64 = 1.0;

/// More failures than this weigh as much as this many: the rate of a job changes with its hosts.
const FAILURES_REMEMBERED: f64 = 16.0;

/// Failures of a job as a Poisson process whose rate is unknown.
///
/// The prior is even over all magnitudes of the mean time (Jeffreys' for a scale), or about a figure that is given. Each
/// candidate is weighed by the likelihood of the failures seen. Without a failure in a time T, and without a given figure, the
/// mean time is estimated at some 10 to 20 T. With n failures it is close to T / n.
#[derive(Clone, Debug)]
pub struct FailureRate {
    given_s: Option<f64>,
    failures: f64,
    observed_s: f64,
}

impl FailureRate {
    /// Nothing is observed yet. `given`: a person's figure of the job's mean time between failures.
    #[must_use]
    pub fn new(given: Option<Duration>) -> FailureRate {
        let mut rate = FailureRate { given_s: None, failures: 0.0, observed_s: 0.0 };
        given.into_iter().for_each(|given| rate.expect(given));
        rate
    }

    /// A person gives another figure; earlier observations still count.
    pub fn expect(&mut self, mtbf: Duration) {
        self.given_s = Some(mtbf.max(MTBF_MIN).as_secs_f64());
    }

    /// The job has run for so long.
    pub fn observe(&mut self, time: Duration) {
        self.observed_s += time.as_secs_f64();
    }

    /// It has failed.
    pub fn fail(&mut self) {
        self.failures += 1.0;
        if self.failures > FAILURES_REMEMBERED {
            self.observed_s *= FAILURES_REMEMBERED / self.failures;
            self.failures = FAILURES_REMEMBERED;
        }
    }

    /// The inverse of the expected rate. The time that is lost grows with the rate, so the mean is taken of rates and not of times.
    #[must_use]
    pub fn mtbf(&self) -> Duration {
        let candidates =
            || (0..CANDIDATES).map(|step| MTBF_MIN.as_secs_f64() * libm::exp2(f64::from(step) / 2.0));
        let likelihood = |mtbf: f64| -self.failures * libm::log(mtbf) - self.observed_s / mtbf;
        // Relative to the likeliest: the sums neither vanish nor overflow.
        let best = candidates().map(likelihood).fold(f64::NEG_INFINITY, f64::max);
        let sum =
            |weight: fn(f64, f64) -> f64, given| candidates().map(|mtbf| weight(mtbf, given)).sum::<f64>();
        let sums = self.given_s.map(|given| (given, sum(belief, given), sum(doubt, given)));
        let (mut weights, mut rates) = (0.0, 0.0);
        for mtbf in candidates() {
            let prior = sums.map_or(1.0, |(given, believed, doubted)| {
                (1.0 - DOUBT) * belief(mtbf, given) / believed + DOUBT * doubt(mtbf, given) / doubted
            });
            let weight = prior * libm::exp(likelihood(mtbf) - best);
            weights += weight;
            rates += weight / mtbf;
        }
        Duration::from_secs_f64(weights / rates)
    }
}

/// The weight of a candidate by the given figure: log-normal, with the inverse of the figure as its mean rate.
fn belief(mtbf: f64, given: f64) -> f64 {
    let median = given * libm::exp(GIVEN_SPREAD * GIVEN_SPREAD / 2.0);
    let off = libm::log(mtbf / median) / GIVEN_SPREAD;
    libm::exp(-off * off / 2.0)
}

/// The weight of a candidate if the figure is wrong: the less, the further away.
fn doubt(mtbf: f64, given: f64) -> f64 {
    (mtbf / given).min(given / mtbf)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn after(given: Option<Duration>, failures: u32, each: Duration) -> f64 {
        let mut rate = FailureRate::new(given);
        for _ in 0..failures {
            rate.observe(each);
            rate.fail();
        }
        rate.mtbf().as_secs_f64()
    }

    fn quiet(given: Option<Duration>, time: Duration) -> f64 {
        let mut rate = FailureRate::new(given);
        rate.observe(time);
        rate.mtbf().as_secs_f64()
    }

    #[test]
    fn a_job_that_does_not_fail_is_expected_to_run_several_times_as_long() {
        for time in [MINUTE, 60 * MINUTE, DAY] {
            let ratio = quiet(None, time) / time.as_secs_f64();
            assert!((5.0..25.0).contains(&ratio), "{time:?}: {ratio}");
        }
    }

    #[test]
    fn observed_failures_decide() {
        assert!((after(None, 1, MINUTE) / 60.0 - 1.0).abs() < 0.1, "{}", after(None, 1, MINUTE));
        assert!((after(None, 10, MINUTE) / 60.0 - 1.0).abs() < 0.1, "{}", after(None, 10, MINUTE));
    }

    #[test]
    fn a_given_figure_is_believed_until_failures_contradict() {
        let month = 30 * DAY;
        for time in [Duration::ZERO, MINUTE, DAY] {
            let ratio = quiet(Some(month), time) / month.as_secs_f64();
            assert!((0.8..1.1).contains(&ratio), "{time:?}: {ratio}");
        }
        // A month was said, and it fails every minute.
        assert!(after(Some(month), 3, MINUTE) < 120.0, "{}", after(Some(month), 3, MINUTE));
        // A minute was said, and it has run for a month.
        assert!(quiet(Some(MINUTE), month) > DAY.as_secs_f64(), "{}", quiet(Some(MINUTE), month));
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut rate = FailureRate::new(None);
        for _ in 0..1000 {
            rate.observe(MINUTE);
            rate.fail();
        }
        for _ in 0..16 {
            rate.observe(60 * MINUTE);
            rate.fail();
        }
        assert!(rate.mtbf() > 30 * MINUTE, "{:?}", rate.mtbf());
    }

    #[test]
    fn the_ends_of_the_range_are_finite() {
        let century = 36500 * DAY;
        assert!(quiet(Some(century), century) > DAY.as_secs_f64());
        assert!(after(None, 1000, Duration::from_millis(1)) >= 1.0);
        assert!(FailureRate::new(Some(Duration::ZERO)).mtbf() >= Duration::from_secs(1));
    }
}
