//! A job in real processes: the machines of `ckpt_glue` with sockets, pipes, timers and a disk.
//!
//! ```text
//!   launcher                      a keeper's process for each node
//!   Job (coordinator)  <--------> Keeper
//!   PMI server            wire       |
//!        |                        Process per rank: socket (control messages), socket (PMI), two pipes (its output)
//!   StoreWorker                      and per spawned process: socket (PMI), two pipes
//!   (records, a thread)
//! ```
//!
//! Each of the two is one thread with one loop (`coordinator`, `keeper`): everything that happens is an event of `epoll`, and every event goes
//! through the machines, which alone decide. A guard process (`guard`) cleans up on a node if its keeper is killed. Detectors and recovery protocols of
//! others run in processes of their own (`components`).

mod addresses;
pub mod components;
mod coordinator;
pub mod error;
mod events;
mod flush;
mod image_server;
pub mod input;
mod keeper;
pub mod key;
mod limits;
mod lines;
pub mod mpi;
pub mod nodes;
mod notice;
mod pmi;
pub mod registry;
pub mod repeats;
pub mod requests;
pub mod secrets;
mod signals;
pub mod spawn;
pub mod status;
mod storage;
pub mod succession;
mod terminal;
#[cfg(test)]
mod test_job;
pub mod text;
mod version;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ckpt_glue::config::JobConfig;
use ckpt_glue::interval::Every;
use ckpt_glue::job::FinalReport;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::seat::Authority;
use ckpt_glue::recovery::Beginning;
use client::launch::salt;
use store::image::ImageKey;
use store::{GenerationId, Key};
use transport::JobId;
use transport::config::AuthLevel;

use crate::mpi::replacement::Replacement;
use crate::succession::Succession;

pub use addresses::Addresses;
pub use coordinator::run;
pub use flush::{Directories, Fetch, Flush, SoFar};
pub use image_server::{ImageNode, ImageServer, serve_images};
pub use keeper::keep as keep_node;
pub use limits::{COPY_SILENT_MAX, OUTPUT_GRACE};
pub use lines::{Channel, LineReader};
pub use nodes::{NodeRoot, OwnDirectories, Repairs};
pub use notice::{CopyNotice, MpiNotice, Notice, Observer};
pub use signals::{give_signals_back, take_signals, thread_without_signals};
pub use spawn::guard::watch as guard_node;
pub use spawn::process::{end_with_launcher, non_blocking};
pub use spawn::program::{Program, nic_choice};
pub use version::VERSION;

/// The options with which a program is checkpointed: any of them.
#[macro_export]
macro_rules! checkpoint_options {
    () => {
        "--ckpt-every, --ckpt-dir, --time-limit, --parity, --node-dir or --flush-to"
    };
}

/// One line of ours on standard error, if anybody reads it.
pub fn print_message(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "stillwire: {line}");
}

/// How people write this host.
pub const HERE: &str = "localhost";

/// A job that is about to run. Its directory exists, and nobody else works on it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The job.
    pub job: JobId,
    /// How many ranks.
    pub ranks: u32,
    /// The program that they run.
    pub program: Program,
    /// The job's directory.
    pub directory: PathBuf,
    /// Committed generations to keep.
    pub keep: u32,
    /// Checkpoints and recovery.
    pub config: JobConfig,
    /// Where the first life begins.
    pub beginning: Beginning,
    /// Generations that were found damaged.
    pub suspects: BTreeSet<GenerationId>,
    /// Counter of the last life of the job; 0 for a new one.
    pub counter_last: u32,
    /// Where they run, in the order of their numbers: at least one node.
    pub nodes: Vec<Node>,
    /// Hosts that may take the place of lost ones, in the order in which they do. They have no ranks.
    pub spares: Vec<Node>,
    /// The reaction to a lost host.
    pub on_host_loss: HostLoss,
    /// The reaction to the loss of this launcher.
    pub succession: Succession,
    /// Nodes and hosts on which ranks of an earlier launcher may run: see [`former_host`].
    pub former_hosts: BTreeSet<String>,
    /// How long those may run at most.
    pub former_silence: Duration,
    /// The generation that was moved from another layout and is not protected in this one.
    pub unprotected: Option<GenerationId>,
    /// The part of data frames that their tags cover.
    pub auth: AuthLevel,
    /// The provider's library, whose variables stand in the program's environment.
    pub provider: Option<PathBuf>,
    /// The program is known to be one of an MPI library, before any rank has shown it.
    pub is_mpi: bool,
    /// Why a rank must not be a program of an MPI library.
    pub mpi_problem: Option<String>,
    /// The MPI library that it gets in place of its own.
    pub replacement: Option<Replacement>,
    /// How it is saved.
    pub saves: Saves,
    /// Each rank has a pid namespace, in which a restored process gets the ids that it had.
    pub keeps_ids: bool,
    /// Each node has a directory of its own for its images; else all have the job's.
    pub own_directories: Option<OwnDirectories>,
    /// The job file as it is to be when all ranks run; empty: it stays as it is.
    pub job_file: Vec<u8>,
    /// Copies outside the nodes.
    pub flush: Option<Flush>,
    /// How images are encrypted, if they are.
    pub encryption: Option<Encryption>,
    /// The copy from which nodes fetch their lost files.
    pub fetch: Option<Fetch>,
    /// How standard input is used.
    pub input: input::InputPlan,
    /// The task for which keepers are started.
    pub purpose: Purpose,
    /// Who says that nodes' directories which are not there are gone for good (R34).
    pub authority: Authority,
}

/// Images are encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encryption {
    /// The name of the key, as the job file has it.
    pub name: String,
    /// The key; `None` where no image is written or read, but only bytes are rebuilt.
    pub key: Option<Key>,
}

impl Encryption {
    /// For a directory of the job.
    pub fn image_key(&self) -> Option<ImageKey> {
        self.key.clone().map(image_key)
    }
}

/// A key, as a directory of a job takes it.
pub(crate) fn image_key(key: Key) -> ImageKey {
    ImageKey { key, salt }
}

/// Settings of a job file that the launcher knows by name; the others are the commands'.
pub mod setting {
    /// The job's settings of checkpoints and recovery, as [`super::JobConfig`] writes them.
    pub const CONFIG: &str = "config";
    /// Over which NIC the job has gone last, by a decision while it ran.
    pub const RAIL: &str = "rail";
    /// Hosts of the nodes, in their order: each with its ranks and addresses.
    pub const HOSTS: &str = "hosts";
    /// Hosts that may take the place of others.
    pub const SPARE_HOSTS: &str = "spare-hosts";
    /// The reaction to a lost host.
    pub const ON_HOST_LOSS: &str = "on-host-loss";
    /// The reaction to a lost launcher, if somebody has named one.
    pub const ON_LAUNCHER_LOSS: &str = "on-launcher-loss";
    /// Hosts on which ranks of the job may run besides those of the nodes: a restart that leaves one out waits for as long as a lease lasts (R32).
    pub const FORMER_HOSTS: &str = "former-hosts";
    /// How long ranks may run there at most.
    pub const FORMER_SILENCE: &str = "former-silence";
    /// The generation that a restart has moved to these nodes, until they protect it (R35).
    pub const UNPROTECTED: &str = "unprotected";
    /// Where nodes have directories of their own: relative in the job's own file, if they lie in its directory.
    pub const NODE_DIRECTORY: &str = "node-directory";
}

/// The task for which keepers are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A job that runs to its end.
    Run,
    /// To rebuild lost data of nodes; no rank is started.
    Repair,
    /// To make the newest restorable generation whole on its nodes, before its images move to those of another layout; no rank is started.
    Gather,
    /// To protect the newest generation, whose images have come to these nodes from another layout; no rank is started.
    Protect,
}

impl Plan {
    /// Whether somebody wants checkpoints that come by themselves, or any of a whole process.
    fn is_saved(&self) -> bool {
        let is_asked = self.config.checkpoint.every != Every::OnRequest || self.config.time_limit.is_some();
        is_asked || self.saves == Saves::Process || self.own_directories.is_some() || self.flush.is_some()
    }

    /// Hosts on which ranks of an earlier launcher may run, and whose locks no keeper of this one takes.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        let used: BTreeSet<String> = (0..)
            .map(NodeIndex)
            .zip(&self.nodes)
            .filter_map(|(node, place)| former_host(node, place))
            .collect();
        let left_out = self.former_hosts.iter().filter(move |former| !used.contains(*former));
        left_out.filter_map(|former| Some(former.split_once('=')?.1))
    }

    /// Whether images lie on disks that this host does not see.
    fn has_images_elsewhere(&self) -> bool {
        self.own_directories.is_some() && self.nodes.iter().any(|node| node.host.is_some())
    }

    /// Where the images of a node lie, for people.
    fn directory_words(&self, node: NodeIndex) -> String {
        self.own_directories
            .as_ref()
            .map_or_else(|| self.directory.display().to_string(), |own| own.words(node))
    }
}

/// A node, and its part of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name for people, if it is not this host's.
    pub name: Option<String>,
    /// As the remote shell takes it; `None`: here.
    pub host: Option<String>,
    /// The command that starts a program there, before the host's name.
    pub remote_shell: Vec<OsString>,
    /// Ranks there.
    pub ranks: u32,
    /// Where they receive; port 0: each takes a free one.
    pub bind: SocketAddr,
    /// The node on its other networks, over which parity goes, too.
    pub further: Vec<IpAddr>,
    /// The failure domain that somebody has named for it, if any.
    pub domain: Option<String>,
}

impl Node {
    /// The host that it is on, if a list of hosts has named one. Nodes without one stand for hosts.
    pub fn named_host(&self) -> Option<&str> {
        let here = self.name.as_deref().filter(|name| *name == HERE);
        self.host.as_deref().or(here)
    }

    /// This host, with all ranks.
    pub fn here(ranks: u32, addresses: &Addresses) -> Node {
        Node {
            name: None,
            host: None,
            remote_shell: Vec::new(),
            ranks,
            bind: SocketAddr::new(addresses.first, 0),
            further: addresses.further.clone(),
            domain: None,
        }
    }

    /// Where it is, on each of its networks.
    pub fn addresses(&self) -> Addresses {
        Addresses { first: self.bind.ip(), further: self.further.clone() }
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(node_name)
    }
}

/// Places as a job file has them; `None`: all are this host.
pub fn write_places(places: &[Node]) -> Option<String> {
    let place = |place: &Node| {
        let host = place.host.as_deref().unwrap_or(HERE);
        let ranks = if place.ranks > 0 { format!(":{}", place.ranks) } else { String::new() };
        format!("{host}{ranks}@{}", place.addresses())
    };
    let is_elsewhere = places.iter().any(|place| place.host.is_some());
    is_elsewhere.then(|| places.iter().map(place).collect::<Vec<_>>().join(","))
}

/// A node and its host, as [`setting::FORMER_HOSTS`] has them: the lock of a node (R30) is known only where it is. `None`: this host, whose keepers end with
/// their launcher.
pub fn former_host(node: NodeIndex, place: &Node) -> Option<String> {
    place.host.as_ref().map(|host| format!("{node}={host}"))
}

/// The reaction to a host that does not answer any more, and whose ranks have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostLoss {
    /// A spare host takes its place; if there is none, it is waited for, and then the job ends.
    #[default]
    Spare,
    /// If there is no spare host, its ranks go to another host of the job.
    Spread,
    /// The job ends.
    End,
}

/// The contents of a rank's image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saves {
    /// The data that the program itself names, at points of its own.
    Points,
    /// Its whole process, at any instant.
    Process,
}

/// How a job has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The coordinator's final report.
    pub report: FinalReport,
    /// Its ranks were programs of an MPI library.
    pub is_mpi: bool,
    /// Why the launcher has ended it, if that is the reason.
    pub verdict: Option<Verdict>,
    /// Why checkpoints have failed, each reason with how often; and why the last one has, if none was committed after it.
    pub unsaved: Vec<(String, u64)>,
    /// Why the last checkpoints have failed, if they have.
    pub failing: Option<String>,
    /// Problems that have not made the job fail.
    pub warnings: Vec<String>,
    /// The newest generation of which there is a copy outside the nodes.
    pub copied: Option<GenerationId>,
    /// The nodes' findings and repairs before the last life began.
    pub repairs: Repairs,
    /// A person has ended it: keepers that start no rank may not have done their work.
    pub is_interrupted: bool,
}

/// Why the launcher has ended a job.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// In words.
    pub words: String,
    /// The program's own exit code, if it is that of a process.
    pub exit_code: Option<u8>,
}

/// This host's name.
pub fn node_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "localhost".to_owned())
}
