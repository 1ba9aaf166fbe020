//! A hasher for tables keyed by our own small integers: fixed, so that the same history always runs the same way.

use core::hash::Hasher;

/// Fibonacci hashing of up to eight bytes; for keys that no stranger chooses.
#[derive(Clone, Copy, Default, Debug)]
pub struct PlainHasher(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for PlainHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(5) ^ number).wrapping_mul(GOLDEN);
        self.0 = mixed ^ mixed >> 32;
    }
}
