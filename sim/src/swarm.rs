//! Many histories.

use serde::Serialize;

use crate::engine::digest::Digest;
use crate::faults::FaultCounts;
use crate::judge::Violation;
use crate::plan;
use crate::world::World;

/// Ranks of the small histories of a swarm.
pub const RANKS: u32 = 4;
/// Violating seeds that a report names; the others are only counted.
const NAMED_MAX: usize = 20;

/// A history that broke a property.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// `sim run --seed` repeats it.
    pub seed: u64,
    /// The broken properties.
    pub violations: Vec<Violation>,
    /// Names the history.
    pub digest: Digest,
}

/// The outcome of a swarm.
#[derive(Clone, Debug, Serialize)]
pub struct SwarmReport {
    /// Histories run.
    pub histories: u64,
    /// Seeds from here on.
    pub first_seed: u64,
    /// Threads that ran them.
    pub threads: usize,
    /// Wall-clock time.
    pub seconds: f64,
    /// Speed.
    pub histories_per_minute: f64,
    /// Histories that broke a property.
    pub violations: u64,
    /// The first of them.
    pub findings: Vec<Finding>,
    /// Frames delivered in all histories, and in the history with the fewest.
    pub frames_delivered: u64,
    /// Fewest frames that one history delivered.
    pub frames_delivered_min: u64,
    /// Fewest checkpoint commands of one history.
    pub checkpoint_commands_min: u32,
    /// Fewest crashes of one history.
    pub crashes_min: u32,
    /// Fewest times that all ranks of one history ran again after a crash.
    pub restarts_min: u32,
    /// Generations committed in all histories.
    pub commits: u64,
    /// Histories in which each kind of fault occurred.
    pub faults: FaultCounts,
    /// Names all histories together; of one, it is the one that `sim run` prints.
    pub digest: Digest,
}

/// Histories added up; one per thread, joined at the end.
#[derive(Default, Debug)]
pub struct Sum {
    histories: u64,
    violations: u64,
    findings: Vec<Finding>,
    frames: u64,
    frames_min: Option<u64>,
    commands_min: Option<u32>,
    crashes_min: Option<u32>,
    restarts_min: Option<u32>,
    commits: u64,
    faults: FaultCounts,
    digest: Digest,
}

fn least<T: Ord + Copy>(known: &mut Option<T>, new: T) {
    *known = Some(known.map_or(new, |known| known.min(new)));
}

impl Sum {
    fn add(&mut self, seed: u64, world: &World) {
        let facts = world.facts();
        self.histories += 1;
        self.frames += facts.frames_delivered;
        // A program that a rank is missing from gives up early.
        if facts.is_whole {
            least(&mut self.frames_min, facts.frames_delivered);
            least(&mut self.commands_min, facts.checkpoint_commands);
            least(&mut self.crashes_min, facts.crashes);
            least(&mut self.restarts_min, facts.restarts);
        }
        self.commits += facts.commits;
        self.faults.merge(&facts.faults.occurred());
        self.digest = self.digest.with(world.digest());
        if !world.violations().is_empty() {
            self.violations += 1;
            if self.findings.len() < NAMED_MAX {
                let (violations, digest) = (world.violations().to_vec(), world.digest());
                self.findings.push(Finding { seed, violations, digest });
            }
        }
    }

    /// Adds another thread's sums.
    pub fn join(&mut self, other: Sum) {
        self.histories += other.histories;
        self.violations += other.violations;
        self.findings.extend(other.findings);
        self.findings.sort_by_key(|finding| finding.seed);
        self.findings.truncate(NAMED_MAX);
        self.frames += other.frames;
        if let Some(value) = other.frames_min {
            least(&mut self.frames_min, value);
        }
        if let Some(value) = other.commands_min {
            least(&mut self.commands_min, value);
        }
        if let Some(value) = other.crashes_min {
            least(&mut self.crashes_min, value);
        }
        if let Some(value) = other.restarts_min {
            least(&mut self.restarts_min, value);
        }
        self.commits += other.commits;
        self.faults.merge(&other.faults);
        self.digest = self.digest.with(other.digest);
    }
}

impl Sum {
    /// Runs the history of `seed` and adds it; with `ranks_min`, of a job of so many ranks or more.
    pub fn run(&mut self, seed: u64, ranks_min: Option<u32>) {
        let mut world = World::new(plan::draw(seed, ranks_min), false);
        world.run();
        self.add(seed, &world);
    }

    /// The report; how long it took, and on how many threads, the caller knows.
    #[must_use]
    pub fn report(self, first_seed: u64, threads: usize, seconds: f64) -> SwarmReport {
        #[expect(clippy::cast_precision_loss, reason = "a speed for people")]
        let histories_per_minute = self.histories as f64 / seconds.max(1e-9) * 60.0;
        SwarmReport {
            histories: self.histories,
            first_seed,
            threads,
            seconds,
            histories_per_minute,
            violations: self.violations,
            findings: self.findings,
            frames_delivered: self.frames,
            frames_delivered_min: self.frames_min.unwrap_or(0),
            checkpoint_commands_min: self.commands_min.unwrap_or(0),
            crashes_min: self.crashes_min.unwrap_or(0),
            restarts_min: self.restarts_min.unwrap_or(0),
            commits: self.commits,
            faults: self.faults,
            digest: self.digest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Histories of the test below, from seed 0: enough for 5 % of them to be a number that means something.
    const HISTORIES: u64 = 600;

    /// R6 and everything else that the judges know, under all kinds of faults.
    #[test]
    fn a_swarm_finds_nothing_although_much_happens() {
        let mut sum = Sum::default();
        (0..HISTORIES).for_each(|seed| sum.run(seed, None));
        let report = sum.report(0, 1, 1.0);
        assert_eq!(report.violations, 0, "{:#?}", report.findings);
        assert!(report.frames_delivered_min >= crate::limits::FRAMES_DELIVERED_MIN, "{report:#?}");
        assert!(report.checkpoint_commands_min >= crate::limits::CHECKPOINT_COMMANDS_MIN, "{report:#?}");
        assert!(report.crashes_min >= 1 && report.restarts_min >= 1, "{report:#?}");
        assert!(report.commits > HISTORIES, "{report:#?}");
        for (fault, histories) in report.faults.each() {
            assert!(histories * 100 >= HISTORIES * 5, "{} in {histories} histories only", fault.name());
        }
    }
}
