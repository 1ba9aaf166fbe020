//! Native ranks are saved at points that they come to at different times, and none waits for another's cut.

use sim::engine::queue::{MICRO, MILLI};
use sim::network::NetworkConditions;
use sim::plan::{self, Action, Floors, Mode, Moment, Plan, Step, When};
use sim::world::World;

const RANKS: u32 = 4;

fn counted(seed: u64) -> Plan {
    Plan { mode: Mode::Counted, ..plan::generate(seed, RANKS) }
}

/// Nothing goes wrong: frames only take their time.
fn in_a_calm_network(mut plan: Plan) -> Plan {
    plan.conditions =
        NetworkConditions { jitter_ns: plan.conditions.jitter_ns, ..NetworkConditions::default() };
    plan.steps.retain(|step| matches!(step.action, Action::Checkpoint { .. }));
    plan.floors = Floors::default();
    plan
}

/// Commits and trace of a history without violation.
fn run(plan: Plan) -> (u64, String) {
    let mut world = World::new(plan, true);
    world.run();
    assert!(world.violations().is_empty(), "{}", world.summary());
    (world.facts().commits, world.take_trace())
}

fn lines(trace: &str, with: &str) -> usize {
    trace.lines().filter(|line| line.contains(with)).count()
}

/// R2: under all faults, a job of native ranks ends with the right result.
#[test]
fn counted_histories_come_to_their_end() {
    let commits: u64 = (0..100).map(|seed| run(counted(seed)).0).sum();
    assert!(commits > 60, "{commits}");
}

/// R2, R4: in a calm network every rank comes to the point, so the generation is committed, unless a rank had passed the
/// point when the command came or the job was over.
#[test]
fn in_a_calm_network_checkpoints_are_committed() {
    let (mut begun, mut finishing, mut commits) = (0, 0, 0);
    for seed in 0..100 {
        let (_, trace) = run(in_a_calm_network(counted(seed)));
        for reason in ["PointMissed", "Unreceived", "TimedOut"] {
            assert_eq!(lines(&trace, reason), 0, "seed {seed}: {reason}");
        }
        begun += lines(&trace, "Checkpoint(Begun");
        finishing += lines(&trace, "reason: Finishing }");
        commits += lines(&trace, "Checkpoint(Committed");
    }
    assert!(
        begun > 200 && commits * 100 >= (begun - finishing.min(begun)) * 90,
        "{commits} of {begun}, {finishing}"
    );
}

/// R2, R4: frames get lost, and a rank needs some of them to reach its point after their sender has cut; with enough
/// time no rank misses it.
#[test]
fn loss_keeps_nobody_from_its_point() {
    let mut commits = 0;
    for seed in 0..100 {
        let mut plan = in_a_calm_network(counted(seed));
        plan.conditions.loss = u16::MAX / 20;
        let (committed, trace) = run(plan);
        assert_eq!(lines(&trace, "PointMissed") + lines(&trace, "Unreceived"), 0, "seed {seed}");
        commits += committed;
    }
    assert!(commits > 60, "{commits}");
}

/// R2: one rank is held up for long. The others cut without it and go on, and the generation is committed when it has
/// come to its point.
#[test]
fn nobody_waits_for_a_rank_that_is_late() {
    let (mut cut_before, mut committed) = (0, 0);
    for seed in 0..40 {
        let mut plan = in_a_calm_network(counted(seed));
        plan.steps.truncate(1);
        // When the first has cut; in most histories rank 2 has not.
        let when = When::On { moment: Moment::Frozen, nth: 0, after: 0 };
        plan.steps.push(Step { when, action: Action::Stall { rank: 2, lasts: 10 * MILLI } });
        plan.pause_ns_max = 20 * MICRO;
        let (_, trace) = run(plan);
        let at = |line: &str| line.trim_start().split(' ').next().and_then(|time| time.parse::<f64>().ok());
        let cut = |rank: u32| {
            let who = format!(" r{rank} ");
            trace.lines().find(|line| line.contains(&who) && line.contains(" cut 1 for")).and_then(at)
        };
        if let (Some(first), Some(late)) = (cut(0), cut(2))
            && late > first + 5_000.0
        {
            cut_before += 1;
            // Unless the job was over before the images were durable.
            committed += u32::from(trace.contains("Checkpoint(Committed"));
            assert_eq!(lines(&trace, "PointMissed") + lines(&trace, "Unreceived"), 0, "seed {seed}");
            // Between the two cuts it went on: it sent frames of its new epoch.
            let rank_0 =
                trace.lines().filter(|line| line.contains("frame NicId") && line.ends_with("epoch 1"));
            let after = rank_0.filter_map(at).filter(|time| *time > first && *time < late);
            assert!(after.count() > 0, "seed {seed}");
        }
    }
    assert!(
        cut_before >= 10 && committed * 10 >= cut_before * 7,
        "{committed} of {cut_before} are committed"
    );
}
