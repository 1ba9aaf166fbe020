//! Copies outside the nodes: one binary, a module for each behaviour.

mod common;
mod copies;
mod crash;
mod objects;
mod parts;
mod progress;
mod series;
mod signed;
