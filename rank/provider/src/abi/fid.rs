//! The objects of the interface: each begins with a `fid`, and points at the tables of its calls.

use super::{
    FiOps, FiOpsAtomic, FiOpsAv, FiOpsCm, FiOpsCntr, FiOpsCq, FiOpsDomain, FiOpsEp, FiOpsEq, FiOpsFabric,
    FiOpsMr, FiOpsMsg, FiOpsPoll, FiOpsRma, FiOpsTagged, FiOpsWait, Opaque, c_struct,
};

/// Classes of objects.
pub const CLASS_UNSPEC: usize = 0;
pub const CLASS_FABRIC: usize = 1;
pub const CLASS_DOMAIN: usize = 2;
pub const CLASS_EP: usize = 3;
pub const CLASS_AV: usize = 11;
pub const CLASS_MR: usize = 12;
pub const CLASS_EQ: usize = 13;
pub const CLASS_CQ: usize = 14;
pub const CLASS_CNTR: usize = 15;
pub const CLASS_WAIT: usize = 16;
pub const CLASS_POLL: usize = 17;

c_struct! { Fid = "fid", 24 {
    fclass: usize,
    context: Opaque,
    ops: *const FiOps,
} }

c_struct! { FidFabric = "fid_fabric", 40 {
    fid: Fid,
    ops: *const FiOpsFabric,
    api_version: u32,
} }

c_struct! { FidDomain = "fid_domain", 40 {
    fid: Fid,
    ops: *const FiOpsDomain,
    mr: *const FiOpsMr,
} }

c_struct! { FidEp = "fid_ep", 80 {
    fid: Fid,
    ops: *const FiOpsEp,
    cm: *const FiOpsCm,
    msg: *const FiOpsMsg,
    rma: *const FiOpsRma,
    tagged: *const FiOpsTagged,
    atomic: *const FiOpsAtomic,
    collective: Opaque,
} }

c_struct! { FidAv = "fid_av", 32 {
    fid: Fid,
    ops: *const FiOpsAv,
} }

c_struct! { FidMr = "fid_mr", 40 {
    fid: Fid,
    mem_desc: Opaque,
    key: u64,
} }

c_struct! { FidEq = "fid_eq", 32 {
    fid: Fid,
    ops: *const FiOpsEq,
} }

c_struct! { FidCq = "fid_cq", 32 {
    fid: Fid,
    ops: *const FiOpsCq,
} }

c_struct! { FidCntr = "fid_cntr", 32 {
    fid: Fid,
    ops: *const FiOpsCntr,
} }

c_struct! { FidWait = "fid_wait", 32 {
    fid: Fid,
    ops: *const FiOpsWait,
} }

c_struct! { FidPoll = "fid_poll", 32 {
    fid: Fid,
    ops: *const FiOpsPoll,
} }

c_struct! { FiAlias = "fi_alias", 16 {
    fid: *mut *mut Fid,
    flags: u64,
} }

/// Commands of `fi_control`.
pub const CONTROL_GETOPSFLAG: core::ffi::c_int = 2;
pub const CONTROL_SETOPSFLAG: core::ffi::c_int = 3;
pub const CONTROL_ALIAS: core::ffi::c_int = 4;
pub const CONTROL_GETWAIT: core::ffi::c_int = 5;
pub const CONTROL_ENABLE: core::ffi::c_int = 6;
pub const CONTROL_REFRESH: core::ffi::c_int = 14;
pub const CONTROL_GETWAITOBJ: core::ffi::c_int = 16;

/// Options of an endpoint.
pub const OPT_ENDPOINT: core::ffi::c_int = 0;
pub const OPT_MIN_MULTI_RECV: core::ffi::c_int = 0;
pub const OPT_CM_DATA_SIZE: core::ffi::c_int = 1;
