//! Why a job cannot be started, or goes no further.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ckpt_glue::error::{ConfigError, LayoutError};
use store::storage::Exposure;
use store::{GenerationId, StorageError, StoreError};

use crate::nodes::NoState;
use crate::nodes::lives::Divergence;

/// Why a job cannot be started, or goes no further.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its message")]
pub enum LauncherError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Rails(#[from] drivers::RailsError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    QueueFull(#[from] crate::worker::QueueFull),
    #[error(transparent)]
    NoState(#[from] NoState),
    #[error(
        "the provider libstillwire_fi.so is not there (looked in {places}); build it (cargo build --release --package stillwire-provider), or set STILLWIRE_PROVIDER to its path"
    )]
    NoProvider { places: String },
    #[error("{path} cannot be the provider: libfabric takes only files whose names end in fi.so")]
    ProviderName { path: PathBuf },
    #[error(
        "{path} cannot be the provider: its path has a colon, which separates folders in FI_PROVIDER_PATH; put it elsewhere"
    )]
    ProviderPath { path: PathBuf },
    #[error(
        "{program} needs {library}, and the loader does not find it; set LD_LIBRARY_PATH to the folder of the MPI library (`stillwire doctor {program}` shows the libraries), or, if it is an MPICH, run the program on another one (pip install mpich, or --mpi-from DIR)"
    )]
    MpiNotFound { program: PathBuf, library: String },
    #[error(
        "the program uses Open MPI ({library}), which needs its own mpirun, and none was found beside it or in PATH. Without it, every process would be a separate job of one rank. Add the folder of its mpirun to PATH"
    )]
    NoMpirun { library: PathBuf },
    #[error(
        "--mpi {named} does not fit the program: it loads {library}. Leave --mpi out, or build the program with the named library"
    )]
    OtherMpi { named: &'static str, library: PathBuf },
    #[error(
        "{program} needs {library}: MPICH before 3.1, or MVAPICH2 before 2.0, whose binary interface no MPICH with libfabric has. Build the program with a newer MPICH (pip install mpich brings one with mpicc)"
    )]
    OldMpich { program: PathBuf, library: String },
    #[error(
        "--mpi-from cannot replace {library}: it is Open MPI, whose binary interface is not MPICH's. Start the program without --mpi-from (its own mpirun runs it), or build it with MPICH"
    )]
    NotReplaceable { library: PathBuf },
    #[error(
        "the program's MPI library {library} uses no libfabric, so it cannot load the provider, and no checkpoint would hold its messages. Install an MPICH that uses libfabric beside it (pip install mpich); the program then runs on that one. Or name the folder of an MPICH (--mpi-from DIR); `stillwire doctor PROGRAM` shows the libraries"
    )]
    NoFabric { library: PathBuf },
    #[error(
        "--mpi-from: {} cannot take the place of the program's MPI library: {problem}. Expected an installation of MPICH 3.1 or newer with libfabric, such as a virtual environment after `pip install mpich`", path.display()
    )]
    MpiFrom { path: PathBuf, problem: String },
    #[error(
        "this version of stillwire cannot read the MPI library of the program in the job's file; use the version that wrote it"
    )]
    MpiFromUnread,
    #[error(
        "{program} cannot run on {library}, which lacks symbols that it needs: {symbols}. Name another MPICH (--mpi-from DIR), or build the program with this one"
    )]
    Incompatible { program: PathBuf, library: PathBuf, symbols: String },
    #[error(
        "the loader does not take another {name} for {program}, but {}: the program, or a library of it, names that folder itself (RPATH), and it comes before LD_LIBRARY_PATH. Remove it (patchelf --remove-rpath FILE), or build the program with an MPICH that uses libfabric", found.display()
    )]
    Overruled { program: PathBuf, name: String, found: PathBuf },
    #[error(
        "{ranks} ranks need {needed} open files of the launcher, and {found} are allowed; raise the limit (ulimit -n)"
    )]
    Descriptors { ranks: u32, needed: u64, found: u64 },
    #[error("the program {name} cannot be started: {problem}")]
    Program { name: String, problem: String },
    #[error("no key can be made: the system provides no random numbers (getrandom failed); try again later")]
    NoRandomness,
    #[error(
        "the guard process could not be started: {error}; check that the file of this program still exists, and that your limit of processes allows one more (ulimit -u)"
    )]
    Guard { error: io::Error },
    #[error("the node daemon (keeper) of {host} could not be started: {error}")]
    Keeper { host: String, error: io::Error },
    #[error(
        "images cannot be moved from or to {host}: {problem}. The layout of the job is as before; repeat the restart, or leave the number of ranks of each host out (--hosts a,b) to keep it"
    )]
    Images { host: String, problem: String },
    #[error(
        "{host} does not know yet that the job has left {root} ({problem}); it is marked when the job next runs there"
    )]
    NotMarked { host: String, root: String, problem: String },
    #[error(
        "incomplete images stay in {directory} on {host} ({problem}); remove them, or repeat the restart"
    )]
    NotDiscarded { host: String, directory: String, problem: String },
    #[error("no rank can be started on {host}: {problem}")]
    Unfit { host: String, problem: String },
    #[error("no rank can be started on {host}: {problem}")]
    OtherLayout { host: String, problem: String },
    #[error(transparent)]
    Copy(#[from] copies::CopyError),
    #[error(
        "life {life} (incarnation), which the nodes know, has continued without generation {generation}, which is no longer valid there; name a newer copy (--generation), or hosts whose disks hold nothing of the job"
    )]
    PassedOverByNodes { generation: GenerationId, life: transport::Life },
    #[error(
        "{} knows life {} of the job where {} knows life {}: it was restarted twice from the same state, and the two histories cannot be mixed; name the hosts of one history (--hosts), or remove the job's directory on the hosts of the other",
        .divergence.one.0, .divergence.one.1.life, .divergence.other.0, .divergence.other.1.life
    )]
    LivesDiverge { divergence: Box<Divergence> },
    #[error(
        "no life of the job begins from {job}: {problem}. Bring back the hosts that are missing; if another launcher has the job, it goes on there (`stillwire ps` on the job's hosts)"
    )]
    Unseated { problem: String, job: PathBuf },
    #[error("the job {}, as its nodes know; a person may restart it", if *.has_finished { "has finished" } else { "was ended" })]
    JobOver { has_finished: bool },
    #[error(
        "{host} knows life {life} of the job, which {job} does not: that one is an older state. If another host has continued the job, it runs there (`stillwire ps`). Otherwise name the directory with which the job ran last; if it is lost, continue from {path} on {host} (`stillwire restart`), or from a copy (`stillwire restart {job} --from LOCATION`)"
    )]
    NodeAhead { host: String, path: String, life: transport::Life, job: PathBuf },
    #[error(
        "job {job} runs already: process {pid} is its launcher (`stillwire ps`). End that one first (`stillwire kill {job}`)"
    )]
    JobRuns { job: String, pid: u32 },
    #[error("{path}: {error}")]
    Registry { path: PathBuf, error: io::Error },
    #[error(
        "other users may enter {path}; expected a folder of yours with mode 0700: run `chmod 700 {path}`, remove it, or set XDG_RUNTIME_DIR"
    )]
    RegistryNotOurs { path: PathBuf },
    #[error(
        "{path} cannot hold the sockets of running jobs: {exposure}. Set XDG_RUNTIME_DIR to a directory of your own{}",
        exposure.cure()
    )]
    RegistryExposed { path: PathBuf, exposure: Exposure },
    #[error("no running job has an id that begins with `{name}`; `stillwire ps` lists those that run")]
    NoSuchJob { name: String },
    #[error("{found} running jobs have ids that begin with `{name}`; give more digits")]
    JobAmbiguous { name: String, found: usize },
    #[error("job {job} does not answer: {error}; `stillwire ps` shows whether it still runs")]
    NoAnswer { job: String, error: io::Error },
    #[error(
        "job {job} has been silent for {limit:?}: waited for {awaited}; its launcher, process {pid}, is stopped or hangs (`stillwire ps`)"
    )]
    Silent { job: String, pid: u32, awaited: &'static str, limit: Duration },
    #[error("{path}: {}; expected {expected}", crate::text::io(.error))]
    File { path: PathBuf, error: io::Error, expected: &'static str },
}

impl From<StorageError> for LauncherError {
    fn from(error: StorageError) -> LauncherError {
        LauncherError::Store(error.into())
    }
}
