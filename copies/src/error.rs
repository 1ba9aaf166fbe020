//! Why a copy cannot be written or read.

use store::delta::DeltaError;
use store::error::RecordError;
use store::packets::PacketsError;
use store::{GenerationId, StorageError, StoreError};
use transport::Rank;

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
    /// Blocks cannot be read or written.
    #[error("{path}: {error}")]
    Blocks { path: String, error: DeltaError },
    /// A record cannot be read.
    #[error("{path}: {error}")]
    Record { path: String, error: RecordError },
    /// A record of another copy cannot be read, and so nobody knows which files it names.
    #[error(
        "{path}: {error}; so that nothing is lost that it may need, no older copy is removed: put the record right, or remove it"
    )]
    Obscure { path: String, error: RecordError },
    /// A file of a copy is missing, or has another length.
    #[error("the copy of generation {generation} has lost {path}, or a part of it: take another copy")]
    Lacks { generation: GenerationId, path: String },
    /// The copy that another one hangs on is not there, or was written anew since.
    #[error(
        "the copy of generation {generation} hangs on that of {base}, which is not there any more as it was: take another copy"
    )]
    NoBase { generation: GenerationId, base: GenerationId },
    /// The copy that another one hangs on has another key, or other ranks.
    #[error(
        "the copy of generation {generation} hangs on that of {base}, which has another key or number of ranks; whoever wrote it made a mistake: take another copy"
    )]
    OtherBase { generation: GenerationId, base: GenerationId },
    /// Something is wrong with what a copy hangs on.
    #[error("it hangs on the copy of generation {base}: {error}")]
    InBase { base: GenerationId, error: Box<CopyError> },
    /// What was read of an image the second time is not what it was the first time.
    #[error("the images of rank {rank} have changed while they were copied; look for what writes to them")]
    Changed { rank: Rank },
    /// A packed file is not the one that the record names.
    #[error("{path}: {what}; it is not the file that was copied: take another copy")]
    Exchanged { path: String, what: &'static str },
    /// What was written, or was there, has gone before the copy was complete.
    #[error("{error}; it was there and has gone: another process removes copies of this job: stop it")]
    Gone { error: Box<CopyError> },
    /// The copy has gone.
    #[error("there is no copy of generation {generation} at the place any more")]
    NoCopy { generation: GenerationId },
    /// A part of a copy that another host writes was not written.
    #[error("{host}: {problem}")]
    Part { host: String, problem: String },
    /// Another host does not see what lies at the place.
    #[error(
        "{path} is not there, which the launcher has just written: what this host has under that name is not the same; copies want a place that all hosts have in common"
    )]
    NotShared { path: String },
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

impl CopyError {
    /// The same, told of the copy of `generation`, if it is about another one, `at`, below it.
    pub(crate) fn in_base(self, generation: GenerationId, at: GenerationId) -> CopyError {
        if generation == at { self } else { CopyError::InBase { base: at, error: Box::new(self) } }
    }

    /// Something is wrong with the copy itself, so that another one may do.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            CopyError::Packets { error, .. } => {
                !matches!(
                    error,
                    PacketsError::KeyMissing
                        | PacketsError::NotEncrypted
                        | PacketsError::WrongKey
                        | PacketsError::Storage(_)
                ) || matches!(error, PacketsError::Storage(error) if is_loss(error))
            }
            CopyError::Blocks { error, .. } => match error {
                DeltaError::Packets(PacketsError::Storage(error)) => is_loss(error),
                error => !error.is_about_key(),
            },
            CopyError::Storage(error) => is_loss(error),
            CopyError::InBase { error, .. } => error.is_damage(),
            CopyError::Record { .. }
            | CopyError::Lacks { .. }
            | CopyError::NoBase { .. }
            | CopyError::OtherBase { .. }
            | CopyError::Exchanged { .. }
            | CopyError::Images { .. } => true,
            CopyError::Store(_)
            | CopyError::Obscure { .. }
            | CopyError::Changed { .. }
            | CopyError::Gone { .. }
            | CopyError::NoCopy { .. }
            | CopyError::Part { .. }
            | CopyError::NotShared { .. }
            | CopyError::Superseded { .. }
            | CopyError::Key { .. }
            | CopyError::NoRandomness
            | CopyError::Stopped => false,
        }
    }
}

/// The place answers, and does not have what it should.
pub(crate) fn is_loss(error: &StorageError) -> bool {
    matches!(error, StorageError::NotFound { .. } | StorageError::Short { .. } | StorageError::TooLong { .. })
}

fn key_words(given: bool) -> &'static str {
    if given { "another key than the one that was given" } else { "a key, and none was given" }
}
