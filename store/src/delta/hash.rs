//! The hash of a block.

use core::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_seed};

/// Hash of one block: XXH3, 128 bits, with the seed of the signature.
///
/// A block that changed and whose hash is the same by chance is missed: 2^-128 for each block that changes, because it
/// is compared with one other hash only. The function does not resist an attacker who chooses both contents; only the
/// seed, which the attacker does not know, protects against that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockHash(pub u128);

/// Hashes a block.
#[must_use]
pub fn hash(seed: u64, block: &[u8]) -> BlockHash {
    BlockHash(xxh3_128_with_seed(block, seed))
}

/// Names a whole content: the hash of its signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ContentName(pub u128);

impl fmt::Display for ContentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A name as it is computed.
#[derive(Clone, Default)]
pub(super) struct Naming(Xxh3);

impl Naming {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn name(&self) -> ContentName {
        ContentName(self.0.digest128())
    }
}
