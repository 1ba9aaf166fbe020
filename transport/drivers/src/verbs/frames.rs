//! The memory of a rail's frames: slots of one size in one mapping, which the device reads and writes.

use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::Errno;

/// A page of the larger size: the size of huge pages on most systems.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes in front of each slot's frame: the header that comes before a received one ends there, and frames are aligned.
pub(super) const HEADROOM: usize = 64;

/// Memory in slots. A slot belongs to us, or to the device from its posting until its completion.
pub(super) struct Frames {
    start: NonNull<u8>,
    bytes: usize,
    slot_bytes: usize,
    slots: usize,
    is_huge: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; only `&mut self` reaches into it.
unsafe impl Send for Frames {}

impl Frames {
    /// Room for that many frames of up to `frame_bytes_max` bytes: on huge pages, which are an error where none are set aside, or on ordinary ones.
    pub(super) fn new(slots: usize, frame_bytes_max: usize, is_huge: bool) -> Result<Frames, Errno> {
        let slot_bytes = (HEADROOM + frame_bytes_max).next_multiple_of(64);
        let bytes = (slots * slot_bytes).next_multiple_of(HUGE_PAGE_BYTES);
        let length = NonZeroUsize::new(bytes).ok_or(Errno(libc::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let pages = if is_huge { MapFlags::MAP_HUGETLB } else { MapFlags::empty() };
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE | pages) };
        let start = start.map_err(|error| Errno(error as i32))?;
        if !is_huge {
            // SAFETY: the whole of our own mapping, still empty. A wish: without transparent huge pages there are small ones.
            let _ = unsafe { madvise(start, bytes, MmapAdvise::MADV_HUGEPAGE) };
        }
        let frames = Frames { start: start.cast(), bytes, slot_bytes, slots, is_huge };
        // A child that is forked gets none of it: pinned memory would be copied for it at the fork.
        // SAFETY: the whole of our own mapping; sets only the behaviour of a fork.
        let advised = unsafe { madvise(start, bytes, MmapAdvise::MADV_DONTFORK) };
        advised.map_err(|error| Errno(error as i32))?;
        Ok(frames)
    }

    /// All of it, for registration: of a huge page, devices take no part.
    pub(super) fn whole(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.bytes)
    }

    /// Whether it lies on pages of the larger size that were set aside.
    pub(super) fn is_huge(&self) -> bool {
        self.is_huge
    }

    pub(super) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.bytes
    }

    /// Where a slot's frame begins, for the device.
    pub(super) fn address(&self, slot: u32) -> u64 {
        (self.range().start + self.offset(slot)) as u64
    }

    fn offset(&self, slot: u32) -> usize {
        let at = slot as usize;
        assert!(at < self.slots, "no slot {slot}");
        at * self.slot_bytes + HEADROOM
    }

    /// The frame's place in a slot that is ours: never posted, or completed since.
    pub(super) fn frame(&mut self, slot: u32) -> &mut [u8] {
        let start = self.offset(slot);
        let bytes = self.slot_bytes - HEADROOM;
        // SAFETY: inside the mapping (`offset` has checked the slot); the caller's slot, so the device does not touch it, and `&mut self`
        // keeps other slices away.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(start).as_ptr(), bytes) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: slices of it are borrows of `self`; the device's registration ends before (`Queue` drops in that order).
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
