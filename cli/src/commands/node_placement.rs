//! Node placement: which host gets which node, in a restart of a job whose nodes have images.

use launcher::{HERE, Node};
use store::Manifest;

use super::hosts::HostArguments;
use super::print_message;
use crate::error::CliError;

/// Hosts of a restart.
#[derive(Debug)]
pub(crate) struct Placement {
    /// In the order of the nodes' numbers; a host may have several nodes.
    pub(crate) nodes: Vec<Node>,
    /// Hosts that are left over.
    pub(crate) spares: Vec<Node>,
}

/// Assigns hosts to the nodes whose images a generation consists of. A host keeps its nodes; if no host is missing, one of several moves
/// to a host without a node. A node whose host is missing gets one without a node, or the one with the fewest ranks.
///
/// `hosts`: those of `arguments`, each with its ranks if the list gives them.
pub(crate) fn place_nodes(
    manifest: &Manifest,
    hosts: &[Node],
    arguments: &HostArguments,
) -> Result<Placement, CliError> {
    let mut placement = find(manifest, hosts, arguments)?;
    if arguments.names_hosts() {
        placement.announce(&manifest.nodes);
    }
    if placement.stays_here() {
        placement.spares.clear();
    }
    Ok(placement)
}

/// Whether the nodes fit these hosts.
pub(crate) fn fits(manifest: &Manifest, hosts: &[Node], arguments: &HostArguments) -> bool {
    find(manifest, hosts, arguments).is_ok()
}

fn find(manifest: &Manifest, hosts: &[Node], arguments: &HostArguments) -> Result<Placement, CliError> {
    let names = manifest.nodes.join(", ");
    let problem = |problem: String| Err(CliError::Placement { problem, names: names.clone() });
    // Nodes of this machine stand for hosts, of which each has one.
    if !arguments.names_hosts() && hosts.len() != manifest.nodes.len() {
        return problem(format!("{} are named", hosts.len()));
    }
    let ranks = count_ranks(manifest);
    let mut loads: Vec<HostLoad<'_>> =
        hosts.iter().map(|host| HostLoad::new(host, arguments.has_shares())).collect();
    let assigned = assign(&mut loads, &manifest.nodes, &ranks);
    let unfit = loads.iter().find(|load| load.share.is_some() && load.excess() != 0);
    if let Some(HostLoad { host, ranks, .. }) = unfit {
        return problem(format!(
            "--hosts gives {} {} ranks, and its nodes have the images of {ranks}",
            host.name(),
            host.ranks
        ));
    }
    let is_free = |load: &&HostLoad<'_>| {
        !loads.iter().any(|other| other.has_node && other.host.name() == load.host.name())
    };
    let at = |(host, ranks): (&usize, &u32)| Node { ranks: *ranks, ..hosts[*host].clone() };
    let spare = |load: &HostLoad<'_>| Node { ranks: 0, domain: None, ..load.host.clone() };
    let placement = Placement {
        nodes: assigned.iter().zip(&ranks).map(at).collect(),
        spares: loads.iter().filter(is_free).map(spare).collect(),
    };
    if placement.spares.iter().any(|spare| spare.host.is_none()) {
        return problem(format!(
            "{HERE} has no node, and cannot be a spare host, because it ends with the launcher; remove it from --hosts"
        ));
    }
    Ok(placement)
}

impl Placement {
    /// All nodes are on this host, which ends with the launcher: no other one can take its place.
    fn stays_here(&self) -> bool {
        self.nodes.iter().all(|node| node.host.is_none())
    }

    fn announce(&self, before: &[String]) {
        for (node, before) in self.nodes.iter().zip(before).filter(|(node, before)| node.name() != **before) {
            print_message(format_args!("{} takes the place of {before}", node.name()));
        }
        for spare in &self.spares {
            let (host, nodes) = (spare.name(), self.nodes.len());
            match self.stays_here() {
                false => print_message(format_args!(
                    "{host} is a spare host: the job has {nodes} nodes; with the ranks of each host (HOST:RANKS), --hosts spreads them over all hosts"
                )),
                true => print_message(format_args!(
                    "{host} is not used: all nodes of the job stay on {HERE}; with the ranks of each host (HOST:RANKS), --hosts spreads them over all hosts"
                )),
            }
        }
    }
}

/// Ranks of each node, by its images.
pub(crate) fn count_ranks(manifest: &Manifest) -> Vec<u32> {
    let mut ranks = vec![0; manifest.nodes.len()];
    for image in &manifest.images {
        if let Some(ranks) = ranks.get_mut(image.node as usize) {
            *ranks += 1;
        }
    }
    ranks
}

/// A host with the nodes and ranks assigned to it.
struct HostLoad<'a> {
    host: &'a Node,
    /// Ranks that the list gives it, if it gives any.
    share: Option<u32>,
    has_node: bool,
    ranks: u32,
}

impl HostLoad<'_> {
    fn new(host: &Node, has_share: bool) -> HostLoad<'_> {
        HostLoad { host, share: has_share.then_some(host.ranks), has_node: false, ranks: 0 }
    }

    fn is_named(&self, name: &str) -> bool {
        self.host.name() == name
    }

    /// Assigned ranks beyond those of the list; negative: there is room.
    fn excess(&self) -> i64 {
        i64::from(self.ranks) - i64::from(self.share.unwrap_or(0))
    }

    fn has_room(&self, ranks: u32) -> bool {
        self.share.is_none() || self.excess() + i64::from(ranks) <= 0
    }
}

/// The host of each node, by its index.
fn assign(loads: &mut [HostLoad<'_>], names: &[String], ranks: &[u32]) -> Vec<usize> {
    let nodes: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(ranks.iter().copied()).collect();
    let mut hosts = vec![None; nodes.len()];
    // A node that leaves a host where its images are counts as lost until they are rebuilt: one may, if no other is lost.
    let mut may_leave = names.iter().all(|name| loads.iter().any(|load| load.is_named(name)));
    // A job file names a host once for each of its nodes, with the ranks of each.
    assign_rest(&mut hosts, loads, &nodes, |loads, name, ranks| {
        loads.iter().position(|load| !load.has_node && load.is_named(name) && load.share == Some(ranks))
    });
    assign_rest(&mut hosts, loads, &nodes, |loads, name, _| {
        loads.iter().position(|load| !load.has_node && load.is_named(name))
    });
    assign_rest(&mut hosts, loads, &nodes, |loads, name, ranks| {
        let unused = loads.iter().position(|load| !load.has_node);
        let former = loads.iter().position(|load| load.is_named(name) && load.has_room(ranks));
        let leaves = core::mem::replace(&mut may_leave, false);
        let (first, second) = if leaves { (unused, former) } else { (former, unused) };
        let emptiest = || (0..loads.len()).min_by_key(|host| loads[*host].excess());
        first.or(second).or_else(emptiest)
    });
    hosts.into_iter().flatten().collect()
}

/// Assigns the nodes, by name and ranks, that have no host yet: `choose` returns the index of one, if it has one.
fn assign_rest(
    hosts: &mut [Option<usize>],
    loads: &mut [HostLoad<'_>],
    nodes: &[(&str, u32)],
    mut choose: impl FnMut(&[HostLoad<'_>], &str, u32) -> Option<usize>,
) {
    for (host, (name, ranks)) in hosts.iter_mut().zip(nodes).filter(|(host, _)| host.is_none()) {
        *host = choose(loads, name, *ranks);
        if let Some(host) = *host {
            loads[host].has_node = true;
            loads[host].ranks += ranks;
        }
    }
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
        let arguments = HostArguments::read(Some(hosts), None, None, None);
        let hosts = arguments.nodes_of_images(4, &Addresses::one(Ipv4Addr::LOCALHOST.into())).expect("hosts");
        let placed = place_nodes(&manifest(nodes), &hosts, &arguments).map_err(|error| error.to_string())?;
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
            (
                "a:1@10.0.0.1,b:2@10.0.0.2,c:1@10.0.0.3",
                "--hosts gives a 1 ranks, and its nodes have the images of 2",
            ),
            ("a:1@10.0.0.1,b:3@10.0.0.2", "--hosts gives a 1 ranks, and its nodes have the images of 2"),
            ("a:1@10.0.0.1,b:1@10.0.0.2,c:1@10.0.0.3,e:1@10.0.0.4", "and its nodes have the images of"),
            ("a@10.0.0.1,b@10.0.0.2,c@10.0.0.3,localhost@10.0.0.4", "localhost has no node"),
        ] {
            let error = placed(hosts).expect_err(hosts);
            assert!(error.contains(words) && error.contains("a, b, c"), "{error}");
        }
    }
}
