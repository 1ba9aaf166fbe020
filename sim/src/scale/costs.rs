//! Costs in virtual time. The same for both sides; where they are unfair, they favour the flush.
//!
//! - A party (coordinator, keeper, rank) has one processor. A message costs its sender and its receiver
//!   [`MESSAGE_NS`] and [`BYTES_PER_NS`] each, one after the other, and travels for [`LATENCY_NS`]. Networks have no
//!   further limits: markers of all ranks may be in flight at once.
//! - A rank stands still from the command (with a flush: until every channel is empty) to the end of its cut,
//!   [`CUT_NS`]. Its image is written beside the program in [`IMAGE_NS`]; a commit record takes [`RECORD_NS`].
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
/// Bytes of a marker: head of a control frame, kind, epoch, rank.
pub const MARKER_BYTES: u64 = 72 + 1 + 4 + 4;

/// Cost of a message of so many bytes at each end.
#[must_use]
pub const fn message_ns(bytes: u64) -> Nanos {
    MESSAGE_NS + bytes / BYTES_PER_NS
}
