//! Which nodes protect each other where some of them fail together.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use parity::Code;

use super::group::{Group, GroupError, Scheme};
use crate::limits::{NODES_MAX, PARITY_GROUP_NODES_MAX};

impl Group {
    /// The groups of a job whose node i lies in the failure domain `domains[i]` (a rack, a power supply). The nodes of a domain are
    /// dealt out over the groups, so that a group has as few of them as can be.
    ///
    /// An uneven rest makes groups larger, never smaller: then there is less parity than requested, and as many nodes
    /// may be lost. No groups: nothing is protected.
    pub fn over(scheme: Scheme, domains: &[&str]) -> Result<Vec<Group>, GroupError> {
        deal(scheme, groups_of(scheme, domains.len())?, domains)
    }

    /// The same for domains that the user has named, and so wants to survive the loss of; `domains[i]` is the domain of
    /// node i, and its smaller failure domain inside of that (its host).
    ///
    /// Exclusive or makes as many groups here as the largest domain has nodes, if at least two nodes are left for each: no two nodes of one domain are in one group then,
    /// and smaller groups take more room for parity.
    pub fn over_named(scheme: Scheme, domains: &[(&str, &str)]) -> Result<Vec<Group>, GroupError> {
        let fewest = groups_of(scheme, domains.len())?;
        let of_largest = sizes(domains.iter().map(|(domain, _)| *domain)).into_values().max().unwrap_or(0);
        let count = match scheme {
            Scheme::Xor if of_largest * 2 <= domains.len() => fewest.max(of_largest),
            _ => fewest,
        };
        deal(scheme, count, domains)
    }
}

/// How many groups so many nodes make, at least.
fn groups_of(scheme: Scheme, nodes: usize) -> Result<usize, GroupError> {
    let needed = scheme.members_min();
    if nodes > NODES_MAX {
        return Err(GroupError::TooManyNodes { nodes });
    }
    if nodes < needed {
        return Err(GroupError::TooFewNodes { scheme, needed, nodes });
    }
    Ok(match scheme {
        Scheme::None => 0,
        Scheme::Partner | Scheme::Rs { .. } => nodes / needed,
        Scheme::Xor => nodes.div_ceil(PARITY_GROUP_NODES_MAX),
    })
}

/// Nodes that fail together come one after the other, and the next one goes to the next group.
fn deal<T: Ord + Copy>(scheme: Scheme, count: usize, domains: &[T]) -> Result<Vec<Group>, GroupError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut dealt: Vec<(T, u32)> = domains.iter().copied().zip(0..).collect();
    dealt.sort_unstable();
    let mut groups = vec![Vec::new(); count];
    for (place, (_, node)) in dealt.into_iter().enumerate() {
        groups[place % count].push(node);
    }
    groups.iter_mut().for_each(|group| group.sort_unstable());
    Ok(groups.into_iter().map(|group| Group::new(group, scheme.losses())).collect::<Result<_, _>>()?)
}

fn sizes<'a>(domains: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut sizes = BTreeMap::new();
    domains.for_each(|domain| *sizes.entry(domain).or_default() += 1);
    sizes
}

/// A domain of which a group has more nodes than it may lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The group, by its place among all.
    pub group: usize,
    /// Its nodes that lie in the domain.
    pub nodes: Vec<u32>,
}

/// The groups that lose more nodes with one whole domain than their parity covers. Node i lies in `domains[i]`. By domain.
#[must_use]
pub fn exposed<'a>(groups: &[Group], domains: &[&'a str]) -> Vec<Exposed<'a>> {
    let mut all = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let mut members: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for node in group.nodes() {
            if let Some(domain) = domains.get(*node as usize) {
                members.entry(domain).or_default().push(*node);
            }
        }
        let beyond = members.into_iter().filter(|(_, nodes)| nodes.len() > group.losses());
        all.extend(beyond.map(|(domain, nodes)| Exposed { domain, group: number, nodes }));
    }
    all.sort_by_key(|exposed| (exposed.domain, exposed.group));
    all
}

/// With which Reed-Solomon scheme nodes that lie in these domains would survive the loss of any one of them, and a group that of `losses` of its nodes wherever
/// they lie, with as little room for parity as can be; `None`: with none that takes no more room than copies.
#[must_use]
pub fn scheme_that_survives(domains: &[&str], losses: usize) -> Option<Scheme> {
    let largest = sizes(domains.iter().copied()).into_values().max()?;
    let of_groups = |count: usize| {
        let parity = largest.div_ceil(count).max(losses);
        let data = (domains.len() / count).checked_sub(parity)?;
        (data >= parity && Code::new(data, parity).is_ok()).then_some((data, parity, count))
    };
    let mut found: Vec<_> = (1..=domains.len()).filter_map(of_groups).collect();
    // M/K is the room that parity takes; of those that take as much, smaller groups are less work.
    found.sort_by(|(k, m, count), (other_k, other_m, other_count)| {
        (m * other_k, Reverse(count)).cmp(&(other_m * k, Reverse(other_count)))
    });
    found.into_iter().map(|(data, parity, _)| Scheme::Rs { data, parity }).find(|scheme| {
        let with_hosts: Vec<(&str, &str)> = domains.iter().map(|domain| (*domain, "")).collect();
        Group::over_named(*scheme, &with_hosts).is_ok_and(|groups| exposed(&groups, domains).is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(text: &str) -> Scheme {
        text.parse().expect(text)
    }

    fn named(text: &str, domains: &str) -> (Vec<Vec<u32>>, Vec<(char, usize)>) {
        let names: Vec<String> = domains.chars().map(String::from).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let pairs: Vec<(&str, &str)> = names.iter().map(|name| (*name, "")).collect();
        let groups = Group::over_named(scheme(text), &pairs).expect("enough nodes");
        let first = |name: &str| name.chars().next().expect("a letter");
        let exposed = exposed(&groups, &names).iter().map(|of| (first(of.domain), of.group)).collect();
        (groups.iter().map(|group| group.nodes().to_vec()).collect(), exposed)
    }

    #[test]
    fn nodes_of_one_domain_are_dealt_out_over_the_groups() {
        // Three racks of four nodes, one after the other.
        let domains: Vec<&str> = (0..12).map(|node| ["a", "b", "c"][node / 4]).collect();
        let groups = Group::over(Scheme::Rs { data: 2, parity: 1 }, &domains).expect("enough nodes");
        assert_eq!(groups.len(), 4);
        for group in &groups {
            assert_eq!((group.members(), group.losses()), (3, 1));
        }
        assert_eq!(exposed(&groups, &domains), []);
        let mut all: Vec<u32> = groups.iter().flat_map(|group| group.nodes().to_vec()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..12).collect::<Vec<_>>());
        let of_one_rack = exposed(&groups, &["a"; 12]);
        assert_eq!(of_one_rack.len(), 4);
        assert_eq!((of_one_rack[0].domain, &of_one_rack[0].nodes[..]), ("a", groups[0].nodes()));
    }

    #[test]
    fn domains_survive_however_their_nodes_are_numbered() {
        for domains in ["ababcc", "aabbcc", "abcabc", "ccbbaa", "abccba"] {
            for text in ["rs:2+1", "xor", "partner", "rs:4+2"] {
                let (groups, exposed) = named(text, domains);
                assert_eq!(exposed, [], "{text} {domains} {groups:?}");
            }
        }
        assert_eq!(named("rs:2+1", "ababcc").0, [[0, 1, 4], [2, 3, 5]]);
        // As they come, two of a would be in one group.
        let by_number = Group::over(scheme("rs:2+1"), &["0", "1", "2", "3", "4", "5"]).expect("enough");
        let of_a = exposed(&by_number, &["a", "b", "a", "b", "c", "c"]).swap_remove(0);
        assert_eq!((of_a.domain, of_a.group, of_a.nodes), ("a", 0, vec![0, 2]));
    }

    #[test]
    fn exclusive_or_makes_smaller_groups_where_domains_survive_by_it_and_only_there() {
        let sizes =
            |domains: &str| named("xor", domains).0.into_iter().map(|group| group.len()).collect::<Vec<_>>();
        assert_eq!(sizes("abcdef"), [6]);
        assert_eq!(sizes("aabbcc"), [3, 3]);
        assert_eq!(sizes("aaabbb"), [2, 2, 2]);
        // One domain has more than half: it cannot be survived, and the others are as well off in one group.
        assert_eq!(sizes("aaaabc"), [6]);
        assert_eq!(named("xor", "aaaabc").1, [('a', 0)]);
        assert_eq!(sizes(&"abcdefghijklmnopq".repeat(2)), [12, 11, 11]);
    }

    #[test]
    fn hosts_are_dealt_out_within_their_domain() {
        let hosts = ["p", "q", "p", "q"].map(|host| ("rack", host));
        let groups = Group::over_named(scheme("partner"), &hosts).expect("enough nodes");
        assert!(groups.iter().all(|group| group.nodes() != [0, 2] && group.nodes() != [1, 3]), "{groups:?}");
    }

    #[test]
    fn what_would_survive_is_named_with_the_least_room() {
        for (domains, expected) in [
            ("abab", Some("rs:1+1")),
            ("ababcc", Some("rs:2+1")),
            ("aabbccd", Some("rs:5+2")),
            ("aaab", None),
            ("aaaa", None),
            ("aabc", Some("rs:1+1")),
            ("aabcdefg", Some("rs:3+1")),
            ("abcdef", Some("rs:5+1")),
        ] {
            let names: Vec<String> = domains.chars().map(String::from).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = scheme_that_survives(&names, 1).map(|scheme| scheme.to_string());
            assert_eq!(found.as_deref(), expected, "{domains}");
        }
        assert_eq!(scheme_that_survives(&[], 1), None);
        // Not one that survives fewer single losses than requested.
        let two = ["a", "a", "a", "b", "b", "b"];
        assert_eq!(scheme_that_survives(&two, 1).expect("one").to_string(), "rs:1+1");
        assert_eq!(scheme_that_survives(&two, 2).expect("one").to_string(), "rs:3+3");
    }

    #[test]
    fn what_does_not_come_out_even_makes_larger_groups() {
        for (text, nodes, sizes) in [
            ("partner", 5, vec![3, 2]),
            ("xor", 2, vec![2]),
            ("xor", 16, vec![16]),
            ("xor", 17, vec![9, 8]),
            ("rs:4+2", 6, vec![6]),
            ("rs:4+2", 11, vec![11]),
            ("rs:4+2", 13, vec![7, 6]),
            ("none", 3, vec![]),
        ] {
            let groups = Group::over(scheme(text), &vec!["here"; nodes]).expect("enough nodes");
            assert_eq!(groups.iter().map(Group::members).collect::<Vec<_>>(), sizes, "{text} {nodes}");
        }
        let error = Group::over(scheme("rs:4+2"), &["here"; 5]).expect_err("too few");
        assert_eq!(
            error.to_string(),
            "rs:4+2 needs groups of at least 6 nodes, the job has 5; use more nodes, or another scheme"
        );
    }
}
