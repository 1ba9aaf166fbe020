//! User payload that a staged frame refers to without copying it.

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

/// Bytes that follow a staged frame's header on the wire: a reference into the owner's buffer, not a copy.
///
/// A driver holds the payload until the NIC will not read it any more, and drops it no later than it counts the frame in
/// [`completed_total`](crate::Driver::completed_total). So `as_slice` is sound for as long as the value lives.
#[derive(Default)]
pub struct Payload {
    /// First byte; dangling (but not null) if `bytes` is 0.
    start: Option<core::ptr::NonNull<u8>>,
    bytes: usize,
    /// Keeps the buffer alive where the payload shares it.
    owner: Option<Arc<dyn AsRef<[u8]> + Send + Sync>>,
}

// SAFETY: the bytes are only read, and each constructor makes sure that they may be read from any thread: `shared` by
// `T: Send + Sync`, `from_static` by `&'static [u8]: Send`, `borrowed` by its contract.
unsafe impl Send for Payload {}
// SAFETY: as above; `&Payload` gives only `&[u8]`.
unsafe impl Sync for Payload {}

impl Payload {
    /// No payload: the leased buffer holds the whole frame.
    pub const EMPTY: Payload = Payload { start: None, bytes: 0, owner: None };

    /// The part `range` of a shared buffer, kept alive by the payload. Costs one atomic increment. `None` if `range` does not
    /// lie in the buffer.
    #[must_use]
    pub fn shared<T: AsRef<[u8]> + Send + Sync + 'static>(
        owner: &Arc<T>,
        range: Range<usize>,
    ) -> Option<Payload> {
        let part = T::as_ref(owner).get(range)?;
        let start = Some(core::ptr::NonNull::from(part).cast());
        Some(Payload { start, bytes: part.len(), owner: Some(owner.clone()) })
    }

    /// Bytes that live as long as the program.
    #[must_use]
    pub fn from_static(part: &'static [u8]) -> Payload {
        Payload { start: Some(core::ptr::NonNull::from(part).cast()), bytes: part.len(), owner: None }
    }

    /// `bytes` bytes from `start`, in a buffer that another owner keeps.
    ///
    /// # Safety
    /// Until the payload is dropped, the bytes stay readable from every thread and are not written to. A caller that
    /// hands the payload to a driver may end that when the driver counts the frame as completed (a duty of every
    /// [`Driver`](crate::Driver)), or when the driver itself has been dropped.
    #[must_use]
    pub unsafe fn borrowed(start: *const u8, bytes: usize) -> Payload {
        match core::ptr::NonNull::new(start.cast_mut()) {
            Some(start) if bytes > 0 => Payload { start: Some(start), bytes, owner: None },
            _ => Payload::EMPTY,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self.start {
            // SAFETY: `start` and `bytes` came from one slice whose bytes stay valid and unwritten while `self` lives:
            // `owner` keeps the slice's owner from being moved or mutated (no `&mut` to the contents of a shared `Arc`), a
            // static lives for ever, and for `borrowed` the caller promised it.
            Some(start) => unsafe { core::slice::from_raw_parts(start.as_ptr(), self.bytes) },
            None => &[],
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeper = if self.owner.is_some() { "shared" } else { "borrowed" };
        write!(f, "Payload({} bytes, {keeper})", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_payload_outlives_the_handle_of_its_maker() {
        let owner = Arc::new(vec![1u8, 2, 3, 4, 5]);
        let payload = Payload::shared(&owner, 1..4).expect("in range");
        drop(owner);
        assert_eq!(payload.as_slice(), [2, 3, 4]);
    }

    #[test]
    fn a_range_outside_the_buffer_is_refused() {
        let owner = Arc::new(vec![0u8; 4]);
        assert!(Payload::shared(&owner, 2..5).is_none());
        assert!(Payload::shared(&owner, 4..4).expect("empty").is_empty());
    }

    #[test]
    fn an_empty_borrow_never_reads() {
        // SAFETY: no byte is promised, none is read.
        let payload = unsafe { Payload::borrowed(core::ptr::null(), 17) };
        assert_eq!(payload.as_slice(), [0u8; 0]);
    }
}
