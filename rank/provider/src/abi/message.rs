//! The arguments of data transfer calls (fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3)).

use super::{FiAddr, Opaque, c_struct};

c_struct! { FiMsg = "fi_msg", 48 {
    msg_iov: *const libc::iovec,
    desc: *mut Opaque,
    iov_count: usize,
    addr: FiAddr,
    context: Opaque,
    data: u64,
} }

c_struct! { FiMsgTagged = "fi_msg_tagged", 64 {
    msg_iov: *const libc::iovec,
    desc: *mut Opaque,
    iov_count: usize,
    addr: FiAddr,
    tag: u64,
    ignore: u64,
    context: Opaque,
    data: u64,
} }

c_struct! { FiRmaIov = "fi_rma_iov", 24 {
    addr: u64,
    len: usize,
    key: u64,
} }

c_struct! { FiRmaIoc = "fi_rma_ioc", 24 {
    addr: u64,
    count: usize,
    key: u64,
} }

c_struct! { FiIoc = "fi_ioc", 16 {
    addr: Opaque,
    count: usize,
} }

c_struct! { FiMsgRma = "fi_msg_rma", 64 {
    msg_iov: *const libc::iovec,
    desc: *mut Opaque,
    iov_count: usize,
    addr: FiAddr,
    rma_iov: *const FiRmaIov,
    rma_iov_count: usize,
    context: Opaque,
    data: u64,
} }

c_struct! { FiMsgAtomic = "fi_msg_atomic", 72 {
    msg_iov: *const FiIoc,
    desc: *mut Opaque,
    iov_count: usize,
    addr: FiAddr,
    rma_iov: *const FiRmaIoc,
    rma_iov_count: usize,
    datatype: u32,
    op: u32,
    context: Opaque,
    data: u64,
} }

c_struct! { FiMsgFetch = "fi_msg_fetch", 24 {
    msg_iov: *mut FiIoc,
    desc: *mut Opaque,
    iov_count: usize,
} }

c_struct! { FiMsgCompare = "fi_msg_compare", 24 {
    msg_iov: *const FiIoc,
    desc: *mut Opaque,
    iov_count: usize,
} }

c_struct! { FiAtomicAttr = "fi_atomic_attr", 16 {
    count: usize,
    size: usize,
} }
