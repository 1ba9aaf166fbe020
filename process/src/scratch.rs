//! Memory of our own, made before the stop, with room for the notes of the stop and of the forked child. It
//! is shared with the child, is never part of an image, and costs nothing where it is not touched.

use std::ops::Range;
use std::ptr::NonNull;

use crate::arch::PAGE_BYTES;
use crate::sys::{self, Answer};

/// An anonymous mapping that parent and child share.
pub(crate) struct Scratch {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory like any other; its holders decide which part each may touch.
unsafe impl Send for Scratch {}
// SAFETY: a shared reference gives its address; `slice`'s callers answer for their accesses.
unsafe impl Sync for Scratch {}

impl Scratch {
    pub(crate) fn new(bytes: u64) -> Answer<Scratch> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES) as usize;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping, where the kernel likes.
        let base = unsafe {
            sys::call(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0])
        }?;
        let base = NonNull::new(base as *mut u8).ok_or(sys::Errno(libc::ENOMEM))?;
        Ok(Scratch { base, bytes })
    }

    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.base.as_ptr() as u64;
        start..start + self.bytes as u64
    }

    /// Has the pages of a part made now. Where they cannot be, they are made when they are touched.
    pub(crate) fn populate(&self, part: Range<u64>) {
        const MADV_POPULATE_WRITE: usize = 23;
        let part_bytes = (part.end - part.start) as usize;
        assert!(part.end as usize <= self.bytes, "within the scratch");
        if part_bytes > 0 {
            let start = self.base.as_ptr() as usize + part.start as usize;
            // SAFETY: our own mapping; its content stays.
            let _ =
                unsafe { sys::call(libc::SYS_madvise, [start, part_bytes, MADV_POPULATE_WRITE, 0, 0, 0]) };
        }
    }

    /// The room of `count` values from byte `at` on. Zeros are a value of every type that is asked for.
    ///
    /// # Safety
    /// `T` may be all zero bytes; no other reference to these bytes is in use.
    pub(crate) unsafe fn slice<'a, T>(&self, at: u64, count: usize) -> &'a mut [T] {
        let end = at as usize + count * size_of::<T>();
        assert!(end <= self.bytes && at.is_multiple_of(align_of::<T>() as u64), "within the scratch");
        // SAFETY: in range and aligned; the caller answers for the rest, and for the lifetime.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at as usize).cast(), count) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        let _ = unsafe { sys::call(libc::SYS_munmap, [self.base.as_ptr() as usize, self.bytes, 0, 0, 0, 0]) };
    }
}
