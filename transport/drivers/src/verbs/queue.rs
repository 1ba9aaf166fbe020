//! A queue pair for unreliable datagrams with its completion queues, its memory, and the channel that wakes a sleeper.
//!
//! Requests of each direction complete in the order of their posting. Those for sending are numbered; only the last of
//! a chain requests a completion, which covers all before it.

use core::ffi::{c_int, c_uint};
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::{self, GRH_BYTES};
use super::address::VerbsAddress;
use super::device::{Device, Failure, dont_block};
use super::frames::{Frames, HEADROOM};
use super::library::{Library, Made, checked};
use crate::error::{Errno, Operation};
use crate::limits::{VERBS_COMPLETIONS, VERBS_INLINE_BYTES, VERBS_RECEIVE_FRAMES, VERBS_SEND_FRAMES};

/// Hops that a frame may take: the usual limit of IP packets.
const HOP_LIMIT: u8 = 64;

pub(super) type Handle = Made<abi::AddressHandle>;

/// A frame to be sent: a slot that it lies in, or bytes that are copied at once.
pub(super) struct Sending<'a> {
    pub(super) what: Bytes<'a>,
    pub(super) to: &'a Handle,
    pub(super) address: &'a VerbsAddress,
}

pub(super) enum Bytes<'a> {
    Slot(u32, usize),
    Short(&'a [u8]),
}

/// A request that has come to its end.
#[derive(Clone, Copy)]
pub(super) struct Done {
    /// Number of the request, or the slot.
    pub(super) id: u64,
    pub(super) outcome: Result<usize, WorkError>,
}

/// Status of a request that failed (`ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WorkError(pub(super) c_uint);

impl WorkError {
    /// None of the device's: a request's end would never be reported.
    pub(super) const UNREPORTED: WorkError = WorkError(c_uint::MAX);
}

/// The fields are dropped in order: each was made of those after it.
pub(super) struct Queue {
    pair: Made<abi::QueuePair>,
    sent: Made<abi::CompletionQueue>,
    received: Made<abi::CompletionQueue>,
    channel: Made<abi::CompletionChannel>,
    region: Made<abi::MemoryRegion>,
    domain: Made<abi::Domain>,
    pub(super) device: Device,
    pub(super) frames: Frames,
    mapped: Vec<Range<usize>>,
    calls: Calls,
    scratch: Scratch,
    key: u32,
    pub(super) receive_slots: u32,
    pub(super) send_slots: u32,
    inline_bytes: usize,
    /// Number of the next request for sending.
    pub(super) next_send: u64,
    /// The device reports the completion of every request for sending with a lower number.
    pub(super) reported_below: u64,
}

/// The inline functions of the device's library.
#[derive(Clone, Copy)]
struct Calls {
    poll: abi::PollCq,
    request_notify: abi::RequestNotify,
    post_send: abi::PostSend,
    post_receive: abi::PostReceive,
}

/// Room for a chain of requests, filled anew for each.
#[derive(Default)]
struct Scratch {
    pieces: Vec<abi::Piece>,
    sends: Vec<abi::SendRequest>,
    receives: Vec<abi::ReceiveRequest>,
}

// SAFETY: nothing follows its pointers but the call for which they were written.
unsafe impl Send for Scratch {}

/// One at a time opens a device or closes it, so that new mappings of devices are its own.
pub(super) fn mapping() -> MutexGuard<'static, ()> {
    static MAPPING: Mutex<()> = Mutex::new(());
    MAPPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mappings of RDMA devices into this process.
pub(super) fn mapped_devices() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let range = |line: &str| {
        let (range, _) = line.split_once(' ').filter(|_| line.contains(" /dev/infiniband/"))?;
        let (start, end) = range.split_once('-')?;
        let number = |hex| usize::from_str_radix(hex, 16).ok();
        Some(number(start)?..number(end)?)
    };
    maps.lines().filter_map(range).collect()
}

impl Queue {
    /// Makes all of it, with every slot for receiving posted.
    pub(super) fn open(device: Device, key: u32, before: &[Range<usize>]) -> Result<Queue, Failure> {
        let library = device.library;
        let context = device.context.at();
        let making = |errno| (Operation::MakeQueuePair, errno);
        let most = device.requests_max.min(device.completions_max);
        let (receives, sends) = (VERBS_RECEIVE_FRAMES.min(most), VERBS_SEND_FRAMES.min(most));
        // SAFETY: an open device; dropped after all that is made in it.
        let domain = unsafe { Made::new((library.alloc_domain)(context), library.free_domain) };
        let domain = domain.map_err(making)?;
        let (frames, region) = register(library, &domain, receives + sends, 128 << device.mtu)
            .map_err(|errno| (Operation::RegisterFrames, errno))?;
        // SAFETY: an open device; dropped after the queue that reports its frames there.
        let channel = unsafe { Made::new((library.create_channel)(context), library.destroy_channel) };
        let channel = channel.map_err(making)?;
        let entries = |count: usize| c_int::try_from(count).unwrap_or(c_int::MAX);
        let queue = |count, channel| {
            // SAFETY: an open device, and its channel or none; dropped after the pair.
            let made = unsafe { (library.create_queue)(context, entries(count), null_mut(), channel, 0) };
            // SAFETY: the library's answer.
            unsafe { Made::new(made, library.destroy_queue) }.map_err(making)
        };
        let received = queue(receives, channel.at())?;
        let sent = queue(sends, null_mut())?;
        let count = |slots| u32::try_from(slots).unwrap_or(u32::MAX);
        let mut inline_bytes = VERBS_INLINE_BYTES;
        let (pair, granted) = loop {
            let mut setup = abi::QueuePairSetup {
                user: null_mut(),
                send_queue: sent.at(),
                receive_queue: received.at(),
                shared_receive: null_mut(),
                limits: abi::QueueLimits {
                    sends: count(sends),
                    receives: count(receives),
                    send_pieces: 1,
                    receive_pieces: 1,
                    inline_bytes: count(inline_bytes),
                },
                kind: abi::UNRELIABLE_DATAGRAM,
                signal_all: 0,
            };
            // SAFETY: objects of this device, and a filled struct.
            let made = unsafe { (library.create_pair)(domain.at(), &raw mut setup) };
            // SAFETY: the library's answer; dropped first.
            match unsafe { Made::new(made, library.destroy_pair) } {
                Ok(pair) => break (pair, setup.limits.inline_bytes),
                // Some devices take less in the request itself, or nothing, and do not report how much.
                Err(_) if inline_bytes > 0 => inline_bytes /= 2,
                Err(errno) => return Err(making(errno)),
            }
        };
        // SAFETY: an open device, whose library has filled in its calls.
        let filled = unsafe { &(*context).calls };
        let (Some(poll), Some(request_notify), Some(post_send), Some(post_receive)) =
            (filled.poll_cq, filled.request_notify, filled.post_send, filled.post_receive)
        else {
            return Err(making(Errno(libc::ENOSYS)));
        };
        let mapped = mapped_devices().into_iter().filter(|range| !before.contains(range)).collect();
        let mut queue = Queue {
            pair,
            sent,
            received,
            channel,
            region,
            domain,
            device,
            frames,
            mapped,
            calls: Calls { poll, request_notify, post_send, post_receive },
            scratch: Scratch::default(),
            key,
            receive_slots: count(receives),
            send_slots: count(sends),
            inline_bytes: inline_bytes.min(granted as usize),
            next_send: 0,
            reported_below: 0,
        };
        dont_block(queue.wake_fd()).map_err(making)?;
        queue.keep_from_children();
        queue.bring_up().map_err(making)?;
        Ok(queue)
    }

    /// A forked copy of a device's mapping would keep its queues.
    fn keep_from_children(&self) {
        for range in &self.mapped {
            let Some(start) = NonNull::new(range.start as *mut _) else { continue };
            let advice = nix::sys::mman::MmapAdvise::MADV_DONTFORK;
            // SAFETY: a mapping of the device's, made by its library; sets only the behaviour of a fork.
            if let Err(errno) = unsafe { nix::sys::mman::madvise(start, range.len(), advice) } {
                tracing::debug!(%errno, "a mapping of an RDMA device is inherited by children");
            }
        }
    }

    /// From a new pair, or one that was reset, to one that sends and receives.
    fn bring_up(&mut self) -> Result<(), Errno> {
        let base = abi::QueuePairAttributes { port: self.device.port, key: self.key, ..Default::default() };
        let first = abi::HAS_STATE | abi::HAS_PARTITION | abi::HAS_PORT | abi::HAS_KEY;
        self.modify(abi::QueuePairAttributes { state: abi::INIT, ..base }, first)?;
        // Posted before anything can come.
        self.post_receive((0..self.receive_slots).collect::<Vec<_>>().as_slice())?;
        self.modify(
            abi::QueuePairAttributes { state: abi::READY_TO_RECEIVE, ..Default::default() },
            abi::HAS_STATE,
        )?;
        let last = abi::HAS_STATE | abi::HAS_SEND_NUMBER;
        self.modify(abi::QueuePairAttributes { state: abi::READY_TO_SEND, ..Default::default() }, last)
    }

    fn modify(&self, mut to: abi::QueuePairAttributes, what: c_int) -> Result<(), Errno> {
        // SAFETY: our pair, and a struct whose fields that count are filled.
        checked(unsafe { (self.device.library.modify_pair)(self.pair.at(), &raw mut to, what) })
    }

    /// Begins anew after an error, as the same pair: nothing is posted then but every slot for receiving. Received
    /// frames that were not taken are lost. Returns their number, as far as the device has reported them.
    pub(super) fn restart(&mut self) -> Result<usize, Errno> {
        let reset = abi::QueuePairAttributes { state: abi::RESET, ..Default::default() };
        self.modify(reset, abi::HAS_STATE)?;
        let mut done = Vec::new();
        while self.poll_sent(&mut done)? > 0 {}
        done.clear();
        while self.poll_received(&mut done, VERBS_COMPLETIONS)? > 0 {}
        self.reported_below = self.next_send;
        self.bring_up()?;
        Ok(done.iter().filter(|one| one.outcome.is_ok()).count())
    }

    pub(super) fn own_address(&self) -> VerbsAddress {
        // SAFETY: our pair.
        let number = unsafe { (*self.pair.at()).number };
        let Device { gid, lid, mtu, needs_route, .. } = self.device;
        // Over Ethernet every frame has a route.
        let needs_route = needs_route && lid != 0;
        VerbsAddress { mtu, needs_route, lid, number, key: self.key, gid }
    }

    /// Makes the way to an address usable. The kernel may ask the network for a neighbour, and wait.
    pub(super) fn handle(&self, to: &VerbsAddress) -> Result<Handle, Errno> {
        let mut attributes = abi::HandleAttributes {
            route: abi::GlobalRoute {
                to: abi::AlignedGid(to.gid),
                flow_label: 0,
                own_gid_index: self.device.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
            },
            to_lid: to.lid,
            service_level: 0,
            source_path_bits: 0,
            static_rate: 0,
            has_route: (self.device.needs_route || to.needs_route).into(),
            port: self.device.port,
        };
        let library = self.device.library;
        // SAFETY: our domain, and a filled struct.
        let made = unsafe { (library.create_handle)(self.domain.at(), &raw mut attributes) };
        // SAFETY: the library's answer; handles end before the domain (fields of `VerbsDriver`).
        unsafe { Made::new(made, library.destroy_handle) }
    }

    /// Whether frames of that length are copied into the request itself.
    pub(super) fn is_short(&self, bytes: usize) -> bool {
        bytes <= self.inline_bytes
    }

    /// Posts a chain; how many of it were taken, in order, and the device's error for the next.
    pub(super) fn post_send<'a>(
        &mut self,
        chain: impl Iterator<Item = Sending<'a>>,
    ) -> (usize, Result<(), Errno>) {
        // SAFETY: our region.
        let local_key = unsafe { (*self.region.at()).local_key };
        let Scratch { pieces, sends: requests, .. } = &mut self.scratch;
        pieces.clear();
        requests.clear();
        for sending in chain {
            let (address, bytes) = match sending.what {
                Bytes::Slot(slot, bytes) => (self.frames.address(slot), bytes),
                Bytes::Short(bytes) => (bytes.as_ptr() as u64, bytes.len()),
            };
            pieces.push(abi::Piece { address, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), local_key });
            requests.push(abi::SendRequest {
                id: self.next_send + requests.len() as u64,
                next: null_mut(),
                pieces: null_mut(),
                piece_count: 1,
                operation: abi::SEND,
                flags: if bytes <= self.inline_bytes { abi::INLINE } else { 0 },
                immediate: 0,
                to: sending.to.at(),
                to_queue: sending.address.number,
                to_key: sending.address.key,
                rest: [0; 9],
            });
        }
        let Some(last) = requests.last_mut() else { return (0, Ok(())) };
        last.flags |= abi::SIGNALLED;
        let (first, first_piece, count) = (requests.as_mut_ptr(), pieces.as_mut_ptr(), requests.len());
        for i in 0..count {
            // SAFETY: all are in the vectors, which do not grow any more.
            unsafe {
                let request = first.add(i);
                (*request).pieces = first_piece.add(i);
                (*request).next = if i + 1 < count { first.add(i + 1) } else { null_mut() };
            }
        }
        let mut refused: *mut abi::SendRequest = null_mut();
        // SAFETY: a chain of filled requests over slots that are the caller's, or over bytes that are copied
        // during the call (short frames); handles outlive their requests (`VerbsDriver::retired`).
        let failed = unsafe { (self.calls.post_send)(self.pair.at(), first, &raw mut refused) };
        let outcome = checked(failed);
        let taken = match outcome {
            Ok(()) => count,
            Err(_) => requests.iter().position(|request| core::ptr::eq(request, refused)).unwrap_or(0),
        };
        self.next_send += taken as u64;
        if taken == count {
            self.reported_below = self.next_send;
        }
        (taken, outcome)
    }

    /// Gives slots to the device for frames to come.
    pub(super) fn post_receive(&mut self, slots: &[u32]) -> Result<(), Errno> {
        // SAFETY: our region.
        let local_key = unsafe { (*self.region.at()).local_key };
        let bytes = u32::try_from(GRH_BYTES + (128 << self.device.mtu)).unwrap_or(u32::MAX);
        let Scratch { pieces, receives: requests, .. } = &mut self.scratch;
        pieces.clear();
        requests.clear();
        for slot in slots {
            let address = self.frames.address(*slot) - GRH_BYTES as u64;
            pieces.push(abi::Piece { address, bytes, local_key });
            let id = u64::from(*slot);
            requests.push(abi::ReceiveRequest { id, next: null_mut(), pieces: null_mut(), piece_count: 1 });
        }
        let (first, first_piece, count) = (requests.as_mut_ptr(), pieces.as_mut_ptr(), requests.len());
        if count == 0 {
            return Ok(());
        }
        for i in 0..count {
            // SAFETY: all are in the vectors, which do not grow any more.
            unsafe {
                let request = first.add(i);
                (*request).pieces = first_piece.add(i);
                (*request).next = if i + 1 < count { first.add(i + 1) } else { null_mut() };
            }
        }
        let mut refused: *mut abi::ReceiveRequest = null_mut();
        // SAFETY: a chain of filled requests over slots that are the caller's, with their headroom.
        checked(unsafe { (self.calls.post_receive)(self.pair.at(), first, &raw mut refused) })
    }

    /// Appends requests that have been sent, or could not be. Returns how many.
    pub(super) fn poll_sent(&mut self, done: &mut Vec<Done>) -> Result<usize, Errno> {
        poll(self.calls.poll, &self.sent, done, VERBS_COMPLETIONS)
    }

    /// Appends slots in which frames have come, with the bytes of their frames.
    pub(super) fn poll_received(&mut self, done: &mut Vec<Done>, most: usize) -> Result<usize, Errno> {
        poll(self.calls.poll, &self.received, done, most)
    }

    /// The next frame makes the channel readable.
    pub(super) fn request_wake(&mut self) -> Result<(), Errno> {
        // SAFETY: our queue.
        checked(unsafe { (self.calls.request_notify)(self.received.at(), 0) })
    }

    /// Whether the channel reported a frame since it was asked to.
    pub(super) fn take_wake(&mut self) -> bool {
        let (mut queue, mut user) = (null_mut(), null_mut());
        let library = self.device.library;
        // SAFETY: our channel, whose descriptor does not block, and room for its answers.
        let failed = unsafe { (library.get_wake)(self.channel.at(), &raw mut queue, &raw mut user) };
        if failed == 0 {
            // SAFETY: the queue that was just reported: ours.
            unsafe { (library.ack_wakes)(queue, 1) };
        }
        failed == 0
    }

    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: our channel.
        let fd = unsafe { (*self.channel.at()).fd };
        // SAFETY: open for as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn descriptors(&self) -> [RawFd; 3] {
        [self.device.command_fd(), self.device.event_fd().as_raw_fd(), self.wake_fd().as_raw_fd()]
    }

    /// The memory ranges that must not be in an image.
    pub(super) fn mappings(&self) -> Vec<Range<usize>> {
        self.mapped.iter().cloned().chain([self.frames.range()]).collect()
    }
}

/// Memory for frames that the device may use: on huge pages where there are enough and the device takes them, else on ordinary ones.
fn register(
    library: &Library,
    domain: &Made<abi::Domain>,
    slots: usize,
    frame_bytes_max: usize,
) -> Result<(Frames, Made<abi::MemoryRegion>), Errno> {
    // Written by the device where frames come in; no other device may reach it.
    const LOCAL_WRITE: c_int = 1;
    let on = |is_huge| {
        let frames = Frames::new(slots, frame_bytes_max, is_huge)?;
        let (start, bytes) = frames.whole();
        // SAFETY: our own mapping, which is unmapped after the registration has ended.
        let region = unsafe {
            let region = (library.register)(domain.at(), start.cast(), bytes, LOCAL_WRITE);
            Made::new(region, library.deregister)
        };
        region.map(|region| (frames, region))
    };
    on(true).or_else(|errno| {
        tracing::debug!(%errno, "frames do not lie on huge pages");
        on(false)
    })
}

fn poll(
    poll: abi::PollCq,
    queue: &Made<abi::CompletionQueue>,
    done: &mut Vec<Done>,
    most: usize,
) -> Result<usize, Errno> {
    let mut found = [abi::Completion::default(); VERBS_COMPLETIONS];
    let most = c_int::try_from(most.min(VERBS_COMPLETIONS)).unwrap_or(c_int::MAX);
    // SAFETY: our queue, and room for that many.
    let count = unsafe { poll(queue.at(), most, found.as_mut_ptr()) };
    let count = usize::try_from(count).map_err(|_| Errno(libc::EIO))?;
    done.extend(found[..count].iter().map(|one| Done {
        id: one.id,
        outcome: match one.status {
            abi::SUCCESS => Ok((one.bytes as usize).saturating_sub(GRH_BYTES)),
            status => Err(WorkError(status)),
        },
    }));
    Ok(count)
}

const _: () = assert!(HEADROOM >= GRH_BYTES);
