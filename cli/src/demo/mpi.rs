//! The demo's MPI program: compiled where a compiler of MPICH's family is found, and rehearsed before it is shown.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use launcher::Program;
use launcher::mpi::replacement::MpiFrom;
use launcher::mpi::{Family, MpiChoice, provider, resolve};
use launcher::spawn::pidfd::{has_ended, pid_of};
use nix::sys::signal::{Signal, killpg};

use crate::commands::interrupt::is_stopped;
use crate::exit::Exit;

const SOURCE: &str = include_str!("sort.c");
const COMPILER: &str = "mpicc";

/// Longest time for the compiler, and for the rehearsal.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Longest time that a command may take to end when it is ended.
const END_MAX: Duration = Duration::from_secs(5);

/// Time limit of the rehearsal, which shows that the program runs and can be saved: the checkpoint comes after half of it.
const REHEARSAL: &str = "2s";

/// Ranks and keys of the rehearsal.
const REHEARSAL_RANKS: &str = "2";
const REHEARSAL_KEYS: &str = "4096";

/// An MPI program that runs here, and can be saved.
#[derive(Debug)]
pub(super) struct MpiProgram {
    pub(super) path: PathBuf,
    /// Its MPI library.
    pub(super) library: PathBuf,
    pub(super) provider: PathBuf,
}

/// Makes the program in this folder. The error is why not, in a line.
pub(super) fn make(folder: &Path) -> Result<MpiProgram, String> {
    let provider = provider::find(None).map_err(|error| error.to_string())?;
    // In the directory of the job, which is made now, and goes with it.
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut program = Program {
        command: vec![COMPILER.into()],
        directory: folder.to_owned(),
        environment: Vec::new(),
        inherited: None,
    };
    let compiler =
        program.find(OsStr::new(COMPILER)).map_err(|_| format!("there is no {COMPILER} in PATH"))?;
    let (source, path) = (folder.join("sort.c"), folder.join("sort"));
    std::fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut compile = Command::new(&compiler);
    compile.arg("-O2").arg("-o").arg(&path).arg(&source);
    let (code, said) = within(&mut compile)?;
    if code != Some(0) || !path.is_file() {
        return Err(format!("{} fails: {said}", compiler.display()));
    }
    program.command = vec![OsString::from(&path)];
    let resolved = resolve(&program, MpiChoice::Auto, &MpiFrom::Auto);
    let (detected, _) = resolved.map_err(|error| error.to_string())?;
    let mpi =
        detected.mpi.ok_or_else(|| format!("{} makes no program of an MPI library", compiler.display()))?;
    if mpi.family == Family::OpenMpi {
        return Err(format!("{} is Open MPI's, whose programs cannot be saved yet", compiler.display()));
    }
    rehearse(folder, &path)?;
    Ok(MpiProgram { path, library: mpi.library, provider })
}

/// Runs the program for a moment, with a checkpoint.
fn rehearse(folder: &Path, program: &Path) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = folder.join("rehearsal");
    let mut run = Command::new(own);
    run.args([
        "run",
        "--quiet",
        "-n",
        REHEARSAL_RANKS,
        "--time-limit",
        REHEARSAL,
        "--retries",
        "0",
        "--ckpt-dir",
    ]);
    run.arg(&directory).arg("--").arg(program).args([REHEARSAL_KEYS, "1"]).arg(folder.join("never"));
    let ended = within(&mut run);
    let _ = std::fs::remove_dir_all(&directory);
    match ended? {
        (Some(code), _) if code == i32::from(Exit::TimeLimit.code()) => Ok(()),
        (code, said) => {
            let code = code.map_or("a signal".to_owned(), |code| format!("exit code {code}"));
            Err(format!("its rehearsal ended with {code}: {said}"))
        }
    }
}

/// Ends a command with its process group: one that starts processes elsewhere gets a moment to end those.
fn end(child: &mut Child) {
    let group = pid_of(child);
    // It has ended, and its group with it, if these fail. It is collected after both: until then the number is its own.
    let _ = killpg(group, Signal::SIGTERM);
    let until = Instant::now() + END_MAX;
    while Instant::now() < until && !has_ended(group) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

/// Runs a command, and returns its exit code and the most useful line of its standard error: the first one with an error, else the last.
fn within(command: &mut Command) -> Result<(Option<i32>, String), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let until = Instant::now() + STEP_MAX;
    let said = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // Unreadable output is not reported.
            let _ = pipe.read_to_end(&mut bytes);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let line = text.lines().find(|line| line.contains("error"));
            line.or_else(|| text.lines().rfind(|line| !line.trim().is_empty())).unwrap_or_default().to_owned()
        })
    });
    let status = loop {
        match child.try_wait().map_err(|error| format!("{name}: {error}"))? {
            Some(status) => break status,
            None if is_stopped() => {
                end(&mut child);
                return Err(format!("{name} was stopped"));
            }
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            None => {
                end(&mut child);
                return Err(format!("{name} had not ended after {STEP_MAX:?}"));
            }
        }
    };
    let said = said.and_then(|thread| thread.join().ok()).unwrap_or_default();
    Ok((status.code(), said))
}
