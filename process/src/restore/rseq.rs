//! Restartable sequences of the process that takes over.
//!
//! The kernel writes to the registered area whenever the thread has been moved; it must not do so once that memory is another's.

use std::io;

/// Bytes of the area that C libraries have registered since there is one.
const AREA_BYTES: usize = 32;
/// `RSEQ_SIG` of x86-64; the C library registers with it.
const SIGNATURE: usize = 0x5305_3053;
/// `RSEQ_FLAG_UNREGISTER`.
const UNREGISTER: usize = 1;
/// `AT_RSEQ_FEATURE_SIZE`, `AT_RSEQ_ALIGN`.
const FEATURE_BYTES: u64 = 27;
const ALIGNMENT: u64 = 28;

/// Gives the calling thread's registration up, if there is one.
pub(super) fn unregister() -> io::Result<()> {
    // SAFETY: asks for symbols by name; both are words of the C library where it has them.
    let offset = unsafe {
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        // A C library that is older than restartable sequences, or has them switched off, has registered nothing.
        if size.is_null() || offset.is_null() || *size == 0 {
            return Ok(());
        }
        *offset
    };
    let (base, _) = crate::arch::segment_bases();
    let area = base.wrapping_add_signed(offset as i64) as usize;
    // SAFETY: asks for numbers.
    let (feature, alignment) = unsafe { (libc::getauxval(FEATURE_BYTES), libc::getauxval(ALIGNMENT)) };
    let feature = usize::try_from(feature.next_multiple_of(alignment.max(1))).unwrap_or(0);
    let mut error = None;
    for bytes in [AREA_BYTES, feature] {
        // SAFETY: the kernel forgets the area, and writes to it for the last time.
        let answer =
            unsafe { crate::arch::syscall(libc::SYS_rseq, [area, bytes, UNREGISTER, SIGNATURE, 0, 0]) };
        if answer == 0 {
            return Ok(());
        }
        error.get_or_insert(i32::try_from(-answer).unwrap_or(libc::EINVAL));
    }
    Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EINVAL)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_can_be_given_up_once() {
        // A thread of its own, which ends without one.
        let answers = std::thread::spawn(|| (unregister().is_ok(), unregister().is_ok())).join();
        let (first, second) = answers.expect("it ended");
        assert!(first);
        // SAFETY: asks for a symbol.
        let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>() };
        // SAFETY: a word of the C library.
        let was_registered = !size.is_null() && unsafe { *size } != 0;
        assert_eq!(second, !was_registered);
    }
}
