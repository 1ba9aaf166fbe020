//! Questions that are asked in a process of their own: foreign code is loaded to answer them, and may hang or crash.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::Subcommand;
use launcher::mpi::environment;
use launcher::spawn::pidfd::{PidFd, pid_of};
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::super::say;
use crate::error::CliError;
use crate::exit::Exit;

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Bytes of a library's own words that are shown.
const WORDS_MAX: usize = 300;

/// The value in the memory that one process exposes to another.
const SHOWN: u64 = 0x5349_4d4f_4e53_4159;

/// The questions.
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Which MPI library is it?
    Mpi {
        /// `libmpi`
        library: PathBuf,
    },
    /// Which libfabric is it, and does it offer the provider?
    Fabric {
        /// `libfabric`
        library: PathBuf,
    },
    /// Show memory: prints process id and address, and waits for the end of standard input
    Show {
        /// Let other processes of this user read it, as the shared-memory driver does
        #[arg(long)]
        permit: bool,
    },
    /// Read memory that another process shows
    Read {
        /// Its process id
        pid: i32,
        /// Its address
        address: usize,
    },
}

/// A libfabric that was loaded.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) version: (u32, u32),
    /// The file that was loaded.
    pub(super) path: PathBuf,
    /// Whether it offers the provider; else its error message.
    pub(super) offered: Result<(), String>,
}

/// Answers a question; the other end of the functions below.
pub(crate) fn answer(probe: &Probe) -> Result<Exit, CliError> {
    match probe {
        Probe::Mpi { library } => say!("{}", library_version(library)?)?,
        Probe::Fabric { library } => {
            let handle = open(library)?;
            say!("path {}", loaded("libfabric").unwrap_or_default())?;
            say!("version {}", fabric_version(handle)?)?;
            match offers(handle) {
                Ok(()) => say!("offered")?,
                Err(code) => say!("code {code}")?,
            }
        }
        Probe::Show { permit } => show(*permit)?,
        Probe::Read { pid, address } => {
            let mut found = [0; 8];
            let remote = [RemoteIoVec { base: *address, len: 8 }];
            let read = process_vm_readv(Pid::from_raw(*pid), &mut [io::IoSliceMut::new(&mut found)], &remote);
            read.map_err(io::Error::from)?;
            let same = u64::from_le_bytes(found) == SHOWN;
            return Ok(if same { Exit::Success } else { Exit::Unverified });
        }
    }
    Ok(Exit::Success)
}

/// The version of an MPI library, in its own words.
pub(super) fn mpi(library: &Path) -> io::Result<String> {
    let output = ask(&["mpi".into(), library.into()], Vec::new())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Version and file of a libfabric, and whether it offers the provider in the environment that `run` makes.
pub(super) fn fabric(
    library: &Path,
    mut variables: Vec<(OsString, OsString)>,
    provider: Option<&Path>,
) -> io::Result<Fabric> {
    if let Some(provider) = provider {
        variables
            .extend(environment::variables(provider).into_iter().map(|(name, value)| (name.into(), value)));
    }
    variables.push(("FI_LOG_LEVEL".into(), "warn".into()));
    let output = ask(&["fabric".into(), library.into()], variables)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let version = word("version ").and_then(|version| version.split_once('.'));
    let version = version.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let version = version.ok_or_else(|| io::Error::other("it does not say its version"))?;
    let offered = match word("code ") {
        None => Ok(()),
        Some(code) => Err(format!("fi_getinfo gives {code}. {}", words(&output.stderr))),
    };
    let path = PathBuf::from(word("path ").unwrap_or_default());
    Ok(Fabric { version, path, offered })
}

/// Whether a process may read the memory of a sibling.
pub(super) fn reads_sibling(permit: bool) -> io::Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["__probe", "show"]).args(permit.then_some("--permit"));
    let mut shown = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let stdin = shown.stdin.take();
    let read = first_line(&mut shown).map(|line| {
        let mut question = vec![OsString::from("read")];
        question.extend(line.split_whitespace().map(OsString::from));
        ask(&question, Vec::new()).is_ok()
    });
    end(&mut shown, stdin);
    read
}

fn first_line(child: &mut Child) -> io::Result<String> {
    let mut pipe = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut line = Vec::new();
    let mut byte = [0];
    while pipe.read(&mut byte)? == 1 && byte[0] != b'\n' && line.len() < 80 {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn end(child: &mut Child, stdin: Option<ChildStdin>) {
    drop(stdin);
    let _ = child.kill();
    let _ = child.wait();
}

/// Asks in a process of its own, which must answer with success.
fn ask(question: &[OsString], variables: Vec<(OsString, OsString)>) -> io::Result<Output> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("__probe").args(question).envs(variables);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let process = PidFd::open(pid_of(&child))?;
    // One word, which the thread says once.
    let (answered, answer) = crossbeam_channel::bounded(1);
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = answered.send(());
        output
    });
    let started = Instant::now();
    if answer.recv_timeout(ANSWER_MAX).is_err() {
        let _ = process.signal(Signal::SIGKILL);
    }
    let output = waiter.join().map_err(|_| io::ErrorKind::Other)??;
    if output.status.success() {
        return Ok(output);
    }
    let late = if started.elapsed() >= ANSWER_MAX { " (it did not answer in time)" } else { "" };
    Err(io::Error::other(format!("{}{late} {}", output.status, words(&output.stderr))))
}

/// The beginning of a library's message.
fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(WORDS_MAX).collect()
}

fn open(library: &Path) -> io::Result<*mut c_void> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    // SAFETY: loads a library and runs its constructors. They may do anything: this process exists for that.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: after a failure it is a string or null, and no other thread loads anything.
    let error = unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(io::Error::other(error))
}

fn symbol(handle: *mut c_void, name: &CStr) -> io::Result<*mut c_void> {
    // SAFETY: a handle of `dlopen` and a string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() {
        return Err(io::Error::other(format!("it has no {}", name.to_string_lossy())));
    }
    Ok(found)
}

/// The standard lets this be asked before MPI is initialised.
fn library_version(library: &Path) -> io::Result<String> {
    /// Larger than any library's MPI_MAX_LIBRARY_VERSION_STRING; MPICH's and Intel's is 8192.
    const BYTES: usize = 1 << 16;
    let found = symbol(open(library)?, c"MPI_Get_library_version")?;
    // SAFETY: the standard's signature of this function.
    let ask: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int = unsafe { std::mem::transmute(found) };
    let mut text = vec![0u8; BYTES];
    let mut length = 0;
    // SAFETY: a buffer that is large enough for every library, and a place for the length.
    let code = unsafe { ask(text.as_mut_ptr().cast(), &raw mut length) };
    if code != 0 {
        return Err(io::Error::other(format!("MPI_Get_library_version gives {code}")));
    }
    text.truncate(usize::try_from(length).unwrap_or(0).min(BYTES));
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default().trim_matches(['\0', ' ']);
    Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn fabric_version(handle: *mut c_void) -> io::Result<String> {
    let found = symbol(handle, c"fi_version")?;
    // SAFETY: `uint32_t fi_version(void)`, fi_version(3).
    let ask: unsafe extern "C" fn() -> u32 = unsafe { std::mem::transmute(found) };
    // SAFETY: takes nothing.
    let version = unsafe { ask() };
    Ok(format!("{}.{}", version >> 16, version & 0xffff))
}

/// The parts of `fi_info` and `fi_fabric_attr` that are read; equal in all versions since 1.17.
#[repr(C)]
struct Info {
    next: *const Info,
    others: [u64; 12],
    fabric: *const FabricAttributes,
}

#[repr(C)]
struct FabricAttributes {
    fabric: *const c_void,
    name: *const c_char,
    provider: *const c_char,
}

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *const Info) -> c_int;

/// Whether all that is offered is the provider; else the code of `fi_getinfo`.
fn offers(handle: *mut c_void) -> Result<(), i32> {
    const VERSION: u32 = 1 << 16 | 17;
    let found = symbol(handle, c"fi_getinfo").map_err(|_| libc::ENOSYS)?;
    // SAFETY: the signature of fi_getinfo(3); without hints that argument is null, so its type does not matter.
    let ask: GetInfo = unsafe { std::mem::transmute(found) };
    let mut info: *const Info = core::ptr::null();
    // SAFETY: no names, no hints, and a place for the answer.
    let code =
        unsafe { ask(VERSION, core::ptr::null(), core::ptr::null(), 0, core::ptr::null(), &raw mut info) };
    if code != 0 || info.is_null() {
        return Err(code);
    }
    while !info.is_null() {
        // SAFETY: an entry of the list that libfabric has just made, and nobody frees.
        let name = unsafe { (*info).fabric.as_ref() }.map_or(core::ptr::null(), |fabric| fabric.provider);
        // SAFETY: a string of that list, or null.
        if name.is_null() || unsafe { CStr::from_ptr(name) } != c"stillwire" {
            return Err(0);
        }
        // SAFETY: as above.
        info = unsafe { (*info).next };
    }
    Ok(())
}

/// The file of a library that is loaded here.
fn loaded(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths.find(|path| path.rsplit('/').next().is_some_and(|file| file.starts_with(name))).map(str::to_owned)
}

fn show(permit: bool) -> io::Result<()> {
    if permit {
        // SAFETY: takes numbers. A kernel without Yama answers EINVAL, and needs no permission.
        let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
    let shown = Box::new(SHOWN.to_le_bytes());
    let address = std::ptr::from_ref(&*shown).addr();
    writeln!(io::stdout(), "{} {address}", std::process::id())?;
    io::stdin().read_to_end(&mut Vec::new())?;
    // It lies there until here.
    drop(std::hint::black_box(shown));
    Ok(())
}
