//! The problem classes of the NAS integer sort, with the ranks that the benchmark's authors computed for five of its keys.
//!
//! Source of the numbers: NAS Parallel Benchmarks, IS, NASA Ames Research Center.

use std::str::FromStr;

/// Keys of a class whose global rank is known beforehand.
pub const TEST_KEYS: usize = 5;

/// A problem class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Class {
    /// 2^16 keys: a sample, for testing.
    S,
    /// 2^20 keys: a workstation of the nineties.
    W,
    /// 2^23 keys.
    A,
    /// 2^25 keys.
    B,
}

/// A class is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown class: the classes are S, W, A and B")]
pub struct UnknownClass;

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        match text {
            "S" | "s" => Ok(Class::S),
            "W" | "w" => Ok(Class::W),
            "A" | "a" => Ok(Class::A),
            "B" | "b" => Ok(Class::B),
            _ => Err(UnknownClass),
        }
    }
}

impl Class {
    /// Base-2 logarithm of the number of keys.
    pub fn keys_log2(self) -> u32 {
        match self {
            Class::S => 16,
            Class::W => 20,
            Class::A => 23,
            Class::B => 25,
        }
    }

    /// Base-2 logarithm of the bound that every key is below.
    pub fn key_limit_log2(self) -> u32 {
        match self {
            Class::S => 11,
            Class::W => 16,
            Class::A => 19,
            Class::B => 21,
        }
    }

    /// Base-2 logarithm of the number of key ranges that are dealt out to the ranks.
    pub fn buckets_log2(self) -> u32 {
        if self == Class::S { 9 } else { 10 }
    }

    /// Number of keys, all ranks together.
    pub fn keys(self) -> u64 {
        1 << self.keys_log2()
    }

    /// Positions in the global sequence of the keys whose ranks are known.
    pub fn test_positions(self) -> [u64; TEST_KEYS] {
        match self {
            Class::S => [48_427, 17_148, 23_627, 62_548, 4_431],
            Class::W => [357_773, 934_767, 875_723, 898_999, 404_505],
            Class::A => [2_112_377, 662_041, 5_336_171, 3_642_833, 4_250_760],
            Class::B => [41_869, 812_306, 5_102_857, 18_232_239, 26_860_214],
        }
    }

    /// The rank that test key `index` must have in `iteration` (from 1).
    ///
    /// Each iteration replaces one key by a small and one by a large number, so keys below the replaced ones gain a rank in
    /// each iteration and keys above lose one; classes W and A were numbered from another iteration than S and B.
    pub fn expected_rank(self, index: usize, iteration: u32) -> i64 {
        let iteration = i64::from(iteration);
        let (base, gains, shift) = match self {
            Class::S => ([0, 18, 346, 64_917, 65_463], [true, true, true, false, false], iteration),
            Class::W => {
                let shift = if index < 2 { iteration - 2 } else { iteration };
                ([1_249, 11_698, 1_039_987, 1_043_896, 1_048_018], [true, true, false, false, false], shift)
            }
            Class::A => (
                [104, 17_523, 123_928, 8_288_932, 8_388_264],
                [true, true, true, false, false],
                iteration - 1,
            ),
            Class::B => {
                ([33_422_937, 10_244, 59_149, 33_135_281, 99], [false, true, true, false, true], iteration)
            }
        };
        if gains[index] { base[index] + shift } else { base[index] - shift }
    }
}
