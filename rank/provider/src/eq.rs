//! fi_eq(3): event queues. Nothing here happens later than its call, so a queue holds only entries of the
//! application.

use core::ffi::{c_char, c_int};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::abi::{
    CLASS_EQ, CLASS_FABRIC, Const, FiEqAttr, FiEqEntry, FiEqErrEntry, FiOps, FiOpsEq, Fid, FidEq, FidFabric,
    Opaque, WAIT_NONE, WAIT_UNSPEC, WAIT_YIELD, errno, flag,
};
use crate::boundary::{
    EAGAIN, EINVAL, ENOSYS, Errno, Result, behind, hand_out, length, missing, put_text, retire, status,
};
use crate::fabric;

/// Events that one queue holds.
const EVENTS_MAX: usize = 1 << 12;

/// The object behind an event queue.
pub(crate) struct Events {
    waiting: Mutex<VecDeque<(u32, Vec<u8>)>>,
    /// It was opened with `FI_WRITE`.
    may_be_written: bool,
    _fabric: fabric::Handle,
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind: missing::bind,
    control: missing::control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static EQ_OPS: FiOpsEq = FiOpsEq { size: size_of::<FiOpsEq>(), read, readerr, write, sread, strerror };

/// Flag of reading: the event stays.
const PEEK: u64 = crate::abi::flag::PEEK;

pub(crate) unsafe extern "C" fn open(
    fid: *mut FidFabric,
    attr: *mut FiEqAttr,
    out: *mut *mut FidEq,
    context: Opaque,
) -> c_int {
    status("fi_eq_open", || {
        // SAFETY: the table of fabrics alone leads here.
        let fabric: &fabric::Handle = unsafe { behind(fid, CLASS_FABRIC) }?;
        // SAFETY: the application's structure, or null for defaults.
        let (flags, wait) =
            unsafe { attr.as_ref() }.map_or((0, WAIT_NONE), |attr| (attr.flags, attr.wait_obj));
        if flags & !(flag::WRITE | flag::AFFINITY) != 0 {
            return Err(Errno(errno::EBADFLAGS));
        }
        // There is no descriptor to sleep on.
        if !matches!(wait, WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD) {
            return Err(ENOSYS);
        }
        let handle =
            FidEq { fid: Fid { fclass: CLASS_EQ, context, ops: &raw const OPS }, ops: &raw const EQ_OPS };
        let events = Events {
            waiting: Mutex::default(),
            may_be_written: flags & flag::WRITE != 0,
            _fabric: fabric.clone(),
        };
        // SAFETY: `FidEq` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle, events, out) }.map(|_| ())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of event queues alone.
        unsafe { behind::<FidEq, Events>(fid.cast(), CLASS_EQ) }?;
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidEq, Events>(fid) };
        Ok(())
    })
}

/// # Safety
/// `event` and `room` bytes from `buffer` are the caller's to be written.
unsafe fn take(events: &Events, event: *mut u32, buffer: Opaque, room: usize, flags: u64) -> Result<usize> {
    let mut waiting = events.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let (kind, bytes) = waiting.front().ok_or(EAGAIN)?;
    if room < bytes.len() || event.is_null() || buffer.is_null() {
        return Err(Errno(errno::ETOOSMALL));
    }
    let taken = bytes.len();
    // SAFETY: as the caller says, and the event fits.
    unsafe {
        event.write(*kind);
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), taken);
    }
    if flags & PEEK == 0 {
        waiting.pop_front();
    }
    Ok(taken)
}

unsafe extern "C" fn read(
    fid: *mut FidEq,
    event: *mut u32,
    buffer: Opaque,
    room: usize,
    flags: u64,
) -> isize {
    length("fi_eq_read", || {
        // SAFETY: the table of event queues alone leads here.
        let events = unsafe { behind::<FidEq, Events>(fid, CLASS_EQ) }?;
        // SAFETY: the application's memory, as C promises for `fi_eq_read`.
        unsafe { take(events, event, buffer, room, flags) }
    })
}

unsafe extern "C" fn sread(
    fid: *mut FidEq,
    event: *mut u32,
    buffer: Opaque,
    room: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    length("fi_eq_sread", || {
        // SAFETY: the table of event queues alone leads here.
        let events = unsafe { behind::<FidEq, Events>(fid, CLASS_EQ) }?;
        let started = Instant::now();
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        loop {
            // SAFETY: the application's memory, as C promises for `fi_eq_sread`.
            match unsafe { take(events, event, buffer, room, flags) } {
                Err(EAGAIN) if limit.is_none_or(|limit| started.elapsed() < limit) => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                other => return other,
            }
        }
    })
}

/// Events that went wrong: there are none.
unsafe extern "C" fn readerr(_: *mut FidEq, _: *mut FiEqErrEntry, _: u64) -> isize {
    -(EAGAIN.0 as isize)
}

unsafe extern "C" fn write(fid: *mut FidEq, event: u32, buffer: Const, bytes: usize, _: u64) -> isize {
    length("fi_eq_write", || {
        // SAFETY: the table of event queues alone leads here.
        let events = unsafe { behind::<FidEq, Events>(fid, CLASS_EQ) }?;
        if !events.may_be_written || buffer.is_null() || bytes > size_of::<FiEqEntry>() {
            return Err(EINVAL);
        }
        // SAFETY: the application passes so many bytes.
        let entry = unsafe { core::slice::from_raw_parts(buffer.cast::<u8>(), bytes) }.to_vec();
        let mut waiting = events.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= EVENTS_MAX {
            return Err(EAGAIN);
        }
        waiting.push_back((event, entry));
        Ok(bytes)
    })
}

unsafe extern "C" fn strerror(
    _: *mut FidEq,
    _: c_int,
    _: Const,
    buffer: *mut c_char,
    room: usize,
) -> *const c_char {
    // SAFETY: the application's memory, as C promises for `fi_eq_strerror`.
    unsafe { put_text("no error of an event queue", buffer, room) };
    buffer
}
