//! When checkpoints are taken: options, and the command `tune`, which changes the reactions to faults as well.

use std::time::Duration;

use ckpt_glue::config::CheckpointConfig;
use ckpt_glue::interval::{Every, MTBF_MIN, Percentage, Tuning};
use ckpt_glue::recovery::Policy;
use ckpt_glue::write_duration;
use clap::Args;
use launcher::registry;
use launcher::requests::{Answer, Request, ask};

use super::recovery::print_table;
use super::{print_json, say};
use crate::arguments::JobArgument;
use crate::error::CliError;
use crate::exit::Exit;

/// The text of `tune --help`.
pub(crate) const LONG_ABOUT: &str = "\
Change the time between checkpoints of a running job, and its reactions to faults.

The next checkpoint comes this time after the beginning of the last one: at once, if that has passed. Later restarts of the job use the new time, \
if all ranks have run. The command prints the time, and for auto also what it was chosen from, as `stillwire ps` does.

--on changes the reactions to faults; later restarts of the job keep them. The command prints all of them.";

/// When checkpoints are taken: the same for `run`, `restart` and `tune`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct IntervalArguments {
    /// Time between checkpoints, such as 5m, 30s or 250ms; auto: the job chooses it; off: only on request, by `stillwire checkpoint` or SIGUSR1 to the launcher [default: off, of a job that has run as before].
    ///
    /// auto chooses the time for which the least is lost: in checkpoints, by what each costs the program, and in work that failures undo, by how often the job fails. Both are measured while the job runs. A job that has not failed yet is expected to fail once in ten to twenty times its running time (--mtbf). `stillwire ps` shows the chosen time, and `stillwire tune` changes it.
    #[arg(long = "ckpt-every", value_name = "D")]
    pub(crate) every: Option<Every>,
    /// Expected time between two failures of the whole job, such as 20h or 30d, for --ckpt-every auto: a first guess, until failures are observed
    #[arg(long, value_name = "D", value_parser = mtbf_argument)]
    pub(crate) mtbf: Option<Duration>,
    /// Largest part of the running time that checkpoints may cost, for --ckpt-every auto, such as 1% or 0.5%; it makes the time between them longer [default: 10%, of a job that has run as before]
    #[arg(long = "ckpt-budget", value_name = "P")]
    pub(crate) budget: Option<Percentage>,
}

impl IntervalArguments {
    /// Changes a job's settings.
    ///
    /// # Errors
    /// If there is a figure for a choice that nobody makes.
    pub(crate) fn apply(&self, to: &mut CheckpointConfig) -> Result<(), CliError> {
        let IntervalArguments { every, mtbf, budget } = *self;
        Tuning { every, mtbf, budget }.apply(to);
        for (is_given, option) in [(self.mtbf.is_some(), "--mtbf"), (self.budget.is_some(), "--ckpt-budget")]
        {
            if is_given && to.every != Every::Auto {
                return Err(CliError::NothingChosen { option });
            }
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").args(["every", "mtbf", "budget", "on"]).required(true).multiple(true))]
pub(crate) struct TuneArguments {
    #[command(flatten)]
    pub(crate) job: JobArgument,
    #[command(flatten)]
    pub(crate) interval: IntervalArguments,
    /// React to faults of MODEL with PROTOCOL, and with the next one if that is not possible, such as repeated=migration,restart (`stillwire recovery --help`); may be given several times
    #[arg(long, value_name = "MODEL=PROTOCOL[,PROTOCOL]", value_parser = change_argument)]
    pub(crate) on: Vec<String>,
}

fn change_argument(text: &str) -> Result<String, String> {
    Policy::default().change(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn mtbf_argument(text: &str) -> Result<Duration, String> {
    let mtbf = ckpt_glue::parse_duration(text).map_err(|error| error.to_string())?;
    if mtbf < MTBF_MIN {
        return Err(format!("expected at least {}", ckpt_glue::write_duration(MTBF_MIN)));
    }
    Ok(mtbf)
}

pub(crate) fn tune(arguments: &TuneArguments, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(&arguments.job.job)?;
    let IntervalArguments { every, mtbf, budget } = arguments.interval;
    let request = Request::Tune {
        every: every.map(|every| every.to_string()),
        mtbf: mtbf.map(write_duration),
        budget: budget.map(|budget| budget.to_string()),
        on: arguments.on.clone(),
    };
    let answer = ask(&info, &request)?;
    if json {
        print_json(&answer)?;
    }
    match answer {
        Answer::Tuned { checkpoints, recovery } => {
            let changes_times = every.is_some() || mtbf.is_some() || budget.is_some();
            if !json && changes_times {
                say!("{}", checkpoints.words())?;
            }
            if !json && !arguments.on.is_empty() {
                print_table(&recovery)?;
            }
            Ok(Exit::Success)
        }
        Answer::Failed { reason } => Err(CliError::NotTuned { reason }),
        _ => Err(CliError::NotTuned { reason: "the job is ending".to_owned() }),
    }
}
