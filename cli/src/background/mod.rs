//! Jobs that outlive the terminal, or the connection, in which they were started (`--detach`).
//!
//! Three processes take part. The command ([`foreground`]) waits until the job runs. The watcher ([`watcher`]) has a session of its own and waits for the
//! launcher; if that is killed, the watcher continues the job from its newest checkpoint ([`takeover`]). The launcher writes its output into files of the
//! job's directory ([`records`]), and `stillwire attach` prints them ([`viewer`]). It finds a job by its id while a launcher or watcher of it lives
//! ([`watched_jobs`]). If launcher and watcher are lost together, another host continues the job ([`successor`]).

mod candidate;
mod foreground;
mod messages;
pub(crate) mod records;
mod successor;
mod takeover;
pub(crate) mod viewer;
pub(crate) mod watched_jobs;
mod watcher;

pub(crate) use foreground::detach;
pub(crate) use successor::succeed;
pub(crate) use takeover::Launch;

use std::cell::{Cell, OnceCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ckpt_glue::job::Event;
use launcher::{Notice, Observer, Plan};
use nix::unistd::{ForkResult, fork};

use crate::commands::Stream;
use crate::commands::outcome::RunReport;
use crate::error::CliError;
use crate::exit::Exit;
use candidate::Attempt;
use messages::{Report, send};
use records::{EndRecord, Records};
use successor::judge;

/// A program that neither calls MPI_Init nor opens a session reports no start. It counts as running after its processes have existed for this time.
const RUNS_AFTER: Duration = Duration::from_secs(2);

/// The launcher of a detached job.
#[derive(Debug)]
pub(crate) struct DetachedLauncher {
    /// To the watcher.
    pipe: File,
    place: OnceCell<Place>,
    report: OnceCell<serde_json::Value>,
    /// Somebody else may make the job run if this launcher does not.
    is_candidate: bool,
    has_run: Cell<bool>,
}

#[derive(Debug)]
struct Place {
    records: Records,
    /// Held until this process ends.
    _alive: File,
}

impl DetachedLauncher {
    pub(crate) fn new(pipe: File, is_candidate: bool) -> DetachedLauncher {
        let (place, report, has_run) = (OnceCell::new(), OnceCell::new(), Cell::new(false));
        DetachedLauncher { pipe, place, report, is_candidate, has_run }
    }

    fn say(&self, said: &Report) {
        self.has_run.set(self.has_run.get() || *said == Report::Running);
        send(&self.pipe, said);
    }

    /// The job has its directory: sends all further output into files there.
    pub(crate) fn begin(&self, plan: &Plan, directory: &Path) -> Result<(), CliError> {
        if self.place.get().is_some() {
            return Ok(());
        }
        let records = Records::of(directory);
        let failed = |error| CliError::NotDetachable { path: directory.to_path_buf(), error };
        records.begin(plan.job.to_string()).map_err(failed)?;
        self.write_to(records).map_err(failed)?;
        self.say(&Report::Begun {
            job: plan.job.to_string(),
            directory: directory.as_os_str().as_bytes().to_vec(),
            has_successors: plan.succession.options.is_some(),
        });
        Ok(())
    }

    /// Appends to the files of the run whose launcher was killed.
    fn take_over(&self, directory: &Path) -> io::Result<()> {
        self.write_to(Records::of(directory))
    }

    fn write_to(&self, records: Records) -> io::Result<()> {
        let (output, messages) = (records.append(Stream::Output)?, records.append(Stream::Error)?);
        let alive = records.hold()?;
        let nothing = OpenOptions::new().read(true).open("/dev/null")?;
        io::stdout().flush()?;
        nix::unistd::dup2_stdin(&nothing)?;
        nix::unistd::dup2_stdout(&output)?;
        nix::unistd::dup2_stderr(&messages)?;
        // Set once: `begin` returns early if it is.
        let _ = self.place.set(Place { records, _alive: alive });
        Ok(())
    }

    /// Keeps the job's report for its end record.
    pub(crate) fn note_report(&self, report: &RunReport) {
        let _ = self.report.set(serde_json::to_value(report).unwrap_or_default());
    }

    /// Records how the job ended. All output is in the files by now.
    fn end(&self, result: &Result<Exit, CliError>) {
        let Some(place) = self.place.get() else { return };
        if let Some(attempt) = self.failure(result) {
            return self.say(&Report::NotBegun(attempt));
        }
        let (exit, error) = match result {
            Ok(exit) => (*exit, None),
            Err(error) => (error.exit(), Some(error.to_string())),
        };
        let end = EndRecord { exit_code: exit.code(), error, report: self.report.get().cloned() };
        if let Err(error) = place.records.note_end(&end) {
            crate::commands::print_message(format_args!("how the job ended cannot be recorded: {error}"));
        }
    }

    /// Why a candidate's launcher has not made the job run, if that is so.
    fn failure(&self, result: &Result<Exit, CliError>) -> Option<Attempt> {
        if !self.is_candidate || self.has_run.get() {
            return None;
        }
        match result {
            // Its messages have the reason.
            Ok(Exit::JobFailed | Exit::Failed) => {
                let reason = self.report.get().and_then(|report| report["reason"].as_str());
                Some(Attempt::Failed(reason.unwrap_or("not all ranks have started").to_owned()))
            }
            Ok(_) | Err(CliError::Stopped) => None,
            Err(error) => Some(judge(error)),
        }
    }

    /// An observer that also reports to the watcher when the job runs.
    pub(crate) fn observer<'a>(&'a self, inner: &'a mut dyn Observer, ranks: u32) -> RunObserver<'a> {
        RunObserver { inner, detached: self, missing: ranks, runs_at: None, is_announced: false }
    }
}

/// Forks this process.
///
/// # Errors
/// Those of `fork`; and more than one thread runs.
fn split() -> io::Result<ForkResult> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads run, where one was expected")));
    }
    io::stdout().flush()?;
    // SAFETY: this thread is the only one, so the copy finds no lock that is held by a thread that it does not have.
    Ok(unsafe { fork() }?)
}

/// See [`DetachedLauncher::observer`].
pub(crate) struct RunObserver<'a> {
    inner: &'a mut dyn Observer,
    detached: &'a DetachedLauncher,
    /// Processes that have not been started yet.
    missing: u32,
    runs_at: Option<Instant>,
    is_announced: bool,
}

impl RunObserver<'_> {
    fn announce(&mut self) {
        self.runs_at = None;
        if !core::mem::replace(&mut self.is_announced, true) {
            self.detached.say(&Report::Running);
        }
    }
}

impl Observer for RunObserver<'_> {
    fn notice(&mut self, at: Duration, notice: &Notice<'_>) {
        self.inner.notice(at, notice);
        match notice {
            Notice::Event(Event::AllRunning { .. }) => self.announce(),
            Notice::Spawned { .. } if !self.is_announced => {
                self.missing = self.missing.saturating_sub(1);
                if self.missing == 0 {
                    self.runs_at.get_or_insert_with(|| Instant::now() + RUNS_AFTER);
                }
            }
            _ => {}
        }
    }

    fn takes_lines(&self) -> bool {
        self.inner.takes_lines()
    }

    fn shows_parts(&self) -> bool {
        self.inner.shows_parts()
    }

    fn settle(&mut self, limit: Duration) {
        self.inner.settle(limit);
    }

    fn finish(&mut self, limit: Option<Duration>) -> bool {
        self.inner.finish(limit)
    }

    fn due(&self) -> Option<Instant> {
        [self.inner.due(), self.runs_at].into_iter().flatten().min()
    }

    fn act(&mut self, now: Instant) {
        if self.inner.due().is_some_and(|due| due <= now) {
            self.inner.act(now);
        }
        if self.runs_at.is_some_and(|due| due <= now) {
            self.announce();
        }
    }
}
