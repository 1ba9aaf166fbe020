//! The benchmark's pseudo-random keys.
//!
//! The generator is `x' = 5^13 x mod 2^46`. The benchmark states it in floating point; all its intermediate values are
//! exact there, so integers give the same sequence.

/// The multiplier, 5^13.
const MULTIPLIER: u64 = 1_220_703_125;
/// Where the sequence starts.
const SEED: u64 = 314_159_265;
/// Bits of the generator's state.
const STATE_BITS: u32 = 46;
/// Numbers that are added up for one key, which gives the keys their bell shape.
const NUMBERS_PER_KEY: u64 = 4;

/// The keys from some position of the global sequence on.
///
/// Any position can be reached at once, so the sequence is the same for every number of ranks.
#[derive(Clone, Debug)]
pub struct Keys {
    state: u64,
    shift: u32,
}

impl Keys {
    /// The keys of a class with keys below `2^key_limit_log2`, from position `first` on.
    pub fn starting_at(first: u64, key_limit_log2: u32) -> Keys {
        let state = reduce(SEED.wrapping_mul(multiplier_power(NUMBERS_PER_KEY * first)));
        // A key is a quarter of the key limit times the sum of four numbers in 0..1, rounded down.
        Keys { state, shift: STATE_BITS - (key_limit_log2 - 2) }
    }
}

impl Iterator for Keys {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let mut sum = 0;
        for _ in 0..NUMBERS_PER_KEY {
            self.state = reduce(self.state.wrapping_mul(MULTIPLIER));
            sum += self.state;
        }
        Some(u32::try_from(sum >> self.shift).expect("a key has at most 21 bits"))
    }
}

/// `x mod 2^46`; products may wrap, because `2^46` divides `2^64`.
fn reduce(x: u64) -> u64 {
    x & ((1 << STATE_BITS) - 1)
}

fn multiplier_power(mut exponent: u64) -> u64 {
    let (mut result, mut square) = (1_u64, MULTIPLIER);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = reduce(result.wrapping_mul(square));
        }
        square = reduce(square.wrapping_mul(square));
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmark's own formulation: 23-bit halves in floating point.
    fn number_in_floating_point(x: &mut f64, a: f64) -> f64 {
        let (two_23, two_46) = (8_388_608.0_f64, 70_368_744_177_664.0_f64);
        let (a_high, x_high) = ((a / two_23).floor(), (*x / two_23).floor());
        let (a_low, x_low) = (a - two_23 * a_high, *x - two_23 * x_high);
        let cross = a_high * x_low + a_low * x_high;
        let middle = cross - two_23 * (cross / two_23).floor();
        let product = two_23 * middle + a_low * x_low;
        *x = product - two_46 * (product / two_46).floor();
        *x / two_46
    }

    #[test]
    fn integers_give_the_floating_point_sequence() {
        let mut x = 314_159_265.0;
        for key in Keys::starting_at(0, 19).take(10_000) {
            let sum: f64 = (0..4).map(|_| number_in_floating_point(&mut x, 1_220_703_125.0)).sum();
            assert_eq!(f64::from(key), (sum * f64::from(1 << 17)).floor());
        }
    }

    #[test]
    fn a_sequence_can_be_entered_anywhere() {
        let all: Vec<u32> = Keys::starting_at(0, 11).take(1000).collect();
        for first in [0_u16, 1, 2, 3, 17, 500, 999] {
            let expected = &all[usize::from(first)..];
            let tail: Vec<u32> = Keys::starting_at(u64::from(first), 11).take(expected.len()).collect();
            assert_eq!(tail, expected, "from position {first}");
        }
        assert!(all.iter().all(|key| *key < 1 << 11));
    }
}
