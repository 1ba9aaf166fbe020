//! `stillwire-dev`: one binary, a module for each behaviour.

mod parity_job;
mod sim;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod support;
