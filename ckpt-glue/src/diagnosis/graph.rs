//! The graph of waits, and the ranks that are stuck in it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Bfs, Reversed};
use transport::Rank;

use super::{Cause, DiagnosedRank, Finding, OwingPeer, RankState, Reports};
use crate::control::WaitKind;
use crate::limits::{FINDING_RANKS_MAX, LINK_LOST_AFTER};

/// What one rank needs to go on.
#[derive(Clone, Default, Debug)]
struct Needs {
    /// Any of these ranks.
    peers: BTreeSet<u32>,
    /// Or any of these links, by number, which are lost.
    lost: BTreeSet<usize>,
    /// Or any other rank at all.
    any: bool,
    /// Or a process that is no rank of the job.
    stranger: bool,
    /// All others that are not as far.
    all: bool,
}

/// A link that has lost its peer.
#[derive(Clone, Copy, Debug)]
struct LostLink {
    from: u32,
    owing: OwingPeer,
}

/// Nodes are ranks, then lost links, then `any` and `all`: a wait for any rank, and one for all, would else be an edge to
/// each.
pub(super) struct Graph<'a> {
    each_rank: &'a [DiagnosedRank],
    needs: Vec<Needs>,
    lost: Vec<LostLink>,
    /// Whether a rank can go on.
    goes_on: Vec<bool>,
    edges: DiGraph<(), ()>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(each_rank: &'a [DiagnosedRank], first: &Reports) -> Graph<'a> {
        let lost = lost_links(each_rank, first);
        let pair = |a: u32, b: u32| (a.min(b), a.max(b));
        let by_pair: BTreeMap<(u32, u32), usize> = lost
            .iter()
            .enumerate()
            .map(|(number, lost)| (pair(lost.from, lost.owing.peer), number))
            .collect();
        let needs_of = |rank: &DiagnosedRank| {
            let mut needs = Needs::default();
            if rank.state != RankState::Waiting {
                return needs;
            }
            // With more open operations than are known, any rank may complete one.
            needs.any = rank.waits.is_empty() || rank.more_waits > 0;
            for wait in &rank.waits {
                match (wait.kind, wait.peer) {
                    (WaitKind::Finish | WaitKind::Launcher, _) => needs.all = true,
                    (_, None) => needs.any = true,
                    (_, Some(peer)) if peer as usize >= each_rank.len() => needs.stranger = true,
                    (_, Some(peer)) => match by_pair.get(&pair(rank.rank, peer)) {
                        Some(number) => _ = needs.lost.insert(*number),
                        None => _ = needs.peers.insert(peer),
                    },
                }
            }
            needs
        };
        let mut needs: Vec<Needs> = each_rank.iter().map(needs_of).collect();
        needs.iter_mut().for_each(|needs| forget_ended(needs, each_rank));
        let goes_on = going_on(each_rank, &needs);
        let edges = edges(each_rank, &needs, &lost, &goes_on);
        Graph { each_rank, needs, lost, goes_on, edges }
    }

    /// All causes. `waited_ms`: for how long an answer of a rank was waited for.
    pub(super) fn findings(&self, waited_ms: impl Fn(u32) -> u64) -> Vec<Finding> {
        let components = kosaraju_scc(&self.edges);
        let mut component_of: Vec<usize> = vec_of(self.edges.node_count(), 0);
        for (number, component) in components.iter().enumerate() {
            component.iter().for_each(|node| component_of[node.index()] = number);
        }
        let mut findings = Vec::new();
        for (number, component) in components.iter().enumerate() {
            let leaves = |node: &NodeIndex| {
                self.edges.neighbors(*node).any(|next| component_of[next.index()] != number)
            };
            let is_end = !component.iter().any(leaves);
            let ranks = self.ranks_of(component);
            let Some(&rank) = ranks.first() else {
                if let [node] = component[..]
                    && let Some(lost) = self.lost_at(node)
                {
                    findings.push(self.finding(lost_cause(lost), component));
                }
                continue;
            };
            let state = self.each_rank[rank as usize].state;
            let goes_on = self.goes_on[rank as usize];
            if state.is_silent() {
                let waited_ms = waited_ms(rank);
                findings.push(self.finding(Cause::Silent { rank, state, waited_ms }, component));
            } else if state == RankState::Ended {
                let finding = self.finding(Cause::Ended { rank }, component);
                // Ranks of a program need not end together.
                findings.extend(Some(finding).filter(|finding| finding.waiting_total > 0));
            } else if state == RankState::Waiting && !goes_on && is_end {
                let cycle = self.cycle(&ranks);
                findings.push(self.finding(Cause::Deadlock { ranks, cycle }, component));
            } else if state == RankState::Waiting && goes_on && ranks.len() > 1 && self.has_no_hub(component)
            {
                let cycle = self.cycle(&ranks);
                findings.push(self.finding(Cause::CircularWait { ranks, cycle }, component));
            } else if state == RankState::Computing && self.is_awaited(rank) {
                findings.push(self.finding(Cause::Straggler { rank }, component));
            }
        }
        findings
    }

    /// Whether ranks wait for this one by name, for all, or for any while no other computes.
    fn is_awaited(&self, rank: u32) -> bool {
        let by_name = self.needs.iter().any(|needs| needs.peers.contains(&rank) || needs.all);
        let computes = |rank: &&DiagnosedRank| rank.state == RankState::Computing;
        by_name
            || self.needs.iter().any(|needs| needs.any) && self.each_rank.iter().filter(computes).count() == 1
    }

    fn ranks_of(&self, component: &[NodeIndex]) -> Vec<u32> {
        let ranks = component.iter().filter_map(|node| self.each_rank.get(node.index()));
        let mut ranks: Vec<u32> = ranks.map(|rank| rank.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    fn lost_at(&self, node: NodeIndex) -> Option<&LostLink> {
        self.lost.get(node.index().checked_sub(self.each_rank.len())?)
    }

    fn has_no_hub(&self, component: &[NodeIndex]) -> bool {
        component.iter().all(|node| node.index() < self.each_rank.len())
    }

    /// Ranks of a knot, each of which waits for the next.
    fn cycle(&self, ranks: &[u32]) -> Vec<u32> {
        let is_in = |rank: &u32| ranks.binary_search(rank).is_ok();
        let next = |rank: u32| {
            let needs = &self.needs[rank as usize];
            let named = needs.peers.iter().copied().find(is_in);
            let others = || ranks.iter().copied().filter(|other| *other != rank);
            let unlike = || others().find(|other| !needs.all || !self.needs[*other as usize].all);
            named.or_else(unlike).or_else(|| others().next()).unwrap_or(rank)
        };
        let mut walk: Vec<u32> = Vec::new();
        let mut place: BTreeMap<u32, usize> = BTreeMap::new();
        let mut at = ranks.first().copied().unwrap_or(0);
        loop {
            if let Some(begin) = place.insert(at, walk.len()) {
                return walk.split_off(begin);
            }
            walk.push(at);
            at = next(at);
        }
    }

    fn finding(&self, cause: Cause, component: &[NodeIndex]) -> Finding {
        let mut seen: BTreeSet<usize> = component.iter().map(|node| node.index()).collect();
        let (mut waiting, mut waiting_total) = (Vec::new(), 0_u32);
        if let Some(start) = component.first() {
            // All of a component is reached from each of its nodes.
            let mut behind = Bfs::new(Reversed(&self.edges), *start);
            while let Some(node) = behind.next(Reversed(&self.edges)) {
                if let Some(rank) = self.each_rank.get(node.index())
                    && seen.insert(node.index())
                {
                    waiting_total = waiting_total.saturating_add(1);
                    if waiting.len() < FINDING_RANKS_MAX {
                        waiting.push(rank.rank);
                    }
                }
            }
        }
        waiting.sort_unstable();
        Finding { cause, waiting, waiting_total }
    }
}

/// A rank that has ended helps nobody: it is a cause only where nobody else could help.
fn forget_ended(needs: &mut Needs, each_rank: &[DiagnosedRank]) {
    let is_there = |peer: &u32| each_rank[*peer as usize].state != RankState::Ended;
    let has_others =
        needs.any || needs.stranger || !needs.lost.is_empty() || needs.peers.iter().any(is_there);
    if has_others {
        needs.peers.retain(is_there);
    }
}

fn vec_of<T: Clone>(length: usize, value: T) -> Vec<T> {
    core::iter::repeat_n(value, length).collect()
}

fn lost_cause(lost: &LostLink) -> Cause {
    let OwingPeer { peer, frames, silent_ms, is_broken } = lost.owing;
    Cause::LostLink { from: lost.from, to: peer, frames, silent_ms, is_broken }
}

/// Links whose peers run, and have long not acknowledged frames that had been sent before both answers. One for each pair of ranks.
fn lost_links(each_rank: &[DiagnosedRank], first: &Reports) -> Vec<LostLink> {
    let lost_ms = u64::try_from(LINK_LOST_AFTER.as_millis()).unwrap_or(u64::MAX);
    let mut lost: BTreeMap<(u32, u32), LostLink> = BTreeMap::new();
    for rank in each_rank.iter().filter(|rank| rank.state.has_answered()) {
        for owing in &rank.links {
            let runs = each_rank.get(owing.peer as usize).is_some_and(|peer| peer.state.has_answered());
            let owed_before = first
                .get(&Rank(rank.rank))
                .is_some_and(|report| report.links.iter().any(|link| link.peer.0 == owing.peer));
            if !runs || !(owing.is_broken || owed_before && owing.silent_ms >= lost_ms) {
                continue;
            }
            let pair = (rank.rank.min(owing.peer), rank.rank.max(owing.peer));
            let found = LostLink { from: rank.rank, owing: *owing };
            let known = lost.entry(pair).or_insert(found);
            if (found.owing.is_broken, found.owing.silent_ms) > (known.owing.is_broken, known.owing.silent_ms)
            {
                *known = found;
            }
        }
    }
    lost.into_values().collect()
}

/// Which ranks can go on: free ones, and those that need any of them. Ranks that need all others can, once all can.
fn going_on(each_rank: &[DiagnosedRank], needs: &[Needs]) -> Vec<bool> {
    let mut waiters: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (rank, needs) in each_rank.iter().zip(needs).filter(|(_, needs)| !needs.all) {
        for peer in &needs.peers {
            waiters.entry(*peer).or_default().push(rank.rank);
        }
    }
    let of_any = each_rank.iter().zip(needs).filter(|(_, needs)| needs.any && !needs.all);
    let mut any_waiters: Vec<u32> = of_any.map(|(rank, _)| rank.rank).collect();
    let mut goes_on: Vec<bool> =
        each_rank.iter().zip(needs).map(|(rank, needs)| rank.state.is_free() || needs.stranger).collect();
    let mut news: Vec<u32> =
        each_rank.iter().map(|rank| rank.rank).filter(|rank| goes_on[*rank as usize]).collect();
    loop {
        let mut found = if news.is_empty() { Vec::new() } else { core::mem::take(&mut any_waiters) };
        for rank in news.drain(..) {
            found.extend(waiters.get(&rank).into_iter().flatten().copied());
        }
        found.retain(|rank| !core::mem::replace(&mut goes_on[*rank as usize], true));
        if found.is_empty() {
            let others_go_on = each_rank.iter().zip(needs).all(|(rank, needs)| {
                needs.all || rank.state == RankState::Ended || goes_on[rank.rank as usize]
            });
            let last = each_rank.iter().zip(needs).filter(|(_, needs)| needs.all && others_go_on);
            found.extend(last.map(|(rank, _)| rank.rank));
            found.retain(|rank| !core::mem::replace(&mut goes_on[*rank as usize], true));
        }
        if found.is_empty() {
            return goes_on;
        }
        news = found;
    }
}

fn edges(
    each_rank: &[DiagnosedRank],
    needs: &[Needs],
    lost: &[LostLink],
    goes_on: &[bool],
) -> DiGraph<(), ()> {
    let mut edges = DiGraph::new();
    let nodes: Vec<NodeIndex> = (0..each_rank.len() + lost.len()).map(|_| edges.add_node(())).collect();
    let (mut any, mut all) = (None, None);
    for (node, needs) in needs.iter().enumerate() {
        let targets = needs.peers.iter().map(|peer| *peer as usize);
        let targets = targets.chain(needs.lost.iter().map(|number| each_rank.len() + number));
        for target in targets.filter(|_| !needs.all) {
            edges.add_edge(nodes[node], nodes[target], ());
        }
        if needs.any && !needs.all {
            let hub = *any.get_or_insert_with(|| edges.add_node(()));
            edges.add_edge(nodes[node], hub, ());
        }
        if needs.all {
            let hub = *all.get_or_insert_with(|| edges.add_node(()));
            edges.add_edge(nodes[node], hub, ());
        }
    }
    if let Some(hub) = any {
        let is_there = |rank: &&DiagnosedRank| rank.state != RankState::Ended;
        // With two that are there, each is another one for somebody.
        let are_there = each_rank.iter().filter(is_there).count() > 1;
        for rank in each_rank.iter().filter(|rank| !are_there || is_there(rank)) {
            edges.add_edge(hub, nodes[rank.rank as usize], ());
        }
    }
    if let Some(hub) = all {
        let others = || {
            each_rank.iter().zip(needs).filter(|(rank, needs)| !needs.all && rank.state != RankState::Ended)
        };
        let is_stuck = others().any(|(rank, _)| !goes_on[rank.rank as usize]);
        for (rank, _) in others().filter(|(rank, _)| !is_stuck || !goes_on[rank.rank as usize]) {
            edges.add_edge(hub, nodes[rank.rank as usize], ());
        }
    }
    edges
}
