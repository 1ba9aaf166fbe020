//! `stillwire-dev sim`: the protocol under faults, deterministically.

mod history;
mod interval;
mod scale;
mod seats;

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Subcommand;
use console::{Progress, Unit, number};
use sim::sabotage::{self, Switch};
use sim::scenario::{SETTINGS, Setting};
use sim::swarm::{Sum, SwarmReport};

use crate::error::DevError;
use crate::exit::Exit;
use crate::print_json;

/// Threads of a swarm: more than any machine has cores for.
const THREADS_MAX: u64 = 1024;

/// Subcommands of `sim`.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum SimCommand {
    /// Repeat one history bit for bit, with one line per event
    #[command(long_about = "\
Repeat one history bit for bit, with one line per event.

A seed is a history: the plan of its faults is drawn from it, and so is everything that the plan leaves open. The digest in \
the last line is a hash of every event; equal digests mean equal histories, and `sim swarm --histories 1 --first-seed N` \
prints the same one. The exit code is 3 if a property was violated.

With --json there is one object (seed, digest, violations, summary, faults), and the trace in it only with --trace.")]
    Run(history::RunArguments),
    /// Run a scenario: a plan written by hand or by `shrink`, with its required outcome
    #[command(long_about = scenario_help())]
    Scenario(history::ScenarioArguments),
    /// Reduce a failing history to a small scenario that fails in the same way
    #[command(long_about = "\
Reduce a failing history to a small scenario that fails in the same way.

Steps of the plan are taken out, network conditions and settings are made plain, ranks, nodes, ports, rails and messages fewer, as long \
as the judges still find a violation of the same kind. Prints the reduced plan as a scenario, ready to be saved and run by \
`stillwire-dev sim scenario`; progress goes to standard error. Nearly every history holds, so --seed is one that `sim swarm` \
reported, or one that `sim sabotage` reported, with the same rule taken out by --without.")]
    Shrink(history::ShrinkArguments),
    /// Count the control messages of a checkpoint, and their time, beside a coordinator that flushes
    #[command(long_about = scale::HELP)]
    Scale(scale::ScaleArguments),
    /// Compare the interval that jobs choose themselves with fixed ones, for large jobs over months
    #[command(long_about = interval::HELP)]
    Interval(interval::IntervalArguments),
    /// Try every order in which launchers of one job can follow each other
    #[command(long_about = seats::HELP)]
    Seats(seats::SeatsArguments),
    /// Run many histories of small jobs and some of large ones, each with faults of its own, and judge them
    #[command(long_about = "\
Run many histories, each with faults of its own, and judge them.

A seed is a history. Most are of jobs of 4 ranks; one of 48 is of 16 to 64 ranks on up to 16 nodes. With --ranks-min N every \
job has N to 64 ranks; its histories are repeated by `sim run` and reduced by `sim shrink` with the same --ranks-min.

The exit code is 3 if a property was violated.")]
    Swarm {
        /// How many
        #[arg(long, default_value_t = 2000, value_parser = number::<u64>(1..=u64::MAX))]
        histories: u64,
        /// First seed; the others follow it
        #[arg(long, default_value_t = 0, value_parser = number::<u64>(0..=u64::MAX))]
        first_seed: u64,
        #[command(flatten)]
        size: history::Size,
        /// Threads [default: one per core]
        #[arg(long, value_parser = number::<usize>(1..=THREADS_MAX))]
        threads: Option<usize>,
    },
    /// Take the rules of the protocol out one at a time, and see after how many histories the judges notice
    Sabotage {
        /// Only this rule [default: all]
        #[arg(long)]
        rule: Option<String>,
        /// Histories after which a rule counts as not noticed
        #[arg(long, default_value_t = sim::limits::SABOTAGE_HISTORIES, value_parser = number::<u64>(1..=u64::MAX))]
        histories: u64,
    },
}

pub(crate) fn simulate(command: SimCommand, json: bool) -> Result<Exit, DevError> {
    match command {
        SimCommand::Run(arguments) => history::run(&arguments, json),
        SimCommand::Scenario(arguments) => history::scenario(&arguments, json),
        SimCommand::Interval(arguments) => interval::interval(&arguments, json),
        SimCommand::Seats(arguments) => seats::seats(&arguments, json),
        SimCommand::Scale(arguments) => scale::scale(&arguments, json),
        SimCommand::Shrink(arguments) => history::shrink(&arguments, json),
        SimCommand::Swarm { histories, first_seed, size, threads } => {
            run_swarm(histories, first_seed, size.ranks_min, threads.unwrap_or_else(cores), json)
        }
        SimCommand::Sabotage { rule, histories } => run_sabotage(rule.as_deref(), histories, json),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The text of `sim scenario --help`: the language is explained where it is used.
fn scenario_help() -> String {
    let settings: String = SETTINGS.iter().map(setting_help).collect();
    format!(
        "\
Run a scenario: a plan written by hand or by `shrink`, with what must come of it.

The plan runs for each `expect` line, and the exit code is 3 if one does not come true. A scenario is text, a line for \
each thing; `#` begins a comment line.

  expect: holds                  all properties hold
  expect without RULE: KIND      with that rule of the protocol taken out, a violation of this kind
  seed 7                         draws what the plan leaves open
  seeds 0 to 9                   all of these: what holds, must hold with all; what is
                                 violated, with one

Settings, each on a line of its own. Those that are left out are as here:

{settings}
Steps say when and what:

  at 1200 frames: checkpoint when ready    once so many frames have been delivered
  at 1.5ms: crash rank 2                   at a virtual time
  on frozen #3 after 12us: crash cause     after the fourth time that a rank has frozen; that rank

Moments: frozen, dumping, saved, committing, surveyed, decided, restoring. Actions:

  checkpoint when ready                    as soon as none is under way
  checkpoint at once
  crash rank 2                             or: crash cause, crash other 1
  switch off node 1 for 5ms                or: node of cause, node of other 1
  kill launcher for 5ms                    until the job is started again; or: kill launcher cut off
  stop keeper of node 1 for 5ms
  cut off node 1 for 5ms                   messages of control are held up; or for longer: a
                                           spare host takes its place
  suspect node 1                           a person says that it fails: a spare host takes its place
  move rank 2 in 1ms                       it goes on elsewhere, while the others run
  destroy node 1 for 5ms                   and its own directory, where nodes have any
  power loss after 12 writes for 5ms       of the node with the job's directory
  partition nodes 0 and 1 for 5ms
  rail 0 of rank 2 dead for 5ms
  clock of node 1 jumps -12us
  break control of node 1
  rank 2 unsavable for 5ms
  disk full after 12 writes                or: disk error after 12 writes
  storm loss 20%, delay 1%, for 5ms        any network conditions
  stall rank 2 for 5ms

`stillwire-dev sim run --seed N --plan` prints the plan of a seed in this language."
    )
}

/// A setting in its column, and its meaning beside it, or below where it is long.
fn setting_help(setting: &Setting) -> String {
    const COLUMN: usize = 33;
    let mut text = format!("  {} {}", setting.name, setting.usual);
    for line in setting.meaning.lines() {
        if text.len() >= COLUMN {
            text += "\n";
        }
        let column = text.len() - text.rfind('\n').map_or(0, |at| at + 1);
        text += &format!("{:width$}{line}", "", width = COLUMN - column);
    }
    text + "\n"
}

fn verdict(fine: bool) -> Exit {
    if fine { Exit::Success } else { Exit::Wrong }
}

/// The switch of a rule that somebody named.
fn switch_named(rule: &str) -> Result<Switch, DevError> {
    Switch::named(rule).ok_or_else(|| {
        let names: Vec<&str> = sabotage::switches().iter().map(|switch| switch.name).collect();
        DevError::NoSuchRule { rule: rule.to_owned(), known: names.join(", ") }
    })
}

fn run_swarm(
    histories: u64,
    first_seed: u64,
    ranks_min: Option<u32>,
    threads: usize,
    json: bool,
) -> Result<Exit, DevError> {
    if first_seed.checked_add(histories - 1).is_none() {
        return Err(DevError::SeedsUsedUp { histories, first_seed });
    }
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let total = Mutex::new(Sum::default());
    let progress = Progress::counted("sim swarm", Unit::Things("histories"), histories);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut sum = Sum::default();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= histories {
                        break;
                    }
                    sum.run(first_seed + i, ranks_min);
                    progress.add(1);
                }
                total.lock().unwrap_or_else(PoisonError::into_inner).join(sum);
            });
        }
    });
    drop(progress);
    let sum = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let report = sum.report(first_seed, threads, begun.elapsed().as_secs_f64());
    if json {
        print_json(&report)?;
    } else {
        print_swarm(&report)?;
    }
    Ok(verdict(report.violations == 0))
}

fn print_swarm(report: &SwarmReport) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} histories from seed {} in {:.1} s: {:.0} per minute on {} threads",
        report.histories, report.first_seed, report.seconds, report.histories_per_minute, report.threads
    )?;
    writeln!(
        out,
        "frames delivered {}, generations committed {}; each history: at least {} frames, {} checkpoint commands, \
         {} crashes, {} restarts",
        report.frames_delivered,
        report.commits,
        report.frames_delivered_min,
        report.checkpoint_commands_min,
        report.crashes_min,
        report.restarts_min
    )?;
    for (fault, histories) in report.faults.each() {
        writeln!(out, "{histories:>10} histories with {}", fault.name())?;
    }
    for finding in &report.findings {
        writeln!(out, "VIOLATION seed {}: {:?}", finding.seed, finding.violations)?;
    }
    writeln!(out, "{} violations; digest {}", report.violations, report.digest)
}

fn run_sabotage(rule: Option<&str>, histories: u64, json: bool) -> Result<Exit, DevError> {
    let wanted = match rule {
        Some(rule) => vec![switch_named(rule)?],
        None => sabotage::switches(),
    };
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let progress = Progress::counted("sim sabotage", Unit::Things("rules"), wanted.len() as u64);
    std::thread::scope(|scope| {
        for _ in 0..cores().min(wanted.len()) {
            scope.spawn(|| {
                while let Some(switch) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = sabotage::hunt(switch, histories);
                    let outcome = if report.found { "noticed" } else { "NOT NOTICED" };
                    let (rule, after) = (&report.rule, report.after_histories);
                    progress.note(format_args!("stillwire-dev: {rule} {outcome} after {after} histories"));
                    progress.add(1);
                    reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
                }
            });
        }
    });
    drop(progress);
    let mut reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
    reports.sort_by_key(|report| wanted.iter().position(|switch| switch.name == report.rule));
    let fine = reports.iter().all(|report| report.found);
    if json {
        print_json(&serde_json::json!({ "rules": reports }))?;
    } else {
        let mut out = io::stdout().lock();
        for report in &reports {
            let outcome = if report.found { "noticed" } else { "NOT NOTICED" };
            let first = report.violations.first().map(ToString::to_string).unwrap_or_default();
            writeln!(
                out,
                "{:<22} {outcome} after {} histories: {first}",
                report.rule, report.after_histories
            )?;
        }
    }
    Ok(verdict(fine))
}
