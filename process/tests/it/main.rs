//! Processes that are saved and restored: one binary, a module for each behaviour.

mod capture;
#[path = "../../../tests/compiled.rs"]
mod compiled;
mod content;
mod elsewhere;
mod environments;
mod halves;
mod ids;
mod live;
mod refusals;
mod restore;
mod scan;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod support;
