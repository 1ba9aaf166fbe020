//! A query to python: which MPI library mpi4py loads, which python chooses while it runs.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::loader::Library;
use crate::Program;

/// Longest wait for python's answer which MPI library mpi4py loads: on a slow shared file system that takes seconds.
const PYTHON_MAX: Duration = Duration::from_secs(30);

/// Prints which libraries mpi4py loads, without starting MPI.
const PYTHON_PROBE: &str = "\
try:
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
except Exception as error:
    print('says', str(error).splitlines()[0] if str(error) else type(error).__name__)
else:
    for line in open('/proc/self/maps'):
        if '/' in line and '.so' in line:
            print('maps', line[line.index('/'):].rstrip())
";

/// Python's answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The libraries that it loads and that have to do with MPI.
    pub(super) libraries: Vec<Library>,
    /// Why there is no MPI library, in its words.
    pub(super) says: Option<String>,
}

pub(super) fn is_python(path: &Path) -> bool {
    // `python3` is a link to the version that it is, and in a virtual environment one to that of the system.
    let named =
        |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python"));
    named(path) || path.canonicalize().is_ok_and(|path| named(&path))
}

/// Asks python, in the environment of a program.
pub(super) fn ask(program: &Program, python: &Path) -> Answer {
    let mut answer = Answer::default();
    let text = match run(program, python) {
        Ok(text) => text,
        Err(error) => {
            answer.says = Some(error.to_string());
            return answer;
        }
    };
    for line in text.lines() {
        if let Some(words) = line.strip_prefix("says ") {
            answer.says = Some(words.to_owned());
        } else if let Some(path) = line.strip_prefix("maps ").map(PathBuf::from) {
            let name = super::file_name(&path);
            if !answer.libraries.iter().any(|library| library.name == name) {
                answer.libraries.push(Library { name, path: Some(path) });
            }
        }
    }
    answer
}

fn run(program: &Program, python: &Path) -> std::io::Result<String> {
    let mut command = Command::new(python);
    command
        .args(["-c", PYTHON_PROBE])
        .current_dir(&program.directory)
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    for (name, _) in std::env::vars_os().filter(|(name, _)| super::environment::is_foreign(name)) {
        command.env_remove(name);
    }
    let mut child = command.spawn()?;
    let group = Pid::from_raw(i32::try_from(child.id()).map_err(std::io::Error::other)?);
    // One word, which the thread says once.
    let (done, over) = crossbeam_channel::bounded(1);
    let mut pipe = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = pipe.read_to_string(&mut text).map(|_| text);
        let _ = done.send(());
        read
    });
    let started = Instant::now();
    let in_time = over.recv_timeout(PYTHON_MAX).is_ok();
    if !in_time {
        let _ = killpg(group, Signal::SIGKILL);
    }
    child.wait()?;
    let text = reader.join().map_err(|_| std::io::ErrorKind::Other)??;
    if in_time {
        return Ok(text);
    }
    Err(std::io::Error::other(format!(
        "python did not say within {:?} which MPI library mpi4py loads",
        started.elapsed()
    )))
}
