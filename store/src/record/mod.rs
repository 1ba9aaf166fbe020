//! The text records of a job's directory, and the one grammar they share.
//!
//! ```text
//! stillwire decision 1
//! job 000102030405060708090a0b0c0d0e0f
//! life 2.00000000deadbeef
//! from 1.0123456789abcdef 3
//! checksum 93a1b2c4d5e6f708
//! ```
//!
//! The first line names record and version; then `key value` lines in a fixed order; the last line is the checksum of
//! all bytes before it. One record has one spelling: a parsed record emits the same bytes. Text, because a person reads
//! these files after a failure.

mod commit;
mod content;
mod copy_record;
mod decision;
mod end;
mod grammar;
mod job_end;
mod job_file;
mod manifest;
mod protection_record;
mod seats;

pub use commit::CommitRecord;
pub use content::{Content, ContentFile};
pub use copy_record::{
    BaseCopy, Copied, CopiedFile, CopiedImage, CopiedRank, KeyName, Signature, SinceWhole,
};
pub use decision::Decision;
pub use end::End;
pub use job_end::JobEndRecord;
pub use job_file::{CheckpointSettings, JobFile};
pub use manifest::{Manifest, ManifestImage};
pub use protection_record::Protected;
pub use seats::Seats;
