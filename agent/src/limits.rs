//! Bounds and times of this crate.

use core::time::Duration;

/// A program that has run for so long is the one that a person means, and not one that only starts another in its own place (`env`, `nice`).
pub(crate) const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// Longest sleep of the agent while a forked process writes an image: how late it notices that it has ended.
pub(crate) const WRITING_SLICE: Duration = Duration::from_millis(2);

/// Bytes taken from the keeper's line at once.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;
