//! Costs in virtual time. The same for both sides; where they are unfair, they favour the flush.
//!
//! - A party (coordinator, keeper, rank) has one processor. A message costs its sender and its receiver
//!   [`MESSAGE_NS`] and [`BYTES_PER_NS`] each, one after the other, and travels for [`LATENCY_NS`]. Networks have no
//!   further limits: markers of all ranks may be in flight at once.
//! - A rank stands still from the command (with a flush: until every channel is empty) to the end of its cut,
//!   [`CUT_NS`]. Its image is written beside the program in [`IMAGE_NS`]; a commit record takes [`RECORD_NS`].
//! - Only where a node is lost: messages of one keeper to another pass through the launcher, as they do in a real job, and cost it [`MESSAGE_NS`] twice.
//!   A process ends within [`KILL_NS`], begins in [`PROCESS_NS`], and reads its image in [`IMAGE_NS`]. A spare host has a keeper after [`KEEPER_NS`]: an
//!   assumption, since it depends on the way in which hosts are reached. It gets the pages of its images at [`REBUILT_BYTES_PER_NS`], [`IMAGE_BYTES`] for
//!   each rank. A question to a node's directory and its answer are [`QUESTION_BYTES`] each; a disk answers in [`RECORD_NS`].
//! - Not modelled: the table of the ranks' addresses, which grows with the square of the ranks and which each rank gets; loads of the data network; the bytes of records
//!   that nodes send with answers; the work that the other nodes of a group have with a rebuild.
//! - The program sends nothing meanwhile: no channel has anything to be flushed but the marker.

use crate::engine::queue::{MICRO, MILLI, Nanos};

/// Of one message at each end, of any length: a system call and a wake-up.
pub const MESSAGE_NS: Nanos = MICRO;
/// Bytes that an end handles in a nanosecond: copied, authenticated, put on a wire.
pub const BYTES_PER_NS: u64 = 4;
/// From the sender's end to the receiver's.
pub const LATENCY_NS: Nanos = 5 * MICRO;
/// From freeze to thaw.
pub const CUT_NS: Nanos = 10 * MICRO;
/// Writing an image.
pub const IMAGE_NS: Nanos = MILLI;
/// Writing a record durably.
pub const RECORD_NS: Nanos = MILLI;
/// Until a killed process is gone and its keeper knows.
pub const KILL_NS: Nanos = MILLI;
/// Until a new process runs.
pub const PROCESS_NS: Nanos = 10 * MILLI;
/// Until a keeper runs on a spare host.
pub const KEEPER_NS: Nanos = 500 * MILLI;
/// Bytes of an image.
pub const IMAGE_BYTES: u64 = 1 << 20;
/// Bytes that a node rebuilds from the others of its group in a nanosecond.
pub const REBUILT_BYTES_PER_NS: u64 = 1;
/// Bytes of a question to a node about its directory, and of its answer.
pub const QUESTION_BYTES: u64 = 128;
/// Bytes of a marker: head of a control frame, kind, epoch, rank.
pub const MARKER_BYTES: u64 = 72 + 1 + 4 + 4;

/// Cost of a message of so many bytes at each end.
#[must_use]
pub const fn message_ns(bytes: u64) -> Nanos {
    MESSAGE_NS + bytes / BYTES_PER_NS
}
