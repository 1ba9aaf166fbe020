//! Attributes: a user's requests, and a provider's offers (fi_getinfo(3)).

use core::ffi::{c_char, c_int};

use super::{Fid, FidDomain, FidFabric, Opaque, c_struct};

/// `enum fi_ep_type`.
pub const EP_UNSPEC: u32 = 0;
pub const EP_MSG: u32 = 1;
pub const EP_DGRAM: u32 = 2;
pub const EP_RDM: u32 = 3;

/// `enum fi_av_type`.
pub const AV_UNSPEC: u32 = 0;
pub const AV_MAP: u32 = 1;
pub const AV_TABLE: u32 = 2;

/// `enum fi_threading`.
pub const THREAD_UNSPEC: u32 = 0;
pub const THREAD_SAFE: u32 = 1;
pub const THREAD_FID: u32 = 2;
pub const THREAD_DOMAIN: u32 = 3;
pub const THREAD_COMPLETION: u32 = 4;
pub const THREAD_ENDPOINT: u32 = 5;

/// `enum fi_progress`.
pub const PROGRESS_UNSPEC: u32 = 0;
pub const PROGRESS_AUTO: u32 = 1;
pub const PROGRESS_MANUAL: u32 = 2;

/// `enum fi_resource_mgmt`.
pub const RM_UNSPEC: u32 = 0;
pub const RM_DISABLED: u32 = 1;
pub const RM_ENABLED: u32 = 2;

/// `enum fi_mr_mode`: the two of interface versions before 1.5, and the bits since.
pub const MR_UNSPEC: c_int = 0;
pub const MR_BASIC: c_int = 1;
pub const MR_SCALABLE: c_int = 2;
pub const MR_LOCAL: c_int = 1 << 2;
pub const MR_RAW: c_int = 1 << 3;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;

/// Address formats.
pub const FORMAT_UNSPEC: u32 = 0;
pub const FORMAT_SOCKADDR: u32 = 1;
pub const FORMAT_SOCKADDR_IN: u32 = 2;
pub const FORMAT_SOCKADDR_IN6: u32 = 3;
pub const FORMAT_STR: u32 = 9;

/// The first number that a provider may use for a format or protocol of its own.
pub const PROV_SPECIFIC: u32 = 1 << 31;

c_struct! { FiTxAttr = "fi_tx_attr", 80 {
    caps: u64,
    mode: u64,
    op_flags: u64,
    msg_order: u64,
    comp_order: u64,
    inject_size: usize,
    size: usize,
    iov_limit: usize,
    rma_iov_limit: usize,
    tclass: u32,
} }

c_struct! { FiRxAttr = "fi_rx_attr", 64 {
    caps: u64,
    mode: u64,
    op_flags: u64,
    msg_order: u64,
    comp_order: u64,
    total_buffered_recv: usize,
    size: usize,
    iov_limit: usize,
} }

c_struct! { FiEpAttr = "fi_ep_attr", 96 {
    r#type: u32,
    protocol: u32,
    protocol_version: u32,
    max_msg_size: usize,
    msg_prefix_size: usize,
    max_order_raw_size: usize,
    max_order_war_size: usize,
    max_order_waw_size: usize,
    mem_tag_format: u64,
    tx_ctx_cnt: usize,
    rx_ctx_cnt: usize,
    auth_key_size: usize,
    auth_key: *mut u8,
} }

c_struct! {
/// Fields behind `tclass` are unknown to 1.17: they are written into structures that we allocate, and never read from
/// hints.
FiDomainAttr = "fi_domain_attr", 224 {
    domain: *mut FidDomain,
    name: *mut c_char,
    threading: u32,
    control_progress: u32,
    data_progress: u32,
    resource_mgmt: u32,
    av_type: u32,
    mr_mode: c_int,
    mr_key_size: usize,
    cq_data_size: usize,
    cq_cnt: usize,
    ep_cnt: usize,
    tx_ctx_cnt: usize,
    rx_ctx_cnt: usize,
    max_ep_tx_ctx: usize,
    max_ep_rx_ctx: usize,
    max_ep_stx_ctx: usize,
    max_ep_srx_ctx: usize,
    cntr_cnt: usize,
    mr_iov_limit: usize,
    caps: u64,
    mode: u64,
    auth_key: *mut u8,
    auth_key_size: usize,
    max_err_data: usize,
    mr_cnt: usize,
    tclass: u32,
    max_ep_auth_key: usize,
    max_group_id: u32,
    max_cntr_value: u64,
    max_err_cntr_value: u64,
} }

c_struct! { FiFabricAttr = "fi_fabric_attr", 32 {
    fabric: *mut FidFabric,
    name: *mut c_char,
    prov_name: *mut c_char,
    prov_version: u32,
    api_version: u32,
} }

c_struct! { FiInfo = "fi_info", 120 {
    next: *mut FiInfo,
    caps: u64,
    mode: u64,
    addr_format: u32,
    src_addrlen: usize,
    dest_addrlen: usize,
    src_addr: Opaque,
    dest_addr: Opaque,
    handle: *mut Fid,
    tx_attr: *mut FiTxAttr,
    rx_attr: *mut FiRxAttr,
    ep_attr: *mut FiEpAttr,
    domain_attr: *mut FiDomainAttr,
    fabric_attr: *mut FiFabricAttr,
    nic: Opaque,
} }

c_struct! { FiAvAttr = "fi_av_attr", 48 {
    r#type: u32,
    rx_ctx_bits: c_int,
    count: usize,
    ep_per_node: usize,
    name: *const c_char,
    map_addr: Opaque,
    flags: u64,
} }

/// `enum fi_wait_obj`.
pub const WAIT_NONE: u32 = 0;
pub const WAIT_UNSPEC: u32 = 1;
pub const WAIT_SET: u32 = 2;
pub const WAIT_FD: u32 = 3;
pub const WAIT_MUTEX_COND: u32 = 4;
pub const WAIT_YIELD: u32 = 5;
pub const WAIT_POLLFD: u32 = 6;

/// `enum fi_cq_wait_cond`.
pub const CQ_COND_NONE: u32 = 0;
pub const CQ_COND_THRESHOLD: u32 = 1;

/// `enum fi_cq_format`.
pub const CQ_FORMAT_UNSPEC: u32 = 0;
pub const CQ_FORMAT_CONTEXT: u32 = 1;
pub const CQ_FORMAT_MSG: u32 = 2;
pub const CQ_FORMAT_DATA: u32 = 3;
pub const CQ_FORMAT_TAGGED: u32 = 4;

c_struct! { FiCqAttr = "fi_cq_attr", 40 {
    size: usize,
    flags: u64,
    format: u32,
    wait_obj: u32,
    signaling_vector: c_int,
    wait_cond: u32,
    wait_set: Opaque,
} }

c_struct! { FiCntrAttr = "fi_cntr_attr", 24 {
    events: u32,
    wait_obj: u32,
    wait_set: Opaque,
    flags: u64,
} }

c_struct! { FiWaitAttr = "fi_wait_attr", 16 {
    wait_obj: u32,
    flags: u64,
} }

c_struct! { FiPollAttr = "fi_poll_attr", 8 {
    flags: u64,
} }

c_struct! { FiEqAttr = "fi_eq_attr", 32 {
    size: usize,
    flags: u64,
    wait_obj: u32,
    signaling_vector: c_int,
    wait_set: Opaque,
} }

c_struct! {
/// From `base_mr` on unknown to 1.17.
FiMrAttr = "fi_mr_attr", 112 {
    mr_iov: *const libc::iovec,
    iov_count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    context: Opaque,
    auth_key_size: usize,
    auth_key: *mut u8,
    iface: u32,
    device: u64,
    hmem_data: Opaque,
    page_size: usize,
    base_mr: Opaque,
    sub_mr_cnt: usize,
} }
