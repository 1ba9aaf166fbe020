//! Memory of this process that peers may ask to be read or written.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::abi::{ADDR_UNSPEC, errno};
use crate::boundary::{EBUSY, Errno, Result};
use crate::cntr;
use crate::memory::is_mapped;

/// One region.
pub(crate) struct Region {
    pub(crate) key: u64,
    start: usize,
    bytes: usize,
    access: u64,
    /// Not all of it is mapped, as where a whole address space is registered for windows without bounds: the kernel is asked for each access.
    guarded: bool,
    /// Accesses of peers that have begun and not ended.
    uses: AtomicUsize,
    counter: OnceLock<cntr::Handle>,
}

impl Region {
    /// Whether a peer's request is half-way.
    pub(crate) fn is_in_use(&self) -> bool {
        self.uses.load(Ordering::Acquire) > 0
    }

    /// Whether its memory may be missing.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// Counts writes of peers into this region.
    pub(crate) fn count_writes(&self, counter: cntr::Handle) -> Result<()> {
        self.counter.set(counter).map_err(|_| EBUSY)
    }

    pub(crate) fn written(&self) {
        if let Some(counter) = self.counter.get() {
            counter.count(false);
        }
    }
}

/// A peer's request that has found a region: the program's memory stays where it is until this is dropped.
pub(crate) struct Use(Arc<Region>);

impl Use {
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The regions of a domain.
pub(crate) struct Regions {
    table: RwLock<HashMap<u64, Arc<Region>>>,
    /// Addresses in requests are virtual, not offsets.
    virtual_addresses: bool,
    /// We choose the keys.
    own_keys: bool,
    key_next: std::sync::atomic::AtomicU64,
    /// Atomic operations of all endpoints of the domain, one at a time.
    atomics: Mutex<()>,
}

impl Regions {
    pub(crate) fn new(virtual_addresses: bool, own_keys: bool) -> Regions {
        Regions {
            table: RwLock::default(),
            virtual_addresses,
            own_keys,
            key_next: std::sync::atomic::AtomicU64::new(1),
            atomics: Mutex::default(),
        }
    }

    pub(crate) fn register(&self, start: usize, bytes: usize, access: u64, key: u64) -> Result<Arc<Region>> {
        let key = if self.own_keys { self.key_next.fetch_add(1, Ordering::Relaxed) } else { key };
        let region = Arc::new(Region {
            key,
            start,
            bytes,
            access,
            guarded: !is_mapped(start, bytes),
            uses: AtomicUsize::new(0),
            counter: OnceLock::new(),
        });
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if key == ADDR_UNSPEC || table.contains_key(&key) {
            return Err(Errno(errno::ENOKEY));
        }
        table.insert(key, Arc::clone(&region));
        Ok(region)
    }

    /// Requests for this region are refused from now on. One that has got its key meanwhile stays.
    pub(crate) fn remove(&self, region: &Arc<Region>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.get(&region.key).is_some_and(|found| Arc::ptr_eq(found, region)) {
            table.remove(&region.key);
        }
    }

    /// Where `bytes` bytes at `address` of the region with this key lie, if that kind of access is granted. A
    /// thread that closes the region waits for the end of the use: it begins under the table's lock, so no
    /// use begins once the region is out of the table.
    pub(crate) fn find(&self, key: u64, address: u64, bytes: u64, access: u64) -> Result<(Use, *mut u8)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let region = table.get(&key).ok_or(Errno(errno::ENOKEY))?;
        if region.access & access != access {
            return Err(Errno(libc::EACCES));
        }
        let outside = Errno(libc::EINVAL);
        let address = usize::try_from(address).map_err(|_| outside)?;
        let bytes = usize::try_from(bytes).map_err(|_| outside)?;
        let offset =
            if self.virtual_addresses { address.checked_sub(region.start).ok_or(outside)? } else { address };
        if offset.checked_add(bytes).is_none_or(|end| end > region.bytes) {
            return Err(outside);
        }
        let start = region.start.checked_add(offset).ok_or(outside)?;
        region.uses.fetch_add(1, Ordering::AcqRel);
        Ok((Use(Arc::clone(region)), start as *mut u8))
    }

    /// Keeps all other atomic operations out.
    pub(crate) fn atomics(&self) -> MutexGuard<'_, ()> {
        self.atomics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error number that an answer carries.
pub(crate) fn failure(error: Errno) -> u32 {
    u32::try_from(error.0).unwrap_or(errno::EOTHER as c_int as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::flag::{REMOTE_READ, REMOTE_WRITE};

    fn error(found: Result<(Use, *mut u8)>) -> Option<c_int> {
        found.err().map(|error| error.0)
    }

    #[test]
    fn bounds_and_access_are_checked() {
        let regions = Regions::new(false, false);
        let region = regions.register(0x1000, 16, REMOTE_READ, 5).unwrap();
        let (_, place) = regions.find(5, 4, 12, REMOTE_READ).unwrap();
        assert_eq!(place as usize, 0x1004);
        assert_eq!(error(regions.find(5, 4, 13, REMOTE_READ)), Some(libc::EINVAL));
        assert_eq!(error(regions.find(5, u64::MAX, 2, REMOTE_READ)), Some(libc::EINVAL));
        assert_eq!(error(regions.find(5, 0, u64::MAX, REMOTE_READ)), Some(libc::EINVAL));
        assert_eq!(error(regions.find(5, 0, 1, REMOTE_WRITE)), Some(libc::EACCES));
        assert_eq!(error(regions.find(6, 0, 1, REMOTE_READ)), Some(errno::ENOKEY));
        assert!(regions.register(0, 1, 0, 5).is_err(), "a key is given once");
        regions.remove(&region);
        assert_eq!(error(regions.find(5, 0, 1, REMOTE_READ)), Some(errno::ENOKEY));
        regions.register(0x1000, 16, REMOTE_READ, 5).unwrap();
        regions.remove(&region);
        assert_eq!(error(regions.find(5, 0, 1, REMOTE_READ)), None, "the key is another region's now");
    }

    #[test]
    fn a_region_is_in_use_from_when_it_is_found() {
        let regions = Regions::new(false, false);
        let region = regions.register(0x1000, 16, REMOTE_READ | REMOTE_WRITE, 5).unwrap();
        let read = regions.find(5, 0, 1, REMOTE_READ).unwrap();
        let write = regions.find(5, 0, 1, REMOTE_WRITE).unwrap();
        assert!(regions.find(5, 0, 17, REMOTE_WRITE).is_err());
        regions.remove(&region);
        drop(read);
        assert!(region.is_in_use());
        drop(write);
        assert!(!region.is_in_use());
    }

    #[test]
    fn the_whole_address_space_is_a_region() {
        let regions = Regions::new(false, false);
        regions.register(0, usize::MAX, REMOTE_WRITE, 0).unwrap();
        let (region, place) = regions.find(0, 0x7fff_1234_5678, 8, REMOTE_WRITE).unwrap();
        assert!(region.region().is_guarded());
        assert_eq!(place as usize, 0x7fff_1234_5678);
    }

    #[test]
    fn virtual_addresses_and_own_keys() {
        let regions = Regions::new(true, true);
        let first = regions.register(0x1000, 16, REMOTE_READ, 0).unwrap();
        let second = regions.register(0x2000, 16, REMOTE_READ, 0).unwrap();
        assert_ne!(first.key, second.key);
        assert_eq!(regions.find(second.key, 0x2008, 8, REMOTE_READ).unwrap().1 as usize, 0x2008);
        assert_eq!(error(regions.find(second.key, 0x1fff, 1, REMOTE_READ)), Some(libc::EINVAL));
    }
}
