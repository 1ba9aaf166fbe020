//! Starts MPICH's launcher, and never leaves it or its ranks behind.
//!
//! The launcher is started through a measuring process of ours that asks to be told when the bench dies and then becomes the
//! launcher; the launcher ends its ranks when it is told; a rank whose launcher is killed is killed by the kernel.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::figures::CHECKED;
use super::setup::Setup;
use super::stacks::Stack;
use crate::error::BenchError;
use crate::worker::{self, Parent};

pub(crate) const ROLE: &str = "mpiexec";

/// Ranks of every run: more than processors would measure the scheduler.
const RANKS: &str = "2";

/// How long a launcher that was told to end may take for its ranks.
const END_SECONDS_MAX: u64 = 3;

/// Lines of standard error that a reason quotes.
const QUOTED_LINES_MAX: usize = 6;

/// Variables that select stacks, and must come from the stack alone.
const SELECTORS: [&str; 8] = ["FI_", "UCX_", "MPIR_", "MPICH_", "PMI_", "PMIX_", "HYDRA_", "STILLWIRE_RAILS"];

enum Said {
    Line { of_errors: bool, line: String },
    End,
}

/// Runs the measuring program under one stack. Its output, or the reason why there is none.
pub(crate) fn run(
    setup: &Setup,
    stack: &Stack,
    arguments: &[String],
    seconds_max: u64,
) -> Result<String, String> {
    let checks = arguments.first().is_some_and(|first| first == "check");
    let mut child = start(setup, stack, arguments, checks).map_err(|error| format!("mpiexec: {error}"))?;
    let (sender, receiver) = channel();
    if let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) {
        listen(output, false, sender.clone());
        listen(errors, true, sender);
    }
    let heard = hear(&receiver, Duration::from_secs(seconds_max));
    let Heard { output, errors, ended } = heard;
    if !ended {
        end(&child, &receiver);
        let _ = child.wait();
        let last = output.lines().last().unwrap_or("nothing at all").to_owned();
        return Err(format!(
            "waited {seconds_max} s for mpiexec to {}; the last it said was: {last}",
            if checks { "check every byte" } else { "measure" }
        ));
    }
    let status = child.wait().map_err(|error| format!("mpiexec: {error}"))?;
    if !status.success() {
        return Err(format!("mpiexec ended with {status}: {}", Vec::from(errors).join(" / ")));
    }
    if checks && !output.lines().any(|line| line == CHECKED) {
        return Err(format!("the measuring program ended before it said '{CHECKED}'"));
    }
    if checks && !output.contains(stack.summary) {
        return Err(format!("MPICH did not take it: its summary does not say '{}'", stack.summary));
    }
    Ok(output)
}

fn start(setup: &Setup, stack: &Stack, arguments: &[String], checks: bool) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([worker::ARGUMENT, ROLE]).arg(&setup.mpiexec).args(["-n", RANKS]).arg(&setup.program);
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if SELECTORS.iter().any(|selector| name.to_string_lossy().starts_with(selector)) {
            command.env_remove(name);
        }
    }
    command.envs(stack.variables.iter().copied());
    if checks {
        command.env("MPIR_CVAR_DEBUG_SUMMARY", "1");
    }
    if let (true, Some(provider)) = (stack.ours, &setup.provider) {
        command.env("FI_PROVIDER_PATH", provider).env("STILLWIRE_KEY_FILE", &setup.key);
    }
    // A group of its own: it can be ended with everything that it started.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// The measuring process becomes the launcher.
pub(crate) fn work(_: &mut Parent) -> Result<(), BenchError> {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM);
    let mut arguments = std::env::args_os().skip(worker::ARGUMENTS);
    let launcher = arguments.next().unwrap_or_default();
    Err(BenchError::Start(Command::new(launcher).args(arguments).exec()))
}

fn listen(from: impl Read + Send + 'static, of_errors: bool, to: Sender<Said>) {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(Said::Line { of_errors, line: text }).is_err() {
                return;
            }
            line.clear();
        }
        let _ = to.send(Said::End);
    });
}

struct Heard {
    output: String,
    /// The last lines.
    errors: VecDeque<String>,
    /// Both streams have ended: no process has them open any more.
    ended: bool,
}

fn hear(from: &Receiver<Said>, longest: Duration) -> Heard {
    let until = Instant::now() + longest;
    let mut heard = Heard { output: String::new(), errors: VecDeque::new(), ended: false };
    let mut open = 2;
    while open > 0 {
        match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Said::Line { of_errors: false, line }) => {
                heard.output.push_str(&line);
                heard.output.push('\n');
            }
            Ok(Said::Line { of_errors: true, line }) => {
                heard.errors.push_back(line);
                if heard.errors.len() > QUOTED_LINES_MAX {
                    heard.errors.pop_front();
                }
            }
            Ok(Said::End) => open -= 1,
            Err(_) => return heard,
        }
    }
    heard.ended = true;
    heard
}

/// Tells the launcher to end; kills it with its group if that takes too long.
fn end(child: &Child, receiver: &Receiver<Said>) {
    let Ok(id) = i32::try_from(child.id()) else { return };
    let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    if !hear(receiver, Duration::from_secs(END_SECONDS_MAX)).ended {
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
}
