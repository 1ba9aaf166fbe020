//! Nodes' refusals, losses and delays in words.

use std::collections::{BTreeMap, BTreeSet};

use ckpt_glue::names::{GenerationId, NodeIndex};
use ckpt_glue::protection::nodes::{Question, Refusal, Refused, Report};
use ckpt_glue::protection::{Account, Cause, GenerationVerdict, LostGroup, LostHow};

use super::super::super::nodes::wire::Rebuilt;
use super::super::keepers::Keepers;
use crate::text;

/// The subject of a question.
pub(super) fn question(question: Question) -> String {
    match question {
        Question::Survey => "what the nodes have".to_owned(),
        Question::Seat { .. } => "who has the job, on its nodes".to_owned(),
        Question::Decide(life) => format!("the decision about life {life}, on its nodes"),
        Question::Commit(generation) => format!("the commit record of generation {generation}, on its nodes"),
        Question::Open(_) | Question::Meet(_) => {
            "the nodes' protectors, without which nothing is protected".to_owned()
        }
        Question::Protect(generation, _) | Question::Late(generation) => {
            format!("protecting generation {generation}")
        }
        Question::Repair(generation) | Question::Rebuild(generation) | Question::Look(generation) => {
            format!("rebuilding generation {generation}")
        }
        Question::Fetch(generation) => format!("bringing generation {generation} from a copy"),
        Question::Collect => "removing old generations, on the nodes".to_owned(),
    }
}

/// Which nodes have refused, and why.
pub(super) fn refusals(keepers: &Keepers, refused: &Refused) -> String {
    let one = |(node, refusal): (&NodeIndex, &Refusal)| format!("{}: {}", keepers.name(*node), refusal.why);
    refused.iter().map(one).collect::<Vec<_>>().join("; ")
}

pub(super) fn rebuilt(rebuilt: Rebuilt) -> String {
    let Rebuilt { files, pages, parity_pages, records, received_bytes } = rebuilt;
    format!(
        "{files} files, {pages} damaged pages, {parity_pages} pages of parity and {records} records were rebuilt from {}",
        text::bytes(received_bytes)
    )
}

/// Why images of nodes cannot be restored, in brackets; nothing if no node knows a reason.
pub(super) fn problems(keepers: &Keepers, problems: &BTreeMap<NodeIndex, String>) -> String {
    let of = |(node, problem): (&NodeIndex, &String)| format!("{}: {problem}", keepers.name(*node));
    let all: Vec<String> = problems.iter().map(of).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
}

/// Why a generation cannot be restored. `None`: it can be, or could be if its nodes were rebuilt.
pub(super) fn lost(keepers: &Keepers, report: &Report) -> Option<String> {
    let GenerationVerdict::Lost { without_images, groups } = &report.verdict else { return None };
    let problem = |node: &NodeIndex| {
        let problem = report.problems.get(node).map_or("its directory cannot be read", String::as_str);
        format!("{}: {problem}", keepers.name(*node))
    };
    let problems = without_images.iter().map(problem).collect::<Vec<_>>().join("; ");
    let failed = match report.failure.is_empty() {
        true => String::new(),
        false => format!("; it could not be rebuilt: {}", refusals(keepers, &report.failure)),
    };
    let groups: Vec<String> = groups.iter().map(|group| lost_group(keepers, group)).collect();
    Some(match groups.is_empty() {
        true => format!("{problems}{failed}"),
        false => format!("{} ({problems}){failed}", groups.join("; ")),
    })
}

fn lost_group(keepers: &Keepers, group: &LostGroup) -> String {
    let LostGroup { members, losses_max, without_anything, damaged, how } = group;
    let names = |nodes: &BTreeSet<NodeIndex>| -> String {
        nodes.iter().map(|node| keepers.name(*node)).collect::<Vec<_>>().join(", ")
    };
    match how {
        LostHow::TooManyMembers => {
            let (count, back) = (without_anything.len(), without_anything.len() - losses_max);
            let (besides, unless) = match damaged.is_empty() {
                true => (String::new(), ""),
                false => (
                    format!(", and something of it is damaged ({})", names(damaged)),
                    ", unless the damaged pages belong to those of a node that stays lost",
                ),
            };
            format!(
                "{count} of {members} nodes that protect each other have lost all their data of it ({}), and {losses_max} may{besides}; it can be restored if {back} of these come back{unless}",
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

/// Which node the others waited for, and why it was late.
pub(super) fn late(
    keepers: &Keepers,
    refused: &Refused,
    causes: &BTreeMap<NodeIndex, Cause>,
    accounts: &BTreeMap<NodeIndex, Account>,
    base: Option<GenerationId>,
) -> String {
    let late = causes
        .iter()
        .map(|(node, cause)| format!("{} ({})", keepers.name(*node), late_cause(*cause, accounts.get(node))));
    let late = late.collect::<Vec<_>>().join(", ");
    let why = refused.values().next().map(|refusal| refusal.why.clone()).unwrap_or_default();
    let late = if late.is_empty() { String::new() } else { format!("; late: {late}") };
    let stays = base.map_or_else(String::new, |base| format!(", and generation {base} stays protected"));
    format!(
        "{why}{late}. This checkpoint is abandoned; the program continues{stays}. --ckpt-timeout gives them more time"
    )
}

fn late_cause(cause: Cause, account: Option<&Account>) -> String {
    let windows = account.and_then(|account| account.windows);
    let so_far = windows.map_or_else(
        || "none of it had gone to another node".to_owned(),
        |(closed, all)| format!("{closed} of {all} parts were done"),
    );
    let of = account.map_or(0.0, |account| account.elapsed.as_secs_f64());
    match cause {
        Cause::Silent => "it does not answer".to_owned(),
        Cause::Own(time) => format!(
            "its disk or its processors were busy for {:.1} of {of:.1} s, and {so_far}",
            time.as_secs_f64()
        ),
        Cause::Limited(time) => format!(
            "its data waited for the limit of its link (--encode-budget) for {:.1} of {of:.1} s, and {so_far}",
            time.as_secs_f64()
        ),
        Cause::Link(time) => {
            format!("its data was on its link for {:.1} of {of:.1} s, and {so_far}", time.as_secs_f64())
        }
    }
}
