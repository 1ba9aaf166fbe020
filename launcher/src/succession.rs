//! Hosts that continue a job whose launcher is lost: each keeper gives its guard a [`Candidacy`], and the guard of a keeper that ends without the
//! launcher's word starts a process of its own with it.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ckpt_glue::names::NodeIndex;
use serde::{Deserialize, Serialize};

use super::{Addresses, Node, Plan, node_name};

/// The command of this program that waits for its turn to continue a job.
pub const COMMAND: &str = "__successor";

/// Variables that belong to a host and a session there, and not to a job.
const OF_A_HOST: [&str; 8] = [
    "HOME",
    "HOSTNAME",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "USER",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// The reaction to a lost launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LauncherLoss {
    /// Another host continues the job.
    Continue,
    /// The job ends.
    End,
}

impl LauncherLoss {
    /// As a job file has it.
    pub const fn name(self) -> &'static str {
        match self {
            LauncherLoss::Continue => "continue",
            LauncherLoss::End => "end",
        }
    }

    /// Reads it from a job file.
    pub fn read(text: &str) -> Option<LauncherLoss> {
        [LauncherLoss::Continue, LauncherLoss::End].into_iter().find(|loss| loss.name() == text)
    }
}

/// The reaction to the loss of a job's launcher, of which its other hosts know.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Succession {
    /// The one that somebody has named, now or before.
    pub named: Option<LauncherLoss>,
    /// Other hosts continue the job: the options of the launcher there.
    pub options: Option<SuccessorOptions>,
}

/// Options of the command that the launcher on another host gets.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SuccessorOptions {
    /// Progress is not printed.
    pub quiet: bool,
    /// Suspicions that are withdrawn at once are printed.
    pub verbose: bool,
    /// Absolute path of the file with the encryption key, which every host has.
    pub key_file: Option<OsString>,
    /// Absolute path of the file with the key of signed copies, which every host has.
    pub sign_file: Option<OsString>,
    /// How long a host tries before it gives up.
    pub tries_for: Duration,
}

/// The part of a keeper's first message that it needs to leave a candidate behind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SuccessorPlace {
    options: SuccessorOptions,
    /// Candidates that begin before this one.
    position: u32,
    /// The launcher's host, as others may reach it.
    launcher: LauncherHost,
    /// The silence after which a keeper is lost.
    silence: Duration,
    /// The rest of the job's time limit.
    time_left: Option<Duration>,
}

impl SuccessorPlace {
    /// `None`: nobody continues the job from this node. The launcher's own host has a watcher. `since`: the beginning of the run.
    pub(crate) fn of(plan: &Plan, node: NodeIndex, place: &Node, since: Duration) -> Option<SuccessorPlace> {
        let options = plan.succession.options.clone()?;
        place.host.as_ref()?;
        let before = plan.nodes.iter().take(node.0 as usize).filter(|node| node.host.is_some());
        Some(SuccessorPlace {
            options,
            position: u32::try_from(before.count()).unwrap_or(u32::MAX),
            launcher: LauncherHost::of(plan),
            silence: plan.config.keeper.watch().silence(),
            time_left: plan.config.time_limit.map(|limit| limit.saturating_sub(since)),
        })
    }
}

/// A launcher's host, as others reach it. Its own list of hosts names it `localhost`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LauncherHost {
    /// Its host name, which the settings of a remote shell (`~/.ssh/config`, `known_hosts`) may have.
    pub name: String,
    /// The address of its node, which needs no resolver. None: it has no node, or one with an IPv6 address, which cannot be a name in a list of hosts.
    pub address: Option<Ipv4Addr>,
}

impl LauncherHost {
    fn of(plan: &Plan) -> LauncherHost {
        let here = plan.nodes.iter().find(|node| node.host.is_none()).map(|node| node.bind.ip());
        let address = match here {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        LauncherHost { name: node_name(), address }
    }

    /// The host name, if it resolves here to no loopback address and is not this host's own; else the address.
    pub fn reachable_name(&self) -> String {
        let found = (self.name.as_str(), 0).to_socket_addrs().into_iter().flatten();
        self.choose(&found.map(|at| at.ip()).collect::<Vec<_>>(), &node_name())
    }

    /// `found`: the addresses of its name. `own`: this host's name.
    fn choose(&self, found: &[IpAddr], own: &str) -> String {
        let Some(address) = self.address else { return self.name.clone() };
        let is_known = !found.is_empty() && found.iter().all(|at| !at.is_loopback());
        if is_known && self.name != own { self.name.clone() } else { address.to_string() }
    }
}

/// What a host knows of a job that it may have to continue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Candidacy {
    /// The job's id, 32 hexadecimal digits.
    pub job: String,
    /// The number of the node, whose directory becomes the launcher's.
    pub node: u32,
    /// That directory.
    pub directory: PathBuf,
    /// The lock of the job on the node (R30).
    pub lock: PathBuf,
    /// Where the node receives, as `IP[+IP]`.
    pub addresses: String,
    /// The host of the lost launcher.
    pub launcher: LauncherHost,
    /// Candidates that begin before this one.
    pub position: u32,
    /// The silence after which a keeper is lost.
    pub silence: Duration,
    /// When the job's time limit comes, in milliseconds since 1970-01-01 UTC.
    pub ends_unix_ms: Option<u64>,
    /// The options of the new launcher.
    pub options: SuccessorOptions,
}

/// A candidacy, and the environment of its process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SuccessorOrder {
    candidacy: Candidacy,
    environment: Vec<(OsString, OsString)>,
}

impl SuccessorOrder {
    /// `below`: the launcher's environment.
    pub(crate) fn new(
        place: &SuccessorPlace,
        (job, node): (String, u32),
        (directory, lock): (PathBuf, PathBuf),
        addresses: &Addresses,
        below: &[(OsString, OsString)],
    ) -> SuccessorOrder {
        let is_of_host = |name: &OsString| OF_A_HOST.iter().any(|own| name == own);
        let launchers = below.iter().filter(|(name, _)| !is_of_host(name)).cloned();
        let own = std::env::vars_os().filter(|(name, _)| is_of_host(name));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ends = place.time_left.map(|left| now + left);
        SuccessorOrder {
            candidacy: Candidacy {
                job,
                node,
                directory,
                lock,
                addresses: addresses.to_string(),
                launcher: place.launcher.clone(),
                position: place.position,
                silence: place.silence,
                ends_unix_ms: ends.map(|at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX)),
                options: place.options.clone(),
            },
            environment: launchers.chain(own).collect(),
        }
    }

    /// Starts the candidate, which needs nothing of this process but its own standard input.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).env_clear().envs(self.environment.iter().cloned()).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let words = serde_json::to_vec(&self.candidacy)?;
        child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?.write_all(&words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unresolved_host_name_becomes_the_address() {
        let choose = |found: &[[u8; 4]], address: Option<[u8; 4]>| {
            let host = LauncherHost { name: "a".to_owned(), address: address.map(Into::into) };
            let found: Vec<IpAddr> = found.iter().map(|at| (*at).into()).collect();
            (host.choose(&found, "b"), host.choose(&found, "a"))
        };
        let (at, name, number) = ([10, 0, 0, 1], || "a".to_owned(), || "10.0.0.1".to_owned());
        assert_eq!(choose(&[[192, 0, 2, 7]], Some(at)), (name(), number()), "or all hosts have one name");
        assert_eq!(choose(&[], Some(at)), (number(), number()));
        assert_eq!(choose(&[[127, 0, 1, 1]], Some(at)), (number(), number()));
        assert_eq!(choose(&[], None), (name(), name()));
    }

    #[test]
    fn a_candidate_has_the_launchers_environment_and_its_own_host() {
        let place = SuccessorPlace {
            options: SuccessorOptions::default(),
            position: 1,
            launcher: LauncherHost { name: "a".to_owned(), address: Some([10, 0, 0, 1].into()) },
            silence: Duration::from_secs(5),
            time_left: None,
        };
        let below = [("LD_LIBRARY_PATH", "/mpi"), ("XDG_RUNTIME_DIR", "/elsewhere")]
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let addresses = "10.0.0.2+10.1.0.2".parse().expect("addresses");
        let paths = (PathBuf::from("/nodes/1"), PathBuf::from("/nodes/lock-1"));
        let order = SuccessorOrder::new(&place, ("00ff".to_owned(), 1), paths, &addresses, &below);
        let value = |wanted: &str| order.environment.iter().find(|(name, _)| name == wanted);
        assert_eq!(value("LD_LIBRARY_PATH"), Some(&below[0]));
        assert_ne!(value("XDG_RUNTIME_DIR"), Some(&below[1]));
        let line = serde_json::to_string(&order).expect("words");
        assert!(!line.contains('\n'), "the guard reads lines");
        let read: SuccessorOrder = serde_json::from_str(&line).expect("an order");
        assert_eq!(read.candidacy, order.candidacy);
        assert_eq!(read.candidacy.addresses, "10.0.0.2+10.1.0.2");
    }
}
