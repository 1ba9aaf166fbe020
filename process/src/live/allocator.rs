//! Memory for ordinary code that runs while all other threads stand still.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::sys::{self, Errno};

/// Address space of the arena, bytes; the first size that the process may have. Only its used part costs memory.
const ARENA_BYTES: [usize; 4] = [4 << 30, 1 << 30, 256 << 20, 64 << 20];

/// Made before the first hold, so that little waits for the kernel to make pages.
const POPULATED_BYTES: usize = 2 << 20;

/// No allocation is less than this far from the arena's start where there is none.
const NOWHERE: usize = 1 << 63;

/// The allocator of a program or library that is moved while it runs ([`crate::capture::Prepared::capture_held`]), its
/// `#[global_allocator]`.
///
/// It is the system's, except in a hold, while all other threads stand still: then memory comes from an arena that was
/// mapped before, and stays valid after the hold. Memory from the system's allocator that is freed in a hold is leaked.
/// In a restored process, the arena's memory is there only if some of it was in use when threads were stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldAllocator;

/// Bytes handed out one after the other, and never again while any of them are in use.
struct Arena {
    /// Its first address, or [`NOWHERE`].
    base: AtomicUsize,
    bytes: AtomicUsize,
    /// From `base` on.
    used: AtomicUsize,
    /// Allocations that have not been freed.
    live: AtomicU64,
    /// The same when the last hold began.
    live_before: AtomicU64,
}

static ARENA: Arena = Arena::new();

/// Whether memory comes from the arena.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Whether this allocator is the one of the program: something was allocated through it.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

impl Arena {
    const fn new() -> Arena {
        Arena {
            base: AtomicUsize::new(NOWHERE),
            bytes: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            live: AtomicU64::new(0),
            live_before: AtomicU64::new(0),
        }
    }

    fn contains(&self, pointer: *mut u8) -> bool {
        // Cheap for all memory that is not of the arena: one load.
        let offset = (pointer as usize).wrapping_sub(self.base.load(Ordering::Relaxed));
        offset < ARENA_BYTES[0] && offset < self.bytes.load(Ordering::Relaxed)
    }

    /// Null: it is full.
    fn take(&self, layout: Layout) -> *mut u8 {
        let (base, bytes) = (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let Some(start) =
                base.checked_add(used).and_then(|at| at.checked_next_multiple_of(layout.align()))
            else {
                return std::ptr::null_mut();
            };
            let Some(end) = (start - base).checked_add(layout.size()).filter(|end| *end <= bytes) else {
                return std::ptr::null_mut();
            };
            match self.used.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.live.fetch_add(1, Ordering::Relaxed);
                    return start as *mut u8;
                }
                Err(other) => used = other,
            }
        }
    }

    /// Makes the last allocation longer or shorter, in place; `false`: it is not the last one, or there is no room.
    fn resize(&self, pointer: *mut u8, bytes: usize, new_bytes: usize) -> bool {
        let start = (pointer as usize).wrapping_sub(self.base.load(Ordering::Relaxed));
        let Some(end) = start.checked_add(new_bytes) else { return false };
        end <= self.bytes.load(Ordering::Relaxed)
            && self.used.compare_exchange(start + bytes, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Maps it, where it is not mapped, with the first of these sizes that the process may have.
    fn make(&self, sizes: &[usize]) -> Result<(), Errno> {
        if self.base.load(Ordering::Relaxed) != NOWHERE {
            return Ok(());
        }
        let (protection, flags) = (
            (libc::PROT_READ | libc::PROT_WRITE) as usize,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize,
        );
        let mut refused = Errno(libc::ENOMEM);
        for &bytes in sizes {
            // SAFETY: new memory, where the kernel likes.
            match unsafe { sys::call(libc::SYS_mmap, [0, bytes, protection, flags, usize::MAX, 0]) } {
                Ok(base) => {
                    const MADV_POPULATE_WRITE: usize = 23;
                    let populate = [base, POPULATED_BYTES.min(bytes), MADV_POPULATE_WRITE, 0, 0, 0];
                    // SAFETY: makes pages of this new memory, if the kernel can; else they are made when they are
                    // touched.
                    let _ = unsafe { sys::call(libc::SYS_madvise, populate) };
                    self.used.store(0, Ordering::Relaxed);
                    self.bytes.store(bytes, Ordering::Relaxed);
                    self.base.store(base, Ordering::Relaxed);
                    return Ok(());
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Its addresses, if it is mapped and none of it is in use.
    fn unused(&self) -> Option<Range<u64>> {
        let base = self.base.load(Ordering::Relaxed);
        (base != NOWHERE && self.live.load(Ordering::Relaxed) == 0)
            .then(|| base as u64..(base + self.bytes.load(Ordering::Relaxed)) as u64)
    }

    /// In a restored process, where it was left out if none of it was in use.
    fn restored(&self, was_held: bool) {
        let live = if was_held { &self.live_before } else { &self.live }.load(Ordering::Relaxed);
        self.live.store(live, Ordering::Relaxed);
        if live == 0 {
            self.base.store(NOWHERE, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
            self.used.store(0, Ordering::Relaxed);
        }
    }
}

/// Why no code can run while threads stand still.
pub(crate) enum NoArena {
    /// The program has another allocator.
    NotInstalled,
    /// There is no memory for the arena.
    Call(Errno),
}

/// Before a hold.
pub(crate) fn make_arena() -> Result<(), NoArena> {
    // Through the program's allocator, whichever it is.
    drop(std::hint::black_box(Box::new(1u8)));
    if !IS_INSTALLED.load(Ordering::Relaxed) {
        return Err(NoArena::NotInstalled);
    }
    ARENA.make(&ARENA_BYTES).map_err(NoArena::Call)
}

/// Addresses that need no place in an image.
pub(crate) fn ignored_arena() -> Option<Range<u64>> {
    ARENA.unused()
}

/// In a restored process, before its threads go on.
pub(crate) fn restored() {
    ARENA.restored(IS_HELD.swap(false, Ordering::Relaxed));
}

/// Memory comes from the arena until this is dropped.
pub(crate) struct Hold(());

impl Hold {
    /// All other threads must stand still, and the arena be made.
    pub(crate) fn begin() -> Hold {
        let live = ARENA.live.load(Ordering::Relaxed);
        ARENA.live_before.store(live, Ordering::Relaxed);
        if live == 0 {
            ARENA.used.store(0, Ordering::Relaxed);
        }
        IS_HELD.store(true, Ordering::Relaxed);
        Hold(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        IS_HELD.store(false, Ordering::Relaxed);
    }
}

// SAFETY: memory is the system's, or a part of the arena that is given to no other allocation while any of the arena's
// are in use: `take` moves the mark past it, and only `Hold::begin` moves it back, if none are. Which of the two
// a pointer is of is known by its address: the arena is never unmapped while it has a base.
unsafe impl GlobalAlloc for HoldAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_HELD.load(Ordering::Relaxed) {
            return ARENA.take(layout);
        }
        note_installed();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if ARENA.contains(pointer) {
            ARENA.give_back();
        } else if !IS_HELD.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise; it is none of the arena's, so it is the system's.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if IS_HELD.load(Ordering::Relaxed) {
            let pointer = ARENA.take(layout);
            if !pointer.is_null() {
                // SAFETY: so many bytes were just taken; a hold before may have used them.
                unsafe { pointer.write_bytes(0, layout.size()) };
            }
            return pointer;
        }
        note_installed();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let is_held = IS_HELD.load(Ordering::Relaxed);
        let is_of_arena = ARENA.contains(pointer);
        if !is_held && !is_of_arena {
            // SAFETY: the caller's promise; it is the system's.
            return unsafe { System.realloc(pointer, layout, bytes) };
        }
        if is_held && is_of_arena && ARENA.resize(pointer, layout.size(), bytes) {
            return pointer;
        }
        // SAFETY: the caller has seen to it that this is a layout; the old and the new memory do not overlap, and
        // have at least so many bytes; the old one is freed as it was allocated.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(bytes));
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

#[inline]
fn note_installed() {
    if !IS_INSTALLED.load(Ordering::Relaxed) {
        IS_INSTALLED.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize, align: usize) -> Layout {
        Layout::from_size_align(bytes, align).expect("a layout")
    }

    /// Small: other tests look at all memory of this process.
    fn arena() -> Arena {
        let arena = Arena::new();
        arena.make(&[64 << 10]).map_err(|errno| errno.to_string()).expect("memory");
        arena
    }

    #[test]
    fn allocations_lie_apart_and_are_aligned() {
        let arena = arena();
        let mut end = arena.base.load(Ordering::Relaxed);
        for (bytes, align) in [(1, 1), (8, 8), (3, 2), (100, 64), (4096, 4096), (0, 16)] {
            let start = arena.take(layout(bytes, align)) as usize;
            assert!(start >= end && start.is_multiple_of(align), "{start:#x} after {end:#x}, {align}");
            end = start + bytes;
        }
        assert!(arena.contains(end as *mut u8));
        assert!(arena.take(layout(isize::MAX as usize, 1)).is_null());
        assert!(arena.take(layout(arena.bytes.load(Ordering::Relaxed), 1)).is_null(), "it is not empty");
    }

    #[test]
    fn only_the_last_allocation_grows_in_place() {
        let arena = arena();
        let first = arena.take(layout(10, 1));
        let second = arena.take(layout(10, 1));
        assert!(!arena.resize(first, 10, 20));
        assert!(arena.resize(second, 10, 2000) && arena.resize(second, 2000, 5));
        assert_eq!(arena.take(layout(1, 1)), second.wrapping_add(5));
        assert!(!arena.resize(second.wrapping_add(5), 1, usize::MAX));
    }

    #[test]
    fn an_arena_without_allocations_needs_no_place_in_an_image() {
        let arena = arena();
        let range = arena.unused().expect("mapped and unused");
        assert_eq!(range.start, arena.base.load(Ordering::Relaxed) as u64);
        let memory = arena.take(layout(1, 1));
        assert_eq!(arena.unused(), None);
        arena.restored(false);
        assert!(arena.contains(memory), "its memory was saved");
        arena.give_back();
        assert_eq!(arena.unused(), Some(range));
        arena.restored(false);
        assert!(!arena.contains(memory) && arena.unused().is_none());
        assert!(!arena.contains(std::ptr::null_mut()) && !arena.contains(0x40_0000 as *mut u8));
    }

    #[test]
    fn a_process_restored_from_within_a_hold_has_what_was_there_before() {
        let arena = arena();
        arena.take(layout(1, 1));
        arena.restored(true);
        assert_eq!((arena.base.load(Ordering::Relaxed), arena.live.load(Ordering::Relaxed)), (NOWHERE, 0));
    }
}
