//! Flags of the benches of messages: latency, rate, bulk.

use clap::Args;

use super::{MESSAGE_MIB_MAX, MESSAGES_MAX, MTU_MAX, PAIRS_MAX, ROUNDS_MAX, RUNS_MAX};
use crate::bulk::BulkOptions;
use crate::latency::LatencyOptions;
use crate::moves::MovesOptions;
use crate::rate::RateOptions;
use crate::testbed::{Nic, Program};
use console::number;

/// The driver that is measured.
#[derive(Args, Clone, Copy, Debug)]
pub struct NicArguments {
    /// The driver: udp on loopback, shm, xdp between two network namespaces that the bench makes (as root), or verbs between the first two RDMA devices here
    #[arg(long, value_enum, default_value_t)]
    pub(super) nic: Nic,
    /// Where the program of AF_XDP is attached
    #[arg(long, value_enum, default_value_t)]
    pub(super) attach: Program,
}

/// Arguments of the latency benchmark.
#[derive(Args, Clone, Debug)]
pub struct LatencyArguments {
    #[command(flatten)]
    nic: NicArguments,
    /// Pairs of processes, one after the other
    #[arg(long, default_value_t = LatencyOptions::default().pairs, value_parser = number::<usize>(1..=PAIRS_MAX))]
    pairs: usize,
    /// Runs of each side, per pair
    #[arg(long, default_value_t = LatencyOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Round trips per run
    #[arg(long, default_value_t = LatencyOptions::default().rounds, value_parser = number::<usize>(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["pairs", "runs", "rounds"])]
    pub(super) quick: bool,
}

impl From<&LatencyArguments> for LatencyOptions {
    fn from(arguments: &LatencyArguments) -> LatencyOptions {
        let LatencyArguments { nic: NicArguments { nic, attach: program }, pairs, runs, rounds, quick } =
            *arguments;
        if quick {
            return LatencyOptions { nic, program, ..quick_latency() };
        }
        LatencyOptions { nic, program, pairs, runs, rounds }
    }
}

pub(super) fn quick_latency() -> LatencyOptions {
    LatencyOptions { pairs: 2, runs: 2, rounds: 1000, ..LatencyOptions::default() }
}

/// Arguments of the message rate benchmark.
#[derive(Args, Clone, Debug)]
pub struct RateArguments {
    #[command(flatten)]
    nic: NicArguments,
    /// Pairs of processes, one after the other
    #[arg(long, default_value_t = RateOptions::default().pairs, value_parser = number::<usize>(1..=PAIRS_MAX))]
    pairs: usize,
    /// Runs of each side, per pair
    #[arg(long, default_value_t = RateOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Messages per run
    #[arg(long, default_value_t = RateOptions::default().messages, value_parser = number::<usize>(1..=MESSAGES_MAX))]
    messages: usize,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["pairs", "runs", "messages"])]
    pub(super) quick: bool,
}

impl From<&RateArguments> for RateOptions {
    fn from(arguments: &RateArguments) -> RateOptions {
        let RateArguments { nic: NicArguments { nic, attach: program }, pairs, runs, messages, quick } =
            *arguments;
        if quick {
            return RateOptions { nic, program, ..quick_rate() };
        }
        RateOptions { nic, program, pairs, runs, messages }
    }
}

pub(super) fn quick_rate() -> RateOptions {
    RateOptions { pairs: 2, runs: 2, messages: 20_000, ..RateOptions::default() }
}

/// Arguments of the bulk benchmark.
#[derive(Args, Clone, Debug)]
pub struct BulkArguments {
    #[command(flatten)]
    nic: NicArguments,
    /// Runs of each kind and size
    #[arg(long, default_value_t = BulkOptions::default().runs, value_parser = number::<usize>(1..=RUNS_MAX))]
    runs: usize,
    /// Sizes of message, MiB
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_parser = number::<usize>(1..=MESSAGE_MIB_MAX))]
    mib: Vec<usize>,
    /// Data of one run, MiB, rounded up to whole messages
    #[arg(long, default_value_t = BulkOptions::default().run_bytes >> 20, value_parser = number::<usize>(1..=MESSAGE_MIB_MAX))]
    run_mib: usize,
    /// MTU of the devices that --nic xdp makes
    #[arg(long, default_value_t = BulkOptions::default().mtu, value_parser = number::<u32>(1280..=MTU_MAX))]
    mtu: u32,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["runs", "mib", "run_mib"])]
    pub(super) quick: bool,
}

impl From<&BulkArguments> for BulkOptions {
    fn from(arguments: &BulkArguments) -> BulkOptions {
        let NicArguments { nic, attach: program } = arguments.nic;
        if arguments.quick {
            return BulkOptions { nic, program, mtu: arguments.mtu, ..quick_bulk() };
        }
        let sizes = arguments.mib.iter().map(|mib| mib << 20).collect();
        let BulkArguments { runs, mtu, run_mib, .. } = *arguments;
        BulkOptions { nic, program, runs, sizes, run_bytes: run_mib << 20, mtu }
    }
}

pub(super) fn quick_bulk() -> BulkOptions {
    BulkOptions { runs: 2, sizes: vec![1 << 20, 4 << 20], run_bytes: 16 << 20, ..BulkOptions::default() }
}

/// Arguments of the benchmark of moves between NICs.
#[derive(Args, Clone, Debug)]
pub struct MovesArguments {
    /// Where the program of AF_XDP is attached
    #[arg(long, value_enum, default_value_t)]
    attach: Program,
    /// Moves of both ports from each kind to each
    #[arg(long, default_value_t = MovesOptions::default().moves, value_parser = number::<usize>(1..=RUNS_MAX))]
    moves: usize,
    /// Fewer and shorter runs: some seconds, and rough figures
    #[arg(long, conflicts_with_all = ["moves"])]
    pub(super) quick: bool,
}

impl From<&MovesArguments> for MovesOptions {
    fn from(arguments: &MovesArguments) -> MovesOptions {
        let moves = if arguments.quick { quick_moves().moves } else { arguments.moves };
        MovesOptions { program: arguments.attach, moves }
    }
}

pub(super) fn quick_moves() -> MovesOptions {
    MovesOptions { moves: 2, ..MovesOptions::default() }
}
