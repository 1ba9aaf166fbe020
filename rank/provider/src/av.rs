//! fi_av(3): address vectors. Maps and tables are the same here: the n-th address inserted is number n.

use core::ffi::{c_char, c_int};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use transport::PortId;

use crate::abi::{
    ADDR_NOTAVAIL, CLASS_AV, CLASS_DOMAIN, Const, FiAddr, FiAvAttr, FiOps, FiOpsAv, Fid, FidAv, FidDomain,
    Opaque, errno, flag,
};
use crate::address::{ADDRESS_BYTES, Address};
use crate::boundary::{
    EBUSY, EINVAL, ENOSYS, Errno, Result, behind, complain, count, hand_out, missing, put_text, retire,
    status, text,
};
use crate::callflags::{self, known};
use crate::domain;

/// Addresses of one vector: as many as a job may have links.
const ADDRESSES_MAX: usize = transport::config::LINKS_MAX;

/// The state of an address vector.
#[derive(Default)]
pub(crate) struct Vector {
    table: RwLock<Table>,
    /// Counted up by every change, so that endpoints know when to look again.
    changes: AtomicU64,
}

#[derive(Default)]
struct Table {
    slots: Vec<Option<Arc<Address>>>,
    free: Vec<usize>,
    by_port: HashMap<PortId, FiAddr>,
}

impl Vector {
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn address(&self, number: FiAddr) -> Option<Arc<Address>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.get(usize::try_from(number).ok()?)?.clone()
    }

    /// The number of the address with this identity.
    pub(crate) fn number(&self, port: PortId) -> FiAddr {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.by_port.get(&port).copied().unwrap_or(ADDR_NOTAVAIL)
    }

    fn insert(&self, address: Address) -> Result<FiAddr> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let slot = table.free.pop().unwrap_or(table.slots.len());
        if slot >= ADDRESSES_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        if slot == table.slots.len() {
            table.slots.push(None);
        }
        table.by_port.entry(address.port).or_insert(slot as FiAddr);
        table.slots[slot] = Some(Arc::new(address));
        self.changes.fetch_add(1, Ordering::Release);
        Ok(slot as FiAddr)
    }

    fn remove(&self, number: FiAddr) -> Result<()> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let slot = usize::try_from(number).map_err(|_| EINVAL)?;
        let address = table.slots.get_mut(slot).and_then(Option::take).ok_or(EINVAL)?;
        if table.by_port.get(&address.port) == Some(&number) {
            table.by_port.remove(&address.port);
            let other =
                table.slots.iter().position(|slot| slot.as_ref().is_some_and(|a| a.port == address.port));
            if let Some(other) = other {
                table.by_port.insert(address.port, other as FiAddr);
            }
        }
        table.free.push(slot);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// A vector with the domain that it keeps open.
struct Owned {
    vector: Handle,
    _domain: domain::Handle,
}

pub(crate) type Handle = Arc<Vector>;

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close,
    bind: bind_queue,
    control: missing::control,
    ops_open: missing::ops_open,
    tostr: missing::tostr,
    ops_set: missing::ops_set,
};

static AV_OPS: FiOpsAv = FiOpsAv {
    size: size_of::<FiOpsAv>(),
    insert,
    insertsvc,
    insertsym,
    remove,
    lookup,
    straddr,
    av_set,
    insert_auth_key,
    lookup_auth_key,
    set_user_id,
};

pub(crate) unsafe extern "C" fn open(
    fid: *mut FidDomain,
    attr: *mut FiAvAttr,
    out: *mut *mut FidAv,
    context: Opaque,
) -> c_int {
    status("fi_av_open", || {
        // SAFETY: the table of domains alone leads here.
        let domain: &domain::Handle = unsafe { behind(fid, CLASS_DOMAIN) }?;
        // SAFETY: the application's structure, or null for defaults.
        if let Some(attr) = unsafe { attr.as_mut() } {
            // A named vector would be shared between processes; each process has its own here.
            if attr.rx_ctx_bits != 0 || !attr.name.is_null() {
                return Err(ENOSYS);
            }
            // Addresses are in when the call returns: the event that `FI_EVENT` makes a program wait for would not be
            // posted. `FI_READ` is of shared vectors. That names follow each other (`FI_SYMMETRIC`) need not be known.
            if attr.flags & !flag::SYMMETRIC != 0 {
                return Err(ENOSYS);
            }
            if attr.r#type == crate::abi::AV_UNSPEC {
                attr.r#type = crate::abi::AV_TABLE;
            }
        }
        let handle =
            FidAv { fid: Fid { fclass: CLASS_AV, context, ops: &raw const OPS }, ops: &raw const AV_OPS };
        let owned = Owned { vector: Arc::default(), _domain: Arc::clone(domain) };
        // SAFETY: `FidAv` begins with a `fid`; `out` is the application's.
        unsafe { hand_out(handle, owned, out) }.map(|_| ())
    })
}

/// The vector behind a handle.
///
/// # Safety
/// As for [`behind`].
pub(crate) unsafe fn vector<'a>(fid: *mut FidAv) -> Result<&'a Handle> {
    // SAFETY: as the caller says.
    unsafe { behind::<FidAv, Owned>(fid, CLASS_AV) }.map(|owned| &owned.vector)
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status("fi_close", || {
        // SAFETY: this table is that of address vectors alone.
        if Arc::strong_count(unsafe { vector(fid.cast()) }?) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: as above; the application closes it and uses it no more.
        unsafe { retire::<FidAv, Owned>(fid) };
        Ok(())
    })
}

/// Insertion is over when the call returns; an event queue would have nothing to report.
unsafe extern "C" fn bind_queue(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

/// Where results go, one for each address.
struct Answers {
    numbers: *mut FiAddr,
    /// With `FI_SYNC_ERR`: an error number for each.
    errors: *mut c_int,
}

impl Answers {
    /// # Safety
    /// Both arrays of the call hold at least `at + 1` places.
    unsafe fn put(&self, at: usize, inserted: Result<FiAddr>) -> usize {
        // SAFETY: as the caller says; either may be missing.
        unsafe {
            if !self.numbers.is_null() {
                self.numbers.add(at).write(inserted.unwrap_or(ADDR_NOTAVAIL));
            }
            if !self.errors.is_null() {
                self.errors.add(at).write(inserted.err().map_or(0, |error| error.0));
            }
        }
        usize::from(inserted.is_ok())
    }
}

fn answers(numbers: *mut FiAddr, flags: u64, context: Opaque) -> Answers {
    let errors = if flags & flag::SYNC_ERR != 0 { context.cast() } else { core::ptr::null_mut() };
    Answers { numbers, errors }
}

/// The address in these bytes, if it is one of ours with a place; else the user gets a message.
fn usable(i: usize, bytes: &[u8; ADDRESS_BYTES]) -> Result<Address> {
    let address = Address::parse(bytes);
    if address.as_ref().is_none_or(|address| address.rails.is_empty()) {
        complain(format_args!(
            "address {i} of fi_av_insert ({:02x?} ..) is not one of this provider and version: it was cut off, or its endpoint has another provider",
            &bytes[..8]
        ));
    }
    address.filter(|address| !address.rails.is_empty()).ok_or(EINVAL)
}

unsafe extern "C" fn insert(
    fid: *mut FidAv,
    addresses: Const,
    addresses_count: usize,
    numbers: *mut FiAddr,
    flags: u64,
    context: Opaque,
) -> c_int {
    count("fi_av_insert", || {
        // SAFETY: the table of address vectors alone leads here.
        let vector = unsafe { vector(fid) }?;
        if addresses.is_null() && addresses_count > 0 {
            return Err(EINVAL);
        }
        let answers = answers(numbers, known(flags, callflags::INSERT)?, context);
        let mut inserted = 0;
        for i in 0..addresses_count {
            // SAFETY: the application passes `count` addresses of the length that `fi_getinfo` gave.
            let bytes = unsafe { &*addresses.cast::<[u8; ADDRESS_BYTES]>().add(i) };
            let number = usable(i, bytes).and_then(|address| vector.insert(address));
            // SAFETY: the application's arrays have `count` places.
            inserted += unsafe { answers.put(i, number) };
        }
        Ok(inserted)
    })
}

/// The first place that a name and a service stand for. IPv4 first: endpoints receive on it by default.
pub(crate) fn resolve(node: Option<&str>, service: Option<&str>) -> Result<SocketAddr> {
    let port = match service {
        None => 0,
        Some(service) => service.parse().map_err(|_| EINVAL)?,
    };
    let node = node.unwrap_or("127.0.0.1");
    let found: Vec<_> = (node, port).to_socket_addrs().map_err(|_| Errno(libc::ENODATA))?.collect();
    let first = found.iter().find(|place| place.is_ipv4()).or(found.first());
    first.copied().ok_or(Errno(libc::ENODATA))
}

unsafe extern "C" fn insertsvc(
    fid: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    numbers: *mut FiAddr,
    flags: u64,
    context: Opaque,
) -> c_int {
    count("fi_av_insertsvc", || {
        // SAFETY: the table of address vectors alone leads here.
        let vector = unsafe { vector(fid) }?;
        known(flags, callflags::INSERT)?;
        // SAFETY: the application's strings.
        let (node, service) = unsafe { (text(node), text(service)) };
        let number = resolve(node, Some(service.ok_or(EINVAL)?))
            .and_then(|place| vector.insert(Address::at_place(place)));
        // SAFETY: the application's place for one number.
        let inserted = unsafe { answers(numbers, flags, context).put(0, number) };
        number.map(|_| inserted)
    })
}

/// The `i`-th name after `node`: the next address, or the next number at the end of a name.
fn following(node: &str, i: usize) -> Option<String> {
    if i == 0 {
        return Some(node.to_owned());
    }
    if let Ok(ip) = node.parse::<IpAddr>() {
        let next = match ip {
            IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).checked_add(u32::try_from(i).ok()?)?.into()),
            IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).checked_add(i as u128)?.into()),
        };
        return Some(next.to_string());
    }
    let digits = node.len() - node.trim_end_matches(|symbol: char| symbol.is_ascii_digit()).len();
    let (name, number) = node.split_at(node.len() - digits);
    let next = number.parse::<usize>().ok()?.checked_add(i)?;
    Some(format!("{name}{next:0digits$}"))
}

unsafe extern "C" fn insertsym(
    fid: *mut FidAv,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    numbers: *mut FiAddr,
    flags: u64,
    context: Opaque,
) -> c_int {
    count("fi_av_insertsym", || {
        // SAFETY: the table of address vectors alone leads here.
        let vector = unsafe { vector(fid) }?;
        // SAFETY: the application's strings.
        let (node, service) = unsafe { (text(node).ok_or(EINVAL)?, text(service).ok_or(EINVAL)?) };
        let answers = answers(numbers, known(flags, callflags::INSERT)?, context);
        let mut inserted = 0;
        for i in 0..nodes.checked_mul(services).filter(|all| *all <= ADDRESSES_MAX).ok_or(EINVAL)? {
            let place = following(node, i / services)
                .zip(following(service, i % services))
                .ok_or(EINVAL)
                .and_then(|(node, service)| resolve(Some(&node), Some(&service)));
            let number = place.and_then(|place| vector.insert(Address::at_place(place)));
            // SAFETY: the application's arrays have a place for each.
            inserted += unsafe { answers.put(i, number) };
        }
        Ok(inserted)
    })
}

unsafe extern "C" fn remove(fid: *mut FidAv, numbers: *mut FiAddr, numbers_count: usize, _: u64) -> c_int {
    status("fi_av_remove", || {
        // SAFETY: the table of address vectors alone leads here.
        let vector = unsafe { vector(fid) }?;
        if numbers.is_null() && numbers_count > 0 {
            return Err(EINVAL);
        }
        for i in 0..numbers_count {
            // SAFETY: the application passes `count` numbers.
            vector.remove(unsafe { numbers.add(i).read() })?;
        }
        Ok(())
    })
}

/// Copies an address out as far as there is room, and reports its length.
///
/// # Safety
/// `room` may be read and written; `out` has as many bytes as it says.
pub(crate) unsafe fn put_address(bytes: &[u8; ADDRESS_BYTES], out: Opaque, room: *mut usize) -> Result<()> {
    // SAFETY: the application's length.
    let room = unsafe { room.as_mut() }.ok_or(EINVAL)?;
    let given = core::mem::replace(room, ADDRESS_BYTES);
    if !out.is_null() {
        // SAFETY: no more than there is room for.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast::<u8>(), given.min(ADDRESS_BYTES)) };
    }
    if given < ADDRESS_BYTES { Err(Errno(errno::ETOOSMALL)) } else { Ok(()) }
}

unsafe extern "C" fn lookup(fid: *mut FidAv, number: FiAddr, out: Opaque, room: *mut usize) -> c_int {
    status("fi_av_lookup", || {
        // SAFETY: the table of address vectors alone leads here.
        let address = unsafe { vector(fid) }?.address(number).ok_or(EINVAL)?;
        // SAFETY: the application's memory. A short buffer is no error of this call: it gets the part that
        // fits.
        match unsafe { put_address(&address.emit(), out, room) } {
            Err(Errno(errno::ETOOSMALL)) => Ok(()),
            other => other,
        }
    })
}

unsafe extern "C" fn straddr(
    _: *mut FidAv,
    address: Const,
    out: *mut c_char,
    room: *mut usize,
) -> *const c_char {
    // SAFETY: the application passes an address of ours, and a buffer with its length.
    unsafe {
        let (Some(bytes), Some(room)) = (address.cast::<[u8; ADDRESS_BYTES]>().as_ref(), room.as_mut())
        else {
            return out;
        };
        let text =
            Address::parse(bytes).map_or_else(|| "no address".to_owned(), |address| address.to_string());
        put_text(&text, out, *room);
        *room = text.len() + 1;
    }
    out
}

unsafe extern "C" fn av_set(_: *mut FidAv, _: Opaque, _: *mut Opaque, _: Opaque) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn insert_auth_key(_: *mut FidAv, _: Const, _: usize, _: *mut FiAddr, _: u64) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn lookup_auth_key(_: *mut FidAv, _: FiAddr, _: Opaque, _: *mut usize) -> c_int {
    -ENOSYS.0
}

unsafe extern "C" fn set_user_id(_: *mut FidAv, _: FiAddr, _: FiAddr, _: u64) -> c_int {
    -ENOSYS.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u64) -> Address {
        Address { port: PortId(port), rails: Vec::new() }
    }

    #[test]
    fn numbers_are_given_in_order_and_again_after_removal() {
        let vector = Vector::default();
        let numbers: Vec<_> = (10..14).map(|port| vector.insert(address(port)).unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        let before = vector.changes();
        vector.remove(1).unwrap();
        assert!(vector.changes() > before);
        assert_eq!(vector.remove(1), Err(EINVAL), "removed twice");
        assert!(vector.address(1).is_none());
        assert_eq!((vector.number(PortId(11)), vector.number(PortId(12))), (ADDR_NOTAVAIL, 2));
        assert_eq!(vector.insert(address(20)), Ok(1));
    }

    #[test]
    fn an_address_inserted_twice_outlives_one_removal() {
        let vector = Vector::default();
        vector.insert(address(7)).unwrap();
        vector.insert(address(7)).unwrap();
        assert_eq!(vector.number(PortId(7)), 0);
        vector.remove(0).unwrap();
        assert_eq!(vector.number(PortId(7)), 1);
    }

    #[test]
    fn symmetric_names_follow_each_other() {
        assert_eq!(following("10.0.0.255", 2).as_deref(), Some("10.0.1.1"));
        assert_eq!(following("node08", 3).as_deref(), Some("node11"));
        assert_eq!(following("7000", 2).as_deref(), Some("7002"));
        assert_eq!(following("node", 1), None);
    }
}
