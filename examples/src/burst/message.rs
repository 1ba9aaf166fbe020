//! One message of a burst.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | rank of the sender |
//! | 4 | 4 | rank of the receiver |
//! | 8 | 8 | counter: how many messages this link has carried before |
//! | 16 | 8 | digest of the three fields and the filling |
//! | 24 | any | filling, made from the three fields |

use crate::error::BurstFault;

/// Bytes before the filling.
pub const HEADER_BYTES: usize = 24;

/// Makes a message of `bytes` bytes in all.
///
/// # Panics
/// When `bytes` is less than [`HEADER_BYTES`].
pub fn compose(from: u32, to: u32, counter: u64, bytes: usize) -> Vec<u8> {
    assert!(bytes >= HEADER_BYTES, "{bytes} bytes do not hold a header of {HEADER_BYTES}");
    let mut message = vec![0; bytes];
    message[0..4].copy_from_slice(&from.to_le_bytes());
    message[4..8].copy_from_slice(&to.to_le_bytes());
    message[8..16].copy_from_slice(&counter.to_le_bytes());
    let mut word = mix(counter ^ u64::from(from) << 32 ^ u64::from(to) << 48);
    for chunk in message[HEADER_BYTES..].chunks_mut(8) {
        word = mix(word);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    let digest = digest(&message);
    message[16..24].copy_from_slice(&digest.to_le_bytes());
    message
}

/// Looks whether `message` is the one with number `counter` from `from` to `to`.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check(message: &[u8], from: u32, to: u32, counter: u64, bytes: usize) -> Result<(), BurstFault> {
    if message.len() != bytes {
        return Err(BurstFault::Bytes { expected: bytes, found: message.len() });
    }
    let computed = digest(message);
    let found = word(message, 16);
    if found != computed {
        return Err(BurstFault::Damaged { found, computed });
    }
    let (source_rank, destination) = (half(message, 0), half(message, 4));
    if (source_rank, destination) != (from, to) {
        return Err(BurstFault::Misrouted { source_rank, destination });
    }
    match word(message, 8) {
        found if found < counter => Err(BurstFault::Doubled { found }),
        found if found > counter => Err(BurstFault::Overtaken { found }),
        _ => Ok(()),
    }
}

/// Of everything but the digest itself.
fn digest(message: &[u8]) -> u64 {
    let mut sum = mix(message.len() as u64);
    for part in [&message[..16], &message[HEADER_BYTES..]] {
        for chunk in part.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            sum = mix(sum ^ u64::from_le_bytes(bytes));
        }
    }
    sum
}

/// The finalizer of SplitMix64: a bijection that changes about half of the bits for any change of its input.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn word(message: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&message[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn half(message: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&message[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_what_it_says_at_any_size() {
        for bytes in [24, 25, 31, 32, 64, 1000] {
            assert_eq!(check(&compose(3, 1, 77, bytes), 3, 1, 77, bytes), Ok(()));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = compose(0, 1, 5, 61);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(check(&bad, 0, 1, 5, 61), Err(BurstFault::Damaged { .. })), "bit {bit}");
        }
    }

    #[test]
    fn wrong_messages_are_reported_apart() {
        let message = compose(0, 1, 5, 64);
        assert_eq!(check(&message, 0, 1, 6, 64), Err(BurstFault::Doubled { found: 5 }));
        assert_eq!(check(&message, 0, 1, 4, 64), Err(BurstFault::Overtaken { found: 5 }));
        assert_eq!(
            check(&message, 0, 2, 5, 64),
            Err(BurstFault::Misrouted { source_rank: 0, destination: 1 })
        );
        assert_eq!(check(&message[..63], 0, 1, 5, 64), Err(BurstFault::Bytes { expected: 64, found: 63 }));
    }
}
