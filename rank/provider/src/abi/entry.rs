//! The entries of completion and event queues (fi_cq(3), fi_eq(3)).

use core::ffi::c_int;

use super::{FiAddr, Fid, Opaque, c_struct};

c_struct! { FiCqEntry = "fi_cq_entry", 8 {
    op_context: Opaque,
} }

c_struct! { FiCqMsgEntry = "fi_cq_msg_entry", 24 {
    op_context: Opaque,
    flags: u64,
    len: usize,
} }

c_struct! { FiCqDataEntry = "fi_cq_data_entry", 40 {
    op_context: Opaque,
    flags: u64,
    len: usize,
    buf: Opaque,
    data: u64,
} }

c_struct! { FiCqTaggedEntry = "fi_cq_tagged_entry", 48 {
    op_context: Opaque,
    flags: u64,
    len: usize,
    buf: Opaque,
    data: u64,
    tag: u64,
} }

c_struct! {
/// `src_addr` is written only for users of interface version 1.20 and later.
FiCqErrEntry = "fi_cq_err_entry", 88 {
    op_context: Opaque,
    flags: u64,
    len: usize,
    buf: Opaque,
    data: u64,
    tag: u64,
    olen: usize,
    err: c_int,
    prov_errno: c_int,
    err_data: Opaque,
    err_data_size: usize,
    src_addr: FiAddr,
} }

c_struct! { FiEqEntry = "fi_eq_entry", 24 {
    fid: *mut Fid,
    context: Opaque,
    data: u64,
} }

c_struct! { FiEqErrEntry = "fi_eq_err_entry", 48 {
    fid: *mut Fid,
    context: Opaque,
    data: u64,
    err: c_int,
    prov_errno: c_int,
    err_data: Opaque,
    err_data_size: usize,
} }
