//! The state of this process, taken while all its threads but one stand still.
//!
//! [`Prepared::look`] is ordinary code: it finds state that cannot be saved, and makes room.
//! [`Prepared::capture`] stops the threads, writes down the kernel's facts, forks or writes the pages itself,
//! and lets the threads go on. Between stop and release nothing allocates, takes a lock, or traces: a stopped
//! thread may hold any lock.
//!
//! In the restored process `capture` returns a second time, with [`Outcome::Restored`].

mod attempt;
mod child;
mod copy;
mod describe;
mod facts;
mod image;
mod room;
mod save;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use attempt::{Captured, Held, HeldOutcome, Outcome, Pause, Prepared};
pub use image::Image;

use crate::content::Hashes;
use crate::files::PrepareError;
use crate::pages::{Cover, Pace, Target};
use crate::refuse::Refusal;
use crate::signals::TimerError;
use crate::stop::StopFault;
use crate::sys::Errno;
use save::{Fault, SaveFault};

/// How and when the pages are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mode {
    /// A forked child, while the program runs.
    Fork,
    /// The capturing thread, while the program runs, from a copy of those pages that were written since a
    /// [`crate::track::Tracker`] armed them. The image needs one of all pages below it, whose cut came after that.
    Scan,
    /// The capturing thread, while the program stands still.
    Sync,
}

/// The use of the pages' content in [`Mode::Fork`] and [`Mode::Sync`], besides writing it.
pub(crate) enum Content {
    Unknown,
    /// Its hashes are noted, for later images.
    Noted(Box<Hashes>),
    /// It is written only if its hash differs from that in the image below.
    Compared(Arc<Hashes>),
}

/// The settings of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How pages are written. [`Mode::Scan`] falls back to [`Mode::Fork`] if the written pages exceed the room; that
    /// falls back to [`Mode::Sync`] where the kernel refuses a fork.
    pub mode: Mode,
    /// Room for copies in [`Mode::Scan`], bytes. It is memory in use from the look until the image is written.
    pub copy_bytes: u64,
    /// How long a thread may take to stop, ns.
    pub stop_timeout_ns: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { mode: Mode::Fork, copy_bytes: 0, stop_timeout_ns: 2_000_000_000 }
    }
}

/// Where the pages go.
#[derive(Clone, Copy)]
pub struct Sink<'a> {
    /// A file. Written with `pwritev(2)`; with `O_DIRECT` as long as the file system takes that.
    pub file: BorrowedFd<'a>,
    /// Where the first page goes; a multiple of the page's length.
    pub offset: u64,
    /// Encrypts them. Then tags of [`COVER_TAG_BYTES`](crate::COVER_TAG_BYTES) each are written behind the last page,
    /// and the checksum covers the written bytes without these.
    pub cover: Option<&'a dyn Cover>,
}

/// Why there is no image. The threads go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaptureError {
    /// The process holds something that cannot be saved.
    Refused(Vec<Refusal>),
    /// Not all threads stopped.
    Stop {
        /// Why.
        fault: StopFault,
        /// Known facts about the thread that did not.
        about: String,
    },
    /// The process changed between look and stop in a way that leaves no room; the next attempt looks again.
    Grown {
        /// The data without room.
        what: &'static str,
    },
    /// The kernel refused a call that is needed.
    Call {
        /// Which one.
        call: &'static str,
        /// Why.
        errno: Errno,
    },
    /// Code is to run while threads stand still, but the program has another allocator than
    /// [`crate::live::HoldAllocator`].
    Allocator,
    /// Descriptors could not be looked at.
    Files(String),
    /// Timers cannot be saved.
    Timers(TimerError),
    /// The pages could not be gathered or written.
    Pages {
        /// The failed action.
        what: &'static str,
        /// Where in the process.
        address: u64,
        /// Why.
        errno: Errno,
    },
    /// The child that wrote the pages ended before it was done.
    ChildEnded {
        /// As `waitpid(2)` has it.
        status: i32,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Refused(refusals) => {
                f.write_str("this process cannot be saved: ")?;
                for (n, refusal) in refusals.iter().enumerate() {
                    write!(f, "{}{refusal}", if n == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            CaptureError::Stop { fault, about } if about.is_empty() => write!(f, "{fault}"),
            CaptureError::Stop { fault, about } => write!(f, "{fault}: {about}"),
            CaptureError::Grown { what } => {
                write!(f, "the process grew while it was inspected: {what}; try again")
            }
            CaptureError::Call { call, errno } => write!(f, "{call}: {errno}"),
            CaptureError::Allocator => f.write_str(
                "code is to run while all threads stand still, but memory comes from another allocator than \
                 process::live::HoldAllocator: make that one the #[global_allocator]",
            ),
            CaptureError::Files(fault) => f.write_str(fault),
            CaptureError::Timers(fault) => write!(f, "{fault}"),
            CaptureError::Pages { what, address, errno } => write!(f, "{what} at {address:#x}: {errno}"),
            CaptureError::ChildEnded { status } if libc::WIFSIGNALED(*status) => write!(
                f,
                "the process that wrote the pages was ended by signal {}; was there memory left?",
                libc::WTERMSIG(*status)
            ),
            CaptureError::ChildEnded { status } => {
                write!(f, "the process that wrote the pages ended with status {status:#x} before it was done")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

impl From<PrepareError> for CaptureError {
    fn from(error: PrepareError) -> CaptureError {
        match error {
            PrepareError::Refused(refusals) => {
                CaptureError::Refused(refusals.into_iter().map(Refusal::Descriptor).collect())
            }
            other => CaptureError::Files(other.to_string()),
        }
    }
}

impl From<SaveFault> for CaptureError {
    fn from(fault: SaveFault) -> CaptureError {
        if fault.errno == Errno(libc::ENOBUFS) {
            return CaptureError::Grown { what: "pages" };
        }
        let what = match fault.fault {
            Fault::Maps => "the list of regions cannot be read",
            Fault::Scan => "the page tables cannot be read",
            Fault::Missing => "a region did not reach the forked child (MADV_DONTFORK, just now?)",
            Fault::Unreadable => "a region cannot be made readable",
            Fault::Write => "pages cannot be written",
        };
        CaptureError::Pages { what, address: fault.address, errno: fault.errno }
    }
}

impl<'a> Sink<'a> {
    fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// For so many bytes of pages.
    fn target(&self, written: &'a AtomicU64, bytes: u64, pace: Option<&dyn Pace>) -> Target<'a> {
        let (offset, cover, tags_at) = (self.offset, self.cover, self.offset + bytes);
        let piece_bytes = pace.map(Pace::piece_bytes);
        Target { sink: self.number(), offset, written, cover, tags_at, piece_bytes }
    }
}

/// Where a restored process goes on.
fn resume_entry() -> u64 {
    crate::restore::entry()
}
