//! Jobs under test: the real executable, real processes, a directory of their own.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod hosts;
pub(crate) mod namespaces;
pub(crate) mod pmi;
pub(crate) mod programs;
pub(crate) mod threads;
pub(crate) mod two_hosts;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Nothing in these tests takes so long on a machine that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The executable under test.
pub(crate) const STILLWIRE: &str = env!("CARGO_BIN_EXE_stillwire");

/// Variables with which a person or a launcher around the tests would steer them.
const STEERING: [&str; 13] = [
    "STILLWIRE_",
    "FI_",
    "PMI",
    "PRTE_",
    "OMPI_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
    "MPIR_",
    "MPICH_",
    "I_MPI_",
    "MPI4PY_",
    "PYTHON",
];

/// Prefixes of variables that the scripts of this tree set for tests.
const GIVEN: [&str; 2] = ["STILLWIRE_TEST_", "STILLWIRE_PROVIDER"];

/// The launcher, which sees none of the settings that this machine's user has for jobs.
pub(crate) fn stillwire(arguments: &[&str]) -> Command {
    let mut command = Command::new(STILLWIRE);
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let starts = |with: &&str| name.as_encoded_bytes().starts_with(with.as_bytes());
        if STEERING.iter().any(starts) && !GIVEN.iter().any(starts) {
            command.env_remove(&name);
        }
    }
    if let Some(search) = std::env::var_os("LD_LIBRARY_PATH") {
        let others = std::env::split_paths(&search).filter(|folder| !has_mpi(folder));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(others).expect("parts of a search path"));
    }
    command
}

/// Whether a folder of the loader's search path would put this machine's MPI in the place of a test's.
fn has_mpi(folder: &Path) -> bool {
    let is_mpi = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        ["libmpi.so", "libmpi_abi.so", "libfabric.so"]
            .iter()
            .any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()))
    };
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_mpi))
}

/// Runs a command to its end.
pub(crate) fn done(command: &mut Command) -> Done {
    let Output { status, stdout, stderr } = command.output().expect("the executable starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Done { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message is on standard error and has all these words.
    pub(crate) fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing: {self:?}");
        }
    }
}

/// Writes a key file, as its owner alone may read it.
pub(crate) fn write_key(path: &Path, text: &str) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).expect("a file");
    file.write_all(text.as_bytes()).expect("it is written");
}

/// A place for a job: its directory, and the file that lets its program end.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(crate) fn job(&self) -> PathBuf {
        self.folder.path().join("job")
    }

    pub(crate) fn job_text(&self) -> String {
        self.job().display().to_string()
    }

    /// The user's state folder, on all hosts that are this one.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn enough(&self) -> PathBuf {
        self.folder.path().join("enough")
    }

    /// Lets the sort end with its current round.
    pub(crate) fn let_end(&self) {
        std::fs::write(self.enough(), b"").expect("a file can be written");
    }

    /// The sort with bursts in flight at every point, which goes on until [`Place::let_end`].
    pub(crate) fn sort(&self) -> Vec<String> {
        let until = self.enough().display().to_string();
        [STILLWIRE, "__demo-rank", "--class", "S", "--rounds", "1", "--until", &until]
            .map(str::to_owned)
            .to_vec()
    }

    /// Starts `stillwire run -n 4` of the sort with these options.
    pub(crate) fn run(&self, options: &[&str]) -> Running {
        let mut command = stillwire(&["run", "-n", "4", "--ckpt-dir", &self.job_text()]);
        command.args(options).arg("--").args(self.sort()).env("XDG_STATE_HOME", self.state());
        Running::start(command)
    }

    /// Starts `stillwire restart` of the job with these options.
    pub(crate) fn restart(&self, options: &[&str]) -> Running {
        let mut command = stillwire(&["restart", &self.job_text()]);
        command.args(options).env("XDG_STATE_HOME", self.state());
        Running::start(command)
    }

    /// Runs until three generations are committed, then kills the launcher. Returns the committed ones, oldest first.
    pub(crate) fn with_generations(&self) -> Vec<String> {
        let mut job = self.run(&["--ckpt-every", "60ms", "--keep", "3"]);
        for _ in 0..3 {
            job.wait_for("committed");
        }
        job.signal("KILL");
        job.finish();
        wait_until("the guard has cleaned up", || {
            self.generations("committed").len() >= 2 && self.lock_is_free()
        });
        self.generations("committed")
    }

    /// A remote shell: a script that is given a host's name and a command.
    pub(crate) fn remote_shell(&self, script: &str) -> String {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.folder.path().join("shell");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("its owner's");
        path.display().to_string()
    }

    /// A job of so many nodes that keep a parity of each other, stopped with so many generations: no more of them come by themselves. The oldest first.
    pub(crate) fn stopped(&self, nodes: u32, generations: usize) -> Vec<String> {
        let keep = generations.to_string();
        let mut job = self.run(&["--nodes", &nodes.to_string(), "--parity", "xor", "--keep", &keep]);
        job.wait_for("all ranks run");
        for _ in 0..generations {
            job.checkpoint();
        }
        job.signal("INT");
        job.finish();
        let kept = self.generations("committed");
        assert_eq!(kept.len(), generations);
        kept
    }

    /// Names of the generations in that state, oldest first.
    pub(crate) fn generations(&self, state: &str) -> Vec<String> {
        let report = done(&mut stillwire(&["ls", "--json", &self.job_text()])).json();
        let generations = report["generations"].as_array().expect("a list").clone();
        let wanted = generations.into_iter().filter(|generation| generation["state"] == state);
        wanted.map(|generation| generation["generation"].as_str().expect("a name").to_owned()).collect()
    }

    /// Neither the launcher nor a keeper or its guard is left.
    pub(crate) fn lock_is_free(&self) -> bool {
        let is_free = |path: &Path| std::fs::File::open(path).is_ok_and(|file| file.try_lock().is_ok());
        let entries = std::fs::read_dir(self.job()).into_iter().flatten().flatten();
        let of_nodes = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("lock-"));
        is_free(&self.job().join("lock"))
            && of_nodes.into_iter().all(|entry| is_free(&entry.path()))
            && !self.has_guards()
    }

    /// Whether a guard of a job here runs. It may be about to take the lock.
    fn has_guards(&self) -> bool {
        let folder = self.folder.path().display().to_string();
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.any(|line| {
            let line = String::from_utf8_lossy(&line);
            line.contains("\0__guard\0") && line.contains(&folder)
        })
    }

    /// A file of a generation.
    pub(crate) fn file(&self, generation: &str, name: &str) -> PathBuf {
        let (life, epoch) = generation.split_once('/').expect("LIFE/EPOCH");
        let (counter, nonce) = life.split_once('.').expect("COUNTER.NONCE");
        let counter: u32 = counter.parse().expect("a number");
        let epoch: u32 = epoch.parse().expect("a number");
        self.job().join(format!("life-{counter:08}-{nonce}/epoch-{epoch:08}/{name}"))
    }
}

/// A launcher that runs.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    /// The thread that reads the ranks' output, if one does while they run.
    reader: Option<JoinHandle<String>>,
    pub(crate) seen: Vec<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the executable starts");
        let (to, lines) = channel();
        let stderr: ChildStderr = child.stderr.take().expect("a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        Running { child, lines, reader: None, seen: Vec::new() }
    }

    /// Reads the ranks' output while they run: a pipe that nobody empties is full after 64 KiB.
    pub(crate) fn reading(mut self) -> Running {
        let mut stdout = self.child.stdout.take().expect("a pipe");
        self.reader = Some(std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("text");
            text
        }));
        self
    }

    /// All that the ranks have printed, when nobody can print any more.
    fn printed(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            return reader.join().expect("text");
        }
        let mut text = String::new();
        self.child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
        text
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of the launcher that has these words.
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        self.wait_for_any(&[words])
    }

    /// Waits for a line of the launcher that has some of these words.
    pub(crate) fn wait_for_any(&mut self, words: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if words.iter().any(|words| line.contains(words)) {
                        return line;
                    }
                }
                Err(error @ (RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) => {
                    panic!("no line with {words:?} ({error}):\n{}", self.seen.join("\n"));
                }
            }
        }
    }

    /// Whether the launcher has printed a line with these words since lines were last read; does not wait.
    pub(crate) fn has_printed(&mut self, words: &str) -> bool {
        let new: Vec<String> = self.lines.try_iter().collect();
        let printed = new.iter().any(|line| line.contains(words));
        self.seen.extend(new);
        printed
    }

    /// Asks for a checkpoint until one is committed, which a rank that has passed the point already may prevent. Returns the line about it.
    pub(crate) fn checkpoint(&mut self) -> String {
        loop {
            self.signal("USR1");
            let reported = self.wait_for_any(&["committed", "was abandoned"]);
            if reported.contains("committed") {
                return reported;
            }
        }
    }

    /// Processes of the ranks, by rank.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        let mut ranks: Vec<(u32, u32)> =
            children(self.pid()).into_iter().filter_map(|pid| Some((rank_of(pid)?, pid))).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Sends a signal to the launcher.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Reads all that the ranks print, until the end.
    pub(crate) fn finish_reading(mut self) -> Done {
        let stdout = self.printed();
        let code = self.child.wait().expect("a child can be waited for").code();
        self.seen.extend(self.lines.iter());
        Done { code, stdout, stderr: self.seen.join("\n") }
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Done {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("a child can be waited for") {
                Some(status) => break status,
                None if Instant::now() >= until => {
                    let _ = self.child.kill();
                    panic!("the job does not end:\n{}", self.seen.join("\n"));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // A process that outlives the launcher would hold the pipe: some tests are about that.
        let stdout = self.printed();
        self.seen.extend(self.lines.iter());
        Done { code: status.code(), stdout, stderr: self.seen.join("\n") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sort's own result, as its first rank printed it.
pub(crate) fn outcome(done: &Done) -> Value {
    let line = done.stdout.lines().find_map(|line| line.strip_prefix("[0] "));
    let line = line.unwrap_or_else(|| panic!("no result: {done:?}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// The job ended well and the sort's result is right.
pub(crate) fn verified(done: &Done) {
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(outcome(done)["verified"], true, "{done:?}");
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.is_ok(), "kill -{name} {pid}");
}

/// Processes that a launcher has started and that still run: itself, or by way of its keepers, which are not among them.
pub(crate) fn children(launcher: u32) -> Vec<u32> {
    let (keepers, mut others): (Vec<u32>, Vec<u32>) =
        children_of(launcher).into_iter().partition(|pid| is_keeper(*pid));
    others.extend(keepers.into_iter().flat_map(children_of));
    others
}

/// The keepers of a launcher.
pub(crate) fn keepers(launcher: u32) -> Vec<u32> {
    children_of(launcher).into_iter().filter(|pid| is_keeper(*pid)).collect()
}

pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("a proc file system");
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(ppid, _)| ppid == parent)).collect()
}

fn is_keeper(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| word == b"__keeper")
}

/// The rank of a process that a launcher has started.
pub(crate) fn rank_of(pid: u32) -> Option<u32> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(b"STILLWIRE_RANK="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Whether a process was started with this in its environment.
pub(crate) fn has_variable(pid: u32, entry: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
}

/// UDP ports on which a process receives.
pub(crate) fn udp_ports(pid: u32) -> Vec<u16> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let sockets: Vec<String> = files
        .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| sockets.iter().any(|inode| row[9] == inode))
        .filter_map(|row| u16::from_str_radix(row[1].split(':').nth(1)?, 16).ok())
        .collect()
}

/// Whether a process exists and is not only waiting to be collected.
pub(crate) fn runs(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, state)| state != 'Z' && state != 'X')
}

/// The process that has started another one.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    stat(pid).map(|(parent, _)| parent)
}

/// Parent and state.
fn stat(pid: u32) -> Option<(u32, char)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

pub(crate) fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < until, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Flips one bit of a file.
pub(crate) fn flip(path: &Path, byte: usize) {
    let mut bytes = std::fs::read(path).expect("the file is there");
    bytes[byte] ^= 0x10;
    std::fs::write(path, bytes).expect("the file can be written");
}
