//! The tag of a short frame: AEGIS-128L in MAC mode (draft-irtf-cfrg-aegis-aead, section "MAC mode") with a tag of 128 bits and an empty nonce, over
//! exactly 128 bytes.
//!
//! The crate `aegis` defines the tag, and makes all others. It moves its state through memory at each of three calls
//! for a tag, which takes as long as the arithmetic; with a length that is known in advance the state never leaves the
//! registers. So a processor that has AES instructions gets these tags from here, equal bit for bit; on others
//! [`ShortTag::new`] returns none.
#![no_std]

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub use x86::ShortTag;

/// On this processor there are no such tags.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone)]
pub enum ShortTag {}

#[cfg(not(target_arch = "x86_64"))]
impl ShortTag {
    /// None.
    #[must_use]
    pub fn new(_key: &[u8; 16]) -> Option<ShortTag> {
        None
    }

    /// Never called: there is no value of this type.
    #[must_use]
    pub fn of(&self, _first: [u64; 4], _second: [u64; 8], _third: [u64; 4]) -> [u8; 16] {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use aegis::aegis128l::Aegis128LMac;
    use proptest::prelude::*;

    use super::ShortTag;

    proptest! {
        #[test]
        fn it_equals_what_the_crate_says(
            key: [u8; 16], first: [u64; 4], second: [u64; 8], third: [u64; 4],
        ) {
            let Some(short) = ShortTag::new(&key) else {
                prop_assert!(cfg!(not(target_arch = "x86_64")), "an x86-64 processor without AES");
                return Ok(());
            };
            let mut mac = Aegis128LMac::<16>::new(&key);
            first.iter().chain(&second).chain(&third).for_each(|word| mac.update(&word.to_le_bytes()));
            prop_assert_eq!(short.of(first, second, third), mac.finalize());
        }
    }

    /// The key is part of it, and each bit that it covers.
    #[test]
    fn every_bit_counts() {
        let (first, second, third) = ([1, 2, 3, u64::MAX], [4; 8], [5; 4]);
        let Some(short) = ShortTag::new(&[6; 16]) else { return };
        let tag = short.of(first, second, third);
        for bit in 0..128 * 8 {
            let (mut first, mut second, mut third) = (first, second, third);
            match bit / 64 {
                word @ 0..4 => first[word] ^= 1 << (bit % 64),
                word @ 4..12 => second[word - 4] ^= 1 << (bit % 64),
                word => third[word - 12] ^= 1 << (bit % 64),
            }
            assert_ne!(short.of(first, second, third), tag, "bit {bit}");
        }
        let other = ShortTag::new(&[7; 16]).expect("as before");
        assert_ne!(other.of(first, second, third), tag);
    }
}
