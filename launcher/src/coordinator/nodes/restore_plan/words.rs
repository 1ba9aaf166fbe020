//! Why a generation cannot be restored, in words.

use std::collections::BTreeSet;

use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::{GenerationVerdict, LostGroup, LostHow};
use store::GenerationId;

use super::super::super::Shell;

impl Shell<'_> {
    /// `None`: it can be, or could be if its nodes were rebuilt.
    pub(super) fn lost_words(&self, generation: GenerationId, verdict: &GenerationVerdict) -> Option<String> {
        let GenerationVerdict::Lost { without_images, groups } = verdict else { return None };
        let restore = self.nodes.as_ref()?.restore.as_ref()?;
        let problem = |node: &NodeIndex| {
            format!("{}: {}", self.plan.nodes[node.0 as usize].name(), restore.problem(*node, generation))
        };
        let problems = without_images.iter().map(problem).collect::<Vec<_>>().join("; ");
        let failed = restore.failures.get(&generation);
        let failed = failed.map(|why| format!("; it could not be rebuilt: {why}")).unwrap_or_default();
        let groups: Vec<String> = groups.iter().map(|group| self.group_words(group)).collect();
        Some(match groups.is_empty() {
            true => format!("{problems}{failed}"),
            false => format!("{} ({problems}){failed}", groups.join("; ")),
        })
    }

    fn group_words(&self, group: &LostGroup) -> String {
        let LostGroup { members, losses_max, without_anything, damaged, how } = group;
        let names = |nodes: &BTreeSet<NodeIndex>| -> String {
            let names = nodes.iter().map(|node| self.plan.nodes[node.0 as usize].name());
            names.collect::<Vec<_>>().join(", ")
        };
        match how {
            LostHow::TooManyMembers => {
                let (count, back) = (without_anything.len(), without_anything.len() - losses_max);
                let (besides, unless) = match damaged.is_empty() {
                    true => (String::new(), ""),
                    false => (
                        format!(", and something of it is damaged ({})", names(damaged)),
                        ", unless what is damaged belongs to what stays lost",
                    ),
                };
                format!(
                    "{count} of {members} nodes that protect each other have lost what they kept of it ({}), and {losses_max} may{besides}; it can be restored if {back} of these come back{unless}",
                    names(without_anything)
                )
            }
            LostHow::TooManyPages => {
                let of_each = [("all of it", without_anything), ("a part of it", damaged)];
                let lost_there = of_each.into_iter().filter(|(_, nodes)| !nodes.is_empty());
                let there: Vec<String> =
                    lost_there.map(|(what, nodes)| format!("{what} on {}", names(nodes))).collect();
                format!(
                    "{} of {members} nodes that protect each other have lost something of it ({}), and pages that belong together on more than the {losses_max} that may",
                    without_anything.len() + damaged.len(),
                    there.join(", ")
                )
            }
        }
    }
}
