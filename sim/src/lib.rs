//! A deterministic world that runs the production state machines under faults.

pub mod engine;
pub mod faults;
pub mod history;
pub mod interval;
pub mod judge;
pub mod limits;
pub mod network;
pub mod plan;
pub mod sabotage;
pub mod scale;
pub mod scenario;
pub mod seats;
pub mod shrink;
pub mod swarm;
pub mod workload;
pub mod world;

const _: () = assert!(
    transport::config::CHECKPOINTABLE,
    "a program built with --cfg uncheckpointable cannot be saved: only `stillwire-dev bench checkpointable` builds so"
);
