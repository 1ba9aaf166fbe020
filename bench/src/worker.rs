//! Measuring processes: this program, started again with a role.

use std::io::{BufReader, Stdin, Stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::conversation::{hear, send};
use crate::error::BenchError;

/// First argument of a measuring process; the second is its role.
pub(crate) const ARGUMENT: &str = "bench-worker";

/// Arguments before those of a role: the program, [`ARGUMENT`], the role.
pub(crate) const ARGUMENTS: usize = 3;

/// The function of a measuring process.
type Role = fn(&mut Parent) -> Result<(), BenchError>;

const ROLES: &[(&str, Role)] = &[
    (crate::latency::ROLE, crate::latency::work),
    (crate::bulk::ROLE, crate::bulk::work),
    (crate::checkpointable::ROLE, crate::checkpointable::work),
    (crate::loss::ROLE, crate::loss::work),
    (crate::rate::ROLE, crate::rate::work),
    (crate::mpi::ROLE, crate::mpi::work),
    (crate::freeze::PORT, crate::freeze::measure),
    (crate::freeze::SENDER, crate::freeze::send),
    (crate::freeze::CROWD, crate::freeze::crowd),
    (crate::pause::ROLE, crate::pause::work),
    (crate::pause::RESTORED, crate::pause::restore),
];

/// No measuring process lives longer than this, even if it waits.
const LIFETIME_SECONDS: u32 = 1800;

/// Does the work of a measuring process if this program was started as one, and never returns then. Call it first in `main`.
pub fn run_if_worker() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        return;
    }
    let role = arguments.next().unwrap_or_default();
    let Some((name, work)) = ROLES.iter().find(|(name, _)| *name == role) else {
        eprintln!("no bench role '{role}': measuring processes are started by the bench itself");
        std::process::exit(2);
    };
    // A bench that is killed leaves no spinning process behind.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    nix::unistd::alarm::set(LIFETIME_SECONDS);
    let mut parent = Parent { from: BufReader::new(std::io::stdin()), to: std::io::stdout() };
    match work(&mut parent) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("bench {name}: {error}");
            std::process::exit(1);
        }
    }
}

/// The bench, as a measuring process sees it.
pub(crate) struct Parent {
    from: BufReader<Stdin>,
    to: Stdout,
}

impl Parent {
    /// The next command; `None`: no more work.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BenchError> {
        hear(&mut self.from)
    }

    pub(crate) fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BenchError> {
        send(&mut self.to, value)
    }
}

/// A measuring process, as the bench sees it. Dropping it ends it.
pub(crate) struct Worker {
    role: &'static str,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(role: &'static str) -> Result<Worker, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::Start)?;
        Worker::start_program(&program, role)
    }

    pub(crate) fn start_program(program: &std::path::Path, role: &'static str) -> Result<Worker, BenchError> {
        let mut child = Command::new(program)
            .args([ARGUMENT, role])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::Start)?;
        let no_pipe = || BenchError::Worker { role, what: "has no pipes" };
        let to = child.stdin.take().ok_or_else(no_pipe)?;
        let from = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?);
        Ok(Worker { role, child, to: Some(to), from })
    }

    pub(crate) fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BenchError> {
        match &mut self.to {
            Some(to) => send(to, value),
            None => Err(BenchError::Worker { role: self.role, what: "was asked to end" }),
        }
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let ended = BenchError::Worker { role: self.role, what: "ended before it answered" };
        hear(&mut self.from)?.ok_or(ended)
    }

    /// Ends it without asking: for one that goes on until it is ended.
    pub(crate) fn end_now(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    /// The process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input makes it exit; one that hangs in a measurement is killed.
        self.to = None;
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
