//! Components as dynamic libraries (`include/stillwire_component.h`): detectors and recovery protocols of others.
//!
//! ```text
//!   coordinator                      the component's process (`stillwire __component`)
//!   ComponentProcess  <- socket ->   serve: Library, which calls the component's functions
//! ```
//!
//! The process takes one question after another, and each has a deadline. A component that crashes, hangs or gives an answer that cannot be ends with its
//! process; the built-in part decides from then on.

mod interface;
mod library;
mod process;
mod server;
pub(crate) mod wire;

use std::fmt;
use std::time::Duration;

use ckpt_glue::recovery::Components;
use serde::{Deserialize, Serialize};

pub(crate) use interface::{
    BUILT_IN, NONE, confidence_code, model_code, model_of, plan_code, protocol_of, report_kind,
};
pub(crate) use process::{ComponentProcess, Purpose};
pub use process::{Description, check};
pub use server::serve as serve_component;

/// The part that a component replaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComponentKind {
    /// Finds faults.
    Detector,
    /// Chooses the reaction to a fault.
    Recovery,
}

impl ComponentKind {
    /// Both.
    pub const ALL: [ComponentKind; 2] = [ComponentKind::Detector, ComponentKind::Recovery];

    /// Its library and argument, if one is named.
    #[must_use]
    pub fn of(self, components: &Components) -> Option<(&str, &str)> {
        let (library, argument) = match self {
            ComponentKind::Detector => (&components.detector, &components.detector_argument),
            ComponentKind::Recovery => (&components.recovery, &components.recovery_argument),
        };
        library.as_deref().map(|library| (library, argument.as_str()))
    }
}

impl fmt::Display for ComponentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ComponentKind::Detector => "detector",
            ComponentKind::Recovery => "recovery protocol",
        })
    }
}

/// Why a component does not answer any more.
#[derive(Debug, thiserror::Error)]
pub enum ComponentFailure {
    /// No process could be started for it.
    #[error("its process could not be started ({0})")]
    NotStarted(std::io::Error),
    /// It is no component of this version, or does not want to begin.
    #[error("{0}")]
    Refused(String),
    /// Its process has ended.
    #[error("its process was ended by {0}")]
    Killed(String),
    /// Its process has ended by itself.
    #[error("its process has exited with code {0}")]
    Exited(i32),
    /// It has closed its connection.
    #[error("the connection to its process was lost")]
    Lost,
    /// It is late.
    #[error("it has not answered within {0:?}")]
    Late(Duration),
    /// Its answer is none to the question.
    #[error("{0}")]
    Wrong(String),
}
