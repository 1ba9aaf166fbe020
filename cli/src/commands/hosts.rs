//! Which ranks of a job run on which host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::str::FromStr;
use std::time::Duration;

use ckpt_glue::config::KeeperConfig;
use ckpt_glue::names::NodeIndex;
use clap::Args;
use launcher::{Addresses, HERE, HostLoss, Node};

use crate::error::CliError;

/// Where ranks run: the same for `run` and `restart`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct HostArguments {
    /// Hosts on which ranks run, in the order of their numbers, such as node1:4,node2:4; without numbers, ranks are spread evenly.
    ///
    /// The ranks of a host receive on the address of its name, or on another one: node1:4@10.0.0.1. Parity between nodes also uses further networks, if you name an address on each, in the same order for all hosts: node1:4@10.0.0.1+10.1.0.1. localhost is this host. All hosts need this program and the program that runs at the same paths. They need the job's directory, too, unless each node stores its own images (`--parity`).
    #[arg(long, alias = "map", value_name = "HOST[:RANKS][@IP[+IP]],...", value_delimiter = ',')]
    pub(crate) hosts: Vec<HostArgument>,
    /// Command that starts a program on another host; it gets the host's name and the program's as further arguments [default: ssh -o BatchMode=yes -o ServerAliveInterval=2]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) remote_shell: Option<String>,
    /// Run the ranks under this many node daemons (keepers) on this host, as if it were several hosts
    #[arg(long, value_name = "N", conflicts_with = "hosts", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) nodes: Option<u32>,
    /// Failure domain of each node, such as its rack, in the order of the nodes: rack1,rack1,rack2 [default: each host is one; in a restart also where it was].
    ///
    /// When a job begins, it chooses nodes that protect each other (`--parity`) from as many domains as possible. A message names each domain whose loss exceeds their parity. A restart keeps these groups, and prints the same message for the places of their images.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) domains: Vec<DomainArgument>,
    /// Hosts without ranks, as in `--hosts`. When a host of the job does not answer any more, one of them takes its place: images that lay there are rebuilt on it from the parity of the others, and the job goes on by itself.
    #[arg(long, value_name = "HOST[@IP[+IP]],...", value_delimiter = ',')]
    pub(crate) spare_hosts: Vec<HostArgument>,
    /// The last N hosts of --hosts are spare hosts; with numbers of ranks, they have none
    #[arg(long, value_name = "N", requires = "hosts")]
    pub(crate) spares: Option<usize>,
    /// When a host of the job does not answer any more: a spare host takes its place (`spare`); without one, another host of the job does (`spread`); or the job ends (`end`) [default: spare]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) on_host_loss: Option<HostLossArgument>,
    /// A host that has not been heard of for so long is lost [default: 5s]. Its ranks end by themselves somewhat earlier, because they may be cut off.
    #[arg(long, value_name = "TIME", value_parser = node_timeout)]
    pub(crate) node_timeout: Option<Duration>,
}

/// The reaction to a lost host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum HostLossArgument {
    Spare,
    Spread,
    End,
}

impl HostLossArgument {
    /// As a job file has it.
    pub(crate) fn read(text: &str) -> Option<HostLossArgument> {
        <HostLossArgument as clap::ValueEnum>::from_str(text, false).ok()
    }

    pub(crate) fn of(loss: HostLoss) -> &'static str {
        match loss {
            HostLoss::Spare => "spare",
            HostLoss::Spread => "spread",
            HostLoss::End => "end",
        }
    }
}

impl From<HostLossArgument> for HostLoss {
    fn from(argument: HostLossArgument) -> HostLoss {
        match argument {
            HostLossArgument::Spare => HostLoss::Spare,
            HostLossArgument::Spread => HostLoss::Spread,
            HostLossArgument::End => HostLoss::End,
        }
    }
}

/// A keeper sends so many heartbeats in the time after which it is lost, and at least one in [`HEARTBEAT_MAX`].
const HEARTBEATS: u32 = 20;
const HEARTBEAT_MAX: Duration = Duration::from_millis(250);
/// A shorter time leaves too little between the end of a lease and the report (R31): a guard waits for its keeper, and a busy host looks like a lost one.
const NODE_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// For longer nobody wants to wait for a host that is lost.
const NODE_TIMEOUT_MAX: Duration = Duration::from_secs(600);

fn node_timeout(text: &str) -> Result<Duration, String> {
    let time = ckpt_glue::parse_duration(text).map_err(|error| error.to_string())?;
    if !(NODE_TIMEOUT_MIN..=NODE_TIMEOUT_MAX).contains(&time) {
        return Err("expected 2s to 10m: with less, a busy host would look like a lost one".to_owned());
    }
    Ok(time)
}

/// The failure domain of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct DomainArgument(
    /// `None`: nobody has named one. A person names one for each node.
    Option<String>,
);

impl FromStr for DomainArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<DomainArgument, String> {
        if text.is_empty() || text.starts_with('-') || !text.chars().all(is_name) {
            return Err(format!(
                "expected a name of letters, digits, -, . and _ for each node, such as rack1,rack1,rack2; found `{text}`"
            ));
        }
        Ok(DomainArgument(Some(text.to_owned())))
    }
}

/// Whether names of hosts and domains may contain this symbol.
fn is_name(symbol: char) -> bool {
    symbol.is_ascii_alphanumeric() || "-._".contains(symbol)
}

/// The remote shell that every cluster has. It must not ask for a password: nobody is there to answer. It ends when the other host has not answered for
/// 6 s (three times the interval): a host that has lost its power closes no connection, and its ranks have ended by their lease (R30).
const REMOTE_SHELL: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=2";

/// The host of a node, which becomes the launcher's.
#[derive(Debug)]
pub(crate) struct HostPlace<'a> {
    pub(crate) node: NodeIndex,
    pub(crate) addresses: Addresses,
    /// The host that was the launcher's, as others reach it.
    pub(crate) launcher: &'a str,
}

/// One host of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostArgument {
    name: String,
    ranks: Option<u32>,
    addresses: Option<Addresses>,
}

impl FromStr for HostArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<HostArgument, String> {
        let (rest, addresses) = match text.split_once('@') {
            Some((rest, addresses)) => {
                let wrong = |why| format!("{why} (behind the @ of `{text}`)");
                (rest, Some(addresses.parse().map_err(wrong)?))
            }
            None => (text, None),
        };
        let (name, ranks) = match rest.rsplit_once(':') {
            Some((name, ranks)) => {
                let ranks = ranks.parse().ok().filter(|ranks| *ranks > 0);
                let wrong = || format!("expected a number of ranks, at least 1, behind the : of `{text}`");
                (name, Some(ranks.ok_or_else(wrong)?))
            }
            None => (rest, None),
        };
        // A name that begins with a dash would be an option of the remote shell.
        if name.is_empty() || name.starts_with('-') || !name.chars().all(is_name) {
            return Err(format!("expected a host as node1, node1:4 or node1:4@10.0.0.1, found `{text}`"));
        }
        Ok(HostArgument { name: name.to_owned(), ranks, addresses })
    }
}

impl core::fmt::Display for HostArgument {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.name)?;
        if let Some(ranks) = self.ranks {
            write!(f, ":{ranks}")?;
        }
        self.addresses.as_ref().map_or(Ok(()), |addresses| write!(f, "@{addresses}"))
    }
}

impl HostArguments {
    /// Reads them from a job file's settings.
    pub(crate) fn read(
        hosts: Option<&str>,
        remote_shell: Option<&str>,
        nodes: Option<&str>,
        domains: Option<&str>,
    ) -> HostArguments {
        let hosts = hosts.unwrap_or_default().split(',').filter_map(|host| host.parse().ok());
        let domain = |text: &str| text.parse().unwrap_or_default();
        HostArguments {
            hosts: hosts.collect(),
            remote_shell: remote_shell.map(str::to_owned),
            nodes: nodes.and_then(|nodes| nodes.parse().ok()),
            domains: domains.map(|domains| domains.split(',').map(domain).collect()).unwrap_or_default(),
            spare_hosts: Vec::new(),
            spares: None,
            on_host_loss: None,
            node_timeout: None,
        }
    }

    /// Completes these options with the ones that counted before.
    pub(crate) fn or(self, before: HostArguments) -> HostArguments {
        let says_where = !self.hosts.is_empty() || self.nodes.is_some();
        let remote_shell = self.remote_shell.clone().or_else(|| before.remote_shell.clone());
        let domains = match (self.names_domains(), says_where) {
            (true, _) => self.domains.clone(),
            (false, true) => before.domains_of(&self),
            (false, false) => before.domains.clone(),
        };
        let names_spares = !self.spare_hosts.is_empty() || self.spares.is_some();
        let spare_hosts = if names_spares { self.spare_hosts.clone() } else { before.spare_hosts.clone() };
        let (spares, on_host_loss) = (self.spares, self.on_host_loss.or(before.on_host_loss));
        let node_timeout = self.node_timeout;
        let hosts = if says_where { self } else { before };
        // A host that has ranks now was a spare host before.
        let is_free = |spare: &HostArgument| !hosts.hosts.iter().any(|host| host.name == spare.name);
        // Spare hosts take the place of other hosts, of which there may be none any more.
        let has_others = hosts.hosts.iter().any(|host| host.name != HERE);
        let spare_hosts = match names_spares {
            true => spare_hosts,
            false => spare_hosts.into_iter().filter(|spare| has_others && is_free(spare)).collect(),
        };
        HostArguments { remote_shell, domains, spare_hosts, spares, on_host_loss, node_timeout, ..hosts }
    }

    /// Where these hosts lay before. Of those that were not there before nobody knows.
    fn domains_of(&self, now: &HostArguments) -> Vec<DomainArgument> {
        if now.hosts.is_empty() {
            return if self.nodes == now.nodes { self.domains.clone() } else { Vec::new() };
        }
        let mut before: Vec<_> =
            self.hosts.iter().map(|host| &host.name).zip(self.domains.iter().cloned()).collect();
        let mut take = |host: &HostArgument| {
            let place = before.iter().position(|(name, _)| **name == host.name)?;
            Some(before.remove(place).1)
        };
        let domains: Vec<DomainArgument> =
            now.hosts.iter().map(|host| take(host).unwrap_or_default()).collect();
        if domains.iter().all(|domain| domain.0.is_none()) { Vec::new() } else { domains }
    }

    /// Whether hosts are named that were not among these, or not at these addresses; or all is to run here that ran on hosts with names.
    pub(crate) fn has_others_than(&self, before: &HostArguments) -> bool {
        if self.nodes.is_some() && !before.hosts.is_empty() {
            return true;
        }
        let was_there = |host: &HostArgument| {
            let is_it = |known: &&HostArgument| known.name == host.name;
            let mut known = before.hosts.iter().filter(is_it);
            known.any(|known| host.addresses.is_none() || host.addresses == known.addresses)
        };
        !self.hosts.iter().all(was_there)
    }

    /// The same hosts, as another one names them whose launcher takes over. A host that has taken the place of a node may be newer than the list.
    pub(crate) fn moved_to(&self, here: &HostPlace<'_>) -> HostArguments {
        // A spare host that took the node's place has another address.
        let is_here = |host: &&HostArgument| host.addresses.as_ref().is_none_or(|at| *at == here.addresses);
        let own = self.hosts.get(here.node.0 as usize).filter(is_here).map(|host| host.name.clone());
        let is_own = |host: &HostArgument| own.as_ref().is_some_and(|own| *own == host.name);
        let is_at = |host: &HostArgument| host.addresses.as_ref() == Some(&here.addresses);
        let rename = |(number, host): (usize, &HostArgument)| {
            let name = match host.name.as_str() {
                _ if number == here.node.0 as usize || is_own(host) || is_at(host) => HERE,
                name if name == HERE => here.launcher,
                name => name,
            };
            let is_this = number == here.node.0 as usize;
            let addresses = if is_this { Some(here.addresses.clone()) } else { host.addresses.clone() };
            HostArgument { name: name.to_owned(), ranks: host.ranks, addresses }
        };
        let hosts: Vec<HostArgument> = self.hosts.iter().enumerate().map(rename).collect();
        let is_spare = |host: &&HostArgument| host.name != HERE && !is_own(host) && !is_at(host);
        let spare_hosts = self.spare_hosts.iter().filter(is_spare).cloned().collect();
        HostArguments { hosts, spare_hosts, ..self.clone() }
    }

    /// As a job file has them; `None`: no list.
    pub(crate) fn hosts_text(&self) -> Option<String> {
        list_text(&self.hosts)
    }

    pub(crate) fn spare_hosts_text(&self) -> Option<String> {
        list_text(&self.spare_hosts)
    }

    /// Whether failure domains are named.
    pub(crate) fn names_domains(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Whether there is a list of hosts.
    pub(crate) fn names_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Whether it gives the number of ranks of each host.
    pub(crate) fn has_shares(&self) -> bool {
        self.hosts.iter().any(|host| host.ranks.is_some())
    }

    /// The hosts that have ranks.
    pub(crate) fn placed_names(&self) -> Vec<&str> {
        let placed = self.hosts.len().saturating_sub(self.spares.unwrap_or_default());
        self.hosts[..placed].iter().map(|host| host.name.as_str()).collect()
    }

    /// These hosts and their ranks, at the addresses that these options or the ones before give them.
    pub(crate) fn with_hosts<'a>(
        &self,
        before: &HostArguments,
        hosts: impl Iterator<Item = (&'a str, u32)>,
    ) -> HostArguments {
        let known = || self.hosts.iter().chain(&before.hosts);
        let host = |(name, ranks): (&str, u32)| HostArgument {
            name: name.to_owned(),
            ranks: Some(ranks),
            addresses: known().find(|host| host.name == name).and_then(|host| host.addresses.clone()),
        };
        HostArguments {
            hosts: hosts.map(host).collect(),
            remote_shell: self.remote_shell.clone().or_else(|| before.remote_shell.clone()),
            node_timeout: self.node_timeout,
            ..HostArguments::default()
        }
    }

    /// The nodes of a job with so many ranks. `bind`: where ranks receive that run here, unless the list gives an address.
    pub(crate) fn nodes(&self, ranks: u32, bind: &Addresses) -> Result<Vec<Node>, CliError> {
        let mut nodes = self.nodes_anywhere(ranks, bind)?;
        if self.names_domains() {
            self.place_in_domains(&mut nodes)?;
        }
        Ok(nodes)
    }

    /// The hosts of a job whose images lie on its nodes: unless the list gives each host its ranks, there may be more hosts than ranks.
    pub(crate) fn nodes_of_images(&self, ranks: u32, bind: &Addresses) -> Result<Vec<Node>, CliError> {
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        self.nodes(if self.has_shares() { ranks } else { ranks.max(hosts) }, bind)
    }

    fn place_in_domains(&self, nodes: &mut [Node]) -> Result<(), CliError> {
        let problem = |problem: String| Err(CliError::Domains { problem });
        if self.domains.len() != nodes.len() {
            let names: Vec<String> = nodes.iter().map(Node::name).collect();
            return problem(format!(
                "{} names for {} nodes ({}): expected one for each, in this order",
                self.domains.len(),
                nodes.len(),
                names.join(", ")
            ));
        }
        let mut of_hosts: BTreeMap<String, &str> = BTreeMap::new();
        for (node, DomainArgument(domain)) in nodes.iter_mut().zip(&self.domains) {
            node.domain.clone_from(domain);
            let Some((host, domain)) = node.named_host().map(str::to_owned).zip(domain.as_deref()) else {
                continue;
            };
            let other = of_hosts.insert(host.clone(), domain).filter(|other| *other != domain);
            if let Some(other) = other {
                return problem(format!("{host} cannot be in {other} and in {domain}: it fails as a whole"));
            }
        }
        Ok(())
    }

    fn nodes_anywhere(&self, ranks: u32, bind: &Addresses) -> Result<Vec<Node>, CliError> {
        if self.hosts.is_empty() {
            let nodes = self.nodes.unwrap_or(1).min(ranks.max(1));
            let node = |number: u32| {
                let name = if nodes > 1 { Some(format!("node {number}")) } else { None };
                Node { name, ..Node::here(share(ranks, nodes, number), bind) }
            };
            return Ok((0..nodes).map(node).collect());
        }
        let (hosts, _) = self.split()?;
        let placed = hosts.iter().zip(shares(hosts, ranks)?);
        placed.map(|(host, ranks)| self.place(host, ranks, bind)).collect()
    }

    /// The hosts that have ranks, and those behind them that have none.
    fn split(&self) -> Result<(&[HostArgument], &[HostArgument]), CliError> {
        let spares = self.spares.unwrap_or_default();
        match self.hosts.len().checked_sub(spares).filter(|placed| *placed > 0 || self.hosts.is_empty()) {
            Some(placed) => Ok(self.hosts.split_at(placed)),
            None => Err(CliError::Hosts {
                problem: format!(
                    "--spares {spares} leaves none of the {} hosts for ranks: expected fewer",
                    self.hosts.len()
                ),
            }),
        }
    }

    /// Hosts that may take the place of others.
    pub(crate) fn spare_nodes(&self, bind: &Addresses) -> Result<Vec<Node>, CliError> {
        let (placed, behind) = self.split()?;
        let spares: Vec<&HostArgument> = behind.iter().chain(&self.spare_hosts).collect();
        let problem = |problem: String| Err(CliError::Hosts { problem });
        if !spares.is_empty() && !placed.iter().any(|host| host.name != HERE) {
            return problem("spare hosts take the place of other hosts, and --hosts names none".to_owned());
        }
        for (number, spare) in spares.iter().enumerate() {
            if spare.name == HERE {
                return problem(format!("{HERE} cannot be a spare host: it ends with the launcher"));
            }
            let known = placed.iter().chain(spares[..number].iter().copied());
            if known.clone().any(|host| host.name == spare.name) {
                return problem(format!("{} is named as a spare host and once more", spare.name));
            }
        }
        spares.into_iter().map(|host| self.place(host, 0, bind)).collect()
    }

    /// How keepers watch each other.
    pub(crate) fn keeper_config(&self, before: KeeperConfig) -> KeeperConfig {
        let Some(timeout) = self.node_timeout else { return before };
        let heartbeat = (timeout / HEARTBEATS).min(HEARTBEAT_MAX);
        let missed = timeout.as_nanos().div_ceil(heartbeat.as_nanos());
        KeeperConfig { heartbeat, heartbeats_missed_max: u32::try_from(missed).unwrap_or(u32::MAX), ..before }
    }

    fn place(&self, host: &HostArgument, ranks: u32, bind: &Addresses) -> Result<Node, CliError> {
        let shell = self.remote_shell.as_deref().unwrap_or(REMOTE_SHELL);
        let shell: Vec<OsString> = shell.split_ascii_whitespace().map(OsString::from).collect();
        if shell.is_empty() {
            return Err(CliError::Hosts { problem: "--remote-shell names no program".to_owned() });
        }
        let others: Vec<&HostArgument> = self.hosts.iter().filter(|host| host.name != HERE).collect();
        let is_here = host.name == HERE;
        let addresses = match &host.addresses {
            Some(addresses) => addresses.clone(),
            None if !is_here => Addresses::one(resolve(&host.name)?),
            None if others.is_empty() || bind.first != IpAddr::V4(Ipv4Addr::LOCALHOST) => bind.clone(),
            None => {
                let other = others[0].addresses.as_ref().map(|addresses| addresses.first);
                Addresses::one(outward(other.map_or_else(|| resolve(&others[0].name), Ok)?)?)
            }
        };
        Ok(Node {
            name: Some(host.name.clone()),
            host: (!is_here).then(|| host.name.clone()),
            remote_shell: shell,
            ranks,
            bind: SocketAddr::new(addresses.first, 0),
            further: addresses.further,
            domain: None,
        })
    }
}

fn list_text(hosts: &[HostArgument]) -> Option<String> {
    (!hosts.is_empty()).then(|| hosts.iter().map(HostArgument::to_string).collect::<Vec<_>>().join(","))
}

/// Ranks of each host.
fn shares(hosts: &[HostArgument], ranks: u32) -> Result<Vec<u32>, CliError> {
    let problem = |problem: String| Err(CliError::Hosts { problem });
    let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let given: Vec<u32> = hosts.iter().filter_map(|host| host.ranks).collect();
    if given.is_empty() {
        if count > ranks {
            return problem(format!("{ranks} ranks for {count} hosts: expected at least one for each"));
        }
        return Ok((0..count).map(|number| share(ranks, count, number)).collect());
    }
    if given.len() < hosts.len() {
        return problem(
            "some hosts have a number of ranks and others have none: give it for all or for none".to_owned(),
        );
    }
    let sum: u32 = given.iter().fold(0, |sum, ranks| sum.saturating_add(*ranks));
    if sum != ranks {
        return problem(format!("the hosts have {sum} ranks together, and the job {ranks}"));
    }
    Ok(given)
}

/// Failure domains of nodes as a job file has them; `None`: nobody has named any.
pub(crate) fn write_domains(nodes: &[Node]) -> Option<String> {
    let domain = |node: &Node| node.domain.clone().unwrap_or_default();
    let any = nodes.iter().any(|node| node.domain.is_some());
    any.then(|| nodes.iter().map(domain).collect::<Vec<_>>().join(","))
}

fn share(ranks: u32, nodes: u32, number: u32) -> u32 {
    ranks / nodes + u32::from(number < ranks % nodes)
}

/// The address of another host.
fn resolve(name: &str) -> Result<IpAddr, CliError> {
    let found =
        (name, 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect::<Vec<_>>());
    let addresses = match found {
        Ok(addresses) if !addresses.is_empty() => addresses,
        Ok(_) => {
            return Err(CliError::Hosts {
                problem: format!("no address of {name} is known; name it: {name}@IP"),
            });
        }
        Err(error) => {
            let problem = format!("no address of {name} is known ({error}); name it: {name}@IP");
            return Err(CliError::Hosts { problem });
        }
    };
    Ok(*addresses.iter().find(|address| address.is_ipv4()).unwrap_or(&addresses[0]))
}

/// The address of this host under which another one reaches it; nothing is sent for it.
fn outward(other: IpAddr) -> Result<IpAddr, CliError> {
    let any: IpAddr =
        if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let found = socket.connect((other, 9)).and_then(|()| socket.local_addr());
    let problem = |error| CliError::Hosts {
        problem: format!("no way from here to {other} ({error}); give the address: {HERE}@IP"),
    };
    Ok(found.map_err(problem)?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Addresses {
        Addresses::one(Ipv4Addr::LOCALHOST.into())
    }

    fn hosts(text: &str) -> HostArguments {
        HostArguments {
            hosts: text.split(',').map(|host| host.parse().unwrap()).collect(),
            ..HostArguments::read(None, None, None, None)
        }
    }

    fn shares(text: &str, ranks: u32) -> Result<Vec<u32>, String> {
        let nodes = hosts(text).nodes(ranks, &here()).map_err(|error| error.to_string())?;
        Ok(nodes.into_iter().map(|node| node.ranks).collect())
    }

    #[test]
    fn ranks_are_given_or_spread() {
        assert_eq!(shares("a:1@10.0.0.1,b:3@10.0.0.2", 4).unwrap(), [1, 3]);
        assert_eq!(shares("a@10.0.0.1,b@10.0.0.2", 5).unwrap(), [3, 2]);
        assert!(
            shares("a:1@10.0.0.1,b:1@10.0.0.2", 4).unwrap_err().contains("2 ranks together, and the job 4")
        );
        assert!(shares("a:1@10.0.0.1,b@10.0.0.2", 4).unwrap_err().contains("for all or for none"));
        assert!(shares("a@10.0.0.1,b@10.0.0.2", 1).unwrap_err().contains("at least one for each"));
    }

    #[test]
    fn spares_keeps_the_last_hosts_free() {
        let all = HostArguments { spares: Some(2), ..hosts("a@10.0.0.1,b@10.0.0.2,c@10.0.0.3,d@10.0.0.4") };
        let names = |nodes: Vec<Node>| nodes.iter().map(|node| (node.name(), node.ranks)).collect::<Vec<_>>();
        assert_eq!(names(all.nodes(5, &here()).unwrap()), [("a".to_owned(), 3), ("b".to_owned(), 2)]);
        assert_eq!(names(all.spare_nodes(&here()).unwrap()), [("c".to_owned(), 0), ("d".to_owned(), 0)]);
    }

    #[test]
    fn the_hosts_of_a_lost_launcher_as_another_one_names_them() {
        let moved = |text: &str, node: u32, address: &str| {
            let addresses = address.parse().unwrap();
            let place = HostPlace { node: NodeIndex(node), addresses, launcher: "10.0.0.1" };
            let before = HostArguments { spare_hosts: hosts("c@10.0.0.3,e@10.0.0.5").hosts, ..hosts(text) };
            let now = before.moved_to(&place);
            (now.hosts_text().unwrap(), now.spare_hosts_text().unwrap())
        };
        let first = "localhost:1@10.0.0.1,b:1@10.0.0.2,c:2@10.0.0.3";
        let spares = "c@10.0.0.3,e@10.0.0.5".to_owned();
        let second = "10.0.0.1:1@10.0.0.1,localhost:1@10.0.0.2,c:2@10.0.0.3".to_owned();
        assert_eq!(moved(first, 1, "10.0.0.2"), (second.clone(), spares.clone()));
        // Once more, after an attempt that has failed.
        assert_eq!(moved(&second, 1, "10.0.0.2"), (second, spares.clone()));
        // Two nodes on one host; and a launcher whose host was no node.
        let two = "localhost:1@10.0.0.1,b:1@10.0.0.2,b:2@10.0.0.2";
        assert_eq!(
            moved(two, 2, "10.0.0.2").0,
            "10.0.0.1:1@10.0.0.1,localhost:1@10.0.0.2,localhost:2@10.0.0.2"
        );
        assert_eq!(moved("b:1@10.0.0.2,d:3@10.0.0.4", 1, "10.0.0.4").0, "b:1@10.0.0.2,localhost:3@10.0.0.4");
        // A spare host has taken the place of c, and the list does not say so yet.
        let (list, left) = moved(first, 2, "10.0.0.5");
        assert_eq!(list, "10.0.0.1:1@10.0.0.1,b:1@10.0.0.2,localhost:2@10.0.0.5");
        assert_eq!(left, "c@10.0.0.3");
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in
            ["", ":4", "a:0", "a:x", "-oProxyCommand=x", "a b", "a@b", "a:1:2", "a@", "a@::1+", "a@::1+::1"]
        {
            assert!(text.parse::<HostArgument>().is_err(), "{text}");
        }
        assert!("a@10.0.0".parse::<HostArgument>().unwrap_err().contains("`10.0.0`"));
    }

    #[test]
    fn a_job_file_keeps_them() {
        let text = "localhost:2@10.0.0.1+10.1.0.1,node-1.example:3@fe80::1+fe80::2+10.1.0.2";
        let written = launcher::write_places(&hosts(text).nodes(5, &here()).unwrap()).unwrap();
        assert_eq!(written, text);
        assert_eq!(HostArguments::read(Some(&written), None, None, None).hosts, hosts(text).hosts);
        assert_eq!(launcher::write_places(&[Node::here(2, &here())]), None);
        let now = hosts("c:5").or(HostArguments { remote_shell: Some("rsh".to_owned()), ..hosts(text) });
        assert_eq!((now.hosts, now.remote_shell.as_deref()), (hosts("c:5").hosts, Some("rsh")));
    }

    #[test]
    fn a_host_has_an_address_on_each_network() {
        let nodes = hosts("a:1@10.0.0.1+10.1.0.1,b:1@10.0.0.2").nodes(2, &here()).unwrap();
        let all = |node: &Node| node.addresses().to_string();
        assert_eq!(nodes.iter().map(all).collect::<Vec<_>>(), ["10.0.0.1+10.1.0.1", "10.0.0.2"]);
        assert_eq!(nodes[0].bind.ip(), IpAddr::from([10, 0, 0, 1]));
        let many = "a@10.0.0.1+10.0.0.2+10.0.0.3+10.0.0.4+10.0.0.5";
        assert!(many.parse::<HostArgument>().unwrap_err().contains("at most 4 addresses"));
    }

    #[test]
    fn hosts_that_were_not_there_are_reported_from_those_that_were() {
        let before = hosts("a:1@10.0.0.1,b:1@10.0.0.2");
        for (now, others) in
            [("b,a", false), ("b:2@10.0.0.2", false), ("a@10.0.0.9,b", true), ("a,b,c@10.0.0.3", true)]
        {
            assert_eq!(hosts(now).has_others_than(&before), others, "{now}");
        }
        let nothing = HostArguments::read(None, None, None, None);
        assert!(!nothing.has_others_than(&before) && before.has_others_than(&nothing));
        let here = HostArguments::read(None, None, Some("2"), None);
        assert!(here.has_others_than(&before) && !here.has_others_than(&nothing));
    }

    #[test]
    fn nodes_of_this_host_are_counted() {
        let arguments = HostArguments::read(None, None, Some("3"), None);
        let nodes = arguments.nodes(4, &here()).unwrap();
        assert_eq!(nodes.iter().map(|node| node.ranks).collect::<Vec<_>>(), [2, 1, 1]);
    }

    fn domains(text: &str) -> Vec<DomainArgument> {
        text.split(',').map(|domain| domain.parse().unwrap()).collect()
    }

    fn placed(arguments: &HostArguments) -> Result<Option<String>, String> {
        let nodes = arguments.nodes(4, &here()).map_err(|error| error.to_string())?;
        Ok(write_domains(&nodes))
    }

    #[test]
    fn each_node_has_a_domain_or_none_has() {
        let arguments = HostArguments { domains: domains("r1,r2"), ..hosts("a@10.0.0.1,b@10.0.0.2") };
        assert_eq!(placed(&arguments), Ok(Some("r1,r2".to_owned())));
        assert_eq!(placed(&hosts("a@10.0.0.1,b@10.0.0.2")), Ok(None));
        let here = HostArguments::read(None, None, Some("4"), Some("x,y,x,y"));
        assert_eq!(placed(&here), Ok(Some("x,y,x,y".to_owned())));
        let few = HostArguments { domains: domains("r1"), ..arguments.clone() };
        assert!(placed(&few).unwrap_err().contains("1 names for 2 nodes (a, b)"));
        let many = HostArguments { domains: domains("r1,r1,r2"), ..arguments.clone() };
        assert!(placed(&many).unwrap_err().contains("3 names for 2 nodes (a, b)"));
        for host in ["a", "localhost"] {
            let twice = hosts(&format!("{host}@10.0.0.1,{host}@10.0.0.1"));
            let torn = placed(&HostArguments { domains: domains("r1,r2"), ..twice }).unwrap_err();
            assert!(torn.contains(&format!("{host} cannot be in r1 and in r2")), "{torn}");
        }
        for wrong in ["", "a b", "-a", "a,b", "rück"] {
            assert!(wrong.parse::<DomainArgument>().unwrap_err().contains("rack1"), "{wrong}");
        }
    }

    #[test]
    fn a_restart_knows_where_hosts_lay() {
        let before = || HostArguments::read(Some("a@10.0.0.1,b@10.0.0.2"), None, None, Some("r1,r2"));
        let nothing = || HostArguments::read(None, None, None, None);
        let kept = |now: HostArguments| placed(&now.or(before())).unwrap();
        assert_eq!(kept(nothing()).as_deref(), Some("r1,r2"));
        assert_eq!(kept(hosts("b@10.0.0.2,a@10.0.0.1")).as_deref(), Some("r2,r1"));
        // A spare has no known domain, unless one is given.
        assert_eq!(kept(hosts("spare@10.0.0.3,b@10.0.0.2")).as_deref(), Some(",r2"));
        assert_eq!(
            HostArguments::read(None, None, None, Some(",r2")).domains,
            [None, Some("r2".to_owned())].map(DomainArgument)
        );
        let said = HostArguments { domains: domains("r3,r2"), ..hosts("spare@10.0.0.3,b@10.0.0.2") };
        assert_eq!(kept(said).as_deref(), Some("r3,r2"));
        assert_eq!(kept(HostArguments { domains: domains("x,y"), ..nothing() }).as_deref(), Some("x,y"));
        assert_eq!(kept(hosts("c@10.0.0.3,d@10.0.0.4")), None);
        let two = || HostArguments::read(None, None, Some("2"), None);
        assert_eq!(kept(two()), None);
        let of_two = HostArguments { domains: domains("x,y"), ..two() };
        assert_eq!(placed(&two().or(of_two)), Ok(Some("x,y".to_owned())));
    }
}
