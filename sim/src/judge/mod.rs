//! Judges: they watch a history from outside and report forbidden events.
//!
//! A judge keeps its own books. It gets observations from the edge between programs and machines (a message handed
//! over, a cut taken, a commit record durable) and never asks the machines whether all is well.

pub mod bounds;
pub mod cut;
pub mod ends;
pub mod naming;
pub mod order;
pub mod restored;
pub mod violation;

pub use violation::Violation;

use bounds::BoundsJudge;
use cut::CutJudge;
use ends::EndsJudge;
use naming::NamingJudge;
use order::OrderJudge;
use restored::RestoredJudge;

use transport::PortConfig;

use crate::workload::Script;

/// Violations that are kept of one history: the first is the failure, the next few are its consequences.
const VIOLATIONS_MAX: usize = 8;

/// The name of a generation in the judges' books: the world's number of the life, and the epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
pub struct Generation {
    /// Number of the life, counted by the world: each start of the job's processes is a new one, independent of the
    /// job's own count.
    pub life: u32,
    /// Epoch.
    pub epoch: u32,
}

/// All judges of a history and their findings.
#[derive(Debug)]
pub struct Judges {
    /// Exactly once and in order.
    pub order: OrderJudge,
    /// No orphan, no loss in a committed generation.
    pub cut: CutJudge,
    /// Restored state equals committed state.
    pub restored: RestoredJudge,
    /// A number is used once.
    pub naming: NamingJudge,
    /// Memory stays within its bounds.
    pub bounds: BoundsJudge,
    /// Nothing is left behind.
    pub ends: EndsJudge,
    violations: Vec<Violation>,
}

impl Judges {
    /// Judges of a history that runs `script` over ports with these settings.
    #[must_use]
    pub fn new(script: &Script, config: &PortConfig) -> Judges {
        Judges {
            order: OrderJudge::new(script),
            cut: CutJudge::new(script),
            restored: RestoredJudge::new(script.ranks),
            naming: NamingJudge::default(),
            bounds: BoundsJudge::new(config, script.ranks),
            ends: EndsJudge::new(script.ranks),
            violations: Vec::new(),
        }
    }

    /// Notes a violation.
    pub fn report(&mut self, violation: Violation) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(violation);
        }
    }

    /// Notes a check's violation, if it found one.
    pub fn check(&mut self, found: Result<(), Violation>) {
        if let Err(violation) = found {
            self.report(violation);
        }
    }

    /// A receive of a process has completed: `[from, to, port]`.
    pub fn check_delivery(&mut self, script: &Script, process: u32, parties: [u32; 3], tag: u64, post: u64) {
        let found = self.order.delivered(script, process, parties, tag, post);
        self.check(found);
    }

    /// The violations found so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Whether anything was found.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        !self.violations.is_empty()
    }
}
