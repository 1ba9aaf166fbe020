//! The guard: a small process that outlives a killed keeper for as long as it takes to clean up. A keeper whose launcher was killed ends by itself,
//! and leaves cleaning up to its guard too.
//!
//! It reads from a pipe which processes there are, `+PID` and `-PID`, and which worlds of MPI, `=NAME`, and waits for the pipe to end. If it ends without
//! `done`, the keeper is dead: the guard ends all process groups, so nothing of the job goes on running, and then removes
//! half-written files in the job's directory, unless another launcher has taken it over, and files that the MPI libraries of the ranks have left in
//! memory. The ranks end at the same instant as the launcher, and can no longer be asked for their files. MPICH's files have names that are known
//! from those of its worlds, before they exist; of other libraries it is noted while ranks run, often in the beginning, when libraries make their
//! files, and seldom later.

use std::collections::BTreeSet;
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use store::{Directory, JobDirectory};
use transport::JobId;

use super::mappings;
use super::registry;
use crate::error::LauncherError;

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
}

impl Guard {
    pub(crate) fn start(job: JobId, directory: &Path) -> Result<Guard, LauncherError> {
        let program = std::env::current_exe().map_err(|error| LauncherError::Guard { error })?;
        let mut child = Command::new(program)
            .arg("__guard")
            .arg(job.to_string())
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is for the launcher.
            .process_group(0)
            .spawn()
            .map_err(|error| LauncherError::Guard { error })?;
        let pipe = child.stdin.take();
        Ok(Guard { child, pipe })
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

/// The guard itself: returns when the launcher is gone and everything is cleaned up.
pub fn watch(job: &str, directory: &Path) {
    // A signal that ends the launcher must not end the guard before it has done its work.
    let _ = SigSet::all().thread_block();
    let notes = Arc::new(Notes::default());
    let looking = Arc::clone(&notes);
    // Without it nothing is missed but files in memory.
    let _ = std::thread::Builder::new().name("look".into()).spawn(move || looking.keep());
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let pid = || line.get(1..).and_then(|text| text.parse::<i32>().ok()).filter(|pid| *pid > 1);
        match (line.as_bytes().first(), pid()) {
            (Some(b'+'), Some(pid)) => notes.add(pid),
            (Some(b'-'), Some(pid)) => drop(notes.lock().groups.remove(&pid)),
            (Some(b'='), _) => notes.lock().files.extend(mappings::files_of_world(&line[1..])),
            _ if line == "done" => return,
            _ => {}
        }
    }
    let Noted { groups, files, .. } = core::mem::take(&mut *notes.lock());
    for pid in &groups {
        // No such group: it has ended already.
        let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    let until = Instant::now() + GONE_MAX;
    while groups.iter().any(|pid| is_alive(*pid)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    mappings::remove(files);
    clean(job, directory.to_path_buf());
}

/// Whether a process can still do anything. One that has ended and waits to be collected cannot; its parent may never do so.
fn is_alive(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| {
        // The name before it may hold anything, parentheses too.
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    });
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The ranks' process groups and files that are known.
#[derive(Debug, Default)]
struct Noted {
    groups: BTreeSet<i32>,
    files: BTreeSet<PathBuf>,
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

fn clean(job: &str, directory: PathBuf) {
    let Ok(id) = u128::from_str_radix(job, 16).map(JobId) else { return };
    // A launcher that lives removes its own; one that was killed has left its job's directory behind.
    let Ok(storage) = Directory::open(directory) else { return registry::remove_abandoned(id) };
    // The kernel closes the launcher's files one after the other: its lock may be held a little longer than its end of our pipe. Held for
    // longer, it is a launcher's that lives, and cleans up by itself.
    let until = Instant::now() + LOCK_MAX;
    let _lock = loop {
        match storage.lock() {
            Ok(lock) => break lock,
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return,
        }
    };
    registry::remove_abandoned(id);
    if let Err(error) = JobDirectory::attach(storage.clone(), id).discard_unfinished() {
        eprintln!(
            "stillwire: the launcher of job {job} was killed; its unfinished generation could not be removed: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_collects_has_ended() {
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
