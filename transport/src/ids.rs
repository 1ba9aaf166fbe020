//! Names of things on the wire: jobs, lives, epochs, ports, links, operations.

use core::fmt;

/// A running parallel program: 128 random bits chosen by its launcher.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobId(pub u128);

impl JobId {
    /// The part of the job's id that every frame carries: enough to turn a stray frame away before its tag is computed.
    #[must_use]
    pub fn tag(self) -> JobTag {
        let bytes = self.0.to_le_bytes();
        let mut folded = [0u8; 4];
        for (i, byte) in bytes.iter().enumerate() {
            folded[i % 4] ^= byte;
        }
        JobTag(u32::from_le_bytes(folded))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({self})")
    }
}

/// Folded [`JobId`], as frames carry it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JobTag(pub u32);

/// One incarnation of a job. Every attempt to start or roll back is a new life; only an *equal* life counts (R7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Life {
    /// Attempts of this job so far, from 1. Orders lives for reports; equality needs the nonce too.
    pub counter: u32,
    /// 64 random bits: two restarts of one generation on two hosts count equally but are not the same life.
    pub nonce: u64,
}

impl Life {
    /// R13: the life that frames between two ranks carry, each with how often it has moved in this life. As long as neither has, it is this one.
    #[must_use]
    pub fn of_link(self, one: (Rank, u32), other: (Rank, u32)) -> Life {
        let part = |(rank, moves): (Rank, u32)| match moves {
            0 => 0,
            moves => mixed(self.nonce ^ (u64::from(rank.0) << 32 | u64::from(moves))),
        };
        // The same at both ends.
        Life { nonce: self.nonce.wrapping_add(part(one)).wrapping_add(part(other)), ..self }
    }
}

/// The last steps of SplitMix64 (Steele, Lea and Flood, 2014): a permutation that spreads every bit.
fn mixed(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.counter, self.nonce)
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Life({self})")
    }
}

/// Number of the last cut that a rank took; 0 before its first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch that follows this one.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({})", self.0)
    }
}

/// A process of a job, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rank({})", self.0)
    }
}

/// The identity of a port within its job. It survives restart and relocation and is never used again (R12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u64);

impl PortId {
    /// Port `number` (from 0) of `rank`.
    #[must_use]
    pub fn of_rank(rank: Rank, number: u32) -> PortId {
        PortId(u64::from(rank.0) << 32 | u64::from(number))
    }

    /// The rank that owns the port, for ports made by [`PortId::of_rank`].
    #[must_use]
    pub fn rank(self) -> Rank {
        Rank(u32::try_from(self.0 >> 32).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortId({self})")
    }
}

/// Place of a link in its port's table. Chosen by the owner, sent to the peer; never crosses a restart (R5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkIndex(pub u32);

/// Place of a rail in its port's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RailIndex(pub u8);

/// An operation of a port: one send or one posted receive. Counted up for the whole life of the port, restarts included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// An address as the driver of one rail knows it: an index into that driver's own table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AddressId(pub u32);

/// Bytes that a [`RawAddress`] can hold: an IPv6 socket address with scope, or a GID with queue pair number and key.
pub const RAW_ADDRESS_BYTES: usize = 28;

/// A location of a port on one rail, in the encoding of that rail's driver; opaque to the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawAddress {
    bytes: [u8; RAW_ADDRESS_BYTES],
    len: u8,
}

impl RawAddress {
    /// No address: a rail that cannot be reached.
    pub const NONE: RawAddress = RawAddress { bytes: [0; RAW_ADDRESS_BYTES], len: 0 };

    /// Wraps a driver's encoding; `None` if it is longer than [`RAW_ADDRESS_BYTES`].
    #[must_use]
    pub fn new(encoded: &[u8]) -> Option<RawAddress> {
        let len = u8::try_from(encoded.len()).ok()?;
        let mut bytes = [0; RAW_ADDRESS_BYTES];
        bytes.get_mut(..encoded.len())?.copy_from_slice(encoded);
        Some(RawAddress { bytes, len })
    }

    /// Bytes of the encoding; 0 for [`RawAddress::NONE`].
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "an address is compared with NONE, never asked whether it is empty"
    )]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// The driver's encoding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawAddress(")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Life, Rank};

    #[test]
    fn a_move_gives_the_links_of_a_rank_another_life() {
        let life = Life { counter: 3, nonce: 0x1234_5678_9abc_def0 };
        let (a, b) = (Rank(1), Rank(2));
        assert_eq!(life.of_link((a, 0), (b, 0)), life);
        let all = [((a, 1), (b, 0)), ((a, 0), (b, 1)), ((a, 1), (b, 1)), ((a, 2), (b, 0)), ((a, 1), (a, 1))];
        let mut nonces: Vec<u64> = all.iter().map(|(one, other)| life.of_link(*one, *other).nonce).collect();
        nonces.push(life.nonce);
        let found = nonces.len();
        nonces.sort_unstable();
        nonces.dedup();
        assert_eq!(nonces.len(), found, "{nonces:x?}");
        for (one, other) in all {
            assert_eq!(life.of_link(one, other), life.of_link(other, one));
            assert_eq!(life.of_link(one, other).counter, 3);
        }
    }
}
