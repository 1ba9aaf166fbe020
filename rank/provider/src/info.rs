//! fi_getinfo(3): this provider's offers, and whether they meet an application's request.
//!
//! One `fi_info` at most, for reliable datagrams (`FI_EP_RDM`). It demands nothing of applications: no mode bit, no
//! local registration. Echoed values (threading, progress, kind of address vector) are provided in every case.
//!
//! Everything handed out is freed by libfabric with `free()`, so it comes from `calloc` and `strdup`.

use core::ffi::{c_char, c_int};
use core::ptr::null;
use std::net::{IpAddr, SocketAddr};

use crate::abi::{
    AV_TABLE, EP_RDM, EP_UNSPEC, FORMAT_UNSPEC, FiDomainAttr, FiEpAttr, FiFabricAttr, FiInfo, FiRxAttr,
    FiTxAttr, MR_BASIC, MR_SCALABLE, MR_UNSPEC, Opaque, PROGRESS_AUTO, PROGRESS_UNSPEC, PROV_SPECIFIC,
    RM_ENABLED, RM_UNSPEC, THREAD_SAFE, THREAD_UNSPEC, flag, version,
};
use crate::address::{ADDRESS_BYTES, Address};
use crate::av::resolve;
use crate::boundary::{EINVAL, Errno, Result, status, text};
use crate::callflags;
use crate::identity::{identity, own_ip};
use crate::launcher::is_alone_by_mistake;
use crate::limits::{CONTEXT_SIZE, EAGER_BYTES_MAX, IOV_MAX, MESSAGE_BYTES_MAX, PIECE_BYTES_MAX};

/// `FI_ADDR` format of our addresses, and number of our protocol.
const FORMAT: u32 = PROV_SPECIFIC | 0x5357;

const PRIMARY: u64 = flag::MSG | flag::TAGGED | flag::RMA | flag::ATOMIC;
const MESSAGE_WAYS: u64 = flag::SEND | flag::RECV;
const REMOTE_WAYS: u64 = flag::READ | flag::WRITE | flag::REMOTE_READ | flag::REMOTE_WRITE;
/// Capabilities that cost nothing and are on even if not asked for.
const ALWAYS: u64 = flag::MULTI_RECV | flag::SOURCE | flag::LOCAL_COMM | flag::REMOTE_COMM;
/// Secondary ones that change the meaning of a call.
const ON_REQUEST: u64 = flag::DIRECTED_RECV | flag::RMA_EVENT | flag::FENCE;
const TRANSMIT_CAPS: u64 = PRIMARY | flag::SEND | flag::READ | flag::WRITE | flag::FENCE;
const RECEIVE_CAPS: u64 = PRIMARY
    | flag::RECV
    | flag::REMOTE_READ
    | flag::REMOTE_WRITE
    | flag::MULTI_RECV
    | flag::SOURCE
    | flag::DIRECTED_RECV
    | flag::RMA_EVENT;
const DOMAIN_CAPS: u64 = flag::LOCAL_COMM | flag::REMOTE_COMM;
const ALL: u64 = PRIMARY | MESSAGE_WAYS | REMOTE_WAYS | ALWAYS | ON_REQUEST;

/// Messages of one sender are matched in order; requests to memory are executed in order, among themselves and before
/// later messages, but for long writes, whose bound `max_order_*` gives.
const ORDERS: u64 = flag::ORDER_SAS
    | flag::ORDER_RAR
    | flag::ORDER_RAW
    | flag::ORDER_WAR
    | flag::ORDER_WAW
    | flag::ORDER_RMA_RAR
    | flag::ORDER_RMA_RAW
    | flag::ORDER_RMA_WAR
    | flag::ORDER_RMA_WAW
    | flag::ORDER_ATOMIC_RAR
    | flag::ORDER_ATOMIC_RAW
    | flag::ORDER_ATOMIC_WAR
    | flag::ORDER_ATOMIC_WAW;

/// Format of tags: every bit is the application's.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Bytes of data beside a message. Four, for the word that carries them also shows whether there are any.
const DATA_BYTES: usize = 4;

const FABRIC_NAME: &core::ffi::CStr = c"stillwire";
const DOMAIN_NAME: &core::ffi::CStr = c"stillwire-udp";

/// Nothing here fits.
const ENODATA: Errno = Errno(libc::ENODATA);

/// `fi_provider::getinfo`.
pub(crate) unsafe extern "C" fn getinfo(
    api: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const FiInfo,
    out: *mut *mut FiInfo,
) -> c_int {
    status("fi_getinfo", || {
        // SAFETY: libfabric passes the application's arguments: strings, hints, and a place for the answer.
        unsafe {
            // A query for the list of providers gets this one, regardless of its hints.
            let only_names = flags & flag::PROV_ATTR_ONLY != 0;
            let hints = Hints::new(if only_names { null() } else { hints });
            let (node, service) = if only_names { (null(), null()) } else { (node, service) };
            let terms = agree(api, &hints)?;
            let places = places(text(node), text(service), flags, &hints)?;
            if identity().is_none() || is_alone_by_mistake() {
                return Err(ENODATA);
            }
            let info = build(api, &terms, &places, &hints)?;
            out.as_mut().map(|out| *out = info).ok_or(EINVAL)
        }
    })
}

/// The application's hints; every part may be missing. Only fields that libfabric 1.17 knows are read.
struct Hints<'a> {
    info: Option<&'a FiInfo>,
    transmit: Option<&'a FiTxAttr>,
    receive: Option<&'a FiRxAttr>,
    endpoint: Option<&'a FiEpAttr>,
    domain: *const FiDomainAttr,
    fabric: Option<&'a FiFabricAttr>,
}

impl Hints<'_> {
    /// # Safety
    /// `hints` is null or an application's hints.
    unsafe fn new(hints: *const FiInfo) -> Hints<'static> {
        // SAFETY: as the caller says. The domain's attributes may be shorter than ours: they are read field by field.
        unsafe {
            let info = hints.as_ref();
            Hints {
                info,
                transmit: info.and_then(|info| info.tx_attr.as_ref()),
                receive: info.and_then(|info| info.rx_attr.as_ref()),
                endpoint: info.and_then(|info| info.ep_attr.as_ref()),
                domain: info.map_or(null(), |info| info.domain_attr),
                fabric: info.and_then(|info| info.fabric_attr.as_ref()),
            }
        }
    }
}

/// A field of the domain's hints; 0 or null where there are none.
macro_rules! domain_hint {
    ($hints:expr, $field:ident) => {{
        let domain = $hints.domain;
        if domain.is_null() {
            // SAFETY: a number or a pointer: zeros are a value.
            unsafe { core::mem::zeroed() }
        } else {
            // SAFETY: a field that every version of the structure has.
            unsafe { (&raw const (*domain).$field).read() }
        }
    }};
}

/// The agreed attributes.
struct Terms {
    caps: u64,
    mr_mode: c_int,
    threading: u32,
    control_progress: u32,
    data_progress: u32,
    resource_mgmt: u32,
    av_type: u32,
    tag_format: u64,
    transmit_flags: u64,
    receive_flags: u64,
}

/// Compares the application's hints with the offers.
fn agree(api: u32, hints: &Hints<'_>) -> Result<Terms> {
    let caps = agree_caps(hints)?;
    check_endpoint(hints)?;
    check_names(hints)?;
    let (mut transmit_flags, mut receive_flags, mut tag_format) = (flag::TRANSMIT_COMPLETE, 0, TAG_FORMAT);
    if let Some(attr) = hints.transmit {
        fits(attr.caps & !TRANSMIT_CAPS == 0 && attr.op_flags & !callflags::TRANSMIT_DEFAULT == 0)?;
        fits(attr.msg_order & !ORDERS == 0 && attr.comp_order == 0)?;
        fits(attr.inject_size <= EAGER_BYTES_MAX && attr.size <= CONTEXT_SIZE)?;
        fits(attr.iov_limit <= IOV_MAX && attr.rma_iov_limit <= 1)?;
        if attr.op_flags != 0 {
            transmit_flags = attr.op_flags;
        }
    }
    if let Some(attr) = hints.receive {
        fits(attr.caps & !RECEIVE_CAPS == 0 && attr.op_flags & !callflags::RECEIVE_DEFAULT == 0)?;
        fits(attr.msg_order & !ORDERS == 0 && attr.comp_order == 0)?;
        fits(attr.size <= CONTEXT_SIZE && attr.iov_limit <= IOV_MAX)?;
        receive_flags = attr.op_flags;
    }
    if let Some(attr) = hints.endpoint
        && attr.mem_tag_format != 0
    {
        tag_format = attr.mem_tag_format;
    }
    let or = |asked: u32, unspecified: u32, own: u32| if asked == unspecified { own } else { asked };
    Ok(Terms {
        caps,
        mr_mode: agree_mr_mode(api, hints)?,
        threading: or(domain_hint!(hints, threading), THREAD_UNSPEC, THREAD_SAFE),
        control_progress: or(domain_hint!(hints, control_progress), PROGRESS_UNSPEC, PROGRESS_AUTO),
        data_progress: or(domain_hint!(hints, data_progress), PROGRESS_UNSPEC, PROGRESS_AUTO),
        resource_mgmt: or(domain_hint!(hints, resource_mgmt), RM_UNSPEC, RM_ENABLED),
        // Both kinds are there; an application that knows of no kinds gets the quicker one.
        av_type: if hints.domain.is_null() { AV_TABLE } else { domain_hint!(hints, av_type) },
        tag_format,
        transmit_flags,
        receive_flags,
    })
}

fn fits(fits: bool) -> Result<()> {
    if fits { Ok(()) } else { Err(ENODATA) }
}

fn agree_caps(hints: &Hints<'_>) -> Result<u64> {
    let asked = hints.info.map_or(0, |info| info.caps);
    if asked == 0 {
        return Ok(ALL);
    }
    fits(asked & !ALL == 0)?;
    let mut caps = asked | ALWAYS;
    if caps & (flag::MSG | flag::TAGGED) != 0 && caps & MESSAGE_WAYS == 0 {
        caps |= MESSAGE_WAYS;
    }
    if caps & (flag::RMA | flag::ATOMIC) != 0 && caps & REMOTE_WAYS == 0 {
        caps |= REMOTE_WAYS;
    }
    Ok(caps)
}

fn check_endpoint(hints: &Hints<'_>) -> Result<()> {
    if let Some(info) = hints.info {
        fits(matches!(info.addr_format, FORMAT_UNSPEC | FORMAT))?;
    }
    let Some(attr) = hints.endpoint else { return Ok(()) };
    fits(matches!(attr.r#type, EP_UNSPEC | EP_RDM) && matches!(attr.protocol, 0 | FORMAT))?;
    fits(attr.max_msg_size <= MESSAGE_BYTES_MAX && attr.auth_key_size == 0)?;
    fits(attr.max_order_raw_size <= EAGER_BYTES_MAX && attr.max_order_waw_size <= EAGER_BYTES_MAX)?;
    fits(attr.max_order_war_size <= PIECE_BYTES_MAX)?;
    fits(attr.tx_ctx_cnt <= 1 && attr.rx_ctx_cnt <= 1)
}

fn check_names(hints: &Hints<'_>) -> Result<()> {
    let domain: *mut c_char = domain_hint!(hints, name);
    let fabric = hints.fabric.map_or(core::ptr::null_mut(), |attr| attr.name);
    for (asked, own) in [(domain, DOMAIN_NAME), (fabric, FABRIC_NAME)] {
        // SAFETY: names in hints are C strings.
        fits(asked.is_null() || unsafe { core::ffi::CStr::from_ptr(asked) } == own)?;
    }
    let key_bytes: usize = domain_hint!(hints, mr_key_size);
    let data_bytes: usize = domain_hint!(hints, cq_data_size);
    let caps: u64 = domain_hint!(hints, caps);
    let auth_key: usize = domain_hint!(hints, auth_key_size);
    let segments: usize = domain_hint!(hints, mr_iov_limit);
    fits(key_bytes <= 8 && data_bytes <= DATA_BYTES && caps & !DOMAIN_CAPS == 0)?;
    fits(auth_key == 0 && segments <= 1)
}

/// Applications of versions before 1.5 know two modes; later ones list the modes that they support, of which
/// nothing is needed.
fn agree_mr_mode(api: u32, hints: &Hints<'_>) -> Result<c_int> {
    let asked: c_int = domain_hint!(hints, mr_mode);
    if matches!(asked, MR_BASIC | MR_SCALABLE) {
        return Ok(asked);
    }
    if api < version(1, 5) {
        fits(asked == MR_UNSPEC)?;
        return Ok(MR_SCALABLE);
    }
    Ok(0)
}

/// Own and peer's address, where they are known.
struct Places {
    source: [u8; ADDRESS_BYTES],
    destination: Option<[u8; ADDRESS_BYTES]>,
}

fn places(node: Option<&str>, service: Option<&str>, flags: u64, hints: &Hints<'_>) -> Result<Places> {
    // SAFETY: hints hold addresses as long as they say.
    let hinted = |start: Opaque, bytes: usize| unsafe {
        (!start.is_null() && bytes == ADDRESS_BYTES).then(|| start.cast::<[u8; ADDRESS_BYTES]>().read())
    };
    if flags & flag::NUMERICHOST != 0 && node.is_some_and(|node| node.parse::<IpAddr>().is_err()) {
        return Err(ENODATA);
    }
    let mut source = hints.info.and_then(|info| hinted(info.src_addr, info.src_addrlen));
    let mut destination = hints.info.and_then(|info| hinted(info.dest_addr, info.dest_addrlen));
    if flags & flag::SOURCE != 0 {
        if node.is_some() || service.is_some() {
            let own = own_ip().to_string();
            let place = resolve(Some(node.unwrap_or(&own)), service)?;
            source = Some(Address::at_place(place).emit());
        }
    } else if node.is_some() || service.is_some() {
        destination = Some(Address::at_place(resolve(node, service)?).emit());
    }
    // An endpoint that is opened at port 0 takes a free one.
    let source = source.unwrap_or_else(|| Address::at_place(SocketAddr::new(own_ip(), 0)).emit());
    Ok(Places { source, destination })
}

/// Zeroed memory that `free()` takes.
fn zeroed<T>() -> Result<*mut T> {
    // SAFETY: plain allocation.
    let place = unsafe { libc::calloc(1, size_of::<T>()) }.cast::<T>();
    if place.is_null() { Err(Errno(libc::ENOMEM)) } else { Ok(place) }
}

/// A copy that `free()` takes.
fn copied<T: Copy>(value: Option<T>) -> Result<(Opaque, usize)> {
    let Some(value) = value else { return Ok((core::ptr::null_mut(), 0)) };
    let place = zeroed::<T>()?;
    // SAFETY: just allocated with this size.
    unsafe { place.write(value) };
    Ok((place.cast(), size_of::<T>()))
}

/// Writes the answer. If memory runs out, earlier allocations are not freed: the process is about to end
/// anyway.
fn build(api: u32, terms: &Terms, places: &Places, hints: &Hints<'_>) -> Result<*mut FiInfo> {
    let (info, transmit, receive) = (zeroed::<FiInfo>()?, zeroed::<FiTxAttr>()?, zeroed::<FiRxAttr>()?);
    let (endpoint, domain, fabric) =
        (zeroed::<FiEpAttr>()?, zeroed::<FiDomainAttr>()?, zeroed::<FiFabricAttr>()?);
    let (source, source_bytes) = copied(Some(places.source))?;
    let (destination, destination_bytes) = copied(places.destination)?;
    let given_domain = domain_hint!(hints, domain);
    // SAFETY: all of them were just allocated, zeroed, with the size of their type; zeros are a value of every field.
    unsafe {
        fill_attributes(terms, &mut *transmit, &mut *receive, &mut *endpoint);
        fill_domain(terms, &mut *domain);
        (*domain).domain = given_domain;
        (*domain).name = libc::strdup(DOMAIN_NAME.as_ptr());
        (*fabric).name = libc::strdup(FABRIC_NAME.as_ptr());
        (*fabric).fabric = hints.fabric.map_or(core::ptr::null_mut(), |attr| attr.fabric);
        (*fabric).prov_version = version(0, 1);
        (*fabric).api_version = api;
        let info = &mut *info;
        info.caps = terms.caps;
        info.addr_format = FORMAT;
        (info.src_addr, info.src_addrlen) = (source, source_bytes);
        (info.dest_addr, info.dest_addrlen) = (destination, destination_bytes);
        info.handle = hints.info.map_or(core::ptr::null_mut(), |hints| hints.handle);
        (info.tx_attr, info.rx_attr, info.ep_attr) = (transmit, receive, endpoint);
        (info.domain_attr, info.fabric_attr) = (domain, fabric);
    }
    Ok(info)
}

fn fill_attributes(terms: &Terms, transmit: &mut FiTxAttr, receive: &mut FiRxAttr, endpoint: &mut FiEpAttr) {
    transmit.caps = terms.caps & TRANSMIT_CAPS;
    transmit.op_flags = terms.transmit_flags;
    transmit.msg_order = ORDERS;
    transmit.inject_size = EAGER_BYTES_MAX;
    transmit.size = CONTEXT_SIZE;
    transmit.iov_limit = IOV_MAX;
    transmit.rma_iov_limit = 1;
    receive.caps = terms.caps & RECEIVE_CAPS;
    receive.op_flags = terms.receive_flags;
    receive.msg_order = ORDERS;
    receive.size = CONTEXT_SIZE;
    receive.iov_limit = IOV_MAX;
    endpoint.r#type = EP_RDM;
    endpoint.protocol = FORMAT;
    endpoint.protocol_version = 1;
    endpoint.max_msg_size = MESSAGE_BYTES_MAX;
    endpoint.max_order_raw_size = EAGER_BYTES_MAX;
    endpoint.max_order_war_size = PIECE_BYTES_MAX;
    endpoint.max_order_waw_size = EAGER_BYTES_MAX;
    endpoint.mem_tag_format = terms.tag_format;
    endpoint.tx_ctx_cnt = 1;
    endpoint.rx_ctx_cnt = 1;
}

fn fill_domain(terms: &Terms, domain: &mut FiDomainAttr) {
    /// Objects of one kind: no bound of ours but memory and descriptors.
    const MANY: usize = 1 << 16;
    domain.threading = terms.threading;
    domain.control_progress = terms.control_progress;
    domain.data_progress = terms.data_progress;
    domain.resource_mgmt = terms.resource_mgmt;
    domain.av_type = terms.av_type;
    domain.mr_mode = terms.mr_mode;
    domain.mr_key_size = 8;
    domain.cq_data_size = DATA_BYTES;
    domain.cq_cnt = MANY;
    domain.ep_cnt = 1 << 10;
    domain.tx_ctx_cnt = 1 << 10;
    domain.rx_ctx_cnt = 1 << 10;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.cntr_cnt = MANY;
    domain.mr_iov_limit = 1;
    domain.caps = DOMAIN_CAPS;
    domain.mr_cnt = MANY;
    domain.max_cntr_value = u64::MAX;
    domain.max_err_cntr_value = u64::MAX;
}
