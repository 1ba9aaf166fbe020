//! A generation that was not protected in time: the node that the others waited for, and the reason why it was late.
//!
//! A node waiting for a slow peer appears equally slow. So each reports how its own time went ([`WireAccount`]), and the reports are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ckpt_glue::names::{GenerationId, NodeIndex};
use nix::errno::Errno;

use super::super::super::limits::LATE_ANSWER_MAX;
use super::super::super::nodes::wire::{NodeDone, NodeTask, Refusal, WireAccount};
use super::super::super::notice::Notice;
use super::super::Shell;
use super::{Round, What};

/// A generation that was given up because a node was late.
#[derive(Debug)]
pub(super) struct LateNodes {
    pub(super) generation: GenerationId,
    refused: BTreeMap<NodeIndex, Refusal>,
}

/// Why a node was late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// It does not answer at all.
    Silent,
    /// It had something to do itself for so long.
    Own(Duration),
    /// Something waited there for so long for the limit that its link was given.
    Limited(Duration),
    /// Something was on its way to it or from it for so long.
    Link(Duration),
}

/// The late nodes of a group, and why they were late: in doubt more than one.
fn causes(
    silent: &BTreeSet<NodeIndex>,
    said: &BTreeMap<NodeIndex, WireAccount>,
) -> BTreeMap<NodeIndex, Cause> {
    if !silent.is_empty() {
        return silent.iter().map(|node| (*node, Cause::Silent)).collect();
    }
    let elapsed = said.values().map(|account| account.elapsed_ms).max().unwrap_or(0);
    // A node that others wait for has less than half of that, and a node that waits for a late one hardly anything.
    let most_of = |of: &dyn Fn(&WireAccount) -> u64, cause: fn(Duration) -> Cause| {
        let of_each = || said.iter().map(|(node, account)| (*node, of(account)));
        let most = of_each().map(|(_, time)| time).max().unwrap_or(0);
        let late = of_each().filter(|(_, time)| *time > elapsed / 2 && *time > most / 2);
        late.map(|(node, time)| (node, cause(Duration::from_millis(time)))).collect::<BTreeMap<_, _>>()
    };
    let own = most_of(&|account| account.own_ms, Cause::Own);
    if !own.is_empty() {
        return own;
    }
    let limited = most_of(&|account| account.limited_ms, Cause::Limited);
    if !limited.is_empty() {
        return limited;
    }
    // A way has two ends. The node whose link is slow is an end of all that are slow, any other one of a part of them.
    let mut ways: BTreeMap<NodeIndex, (u64, u64)> = BTreeMap::new();
    for (to, account) in said {
        for (from, time) in &account.from_ms {
            for end in [*to, NodeIndex(*from)] {
                let (longest, sum) = ways.entry(end).or_default();
                (*longest, *sum) = ((*longest).max(*time), *sum + time);
            }
        }
    }
    let most = ways.values().map(|(_, sum)| *sum).max().unwrap_or(0);
    let slow = |(longest, sum): (u64, u64)| longest > elapsed / 2 && 20 * sum > 19 * most;
    let ends = ways.into_iter().filter(|(_, times)| slow(*times));
    ends.map(|(node, (longest, _))| (node, Cause::Link(Duration::from_millis(longest)))).collect()
}

fn words(cause: Cause, account: Option<&WireAccount>) -> String {
    let windows = account.and_then(|account| account.windows);
    let so_far = windows.map_or_else(
        || "none of it had gone to another node".to_owned(),
        |(closed, all)| format!("{closed} of {all} parts were done"),
    );
    let of = account.map_or(0.0, |account| Duration::from_millis(account.elapsed_ms).as_secs_f64());
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
        let task = NodeTask::Abandon { generation: generation.into() };
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
        let said: BTreeMap<NodeIndex, WireAccount> = round.done.iter().filter_map(account).collect();
        let name = |node: &NodeIndex| self.plan.nodes[node.0 as usize].name();
        let causes = causes(&silent, &said);
        let late =
            causes.iter().map(|(node, cause)| format!("{} ({})", name(node), words(*cause, said.get(node))));
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

#[cfg(test)]
mod tests {
    use super::*;

    const ELAPSED_MS: u64 = 10_000;

    fn account(own_ms: u64, limited_ms: u64, from_ms: &[(u32, u64)]) -> WireAccount {
        WireAccount {
            elapsed_ms: ELAPSED_MS,
            own_ms,
            limited_ms,
            from_ms: from_ms.to_vec(),
            windows: Some((1, 9)),
        }
    }

    fn late(accounts: Vec<WireAccount>) -> BTreeMap<NodeIndex, Cause> {
        causes(&BTreeSet::new(), &(0..).map(NodeIndex).zip(accounts).collect())
    }

    fn only(node: u32, cause: Cause) -> BTreeMap<NodeIndex, Cause> {
        BTreeMap::from([(NodeIndex(node), cause)])
    }

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn who_does_not_answer_is_late() {
        let said = BTreeMap::from([(NodeIndex(0), account(9000, 0, &[]))]);
        assert_eq!(causes(&BTreeSet::from([NodeIndex(1)]), &said), only(1, Cause::Silent));
    }

    #[test]
    fn a_slow_disk_is_that_of_who_had_something_to_do() {
        // The others have not received its data, and one has a good deal to write by itself.
        let waits = |own| account(own, 0, &[(2, 9_900)]);
        let found = late(vec![waits(80), waits(4_000), account(9_950, 0, &[(0, 10)]), waits(30)]);
        assert_eq!(found, only(2, Cause::Own(ms(9_950))));
    }

    #[test]
    fn all_are_late_if_the_time_was_too_short_for_any() {
        let found = late(vec![account(9_000, 0, &[]), account(8_000, 0, &[]), account(7_000, 0, &[])]);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn limits_are_named_as_such() {
        let waits = || account(10, 100, &[(1, 900)]);
        let found = late(vec![waits(), account(10, 9_000, &[]), waits()]);
        assert_eq!(found, only(1, Cause::Limited(ms(9_000))));
    }

    #[test]
    fn a_slow_link_is_that_of_the_node_at_which_all_slow_ways_end() {
        // To everybody straight.
        let waits = || account(50, 0, &[(0, 100), (2, 9_000)]);
        let slow = account(50, 0, &[(0, 9_500), (1, 9_500), (3, 9_500)]);
        assert_eq!(late(vec![waits(), waits(), slow, waits()]), only(2, Cause::Link(ms(9_500))));
        // With one of them it had less to exchange.
        let (waits, waits_little) =
            (account(50, 0, &[(1, 20), (2, 9_000)]), account(50, 0, &[(0, 20), (2, 1_000)]));
        let found = late(vec![waits, waits_little, account(50, 0, &[(0, 9_000), (1, 1_000)])]);
        assert_eq!(found, only(2, Cause::Link(ms(9_000))));
        // In a ring: from the left to it, and from it to the right.
        let idle = || account(50, 0, &[(0, 10)]);
        let found = late(vec![idle(), idle(), account(50, 0, &[(1, 9_000)]), account(50, 0, &[(2, 9_000)])]);
        assert_eq!(found, only(2, Cause::Link(ms(9_000))));
    }

    #[test]
    fn nobody_is_named_without_a_reason() {
        assert_eq!(late(vec![account(100, 0, &[(1, 40)]), account(200, 0, &[])]), BTreeMap::new());
        assert_eq!(late(Vec::new()), BTreeMap::new());
    }
}
