//! The measured process's system calls besides its captures.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::error::BenchError;

pub(super) const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;
/// Huge pages of x86-64.
const HUGE_BYTES: usize = 2 << 20;

/// Private memory, all of whose pages are there.
pub(super) struct Memory {
    start: NonNull<u8>,
    pages: usize,
}

// SAFETY: the writer holds it; nothing else refers to it.
unsafe impl Send for Memory {}
// SAFETY: as above: all writes go to single words, atomically.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(bytes: usize, huge: bool) -> Result<Memory, BenchError> {
        let start = map(bytes + HUGE_BYTES)?;
        let skipped = start.as_ptr().align_offset(HUGE_BYTES);
        let advice = if huge { MmapAdvise::MADV_HUGEPAGE } else { MmapAdvise::MADV_NOHUGEPAGE };
        // SAFETY: `HUGE_BYTES` more than needed are mapped, and the advice changes no content.
        let start = unsafe {
            let start = start.add(skipped);
            madvise(start.cast(), bytes, advice).map_err(std::io::Error::from)?;
            start
        };
        let memory = Memory { start, pages: bytes / PAGE_BYTES };
        (0..memory.pages).for_each(|page| memory.write(page));
        Ok(memory)
    }

    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// Changes one word of a page.
    pub(super) fn write(&self, page: usize) {
        self.word(page).fetch_add(1 + page as u64, Ordering::Relaxed);
    }

    /// Reads a word of every page.
    pub(super) fn sum(&self) -> u64 {
        (0..self.pages).map(|page| self.word(page).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    fn word(&self, page: usize) -> &AtomicU64 {
        assert!(page < self.pages, "a page of this memory");
        // In another cache line of each page: the first lines of all would share a few sets of the caches, and how quick a sweep is would depend
        // on where the kernel happened to put the pages.
        let line = page % (PAGE_BYTES / LINE_BYTES) * LINE_BYTES;
        // SAFETY: within the mapping, which lives as long as the process; aligned; only touched as an atomic word.
        unsafe { self.start.add(page * PAGE_BYTES + line).cast::<AtomicU64>().as_ref() }
    }

    /// Writes to a share of the pages, spread over all of them; others for every `round`.
    pub(super) fn dirty(&self, fraction: f64, round: usize) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of pages"
        )]
        let written = ((self.pages as f64 * fraction) as usize).min(self.pages);
        // Odd, and the number of pages a power of two or a multiple of many: each page once.
        const STRIDE: usize = 0x9e37_79b1;
        for n in 0..written {
            self.write((n + round * 31).wrapping_mul(STRIDE) % self.pages);
        }
        written
    }

    /// Writes to every page of a part.
    pub(super) fn sweep(&self, pages: Range<usize>) {
        pages.for_each(|page| self.write(page));
    }
}

fn map(bytes: usize) -> Result<NonNull<u8>, BenchError> {
    let length = NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN);
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new memory, where the kernel likes.
    let start = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) };
    Ok(start.map_err(std::io::Error::from)?.cast())
}

/// Closes descriptors that the starter of the bench left open: a process that has pipes to others cannot be saved.
pub(super) fn close_inherited() {
    const FIRST: std::ffi::c_uint = 3;
    // SAFETY: called before this process opens anything of its own.
    unsafe { libc::close_range(FIRST, std::ffi::c_uint::MAX, 0) };
}

/// How long a bare fork of this process takes: the call, whose child ends at once.
pub(super) fn bare_fork() -> Result<Duration, BenchError> {
    let began = Instant::now();
    // SAFETY: a child without shared memory and without exit signal, as a capture makes it; it does nothing but end.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    let took = began.elapsed();
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let child = i32::try_from(child).ok().filter(|child| *child > 0);
    let child = child.ok_or_else(|| BenchError::Start(std::io::Error::last_os_error()))?;
    waitpid(Pid::from_raw(child), Some(WaitPidFlag::__WALL)).map_err(std::io::Error::from)?;
    Ok(took)
}
