//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use agent::CaptureMode;
use ckpt_glue::config::{OnExit, OnFault};
use ckpt_glue::limits::CHECKPOINT_EVERY_MIN;
use ckpt_glue::recovery::Policy;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use console::number;
use copies::CopyLocation;
use drivers::{NicChoice, RailChoice};
use launcher::Addresses;
use launcher::mpi::MpiChoice;
use launcher::mpi::replacement::MpiFrom;
use store::GenerationId;

use crate::commands::copies::FlushArguments;
use crate::commands::diagnose::DiagnoseArguments;
use crate::commands::hosts::HostArguments;
use crate::commands::interval::{IntervalArguments, TuneArguments};
use crate::commands::jobs::RailArguments;
use crate::commands::key::{KeyArgument, SignArgument};
use crate::commands::protection::ProtectionArguments;
use crate::commands::recovery::{RecoveryCommand, SuspectArguments};
use crate::commands::stdin::{StdinArguments, StdinChange};
use crate::commands::succession::SuccessionArguments;
use crate::exit::Exit;

const ABOUT: &str = "Run, checkpoint and restart parallel programs that survive failures";

const LONG_ABOUT: &str = "\
Run, checkpoint and restart parallel programs that survive failures.

`stillwire run` starts a program on many ranks. Their messages go over a transport whose state can be frozen at any \
instant, so each rank takes its checkpoint locally: no barrier, no draining, pauses of milliseconds or less. When a \
rank dies, the job rolls back to its last checkpoint by itself and continues.

Begin with `stillwire demo`: it sorts integers on four processes, takes checkpoints under full traffic, kills one \
process, and shows what happens.";

pub(crate) use launcher::checkpoint_options;

#[derive(Debug, Parser)]
#[command(name = "stillwire", version = launcher::VERSION, about = ABOUT, long_about = LONG_ABOUT, after_long_help = Exit::HELP)]
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
Run a program on many ranks, checkpoint it, and roll it back when a signal kills a rank or a node is lost.

Each rank is a separate process; `run` prints its output with the rank's number in front. When a rank exits with a code other than 0, or calls MPI_Abort, \
the job ends with that code (--on-exit).

MPI programs run unchanged: `stillwire run -n 4 -- python3 script.py`, `stillwire run -n 4 -- ./a.out`. The libraries of the program show which MPI it uses; \
for a python program that imports mpi4py, the library of mpi4py does (--mpi overrides). `run` itself starts programs of MPICH and Intel MPI, with the libfabric provider \
as their only network (libstillwire_fi.so, beside this program, in ../lib, or where STILLWIRE_PROVIDER says). Open MPI's own mpirun \
starts its programs, with the provider selected; they cannot be saved yet. If the program's MPICH has no libfabric, as Debian's, the program runs on an MPICH \
that has it (--mpi-from).

With ", checkpoint_options!(), ", `run` checkpoints the program and rolls it back. Programs with the `session` interface are saved at the points that \
they name, all others as whole processes, at any instant. Without any of these options, the death of a rank ends an MPI program. Several \
nodes (--hosts, --nodes) store parity, from which the images of a lost node are rebuilt (--parity).

With --time-limit the job ends by itself, after a last checkpoint. It begins before the limit by three times the duration of the longest checkpoint so far, \
and by at least 1s. If the job has taken none yet, it begins before the limit by --ckpt-timeout, but not in the first half of the limit. \
`stillwire restart` continues the job, with a limit of the same length or its own."))]
    Run(Box<RunArguments>),
    /// Show the output of a detached job until its end
    #[command(long_about = crate::commands::attach::LONG_ABOUT)]
    Attach(AttachArguments),
    /// Take a checkpoint of a running job now, and wait until it is durable
    Checkpoint(JobArgument),
    /// Continue a job whose processes are gone, from its last checkpoint
    #[command(long_about = "\
Continue a job whose processes are gone, from its last checkpoint.

DIR is the job's directory; it holds the program's path, its arguments, ranks and settings. `restart` skips damaged generations, with a message, \
and begins from the newest intact one. It restarts a finished job only if you name a generation. Each restart begins a new incarnation of the job, \
called a life: two restarts of one generation never mix.

Options about hosts, domains, addresses, the NIC and copies, --ckpt-every, --mtbf, --ckpt-budget, --on-exit, --recovery and --pid-namespace become the job's defaults once all ranks are running. \
--generation, --from, --trust, --changed-files, --key-file, --sign, --time-limit and --no-pid-namespace apply to this run alone.")]
    Restart(Box<RestartArguments>),
    /// Rebuild lost images and parity of a job that does not run
    #[command(long_about = "\
Rebuild lost images and parity of a job that does not run: on emptied nodes, on spares (--hosts), and where bytes are damaged.

`restart` does this too, before any rank starts. The exit code is 3 if no generation is intact on all nodes afterwards. \
Options about hosts, domains and addresses apply to this command alone: give them again to a restart on a spare.")]
    Repair(RepairArguments),
    /// List the running jobs and their ranks
    #[command(long_about = "\
List the running jobs and their ranks: the activity, the process and the epoch of each rank, the pause of its last checkpoint and the size of its image.

Ranks of a large job that do the same share a line; --json lists every rank.")]
    Ps,
    /// Move ranks of a running job to another NIC
    #[command(long_about = "\
Move ranks of a running job to another NIC.

The ranks continue to run; no message is lost or duplicated.

If the new NIC has the address that peers know, as UDP and AF_XDP on one device, each rank changes alone. It pauses while it opens the new NIC, \
and keeps the old one if that fails.

If the address differs, as to and from RDMA, or on another device, all ranks change together, so without --rank. Each opens the new NIC beside the old one, \
and closes the old one when all ranks reach each other over the new. If one rank fails or does not answer, no rank changes.

The command prints the NIC of each rank, or why it has not changed, and fails if one has not. Ranks that are rolled back later keep their new NIC. \
`stillwire restart` uses the NIC that all ranks used last. With its own --nic, or with new hosts, it uses the --nic that was named last.

If an RDMA device fails under a job, for example because its port goes down, the job moves to udp by itself. Its later incarnations (lives) use udp, too, until you name another NIC.")]
    Rail(RailArguments),
    /// Change the time between checkpoints of a running job, and its reactions to faults
    #[command(long_about = crate::commands::interval::LONG_ABOUT)]
    Tune(TuneArguments),
    /// Take a node of a running job for one that fails: another host gets its place
    #[command(long_about = crate::commands::recovery::SUSPECT_LONG_ABOUT)]
    Suspect(SuspectArguments),
    /// Show and check the reactions of a job to faults
    #[command(long_about = crate::commands::recovery::LONG_ABOUT)]
    Recovery {
        #[command(subcommand)]
        command: RecoveryCommand,
    },
    /// Show why a running job hangs: which ranks wait for which
    #[command(long_about = crate::commands::diagnose::LONG_ABOUT)]
    Diagnose(DiagnoseArguments),
    /// End a running job; its checkpoints stay
    Kill(JobArgument),
    /// List the generations in a job's directory
    Ls(DirectoryArgument),
    /// Show what an image, manifest or other file of a job holds
    Inspect(InspectArguments),
    /// Check every byte of a job's generations
    Verify(VerifyArguments),
    /// Write deltas of a file, apply them, and keep checkpoints of it: sign, make, apply, add, get, ls
    #[command(long_about = "\
Write deltas of a file, apply them, and keep checkpoints of it.

`sign`, `make` and `apply` read and write files that you name. `make` compares a file with a base, or with the base's signature (1/256 of its size), \
and writes the blocks that differ. `apply` applies deltas to a base, or to a full delta. `add`, `get` and `ls` keep checkpoints of one file in a folder, \
and choose numbers, signatures and bases there.

Blocks are compressed in packets where that pays. Every byte is verified when it is read. No command overwrites a file, and each removes its unfinished files.")]
    Delta {
        #[command(subcommand)]
        command: crate::commands::delta::DeltaCommand,
    },
    /// Sort integers on four processes, kill one, and watch the job recover
    #[command(long_about = "\
Sort integers on four processes over UDP, with bursts of messages in flight at every checkpoint; kill one process with SIGKILL at a \
random instant; let the job roll back by itself; verify the result.

If mpicc belongs to MPICH or its family, and libstillwire_fi.so is beside this program, `demo` compiles an MPI program that knows \
nothing of checkpoints, tries it for a moment, and saves it as whole processes. Otherwise, and with --native, it runs NAS IS \
with its official verification, which names the points at which it is saved; one line says why.

`demo` prints a timeline: checkpoints with the pause of each rank and its parts, the messages that were saved in each of the five \
states, bytes, and the times of detection and recovery. The exit code is 0 only if the result is verified, at least \
three checkpoints were committed, one process was killed, and one rollback happened.")]
    Demo(DemoArguments),
    /// Print the variables with which your own mpiexec finds the libfabric provider
    #[command(long_about = "\
Print the variables with which your own mpiexec finds the libfabric provider, for a shell: eval \"$(stillwire env)\". \
MPICH and Intel MPI read them as they are; Open MPI's mpirun also needs -x FI_PROVIDER_PATH -x FI_PROVIDER.")]
    Env {
        /// Folder of libstillwire_fi.so; by default the one of this program, or ../lib, or STILLWIRE_PROVIDER
        #[arg(long, value_name = "DIR")]
        provider_dir: Option<PathBuf>,
    },
    /// Check the MPI library of a program, and what this machine permits
    #[command(long_about = "\
Check a program and this machine: which MPI library and which libfabric the program really loads, whether libfabric loads the provider, \
and what the kernel permits. Each problem is printed with its cure.

With --pid, `doctor` checks a running process: whether a checkpoint can save it, and what prevents that.

Without a program, `doctor` checks the provider and the machine. The exit code is 3 if something does not work; slow parts do not count.")]
    Doctor {
        /// Check whether a checkpoint can save the running process N
        #[arg(long, value_name = "N", conflicts_with = "program")]
        pid: Option<u32>,
        #[command(flatten)]
        mpi: MpiArguments,
        /// The program and its arguments, as for `run`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        program: Vec<OsString>,
    },
    /// Install completions of shells and man pages for this user
    #[command(long_about = crate::commands::completions::LONG_ABOUT)]
    InstallCompletions(crate::commands::completions::CompletionArguments),
    /// Open AF_XDP sockets, as root, for ranks without privileges
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

/// Processes that this program starts itself. These are no commands of people: no help lists them, and none is proposed to somebody
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
        /// The keeper's process
        keeper: i32,
    },
    /// Keep the ranks of a node, for the launcher at the other end of standard input and output
    #[command(name = "__keeper")]
    Keeper,
    /// Move images of a node, for the launcher at the other end of standard input and output
    #[command(name = "__images")]
    Images,
    /// Be the first process of a pid namespace, for the keeper that has made it
    #[command(name = "__first")]
    First,
    /// Answer a question of `doctor` in a process of its own
    #[command(name = "__probe")]
    Probe {
        #[command(subcommand)]
        probe: crate::commands::doctor::probe::Probe,
    },
    /// Call a component, for the launcher at the other end of standard input
    #[command(name = "__component")]
    Component,
    /// Continue a job whose launcher is lost, for the keeper that knew it
    #[command(name = "__successor")]
    Successor,
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

/// Reaction to the death of a rank.
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

/// Reaction to a rank that ends by itself with an exit code, before it has finished.
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

/// The part of a data frame that its tag covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum AuthArgument {
    /// Header, length and number of each frame
    Header,
    /// The payload too
    Full,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Number of ranks
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
    pub(crate) sign: SignArgument,
    #[command(flatten)]
    pub(crate) hosts: HostArguments,
    /// Address on which ranks on this host receive. Parity between nodes also uses further networks, such as 10.0.0.1+10.1.0.1
    #[arg(long, value_name = "IP[+IP]", default_value = "127.0.0.1")]
    pub(crate) bind: Addresses,
    /// Parts of each frame that its authentication covers [default: full, but header if --bind is a loopback address]
    #[arg(long, value_enum)]
    pub(crate) auth: Option<AuthArgument>,
    #[command(flatten)]
    pub(crate) nic: NicArgument,
    /// Ways of messages between ranks: auto, shared memory within a host and the NIC between hosts; nic or shm, only this one; udp, only the NIC, which is UDP [default: STILLWIRE_RAILS, or auto]
    #[arg(long, value_parser = PossibleValuesParser::new(RailChoice::ALL.map(RailChoice::name)))]
    pub(crate) rails: Option<String>,
    /// Write every frame of every rail of the ranks into pcapng files in DIR, which `run` creates; `stillwire inspect` explains them
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    /// Set a variable in the program's environment; may be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = environment_entry)]
    pub(crate) environment: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) stdin: StdinArguments,
    /// Return when the job runs, and print its id: it goes on when this terminal or connection closes.
    ///
    /// Its output goes into files in its directory (by default ./stillwire-JOB), and `stillwire attach` shows it and passes on the exit code. Standard input is empty. If the launcher is killed, the job continues from its newest checkpoint. `stillwire kill` ends it.
    #[arg(long, conflicts_with_all = ["stdin", "tty"])]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) succession: SuccessionArguments,
    /// Print only the program's output, errors and faults: no progress, and no warnings about options; with -n 1, without the rank's number in front of each line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print suspicions of nodes too that are withdrawn at once
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArguments {
    #[command(flatten)]
    pub(crate) interval: IntervalArguments,
    /// The job's directory, which `run` creates if it does not exist.
    ///
    /// Without this option it is ./stillwire-JOB, if another option asks for checkpoints. Otherwise it is a temporary directory, which `run` removes if the job ends well or has committed nothing.
    #[arg(long = "ckpt-dir", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Longest duration of a checkpoint, from the request until all images are durable; then the job gives it up.
    ///
    /// A disk limit (--encode-budget disk=RATE) delays the images: the timeout must be longer than that takes.
    #[arg(long = "ckpt-timeout", value_name = "D", default_value = "1m", value_parser = duration_argument)]
    pub(crate) timeout: Duration,
    /// End the job after this time, with a last checkpoint shortly before (exit code 5; `stillwire restart` continues the job)
    #[arg(long, value_name = "D", value_parser = duration_argument)]
    pub(crate) time_limit: Option<Duration>,
    /// Number of generations that are kept, the newest ones
    #[arg(long, value_name = "G", default_value_t = 2, value_parser = number::<u32>(1..=65536))]
    pub(crate) keep: u32,
    /// How to capture programs that are saved as whole processes: auto, fork, scan, content or sync [default: auto].
    ///
    /// fork saves the whole image from a forked copy. scan copies the pages that were written since a whole image, which a fork took (Linux 6.7). content has a fork find the changed pages. sync saves the whole image while the program waits. auto takes a scan if its pause is shorter than a fork's, else content, and the whole image if most of it has changed.
    #[arg(long, value_parser = PossibleValuesParser::new(CaptureMode::ALL.map(|(name, _)| name)), hide_possible_values = true)]
    pub(crate) capture: Option<String>,
    /// Give each rank a pid namespace: its saved process and threads have the same ids in every incarnation of the job (Linux 5.9).
    ///
    /// Without this option they get new ids. The C library learns them, but ids that a program has stored itself become wrong. `stillwire doctor` reports whether pid namespaces are available.
    #[arg(long)]
    pub(crate) pid_namespace: bool,
    /// Encrypt images, and so their parity, with the key of --key-file or STILLWIRE_KEY.
    ///
    /// `restart` needs the same key: without it the job is lost. `verify`, `repair` and `ls` need no key.
    #[arg(long)]
    pub(crate) encrypt: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FaultArguments {
    /// Reaction when a signal kills a rank or a node is lost: restart rolls the job back to its last checkpoint, abort ends it. A fault always ends an MPI program without checkpoints [default: restart]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) on_fault: Option<FaultAction>,
    /// Reaction when a rank exits with a code other than 0, or before it has finished: fail ends the job with that code, restart treats it as a fault (--on-fault). MPI_Abort always ends the job [default: fail]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) on_exit: Option<ExitAction>,
    /// File with the reactions to each model of fault, and what counts as which: `stillwire recovery --help` explains it, `stillwire recovery check` checks it
    #[arg(long, value_name = "FILE", value_parser = crate::commands::recovery::policy_file)]
    pub(crate) recovery: Option<Policy>,
    /// Number of restarts after faults since the last checkpoint, before the job gives up. The pause before each one grows from 200 ms to 5 s
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = number::<u32>(0..=65536))]
    pub(crate) retries: u32,
    /// Longest time that a rank waits for the others when it calls MPI_Init or opens a session; then the job ends.
    ///
    /// After a fault or a restart, it is the longest time to restore all ranks. Ranks that neither call MPI_Init nor open a session do not wait.
    #[arg(long, value_name = "D", default_value = "1m", value_parser = duration_argument)]
    pub(crate) start_timeout: Duration,
}

#[derive(Debug, Default, Args)]
pub(crate) struct RestartArguments {
    /// The job's directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Fetch a copy into DIR first, from the place that --flush-to named, or from LOCATION/JOB if several jobs have copies there. DIR may be missing
    #[arg(long, value_name = "LOCATION")]
    pub(crate) from: Option<CopyLocation>,
    /// Run a copy without asking, although nobody vouches for it.
    ///
    /// A copy holds the program's command and memory, and the command that reaches other hosts. Without a key (--sign, --key-file), everybody who can write to the place decides what runs here.
    #[arg(long, requires = "from")]
    pub(crate) trust: bool,
    /// The generation to restart from, as `ls` writes it (2.00000000deadbeef/3), or its epoch alone in the newest life
    #[arg(long, value_name = "G", value_parser = generation_argument)]
    pub(crate) generation: Option<GenerationArgument>,
    /// Files that ranks write, that are longer than at the checkpoint, and that are not recognised as the files of then: keep-copy keeps a copy of each beside it before its end is cut off, refuse ends the restart [default: keep-copy]
    #[arg(long, value_name = "ACTION", value_parser = PossibleValuesParser::new(agent::CHANGED_FILES.map(|(name, _)| name)), hide_possible_values = true)]
    pub(crate) changed_files: Option<String>,
    /// End this run, and only this one, after this time, with a last checkpoint shortly before [default: the limit of `run`]
    #[arg(long, value_name = "D", value_parser = duration_argument)]
    pub(crate) time_limit: Option<Duration>,
    /// By default as before
    #[command(flatten)]
    pub(crate) interval: IntervalArguments,
    /// Reaction when a rank exits with a code other than 0, from now on: fail or restart, as for `run` [default: as before]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) on_exit: Option<ExitAction>,
    /// File with the reactions to faults from now on, as for `run` [default: as before]
    #[arg(long, value_name = "FILE", value_parser = crate::commands::recovery::policy_file)]
    pub(crate) recovery: Option<Policy>,
    /// By default as before
    #[command(flatten)]
    pub(crate) flush: FlushArguments,
    #[command(flatten)]
    pub(crate) key: KeyArgument,
    #[command(flatten)]
    pub(crate) sign: SignArgument,
    /// By default as the job ran last; given here, what was said before of hosts does not count, now and later
    #[command(flatten)]
    pub(crate) hosts: HostArguments,
    /// Address on which ranks on this host receive [default: as the job ran last]
    #[arg(long, value_name = "IP[+IP]")]
    pub(crate) bind: Option<Addresses>,
    #[command(flatten)]
    pub(crate) nic: NicArgument,
    /// Give each rank a pid namespace with the ids of its image, from now on [default: as before]
    #[arg(long)]
    pub(crate) pid_namespace: bool,
    /// Give ranks new ids in this run alone, where pid namespaces are not available
    #[arg(long, conflicts_with = "pid_namespace")]
    pub(crate) no_pid_namespace: bool,
    #[command(flatten)]
    pub(crate) stdin: StdinChange,
    /// Return when the job runs, and print its id, as for `run`
    #[arg(long, conflicts_with = "stdin")]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) succession: SuccessionArguments,
    /// A host continues the job by itself. The nodes are where the job's file says, also those that it names otherwise than the images do
    #[arg(skip)]
    pub(crate) is_candidates: bool,
    /// Print only the program's output, errors and faults, as for `run`
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print suspicions of nodes too that are withdrawn at once
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
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
    /// Address on which nodes on this host receive [default: as before]
    #[arg(long, value_name = "IP[+IP]")]
    pub(crate) bind: Option<Addresses>,
    /// Print only the result, and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Which MPI library a program uses, and where it comes from: the same for `run` and `doctor`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MpiArguments {
    /// MPI library of the program: auto, none, mpich, intel or openmpi.
    ///
    /// auto takes the library that the program loads, or that of mpi4py, if the text of a python program imports it. Another program that loads one while it runs is noticed then. none: the ranks are processes that do not use MPI. mpich, intel, openmpi: this library, even if nothing shows it before the program runs, as when a script starts it.
    #[arg(
        long = "mpi",
        value_enum,
        value_name = "LIBRARY",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) library: MpiChoice,
    /// Run a program of MPICH, MVAPICH or Intel MPI on the MPICH in this folder, which must use libfabric [default: auto].
    ///
    /// The folder is a virtual environment, an installation, or its folder of libraries. The program is not changed. auto looks for an MPICH if the program's own library cannot load the provider, as Debian's MPICH cannot: beside the program, in the active virtual or conda environment, beside PATH, in ~/.local. Otherwise the program runs on its own library. `restart` uses the same one.
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
    /// NIC over which ranks reach other hosts: auto, udp, udp:INTERFACE, xdp:INTERFACE, verbs or verbs:DEVICE [default: STILLWIRE_NIC, or auto].
    ///
    /// udp: the kernel's sockets; with INTERFACE, at an address of that interface.
    ///
    /// xdp: AF_XDP on the interface, at the address on which ranks receive, if that is one of its own. With CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF it serves one rank on each host. Where `stillwire nic-helper` runs, it needs no privileges, and serves as many ranks as the interface has queues.
    ///
    /// verbs: RDMA on DEVICE, or on the device that has the address on which ranks receive.
    ///
    /// auto: AF_XDP without copies, where a rank has a host and an interface to itself and the system permits it, else UDP. `stillwire ps` shows which, and why.
    ///
    /// If a named NIC is not available, the job fails with an error. A restart may name another NIC than the job was saved on, for itself and later restarts. Without this option it uses the NIC that the job used last.
    #[arg(long = "nic", value_name = "NIC", value_parser = nic_argument)]
    pub(crate) choice: Option<NicChoice>,
}

pub(crate) fn nic_argument(text: &str) -> Result<NicChoice, String> {
    launcher::nic_choice(text).map_err(|error| error.to_string())
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
    /// The first digits of the job's id, as `stillwire ps` shows it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArguments {
    /// The first digits of the job's id, as `stillwire ps` shows it, or the job's directory
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Show new output only
    #[arg(long)]
    pub(crate) new: bool,
    /// Show the present output, and do not wait for more
    #[arg(long)]
    pub(crate) no_wait: bool,
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
    #[command(flatten)]
    pub(crate) sign: SignArgument,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Kill the process this many milliseconds after the third checkpoint [default: at a random instant]
    #[arg(long, value_name = "MS", value_parser = number::<u64>(0..=3_600_000))]
    pub(crate) kill_after: Option<u64>,
    /// Repeat the benchmark at least this many times, each time with all its verifications
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) rounds: u32,
    /// Problem class: S (65,536 keys), W (1,048,576) or A (8,388,608)
    #[arg(long, default_value = "W", ignore_case = true, value_parser = ["S", "W", "A"])]
    pub(crate) class: String,
    /// Run the program that names its own points, even if an MPI program is possible
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
    text.parse().map(GenerationArgument::Epoch).or_else(|_| whole()).map_err(|_: ckpt_glue::NotAGenerationId| {
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
