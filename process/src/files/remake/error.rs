//! Why descriptors could not be made anew.

use std::io;

/// Why a descriptor could not be made anew. Nothing was put in its place yet: the process can still report it.
#[derive(Debug, thiserror::Error)]
pub enum RemakeError {
    /// The launcher was to give it.
    #[error("descriptor {number}: {name:?} was not handed in; start the restored process with it")]
    NotHandedIn {
        /// Of the saved process.
        number: u32,
        /// The expected value.
        name: String,
    },
    /// A path does not open.
    #[error("descriptor {number}: {path:?} cannot be opened: {error}; put it back as it was")]
    Open {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A file lost bytes on which the process relies.
    #[error(
        "descriptor {number}: {path:?} has {found} bytes, at the checkpoint it had {expected}; put it back as it was"
    )]
    Shorter {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
        /// Length now.
        found: u64,
        /// Length at the cut.
        expected: u64,
    },
    /// A path leads to another file.
    #[error("descriptor {number}: {path:?} is not the file that was open at the checkpoint; put that back")]
    Replaced {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
    },
    /// A file that the process only reads was written by another process.
    #[error(
        "descriptor {number}: {path:?}, which the process only reads, was changed after the checkpoint; put it back as it was"
    )]
    Changed {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
    },
    /// A longer file that may be another one.
    #[error(
        "descriptor {number}: {path:?} has {found} bytes, at the checkpoint it had {expected}, and it cannot be recognised as the file of then; put that file back, or move this one away, or restart with --changed-files keep-copy, which keeps a copy of it"
    )]
    Unknown {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
        /// Length now.
        found: u64,
        /// Length at the cut.
        expected: u64,
    },
    /// A copy of such a file could not be made.
    #[error(
        "descriptor {number}: {path:?} is longer than at the checkpoint, cannot be recognised as the file of then, and no copy of it could be kept beside it: {error}; move it away, or make room"
    )]
    NotKept {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// Another process has a lock.
    #[error(
        "descriptor {number}: {path:?} cannot be locked again: {error}; end the process that has the lock"
    )]
    Lock {
        /// Of the saved process.
        number: u32,
        /// Path.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// The numbers are beyond this process's limit.
    #[error("descriptors up to {needed} are needed, the hard limit (RLIMIT_NOFILE) is {limit}; raise it")]
    Limit {
        /// One more than the highest number.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// A call failed that has no reason to.
    #[error("descriptor {number}: {doing}: {error}")]
    Call {
        /// Of the saved process.
        number: u32,
        /// The failed action.
        doing: &'static str,
        /// The found value.
        error: io::Error,
    },
}
