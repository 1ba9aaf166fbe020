//! Which node runs which ranks, and the tree along which control messages travel.

use alloc::vec::Vec;
use core::ops::Range;

use transport::Rank;

use crate::error::LayoutError;
use crate::limits::{FAN_OUT_MAX, NODES_MAX, RANKS_MAX};
use crate::names::{NodeIndex, Party};

/// The ranks of one node: `ranks` of them, from the end of the share before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The node.
    pub node: NodeIndex,
    /// Number of ranks there, at least 1.
    pub ranks: u32,
}

/// Ranks over nodes, in blocks, and the shape of the tree.
///
/// ```text
///   coordinator
///        |
///    shares[0]              place 0
///    /      \
/// shares[1] shares[2]       fan_out = 2: children of place p are p * 2 + 1, p * 2 + 2
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    shares: Vec<Share>,
    /// First rank of each share, and the number of ranks at the end.
    firsts: Vec<u32>,
    fan_out: u32,
}

impl Layout {
    /// A layout of `shares` in the order of their ranks.
    ///
    /// # Errors
    /// If there is no node or rank, or more than the bounds, or a node twice, or a fan-out of 0.
    pub fn new(shares: Vec<Share>, fan_out: u32) -> Result<Layout, LayoutError> {
        let nodes = u32::try_from(shares.len()).unwrap_or(u32::MAX);
        if nodes == 0 || nodes > NODES_MAX {
            return Err(LayoutError::Nodes { found: nodes });
        }
        if fan_out == 0 || fan_out > FAN_OUT_MAX {
            return Err(LayoutError::FanOut { found: fan_out });
        }
        let mut firsts = Vec::with_capacity(shares.len() + 1);
        let mut total = 0u32;
        for share in &shares {
            firsts.push(total);
            total = total.saturating_add(share.ranks);
            if share.ranks == 0 || total > RANKS_MAX {
                return Err(LayoutError::Ranks { node: share.node, found: share.ranks });
            }
        }
        firsts.push(total);
        let mut nodes: Vec<NodeIndex> = shares.iter().map(|share| share.node).collect();
        nodes.sort_unstable();
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(LayoutError::NodeTwice { node: pair[0] });
        }
        Ok(Layout { shares, firsts, fan_out })
    }

    /// `ranks` over `nodes`, as evenly as can be, the first nodes taking one more.
    ///
    /// # Errors
    /// As for [`Layout::new`].
    pub fn even(ranks: u32, nodes: u32, fan_out: u32) -> Result<Layout, LayoutError> {
        if nodes == 0 || nodes > NODES_MAX {
            return Err(LayoutError::Nodes { found: nodes });
        }
        let share = |node: u32| Share {
            node: NodeIndex(node),
            ranks: ranks / nodes + u32::from(node < ranks % nodes),
        };
        Layout::new((0..nodes).map(share).collect(), fan_out)
    }

    /// All shares, in the order of their ranks.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Most children of one keeper.
    #[must_use]
    pub fn fan_out(&self) -> u32 {
        self.fan_out
    }

    /// Ranks of the job.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        *self.firsts.last().unwrap_or(&0)
    }

    /// Nodes of the job.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.shares.len()).unwrap_or(u32::MAX)
    }

    /// Keepers that must agree before anything is decided.
    #[must_use]
    pub fn majority(&self) -> u32 {
        self.nodes() / 2 + 1
    }

    /// Keepers that must remember the job before its next life is decided: half of them. Two launchers that each have a half decide in the same
    /// directory, where one of them is too late; and neither can grant a lease, which takes a majority (R9, R32).
    #[must_use]
    pub fn quorum(&self) -> u32 {
        self.nodes().div_ceil(2)
    }

    /// The node at the top of the tree: its keeper speaks with the coordinator.
    #[must_use]
    pub fn root(&self) -> NodeIndex {
        self.shares[0].node
    }

    /// The node that runs `rank`; `None` if the job has no such rank.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> Option<NodeIndex> {
        self.place_of_rank(rank).map(|place| self.shares[place].node)
    }

    /// The ranks of `node`; empty if it has none.
    #[must_use]
    pub fn ranks_of(&self, node: NodeIndex) -> Range<u32> {
        self.place(node).map_or(0..0, |place| self.firsts[place]..self.firsts[place + 1])
    }

    /// The party to which the keeper of `node` reports; `None` if the node is not in the layout.
    #[must_use]
    pub fn parent(&self, node: NodeIndex) -> Option<Party> {
        let place = self.place(node)?;
        if place == 0 {
            return Some(Party::Coordinator);
        }
        Some(Party::Keeper(self.shares[(place - 1) / self.fan()].node))
    }

    /// The keepers that report to the one of `node`.
    pub fn children(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
        let range = match self.place(node) {
            Some(place) => {
                let first = place * self.fan() + 1;
                first.min(self.shares.len())..(first + self.fan()).min(self.shares.len())
            }
            None => 0..0,
        };
        self.shares[range].iter().map(|share| share.node)
    }

    /// The next keeper on the way from `node` to `rank`: a child if the rank is below it, else the parent.
    #[must_use]
    pub fn towards(&self, node: NodeIndex, rank: Rank) -> Option<Party> {
        let here = self.place(node)?;
        let mut place = self.place_of_rank(rank)?;
        if place == here {
            return Some(Party::Rank(rank));
        }
        // Every step up lowers the place, so this ends at a child of `here` or passes it.
        while place > here {
            let above = (place - 1) / self.fan();
            if above == here {
                return Some(Party::Keeper(self.shares[place].node));
            }
            place = above;
        }
        self.parent(node)
    }

    /// Ranks of `node` and of all nodes below it in the tree.
    #[must_use]
    pub fn ranks_below(&self, node: NodeIndex) -> u32 {
        self.levels_below(node).map(|places| self.firsts[places.end] - self.firsts[places.start]).sum()
    }

    /// `node` and all nodes below it in the tree.
    #[must_use]
    pub fn nodes_below(&self, node: NodeIndex) -> u32 {
        u32::try_from(self.levels_below(node).map(|places| places.len()).sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// The places of `node` and of all nodes below it: those of one level lie side by side.
    fn levels_below(&self, node: NodeIndex) -> impl Iterator<Item = Range<usize>> + '_ {
        let next = |(first, end): &(usize, usize)| {
            Some((first * self.fan() + 1, (end - 1) * self.fan() + self.fan() + 1))
        };
        let all = core::iter::successors(self.place(node).map(|place| (place, place + 1)), next);
        let all = all.take_while(|(first, _)| *first < self.shares.len());
        all.map(|(first, end)| first..end.min(self.shares.len()))
    }

    fn fan(&self) -> usize {
        usize::try_from(self.fan_out).unwrap_or(usize::MAX)
    }

    fn place_of_rank(&self, rank: Rank) -> Option<usize> {
        if rank.0 >= self.ranks() {
            return None;
        }
        Some(self.firsts.partition_point(|first| *first <= rank.0) - 1)
    }

    fn place(&self, node: NodeIndex) -> Option<usize> {
        // Nodes are numbered in the order of their shares until one is replaced, so the guess is nearly always right.
        let guess = usize::try_from(node.0).ok()?;
        if self.shares.get(guess).is_some_and(|share| share.node == node) {
            return Some(guess);
        }
        self.shares.iter().position(|share| share.node == node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn the_tree_has_every_node_once_and_routes_to_every_rank() {
        for (ranks, nodes, fan_out) in [(1, 1, 1), (7, 3, 1), (40, 13, 2), (64, 64, 3), (100, 9, 16)] {
            let layout = Layout::even(ranks, nodes, fan_out).unwrap();
            assert_eq!(layout.ranks(), ranks);
            let mut seen = vec![layout.root()];
            let mut next = 0;
            while let Some(node) = seen.get(next).copied() {
                for child in layout.children(node) {
                    assert_eq!(layout.parent(child), Some(Party::Keeper(node)));
                    seen.push(child);
                }
                let below: u32 = layout.children(node).map(|child| layout.ranks_below(child)).sum();
                let own = u32::try_from(layout.ranks_of(node).len()).unwrap();
                assert_eq!(layout.ranks_below(node), own + below);
                let below: u32 = layout.children(node).map(|child| layout.nodes_below(child)).sum();
                assert_eq!(layout.nodes_below(node), 1 + below);
                next += 1;
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..nodes).map(NodeIndex).collect::<Vec<_>>());
            for rank in (0..ranks).map(Rank) {
                for start in (0..nodes).map(NodeIndex) {
                    let mut at = start;
                    let mut hops = 0;
                    while layout.node_of(rank) != Some(at) {
                        let Some(Party::Keeper(next)) = layout.towards(at, rank) else {
                            panic!("lost at {at}")
                        };
                        at = next;
                        hops += 1;
                        assert!(hops <= 2 * nodes, "a route must not loop");
                    }
                    assert_eq!(layout.towards(at, rank), Some(Party::Rank(rank)));
                    assert!(layout.ranks_of(at).contains(&rank.0));
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_a_layout_is_refused() {
        let share = |node, ranks| Share { node: NodeIndex(node), ranks };
        assert_eq!(Layout::new(vec![], 2), Err(LayoutError::Nodes { found: 0 }));
        assert_eq!(Layout::new(vec![share(0, 1)], 0), Err(LayoutError::FanOut { found: 0 }));
        assert_eq!(
            Layout::new(vec![share(0, 1), share(1, 0)], 2),
            Err(LayoutError::Ranks { node: NodeIndex(1), found: 0 })
        );
        assert_eq!(
            Layout::new(vec![share(4, 1), share(4, 1)], 2),
            Err(LayoutError::NodeTwice { node: NodeIndex(4) })
        );
        assert_eq!(Layout::even(2, 3, 2), Err(LayoutError::Ranks { node: NodeIndex(2), found: 0 }));
    }
}
