//! The helper with the rights: a process that opens AF_XDP sockets for ranks that have no rights of their own.
//!
//! A rank names an address and gets a UDP socket that is bound to it, memory for frames, and sockets that are bound to queues already, and with which it can do
//! nothing but use these queues. It gives nothing but bytes: closing a descriptor of another process can take for ever. The helper owns the program at the device, one
//! for all rails there. A rail lasts as long as its connection: when that ends, however its process ends, the program takes nothing for it any more.
//!
//! * `wire`, `refusal`: their messages;
//! * `messages`: bytes and descriptors over the socket between them;
//! * `client`: the rank's side;
//! * `server`: the helper's, with
//!   `register`: the owners of queues,
//!   `users`: how much each user has,
//!   `port`: the UDP port of a rail,
//!   `programs`: what runs at the devices,
//!   `listener`: the socket on which it listens,
//!   `discard`: closing connections without waiting.

mod client;
mod discard;
mod event;
mod listener;
mod messages;
mod port;
mod programs;
mod refusal;
mod register;
mod server;
mod users;
pub mod wire;

use std::path::PathBuf;

pub use client::probe;
pub(super) use client::{Given, Lease, Request as Asked, open};
pub use event::{Event, Outcome};
pub use listener::HelperError;
pub use refusal::{Limit, ProgramName, Queues, Refusal};
pub use register::Rules;
pub use server::{Helper, HelperConfig};
pub use users::Limits;

/// The helper's default socket.
pub const DEFAULT_PATH: &str = "/run/stillwire/nic.sock";

/// Names the helper's socket to ranks.
pub const HELPER_VARIABLE: &str = "STILLWIRE_NIC_HELPER";

/// Bytes of the memory for the frames of one rail, at most.
pub const MEMORY_BYTES_MAX: usize = 32 << 20;

/// Where ranks of this environment look for the helper.
#[must_use]
pub fn socket_path() -> PathBuf {
    std::env::var_os(HELPER_VARIABLE).map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from)
}
