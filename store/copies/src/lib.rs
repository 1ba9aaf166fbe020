//! Copies of generations outside the nodes: in a shared directory, or in an object store.
//!
//! The images on the nodes of a job, together with their parity, survive the loss of some nodes. A copy survives the loss of all. It lies at a
//! [`Target`], packed (`store::packets`): compressed where that pays, encrypted or signed if there is a key, every byte checksummed.
//!
//! ```text
//! JOB/                              the job's id, 32 hexadecimal digits
//!   life-.../epoch-.../
//!     rank-00000000.blocks          a delta (`store::delta`): blocks of its images that the copy below has not
//!     rank-00000000.places          packets: which block is which part of which image
//!     job                           packets of the job file
//!     manifest                      as in the job's directory
//!     copied                        written last: with it the copy exists; with a key it has a signature of itself and of the manifest
//!   sign-...                        while several hosts write a copy: by it they see that their place is the same
//! ```
//!
//! [`Copies`] handles the copies of one job there: it lists, writes, fetches, verifies and removes copies. A copy may
//! build upon others: see [`Listed::needs`].

#![forbid(unsafe_code)]

mod blocks;
mod chain;
mod copies;
mod error;
mod fetch;
mod folder;
mod key;
mod layers;
mod location;
mod names;
#[cfg(feature = "s3")]
pub mod objects;
mod pack;
mod parts;
mod progress_target;
mod target;
mod windows;
mod write;

pub use copies::{Copies, Found, Listed, jobs};
pub use error::CopyError;
pub use folder::Folder;
pub use key::CopyKey;
pub use location::{CopyLocation, Environment, LocationError};
pub use names::job_parsed;
pub use pack::Packed;
pub use parts::PackRequest;
pub use target::{Entry, Target, Writing};
pub use write::{Report, Source, Work, Written};
