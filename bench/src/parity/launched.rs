//! A job of `stillwire run` that is measured.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::cluster::Plan;
use super::group::Point;
use super::job::{CheckpointAnswer, PASSES, Workspace};
use crate::error::BenchError;
use crate::interrupt::Interrupt;

/// Source of the program that each rank runs.
const SOURCE: &str = include_str!("changing.c");

/// A job that has not come up by then does not.
const START_MAX: Duration = Duration::from_secs(60);

/// One that has not ended by then after the request is killed.
const END_MAX: Duration = Duration::from_secs(10);

/// Time between two looks at an ending process.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The warning of a launcher that does not find the agent library.
const NOT_SAVED: &str = "stillwire: only a program that names its own points can be saved";

/// Of the key of jobs whose images are encrypted, each of its bytes: not a secret.
const KEY_DIGITS: &str = "5c";

/// Lines of a job that failed that are shown.
const SHOWN_LINES: usize = 5;

/// A folder for jobs, with their program and the launcher. It goes with this.
pub(super) struct Folder {
    path: PathBuf,
    stillwire: PathBuf,
    program: PathBuf,
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Retries because processes of a job that outlive its launcher for a moment may still write.
fn remove(path: &Path) {
    let until = Instant::now() + END_MAX;
    while std::fs::remove_dir_all(path).is_err() && path.exists() && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
    }
}

fn failed(what: String) -> BenchError {
    BenchError::Job { what }
}

/// Names the launcher, where it is not beside this program.
const LAUNCHER: &str = "STILLWIRE_BIN";

/// The program `stillwire`, which starts the jobs.
fn launcher() -> Result<PathBuf, BenchError> {
    let path = match std::env::var_os(LAUNCHER).filter(|named| !named.is_empty()) {
        Some(named) => std::path::absolute(named).map_err(BenchError::Start)?,
        None => std::env::current_exe().map_err(BenchError::Start)?.with_file_name("stillwire"),
    };
    if path.is_file() { Ok(path) } else { Err(BenchError::NoLauncher { path }) }
}

impl Folder {
    pub(super) fn new(parent: &Path) -> Result<Folder, BenchError> {
        let stillwire = launcher()?;
        let path = parent.join(format!("stillwire-bench-job-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| BenchError::Write { path: path.clone(), error })?;
        let folder = Folder { program: path.join("changing"), path, stillwire };
        let source = folder.program.with_extension("c");
        std::fs::write(&source, SOURCE).map_err(|error| BenchError::Write { path: source.clone(), error })?;
        let output = Command::new("cc").args(["-O2", "-o"]).arg(&folder.program).arg(&source).output();
        let output = output.map_err(|error| failed(format!("cc, which compiles its program: {error}")))?;
        if !output.status.success() {
            return Err(failed(format!("cc: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        Ok(folder)
    }
}

/// One that runs.
pub(super) struct Job {
    launcher: Child,
    interrupt: Interrupt,
    lines: Receiver<String>,
    said: Vec<String>,
    stillwire: PathBuf,
    /// As commands name it.
    name: String,
    places: [PathBuf; 2],
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.is_reported_to_end() {
            let _ = self.launcher.kill();
            let _ = self.launcher.wait();
        }
        self.interrupt.set_below(None);
        self.places.iter().for_each(|path| remove(path));
    }
}

impl Job {
    /// With a rank on each node, all of which run.
    pub(super) fn start(
        Workspace { folder, interrupt }: &Workspace,
        plan: &Plan,
        point: Point,
        encrypts: bool,
    ) -> Result<Job, BenchError> {
        let places = ["job", "disks"].map(|name| folder.path.join(name));
        let nodes = plan.nodes.to_string();
        let mut command = Command::new(&folder.stillwire);
        command.args(["run", "-n", &nodes, "--nodes", &nodes, "--parity", &plan.scheme.to_string()]);
        command.arg("--ckpt-dir").arg(&places[0]).arg("--node-dir").arg(&places[1]).args(["--keep", "1"]);
        let limits = plan.limits;
        let budget: Vec<String> = [
            limits.link_bytes_per_s.map(|rate| format!("link={rate}")),
            limits.disk_bytes_per_s.map(|rate| format!("disk={rate}")),
            limits.cores.map(|cores| format!("cores={cores}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !budget.is_empty() {
            command.args(["--encode-budget", &budget.join(",")]);
        }
        if encrypts {
            command.arg("--encrypt").env("STILLWIRE_KEY", KEY_DIGITS.repeat(32));
        }
        if let Some(shape) = plan.shape {
            command.args(["--shape", &shape.to_string()]);
        }
        let (mib, percent) = ((point.bytes >> 20).to_string(), point.dirty.percent().to_string());
        command.arg("--").arg(&folder.program).args([&mib, &percent, &PASSES.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C at a terminal is for the bench, which stops the job then.
        let mut launcher = command.process_group(0).spawn().map_err(BenchError::Start)?;
        interrupt.set_below(Some(launcher.id()));
        let (to, lines) = channel();
        if let Some(output) = launcher.stdout.take() {
            read(output, to.clone());
        }
        if let Some(output) = launcher.stderr.take() {
            read(output, to);
        }
        let stillwire = folder.stillwire.clone();
        let (interrupt, said, name) = (interrupt.clone(), Vec::new(), String::new());
        let mut job = Job { launcher, interrupt, lines, said, stillwire, name, places };
        job.come_up(plan.nodes)?;
        Ok(job)
    }

    fn come_up(&mut self, ranks: usize) -> Result<(), BenchError> {
        let until = Instant::now() + START_MAX;
        let (mut begun, mut all_run) = (0, false);
        while begun < ranks || !all_run || self.name.is_empty() {
            let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                return Err(self.broken("has not come up"));
            };
            // It cannot be saved, and would never be said to run.
            if line.starts_with(NOT_SAVED) {
                return Err(failed(line));
            }
            begun += usize::from(line.ends_with("] begun"));
            all_run |= line.ends_with("all ranks run");
            if let Some(rest) = line.strip_prefix("stillwire: job ") {
                self.name = rest.split(',').next().unwrap_or_default().to_owned();
            }
            self.said.push(line);
        }
        Ok(())
    }

    fn broken(&mut self, what: &str) -> BenchError {
        self.said.extend(self.lines.try_iter());
        let last = self.said.len().saturating_sub(SHOWN_LINES);
        failed(format!("it {what}: {}", self.said[last..].join(" / ")))
    }

    /// Takes one, and waits until it is committed.
    pub(super) fn checkpoint(&mut self) -> Result<CheckpointAnswer, BenchError> {
        let output = Command::new(&self.stillwire).args(["checkpoint", &self.name, "--json"]).output();
        let output = output.map_err(BenchError::Start)?;
        if output.status.success() {
            return Ok(serde_json::from_slice(&output.stdout)?);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(self.broken(&format!("was not saved: {}", said.trim())))
    }

    /// Of its launcher, its keepers and its ranks, and of their ended children.
    pub(super) fn processor_seconds(&self) -> f64 {
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        #[expect(clippy::cast_precision_loss, reason = "ticks of one job are few")]
        let seconds = ticks(self.launcher.id()) as f64 / per_second as f64;
        seconds
    }

    /// Ends it. Nothing of it is left.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        if self.is_reported_to_end() { Ok(()) } else { Err(self.broken("does not end")) }
    }

    /// Whether it has ended then.
    fn is_reported_to_end(&mut self) -> bool {
        let until = Instant::now() + END_MAX;
        if matches!(self.launcher.try_wait(), Ok(None)) {
            let pid = i32::try_from(self.launcher.id()).map(Pid::from_raw);
            let _ = pid.map(|pid| kill(pid, Signal::SIGTERM));
        }
        loop {
            match self.launcher.try_wait() {
                Ok(Some(_)) => return true,
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                _ => return false,
            }
        }
    }
}

/// Passes lines on until all writers have closed.
fn read(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

/// Of a process and all below it, proc_pid_stat(5): user, system, and both of its children that have ended.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ').skip(11).take(4);
    let own: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let below: Vec<u32> = children
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    own + below.into_iter().map(ticks).sum::<u64>()
}
