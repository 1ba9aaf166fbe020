//! Why a command could not be carried out.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ckpt_glue::error::{ConfigError, LayoutError};
use store::protect::GroupError;
use store::{GenerationId, StorageError, StoreError};

use crate::exit::Exit;
use crate::launch::nodes::lives::Divergence;

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{path} could not be written: {error}")]
    NotWritten { path: PathBuf, error: io::Error },
    #[error(
        "no folder for this user's completions and man pages: neither XDG_DATA_HOME nor HOME is an absolute path; set one of them, or name a folder with --prefix"
    )]
    NoHome,
    #[error("no nic-helper: {0}")]
    NicHelper(#[from] drivers::xdp::helper::HelperError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
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
        "{program} needs {library}, and the loader does not find it; set LD_LIBRARY_PATH to the folder of the MPI library (`stillwire doctor {program}` shows what is found), or, if it is an MPICH, have the program run on another one (pip install mpich, or --mpi-from DIR)"
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
        "the program's MPI library {library} uses no libfabric, so it cannot load the provider, and no checkpoint would hold its messages. Install an MPICH that uses libfabric beside it (pip install mpich); the program then runs on that one. Or name the folder of an MPICH (--mpi-from DIR); `stillwire doctor PROGRAM` shows what is found"
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
    #[error("{option} cannot be used here: the program is an MPI program ({library}). {instead}")]
    NotForMpi { option: &'static str, library: PathBuf, instead: &'static str },
    #[error(
        "{ranks} ranks need {needed} open files of the launcher, and {found} are allowed; raise the limit (ulimit -n)"
    )]
    Descriptors { ranks: u32, needed: u64, found: u64 },
    #[error("mpirun ({path}) could not be started: {error}")]
    Mpirun { path: PathBuf, error: io::Error },
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
    #[error("{problem} (--hosts)")]
    Hosts { problem: String },
    #[error("{problem} (--domains)")]
    Domains { problem: String },
    #[error(transparent)]
    Parity(#[from] GroupError),
    #[error("the path {path} is not UTF-8: name another folder for nodes (--node-dir)")]
    NodeDirectoryName { path: PathBuf },
    #[error(
        "{problem}; each node of this job stores its images in its own directory, and the nodes were {names}: name as many, with the same ranks; in place of a lost one, name a spare, or a remaining host again. Ranks can be spread differently in jobs that were begun with --parity none, and without --node-dir"
    )]
    Places { problem: String, names: String },
    #[error(
        "the job's file names `{found}` as the nodes that protect each other; expected each of {nodes} node numbers once, such as 0,2;1,3; use the build that wrote it"
    )]
    Groups { found: String, nodes: usize },
    #[error(
        "--pid-namespace keeps the ids of programs that are saved as whole processes, and this one is not: {why}; start it without"
    )]
    PidNamespace { why: &'static str },
    #[error(
        "{path}: the images of this job lie in its directory, as it was begun with --parity none, or on one node, or by an earlier version, and not in directories of its nodes' own: there is nothing to rebuild them from; `stillwire verify {path}` reads them"
    )]
    NotOnNodes { path: PathBuf },
    #[error("no rank can be started on {host}: {problem}")]
    Unfit { host: String, problem: String },
    #[error("{path}: {error}")]
    Delta { path: PathBuf, error: store::delta::DeltaError },
    #[error("{path}: {error}")]
    Packets { path: String, error: store::packets::PacketsError },
    #[error(transparent)]
    Copy(#[from] copies::CopyError),
    #[error("{error}")]
    CopyLocation { error: copies::LocationError },
    #[error(
        "copies of this job at {place} are encrypted, and the key is missing or another one: name the right key with --key-file or STILLWIRE_KEY, or another place with --flush-to"
    )]
    FlushKey { place: String },
    #[error("there is no such copy at {place}; `stillwire ls {place}` lists what is there")]
    NoCopies { place: String },
    #[error("{place} has copies of several jobs: name one as {place}/JOB ({jobs})")]
    SeveralJobs { place: String, jobs: String },
    #[error("{path} holds job {known}, and the copy is of job {job}; name another directory")]
    OtherJob { path: PathBuf, known: transport::JobId, job: transport::JobId },
    #[error(
        "life {life} (incarnation) of the job in {path} has continued without generation {generation}, which is no longer valid there; name another directory"
    )]
    PassedOver { generation: GenerationId, life: transport::Life, path: PathBuf },
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
        "{host} knows life {life} of the job, which {job} does not: that one is an older state. Name the directory with which the job ran last; if it is lost, continue from {path} on {host} (`stillwire restart`), or from a copy (`stillwire restart {job} --from LOCATION`)"
    )]
    NodeAhead { host: String, path: PathBuf, life: transport::Life, job: PathBuf },
    #[error("{path} exists already, and no file is overwritten: name another file, or remove it")]
    OutputExists { path: PathBuf },
    #[error("{path} does not name a file: name one, in UTF-8")]
    OutputName { path: PathBuf },
    #[error("{place}: expected a key of 64 hexadecimal digits; `openssl rand -hex 32` makes one")]
    NoKey { place: String },
    #[error("stopped; no unfinished file is left")]
    Stopped,
    #[error(
        "stopped after {bytes} of {of}: complete images stay in {path}, where generation {generation} is not valid yet; repeat the command to fetch the rest"
    )]
    BringingStopped { generation: GenerationId, bytes: String, of: String, path: PathBuf },
    #[error(
        "--key-file is the key of encrypted images and of copies, and this job has none: encrypt images (--encrypt), name a place for copies (--flush-to), or leave it out"
    )]
    KeyOfNothing,
    #[error(
        "{}: images of this job are encrypted, but its job file names no key for new ones: the file was changed, or belongs to another job; restore it (nodes have copies of it)",
        path.display()
    )]
    EncryptedUnsaid { path: PathBuf },
    #[error(
        "--encrypt encrypts images, and no option asks for checkpoints: add {}, or leave it out",
        crate::arguments::checkpoint_options!()
    )]
    NothingToEncrypt,
    #[error(
        "--tty: a terminal belongs to one program, and this job has {ranks} ranks; start it with -n 1, or without --tty"
    )]
    TerminalOfMany { ranks: u32 },
    #[error("--stdin {rank}: there is no such rank among {ranks}; ranks are numbered from 0")]
    NoSuchReader { rank: u32, ranks: u32 },
    #[error(
        "--encrypt needs a key: name it with --key-file or STILLWIRE_KEY (`openssl rand -hex 32` makes one)"
    )]
    EncryptWithNothing,
    #[error(
        "the images of this job are encrypted, and no key was given: name the one called {name} with --key-file or STILLWIRE_KEY"
    )]
    NoImageKey { name: String },
    #[error(
        "the images of this job are encrypted with the key called {name}, and the one that was given is called {found}: name the job's own with --key-file or STILLWIRE_KEY"
    )]
    OtherImageKey { name: String, found: String },
    #[error(
        "{option} is about parity between nodes, and no node protects another one, which takes two nodes or more (--hosts, --nodes), checkpoints ({}), and no --parity none: add what is missing, or leave {option} out",
        crate::arguments::checkpoint_options!()
    )]
    LimitOfNothing { option: &'static str },
    #[error(
        "--domains is about nodes that protect each other; the nodes of this job do not, and a restart cannot change that: leave it out"
    )]
    DomainsOfNothing,
    #[error("{path}: {error}")]
    Registry { path: PathBuf, error: io::Error },
    #[error(
        "{path} belongs to another user, or other users may enter it; expected a folder of yours with mode 0700: remove it, or set XDG_RUNTIME_DIR"
    )]
    RegistryNotOurs { path: PathBuf },
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
    #[error(
        "ranks cannot receive on {address}: {error}; expected an address of this host for --bind (`ip address` lists them)"
    )]
    Bind { address: IpAddr, error: io::Error },
    #[error(
        "{path} holds a job already; continue it (`stillwire restart {path}`), or name another directory"
    )]
    DirectoryTaken { path: PathBuf },
    #[error("{path} holds no job: expected a directory that `stillwire run --ckpt-dir` made")]
    NoJob { path: PathBuf },
    #[error("{path}: another launcher works on this job; stop it first (`stillwire ps`, `stillwire kill`)")]
    Locked { path: PathBuf },
    #[error(
        "the job has no committed generation to restart from; start it anew (`stillwire run`), or `stillwire ls` shows what is there"
    )]
    NothingToRestart,
    #[error(
        "this job finished at {at} UTC; there is nothing to restart. To run its last part again, name a generation (--generation), if `stillwire ls` lists one"
    )]
    Finished { at: String },
    #[error("generation {generation} cannot be restored: {problem}; `stillwire ls` lists the others")]
    Damaged { generation: GenerationId, problem: String },
    #[error(
        "no life of the job has a committed generation with epoch {epoch}; `stillwire ls` lists those that are"
    )]
    NoSuchEpoch { epoch: u32 },
    #[error("{path}: {error}")]
    PortSection { path: String, error: nic_freeze::LoadError },
    #[error("{path}: {}; expected {expected}", crate::text::io(.error))]
    File { path: PathBuf, error: io::Error, expected: &'static str },
    #[error(
        "{path}: expected an image, a manifest or another file in a job's directory, a delta, or a packed file of a copy, found {found}; `stillwire ls DIR` lists a job's generations, whose files lie in life-*/epoch-* of DIR, or of the directories of its nodes' own"
    )]
    NotOfAJob { path: PathBuf, found: &'static str },
    #[error(
        "{path} cannot be made: No such file or directory, though the folder above it is there; its file system has no folders of people's own (as /proc), or it has been removed: name another directory with --ckpt-dir"
    )]
    DirectoryNotMade { path: PathBuf },
    #[error("{reason}")]
    CheckpointFailed { reason: String },
    #[error("{reason}")]
    NotMoved { reason: String },
    #[error(transparent)]
    Rails(#[from] drivers::RailsError),
    #[error(
        "`{command}` is a command of `stillwire-dev`, the program for developers, which holds the simulator and the benches: in the source tree, cargo run --release --package stillwire-dev -- {command} ..."
    )]
    ForDevelopers { command: &'static str },
}

impl CliError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            CliError::Damaged { .. } => Exit::Unverified,
            CliError::KeyOfNothing
            | CliError::NothingToEncrypt
            | CliError::NoSuchReader { .. }
            | CliError::TerminalOfMany { .. }
            | CliError::EncryptWithNothing
            | CliError::LimitOfNothing { .. }
            | CliError::DomainsOfNothing
            | CliError::CopyLocation { .. } => Exit::Usage,
            CliError::Stopped | CliError::BringingStopped { .. } => Exit::Stopped,
            CliError::Config(_)
            | CliError::ForDevelopers { .. }
            | CliError::Rails(_)
            | CliError::Parity(_)
            | CliError::Places { .. }
            | CliError::NodeDirectoryName { .. }
            | CliError::NotForMpi { .. }
            | CliError::OtherMpi { .. }
            | CliError::NotReplaceable { .. }
            | CliError::PidNamespace { .. } => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

impl From<StorageError> for CliError {
    fn from(error: StorageError) -> CliError {
        CliError::Store(error.into())
    }
}
