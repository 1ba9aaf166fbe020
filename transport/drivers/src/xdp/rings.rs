//! An AF_XDP socket: the memory of its frames and the four rings through which chunks of it change hands with the kernel.
//!
//! A chunk is named by the number of its first byte. It belongs to us, or to the kernel from the entry of the ring that hands it over until
//! the entry of the ring that gives it back. Safe calls keep to that: what is lent out as a slice is a chunk that is ours.

use core::ffi::{c_int, c_void};
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};

use crate::error::{Errno, Operation};

/// Entries of each ring.
pub(super) const RING_ENTRIES: u32 = 1024;

/// A step of opening that failed.
pub(super) type Failure = (Operation, Errno);

/// Mapped memory, unmapped at the end.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; only `Socket` reaches into it, through `&mut self`.
unsafe impl Send for Mapping {}

impl Mapping {
    /// No child gets it. A forked copy of a ring would keep the socket open, and with it the device's queue; one of the frames would be copied at
    /// the fork, because the kernel has pinned them.
    fn keep_from_children(self) -> Result<Mapping, Errno> {
        // SAFETY: the whole of our own mapping; says only what a fork does.
        let advised = unsafe { madvise(self.start.cast(), self.bytes, MmapAdvise::MADV_DONTFORK) };
        advised.map_err(|error| Errno(error as i32))?;
        Ok(self)
    }

    /// The whole pages that it takes.
    fn range(&self) -> Range<usize> {
        let page =
            sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| usize::try_from(bytes).ok());
        let start = self.start.as_ptr() as usize;
        start..start + self.bytes.next_multiple_of(page.unwrap_or(4096))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: whoever holds pointers into the mapping holds the mapping too, and is dropped with it.
        let _ = unsafe { munmap(self.start.cast::<c_void>(), self.bytes) };
    }
}

/// One ring: `T` is a chunk's number, or a descriptor of a frame.
struct Ring<T> {
    mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// The index that we move, and what of it the kernel has been shown; the kernel moves the other.
    own: u32,
    /// The kernel's index when it was last looked at: a look at it may wait for another processor's cache.
    known: u32,
}

// SAFETY: the pointers lie in `mapping`, which moves along.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn map(socket: BorrowedFd<'_>, page: i64, at: &libc::xdp_ring_offset) -> Result<Ring<T>, Errno> {
        let offset = |offset: u64| usize::try_from(offset).map_err(|_| Errno(libc::EINVAL));
        let entries_at = offset(at.desc)?;
        let bytes = entries_at + RING_ENTRIES as usize * size_of::<T>();
        let length = NonZeroUsize::new(bytes).ok_or(Errno(libc::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let how = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap(None, length, access, how, socket, page) };
        let mapping = Mapping { start: start.map_err(|error| Errno(error as i32))?.cast(), bytes };
        let mapping = mapping.keep_from_children()?;
        if !entries_at.is_multiple_of(align_of::<T>()) {
            return Err(Errno(libc::EINVAL));
        }
        let word = |at: u64| {
            let at = offset(at)?;
            if at + 4 > bytes || !at.is_multiple_of(4) {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: inside the mapping, as was just checked.
            Ok(unsafe { mapping.start.add(at) }.cast::<AtomicU32>())
        };
        let (producer, consumer, flags) = (word(at.producer)?, word(at.consumer)?, word(at.flags)?);
        // SAFETY: the mapping was made long enough for all entries from there, and they are aligned, as was checked.
        let entries = unsafe { mapping.start.add(entries_at) }.cast();
        Ok(Ring { mapping, producer, consumer, flags, entries, own: 0, known: 0 })
    }

    fn word(&self, word: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping, which `self` holds; the kernel accesses it atomically too.
        unsafe { word.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the number of entries that the mapping has room for.
        unsafe { self.entries.add((index & (RING_ENTRIES - 1)) as usize) }
    }

    /// Appends, if there is room. Not seen by the kernel before `publish`.
    fn push(&mut self, value: T) -> bool {
        if self.own.wrapping_sub(self.known) >= RING_ENTRIES {
            self.known = self.word(self.consumer).load(Ordering::Acquire);
            if self.own.wrapping_sub(self.known) >= RING_ENTRIES {
                return false;
            }
        }
        // SAFETY: an entry that the kernel has consumed (the load above, now or before) and will not read before `publish`.
        unsafe { self.entry(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
        true
    }

    fn publish(&self) {
        self.word(self.producer).store(self.own, Ordering::Release);
    }

    /// Whether the kernel has not consumed all that was published.
    fn is_pending(&self) -> bool {
        self.own != self.word(self.consumer).load(Ordering::Acquire)
    }

    /// The oldest entry that the kernel has produced. It may be written again after `release`.
    fn pop(&mut self) -> Option<T> {
        if self.own == self.known {
            self.known = self.word(self.producer).load(Ordering::Acquire);
            if self.own == self.known {
                return None;
            }
        }
        // SAFETY: an entry that the kernel has produced (the load above, now or before) and will not write before `release`.
        let value = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(value)
    }

    /// Gives the entries that were popped back to the kernel.
    fn release(&self) {
        self.word(self.consumer).store(self.own, Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        self.own == self.known && self.own == self.word(self.producer).load(Ordering::Acquire)
    }

    /// Whether the kernel wants a call before it looks at what was published.
    fn needs_wakeup(&self) -> bool {
        // The kernel says so and then looks once more; we publish and then look: one of the two must see the other.
        fence(Ordering::SeqCst);
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// An opened socket with its memory. The kernel lets go of it when descriptor and rings are gone, and some time later; it has pinned the pages of
/// the frames, so that what it still does to them is done to nobody else's memory.
pub(super) struct Socket {
    fd: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    umem: Mapping,
    chunk_bytes: usize,
    /// The device reads and writes the chunks itself. Where it does not, the kernel sends only while it is called, and takes offered chunks unasked.
    zero_copy: bool,
}

impl Socket {
    /// `chunks` chunks of `chunk_bytes` bytes, all ours; bound to nothing yet.
    pub(super) fn open(chunks: usize, chunk_bytes: usize) -> Result<Socket, Failure> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err((Operation::OpenSocket, Errno::last()));
        }
        // SAFETY: just made, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let umem = memory(chunks * chunk_bytes).map_err(|errno| (Operation::RegisterFrames, errno))?;
        // SAFETY: all-zero bytes are a valid `xdp_umem_reg`.
        let mut registered: libc::xdp_umem_reg = unsafe { core::mem::zeroed() };
        registered.addr = umem.range().start as u64;
        registered.len = umem.bytes as u64;
        registered.chunk_size = u32::try_from(chunk_bytes).unwrap_or(u32::MAX);
        set(fd.as_fd(), libc::XDP_UMEM_REG, &registered)
            .map_err(|errno| (Operation::RegisterFrames, errno))?;
        let rings = |errno| (Operation::MapRings, errno);
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            set(fd.as_fd(), ring, &RING_ENTRIES).map_err(rings)?;
        }
        let at: libc::xdp_mmap_offsets = get(fd.as_fd(), libc::XDP_MMAP_OFFSETS).map_err(rings)?;
        let page = |page: u64| i64::try_from(page).unwrap_or(i64::MAX);
        Ok(Socket {
            fill: Ring::map(fd.as_fd(), page(libc::XDP_UMEM_PGOFF_FILL_RING), &at.fr).map_err(rings)?,
            completion: Ring::map(fd.as_fd(), page(libc::XDP_UMEM_PGOFF_COMPLETION_RING), &at.cr)
                .map_err(rings)?,
            receive: Ring::map(fd.as_fd(), libc::XDP_PGOFF_RX_RING, &at.rx).map_err(rings)?,
            transmit: Ring::map(fd.as_fd(), libc::XDP_PGOFF_TX_RING, &at.tx).map_err(rings)?,
            fd,
            umem,
            chunk_bytes,
            zero_copy: false,
        })
    }

    /// Binds to a queue; without copies where the device can.
    pub(super) fn bind(&mut self, interface: u32, queue: u32) -> Result<(), Errno> {
        let address = libc::sockaddr_xdp {
            sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(0),
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let bytes = libc::socklen_t::try_from(size_of::<libc::sockaddr_xdp>()).unwrap_or(0);
        // SAFETY: `address` is readable for its size during the call.
        let rc = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), bytes) };
        if rc != 0 {
            return Err(Errno::last());
        }
        let options: u32 = get(self.fd.as_fd(), libc::XDP_OPTIONS)?;
        self.zero_copy = options & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }

    /// Whether the device reads and writes the chunks itself.
    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn mappings(&self) -> Vec<Range<usize>> {
        let rings = [&self.fill.mapping, &self.completion.mapping];
        let frames = [&self.receive.mapping, &self.transmit.mapping, &self.umem];
        rings.into_iter().chain(frames).map(Mapping::range).collect()
    }

    /// A chunk that is ours: not handed over, or given back since.
    pub(super) fn chunk(&mut self, at: u64) -> &mut [u8] {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        assert!(start.is_multiple_of(self.chunk_bytes) && start < self.umem.bytes, "no chunk at {at}");
        // SAFETY: inside the memory; the caller's chunk, so the kernel does not touch it, and `&mut self` keeps other slices away.
        unsafe { core::slice::from_raw_parts_mut(self.umem.start.add(start).as_ptr(), self.chunk_bytes) }
    }

    /// Gives chunks to the kernel for frames to come.
    pub(super) fn offer(&mut self, chunks: impl Iterator<Item = u64>) {
        chunks.for_each(|chunk| self.give_back(chunk));
        self.end_taking();
    }

    /// The next frame that came: its chunk, which is ours from here on, and its bytes there. After the last one, `end_taking`.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u64, &[u8])> {
        let entry = self.receive.pop()?;
        let at = entry.addr % self.chunk_bytes as u64;
        let chunk = entry.addr - at;
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.chunk(chunk).get(start..).and_then(|rest| rest.get(..entry.len as usize));
        Some((chunk, bytes.expect("the kernel names a frame that leaves its chunk")))
    }

    /// A taken chunk is for frames to come, from `end_taking` on.
    #[inline]
    pub(super) fn give_back(&mut self, chunk: u64) {
        let offered = self.fill.push(chunk);
        debug_assert!(offered, "more chunks than the ring was made for");
    }

    /// Lets the kernel have what was taken and given back, and wakes a device that waits for it.
    pub(super) fn end_taking(&mut self) {
        self.receive.release();
        self.fill.publish();
        if self.zero_copy && self.fill.needs_wakeup() {
            // SAFETY: no buffer; an error would only mean that nothing is there.
            let _ = unsafe { libc::recv(self.fd.as_raw_fd(), core::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
        }
    }

    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        !self.receive.is_empty()
    }

    /// Hands `bytes` bytes at `at` over for sending, at the next `kick`. False: the ring is full.
    #[inline]
    pub(super) fn submit(&mut self, at: u64, bytes: u32) -> bool {
        self.transmit.push(libc::xdp_desc { addr: at, len: bytes, options: 0 })
    }

    /// Whether the kernel has not sent all that was submitted.
    pub(super) fn has_unsent(&self) -> bool {
        self.transmit.is_pending()
    }

    /// Gives `each` the chunks that have been sent.
    #[inline]
    pub(super) fn take_sent(&mut self, mut each: impl FnMut(u64)) {
        let mut any = false;
        while let Some(at) = self.completion.pop() {
            each(at - at % self.chunk_bytes as u64);
            any = true;
        }
        if any {
            self.completion.release();
        }
    }

    /// Lets the kernel see what was submitted, and wakes it if it asks for that, or `always`. Its answer says, too, whether the socket still
    /// has a device.
    pub(super) fn kick(&self, always: bool) -> Result<(), Errno> {
        self.transmit.publish();
        if self.zero_copy && !always && !self.transmit.needs_wakeup() {
            return Ok(());
        }
        // SAFETY: no buffer and no address.
        let rc = unsafe {
            libc::sendto(self.fd.as_raw_fd(), core::ptr::null(), 0, libc::MSG_DONTWAIT, core::ptr::null(), 0)
        };
        if rc >= 0 { Ok(()) } else { Err(Errno::last()) }
    }

    /// Frames that the kernel dropped for want of a chunk or of room in the ring.
    pub(super) fn dropped(&self) -> u64 {
        let counts: Result<libc::xdp_statistics, Errno> = get(self.fd.as_fd(), libc::XDP_STATISTICS);
        counts.map_or(0, |counts| counts.rx_dropped + counts.rx_ring_full)
    }
}

fn memory(bytes: usize) -> Result<Mapping, Errno> {
    let length = NonZeroUsize::new(bytes).ok_or(Errno(libc::EINVAL))?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
    let start = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) };
    let mapping = Mapping { start: start.map_err(|error| Errno(error as i32))?.cast(), bytes };
    mapping.keep_from_children()
}

fn set<T>(fd: BorrowedFd<'_>, name: c_int, value: &T) -> Result<(), Errno> {
    let bytes = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let value = core::ptr::from_ref(value).cast();
    // SAFETY: `value` is readable for `bytes` bytes during the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value, bytes) };
    if rc == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Reads an option made of integers.
fn get<T>(fd: BorrowedFd<'_>, name: c_int) -> Result<T, Errno> {
    // SAFETY: used with structs of integers only, for which all-zero bytes are a value.
    let mut value: T = unsafe { core::mem::zeroed() };
    let mut bytes = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let to = core::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` is writable for `bytes` bytes during the call.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, to, &raw mut bytes) };
    if rc == 0 { Ok(value) } else { Err(Errno::last()) }
}
