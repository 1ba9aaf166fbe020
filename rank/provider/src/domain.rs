//! fi_domain(3): the domain object, which owns memory regions, and from which everything else comes.

use core::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::abi::{
    CLASS_DOMAIN, CLASS_FABRIC, FiAtomicAttr, FiInfo, FiOps, FiOpsDomain, Fid, FidDomain, FidEp, FidFabric,
    MR_BASIC, MR_PROV_KEY, MR_VIRT_ADDR, Opaque,
};
use crate::boundary::{EBUSY, EINVAL, ENOSYS, behind, given, hand_out, missing, retire, status};
use crate::engine::Engine;
use crate::engine::regions::Regions;
use crate::{atomic, av, cntr, cq, ep, fabric, mr, waitset};

/// The object behind a domain.
pub(crate) struct Domain {
    pub(crate) fabric: fabric::Handle,
    pub(crate) regions: Arc<Regions>,
    /// Its enabled endpoints, which write for peers into its regions.
    engines: Mutex<Vec<Weak<Engine>>>,
}

impl Domain {
    pub(crate) fn join(&self, engine: &Arc<Engine>) {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(engine));
    }

    pub(crate) fn engines(&self) -> Vec<Arc<Engine>> {
        let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.iter().filter_map(Weak::upgrade).collect()
    }
}

pub(crate) type Handle = Arc<Domain>;

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind: missing::bind,
    control: missing::control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static DOMAIN_OPS: FiOpsDomain = FiOpsDomain {
    size: size_of::<FiOpsDomain>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep,
    cntr_open: cntr::open,
    poll_open: waitset::open_poll,
    stx_ctx,
    srx_ctx,
    query_atomic,
    query_collective,
    endpoint2,
};

/// `fi_ops_fabric::domain`.
///
/// # Safety
/// As libfabric promises for `fi_domain`.
pub(crate) unsafe fn open(
    fid: *mut FidFabric,
    info: *mut FiInfo,
    out: *mut *mut FidDomain,
    context: Opaque,
) -> c_int {
    status("fi_domain", || {
        // SAFETY: the table of fabrics alone leads here.
        let fabric: &fabric::Handle = unsafe { behind(fid, CLASS_FABRIC) }?;
        // SAFETY: the application passes an info that it took from `fi_getinfo`.
        let info = unsafe { given(info) }?;
        let attr = info.domain_attr;
        // SAFETY: as above; the part may be missing, and shorter than ours if an older libfabric has made it: one field is read that all have.
        let mode = if attr.is_null() { 0 } else { unsafe { (&raw const (*attr).mr_mode).read() } };
        let mode = if mode == MR_BASIC { MR_VIRT_ADDR | MR_PROV_KEY } else { mode };
        let regions = Arc::new(Regions::new(mode & MR_VIRT_ADDR != 0, mode & MR_PROV_KEY != 0));
        let fid = FidDomain {
            fid: Fid { fclass: CLASS_DOMAIN, context, ops: &raw const OPS },
            ops: &raw const DOMAIN_OPS,
            mr: &raw const mr::OPS,
        };
        let domain = Arc::new(Domain { fabric: Arc::clone(fabric), regions, engines: Mutex::default() });
        // SAFETY: `FidDomain` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(fid, domain, out) }.map(|_| ())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of domains alone.
        let domain: &Handle = unsafe { behind(fid.cast::<FidDomain>(), CLASS_DOMAIN) }?;
        if Arc::strong_count(domain) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidDomain, Handle>(fid) };
        Ok(())
    })
}

unsafe extern "C" fn endpoint2(
    fid: *mut FidDomain,
    info: *mut FiInfo,
    out: *mut *mut FidEp,
    flags: u64,
    context: Opaque,
) -> c_int {
    if flags != 0 {
        return -EINVAL.0;
    }
    // SAFETY: the arguments are passed on as they came.
    unsafe { ep::open(fid, info, out, context) }
}

unsafe extern "C" fn scalable_ep(_: *mut FidDomain, _: *mut FiInfo, _: *mut *mut FidEp, _: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn stx_ctx(_: *mut FidDomain, _: Opaque, _: *mut Opaque, _: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn srx_ctx(_: *mut FidDomain, _: Opaque, _: *mut *mut FidEp, _: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn query_collective(_: *mut FidDomain, _: u32, _: Opaque, _: u64) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn query_atomic(
    _: *mut FidDomain,
    datatype: u32,
    op: u32,
    attr: *mut FiAtomicAttr,
    flags: u64,
) -> c_int {
    status("fi_query_atomic", || {
        let (count, size) = atomic::offered(datatype, op, flags)?;
        // SAFETY: the application's structure, to be filled.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        (attr.count, attr.size) = (count, size);
        Ok(())
    })
}
