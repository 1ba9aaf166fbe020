//! The benches as commands: one place for their flags, for the program `bench` and for `stillwire-dev bench`.

mod all;
mod deltas;
mod messages;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use drivers::RailChoice;
use serde::Serialize;

use crate::BenchError;
use crate::bulk;
use crate::checkpointable::{self, CheckpointableOptions};
use crate::delta;
use crate::freeze::{self, FreezeOptions};
use crate::latency;
use crate::loss::{self, LossOptions};
use crate::moves;
use crate::mpi::{self, MpiOptions};
use crate::packets;
use crate::parity::{self, ParityArguments};
use crate::pause::{self, PauseOptions, Working};
use crate::periodic_freeze::{self, PeriodicFreezeOptions};
use crate::protocol::{self, ProtocolOptions};
use crate::rate;
use console::number;

use all::all;
pub use deltas::{DeltaArguments, StoreArguments};
pub use messages::{BulkArguments, LatencyArguments, MovesArguments, NicArguments, RateArguments};

/// The most repetitions of each kind: enough for days of measuring.
const PAIRS_MAX: u64 = 1000;
const RUNS_MAX: u64 = 100_000;
const SAMPLES_MAX: u64 = 1_000_000;
const ROUNDS_MAX: u64 = 100_000_000;
const MESSAGES_MAX: u64 = 1_000_000_000;
/// MiB of a message, and of one run of a stream of them.
const MESSAGE_MIB_MAX: u64 = 1024;
const MTU_MAX: u64 = 65_535;
const STREAM_MIB_MAX: u64 = 1 << 20;
/// Links that a measured port has; each peer is a port of its own.
const LINKS_MAX: u64 = 4096;
/// KiB in flight: a GiB.
const FLIGHT_KIB_MAX: u64 = 1 << 20;
/// MiB of a measured process: a TiB.
const MEMORY_MIB_MAX: u64 = 1 << 20;
/// Every frame is lost.
const PPM_MAX: u64 = 1_000_000;

/// Which bench.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Half round trip of 8 bytes against a bare ping-pong
    Latency(LatencyArguments),
    /// 8-byte messages per second, one way, against bare datagrams
    Rate(RateArguments),
    /// One-way stream of large messages against TCP
    Bulk(BulkArguments),
    /// Goodput and delay when frames are lost
    #[command(long_about = "\
Goodput and delay when frames are lost.

A wrapper under both ports loses frames at a stated rate, acknowledgements included. Goodput: a stream of 1 MiB messages, runs \
with losses alternating with lossless ones through the same wrapper, median of the ratios of neighbours. Recovery: 8-byte round \
trips in which a frame with a message was lost, above the median of those in which none was.")]
    Loss(LossArguments),
    /// Freeze, dump and thaw of a port under bursts from eight processes
    #[command(long_about = "\
Freeze, dump and thaw of a port under bursts from eight processes.

Eight processes send bursts of 32 messages to one port without pause; its helper thread runs; the program freezes it at random \
instants. Before that it gets the memory ready that the dump goes to (room), and reads the memory of the dump into the caches (warm), while messages \
still come and go. Freeze: until no thread and no driver can touch the \
port's memory. Dump: the port's state as bytes, payload by reference. Thaw: until the first frame can be sent. Every 20th freeze is announced to the peers and copies payload; it is timed \
apart. Links beyond the eight have made contact and fallen silent. In flight: payload sent or announced and not acknowledged, \
counted from the frozen port.

With --mpi: ports frozen under a running MPI program. A program that checks its own results runs under MPICH, in turns without \
and with each port of each rank being frozen, dumped and thawed every few milliseconds, without notice to the program. Prints freeze, dump and thaw by \
rank, dumps that were compared with the port, and the slowdown; exit code 3 if a result is wrong, a port was not frozen, or a dump differs from the frozen port. Without a PROGRAM one of ours runs: collectives, messages and one-sided operations at once.")]
    Freeze(FreezeArguments),
    /// Ports frozen on one kind of NIC and thawed on another, with messages on their way
    #[command(long_about = "\
Ports frozen on one kind of NIC and thawed on another, with messages on their way.

Two ports at the ends of a pair of virtual devices, in two network namespaces that the bench makes (as root), go from UDP, shared memory and AF_XDP to \
each of these, again and again. Freeze and dump; thaw: from the dump to a port on the new NIC that can send. What the kernel takes to give the old NIC back (close) and to \
make the new one (open) stands apart. After each move every message has to arrive unchanged.")]
    Moves(MovesArguments),
    /// Pause of a process that is saved as a whole, against a bare fork and CRIU
    #[command(long_about = "\
Pause of a process that is saved as a whole, against a bare fork and CRIU.

A process with so much memory is captured whole, writes to a share of its pages, and is captured again, the way that takes less time: a copy of written pages, or a fork. Bare forks of the same process come before, between and after; with --criu its dumps, \
too, which need root. It has a port, which is frozen and thawed. Then a process is saved to files, and a new one becomes it. At last a program \
works with a checkpoint and without, in turns; then a sequence: one checkpoint every few seconds as `run` takes them, beside a program that has none.")]
    Pause(PauseArguments),
    /// Arithmetic of parity, and encoding from end to end
    #[command(long_about = "\
Arithmetic of parity against plain copies of memory.

One thread adds slices, computes the parity of K data slices, and changes parity as data changes, over data that is larger than four \
last-level caches, in turns with a plain copy of as many bytes. The figure is bytes of the sources by time. Beside it the crate \
reed-solomon-simd, and with --isal Intel's storage library (Debian: libisal2), which gets the same coefficients and must come to the \
same parity.

With --nodes images of so many nodes are protected from end to end, by a protector for each node, over UDP on this machine, with limits on each \
node's link and disk. In turns with that, bytes go over the same links and to the same directories by themselves, and the figure is compared with theirs. With --program each node runs one, whose checkpoints are protected as whole images and as changes. With --job each run is \
a job of `stillwire run`, with processes, keepers and directories of its own, whose memory changes: the bench reports for its first checkpoint, and for the next one, how long a rank stood, and when images were written, protected and committed. --link and --disk are the limits of each node; those of the disk hold for the ranks' images, too.")]
    Parity(ParityArguments),
    /// Speed of finding differences, and their savings
    #[command(long_about = "\
Speed of finding differences, and their savings.

Hashing against memcpy, in turns, on one core, on buffers beyond four times the last cache. Then two programs that compute, a \
multiplication of matrices and a relaxation with a lower and an upper sweep, are saved after each step: every checkpoint full, as a delta to \
the one before, to the first, to a base that changes when deltas have grown; each until it is durable. Restored contents are compared; exit code 3 if it differs.")]
    Delta(DeltaArguments),
    /// Cost of packets, and the savings of reading single blocks
    #[command(long_about = "\
Cost of packets, and the savings of reading single blocks.

Packing and unpacking by codec and content; lengths of packets; and one chain of eight checkpoints, stored plain, with each file compressed as a whole, and \
in packets: time to restore the newest, and to read one block. Files are in the page cache: the bench measures arithmetic. Restored contents are compared; exit code 3 if it differs.")]
    Store(StoreArguments),
    /// The cost of checkpointable ports in normal running
    #[command(long_about = "\
What it costs in normal running that a port can be checkpointed.

Two builds of the program `bench` alternate, in 8-byte latency and in the rate of messages: the ordinary one, and one without checks of \
lives and epochs, hints, resyncs, and the question whether the port is frozen. Cargo builds both, if they are not given. Prints the \
ratio with its 95 % interval over many pairs of processes.")]
    Checkpointable(CheckpointableArguments),
    /// Cost of the protocol alone, without any socket
    Protocol(ProtocolArguments),
    /// MPICH over our provider and over those that it ships with
    #[command(long_about = "\
MPICH over ours and over its own networks.

One MPICH, two ranks, one measuring program; under it in turns ours over shared memory and over UDP, libfabric's shm, tcp and \
udp;ofi_rxd, UCX over shared memory and over TCP, and MPICH's own shared memory. Half round trip, bandwidth and messages per second \
by length; allreduce, alltoall, put and get. Before anything is timed, each stack moves every kind of transfer with every byte \
compared; one that fails is named with the reason. Needs an MPICH that has mpicc (pip install mpich==5.0.2).")]
    Mpi(MpiArguments),
    /// All benches but mpi, one after the other, with their output in a folder
    #[command(long_about = "\
All benches but mpi, one after the other, with their output in a folder.

Leaves NAME.json and NAME.txt of each bench, and charts of those that have one. A bench without its requirements, such as root for network namespaces, leaves a message in their place. Exit code 3 if one of them got a wrong result. The machine should have nothing else to do.")]
    All {
        /// The folder, made if it does not exist
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// A few runs of each: some minutes, and rough figures
        #[arg(long)]
        quick: bool,
    },
}

/// Arguments of the loss benchmark.
#[derive(Args, Clone, Debug)]
pub struct LossArguments {
    /// Runs of the stream with losses, per rate
    #[arg(long, default_value_t = LossOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Rates of loss, in a million frames
    #[arg(long, value_delimiter = ',', default_values_t = LossOptions::default().rates_ppm, value_parser = number::<u32>(0..=PPM_MAX))]
    ppm: Vec<u32>,
    /// Lost frames per rate after which there are enough round trips
    #[arg(long, default_value_t = LossOptions::default().losses, value_parser = number::<usize>(1..=SAMPLES_MAX))]
    losses: usize,
    /// MiB of one run of the stream
    #[arg(long, default_value_t = LossOptions::default().run_bytes >> 20, value_parser = number::<usize>(1..=STREAM_MIB_MAX))]
    mib: usize,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["runs", "ppm", "losses", "mib"])]
    quick: bool,
}

/// Arguments of the freeze benchmark.
#[derive(Args, Clone, Debug)]
pub struct FreezeArguments {
    #[command(flatten)]
    nic: NicArguments,
    /// Freezes per row
    #[arg(long, default_value_t = FreezeOptions::default().samples, value_parser = number::<usize>(1..=SAMPLES_MAX))]
    samples: usize,
    /// Links of the port
    #[arg(long, value_delimiter = ',', default_values_t = FreezeOptions::default().links, value_parser = number::<usize>(1..=LINKS_MAX))]
    links: Vec<usize>,
    /// Bytes in flight, KiB
    #[arg(long, value_delimiter = ',', default_values_t = [0, 64, 1 << 10, 16 << 10, 64 << 10], value_parser = number::<u64>(0..=FLIGHT_KIB_MAX))]
    kib: Vec<u64>,
    /// Leave out the row that the bar of the dump is about: 1,024 links, 64 of them with 32 unacknowledged frames
    #[arg(long)]
    no_dump_row: bool,
    /// Fewer freezes, fewer rows: some ten seconds, and rough figures
    #[arg(long, conflicts_with_all = ["samples", "links", "kib", "no_dump_row"])]
    quick: bool,
    /// Also draw the rows as a chart
    #[arg(long, value_name = "FILE", conflicts_with = "mpi")]
    svg: Option<PathBuf>,
    /// Freeze the ports of a running MPI program
    #[arg(long, conflicts_with_all = ["samples", "links", "kib", "no_dump_row"])]
    mpi: bool,
    #[command(flatten)]
    periodic_freeze: PeriodicFreezeArguments,
}

/// Arguments of periodic freezes under MPI.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options with --mpi")]
pub struct PeriodicFreezeArguments {
    /// Milliseconds between two freezes of a port
    #[arg(long, requires = "mpi", default_value_t = PeriodicFreezeOptions::default().every_ms, value_parser = number::<u32>(1..=60_000))]
    every_ms: u32,
    /// How long a port stands still each time, as while the memory of its process is saved; announced to its peers; 0:
    /// only for the dump
    #[arg(long, requires = "mpi", default_value_t = PeriodicFreezeOptions::default().pause_ms, value_parser = number::<u32>(0..=10_000))]
    pause_ms: u32,
    /// Ports are frozen again and again for so long, over all runs; a PROGRAM is run until then
    #[arg(long, requires = "mpi", conflicts_with = "quick", default_value_t = PeriodicFreezeOptions::default().seconds, value_parser = number::<u64>(1..=86_400))]
    seconds: u64,
    /// Runs with freezes; each has a run without before it and after it
    #[arg(long, requires = "mpi", conflicts_with = "quick", default_value_t = PeriodicFreezeOptions::default().pairs, value_parser = number::<u32>(1..=1000))]
    pairs: u32,
    /// Processes
    #[arg(long, requires = "mpi", default_value_t = PeriodicFreezeOptions::default().ranks, value_parser = number::<u32>(1..=1024))]
    ranks: u32,
    /// Rails of the ranks: auto, shm or udp
    #[arg(long, requires = "mpi", default_value = RailChoice::Auto.name())]
    rails: RailChoice,
    /// At each freeze, hand all links from shared memory to UDP, or back; wants --rails auto
    #[arg(long, requires = "mpi")]
    handover: bool,
    /// The result of PROGRAM is right if it prints TEXT [default: if its exit code is 0]
    #[arg(long, requires = "program", value_name = "TEXT")]
    expect: Option<String>,
    /// A run of PROGRAM that takes longer is ended, and wrong
    #[arg(long, requires = "program", value_name = "SECONDS", default_value_t = PeriodicFreezeOptions::default().run_seconds_max, value_parser = number::<u64>(1..=86_400))]
    run_seconds_max: u64,
    /// Folder of an MPICH, with mpicc and mpiexec in it or in its bin [default: target/mpi/mpich, which tests/mpi/run makes, or the one in PATH]
    #[arg(long, requires = "mpi", value_name = "DIR")]
    mpich: Option<PathBuf>,
    /// Folder of libstillwire_fi.so [default: that of this program]
    #[arg(long, requires = "mpi", value_name = "DIR")]
    provider: Option<PathBuf>,
    /// A program for that MPICH, with its arguments, instead of ours
    #[arg(last = true, requires = "mpi", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl From<&PeriodicFreezeArguments> for PeriodicFreezeOptions {
    fn from(arguments: &PeriodicFreezeArguments) -> PeriodicFreezeOptions {
        PeriodicFreezeOptions {
            mpich: arguments.mpich.clone(),
            provider: arguments.provider.clone(),
            every_ms: arguments.every_ms,
            pause_ms: arguments.pause_ms,
            seconds: arguments.seconds,
            pairs: arguments.pairs,
            ranks: arguments.ranks,
            rails: arguments.rails,
            handover: arguments.handover,
            program: arguments.program.clone(),
            expect: arguments.expect.clone(),
            run_seconds_max: arguments.run_seconds_max,
        }
    }
}

/// Arguments of the checkpointable benchmark.
#[derive(Args, Clone, Debug)]
pub struct CheckpointableArguments {
    /// Pairs of processes of each build, one after the other
    #[arg(long, default_value_t = CheckpointableOptions::default().pairs, value_parser = number::<usize>(1..=PAIRS_MAX))]
    pairs: usize,
    /// Runs of each build, per pair and figure
    #[arg(long, default_value_t = CheckpointableOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Round trips per run
    #[arg(long, default_value_t = CheckpointableOptions::default().rounds, value_parser = number::<usize>(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Messages per run
    #[arg(long, default_value_t = CheckpointableOptions::default().messages, value_parser = number::<usize>(1..=MESSAGES_MAX))]
    messages: usize,
    /// The ordinary program `bench`; without it, cargo builds both
    #[arg(long, value_name = "FILE", requires = "without")]
    with: Option<PathBuf>,
    /// The program `bench`, built with RUSTFLAGS="--cfg uncheckpointable"
    #[arg(long, value_name = "FILE", requires = "with")]
    without: Option<PathBuf>,
    /// Fewer and shorter runs: some seconds besides the build, and rough figures
    #[arg(long, conflicts_with_all = ["pairs", "runs", "rounds", "messages"])]
    quick: bool,
}

impl From<&CheckpointableArguments> for CheckpointableOptions {
    fn from(arguments: &CheckpointableArguments) -> CheckpointableOptions {
        let named = arguments.with.clone().zip(arguments.without.clone());
        let programs = named.map(|(with, without)| [with, without]);
        if arguments.quick {
            return CheckpointableOptions { programs, ..quick_checkpointable() };
        }
        CheckpointableOptions {
            pairs: arguments.pairs,
            runs: arguments.runs,
            rounds: arguments.rounds,
            messages: arguments.messages,
            programs,
        }
    }
}

/// Arguments of the MPI benchmark.
#[derive(Args, Clone, Debug)]
pub struct MpiArguments {
    /// Folder of an MPICH, with mpicc and mpiexec in it or in its bin [default: target/mpi/mpich, which tests/mpi/run makes, or the one in PATH]
    #[arg(long, value_name = "DIR")]
    mpich: Option<PathBuf>,
    /// Folder of libstillwire_fi.so [default: that of this program]
    #[arg(long, value_name = "DIR")]
    provider: Option<PathBuf>,
    /// Only these stacks; a wrong name lists the known ones
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    stacks: Vec<String>,
    /// Lengths of messages [default: twelve from 0 to 64 MiB]
    #[arg(long, value_delimiter = ',', value_parser = number::<u64>(0..=mpi::MESSAGE_BYTES_MAX))]
    bytes: Vec<u64>,
    /// Runs of each stack
    #[arg(long, default_value_t = MpiOptions::default().repetitions as u64, value_parser = number::<u64>(1..=1000))]
    repetitions: u64,
    /// Length of each of a figure's blocks, ms
    #[arg(long, default_value_t = MpiOptions::default().block_us / 1000, value_parser = number::<u64>(1..=10_000))]
    block_ms: u64,
    /// A run of a stack that takes longer is ended, and the stack left out
    #[arg(long, value_name = "SECONDS", default_value_t = MpiOptions::default().run_seconds_max, value_parser = number::<u64>(1..=800))]
    run_seconds_max: u64,
    /// Fewer lengths, two short runs of each stack: about a minute, and rough figures
    #[arg(long, conflicts_with_all = ["repetitions", "block_ms"])]
    quick: bool,
    /// Also draw half round trips and bandwidth as a chart
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl From<&MpiArguments> for MpiOptions {
    fn from(arguments: &MpiArguments) -> MpiOptions {
        let mut options = MpiOptions {
            mpich: arguments.mpich.clone(),
            provider: arguments.provider.clone(),
            stacks: arguments.stacks.clone(),
            repetitions: usize::try_from(arguments.repetitions).unwrap_or(1),
            block_us: arguments.block_ms * 1000,
            run_seconds_max: arguments.run_seconds_max,
            ..MpiOptions::default()
        };
        if arguments.quick {
            let bytes = vec![0, 8, 1 << 10, 64 << 10, 1 << 20, 4 << 20];
            options = MpiOptions { bytes, repetitions: 2, blocks: 3, block_us: 5_000, ..options };
        }
        if !arguments.bytes.is_empty() {
            options.bytes.clone_from(&arguments.bytes);
        }
        options
    }
}

/// Arguments of the pause benchmark.
#[derive(Args, Clone, Debug)]
pub struct PauseArguments {
    /// Samples per row
    #[arg(long, default_value_t = PauseOptions::default().samples, value_parser = number::<usize>(1..=SAMPLES_MAX))]
    samples: usize,
    /// Memory of the process, MiB
    #[arg(long, value_delimiter = ',', default_values_t = PauseOptions::default().bytes.iter().map(|bytes| bytes >> 20), value_parser = number::<u64>(1..=MEMORY_MIB_MAX))]
    mib: Vec<u64>,
    /// Pages that are written between two images, in a million
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000, 1_000_000], value_parser = number::<u32>(0..=PPM_MAX))]
    ppm: Vec<u32>,
    /// Small pages, huge pages
    #[arg(long, value_delimiter = ',', default_values_t = ["4k".to_owned(), "thp".to_owned()], value_parser = ["4k", "thp"])]
    pages: Vec<String>,
    /// CRIU, to compare with
    #[arg(long, value_name = "FILE")]
    criu: Option<PathBuf>,
    /// Turns with a checkpoint and without, for the overhead; 0: none
    #[arg(long, default_value_t = PauseOptions::default().turns, value_parser = number::<usize>(0..=RUNS_MAX))]
    turns: usize,
    /// Turns with a checkpoint, each beside turns without, for a sequence; 0: none
    #[arg(long, default_value_t = PauseOptions::default().pairs, value_parser = number::<usize>(0..=RUNS_MAX))]
    pairs: usize,
    /// Where the program of a sequence writes: to the same pages, to others after each checkpoint
    #[arg(long, value_delimiter = ',', default_values_t = ["same".to_owned(), "others".to_owned()], value_parser = ["same", "others"])]
    writes: Vec<String>,
    /// Memory of the processes of a sequence, MiB
    #[arg(long, default_value_t = PauseOptions::default().sequence_bytes >> 20, value_parser = number::<u64>(1..=MEMORY_MIB_MAX))]
    sequence_mib: u64,
    /// Seconds from one checkpoint of a sequence to the next
    #[arg(long, value_name = "S", default_value_t = PauseOptions::default().interval.as_secs(), value_parser = number::<u64>(1..=3600))]
    interval: u64,
    /// Where images are written [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Few samples of a small process, and no sequence: less than a minute, and rough figures
    #[arg(long, conflicts_with_all = ["samples", "mib", "ppm", "pages", "turns", "pairs", "writes", "sequence_mib", "interval"])]
    quick: bool,
    /// Write a chart
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl From<&PauseArguments> for PauseOptions {
    fn from(arguments: &PauseArguments) -> PauseOptions {
        let folder = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
        if arguments.quick {
            return PauseOptions { criu: arguments.criu.clone(), folder, ..quick_pause() };
        }
        PauseOptions {
            samples: arguments.samples,
            bytes: arguments.mib.iter().map(|mib| mib << 20).collect(),
            fractions: arguments.ppm.iter().map(|ppm| f64::from(*ppm) / 1e6).collect(),
            huge: arguments.pages.iter().map(|pages| pages == "thp").collect(),
            criu: arguments.criu.clone(),
            turns: arguments.turns,
            pairs: arguments.pairs,
            writes: [Working::Same, Working::Others]
                .into_iter()
                .filter(|working| arguments.writes.iter().any(|name| name == working.name()))
                .collect(),
            sequence_bytes: arguments.sequence_mib << 20,
            interval: Duration::from_secs(arguments.interval),
            folder,
        }
    }
}

/// Arguments of the protocol benchmark.
#[derive(Args, Clone, Debug)]
pub struct ProtocolArguments {
    /// Runs per level of authentication
    #[arg(long, default_value_t = ProtocolOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["runs"])]
    quick: bool,
}

impl From<&FreezeArguments> for FreezeOptions {
    fn from(arguments: &FreezeArguments) -> FreezeOptions {
        let NicArguments { nic, attach: program } = arguments.nic;
        if arguments.quick {
            return FreezeOptions { nic, program, ..quick_freeze() };
        }
        FreezeOptions {
            nic,
            program,
            samples: arguments.samples,
            links: arguments.links.clone(),
            flights: arguments.kib.iter().map(|kib| kib << 10).collect(),
            dump_row: !arguments.no_dump_row,
        }
    }
}

fn quick_loss() -> LossOptions {
    LossOptions { runs: 1, losses: 50, run_bytes: 32 << 20, ..LossOptions::default() }
}

fn quick_protocol() -> ProtocolOptions {
    ProtocolOptions { runs: 3, ..ProtocolOptions::default() }
}

fn quick_checkpointable() -> CheckpointableOptions {
    CheckpointableOptions { pairs: 2, runs: 2, ..CheckpointableOptions::default() }
}

fn quick_pause() -> PauseOptions {
    PauseOptions { samples: 3, bytes: vec![64 << 20], turns: 1, pairs: 0, ..PauseOptions::default() }
}

fn quick_periodic_freeze(options: PeriodicFreezeOptions) -> PeriodicFreezeOptions {
    PeriodicFreezeOptions { seconds: 6, pairs: 1, ..options }
}

fn quick_freeze() -> FreezeOptions {
    FreezeOptions { samples: 100, links: vec![1, 64], flights: vec![0, 1 << 20], ..FreezeOptions::default() }
}

impl Bench {
    /// Runs the bench.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn run(&self, json: bool) -> Result<Outcome, BenchError> {
        let mut right = true;
        let shown = match self {
            Bench::Latency(arguments) => Shown::of(&latency::run(&arguments.into())?)?,
            Bench::Rate(arguments) => Shown::of(&rate::run(&arguments.into())?)?,
            Bench::Bulk(arguments) => Shown::of(&bulk::run(&arguments.into())?)?,
            Bench::Loss(LossArguments { quick: true, .. }) => Shown::of(&loss::run(&quick_loss())?)?,
            Bench::Loss(LossArguments { runs, ppm, losses, mib, quick: false }) => {
                let rates_ppm = ppm.clone();
                let options = LossOptions { runs: *runs, rates_ppm, losses: *losses, run_bytes: mib << 20 };
                Shown::of(&loss::run(&options)?)?
            }
            Bench::Freeze(FreezeArguments { mpi: true, periodic_freeze, quick, .. }) => {
                if periodic_freeze.handover && periodic_freeze.rails != RailChoice::Auto {
                    return Err(BenchError::OneRail { rails: periodic_freeze.rails.name() });
                }
                let options = PeriodicFreezeOptions::from(periodic_freeze);
                let options = if *quick { quick_periodic_freeze(options) } else { options };
                let report = periodic_freeze::run(&options)?;
                right = report.problems.is_empty();
                Shown::of(&report)?
            }
            Bench::Freeze(arguments) => {
                let report = freeze::run(&arguments.into())?;
                if let Some(file) = &arguments.svg {
                    write(file, &report.svg())?;
                }
                Shown::of(&report)?
            }
            Bench::Moves(arguments) => Shown::of(&moves::run(&arguments.into())?)?,
            Bench::Pause(arguments) => {
                let report = pause::run(&arguments.into())?;
                if let Some(file) = &arguments.svg {
                    write(file, &report.svg())?;
                }
                Shown::of(&report)?
            }
            Bench::Parity(arguments) => {
                let (shown, svg) = match (arguments.jobs()?, arguments.programs()?, arguments.group()?) {
                    (Some(options), ..) => {
                        let report = parity::run_jobs(&options)?;
                        (Shown::of(&report)?, report.svg())
                    }
                    (None, Some(options), _) => {
                        let report = parity::run_programs(&options)?;
                        right = report.is_right;
                        (Shown::of(&report)?, report.svg())
                    }
                    (None, None, Some(options)) => {
                        let report = parity::run_group(&options)?;
                        (Shown::of(&report)?, report.svg())
                    }
                    (None, None, None) => {
                        let report = parity::run(&arguments.arithmetic())?;
                        (Shown::of(&report)?, report.svg())
                    }
                };
                if let Some(file) = &arguments.svg {
                    write(file, &svg)?;
                }
                shown
            }
            Bench::Delta(arguments) => {
                let report = delta::run(&arguments.into())?;
                right = report.is_right();
                if let Some(file) = &arguments.svg {
                    write(file, &report.svg())?;
                }
                Shown::of(&report)?
            }
            Bench::Store(arguments) => {
                let report = packets::run(&arguments.into())?;
                right = report.is_right();
                if let Some(file) = &arguments.svg {
                    write(file, &report.svg())?;
                }
                Shown::of(&report)?
            }
            Bench::Checkpointable(arguments) => Shown::of(&checkpointable::run(&arguments.into())?)?,
            Bench::Mpi(arguments) => {
                let report = mpi::run(&arguments.into())?;
                if let Some(file) = &arguments.svg {
                    write(file, &report.svg())?;
                }
                Shown::of(&report)?
            }
            Bench::Protocol(ProtocolArguments { runs, quick }) => {
                let options = ProtocolOptions { runs: *runs, ..ProtocolOptions::default() };
                Shown::of(&protocol::run(&if *quick { quick_protocol() } else { options })?)?
            }
            Bench::All { out, quick } => {
                let kept = all(out, *quick)?;
                right = kept.is_right();
                Shown::of(&kept)?
            }
        };
        let shown = if self.is_quick() { shown.rough() } else { shown };
        Ok(Outcome { report: if json { shown.json } else { shown.text }, right })
    }

    /// Whether it is to end soon, and its figures are rough.
    fn is_quick(&self) -> bool {
        match self {
            Bench::Latency(arguments) => arguments.quick,
            Bench::Rate(arguments) => arguments.quick,
            Bench::Bulk(arguments) => arguments.quick,
            Bench::Loss(arguments) => arguments.quick,
            Bench::Freeze(arguments) => arguments.quick,
            Bench::Moves(arguments) => arguments.quick,
            Bench::Pause(arguments) => arguments.quick,
            Bench::Parity(arguments) => arguments.quick,
            Bench::Delta(arguments) => arguments.quick,
            Bench::Store(arguments) => arguments.quick,
            Bench::Checkpointable(arguments) => arguments.quick,
            Bench::Mpi(arguments) => arguments.quick,
            Bench::Protocol(arguments) => arguments.quick,
            Bench::All { quick, .. } => *quick,
        }
    }
}

/// The result of a bench.
#[derive(Debug)]
pub struct Outcome {
    /// Text, or one JSON object.
    pub report: String,
    /// Whether the measured programs' results are right. A missed bar is no fault.
    pub right: bool,
}

/// Warning in the report of few and short runs.
const ROUGH: &str =
    "--quick: few and short runs, so these figures are rough; leave it out for figures to keep";

/// A report in both forms.
struct Shown {
    text: String,
    json: String,
}

impl Shown {
    fn of<R: Serialize + Display>(report: &R) -> Result<Shown, BenchError> {
        Ok(Shown { text: report.to_string(), json: serde_json::to_string(report)? })
    }

    /// A report of few and short runs says so.
    fn rough(self) -> Shown {
        let json = match self.json.strip_prefix('{') {
            Some(keys) => format!("{{\"quick\":true,{keys}"),
            None => self.json,
        };
        Shown { text: format!("{}\n\n{ROUGH}", self.text.trim_end()), json }
    }
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|error| BenchError::Write { path: path.to_owned(), error })
}
