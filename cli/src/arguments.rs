//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use agent::CaptureMode;
use ckpt_glue::config::{OnExit, OnFault};
use ckpt_glue::limits::CHECKPOINT_EVERY_MIN;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use console::number;
use copies::CopyLocation;
use drivers::{NicChoice, RailChoice};
use store::GenerationId;

use crate::commands::copies::FlushArguments;
use crate::commands::hosts::HostArguments;
use crate::commands::key::KeyArgument;
use crate::commands::protection::ProtectionArguments;
use crate::commands::stdin::{StdinArguments, StdinChange};
use crate::exit::Exit;
use crate::launch::Addresses;
use crate::mpi::MpiChoice;
use crate::mpi::replacement::MpiFrom;

const ABOUT: &str = "Run, checkpoint and restart parallel programs that survive failures";

const LONG_ABOUT: &str = "\
Run, checkpoint and restart parallel programs that survive failures.

`stillwire run` starts a program on many ranks. Their messages go over a transport whose state can be frozen at any \
instant, so a checkpoint is a local act of each rank: no barrier, no draining, pauses of milliseconds or less. When a \
rank dies, the job rolls back to its last checkpoint by itself and goes on.

Begin with `stillwire demo`: it sorts integers on four processes, takes checkpoints under full traffic, kills one \
process, and shows what happens.";

/// The options with which a program is checkpointed: any of them.
macro_rules! checkpoint_options {
    () => {
        "--ckpt-every, --ckpt-dir, --time-limit, --parity, --node-dir or --flush-to"
    };
}
pub(crate) use checkpoint_options;

#[derive(Debug, Parser)]
#[command(name = "stillwire", version = crate::launch::VERSION, about = ABOUT, long_about = LONG_ABOUT, after_long_help = Exit::HELP)]
#[command(max_term_width = 110, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// Print one JSON object on standard output; everything else goes to standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program on many ranks
    #[command(long_about = concat!("\
Run a program on many ranks, checkpoint it, and roll it back when a rank is killed or a node is lost.

Each rank is a process of its own; its output is shown with its rank in front. When a rank exits with a code other than 0, or calls MPI_Abort, \
the job ends with that code (--on-exit).

MPI programs run as they are: `stillwire run -n 4 -- python3 script.py`, `stillwire run -n 4 -- ./a.out`. What a program \
links, or what mpi4py loads in a python program that imports it, shows which MPI library it uses (--mpi overrides). Programs of MPICH and Intel MPI are started here, with the libfabric provider \
(libstillwire_fi.so, beside this program, in ../lib, or where STILLWIRE_PROVIDER says) as their only network. Open MPI's are \
handed to its own mpirun, with the provider selected, and cannot be saved yet. A program of an MPICH without libfabric, as Debian's, runs on one \
that has it (--mpi-from).

With ", checkpoint_options!(), " programs are checkpointed and rolled back: those that use the `session` interface at the points that \
they name, all others as whole processes, at any instant. An MPI program without any of these is ended when a rank dies. Several \
nodes (--hosts, --nodes) keep what it takes to rebuild the images of one of them that is lost (--parity).

With --time-limit the job ends by itself. A last checkpoint begins so early that it is durable in time: three times as long before \
the limit as the longest one took, and at least 1s; if none has been taken yet, as long as one may take (--ckpt-timeout), but not \
in the first half of the limit. `stillwire restart` goes on, with a limit of the same length or its own."))]
    Run(Box<RunArguments>),
    /// Take a checkpoint of a running job now, and wait until it is durable
    Checkpoint(JobArgument),
    /// Go on with a job whose processes are gone, from its last checkpoint
    #[command(long_about = "\
Go on with a job whose processes are gone, from its last checkpoint.

DIR is the job's directory: everything that is needed (program, arguments, ranks, settings) stands in it. Damaged \
generations are passed over, with a message, in favour of the newest whole one. A job that has finished is not restarted, \
unless you name a generation to begin from. Each restart is a life of its own: two \
restarts of one generation never mix.

Options about hosts, domains, addresses, the NIC and copies, --on-exit and --pid-namespace become the job's defaults once all ranks are running. \
--generation, --from, --key-file, --time-limit and --no-pid-namespace are for this run alone.")]
    Restart(Box<RestartArguments>),
    /// Rebuild what nodes of a job that does not run have lost
    #[command(long_about = "\
Rebuild what nodes of a job that does not run have lost: images and parity of its newest generation that can be had, on nodes that were emptied, on spares \
(--hosts), and wherever bytes are damaged. `restart` does that too, before any rank starts. Ends with exit code 3 if no generation is whole on all \
nodes afterwards. What it is told of hosts, domains and addresses is for it alone: a restart on a spare is told again.")]
    Repair(RepairArguments),
    /// List the running jobs and their ranks
    #[command(long_about = "\
List the running jobs and their ranks: what each is doing, in which process, in which epoch, and of the last checkpoint how long \
it stood still for it and the size of its image. Of a job of many ranks those that do the same are one line; --json has every one.")]
    Ps,
    /// Have ranks of a running job reach other hosts over another NIC
    #[command(long_about = "\
Have ranks of a running job reach other hosts over another NIC.

The ranks run on, and nothing of what they send is lost or comes twice. Where a NIC takes the place of another one at the address that peers know, as \
UDP and AF_XDP do on one device, each rank stops for as long as it takes to open it, and goes on as it was if it cannot have it. Where the address \
is another one, as to and from RDMA, or on another device, all ranks change together (so without --rank): each opens the new NIC beside the old one, and \
closes the old one when all ranks reach each other over the new. If one cannot, or does not answer, nobody changes. The command says what each rank has, \
or why not, and fails if one has not. Ranks that are rolled back later come back over the NIC that they were given. \
What all ranks went over last `restart` goes over, too, unless it has a --nic of its own, or hosts that were not there before: then by the --nic that was named last.

A job whose RDMA device fails under it, such as by its port going down, goes over to udp by itself, and later lives of it, too, until it is told otherwise.")]
    Rail(RailArguments),
    /// End a running job; its checkpoints stay
    Kill(JobArgument),
    /// List the generations in a job's directory
    Ls(DirectoryArgument),
    /// Show what an image, manifest or other file of a job holds
    Inspect(InspectArguments),
    /// Check every byte of a job's generations
    Verify(VerifyArguments),
    /// Write what of a file has changed, put it together again, keep checkpoints of it: sign, make, apply, add, get, ls
    #[command(long_about = "\
Write what of a file has changed, put it together again, keep checkpoints of it.

`sign`, `make` and `apply` read and write files that you name. `make` compares a file with a base, or with the base's signature, which is a 256th \
of it, and writes the blocks that differ. `apply` puts deltas on a base, or on a full one. `add`, `get` and `ls` keep checkpoints of one file in a folder: \
numbers, signatures and bases are chosen there.

Blocks are compressed in packets where that pays. Every byte is checked when it is read. No file is written over, and what was not finished is removed.")]
    Delta {
        #[command(subcommand)]
        command: crate::commands::delta::DeltaCommand,
    },
    /// Sort integers on four processes, kill one, and watch the job recover
    #[command(long_about = "\
Sort integers on four processes over UDP, with bursts of messages in flight at every checkpoint; kill one process with SIGKILL at a \
random instant; let the job roll back by itself; verify the result.

Where mpicc is MPICH's, or of its family, and libstillwire_fi.so is beside this program, the program is an MPI program that knows \
nothing of checkpoints: it is compiled, rehearsed for a moment, and saved as whole processes. Else, and with --native, it is NAS IS \
with its official verification, which names the points at which it is saved; one line says why.

Prints a timeline: checkpoints with the pause of each rank and its parts, the messages that were saved in each of the five \
states, bytes, and the times of detection and recovery. Ends with exit code 0 only if the result is verified and at least \
three checkpoints were committed, one process was killed, and one rollback happened.")]
    Demo(DemoArguments),
    /// Print the variables with which your own mpiexec finds the libfabric provider
    #[command(long_about = "\
Print the variables with which your own mpiexec finds the libfabric provider, for a shell: eval \"$(stillwire env)\". \
MPICH and Intel MPI take them as they are; Open MPI's mpirun wants -x FI_PROVIDER_PATH -x FI_PROVIDER besides.")]
    Env {
        /// Folder of libstillwire_fi.so; by default the one of this program, or ../lib, or STILLWIRE_PROVIDER
        #[arg(long, value_name = "DIR")]
        provider_dir: Option<PathBuf>,
    },
    /// Look at what a program would run over, and at what this machine allows
    #[command(long_about = "\
Look at what a program would run over, and at what this machine allows: which MPI library and which libfabric the program \
really loads, whether that takes the provider, and what the kernel permits. What is wrong is shown with what to do about it.

With --pid it looks at a process that runs: whether it could be saved by a checkpoint, and what speaks against it.

Without a program it looks at the provider and the machine. Ends with exit code 3 if something does not work; what is only \
slow is no reason.")]
    Doctor {
        /// A process that runs: could it be saved?
        #[arg(long, value_name = "N", conflicts_with = "program")]
        pid: Option<u32>,
        #[command(flatten)]
        mpi: MpiArguments,
        /// The program, as it is given to `run`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        program: Vec<OsString>,
    },
    /// Install completions of shells and man pages for this user
    #[command(long_about = crate::commands::completions::LONG_ABOUT)]
    InstallCompletions(crate::commands::completions::CompletionArguments),
    /// Open AF_XDP sockets for ranks that have no rights, as root
    #[command(long_about = crate::commands::nic_helper::LONG_ABOUT)]
    NicHelper(crate::commands::nic_helper::NicHelperArguments),
    /// Run one of the example programs: is, burst or ring
    #[command(disable_help_flag = true)]
    Example(Passed),
    /// Says where the simulator is
    #[command(hide = true, disable_help_flag = true)]
    Sim(Passed),
    /// Says where the benches are
    #[command(hide = true, disable_help_flag = true)]
    Bench(Passed),
}

/// What this program starts of itself. These are no commands of people: no help lists them, and none is proposed to somebody
/// who has misspelt one.
#[derive(Debug, Parser)]
#[command(name = "stillwire", disable_help_subcommand = true)]
pub(crate) struct OwnArguments {
    #[command(subcommand)]
    pub(crate) command: OwnCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OwnCommand {
    /// Clean up after a launcher that was killed
    #[command(name = "__guard")]
    Guard {
        /// The job's id
        job: String,
        /// The job's directory
        directory: PathBuf,
    },
    /// Keep the ranks of a node, for the launcher at the other end of standard input and output
    #[command(name = "__keeper")]
    Keeper,
    /// Be the first process of a pid namespace, for the keeper that has made it
    #[command(name = "__first")]
    First,
    /// Answer a question of `doctor` in a process of its own
    #[command(name = "__probe")]
    Probe {
        #[command(subcommand)]
        probe: crate::commands::doctor::probe::Probe,
    },
    /// The program that `demo` runs on each rank
    #[command(name = "__demo-rank")]
    DemoRank(DemoRankArguments),
}

/// Arguments of a program in this executable that reads them itself.
#[derive(Debug, Args)]
pub(crate) struct Passed {
    /// Its arguments; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}

/// What is done when a rank dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FaultAction {
    /// Roll back to the last checkpoint and go on
    Restart,
    /// End the job with a report; its checkpoints stay
    Abort,
}

impl From<FaultAction> for OnFault {
    fn from(action: FaultAction) -> OnFault {
        match action {
            FaultAction::Restart => OnFault::Restart,
            FaultAction::Abort => OnFault::Abort,
        }
    }
}

/// What is done when a rank ends by itself with an exit code, before it has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ExitAction {
    /// End the job with that code; its checkpoints stay
    Fail,
    /// Treat it as a fault: --on-fault decides
    Restart,
}

impl From<ExitAction> for OnExit {
    fn from(action: ExitAction) -> OnExit {
        match action {
            ExitAction::Fail => OnExit::Fail,
            ExitAction::Restart => OnExit::Restart,
        }
    }
}

/// What tags of data frames cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum AuthArgument {
    /// Header, length and number of each frame
    Header,
    /// The payload too
    Full,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// How many ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = number::<u32>(1..=4096))]
    pub(crate) ranks: u32,
    #[command(flatten)]
    pub(crate) mpi: MpiArguments,
    #[command(flatten)]
    pub(crate) checkpoint: CheckpointArguments,
    #[command(flatten)]
    pub(crate) fault: FaultArguments,
    #[command(flatten)]
    pub(crate) protection: ProtectionArguments,
    #[command(flatten)]
    pub(crate) flush: FlushArguments,
    #[command(flatten)]
    pub(crate) key: KeyArgument,
    #[command(flatten)]
    pub(crate) hosts: HostArguments,
    /// Address on which ranks receive that run here; parity between nodes goes over further networks, too: 10.0.0.1+10.1.0.1
    #[arg(long, value_name = "IP[+IP]", default_value = "127.0.0.1")]
    pub(crate) bind: Addresses,
    /// What the authentication of frames covers; by default the payload too unless --bind is a loopback address
    #[arg(long, value_enum)]
    pub(crate) auth: Option<AuthArgument>,
    #[command(flatten)]
    pub(crate) nic: NicArgument,
    /// Over what ranks talk: auto, shared memory within the host and the NIC otherwise; nic or shm, one of them alone; udp, the NIC alone, which is UDP;
    /// by default what STILLWIRE_RAILS says, or auto
    #[arg(long, value_parser = PossibleValuesParser::new(RailChoice::ALL.map(RailChoice::name)))]
    pub(crate) rails: Option<String>,
    /// Write down every frame of every rail of the ranks, in pcapng files in this folder, which is made; `stillwire inspect` explains them
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    /// Set a variable in the program's environment; may be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = environment_entry)]
    pub(crate) environment: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) stdin: StdinArguments,
    /// Print only what the program prints, and errors; lines of the only rank (-n 1) as they are, without its number in front
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArguments {
    /// Time from one checkpoint to the next, such as 5m, 30s, 250ms; without it, only on command (`checkpoint`, or SIGUSR1 to this process)
    #[arg(long = "ckpt-every", value_name = "D", value_parser = duration_argument)]
    pub(crate) every: Option<Duration>,
    /// The job's directory, made if it does not exist. Without it: ./stillwire-JOB if checkpoints are wanted otherwise, else a
    /// temporary one that goes when the job has ended well or committed nothing
    #[arg(long = "ckpt-dir", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Time that one checkpoint may take, from the command until all images are durable; then it is given up. Below a limit of the disk (--encode-budget disk=RATE)
    /// images take as long as the limit says, and this has to be longer
    #[arg(long = "ckpt-timeout", value_name = "D", default_value = "1m", value_parser = duration_argument)]
    pub(crate) timeout: Duration,
    /// Time after which the job ends, with a last checkpoint shortly before it (exit code 5: go on with `restart`)
    #[arg(long, value_name = "D", value_parser = duration_argument)]
    pub(crate) time_limit: Option<Duration>,
    /// Generations that are kept: the newest ones
    #[arg(long, value_name = "G", default_value_t = 2, value_parser = number::<u32>(1..=65536))]
    pub(crate) keep: u32,
    /// How programs that are saved as whole processes are captured: whole, by a fork; by a scan, that is, a copy of the pages that were written, on
    /// top of a whole image that a fork took (Linux 6.7); by content, where a fork finds out what has changed; whole, in sync, while the
    /// program waits; or auto: a scan where its pause is shorter than a fork's, else by content, and whole where most has changed [default: auto]
    #[arg(long, value_parser = PossibleValuesParser::new(CaptureMode::ALL.map(|(name, _)| name)), hide_possible_values = true)]
    pub(crate) capture: Option<String>,
    /// Give each rank a pid namespace: a process that is saved as a whole, and its threads, have the same ids in every life (Linux 5.9). Without it
    /// they get new ones, which the C library is told, and programs that keep ids of their own are not. `doctor` says whether it can be had
    #[arg(long)]
    pub(crate) pid_namespace: bool,
    /// Encrypt images, and so their parity, with the key of --key-file or STILLWIRE_KEY, which `restart` needs then, too; whoever loses the key loses the job. `verify`, `repair` and `ls` need none
    #[arg(long)]
    pub(crate) encrypt: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FaultArguments {
    /// What the job does when a signal kills a rank or a node is lost: restart rolls it back to the last checkpoint, abort ends it. An MPI program without
    /// checkpoints is always ended [default: restart]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) on_fault: Option<FaultAction>,
    /// What the job does when a rank exits with a code other than 0, or before it has finished: fail ends the job with that code, restart treats it as a
    /// fault (--on-fault). MPI_Abort always ends the job [default: fail]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) on_exit: Option<ExitAction>,
    /// How often the job restarts after faults since the last checkpoint before it gives up; the pause before each attempt grows from 200 ms to 5 s
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = number::<u32>(0..=65536))]
    pub(crate) retries: u32,
    /// How long a rank that calls MPI_Init or opens a session waits there for the other ranks; then the job ends. Ranks that do neither simply run. After a
    /// fault or a restart: how long all ranks may take to be restored
    #[arg(long, value_name = "D", default_value = "1m", value_parser = duration_argument)]
    pub(crate) start_timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct RestartArguments {
    /// The job's directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Bring a copy into DIR first, which may be missing: from the place that --flush-to named, of several jobs as LOCATION/JOB
    #[arg(long, value_name = "LOCATION")]
    pub(crate) from: Option<CopyLocation>,
    /// The generation to restart from, as `ls` writes it (2.00000000deadbeef/3), or its epoch alone in the newest life
    #[arg(long, value_name = "G", value_parser = generation_argument)]
    pub(crate) generation: Option<GenerationArgument>,
    /// Time after which this run of the job ends, and only this one, with a last checkpoint shortly before it; by default what `run` was told
    #[arg(long, value_name = "D", value_parser = duration_argument)]
    pub(crate) time_limit: Option<Duration>,
    /// What the job does when a rank exits with a code other than 0, from now on: fail or restart, as for `run` [default: as before]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) on_exit: Option<ExitAction>,
    /// By default as before
    #[command(flatten)]
    pub(crate) flush: FlushArguments,
    #[command(flatten)]
    pub(crate) key: KeyArgument,
    /// By default as the job ran last; given here, what was said before of hosts does not count, now and later
    #[command(flatten)]
    pub(crate) hosts: HostArguments,
    /// Address on which ranks receive that run here; by default as the job ran last
    #[arg(long, value_name = "IP[+IP]")]
    pub(crate) bind: Option<Addresses>,
    #[command(flatten)]
    pub(crate) nic: NicArgument,
    /// Give each rank a pid namespace, in which it has the ids of its image; from now on; by default if `run` or a restart was told so
    #[arg(long)]
    pub(crate) pid_namespace: bool,
    /// Give ranks new ids in this run, although `run` was told otherwise: where no pid namespaces are to be had
    #[arg(long, conflicts_with = "pid_namespace")]
    pub(crate) no_pid_namespace: bool,
    #[command(flatten)]
    pub(crate) stdin: StdinChange,
    /// Print only what the program prints, and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArguments {
    /// The job's directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The generation to rebuild, as `ls` writes it (2.00000000deadbeef/3), or its epoch alone in the newest life [default: all that are kept, the
    /// newest first]
    #[arg(long, value_name = "G", value_parser = generation_argument)]
    pub(crate) generation: Option<GenerationArgument>,
    /// By default as before
    #[command(flatten)]
    pub(crate) hosts: HostArguments,
    /// Address on which nodes receive that are here; by default as before
    #[arg(long, value_name = "IP[+IP]")]
    pub(crate) bind: Option<Addresses>,
    /// Print only the result, and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Which MPI library a program uses, and where it comes from: the same for `run` and `doctor`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MpiArguments {
    /// Which MPI library the program uses: auto, the one that it loads; of a python program the one of mpi4py, if its text imports that; any other program
    /// that loads one while it runs is noticed then. none: the ranks are processes that do not talk over MPI. mpich, intel, openmpi: this one, although
    /// nothing shows it before the program runs, as where a script starts it
    #[arg(
        long = "mpi",
        value_enum,
        value_name = "LIBRARY",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) library: MpiChoice,
    /// Run a program of MPICH, MVAPICH or Intel MPI on the MPICH in this folder (a virtual environment, an installation, or its folder of libraries), which must
    /// use libfabric; the program is not changed. auto: on the one that is found (beside the program, in the active virtual or conda environment, beside
    /// PATH, in ~/.local), if the program's own library cannot load the provider, as Debian's MPICH cannot; on its own otherwise. `restart` goes on with the same
    /// [default: auto]
    #[arg(long = "mpi-from", value_name = "DIR")]
    mpi_from: Option<MpiFrom>,
}

impl MpiArguments {
    pub(crate) fn from(&self) -> MpiFrom {
        self.mpi_from.clone().unwrap_or_default()
    }
}

/// Over which NIC ranks reach other hosts: the same for `run` and `restart`.
#[derive(Debug, Default, Args)]
pub(crate) struct NicArgument {
    /// Over which NIC ranks reach other hosts: udp, the kernel's sockets; udp:INTERFACE, those at an address of that interface; xdp:INTERFACE, AF_XDP on an interface, at the address on which ranks
    /// receive if that is one of its own, for one rank on each host, with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or for as many as it has queues, without rights, where `stillwire nic-helper`
    /// runs; verbs:DEVICE, RDMA, and verbs alone, RDMA on the device that has that address; auto, AF_XDP where a rank has a host and an interface to itself, without copies, and the system permits it, else UDP (`ps` says which, and why). What is named and cannot be had is an error. By
    /// default what STILLWIRE_NIC says, or auto; a restart may name another one than the job was saved on, for itself and those after it, and goes over what the job went over last otherwise
    #[arg(long = "nic", value_name = "NIC", value_parser = nic_argument)]
    pub(crate) choice: Option<NicChoice>,
}

fn nic_argument(text: &str) -> Result<NicChoice, String> {
    text.parse().map_err(|error: drivers::nic::UnknownNic| error.to_string())
}

/// A generation as people name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GenerationArgument {
    Whole(GenerationId),
    /// In the newest life that has a committed generation of this epoch.
    Epoch(u32),
}

#[derive(Debug, Args)]
pub(crate) struct JobArgument {
    /// The beginning of the job's id, as `ps` shows it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
}

#[derive(Debug, Args)]
pub(crate) struct RailArguments {
    #[command(flatten)]
    pub(crate) job: JobArgument,
    /// The NIC, as for `run`: udp, udp:INTERFACE, xdp:INTERFACE, verbs, verbs:DEVICE, or auto
    #[arg(long, value_name = "NIC", value_parser = nic_argument)]
    pub(crate) nic: NicChoice,
    /// Of which rank: its number, or all
    #[arg(long, value_name = "R", default_value = "all")]
    pub(crate) rank: RankArgument,
}

/// One rank, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RankArgument(pub(crate) Option<u32>);

impl FromStr for RankArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<RankArgument, String> {
        if text == "all" {
            return Ok(RankArgument(None));
        }
        let number = text.parse().map_err(|_| format!("expected a rank's number, or all, found `{text}`"))?;
        Ok(RankArgument(Some(number)))
    }
}

#[derive(Debug, Args)]
pub(crate) struct DirectoryArgument {
    /// The job's directory, or a place of copies (--flush-to)
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// An image, a manifest or another record, a file of parity, a delta or signature of `stillwire delta`, a packed file of a copy, frames captured by --pcap
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgument,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The job's directory, or a place of copies (--flush-to)
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Only this generation
    #[arg(long, value_name = "G", value_parser = generation_argument)]
    pub(crate) generation: Option<GenerationArgument>,
    #[command(flatten)]
    pub(crate) key: KeyArgument,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Kill the process so many milliseconds after the third checkpoint; by default at a random instant
    #[arg(long, value_name = "MS", value_parser = number::<u64>(0..=3_600_000))]
    pub(crate) kill_after: Option<u64>,
    /// Repeat the benchmark at least so often, each time with all its verifications
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) rounds: u32,
    /// Problem class: S (65,536 keys), W (1,048,576) or A (8,388,608)
    #[arg(long, default_value = "W", ignore_case = true, value_parser = ["S", "W", "A"])]
    pub(crate) class: String,
    /// Show the program with points of its own, even if an MPI program can be had
    #[arg(long)]
    pub(crate) native: bool,
    /// Keep the job's directory, and say where it is
    #[arg(long, value_name = "DIR")]
    pub(crate) keep_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoRankArguments {
    /// Problem class
    #[arg(long)]
    pub(crate) class: String,
    /// Rounds at least
    #[arg(long)]
    pub(crate) rounds: u32,
    /// Go on until this file exists
    #[arg(long)]
    pub(crate) until: PathBuf,
}

fn environment_entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("expected NAME=VALUE, found `{text}`")),
    }
}

/// A time that something may take, or that passes between two things.
pub(crate) fn duration_argument(text: &str) -> Result<Duration, String> {
    let duration = ckpt_glue::parse_duration(text).map_err(|error| error.to_string())?;
    if duration < CHECKPOINT_EVERY_MIN {
        return Err(format!("expected at least {}", ckpt_glue::write_duration(CHECKPOINT_EVERY_MIN)));
    }
    Ok(duration)
}

fn generation_argument(text: &str) -> Result<GenerationArgument, String> {
    let whole = || text.parse().map(GenerationArgument::Whole);
    text.parse().map(GenerationArgument::Epoch).or_else(|_| whole()).map_err(|_: store::job::NotAGenerationId| {
        "expected a generation as `stillwire ls` lists it, such as 2.00000000deadbeef/3, or its epoch alone, such as 3".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        OwnArguments::command().debug_assert();
    }
}
