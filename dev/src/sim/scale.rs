//! `stillwire-dev sim scale`: how control messages and time grow with the ranks, of a checkpoint and of the loss of a node.

use std::io::{self, Write as _};

use clap::Args;
use console::{Progress, bytes, nanos, number};
use sim::scale::{Loss, Markers, Report, Row, Settings, Taken, costs};

use crate::error::DevError;
use crate::exit::Exit;
use crate::print_json;

/// Arguments of `sim scale`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArguments {
    /// Ranks of the largest job; the others have 16, 32, 64, ... ranks
    #[arg(long, value_name = "N", value_parser = number::<u32>(0..=u32::MAX.into()))]
    ranks: u32,
    /// Ranks on each node
    #[arg(long, value_name = "R", default_value_t = 64, value_parser = number::<u32>(1..=u32::MAX.into()))]
    ranks_per_node: u32,
    /// Keepers below each keeper in the tree
    #[arg(long, value_name = "K", default_value_t = 16, value_parser = number::<u32>(1..=ckpt_glue::limits::FAN_OUT_MAX.into()))]
    fan_out: u32,
    /// Checkpoints, one after the other; messages are those of one, times the longest
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = number::<u32>(1..=u32::MAX.into()))]
    checkpoints: u32,
}

/// The text of `--help`.
pub(super) const HELP: &str = "\
Count the control messages of a checkpoint, and their time, beside a coordinator that flushes.

Runs checkpoints of jobs of 16, 32, 64, ... N ranks in virtual time: the production coordinator, a tree of keepers, and a \
participant for each rank. Beside it the same job whose ranks flush their channels before they save: each sends a marker over \
each of its N-1 channels and waits for the markers of all others, as CoCheck did. All messages are counted as the machines \
send them. There is no data traffic and no fault, so no channel of the flush has anything to be flushed but the marker.

Costs: a message takes its sender and its receiver 1 us each and 1 ns for 4 bytes, one after the other, and 5 us on the way; \
a cut takes 10 us, an image 1 ms beside the program, a commit record 1 ms. Networks have no other limit.

Up to 2048 ranks every marker is an event. Above, the machines still send and take each of them, but their times are computed \
from the times at which the ranks begin; the column `markers` says which. 65,536 ranks send 4.3 billion markers: some seconds.

Then each job of several nodes loses one, in the middle between two heartbeats. It is suspected, declared lost, its place goes to \
a spare host, which rebuilds its images from the other nodes of its group, and all ranks start again. Messages of keepers to \
each other pass through the launcher there, as in a real job. Costs besides: a process ends in 1 ms and begins in 10 ms, a keeper \
on a spare host begins in 500 ms, images of 1 MiB are rebuilt at 1 byte/ns, a node's disk answers in 1 ms. The table of the ranks' \
addresses is left out.

The last lines give the power of the ranks with which messages grow, fitted to the counted numbers.";

pub(super) fn scale(arguments: &ScaleArguments, json: bool) -> Result<Exit, DevError> {
    let settings = Settings {
        ranks: arguments.ranks,
        ranks_per_node: arguments.ranks_per_node,
        fan_out: arguments.fan_out,
        checkpoints: arguments.checkpoints,
    };
    // Nearly all of the time goes into the markers of the flush, one from each rank to each.
    let sizes = (4..32)
        .map(|power| f64::from(1u32 << power))
        .take_while(|size| *size < f64::from(2 * arguments.ranks));
    let progress = Progress::weighted("sim scale", sizes.map(|ranks| ranks * ranks));
    progress.step(format_args!("a job of 16 ranks"));
    let mut done = |row: &Row| progress.step(format_args!("a job of more than {} ranks", row.ranks));
    let report = sim::scale::scale(settings, &mut done)?;
    drop(progress);
    if json {
        print_json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(Exit::Success)
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "message {} + {} B/ns at each end, {} on the way; cut {}, image {}, record {}\n",
        nanos(costs::MESSAGE_NS),
        costs::BYTES_PER_NS,
        nanos(costs::LATENCY_NS),
        nanos(costs::CUT_NS),
        nanos(costs::IMAGE_NS),
        nanos(costs::RECORD_NS)
    )?;
    writeln!(out, "{:>15} | {:^42} | {:^42}", "", "stillwire", "with a flush")?;
    let columns =
        |taken: [&str; 4]| format!("{:>11} {:>10} {:>9} {:>9}", taken[0], taken[1], taken[2], taken[3]);
    let heads = columns(["messages", "bytes", "durable", "still"]);
    writeln!(out, "{:>8} {:>6} | {heads} | {heads}  markers", "ranks", "nodes")?;
    for row in &report.rows {
        let cells = |taken: &Taken| {
            columns([
                &taken.messages.to_string(),
                &bytes(taken.bytes),
                &nanos(taken.durable_ns),
                &nanos(taken.still_ns),
            ])
        };
        let markers = match row.markers {
            Markers::EventByEvent => "events",
            Markers::Aggregate => "computed",
        };
        let (ours, flush) = (cells(&row.ours), cells(&row.flush));
        writeln!(out, "{:>8} {:>6} | {ours} | {flush}  {markers}", row.ranks, row.nodes)?;
    }
    writeln!(
        out,
        "\ndurable: from the request until the commit record is; still: the longest time that a rank stood still"
    )?;
    print_losses(&mut out, report)?;
    if let (Some(ours), Some(flush)) = (report.ours_exponent, report.flush_exponent) {
        writeln!(out, "messages grow with ranks^{ours:.2} here, with ranks^{flush:.2} with a flush")?;
    }
    Ok(())
}

/// The loss of a node, for jobs of several.
fn print_losses(out: &mut impl io::Write, report: &Report) -> io::Result<()> {
    let losses: Vec<(&Row, Loss)> =
        report.rows.iter().filter_map(|row| row.loss.map(|loss| (row, loss))).collect();
    if losses.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nloss of a node; keeper on a spare host {}, process {}, rebuilt {} B/ns",
        nanos(costs::KEEPER_NS),
        nanos(costs::PROCESS_NS),
        costs::REBUILT_BYTES_PER_NS
    )?;
    writeln!(
        out,
        "{:>8} {:>6} | {:>10} {:>10} | {:>9} {:>9} {:>9} {:>9} | {:>10} {:>10}",
        "ranks",
        "nodes",
        "messages/s",
        "bytes/s",
        "suspected",
        "declared",
        "decided",
        "running",
        "messages",
        "bytes"
    )?;
    for (row, loss) in losses {
        writeln!(
            out,
            "{:>8} {:>6} | {:>10} {:>10} | {:>9} {:>9} {:>9} {:>9} | {:>10} {:>10}",
            row.ranks,
            row.nodes,
            loss.launcher_messages_per_s,
            bytes(loss.launcher_bytes_per_s),
            nanos(loss.suspected_ns),
            nanos(loss.declared_ns),
            nanos(loss.decided_ns),
            nanos(loss.running_ns),
            loss.messages,
            bytes(loss.bytes)
        )?;
    }
    writeln!(
        out,
        "\nmessages/s: sent and taken by the launcher while nothing happens, heartbeats and probe; times since the loss; messages until all ranks run"
    )
}
