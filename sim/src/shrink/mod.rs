//! Reducing a history that fails: fewer steps, a calmer network, a smaller job, while the same kind of violation stays.
//!
//! Steps are taken out by delta debugging (halves first, single ones last), settings are set to the plain ones one at a time, numbers are halved; all
//! of it again until nothing helps or the budget is used. Every candidate is run, so the result fails for certain.

mod simpler;

use serde::Serialize;

use crate::history::{History, RunReport};
use crate::judge::Violation;
use crate::plan::Plan;
use crate::sabotage::Switch;
use crate::scenario::{Expectation, Scenario};

/// A plan that could not be reduced.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShrinkError {
    /// There is nothing to keep.
    #[error(
        "the history of seed {seed}{} breaks no property, so there is nothing to reduce; `stillwire-dev sim swarm` and `sim sabotage` name seeds that do",
        without.as_ref().map(|rule| format!(" without rule {rule}")).unwrap_or_default()
    )]
    DoesNotFail {
        /// The seed.
        seed: u64,
        /// The rule that was out.
        without: Option<String>,
    },
}

/// How far a reduction is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Histories run.
    pub runs: u32,
    /// Steps that are left.
    pub steps: usize,
}

/// A reduced plan.
#[derive(Clone, Debug, Serialize)]
pub struct Shrunk {
    /// Seed of the plan.
    pub seed: u64,
    /// The rule that was out.
    pub without: Option<String>,
    /// Kind of the violation that was kept.
    pub kind: String,
    /// Histories run.
    pub runs: u32,
    /// Nothing more helps; otherwise the budget was used.
    pub complete: bool,
    /// Steps of the plan before.
    pub steps_before: usize,
    /// Steps that are left.
    pub steps: usize,
    /// The reduced plan as a scenario, with its expected result.
    pub scenario: String,
    /// The reduced history.
    pub run: RunReport,
    /// The plan itself.
    #[serde(skip)]
    pub plan: Plan,
}

/// Runs `plan` until a judge says something that `stop` is true of, or to its end.
fn run_until(plan: &Plan, without: Option<&Switch>, stop: impl Fn(&Violation) -> bool) -> (bool, History) {
    let mut history = History::new(plan.clone(), without, false);
    let mut judged = 0;
    loop {
        let goes_on = history.step();
        let found = history.violations();
        if found.len() > judged {
            judged = found.len();
            if found.iter().any(&stop) {
                return (true, history);
            }
        }
        if !goes_on {
            return (false, history);
        }
    }
}

/// A reduction under way.
struct Shrinker<'a> {
    without: Option<&'a Switch>,
    kind: String,
    best: Plan,
    runs: u32,
    runs_max: u32,
    progress: &'a mut dyn FnMut(Progress),
}

impl Shrinker<'_> {
    fn is_spent(&self) -> bool {
        self.runs >= self.runs_max
    }

    /// Takes the candidate if it fails in the same way.
    fn take(&mut self, candidate: Plan) -> bool {
        if candidate == self.best || self.is_spent() {
            return false;
        }
        self.runs += 1;
        let (fails, _) = run_until(&candidate, self.without, |violation| violation.kind() == self.kind);
        if fails {
            self.best = candidate;
        }
        (self.progress)(Progress { runs: self.runs, steps: self.best.steps.len() });
        fails
    }

    /// Applies `change` to the best plan, and takes the result if it fails in the same way.
    fn take_with(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        self.take(candidate)
    }

    /// Steps taken out, in ever smaller pieces.
    fn reduce_steps(&mut self) {
        let mut piece = self.best.steps.len();
        while piece > 0 {
            let mut from = 0;
            while from < self.best.steps.len() && !self.is_spent() {
                let end = (from + piece).min(self.best.steps.len());
                if !self.take_with(|plan| drop(plan.steps.drain(from..end))) {
                    from = end;
                }
            }
            piece /= 2;
        }
    }

    fn reduce(&mut self) {
        loop {
            let before = self.best.clone();
            self.reduce_steps();
            self.reduce_settings();
            self.reduce_details();
            if self.best == before || self.is_spent() {
                return;
            }
        }
    }
}

/// Reduces `plan`, which fails (without the rule, if one is given), with at most `runs_max` histories.
///
/// # Errors
/// If it does not fail.
pub fn shrink(
    plan: Plan,
    without: Option<&Switch>,
    runs_max: u32,
    progress: &mut dyn FnMut(Progress),
) -> Result<Shrunk, ShrinkError> {
    let seed = plan.seed;
    let rule = without.map(|switch| switch.name.to_owned());
    let (_, history) = run_until(&plan, without, |_| true);
    let Some(first) = history.violations().first() else {
        return Err(ShrinkError::DoesNotFail { seed, without: rule });
    };
    let kind = first.kind();
    let steps_before = plan.steps.len();
    let mut shrinker = Shrinker { without, kind, best: plan, runs: 1, runs_max, progress };
    shrinker.reduce();
    let complete = !shrinker.is_spent();
    let Shrinker { kind, best, runs, .. } = shrinker;
    let expects = |without: Option<&str>, violation: Option<&str>| Expectation {
        without: without.map(str::to_owned),
        violation: violation.map(str::to_owned),
    };
    let mut expectations = vec![expects(rule.as_deref(), Some(&kind))];
    if without.is_some() && !run_until(&best, None, |_| true).0 {
        expectations.insert(0, expects(None, None));
    }
    let mut history = History::new(best.clone(), without, false);
    while history.step() {}
    Ok(Shrunk {
        seed,
        without: rule,
        kind,
        runs,
        complete,
        steps_before,
        steps: best.steps.len(),
        scenario: Scenario { expectations, seeds: 1, plan: best.clone() }.write(),
        run: history.report(None),
        plan: best,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::plan_of;
    use crate::scenario::parse;

    const RUNS: u32 = 150;

    #[test]
    fn a_history_without_a_rule_is_reduced_and_fails_in_the_same_way() {
        let switch = Switch::named("3-higher-epoch-ack").expect("a switch");
        let found = crate::sabotage::hunt(&switch, 50);
        let seed = found.seed.expect("the swarm notices this rule's loss soon");
        let mut last = 0;
        let mut progress = |progress: Progress| last = progress.runs;
        let shrunk = shrink(plan_of(seed), Some(&switch), RUNS, &mut progress).expect("it fails");
        assert!(shrunk.steps < shrunk.steps_before, "{shrunk:#?}");
        assert_eq!(shrunk.kind, found.violations[0].kind());
        assert_eq!((shrunk.runs, shrunk.runs <= RUNS), (last, true));
        // The printed scenario is the reduced plan, and it fails as expected.
        let scenario = parse(&shrunk.scenario).expect("it is printed as it is read");
        assert_eq!(scenario.plan, shrunk.plan);
        let outcomes = scenario.check();
        assert!(outcomes.iter().all(|outcome| outcome.met), "{outcomes:#?}");
        assert_eq!(outcomes[outcomes.len() - 1].expected.as_ref(), Some(&shrunk.kind));
    }

    #[test]
    fn what_does_not_fail_cannot_be_reduced() {
        let error = shrink(plan_of(7), None, RUNS, &mut |_| {}).expect_err("it holds");
        assert!(error.to_string().contains("seed 7 breaks no property"), "{error}");
    }
}
