//! The kernel's facilities to inspect a process, and their substitutes.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use crate::files;
use crate::pages::Scanner;
use crate::sys::Errno;
use crate::track::Tracker;

/// Facilities that not every kernel has. None is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facilities {
    /// Which pages were written since an image was taken. Else changes are found by their content.
    pub written_pages: Result<(), Errno>,
    /// Where pages of the process's own lie, as ranges (`PAGEMAP_SCAN`, Linux 6.7). Else each page's entry is read in
    /// `/proc/self/pagemap`, where the page of zeros looks like any other, and is saved.
    pub page_ranges: Result<(), Errno>,
    /// Finding the process at the other end of a pair of sockets. Without it, programs that hold one cannot be saved.
    pub socket_pairs: Result<(), Errno>,
    /// The state of timers of `timer_create(2)`. Without it, programs that have one cannot be saved.
    pub timers: Result<(), Errno>,
}

/// Tries each of them.
#[must_use]
pub fn look() -> Facilities {
    let of = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let page_ranges = Scanner::open()
        .and_then(|scanner| if scanner.can_track() { Ok(()) } else { Err(Errno(libc::ENOTTY)) });
    let socket_pairs = UnixStream::pair().map_err(of).and_then(|(one, _other)| {
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", one.as_raw_fd())).map_err(of)?.ino();
        files::reports_pair(inode)
    });
    Facilities {
        written_pages: Tracker::open().map(drop),
        page_ranges,
        socket_pairs,
        timers: std::fs::metadata("/proc/self/timers").map(drop).map_err(of),
    }
}
