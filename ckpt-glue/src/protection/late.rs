//! Which node of a group made the protection of a generation late, and why: from the times of all members (R27).
//!
//! A node waiting for a slow peer appears equally slow, so the reports are compared.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::NodeIndex;

/// The progress of an encoding on one member when it was abandoned, and the times for which the member waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Since the order.
    pub elapsed: Duration,
    /// Time in which this member itself had something to read, compute or write.
    pub own: Duration,
    /// Time in which something waited here for the limit of its link to other members.
    pub limited: Duration,
    /// Node, and the time in which something of it was on its way to this one, or it had not reported its content.
    pub from: Vec<(NodeIndex, Duration)>,
    /// Windows of the encoding that are closed, and all of them; `None`: the members' contents were not all known yet.
    pub windows: Option<(u64, u64)>,
}

/// Why a node was late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It does not answer.
    Silent,
    /// It had something to read, compute or write by itself for so long.
    Own(Duration),
    /// Something waited there for so long for the limit that its link was given.
    Limited(Duration),
    /// Something was on its way to it or from it for so long.
    Link(Duration),
}

/// The late nodes of a group, and why they were late: in doubt more than one. `silent`: nodes without a report.
#[must_use]
pub fn causes(
    silent: &BTreeSet<NodeIndex>,
    reports: &BTreeMap<NodeIndex, Account>,
) -> BTreeMap<NodeIndex, Cause> {
    if !silent.is_empty() {
        return silent.iter().map(|node| (*node, Cause::Silent)).collect();
    }
    let elapsed = reports.values().map(|account| account.elapsed).max().unwrap_or_default();
    // A node that others wait for has less than half of that, and a node that waits for a late one hardly anything.
    let most_of = |of: &dyn Fn(&Account) -> Duration, cause: fn(Duration) -> Cause| {
        let of_each = || reports.iter().map(|(node, account)| (*node, of(account)));
        let most = of_each().map(|(_, time)| time).max().unwrap_or_default();
        let late = of_each().filter(|(_, time)| *time > elapsed / 2 && *time > most / 2);
        late.map(|(node, time)| (node, cause(time))).collect::<BTreeMap<_, _>>()
    };
    let own = most_of(&|account| account.own, Cause::Own);
    if !own.is_empty() {
        return own;
    }
    let limited = most_of(&|account| account.limited, Cause::Limited);
    if !limited.is_empty() {
        return limited;
    }
    // A way has two ends. The node whose link is slow is an end of all that are slow, any other one of a part of them.
    let mut ways: BTreeMap<NodeIndex, (Duration, Duration)> = BTreeMap::new();
    for (to, account) in reports {
        for (from, time) in &account.from {
            for end in [*to, *from] {
                let (longest, sum) = ways.entry(end).or_default();
                (*longest, *sum) = ((*longest).max(*time), *sum + *time);
            }
        }
    }
    let most = ways.values().map(|(_, sum)| *sum).max().unwrap_or_default();
    let is_slow = |(longest, sum): (Duration, Duration)| longest > elapsed / 2 && 20 * sum > 19 * most;
    let ends = ways.into_iter().filter(|(_, times)| is_slow(*times));
    ends.map(|(node, (longest, _))| (node, Cause::Link(longest))).collect()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn account(own_ms: u64, limited_ms: u64, from_ms: &[(u32, u64)]) -> Account {
        Account {
            elapsed: ms(10_000),
            own: ms(own_ms),
            limited: ms(limited_ms),
            from: from_ms.iter().map(|(node, time)| (NodeIndex(*node), ms(*time))).collect(),
            windows: Some((1, 9)),
        }
    }

    fn late(accounts: Vec<Account>) -> BTreeMap<NodeIndex, Cause> {
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
        let reports = BTreeMap::from([(NodeIndex(0), account(9000, 0, &[]))]);
        assert_eq!(causes(&BTreeSet::from([NodeIndex(1)]), &reports), only(1, Cause::Silent));
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
