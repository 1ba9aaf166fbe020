//! A job in real processes: the machines of `ckpt_glue` with sockets, pipes, timers and a disk.
//!
//! ```text
//!   Job (coordinator) <-> Keeper       pure machines, in this process
//!        |                  |
//!   StoreWorker          Process per rank: socket (control messages), socket (PMI), two pipes (what it prints)
//!   (records, a thread)       and per spawned process: socket (PMI), two pipes
//! ```
//!
//! One thread, one loop ([`shell`]): everything that happens is an event of `epoll`, and every event goes through the
//! machines, which alone decide. A guard process ([`guard`]) cleans up if this one is killed.

mod descriptors;
pub(crate) mod guard;
pub(crate) mod key;
pub(crate) mod limits;
mod lines;
mod mappings;
pub(crate) mod notice;
mod pmi;
mod process;
pub(crate) mod registry;
pub(crate) mod requests;
mod shell;
pub(crate) mod status;
pub(crate) mod storage;
pub(crate) mod whole;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use ckpt_glue::config::JobConfig;
use ckpt_glue::job::FinalReport;
use ckpt_glue::recovery::Beginning;
use store::GenerationId;
use transport::JobId;
use transport::config::AuthLevel;

pub(crate) use lines::{Channel, LineReader};
pub(crate) use notice::{MpiNotice, Notice, Observer};
pub(crate) use process::{Program, end_with_launcher, non_blocking};
pub(crate) use shell::{give_signals_back, run, take_signals};

/// A job that is about to run. Its directory exists, and nobody else works on it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The job.
    pub(crate) job: JobId,
    /// How many ranks.
    pub(crate) ranks: u32,
    /// What they run.
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
    /// Where ranks receive; port 0: each takes a free one.
    pub(crate) bind: SocketAddr,
    /// What tags of data frames cover.
    pub(crate) auth: AuthLevel,
    /// The provider's library, whose variables stand in the program's environment.
    pub(crate) provider: Option<PathBuf>,
    /// The program is known to be one of an MPI library, before any rank has shown it.
    pub(crate) is_mpi: bool,
    /// Why a rank must not be a program of an MPI library.
    pub(crate) mpi_problem: Option<String>,
    /// What is saved of it.
    pub(crate) saves: Saves,
}

/// What an image of a rank holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Saves {
    /// What the program itself names, at points of its own.
    Points,
    /// Its whole process, at any instant.
    Process,
}

/// How a job has ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// What the coordinator says.
    pub(crate) report: FinalReport,
    /// Its ranks were programs of an MPI library.
    pub(crate) is_mpi: bool,
    /// Why the launcher has ended it, if that is the reason.
    pub(crate) verdict: Option<Verdict>,
    /// What a person should know although nothing has failed by it.
    pub(crate) warnings: Vec<String>,
}

/// Why the launcher has ended a job.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// In words.
    pub(crate) words: String,
    /// The program's own exit code, if it is that of a process.
    pub(crate) exit_code: Option<u8>,
}
