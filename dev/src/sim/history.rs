//! One history at a time: repeated, judged as a scenario, reduced.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use console::{Progress, Unit, number};
use sim::history::{History, RunReport};
use sim::limits::RANKS_MAX;
use sim::plan::draw;
use sim::scenario::{Outcome, TEXT_BYTES_MAX, parse, write_plan};

use super::{switch_named, verdict};
use crate::error::DevError;
use crate::exit::Exit;
use crate::print_json;

/// The size of a drawn job.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Jobs of at least so many ranks, up to 64 [default: most of 4, some of 16 to 64]
    #[arg(long, value_name = "N", value_parser = number::<u32>(2..=RANKS_MAX.into()))]
    pub(crate) ranks_min: Option<u32>,
}

/// Arguments of `sim run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArguments {
    /// Seed of the history, as `swarm` and `sabotage` name it
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX))]
    seed: u64,
    #[command(flatten)]
    size: Size,
    /// Take this rule of the protocol out, as `sabotage` does
    #[arg(long, value_name = "RULE")]
    without: Option<String>,
    /// Print the plan in the language of scenarios instead of running it
    #[arg(long)]
    plan: bool,
    /// With --json: put the trace into the object
    #[arg(long)]
    trace: bool,
}

/// Arguments of `sim scenario`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScenarioArguments {
    /// The scenario
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show one line per event of each history
    #[arg(long)]
    trace: bool,
}

/// Arguments of `sim shrink`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShrinkArguments {
    /// Seed of a history that fails
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX))]
    seed: u64,
    #[command(flatten)]
    size: Size,
    /// The rule of the protocol without which it fails
    #[arg(long, value_name = "RULE")]
    without: Option<String>,
    /// Histories that may be run
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = number::<u32>(1..=u32::MAX.into()))]
    runs: u32,
}

/// Standard output of a trace: its reader may have seen enough and gone.
struct TraceOutput<'a> {
    out: io::StdoutLock<'a>,
    gone: bool,
}

impl TraceOutput<'_> {
    fn new() -> TraceOutput<'static> {
        TraceOutput { out: io::stdout().lock(), gone: false }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        match self.out.write_all(text.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.gone = true;
                Ok(())
            }
            result => result,
        }
    }
}

/// Runs a history to its end and shows its trace on the way; without `lines`, the trace is in the report if `trace`.
fn run_to_end(
    history: &mut History,
    lines: Option<&mut TraceOutput<'_>>,
    trace: bool,
) -> io::Result<RunReport> {
    let Some(lines) = lines else {
        while history.step() {}
        let text = history.take_trace();
        return Ok(history.report(trace.then_some(text)));
    };
    while history.step() {
        let text = history.take_trace();
        if !text.is_empty() && !lines.gone {
            lines.write(&text)?;
        }
    }
    lines.write(&history.take_trace())?;
    Ok(history.report(None))
}

fn outcome_lines(run: &RunReport) -> String {
    let violations: String =
        run.violations.iter().map(|violation| format!("VIOLATION {violation}\n")).collect();
    format!("{violations}seed {}: {}\ndigest {}\n", run.seed, run.summary, run.digest)
}

pub(super) fn run(arguments: &RunArguments, json: bool) -> Result<Exit, DevError> {
    let without = arguments.without.as_deref().map(switch_named).transpose()?;
    let plan = draw(arguments.seed, arguments.size.ranks_min);
    if arguments.plan {
        let text = write_plan(&plan);
        if json {
            print_json(&serde_json::json!({ "seed": arguments.seed, "plan": text }))?;
        } else {
            TraceOutput::new().write(&text)?;
        }
        return Ok(Exit::Success);
    }
    let mut history = History::new(plan, without.as_ref(), !json || arguments.trace);
    let report = if json {
        let report = run_to_end(&mut history, None, arguments.trace)?;
        print_json(&report)?;
        report
    } else {
        let mut lines = TraceOutput::new();
        lines.write(sim::engine::trace::LEGEND)?;
        lines.write("\n")?;
        let report = run_to_end(&mut history, Some(&mut lines), true)?;
        lines.write(&outcome_lines(&report))?;
        report
    };
    Ok(verdict(report.violations.is_empty()))
}

/// Reads a file that should be a scenario, and not more of it than one can have.
fn read_scenario(path: &Path) -> Result<String, DevError> {
    let failed = |error| DevError::File { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let bound = TEXT_BYTES_MAX as u64 + 1;
    File::open(path).map_err(failed)?.take(bound).read_to_end(&mut bytes).map_err(failed)?;
    let wrong = |found: &str| DevError::NoScenario {
        path: path.to_owned(),
        expected: TEXT_BYTES_MAX,
        found: found.to_owned(),
    };
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(wrong("more"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("bytes that are no text"))
}

pub(super) fn scenario(arguments: &ScenarioArguments, json: bool) -> Result<Exit, DevError> {
    let text = read_scenario(&arguments.file)?;
    let scenario =
        parse(&text).map_err(|error| DevError::Scenario { path: arguments.file.clone(), error })?;
    let mut lines = (!json).then(TraceOutput::new);
    let mut outcomes: Vec<Outcome> = Vec::new();
    for expectation in scenario.expected() {
        let outcome = scenario.check_one(&expectation, arguments.trace, |history| {
            run_to_end(history, lines.as_mut(), arguments.trace)
        })?;
        if let Some(lines) = &mut lines {
            let word = if outcome.met { "as expected" } else { "NOT AS EXPECTED" };
            lines.write(&format!(
                "{expectation}: {word} after {} histories\n{}",
                outcome.histories,
                outcome_lines(&outcome.run)
            ))?;
        }
        outcomes.push(outcome);
    }
    let fine = outcomes.iter().all(|outcome| outcome.met);
    if json {
        print_json(&serde_json::json!({ "as_expected": fine, "outcomes": outcomes }))?;
    }
    Ok(verdict(fine))
}

pub(super) fn shrink(arguments: &ShrinkArguments, json: bool) -> Result<Exit, DevError> {
    let without = arguments.without.as_deref().map(switch_named).transpose()?;
    // It ends as soon as nothing more helps: `runs` is the most.
    let shown = Progress::counted("sim shrink, at most", Unit::Things("histories"), arguments.runs.into());
    let mut progress = |progress: sim::shrink::Progress| {
        shown.set(progress.runs.into());
        shown.doing(format_args!("{} steps are left of the plan", progress.steps));
    };
    let plan = draw(arguments.seed, arguments.size.ranks_min);
    let shrunk = sim::shrink::shrink(plan, without.as_ref(), arguments.runs, &mut progress)?;
    drop(shown);
    if json {
        print_json(&shrunk)?;
        return Ok(Exit::Success);
    }
    let rule = shrunk.without.as_ref().map(|rule| format!(" without rule {rule}")).unwrap_or_default();
    let end = if shrunk.complete { "nothing more helps" } else { "the budget of histories is used" };
    let mut lines = TraceOutput::new();
    lines.write(&format!(
        "# Reduced from seed {}{rule}: {} steps to {}, in {} histories; {end}.\n",
        shrunk.seed, shrunk.steps_before, shrunk.steps, shrunk.runs
    ))?;
    for violation in &shrunk.run.violations {
        lines.write(&format!("# {violation}\n"))?;
    }
    lines.write(&shrunk.scenario)?;
    Ok(Exit::Success)
}
