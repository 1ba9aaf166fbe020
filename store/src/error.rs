//! Errors of files on disk, and the remedy for each.

use core::ops::RangeInclusive;

use ckpt_glue::protection::nodes::Refusal;
use ckpt_glue::{GenerationId, ImageDigest};
use transport::{Epoch, JobId, Life, Rank};

use crate::storage::StorageError;

/// An operation on a job's directory failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The storage below failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An image cannot be read or is not the one that was expected.
    #[error("{path}: {error}")]
    Image {
        /// The image file, relative to the job's directory.
        path: String,
        /// The fault.
        error: ImageError,
    },
    /// A delta cannot be made, read or applied.
    #[error("{path}: {error}")]
    Delta {
        /// The delta's file, relative to the storage's root.
        path: String,
        /// The fault.
        error: crate::delta::DeltaError,
    },
    /// A text record cannot be read.
    #[error("{path}: {error}")]
    Record {
        /// The record's file, relative to the job's directory.
        path: String,
        /// The fault.
        error: RecordError,
    },
    /// A generation cannot be committed, or not be begun.
    #[error("generation {generation}: {error}")]
    Commit {
        /// Which generation.
        generation: GenerationId,
        /// Why.
        error: CommitError,
    },
    /// A record was written, and neither made durable nor taken back.
    #[error(
        "{path} may be missing after a loss of power ({error}); end this life: a restart reads the files that exist"
    )]
    Unsettled {
        /// The record, relative to the job's directory.
        path: String,
        /// The failed action.
        error: StorageError,
    },
    /// Parity that is still needed cannot be read.
    #[error("{error}")]
    Parity {
        /// The fault.
        error: Box<crate::protect::ProtectError>,
    },
    /// Another decider took the life's number at the same time.
    #[error(
        "life {counter} was decided by another process at the same time; only one may restart a job: stop the other one, or let it go on"
    )]
    LifeTaken {
        /// The counter that both chose.
        counter: u32,
    },
    /// The generation that a new life was to start from is not committed, or no more.
    #[error(
        "generation {generation} is not a committed generation of this job; `stillwire ls` lists those that are"
    )]
    NotCommitted {
        /// Which generation.
        generation: GenerationId,
    },
    /// The job's lives are used up.
    #[error("life {counter_max} is the last one a job can have; start the program as a new job")]
    LivesUsedUp {
        /// The largest counter.
        counter_max: u32,
    },
}

/// Why a generation cannot be begun, written or committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Rule 9: a later life was decided; nothing of an older one can be committed any more.
    #[error("life {life} was decided meanwhile and ends this one; stop the ranks of this life")]
    Fenced {
        /// The newest life.
        life: Life,
    },
    /// Rule 7: no decision record names this life.
    #[error("no decision record names this life; a life is decided durably before its first process starts")]
    UndecidedLife,
    /// The generation has a commit record.
    #[error(
        "the generation is committed already; a number is used once in a life: continue with a higher epoch"
    )]
    AlreadyCommitted,
    /// Rule 1: a later epoch of the same life was begun, so this one was abandoned.
    #[error("epoch {by} of the same life was begun, so this one was abandoned; commit that one instead")]
    Overtaken {
        /// The later epoch.
        by: Epoch,
    },
    /// The images named do not cover every rank once.
    #[error("expected one image each of ranks 0 to {}, found rank {found} at place {place}: report this coordinator's bug", ranks.saturating_sub(1))]
    RanksDiffer {
        /// Ranks of the job.
        ranks: u32,
        /// Where in the list.
        place: usize,
        /// The rank that stands there.
        found: Rank,
    },
    /// Fewer or more images than ranks.
    #[error(
        "{ranks} images were expected, {found} were reported; abandon this generation and take the next one"
    )]
    ImagesDiffer {
        /// Ranks of the job.
        ranks: u32,
        /// Images named.
        found: usize,
    },
    /// An image names a node that the request does not list.
    #[error(
        "rank {rank} is assigned to node {node}, but {nodes} nodes were named: report this coordinator's bug"
    )]
    NoSuchNode {
        /// Whose image.
        rank: Rank,
        /// The index of its node.
        node: u32,
        /// Nodes named.
        nodes: usize,
    },
    /// The rank's image exists already in this generation.
    #[error("rank {rank} has written its image already; an image is written once")]
    AlreadyWritten {
        /// Whose image.
        rank: Rank,
    },
}

/// The faults of an image file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum ImageError {
    /// Shorter than the parts that every image has.
    #[error(
        "an image has at least {expected_bytes} bytes, this file has {found_bytes}; it is cut off: restart from another generation"
    )]
    TooShort { expected_bytes: u64, found_bytes: u64 },
    /// The header is still all zero: its writer did not come to the end.
    #[error(
        "the image was never finished (its header is still zero); it belongs to no generation and can be removed"
    )]
    HalfWritten,
    /// Another kind of file.
    #[error(
        "an image begins with the bytes {expected:02x?}, this file with {found:02x?}; it is damaged, or no image: restart from another generation"
    )]
    NotAnImage { expected: [u8; 4], found: [u8; 4] },
    /// The header's checksum does not fit the header.
    #[error(
        "the header's checksum is {expected:016x}, its bytes give {found:016x}; the header is damaged: restart from another generation"
    )]
    HeaderDamaged { expected: u64, found: u64 },
    /// A format of another time.
    #[error("the image has format version {found}, this build reads {} to {}; use a build that reads version {found}", readable.start(), readable.end())]
    UnsupportedVersion { found: u16, readable: RangeInclusive<u16> },
    /// A flag that changes the meaning of the file, unknown here.
    #[error("the image has the flags {found:#06x}, this build knows {known:#06x}; use a newer build")]
    UnsupportedFlags { found: u16, known: u16 },
    /// Header and table do not agree whether the image needs a base.
    #[error(
        "the table {} a base, the header says the opposite; the image is damaged: restart from another generation",
        if *names_base { "names" } else { "does not name" }
    )]
    #[expect(missing_docs, reason = "said above")]
    BaseDiffers { names_base: bool },
    /// The image that a delta builds on is itself a delta.
    #[error(
        "a base has to be whole, and this one needs a base itself; it is damaged: restart from another generation"
    )]
    BaseIsDelta,
    /// Header and table do not agree whether the image is encrypted.
    #[error(
        "the image {}, header and table say two things about its encryption; it is damaged: restart from another generation",
        if *has_seal { "has a seal" } else { "has no seal" }
    )]
    #[expect(missing_docs, reason = "said above")]
    SealDiffers { has_seal: bool },
    /// The seal is of another version.
    #[error(
        "the seal has version {found} and id {id}, this build knows version {known} with id 0; use a newer build"
    )]
    #[expect(missing_docs, reason = "said above")]
    SealVersion { id: u64, found: u16, known: u16 },
    /// The seal has not as many tags as there are pages.
    #[error(
        "the seal has {found_bytes} bytes, the pages of the image need {expected_bytes}; it is damaged: restart from another generation"
    )]
    SealLengthDiffers { expected_bytes: u64, found_bytes: u64 },
    /// A section of an encrypted image is encrypted and must not be, or the reverse.
    #[error(
        "section {section} (kind {kind:#06x}) of an encrypted image is encrypted and must not be, or the reverse; it is damaged: restart from another generation"
    )]
    NotSecret { section: u32, kind: u32 },
    /// The image is encrypted, and no key was given.
    #[error("the image is encrypted: name its key with --key-file or STILLWIRE_KEY")]
    NoKey,
    /// The image is encrypted with another key.
    #[error("the image is encrypted with another key: name its own with --key-file or STILLWIRE_KEY")]
    OtherKey,
    /// The image is not encrypted, and all images of the job are.
    #[error(
        "the image is not encrypted, but all images of this job are: it belongs to another job; restart from another generation"
    )]
    NotEncrypted,
    /// Header or table were changed by a writer without the key.
    #[error(
        "header and table differ from those written with this key: they were changed; restart from another generation"
    )]
    TableForged,
    /// A page was changed by a writer without the key, or is damaged (if its checksum was not verified).
    #[error(
        "page {page} of section {section} differs from the page written with this key: it was changed, or is damaged; restart from another generation, or, if `stillwire verify` reports damage without the key too, let `stillwire repair` mend it"
    )]
    PageForged { section: u32, page: u64 },
    /// There were no random bytes for the salt of an encrypted image.
    #[error("the system gives no random bytes (getrandom failed), and encryption needs them")]
    NoSalt,
    /// A section is encoded in a way unknown here.
    #[error("section {section} has encoding {found}, this build knows 0 to {known_max}; use a newer build")]
    UnsupportedEncoding { section: u32, found: u16, known_max: u16 },
    /// The file's length is not the one in its header.
    #[error(
        "the header says {expected_bytes} bytes, the file has {found_bytes}; it is cut off or damaged: restart from another generation"
    )]
    LengthDiffers { expected_bytes: u64, found_bytes: u64 },
    /// A length beyond every bound.
    #[error(
        "the header says {found_bytes} bytes, an image has at most {bytes_max}; it is damaged: restart from another generation"
    )]
    TooLong { found_bytes: u64, bytes_max: u64 },
    /// More sections than an image can have, or than fit into the file.
    #[error(
        "the header says {found} sections, at most {sections_max} fit; it is damaged: restart from another generation"
    )]
    TooManySections { found: u32, sections_max: u64 },
    /// The table's checksum does not fit the table.
    #[error(
        "the table's checksum is {expected:016x}, its bytes give {found:016x}; the table is damaged: restart from another generation"
    )]
    TableDamaged { expected: u64, found: u64 },
    /// A section lies where none can lie.
    #[error(
        "section {section} says it has {bytes} bytes from {offset} on; between {from} and {until} was expected: restart from another generation"
    )]
    SectionMisplaced { section: u32, offset: u64, bytes: u64, from: u64, until: u64 },
    /// A section's checksum does not fit its bytes.
    #[error(
        "section {section} (kind {kind:#06x}) has the checksum {expected:016x}, its bytes give {found:016x}; it is damaged: restart from another generation"
    )]
    SectionDamaged { section: u32, kind: u32, expected: u64, found: u64 },
    /// Bytes between sections that must be zero are not.
    #[error(
        "the padding before byte {until} is not zero; the file is damaged: restart from another generation"
    )]
    PaddingDamaged { until: u64 },
    /// No section of that kind.
    #[error("the image has no section of kind {kind:#06x}; it was written by another kind of program")]
    SectionMissing { kind: u32 },
    /// No section with that number.
    #[error("the image has {sections} sections, section {section} was requested")]
    NoSuchSection { section: u32, sections: u32 },
    /// The caller's memory does not fit the section.
    #[error(
        "section {section} has {found_bytes} bytes, {expected_bytes} were expected; the program that restarts differs from the one that was saved"
    )]
    SectionLengthDiffers { section: u32, expected_bytes: u64, found_bytes: u64 },
    /// The content of a section that the store itself owns.
    #[error(
        "section kind {kind:#06x} version {version} with {bytes} bytes is not one this build reads; use the build that wrote it"
    )]
    SectionUnreadable { kind: u32, version: u16, bytes: u64 },
    /// An image of another job.
    #[error(
        "the image belongs to job {found}, job {expected} was expected; it was copied into the wrong directory"
    )]
    WrongJob { expected: JobId, found: JobId },
    /// An image of another life: rule 7, only an equal one counts.
    #[error(
        "the image belongs to life {found}, life {expected} was expected; it was copied into the wrong generation"
    )]
    WrongLife { expected: Life, found: Life },
    /// An image of another epoch.
    #[error(
        "the image belongs to epoch {found}, epoch {expected} was expected; it was copied into the wrong generation"
    )]
    WrongEpoch { expected: Epoch, found: Epoch },
    /// The image of another rank.
    #[error(
        "the image belongs to rank {found}, rank {expected} was expected; it was copied under the wrong name"
    )]
    WrongRank { expected: Rank, found: Rank },
    /// Not the content that was committed.
    #[error(
        "the image's digest is {found}, {expected} was committed; it is not the committed file: restart from another generation"
    )]
    WrongDigest { expected: ImageDigest, found: ImageDigest },
    /// The writer was given more bytes or sections than one image can have.
    #[error(
        "an image holds at most {sections_max} sections and {bytes_max} bytes; save less, or from fewer mappings"
    )]
    Full { sections_max: u32, bytes_max: u64 },
}

/// The faults of a text record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum RecordError {
    /// Another kind of file.
    #[error("the first line should be `stillwire {expected} VERSION`; this is another kind of file")]
    NotThisRecord { expected: &'static str },
    /// A format of another time.
    #[error("the {what} has format version {found}, this build reads {} to {}; use a build that reads version {found}", readable.start(), readable.end())]
    UnsupportedVersion { what: &'static str, found: u16, readable: RangeInclusive<u16> },
    /// The checksum line is missing.
    #[error(
        "the last line should be `checksum` and 16 hexadecimal digits; the file is cut off: {}",
        way_without(what)
    )]
    CutOff { what: &'static str },
    /// The checksum does not fit the lines.
    #[error(
        "the checksum line says {expected:016x}, the lines above give {found:016x}; the file is damaged: {}",
        way_without(what)
    )]
    Damaged { what: &'static str, expected: u64, found: u64 },
    /// A line is not the one the format has there.
    #[error(
        "line {line} should be `{expected}`; the file is not in the format it claims: use the build that wrote it"
    )]
    Line { line: usize, expected: &'static str },
    /// A count beyond its bound.
    #[error("{count} {what} were found, at most {count_max} can be; the file is damaged")]
    TooMany { what: &'static str, count: usize, count_max: usize },
    /// The record belongs to another job.
    #[error(
        "the record belongs to job {found}, job {expected} was expected; it was copied into the wrong directory"
    )]
    WrongJob { expected: JobId, found: JobId },
    /// The record belongs to another generation.
    #[error(
        "the record belongs to generation {found}, {expected} was expected; it was copied into the wrong generation"
    )]
    WrongGeneration { expected: GenerationId, found: GenerationId },
    /// The manifest is not the one that was committed.
    #[error(
        "the manifest's checksum is {found:016x}, {expected:016x} was committed; it is not the committed file: restart from another generation"
    )]
    WrongManifest { expected: u64, found: u64 },
    /// Manifest and commit record name different digests for a rank.
    #[error(
        "rank {rank}: the manifest says {manifest}, the commit record {commit}; one of them is damaged: restart from another generation"
    )]
    DigestsDiffer { rank: Rank, manifest: ImageDigest, commit: ImageDigest },
}

/// The remedy for a missing text record.
fn way_without(what: &str) -> &'static str {
    match what {
        "job" => "every generation of the job needs it; put a copy of it back",
        "decision" => "no generation needs it, the job can go on without",
        "end" => "it says only that the job has finished; remove it to go on from a generation",
        _ => "restart from another generation",
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal { errno: error.errno(), why: error.to_string() }
    }
}

/// A number of bytes as people read it.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut whole = bytes;
    let mut tenths = 0;
    let mut unit = "bytes";
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        tenths = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit = next;
    }
    format!("{whole}.{tenths} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_reported_in_the_unit_that_fits() {
        assert_eq!(bytes_text(0), "0 bytes");
        assert_eq!(bytes_text(1023), "1023 bytes");
        assert_eq!(bytes_text(1024), "1.0 KiB");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(5 << 30), "5.0 GiB");
        assert_eq!(bytes_text(u64::MAX), "16777215.9 TiB");
    }
}
