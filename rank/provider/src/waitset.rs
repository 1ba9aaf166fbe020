//! fi_poll(3): poll sets, which list those of their queues and counters that have something, and wait sets,
//! on which a thread sleeps for several of them.

use core::ffi::c_int;
use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use nix::sys::epoll::Epoll;

use crate::abi::{
    CLASS_CNTR, CLASS_CQ, CLASS_DOMAIN, CLASS_FABRIC, CLASS_POLL, CLASS_WAIT, CONTROL_GETWAIT,
    CONTROL_GETWAITOBJ, FiOps, FiOpsPoll, FiOpsWait, FiPollAttr, FiWaitAttr, Fid, FidCq, FidDomain,
    FidFabric, FidPoll, FidWait, Opaque, WAIT_FD, WAIT_UNSPEC,
};
use crate::boundary::{
    EBUSY, EINVAL, ENOSYS, Errno, Result, behind, count, given, hand_out, missing, retire, status,
};
use crate::limits::WAIT_SLICE;
use crate::waker::{Waker, failed, new_epoll, readable, sleep_on};
use crate::{cntr, cq, domain, fabric};

/// A queue or a counter in a poll set.
enum Polled {
    Queue(cq::Handle),
    Counter(cntr::Handle),
}

impl Polled {
    fn has_something(&self) -> bool {
        match self {
            Polled::Queue(queue) => queue.is_ready(),
            Polled::Counter(counter) => counter.has_changed(),
        }
    }
}

/// The object behind a poll set: its members by handle, with the application's contexts.
pub(crate) struct PollSet {
    members: Mutex<Vec<(usize, usize, Polled)>>,
    _domain: domain::Handle,
}

static POLL_FID_OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: close_poll,
    bind: missing::bind,
    control: missing::control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static POLL_OPS: FiOpsPoll = FiOpsPoll { size: size_of::<FiOpsPoll>(), poll, poll_add, poll_del };

pub(crate) unsafe extern "C" fn open_poll(
    fid: *mut FidDomain,
    attr: *mut FiPollAttr,
    out: *mut *mut FidPoll,
) -> c_int {
    status("fi_poll_open", || {
        // SAFETY: the table of domains alone leads here.
        let domain: &domain::Handle = unsafe { behind(fid, CLASS_DOMAIN) }?;
        // SAFETY: the application's structure, or null for defaults.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.flags != 0) {
            return Err(EINVAL);
        }
        let context = core::ptr::null_mut();
        let handle = FidPoll {
            fid: Fid { fclass: CLASS_POLL, context, ops: &raw const POLL_FID_OPS },
            ops: &raw const POLL_OPS,
        };
        let set = PollSet { members: Mutex::default(), _domain: Arc::clone(domain) };
        // SAFETY: `FidPoll` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle, set, out) }.map(|_| ())
    })
}

unsafe extern "C" fn close_poll(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of poll sets alone.
        unsafe { behind::<FidPoll, PollSet>(fid.cast(), CLASS_POLL) }?;
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidPoll, PollSet>(fid) };
        Ok(())
    })
}

unsafe extern "C" fn poll(fid: *mut FidPoll, contexts: *mut Opaque, room: c_int) -> c_int {
    count("fi_poll", || {
        // SAFETY: the table of poll sets alone leads here.
        let set: &PollSet = unsafe { behind(fid, CLASS_POLL) }?;
        let room = usize::try_from(room).map_err(|_| EINVAL)?;
        if contexts.is_null() && room > 0 {
            return Err(EINVAL);
        }
        let members = set.members.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reported = 0;
        for (_, context, member) in &*members {
            // Asking a counter consumes its report: one without room is left for the next call.
            if reported < room && member.has_something() {
                // SAFETY: the application's array has so much room.
                unsafe { contexts.add(reported).write(*context as Opaque) };
                reported += 1;
            }
        }
        Ok(reported)
    })
}

unsafe extern "C" fn poll_add(fid: *mut FidPoll, other: *mut Fid, flags: u64) -> c_int {
    status("fi_poll_add", || {
        // SAFETY: the table of poll sets alone leads here.
        let set: &PollSet = unsafe { behind(fid, CLASS_POLL) }?;
        // SAFETY: every handle begins with a `fid`.
        let Fid { fclass, context, .. } = unsafe { given(other) }?;
        let member = match *fclass {
            CLASS_CQ => {
                // SAFETY: the class says that it is a completion queue of ours.
                let queue: &cq::Handle = unsafe { behind(other.cast::<FidCq>(), CLASS_CQ) }?;
                Polled::Queue(Arc::clone(queue))
            }
            CLASS_CNTR => {
                // SAFETY: the class says that it is a counter of ours.
                let counter = unsafe { cntr::counter(other.cast()) }?;
                Polled::Counter(Arc::clone(counter))
            }
            _ => return Err(EINVAL),
        };
        if flags != 0 {
            return Err(EINVAL);
        }
        let mut members = set.members.lock().unwrap_or_else(PoisonError::into_inner);
        if members.iter().any(|(known, ..)| *known == other as usize) {
            return Err(EBUSY);
        }
        members.push((other as usize, *context as usize, member));
        Ok(())
    })
}

unsafe extern "C" fn poll_del(fid: *mut FidPoll, other: *mut Fid, flags: u64) -> c_int {
    status("fi_poll_del", || {
        // SAFETY: the table of poll sets alone leads here.
        let set: &PollSet = unsafe { behind(fid, CLASS_POLL) }?;
        let mut members = set.members.lock().unwrap_or_else(PoisonError::into_inner);
        let at = members.iter().position(|(known, ..)| *known == other as usize);
        let at = at.filter(|_| flags == 0).ok_or(EINVAL)?;
        members.remove(at);
        Ok(())
    })
}

/// A queue or a counter that was opened with a wait set.
pub(crate) enum Member {
    Queue(Weak<cq::Queue>),
    Counter(Weak<cntr::Counter>),
}

impl Member {
    fn is_open(&self) -> bool {
        match self {
            Member::Queue(queue) => queue.strong_count() > 0,
            Member::Counter(counter) => counter.strong_count() > 0,
        }
    }

    fn has_something(&self) -> bool {
        match self {
            Member::Queue(queue) => queue.upgrade().is_some_and(|queue| queue.is_ready()),
            Member::Counter(counter) => counter.upgrade().is_some_and(|counter| counter.has_changed()),
        }
    }

    fn prepare_sleep(&self) -> bool {
        match self {
            Member::Queue(queue) => queue.upgrade().is_none_or(|queue| queue.prepare_sleep()),
            Member::Counter(counter) => counter.upgrade().is_none_or(|counter| counter.prepare_sleep()),
        }
    }
}

/// The object behind a wait set.
pub(crate) struct WaitSet {
    /// Readable when the waker of a member is.
    epoll: Epoll,
    members: Mutex<Vec<Member>>,
    _fabric: fabric::Handle,
}

impl WaitSet {
    /// Takes a new member in. It leaves when it is closed.
    pub(crate) fn join(&self, member: Member, waker: &Waker) -> Result<()> {
        self.epoll.add(waker.fd(), readable()).map_err(failed)?;
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(Member::is_open);
        members.push(member);
        Ok(())
    }

    fn any(&self, what: impl Fn(&Member) -> bool) -> bool {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().any(what)
    }

    /// Whether a thread may sleep on the set's descriptor.
    pub(crate) fn prepare_sleep(&self) -> bool {
        !self.any(|member| !member.prepare_sleep())
    }
}

static WAIT_FID_OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: close_wait,
    bind: missing::bind,
    control: control_wait,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static WAIT_OPS: FiOpsWait = FiOpsWait { size: size_of::<FiOpsWait>(), wait };

pub(crate) unsafe extern "C" fn open_wait(
    fid: *mut FidFabric,
    attr: *mut FiWaitAttr,
    out: *mut *mut FidWait,
) -> c_int {
    status("fi_wait_open", || {
        // SAFETY: the table of fabrics alone leads here.
        let fabric: &fabric::Handle = unsafe { behind(fid, CLASS_FABRIC) }?;
        // SAFETY: the application's structure, or null for defaults.
        if let Some(attr) = unsafe { attr.as_ref() } {
            if attr.flags != 0 {
                return Err(EINVAL);
            }
            if !matches!(attr.wait_obj, WAIT_UNSPEC | WAIT_FD) {
                return Err(ENOSYS);
            }
        }
        let context = core::ptr::null_mut();
        let handle = FidWait {
            fid: Fid { fclass: CLASS_WAIT, context, ops: &raw const WAIT_FID_OPS },
            ops: &raw const WAIT_OPS,
        };
        let set = WaitSet { epoll: new_epoll()?, members: Mutex::default(), _fabric: Arc::clone(fabric) };
        // SAFETY: `FidWait` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle, set, out) }.map(|_| ())
    })
}

/// The wait set behind a handle.
///
/// # Safety
/// As for [`behind`].
pub(crate) unsafe fn set<'a>(fid: Opaque) -> Result<&'a WaitSet> {
    // SAFETY: as the caller says.
    unsafe { behind::<FidWait, WaitSet>(fid.cast(), CLASS_WAIT) }
}

unsafe extern "C" fn close_wait(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of wait sets alone.
        if unsafe { set(fid.cast()) }?.any(Member::is_open) {
            return Err(EBUSY);
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidWait, WaitSet>(fid) };
        Ok(())
    })
}

unsafe extern "C" fn control_wait(fid: *mut Fid, command: c_int, argument: Opaque) -> c_int {
    status("fi_control", || {
        // SAFETY: this table is that of wait sets alone.
        let set = unsafe { set(fid.cast()) }?;
        if argument.is_null() {
            return Err(EINVAL);
        }
        match command {
            // SAFETY: the application passes a place for a descriptor.
            CONTROL_GETWAIT => unsafe { argument.cast::<c_int>().write(set.epoll.0.as_raw_fd()) },
            // SAFETY: the application passes a place for a kind of wait object.
            CONTROL_GETWAITOBJ => unsafe { argument.cast::<u32>().write(WAIT_FD) },
            _ => return Err(ENOSYS),
        }
        Ok(())
    })
}

unsafe extern "C" fn wait(fid: *mut FidWait, timeout_ms: c_int) -> c_int {
    status("fi_wait", || {
        // SAFETY: the table of wait sets alone leads here.
        let set = unsafe { set(fid.cast()) }?;
        let started = Instant::now();
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        loop {
            if set.any(Member::has_something) {
                return Ok(());
            }
            let left = limit.map_or(WAIT_SLICE, |limit| limit - started.elapsed().min(limit));
            if left.is_zero() {
                return Err(Errno(libc::ETIMEDOUT));
            }
            if set.prepare_sleep() {
                sleep_on(set.epoll.0.as_fd(), left.min(WAIT_SLICE));
            }
        }
    })
}
