//! Measurements of latency, bulk, loss recovery and freezing against bare baselines.
//!
//! Every bench runs real processes over real sockets, and alternates many short runs of ours and of the baseline: on a shared
//! machine absolute times move, the ratio of two neighbouring runs hardly does. Each returns a report that serialises to one
//! JSON object and prints as a table.
//!
//! The measuring processes are this program, started again: a program with benches calls [`run_if_worker`] first in
//! `main`.

pub mod bulk;
mod chart;
pub mod checkpointable;
pub mod command;
mod conversation;
pub mod delta;
mod error;
pub mod freeze;
mod interrupt;
pub mod latency;
pub mod loss;
mod machine;
pub mod moves;
pub mod mpi;
pub mod packets;
mod pair;
pub mod parity;
pub mod pause;
pub mod periodic_freeze;
mod progress;
pub mod protocol;
pub mod rate;
pub mod report;
mod statistics;
mod testbed;
mod worker;

pub use error::BenchError;
pub use machine::{Machine, Processor};
pub use statistics::Summary;
pub use testbed::{Nic, Program};
pub use worker::run_if_worker;
