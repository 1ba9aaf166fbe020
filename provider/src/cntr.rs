//! fi_cntr(3): counters of completed operations. Reading one makes progress.

use core::ffi::c_int;
use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use crate::abi::{
    CLASS_CNTR, CLASS_DOMAIN, FiCntrAttr, FiOps, FiOpsCntr, Fid, FidCntr, FidDomain, Opaque, WAIT_NONE,
    WAIT_UNSPEC, WAIT_YIELD, errno,
};
use crate::boundary::{EBUSY, ENOSYS, Errno, behind, caught, hand_out, missing, retire, status};
use crate::domain;
use crate::engine::Engine;

/// What is behind a counter.
#[derive(Default)]
pub(crate) struct Counter {
    done: AtomicU64,
    failed: AtomicU64,
    /// Endpoints that count here.
    engines: RwLock<Vec<Arc<Engine>>>,
}

impl Counter {
    pub(crate) fn count(&self, failed: bool) {
        let counter = if failed { &self.failed } else { &self.done };
        // Release: who reads the count sees the memory that the operation has written.
        counter.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn join(&self, engine: &Arc<Engine>) {
        self.engines.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(engine));
    }

    pub(crate) fn leave(&self, engine: &Arc<Engine>) {
        let mut engines = self.engines.write().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|other| !Arc::ptr_eq(other, engine));
    }

    fn progress(&self) {
        for engine in &*self.engines.read().unwrap_or_else(PoisonError::into_inner) {
            engine.progress();
        }
    }
}

/// A counter with the domain that it keeps open.
pub(crate) struct Owned {
    counter: Arc<Counter>,
    _domain: domain::Handle,
}

pub(crate) type Handle = Arc<Counter>;

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind: missing::bind,
    control: missing::control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static CNTR_OPS: FiOpsCntr =
    FiOpsCntr { size: size_of::<FiOpsCntr>(), read, readerr, add, set, wait, adderr, seterr };

pub(crate) unsafe extern "C" fn open(
    fid: *mut FidDomain,
    attr: *mut FiCntrAttr,
    out: *mut *mut FidCntr,
    context: Opaque,
) -> c_int {
    status("fi_cntr_open", || {
        // SAFETY: the table of domains alone leads here.
        let domain: &domain::Handle = unsafe { behind(fid, CLASS_DOMAIN) }?;
        // SAFETY: the application's structure, or null for defaults.
        if let Some(attr) = unsafe { attr.as_ref() }
            && !matches!(attr.wait_obj, WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD)
        {
            return Err(ENOSYS);
        }
        let handle = FidCntr {
            fid: Fid { fclass: CLASS_CNTR, context, ops: &raw const OPS },
            ops: &raw const CNTR_OPS,
        };
        let owned = Owned { counter: Arc::default(), _domain: Arc::clone(domain) };
        // SAFETY: `FidCntr` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle, owned, out) }.map(|_| ())
    })
}

/// The counter behind a handle.
///
/// # Safety
/// As for [`behind`].
pub(crate) unsafe fn counter<'a>(fid: *mut FidCntr) -> crate::boundary::Result<&'a Handle> {
    // SAFETY: as the caller says.
    unsafe { behind::<FidCntr, Owned>(fid, CLASS_CNTR) }.map(|owned| &owned.counter)
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of counters alone.
        if Arc::strong_count(unsafe { counter(fid.cast()) }?) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidCntr, Owned>(fid) };
        Ok(())
    })
}

fn value(name: &str, fid: *mut FidCntr, look: impl FnOnce(&Counter) -> u64) -> u64 {
    // SAFETY: the table of counters alone leads here.
    caught(name, || unsafe { counter(fid) }.map(|counter| look(counter))).unwrap_or(0)
}

unsafe extern "C" fn read(fid: *mut FidCntr) -> u64 {
    value("fi_cntr_read", fid, |counter| {
        counter.progress();
        counter.done.load(Ordering::Acquire)
    })
}

unsafe extern "C" fn readerr(fid: *mut FidCntr) -> u64 {
    value("fi_cntr_readerr", fid, |counter| {
        counter.progress();
        counter.failed.load(Ordering::Acquire)
    })
}

fn change(name: &str, fid: *mut FidCntr, change: impl FnOnce(&Counter)) -> c_int {
    // SAFETY: the table of counters alone leads here.
    status(name, || unsafe { counter(fid) }.map(|counter| change(counter)))
}

unsafe extern "C" fn add(fid: *mut FidCntr, value: u64) -> c_int {
    change("fi_cntr_add", fid, |counter| _ = counter.done.fetch_add(value, Ordering::AcqRel))
}

unsafe extern "C" fn set(fid: *mut FidCntr, value: u64) -> c_int {
    change("fi_cntr_set", fid, |counter| counter.done.store(value, Ordering::Release))
}

unsafe extern "C" fn adderr(fid: *mut FidCntr, value: u64) -> c_int {
    change("fi_cntr_adderr", fid, |counter| _ = counter.failed.fetch_add(value, Ordering::AcqRel))
}

unsafe extern "C" fn seterr(fid: *mut FidCntr, value: u64) -> c_int {
    change("fi_cntr_seterr", fid, |counter| counter.failed.store(value, Ordering::Release))
}

unsafe extern "C" fn wait(fid: *mut FidCntr, threshold: u64, timeout_ms: c_int) -> c_int {
    status("fi_cntr_wait", || {
        // SAFETY: the table of counters alone leads here.
        let counter = unsafe { counter(fid) }?;
        let started = Instant::now();
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let failed = counter.failed.load(Ordering::Acquire);
        loop {
            counter.progress();
            if counter.done.load(Ordering::Acquire) >= threshold {
                return Ok(());
            }
            if counter.failed.load(Ordering::Acquire) != failed {
                return Err(Errno(errno::EAVAIL));
            }
            if limit.is_some_and(|limit| started.elapsed() >= limit) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            std::thread::yield_now();
        }
    })
}
