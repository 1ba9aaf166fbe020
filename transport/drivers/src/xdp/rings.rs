//! AF_XDP sockets in use: the memory of their frames and the rings through which chunks of it change hands with the kernel, four for each queue.
//!
//! A chunk is named by the number of its first byte. It belongs to us, or to the kernel from the entry of the ring that hands it over until
//! the entry of the ring that gives it back. Safe calls keep to that: what is lent out as a slice is a chunk that is ours.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::memory::Mapping;
use super::sockets::{self, Failure, RING_ENTRIES, get};
use crate::error::{Errno, Operation};

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
        let mapping = Mapping::ring(socket, page, bytes)?;
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

/// A socket of one queue, with its rings.
struct Queue {
    fd: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
}

impl Queue {
    fn map(fd: OwnedFd) -> Result<Queue, Errno> {
        let at: libc::xdp_mmap_offsets = get(fd.as_fd(), libc::XDP_MMAP_OFFSETS)?;
        let page = |page: u64| i64::try_from(page).unwrap_or(i64::MAX);
        Ok(Queue {
            fill: Ring::map(fd.as_fd(), page(libc::XDP_UMEM_PGOFF_FILL_RING), &at.fr)?,
            completion: Ring::map(fd.as_fd(), page(libc::XDP_UMEM_PGOFF_COMPLETION_RING), &at.cr)?,
            receive: Ring::map(fd.as_fd(), libc::XDP_PGOFF_RX_RING, &at.rx)?,
            transmit: Ring::map(fd.as_fd(), libc::XDP_PGOFF_TX_RING, &at.tx)?,
            fd,
        })
    }

    /// Lets the kernel have what was taken and given back, and wakes a device that waits for it.
    fn end_taking(&self, zero_copy: bool) {
        self.receive.release();
        self.fill.publish();
        if zero_copy && self.fill.needs_wakeup() {
            // SAFETY: no buffer; an error would only mean that nothing is there.
            let _ = unsafe { libc::recv(self.fd.as_raw_fd(), core::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
        }
    }

    /// Lets the kernel see what was submitted, and wakes it if it asks for that, or `always`.
    fn kick(&self, zero_copy: bool, always: bool) -> Result<(), Errno> {
        self.transmit.publish();
        if zero_copy && !always && !self.transmit.needs_wakeup() {
            return Ok(());
        }
        // SAFETY: no buffer and no address.
        let rc = unsafe {
            libc::sendto(self.fd.as_raw_fd(), core::ptr::null(), 0, libc::MSG_DONTWAIT, core::ptr::null(), 0)
        };
        if rc >= 0 { Ok(()) } else { Err(Errno::last()) }
    }
}

/// Sockets of one or several queues of a device, over one memory. The kernel lets go of a queue when descriptor and rings are gone, and some time later.
pub(super) struct Socket {
    /// The queue by which frames are sent, and taken until it is empty: the one that had frames last.
    front: Queue,
    /// The other ones, that which waits longest for its turn first.
    others: Vec<Queue>,
    umem: Mapping,
    chunk_bytes: usize,
    /// The device reads and writes the chunks itself. Where it does not, the kernel sends only while it is called, and takes offered chunks unasked.
    zero_copy: bool,
}

impl Socket {
    /// Makes use of sockets that were opened over this memory. All chunks are ours.
    pub(super) fn new(memory: Mapping, chunk_bytes: usize, sockets: Vec<OwnedFd>) -> Result<Socket, Failure> {
        let rings = |errno| (Operation::MapRings, errno);
        let queues: Result<Vec<Queue>, Errno> = sockets.into_iter().map(Queue::map).collect();
        let mut queues = queues.map_err(rings)?.into_iter();
        let front = queues.next().ok_or(rings(Errno(libc::EINVAL)))?;
        Ok(Socket { front, others: queues.collect(), umem: memory, chunk_bytes, zero_copy: false })
    }

    /// Finds out how the bound sockets work.
    pub(super) fn find_mode(&mut self) -> Result<(), Errno> {
        self.zero_copy = sockets::is_zero_copy(self.front.fd.as_fd())?;
        Ok(())
    }

    /// Whether the device reads and writes the chunks itself.
    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        core::iter::once(&self.front).chain(&self.others)
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues().map(|queue| queue.fd.as_fd())
    }

    pub(super) fn mappings(&self) -> Vec<Range<usize>> {
        let of = |queue: &Queue| {
            [&queue.fill.mapping, &queue.completion.mapping, &queue.receive.mapping, &queue.transmit.mapping]
                .map(Mapping::range)
        };
        self.queues().flat_map(of).chain([self.umem.range()]).collect()
    }

    /// A chunk that is ours: not handed over, or given back since.
    pub(super) fn chunk(&mut self, at: u64) -> &mut [u8] {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        assert!(start.is_multiple_of(self.chunk_bytes) && start < self.umem.bytes, "no chunk at {at}");
        // SAFETY: inside the memory; the caller's chunk, so the kernel does not touch it, and `&mut self` keeps other slices away.
        unsafe { core::slice::from_raw_parts_mut(self.umem.start.add(start).as_ptr(), self.chunk_bytes) }
    }

    /// Gives the kernel the first chunks for frames to come, `each` for each queue.
    pub(super) fn offer(&mut self, each: usize) {
        let chunk_bytes = self.chunk_bytes;
        let queues = core::iter::once(&mut self.front).chain(&mut self.others);
        for (place, queue) in queues.enumerate() {
            for chunk in place * each..(place + 1) * each {
                let offered = queue.fill.push((chunk * chunk_bytes) as u64);
                debug_assert!(offered, "more chunks than the ring was made for");
            }
            queue.end_taking(self.zero_copy);
        }
    }

    /// The next frame that came: its chunk, which is ours from here on, and its bytes there. After the last one, `end_taking`.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u64, &[u8])> {
        let entry = match self.front.receive.pop() {
            Some(entry) => entry,
            None if self.others.is_empty() => return None,
            None => self.take_from_another()?,
        };
        let at = entry.addr % self.chunk_bytes as u64;
        let chunk = entry.addr - at;
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.chunk(chunk).get(start..).and_then(|rest| rest.get(..entry.len as usize));
        Some((chunk, bytes.expect("the kernel names a frame that leaves its chunk")))
    }

    #[cold]
    fn take_from_another(&mut self) -> Option<libc::xdp_desc> {
        self.front.end_taking(self.zero_copy);
        if self.turn() { self.front.receive.pop() } else { None }
    }

    /// Has the queue that waits longest, of those that have frames, take the place in front. False: none has.
    fn turn(&mut self) -> bool {
        let Some(next) = self.others.iter().position(|queue| !queue.receive.is_empty()) else { return false };
        self.put_in_front(next);
        true
    }

    fn put_in_front(&mut self, next: usize) {
        core::mem::swap(&mut self.front, &mut self.others[next]);
        self.others.rotate_left(next + 1);
    }

    /// A taken chunk is for frames to come, from `end_taking` on.
    #[inline]
    pub(super) fn give_back(&mut self, chunk: u64) {
        let offered = self.front.fill.push(chunk);
        debug_assert!(offered, "more chunks than the ring was made for");
    }

    /// Lets the kernel have what was taken and given back, and wakes a device that waits for it.
    pub(super) fn end_taking(&mut self) {
        self.front.end_taking(self.zero_copy);
        // Who called took all it wanted: the others come before what is left.
        if !self.others.is_empty() && !self.front.receive.is_empty() {
            self.turn();
        }
    }

    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        !self.front.receive.is_empty() || self.others.iter().any(|queue| !queue.receive.is_empty())
    }

    /// Hands `bytes` bytes at `at` over for sending, at the next `kick`. False: the ring is full.
    #[inline]
    pub(super) fn submit(&mut self, at: u64, bytes: u32) -> bool {
        self.front.transmit.push(libc::xdp_desc { addr: at, len: bytes, options: 0 })
    }

    /// Whether the kernel has not sent all that was submitted.
    pub(super) fn has_unsent(&self) -> bool {
        self.front.transmit.is_pending() || self.others.iter().any(|queue| queue.transmit.is_pending())
    }

    /// Gives `each` the chunks that have been sent.
    #[inline]
    pub(super) fn take_sent(&mut self, mut each: impl FnMut(u64)) {
        let chunk_bytes = self.chunk_bytes as u64;
        let mut take = |completion: &mut Ring<u64>| {
            let mut any = false;
            while let Some(at) = completion.pop() {
                each(at - at % chunk_bytes);
                any = true;
            }
            if any {
                completion.release();
            }
        };
        take(&mut self.front.completion);
        self.others.iter_mut().for_each(|queue| take(&mut queue.completion));
    }

    /// Lets the kernel see what was submitted, and wakes it if it asks for that, or `always`. Its answer says, too, whether the socket still
    /// has a device.
    pub(super) fn kick(&mut self, always: bool) -> Result<(), Errno> {
        let kicked = self.front.kick(self.zero_copy, always);
        if self.others.is_empty() { kicked } else { self.kick_others(kicked) }
    }

    /// What an earlier front has left is sent, too; and a queue of the device that takes nothing now leaves its place to the next.
    #[cold]
    fn kick_others(&mut self, kicked: Result<(), Errno>) -> Result<(), Errno> {
        let unsent = self.others.iter().filter(|queue| queue.transmit.is_pending());
        let others = unsent.map(|queue| queue.kick(self.zero_copy, false)).fold(Ok(()), Result::and);
        if kicked.is_err() {
            self.put_in_front(0);
        }
        kicked.and(others)
    }

    /// Frames that the kernel dropped for want of a chunk or of room in the ring.
    pub(super) fn dropped(&self) -> u64 {
        let counted = |queue: &Queue| -> u64 {
            let counts: Result<libc::xdp_statistics, Errno> = get(queue.fd.as_fd(), libc::XDP_STATISTICS);
            counts.map_or(0, |counts| counts.rx_dropped + counts.rx_ring_full)
        };
        self.queues().map(counted).sum()
    }
}
