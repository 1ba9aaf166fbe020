//! The simulator: one binary, a module for each behaviour.

mod points;
mod scenarios;
