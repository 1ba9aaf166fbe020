//! The places of nodes that have images: which host gets which node in a restart.

use launcher::Node;
use store::Manifest;

use super::hosts::HostArguments;
use super::print_message;
use crate::error::CliError;

/// Hosts of a restart.
#[derive(Debug)]
pub(crate) struct Places {
    /// In the order of the nodes' numbers; a host may have several nodes.
    pub(crate) nodes: Vec<Node>,
    /// Hosts that are left over.
    pub(crate) spares: Vec<Node>,
}

/// Puts hosts into the places of the nodes whose images a generation consists of. A host keeps its nodes; if no host is missing,
/// one of several moves to a host without a node. A node whose host is missing gets one without a node, or the one with the fewest ranks.
///
/// `hosts`: with the ranks that the list gives them.
pub(crate) fn places(manifest: &Manifest, hosts: &[Node], said: &HostArguments) -> Result<Places, CliError> {
    let names = manifest.nodes.join(", ");
    let problem = |problem: String| Err(CliError::Places { problem, names: names.clone() });
    // Nodes of this machine stand for hosts, of which each has one.
    if !said.names_hosts() && hosts.len() != manifest.nodes.len() {
        return problem(format!("{} are named", hosts.len()));
    }
    let shared = said.has_shares();
    let ranks = ranks(manifest);
    let mut loads: Vec<Load<'_>> =
        hosts.iter().map(|host| Load { host, nodes: 0, ranks: 0, shared }).collect();
    let places = assign(&mut loads, &manifest.nodes, &ranks);
    if let Some(Load { host, ranks, .. }) = loads.iter().find(|load| shared && load.ranks != load.host.ranks)
    {
        return problem(format!(
            "{} is given {} ranks, and has the images of {ranks}",
            host.name(),
            host.ranks
        ));
    }
    let here = loads.iter().find(|load| load.nodes == 0 && load.host.host.is_none());
    if let Some(Load { host, .. }) = here {
        return problem(format!("{} has no node, and cannot be a spare host", host.name()));
    }
    let at = |(place, ranks): (&usize, &u32)| Node { ranks: *ranks, ..hosts[*place].clone() };
    let has_node = |host: &Node| loads.iter().any(|load| load.nodes > 0 && load.host.name() == host.name());
    let spare = |load: &Load<'_>| Node { ranks: 0, domain: None, ..load.host.clone() };
    let places = Places {
        nodes: places.iter().zip(&ranks).map(at).collect(),
        spares: loads.iter().filter(|load| load.nodes == 0 && !has_node(load.host)).map(spare).collect(),
    };
    if said.names_hosts() {
        places.announce(&manifest.nodes);
    }
    Ok(places)
}

impl Places {
    fn announce(&self, before: &[String]) {
        for (node, before) in self.nodes.iter().zip(before).filter(|(node, before)| node.name() != **before) {
            print_message(format_args!("{} takes the place of {before}", node.name()));
        }
        for spare in &self.spares {
            print_message(format_args!(
                "{} is a spare host: the job has {} nodes, and the ranks of each stay together",
                spare.name(),
                self.nodes.len()
            ));
        }
    }
}

/// Ranks of each node, by its images.
fn ranks(manifest: &Manifest) -> Vec<u32> {
    let mut ranks = vec![0; manifest.nodes.len()];
    for image in &manifest.images {
        if let Some(ranks) = ranks.get_mut(image.node as usize) {
            *ranks += 1;
        }
    }
    ranks
}

/// A host, and what it has been given.
struct Load<'a> {
    host: &'a Node,
    nodes: usize,
    ranks: u32,
    /// The list gives each host its ranks.
    shared: bool,
}

impl Load<'_> {
    /// Ranks that it has beyond those that it is to have.
    fn excess(&self) -> i64 {
        i64::from(self.ranks) - if self.shared { i64::from(self.host.ranks) } else { 0 }
    }

    fn has_room(&self, ranks: u32) -> bool {
        !self.shared || self.excess() + i64::from(ranks) <= 0
    }
}

/// The host of each node, by its index.
fn assign(loads: &mut [Load<'_>], names: &[String], ranks: &[u32]) -> Vec<usize> {
    let is_named = |load: &Load<'_>, name: &str| load.host.name() == name;
    let mut places: Vec<Option<usize>> = vec![None; names.len()];
    // A job file names a host once for each of its nodes, with the ranks of each.
    for ((place, name), ranks) in places.iter_mut().zip(names).zip(ranks) {
        let is_own = |load: &Load<'_>| {
            load.nodes == 0 && load.shared && load.host.ranks == *ranks && is_named(load, name)
        };
        if let Some(host) = loads.iter().position(is_own) {
            *place = Some(host);
            (loads[host].nodes, loads[host].ranks) = (1, *ranks);
        }
    }
    // A node that leaves a host where its images are counts as lost until they are rebuilt: one may, if no other is lost.
    let are_named = names.iter().all(|name| loads.iter().any(|load| is_named(load, name)));
    let mut may_leave = are_named;
    for may_move in [false, true] {
        for ((place, name), ranks) in places.iter_mut().zip(names).zip(ranks) {
            if place.is_some() {
                continue;
            }
            let unused = |load: &Load<'_>| load.nodes == 0 && (may_move || is_named(load, name));
            let again = |load: &Load<'_>| may_move && is_named(load, name) && load.has_room(*ranks);
            let stays = loads.iter().position(again).filter(|_| !may_leave);
            let found = stays.or_else(|| loads.iter().position(unused));
            let found = found.or_else(|| loads.iter().position(again));
            may_leave &= !may_move;
            let emptiest = || (0..loads.len()).filter(|_| may_move).min_by_key(|host| loads[*host].excess());
            if let Some(host) = found.or_else(emptiest) {
                *place = Some(host);
                loads[host].nodes += 1;
                loads[host].ranks += ranks;
            }
        }
    }
    places.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use launcher::Addresses;
    use store::image::ImageSummary;
    use store::record::ManifestImage;
    use store::{GenerationId, ImageDigest};
    use transport::{Epoch, JobId, Life, Rank};

    use super::*;

    /// Four ranks, of which the first node has two.
    fn manifest(nodes: &[&str]) -> Manifest {
        let image = |(rank, node)| ManifestImage {
            rank: Rank(rank),
            node,
            file: String::new(),
            summary: ImageSummary { digest: ImageDigest(0), bytes: 0, kinds: Vec::new() },
        };
        Manifest {
            job: JobId(1),
            generation: GenerationId { life: Life { counter: 1, nonce: 1 }, epoch: Epoch(1) },
            taken_unix_ms: 0,
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            images: [(0, 0), (1, 0), (2, 1), (3, 2)].map(image).to_vec(),
        }
    }

    /// Nodes as HOST:RANKS, and spare hosts behind a |.
    fn placed_at(nodes: &[&str], hosts: &str) -> Result<String, String> {
        let said = HostArguments::read(Some(hosts), None, None, None);
        let hosts = said.nodes_of_images(4, &Addresses::one(Ipv4Addr::LOCALHOST.into())).expect("hosts");
        let placed = places(&manifest(nodes), &hosts, &said).map_err(|error| error.to_string())?;
        let nodes = placed.nodes.iter().map(|node| format!("{}:{}", node.name(), node.ranks));
        let spares = placed.spares.iter().map(|node| format!("| {}:{}", node.name(), node.ranks));
        Ok(nodes.chain(spares).collect::<Vec<_>>().join(" "))
    }

    fn placed(hosts: &str) -> Result<String, String> {
        placed_at(&["a", "b", "c"], hosts)
    }

    fn ok(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    #[test]
    fn a_spare_takes_the_place_of_the_lost_host() {
        assert_eq!(placed("a@10.0.0.1,b@10.0.0.2,c@10.0.0.3"), ok("a:2 b:1 c:1"));
        assert_eq!(placed("c@10.0.0.3,a@10.0.0.1,b@10.0.0.2"), ok("a:2 b:1 c:1"));
        assert_eq!(placed("c@10.0.0.3,b@10.0.0.2,e@10.0.0.4"), ok("e:2 b:1 c:1"));
        assert_eq!(placed("e@10.0.0.4,a@10.0.0.1,c@10.0.0.3"), ok("a:2 e:1 c:1"));
    }

    #[test]
    fn fewer_hosts_have_several_nodes() {
        // The one with fewer ranks.
        assert_eq!(placed("a@10.0.0.1,b@10.0.0.2"), ok("a:2 b:1 b:1"));
        assert_eq!(placed("b@10.0.0.2,c@10.0.0.3"), ok("b:2 b:1 c:1"));
        assert_eq!(placed("c@10.0.0.3"), ok("c:2 c:1 c:1"));
        // By their shares.
        assert_eq!(placed("a:3@10.0.0.1,b:1@10.0.0.2"), ok("a:2 b:1 a:1"));
        assert_eq!(placed("a:2@10.0.0.1,b:2@10.0.0.2"), ok("a:2 b:1 b:1"));
        // Where its images are, although another host has fewer ranks.
        assert_eq!(placed_at(&["a", "b", "a"], "a@10.0.0.1,b@10.0.0.2"), ok("a:2 b:1 a:1"));
        assert_eq!(placed_at(&["a", "b", "a"], "a:2@10.0.0.1,b:2@10.0.0.2"), ok("a:2 b:1 b:1"));
        assert_eq!(placed_at(&["a", "b", "a"], "a@10.0.0.1,b@10.0.0.2,c@10.0.0.3"), ok("a:2 b:1 c:1"));
        // Images of one node may be missing, not of two.
        assert_eq!(placed_at(&["b", "c", "c"], "a@10.0.0.1,c@10.0.0.2,d@10.0.0.3"), ok("a:2 c:1 c:1 | d:0"));
        assert_eq!(placed_at(&["a", "a", "a"], "a@10.0.0.1,b@10.0.0.2,c@10.0.0.3"), ok("a:2 b:1 a:1 | c:0"));
        // As a job file has them.
        let file = "b:2@10.0.0.2,b:1@10.0.0.2,c:1@10.0.0.3";
        assert_eq!(placed(file), ok("b:2 b:1 c:1"));
        assert_eq!(placed_at(&["b", "b", "c"], file), ok("b:2 b:1 c:1"));
    }

    #[test]
    fn hosts_beyond_the_nodes_are_spare_hosts() {
        assert_eq!(placed("e@10.0.0.4,a@10.0.0.1,b@10.0.0.2,c@10.0.0.3"), ok("a:2 b:1 c:1 | e:0"));
        assert_eq!(placed("a@10.0.0.1,a@10.0.0.1,b@10.0.0.2,c@10.0.0.3"), ok("a:2 b:1 c:1"));
        let five = "a@10.0.0.1,b@10.0.0.2,e@10.0.0.4,f@10.0.0.5,g@10.0.0.6";
        assert_eq!(placed(five), ok("a:2 b:1 e:1 | f:0 | g:0"));
    }

    #[test]
    fn hosts_that_do_not_fit_are_refused() {
        for (hosts, words) in [
            ("a:1@10.0.0.1,b:2@10.0.0.2,c:1@10.0.0.3", "a is given 1 ranks, and has the images of 2"),
            ("a:1@10.0.0.1,b:3@10.0.0.2", "a is given 1 ranks, and has the images of 2"),
            ("a:1@10.0.0.1,b:1@10.0.0.2,c:1@10.0.0.3,e:1@10.0.0.4", "and has the images of"),
            ("a@10.0.0.1,b@10.0.0.2,c@10.0.0.3,localhost@10.0.0.4", "localhost has no node"),
        ] {
            let error = placed(hosts).expect_err(hosts);
            assert!(error.contains(words) && error.contains("a, b, c"), "{error}");
        }
    }
}
