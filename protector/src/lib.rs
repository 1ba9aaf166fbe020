//! Images that survive their nodes: one protector per node moves parity between the nodes of a group, and repairs.
//!
//! ```text
//!   Order (keeper) --> clerk: endpoint, messages, one encoding at a time --> Event (keeper)
//!                        |  \
//!                        |   reader: what has changed here, window by window; what others ask while they are repaired
//!                      keeper: parity of what others have, records, repair of this node
//! ```
//!
//! What is computed and what lies where is [`store::protect`]'s matter. Here is how it travels: over an endpoint of this crate's own, in
//! messages ([`message`]) that follow a [`Shape`]. Network, disk and arithmetic have a thread each, with bounded queues between them, so that
//! an encoding takes as long as the slowest of them.
//!
//! A protector belongs to one node, and its thread ends with the handle. What fails, fails one order: [`Event::Failed`] says which, and why.

#![forbid(unsafe_code)]

mod api;
mod bucket;
mod clerk;
mod cost;
mod disk;
mod error;
mod keeper;
mod limits;
mod lines;
mod mailbox;
pub mod message;
mod post;
mod protector;
mod reader;
mod remote;
mod round;
mod routes;
mod runs;
mod shape;
mod usage;

pub use api::{Asked, Event, Found, Limits, Order, Seconds, Settings, Statistics};
pub use error::ProtectorError;
pub use protector::Protector;
pub use shape::{NoSuchShape, Shape};
