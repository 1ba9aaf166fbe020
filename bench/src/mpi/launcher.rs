//! Starts MPICH's launcher, and never leaves it or its ranks behind.
//!
//! The launcher is started through a measuring process of ours that asks for a signal at the bench's death and then
//! becomes the launcher; the launcher ends its ranks at that signal; a rank whose launcher is killed is killed by the
//! kernel.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::setup::Setup;
use crate::error::BenchError;
use crate::worker::{self, Parent};

pub(crate) const ROLE: &str = "mpiexec";

/// How long a launcher may take to end its ranks, seconds.
const END_SECONDS_MAX: u64 = 3;

/// Lines of standard error that a reason quotes.
const QUOTED_LINES_MAX: usize = 6;

/// Lines of standard output that are kept: the newest. A person's program may print for hours.
const KEPT_LINES_MAX: usize = 1 << 16;

/// Variables that select stacks, and must come from the run alone.
const SELECTORS: [&str; 9] = [
    "FI_",
    "UCX_",
    "MPIR_",
    "MPICH_",
    "PMI_",
    "PMIX_",
    "HYDRA_",
    "STILLWIRE_RAILS",
    "STILLWIRE_PERIODIC_FREEZE",
];

/// Variables that make MPICH use our provider, also for peers on the host.
const OURS: [(&str, &str); 3] =
    [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1"), ("FI_PROVIDER", "stillwire")];

/// A program and its surroundings.
pub(crate) struct Launch<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) ranks: u32,
    /// The program and its arguments.
    pub(crate) program: Vec<OsString>,
    /// Over the provider.
    pub(crate) ours: bool,
    /// Further ones.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// A run that takes longer is ended.
    pub(crate) seconds_max: u64,
    /// "measure", for the reason why there is no output.
    pub(crate) purpose: &'static str,
}

enum Said {
    Line { of_errors: bool, line: String },
    End,
}

impl Launch<'_> {
    /// Runs the program. Returns its output, or the reason why the run does not count.
    pub(crate) fn run(&self) -> Result<String, String> {
        let mut child = self.start().map_err(|error| format!("mpiexec: {error}"))?;
        let (sender, receiver) = channel();
        if let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) {
            listen(output, false, sender.clone());
            listen(errors, true, sender);
        }
        let heard = hear(&receiver, Duration::from_secs(self.seconds_max));
        let Heard { output, errors, ended } = heard;
        if !ended {
            end(&child, &receiver);
            let _ = child.wait();
            let last = output.back().map_or("nothing at all", String::as_str);
            return Err(format!(
                "waited {} s for mpiexec to {}; the last it said was: {last}",
                self.seconds_max, self.purpose
            ));
        }
        let status = child.wait().map_err(|error| format!("mpiexec: {error}"))?;
        if !status.success() {
            return Err(format!("mpiexec ended with {status}: {}", Vec::from(errors).join(" / ")));
        }
        Ok(output.into_iter().fold(String::new(), |all, line| all + &line + "\n"))
    }

    fn start(&self) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([worker::ARGUMENT, ROLE]).arg(&self.setup.mpiexec);
        command.args(["-n", &self.ranks.to_string()]).args(&self.program);
        for (name, _) in std::env::vars_os() {
            if SELECTORS.iter().any(|selector| name.to_string_lossy().starts_with(selector)) {
                command.env_remove(name);
            }
        }
        if let (true, Some(provider)) = (self.ours, &self.setup.provider) {
            command.envs(OURS).env("FI_PROVIDER_PATH", provider).env("STILLWIRE_KEY_FILE", &self.setup.key);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // A group of its own: it can be ended with everything that it started.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }
}

/// The measuring process becomes the launcher.
pub(crate) fn work(_: &mut Parent) -> Result<(), BenchError> {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM);
    // The bench ends it in time, and a person's program may take hours.
    nix::unistd::alarm::cancel();
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
    /// The last lines.
    output: VecDeque<String>,
    /// The last lines.
    errors: VecDeque<String>,
    /// Both streams have ended: no process has them open any more.
    ended: bool,
}

fn hear(from: &Receiver<Said>, longest: Duration) -> Heard {
    let until = Instant::now() + longest;
    let mut heard = Heard { output: VecDeque::new(), errors: VecDeque::new(), ended: false };
    let mut open = 2;
    while open > 0 {
        match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Said::Line { of_errors, line }) => {
                let (lines, most) = if of_errors {
                    (&mut heard.errors, QUOTED_LINES_MAX)
                } else {
                    (&mut heard.output, KEPT_LINES_MAX)
                };
                lines.push_back(line);
                if lines.len() > most {
                    lines.pop_front();
                }
            }
            Ok(Said::End) => open -= 1,
            Err(_) => return heard,
        }
    }
    heard.ended = true;
    heard
}

/// Asks the launcher to end; kills it with its group if that takes too long.
fn end(child: &Child, receiver: &Receiver<Said>) {
    let Ok(id) = i32::try_from(child.id()) else { return };
    let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    if !hear(receiver, Duration::from_secs(END_SECONDS_MAX)).ended {
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
}
