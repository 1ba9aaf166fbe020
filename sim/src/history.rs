//! One history looked at closely.

use serde::Serialize;

use crate::engine::digest::Digest;
use crate::faults::FaultCounts;
use crate::judge::Violation;
use crate::plan::{self, Plan};
use crate::sabotage::Switch;
use crate::world::World;

/// The outcome of a history.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// Names the history: equal digests, equal histories.
    pub digest: Digest,
    /// Broken properties; empty: none.
    pub violations: Vec<Violation>,
    /// One line about the history.
    pub summary: String,
    /// How often each kind of fault occurred.
    pub faults: FaultCounts,
    /// One line per event, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// A history that is run event by event, so that its trace can be shown while it runs.
pub struct History {
    seed: u64,
    world: World,
}

/// The plan that a swarm runs for `seed`.
#[must_use]
pub fn plan_of(seed: u64) -> Plan {
    plan::draw(seed, None)
}

impl History {
    /// The history of `plan`, perhaps with a rule taken out, with or without a trace.
    #[must_use]
    pub fn new(plan: Plan, without: Option<&Switch>, trace: bool) -> History {
        let seed = plan.seed;
        let mut world = World::new(plan, trace);
        if let Some(switch) = without {
            world.take_out(switch.switches());
        }
        world.start();
        History { seed, world }
    }

    /// The next event; false when the history is over.
    pub fn step(&mut self) -> bool {
        self.world.step()
    }

    /// The lines of the trace since they were taken last.
    #[must_use]
    pub fn take_trace(&mut self) -> String {
        self.world.take_trace()
    }

    /// The judges' findings.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.world.violations()
    }

    /// The outcome of the history, with `trace` in it.
    #[must_use]
    pub fn report(&self, trace: Option<String>) -> RunReport {
        RunReport {
            seed: self.seed,
            digest: self.world.digest(),
            violations: self.world.violations().to_vec(),
            summary: self.world.summary(),
            faults: self.world.facts().faults,
            trace,
        }
    }
}

/// Repeats the history of `seed`, bit for bit.
#[must_use]
pub fn run(seed: u64, trace: bool) -> RunReport {
    let mut history = History::new(plan_of(seed), None, trace);
    while history.step() {}
    let lines = history.take_trace();
    history.report(trace.then_some(lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::Sum;

    #[test]
    fn a_seed_is_a_history() {
        let (first, second) = (run(7, true), run(7, true));
        assert_eq!(first.trace, second.trace);
        assert_eq!((first.digest, &first.summary), (second.digest, &second.summary));
        assert!(first.trace.is_some_and(|trace| trace.lines().count() > 1000));
    }

    #[test]
    fn other_seeds_are_other_histories() {
        let digests: Vec<Digest> = (0..20).map(|seed| run(seed, false).digest).collect();
        for (n, digest) in digests.iter().enumerate() {
            assert!(!digests[..n].contains(digest), "seed {n}");
        }
    }

    #[test]
    fn a_swarm_and_a_trace_run_the_same_history() {
        for seed in [3, 7] {
            let mut sum = Sum::default();
            sum.run(seed, None);
            assert_eq!(sum.report(seed, 1, 1.0).digest, run(seed, true).digest);
        }
    }
}
