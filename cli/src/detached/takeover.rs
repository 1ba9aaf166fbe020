//! What a launcher that takes over from a killed one is told to do.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser as _;
use store::job::GenerationState;
use store::{Directory, GenerationId};

use crate::arguments::{Arguments, Command, RestartArguments, RunArguments};
use crate::commands::restart::open_job;
use crate::commands::run::read_settings;
use crate::error::CliError;

/// Launchers of one run that may be killed one after the other without a checkpoint between them: what kills them all is not chance.
const DEATHS_MAX: u32 = 5;

/// Longest wait until what the killed launcher has left behind is cleaned up on this host. Its guard kills the ranks, which may be in the kernel.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(60);

/// Shortest time limit of a launcher that takes over: the job is to be saved and ended at once.
const LIMIT_MIN: Duration = Duration::from_secs(1);

/// The command of a launcher.
pub(crate) enum Launch {
    Run(Box<RunArguments>),
    Restart(Box<RestartArguments>),
}

/// How often launchers of this run were killed.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    since_commit: u32,
    newest: Option<GenerationId>,
}

/// What the watcher does about a launcher that was killed.
pub(crate) enum Next {
    /// The job had finished already.
    HasFinished,
    /// From this generation.
    Restart(GenerationId),
    /// It cannot be continued, and why.
    GiveUp(String),
}

impl Deaths {
    /// One more. Looks into the job's directory.
    pub(crate) fn next(&mut self, directory: &Path) -> Next {
        match self.look(directory) {
            Ok(next) => next,
            Err(error) => Next::GiveUp(format!("its directory cannot be read: {error}")),
        }
    }

    fn look(&mut self, path: &Path) -> Result<Next, CliError> {
        if !is_free_in_time(path)? {
            let seconds = LEFT_BEHIND_MAX.as_secs();
            return Ok(Next::GiveUp(format!(
                "processes that it has left behind still run after {seconds} s"
            )));
        }
        let (mut directory, _) = open_job(path)?;
        if directory.end()?.is_some() {
            return Ok(Next::HasFinished);
        }
        let generations = directory.generations()?;
        let newest = generations.iter().rfind(|found| found.state == GenerationState::Committed);
        let Some(newest) = newest.map(|found| found.id) else {
            return Ok(Next::GiveUp("no checkpoint was committed to go on from".to_owned()));
        };
        self.since_commit = if self.newest == Some(newest) { self.since_commit + 1 } else { 1 };
        self.newest = Some(newest);
        if self.since_commit > DEATHS_MAX {
            return Ok(Next::GiveUp(format!(
                "{} launchers in a row were killed before they had committed a checkpoint",
                self.since_commit
            )));
        }
        Ok(Next::Restart(newest))
    }
}

/// Waits until nobody works on the job's directory.
fn is_free_in_time(path: &Path) -> Result<bool, CliError> {
    let until = Instant::now() + LEFT_BEHIND_MAX;
    let storage = Directory::open(path)?;
    loop {
        match storage.lock() {
            Ok(_) => return Ok(true),
            Err(store::StorageError::Locked { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(store::StorageError::Locked { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Launch {
    /// The job's newest checkpoint, as the command before it has been told to run it. `started`: when the run began, whose time limit goes on.
    pub(crate) fn into_takeover(self, directory: &Path, started: Instant) -> Result<Launch, CliError> {
        let (_, file) = open_job(directory)?;
        let mut limit = read_settings(&file)?.config.time_limit;
        let mut restart = match self {
            Launch::Run(run) => {
                let mut restart = plain(directory)?;
                (restart.key, restart.sign) = (run.key, run.sign);
                (restart.quiet, restart.verbose) = (run.quiet, run.verbose);
                restart
            }
            Launch::Restart(mut restart) => {
                restart.directory = directory.to_path_buf();
                // Those have chosen where the run began.
                (restart.from, restart.trust, restart.generation) = (None, false, None);
                limit = restart.time_limit.or(limit);
                restart
            }
        };
        restart.time_limit = limit.map(|limit| limit.saturating_sub(started.elapsed()).max(LIMIT_MIN));
        Ok(Launch::Restart(restart))
    }
}

/// `restart DIR` without any option.
fn plain(directory: &Path) -> Result<Box<RestartArguments>, CliError> {
    let words = ["stillwire".as_ref(), "restart".as_ref(), directory.as_os_str()];
    match Arguments::try_parse_from(words).map(|parsed| parsed.command) {
        Ok(Command::Restart(restart)) => Ok(restart),
        // A path that looks like an option does not come from `canonicalize`.
        _ => Err(CliError::NoJob { path: directory.to_path_buf() }),
    }
}
