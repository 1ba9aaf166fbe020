//! Room for records that are written while threads stand still: made before, never grown then.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use super::facts::{Fault, Room};

/// Bytes in memory of their own, filled from the start.
#[derive(Debug)]
pub(super) struct Blob {
    memory: NonNull<u8>,
    room: usize,
    used: usize,
}

// SAFETY: the memory is this value's alone.
unsafe impl Send for Blob {}

/// A part of a [`Blob`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Span {
    start: usize,
    bytes: usize,
}

impl Blob {
    pub(super) fn new(bytes: usize) -> std::io::Result<Blob> {
        let room = bytes.max(1).next_multiple_of(4096);
        let length = NonZeroUsize::new(room).expect("at least a page");
        let protection = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        let flags = nix::sys::mman::MapFlags::MAP_PRIVATE | nix::sys::mman::MapFlags::MAP_NORESERVE;
        // SAFETY: new memory, wherever the kernel puts it.
        let memory = unsafe { nix::sys::mman::mmap_anonymous(None, length, protection, flags) }?;
        Ok(Blob { memory: memory.cast(), room, used: 0 })
    }

    /// Where it lies.
    pub(super) fn addresses(&self) -> Range<u64> {
        let start = self.memory.as_ptr() as u64;
        start..start + self.room as u64
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// The unfilled part.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        let used = self.used;
        // SAFETY: `room` bytes are mapped, and borrowed as long as the answer lives.
        let all = unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.room) };
        &mut all[used..]
    }

    /// Counts the first `bytes` of [`Blob::rest`] as filled.
    pub(super) fn take(&mut self, bytes: usize) -> Span {
        let bytes = bytes.min(self.room - self.used);
        let span = Span { start: self.used, bytes };
        self.used += bytes;
        span
    }

    pub(super) fn get(&self, span: Span) -> &[u8] {
        // SAFETY: `room` bytes are mapped, and borrowed as long as the answer lives.
        let all = unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.room) };
        all.get(span.start..span.start + span.bytes).unwrap_or(&[])
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, without another owner. An error leaks memory, which is harmless.
        let _ = unsafe { nix::sys::mman::munmap(self.memory.cast(), self.room) };
    }
}

/// Adds to a list whose room was made before.
pub(super) fn push<T>(list: &mut Vec<T>, value: T, what: Room) -> Result<(), Fault> {
    if list.len() == list.capacity() {
        return Err(Fault::Full { what });
    }
    list.push(value);
    Ok(())
}
