//! Random numbers of our own, so that a seed means the same history for ever: a dependency's update cannot change them.
//!
//! Generator: xoshiro256++ 1.0 (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2019), seeded through
//! splitmix64 as its authors advise.

/// Chances are given in parts of this: fine enough for 0.1 % rates, and one comparison of a 16-bit draw.
pub const CHANCE_ONE: u16 = u16::MAX;

/// One stream of random numbers. Each purpose has a stream of its own ([`Random::stream`]), so that taking one fault out of a
/// plan does not change the draws of the others.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Finaliser of splitmix64: a bijection on 64 bits in which every input bit reaches every output bit.
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mut s = seed;
        Random { state: [splitmix(&mut s), splitmix(&mut s), splitmix(&mut s), splitmix(&mut s)] }
    }

    /// Stream number `purpose` of `seed`; streams of one seed are independent.
    #[must_use]
    pub fn stream(seed: u64, purpose: u64) -> Random {
        Random::new(mix(seed ^ mix(purpose.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0. The bias of the multiplication is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let high = (u128::from(self.bits()) * u128::from(bound)) >> 64;
        // The product of two 64-bit numbers shifted right by 64 fits 64 bits.
        u64::try_from(high).unwrap_or(0)
    }

    /// Uniform in `low..=high`.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Uniform in `0..bound` for indexes.
    #[inline]
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// True with probability `chance / CHANCE_ONE`.
    #[inline]
    pub fn chance(&mut self, chance: u16) -> bool {
        chance != 0 && (self.bits() >> 48) < u64::from(chance)
    }

    /// True with probability `percent / 100`.
    #[inline]
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A member of `choices`, all equally likely.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Log-uniform in `low..=high`: as likely between 1 and 10 as between 10 and 100. `low` is at least 1.
    pub fn log_between(&mut self, low: u64, high: u64) -> u64 {
        let octaves = u64::from(high.max(1).ilog2().saturating_sub(low.max(1).ilog2()));
        let scale = low.max(1) << self.between(0, octaves);
        self.between(scale, scale.saturating_mul(2).saturating_sub(1)).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds written into bug reports must mean the same history in every later version.
    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut random = Random::new(92);
        assert_eq!([random.bits(), random.bits()], [2_727_371_348_005_577_000, 4_274_804_944_298_364_230]);
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..200 {
            let n = random.between(3, 7);
            assert!((3..=7).contains(&n));
            seen[usize::try_from(n - 3).unwrap()] = true;
            assert!((10..=5000).contains(&random.log_between(10, 5000)));
        }
        assert_eq!(seen, [true; 5]);
        assert!(!(0..1000).any(|_| random.chance(0)));
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn streams_of_one_seed_differ() {
        assert_ne!(Random::stream(1, 1).bits(), Random::stream(1, 2).bits());
        assert_ne!(Random::stream(1, 1).bits(), Random::stream(2, 1).bits());
    }
}
