//! Facts that only reading an eventfd shows.

use std::os::fd::RawFd;

use super::kernel;
use crate::sys::{self, Errno};

/// Whether an eventfd counts down by one: kernels before 6.5 do not report it, so it is read, and its count is put
/// back.
pub(super) fn is_semaphore(number: RawFd, count: u64) -> Result<bool, Errno> {
    // Two reads of a semaphore give 1 each; one that is nearly full is none.
    if count > u64::MAX - 4 {
        return Ok(false);
    }
    let added = 2u64.saturating_sub(count);
    if added > 0 {
        kernel::write(number, &added.to_ne_bytes())?;
    }
    let mut value = [0u8; 8];
    sys::read(number, &mut value)?;
    let is_semaphore = u64::from_ne_bytes(value) == 1;
    let left = if is_semaphore { count + added - 1 } else { 0 };
    if left > count {
        sys::read(number, &mut value)?;
    } else if left < count {
        kernel::write(number, &(count - left).to_ne_bytes())?;
    }
    Ok(is_semaphore)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::details;
    use crate::sys::Text;

    #[test]
    fn an_eventfd_reports_whether_it_is_a_semaphore_and_keeps_its_count() {
        for semaphore in [false, true] {
            for count in [0u64, 1, 2, 3, 1000] {
                let flags = if semaphore { libc::EFD_SEMAPHORE } else { 0 };
                // SAFETY: no memory is touched.
                let fd = unsafe { libc::eventfd(0, flags | libc::EFD_NONBLOCK) };
                if count > 0 {
                    kernel::write(fd, &count.to_ne_bytes()).unwrap();
                }
                assert_eq!(is_semaphore(fd, count), Ok(semaphore), "count {count}");
                let mut text = [0u8; 512];
                let path = Text::<64>::new().push(b"/proc/self/fdinfo/").number(fd.cast_unsigned());
                let bytes = sys::read_whole(path.as_path(), &mut text).unwrap();
                assert_eq!(details::field(&text[..bytes], b"eventfd-count:", 16), Some(count));
                sys::close(fd);
            }
        }
    }
}
