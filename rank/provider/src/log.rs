//! Messages that no error number can carry: to libfabric's log where that is on (`FI_LOG_LEVEL=warn`), else to a person
//! on standard error; and to `tracing`.
//!
//! A provider is not linked against libfabric. The library that has loaded it is found among those of the process, by name.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::FiProvider;

/// `FI_LOG_WARN`, `FI_LOG_INFO` and `FI_LOG_CORE`.
const WARN: c_int = 0;
const INFO: c_int = 2;
const CORE: c_int = 0;

/// As libfabric knows us.
static PROVIDER: AtomicPtr<FiProvider> = AtomicPtr::new(core::ptr::null_mut());

/// The variables in which launchers pass a process its rank.
const RANK_VARIABLES: [&str; 3] = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"];

/// The rank. Read when the library is loaded: later the program may be changing its environment while a thread of ours would read it.
static RANK: OnceLock<Option<String>> = OnceLock::new();

pub(crate) fn known_as(provider: *mut FiProvider) {
    RANK.get_or_init(|| RANK_VARIABLES.iter().find_map(|name| std::env::var(name).ok()));
    PROVIDER.store(provider, Ordering::Release);
}

/// The rank of this process, as its launcher has named it.
pub(crate) fn rank() -> Option<&'static str> {
    RANK.get()?.as_deref()
}

type Enabled = unsafe extern "C" fn(*const FiProvider, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(*const FiProvider, c_int, c_int, *const c_char, c_int, *const c_char, ...);

/// The two calls of libfabric's log.
struct Library {
    enabled: Enabled,
    log: Log,
}

impl Library {
    fn find() -> Option<Library> {
        let path = mapped_libfabric()?;
        // SAFETY: `RTLD_NOLOAD` loads nothing: it finds a loaded library. The symbols are functions of these
        // types since libfabric 1.0.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return None;
            }
            let symbol = |name: &CStr| {
                let found = libc::dlsym(handle, name.as_ptr());
                (!found.is_null()).then_some(found)
            };
            let (enabled, log) = (symbol(c"fi_log_enabled")?, symbol(c"fi_log")?);
            Some(Library {
                enabled: core::mem::transmute::<*mut c_void, Enabled>(enabled),
                log: core::mem::transmute::<*mut c_void, Log>(log),
            })
        }
    }
}

/// Path of the libfabric that this process has loaded.
fn mapped_libfabric() -> Option<CString> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit('/').next()?.starts_with("libfabric").then_some(path)
    })?;
    CString::new(path).ok()
}

/// Writes to libfabric's log. False: it is off for this level, or there is none.
fn logged(level: c_int, what: &str) -> bool {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let provider = PROVIDER.load(Ordering::Acquire);
    let Some(Library { enabled, log }) = LIBRARY.get_or_init(Library::find) else { return false };
    let Ok(text) = CString::new(what) else { return false };
    if provider.is_null() {
        return false;
    }
    // SAFETY: the provider is never freed; the texts are C strings, and the format takes one of them.
    unsafe {
        if enabled(provider, level, CORE) == 0 {
            return false;
        }
        log(provider, level, CORE, c"stillwire".as_ptr(), 0, c"%s\n".as_ptr(), text.as_ptr());
    }
    true
}

/// The prefix of messages: rank and process.
fn named(what: core::fmt::Arguments<'_>) -> String {
    let process = std::process::id();
    match rank() {
        Some(rank) => format!("rank {rank}, process {process}: {what}"),
        None => format!("process {process}: {what}"),
    }
}

/// Prints a message to the user that no error number can carry. Without a reader it has no effect: the program has done
/// nothing wrong.
pub(crate) fn complain(what: core::fmt::Arguments<'_>) {
    let text = named(what);
    tracing::warn!("{text}");
    without_broken_pipe(|| {
        if !logged(WARN, &text) {
            let line = format!("stillwire: {text}\n");
            // SAFETY: so many bytes of a string. A failed write (no reader, full disk) is ignored.
            unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        }
    });
}

/// Logs why a call or an operation has failed whose error number the program gets.
pub(crate) fn note(what: core::fmt::Arguments<'_>) {
    let text = named(what);
    tracing::info!("{text}");
    without_broken_pipe(|| _ = logged(WARN, &text));
}

/// Logs an explanation of a set-up in which nothing has failed (`FI_LOG_LEVEL=info`).
pub(crate) fn inform(what: core::fmt::Arguments<'_>) {
    let text = named(what);
    tracing::debug!("{text}");
    without_broken_pipe(|| _ = logged(INFO, &text));
}

/// Runs `act` without a `SIGPIPE` for this thread, regardless of the program's use of that signal.
fn without_broken_pipe(act: impl FnOnce()) {
    // SAFETY: sets of signals are numbers; all are filled before they are used, and the thread's mask is put back.
    unsafe {
        let mut pipe: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        let mut waiting: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut waiting);
        let known = libc::sigismember(&raw const waiting, libc::SIGPIPE) == 1;
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before) != 0 {
            return;
        }
        act();
        if !known {
            // Ours, if there is one: it is for this thread alone.
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            while libc::sigtimedwait(&raw const pipe, core::ptr::null_mut(), &raw const at_once) < 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
    }
}
