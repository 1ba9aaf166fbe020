//! The benches as commands: one place for their flags, for the program `bench` and for `stillwire bench`.

use clap::Subcommand;

use crate::BenchError;
use crate::bulk::{self, BulkOptions};
use crate::latency::{self, LatencyOptions};
use crate::protocol::{self, ProtocolOptions};

/// Which bench.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Half round trip of 8 bytes against a bare ping-pong.
    Latency {
        /// Pairs of processes.
        #[arg(long, default_value_t = LatencyOptions::default().pairs)]
        pairs: usize,
        /// Runs of each side, per pair.
        #[arg(long, default_value_t = LatencyOptions::default().runs)]
        runs: usize,
        /// Round trips per run.
        #[arg(long, default_value_t = LatencyOptions::default().rounds)]
        rounds: usize,
    },
    /// Cost of the protocol alone, without any socket.
    Protocol {
        /// Runs per level of authentication.
        #[arg(long, default_value_t = ProtocolOptions::default().runs)]
        runs: usize,
    },
    /// One-way stream of large messages against TCP.
    Bulk {
        /// Runs of each kind and size.
        #[arg(long, default_value_t = BulkOptions::default().runs)]
        runs: usize,
        /// Sizes of message, MiB.
        #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
        mib: Vec<usize>,
    },
}

impl Bench {
    /// Runs the bench; its report as text, or as one JSON object.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn run(&self, json: bool) -> Result<String, BenchError> {
        match self {
            Bench::Latency { pairs, runs, rounds } => {
                show(&latency::run(&LatencyOptions { pairs: *pairs, runs: *runs, rounds: *rounds })?, json)
            }
            Bench::Protocol { runs } => {
                show(&protocol::run(&ProtocolOptions { runs: *runs, ..ProtocolOptions::default() })?, json)
            }
            Bench::Bulk { runs, mib } => {
                let sizes = mib.iter().map(|mib| mib << 20).collect();
                show(&bulk::run(&BulkOptions { runs: *runs, sizes, ..BulkOptions::default() })?, json)
            }
        }
    }
}

fn show<R: serde::Serialize + std::fmt::Display>(report: &R, json: bool) -> Result<String, BenchError> {
    Ok(if json { serde_json::to_string(report)? } else { report.to_string() })
}
