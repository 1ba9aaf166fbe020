//! The watcher: waits for a job's launchers, one after the other, until the job is over.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, setsid};

use super::lines::{Heard, Lines, Said, pipe, send};
use super::records::{EndRecord, Records};
use super::takeover::{Deaths, Launch, Next};
use super::{Detached, split};
use crate::commands::{Stream, print_message, restart, run};
use crate::error::CliError;
use crate::exit::Exit;

/// Watches the job of this command. Returns the exit code of its last launcher.
pub(super) fn watch(launch: Launch, front: File) -> u8 {
    let watched = Watcher::new(front).and_then(|mut watcher| watcher.run(launch));
    watched.unwrap_or_else(|error| {
        print_message(format_args!("the job cannot be detached: {error}"));
        error.exit().code()
    })
}

struct Watcher {
    /// To the command that has started all this, as long as it listens.
    front: Option<File>,
    signals: SignalFd,
    started: Instant,
    /// A person ends the job.
    is_stopping: bool,
    /// The job's directory, once it has one.
    job: Option<PathBuf>,
    /// Held until this process ends.
    alive: Option<File>,
}

impl Watcher {
    fn new(front: File) -> Result<Watcher, CliError> {
        setsid().map_err(io::Error::from)?;
        Ok(Watcher {
            front: Some(front),
            signals: launcher::take_signals(&[])?,
            started: Instant::now(),
            is_stopping: false,
            job: None,
            alive: None,
        })
    }

    fn run(&mut self, mut launch: Launch) -> Result<u8, CliError> {
        let mut deaths = Deaths::default();
        loop {
            let (heard, told) = pipe()?;
            let launcher = match split()? {
                ForkResult::Child => {
                    (self.front, self.alive) = (None, None);
                    drop(heard);
                    std::process::exit(lead(launch, self.job.as_deref(), told).into())
                }
                ForkResult::Parent { child } => child,
            };
            drop(told);
            leave_terminal()?;
            self.follow(launcher, heard)?;
            let status = waitpid(launcher, None).map_err(io::Error::from)?;
            let Some(directory) = self.job.clone() else {
                // It has printed why.
                return Ok(self.over(code_of(status)));
            };
            let records = Records::of(&directory);
            if let Some(end) = records.end()? {
                return Ok(self.over(end.exit_code));
            }
            let died = format!("the launcher (process {launcher}) {}", died_words(status));
            let next = if self.is_stopping {
                Next::GiveUp("it was being ended".to_owned())
            } else {
                note(&records, &format!("{died}; waiting until nothing of the job runs any more"));
                deaths.next(&directory)
            };
            self.hear_stops(None);
            let next = if self.is_stopping { Next::GiveUp("it was being ended".to_owned()) } else { next };
            let (exit, why) = match next {
                Next::HasFinished => (Exit::Success, None),
                Next::GiveUp(_) if self.is_stopping => (Exit::Stopped, None),
                Next::GiveUp(why) => (Exit::JobFailed, Some(why)),
                Next::Restart(generation) => match launch.into_takeover(&directory, self.started) {
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
            return Ok(self.over(exit.code()));
        }
    }

    /// Passes on what a launcher says, and signals to it, until it has ended.
    fn follow(&mut self, launcher: Pid, heard: File) -> Result<(), CliError> {
        let mut lines = Lines::new(heard);
        loop {
            match lines.take()? {
                Heard::Line(said) => {
                    if let Said::Begun { directory, .. } = &said {
                        let directory = PathBuf::from(std::ffi::OsString::from_vec(directory.clone()));
                        self.alive = Some(Records::of(&directory).hold()?);
                        self.job = Some(directory);
                    }
                    self.pass_on(&said);
                    continue;
                }
                Heard::End => return Ok(()),
                Heard::Nothing => {}
            }
            let mut fds = [
                PollFd::new(lines.from().as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            lines.read()?;
            self.hear_stops(Some(launcher));
        }
    }

    /// Signals that end a job.
    fn hear_stops(&mut self, launcher: Option<Pid>) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            if i32::try_from(info.ssi_signo).is_ok_and(|signal| signal == Signal::SIGCHLD as i32) {
                continue;
            }
            self.is_stopping = true;
            if let Some(launcher) = launcher {
                // It is a child that nobody has collected.
                let _ = kill(launcher, Signal::SIGTERM);
            }
        }
    }

    fn pass_on(&mut self, said: &Said) {
        if let Some(front) = &self.front {
            send(front, said);
        }
        if *said == Said::Running {
            self.front = None;
        }
    }

    fn over(&mut self, exit_code: u8) -> u8 {
        self.pass_on(&Said::Ended { exit_code });
        exit_code
    }
}

/// The launcher. Returns its exit code.
fn lead(launch: Launch, job: Option<&Path>, pipe: File) -> u8 {
    launcher::give_signals_back();
    let detached = Detached::new(pipe);
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

/// Nothing is read from the terminal, or printed there: a connection that waits for its end would wait for the job's.
fn leave_terminal() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}

/// A message among those of the launchers.
fn note(records: &Records, words: &str) {
    // There is no other place for it.
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
