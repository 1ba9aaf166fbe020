//! The reliable transport protocol of Stillwire, as pure state machines.
//!
//! Nothing here can reach a clock, a socket, a thread, the environment or a random seed: the crate is `no_std`, time and
//! frames come in as arguments, frames and events are polled out. The simulator runs this very code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bytering;
pub mod ids;
pub mod matching;
pub mod slab;
pub mod time;

pub use ids::{AddressId, Epoch, JobId, JobTag, Life, LinkIndex, OpId, PortId, RailIndex, Rank, RawAddress};
pub use time::Instant;
