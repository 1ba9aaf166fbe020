//! Components that people build as dynamic libraries: which a job loads, what they are asked, and which answers can be.
//!
//! The shell asks a component in a process of its own, with a deadline. Its answer is an input, and without one the built-in parts decide.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::policy::possible;
use super::{Fault, FaultModel, Plan, Policy, PolicyError, RecoveryProtocol};
use crate::control::FaultReport;

/// The libraries that a job loads, as its file of reactions names them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Components {
    /// Path of the detector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detector: Option<String>,
    /// Its argument.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detector_argument: String,
    /// Path of the recovery protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
    /// Its argument.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub recovery_argument: String,
}

impl Components {
    /// Whether none is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.detector.is_none() && self.recovery.is_none()
    }

    pub(super) fn validate(&self) -> Result<(), PolicyError> {
        let without = |field, argument: &String| {
            let found = argument.chars().take(80).collect();
            Err(PolicyError::Range { field, expected: "none, as no library is named", found })
        };
        match self {
            Components { detector: None, detector_argument: argument, .. } if !argument.is_empty() => {
                without("components.detector-argument", argument)
            }
            Components { recovery: None, recovery_argument: argument, .. } if !argument.is_empty() => {
                without("components.recovery-argument", argument)
            }
            _ => Ok(()),
        }
    }
}

/// The components that answer now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// A detector.
    pub detector: bool,
    /// A recovery protocol.
    pub recovery: bool,
}

/// A question to a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// To the detector: the model of a fault. Without a fault it is news alone.
    Report {
        /// The report of a monitor.
        report: FaultReport,
        /// What the built-in detector takes it for.
        fault: Option<Fault>,
    },
    /// To the recovery protocol: the reaction to a fault.
    Reaction {
        /// The fault.
        fault: Fault,
        /// The reaction by the job's policy.
        plan: Plan,
    },
}

/// An answer of a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// As the built-in part has it; also if the component has failed.
    BuiltIn,
    /// The fault has this model.
    Model(FaultModel),
    /// The reaction is this protocol.
    Protocol(RecoveryProtocol),
}

impl Fault {
    /// Whether a component may give the fault this model. The others have reactions that would leave a rank that is gone for ever.
    #[must_use]
    pub fn can_be(&self, model: FaultModel) -> bool {
        use FaultModel::{Permanent, Process, Repeated, Transient};
        self.model == model || matches!(model, Process | Repeated | Transient | Permanent)
    }

    /// Whether components are asked about it: it is on a node, and a policy names the reaction.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.site.node().is_some() && FaultModel::CHOSEN.contains(&self.model)
    }
}

impl Policy {
    /// The policy with this protocol first, for faults of this model.
    ///
    /// # Errors
    /// If the protocol is none for the model.
    pub fn with_protocol(
        &self,
        model: FaultModel,
        protocol: RecoveryProtocol,
    ) -> Result<Policy, PolicyError> {
        let mut changed = self.clone();
        match changed.on.of_mut(model) {
            Some(order) if possible(model).contains(&protocol) => order.put_first(protocol),
            _ => {
                let expected = super::policy::names(possible(model));
                return Err(PolicyError::NotFor { model, found: protocol, expected });
            }
        }
        Ok(changed)
    }
}
