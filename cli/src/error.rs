//! Why a command could not be carried out.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ckpt_glue::error::{ConfigError, LayoutError};
use launcher::error::LauncherError;
use store::protect::GroupError;
use store::{GenerationId, StorageError, StoreError};

use crate::exit::Exit;

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    #[error("{path} could not be written: {error}")]
    NotWritten { path: PathBuf, error: io::Error },
    #[error(
        "no folder for this user's completions and man pages: neither XDG_DATA_HOME nor HOME is an absolute path; set one of them, or name a folder with --prefix"
    )]
    NoHome,
    #[error("no nic-helper: {0}")]
    NicHelper(#[from] drivers::xdp::helper::HelperError),
    #[error("{option} cannot be used here: the program is an MPI program ({library}). {instead}")]
    NotForMpi { option: &'static str, library: PathBuf, instead: &'static str },
    #[error("mpirun ({path}) could not be started: {error}")]
    Mpirun { path: PathBuf, error: io::Error },
    #[error("{problem} (--hosts)")]
    Hosts { problem: String },
    #[error("no other host can continue the job if its launcher is lost: {problem} (--on-launcher-loss)")]
    LauncherLoss { problem: String },
    #[error("{problem} (--domains)")]
    Domains { problem: String },
    #[error(transparent)]
    Parity(#[from] GroupError),
    #[error("the path {path} is not UTF-8: name another folder for nodes (--node-dir)")]
    NodeDirectoryName { path: PathBuf },
    #[error(
        "{problem}; each node of this job stores its images in its own directory, and its nodes were {names}. --hosts without numbers of ranks places these nodes on any number of hosts. `stillwire restart` moves images to nodes with other numbers of ranks (--hosts HOST:RANKS,..., --nodes), but not those of a copy (--from): restart from the copy first, then once more with other numbers"
    )]
    Placement { problem: String, names: String },
    #[error(
        "no generation of the job can be made whole on its nodes, so its images cannot move to other ones; the lines above list the losses. Name the hosts that have the images (--hosts), or bring a copy (`stillwire restart {path} --from LOCATION`)"
    )]
    NotGathered { path: PathBuf },
    #[error(
        "the job had {nodes} nodes ({names}), and {found} are named: no generation is committed in its directory whose images could move to other ones. Name as many, or no hosts"
    )]
    NodesWithoutGeneration { nodes: usize, names: String, found: usize },
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
    #[error("{path}: {error}")]
    Delta { path: PathBuf, error: store::delta::DeltaError },
    #[error("{path}: {error}")]
    Packets { path: String, error: store::packets::PacketsError },
    #[error("{error}")]
    CopyLocation { error: copies::LocationError },
    #[error(
        "copies of this job at {place} are encrypted, and the key is missing or another one: name the right key with --key-file or STILLWIRE_KEY, or another place with --flush-to"
    )]
    FlushKey { place: String },
    #[error(
        "copies of this job at {place} are signed, and the key is missing or another one: name the right key with --sign, or another place with --flush-to"
    )]
    FlushSign { place: String },
    #[error(
        "the copy of generation {generation} at {place} has no key that vouches for it, and its program is not run without your consent: look at the lines above, then add --trust. Copies that `run --sign FILE` writes are accepted with --sign FILE"
    )]
    NotTrusted { generation: GenerationId, place: String },
    #[error("not continued, as you wished: nothing was fetched from {place}, and nothing was run")]
    Declined { place: String },
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
    #[error("{path} exists already, and no file is overwritten: name another file, or remove it")]
    OutputExists { path: PathBuf },
    #[error("{path} does not name a file: name one, in UTF-8")]
    OutputName { path: PathBuf },
    #[error("{place}: expected a key of 64 hexadecimal digits; `openssl rand -hex 32` makes one")]
    NoKey { place: String },
    #[error(
        "the key file {path} belongs to user {owner} and has mode {mode:04o}: other users can read the key. Run `chmod 600 {path}`; if one of them may have read it, make a new key"
    )]
    KeyExposed { path: PathBuf, owner: u32, mode: u32 },
    #[error("{path}: the output of a detached job goes into files there, which cannot be made: {error}")]
    NotDetachable { path: PathBuf, error: io::Error },
    #[error(
        "the process that watches the detached job was killed before the job ran; `stillwire ps` shows whether the job runs, and `stillwire attach` its output"
    )]
    WatcherLost,
    #[error(
        "no running job has the id {name}, and it is no directory: `stillwire ps` lists running jobs; one that has ended goes by its directory"
    )]
    NothingToAttach { name: String },
    #[error(
        "{path}: this job was not started with --detach, so its output is printed where it was started, and not kept"
    )]
    NotDetached { path: PathBuf },
    #[error(
        "{path}: the job's launcher and the process that watches it are gone, and how the job ended is not recorded: continue it with `stillwire restart {path}`"
    )]
    NobodyWatches { path: PathBuf },
    #[error(
        "--detach: the job's rank has a terminal (--tty), and a detached job has none; restart it without --detach"
    )]
    TerminalDetached,
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
        "--sign signs copies, and none are written or read here: name a place for copies (--flush-to), or leave it out"
    )]
    SignOfNothing,
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
        "{option} is for --ckpt-every auto, which chooses the time between checkpoints: add that, or leave {option} out"
    )]
    NothingChosen { option: &'static str },
    #[error(
        "--domains is about nodes that protect each other; the nodes of this job do not, and a restart cannot change that: leave it out"
    )]
    DomainsOfNothing,
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
    #[error("{reason}")]
    NotTuned { reason: String },
    #[error("{reason}")]
    NotSuspected { reason: String },
    #[error("{path}: {reason}")]
    Policy { path: PathBuf, reason: String },
    #[error("{reason}")]
    NotDiagnosed { reason: String },
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
            | CliError::SignOfNothing
            | CliError::NothingToEncrypt
            | CliError::NoSuchReader { .. }
            | CliError::TerminalOfMany { .. }
            | CliError::TerminalDetached
            | CliError::EncryptWithNothing
            | CliError::LimitOfNothing { .. }
            | CliError::NothingChosen { .. }
            | CliError::Policy { .. }
            | CliError::DomainsOfNothing
            | CliError::LauncherLoss { .. }
            | CliError::CopyLocation { .. } => Exit::Usage,
            CliError::Stopped | CliError::BringingStopped { .. } => Exit::Stopped,
            CliError::ForDevelopers { .. }
            | CliError::Parity(_)
            | CliError::Placement { .. }
            | CliError::NodesWithoutGeneration { .. }
            | CliError::NodeDirectoryName { .. }
            | CliError::NotForMpi { .. }
            | CliError::PidNamespace { .. } => Exit::Usage,
            CliError::Launcher(
                LauncherError::Config(_)
                | LauncherError::Rails(_)
                | LauncherError::OtherMpi { .. }
                | LauncherError::NotReplaceable { .. },
            ) => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

/// Commands meet errors that the launcher has a variant for.
macro_rules! through_launcher {
    ($($error:ty),*) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> CliError {
                LauncherError::from(error).into()
            }
        })*
    };
}

through_launcher!(
    io::Error,
    StorageError,
    StoreError,
    LayoutError,
    ConfigError,
    copies::CopyError,
    drivers::RailsError,
    launcher::nodes::NoState
);
