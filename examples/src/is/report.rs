//! The result of a run.

use std::fmt;

use super::IsConfig;
use super::class::{Class, TEST_KEYS};

/// The result of a run, the same on every rank.
#[derive(Clone, Debug, serde::Serialize)]
pub struct IsReport {
    /// Always "is".
    pub benchmark: &'static str,
    /// The problem class.
    pub class: Class,
    /// Ranks of the job.
    pub ranks: u32,
    /// Keys of all ranks together.
    pub keys: u64,
    /// Iterations of each round.
    pub iterations: u32,
    /// Rounds.
    pub rounds: u32,
    /// Times that the program went on from a saved state.
    pub restarts: u64,
    /// Time in timed iterations, of the slowest rank, in all lives together.
    pub seconds: f64,
    /// Million keys ranked in a second, over all ranks.
    pub mops: f64,
    /// Test keys that had the rank they must have.
    pub partial_passed: u64,
    /// Test keys looked at: five in each iteration.
    pub partial_expected: u64,
    /// Full verifications passed.
    pub full_passed: u64,
    /// Full verifications done: one on each rank in each round.
    pub full_expected: u64,
    /// Everything passed.
    pub verified: bool,
}

impl IsReport {
    pub(super) fn new(config: &IsConfig, ranks: u32, passed: [u64; 2], worst: [u64; 2]) -> IsReport {
        let ([partial_passed, full_passed], [elapsed_ns, restarts]) = (passed, worst);
        let (iterations, rounds) = (config.iterations, config.rounds);
        let seconds = std::time::Duration::from_nanos(elapsed_ns).as_secs_f64();
        let iterations_total = u64::from(rounds) * u64::from(iterations);
        let partial_expected = iterations_total * TEST_KEYS as u64;
        let full_expected = u64::from(rounds) * u64::from(ranks);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
        let mops = (iterations_total * config.class.keys()) as f64 / seconds.max(1e-9) / 1e6;
        IsReport {
            benchmark: "is",
            class: config.class,
            ranks,
            keys: config.class.keys(),
            iterations,
            rounds,
            restarts,
            seconds,
            mops,
            partial_passed,
            partial_expected,
            full_passed,
            full_expected,
            verified: partial_passed == partial_expected && full_passed == full_expected,
        }
    }
}

impl fmt::Display for IsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = |good: bool| if good { "successful" } else { "FAILED" };
        writeln!(f, "NAS integer sort, class {:?}: {} keys on {} ranks", self.class, self.keys, self.ranks)?;
        writeln!(f, "  iterations           {} x {} rounds", self.iterations, self.rounds)?;
        writeln!(f, "  restarts             {}", self.restarts)?;
        writeln!(f, "  time                 {:.3} s", self.seconds)?;
        writeln!(f, "  rate                 {:.2} Mop/s (keys ranked)", self.mops)?;
        writeln!(
            f,
            "  partial verification {} ({} of {} test keys)",
            verdict(self.partial_passed == self.partial_expected),
            self.partial_passed,
            self.partial_expected
        )?;
        writeln!(
            f,
            "  full verification    {} ({} of {} rounds x ranks)",
            verdict(self.full_passed == self.full_expected),
            self.full_passed,
            self.full_expected
        )?;
        write!(f, "  verification         {}", verdict(self.verified))
    }
}
