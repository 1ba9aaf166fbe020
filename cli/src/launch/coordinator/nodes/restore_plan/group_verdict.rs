//! The findings of a group's members of a generation, and the verdict that follows.

use std::collections::BTreeSet;

use ckpt_glue::names::NodeIndex;
use store::GenerationId;
use store::protect::Group;

use super::super::super::super::nodes::wire::Found;
use super::super::super::Shell;
use super::RestorePlan;

/// The verdict on a group's part of a generation.
pub(super) enum GroupVerdict {
    Whole,
    /// These members have to be rebuilt.
    Repairable(BTreeSet<NodeIndex>),
    /// All images are whole; these members compute their protection data anew.
    Bare(BTreeSet<NodeIndex>),
    /// In words.
    Lost(String),
}

impl Shell<'_> {
    /// R28: the pages of a stripe that are left decide. Where more members are damaged than may be lost, the repair shows whether that is enough;
    /// unless too many have nothing left.
    pub(super) fn judge_group(
        &self,
        restore: &RestorePlan,
        place: usize,
        generation: GenerationId,
        group: &Group,
    ) -> GroupVerdict {
        let found: Vec<(NodeIndex, Found)> =
            group.nodes().iter().map(|node| (NodeIndex(*node), restore.found(*node, place))).collect();
        let those = |is_so: &dyn Fn(&Found) -> bool| -> BTreeSet<NodeIndex> {
            found.iter().filter(|(_, found)| is_so(found)).map(|(node, _)| *node).collect()
        };
        let lost = those(&|found| !found.is_held);
        let without_images = those(&|found| found.problem.is_some());
        let without_anything = those(&|found| found.problem.is_some() && !found.has_some);
        let nobody = BTreeSet::new();
        let beyond_repair = restore.beyond_repair.get(&generation).unwrap_or(&nobody);
        let (members, may) = (group.members(), group.losses());
        let named = |nodes: &BTreeSet<NodeIndex>| -> String {
            let names = nodes.iter().map(|node| self.plan.nodes[node.0 as usize].name());
            names.collect::<Vec<_>>().join(", ")
        };
        let damaged: BTreeSet<NodeIndex> = lost.difference(&without_anything).copied().collect();
        if without_anything.len() > may {
            let (count, back) = (without_anything.len(), without_anything.len() - may);
            let (besides, unless) = match damaged.is_empty() {
                true => (String::new(), ""),
                false => (
                    format!(", and something of it is damaged ({})", named(&damaged)),
                    ", unless what is damaged belongs to what stays lost",
                ),
            };
            return GroupVerdict::Lost(format!(
                "{count} of {members} nodes that protect each other have lost what they kept of it ({}), and {may} may{besides}; it can be restored if {back} of these come back{unless}",
                named(&without_anything)
            ));
        }
        if lost.len() <= may {
            return if lost.is_empty() { GroupVerdict::Whole } else { GroupVerdict::Repairable(lost) };
        }
        let are_beyond = without_images.iter().any(|node| beyond_repair.contains(node));
        let only_notes: BTreeSet<NodeIndex> = lost.difference(&without_images).copied().collect();
        if are_beyond && !only_notes.is_empty() && only_notes.is_disjoint(beyond_repair) {
            // They have all their pages, and may not know it: their records of them are damaged.
            return GroupVerdict::Repairable(only_notes);
        }
        if are_beyond {
            let of_each = [("all of it", &without_anything), ("a part of it", &damaged)];
            let lost_there = of_each.into_iter().filter(|(_, nodes)| !nodes.is_empty());
            let there: Vec<String> =
                lost_there.map(|(what, nodes)| format!("{what} on {}", named(nodes))).collect();
            return GroupVerdict::Lost(format!(
                "{} of {members} nodes that protect each other have lost something of it ({}), and pages that belong together on more than the {may} that may",
                lost.len(),
                there.join(", ")
            ));
        }
        // No image is lost, so the protection data can be computed anew. Else the rest follows when all of them are whole.
        if without_images.is_empty() {
            GroupVerdict::Bare(lost)
        } else {
            GroupVerdict::Repairable(without_images)
        }
    }
}
