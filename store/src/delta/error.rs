//! Errors of a delta, or of the content that it is applied to.

use super::hash::ContentName;
use crate::packets::PacketsError;
use crate::storage::StorageError;

/// Why a delta cannot be made, read or applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum DeltaError {
    /// Its packets cannot be read or written.
    #[error(transparent)]
    Packets(#[from] PacketsError),
    /// Another kind of file.
    #[error(
        "a {what} was expected, which says {expected:02x?}, here is {found:02x?}; it is damaged, cut off, or another kind of file"
    )]
    NotThis { what: &'static str, expected: [u8; 4], found: [u8; 4] },
    /// Shorter than the parts that every delta has.
    #[error(
        "a delta has at least {expected_bytes} bytes, this file has {found_bytes}; it is cut off, or another kind of file"
    )]
    TooShort { expected_bytes: u64, found_bytes: u64 },
    /// The trailer's checksum does not fit, or it does not fit the file.
    #[error("the last bytes of the delta are damaged, or others follow them")]
    TrailerDamaged,
    /// A format of another time.
    #[error(
        "the {what} has format version {found}, this build reads {known}; use a build that reads version {found}"
    )]
    UnsupportedVersion { what: &'static str, found: u16, known: u16 },
    /// Contents with a right checksum contradict themselves.
    #[error("the {what} contradicts itself; its writer made a mistake, or it was forged")]
    Unreadable { what: &'static str },
    /// Blocks of different lengths cannot be compared.
    #[error("blocks of {expected} bytes were expected, these have {found}; make both with one --block-bytes")]
    BlocksDiffer { expected: u32, found: u32 },
    /// Hashes with different seeds cannot be compared.
    #[error(
        "the signatures have different seeds, so their hashes cannot be compared; sign the base again, or name the base itself"
    )]
    SeedsDiffer,
    /// More blocks than a signature can have.
    #[error("a signature has at most {blocks_max} blocks; choose larger blocks")]
    TooManyBlocks { blocks_max: u64 },
    /// The delta needs a base, and none was given.
    #[error("the delta needs a base (content {base}), and none was given")]
    BaseMissing { base: ContentName },
    /// A base was given that is not the one that the delta was made against.
    #[error(
        "the delta was made against content {expected}, the base is {found}; it is another file, or has changed since"
    )]
    WrongBase { expected: ContentName, found: ContentName },
    /// A base was given, and the delta holds everything.
    #[error("the delta is full and needs no base; leave the base out")]
    NoBaseWanted,
    /// The base ends before a block that the delta takes from it.
    #[error("the delta takes block {place} from its base, which ends before; it is another file, or was cut")]
    BaseTooShort { place: u64 },
    /// The result differs from the content that the delta was made of.
    #[error(
        "applied, the delta gives content {found}, it was made of {expected}; the base is another file, or has changed since"
    )]
    ContentDiffers { expected: ContentName, found: ContentName },
    /// A block does not have the hash that stands in the index.
    #[error(
        "the block at place {place} is not the one that the index names; its writer made a mistake, or it was forged"
    )]
    BlockDiffers { place: u64 },
    /// Neither the delta nor a layer below it has the block.
    #[error("block {place} was requested, but the content has no such block")]
    NoSuchBlock { place: u64 },
    /// There is no such checkpoint in the folder.
    #[error("checkpoint {number} is not there; {}", match newest { Some(newest) => format!("the newest is {newest}"), None => "there is none".to_owned() })]
    NoSuchNumber { number: u64, newest: Option<u64> },
    /// The base of a checkpoint is gone.
    #[error("checkpoint {number} needs checkpoint {base}, which is missing: another process removed it")]
    ChainBroken { number: u64, base: u64 },
    /// A file says another number than its name.
    #[error(
        "the file says that it is checkpoint {found}, its name says {expected}; it was renamed or copied"
    )]
    NumberDiffers { expected: u64, found: u64 },
}

impl DeltaError {
    /// Nothing is wrong with the file: another key is wanted, or none.
    #[must_use]
    pub fn is_about_key(&self) -> bool {
        use PacketsError::{KeyMissing, NotEncrypted, WrongKey};
        matches!(self, DeltaError::Packets(KeyMissing | NotEncrypted | WrongKey))
    }
}

impl From<StorageError> for DeltaError {
    fn from(error: StorageError) -> DeltaError {
        DeltaError::Packets(error.into())
    }
}
