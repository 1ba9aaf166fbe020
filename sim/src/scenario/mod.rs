//! Scenarios: plans written by hand, or reduced from a seed, with their expected results.
//!
//! A scenario is text, a line for each thing. Settings that are left out are the plain ones ([`plain`]).
//!
//! ```text
//! # A frame of a later epoch must not be taken before the cut.
//! expect: holds
//! expect without 3-higher-epoch-data: higher_epoch
//! seed 7
//! ranks 2
//! network loss 2.5%, jitter 12us
//! at 1200 frames: checkpoint when ready
//! on frozen #3 after 12us: crash cause
//! ```
//!
//! The result of a history depends on every draw of the world; so a lasting scenario says `seeds 0 to 9`, and its
//! expected result without a rule must be found with one of them.
//!
//! The world that runs it is as deterministic as that of a seed: the seed draws everything that the plan leaves open (the program's messages, which
//! frames are lost, how long each control message takes).

mod read;
mod settings;
mod units;
mod words;
mod write;

pub use read::{STEPS_MAX, TEXT_BYTES_MAX, parse};
pub use settings::{SETTINGS, Setting};
pub use words::ScenarioError;
pub use write::write_plan;

use serde::Serialize;

use crate::engine::queue::MICRO;
use crate::history::{History, RunReport};
use crate::limits::{COMPLETION_MAX, NIC_SEND_FRAMES};
use crate::network::NetworkConditions;
use crate::plan::{Auth, Floors, Mode, NODES, Plan, Reactions};
use crate::sabotage::Switch;

/// The required outcome of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expectation {
    /// The rule that is taken out; `None`: all hold.
    pub without: Option<String>,
    /// The kind of violation that the judges must find; `None`: they must find nothing.
    pub violation: Option<String>,
}

impl core::fmt::Display for Expectation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("expect")?;
        if let Some(rule) = &self.without {
            write!(f, " without {rule}")?;
        }
        write!(f, ": {}", self.violation.as_deref().unwrap_or("holds"))
    }
}

/// A plan and its expected result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// The required outcomes; a scenario without expectations expects nothing.
    pub expectations: Vec<Expectation>,
    /// Histories of the plan: one for its seed, and one for each of the next ones.
    pub seeds: u32,
    /// The plan.
    pub plan: Plan,
}

/// The plan of a scenario that says nothing: four ranks on two nodes, a calm network, nothing happens.
#[must_use]
pub fn plain() -> Plan {
    Plan {
        seed: 0,
        ranks: 4,
        nodes: 2,
        losses: 0,
        group: 0,
        spares: 0,
        reactions: Reactions::Usual,
        ports: 1,
        rails: 1,
        mode: Mode::Instant,
        auth: Auth::Off,
        frame_bytes_max: 512,
        floors: Floors::default(),
        calm: false,
        messages_min: 1200,
        messages_reserved: 0,
        message_bytes_max: 1500,
        tight_bounds: false,
        congested: false,
        pulls: false,
        helper: true,
        conditions: NetworkConditions { jitter_ns: 2000, ..NetworkConditions::default() },
        control_ns_max: 20 * MICRO,
        write_ns_max: 100 * MICRO,
        pause_ns_max: 20 * MICRO,
        nic_frames: NIC_SEND_FRAMES,
        completion_ns_max: COMPLETION_MAX,
        drift: [0; NODES],
        steps: Vec::new(),
    }
}

/// Reads a plan: a scenario without expectations.
///
/// # Errors
/// With the first line that is wrong.
pub fn parse_plan(text: &str) -> Result<Plan, ScenarioError> {
    parse(text).map(|scenario| scenario.plan)
}

impl Scenario {
    /// The text that [`parse`] reads back. Comments are not kept.
    #[must_use]
    pub fn write(&self) -> String {
        let expectations: String =
            self.expectations.iter().map(|expectation| format!("{expectation}\n")).collect();
        let plan = write_plan(&self.plan);
        if self.seeds == 1 {
            return expectations + &plan;
        }
        let first = self.plan.seed;
        let (_, rest) = plan.split_once('\n').unwrap_or_default();
        format!("{expectations}seeds {first} to {}\n{rest}", first + u64::from(self.seeds) - 1)
    }

    /// The plan with each of its seeds.
    pub fn plans(&self) -> impl Iterator<Item = Plan> + '_ {
        (0..u64::from(self.seeds)).map(|more| Plan { seed: self.plan.seed + more, ..self.plan.clone() })
    }

    /// The expectations; without any in the scenario, that all properties hold.
    #[must_use]
    pub fn expected(&self) -> Vec<Expectation> {
        if self.expectations.is_empty() {
            vec![Expectation { without: None, violation: None }]
        } else {
            self.expectations.clone()
        }
    }

    /// Runs the plan for each expectation.
    #[must_use]
    pub fn check(&self) -> Vec<Outcome> {
        let run = |history: &mut History| {
            while history.step() {}
            Ok::<_, core::convert::Infallible>(history.report(None))
        };
        let outcome = |expectation: &Expectation| {
            let Ok(outcome) = self.check_one(expectation, false, run);
            outcome
        };
        self.expected().iter().map(outcome).collect()
    }

    /// Lets `run` run the histories of one expectation, until it is known whether it comes true: a violation must be found
    /// with one of the seeds, and that all holds, with all of them.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn check_one<E>(
        &self,
        expectation: &Expectation,
        trace: bool,
        mut run: impl FnMut(&mut History) -> Result<RunReport, E>,
    ) -> Result<Outcome, E> {
        let switch = expectation.without.as_deref().and_then(Switch::named);
        let mut histories = 0;
        let mut last = None;
        for plan in self.plans() {
            let mut history = History::new(plan, switch.as_ref(), trace);
            let report = run(&mut history)?;
            histories += 1;
            let decides = expectation.is_decided_by(&report);
            last = Some(report);
            if decides {
                break;
            }
        }
        let run = last.expect("a scenario has at least one seed");
        let met = expectation.is_decided_by(&run) == expectation.violation.is_some();
        let Expectation { without, violation } = expectation.clone();
        Ok(Outcome { without, expected: violation, met, histories, run })
    }
}

impl Expectation {
    /// Whether no further history can change the outcome.
    fn is_decided_by(&self, run: &RunReport) -> bool {
        match &self.violation {
            None => !run.violations.is_empty(),
            Some(kind) => run.violations.iter().any(|violation| violation.kind() == *kind),
        }
    }
}

/// The outcome of a plan under one expectation.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The rule that was out.
    pub without: Option<String>,
    /// Expected kind of violation, or none.
    pub expected: Option<String>,
    /// The outcome was the expected one.
    pub met: bool,
    /// Histories run until that was known.
    pub histories: u32,
    /// The last of them.
    #[serde(flatten)]
    pub run: RunReport,
}

#[cfg(test)]
mod tests;
