//! Local buffers of a call: one or several segments of the program's memory.

use libc::iovec;

use crate::boundary::{EINVAL, ENOMEM, Result};
use crate::limits::IOV_MAX;

/// The segments of one call's buffer. Reading and writing them is the caller's promise, made once in [`Segments::new`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    parts: [(usize, usize); IOV_MAX],
    count: usize,
    bytes: usize,
}

impl Segments {
    /// The segments that C names.
    ///
    /// # Safety
    /// `iov` points at `count` segments (or `count` is 0), and each names memory that stays valid for what the operation
    /// does to it until the operation is complete.
    pub(crate) unsafe fn new(iov: *const iovec, count: usize) -> Result<Segments> {
        if count > IOV_MAX || (iov.is_null() && count > 0) {
            return Err(EINVAL);
        }
        let mut segments = Segments::default();
        for i in 0..count {
            // SAFETY: `i < count`.
            let part = unsafe { &*iov.add(i) };
            if part.iov_len == 0 {
                continue;
            }
            if part.iov_base.is_null() {
                return Err(EINVAL);
            }
            segments.parts[segments.count] = (part.iov_base as usize, part.iov_len);
            segments.count += 1;
            segments.bytes = segments.bytes.checked_add(part.iov_len).ok_or(EINVAL)?;
        }
        Ok(segments)
    }

    /// One segment.
    ///
    /// # Safety
    /// As for [`Segments::new`].
    pub(crate) unsafe fn one(start: *const core::ffi::c_void, bytes: usize) -> Result<Segments> {
        let part = iovec { iov_base: start.cast_mut(), iov_len: bytes };
        // SAFETY: one segment; the rest is the caller's promise.
        unsafe { Segments::new(&raw const part, 1) }
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Start of the first segment; null if there is none.
    pub(crate) fn start(&self) -> *mut u8 {
        self.parts[0].0 as *mut u8
    }

    /// Whether the bytes lie in one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.count <= 1
    }

    /// The bytes in one piece, if they lie so.
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        match self.count {
            0 => Some(&[]),
            // SAFETY: valid for reads by the contract of `Segments::new`.
            1 => Some(unsafe { core::slice::from_raw_parts(self.start(), self.bytes) }),
            _ => None,
        }
    }

    /// All bytes, in memory of ours.
    pub(crate) fn copied(&self) -> Result<Vec<u8>> {
        let mut bytes = with_room(self.bytes)?;
        self.gather(&mut bytes);
        Ok(bytes)
    }

    /// Appends all bytes to `out`.
    pub(crate) fn gather(&self, out: &mut Vec<u8>) {
        for (start, bytes) in &self.parts[..self.count] {
            // SAFETY: valid for reads by the contract of `Segments::new`.
            out.extend_from_slice(unsafe { core::slice::from_raw_parts(*start as *const u8, *bytes) });
        }
    }

    /// Stores `bytes` from the start on; what does not fit is left out.
    pub(crate) fn scatter(&self, mut bytes: &[u8]) {
        for (start, room) in &self.parts[..self.count] {
            let taken = bytes.len().min(*room);
            // SAFETY: valid for writes by the contract of `Segments::new`, and the source is memory of ours.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), *start as *mut u8, taken) };
            bytes = &bytes[taken..];
        }
    }
}

/// An empty vector with room for so many bytes, a number that somebody else has named: too many are an error, not the end of the process.
pub(crate) fn with_room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| ENOMEM)?;
    Ok(room)
}
