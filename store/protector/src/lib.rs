//! Images that survive their nodes: one protector per node moves parity between the nodes of a group, and repairs.
//!
//! ```text
//!   Request (keeper) --> encode worker: endpoint, messages, one encoding at a time --> Event (keeper)
//!                        |  \
//!                        |   reader: changes of this node, window by window; answers to members under repair
//!                      writer: parity of the others' data, records, repair of this node
//! ```
//!
//! [`store::protect`] computes parity and places it. This crate transports it: over an endpoint of this crate's own, in messages ([`message`]) that
//! follow a [`Shape`]. Each of the three is a thread. The encode worker also adds up the contributions that pass through. The reader and the writer
//! share the disk, and the reader computes this node's contributions. The open windows bound the work that waits between them, so that an encoding
//! takes as long as the slowest of network, disk and arithmetic.
//!
//! A protector belongs to one node, and its threads end with the handle. A failure fails one request: [`Event::Failed`] has the request and the
//! reason.

#![forbid(unsafe_code)]

mod account;
mod api;
mod bare;
mod bucket;
mod cost;
mod disk;
mod encode_pipeline;
mod encode_worker;
mod error;
mod limits;
mod mailbox;
pub mod message;
mod messenger;
mod peer_links;
mod protector;
mod reader;
mod remote;
mod routes;
mod runs;
mod shape;
mod usage;
mod windows;
mod work;
mod writer;

pub use api::{Event, Limits, Rail, Request, RequestKind, Seconds, Settings, Statistics};
pub use bare::BareRing;
pub use disk::Disk;
pub use error::ProtectorError;
pub use limits::REQUESTS_MAX;
pub use protector::Protector;
pub use runs::ImageRuns;
pub use shape::{NoSuchShape, Shape};
