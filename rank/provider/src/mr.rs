//! fi_mr(3): memory that peers may read and write. It is read and written by this process's own progress, never by a peer.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use libc::iovec;

use crate::abi::{
    CLASS_CNTR, CLASS_DOMAIN, CLASS_EP, CLASS_MR, Const, FiMrAttr, FiOps, FiOpsMr, Fid, FidCntr, FidDomain,
    FidMr, Opaque, flag,
};
use crate::boundary::{EINVAL, Result, behind, given, hand_out, missing, retire, status};
use crate::callflags::{self, known};
use crate::engine::regions::Region;
use crate::limits::REGION_CLOSE_MAX;
use crate::{cntr, domain};

/// The object behind a memory region.
pub(crate) struct Registered {
    domain: domain::Handle,
    region: Arc<Region>,
}

static MR_OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind,
    control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

pub(crate) static OPS: FiOpsMr = FiOpsMr { size: size_of::<FiOpsMr>(), reg, regv, regattr };

unsafe extern "C" fn reg(
    fid: *mut Fid,
    start: Const,
    bytes: usize,
    access: u64,
    _offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut FidMr,
    context: Opaque,
) -> c_int {
    status("fi_mr_reg", || {
        known(flags, callflags::REGISTER)?;
        // SAFETY: as C promises for `fi_mr_reg`.
        unsafe { register(fid, start, bytes, access, key, out, context) }
    })
}

unsafe extern "C" fn regv(
    fid: *mut Fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut FidMr,
    context: Opaque,
) -> c_int {
    status("fi_mr_regv", || {
        known(flags, callflags::REGISTER)?;
        if count != 1 {
            return Err(EINVAL);
        }
        // SAFETY: as C promises for `fi_mr_regv`.
        unsafe {
            let part = given(iov)?;
            register(fid, part.iov_base, part.iov_len, access, key, out, context)
        }
    })
}

unsafe extern "C" fn regattr(
    fid: *mut Fid,
    attr: *const FiMrAttr,
    flags: u64,
    out: *mut *mut FidMr,
) -> c_int {
    status("fi_mr_regattr", || {
        known(flags, callflags::REGISTER)?;
        // Only the fields that all versions have are read.
        // SAFETY: as C promises for `fi_mr_regattr`; fields are read one by one, behind the end of an older structure nothing.
        unsafe {
            if attr.is_null() || (*attr).iov_count != 1 {
                return Err(EINVAL);
            }
            let part = given((*attr).mr_iov)?;
            let (start, bytes) = (part.iov_base, part.iov_len);
            register(fid, start, bytes, (*attr).access, (*attr).requested_key, out, (*attr).context)
        }
    })
}

/// # Safety
/// `fid` is a domain of ours; the memory stays valid for the kinds of access that are granted until the region is closed.
unsafe fn register(
    fid: *mut Fid,
    start: Const,
    bytes: usize,
    access: u64,
    key: u64,
    out: *mut *mut FidMr,
    context: Opaque,
) -> Result<()> {
    // SAFETY: the table of memory calls is the domain's alone.
    let domain: &domain::Handle = unsafe { behind(fid.cast::<FidDomain>(), CLASS_DOMAIN) }?;
    let region = domain.regions.register(start as usize, bytes, access, key)?;
    let (key, regions) = (region.key, &domain.regions);
    let handle = FidMr {
        fid: Fid { fclass: CLASS_MR, context, ops: &raw const MR_OPS },
        // Nothing of a local buffer has to be described.
        mem_desc: core::ptr::null_mut(),
        key,
    };
    let registered = Registered { domain: Arc::clone(domain), region: Arc::clone(&region) };
    // SAFETY: `FidMr` begins with a `fid`; `out` is the application's.
    let handed = unsafe { hand_out(handle, registered, out) };
    if handed.is_err() {
        regions.remove(&region);
    }
    handed.map(|_| ())
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of memory regions alone.
        let registered: &Registered = unsafe { behind(fid.cast::<FidMr>(), CLASS_MR) }?;
        registered.domain.regions.remove(&registered.region);
        // A peer's request may be half-way: the memory is the application's again only when that is over. The
        // helper thread makes progress meanwhile.
        let started = Instant::now();
        while registered.region.is_in_use() {
            if started.elapsed() > REGION_CLOSE_MAX {
                cut_off(registered);
                break;
            }
            std::thread::yield_now();
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidMr, Registered>(fid) };
        Ok(())
    })
}

fn cut_off(registered: &Registered) {
    let writes: usize =
        registered.domain.engines().iter().map(|engine| engine.cut_off_writes(&registered.region)).sum();
    crate::boundary::complain(format_args!(
        "memory region {:#x} is closed although {writes} writes of peers into it had not ended after {REGION_CLOSE_MAX:?}: they are cut off",
        registered.region.key
    ));
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    status("fi_mr_bind", || {
        // SAFETY: this table is that of memory regions alone.
        let registered: &Registered = unsafe { behind(fid.cast::<FidMr>(), CLASS_MR) }?;
        // SAFETY: every handle begins with a `fid`.
        match unsafe { given(other) }?.fclass {
            CLASS_CNTR if flags & flag::REMOTE_WRITE != 0 => {
                // SAFETY: the class says that it is a counter of ours.
                let counter = unsafe { cntr::counter(other.cast::<FidCntr>()) }?;
                registered.region.count_writes(Arc::clone(counter))
            }
            // A region serves all endpoints of its domain.
            CLASS_EP => Ok(()),
            _ => Err(EINVAL),
        }
    })
}

/// `FI_ENABLE` and `FI_REFRESH` have nothing to do: regions work from the first moment.
unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: Opaque) -> c_int {
    match command {
        crate::abi::CONTROL_ENABLE | crate::abi::CONTROL_REFRESH => 0,
        _ => -libc::ENOSYS,
    }
}
