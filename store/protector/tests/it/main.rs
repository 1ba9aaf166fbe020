//! Parity between nodes: one binary, a module for each behaviour.

mod budget;
mod cluster;
mod distance;
mod failures;
mod groups;
mod late;
mod older;
mod rails;
mod sparse;
