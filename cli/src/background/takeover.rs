//! The successor of a killed launcher: whether there is one, and its command.

use std::path::Path;
use std::time::{Duration, Instant};

use store::job::GenerationState;
use store::{Directory, GenerationId};

use crate::arguments::{RestartArguments, RunArguments};
use crate::commands::restart::open_job;
use crate::commands::run::read_settings;
use crate::commands::succession::LauncherLossArgument;
use crate::error::CliError;

/// Launchers that may be killed in a row without a checkpoint between them. More are no coincidence.
const DEATHS_MAX: u32 = 5;

/// Longest wait for the guard of a killed launcher, which ends all ranks on this host. A rank may be in a system call that cannot be interrupted.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(60);

/// Shortest time limit of a successor: it saves and ends the job at once.
pub(super) const LIMIT_MIN: Duration = Duration::from_secs(1);

/// The command of a launcher.
pub(crate) enum Launch {
    Run(Box<RunArguments>),
    Restart(Box<RestartArguments>),
}

/// How often launchers of this run were killed.
#[derive(Debug, Default)]
pub(crate) struct LauncherDeaths {
    since_commit: u32,
    newest: Option<GenerationId>,
}

/// The watcher's reaction to a killed launcher.
pub(crate) enum Succession {
    /// The job had finished already.
    HasFinished,
    /// From this generation.
    Restart(GenerationId),
    /// It cannot be continued, and why.
    GiveUp(String),
}

impl LauncherDeaths {
    /// Counts one more, and reads the job's directory.
    pub(crate) fn next(&mut self, directory: &Path) -> Succession {
        match self.look(directory) {
            Ok(next) => next,
            Err(error) => Succession::GiveUp(format!("its directory cannot be read: {error}")),
        }
    }

    fn look(&mut self, path: &Path) -> Result<Succession, CliError> {
        if !is_free_in_time(path)? {
            let seconds = LEFT_BEHIND_MAX.as_secs();
            return Ok(Succession::GiveUp(format!(
                "processes that it has left behind still run after {seconds} s"
            )));
        }
        let (mut directory, _) = open_job(path)?;
        if directory.end()?.is_some() {
            return Ok(Succession::HasFinished);
        }
        let generations = directory.generations()?;
        let newest = generations.iter().rfind(|found| found.state == GenerationState::Committed);
        let Some(newest) = newest.map(|found| found.id) else {
            return Ok(Succession::GiveUp("no checkpoint was committed to go on from".to_owned()));
        };
        self.since_commit = if self.newest == Some(newest) { self.since_commit + 1 } else { 1 };
        self.newest = Some(newest);
        if self.since_commit > DEATHS_MAX {
            return Ok(Succession::GiveUp(format!(
                "{} launchers in a row were killed before they had committed a checkpoint",
                self.since_commit
            )));
        }
        Ok(Succession::Restart(newest))
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
    /// The successor's command: restarts the newest checkpoint with the options of this command. `started`: when the run began; the time limit counts
    /// from then.
    pub(crate) fn into_takeover(self, directory: &Path, started: Instant) -> Result<Launch, CliError> {
        let (_, file) = open_job(directory)?;
        let mut limit = read_settings(&file)?.config.time_limit;
        let mut restart = match self {
            Launch::Run(run) => {
                let RunArguments { key, sign, succession, quiet, verbose, .. } = *run;
                let directory = directory.to_path_buf();
                RestartArguments {
                    directory,
                    key,
                    sign,
                    succession,
                    detach: true,
                    quiet,
                    verbose,
                    ..RestartArguments::default()
                }
            }
            Launch::Restart(mut restart) => {
                restart.directory = directory.to_path_buf();
                restart.detach = true;
                // These options chose the beginning of the run.
                (restart.from, restart.trust, restart.generation) = (None, false, None);
                limit = restart.time_limit.or(limit);
                *restart
            }
        };
        // The job file has it. With too few hosts left it is no reason not to run the job.
        let named = &mut restart.succession.on_launcher_loss;
        named.take_if(|loss| *loss == LauncherLossArgument::Continue);
        restart.time_limit = limit.map(|limit| limit.saturating_sub(started.elapsed()).max(LIMIT_MIN));
        Ok(Launch::Restart(Box::new(restart)))
    }
}
