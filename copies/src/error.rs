//! Why a copy cannot be written or read.

use store::error::RecordError;
use store::packets::PacketsError;
use store::{GenerationId, StorageError, StoreError};

/// A copy could not be written, read or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum CopyError {
    /// The place of the copies failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The generation that is copied, or the directory that takes one over, failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A packed file cannot be read or written.
    #[error("{path}: {error}")]
    Packets { path: String, error: PacketsError },
    /// A record cannot be read.
    #[error("{path}: {error}")]
    Record { path: String, error: RecordError },
    /// A record of another copy cannot be read, and so nobody knows which files it names.
    #[error(
        "{path}: {error}; so that nothing is lost that it may name, the files of older copies stay: put the record right, or remove it"
    )]
    Obscure { path: String, error: RecordError },
    /// A packed file is not the one that the record names.
    #[error("{path}: {what}; it is not the file that was copied: take another copy")]
    Exchanged { path: String, what: &'static str },
    /// A file that was written, or was there, has gone before the copy was complete.
    #[error("{path} was there and has gone; another process removes copies of this job: stop it")]
    Gone { path: String },
    /// Somebody has gone on with the job elsewhere.
    #[error(
        "a copy of generation {by} is there, of a later life than this one: the job was restarted elsewhere, and nothing is copied from here any more"
    )]
    Superseded { by: GenerationId },
    /// The files are encrypted with another key than the one that was given.
    #[error(
        "the copy of generation {generation} is encrypted with {}: give the key with which it was written",
        key_words(*.given)
    )]
    Key { generation: GenerationId, given: bool },
    /// The record names more or fewer images than the manifest.
    #[error(
        "the copy of generation {generation} has {found} images, its manifest names {expected}: take another copy"
    )]
    Images { generation: GenerationId, expected: usize, found: usize },
    /// Random numbers could not be had.
    #[error(
        "the system gives no random numbers (getrandom failed), and encrypted files need some: try again, or copy without a key"
    )]
    NoRandomness,
    /// A person wants the end.
    #[error("stopped; nothing half written counts, and the next attempt begins with what is whole")]
    Stopped,
}

fn key_words(given: bool) -> &'static str {
    if given { "another key than the one that was given" } else { "a key, and none was given" }
}
