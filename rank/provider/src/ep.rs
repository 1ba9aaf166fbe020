//! fi_endpoint(3): the endpoint object: the objects bound to it, its options, and its engine once it is
//! enabled.

use core::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::abi::{
    CLASS_AV, CLASS_CNTR, CLASS_CQ, CLASS_DOMAIN, CLASS_EP, CLASS_EQ, CONTROL_ALIAS, CONTROL_ENABLE,
    CONTROL_GETOPSFLAG, CONTROL_SETOPSFLAG, Const, FiAlias, FiInfo, FiOps, FiOpsCm, FiOpsEp, Fid, FidCq,
    FidDomain, FidEp, OPT_CM_DATA_SIZE, OPT_ENDPOINT, OPT_MIN_MULTI_RECV, Opaque, errno, flag,
};
use crate::address::{ADDRESS_BYTES, Address, port_at, random_port};
use crate::av::put_address;
use crate::boundary::{
    EBUSY, EINVAL, ENOSYS, Errno, Result, behind, given, hand_out, length, missing, retire, status,
};
use crate::callflags::known;
use crate::engine::sinks::Sinks;
use crate::engine::{Engine, Opening};
use crate::identity::identity;
use crate::keeper::{Keeper, keeper};
use crate::limits::{CONTEXT_SIZE, MULTI_RECEIVE_FREE_MIN};
use crate::{atomic, av, callflags, cntr, cq, domain, msg, rma, tagged};

/// The object behind an endpoint.
pub(crate) struct EndpointObject {
    domain: domain::Handle,
    caps: u64,
    /// Where it was asked to receive.
    place: Option<SocketAddr>,
    /// Flags of calls that have none of their own.
    transmit_flags: AtomicU64,
    receive_flags: AtomicU64,
    multi_free_min: AtomicUsize,
    bound: Mutex<Bound>,
    engine: OnceLock<Arc<Engine>>,
    /// Held by each alias (fi_endpoint(3)), which has the same engine and flags of its own.
    aliases: Arc<()>,
    is_alias: bool,
}

#[derive(Default)]
struct Bound {
    vector: Option<av::Handle>,
    sinks: Sinks,
}

impl EndpointObject {
    /// The engine, once the endpoint is enabled.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>> {
        self.engine.get().ok_or(Errno(errno::EOPBADSTATE))
    }

    pub(crate) fn transmit_flags(&self) -> u64 {
        self.transmit_flags.load(Ordering::Relaxed)
    }

    pub(crate) fn receive_flags(&self) -> u64 {
        self.receive_flags.load(Ordering::Relaxed)
    }

    /// The least room in a buffer for several messages, if the flags ask for such a one.
    pub(crate) fn multi(&self, flags: u64) -> Option<usize> {
        (flags & flag::MULTI_RECV != 0).then(|| self.multi_free_min.load(Ordering::Relaxed))
    }

    fn enable(&self) -> Result<()> {
        if self.engine.get().is_some() {
            return Ok(());
        }
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let vector = bound.vector.clone().ok_or(Errno(errno::ENOAV))?;
        let sinks = &bound.sinks;
        let can = |caps: u64| self.caps & caps != 0;
        let lacks_transmit =
            sinks.transmit.queue.is_none() && sinks.sends.is_none() && sinks.writes.is_none();
        if can(flag::SEND) && lacks_transmit && sinks.receive.queue.is_none() {
            return Err(Errno(errno::ENOCQ));
        }
        let identity = identity().ok_or(Errno(libc::EACCES))?;
        let port = match self.place {
            Some(place) => port_at(place),
            None => keeper().map_or_else(random_port, Keeper::new_port),
        };
        let engine = Engine::open(Opening {
            identity: &identity,
            port,
            place: self.place,
            vector,
            regions: Arc::clone(&self.domain.regions),
            sinks: sinks.clone(),
            directed: can(flag::DIRECTED_RECV),
        })?;
        self.domain.join(&engine);
        if let Err(error) = join_all(sinks, &engine) {
            engine.close();
            leave_all(sinks, &engine);
            return Err(error);
        }
        self.engine.set(engine).map_err(|_| EBUSY)
    }

    fn disable(&self) {
        let Some(engine) = self.engine.get() else { return };
        engine.close();
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        leave_all(&bound.sinks, engine);
    }
}

/// Makes reads of these queues and counters progress the engine.
fn join_all(sinks: &Sinks, engine: &Arc<Engine>) -> Result<()> {
    for queue in sinks.queues() {
        queue.join(engine)?;
    }
    for counter in sinks.counters() {
        counter.join(engine)?;
    }
    Ok(())
}

fn leave_all(sinks: &Sinks, engine: &Arc<Engine>) {
    for queue in sinks.queues() {
        queue.leave(engine);
    }
    for counter in sinks.counters() {
        counter.leave(engine);
    }
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind,
    control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static EP_OPS: FiOpsEp = FiOpsEp {
    size: size_of::<FiOpsEp>(),
    cancel,
    getopt,
    setopt,
    tx_ctx,
    rx_ctx,
    rx_size_left,
    tx_size_left,
};

static CM_OPS: FiOpsCm = FiOpsCm {
    size: size_of::<FiOpsCm>(),
    setname,
    getname,
    getpeer,
    connect,
    listen,
    accept,
    reject,
    shutdown,
    join,
};

pub(crate) unsafe extern "C" fn open(
    fid: *mut FidDomain,
    info: *mut FiInfo,
    out: *mut *mut FidEp,
    context: Opaque,
) -> c_int {
    status("fi_endpoint", || {
        // SAFETY: the table of domains alone leads here.
        let domain: &domain::Handle = unsafe { behind(fid, CLASS_DOMAIN) }?;
        // SAFETY: the application passes an info that it took from `fi_getinfo`, whose parts may have been taken out.
        let (info, transmit, receive) = unsafe {
            let info = given(info)?;
            (info, info.tx_attr.as_ref(), info.rx_attr.as_ref())
        };
        let place = if info.src_addr.is_null() || info.src_addrlen < ADDRESS_BYTES {
            None
        } else {
            // SAFETY: the length says that an address of ours is there.
            let bytes = unsafe { &*info.src_addr.cast::<[u8; ADDRESS_BYTES]>() };
            Address::parse(bytes).and_then(|address| address.place()).filter(|place| place.port() != 0)
        };
        let object = EndpointObject {
            domain: Arc::clone(domain),
            caps: info.caps,
            place,
            transmit_flags: AtomicU64::new(known(
                transmit.map_or(0, |attr| attr.op_flags),
                callflags::TRANSMIT_DEFAULT,
            )?),
            receive_flags: AtomicU64::new(known(
                receive.map_or(0, |attr| attr.op_flags),
                callflags::RECEIVE_DEFAULT,
            )?),
            multi_free_min: AtomicUsize::new(MULTI_RECEIVE_FREE_MIN),
            bound: Mutex::default(),
            engine: OnceLock::new(),
            aliases: Arc::default(),
            is_alias: false,
        };
        // SAFETY: `FidEp` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle(context), object, out) }.map(|_| ())
    })
}

fn handle(context: Opaque) -> FidEp {
    FidEp {
        fid: Fid { fclass: CLASS_EP, context, ops: &raw const OPS },
        ops: &raw const EP_OPS,
        cm: &raw const CM_OPS,
        msg: &raw const msg::OPS,
        rma: &raw const rma::OPS,
        tagged: &raw const tagged::OPS,
        atomic: &raw const atomic::OPS,
        collective: core::ptr::null_mut(),
    }
}

impl EndpointObject {
    /// Another handle of an enabled endpoint, with other default flags for the calls of one direction.
    fn alias(&self, flags: u64) -> Result<EndpointObject> {
        let (transmit, receive) = match flags & (flag::SEND | flag::RECV) {
            flag::SEND => (default_flags(flags)?, self.receive_flags()),
            flag::RECV => (self.transmit_flags(), default_flags(flags)?),
            _ => return Err(EINVAL),
        };
        Ok(EndpointObject {
            domain: Arc::clone(&self.domain),
            caps: self.caps,
            place: self.place,
            transmit_flags: AtomicU64::new(transmit),
            receive_flags: AtomicU64::new(receive),
            multi_free_min: AtomicUsize::new(self.multi_free_min.load(Ordering::Relaxed)),
            bound: Mutex::default(),
            engine: OnceLock::from(Arc::clone(self.engine()?)),
            aliases: Arc::clone(&self.aliases),
            is_alias: true,
        })
    }
}

/// The flags for calls of one direction that have none of their own; `flags` names the direction besides.
fn default_flags(flags: u64) -> Result<u64> {
    let direction = flags & (flag::SEND | flag::RECV);
    let allowed =
        if direction == flag::SEND { callflags::TRANSMIT_DEFAULT } else { callflags::RECEIVE_DEFAULT };
    known(flags & !direction, allowed)
}

/// The endpoint behind a handle.
///
/// # Safety
/// As for [`behind`].
pub(crate) unsafe fn endpoint<'a>(fid: *mut FidEp) -> Result<&'a EndpointObject> {
    // SAFETY: as the caller says.
    unsafe { behind(fid, CLASS_EP) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of endpoints alone.
        let object = unsafe { endpoint(fid.cast()) }?;
        if !object.is_alias {
            if Arc::strong_count(&object.aliases) > 1 {
                return Err(EBUSY);
            }
            object.disable();
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidEp, EndpointObject>(fid) };
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    status("fi_ep_bind", || {
        // SAFETY: this table is that of endpoints alone.
        let object = unsafe { endpoint(fid.cast()) }?;
        if object.engine.get().is_some() {
            return Err(Errno(errno::EOPBADSTATE));
        }
        let mut bound = object.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let sinks = &mut bound.sinks;
        // SAFETY: every handle begins with a `fid`.
        match unsafe { given(other) }?.fclass {
            CLASS_CQ => {
                // SAFETY: the class says that it is a completion queue of ours.
                let queue: &cq::Handle = unsafe { behind(other.cast::<FidCq>(), CLASS_CQ) }?;
                if flags & !(flag::SEND | flag::RECV | flag::SELECTIVE_COMPLETION) != 0
                    || flags & (flag::SEND | flag::RECV) == 0
                {
                    return Err(Errno(errno::EBADFLAGS));
                }
                for (side, direction) in [(&mut sinks.transmit, flag::SEND), (&mut sinks.receive, flag::RECV)]
                {
                    if flags & direction != 0 {
                        if side.queue.is_some() {
                            return Err(EINVAL);
                        }
                        side.queue = Some(Arc::clone(queue));
                        side.selective = flags & flag::SELECTIVE_COMPLETION != 0;
                    }
                }
            }
            CLASS_CNTR => {
                // SAFETY: the class says that it is a counter of ours.
                let counter = unsafe { cntr::counter(other.cast()) }?;
                let kinds = [
                    (&mut sinks.sends, flag::SEND),
                    (&mut sinks.receives, flag::RECV),
                    (&mut sinks.reads, flag::READ),
                    (&mut sinks.writes, flag::WRITE),
                    (&mut sinks.remote_reads, flag::REMOTE_READ),
                    (&mut sinks.remote_writes, flag::REMOTE_WRITE),
                ];
                for (slot, kind) in kinds {
                    if flags & kind != 0 {
                        *slot = Some(Arc::clone(counter));
                    }
                }
            }
            CLASS_AV => {
                // SAFETY: the class says that it is an address vector of ours.
                bound.vector = Some(Arc::clone(unsafe { av::vector(other.cast()) }?));
            }
            // Nothing is reported through it.
            CLASS_EQ => {}
            _ => return Err(EINVAL),
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: Opaque) -> c_int {
    status("fi_control", || {
        // SAFETY: this table is that of endpoints alone.
        let object = unsafe { endpoint(fid.cast()) }?;
        match command {
            CONTROL_ENABLE => object.enable(),
            CONTROL_ALIAS => {
                // SAFETY: the application passes a `struct fi_alias` with a place for the handle.
                let (alias, context) = unsafe { (given(argument.cast::<FiAlias>())?, (*fid).context) };
                let other = object.alias(alias.flags)?;
                // SAFETY: `FidEp` begins with a `fid`; the place is the application's.
                unsafe { hand_out(handle(context), other, alias.fid.cast()) }.map(|_| ())
            }
            CONTROL_GETOPSFLAG | CONTROL_SETOPSFLAG => {
                // SAFETY: the application passes 64 bits of flags.
                let flags = unsafe { argument.cast::<u64>().as_mut() }.ok_or(EINVAL)?;
                let slot = match *flags & (flag::SEND | flag::RECV) {
                    flag::SEND => &object.transmit_flags,
                    flag::RECV => &object.receive_flags,
                    _ => return Err(EINVAL),
                };
                if command == CONTROL_GETOPSFLAG {
                    *flags = slot.load(Ordering::Relaxed);
                } else {
                    slot.store(default_flags(*flags)?, Ordering::Relaxed);
                }
                Ok(())
            }
            _ => Err(ENOSYS),
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: Opaque) -> isize {
    length("fi_cancel", || {
        // SAFETY: the table of endpoints alone leads here.
        let object = unsafe { endpoint(fid.cast()) }?;
        object.engine()?.cancel(context as usize);
        Ok(0)
    })
}

unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    name: c_int,
    value: Opaque,
    room: *mut usize,
) -> c_int {
    status("fi_getopt", || {
        // SAFETY: the table of endpoints alone leads here.
        let object = unsafe { endpoint(fid.cast()) }?;
        let found = match (level, name) {
            (OPT_ENDPOINT, OPT_MIN_MULTI_RECV) => object.multi_free_min.load(Ordering::Relaxed),
            (OPT_ENDPOINT, OPT_CM_DATA_SIZE) => 0,
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        // SAFETY: the application's place for the value, with its length.
        unsafe {
            let room = room.as_mut().ok_or(EINVAL)?;
            if core::mem::replace(room, size_of::<usize>()) < size_of::<usize>() {
                return Err(Errno(errno::ETOOSMALL));
            }
            value.cast::<usize>().as_mut().map(|value| *value = found).ok_or(EINVAL)
        }
    })
}

unsafe extern "C" fn setopt(fid: *mut Fid, level: c_int, name: c_int, value: Const, length: usize) -> c_int {
    status("fi_setopt", || {
        // SAFETY: the table of endpoints alone leads here.
        let object = unsafe { endpoint(fid.cast()) }?;
        if (level, name) != (OPT_ENDPOINT, OPT_MIN_MULTI_RECV) {
            return Err(Errno(libc::ENOPROTOOPT));
        }
        if length != size_of::<usize>() {
            return Err(EINVAL);
        }
        // SAFETY: the application's value of this length.
        let bytes = unsafe { value.cast::<usize>().as_ref() }.ok_or(EINVAL)?;
        object.multi_free_min.store(*bytes, Ordering::Relaxed);
        Ok(())
    })
}

unsafe extern "C" fn tx_ctx(_: *mut FidEp, _: c_int, _: Opaque, _: *mut *mut FidEp, _: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn rx_ctx(_: *mut FidEp, _: c_int, _: Opaque, _: *mut *mut FidEp, _: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn rx_size_left(_: *mut FidEp) -> isize {
    isize::try_from(CONTEXT_SIZE).unwrap_or(isize::MAX)
}

unsafe extern "C" fn tx_size_left(_: *mut FidEp) -> isize {
    isize::try_from(CONTEXT_SIZE).unwrap_or(isize::MAX)
}

unsafe extern "C" fn setname(_: *mut Fid, _: Opaque, _: usize) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn getname(fid: *mut Fid, out: Opaque, room: *mut usize) -> c_int {
    status("fi_getname", || {
        // SAFETY: the table of endpoints alone leads here.
        let object = unsafe { endpoint(fid.cast()) }?;
        let bytes = object.engine()?.address().emit();
        // SAFETY: the application's memory, as C promises for `fi_getname`.
        unsafe { put_address(&bytes, out, room) }
    })
}

unsafe extern "C" fn getpeer(_: *mut FidEp, _: Opaque, _: *mut usize) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn connect(_: *mut FidEp, _: Const, _: Const, _: usize) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn listen(_: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn accept(_: *mut FidEp, _: Const, _: usize) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn reject(_: Opaque, _: *mut Fid, _: Const, _: usize) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn shutdown(_: *mut FidEp, _: u64) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn join(_: *mut FidEp, _: Const, _: u64, _: *mut Opaque, _: Opaque) -> c_int {
    -ENOSYS.0
}
