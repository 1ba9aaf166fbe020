//! AF_XDP sockets in use: the memory of their frames and the rings through which chunks of it change hands with the kernel, four for each queue.
//!
//! A chunk is named by the number of its first byte. It belongs to us, or to the kernel from the entry of the
//! ring that hands it over until the entry of the ring that gives it back. Safe calls keep to that: a slice
//! that they lend out is a chunk that is ours.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::memory::Mapping;
use super::open::Layout;
use super::sockets::{self, FILL_ENTRIES, Failure, RING_ENTRIES, get};
use crate::cache::prefetch;
use crate::error::{Errno, Operation};

#[cfg(test)]
mod tests;

/// One ring: `T` is a chunk's number, or a descriptor of a frame.
struct Ring<T, const ENTRIES: u32 = RING_ENTRIES> {
    mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// The index that we move, and its value published to the kernel; the kernel moves the other.
    own: u32,
    /// The kernel's index when it was last looked at: a look at it may wait for another processor's cache.
    known: u32,
}

// SAFETY: the pointers lie in `mapping`, which moves along.
unsafe impl<T: Send, const ENTRIES: u32> Send for Ring<T, ENTRIES> {}

impl<T: Copy, const ENTRIES: u32> Ring<T, ENTRIES> {
    fn map(socket: BorrowedFd<'_>, page: i64, at: &libc::xdp_ring_offset) -> Result<Ring<T, ENTRIES>, Errno> {
        let offset = |offset: u64| usize::try_from(offset).map_err(|_| Errno(libc::EINVAL));
        let entries_at = offset(at.desc)?;
        let bytes = entries_at + ENTRIES as usize * size_of::<T>();
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
        unsafe { self.entries.add((index & (ENTRIES - 1)) as usize) }
    }

    /// Whether so many entries can be appended.
    #[inline]
    fn has_room(&mut self, entries: u32) -> bool {
        if self.own.wrapping_sub(self.known) > ENTRIES - entries {
            self.known = self.word(self.consumer).load(Ordering::Acquire);
        }
        self.own.wrapping_sub(self.known) <= ENTRIES - entries
    }

    /// Appends, if there is room. Not seen by the kernel before `publish`.
    fn push(&mut self, value: T) -> bool {
        if !self.has_room(1) {
            return false;
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

    /// The oldest entry that the kernel has produced and that has not been popped.
    #[inline]
    fn peek(&self) -> Option<T> {
        // SAFETY: as in `pop`.
        (!self.is_empty()).then(|| unsafe { self.entry(self.own).read() })
    }

    /// Gives the entries that were popped back to the kernel.
    fn release(&self) {
        self.word(self.consumer).store(self.own, Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        self.own == self.known && self.own == self.word(self.producer).load(Ordering::Acquire)
    }

    /// Whether the kernel wants a call before it looks at published entries.
    fn needs_wakeup(&self) -> bool {
        // The kernel announces it and then looks once more; we publish and then look: one of the two must see
        // the other.
        fence(Ordering::SeqCst);
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Bytes of a frame that are fetched before they are looked at: its headers, and the payload of a short one.
const FETCH_BYTES_MAX: usize = 256;

/// The frame goes on in the next entry's chunk (`XDP_PKT_CONTD`).
const PART: u32 = 1;

/// A socket of one queue, with its rings.
struct Queue {
    fd: OwnedFd,
    fill: Ring<u64, FILL_ENTRIES>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    /// A frame in several chunks, as far as it has been taken.
    parts: Vec<u8>,
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
            parts: Vec::new(),
            fd,
        })
    }

    /// Publishes taken and returned entries to the kernel, and wakes a device that waits for it.
    fn end_taking(&self, zero_copy: bool) {
        self.receive.release();
        self.fill.publish();
        if zero_copy && self.fill.needs_wakeup() {
            // SAFETY: no buffer; an error would only mean that nothing is there.
            let _ = unsafe { libc::recv(self.fd.as_raw_fd(), core::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
        }
    }

    /// Lets the kernel see submitted frames, and wakes it if it asks for that, or `always`.
    fn kick(&self, zero_copy: bool, always: bool) -> Result<(), Errno> {
        self.transmit.publish();
        if zero_copy && !always && !self.transmit.needs_wakeup() {
            return Ok(());
        }
        let nowhere = core::ptr::null::<u8>();
        // Not by sendto(3): the C library makes the thread ready to be cancelled before that call, and the frame waits.
        // SAFETY: no buffer and no address.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.fd.as_raw_fd(),
                nowhere,
                0_usize,
                libc::MSG_DONTWAIT,
                nowhere,
                0_usize,
            )
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
    /// A power of two, as all chunks of AF_XDP are.
    chunk_bytes: usize,
    /// Where slots for sending begin, each of some chunks.
    slots_at: usize,
    /// A power of two.
    slot_bytes: usize,
    /// Its logarithm.
    slot_shift: u32,
    /// By slot: chunks of it that the kernel has for sending.
    unsent: Vec<u8>,
    /// The last frame that came in several chunks.
    whole: Vec<u8>,
    /// The device reads and writes the chunks itself. Where it does not, the kernel sends only while it is called, and takes offered chunks unasked.
    zero_copy: bool,
}

impl Socket {
    /// Makes use of sockets that were opened over this memory. All chunks are ours.
    pub(super) fn new(memory: Mapping, layout: Layout, sockets: Vec<OwnedFd>) -> Result<Socket, Failure> {
        let rings = |errno| (Operation::MapRings, errno);
        let queues: Result<Vec<Queue>, Errno> = sockets.into_iter().map(Queue::map).collect();
        let mut queues = queues.map_err(rings)?.into_iter();
        let front = queues.next().ok_or(rings(Errno(libc::EINVAL)))?;
        let slots: Vec<u64> = layout.send_slots().collect();
        Ok(Socket {
            front,
            others: queues.collect(),
            umem: memory,
            chunk_bytes: layout.chunk_bytes,
            slots_at: slots.first().map_or(0, |at| usize::try_from(*at).unwrap_or(0)),
            slot_bytes: layout.slot_bytes(),
            slot_shift: layout.slot_bytes().trailing_zeros(),
            unsent: vec![0; slots.len()],
            whole: Vec::new(),
            zero_copy: false,
        })
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
        assert!(start & (self.chunk_bytes - 1) == 0 && start < self.umem.bytes, "no chunk at {at}");
        // SAFETY: inside the memory; the caller's chunk, so the kernel does not touch it, and `&mut self` keeps other slices away.
        unsafe { core::slice::from_raw_parts_mut(self.umem.start.add(start).as_ptr(), self.chunk_bytes) }
    }

    /// The number of the slot for sending that begins at `at`.
    #[inline]
    pub(super) fn number_of(&self, at: u64) -> usize {
        usize::try_from(at).unwrap_or(usize::MAX).wrapping_sub(self.slots_at) >> self.slot_shift
    }

    /// A slot for sending that is ours.
    #[inline]
    pub(super) fn slot(&mut self, at: u64) -> &mut [u8] {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let is_slot = start >= self.slots_at
            && (start - self.slots_at) & (self.slot_bytes - 1) == 0
            && start < self.umem.bytes;
        assert!(is_slot, "no slot at {at}");
        // SAFETY: inside the memory, which is divided without rest; the caller's slot, so the kernel does not touch it, and `&mut self` keeps other
        // slices away.
        unsafe { core::slice::from_raw_parts_mut(self.umem.start.add(start).as_ptr(), self.slot_bytes) }
    }

    /// Two slots for sending that are ours.
    pub(super) fn two_slots(&mut self, one: u64, other: u64) -> (&mut [u8], &mut [u8]) {
        assert!(one != other, "one slot, twice");
        let one = core::ptr::from_mut(self.slot(one));
        let other = self.slot(other);
        // SAFETY: `slot` has checked both, they are two, so share no byte, and `&mut self` keeps other slices away.
        (unsafe { &mut *one }, other)
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

    /// The next frame that came: its chunk, which is ours from here on, and its bytes there. Some time after the last one, `end_taking`.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u64, &[u8])> {
        let entry = match self.front.receive.pop() {
            Some(entry) => entry,
            None if self.others.is_empty() => return None,
            None => self.take_from_another()?,
        };
        self.fetch(&entry);
        if let Some(next) = self.front.receive.peek() {
            self.fetch(&next);
        }
        if entry.options & PART != 0 || !self.front.parts.is_empty() {
            return self.take_in_parts(entry);
        }
        let at = entry.addr & (self.chunk_bytes as u64 - 1);
        let chunk = entry.addr - at;
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.chunk(chunk).get(start..).and_then(|rest| rest.get(..entry.len as usize));
        let bytes = bytes.expect("the kernel names a frame that leaves its chunk");
        Some((chunk, bytes))
    }

    /// As `take`, of a frame that lies in several chunks, of which this is the first, or the next one. `None` also if the rest has not come yet.
    fn take_in_parts(&mut self, first: libc::xdp_desc) -> Option<(u64, &[u8])> {
        let mut entry = first;
        loop {
            let at = entry.addr & (self.chunk_bytes as u64 - 1);
            let (chunk, start) = (entry.addr - at, usize::try_from(at).unwrap_or(usize::MAX));
            let mut parts = core::mem::take(&mut self.front.parts);
            let bytes = self.chunk(chunk).get(start..).and_then(|rest| rest.get(..entry.len as usize));
            parts.extend_from_slice(bytes.expect("the kernel names a part that leaves its chunk"));
            self.front.parts = parts;
            if entry.options & PART == 0 {
                break;
            }
            self.give_back(chunk);
            entry = self.front.receive.pop()?;
        }
        let chunk = entry.addr & !(self.chunk_bytes as u64 - 1);
        self.whole.clear();
        core::mem::swap(&mut self.whole, &mut self.front.parts);
        Some((chunk, &self.whole))
    }

    #[cold]
    fn take_from_another(&mut self) -> Option<libc::xdp_desc> {
        if self.turn() { self.front.receive.pop() } else { None }
    }

    /// Has the queue that waits longest, of those that have frames, take the place in front. False: none has.
    fn turn(&mut self) -> bool {
        let Some(next) = self.others.iter().position(|queue| !queue.receive.is_empty()) else { return false };
        self.put_in_front(next);
        true
    }

    fn put_in_front(&mut self, next: usize) {
        self.front.end_taking(self.zero_copy);
        core::mem::swap(&mut self.front, &mut self.others[next]);
        self.others.rotate_left(next + 1);
    }

    /// A taken chunk is for frames to come, from `end_taking` on.
    #[inline]
    pub(super) fn give_back(&mut self, chunk: u64) {
        let offered = self.front.fill.push(chunk);
        debug_assert!(offered, "more chunks than the ring was made for");
    }

    /// Publishes taken and returned entries to the kernel, and wakes a device that waits for it.
    pub(super) fn end_taking(&mut self) {
        self.front.end_taking(self.zero_copy);
        // The caller took all it wanted: the others come before the rest.
        if !self.others.is_empty() && !self.front.receive.is_empty() {
            self.turn();
        }
    }

    /// Whether frames have come. The processor begins to fetch the first.
    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        match self.front.receive.peek() {
            Some(entry) => self.fetch(&entry),
            None if self.others.iter().all(|queue| queue.receive.is_empty()) => return false,
            None => {}
        }
        true
    }

    /// Has the processor fetch the bytes of a frame that are looked at in any case.
    #[inline]
    fn fetch(&self, entry: &libc::xdp_desc) {
        let at = usize::try_from(entry.addr).unwrap_or(0);
        prefetch(self.umem.start.as_ptr().wrapping_add(at), (entry.len as usize).min(FETCH_BYTES_MAX));
    }

    /// Hands `bytes` bytes of a slot, from `start` on, over for sending, at the next `kick`. False: the ring has no room.
    #[inline]
    pub(super) fn submit(&mut self, slot: u64, start: usize, bytes: usize) -> bool {
        let number = self.number_of(slot);
        let in_first = self.chunk_bytes - start;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let at = slot + start as u64;
        if bytes <= in_first {
            self.unsent[number] = 1;
            return self.front.transmit.push(libc::xdp_desc { addr: at, len: length(bytes), options: 0 });
        }
        let parts = 1 + (bytes - in_first).div_ceil(self.chunk_bytes);
        if !self.front.transmit.has_room(length(parts)) {
            return false;
        }
        self.unsent[number] = u8::try_from(parts).unwrap_or(u8::MAX);
        let (mut at, mut left, mut room) = (at, bytes, in_first);
        while left > 0 {
            let len = left.min(room);
            let options = if left > len { PART } else { 0 };
            let pushed = self.front.transmit.push(libc::xdp_desc { addr: at, len: length(len), options });
            debug_assert!(pushed, "there was room");
            (at, left, room) = (at + len as u64, left - len, self.chunk_bytes);
        }
        true
    }

    /// Whether the kernel has not sent all that was submitted.
    pub(super) fn has_unsent(&self) -> bool {
        self.front.transmit.is_pending() || self.others.iter().any(|queue| queue.transmit.is_pending())
    }

    /// Gives `each` the slots that have been sent, with their numbers.
    #[inline]
    pub(super) fn take_sent(&mut self, mut each: impl FnMut(u64, usize)) {
        let Socket { front, others, unsent, slots_at, slot_shift, .. } = self;
        let mut take = |completion: &mut Ring<u64>| {
            let mut any = false;
            while let Some(at) = completion.pop() {
                let number = usize::try_from(at).unwrap_or(usize::MAX).wrapping_sub(*slots_at) >> *slot_shift;
                unsent[number] -= 1;
                if unsent[number] == 0 {
                    each((*slots_at + (number << *slot_shift)) as u64, number);
                }
                any = true;
            }
            if any {
                completion.release();
            }
        };
        take(&mut front.completion);
        others.iter_mut().for_each(|queue| take(&mut queue.completion));
    }

    /// Lets the kernel see submitted frames, and wakes it if it asks for that, or `always`. Its answer also
    /// shows whether the socket still has a device.
    pub(super) fn kick(&mut self, always: bool) -> Result<(), Errno> {
        let kicked = self.front.kick(self.zero_copy, always);
        if self.others.is_empty() { kicked } else { self.kick_others(kicked) }
    }

    /// Frames that an earlier front has left are sent, too. A queue of the device that takes nothing now
    /// leaves its place to the next.
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
