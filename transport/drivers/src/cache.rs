//! Hints to the processor's caches.

/// Bytes of a cache line, on the processors that matter.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Has the processor fetch bytes that will be read soon. Bytes that another processor has just written take
/// some 100 ns line by line, and no longer if all lines are asked for together.
#[inline]
pub(crate) fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let before = start.addr() % LINE_BYTES;
        for at in (0..before + bytes).step_by(LINE_BYTES) {
            // SAFETY: every x86-64 processor has the instruction, and it faults on no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_sub(before).wrapping_add(at).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}
