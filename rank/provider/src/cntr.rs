//! fi_cntr(3): counters of completed operations. Reading one makes progress.

use core::ffi::c_int;
use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use crate::abi::{
    CLASS_CNTR, CLASS_DOMAIN, CONTROL_GETWAIT, CONTROL_GETWAITOBJ, FiCntrAttr, FiOps, FiOpsCntr, Fid,
    FidCntr, FidDomain, Opaque, WAIT_FD, WAIT_NONE, WAIT_SET, WAIT_UNSPEC, WAIT_YIELD, errno,
};
use crate::boundary::{EBUSY, EINVAL, ENOSYS, Errno, behind, caught, hand_out, missing, retire, status};
use crate::domain;
use crate::engine::Engine;
use crate::limits::WAIT_SLICE;
use crate::waitset::{self, Member};
use crate::waker::Waker;

/// The state of a counter.
#[derive(Default)]
pub(crate) struct Counter {
    done: AtomicU64,
    failed: AtomicU64,
    /// The counts that `fi_poll`, or `fi_wait`, last reported.
    reported: Mutex<(u64, u64)>,
    /// Endpoints that count here.
    engines: RwLock<Vec<Arc<Engine>>>,
    waker: Option<Waker>,
}

impl Counter {
    pub(crate) fn count(&self, failed: bool) {
        let counter = if failed { &self.failed } else { &self.done };
        // Release: a thread that reads the count sees the memory that the operation has written.
        counter.fetch_add(1, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Acquire), self.failed.load(Ordering::Acquire))
    }

    /// Whether it has changed since it was last asked this, or set.
    pub(crate) fn has_changed(&self) -> bool {
        self.progress();
        let now = self.counts();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::replace(&mut *reported, now) != now
    }

    /// Whether a thread may sleep: nothing has been counted since it was last asked this, and nothing waits at an endpoint.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.progress();
        let may = !self.waker.as_ref().is_some_and(Waker::clear);
        let engines = self.engines.read().unwrap_or_else(PoisonError::into_inner);
        may && engines.iter().all(|engine| engine.prepare_sleep())
    }

    pub(crate) fn join(&self, engine: &Arc<Engine>) -> crate::boundary::Result<()> {
        if let Some(waker) = &self.waker {
            waker.join(engine)?;
        }
        self.engines.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(engine));
        Ok(())
    }

    pub(crate) fn leave(&self, engine: &Arc<Engine>) {
        if let Some(waker) = &self.waker {
            waker.leave(engine);
        }
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
    control,
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
        let (wait, place) = unsafe { attr.as_ref() }
            .map_or((WAIT_NONE, core::ptr::null_mut()), |attr| (attr.wait_obj, attr.wait_set));
        let waker = match wait {
            // A wake-up costs a system call for each operation: only a counter with a descriptor has one.
            WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD => None,
            WAIT_FD | WAIT_SET => Some(Waker::new()?),
            _ => return Err(ENOSYS),
        };
        let counter = Arc::new(Counter { waker, ..Counter::default() });
        if let (WAIT_SET, Some(waker)) = (wait, &counter.waker) {
            // SAFETY: the application names a wait set.
            unsafe { waitset::set(place) }?.join(Member::Counter(Arc::downgrade(&counter)), waker)?;
        }
        let handle = FidCntr {
            fid: Fid { fclass: CLASS_CNTR, context, ops: &raw const OPS },
            ops: &raw const CNTR_OPS,
        };
        let owned = Owned { counter, _domain: Arc::clone(domain) };
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

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: Opaque) -> c_int {
    status("fi_control", || {
        // SAFETY: this table is that of counters alone.
        let counter = unsafe { counter(fid.cast()) }?;
        if argument.is_null() {
            return Err(EINVAL);
        }
        match (command, &counter.waker) {
            // SAFETY: the application passes a place for a descriptor.
            (CONTROL_GETWAIT, Some(waker)) => unsafe { argument.cast::<c_int>().write(waker.raw_fd()) },
            // SAFETY: the application passes a place for a kind of wait object.
            (CONTROL_GETWAITOBJ, waker) => unsafe {
                argument.cast::<u32>().write(if waker.is_some() { WAIT_FD } else { WAIT_NONE });
            },
            _ => return Err(ENOSYS),
        }
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
    status(name, || {
        // SAFETY: the table of counters alone leads here.
        let counter = unsafe { counter(fid) }?;
        change(counter);
        // The application knows the value that it has set (fi_poll(3)).
        *counter.reported.lock().unwrap_or_else(PoisonError::into_inner) = counter.counts();
        counter.wake();
        Ok(())
    })
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
            let slice =
                limit.map_or(WAIT_SLICE, |limit| (limit - started.elapsed().min(limit)).min(WAIT_SLICE));
            match &counter.waker {
                Some(waker) if counter.prepare_sleep() => waker.sleep(slice),
                _ => std::thread::yield_now(),
            }
        }
    })
}
