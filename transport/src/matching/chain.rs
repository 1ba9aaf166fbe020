//! Queues threaded through the slots of a slab: appending, and removing from anywhere, in constant time
//! without memory of their own. Every node lies in one chain per lane; its table sets the number of lanes.

use alloc::vec;
use alloc::vec::Vec;

use crate::ids::LinkIndex;
use crate::slab::{NO_SLOT, SLOTS_KEPT, Slab};

use super::Space;

/// Chains in a new set of buckets; a power of two.
const BUCKETS_MIN: usize = 16;

#[derive(Clone, Copy)]
struct Neighbours {
    before: u32,
    after: u32,
}

#[derive(Clone)]
pub(super) struct Node<T, const LANES: usize> {
    lanes: [Neighbours; LANES],
    pub(super) value: T,
}

impl<T, const LANES: usize> Node<T, LANES> {
    pub(super) fn new(value: T) -> Node<T, LANES> {
        Node { lanes: [Neighbours { before: NO_SLOT, after: NO_SLOT }; LANES], value }
    }

    /// The node that follows in `lane`, or [`NO_SLOT`].
    pub(super) fn after(&self, lane: usize) -> u32 {
        self.lanes[lane].after
    }
}

pub(super) type Nodes<T, const LANES: usize> = Slab<Node<T, LANES>>;

/// Ends of a queue of nodes.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    pub(super) first: u32,
    last: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { first: NO_SLOT, last: NO_SLOT };

    #[inline]
    pub(super) fn append<T, const LANES: usize>(
        &mut self,
        nodes: &mut Nodes<T, LANES>,
        lane: usize,
        index: u32,
    ) {
        nodes.at_mut(index).lanes[lane] = Neighbours { before: self.last, after: NO_SLOT };
        if self.last == NO_SLOT {
            self.first = index;
        } else {
            nodes.at_mut(self.last).lanes[lane].after = index;
        }
        self.last = index;
    }

    #[inline]
    pub(super) fn remove<T, const LANES: usize>(
        &mut self,
        nodes: &mut Nodes<T, LANES>,
        lane: usize,
        index: u32,
    ) {
        let Neighbours { before, after } = nodes.at(index).lanes[lane];
        if before == NO_SLOT {
            debug_assert_eq!(self.first, index, "removed from a chain that it is not part of");
            self.first = after;
        } else {
            nodes.at_mut(before).lanes[lane].after = after;
        }
        if after == NO_SLOT {
            debug_assert_eq!(self.last, index, "removed from a chain that it is not part of");
            self.last = before;
        } else {
            nodes.at_mut(after).lanes[lane].before = before;
        }
    }

    /// The nodes from the newest to the oldest.
    pub(super) fn walk_back<T, const LANES: usize>(
        self,
        nodes: &Nodes<T, LANES>,
        lane: usize,
    ) -> impl Iterator<Item = (u32, &T)> {
        let mut next = self.last;
        core::iter::from_fn(move || {
            let index = next;
            let node = (index != NO_SLOT).then(|| nodes.at(index))?;
            next = node.lanes[lane].before;
            Some((index, &node.value))
        })
    }

    /// The nodes from the oldest to the newest.
    #[inline]
    pub(super) fn walk<T, const LANES: usize>(
        self,
        nodes: &Nodes<T, LANES>,
        lane: usize,
    ) -> impl Iterator<Item = (u32, &T)> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let index = next;
            let node = (index != NO_SLOT).then(|| nodes.at(index))?;
            next = node.after(lane);
            Some((index, &node.value))
        })
    }
}

/// Chains chosen by hash. Values of different keys can share a chain, in the order in which they were
/// appended: a walk compares the values themselves.
#[derive(Clone)]
pub(super) struct Buckets {
    /// A power of two, 2 or more.
    chains: Vec<Chain>,
    /// 64 less the logarithm of the number of chains.
    shift: u32,
}

impl Buckets {
    pub(super) fn new() -> Buckets {
        Buckets { chains: vec![Chain::EMPTY; BUCKETS_MIN], shift: shift_for(BUCKETS_MIN) }
    }

    /// Whether chains have got too long for `nodes` nodes; then the owner calls [`Buckets::reset`] and appends all again.
    #[inline]
    pub(super) fn crowded(&self, nodes: usize) -> bool {
        nodes > self.chains.len()
    }

    /// Empties all chains and makes enough of them for `nodes` nodes and as many again.
    pub(super) fn reset(&mut self, nodes: usize) {
        let chains = nodes.saturating_mul(2).next_power_of_two().max(BUCKETS_MIN);
        self.chains.clear();
        self.chains.resize(chains, Chain::EMPTY);
        self.shift = shift_for(chains);
    }

    /// Gives back the memory of a burst; only while all chains are empty.
    pub(super) fn relax(&mut self) {
        if self.chains.len() > 2 * SLOTS_KEPT {
            *self = Buckets::new();
        }
    }

    #[inline]
    fn place(&self, hash: u64) -> usize {
        // The highest bits: multiplication carries every bit upwards, so that is where all of the key has left its mark.
        usize::try_from(hash >> self.shift).unwrap_or(0)
    }

    #[inline]
    pub(super) fn chain(&self, hash: u64) -> Chain {
        self.chains[self.place(hash)]
    }

    #[inline]
    pub(super) fn chain_mut(&mut self, hash: u64) -> &mut Chain {
        let place = self.place(hash);
        &mut self.chains[place]
    }
}

fn shift_for(chains: usize) -> u32 {
    u64::BITS - chains.trailing_zeros()
}

/// Hash of a source and the tag bits that count. Without a seed: equal histories must make equal states, and the only ones
/// that could choose colliding tags are the ranks of the job itself.
#[inline]
pub(super) fn hash(space: Space, source: Option<LinkIndex>, bits: u64) -> u64 {
    let source = source.map_or(0, |link| u64::from(link.0) + 1);
    let sender = (source << 8 | u64::from(space.0)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash_number(bits ^ sender.rotate_left(29))
}

/// Hash of one number (multiplicative hashing: Knuth, volume 3, section 6.4).
#[inline]
pub(super) fn hash_number(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
