//! `stillwire sim`: the protocol under faults, deterministically.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Subcommand;
use sim::sabotage;
use sim::swarm::{self, Sum, SwarmReport};

use crate::commands::print_json;
use crate::error::CliError;
use crate::exit::Exit;

/// What to simulate.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum SimCommand {
    /// Repeat one history bit for bit, with one line per event
    ///
    /// The exit code says whether a property was violated.
    Run {
        /// Seed of the history, as `swarm` names it
        #[arg(long)]
        seed: u64,
    },
    /// Run many histories of a 4-rank job, each with faults of its own, and judge them
    Swarm {
        /// How many
        #[arg(long, default_value_t = 2000)]
        histories: u64,
        /// First seed; the others follow it
        #[arg(long, default_value_t = 0)]
        first_seed: u64,
        /// Threads [default: one per core]
        #[arg(long)]
        threads: Option<usize>,
    },
    /// Take the rules of the protocol out one at a time, and see after how many histories the judges notice
    Sabotage {
        /// Only this rule [default: all]
        #[arg(long)]
        rule: Option<String>,
        /// Histories after which a rule counts as not noticed
        #[arg(long, default_value_t = sim::limits::SABOTAGE_HISTORIES)]
        histories: u64,
    },
}

pub(crate) fn simulate(command: SimCommand, json: bool) -> Result<Exit, CliError> {
    match command {
        SimCommand::Run { seed } => run(seed, json),
        SimCommand::Swarm { histories, first_seed, threads } => {
            run_swarm(histories, first_seed, threads.unwrap_or_else(cores), json)
        }
        SimCommand::Sabotage { rule, histories } => run_sabotage(rule.as_deref(), histories, json),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn verdict(fine: bool) -> Exit {
    if fine { Exit::Success } else { Exit::Unverified }
}

fn run(seed: u64, json: bool) -> Result<Exit, CliError> {
    let report = swarm::run(seed);
    if json {
        print_json(&report)?;
    } else {
        let mut out = io::stdout().lock();
        writeln!(out, "{}\nseed {seed}: {}", report.trace, report.summary)?;
        for violation in &report.violations {
            writeln!(out, "VIOLATION {violation}")?;
        }
    }
    Ok(verdict(report.violations.is_empty()))
}

fn run_swarm(histories: u64, first_seed: u64, threads: usize, json: bool) -> Result<Exit, CliError> {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let total = Mutex::new(Sum::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut sum = Sum::default();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= histories {
                        break;
                    }
                    sum.run(first_seed + i);
                    if i > 0 && i.is_multiple_of(1000) {
                        eprintln!("stillwire: {i} of {histories} histories");
                    }
                }
                total.lock().unwrap_or_else(PoisonError::into_inner).join(sum);
            });
        }
    });
    let sum = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let report = sum.report(first_seed, threads.max(1), begun.elapsed().as_secs_f64());
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
    writeln!(out, "{} violations", report.violations)
}

fn run_sabotage(rule: Option<&str>, histories: u64, json: bool) -> Result<Exit, CliError> {
    let all = sabotage::switches();
    let wanted: Vec<_> = all.iter().filter(|switch| rule.is_none_or(|rule| rule == switch.name)).collect();
    if wanted.is_empty() {
        let names: Vec<&str> = all.iter().map(|switch| switch.name).collect();
        return Err(CliError::NoSuchRule {
            rule: rule.unwrap_or_default().to_owned(),
            known: names.join(", "),
        });
    }
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores().min(wanted.len()) {
            scope.spawn(|| {
                while let Some(switch) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = sabotage::hunt(switch, histories);
                    let outcome = if report.found { "noticed" } else { "NOT NOTICED" };
                    eprintln!(
                        "stillwire: {} {outcome} after {} histories",
                        report.rule, report.after_histories
                    );
                    reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
                }
            });
        }
    });
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
