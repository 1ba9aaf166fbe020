//! Images, manifests and generations as files.
//!
//! The files of a checkpoint, from the bottom up:
//!
//! * [`storage`]: the few operations on a directory tree that everything below is made of. [`Directory`] is a real
//!   one; [`Memory`] is one that loses power at any instant a test asks for.
//! * [`image`]: one file, the saved state of one rank: a header, checksummed sections, a table (`docs/reference/image-format.md`).
//! * [`record`]: the small text files around the images: job file, decision, manifest, commit record.
//! * [`protect`]: parity of the images of several nodes, and repair from it.
//! * [`job`]: a job's directory: lives, generations, atomic commit, retention, recovery's fence.
//!
//! Nothing here knows the time, starts a thread or chooses a random number: only the caller's arguments matter. So the simulator runs this very code
//! over [`Memory`]. Only [`Directory`] touches the operating system.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod delta;
pub mod describe;
pub mod error;
pub mod image;
pub mod job;
pub mod kinds;
pub mod limits;
pub mod packets;
pub mod protect;
pub mod record;
pub mod sabotage;
mod seal;
pub mod storage;

pub use ckpt_glue::names::{GenerationId, ImageDigest};
pub use error::{CommitError, ImageError, RecordError, StoreError};
pub use image::{Identity, ImageReader, ImageSummary, ImageWriter, Section};
pub use job::{CommitRequest, ImageClaim, JobDirectory};
pub use record::{CheckpointSettings, CommitRecord, Decision, End, JobFile, Manifest};
pub use seal::Key;
pub use storage::{Directory, Memory, Storage, StorageError};
