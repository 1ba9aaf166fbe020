//! Nodes with directories of their own: their places, their groups, and the keepers' tasks in them.
//!
//! The job's own directory then holds records only: job file, decisions, manifests, commit records. They alone decide which generation is committed;
//! each node has a copy of them beside its images.

pub(crate) mod former;
pub mod lives;
mod root;
pub(crate) mod wire;

use std::path::{Path, PathBuf};

use ckpt_glue::names::NodeIndex;
use serde::Serialize;
use store::protect::{Group, GroupError, Scheme};

use super::Node;
pub use root::{NoState, NodeRoot};
pub use wire::Budget;
use wire::Membership;

/// Whether the job has left the root of this node's directory for another layout (R35).
pub fn is_of_former_layout(directory: &Path) -> bool {
    directory.parent().is_some_and(former::is_left)
}

/// The node of a directory in which no images are looked for.
pub const NO_NODE: u32 = u32::MAX;

/// Directories of the nodes' own.
#[derive(Clone, Debug)]
pub struct OwnDirectories {
    /// In it each node has one, named by its number: on one machine with the others, or each on its own.
    pub root: NodeRoot,
    /// Nodes that protect each other; none: nothing is protected. A node that takes another one's place is in its group: the data there is parity of
    /// that one.
    groups: Vec<Group>,
    /// Their scheme, and its limits.
    pub scheme: Scheme,
    /// The limits of protecting.
    pub budget: Budget,
}

impl OwnDirectories {
    /// Directories in `root`, of nodes in these groups.
    pub fn new(root: NodeRoot, scheme: Scheme, budget: Budget, groups: Vec<Group>) -> OwnDirectories {
        OwnDirectories { root, groups, scheme, budget }
    }

    /// The directory of a node, if it is on this host.
    pub(crate) fn here(&self, node: NodeIndex) -> Result<PathBuf, NoState> {
        Ok(self.root.here()?.join(node.0.to_string()))
    }

    /// The directory of a node, for people.
    pub(crate) fn words(&self, node: NodeIndex) -> String {
        format!("{}/{node}", self.root)
    }

    /// Groups of nodes that protect each other; none: nothing is protected.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The part of this that the keeper of a node receives.
    pub(crate) fn membership(&self, node: NodeIndex, job_file: &[u8]) -> Membership {
        let group = self.groups.iter().find(|group| group.nodes().contains(&node.0));
        let (nodes, losses) = group.map(|group| (group.nodes().to_vec(), group.losses())).unwrap_or_default();
        Membership { nodes, losses, budget: self.budget, job_file: job_file.to_vec() }
    }
}

/// The groups of a job that begins on these nodes.
pub fn groups_over(scheme: Scheme, nodes: &[Node]) -> Result<Vec<Group>, GroupError> {
    let hosts = hosts(nodes, Node::named_host);
    let hosts = hosts.iter().map(String::as_str);
    if nodes.iter().all(|node| node.domain.is_none()) {
        return Group::over(scheme, &hosts.collect::<Vec<_>>());
    }
    let domains = domains(nodes);
    let pairs: Vec<(&str, &str)> = domains.iter().map(String::as_str).zip(hosts).collect();
    Group::over_named(scheme, &pairs)
}

/// Those of older builds' jobs, whose files do not have them: nobody had named a domain, and each `localhost` was a host of its own.
pub fn groups_by_host(scheme: Scheme, nodes: &[Node]) -> Result<Vec<Group>, GroupError> {
    let hosts = hosts(nodes, |node| node.host.as_deref());
    let domains: Vec<&str> = hosts.iter().map(String::as_str).collect();
    Group::over(scheme, &domains)
}

/// Nodes of one host fail together; those that stand for hosts do not.
fn hosts(nodes: &[Node], host: impl Fn(&Node) -> Option<&str>) -> Vec<String> {
    let of = |(number, node)| host(node).map_or_else(|| format!("{number}"), str::to_owned);
    (0..).zip(nodes).map(of).collect::<Vec<String>>()
}

/// The failure domain of each node, in words.
pub fn domains(nodes: &[Node]) -> Vec<String> {
    let of = |(number, node): (u32, &Node)| match (&node.domain, node.named_host()) {
        (Some(domain), _) => format!("domain {domain}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => format!("node {number}"),
    };
    (0..).zip(nodes).map(of).collect()
}

/// Findings about the nodes before a life began, and the repairs.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Repairs {
    /// The generation that the life began from, or would have.
    #[serde(skip)]
    pub chosen: Option<String>,
    /// Every member of every group holds its protection data.
    #[serde(skip)]
    pub protected: bool,
    /// The verdict on each generation that was looked at, the newest first.
    pub kept: Vec<GenerationOutcome>,
    /// Data that was rebuilt.
    pub rebuilt: Vec<NodeRepair>,
    /// Generations that are not left.
    pub lost: Vec<Lost>,
}

/// The rebuilt data of a node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRepair {
    /// The generation.
    pub generation: String,
    /// The node, as people know it.
    pub node: String,
    pub(crate) files: u64,
    pub(crate) damaged_pages: u64,
    pub(crate) parity_pages: u64,
    pub(crate) records: u64,
    /// Bytes that came from other nodes.
    pub received_bytes: u64,
}

/// The outcome for a committed generation, after its repair.
#[derive(Clone, Debug, Serialize)]
pub struct GenerationOutcome {
    /// The generation.
    pub generation: String,
    /// A life can begin from it.
    pub restorable: bool,
    /// Every member of every group holds its protection data.
    pub protected: bool,
}

/// A generation that is not left, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Lost {
    /// The generation.
    pub generation: String,
    /// In words.
    pub why: String,
}
