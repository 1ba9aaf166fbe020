//! The parts of a deterministic world that know nothing of transports or checkpoints: random numbers, virtual time, clocks
//! of nodes, the trace.

pub mod clock;
pub mod digest;
pub mod queue;
pub mod random;
pub mod trace;
