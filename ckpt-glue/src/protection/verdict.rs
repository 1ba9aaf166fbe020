//! The verdict on a generation, from the data that the members of each group hold of it (R28).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::names::NodeIndex;

/// Nodes that protect each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProtectionGroup {
    /// Its members.
    pub members: Vec<NodeIndex>,
    /// How many of them may be lost.
    pub losses_max: usize,
}

/// The data of a generation that a node holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// All its images can be restored.
    pub has_images: bool,
    /// Its images, and the parity that it keeps for the others, can be read completely.
    pub is_whole: bool,
    /// It has at least pages from which others may be rebuilt.
    pub has_some: bool,
}

impl Finding {
    /// Of a node that does not answer, or cannot read its directory.
    pub const NOTHING: Finding = Finding { has_images: false, is_whole: false, has_some: false };

    /// Of a node that has lost nothing.
    pub const WHOLE: Finding = Finding { has_images: true, is_whole: true, has_some: true };
}

/// The verdict on a group's part of a generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupVerdict {
    /// Nothing is lost.
    Whole,
    /// These members have to be rebuilt.
    Repairable(BTreeSet<NodeIndex>),
    /// All images are whole; these members compute what they keep for the others anew.
    Bare(BTreeSet<NodeIndex>),
    /// The other members cannot make up for the loss.
    Lost(LostGroup),
}

/// The losses of a group that cannot be made up for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostGroup {
    /// Members of the group.
    pub members: usize,
    /// How many of them may be lost.
    pub losses_max: usize,
    /// Members that have nothing of it.
    pub without_anything: BTreeSet<NodeIndex>,
    /// Others that have lost a part of it.
    pub damaged: BTreeSet<NodeIndex>,
    /// In which way it is too much.
    pub how: LostHow,
}

/// In which way a group has lost too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostHow {
    /// More members have nothing left than may be lost.
    TooManyMembers,
    /// A repair has shown that pages which belong together are lost on more members than may be lost.
    TooManyPages,
}

/// The verdict on a generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GenerationVerdict {
    /// It can be restored, and every member holds what it keeps for the others.
    Whole,
    /// It can be restored, but is not protected.
    Bare,
    /// These nodes have to be rebuilt.
    Repairable(BTreeSet<NodeIndex>),
    /// These nodes have to bring it from a copy.
    Fetchable(BTreeSet<NodeIndex>),
    /// It cannot be restored: these nodes lack images, and these groups have lost too much.
    Lost {
        /// Nodes whose images cannot be restored.
        without_images: BTreeSet<NodeIndex>,
        /// Groups that cannot make up for it; none: no repair was possible, or it has failed too often.
        groups: Vec<LostGroup>,
    },
}

/// R28: the pages of a stripe that are left decide. Where more members are damaged than may be lost, the repair shows
/// whether that is enough; unless too many have nothing left. `beyond_repair`: members that the last repair could not
/// rebuild, because all others lack what it needs.
#[must_use]
pub fn judge_group(
    found: &BTreeMap<NodeIndex, Finding>,
    losses_max: usize,
    beyond_repair: &BTreeSet<NodeIndex>,
) -> GroupVerdict {
    let those = |is_so: &dyn Fn(&Finding) -> bool| -> BTreeSet<NodeIndex> {
        found.iter().filter(|(_, finding)| is_so(finding)).map(|(node, _)| *node).collect()
    };
    let lost = those(&|finding| !finding.is_whole);
    let without_images = those(&|finding| !finding.has_images);
    let without_anything = those(&|finding| !finding.has_images && !finding.has_some);
    let damaged: BTreeSet<NodeIndex> = lost.difference(&without_anything).copied().collect();
    let too_much = |without_anything, damaged, how| {
        GroupVerdict::Lost(LostGroup { members: found.len(), losses_max, without_anything, damaged, how })
    };
    if without_anything.len() > losses_max {
        return too_much(without_anything, damaged, LostHow::TooManyMembers);
    }
    if lost.len() <= losses_max {
        return if lost.is_empty() { GroupVerdict::Whole } else { GroupVerdict::Repairable(lost) };
    }
    let are_beyond = without_images.iter().any(|node| beyond_repair.contains(node));
    let only_notes: BTreeSet<NodeIndex> = lost.difference(&without_images).copied().collect();
    if are_beyond && !only_notes.is_empty() && only_notes.is_disjoint(beyond_repair) {
        // They have all their pages, and may not know it: their records of them are damaged.
        return GroupVerdict::Repairable(only_notes);
    }
    if are_beyond {
        return too_much(without_anything, damaged, LostHow::TooManyPages);
    }
    // All images are whole, so their parity can be computed anew. Otherwise the images come first.
    if without_images.is_empty() {
        GroupVerdict::Bare(lost)
    } else {
        GroupVerdict::Repairable(without_images)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Finding = Finding { has_images: true, is_whole: false, has_some: true };
    const DAMAGED: Finding = Finding { has_images: false, is_whole: false, has_some: true };

    fn nodes(all: &[u32]) -> BTreeSet<NodeIndex> {
        all.iter().copied().map(NodeIndex).collect()
    }

    fn judged(found: &[Finding], beyond: &[u32]) -> GroupVerdict {
        let found = (0..).map(NodeIndex).zip(found.iter().copied()).collect();
        judge_group(&found, 1, &nodes(beyond))
    }

    #[test]
    fn as_many_members_as_may_be_lost_are_rebuilt() {
        let whole = Finding::WHOLE;
        assert_eq!(judged(&[whole; 4], &[]), GroupVerdict::Whole);
        for lost in [Finding::NOTHING, DAMAGED, BARE] {
            assert_eq!(judged(&[whole, lost, whole], &[]), GroupVerdict::Repairable(nodes(&[1])), "{lost:?}");
        }
    }

    #[test]
    fn members_with_nothing_left_count_at_once() {
        let lost = judged(&[Finding::NOTHING, Finding::NOTHING, DAMAGED, Finding::WHOLE], &[]);
        let GroupVerdict::Lost(lost) = lost else { panic!("{lost:?}") };
        assert_eq!(
            (lost.how, lost.without_anything, lost.damaged),
            (LostHow::TooManyMembers, nodes(&[0, 1]), nodes(&[2]))
        );
    }

    #[test]
    fn damaged_images_are_tried_until_a_repair_has_shown_that_they_cannot_be_rebuilt() {
        let found = [DAMAGED, DAMAGED, Finding::WHOLE];
        assert_eq!(judged(&found, &[]), GroupVerdict::Repairable(nodes(&[0, 1])));
        let lost = judged(&found, &[0]);
        let GroupVerdict::Lost(lost) = lost else { panic!("{lost:?}") };
        assert_eq!((lost.how, lost.damaged), (LostHow::TooManyPages, nodes(&[0, 1])));
    }

    #[test]
    fn a_member_whose_records_are_damaged_may_have_the_pages_that_another_one_lacks() {
        let found = [DAMAGED, BARE, Finding::WHOLE];
        assert_eq!(judged(&found, &[]), GroupVerdict::Repairable(nodes(&[0])));
        assert_eq!(judged(&found, &[0]), GroupVerdict::Repairable(nodes(&[1])));
        assert!(matches!(judged(&found, &[0, 1]), GroupVerdict::Lost(_)));
    }

    #[test]
    fn whole_images_are_enough_to_begin() {
        assert_eq!(judged(&[BARE, BARE, Finding::WHOLE], &[]), GroupVerdict::Bare(nodes(&[0, 1])));
    }
}
