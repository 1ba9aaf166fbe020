//! The benches: one binary, a module for each behaviour.

mod benches;
mod choice;
mod mpich;
#[path = "../../../tests/skipped.rs"]
mod skipped;
