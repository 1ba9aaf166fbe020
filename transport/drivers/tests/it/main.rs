//! The drivers: one binary, a module for each behaviour.

mod capture;
mod conformance;
mod fault;
mod further_port;
mod shm;
#[path = "../../../../tests/skipped.rs"]
mod skipped;
mod udp;
mod verbs;
mod xdp;
