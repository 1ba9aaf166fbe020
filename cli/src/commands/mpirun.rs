//! `stillwire run` of an Open MPI program: its own mpirun, with the provider selected.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use launcher::OUTPUT_GRACE;
use launcher::input::Readers;
use launcher::key::{KEY_FILE_VARIABLE, KeyFile};
use launcher::mpi::openmpi::{mpirun, options, untag};
use launcher::mpi::{Mpi, environment};
use launcher::secrets::KEY_VARIABLE;
use launcher::spawn::pidfd::{has_ended, pid_of};
use launcher::{LineReader, Program, non_blocking, take_signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::signalfd::SignalFd;
use serde::Serialize;

use super::printer::{Printer, Stream};
use super::{print_json, print_message};
use crate::arguments::RunArguments;
use crate::error::CliError;
use crate::exit::Exit;

/// Time that a foreign launcher gets to end its ranks when a person wants the end; then it is killed.
const MPIRUN_END_MAX: Duration = Duration::from_secs(10);

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct MpirunReport {
    /// The launcher that ran the job.
    launcher: String,
    /// `finished`, `stopped` or `failed`.
    outcome: &'static str,
    exit_code: u8,
    seconds: f64,
}

pub(crate) fn run(
    mpi: &Mpi,
    program: &Program,
    arguments: &RunArguments,
    json: bool,
) -> Result<Exit, CliError> {
    let path = mpirun(mpi)?;
    if !arguments.quiet {
        let (path, library) = (path.display(), mpi.library.display());
        print_message(format_args!(
            "an Open MPI program ({library}): {path} runs its {} ranks",
            arguments.ranks
        ));
    }
    let started = Instant::now();
    let signals = take_signals(&[Signal::SIGUSR1])?;
    let job = Mpirun::start(&path, mpi, program, arguments)?;
    let (status, stopped) = job.supervise(&signals, arguments, json)?;
    let exit = match (stopped, status.code(), status.signal()) {
        (true, ..) => Exit::Stopped,
        (_, Some(0), _) => Exit::Success,
        (_, Some(code), _) => Exit::Program(u8::try_from(code & 0xff).unwrap_or(1)),
        (_, None, signal) => Exit::Program(u8::try_from(128 + signal.unwrap_or(0)).unwrap_or(u8::MAX)),
    };
    if json {
        let outcome = match exit {
            Exit::Success => "finished",
            Exit::Stopped => "stopped",
            _ => "failed",
        };
        let launcher = path.display().to_string();
        let seconds = started.elapsed().as_secs_f64();
        print_json(&MpirunReport { launcher, outcome, exit_code: exit.code(), seconds })?;
    } else if stopped {
        print_message(format_args!("the job was stopped"));
    } else if exit != Exit::Success {
        print_message(format_args!("mpirun ended with {status}"));
    }
    Ok(exit)
}

/// A running mpirun, and its output.
struct Mpirun {
    child: Child,
    pipes: Vec<(Stream, LineReader)>,
    /// Its ranks read it when they start.
    _key: KeyFile,
}

impl Mpirun {
    fn start(
        path: &Path,
        mpi: &Mpi,
        program: &Program,
        arguments: &RunArguments,
    ) -> Result<Mpirun, CliError> {
        let mut passed: Vec<String> = Vec::new();
        let names = program.environment.iter().filter_map(|(name, _)| name.to_str());
        // Open MPI's mpirun itself forwards variables whose names begin with OMPI_.
        for name in names.filter(|name| !name.starts_with("OMPI_")) {
            if !passed.iter().any(|known| known == name) {
                passed.push(name.to_owned());
            }
        }
        let key = KeyFile::fresh()?;
        if !passed.iter().any(|name| name == KEY_FILE_VARIABLE) {
            passed.push(KEY_FILE_VARIABLE.to_owned());
        }
        let readers = arguments.stdin.readers();
        // In a group of its own it would be stopped when it reads a terminal.
        let is_read = readers != Readers::None && !std::io::stdin().is_terminal();
        let mut command = Command::new(path);
        for (name, _) in std::env::vars_os().filter(|(name, _)| environment::is_foreign(name)) {
            command.env_remove(name);
        }
        command.env_remove(KEY_VARIABLE);
        command
            .args(options(mpi, path, arguments.ranks, &passed))
            .args(["--stdin", &readers.to_string()])
            .args(&program.command)
            .current_dir(&program.directory)
            .envs(key.variable())
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdin(if is_read { Stdio::inherit() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches the launcher alone, which passes it on.
            .process_group(0);
        launcher::end_with_launcher(&mut command, Signal::SIGTERM);
        let failed = |error| CliError::Mpirun { path: path.to_owned(), error };
        let mut child = command.spawn().map_err(failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut pipes = Vec::new();
        if let Some(pipe) = stdout {
            pipes.push((Stream::Output, LineReader::new(non_blocking(pipe.into())?)));
        }
        if let Some(pipe) = stderr {
            pipes.push((Stream::Error, LineReader::new(non_blocking(pipe.into())?)));
        }
        Ok(Mpirun { child, pipes, _key: key })
    }

    /// Passes its lines on until it has ended. Also: whether a person ended it.
    fn supervise(
        mut self,
        signals: &SignalFd,
        arguments: &RunArguments,
        json: bool,
    ) -> Result<(ExitStatus, bool), CliError> {
        let mut printer = Printer::start()?;
        let width = arguments.ranks.saturating_sub(1).to_string().len();
        let (mut stopped, mut kill_at, mut ended_at) = (None, None, None);
        let status = loop {
            self.read(&printer, width, json);
            // It is not collected as long as it, or its group, may get a signal.
            if has_ended(pid_of(&self.child)) {
                let since = *ended_at.get_or_insert_with(Instant::now);
                if self.pipes.is_empty() || since.elapsed() > OUTPUT_GRACE {
                    // Processes that it has left behind in its group end with it.
                    let _ = killpg(pid_of(&self.child), Signal::SIGKILL);
                    break self.child.wait()?;
                }
            }
            while let Ok(Some(info)) = signals.read_signal() {
                let signal =
                    i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
                if matches!(signal, Some(Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP)) {
                    stopped.get_or_insert_with(Instant::now);
                    kill_at.get_or_insert_with(|| Instant::now() + MPIRUN_END_MAX);
                    // It ends its ranks, wherever they are.
                    self.signal(Signal::SIGTERM);
                }
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                self.signal(Signal::SIGKILL);
                kill_at = None;
            }
            self.wait(signals)?;
        };
        launcher::give_signals_back();
        printer.finish(stopped.map(|_| OUTPUT_GRACE));
        Ok((status, stopped.is_some()))
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(pid_of(&self.child), signal);
    }

    fn read(&mut self, printer: &Printer, width: usize, json: bool) {
        if !printer.has_room() {
            return;
        }
        self.pipes.retain_mut(|(stream, lines)| {
            lines.read(&mut |line| {
                let (bytes, stream) = match untag(line) {
                    Some(tagged) => {
                        let mut bytes = format!("[{:>width$}] ", tagged.rank).into_bytes();
                        bytes.extend_from_slice(tagged.text);
                        (bytes, if tagged.is_error { Stream::Error } else { Stream::Output })
                    }
                    None => (line.to_vec(), *stream),
                };
                let stream = if json { Stream::Error } else { stream };
                printer.print(stream, [bytes, b"\n".to_vec()].concat());
            })
        });
    }

    /// Sleeps until something may have happened.
    fn wait(&self, signals: &SignalFd) -> Result<(), CliError> {
        const SLICE: Duration = Duration::from_millis(100);
        let mut polled = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        polled
            .extend(self.pipes.iter().map(|(_, lines)| PollFd::new(lines.pipe().as_fd(), PollFlags::POLLIN)));
        match poll(&mut polled, PollTimeout::try_from(SLICE).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }
}

impl Drop for Mpirun {
    /// After any error, too: it does not stay.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::SIGTERM);
        }
    }
}
