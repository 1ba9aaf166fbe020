//! The limit on writing to a real disk.

use std::time::{Duration, Instant};

use crate::limits::WRITE_BUFFER_BYTES;
use crate::storage::Bucket;

/// A piece is the bytes that a limit permits in that part of a second, so that its rate is kept over times that a
/// person, and another user of the disk, can feel.
const PIECES_PER_S: u64 = 10;

/// A piece has at least so many bytes, however low the rate is: less is gathered before it is written anyway.
const PIECE_BYTES_MIN: u64 = WRITE_BUFFER_BYTES as u64;

/// A bucket with a clock of its own, for one who writes piece by piece.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit {
    bucket: Bucket,
    since: Instant,
    piece_bytes: u64,
}

impl Limit {
    /// An empty one.
    #[must_use]
    pub fn new(bytes_per_s: u64) -> Limit {
        let piece_bytes = (bytes_per_s / PIECES_PER_S).max(PIECE_BYTES_MIN);
        Limit { bucket: Bucket::new(bytes_per_s, Duration::ZERO), since: Instant::now(), piece_bytes }
    }

    /// So many bytes have been written: how long to wait before the next ones.
    pub fn wait(&mut self, bytes: u64) -> Duration {
        self.bucket.take(self.since.elapsed(), bytes)
    }

    /// How much to write at once, at most.
    #[must_use]
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_a_tenth_of_a_second_long_and_never_tiny() {
        assert_eq!(Limit::new(100_000_000).piece_bytes(), 10_000_000);
        assert_eq!(Limit::new(1).piece_bytes(), 65_536);
    }
}
