//! Directories of the nodes' own, and how nodes protect each other's images.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use launcher::nodes::Budget;
use launcher::nodes::{groups_by_host, groups_over};
use launcher::{Node, NodeRoot, OwnDirectories, Plan};
use protector::{Limits, Shape};
use store::JobFile;
use store::protect::{Group, Scheme};
use transport::JobId;

use super::domains::{self, When};
use super::print_message;
use super::run::setting;
use crate::error::CliError;

/// How images survive their nodes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ProtectionArguments {
    /// How nodes protect each other's images, so that those of a lost node can be rebuilt: xor, rs:K+M, partner or none [default with checkpoints: xor, partner for two nodes, none for one].
    ///
    /// xor: one node of a group may be lost. rs:K+M: M of K+M nodes may be lost. partner: each node keeps a copy of another node's images. With any of these, each node has its own directory; a restart with other ranks for each host moves images. With none, and without --node-dir, all nodes use the job's directory, which their hosts must share; a restart may then spread ranks differently without that.
    #[arg(long, value_name = "SCHEME")]
    pub(crate) parity: Option<Scheme>,
    /// Folder on the nodes' own disks, in which each node writes the images of its ranks [default unless --parity is none: DIR/nodes; with other hosts stillwire in the user's state folder of each, $XDG_STATE_HOME or ~/.local/state].
    ///
    /// Only this host needs the job's directory then.
    #[arg(long, value_name = "PATH")]
    pub(crate) node_dir: Option<PathBuf>,
    /// Share of each node that checkpoints may use beside the program: link=RATE, disk=RATE, cores=C, such as link=50M,cores=0.5 [default: no limit].
    ///
    /// RATE is in bytes per second, with k, M or G. disk also limits the images that ranks write, and the parity that is folded. C limits parity alone; 0.5 is half of one core. Checkpoints take longer then: one that is not durable within --ckpt-timeout is given up.
    #[arg(long, value_name = "LIMITS", value_parser = budget)]
    pub(crate) encode_budget: Option<Limits>,
    /// Route of parity between nodes: pipeline, ring, broadcast or fan-in [default: the cheapest by a cost model]
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,
}

/// Limits of [`ProtectionArguments::encode_budget`].
fn budget(text: &str) -> Result<Limits, String> {
    let mut budget = Limits::default();
    for part in text.split(',') {
        let wrong = || {
            format!("expected link=RATE, disk=RATE or cores=C, such as link=50M,cores=0.5; found `{part}`")
        };
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let (digits, unit) = match value.char_indices().last() {
            Some((at, 'k')) => (&value[..at], 1_000),
            Some((at, 'M')) => (&value[..at], 1_000_000),
            Some((at, 'G')) => (&value[..at], 1_000_000_000),
            _ => (value, 1),
        };
        let rate = || {
            digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|rate| *rate > 0)
        };
        match name {
            "link" => budget.link_bytes_per_s = Some(rate().ok_or_else(wrong)?),
            "disk" => budget.disk_bytes_per_s = Some(rate().ok_or_else(wrong)?),
            "cores" => {
                let cores = value.parse::<f64>().ok().filter(|cores| cores.is_finite() && *cores > 0.0);
                budget.cores = Some(cores.ok_or_else(wrong)?);
            }
            _ => return Err(wrong()),
        }
    }
    Ok(budget)
}

/// A budget as a job file has it.
pub(crate) fn budget_text(limits: &Limits) -> Option<String> {
    let Limits { link_bytes_per_s, disk_bytes_per_s, cores } = limits;
    let parts = [
        link_bytes_per_s.map(|rate| format!("link={rate}")),
        disk_bytes_per_s.map(|rate| format!("disk={rate}")),
        cores.map(|cores| format!("cores={cores}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Groups as a job file has them: the numbers of each one's nodes.
pub(crate) fn groups_text(groups: &[Group]) -> Option<String> {
    let one = |group: &Group| group.nodes().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    (!groups.is_empty()).then(|| groups.iter().map(one).collect::<Vec<_>>().join(";"))
}

fn groups(text: &str, scheme: Scheme, nodes: usize) -> Result<Vec<Group>, CliError> {
    let wrong = || CliError::Groups { found: text.to_owned(), nodes };
    let mut seen = BTreeSet::new();
    let mut number = |number: &str| {
        let node: u32 = number.parse().ok()?;
        ((node as usize) < nodes && seen.insert(node)).then_some(node)
    };
    let mut group = |text: &str| {
        let members: Option<Vec<u32>> = text.split(',').map(&mut number).collect();
        Group::new(members?, scheme.losses()).ok()
    };
    text.split(';').map(&mut group).collect::<Option<Vec<Group>>>().ok_or_else(wrong)
}

/// The folder for those of one machine, in the job's directory.
const NODES_FOLDER: &str = "nodes";

impl ProtectionArguments {
    /// Whether directories of the nodes' own are asked for, and so checkpoints.
    pub(crate) fn any(&self) -> bool {
        self.node_dir.is_some() || self.parity.is_some_and(|scheme| scheme != Scheme::None)
    }

    /// An option for the way in which nodes protect each other, and not whether they do.
    fn limit(&self) -> Option<&'static str> {
        let budget = self.encode_budget.as_ref().map(|_| "--encode-budget");
        budget.or(self.shape.as_ref().map(|_| "--shape"))
    }

    /// The node directories of a job that begins on these nodes; a job that is not saved has no parity by default. Unless it is absolute, the path is
    /// relative to the job's directory.
    pub(crate) fn own_directories(
        &self,
        job: JobId,
        nodes: &[Node],
        is_saved: bool,
    ) -> Result<Option<OwnDirectories>, CliError> {
        let by_default = || if is_saved { Scheme::default_for(nodes.len()) } else { Scheme::None };
        let scheme = self.parity.unwrap_or_else(by_default);
        if let Some(option) = self.limit().filter(|_| scheme == Scheme::None) {
            return Err(CliError::LimitOfNothing { option });
        }
        if scheme == Scheme::None && self.node_dir.is_none() {
            return Ok(None);
        }
        let root = match &self.node_dir {
            Some(given) => {
                // All 128 bits of the job's number: where others may make names, nobody can make this one first.
                let path = std::path::absolute(given)?.join(format!("stillwire-{job}"));
                if path.to_str().is_none() {
                    return Err(CliError::NodeDirectoryName { path });
                }
                NodeRoot::Path(path.into())
            }
            None if nodes.iter().any(|node| node.host.is_some()) => NodeRoot::State(job.to_string()),
            None => NodeRoot::Path(NODES_FOLDER.into()),
        };
        let budget = Budget { limits: self.encode_budget.unwrap_or_default(), shape: self.shape };
        Ok(Some(OwnDirectories::new(root, scheme, budget, groups_over(scheme, nodes)?)))
    }
}

/// Prints the job's name, the places of its files and, if it is saved there, the data that may be lost.
pub(crate) fn announce(plan: &Plan, when: When, is_saved: bool) {
    let directory = &plan.directory;
    let own = plan.own_directories.as_ref();
    let elsewhere = own.filter(|own| !own.root.is_in(directory));
    let elsewhere = elsewhere.map(|own| format!(", images of each node in {}/NUMBER", own.root));
    print_message(format_args!(
        "job {}, {} ranks, directory {}{}",
        plan.job,
        plan.ranks,
        directory.display(),
        elsewhere.unwrap_or_default()
    ));
    if let Some(warning) = warning(plan).filter(|_| is_saved) {
        print_message(format_args!("{warning}"));
    }
    let warnings = own.map(|own| domains::warnings(own, &plan.nodes, when)).unwrap_or_default();
    warnings.iter().for_each(|warning| print_message(format_args!("{warning}")));
}

/// Warns of data that would be lost with a node or a disk because no copy is elsewhere.
fn warning(plan: &Plan) -> Option<&'static str> {
    if plan.flush.is_some() {
        return None;
    }
    match &plan.own_directories {
        _ if plan.nodes.len() == 1 => Some(
            "warning: one node protects nothing: if the disk with its images is lost, so is every generation. Have copies elsewhere with --flush-to LOCATION, or begin the job \
             on several hosts (--hosts), which protect each other",
        ),
        Some(own) => (own.scheme == Scheme::None).then_some(
            "warning: images are on their nodes only, and no node protects another one: a node that is lost takes its part of every generation with it. \
             Have copies elsewhere with --flush-to LOCATION, or begin the job without --parity none for nodes to protect each other",
        ),
        None => Some(
            "warning: images of all nodes are in the job's directory only: if its disk is lost, or out of reach, so is every generation. \
             Have copies elsewhere with --flush-to LOCATION, or begin the job without --parity none for nodes to protect each other",
        ),
    }
}

/// Whether there are nodes that protect each other.
pub(crate) fn is_any_protected(own: Option<&OwnDirectories>) -> bool {
    own.is_some_and(|own| !own.groups().is_empty())
}

/// Reads them from the settings of a job file; `directory` is the job's.
pub(crate) fn read(
    file: &JobFile,
    directory: &Path,
    nodes: &[Node],
) -> Result<Option<OwnDirectories>, CliError> {
    let Some(root) = file.settings.get(setting::NODE_DIRECTORY) else { return Ok(None) };
    let scheme = file.settings.get(setting::PARITY).map_or(Ok(Scheme::None), |scheme| scheme.parse())?;
    let text = |name: &str| file.settings.get(name);
    let limits = text(setting::ENCODE_BUDGET).and_then(|limits| budget(limits).ok()).unwrap_or_default();
    let budget = Budget { limits, shape: text(setting::SHAPE).and_then(|shape| shape.parse().ok()) };
    let groups = match text(setting::GROUPS) {
        Some(text) => groups(text, scheme, nodes.len())?,
        None => groups_by_host(scheme, nodes)?,
    };
    Ok(Some(OwnDirectories::new(NodeRoot::parse(root, directory), scheme, budget, groups)))
}

/// Where they lie, each named by its node's number.
pub(crate) fn own_root(file: &JobFile, directory: &Path) -> Option<NodeRoot> {
    file.settings.get(setting::NODE_DIRECTORY).map(|root| NodeRoot::parse(root, directory))
}

/// Whether all nodes of a job are on this host, by its file.
pub(crate) fn is_here(file: &JobFile) -> bool {
    !file.settings.contains_key(setting::HOSTS)
}

/// Whether the images of a job lie in directories of its nodes' own.
pub(crate) fn is_in(file: &JobFile) -> bool {
    file.settings.contains_key(setting::NODE_DIRECTORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_and_kept() {
        for (text, kept) in [
            ("link=50M", "link=50000000"),
            ("cores=0.5,disk=2G", "disk=2000000000,cores=0.5"),
            ("disk=7,link=3k,cores=2", "link=3000,disk=7,cores=2"),
        ] {
            let read = budget(text).expect(text);
            assert_eq!(budget_text(&read).as_deref(), Some(kept));
            assert_eq!(budget(kept).expect(kept), read);
        }
        for text in ["", "link", "link=", "link=0", "link=-1", "link=5X", "cores=0", "cores=nan", "memory=5"]
        {
            assert!(budget(text).expect_err(text).contains("such as link=50M"), "{text}");
        }
        assert_eq!(budget_text(&Limits::default()), None);
    }

    #[test]
    fn groups_are_kept() {
        let text = |groups: &str, nodes| {
            let read = super::groups(groups, Scheme::Partner, nodes).map_err(|error| error.to_string());
            read.map(|groups| groups_text(&groups))
        };
        for kept in ["0,2;1,3", "0,1,2,3", "3,1;2,0"] {
            assert_eq!(text(kept, 4), Ok(Some(kept.to_owned())));
        }
        for wrong in ["", "0", "0,1;", "0,1;1,2", "0,4", "0,-1", "0 1"] {
            let error = text(wrong, 4).expect_err(wrong);
            assert!(
                error.contains("each of 4 node numbers once") && error.contains(&format!("`{wrong}`")),
                "{error}"
            );
        }
        assert_eq!(groups_text(&[]), None);
    }
}
