//! Why a copy cannot be written or read.

use store::delta::DeltaError;
use store::error::RecordError;
use store::packets::{KeyUse, PacketsError};
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
    /// A record of another copy cannot be read, so the files that it names are unknown.
    #[error(
        "{path}: {error}; no older copy is removed, as it may still be needed: correct the record, or remove it"
    )]
    Obscure { path: String, error: RecordError },
    /// A file of a copy is missing, or has another length.
    #[error("the copy of generation {generation} has lost {path}, or a part of it: take another copy")]
    Lacks { generation: GenerationId, path: String },
    /// The base of a copy is missing, or was written anew since.
    #[error(
        "the copy of generation {generation} builds upon that of {base}, which is missing or has changed: take another copy"
    )]
    NoBase { generation: GenerationId, base: GenerationId },
    /// The base of a copy has another key, or other ranks.
    #[error(
        "the copy of generation {generation} builds upon that of {base}, which has another key or number of ranks; its writer made a mistake: take another copy"
    )]
    OtherBase { generation: GenerationId, base: GenerationId },
    /// The base of a copy has a fault.
    #[error("it builds upon the copy of generation {base}: {error}")]
    InBase { base: GenerationId, error: Box<CopyError> },
    /// An image differs between its first and second reading.
    #[error("the images of rank {rank} changed while they were copied; find the process that writes to them")]
    Changed { rank: Rank },
    /// A packed file is not the one that the record names.
    #[error("{path}: {what}; it is not the file that was copied: take another copy")]
    Exchanged { path: String, what: &'static str },
    /// A file has disappeared before the copy was complete.
    #[error("{error}; it has disappeared: another process removes copies of this job: stop it")]
    Gone { error: Box<CopyError> },
    /// The copy has gone.
    #[error("there is no copy of generation {generation} at the place any more")]
    NoCopy { generation: GenerationId },
    /// A part of a copy that another host writes was not written.
    #[error("{host}: {problem}")]
    Part { host: String, problem: String },
    /// Another host does not see the file that the launcher wrote at the place.
    #[error(
        "{path}, which the launcher has just written, is missing here: this host has another directory under that name; copies need a place that all hosts share"
    )]
    NotShared { path: String },
    /// The job was restarted elsewhere.
    #[error(
        "a copy of generation {by} exists, of a later life than this one: the job was restarted elsewhere, and nothing more is copied from here"
    )]
    Superseded { by: GenerationId },
    /// The files are encrypted or signed with another key than the one that was given.
    #[error(
        "the copy of generation {generation} is {} with {}: give the key with which it was written",
        use_words(*.usage),
        key_words(*.given)
    )]
    Key { generation: GenerationId, usage: KeyUse, given: bool },
    /// A record or a manifest without the right signature.
    #[error(
        "{path} is not signed with the key that was given: somebody else wrote or changed it, or a version before 0.2 encrypted it. Take another copy; if you are sure of this one, --trust accepts a record without signature"
    )]
    Unsigned { path: String },
    /// The record names more or fewer images than the manifest.
    #[error(
        "the copy of generation {generation} has {found} images, its manifest names {expected}: take another copy"
    )]
    Images { generation: GenerationId, expected: usize, found: usize },
    /// The system gave no random numbers.
    #[error(
        "the system gives no random numbers (getrandom failed), and encrypted files need some: try again, or copy without a key"
    )]
    NoRandomness,
    /// A person wants the end.
    #[error("stopped; half-written files do not count, and the next attempt begins with the complete ones")]
    Stopped,
}

impl CopyError {
    /// The same, reported of the copy of `generation`, if it is about another one, `at`, below it.
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
            | CopyError::Unsigned { .. }
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

/// The place answers, but lacks the data.
pub(crate) fn is_loss(error: &StorageError) -> bool {
    matches!(error, StorageError::NotFound { .. } | StorageError::Short { .. } | StorageError::TooLong { .. })
}

fn use_words(usage: KeyUse) -> &'static str {
    match usage {
        KeyUse::Encrypt => "encrypted",
        KeyUse::Sign => "signed",
    }
}

fn key_words(given: bool) -> &'static str {
    if given { "another key than the one that was given" } else { "a key, and none was given" }
}
