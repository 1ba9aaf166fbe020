//! One checkpoint of one job: coordinator, participant, keeper, recovery. Pure state machines.
//!
//! Nothing here can reach a clock, a socket, a thread or a file. Each machine takes inputs and the time as arguments and
//! hands out what it wants done, in order; the launcher carries it out with processes, sockets and files, the simulator
//! with a model of them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod config;
pub mod control;
pub mod coordinator;
pub mod duration;
pub mod enrolment;
pub mod error;
pub mod job;
pub mod keeper;
pub mod layout;
pub mod limits;
pub mod names;
pub mod participant;
pub mod protocols;
mod queue;
pub mod recovery;
pub mod sabotage;
#[cfg(test)]
mod table;

pub use config::{JobConfig, OnFault};
pub use control::{Control, ControlKey, ControlReader, ControlWriter, Decision, Message};
pub use duration::{parse_duration, write_duration};
pub use enrolment::Enrolment;
pub use error::{ConfigError, LayoutError, Malformed};
pub use job::{Job, JobSettings};
pub use keeper::Keeper;
pub use layout::{Layout, Share};
pub use names::{ExitStatus, GenerationId, ImageDigest, NodeIndex, Party};
pub use participant::Participant;
pub use recovery::Recovery;
pub use sabotage::{Rule, Sabotage};
