//! Bounds and times of this crate.

use core::time::Duration;

/// A program that has run for so long is the one that a person means, and not one that only starts another in its own place (`env`, `nice`).
pub(crate) const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// While a forked process writes an image, the agent looks after each such part of the time so far whether it
/// has ended. The delay is short beside the time of writing; an image that is held back for minutes costs the
/// program few looks.
pub(crate) const WRITING_LOOKS: u32 = 64;

/// Bounds of the time between two such looks.
pub(crate) const WRITING_SLICE_MIN: Duration = Duration::from_millis(2);
pub(crate) const WRITING_SLICE_MAX: Duration = Duration::from_millis(50);

/// Bytes taken from the keeper's line at once.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;

/// Longest wait for a NIC to give its buffers back at a cut. Sockets give them back at once.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(1);

/// How often a process is looked at for one image, if messages have rails map more memory between look and freeze each time.
pub(crate) const LOOKS_MAX: u32 = 4;

/// Longest wait of a program that opens a port for the agent to take its rank slot.
pub(crate) const RANK_SLOT_MAX: Duration = Duration::from_secs(10);

/// Longest wait for a keeper to read the counts of a closed port, and the last messages of a program that exits.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_secs(2);

/// Answers of the keeper that wait for the port that asked.
pub(crate) const ANSWERS_MAX: usize = 1 << 12;

/// Time between two looks whether the last words of a program that exits have left it.
pub(crate) const LAST_WORDS_SLICE: Duration = Duration::from_micros(200);
