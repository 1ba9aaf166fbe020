//! Errors in the input of this crate. Faults of a job are not errors: they are events of its machines.

use crate::limits::{FAN_OUT_MAX, NODES_MAX, RANKS_MAX};
use crate::names::NodeIndex;
use crate::recovery::PolicyError;

/// A layout that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Number of nodes out of bounds.
    #[error("the layout has {found} nodes; expected 1 to {NODES_MAX}")]
    Nodes {
        /// Nodes asked for.
        found: u32,
    },
    /// A node without ranks, or more ranks than a job may have.
    #[error(
        "node {node} would run {found} ranks; expected at least 1, and at most {RANKS_MAX} in the job: use fewer nodes or ranks"
    )]
    Ranks {
        /// The node.
        node: NodeIndex,
        /// Its ranks.
        found: u32,
    },
    /// A node has two shares.
    #[error("node {node} appears twice in the layout; give each node one share")]
    NodeTwice {
        /// The node.
        node: NodeIndex,
    },
    /// The tree's fan-out out of bounds.
    #[error("the control tree has a fan-out of {found}; expected 1 to {FAN_OUT_MAX}")]
    FanOut {
        /// Fan-out asked for.
        found: u32,
    },
}

/// Why bytes are not a control frame. The peer is another program, another version, or an attacker: the connection is
/// closed, nothing else happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the field needs.
    #[error("control frame ends in {what}: {expected} more bytes expected, {found} there")]
    Short {
        /// The field.
        what: &'static str,
        /// Bytes that it needs.
        expected: usize,
        /// Bytes that are left.
        found: usize,
    },
    /// Bytes behind the last field.
    #[error("control frame has {found} bytes behind its last field")]
    Trailing {
        /// How many.
        found: usize,
    },
    /// Longer than any message of ours.
    #[error("control frame says it is {found} bytes long; at most {expected} are expected")]
    TooLong {
        /// The bound.
        expected: usize,
        /// The length field.
        found: usize,
    },
    /// Not one of our frames at all.
    #[error(
        "not a control frame: starts with {found:#06x}, expected {expected:#06x}; is this the right socket?"
    )]
    Magic {
        /// Ours.
        expected: u16,
        /// Theirs.
        found: u16,
    },
    /// Another version of the layout.
    #[error(
        "control frame has version {found}, this build speaks {expected}; run the same build on all nodes"
    )]
    Version {
        /// Ours.
        expected: u8,
        /// Theirs.
        found: u8,
    },
    /// The tag does not fit: a frame of another job, or of a stranger.
    #[error("control frame is not authentic: made with another job's key, or damaged")]
    Tag,
    /// A number that is not above the one before it on this connection: a replay.
    #[error("control frame is number {found} of its connection, but {last} came already: a replay")]
    Replayed {
        /// Highest number so far.
        last: u64,
        /// The frame's.
        found: u64,
    },
    /// A value that no variant has.
    #[error("control frame: {what} has no variant {found}")]
    Variant {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u32,
    },
    /// A list longer than its bound.
    #[error("control frame: {what} has {found} entries; at most {expected} are expected")]
    Entries {
        /// The list.
        what: &'static str,
        /// Its bound.
        expected: usize,
        /// Entries by the count.
        found: usize,
    },
    /// A layout that cannot be.
    #[error("control frame: {0}")]
    Layout(#[from] LayoutError),
}

/// A text that is no interval between checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{found}` is not a time between checkpoints; write auto, off, or a number and a unit (ms, s, m, h, d), such as 5m or 1.5s, from 1ms to 366d"
)]
pub struct EveryError {
    /// The text.
    pub found: alloc::string::String,
}

/// A text that is no percentage.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{found}` is not a part of the running time; write a percentage above 0% and up to 100%, with at most four digits behind the point, such as 1% or 0.5%"
)]
pub struct PercentageError {
    /// The text.
    pub found: alloc::string::String,
}

/// Why a job file is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or a field that is unknown, missing or of the wrong type; `serde_json` names it.
    #[error("job file, line {line} column {column}: {what}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The parser's error.
        what: alloc::string::String,
    },
    /// The file is longer than any job file.
    #[error("job file has {found} bytes; at most {expected} are expected")]
    TooLong {
        /// The bound.
        expected: usize,
        /// Its size.
        found: usize,
    },
    /// A number out of its range.
    #[error("job file: `{field}` is {found}; expected {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The present contents.
        found: alloc::string::String,
    },
    /// A policy that cannot be.
    #[error("job file: fault.policy: {0}")]
    Policy(#[from] PolicyError),
    /// No component of that name in this build.
    #[error("job file: `{field}` names `{found}`; this build has {expected}")]
    Component {
        /// Path of the field.
        field: &'static str,
        /// Names that exist.
        expected: &'static str,
        /// The present contents.
        found: alloc::string::String,
    },
}

/// Why a text is not a duration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{found}` is not a duration; write a number and a unit (us, ms, s, m, h, d), such as 5m or 1.5s, up to 366d"
)]
pub struct DurationError {
    /// The text.
    pub found: alloc::string::String,
}
