//! fi_fabric(3): the fabric object, from which domains and event queues come.

use core::ffi::c_int;
use std::sync::Arc;

use crate::abi::{
    CLASS_CNTR, CLASS_CQ, CLASS_FABRIC, CLASS_WAIT, FiFabricAttr, FiInfo, FiOps, FiOpsFabric, Fid, FidCq,
    FidDomain, FidFabric, Opaque,
};
use crate::boundary::{EAGAIN, EBUSY, EINVAL, ENOSYS, behind, given, hand_out, missing, retire, status};
use crate::{cntr, cq, domain, eq, waitset};

/// The object behind a fabric.
pub(crate) struct Fabric {
    /// Interface version of the application, which decides the members of structures that it knows.
    pub(crate) api_version: u32,
}

pub(crate) type Handle = Arc<Fabric>;

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind: missing::bind,
    control: missing::control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static FABRIC_OPS: FiOpsFabric = FiOpsFabric {
    size: size_of::<FiOpsFabric>(),
    domain: open_domain,
    passive_ep,
    eq_open: eq::open,
    wait_open: waitset::open_wait,
    trywait,
    domain2,
};

/// `fi_provider::fabric`.
pub(crate) unsafe extern "C" fn fabric(
    attr: *mut FiFabricAttr,
    out: *mut *mut FidFabric,
    context: Opaque,
) -> c_int {
    status("fi_fabric", || {
        // SAFETY: libfabric passes the attributes that the application took from `fi_getinfo`.
        let attr = unsafe { given(attr) }?;
        let api_version = attr.api_version;
        let fid = FidFabric {
            fid: Fid { fclass: CLASS_FABRIC, context, ops: &raw const OPS },
            ops: &raw const FABRIC_OPS,
            api_version,
        };
        // SAFETY: `FidFabric` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(fid, Arc::new(Fabric { api_version }), out) }.map(|_| ())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of fabrics alone.
        let fabric: &Handle = unsafe { behind(fid.cast::<FidFabric>(), CLASS_FABRIC) }?;
        if Arc::strong_count(fabric) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidFabric, Handle>(fid) };
        Ok(())
    })
}

unsafe extern "C" fn open_domain(
    fid: *mut FidFabric,
    info: *mut FiInfo,
    out: *mut *mut FidDomain,
    context: Opaque,
) -> c_int {
    // SAFETY: the arguments are passed on as they came.
    unsafe { domain::open(fid, info, out, context) }
}

unsafe extern "C" fn domain2(
    fid: *mut FidFabric,
    info: *mut FiInfo,
    out: *mut *mut FidDomain,
    flags: u64,
    context: Opaque,
) -> c_int {
    if flags != 0 {
        return -EINVAL.0;
    }
    // SAFETY: the arguments are passed on as they came.
    unsafe { domain::open(fid, info, out, context) }
}

unsafe extern "C" fn passive_ep(_: *mut FidFabric, _: *mut FiInfo, _: *mut Opaque, _: Opaque) -> c_int {
    -ENOSYS.0
}

/// fi_poll(3): whether the application may sleep on the descriptors of these objects.
unsafe extern "C" fn trywait(_: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    status("fi_trywait", || {
        for i in 0..usize::try_from(count).map_err(|_| EINVAL)? {
            // SAFETY: the application passes `count` handles.
            let fid = unsafe { *given(fids.add(i))? };
            // SAFETY: every handle begins with a `fid`.
            let may = match unsafe { given(fid) }?.fclass {
                // SAFETY: the class says that it is a completion queue of ours.
                CLASS_CQ => unsafe { behind::<FidCq, cq::Handle>(fid.cast(), CLASS_CQ) }?.prepare_sleep(),
                // SAFETY: the class says that it is a counter of ours.
                CLASS_CNTR => unsafe { cntr::counter(fid.cast()) }?.prepare_sleep(),
                // SAFETY: the class says that it is a wait set of ours.
                CLASS_WAIT => unsafe { waitset::set(fid.cast()) }?.prepare_sleep(),
                _ => true,
            };
            if !may {
                return Err(EAGAIN);
            }
        }
        Ok(())
    })
}
