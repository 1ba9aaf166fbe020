//! The networks of the ranks: a generation is committed only when every rank has reported its own, which is the provider's. Messages over another one are in
//! no image.

use std::collections::BTreeSet;
use std::time::Instant;

use ckpt_glue::names::NodeIndex;

use super::super::Saves;
use super::Shell;
use super::mpi::MpiSide;

/// Questions to the keepers whether the ranks of a life have reported their networks.
#[derive(Debug, Default)]
pub(super) struct Networks {
    /// The number of the last question.
    last: u64,
    /// The last question about all ranks, and the nodes that have not answered it.
    asked: Option<(u64, BTreeSet<NodeIndex>)>,
    /// All ranks have.
    are_known: bool,
}

impl Networks {
    pub(super) fn are_known(&self) -> bool {
        self.are_known
    }

    /// The number of a new question. `nodes`: those that are asked, if it is about all ranks.
    pub(super) fn ask(&mut self, nodes: Option<BTreeSet<NodeIndex>>) -> u64 {
        self.last += 1;
        if let Some(nodes) = nodes {
            // Without a process nothing can be sent.
            self.are_known |= nodes.is_empty();
            self.asked = Some((self.last, nodes));
        }
        self.last
    }

    /// The answer of a node: whether all of its ranks have. An answer to an earlier question counts for nothing.
    pub(super) fn answered(&mut self, node: NodeIndex, number: u64, have_reported: bool) {
        let Some((_, nodes)) = self.asked.as_mut().filter(|(asked, _)| *asked == number) else { return };
        if !have_reported {
            self.asked = None;
        } else if nodes.remove(&node) && nodes.is_empty() {
            self.are_known = true;
        }
    }
}

impl Shell<'_> {
    /// Whether a commit has to wait until all ranks have reported their networks. Those that are not saved as whole processes need none.
    pub(super) fn awaits_networks(&self) -> bool {
        let has_provider = self.plan.saves == Saves::Process && self.plan.provider.is_some();
        has_provider && self.mpi.as_ref().is_some_and(MpiSide::may_use_other_networks)
    }

    /// A node's answer.
    pub(super) fn on_networks(&mut self, node: NodeIndex, number: u64, have_reported: bool) {
        if let Some(mpi) = &mut self.mpi {
            mpi.networks().answered(node, number, have_reported);
        }
        self.commit_due(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u32]) -> Option<BTreeSet<NodeIndex>> {
        Some(numbers.iter().copied().map(NodeIndex).collect())
    }

    #[test]
    fn all_nodes_have_to_answer_the_same_question() {
        let mut networks = Networks::default();
        let first = networks.ask(nodes(&[0, 1]));
        networks.answered(NodeIndex(0), first, true);
        let second = networks.ask(nodes(&[0, 1]));
        networks.answered(NodeIndex(1), first, true);
        networks.answered(NodeIndex(1), second, true);
        networks.answered(NodeIndex(1), second, true);
        assert!(!networks.are_known());
        networks.answered(NodeIndex(0), second, true);
        assert!(networks.are_known());
    }

    #[test]
    fn one_rank_without_a_network_is_enough() {
        let mut networks = Networks::default();
        let asked = networks.ask(nodes(&[0, 1]));
        networks.answered(NodeIndex(0), asked, false);
        networks.answered(NodeIndex(1), asked, true);
        assert!(!networks.are_known());
        // A question about a part of them says nothing about the others.
        let of_one = networks.ask(None);
        networks.answered(NodeIndex(0), of_one, true);
        assert!(!networks.are_known());
        networks.ask(nodes(&[]));
        assert!(networks.are_known());
    }
}
