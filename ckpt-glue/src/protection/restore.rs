//! Before a life begins: the choice of the generation that it restores, and of the rebuilds before that (R28).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::verdict::{Finding, GenerationVerdict, GroupVerdict, LostGroup, ProtectionGroup, judge_group};
use crate::limits::REPAIRS_MAX;
use crate::names::{GenerationId, NodeIndex};

/// The terms on which a generation is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// The only generation that counts: a person has named it.
    pub named: Option<GenerationId>,
    /// No life begins: all generations are judged, and every group is rebuilt that can be.
    pub is_repair: bool,
    /// A copy of this generation lies outside the nodes.
    pub copied: Option<GenerationId>,
    /// No life begins: the nodes protect this generation, if its images are whole and nothing protects them in this layout (R35).
    pub protects: Option<GenerationId>,
}

/// A verdict after which nothing more of the generation is rebuilt before the life begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// The generation.
    pub generation: GenerationId,
    /// Never [`GenerationVerdict::Repairable`] or [`GenerationVerdict::Fetchable`].
    pub verdict: GenerationVerdict,
}

/// The next step before a life begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// These nodes rebuild their part of the generation; then all nodes are surveyed again.
    Repair {
        /// The generation.
        generation: GenerationId,
        /// The nodes.
        nodes: BTreeSet<NodeIndex>,
    },
    /// These nodes bring their part of the generation from its copy; then all nodes are surveyed again.
    Fetch {
        /// The generation.
        generation: GenerationId,
        /// The nodes.
        nodes: BTreeSet<NodeIndex>,
    },
    /// The life begins.
    Begin {
        /// From this generation; `None`: none can be restored.
        from: Option<GenerationId>,
        /// Every member of every group holds what it keeps of it for the others.
        is_protected: bool,
    },
}

/// The data that nodes hold, and the attempts to rebuild it, for one life that is about to begin.
#[derive(Clone, Debug)]
pub struct RestorePlan {
    nodes: u32,
    groups: Vec<ProtectionGroup>,
    /// The committed ones, newest first.
    generations: Vec<GenerationId>,
    /// By node: of each generation, in that order.
    found: BTreeMap<NodeIndex, Vec<Finding>>,
    /// The nodes reach each other to rebuild.
    can_rebuild: bool,
    repairs: BTreeMap<GenerationId, u32>,
    /// Nodes that the data of the others could not rebuild in the last round.
    beyond_repair: BTreeMap<GenerationId, BTreeSet<NodeIndex>>,
    fetches: u32,
}

impl RestorePlan {
    /// For a job on so many nodes, with these committed generations, newest first.
    #[must_use]
    pub fn new(nodes: u32, groups: Vec<ProtectionGroup>, generations: Vec<GenerationId>) -> RestorePlan {
        RestorePlan {
            nodes,
            groups,
            generations,
            found: BTreeMap::new(),
            can_rebuild: false,
            repairs: BTreeMap::new(),
            beyond_repair: BTreeMap::new(),
            fetches: 0,
        }
    }

    /// Other generations count, newest first: their records have been taken over from nodes.
    pub fn set_generations(&mut self, generations: Vec<GenerationId>) {
        self.generations = generations;
        self.found.clear();
    }

    /// The committed generations, newest first.
    #[must_use]
    pub fn generations(&self) -> &[GenerationId] {
        &self.generations
    }

    /// The answer of each node about each generation, in the order of [`RestorePlan::generations`]. A missing node has nothing.
    pub fn surveyed(&mut self, found: BTreeMap<NodeIndex, Vec<Finding>>) {
        self.found = found;
    }

    /// Whether the nodes reach each other to rebuild.
    pub fn set_can_rebuild(&mut self, can_rebuild: bool) {
        self.can_rebuild = can_rebuild;
    }

    /// A repair begins.
    pub fn begin_repair(&mut self, generation: GenerationId) {
        *self.repairs.entry(generation).or_default() += 1;
    }

    /// A repair is over. `beyond`: nodes that cannot be rebuilt, because all others lack what they need; `has_repaired`:
    /// some node was, and may be the one that others lacked.
    pub fn end_repair(&mut self, generation: GenerationId, beyond: BTreeSet<NodeIndex>, has_repaired: bool) {
        if has_repaired {
            self.beyond_repair.remove(&generation);
        } else {
            self.beyond_repair.insert(generation, beyond);
        }
    }

    /// Nodes begin to transfer their images from a copy.
    pub fn begin_fetch(&mut self) {
        self.fetches += 1;
    }

    /// The transfer is over. `may_retry`: it failed only because keepers were lost, and may succeed another time.
    pub fn end_fetch(&mut self, generation: GenerationId, may_retry: bool) {
        // A node that has its lost files again may be the one that the others lacked.
        self.beyond_repair.remove(&generation);
        if !may_retry {
            self.fetches = REPAIRS_MAX;
        }
    }

    /// R28: the next step, and the verdicts on the generations that were passed over or chosen for it, newest first.
    #[must_use]
    pub fn choose(&self, terms: Terms) -> (Choice, Vec<Judged>) {
        let mut judged = Vec::new();
        let (mut from, mut is_protected) = (None, false);
        for generation in self.generations.iter().copied() {
            if terms.named.is_some_and(|named| named != generation) {
                continue;
            }
            let verdict = match self.judge(generation, terms) {
                GenerationVerdict::Repairable(nodes) => {
                    return (Choice::Repair { generation, nodes }, judged);
                }
                GenerationVerdict::Fetchable(nodes) => return (Choice::Fetch { generation, nodes }, judged),
                verdict => verdict,
            };
            let is_lost = matches!(verdict, GenerationVerdict::Lost { .. });
            if from.is_none() && !is_lost {
                (from, is_protected) = (Some(generation), verdict == GenerationVerdict::Whole);
            }
            judged.push(Judged { generation, verdict });
            if from.is_some() && !terms.is_repair {
                break;
            }
        }
        (Choice::Begin { from, is_protected }, judged)
    }

    /// The verdict on a generation.
    #[must_use]
    pub fn judge(&self, generation: GenerationId, terms: Terms) -> GenerationVerdict {
        let place = self.generations.iter().position(|known| *known == generation);
        let found = |node: NodeIndex| -> Finding {
            let of_node = self.found.get(&node).and_then(|all| all.get(place?));
            of_node.copied().unwrap_or(Finding::NOTHING)
        };
        let without_images: BTreeSet<NodeIndex> =
            (0..self.nodes).map(NodeIndex).filter(|node| !found(*node).has_images).collect();
        let nobody = BTreeSet::new();
        let beyond_repair = self.beyond_repair.get(&generation).unwrap_or(&nobody);
        let (mut lost, mut is_bare) = (BTreeSet::new(), false);
        let mut beyond: Vec<LostGroup> = Vec::new();
        for group in &self.groups {
            let of_members = group.members.iter().map(|node| (*node, found(*node))).collect();
            match judge_group(&of_members, group.losses_max, beyond_repair) {
                GroupVerdict::Whole => {}
                GroupVerdict::Repairable(members) => lost.extend(members),
                // A life that is to begin does not wait for that: its next checkpoint is protected.
                GroupVerdict::Bare(members) => {
                    is_bare = true;
                    if terms.is_repair {
                        lost.extend(members);
                    }
                }
                GroupVerdict::Lost(group) => beyond.push(group),
            }
        }
        let repairs = self.repairs.get(&generation).copied().unwrap_or(0);
        let can_repair = self.can_rebuild && repairs < REPAIRS_MAX;
        // A repair rebuilds every group that can be, even if the whole generation cannot be rebuilt.
        let is_tried = beyond.is_empty() || terms.is_repair;
        if can_repair && is_tried && !lost.is_empty() {
            GenerationVerdict::Repairable(lost)
        } else if without_images.is_empty() {
            if lost.is_empty() && !is_bare { GenerationVerdict::Whole } else { GenerationVerdict::Bare }
        } else if terms.copied == Some(generation) && self.fetches < REPAIRS_MAX {
            GenerationVerdict::Fetchable(without_images)
        } else {
            GenerationVerdict::Lost { without_images, groups: beyond }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use transport::{Epoch, Life};

    use super::*;

    const DAMAGED: Finding = Finding { has_images: false, is_whole: false, has_some: true };
    const BARE: Finding = Finding { has_images: true, is_whole: false, has_some: true };

    fn generation(epoch: u32) -> GenerationId {
        GenerationId { life: Life { counter: 1, nonce: 7 }, epoch: Epoch(epoch) }
    }

    fn nodes(all: &[u32]) -> BTreeSet<NodeIndex> {
        all.iter().copied().map(NodeIndex).collect()
    }

    /// Three nodes of which one may be lost, and generations 2 and 1, as every node has them.
    fn plan(found: [[Finding; 2]; 3]) -> RestorePlan {
        let group = ProtectionGroup { members: (0..3).map(NodeIndex).collect(), losses_max: 1 };
        let mut plan = RestorePlan::new(3, vec![group], vec![generation(2), generation(1)]);
        plan.set_can_rebuild(true);
        plan.surveyed((0..).map(NodeIndex).zip(found.map(|found| found.to_vec())).collect());
        plan
    }

    fn begin(epoch: u32, is_protected: bool) -> Choice {
        Choice::Begin { from: Some(generation(epoch)), is_protected }
    }

    fn repair(epoch: u32, lost: &[u32]) -> Choice {
        Choice::Repair { generation: generation(epoch), nodes: nodes(lost) }
    }

    #[test]
    fn the_newest_generation_is_chosen_that_can_be_restored() {
        let whole = Finding::WHOLE;
        let (choice, judged) = plan([[whole; 2]; 3]).choose(Terms::default());
        assert_eq!((choice, judged.len()), (begin(2, true), 1));
        let (choice, _) = plan([[whole; 2], [BARE, whole], [BARE, whole]]).choose(Terms::default());
        assert_eq!(choice, begin(2, false));
        let nothing = Finding::NOTHING;
        let (choice, judged) =
            plan([[nothing, whole], [nothing, whole], [whole; 2]]).choose(Terms::default());
        assert_eq!(choice, begin(1, true));
        let GenerationVerdict::Lost { without_images, groups } = &judged[0].verdict else {
            panic!("{judged:?}")
        };
        assert_eq!((without_images, groups.len()), (&nodes(&[0, 1]), 1));
        let (choice, _) = plan([[nothing; 2], [nothing; 2], [whole; 2]]).choose(Terms::default());
        assert_eq!(choice, Choice::Begin { from: None, is_protected: false });
    }

    #[test]
    fn a_generation_is_rebuilt_until_it_has_failed_too_often() {
        let whole = Finding::WHOLE;
        let mut plan = plan([[whole; 2], [Finding::NOTHING, whole], [whole; 2]]);
        for _ in 0..REPAIRS_MAX {
            assert_eq!(plan.choose(Terms::default()).0, repair(2, &[1]));
            plan.begin_repair(generation(2));
            plan.end_repair(generation(2), BTreeSet::new(), false);
        }
        let (choice, judged) = plan.choose(Terms::default());
        assert_eq!((choice, judged.len()), (begin(1, true), 2));
        // Nodes that do not reach each other rebuild nothing.
        plan.set_can_rebuild(false);
        plan.set_generations(vec![generation(1)]);
        assert_eq!(plan.choose(Terms::default()).0, Choice::Begin { from: None, is_protected: false });
    }

    #[test]
    fn a_node_that_was_rebuilt_may_be_the_one_that_others_lacked() {
        let whole = Finding::WHOLE;
        let mut plan = plan([[DAMAGED, whole], [DAMAGED, whole], [whole; 2]]);
        assert_eq!(plan.choose(Terms::default()).0, repair(2, &[0, 1]));
        plan.begin_repair(generation(2));
        plan.end_repair(generation(2), nodes(&[0]), true);
        assert_eq!(plan.choose(Terms::default()).0, repair(2, &[0, 1]));
        plan.begin_repair(generation(2));
        plan.end_repair(generation(2), nodes(&[0]), false);
        assert_eq!(plan.choose(Terms::default()).0, begin(1, true));
    }

    #[test]
    fn a_named_generation_is_the_only_one_that_counts() {
        let whole = Finding::WHOLE;
        let plan = plan([[whole; 2], [whole, Finding::NOTHING], [whole, Finding::NOTHING]]);
        let terms = Terms { named: Some(generation(1)), ..Terms::default() };
        let (choice, judged) = plan.choose(terms);
        assert_eq!(choice, Choice::Begin { from: None, is_protected: false });
        assert_eq!(judged.iter().map(|judged| judged.generation).collect::<Vec<_>>(), [generation(1)]);
    }

    #[test]
    fn what_the_nodes_cannot_rebuild_is_brought_from_a_copy() {
        let whole = Finding::WHOLE;
        let mut plan = plan([[Finding::NOTHING, whole], [Finding::NOTHING, whole], [whole; 2]]);
        let terms = Terms { copied: Some(generation(2)), ..Terms::default() };
        let fetch = Choice::Fetch { generation: generation(2), nodes: nodes(&[0, 1]) };
        assert_eq!(plan.choose(terms).0, fetch);
        plan.begin_fetch();
        plan.end_fetch(generation(2), true);
        assert_eq!(plan.choose(terms).0, fetch);
        plan.begin_fetch();
        plan.end_fetch(generation(2), false);
        assert_eq!(plan.choose(terms).0, begin(1, true));
    }

    #[test]
    fn a_repair_judges_all_generations_and_rebuilds_what_protects_them() {
        let whole = Finding::WHOLE;
        let terms = Terms { is_repair: true, ..Terms::default() };
        let (choice, judged) = plan([[whole; 2]; 3]).choose(terms);
        assert_eq!((choice, judged.len()), (begin(2, true), 2));
        let plan = plan([[whole; 2], [whole, BARE], [whole, BARE]]);
        assert_eq!(plan.choose(terms).0, repair(1, &[1, 2]));
        assert_eq!(plan.choose(Terms::default()).0, begin(2, true));
    }
}
