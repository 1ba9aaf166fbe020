//! The reliable transport protocol of Stillwire, as pure state machines.
//!
//! Nothing here can reach a clock, a socket, a thread, the environment or a random seed: the crate is `no_std`, time and
//! frames come in as arguments, frames and events are polled out. The simulator runs this very code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod auth;
pub mod bytering;
pub mod config;
pub mod counters;
pub mod hash;
pub mod ids;
mod link;
pub mod matching;
pub mod message;
pub mod port;
pub mod sabotage;
pub mod slab;
pub mod time;
pub mod wire;

pub use auth::{Authenticator, JobKey};
pub use config::{AuthLevel, PortConfig};
pub use counters::Counters;
pub use ids::{AddressId, Epoch, JobId, JobTag, Life, LinkIndex, OpId, PortId, RailIndex, Rank, RawAddress};
pub use matching::Space;
pub use message::{
    Announced, Buffers, Event, Outgoing, Payload, Pull, Receive, SendError, Silence, Transmit, UserPayload,
};
pub use port::{FrozenPort, Port, Reach, Restart};
pub use time::Instant;
