//! Warnings about failure domains, before a job runs.

use std::collections::BTreeMap;

use launcher::nodes::domains;
use launcher::{Node, OwnDirectories};
use store::protect::{Exposed, exposed, scheme_that_survives};

/// The moment of a warning, which decides its cure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// The job begins: how its nodes protect each other is just being chosen.
    Begins,
    /// It goes on: its groups of nodes stay as they are.
    GoesOn,
}

/// One for each domain whose loss as a whole costs more than parity covers.
pub(crate) fn warnings(own: &OwnDirectories, nodes: &[Node], when: When) -> Vec<String> {
    let all = domains(nodes);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut by_domain: BTreeMap<&str, Vec<Exposed<'_>>> = BTreeMap::new();
    for of_group in exposed(own.groups(), &all) {
        by_domain.entry(of_group.domain).or_default().push(of_group);
    }
    if by_domain.is_empty() {
        return Vec::new();
    }
    let losses = own.groups().iter().map(|group| group.losses()).max().unwrap_or(0);
    let help = match (when, scheme_that_survives(&all, losses)) {
        (When::Begins, Some(scheme)) => format!("--parity {scheme} would survive that"),
        (When::Begins, None) => {
            "nodes spread over more domains, with at most half of them in one, could survive that".to_owned()
        }
        (When::GoesOn, _) => {
            "hosts of other domains in their places (--hosts, --domains) would survive that".to_owned()
        }
    };
    by_domain.into_iter().map(|(domain, found)| warning(domain, &found, own, nodes, &help)).collect()
}

fn warning(domain: &str, found: &[Exposed<'_>], own: &OwnDirectories, nodes: &[Node], help: &str) -> String {
    let group = &own.groups()[found[0].group];
    let names =
        |of: &[u32]| of.iter().map(|node| nodes[*node as usize].name()).collect::<Vec<_>>().join(", ");
    let others = match found.len() - 1 {
        0 => String::new(),
        1 => ", and more than may be of 1 other group".to_owned(),
        more => format!(", and more than may be of {more} other groups"),
    };
    format!(
        "warning: if {domain} fails as a whole, images are lost: {} lie in it, of {} nodes that protect each other ({}), of which {} may be lost{others}; {help}",
        names(&found[0].nodes),
        group.members(),
        names(group.nodes()),
        group.losses(),
    )
}

#[cfg(test)]
mod tests {
    use launcher::NodeRoot;
    use std::net::Ipv4Addr;

    use super::*;
    use launcher::Addresses;
    use launcher::nodes::Budget;
    use launcher::nodes::groups_over;

    /// Nodes of one machine with these domains, or hosts that are called so.
    fn nodes(domains: &str, are_hosts: bool) -> Vec<Node> {
        let here = Node::here(1, &Addresses::one(Ipv4Addr::LOCALHOST.into()));
        let node = |(number, domain): (u32, &str)| match are_hosts {
            true => Node { host: Some(domain.to_owned()), name: Some(domain.to_owned()), ..here.clone() },
            false => {
                Node { domain: Some(domain.to_owned()), name: Some(format!("node {number}")), ..here.clone() }
            }
        };
        (0..).zip(domains.split(',')).map(node).collect()
    }

    fn reported(scheme: &str, nodes: &[Node], when: When) -> Vec<String> {
        let scheme = scheme.parse().expect("a scheme");
        let groups = groups_over(scheme, nodes).expect("enough nodes");
        warnings(
            &OwnDirectories::new(NodeRoot::Path("".into()), scheme, Budget::default(), groups),
            nodes,
            when,
        )
    }

    #[test]
    fn a_domain_that_is_too_much_is_reported_with_what_would_help() {
        let racks = nodes("a,b,a,b,c,c", false);
        assert_eq!(reported("rs:2+1", &racks, When::Begins), [""; 0]);
        assert_eq!(
            reported("rs:5+1", &racks, When::Begins)[0],
            "warning: if domain a fails as a whole, images are lost: node 0, node 2 lie in it, of 6 nodes that protect each other (node 0, node 1, node 2, node 3, node 4, node 5), of which 1 may be lost; --parity rs:2+1 would survive that"
        );
        assert_eq!(reported("rs:5+1", &racks, When::Begins).len(), 3);
        let uneven = reported("partner", &nodes("a,a,a,a,a,b", false), When::Begins);
        assert_eq!(uneven.len(), 1);
        assert!(uneven[0].contains("of 1 other group") && uneven[0].contains("more domains"), "{uneven:?}");
        let gone_on = reported("rs:5+1", &racks, When::GoesOn);
        assert!(
            gone_on[0].ends_with("in their places (--hosts, --domains) would survive that"),
            "{gone_on:?}"
        );
    }

    #[test]
    fn a_host_is_a_domain_where_none_is_named() {
        let hosts = reported("xor", &nodes("p,q,p", true), When::Begins);
        assert_eq!(hosts.len(), 1, "{hosts:?}");
        assert!(
            hosts[0].contains("if host p fails as a whole")
                && hosts[0].contains("p, p lie in it, of 3 nodes"),
            "{hosts:?}"
        );
        assert_eq!(reported("xor", &nodes("p,q,r", true), When::Begins), [""; 0]);
        // This one is a host like others.
        let mut here = nodes("p,q,p,q", true);
        for node in here.iter_mut().filter(|node| node.name() == "p") {
            (node.host, node.name) = (None, Some("localhost".to_owned()));
        }
        assert_eq!(reported("partner", &here, When::Begins), [""; 0]);
        let reported = reported("xor", &here, When::Begins);
        assert!(
            reported.iter().any(|reported| reported.contains("if host localhost fails as a whole")),
            "{reported:?}"
        );
    }
}
