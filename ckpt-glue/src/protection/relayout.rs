//! Another layout: a restart spreads the ranks over the nodes differently, although their images lie on their nodes (R35).
//!
//! Which files go where, from which host a node of the former layout gives them, what an interrupted change becomes, and on which hosts ranks of the
//! former layout may still run.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use transport::Rank;

use crate::names::NodeIndex;

/// The files of a rank go from a node of the former layout to a node of the new one. Both lie in roots of their own, so a rank moves even if both numbers
/// are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ImageMove {
    /// Whose.
    pub rank: Rank,
    /// Node of the former layout.
    pub from: NodeIndex,
    /// Node of the new layout.
    pub to: NodeIndex,
}

/// Every rank's move. `before`: each rank's node; `shares`: ranks of each new node, in the order of the ranks. `None`: these are not as many ranks, or a
/// node has none.
#[must_use]
pub fn image_moves(before: &[NodeIndex], shares: &[u32]) -> Option<Vec<ImageMove>> {
    let total: u64 = shares.iter().copied().map(u64::from).sum();
    if usize::try_from(total).ok()? != before.len() || shares.contains(&0) {
        return None;
    }
    let nodes = (0..).map(NodeIndex).zip(shares);
    let nodes = nodes.flat_map(|(node, ranks)| (0..*ranks).map(move |_| node));
    let ranks = (0..).map(Rank).zip(before.iter().copied()).zip(nodes);
    Some(ranks.map(|((rank, from), to)| ImageMove { rank, from, to }).collect())
}

/// The host on which each node of the former layout is asked for its images. A node stays on its host if that is named, or answers although it is not. The
/// others are rebuilt (R28) on a named host that has no node yet, or else on the one with the fewest.
///
/// `before`: host of each node; `named`: hosts of the new layout; `answering`: hosts that are not named, and answer.
#[must_use]
pub fn source_hosts<'a>(
    before: &[&'a str],
    named: &[&'a str],
    answering: &BTreeSet<&'a str>,
) -> Vec<Option<&'a str>> {
    let is_there = |host: &&'a str| named.contains(host) || answering.contains(host);
    let mut hosts: Vec<Option<&str>> = before.iter().map(|host| Some(*host).filter(is_there)).collect();
    for node in 0..hosts.len() {
        if hosts[node].is_none() {
            let load = |host: &&&str| hosts.iter().flatten().filter(|other| other == host).count();
            hosts[node] = named.iter().min_by_key(load).copied();
        }
    }
    hosts
}

/// What becomes of a record that an interrupted change of the layout has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// The job file names the layout of this record: the change is completed.
    Complete(u32),
    /// The job file does not name it: the former layout goes on.
    Discard(u32),
}

/// What becomes of the records `recorded`, while the job file names layout `current`.
#[must_use]
pub fn interrupted(current: u32, recorded: &[u32]) -> Vec<Interrupted> {
    let of = |layout: &u32| match *layout == current {
        true => Interrupted::Complete(*layout),
        false => Interrupted::Discard(*layout),
    };
    recorded.iter().map(of).collect()
}

/// Places (NODE=HOST) on which ranks of the former layout may still run (R32). `known`: all on which some may have run; `held`: those whose locks were held
/// while the images moved (R30), so that nothing runs there. Locks of the new layout lie elsewhere, so a place of the former one is never one of the new one.
#[must_use]
pub fn left_places(known: &BTreeSet<String>, held: &BTreeSet<String>, layout: u32) -> BTreeSet<String> {
    let of_former = |place: &String| match place.starts_with(FORMER) {
        true => place.clone(),
        false => format!("{FORMER}{layout}.{place}"),
    };
    known.difference(held).map(of_former).collect()
}

/// Begins a place of a former layout.
const FORMER: &str = "layout-";

/// Roots of former layouts, oldest first, whose files nobody needs once a generation of layout `current` is committed.
#[must_use]
pub fn former_layouts(current: u32) -> Vec<u32> {
    if current < 2 { vec![] } else { (1..current).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(before: &[u32], shares: &[u32]) -> Option<Vec<(u32, u32, u32)>> {
        let before: Vec<NodeIndex> = before.iter().copied().map(NodeIndex).collect();
        let moves = image_moves(&before, shares)?;
        Some(moves.iter().map(|one| (one.rank.0, one.from.0, one.to.0)).collect())
    }

    #[test]
    fn every_rank_moves_once_and_new_nodes_are_filled_in_order() {
        assert_eq!(
            moved(&[0, 0, 1, 1], &[1, 1, 1, 1]),
            Some(vec![(0, 0, 0), (1, 0, 1), (2, 1, 2), (3, 1, 3)])
        );
        assert_eq!(moved(&[0, 1, 2, 3], &[2, 2]), Some(vec![(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1)]));
        assert_eq!(moved(&[0, 0, 1], &[1, 2]), Some(vec![(0, 0, 0), (1, 0, 1), (2, 1, 1)]));
    }

    #[test]
    fn other_numbers_of_ranks_are_no_layout() {
        for shares in [&[1u32, 1][..], &[2, 2], &[3, 0], &[u32::MAX, u32::MAX], &[]] {
            assert_eq!(moved(&[0, 0, 1], shares), None, "{shares:?}");
        }
    }

    #[test]
    fn a_node_gives_its_images_where_they_are_if_its_host_answers() {
        let sources = |before: &[&'static str], named: &[&'static str], answering: &[&'static str]| {
            source_hosts(before, named, &answering.iter().copied().collect())
        };
        let all = |hosts: &[&'static str]| hosts.iter().copied().map(Some).collect::<Vec<_>>();
        // 2 nodes on 4 hosts, and 4 on 2 of which the others answer.
        assert_eq!(sources(&["a", "b"], &["a", "b", "c", "d"], &[]), all(&["a", "b"]));
        assert_eq!(sources(&["a", "b", "c", "d"], &["a", "b"], &["c", "d"]), all(&["a", "b", "c", "d"]));
        // c is lost: its images are rebuilt on a host without a node, or with few.
        assert_eq!(sources(&["a", "b", "c"], &["a", "b", "e"], &[]), all(&["a", "b", "e"]));
        assert_eq!(sources(&["a", "a", "c"], &["a", "b"], &[]), all(&["a", "a", "b"]));
        assert_eq!(sources(&["a", "b", "c", "d"], &["a", "b"], &["d"]), all(&["a", "b", "a", "d"]));
        assert_eq!(sources(&["a"], &[], &[]), [None]);
    }

    #[test]
    fn the_job_file_decides_which_layout_counts() {
        assert!(interrupted(1, &[]).is_empty());
        assert_eq!(interrupted(1, &[2]), [Interrupted::Discard(2)]);
        assert_eq!(interrupted(2, &[2]), [Interrupted::Complete(2)]);
        assert_eq!(
            interrupted(3, &[2, 3, 4]),
            [Interrupted::Discard(2), Interrupted::Complete(3), Interrupted::Discard(4)]
        );
    }

    // R32: node 1 of the new layout on b has another lock.
    #[test]
    fn places_of_the_former_layout_are_none_of_the_new_one() {
        let set = |places: &[&str]| places.iter().map(|place| (*place).into()).collect::<BTreeSet<String>>();
        let left = left_places(&set(&["0=a", "1=b", "1=e"]), &set(&["0=a", "1=e"]), 1);
        assert_eq!(left, set(&["layout-1.1=b"]));
        // Not waited for: it stays named until all ranks run.
        assert_eq!(left_places(&left, &set(&[]), 2), left);
    }

    #[test]
    fn the_first_layout_has_none_before_it() {
        assert!(former_layouts(1).is_empty());
        assert_eq!(former_layouts(3), [1, 2]);
    }
}
