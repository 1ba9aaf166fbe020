//! A library that the tests put into programs with `LD_PRELOAD`: a thread that saves the program on command.
//!
//! `STILLWIRE_PRELOAD_CONTROL` is the number of a connected Unix socket. A line `capture PATH MODE` on it
//! makes an image; the answer is a line `captured ...`, or `failed: ` and the reason. The mode `scan` needs
//! an image below: the last one of all pages that was made after a line `arm`; so do `fork-compared` and
//! `sync-compared`: the last one in the mode `fork-noted` or `sync-noted`. In the mode `fork-with-late-child` a child begins just before the stop. With the path of an image in
//! `STILLWIRE_PRELOAD_RESTORE` the program becomes the one that was saved, which then answers `restored`. With the path of a
//! socket in `STILLWIRE_PRELOAD_RECEIVE` it becomes the one that is sent there by a line `move`.

#[path = "../tests/it/support/container.rs"]
mod container;
#[path = "preload/live.rs"]
mod live;

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use process::capture::{Mode, Options, Outcome, Prepared, Sink};
use process::content::Hashes;
use process::declared::Declared;
use process::files::Policy;
use process::restore::{BasePages, Ids, Pages};
use process::state::memory::PageRun;
use process::track::{Scope, Tracker};

const CONTROL: &str = "STILLWIRE_PRELOAD_CONTROL";
const RESTORE: &str = "STILLWIRE_PRELOAD_RESTORE";
const RECEIVE: &str = "STILLWIRE_PRELOAD_RECEIVE";
const IDS: &str = "STILLWIRE_PRELOAD_IDS";
/// Exit code where an image does not fit.
const REFUSED: c_int = 3;

#[global_allocator]
static ALLOCATOR: process::live::HoldAllocator = process::live::HoldAllocator;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const i8, *const *const i8) = construct;

extern "C" fn construct(_count: c_int, _arguments: *const *const i8, _environment: *const *const i8) {
    let control = std::env::var(CONTROL).ok().and_then(|number| number.parse::<RawFd>().ok());
    let Some(control) = control else { return };
    if let Some(path) = std::env::var_os(RESTORE) {
        let error = restore(path.as_ref(), control);
        eprintln!("refused: {error}");
        // SAFETY: ends the process before the program has begun.
        unsafe { libc::_exit(REFUSED) };
    }
    if let Ok(path) = std::env::var(RECEIVE) {
        let error = live::receive(&path, control, ids());
        eprintln!("refused: {error}");
        // SAFETY: ends the process before the program has begun.
        unsafe { libc::_exit(REFUSED) };
    }
    // Programs that this one starts are not ours.
    // SAFETY: before `main`, with one thread.
    unsafe { std::env::remove_var(CONTROL) };
    // The agent runs no handler of the program's: threads inherit the blocked signals.
    let (mut all, mut before) = (set(), set());
    // SAFETY: masks of this frame.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let agent = std::thread::Builder::new().name("agent".to_owned()).spawn(move || agent(control));
    agent.expect("a thread can be started");
    // SAFETY: the mask of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
}

fn set() -> libc::sigset_t {
    // SAFETY: a set of signals may be all zeros.
    unsafe { std::mem::zeroed() }
}

fn agent(control: RawFd) {
    // SAFETY: the starter of the program gave the number to us.
    let stream = unsafe { UnixStream::from_raw_fd(control) };
    let mut reader = BufReader::new(stream.try_clone().expect("a second descriptor"));
    let mut tracking = Tracking::default();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut words = line.split_whitespace();
        if let Some("move") = line.split_whitespace().next() {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let answer = live::send(&words, &mut stream.try_clone().expect("a second descriptor"));
            let answer = answer.unwrap_or_else(|error| format!("failed: {error}"));
            if writeln!(&stream, "{answer}").is_err() {
                return;
            }
            continue;
        }
        let answer = match (words.next(), words.next(), words.next()) {
            (Some("capture"), Some(path), Some(mode)) => {
                capture(path, mode, control, &mut tracking, &mut container::Sum::new())
            }
            (Some("arm"), None, None) => tracking.arm(control),
            (Some("capture-slowly"), Some(path), None) => {
                capture(path, "sync", control, &mut tracking, &mut Slow(container::Sum::new()))
            }
            (Some("allocate-in-stop"), None, None) => {
                capture("/dev/null", "sync", control, &mut tracking, &mut Allocating)
            }
            (Some("processes"), Some(processes), None) => limit(processes),
            _ => Err(io::Error::other(format!("not a command: {line:?}"))),
        };
        let answer = answer.unwrap_or_else(|error| format!("failed: {error}"));
        if writeln!(&stream, "{answer}").is_err() {
            return;
        }
    }
}

/// How many processes its user may have, as far as this program makes any.
fn limit(processes: &str) -> io::Result<String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit of this frame.
    unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit) };
    limit.rlim_cur = processes.parse().map_err(io::Error::other)?;
    // SAFETY: a limit of this frame.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) };
    if set == 0 { Ok("limited".to_owned()) } else { Err(io::Error::last_os_error()) }
}

/// Descriptors that the starter of a program hands in.
fn handed_in(control: RawFd) -> Vec<(String, RawFd)> {
    let named = |(name, fd): (&str, RawFd)| (name.to_owned(), fd);
    [("stdin", 0), ("stdout", 1), ("stderr", 2), ("control", control)].map(named).to_vec()
}

fn declared(control: RawFd, image: [&File; 2]) -> Declared {
    let remade = image.map(|file| ("image".to_owned(), file.as_raw_fd())).to_vec();
    Declared { handed_in: handed_in(control), remade, ..Declared::new() }
}

/// `STILLWIRE_PRELOAD_IDS=kept`: this process and its threads get the ids of the image.
fn ids() -> Ids {
    if std::env::var_os(IDS).is_some_and(|value| value == "kept") { Ids::Kept } else { Ids::New }
}

/// Comes back only if it fails.
fn restore(path: &Path, control: RawFd) -> io::Error {
    let restore = || {
        let file = File::open(path)?;
        let container::Read { state, files, base_pages, .. } = container::read(&file)?;
        let (base_file, base_runs, unchanged) = match base_pages {
            Some((path, unchanged)) => {
                let file = File::open(path)?;
                let runs = container::read(&file)?.state.memory.runs;
                (Some(file), runs, unchanged)
            }
            None => (None, Vec::new(), Vec::new()),
        };
        let offset = container::PAGES_OFFSET;
        let base_pages = base_file.as_ref().map(|file| BasePages {
            file: file.as_fd(),
            offset,
            runs: &base_runs,
            unchanged: &unchanged,
        });
        let pages = Pages { file: file.as_fd(), offset, base_pages, are_freed: false };
        process::restore::restore(&state, &files, pages, &handed_in(control), Policy::default(), ids())
            .map_err(io::Error::other)
    };
    let Err(error) = restore();
    error
}

/// Whether no thread of the program runs: then its allocator must not be entered.
#[unsafe(no_mangle)]
pub extern "C" fn stillwire_threads_are_stopped() -> c_int {
    c_int::from(process::threads_are_stopped())
}

/// Keeps all threads waiting until the program has a signal.
struct Slow(container::Sum);

impl process::Sum for Slow {
    fn update(&mut self, bytes: &[u8]) {
        const PATIENCE_MS: u32 = 20_000;
        let mut waiting = set();
        for _ in 0..PATIENCE_MS {
            // SAFETY: a set of this frame, and a microsecond's sleep.
            unsafe {
                libc::sigpending(&raw mut waiting);
                if libc::sigismember(&raw const waiting, libc::SIGUSR1) == 1 {
                    break;
                }
                libc::usleep(1000);
            }
        }
        self.0.update(bytes);
    }

    fn value(&self) -> u64 {
        self.0.value()
    }
}

/// A forbidden checksum: it allocates memory.
struct Allocating;

impl process::Sum for Allocating {
    fn update(&mut self, bytes: &[u8]) {
        std::hint::black_box(bytes.to_vec());
    }

    fn value(&self) -> u64 {
        0
    }
}

/// Which pages were written since the last image of all pages.
#[derive(Default)]
struct Tracking {
    tracker: Option<Tracker>,
    /// The last image of all pages that was made after arming.
    base_pages: Option<(String, Vec<PageRun>)>,
    /// The last image of all pages whose content was noted.
    noted: Option<(String, Arc<Hashes>)>,
}

impl Tracking {
    fn arm(&mut self, control: RawFd) -> io::Result<String> {
        let failed = |errno: process::Errno| io::Error::from_raw_os_error(errno.0);
        if self.tracker.is_none() {
            self.tracker = Some(Tracker::open().map_err(failed)?);
        }
        let mut declared = Declared { handed_in: handed_in(control), ..Declared::new() };
        let tracker = self.tracker.as_mut().expect("there is one now");
        tracker.arm(&declared, Scope::Everything).map_err(failed)?;
        tracker.declare(&mut declared);
        Ok(format!("armed {} ranges", declared.tracked_memory.len()))
    }
}

fn capture(
    path: &str,
    mode: &str,
    control: RawFd,
    tracking: &mut Tracking,
    sum: &mut dyn process::Sum,
) -> io::Result<String> {
    const ROOM_BESIDES: u64 = 4 << 20;
    let (file, pages) = create(path)?;
    let mut declared = declared(control, [&file, &pages]);
    let mut options = Options::default();
    if let Some(tracker) = &tracking.tracker {
        tracker.declare(&mut declared);
    }
    if let Some((_, hashes)) = &tracking.noted {
        hashes.declare(&mut declared);
    }
    (options.mode, options.copy_bytes) = match (mode, &tracking.tracker, &tracking.base_pages) {
        ("fork" | "fork-noted" | "fork-compared" | "fork-with-late-child", _, _) => (Mode::Fork, 0),
        ("sync" | "sync-noted" | "sync-compared", _, _) => (Mode::Sync, 0),
        ("scan", Some(tracker), Some(_)) => {
            let extent = tracker.extent(&declared).map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
            (Mode::Scan, extent.written_bytes * 2 + ROOM_BESIDES)
        }
        ("scan-without-room", Some(_), Some(_)) => (Mode::Scan, 4096),
        (other, _, _) => return Err(io::Error::other(format!("no mode {other:?} now"))),
    };
    let mut prepared = Prepared::look(&declared, options).map_err(io::Error::other)?;
    if mode.ends_with("-noted") {
        prepared.note_content().map_err(io::Error::other)?;
    } else if mode.ends_with("-compared") {
        let (_, hashes) = tracking.noted.as_ref().ok_or_else(|| io::Error::other("nothing was noted"))?;
        prepared.compare_content(Arc::clone(hashes));
    }
    let sink = Sink { file: pages.as_fd(), offset: container::PAGES_OFFSET, cover: None };
    // One that was not there yet when the process was looked at.
    let late =
        (mode == "fork-with-late-child").then(|| std::process::Command::new("sleep").arg("600").spawn());
    let outcome = prepared.capture(sink, sum);
    if let Some(mut child) = late.transpose()? {
        child.kill()?;
        child.wait()?;
    }
    let mut captured = match outcome.map_err(io::Error::other)? {
        Outcome::Restored => {
            // Open in the process that was saved, and not in this one.
            std::mem::forget((file, pages));
            if let Some(tracker) = tracking.tracker.take() {
                tracker.forget();
            }
            if let Some((_, hashes)) = tracking.noted.take() {
                hashes.forget();
            }
            tracking.base_pages = None;
            return Ok("restored".to_owned());
        }
        Outcome::Captured(captured) => captured,
    };
    let (mode, pause, is_delta) = (captured.mode(), captured.pause(), captured.is_delta());
    let refused = captured.fork_refused().map_or(String::new(), |errno| format!(" (no fork: {errno})"));
    while let Some(rest) = captured.write_copies(sink, sum).map_err(io::Error::other)? {
        std::thread::sleep(rest);
    }
    let image = captured.finish().map_err(io::Error::other)?;
    let base_pages = match (mode, &tracking.base_pages, &tracking.noted) {
        (Mode::Scan, Some((path, _)), _) => Some((path.clone(), image.unchanged.clone())),
        (Mode::Fork | Mode::Sync, _, Some((path, _))) if is_delta => {
            Some((path.clone(), image.unchanged.clone()))
        }
        _ => None,
    };
    container::finish(&file, image.pages_bytes, image.pages_sum, &image.state, &image.files, &base_pages)?;
    if let Some(hashes) = image.hashes {
        tracking.noted = Some((path.to_owned(), hashes));
    }
    if !is_delta && tracking.tracker.is_some() {
        tracking.base_pages = Some((path.to_owned(), image.state.memory.runs));
    }
    Ok(format!(
        "captured {mode:?} stop_ns={} state_ns={} memory_ns={} total_ns={} threads={} rewound={} bytes={}{refused}",
        pause.stop_ns,
        pause.state_ns,
        pause.memory_ns,
        pause.total_ns,
        pause.threads,
        pause.rewound,
        image.pages_bytes
    ))
}

/// The file, and a second descriptor for the pages: past the page cache where the file system can do that. State and
/// descriptors are no whole pages.
fn create(path: &str) -> io::Result<(File, File)> {
    let plain = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path);
    let pages = direct.or_else(|_| plain.try_clone())?;
    Ok((plain, pages))
}
