//! A generation that was not protected in time: the node that the others waited for, and the reason why it was late.
//!
//! A node waiting for a slow peer appears equally slow. So each reports how its own time went ([`Account`]), and the reports are compared.

use std::collections::BTreeMap;

use ckpt_glue::names::{GenerationId, NodeIndex};
use ckpt_glue::protection::{Account, Cause, causes};
use nix::errno::Errno;

use super::super::super::limits::LATE_ANSWER_MAX;
use super::super::super::nodes::wire::{NodeDone, NodeTask, Refusal};
use super::super::super::notice::Notice;
use super::super::Shell;
use super::{Round, What};

/// A generation that was given up because a node was late.
#[derive(Debug)]
pub(super) struct LateNodes {
    pub(super) generation: GenerationId,
    refused: BTreeMap<NodeIndex, Refusal>,
}

fn words(cause: Cause, account: Option<&Account>) -> String {
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

impl Shell<'_> {
    /// A node has not protected it in time. It is given up, and all nodes report how far they were with it.
    pub(super) fn ask_who_is_late(
        &mut self,
        generation: GenerationId,
        refused: BTreeMap<NodeIndex, Refusal>,
    ) {
        let Some(nodes) = &mut self.nodes else { return };
        nodes.late = Some(LateNodes { generation, refused });
        let task = NodeTask::Abandon { generation };
        self.ask_nodes(What::Late(generation), Some(LATE_ANSWER_MAX), |_| task.clone());
        self.end_rounds(std::time::Instant::now());
    }

    pub(super) fn end_late(&mut self, round: &Round) {
        let Some(LateNodes { generation, refused }) = self.nodes.as_mut().and_then(|nodes| nodes.late.take())
        else {
            return;
        };
        let silent = round.refused.keys().copied().collect();
        let account = |(node, done): (&NodeIndex, &NodeDone)| match done {
            NodeDone::GivenUp(Some(account)) => Some((*node, account.clone())),
            _ => None,
        };
        let reports: BTreeMap<NodeIndex, Account> = round.done.iter().filter_map(account).collect();
        let name = |node: &NodeIndex| self.plan.nodes[node.0 as usize].name();
        let causes = causes(&silent, &reports);
        let late = causes
            .iter()
            .map(|(node, cause)| format!("{} ({})", name(node), words(*cause, reports.get(node))));
        let late = late.collect::<Vec<_>>().join(", ");
        let why = refused.values().next().map(|refusal| refusal.why.clone()).unwrap_or_default();
        let late = if late.is_empty() { String::new() } else { format!("; late: {late}") };
        let base = self.nodes.as_ref().and_then(|nodes| nodes.base);
        let stays = base.map_or_else(String::new, |base| format!(", and generation {base} stays protected"));
        let error = format!(
            "{why}{late}. This checkpoint is abandoned; the program continues{stays}. --ckpt-timeout gives them more time"
        );
        self.notify(&Notice::Store { what: &What::Protect(generation).words(), error: &error });
        self.give_up_protection(generation, Errno::ETIMEDOUT as u32);
    }
}
