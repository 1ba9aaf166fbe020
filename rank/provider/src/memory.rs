//! Local buffers of a call: one or several segments of the program's memory.

use libc::iovec;

use crate::boundary::{EINVAL, ENOMEM, Errno, Result};
use crate::limits::IOV_MAX;

/// The segments of one call's buffer. Reading and writing them is the caller's promise, made once in [`Segments::new`].
///
/// Nearly all have one, so that one lies here: a buffer is passed on by value several times on its way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    first: Segment,
    others: Box<[Segment]>,
    /// Of all of them.
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    start: usize,
    bytes: usize,
}

const _: () = assert!(size_of::<Segments>() <= 40);

impl Segments {
    /// The segments that C names.
    ///
    /// # Safety
    /// `iov` points at `count` segments (or `count` is 0), and each names memory that stays valid for the operation
    /// until the operation is complete.
    pub(crate) unsafe fn new(iov: *const iovec, count: usize) -> Result<Segments> {
        if count > IOV_MAX || (iov.is_null() && count > 0) {
            return Err(EINVAL);
        }
        if count == 1 {
            // SAFETY: one segment, as the caller says.
            let part = unsafe { &*iov };
            // SAFETY: as the caller says.
            return unsafe { Segments::one(part.iov_base, part.iov_len) };
        }
        let mut parts = Vec::with_capacity(count);
        let mut bytes = 0usize;
        for i in 0..count {
            // SAFETY: `i < count`.
            let part = unsafe { &*iov.add(i) };
            if part.iov_len == 0 {
                continue;
            }
            if part.iov_base.is_null() {
                return Err(EINVAL);
            }
            parts.push(Segment { start: part.iov_base as usize, bytes: part.iov_len });
            bytes = bytes.checked_add(part.iov_len).ok_or(EINVAL)?;
        }
        Ok(Segments::of(parts))
    }

    /// One segment.
    ///
    /// # Safety
    /// As for [`Segments::new`].
    #[inline]
    pub(crate) unsafe fn one(start: *const core::ffi::c_void, bytes: usize) -> Result<Segments> {
        if start.is_null() && bytes > 0 {
            return Err(EINVAL);
        }
        let start = if bytes == 0 { 0 } else { start as usize };
        Ok(Segments { first: Segment { start, bytes }, others: Box::default(), bytes })
    }

    /// Their bytes together fit in a number.
    fn of(mut parts: Vec<Segment>) -> Segments {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let first = if parts.is_empty() { Segment::default() } else { parts.remove(0) };
        Segments { first, others: parts.into_boxed_slice(), bytes }
    }

    fn parts(&self) -> impl Iterator<Item = &Segment> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// `bytes` bytes from `offset` on.
    pub(crate) fn part(&self, mut offset: usize, mut bytes: usize) -> Segments {
        let mut parts = Vec::new();
        for Segment { start, bytes: length } in self.parts() {
            let taken = length.saturating_sub(offset).min(bytes);
            if taken > 0 {
                parts.push(Segment { start: start + offset, bytes: taken });
            }
            offset = offset.saturating_sub(*length);
            bytes -= taken;
        }
        Segments::of(parts)
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Start of the first segment; null if there is none.
    pub(crate) fn start(&self) -> *mut u8 {
        self.first.start as *mut u8
    }

    /// Whether the bytes lie in one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.others.is_empty()
    }

    /// The bytes in one piece, if they lie so.
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        match (self.bytes, self.is_contiguous()) {
            (0, _) => Some(&[]),
            // SAFETY: valid for reads by the contract of `Segments::new`.
            (_, true) => Some(unsafe { core::slice::from_raw_parts(self.start(), self.bytes) }),
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
        for Segment { start, bytes } in self.parts().filter(|part| part.bytes > 0) {
            // SAFETY: valid for reads by the contract of `Segments::new`.
            out.extend_from_slice(unsafe { core::slice::from_raw_parts(*start as *const u8, *bytes) });
        }
    }

    /// Stores `bytes` from the start on; bytes beyond the room are left out.
    pub(crate) fn scatter(&self, mut bytes: &[u8]) {
        for Segment { start, bytes: room } in self.parts().filter(|part| part.bytes > 0) {
            let taken = bytes.len().min(*room);
            // SAFETY: valid for writes by the contract of `Segments::new`, and the source is memory of ours.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), *start as *mut u8, taken) };
            bytes = &bytes[taken..];
        }
    }
}

/// An empty vector with room for so many bytes, a number from outside: too many are an error, not the end of the
/// process.
pub(crate) fn with_room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| ENOMEM)?;
    Ok(room)
}

/// Whether every page of this memory exists. The kernel looks; nothing is read.
pub(crate) fn is_mapped(start: usize, bytes: usize) -> bool {
    // SAFETY: asks the kernel for the size of a page.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let from = start - start % page;
    // The kernel would take more than that for nothing.
    let Some(whole) = bytes.checked_add(start - from).filter(|whole| isize::try_from(*whole).is_ok()) else {
        return false;
    };
    // SAFETY: with `MS_ASYNC` Linux only looks whether the range is mapped (msync(2)).
    bytes == 0 || unsafe { libc::msync(from as *mut libc::c_void, whole, libc::MS_ASYNC) } == 0
}

/// Copies memory of this process that may not be there, or not be readable: the kernel looks at every page,
/// and reports that.
pub(crate) fn read_guarded(place: *const u8, into: &mut [u8]) -> Result<()> {
    let start = into.as_mut_ptr();
    // SAFETY: process_vm_readv checks the source itself; the destination is a slice that is ours alone.
    guarded(into.len(), |done| unsafe {
        let to = iovec { iov_base: start.add(done).cast(), iov_len: into.len() - done };
        let from = iovec { iov_base: place.wrapping_add(done).cast_mut().cast(), iov_len: to.iov_len };
        libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0)
    })
}

/// Stores into memory of this process that may not be there, or not be writable. Before an error some of the bytes may have been stored.
pub(crate) fn write_guarded(place: *mut u8, bytes: &[u8]) -> Result<()> {
    // SAFETY: process_vm_writev checks the destination itself; the source is a slice.
    guarded(bytes.len(), |done| unsafe {
        let from =
            iovec { iov_base: bytes.as_ptr().add(done).cast_mut().cast(), iov_len: bytes.len() - done };
        let to = iovec { iov_base: place.wrapping_add(done).cast(), iov_len: from.iov_len };
        libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0)
    })
}

/// Repeats a copy that the kernel may do in parts.
fn guarded(bytes: usize, copy: impl Fn(usize) -> isize) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        match usize::try_from(copy(done)) {
            Ok(copied) if copied > 0 => done += copied,
            Ok(_) => return Err(Errno(libc::EFAULT)),
            Err(_) => {
                return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_segments_is_what_lies_between() {
        let bytes: Vec<u8> = (0..30).collect();
        let iov = [(0, 10), (10, 0), (10, 5), (15, 15)].map(|(at, length): (usize, usize)| iovec {
            iov_base: bytes[at..].as_ptr().cast_mut().cast(),
            iov_len: length,
        });
        // SAFETY: parts of a vector that outlives them.
        let whole = unsafe { Segments::new(iov.as_ptr(), iov.len()) }.unwrap();
        for (offset, length) in [(0, 30), (0, 10), (3, 4), (9, 2), (10, 5), (12, 18), (29, 1), (30, 0)] {
            assert_eq!(
                whole.part(offset, length).copied().unwrap(),
                bytes[offset..offset + length],
                "{length} at {offset}"
            );
        }
        assert!(whole.part(2, 5).is_contiguous() && !whole.part(8, 5).is_contiguous());
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut bytes = [7u8; 64];
        assert!(is_mapped(bytes.as_ptr() as usize, 64) && !is_mapped(0, usize::MAX) && !is_mapped(8, 8));
        let mut copy = [0; 64];
        read_guarded(bytes.as_ptr(), &mut copy).unwrap();
        assert_eq!(copy, bytes);
        write_guarded(bytes.as_mut_ptr(), &[9; 64]).unwrap();
        assert_eq!(bytes, [9; 64]);
        assert_eq!(read_guarded(core::ptr::without_provenance(8), &mut copy), Err(Errno(libc::EFAULT)));
        let constant = b"text of the program".as_ptr().cast_mut();
        assert_eq!(write_guarded(constant, b"no"), Err(Errno(libc::EFAULT)), "not writable");
    }
}
