//! Copies of generations outside the nodes: in a shared directory, or in an object store.
//!
//! What the nodes of a job keep, together with their parity, survives the loss of some of them. A copy survives the loss of all. It lies at a
//! [`Target`], packed (`store::packets`): compressed where that pays, encrypted if there is a key, every byte checksummed.
//!
//! ```text
//! JOB/                                      the job's id, 32 hexadecimal digits
//!   images/rank-00000000-0c4d7a4be2f0a1b3   packets of an image or a base, named by its digest: copies share them
//!   life-.../epoch-.../job                  packets of the job file
//!   life-.../epoch-.../manifest             as in the job's directory
//!   life-.../epoch-.../copied               written last: with it the copy exists
//! ```
//!
//! [`Copies`] is what lies there of one job: it lists, writes, fetches, verifies and removes copies.

#![forbid(unsafe_code)]

mod copies;
mod error;
mod fetch;
mod folder;
mod names;
#[cfg(feature = "s3")]
pub mod objects;
mod place;
mod target;
mod windows;
mod write;

pub use copies::{Copies, Found, Listed, jobs};
pub use error::CopyError;
pub use folder::Folder;
pub use names::job_parsed;
pub use place::{Place, PlaceError};
pub use target::{Entry, Target, Writing};
pub use write::{Report, Source, Work, Written};
