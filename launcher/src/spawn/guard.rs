//! The guard: a small process that outlives a killed keeper for as long as it takes to clean up. A keeper whose launcher was killed ends by itself,
//! and leaves cleaning up to its guard too.
//!
//! It reads from a pipe which processes there are, `+PID` and `-PID`, which worlds of MPI, `=NAME`, and how long they may run, `!MILLISECONDS` from then
//! on, or `!` for as long as they want, and with `&` who continues the job if the launcher is lost ([`SuccessorOrder`]), or `&` alone: nobody. It waits
//! for the pipe to end. If it ends without `done`, the keeper is dead: the guard ends all process groups and sessions, so nothing of the job goes on
//! running. The same if the time is over: then it ends the keeper first, which stands still (R30). It holds the lock of the node until the last of those
//! processes is gone. It removes half-written files in the job's directory, unless a launcher works there, and files that the MPI libraries of the ranks
//! have left in memory. The ranks end at the same instant as the launcher, and can no longer be asked for their files. MPICH's files have names that are known
//! from those of its worlds, before they exist; of other libraries it is noted while ranks run, often in the beginning, when libraries make their
//! files, and seldom later.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use store::{Directory, JobDirectory};
use transport::JobId;

use super::lease_timer::LeaseTimer;
use super::pidfd::PidFd;
use crate::error::LauncherError;
use crate::limits::GUARD_GRACE;
use crate::mpi::mappings;
use crate::registry;
use crate::succession::SuccessorOrder;

/// Longest wait for killed processes to be gone: one that is in the kernel ends when it leaves it.
const GONE_MAX: Duration = Duration::from_secs(2);

/// How long the lock of a launcher that was killed may outlive it.
const LOCK_MAX: Duration = Duration::from_secs(1);

/// First and longest time between two looks at the ranks' files in memory; each is twice as long as the one before.
const LOOK_FIRST: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(60);

/// The keeper's end.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
    lease: Option<Duration>,
    timer: LeaseTimer,
}

impl Guard {
    /// `lock`: of the node. The guard has it as its standard output, and frees it when it ends, or when keeper and ranks have ended and a launcher lives.
    pub(crate) fn start(job: JobId, directory: &Path, lock: OwnedFd) -> Result<Guard, LauncherError> {
        let program = std::env::current_exe().map_err(|error| LauncherError::Guard { error })?;
        let timer = LeaseTimer::new().map_err(|error| LauncherError::Guard { error })?;
        let mut child = Command::new(program)
            .arg("__guard")
            .arg(job.to_string())
            .arg(directory)
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(lock)
            // Ctrl-C is for the launcher.
            .process_group(0)
            .spawn()
            .map_err(|error| LauncherError::Guard { error })?;
        let pipe = child.stdin.take();
        Ok(Guard { child, pipe, lease: None, timer })
    }

    pub(crate) fn add(&mut self, pid: Pid) {
        self.say(&format!("+{pid}\n"));
    }

    pub(crate) fn remove(&mut self, pid: Pid) {
        self.say(&format!("-{pid}\n"));
    }

    /// Processes of an MPI world of this name begin.
    pub(crate) fn add_world(&mut self, name: &str) {
        self.say(&format!("={name}\n"));
    }

    /// How long the processes may run from now on; `None`: as long as they want.
    pub(crate) fn set_lease(&mut self, lease: Option<Duration>) {
        self.lease = lease;
        self.resume_lease();
    }

    /// The processes stand still, and so does their lease.
    pub(crate) fn suspend_lease(&mut self) {
        self.timer.set(None);
        self.say("!\n");
    }

    /// It runs from now on.
    pub(crate) fn resume_lease(&mut self) {
        self.timer.set(self.lease);
        match self.lease {
            Some(lease) => self.say(&format!("!{}\n", lease.as_millis())),
            None => self.say("!\n"),
        }
    }

    /// Who continues the job if its launcher is lost; `None`: nobody.
    pub(crate) fn set_successor(&mut self, order: Option<&SuccessorOrder>) {
        let order = order.and_then(|order| serde_json::to_string(order).ok()).unwrap_or_default();
        self.say(&format!("&{order}\n"));
    }

    /// Whether it was killed.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn say(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // Without a guard the kernel still ends every rank with the launcher; only their children are left to themselves.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

impl Guard {
    /// Everything has been cleaned up.
    pub(crate) fn dismiss(&mut self) {
        self.say("done\n");
        self.pipe = None;
        let _ = self.child.wait();
    }
}

/// The guard itself: returns when the launcher is gone and everything is cleaned up. `keeper`: the process that has started it.
pub fn watch(job: &str, directory: &Path, keeper: i32) {
    // A signal that ends the launcher must not end the guard before it has done its work.
    let _ = SigSet::all().thread_block();
    let notes = Arc::new(Notes::default());
    let looking = Arc::clone(&notes);
    // Without it nothing is missed but files in memory.
    let _ = std::thread::Builder::new().name("look".into()).spawn(move || looking.keep());
    let keeper = Pid::from_raw(keeper);
    let keeper_process = PidFd::open(keeper);
    let heard = listen(&notes);
    match heard {
        Heard::Done => return,
        Heard::End | Heard::Nothing => {}
        // It may be stopped, and must not go on when another keeper has taken its place.
        Heard::LeaseOver => {
            // Held since this process began: it was the parent then, if it still is.
            if let Ok(process) = &keeper_process
                && getppid() == keeper
            {
                let _ = process.signal(Signal::SIGKILL);
            }
        }
    }
    let Noted { mut groups, files, successor, .. } = core::mem::take(&mut *notes.lock());
    let are_gone = end_members(&mut groups, GONE_MAX);
    mappings::remove(files);
    // The end of the pipe alone shows that the keeper is gone.
    let is_empty = are_gone && heard == Heard::End;
    clean(job, directory, node_lock().as_ref().filter(|_| is_empty), LOCK_MAX);
    if !are_gone {
        // The lock of the node is free when this returns.
        end_members(&mut groups, Duration::MAX);
    }
    if let Some(order) = successor
        && let Err(error) = order.start()
    {
        eprintln!("stillwire: job {job}: this host cannot continue it without its launcher: {error}");
    }
}

/// How the keeper's messages have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Done,
    End,
    LeaseOver,
    /// The pipe cannot be read.
    Nothing,
}

/// Takes the keeper's lines.
fn listen(notes: &Notes) -> Heard {
    let stdin = std::io::stdin();
    let mut waiting = Vec::new();
    let mut lease: Option<Instant> = None;
    loop {
        let left = lease.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Heard::LeaseOver;
        }
        // Rounded up: not a moment too early.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(nix::Error::EINTR) => continue,
            Ok(_) => {}
            Err(_) => return Heard::Nothing,
        }
        let mut bytes = [0; 4096];
        match stdin.lock().read(&mut bytes) {
            Ok(0) => return Heard::End,
            Err(_) => return Heard::Nothing,
            Ok(read) => waiting.extend_from_slice(&bytes[..read]),
        }
        while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = waiting.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            let pid = || line.get(1..).and_then(|text| text.parse::<i32>().ok()).filter(|pid| *pid > 1);
            match (line.as_bytes().first(), pid()) {
                (Some(b'+'), Some(pid)) => notes.add(pid),
                (Some(b'-'), Some(pid)) => drop(notes.lock().groups.remove(&pid)),
                (Some(b'='), _) => notes.lock().files.extend(mappings::files_of_world(&line[1..])),
                (Some(b'!'), _) => {
                    let lease_ms = line[1..].parse().ok();
                    lease = lease_ms.map(|ms| Instant::now() + Duration::from_millis(ms) + GUARD_GRACE);
                }
                (Some(b'&'), _) => notes.lock().successor = serde_json::from_str(&line[1..]).ok(),
                _ if line == "done" => return Heard::Done,
                _ => {}
            }
        }
    }
}

/// Kills the processes of these groups and sessions, and whatever they start meanwhile. Returns whether all are gone; in vain for `at_most`.
fn end_members(groups: &mut BTreeSet<i32>, at_most: Duration) -> bool {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let found = members(groups);
        // The number of a group that is empty may become another one's.
        groups.retain(|group| found.iter().any(|(_, stat)| [stat.group, stat.session].contains(group)));
        if !found.iter().any(|(_, stat)| stat.is_alive) {
            return true;
        }
        for (pid, _) in found {
            // The number may have passed to another process meanwhile, and a process that is held is looked at again.
            let process = PidFd::open(Pid::from_raw(pid));
            if let (Ok(process), Some(true)) = (process, stat(pid).map(|stat| stat.is_of(groups))) {
                let _ = process.signal(Signal::SIGKILL);
            }
        }
        if begun.elapsed() >= at_most {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// The processes of these groups, and of sessions that their leaders have begun; also those that wait to be collected.
fn members(groups: &BTreeSet<i32>) -> Vec<(i32, Stat)> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, stat(pid).filter(|stat| stat.is_of(groups))?))).collect()
}

/// Something of a process's state.
struct Stat {
    /// It can still do something. One that has ended and waits to be collected cannot; its parent may never do so.
    is_alive: bool,
    group: i32,
    session: i32,
}

impl Stat {
    fn is_of(&self, groups: &BTreeSet<i32>) -> bool {
        groups.contains(&self.group) || groups.contains(&self.session)
    }
}

fn stat(pid: i32) -> Option<Stat> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, parentheses too.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let is_alive = !matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse().ok();
    let _parent = number()?;
    Some(Stat { is_alive, group: number()?, session: number()? })
}

/// The ranks' process groups and files that are known.
#[derive(Debug, Default)]
struct Noted {
    groups: BTreeSet<i32>,
    files: BTreeSet<PathBuf>,
    successor: Option<SuccessorOrder>,
    /// Ranks have been started since the last look.
    fresh: bool,
}

#[derive(Debug, Default)]
struct Notes {
    noted: Mutex<Noted>,
    started: Condvar,
}

impl Notes {
    fn lock(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, group: i32) {
        let mut noted = self.lock();
        noted.groups.insert(group);
        noted.fresh = true;
        self.started.notify_one();
    }

    /// Notes files for ever.
    fn keep(&self) {
        let mut pause = LOOK_MAX;
        loop {
            let noted = self.lock();
            let (mut noted, _) = self
                .started
                .wait_timeout_while(noted, pause, |noted| !noted.fresh)
                .unwrap_or_else(PoisonError::into_inner);
            if core::mem::take(&mut noted.fresh) {
                pause = LOOK_FIRST;
                drop(noted);
                std::thread::sleep(pause);
                noted = self.lock();
            }
            let groups = noted.groups.clone();
            drop(noted);
            let mut files = mappings::files_of(&groups);
            self.lock().files.append(&mut files);
            pause = (pause * 2).min(LOOK_MAX);
        }
    }
}

/// The lock of the node, which is held.
fn node_lock() -> Option<File> {
    Some(std::io::stdout().as_fd().try_clone_to_owned().ok()?.into())
}

/// `node`: the held lock of the node; it is freed while a launcher's lock is awaited. `None`: it stays held.
fn clean(job: &str, directory: &Path, node: Option<&File>, at_most: Duration) {
    let Ok(id) = u128::from_str_radix(job, 16).map(JobId) else { return };
    // A launcher that lives removes its own; one that was killed has left its job's directory behind.
    let Ok(storage) = Directory::open(directory) else { return registry::remove(id) };
    // The kernel closes the launcher's files one after the other: its lock may be held a little longer than its end of our pipe. If it stays locked, a
    // launcher lives and cleans up itself. Its next keeper does not wait for this.
    let until = Instant::now() + at_most;
    let _lock = loop {
        match storage.lock() {
            Ok(lock) => break lock,
            Err(_) if Instant::now() < until => {
                let _ = node.map(File::unlock);
            }
            Err(_) => return,
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    registry::remove(id);
    // Another keeper has the node: files there may be its own.
    if node.is_some_and(|node| node.try_lock().is_err()) {
        return;
    }
    if let Err(error) = JobDirectory::attach(storage.clone(), id).discard_unfinished() {
        crate::print_message(format_args!(
            "the launcher of job {job} was killed; its unfinished generation could not be removed: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_keeper_does_not_wait_for_the_end_of_its_launcher() {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = Directory::create(folder.path()).expect("a directory");
        // Of an unfinished generation, in a life that may be the next keeper's.
        let epoch = folder.path().join("life-00000001-0000000000000005/epoch-00000001");
        let open = || File::create(folder.path().join("lock-0")).expect("a file");
        for keeper_comes in [true, false] {
            std::fs::create_dir_all(&epoch).expect("a folder");
            let launcher = storage.lock().expect("nobody works here");
            let (held, next) = (open(), open());
            held.lock().expect("nobody has it");
            let path = folder.path().to_path_buf();
            let begun = Instant::now();
            let guard = std::thread::spawn(move || clean("7", &path, Some(&held), 60 * LOCK_MAX));
            next.lock().expect("a lock");
            assert!(begun.elapsed() < 30 * LOCK_MAX, "it is freed while the launcher lives");
            if !keeper_comes {
                next.unlock().expect("a lock");
            }
            drop(launcher);
            guard.join().expect("it ends");
            assert_eq!(epoch.exists(), keeper_comes);
        }
    }

    #[test]
    fn a_process_that_nobody_collects_has_ended() {
        let is_alive = |pid| stat(pid).is_some_and(|stat| stat.is_alive);
        let own = i32::try_from(std::process::id()).expect("an id");
        assert!(is_alive(own));
        let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = i32::try_from(child.id()).expect("an id");
        assert!(is_alive(pid));
        child.kill().expect("it runs");
        // It is delivered; the process ends when it is scheduled. Nobody has collected it: the id is taken as before.
        while is_alive(pid) {
            std::thread::yield_now();
        }
        assert!(nix::sys::signal::kill(Pid::from_raw(pid), None).is_ok());
        child.wait().expect("a child");
        assert!(!is_alive(pid));
    }
}
