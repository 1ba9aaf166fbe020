//! Restore: the process that calls [`restore`] becomes the one of an image.
//!
//! It should be a fresh start of the image's program, as early as a library can be (a constructor of one that
//! is loaded before all others). Then `/proc/self/exe` is right and no other thread is there. Ordinary code
//! compares the machine, opens the process's files, and works out every system call that is left (`plan`). A
//! loop of machine code, which needs no memory but its table, unmaps everything, and maps and fills the old
//! regions. It jumps to the function that the image names (`resume`), which makes the threads. From then on
//! the process is the old one.

mod failure_message;
mod gate;
mod ids;
mod mutex;
mod plan;
mod process;
mod resume;
mod rseq;
mod scaffold;
mod space;
mod staging;
mod table;
mod vdso;
mod waiter;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU32;

use crate::arch::{self, PAGE_BYTES};
use crate::files::{self, Given, Policy, RemakeError};
use crate::maps;
use crate::state::memory::{Backing, PageRun, Protection};
use crate::state::{Files, ProcessState};

use plan::{Calls, FromBase, Opened};
use scaffold::Scaffold;
use x86_64::ADDRESSES_END;

pub use gate::Mismatch;
pub use ids::Ids;
pub use resume::{before_threads, entry};
pub use staging::{Staging, restore_staged};
pub use vdso::VdsoError;

/// Exit code of a process whose restore failed after there was no way back.
pub const EXIT_FAILED: u8 = 86;

/// Bytes of the name of memory made anew; the kernel's bound is 249.
const SHARED_NAME_BYTES_MAX: usize = 200;

/// Bytes of the stack on which a thread comes to life.
const STACK_BYTES: u64 = 16 * 1024;

/// Address space kept for the loop, its table and the stacks; the table has some 200 bytes for each region.
const SCAFFOLD_BYTES_MAX: u64 = 8 << 30;

/// Why a process could not be restored; it is still the one that called.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The machine or a mapped file is another.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A library has started threads, whose memory would be taken away.
    #[error(
        "{others} other threads run already, but a restore must begin before them: a library of the program started them when it was loaded"
    )]
    Threads {
        /// How many.
        others: usize,
    },
    /// A descriptor cannot be made anew.
    #[error(transparent)]
    Files(#[from] RemakeError),
    /// The kernel's code cannot be brought together with the image's.
    #[error(transparent)]
    Vdso(#[from] VdsoError),
    /// No address range is free in both processes.
    #[error("the image's address space leaves no gap of {bytes} bytes that is free here, too")]
    NoRoom {
        /// The needed amount.
        bytes: u64,
    },
    /// The state contradicts itself.
    #[error("{what}; the image is damaged")]
    Inconsistent {
        /// The part that does not fit.
        what: String,
    },
    /// The process was started under another id than it is to keep.
    #[error(
        "the image is of process {image} and must keep its id, but this process is {here}; restore it with new ids"
    )]
    Id {
        /// This process's.
        here: u32,
        /// The image's.
        image: u32,
    },
    /// An id to keep is beyond this machine's highest.
    #[error(
        "the image has a thread with the id {highest}, which must be kept, but this machine's ids end at {limit}: sysctl -w kernel.pid_max={}, or restore it with new ids",
        highest.saturating_add(1)
    )]
    IdsEnd {
        /// The image's highest.
        highest: u32,
        /// One more than the highest of this machine.
        limit: u32,
    },
    /// A page that the process has did not arrive.
    #[error(
        "{pages} pages of the process from {address:#x} on did not arrive: send them, and begin again in a fresh process"
    )]
    Incomplete {
        /// Address of the first one.
        address: u64,
        /// How many.
        pages: u64,
    },
    /// The process is not to go on here.
    #[error("everything was ready, but the process is not to go on here: {reason}")]
    Withdrawn {
        /// The reason of the one who decides.
        reason: String,
    },
    /// Something that the kernel refused.
    #[error("cannot {what}: {error}")]
    Call {
        /// The action that failed.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
}

fn call(what: impl Into<String>) -> impl FnOnce(io::Error) -> RestoreError {
    let what = what.into();
    move |error| RestoreError::Call { what, error }
}

/// Where the pages of an image are.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// A file.
    pub file: BorrowedFd<'a>,
    /// Offset of the section of pages in it.
    pub offset: u64,
    /// The image below, if the capture left out pages that it has ([`crate::capture::Mode::Scan`]).
    pub base_pages: Option<BasePages<'a>>,
    /// The files are memory without other users: pages are freed after they are read.
    pub are_freed: bool,
}

/// An image of all pages, of which another one takes those that have not changed.
#[derive(Clone, Copy, Debug)]
pub struct BasePages<'a> {
    /// Its file.
    pub file: BorrowedFd<'a>,
    /// Offset of the section of pages in it.
    pub offset: u64,
    /// The pages in that section: its own [`crate::state::memory::Memory::runs`].
    pub runs: &'a [PageRun],
    /// The pages that are taken from it.
    pub unchanged: &'a [PageRun],
}

/// Becomes the process of an image. `handed_in` are descriptors by the name that the image knows them by. Comes back
/// only if it failed before anything was removed; later failures are reported on standard error, and the process ends
/// with [`EXIT_FAILED`].
pub fn restore(
    state: &ProcessState,
    files: &Files,
    pages: Pages<'_>,
    handed_in: &[(String, RawFd)],
    policy: Policy,
    ids: Ids,
) -> Result<Infallible, RestoreError> {
    let base_pages =
        pages.base_pages.map(|base_pages| plan::pieces_of_base(state, base_pages.runs, base_pages.unchanged));
    let base_pages = base_pages.transpose().map_err(|what| RestoreError::Inconsistent { what })?;
    let filled = Filled {
        pages: (pages.file.as_raw_fd(), pages.offset),
        base_pages: base_pages
            .zip(pages.base_pages)
            .map(|(pieces, base_pages)| (base_pages.file.as_raw_fd(), base_pages.offset, pieces)),
        are_freed: pages.are_freed,
        staged: None,
    };
    let target = Target { handed_in, policy, ids };
    become_process(state, files, &target, |_, _| Ok(filled), &mut || Ok(()))
}

/// The choices for the restored process.
struct Target<'a> {
    handed_in: &'a [(String, RawFd)],
    policy: Policy,
    ids: Ids,
}

/// Where the pages are.
struct Filled {
    /// A file, and where they begin in it.
    pages: (RawFd, u64),
    /// Those that are read from the image below, in the same way.
    base_pages: Option<(RawFd, u64, Vec<plan::Piece>)>,
    are_freed: bool,
    staged: Option<plan::Staged>,
}

/// `fill` is called when mapped files are open and shared memory is made (with the descriptor of each, if it
/// is needed), `ready` when nothing is left that can fail here.
fn become_process(
    state: &ProcessState,
    files: &Files,
    target: &Target<'_>,
    fill: impl FnOnce(&[Option<File>], &[OwnedFd]) -> Result<Filled, RestoreError>,
    ready: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Infallible, RestoreError> {
    gate::check_machine(&state.machine, &crate::machine())?;
    ids::check(state, target.ids)?;
    alone()?;
    block_signals();
    // Looked at before descriptors are made anew: where a file is missing, nothing has been touched yet.
    let mut mapped = Vec::new();
    for (index, file) in (0u32..).zip(&state.memory.files) {
        mapped.push(gate::open_mapped(file, is_written(state, index))?);
    }
    let mut shared = Vec::new();
    for object in &state.memory.shared {
        shared.push(shared_memory(&object.name, object.bytes)?);
    }
    let Filled { pages, base_pages, are_freed, staged } = fill(&mapped, &shared)?;
    let mut kept: Vec<RawFd> = vec![libc::STDERR_FILENO, pages.0];
    kept.extend(base_pages.iter().map(|base_pages| base_pages.0));
    kept.extend(mapped.iter().flatten().map(AsRawFd::as_raw_fd));
    let numbers: Vec<RawFd> = shared.iter().map(AsRawFd::as_raw_fd).collect();
    let given = Given { handed_in: target.handed_in, shared: &numbers, kept: &kept, policy: target.policy };
    let remade = files::remake(files, &given)?;
    // Their numbers are the restored process's now, or closed.
    let is_opened: Vec<bool> = mapped.iter().map(Option::is_some).collect();
    std::mem::forget((mapped, shared));
    let lost = || RestoreError::Inconsistent { what: "descriptors were lost".to_owned() };
    let [reports, pages_fd, mapped @ ..] = &remade.kept[..] else { return Err(lost()) };
    let (base_fd, mapped) = mapped.split_at_checked(usize::from(base_pages.is_some())).ok_or_else(lost)?;
    for warning in &remade.warnings {
        report(*reports, warning);
    }
    let mut numbers = mapped.iter().map(|fd| fd.cast_unsigned());
    let opened = Opened {
        files: is_opened.into_iter().map(|is_opened| if is_opened { numbers.next() } else { None }).collect(),
        shared: remade.shared.iter().map(|fd| fd.cast_unsigned()).collect(),
        pages: (pages_fd.cast_unsigned(), pages.1),
        base_pages: base_pages
            .zip(base_fd.first())
            .map(|((_, offset, pieces), fd)| FromBase { pages: (fd.cast_unsigned(), offset), pieces }),
        staged,
        populates: populates(),
        are_freed,
    };
    let directory = std::ffi::OsStr::from_bytes(&state.program.directory);
    std::env::set_current_dir(directory)
        .map_err(call(format!("enter the working directory {}", directory.display())))?;
    // SAFETY: touches no memory.
    unsafe { libc::umask(state.program.umask) };

    let scaffold = Scaffold::build(state, files, &opened, reports.cast_unsigned(), target.ids)?;
    rseq::unregister().map_err(call("unregister restartable sequences (rseq)"))?;
    ready().map_err(|reason| RestoreError::Withdrawn { reason })?;
    scaffold.run()
}

/// Whether a region writes to a mapped file.
fn is_written(state: &ProcessState, index: u32) -> bool {
    state.memory.regions.iter().any(|region| {
        matches!(region.backing, Backing::File { file, is_shared: true, .. } if file == index)
            && region.protection.contains(Protection::WRITE)
    })
}

/// Whether the kernel makes pages on request.
fn populates() -> bool {
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    let mut page = vec![0u8; 2 * PAGE_BYTES as usize];
    let start = (page.as_mut_ptr() as u64).next_multiple_of(PAGE_BYTES);
    // SAFETY: a page of this function's own, which does not change.
    unsafe { libc::madvise(start as *mut _, PAGE_BYTES as usize, MADV_POPULATE_WRITE) == 0 }
}

fn report(fd: RawFd, what: &str) {
    let text = format!("{}{what}\n", String::from_utf8_lossy(failure_message::OPENING));
    // SAFETY: the kernel reads the text. If it cannot be written, there is no reader.
    unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
}

/// Memory that several regions share.
fn shared_memory(name: &[u8], bytes: u64) -> Result<OwnedFd, RestoreError> {
    let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
    let base: Vec<u8> = base.iter().copied().filter(|byte| *byte != 0).take(SHARED_NAME_BYTES_MAX).collect();
    let label = CString::new(base).unwrap_or_default();
    let what = || format!("make {bytes} bytes of shared memory ({})", label.to_string_lossy());
    // SAFETY: the name ends with a zero.
    let fd = unsafe { libc::memfd_create(label.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(call(what())(io::Error::last_os_error()));
    }
    // SAFETY: it has just been made.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes).map_err(call(what()))?;
    Ok(file.into())
}

fn alone() -> Result<(), RestoreError> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(call("look at /proc/self/task"))?;
    match tasks.count().saturating_sub(1) {
        0 => Ok(()),
        others => Err(RestoreError::Threads { others }),
    }
}

fn block_signals() {
    let all = u64::MAX;
    // SAFETY: the kernel reads one word. The restored threads' own masks release the blocked signals.
    unsafe {
        arch::syscall(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, &raw const all as usize, 0, 8, 0, 0],
        )
    };
}

#[cfg(test)]
mod tests;
