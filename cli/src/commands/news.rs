//! What a command that reads or writes much tells from time to time.

use std::time::Instant;

use super::tell;
use crate::launch::limits::NEWS_EVERY;
use crate::text;

/// Counts bytes, and tells how many there are when it is time to.
#[derive(Debug)]
pub(super) struct News {
    is_quiet: bool,
    told: Instant,
    bytes: u64,
}

impl News {
    pub(super) fn new(is_quiet: bool) -> News {
        News { is_quiet, told: Instant::now(), bytes: 0 }
    }

    /// So many bytes more; `words` puts the sum of all into a sentence.
    pub(super) fn add(&mut self, bytes: u64, words: impl FnOnce(&str) -> String) {
        self.are(self.bytes.saturating_add(bytes), words);
    }

    /// So many bytes in all.
    pub(super) fn are(&mut self, bytes: u64, words: impl FnOnce(&str) -> String) {
        self.bytes = bytes;
        if !self.is_quiet && self.told.elapsed() >= NEWS_EVERY {
            self.told = Instant::now();
            tell(format_args!("{}", words(&text::bytes(bytes))));
        }
    }
}
