//! The tables of calls. A provider fills every slot: libfabric's inline wrappers call without looking. The pointers are
//! therefore no options, and a table that lacks one does not compile.

use core::ffi::{c_char, c_int};

use libc::iovec;

use super::{
    FiAddr, FiAtomicAttr, FiAvAttr, FiCntrAttr, FiCqAttr, FiCqErrEntry, FiEqAttr, FiEqErrEntry, FiFabricAttr,
    FiInfo, FiIoc, FiMrAttr, FiMsg, FiMsgAtomic, FiMsgRma, FiMsgTagged, FiPollAttr, FiWaitAttr, Fid, FidAv,
    FidCntr, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidMr, FidPoll, FidWait, Opaque, c_struct,
};

/// `const void *`.
pub type Const = *const core::ffi::c_void;

c_struct! { FiOps = "fi_ops", 56 {
    size: usize,
    close: unsafe extern "C" fn(*mut Fid) -> c_int,
    bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut Fid, c_int, Opaque) -> c_int,
    ops_open: unsafe extern "C" fn(*mut Fid, *const c_char, u64, *mut Opaque, Opaque) -> c_int,
    tostr: unsafe extern "C" fn(*const Fid, *mut c_char, usize) -> c_int,
    ops_set: unsafe extern "C" fn(*mut Fid, *const c_char, u64, Opaque, Opaque) -> c_int,
} }

c_struct! { FiOpsFabric = "fi_ops_fabric", 56 {
    size: usize,
    domain: unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut FidDomain, Opaque) -> c_int,
    passive_ep: unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut Opaque, Opaque) -> c_int,
    eq_open: unsafe extern "C" fn(*mut FidFabric, *mut FiEqAttr, *mut *mut FidEq, Opaque) -> c_int,
    wait_open: unsafe extern "C" fn(*mut FidFabric, *mut FiWaitAttr, *mut *mut FidWait) -> c_int,
    trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    domain2: unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut FidDomain, u64, Opaque) -> c_int,
} }

c_struct! { FiOpsDomain = "fi_ops_domain", 96 {
    size: usize,
    av_open: unsafe extern "C" fn(*mut FidDomain, *mut FiAvAttr, *mut *mut FidAv, Opaque) -> c_int,
    cq_open: unsafe extern "C" fn(*mut FidDomain, *mut FiCqAttr, *mut *mut FidCq, Opaque) -> c_int,
    endpoint: unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, Opaque) -> c_int,
    scalable_ep: unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, Opaque) -> c_int,
    cntr_open: unsafe extern "C" fn(*mut FidDomain, *mut FiCntrAttr, *mut *mut FidCntr, Opaque) -> c_int,
    poll_open: unsafe extern "C" fn(*mut FidDomain, *mut FiPollAttr, *mut *mut FidPoll) -> c_int,
    stx_ctx: unsafe extern "C" fn(*mut FidDomain, Opaque, *mut Opaque, Opaque) -> c_int,
    srx_ctx: unsafe extern "C" fn(*mut FidDomain, Opaque, *mut *mut FidEp, Opaque) -> c_int,
    query_atomic: unsafe extern "C" fn(*mut FidDomain, u32, u32, *mut FiAtomicAttr, u64) -> c_int,
    query_collective: unsafe extern "C" fn(*mut FidDomain, u32, Opaque, u64) -> c_int,
    endpoint2: unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, u64, Opaque) -> c_int,
} }

c_struct! { FiOpsWait = "fi_ops_wait", 16 {
    size: usize,
    wait: unsafe extern "C" fn(*mut FidWait, c_int) -> c_int,
} }

c_struct! { FiOpsPoll = "fi_ops_poll", 32 {
    size: usize,
    poll: unsafe extern "C" fn(*mut FidPoll, *mut Opaque, c_int) -> c_int,
    poll_add: unsafe extern "C" fn(*mut FidPoll, *mut Fid, u64) -> c_int,
    poll_del: unsafe extern "C" fn(*mut FidPoll, *mut Fid, u64) -> c_int,
} }

c_struct! { FiOpsMr = "fi_ops_mr", 32 {
    size: usize,
    reg: unsafe extern "C" fn(*mut Fid, Const, usize, u64, u64, u64, u64, *mut *mut FidMr, Opaque) -> c_int,
    regv: unsafe extern "C" fn(*mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut FidMr, Opaque) -> c_int,
    regattr: unsafe extern "C" fn(*mut Fid, *const FiMrAttr, u64, *mut *mut FidMr) -> c_int,
} }

c_struct! { FiOpsEp = "fi_ops_ep", 64 {
    size: usize,
    cancel: unsafe extern "C" fn(*mut Fid, Opaque) -> isize,
    getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Opaque, *mut usize) -> c_int,
    setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Const, usize) -> c_int,
    tx_ctx: unsafe extern "C" fn(*mut FidEp, c_int, Opaque, *mut *mut FidEp, Opaque) -> c_int,
    rx_ctx: unsafe extern "C" fn(*mut FidEp, c_int, Opaque, *mut *mut FidEp, Opaque) -> c_int,
    rx_size_left: unsafe extern "C" fn(*mut FidEp) -> isize,
    tx_size_left: unsafe extern "C" fn(*mut FidEp) -> isize,
} }

c_struct! { FiOpsCm = "fi_ops_cm", 80 {
    size: usize,
    setname: unsafe extern "C" fn(*mut Fid, Opaque, usize) -> c_int,
    getname: unsafe extern "C" fn(*mut Fid, Opaque, *mut usize) -> c_int,
    getpeer: unsafe extern "C" fn(*mut FidEp, Opaque, *mut usize) -> c_int,
    connect: unsafe extern "C" fn(*mut FidEp, Const, Const, usize) -> c_int,
    listen: unsafe extern "C" fn(Opaque) -> c_int,
    accept: unsafe extern "C" fn(*mut FidEp, Const, usize) -> c_int,
    reject: unsafe extern "C" fn(Opaque, *mut Fid, Const, usize) -> c_int,
    shutdown: unsafe extern "C" fn(*mut FidEp, u64) -> c_int,
    join: unsafe extern "C" fn(*mut FidEp, Const, u64, *mut Opaque, Opaque) -> c_int,
} }

c_struct! { FiOpsMsg = "fi_ops_msg", 80 {
    size: usize,
    recv: unsafe extern "C" fn(*mut FidEp, Opaque, usize, Opaque, FiAddr, Opaque) -> isize,
    recvv: unsafe extern "C" fn(*mut FidEp, *const iovec, *mut Opaque, usize, FiAddr, Opaque) -> isize,
    recvmsg: unsafe extern "C" fn(*mut FidEp, *const FiMsg, u64) -> isize,
    send: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, FiAddr, Opaque) -> isize,
    sendv: unsafe extern "C" fn(*mut FidEp, *const iovec, *mut Opaque, usize, FiAddr, Opaque) -> isize,
    sendmsg: unsafe extern "C" fn(*mut FidEp, *const FiMsg, u64) -> isize,
    inject: unsafe extern "C" fn(*mut FidEp, Const, usize, FiAddr) -> isize,
    senddata: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, u64, FiAddr, Opaque) -> isize,
    injectdata: unsafe extern "C" fn(*mut FidEp, Const, usize, u64, FiAddr) -> isize,
} }

c_struct! { FiOpsTagged = "fi_ops_tagged", 80 {
    size: usize,
    recv: unsafe extern "C" fn(*mut FidEp, Opaque, usize, Opaque, FiAddr, u64, u64, Opaque) -> isize,
    recvv: unsafe extern "C" fn(*mut FidEp, *const iovec, *mut Opaque, usize, FiAddr, u64, u64, Opaque) -> isize,
    recvmsg: unsafe extern "C" fn(*mut FidEp, *const FiMsgTagged, u64) -> isize,
    send: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, FiAddr, u64, Opaque) -> isize,
    sendv: unsafe extern "C" fn(*mut FidEp, *const iovec, *mut Opaque, usize, FiAddr, u64, Opaque) -> isize,
    sendmsg: unsafe extern "C" fn(*mut FidEp, *const FiMsgTagged, u64) -> isize,
    inject: unsafe extern "C" fn(*mut FidEp, Const, usize, FiAddr, u64) -> isize,
    senddata: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, u64, FiAddr, u64, Opaque) -> isize,
    injectdata: unsafe extern "C" fn(*mut FidEp, Const, usize, u64, FiAddr, u64) -> isize,
} }

c_struct! { FiOpsRma = "fi_ops_rma", 80 {
    size: usize,
    read: unsafe extern "C" fn(*mut FidEp, Opaque, usize, Opaque, FiAddr, u64, u64, Opaque) -> isize,
    readv: unsafe extern "C" fn(*mut FidEp, *const iovec, *mut Opaque, usize, FiAddr, u64, u64, Opaque) -> isize,
    readmsg: unsafe extern "C" fn(*mut FidEp, *const FiMsgRma, u64) -> isize,
    write: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, FiAddr, u64, u64, Opaque) -> isize,
    writev: unsafe extern "C" fn(*mut FidEp, *const iovec, *mut Opaque, usize, FiAddr, u64, u64, Opaque) -> isize,
    writemsg: unsafe extern "C" fn(*mut FidEp, *const FiMsgRma, u64) -> isize,
    inject: unsafe extern "C" fn(*mut FidEp, Const, usize, FiAddr, u64, u64) -> isize,
    writedata: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, u64, FiAddr, u64, u64, Opaque) -> isize,
    injectdata: unsafe extern "C" fn(*mut FidEp, Const, usize, u64, FiAddr, u64, u64) -> isize,
} }

c_struct! { FiOpsAtomic = "fi_ops_atomic", 112 {
    size: usize,
    write: unsafe extern "C" fn(*mut FidEp, Const, usize, Opaque, FiAddr, u64, u64, u32, u32, Opaque) -> isize,
    writev: unsafe extern "C" fn(
        *mut FidEp, *const FiIoc, *mut Opaque, usize, FiAddr, u64, u64, u32, u32, Opaque,
    ) -> isize,
    writemsg: unsafe extern "C" fn(*mut FidEp, *const FiMsgAtomic, u64) -> isize,
    inject: unsafe extern "C" fn(*mut FidEp, Const, usize, FiAddr, u64, u64, u32, u32) -> isize,
    readwrite: unsafe extern "C" fn(
        *mut FidEp, Const, usize, Opaque, Opaque, Opaque, FiAddr, u64, u64, u32, u32, Opaque,
    ) -> isize,
    readwritev: unsafe extern "C" fn(
        *mut FidEp, *const FiIoc, *mut Opaque, usize, *mut FiIoc, *mut Opaque, usize,
        FiAddr, u64, u64, u32, u32, Opaque,
    ) -> isize,
    readwritemsg: unsafe extern "C" fn(
        *mut FidEp, *const FiMsgAtomic, *mut FiIoc, *mut Opaque, usize, u64,
    ) -> isize,
    compwrite: unsafe extern "C" fn(
        *mut FidEp, Const, usize, Opaque, Const, Opaque, Opaque, Opaque, FiAddr, u64, u64, u32, u32, Opaque,
    ) -> isize,
    compwritev: unsafe extern "C" fn(
        *mut FidEp, *const FiIoc, *mut Opaque, usize, *const FiIoc, *mut Opaque, usize, *mut FiIoc, *mut Opaque,
        usize, FiAddr, u64, u64, u32, u32, Opaque,
    ) -> isize,
    compwritemsg: unsafe extern "C" fn(
        *mut FidEp, *const FiMsgAtomic, *const FiIoc, *mut Opaque, usize, *mut FiIoc, *mut Opaque, usize, u64,
    ) -> isize,
    writevalid: unsafe extern "C" fn(*mut FidEp, u32, u32, *mut usize) -> c_int,
    readwritevalid: unsafe extern "C" fn(*mut FidEp, u32, u32, *mut usize) -> c_int,
    compwritevalid: unsafe extern "C" fn(*mut FidEp, u32, u32, *mut usize) -> c_int,
} }

c_struct! {
/// From `insert_auth_key` on unknown to 1.17.
FiOpsAv = "fi_ops_av", 88 {
    size: usize,
    insert: unsafe extern "C" fn(*mut FidAv, Const, usize, *mut FiAddr, u64, Opaque) -> c_int,
    insertsvc: unsafe extern "C" fn(*mut FidAv, *const c_char, *const c_char, *mut FiAddr, u64, Opaque) -> c_int,
    insertsym: unsafe extern "C" fn(
        *mut FidAv, *const c_char, usize, *const c_char, usize, *mut FiAddr, u64, Opaque,
    ) -> c_int,
    remove: unsafe extern "C" fn(*mut FidAv, *mut FiAddr, usize, u64) -> c_int,
    lookup: unsafe extern "C" fn(*mut FidAv, FiAddr, Opaque, *mut usize) -> c_int,
    straddr: unsafe extern "C" fn(*mut FidAv, Const, *mut c_char, *mut usize) -> *const c_char,
    av_set: unsafe extern "C" fn(*mut FidAv, Opaque, *mut Opaque, Opaque) -> c_int,
    insert_auth_key: unsafe extern "C" fn(*mut FidAv, Const, usize, *mut FiAddr, u64) -> c_int,
    lookup_auth_key: unsafe extern "C" fn(*mut FidAv, FiAddr, Opaque, *mut usize) -> c_int,
    set_user_id: unsafe extern "C" fn(*mut FidAv, FiAddr, FiAddr, u64) -> c_int,
} }

c_struct! { FiOpsCq = "fi_ops_cq", 64 {
    size: usize,
    read: unsafe extern "C" fn(*mut FidCq, Opaque, usize) -> isize,
    readfrom: unsafe extern "C" fn(*mut FidCq, Opaque, usize, *mut FiAddr) -> isize,
    readerr: unsafe extern "C" fn(*mut FidCq, *mut FiCqErrEntry, u64) -> isize,
    sread: unsafe extern "C" fn(*mut FidCq, Opaque, usize, Const, c_int) -> isize,
    sreadfrom: unsafe extern "C" fn(*mut FidCq, Opaque, usize, *mut FiAddr, Const, c_int) -> isize,
    signal: unsafe extern "C" fn(*mut FidCq) -> c_int,
    strerror: unsafe extern "C" fn(*mut FidCq, c_int, Const, *mut c_char, usize) -> *const c_char,
} }

c_struct! { FiOpsCntr = "fi_ops_cntr", 64 {
    size: usize,
    read: unsafe extern "C" fn(*mut FidCntr) -> u64,
    readerr: unsafe extern "C" fn(*mut FidCntr) -> u64,
    add: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    set: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    wait: unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int,
    adderr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    seterr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
} }

c_struct! { FiOpsEq = "fi_ops_eq", 48 {
    size: usize,
    read: unsafe extern "C" fn(*mut FidEq, *mut u32, Opaque, usize, u64) -> isize,
    readerr: unsafe extern "C" fn(*mut FidEq, *mut FiEqErrEntry, u64) -> isize,
    write: unsafe extern "C" fn(*mut FidEq, u32, Const, usize, u64) -> isize,
    sread: unsafe extern "C" fn(*mut FidEq, *mut u32, Opaque, usize, c_int, u64) -> isize,
    strerror: unsafe extern "C" fn(*mut FidEq, c_int, Const, *mut c_char, usize) -> *const c_char,
} }

c_struct! { FiProvider = "fi_provider", 72 {
    version: u32,
    fi_version: u32,
    context: [Opaque; 4],
    name: *const c_char,
    getinfo: unsafe extern "C" fn(
        u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo,
    ) -> c_int,
    fabric: unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FidFabric, Opaque) -> c_int,
    cleanup: unsafe extern "C" fn(),
} }
