//! The helper with the rights: a process that opens AF_XDP sockets for ranks that have no rights of their own.
//!
//! A rank gives it a UDP socket, which proves that it has the address, and memory for frames; it gets sockets that are bound to queues already, and with which it can do
//! nothing but use these queues. The helper owns the program at the device, one for all rails there. A rail lasts as long as its connection: when that ends,
//! however its process ends, the program takes nothing for it any more.
//!
//! * `wire`: their messages;
//! * `register`: the owners of queues and addresses;
//! * `messages`: bytes and descriptors over the socket between them;
//! * `client`: the rank's side;
//! * `server`: the helper's.

mod client;
mod messages;
mod register;
mod server;
pub mod wire;

use std::path::PathBuf;

pub use client::probe;
pub(super) use client::{Given, Lease, Request as Asked, open};
pub use register::Rules;
pub use server::{Event, Helper, HelperConfig, HelperError};
pub use wire::Refusal;

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
