//! Errors of a section, and of a request for one.

use transport::OpId;
use transport::port::StateError;

/// Why a section is not a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// Written by another version.
    #[error(
        "port section of version {found}, this build reads {expected}: use the build that wrote the image"
    )]
    Version {
        /// In the container.
        found: u16,
        /// [`crate::SECTION_VERSION`].
        expected: u16,
    },
    /// Fewer bytes than the counts in it promise.
    #[error(
        "port section ends inside its {what}: {needed} bytes are needed, {left} are left; the image is damaged"
    )]
    Short {
        /// The part that was being read.
        what: &'static str,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// More bytes than the counts in it explain, or fewer than in the header.
    #[error("port section has {found} bytes, its records account for {expected}; the image is damaged")]
    Length {
        /// Bytes of the section.
        found: u64,
        /// Bytes by its contents.
        expected: u64,
    },
    /// A field with a value that this version never writes.
    #[error("port section: {what} {index} has {field} {found}, which no port writes; the image is damaged")]
    Field {
        /// Kind of record.
        what: &'static str,
        /// Which one of its list.
        index: u64,
        /// Which field.
        field: &'static str,
        /// Its contents.
        found: u64,
    },
    /// User memory for an operation that does not need any, or twice.
    #[error("port section holds memory of {bytes} bytes for operation {}, which has no use for it; the image is damaged", op.0)]
    Payload {
        /// The operation.
        op: OpId,
        /// Length of the memory.
        bytes: u64,
    },
    /// Well-formed, but no state that a port can be in.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why user memory could not be added to a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DumpError {
    /// The shell's buffer is shorter than the bytes that the port has put there or still has to read.
    #[error("operation {} has {found} bytes of memory, the port uses {needed}: the buffer table is not this port's", op.0)]
    Memory {
        /// The operation.
        op: OpId,
        /// Bytes that the shell has.
        found: u64,
        /// Bytes that the port counts on.
        needed: u64,
    },
    /// The section was not written by [`crate::dump`] from this port just before.
    #[error("{found} bytes are no section of this port: call dump first, then append_payloads")]
    NotASection {
        /// Bytes in the buffer.
        found: usize,
    },
}
