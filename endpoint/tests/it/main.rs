//! Ports in real processes: one binary, a module for each behaviour.

mod foreign;
mod further_rail;
mod hand_over;
mod hostile;
mod in_place;
mod moves;
mod rebind;
mod shm;
mod shorter_path;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod support;
mod traffic;
