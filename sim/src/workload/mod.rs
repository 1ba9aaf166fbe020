//! The parallel program of a history: each rank's sends and receives, and the expected result.
//!
//! The program is a list of rounds that all ranks know ([`script`]). In each round a rank sends messages whose content follows from its state. It
//! receives messages and mixes their content into its state, so that one message lost, doubled or altered changes every later one. [`program`] runs
//! it over ports, [`oracle`] computes the same end without any.

pub mod memory;
pub mod oracle;
pub mod program;
pub mod script;

#[cfg(test)]
mod tests;

pub use memory::Damaged;
pub use program::{Host, Program, Refused, Step};
pub use script::{Round, Script, Shape, Style};
