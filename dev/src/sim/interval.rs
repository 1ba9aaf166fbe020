//! `stillwire-dev sim interval`: the interval between checkpoints that a job chooses itself, beside fixed ones.

use std::io::{self, Write as _};

use clap::Args;
use console::number;
use sim::interval::{Costs, Row, compare};

use crate::error::DevError;
use crate::exit::Exit;
use crate::print_json;

/// Arguments of `sim interval`.
#[derive(Args, Clone, Debug)]
pub(crate) struct IntervalArguments {
    /// Ranks of the jobs
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1000, 8192, 65_536], value_parser = number::<u32>(1..=u32::MAX.into()))]
    ranks: Vec<u32>,
    /// Ranks on each node; a node fails once in five years
    #[arg(long, value_name = "R", default_value_t = 16, value_parser = number::<u32>(1..=u32::MAX.into()))]
    ranks_per_node: u32,
    /// Milliseconds by which a checkpoint delays the program
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = number::<u32>(1..=86_400_000))]
    delay_ms: u32,
    /// Milliseconds from the beginning of a checkpoint until it is durable
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = number::<u32>(1..=86_400_000))]
    durable_ms: u32,
    /// Milliseconds from a failure until all ranks run again
    #[arg(long, value_name = "MS", default_value_t = 60_000, value_parser = number::<u32>(0..=86_400_000))]
    recovery_ms: u32,
    /// Jobs of each size: the times are their means
    #[arg(long, value_name = "J", default_value_t = 16, value_parser = number::<u64>(1..=1_000_000))]
    jobs: u64,
    /// Where the failures come from
    #[arg(long, default_value_t = 1, value_parser = number::<u64>(0..=u64::MAX))]
    seed: u64,
}

/// The text of `--help`.
pub(super) const HELP: &str = "\
Compare the interval that jobs choose themselves with fixed ones, for large jobs over months.

Each job has work for 20 times its mean time between failures. Failures come as a Poisson process while it runs, the same ones for each interval. \
The production machine of `--ckpt-every auto` chooses as it does in a job, from the delays that checkpoints report and the failures that it sees. \
Beside it run fixed intervals, from a sixth to six times that of Daly's formula for the true cost and failure rate, a quarter apart.

The columns `fixed` and `auto` are the time of the job over that without failures and checkpoints; `ratio` is that of the two, `loss` that of the times that are lost.";

pub(super) fn interval(arguments: &IntervalArguments, json: bool) -> Result<Exit, DevError> {
    let seconds = |ms: u32| f64::from(ms) / 1e3;
    let costs = Costs {
        delay_s: seconds(arguments.delay_ms),
        durable_s: seconds(arguments.durable_ms),
        recovery_s: seconds(arguments.recovery_ms),
    };
    let rows =
        compare(&arguments.ranks, arguments.ranks_per_node, costs, arguments.jobs, arguments.seed, None);
    if json {
        print_json(
            &serde_json::json!({ "costs": costs, "seed": arguments.seed, "jobs": arguments.jobs, "rows": rows }),
        )?;
    } else {
        print(&rows)?;
    }
    Ok(Exit::Success)
}

fn print(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let heads = ["ranks", "nodes", "mtbf s", "daly s", "fixed s", "fixed", "auto", "ratio", "loss"];
    writeln!(out, "{}", heads.map(|head| format!("{head:>10}")).join(" "))?;
    for row in rows {
        writeln!(
            out,
            "{:>10} {:>10} {:>10.0} {:>10.0} {:>10.0} {:>10.4} {:>10.4} {:>10.4} {:>10.3}",
            row.ranks,
            row.nodes,
            row.mtbf_s,
            row.daly_s,
            row.fixed_s,
            row.fixed_time,
            row.auto_time,
            row.ratio,
            row.loss_ratio
        )?;
    }
    writeln!(out, "\nfixed, auto: the time of the job over that without failures and checkpoints")
}
