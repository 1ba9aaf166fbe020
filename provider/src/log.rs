//! What no error number can say: to libfabric's log where that is on (`FI_LOG_LEVEL=warn`), else to a person on standard error; and to `tracing`.
//!
//! A provider is not linked against libfabric. The library that has loaded it is found among those of the process, by name.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::FiProvider;

/// `FI_LOG_WARN` and `FI_LOG_CORE`.
const WARN: c_int = 0;
const CORE: c_int = 0;

/// As libfabric knows us.
static PROVIDER: AtomicPtr<FiProvider> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn known_as(provider: *mut FiProvider) {
    PROVIDER.store(provider, Ordering::Release);
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
        // SAFETY: `RTLD_NOLOAD` loads nothing: it names what is there. The symbols are functions of these types since libfabric 1.0.
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

/// Writes to libfabric's log. False: it is off, or there is none.
fn logged(what: &str) -> bool {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let provider = PROVIDER.load(Ordering::Acquire);
    let Some(Library { enabled, log }) = LIBRARY.get_or_init(Library::find) else { return false };
    let Ok(text) = CString::new(what) else { return false };
    if provider.is_null() {
        return false;
    }
    // SAFETY: the provider is never freed; the texts are C strings, and the format takes one of them.
    unsafe {
        if enabled(provider, WARN, CORE) == 0 {
            return false;
        }
        log(provider, WARN, CORE, c"stillwire".as_ptr(), 0, c"%s\n".as_ptr(), text.as_ptr());
    }
    true
}

/// Who speaks: rank and process.
fn named(what: core::fmt::Arguments<'_>) -> String {
    let rank = std::env::var("PMI_RANK").or_else(|_| std::env::var("PMIX_RANK"));
    let process = std::process::id();
    rank.map_or_else(
        |_| format!("process {process}: {what}"),
        |rank| format!("rank {rank}, process {process}: {what}"),
    )
}

/// Says to a person what no error number can.
pub(crate) fn complain(what: core::fmt::Arguments<'_>) {
    let text = named(what);
    tracing::warn!("{text}");
    if !logged(&text) {
        eprintln!("stillwire: {text}");
    }
}

/// Says why a call or an operation has failed whose error number the program gets: for who has the log on.
pub(crate) fn note(what: core::fmt::Arguments<'_>) {
    let text = named(what);
    tracing::info!("{text}");
    logged(&text);
}
