//! What a command line really runs: through scripts and interpreters to the MPI library.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::Mpi;
use super::loader::{self, Image, Library};
use crate::error::CliError;
use crate::launch::Program;

/// Scripts that run scripts.
const STEPS_MAX: usize = 4;

/// Longest wait for python to say which MPI library mpi4py loads: on a slow shared file system that takes seconds.
const PYTHON_MAX: Duration = Duration::from_secs(30);

/// How a program comes to its MPI library.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detected {
    /// From the command's file over interpreters to the last.
    pub(crate) steps: Vec<PathBuf>,
    /// The last one is python.
    pub(crate) is_python: bool,
    /// Why python has no MPI library, in its words.
    pub(crate) python_says: Option<String>,
    /// Why the program cannot be loaded, in its loader's words.
    pub(crate) loader_says: Option<String>,
    /// What it loads: all of it, or with python what has to do with MPI.
    pub(crate) libraries: Vec<Library>,
    pub(crate) mpi: Option<Mpi>,
}

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

/// Follows a program to its MPI library. What cannot be followed (a shell script, a program that opens its library while it
/// runs) has none, as far as anybody can tell before it runs.
pub(crate) fn detect(program: &Program) -> Result<Detected, CliError> {
    let mut detected = Detected::default();
    let mut name = program.command[0].clone();
    for _ in 0..STEPS_MAX {
        let path = match program.find(&name) {
            Ok(path) => path,
            Err(error) if detected.steps.is_empty() => return Err(error),
            // The kernel says the same of an interpreter that is missing, when the script is started.
            Err(_) => break,
        };
        let image = loader::image(&path).unwrap_or(Image::Unknown);
        detected.steps.push(path.clone());
        match image {
            Image::Script(words) => match interpreter(words) {
                Some(next) => name = next,
                None => break,
            },
            Image::Dynamic(_) if is_python(&path) => {
                ask_python(program, &path, &mut detected);
                break;
            }
            Image::Dynamic(loader) => {
                let listed = loader::libraries(&loader, &path, &program.environment, &program.directory);
                match listed {
                    Ok(libraries) => detected.libraries = libraries,
                    // It says so again when the program is started, to whoever runs it.
                    Err(error) => detected.loader_says = Some(error.to_string()),
                }
                break;
            }
            Image::Other | Image::Unknown => break,
        }
    }
    detected.mpi = Mpi::among(&detected.libraries);
    match Mpi::missing(&detected.libraries) {
        Some(library) if detected.mpi.is_none() => {
            let program = detected.steps.last().cloned().unwrap_or_default();
            Err(CliError::MpiNotFound { program, library: library.to_owned() })
        }
        _ => Ok(detected),
    }
}

/// The program that a script's first line names; behind `env`, the one that env looks for.
fn interpreter(words: Vec<OsString>) -> Option<OsString> {
    let mut words = words.into_iter();
    let first = words.next()?;
    if Path::new(&first).file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let is_name = |word: &OsString| {
        let bytes = word.as_encoded_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    };
    words.find(is_name)
}

fn is_python(path: &Path) -> bool {
    // `python3` is a link to the version that it is, and in a virtual environment one to that of the system.
    let named =
        |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python"));
    named(path) || path.canonicalize().is_ok_and(|path| named(&path))
}

fn ask_python(program: &Program, python: &Path, detected: &mut Detected) {
    detected.is_python = true;
    let answer = match run_python(program, python) {
        Ok(answer) => answer,
        Err(error) => {
            detected.python_says = Some(error.to_string());
            return;
        }
    };
    for line in answer.lines() {
        if let Some(words) = line.strip_prefix("says ") {
            detected.python_says = Some(words.to_owned());
        } else if let Some(path) = line.strip_prefix("maps ").map(PathBuf::from) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let known = detected.libraries.iter().any(|library| library.name == name);
            if !known {
                detected.libraries.push(Library { name, path: Some(path) });
            }
        }
    }
}

fn run_python(program: &Program, python: &Path) -> std::io::Result<String> {
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
    let (done, over) = std::sync::mpsc::channel();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn program(words: &[&str], folder: &Path) -> Program {
        Program {
            command: words.iter().map(OsString::from).collect(),
            directory: folder.to_owned(),
            environment: vec![("PATH".into(), format!("{}:/usr/bin:/bin", folder.display()).into())],
            inherited: None,
        }
    }

    fn script(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        script(folder.path(), "one", "#!/bin/sh -e\necho\n");
        script(folder.path(), "two", "#!/usr/bin/env -S A=b one -x\n");
        script(folder.path(), "round", "#!/usr/bin/env round\n");
        let detected = detect(&program(&["two"], folder.path())).unwrap();
        let names: Vec<_> = detected.steps.iter().map(|step| step.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["two", "one", "sh"]);
        assert!(detected.mpi.is_none() && !detected.is_python && !detected.libraries.is_empty());
        assert_eq!(detect(&program(&["./round"], folder.path())).unwrap().steps.len(), STEPS_MAX);
    }

    #[test]
    fn python_says_what_it_loads_or_why_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        // Whatever mpi4py is installed, this one is found first.
        std::fs::write(folder.path().join("mpi4py.py"), "raise ImportError('not today\\nreally')\n").unwrap();
        let mut program = program(&["python3", "-m", "x"], folder.path());
        program.environment.push(("PYTHONPATH".into(), folder.path().into()));
        match program.find(&program.command[0]) {
            Ok(_) => {}
            Err(_) => return,
        }
        let detected = detect(&program).unwrap();
        assert!(detected.is_python && detected.mpi.is_none());
        assert_eq!(detected.python_says.as_deref(), Some("not today"));
    }
}
