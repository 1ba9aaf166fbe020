//! The rights that AF_XDP takes, asked for before anything is opened, so that the error can name them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::error::DriverError;

/// Whether a program's file gives capabilities to its user: the process that asks need not have them then.
#[must_use]
pub fn file_has_capabilities(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings end with a zero and live until the call is over; with no room for the value nothing is written.
    let bytes =
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), core::ptr::null_mut(), 0) };
    bytes > 0
}

/// Checks the rights that the kernel will ask for: loading and attaching a program, and a raw socket.
///
/// # Errors
/// `CapabilityMissing`.
pub fn check_capabilities() -> Result<(), DriverError> {
    const NET_ADMIN: u64 = 1 << 12;
    const NET_RAW: u64 = 1 << 13;
    const SYS_ADMIN: u64 = 1 << 21;
    const BPF: u64 = 1 << 39;
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(held) = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else {
        // Not to be known here: the calls themselves will report it.
        return Ok(());
    };
    let missing = match (held & NET_ADMIN != 0, held & NET_RAW != 0, held & (BPF | SYS_ADMIN) != 0) {
        (true, true, true) => return Ok(()),
        (true, true, false) => "CAP_BPF",
        (true, false, true) => "CAP_NET_RAW",
        (false, true, true) => "CAP_NET_ADMIN",
        (true, false, false) => "CAP_NET_RAW and CAP_BPF",
        (false, true, false) => "CAP_NET_ADMIN and CAP_BPF",
        (false, false, true) => "CAP_NET_ADMIN and CAP_NET_RAW",
        (false, false, false) => "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
    };
    Err(DriverError::CapabilityMissing { missing })
}
