//! A mapped part of a segment. All access to shared memory is here, and every access is checked against the mapping's length.

use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Errno;
use crate::sync::{AtomicU32, AtomicU64};

/// Bytes that are copied with one call. Longer copies (from 4 KiB on) are done with one string instruction by older C libraries, which on AMD Zen 3 and 4 is
/// ten times slower where the two addresses lie a few bytes apart modulo the page size (glibc bug 30994).
const COPY_BYTES: usize = 512;

/// Memory that other processes read and write too.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and nothing but atomics and copies of bytes is made of it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of a segment from `at`. The file must be sealed against shrinking: otherwise an access could raise SIGBUS.
    pub(super) fn new(file: BorrowedFd<'_>, at: usize, bytes: usize) -> Result<Mapping, Errno> {
        let length = NonZeroUsize::new(bytes).ok_or(Errno(libc::EINVAL))?;
        let offset = libc::off_t::try_from(at).map_err(|_| Errno(libc::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, offset) };
        Ok(Mapping { start: start.map_err(|error| Errno(error as i32))?.cast(), bytes })
    }

    /// Its addresses.
    pub(super) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.bytes
    }

    fn at(&self, at: usize, bytes: usize, align: usize) -> *mut u8 {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes) && at.is_multiple_of(align);
        assert!(fits, "{bytes} bytes at {at} of {} mapped", self.bytes);
        // SAFETY: `at` lies inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// The word at `at`.
    pub(super) fn u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned, as was checked; mapped for as long as `self`. Others access it too,
        // in other processes, hence the atomics; this process makes no plain reference to it.
        unsafe { AtomicU32::from_ptr(self.at(at, 4, 4).cast()) }
    }

    /// The word at `at`.
    pub(super) fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as for `u32`.
        unsafe { AtomicU64::from_ptr(self.at(at, 8, 8).cast()) }
    }

    /// Copies out of the mapping. Bytes that a peer writes meanwhile may come out mixed, but nothing else can go wrong:
    /// bytes have no invalid values, and no reference to the source exists.
    #[inline]
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at, to.len(), 1);
        if to.len() <= COPY_BYTES {
            // SAFETY: `from` is mapped for as many bytes, and `to` is our own memory, which never is part of a mapping of ours.
            unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
            return;
        }
        for (i, to) in to.chunks_mut(COPY_BYTES).enumerate() {
            // SAFETY: `from` is mapped for as many bytes as all chunks have, and `to` is our own memory, which never is part of a mapping
            // of ours.
            unsafe { core::ptr::copy_nonoverlapping(from.add(i * COPY_BYTES), to.as_mut_ptr(), to.len()) }
        }
    }

    /// Copies into the mapping.
    #[inline]
    pub(super) fn write(&self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len(), 1);
        if from.len() <= COPY_BYTES {
            // SAFETY: as for `read`, the other way round.
            unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
            return;
        }
        for (i, from) in from.chunks(COPY_BYTES).enumerate() {
            // SAFETY: as for `read`, the other way round.
            unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to.add(i * COPY_BYTES), from.len()) }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrowed from the mapping outlives it. It can only fail for arguments that are not a mapping.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
