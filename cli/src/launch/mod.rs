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
//! Each of the two is one thread with one loop ([`coordinator`], [`keeper`]): everything that happens is an event of `epoll`, and every event goes
//! through the machines, which alone decide. A guard process ([`guard`]) cleans up on a node if its keeper is killed.

mod addresses;
mod coordinator;
mod descriptors;
mod flush;
pub(crate) mod guard;
pub(crate) mod input;
pub(crate) mod keeper;
pub(crate) mod key;
pub(crate) mod limits;
mod lines;
mod mappings;
pub(crate) mod namespace;
pub(crate) mod nodes;
pub(crate) mod notice;
mod pmi;
mod process;
pub(crate) mod registry;
pub(crate) mod repeats;
pub(crate) mod requests;
pub(crate) mod secrets;
pub(crate) mod status;
pub(crate) mod storage;
mod terminal;
mod version;
pub(crate) mod whole;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use ckpt_glue::config::JobConfig;
use ckpt_glue::job::FinalReport;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::recovery::Beginning;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use session::launch::salt;
use store::image::ImageKey;
use store::{GenerationId, Key};
use transport::JobId;
use transport::config::AuthLevel;

use crate::mpi::replacement::Replacement;

pub(crate) use addresses::Addresses;
pub(crate) use coordinator::run;
pub(crate) use flush::{Directories, Fetch, Flush, SoFar};
pub(crate) use lines::{Channel, LineReader};
pub(crate) use nodes::{OwnDirectories, Repairs};
pub(crate) use notice::{CopyNotice, MpiNotice, Notice, Observer};
pub(crate) use process::{Program, end_with_launcher, non_blocking};
pub(crate) use version::VERSION;

/// How people write this host.
pub(crate) const HERE: &str = "localhost";

/// A job that is about to run. Its directory exists, and nobody else works on it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The job.
    pub(crate) job: JobId,
    /// How many ranks.
    pub(crate) ranks: u32,
    /// The program that they run.
    pub(crate) program: Program,
    /// The job's directory.
    pub(crate) directory: PathBuf,
    /// Committed generations to keep.
    pub(crate) keep: u32,
    /// Checkpoints and recovery.
    pub(crate) config: JobConfig,
    /// Where the first life begins.
    pub(crate) beginning: Beginning,
    /// Generations that were found damaged.
    pub(crate) suspects: BTreeSet<GenerationId>,
    /// Counter of the last life of the job; 0 for a new one.
    pub(crate) counter_last: u32,
    /// Where they run, in the order of their numbers: at least one node.
    pub(crate) nodes: Vec<Node>,
    /// The part of data frames that their tags cover.
    pub(crate) auth: AuthLevel,
    /// The provider's library, whose variables stand in the program's environment.
    pub(crate) provider: Option<PathBuf>,
    /// The program is known to be one of an MPI library, before any rank has shown it.
    pub(crate) is_mpi: bool,
    /// Why a rank must not be a program of an MPI library.
    pub(crate) mpi_problem: Option<String>,
    /// The MPI library that it gets in place of its own.
    pub(crate) replacement: Option<Replacement>,
    /// How it is saved.
    pub(crate) saves: Saves,
    /// Each rank has a pid namespace, in which a restored process gets the ids that it had.
    pub(crate) keeps_ids: bool,
    /// Each node has a directory of its own for its images; else all have the job's.
    pub(crate) own_directories: Option<OwnDirectories>,
    /// The job file as it is to be when all ranks run; empty: it stays as it is.
    pub(crate) job_file: Vec<u8>,
    /// Copies outside the nodes.
    pub(crate) flush: Option<Flush>,
    /// How images are encrypted, if they are.
    pub(crate) encryption: Option<Encryption>,
    /// The copy from which nodes fetch their lost files.
    pub(crate) fetch: Option<Fetch>,
    /// How standard input is used.
    pub(crate) input: input::InputPlan,
    /// The task for which keepers are started.
    pub(crate) purpose: Purpose,
}

/// Images are encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Encryption {
    /// The name of the key, as the job file has it.
    pub(crate) name: String,
    /// The key; `None` where no image is written or read, but only bytes are rebuilt.
    pub(crate) key: Option<Key>,
}

impl Encryption {
    /// For a directory of the job.
    pub(crate) fn image_key(&self) -> Option<ImageKey> {
        self.key.clone().map(image_key)
    }
}

/// A key, as a directory of a job takes it.
pub(crate) fn image_key(key: Key) -> ImageKey {
    ImageKey { key, salt }
}

/// Settings of a job file that the launcher knows by name; the others are the commands'.
pub(crate) mod setting {
    /// Over which NIC the job has gone last, by a decision while it ran.
    pub(crate) const RAIL: &str = "rail";
    /// Where nodes have directories of their own: relative in the job's own file, if they lie in its directory.
    pub(crate) const NODE_DIRECTORY: &str = "node-directory";
}

/// The task for which keepers are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A job that runs to its end.
    Run,
    /// To rebuild lost data of nodes; no rank is started.
    Repair,
}

impl Plan {
    /// Whether somebody wants checkpoints that come by themselves, or any of a whole process.
    fn is_saved(&self) -> bool {
        let is_asked = self.config.checkpoint.every.is_some() || self.config.time_limit.is_some();
        is_asked || self.saves == Saves::Process || self.own_directories.is_some() || self.flush.is_some()
    }

    /// Whether images lie on disks that this host does not see.
    fn has_images_elsewhere(&self) -> bool {
        self.own_directories.is_some() && self.nodes.iter().any(|node| node.host.is_some())
    }

    /// Where the images of a node lie.
    fn directory_of(&self, node: NodeIndex) -> PathBuf {
        self.own_directories.as_ref().map_or_else(|| self.directory.clone(), |own| own.of(node))
    }
}

/// A node, and its part of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    /// Its name for people, if it is not this host's.
    pub(crate) name: Option<String>,
    /// As the remote shell takes it; `None`: here.
    pub(crate) host: Option<String>,
    /// The command that starts a program there, before the host's name.
    pub(crate) remote_shell: Vec<OsString>,
    /// Ranks there.
    pub(crate) ranks: u32,
    /// Where they receive; port 0: each takes a free one.
    pub(crate) bind: SocketAddr,
    /// The node on its other networks, over which parity goes, too.
    pub(crate) further: Vec<IpAddr>,
    /// The failure domain that somebody has named for it, if any.
    pub(crate) domain: Option<String>,
}

impl Node {
    /// The host that it is on, if a list of hosts has named one. Nodes without one stand for hosts.
    pub(crate) fn named_host(&self) -> Option<&str> {
        let here = self.name.as_deref().filter(|name| *name == HERE);
        self.host.as_deref().or(here)
    }

    /// This host, with all ranks.
    pub(crate) fn here(ranks: u32, addresses: &Addresses) -> Node {
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
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses { first: self.bind.ip(), further: self.further.clone() }
    }

    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(node_name)
    }
}

/// The contents of a rank's image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Saves {
    /// The data that the program itself names, at points of its own.
    Points,
    /// Its whole process, at any instant.
    Process,
}

/// How a job has ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The coordinator's final report.
    pub(crate) report: FinalReport,
    /// Its ranks were programs of an MPI library.
    pub(crate) is_mpi: bool,
    /// Why the launcher has ended it, if that is the reason.
    pub(crate) verdict: Option<Verdict>,
    /// Why checkpoints have failed, each reason with how often; and why the last one has, if none was committed after it.
    pub(crate) unsaved: Vec<(String, u64)>,
    pub(crate) failing: Option<String>,
    /// Problems that have not made the job fail.
    pub(crate) warnings: Vec<String>,
    /// The newest generation of which there is a copy outside the nodes.
    pub(crate) copied: Option<GenerationId>,
    /// The nodes' findings and repairs before the last life began.
    pub(crate) repairs: Repairs,
}

/// Why the launcher has ended a job.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// In words.
    pub(crate) words: String,
    /// The program's own exit code, if it is that of a process.
    pub(crate) exit_code: Option<u8>,
}

fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    Ok(epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
}

/// How long `epoll` is to wait.
fn epoll_timeout(left: Option<Duration>) -> EpollTimeout {
    match left {
        None => EpollTimeout::NONE,
        Some(Duration::ZERO) => EpollTimeout::ZERO,
        // Rounded up, so that a deadline has passed when we look.
        Some(left) => EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::MAX),
    }
}

/// Signals that end a process do so again.
pub(crate) fn give_signals_back() {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        mask.add(signal);
    }
    // Fails for no set of signals.
    let _ = mask.thread_unblock();
}

/// Signals become events. Those that a parent had ignored (`nohup`) stay ignored.
pub(crate) fn take_signals(further: &[Signal]) -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].iter().chain(further) {
        mask.add(*signal);
    }
    mask.thread_block()?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

pub(crate) fn node_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "localhost".to_owned())
}
