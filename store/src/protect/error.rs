//! Errors of protecting images.

use ckpt_glue::GenerationId;
use parity::CodeError;

use crate::error::{RecordError, StoreError};
use crate::storage::StorageError;

/// A generation cannot be protected, or not be repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum ProtectError {
    /// The job's directory, or the storage below it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that says how a generation is protected.
    #[error("{path}: {error}; repair the node")]
    Record { path: String, error: RecordError },
    /// A file of pages is not as it was written.
    #[error("{path}: {what}; repair the node")]
    File { path: String, what: &'static str },
    /// A page of a node's images is not as it was when its parity was computed.
    #[error("page {page} of generation {generation} is damaged on node {node}; repair the node")]
    DataDamaged { generation: GenerationId, node: u32, page: u64 },
    /// A page of parity is damaged.
    #[error("{path}: page {page} of parity is damaged; repair the node")]
    ParityDamaged { path: String, page: u64 },
    /// The node has no parity of that generation.
    #[error(
        "there is no parity of generation {generation} here; repair the node, or protect the generation as a whole"
    )]
    NoParity { generation: GenerationId },
    /// A page would have to be written behind one that came before.
    #[error("parity arrived out of order: page {found} after page {last}; report this keeper's bug")]
    OutOfOrder { last: u64, found: u64 },
    /// Something that a member keeps for a generation is not there.
    #[error("{what} of generation {generation} is missing, so it is not protected; protect it again")]
    Incomplete { generation: GenerationId, what: String },
    /// More of a stripe's pages are lost than parity makes up for.
    #[error(
        "the lost data of node {node} in generation {generation} cannot be computed ({}): data of its group is lost on {} too, so {} of {members} are left, and {needed} are needed{}; start from another generation",
        beyond_words(*.pages, *.files),
        nodes(.lost),
        members - 1 - lost.len(),
        in_brackets(.silent)
    )]
    TooManyLost {
        generation: GenerationId,
        node: u32,
        /// Damaged pages that cannot be computed.
        pages: u64,
        /// Files that are missing, or cannot be read by pages, and of which a page cannot be computed.
        files: u64,
        /// Other nodes that have lost the matching data, or do not report it.
        lost: Vec<u32>,
        members: usize,
        needed: usize,
        /// Why other nodes reported nothing.
        silent: Vec<String>,
    },
    /// More members do not answer than may be lost: nothing can be computed before some of them come back.
    #[error(
        "node {node} cannot be repaired yet: {needed} of the other {} nodes of its group have to report their data of generation {generation}, and {reporting} do{}; bring back {} first",
        members - 1,
        in_brackets(.reasons),
        nodes(.silent)
    )]
    TooFewAnswer {
        generation: GenerationId,
        node: u32,
        members: usize,
        needed: usize,
        /// Other nodes that report their data.
        reporting: usize,
        /// Nodes that do not answer.
        silent: Vec<u32>,
        /// Why other nodes reported nothing.
        reasons: Vec<String>,
    },
    /// Without the record of its files nothing of a node can be computed.
    #[error(
        "no node that answered has a whole record of the data of node {of} in generation {generation}, which is needed to identify its pages{}; {}",
        in_brackets(.reasons),
        if silent.is_empty() { "start from another generation".to_owned() } else { format!("bring back {} first", nodes(.silent)) }
    )]
    NoRecord {
        generation: GenerationId,
        of: u32,
        /// Nodes that do not answer.
        silent: Vec<u32>,
        /// The answers of the asked members.
        reasons: Vec<String>,
    },
    /// The rebuilt file differs from the saved one.
    #[error(
        "{path} was rebuilt from parity, and is not what was committed ({error}); start from another generation"
    )]
    Rebuilt { path: String, error: Box<StoreError> },
    /// Another member does not answer.
    #[error("node {node} does not answer: {why}")]
    Unreachable { node: u32, why: String },
    /// Another member answers that it cannot report its data.
    #[error("node {node} cannot report its data: {why}")]
    Refused { node: u32, why: String },
    /// No such code.
    #[error(transparent)]
    Code(#[from] CodeError),
}

fn in_brackets(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

fn beyond_words(pages: u64, files: u64) -> String {
    let count = |number: u64, one: &str| match number {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{number} {one}s")),
    };
    let parts = [count(pages, "page"), count(files, "whole file")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn nodes(numbers: &[u32]) -> String {
    numbers.iter().map(|number| format!("node {number}")).collect::<Vec<_>>().join(", ")
}

impl From<StorageError> for ProtectError {
    fn from(error: StorageError) -> ProtectError {
        ProtectError::Store(error.into())
    }
}

impl ProtectError {
    /// Whether a file or directory is not there.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, ProtectError::Store(StoreError::Storage(StorageError::NotFound { .. })))
    }

    /// Whether the device does not give the bytes of a file: they are lost, and where they lie nothing more is to be written.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self, ProtectError::Store(StoreError::Storage(error)) if error.is_unreadable())
    }

    /// Whether bytes are missing or wrong, and not the storage as a whole.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            ProtectError::Store(StoreError::Storage(error)) => {
                let is_cut = matches!(
                    error,
                    StorageError::NotFound { .. } | StorageError::Short { .. } | StorageError::TooLong { .. }
                );
                is_cut || error.is_unreadable()
            }
            ProtectError::Store(StoreError::Image { .. } | StoreError::Record { .. }) => true,
            ProtectError::Record { .. }
            | ProtectError::File { .. }
            | ProtectError::DataDamaged { .. }
            | ProtectError::ParityDamaged { .. }
            | ProtectError::NoParity { .. }
            | ProtectError::Refused { .. } => true,
            _ => false,
        }
    }
}
