//! The command that detaches a job: shows its messages until it runs.

use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::ForkResult;
use serde::Serialize;
use std::os::fd::AsFd as _;

use super::messages::{Messages, Received, Report, pipe};
use super::records::Records;
use super::takeover::Launch;
use super::viewer::{Start, Viewer};
use super::{split, watcher};
use crate::commands::interrupt::{InterruptGuard, is_stopped};
use crate::commands::{print_json, print_message, say};
use crate::error::CliError;
use crate::exit::Exit;

/// How often the command checks for messages of the job and for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A job that runs without the command that has started it.
#[derive(Debug, Serialize)]
struct Begun {
    job: String,
    directory: PathBuf,
    #[serde(skip)]
    has_successors: bool,
}

/// A job whose messages are shown.
struct Shown {
    begun: Begun,
    records: Records,
    viewer: Viewer,
}

/// Starts a job that goes on without this process. Returns when it runs, or has ended.
pub(crate) fn detach(launch: Launch, is_quiet: bool, json: bool) -> Result<Exit, CliError> {
    let (heard, told) = pipe()?;
    let watcher = match split()? {
        ForkResult::Child => {
            drop(heard);
            std::process::exit(watcher::watch(launch, told).into())
        }
        ForkResult::Parent { child } => child,
    };
    drop(told);
    let mut lines = Messages::new(heard);
    let _interrupts = InterruptGuard::begin();
    let mut is_stopping = false;
    let mut shown: Option<Shown> = None;
    loop {
        if is_stopped() && !core::mem::replace(&mut is_stopping, true) {
            // It is a child that was not waited for, so the number is its own.
            let _ = kill(watcher, Signal::SIGTERM);
        }
        // A signal may end the wait early; the next round checks for it.
        let timeout = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(lines.from().as_fd(), PollFlags::POLLIN)], timeout);
        lines.read()?;
        let heard = lines.take()?;
        if let Some(shown) = &mut shown {
            shown.viewer.show()?;
        }
        match (heard, shown.as_mut()) {
            (Received::Nothing | Received::Message(Report::NotBegun(_)), _)
            | (Received::Message(Report::Running), None) => {}
            (Received::Message(Report::Begun { job, directory, has_successors }), _) => {
                let directory = PathBuf::from(std::ffi::OsString::from_vec(directory));
                let records = Records::of(&directory);
                let viewer = Viewer::open(&records, Start::Run, true)?;
                let begun = Begun { job, directory, has_successors };
                shown = Some(Shown { begun, records, viewer });
            }
            (Received::Message(Report::Running), Some(shown)) => {
                announce(&shown.begun, is_quiet, json)?;
                return Ok(Exit::Success);
            }
            (Received::Message(Report::Ended { exit_code, .. }), Some(shown)) => {
                let report = shown.records.end()?.and_then(|end| end.report);
                match report {
                    Some(report) if json => print_json(&report)?,
                    _ if exit_code == 0 && !json => say!("{}", shown.begun.job)?,
                    _ => {}
                }
                return Ok(Exit::Program(exit_code));
            }
            (Received::Message(Report::Ended { exit_code, why }), None) => {
                if let Some(why) = why {
                    print_message(format_args!("{why}"));
                }
                return Ok(Exit::Program(exit_code));
            }
            (Received::End, _) => return Err(CliError::WatcherLost),
        }
    }
}

/// The job runs.
fn announce(begun: &Begun, is_quiet: bool, json: bool) -> Result<(), CliError> {
    if json {
        print_json(begun)?;
        return Ok(());
    }
    say!("{}", begun.job)?;
    if !is_quiet {
        let job = begun.job.get(..8).unwrap_or(&begun.job);
        print_message(format_args!(
            "the job runs on without this terminal: `stillwire attach {job}` shows its output and passes on its exit code, `stillwire kill {job}` ends it"
        ));
        if begun.has_successors {
            print_message(format_args!(
                "if this host is lost, another host of the job continues it (--on-launcher-loss)"
            ));
        }
    }
    Ok(())
}
