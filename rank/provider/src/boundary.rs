//! The edge to C: no panic crosses it, every handle is looked at before it is used, and a closed one is recognised.

use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use std::alloc::Layout;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::abi::{CLASS_UNSPEC, Fid, errno};
use crate::limits::QUARANTINE_MAX;
pub(crate) use crate::log::complain;

/// An error number of the system or of [`errno`], positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) const EAGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EMSGSIZE: Errno = Errno(libc::EMSGSIZE);

/// Runs the body of a call that answers a length or a negative error number.
pub(crate) fn length(name: &str, body: impl FnOnce() -> Result<usize>) -> isize {
    match caught(name, body) {
        Ok(length) => isize::try_from(length).unwrap_or(isize::MAX),
        Err(Errno(number)) => -(number as isize),
    }
}

/// Runs the body of a call that answers 0 or a negative error number.
pub(crate) fn status(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    match caught(name, body) {
        Ok(()) => 0,
        Err(Errno(number)) => -number,
    }
}

/// As [`status`], for calls that answer a count.
pub(crate) fn count(name: &str, body: impl FnOnce() -> Result<usize>) -> c_int {
    match caught(name, body) {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(Errno(number)) => -number,
    }
}

/// Runs a body that must not unwind into C. A panic is a bug of ours: it is reported, and the caller gets an error.
pub(crate) fn caught<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        complain(format_args!("{name} panicked, which is a bug; the call fails with FI_EOTHER"));
        Err(Errno(errno::EOTHER))
    })
}

/// An object of the interface: the part for C, and ours behind it.
#[repr(C)]
pub(crate) struct Shell<F, T> {
    pub(crate) fid: F,
    pub(crate) inner: T,
}

/// Hands an object to C.
///
/// # Safety
/// `F` begins with a `fid`; `out` is null or may be written to.
pub(crate) unsafe fn hand_out<F, T>(fid: F, inner: T, out: *mut *mut F) -> Result<*mut F> {
    if out.is_null() {
        return Err(EINVAL);
    }
    let shell = Box::into_raw(Box::new(Shell { fid, inner })).cast::<F>();
    // SAFETY: not null, and the caller says that it may be written to.
    unsafe { out.write(shell) };
    Ok(shell)
}

/// The object behind a handle.
///
/// # Safety
/// `fid` is null, or came from [`hand_out`] with the same `F` and `T` if its class is `class`, and is not being closed.
pub(crate) unsafe fn behind<'a, F, T>(fid: *mut F, class: usize) -> Result<&'a T> {
    if fid.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: every object begins with a `fid`; a closed one stays in the quarantine, with a class of its own.
    if unsafe { (*fid.cast::<Fid>()).fclass } != class {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the class says that the object came from `hand_out` with this `F` and `T`.
    Ok(unsafe { &(*fid.cast::<Shell<F, T>>()).inner })
}

/// Closed objects, oldest first, with their layouts.
static QUARANTINE: Mutex<VecDeque<(usize, Layout)>> = Mutex::new(VecDeque::new());

/// Drops the object behind a handle, and keeps the handle recognisable as closed for a while.
///
/// # Safety
/// As for [`behind`], and the object is not used any more.
pub(crate) unsafe fn retire<F, T>(fid: *mut Fid) {
    let shell = fid.cast::<Shell<F, ManuallyDrop<T>>>();
    // SAFETY: the object came from `hand_out` as a box of `Shell<F, T>`, which has the same layout; it is not used any
    // more.
    unsafe {
        (*fid).fclass = CLASS_UNSPEC;
        ManuallyDrop::drop(&mut (*shell).inner);
    }
    let mut quarantine = QUARANTINE.lock().unwrap_or_else(PoisonError::into_inner);
    quarantine.push_back((shell as usize, Layout::new::<Shell<F, T>>()));
    if quarantine.len() > QUARANTINE_MAX
        && let Some((place, layout)) = quarantine.pop_front()
    {
        // SAFETY: a box of this layout, whose contents were dropped when it came here.
        unsafe { std::alloc::dealloc(place as *mut u8, layout) };
    }
}

/// Reads an argument that C passes by pointer.
///
/// # Safety
/// `pointer` is null or points at a `T` that is not written to during the call.
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or(EINVAL)
}

/// A C string, if there is one and it is text.
///
/// # Safety
/// `text` is null or a C string that lives through the call.
pub(crate) unsafe fn text<'a>(text: *const core::ffi::c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    unsafe { core::ffi::CStr::from_ptr(text) }.to_str().ok()
}

/// Writes text into a C buffer of `room` bytes, cut off where it does not fit, and always ended.
///
/// # Safety
/// `buffer` is null or has room for `room` bytes.
pub(crate) unsafe fn put_text(text: &str, buffer: *mut core::ffi::c_char, room: usize) {
    if buffer.is_null() || room == 0 {
        return;
    }
    let bytes = text.len().min(room - 1);
    // SAFETY: `bytes + 1 <= room`.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), bytes);
        buffer.add(bytes).write(0);
    }
}

/// Calls of `fi_ops` that no object of ours has.
pub(crate) mod missing {
    use super::{Fid, c_int, c_void};
    use core::ffi::c_char;

    pub(crate) unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
        -libc::ENOSYS
    }
    pub(crate) unsafe extern "C" fn control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
        -libc::ENOSYS
    }
    pub(crate) unsafe extern "C" fn ops_open(
        _: *mut Fid,
        _: *const c_char,
        _: u64,
        _: *mut *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        -libc::ENOSYS
    }
    pub(crate) unsafe extern "C" fn tostr(_: *const Fid, _: *mut c_char, _: usize) -> c_int {
        -libc::ENOSYS
    }
    pub(crate) unsafe extern "C" fn ops_set(
        _: *mut Fid,
        _: *const c_char,
        _: u64,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        -libc::ENOSYS
    }
}
