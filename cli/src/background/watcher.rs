//! The watcher: waits for a job's launchers, one after the other, until the job is over.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, setsid};

use super::candidate::Attempt;
use super::messages::{Messages, Received, Report, pipe, send};
use super::records::{EndRecord, Records};
use super::takeover::{Launch, LauncherDeaths, Succession};
use super::watched_jobs::WatchedJob;
use super::{DetachedLauncher, split};
use crate::commands::{Stream, print_message, restart, run};
use crate::error::CliError;
use crate::exit::Exit;

/// Runs the command, with successors if launchers are killed. Returns the job's exit code.
pub(super) fn watch(launch: Launch, foreground: File) -> u8 {
    let watched = Watcher::new(Some(foreground)).and_then(|mut watcher| watcher.run(launch));
    match watched {
        Ok(Watched::Over(code)) => code,
        // It is no candidate's.
        Ok(Watched::NotBegun(_)) => Exit::JobFailed.code(),
        Err(error) => {
            print_message(format_args!("the job cannot be detached: {error}"));
            error.exit().code()
        }
    }
}

/// How watching a job ended.
#[derive(Debug)]
pub(super) enum Watched {
    /// It is over: its exit code.
    Over(u8),
    /// A candidate's launcher has not made it run.
    NotBegun(Attempt),
}

pub(super) struct Watcher {
    /// To the command in the foreground, until the job runs.
    foreground: Option<File>,
    signals: SignalFd,
    started: Instant,
    /// A person ends the job.
    is_stopping: bool,
    /// The job's directory, once it has one.
    job: Option<PathBuf>,
    /// Held until this process ends.
    alive: Option<File>,
    /// The job has run below a launcher of this watcher, or there is nobody else to make it run.
    has_run: bool,
    failure: Option<Attempt>,
    /// Where `attach` finds the job, also between two launchers.
    listed: Option<WatchedJob>,
}

impl Watcher {
    /// `foreground`: the command that detaches the job; `None`: a candidate's watcher.
    pub(super) fn new(foreground: Option<File>) -> Result<Watcher, CliError> {
        setsid().map_err(io::Error::from)?;
        Ok(Watcher {
            has_run: foreground.is_some(),
            foreground,
            signals: launcher::take_signals(&[])?,
            started: Instant::now(),
            is_stopping: false,
            job: None,
            alive: None,
            failure: None,
            listed: None,
        })
    }

    /// Watches the job in this directory, whose records have been begun.
    pub(super) fn follow_job(&mut self, directory: &Path) -> io::Result<()> {
        self.alive = Some(Records::of(directory).hold()?);
        self.job = Some(directory.to_path_buf());
        Ok(())
    }

    /// Waits. Returns whether a signal ends the job.
    pub(super) fn pause(&mut self, time: Duration) -> io::Result<bool> {
        let until = Instant::now() + time;
        loop {
            self.read_signals(None);
            let left = until.saturating_duration_since(Instant::now());
            if self.is_stopping || left.is_zero() {
                return Ok(self.is_stopping);
            }
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn run(&mut self, mut launch: Launch) -> Result<Watched, CliError> {
        let mut deaths = LauncherDeaths::default();
        loop {
            let (heard, told) = pipe()?;
            let launcher = match split()? {
                ForkResult::Child => {
                    (self.foreground, self.alive) = (None, None);
                    drop(heard);
                    std::process::exit(lead(launch, self.job.as_deref(), told, !self.has_run).into())
                }
                ForkResult::Parent { child } => child,
            };
            drop(told);
            leave_terminal()?;
            self.follow(launcher, heard)?;
            let status = waitpid(launcher, None).map_err(io::Error::from)?;
            let Some(directory) = self.job.clone() else {
                if !matches!(status, WaitStatus::Signaled(..)) {
                    return Ok(self.over(code_of(status), None));
                }
                if self.is_stopping {
                    return Ok(self.over(Exit::Stopped.code(), None));
                }
                let died = died_words(status);
                let why = format!("the launcher {died} before it had started any rank; repeat the command");
                return Ok(self.over(code_of(status), Some(why)));
            };
            let records = Records::of(&directory);
            if let Some(end) = records.end()? {
                return Ok(self.over(end.exit_code, None));
            }
            if !self.has_run && !self.is_stopping {
                let killed = || Attempt::Failed(format!("the launcher {}", died_words(status)));
                return Ok(Watched::NotBegun(self.failure.take().unwrap_or_else(killed)));
            }
            let died = format!("the launcher (process {launcher}) {}", died_words(status));
            let next = (!self.is_stopping).then(|| {
                note(&records, &format!("{died}; waiting for the ends of its processes"));
                deaths.next(&directory)
            });
            self.read_signals(None);
            let (exit, why) = match next.filter(|_| !self.is_stopping) {
                None => (Exit::Stopped, None),
                Some(Succession::HasFinished) => (Exit::Success, None),
                Some(Succession::GiveUp(why)) => (Exit::JobFailed, Some(why)),
                Some(Succession::Restart(generation)) => match launch.into_takeover(&directory, self.started)
                {
                    Ok(takeover) => {
                        note(&records, &format!("the job is continued from generation {generation}"));
                        launch = takeover;
                        continue;
                    }
                    Err(error) => (Exit::JobFailed, Some(error.to_string())),
                },
            };
            let error = why.map(|why| format!("{died}, and the job is not continued: {why}"));
            if let Some(error) = &error {
                note(&records, error);
            }
            records.note_end(&EndRecord { exit_code: exit.code(), error, report: None })?;
            return Ok(self.over(exit.code(), None));
        }
    }

    /// Forwards a launcher's reports to the command, and signals to the launcher, until that ends.
    fn follow(&mut self, launcher: Pid, heard: File) -> Result<(), CliError> {
        let mut messages = Messages::new(heard);
        loop {
            match messages.take()? {
                Received::Message(report) => {
                    if let Report::Begun { job, directory, .. } = &report {
                        let directory = PathBuf::from(std::ffi::OsString::from_vec(directory.clone()));
                        self.alive = Some(Records::of(&directory).hold()?);
                        if self.listed.is_none() {
                            self.listed = Some(WatchedJob::list(job, &directory)?);
                        }
                        self.job = Some(directory);
                    }
                    self.has_run |= report == Report::Running;
                    match report {
                        Report::NotBegun(attempt) => self.failure = Some(attempt),
                        report => self.forward(&report),
                    }
                    continue;
                }
                Received::End => return Ok(()),
                Received::Nothing => {}
            }
            let mut fds = [
                PollFd::new(messages.from().as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            messages.read()?;
            self.read_signals(Some(launcher));
        }
    }

    /// Forwards signals that end a job.
    fn read_signals(&mut self, launcher: Option<Pid>) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            if i32::try_from(info.ssi_signo).is_ok_and(|signal| signal == Signal::SIGCHLD as i32) {
                continue;
            }
            self.is_stopping = true;
            if let Some(launcher) = launcher {
                // It is a child that was not waited for, so the number is its own.
                let _ = kill(launcher, Signal::SIGTERM);
            }
        }
    }

    fn forward(&mut self, report: &Report) {
        if let Some(foreground) = &self.foreground {
            send(foreground, report);
        }
        if *report == Report::Running {
            self.foreground = None;
        }
    }

    /// `why`: the reason, if it is neither printed nor in the records.
    fn over(&mut self, exit_code: u8, why: Option<String>) -> Watched {
        self.forward(&Report::Ended { exit_code, why });
        Watched::Over(exit_code)
    }
}

/// The launcher. Returns its exit code.
fn lead(launch: Launch, job: Option<&Path>, pipe: File, is_candidate: bool) -> u8 {
    launcher::give_signals_back();
    let detached = DetachedLauncher::new(pipe, is_candidate);
    let taken = job.map_or(Ok(()), |directory| detached.take_over(directory));
    let result = taken.map_err(CliError::from).and_then(|()| match launch {
        Launch::Run(run) => run::run(*run, false, Some(&detached)),
        Launch::Restart(restart) => restart::restart(*restart, false, Some(&detached)),
    });
    if let Err(error) = &result {
        print_message(format_args!("{error}"));
    }
    detached.end(&result);
    result.unwrap_or_else(|error| error.exit()).code()
}

/// Closes the terminal's streams. An ssh connection does not close before all of them are closed.
fn leave_terminal() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}

/// Logs a message among those of the launchers.
pub(super) fn note(records: &Records, words: &str) {
    // No other place for a message is left.
    let _ = records.append(Stream::Error).and_then(|mut file| writeln!(file, "stillwire: {words}"));
}

fn code_of(status: WaitStatus) -> u8 {
    match status {
        WaitStatus::Exited(_, code) => u8::try_from(code).unwrap_or(u8::MAX),
        WaitStatus::Signaled(_, signal, _) => u8::try_from(128 + signal as i32).unwrap_or(u8::MAX),
        _ => Exit::Failed.code(),
    }
}

fn died_words(status: WaitStatus) -> String {
    match status {
        WaitStatus::Exited(_, code) => format!("ended with exit code {code} before the job did"),
        WaitStatus::Signaled(_, signal, _) => format!("was killed by {signal}"),
        _ => "is gone".to_owned(),
    }
}
