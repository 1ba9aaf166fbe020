//! fi_cq(3): completion queues. Reading an empty one makes progress on every endpoint that is bound to it.

use core::ffi::{c_char, c_int};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use crate::abi::{
    CLASS_CQ, CLASS_DOMAIN, CONTROL_GETWAIT, CONTROL_GETWAITOBJ, CQ_COND_NONE, CQ_COND_THRESHOLD,
    CQ_FORMAT_CONTEXT, CQ_FORMAT_DATA, CQ_FORMAT_MSG, CQ_FORMAT_TAGGED, CQ_FORMAT_UNSPEC, Const, FiAddr,
    FiCqAttr, FiCqDataEntry, FiCqEntry, FiCqErrEntry, FiCqMsgEntry, FiCqTaggedEntry, FiOps, FiOpsCq, Fid,
    FidCq, FidDomain, Opaque, WAIT_FD, WAIT_NONE, WAIT_SET, WAIT_UNSPEC, WAIT_YIELD, errno, version,
};
use crate::boundary::{
    EAGAIN, EBUSY, EINVAL, ENOSYS, Errno, Result, behind, complain, hand_out, length, missing, put_text,
    retire, status,
};
use crate::domain;
use crate::engine::Engine;
use crate::limits::{CQ_ENTRIES, CQ_ENTRIES_MAX, WAIT_SLICE};
use crate::waitset::{self, Member};
use crate::waker::Waker;

/// A completion, as an engine reports it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The application's context of the operation.
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) bytes: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: FiAddr,
    /// Set if the operation failed.
    pub(crate) failure: Option<Failure>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) number: c_int,
    /// Bytes of the message that found no room.
    pub(crate) cut_bytes: usize,
}

impl Failure {
    /// The provider's own number. A message that is cut and of which nothing is missing is one of a lost peer (R37).
    fn detail(self) -> c_int {
        if self.number == errno::ETRUNC && self.cut_bytes == 0 { libc::EHOSTDOWN } else { self.number }
    }
}

/// The object behind a completion queue.
pub(crate) struct Queue {
    entries: Mutex<VecDeque<Entry>>,
    /// Length of `entries`, to look at without the lock.
    waiting: AtomicUsize,
    entries_max: usize,
    format: u32,
    engines: RwLock<Vec<Arc<Engine>>>,
    waker: Option<Waker>,
    /// A signal that came while no thread waited: the next one to wait takes it.
    signaled: AtomicBool,
    /// Signals so far: each ends the waits that were going on.
    signals: AtomicU64,
    /// Threads that wait.
    waiters: AtomicUsize,
    /// Waits are for as many entries as the call asks for.
    has_threshold: bool,
    /// Whether applications of this version know `src_addr` of error entries.
    knows_source: bool,
    _domain: domain::Handle,
}

pub(crate) type Handle = Arc<Queue>;

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for one more completion.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < self.entries_max
    }

    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = self.lock();
        entries.push_back(entry);
        self.waiting.store(entries.len(), Ordering::Release);
        if let Some(waker) = &self.waker
            && entries.len() == 1
        {
            waker.wake();
        }
    }

    /// An endpoint's completions come here.
    pub(crate) fn join(&self, engine: &Arc<Engine>) -> Result<()> {
        if let Some(waker) = &self.waker {
            waker.join(engine)?;
        }
        self.engines.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(engine));
        Ok(())
    }

    pub(crate) fn leave(&self, engine: &Arc<Engine>) {
        let mut engines = self.engines.write().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|other| !Arc::ptr_eq(other, engine));
        if let Some(waker) = &self.waker {
            waker.leave(engine);
        }
    }

    /// Whether a completion can be read, after a round of progress if none is waiting.
    pub(crate) fn is_ready(&self) -> bool {
        if self.waiting.load(Ordering::Acquire) == 0 {
            self.progress();
        }
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn progress(&self) {
        for engine in &*self.engines.read().unwrap_or_else(PoisonError::into_inner) {
            engine.progress();
        }
    }

    /// Whether a reader may sleep: nothing waits, here or at an endpoint.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.progress();
        let may = {
            let entries = self.lock();
            if entries.is_empty()
                && let Some(waker) = &self.waker
            {
                waker.clear();
            }
            entries.is_empty()
        };
        let engines = self.engines.read().unwrap_or_else(PoisonError::into_inner);
        may && engines.iter().all(|engine| engine.prepare_sleep())
    }

    /// Lets waiting completions into the queue, which has room again.
    #[cold]
    fn report_room(&self) {
        for engine in &*self.engines.read().unwrap_or_else(PoisonError::into_inner) {
            engine.has_room_again();
        }
    }

    fn entry_bytes(&self) -> usize {
        match self.format {
            CQ_FORMAT_MSG => size_of::<FiCqMsgEntry>(),
            CQ_FORMAT_DATA => size_of::<FiCqDataEntry>(),
            CQ_FORMAT_TAGGED => size_of::<FiCqTaggedEntry>(),
            _ => size_of::<FiCqEntry>(),
        }
    }

    /// # Safety
    /// `out` has room for one entry of the queue's format.
    unsafe fn put(&self, entry: &Entry, out: *mut u8) {
        let full = FiCqTaggedEntry {
            op_context: entry.context as Opaque,
            flags: entry.flags,
            len: entry.bytes,
            buf: entry.buffer as Opaque,
            data: entry.data,
            tag: entry.tag,
        };
        // SAFETY: each format is a beginning of the longest one, and as long as the caller has room for.
        unsafe { core::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), out, self.entry_bytes()) };
    }

    /// Takes entries up to the first failure.
    ///
    /// # Safety
    /// `out` has room for `count` entries of the queue's format, and `sources` for as many numbers, or is null.
    unsafe fn take(&self, out: Opaque, count: usize, sources: *mut FiAddr) -> Result<usize> {
        if out.is_null() && count > 0 {
            return Err(EINVAL);
        }
        if self.waiting.load(Ordering::Acquire) == 0 {
            self.progress();
            if self.waiting.load(Ordering::Acquire) == 0 {
                return Err(EAGAIN);
            }
        }
        let was_full = !self.has_room();
        let mut entries = self.lock();
        if entries.front().is_some_and(|entry| entry.failure.is_some()) {
            return Err(Errno(errno::EAVAIL));
        }
        let mut taken = 0;
        while taken < count
            && let Some(entry) = entries.pop_front_if(|entry| entry.failure.is_none())
        {
            // SAFETY: `taken < count`.
            unsafe {
                self.put(&entry, out.cast::<u8>().add(taken * self.entry_bytes()));
                if !sources.is_null() {
                    sources.add(taken).write(entry.source);
                }
            }
            taken += 1;
        }
        self.waiting.store(entries.len(), Ordering::Release);
        drop(entries);
        if was_full && taken > 0 {
            self.report_room();
        }
        if taken == 0 && count > 0 { Err(EAGAIN) } else { Ok(taken) }
    }

    /// Whether so many entries wait, or a failure that is read before there are.
    fn holds(&self, entries: usize) -> bool {
        if self.waiting.load(Ordering::Acquire) < entries {
            self.progress();
        }
        let waiting = self.lock();
        waiting.len() >= entries || waiting.iter().any(|entry| entry.failure.is_some())
    }

    /// As [`Queue::take`], after a sleep if fewer than `least` are there. When the time is over it takes the
    /// entries that are there.
    ///
    /// # Safety
    /// As for [`Queue::take`].
    unsafe fn wait(
        &self,
        out: Opaque,
        count: usize,
        sources: *mut FiAddr,
        least: usize,
        timeout_ms: c_int,
    ) -> Result<usize> {
        let started = Instant::now();
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let _waiter = Waiter::new(&self.waiters);
        let signals = self.signals.load(Ordering::SeqCst);
        let is_signaled = || self.signals.load(Ordering::SeqCst) != signals;
        loop {
            let over = limit.is_some_and(|limit| started.elapsed() >= limit);
            if least <= 1 || over || self.holds(least) {
                // SAFETY: as the caller says.
                match unsafe { self.take(out, count, sources) } {
                    Err(EAGAIN) => {}
                    other => return other,
                }
            }
            if over || is_signaled() || self.signaled.swap(false, Ordering::SeqCst) {
                return Err(EAGAIN);
            }
            let slice =
                limit.map_or(WAIT_SLICE, |limit| (limit - started.elapsed().min(limit)).min(WAIT_SLICE));
            match &self.waker {
                Some(waker) if self.prepare_sleep() => {
                    if is_signaled() {
                        // The silenced signal was for the other waiters, too.
                        waker.wake();
                    } else {
                        waker.sleep(slice);
                    }
                }
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Ends the waits that are going on, or the next one.
    fn signal(&self) {
        self.signals.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) == 0 {
            self.signaled.store(true, Ordering::SeqCst);
        }
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

/// A thread that waits, for as long as this lives.
struct Waiter<'a>(&'a AtomicUsize);

impl Waiter<'_> {
    fn new(waiters: &AtomicUsize) -> Waiter<'_> {
        waiters.fetch_add(1, Ordering::SeqCst);
        Waiter(waiters)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind: missing::bind,
    control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static CQ_OPS: FiOpsCq =
    FiOpsCq { size: size_of::<FiOpsCq>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

pub(crate) unsafe extern "C" fn open(
    fid: *mut FidDomain,
    attr: *mut FiCqAttr,
    out: *mut *mut FidCq,
    context: Opaque,
) -> c_int {
    status("fi_cq_open", || {
        // SAFETY: the table of domains alone leads here.
        let domain: &domain::Handle = unsafe { behind(fid, CLASS_DOMAIN) }?;
        // SAFETY: the application's structure, or null for defaults.
        let attr = unsafe { attr.as_mut() };
        let (size, format, wait, condition, place) = attr
            .as_ref()
            .map_or((0, CQ_FORMAT_UNSPEC, WAIT_NONE, CQ_COND_NONE, core::ptr::null_mut()), |attr| {
                (attr.size, attr.format, attr.wait_obj, attr.wait_cond, attr.wait_set)
            });
        if condition > CQ_COND_THRESHOLD {
            return Err(ENOSYS);
        }
        if size > CQ_ENTRIES_MAX {
            complain(format_args!(
                "a completion queue of {size} entries was asked for, the most is {CQ_ENTRIES_MAX}"
            ));
            return Err(EINVAL);
        }
        let waker = match wait {
            WAIT_NONE | WAIT_YIELD => None,
            WAIT_UNSPEC | WAIT_FD | WAIT_SET => Some(Waker::new()?),
            _ => return Err(ENOSYS),
        };
        // SAFETY: the application names a wait set, if it says so.
        let set = if wait == WAIT_SET { Some(unsafe { waitset::set(place) }?) } else { None };
        let format = match format {
            CQ_FORMAT_UNSPEC => CQ_FORMAT_CONTEXT,
            CQ_FORMAT_CONTEXT..=CQ_FORMAT_TAGGED => format,
            _ => return Err(EINVAL),
        };
        if let Some(attr) = attr {
            attr.format = format;
            attr.size = if size == 0 { CQ_ENTRIES } else { size };
        }
        let queue = Queue {
            entries: Mutex::default(),
            waiting: AtomicUsize::new(0),
            entries_max: size.max(CQ_ENTRIES),
            format,
            engines: RwLock::default(),
            waker,
            signaled: AtomicBool::new(false),
            signals: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            has_threshold: condition == CQ_COND_THRESHOLD,
            knows_source: domain.fabric.api_version >= version(1, 20),
            _domain: Arc::clone(domain),
        };
        let handle =
            FidCq { fid: Fid { fclass: CLASS_CQ, context, ops: &raw const OPS }, ops: &raw const CQ_OPS };
        let queue = Arc::new(queue);
        if let (Some(set), Some(waker)) = (set, &queue.waker) {
            set.join(Member::Queue(Arc::downgrade(&queue)), waker)?;
        }
        // SAFETY: `FidCq` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle, queue, out) }.map(|_| ())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of completion queues alone.
        let queue: &Handle = unsafe { behind(fid.cast::<FidCq>(), CLASS_CQ) }?;
        if Arc::strong_count(queue) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidCq, Handle>(fid) };
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: Opaque) -> c_int {
    status("fi_control", || {
        // SAFETY: this table is that of completion queues alone.
        let queue: &Handle = unsafe { behind(fid.cast::<FidCq>(), CLASS_CQ) }?;
        if argument.is_null() {
            return Err(EINVAL);
        }
        match (command, &queue.waker) {
            // SAFETY: the application passes a place for a descriptor.
            (CONTROL_GETWAIT, Some(waker)) => unsafe {
                argument.cast::<c_int>().write(waker.raw_fd());
            },
            // SAFETY: the application passes a place for a kind of wait object.
            (CONTROL_GETWAITOBJ, waker) => unsafe {
                argument.cast::<u32>().write(if waker.is_some() { WAIT_FD } else { WAIT_NONE });
            },
            _ => return Err(ENOSYS),
        }
        Ok(())
    })
}

unsafe extern "C" fn read(fid: *mut FidCq, out: Opaque, count: usize) -> isize {
    // SAFETY: as C promises for `fi_cq_read`.
    unsafe { readfrom(fid, out, count, core::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(fid: *mut FidCq, out: Opaque, count: usize, sources: *mut FiAddr) -> isize {
    length("fi_cq_read", || {
        // SAFETY: the table of completion queues alone leads here.
        let queue: &Handle = unsafe { behind(fid, CLASS_CQ) }?;
        // SAFETY: as C promises for `fi_cq_readfrom`.
        unsafe { queue.take(out, count, sources) }
    })
}

unsafe extern "C" fn sread(
    fid: *mut FidCq,
    out: Opaque,
    count: usize,
    cond: Const,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: as C promises for `fi_cq_sread`.
    unsafe { sreadfrom(fid, out, count, core::ptr::null_mut(), cond, timeout_ms) }
}

unsafe extern "C" fn sreadfrom(
    fid: *mut FidCq,
    out: Opaque,
    count: usize,
    sources: *mut FiAddr,
    condition: Const,
    timeout_ms: c_int,
) -> isize {
    length("fi_cq_sread", || {
        // SAFETY: the table of completion queues alone leads here.
        let queue: &Handle = unsafe { behind(fid, CLASS_CQ) }?;
        // More than the call has room for would never be read.
        let least = if queue.has_threshold { (condition as usize).min(count) } else { 1 };
        // SAFETY: as C promises for `fi_cq_sreadfrom`.
        unsafe { queue.wait(out, count, sources, least, timeout_ms) }
    })
}

unsafe extern "C" fn readerr(fid: *mut FidCq, out: *mut FiCqErrEntry, _flags: u64) -> isize {
    length("fi_cq_readerr", || {
        // SAFETY: the table of completion queues alone leads here.
        let queue: &Handle = unsafe { behind(fid, CLASS_CQ) }?;
        if out.is_null() {
            return Err(EINVAL);
        }
        let mut entries = queue.lock();
        let entry = entries.pop_front_if(|entry| entry.failure.is_some()).ok_or(EAGAIN)?;
        queue.waiting.store(entries.len(), Ordering::Release);
        let failure = entry.failure.unwrap_or(Failure { number: errno::EOTHER, cut_bytes: 0 });
        // SAFETY: the application's structure; its tail is written only for those whose structure has it.
        unsafe {
            (*out).op_context = entry.context as Opaque;
            (*out).flags = entry.flags;
            (*out).len = entry.bytes;
            (*out).buf = entry.buffer as Opaque;
            (*out).data = entry.data;
            (*out).tag = entry.tag;
            (*out).olen = failure.cut_bytes;
            (*out).err = failure.number;
            (*out).prov_errno = failure.detail();
            (*out).err_data_size = 0;
            if queue.knows_source {
                (*out).src_addr = entry.source;
            }
        }
        Ok(1)
    })
}

unsafe extern "C" fn signal(fid: *mut FidCq) -> c_int {
    status("fi_cq_signal", || {
        // SAFETY: the table of completion queues alone leads here.
        let queue: &Handle = unsafe { behind(fid, CLASS_CQ) }?;
        queue.signal();
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _: *mut FidCq,
    number: c_int,
    _: Const,
    out: *mut c_char,
    room: usize,
) -> *const c_char {
    let text = words(number);
    if let Ok(words) = text.to_str() {
        // SAFETY: the application's memory, as C promises for `fi_cq_strerror`.
        unsafe { put_text(words, out, room) };
    }
    text.as_ptr()
}

/// Why an operation has failed.
pub(crate) fn words(number: c_int) -> &'static core::ffi::CStr {
    match number {
        libc::ECONNABORTED => c"the link to the peer is inconsistent, and nothing goes over it any more",
        libc::EHOSTDOWN => c"the peer's process has ended, and the job goes on without it",
        libc::ECANCELED => c"the operation was cancelled",
        libc::ENOMSG => c"no message waits",
        libc::EACCES => c"the memory region does not grant this access",
        libc::EINVAL => c"the place lies outside of the memory region",
        libc::EFAULT => c"the peer has no memory at this address, or none for this access",
        errno::ETRUNC => c"the message was longer than the buffer",
        errno::ENOKEY => c"the peer has no memory region with this key",
        _ => c"the operation failed",
    }
}
