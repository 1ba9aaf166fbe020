//! A running hash of everything that happens in a history, in order: equal digests, equal histories.
//!
//! It costs a few instructions per event, so it is kept whether there is a trace or not, and a history that a swarm ran
//! can be compared with the one that `sim run` repeats. It is not cryptographic: no attacker makes histories collide.

use core::fmt;

use super::random::mix;

/// All events so far, as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digest(u64);

impl Digest {
    /// One more thing happened. Order counts.
    #[inline]
    pub fn add(&mut self, what: u64) {
        // Odd, so that a digest of 0 does not stay 0.
        self.0 = mix(self.0.rotate_left(5) ^ what.wrapping_add(0x9e37_79b9_7f4a_7c15));
    }

    /// Of several histories whose order is of no importance; of one, its own.
    #[must_use]
    pub fn with(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_add(other.0))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // As text: 64 bits are more than every reader of JSON keeps of a number.
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_and_its_order_count() {
        let of = |what: &[u64]| {
            let mut digest = Digest::default();
            what.iter().for_each(|what| digest.add(*what));
            digest
        };
        let all = [of(&[]), of(&[0]), of(&[0, 0]), of(&[1, 2]), of(&[2, 1]), of(&[1, 2, 0])];
        for (n, one) in all.iter().enumerate() {
            assert!(all[n + 1..].iter().all(|other| other != one), "{n}");
        }
        assert_eq!(all[1].with(all[2]), all[2].with(all[1]));
    }
}
