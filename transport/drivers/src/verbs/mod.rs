//! The driver over RDMA verbs: unreliable datagrams of queue pairs, over InfiniBand and RoCE, around the kernel.
//!
//! Nothing of it is needed to build or to start: `libibverbs.so.1` is opened when the first rail is.
//!
//! * `abi`: what libibverbs gives and takes;
//! * `library`: opening it, and objects that it makes;
//! * `device`: a port of a device, its GID, and what happens to them;
//! * `frames`: the memory of frames;
//! * `queue`: the queue pair and its completions;
//! * `address`: where others reach it.

mod abi;
mod address;
mod device;
mod frames;
mod library;
mod queue;

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use transport::{AddressId, RawAddress};

use crate::addresses::Addresses;
use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, Path, Wake};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{BURST_FRAMES, VERBS_COMPLETIONS, VERBS_RESTARTS_MAX};
use crate::payload::Payload;
use crate::sleep::wait_readable;
pub use address::{NotVerbs, VerbsAddress};
use device::Device;
use queue::{Bytes, Done, Handle, Queue, Sending, WorkError};

/// Calls of `receive` between two looks at the device's events, each a system call. A rail that is about to sleep, and one that has slept, look
/// at once.
const LOOK_CALLS: u32 = 256;

/// How to open a [`VerbsDriver`].
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The device as the kernel names it, such as `mlx5_0`; `/sys/class/infiniband` lists them.
    pub device: String,
    /// `None`: its first active port.
    pub port: Option<u8>,
    /// Which of the port's GIDs. `None`: the one that reaches farthest.
    pub gid_index: Option<u8>,
}

impl VerbsConfig {
    /// The device's first active port, and its GID that reaches farthest.
    #[must_use]
    pub fn new(device: &str) -> VerbsConfig {
        VerbsConfig { device: device.to_owned(), port: None, gid_index: None }
    }
}

struct Peer {
    address: VerbsAddress,
    handle: Handle,
    path: Path,
}

/// A committed frame in a slot.
struct Staged {
    slot: u32,
    to: AddressId,
    bytes: usize,
}

/// A rail over verbs.
pub struct VerbsDriver {
    caps: Caps,
    counters: Counters,
    own: VerbsAddress,
    peers: Addresses<VerbsAddress, Peer>,
    /// Handles of forgotten addresses, each with the number of the first request that cannot use it.
    retired: VecDeque<(u64, Handle)>,
    queue: ManuallyDrop<Queue>,
    epoll: Epoll,
    free: Vec<u32>,
    leased: Option<u32>,
    staged: VecDeque<Staged>,
    /// Slots with the device for sending, each with the number of its request.
    sending: VecDeque<(u64, u32)>,
    /// Every request for sending with a lower number has completed.
    sent_below: u64,
    staged_total: u64,
    /// Slots with frames that came and were not given to anybody yet.
    came: VecDeque<Done>,
    found: Vec<Done>,
    /// The channel was asked to tell of the next frame, and has not been seen to.
    armed: bool,
    /// Calls of `receive` until the next look at the device's events.
    look_in: u32,
    /// Errors of the pair since one of its requests last succeeded.
    restarts: u32,
    /// What ended the rail where no error could be told.
    failed: Option<DriverError>,
}

impl VerbsDriver {
    /// Opens the device, and makes a queue pair with a number and a key of its own.
    ///
    /// # Errors
    /// `LibraryMissing`; `DeviceMissing`; `CannotOpen` with the step and errno.
    pub fn open(config: &VerbsConfig) -> Result<VerbsDriver, DriverError> {
        let cannot = |(operation, errno)| DriverError::CannotOpen { operation, errno };
        let one_at_a_time = queue::mapping();
        let before = queue::mapped_devices();
        let device = Device::open(config)?;
        let key = random_key().map_err(|errno| cannot((Operation::MakeQueuePair, errno)))?;
        let queue = Queue::open(device, key, &before).map_err(cannot)?;
        drop(one_at_a_time);
        let own = queue.own_address();
        let epoll = epoll([queue.wake_fd(), queue.device.event_fd()])
            .map_err(|errno| cannot((Operation::Wait, errno)))?;
        let frame_bytes_max = own.frame_bytes_max();
        let caps = Caps {
            kind: "verbs",
            frame_bytes_max,
            burst: BURST_FRAMES,
            gather: false,
            ordered: false,
            receive_bytes: queue.receive_slots as usize * frame_bytes_max,
            within_host: false,
        };
        let (receives, sends) = (queue.receive_slots, queue.send_slots);
        tracing::debug!(device = config.device, %own, frame_bytes_max, "a rail over verbs");
        Ok(VerbsDriver {
            caps,
            counters: Counters::default(),
            own,
            peers: Addresses::new(),
            retired: VecDeque::new(),
            queue: ManuallyDrop::new(queue),
            epoll,
            free: (receives..receives + sends).collect(),
            leased: None,
            staged: VecDeque::new(),
            sending: VecDeque::new(),
            sent_below: 0,
            staged_total: 0,
            came: VecDeque::new(),
            found: Vec::new(),
            armed: false,
            look_in: 0,
            restarts: 0,
            failed: None,
        })
    }

    /// Where peers send to: [`Driver::local_address`] is this, encoded.
    #[must_use]
    pub fn own_address(&self) -> VerbsAddress {
        self.own
    }

    /// The GID that was chosen.
    #[must_use]
    pub fn gid(&self) -> Ipv6Addr {
        self.own.gid()
    }

    /// Requests for sending that the queue has room for.
    fn room(&self) -> usize {
        let with_device = self.queue.next_send - self.sent_below;
        (self.queue.send_slots as usize).saturating_sub(usize::try_from(with_device).unwrap_or(usize::MAX))
    }

    /// Takes back what has been sent.
    fn collect(&mut self) -> Result<(), DriverError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.sent_below == self.queue.next_send {
            return Ok(());
        }
        let mut failed = None;
        loop {
            let count = self.queue.poll_sent(&mut self.found).map_err(dead(Operation::Send))?;
            for done in self.found.drain(..) {
                match done.outcome {
                    Ok(_) => {
                        self.sent_below = self.sent_below.max(done.id + 1);
                        self.restarts = 0;
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if count < VERBS_COMPLETIONS {
                break;
            }
        }
        while self.sending.front().is_some_and(|(request, _)| *request < self.sent_below) {
            self.free.extend(self.sending.pop_front().map(|(_, slot)| slot));
        }
        while self.retired.front().is_some_and(|(first, _)| *first <= self.sent_below) {
            self.retired.pop_front();
        }
        match failed {
            None => Ok(()),
            Some(error) => self.restart(error),
        }
    }

    /// The pair has met an error, such as a peer to which there is no way any more, and does nothing since. It goes on under the same number,
    /// unless the port is down, or every request fails.
    fn restart(&mut self, error: WorkError) -> Result<(), DriverError> {
        self.queue.device.check().map_err(dead(Operation::WatchPort))?;
        self.restarts += 1;
        tracing::debug!(?error, restarts = self.restarts, "the queue pair met an error");
        if self.restarts > VERBS_RESTARTS_MAX {
            return Err(DriverError::RailDead { operation: Operation::Send, errno: Errno(libc::EIO) });
        }
        self.queue.restart().map_err(dead(Operation::MakeQueuePair))?;
        self.came.clear();
        self.sent_below = self.queue.next_send;
        self.free.extend(self.sending.drain(..).map(|(_, slot)| slot));
        self.retired.clear();
        // What it had been asked to tell of is gone with the rest.
        self.armed = false;
        Ok(())
    }

    fn look_around(&mut self) -> Result<(), DriverError> {
        self.look_in = LOOK_CALLS;
        self.queue.device.take_events().map_err(dead(Operation::WatchPort))
    }

    /// Takes up to `most` frames that came from the device.
    fn take_in(&mut self, most: usize) -> Result<(), DriverError> {
        let taken = self.queue.poll_received(&mut self.found, most);
        taken.map_err(dead(Operation::Receive))?;
        self.came.extend(self.found.drain(..));
        Ok(())
    }

    fn count_sent(&mut self, bytes: usize) {
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += bytes as u64;
    }
}

impl Drop for VerbsDriver {
    fn drop(&mut self) {
        self.peers.clear();
        self.retired.clear();
        let _one_at_a_time = queue::mapping();
        // SAFETY: not used after this. Pair and region end before the memory of the frames is unmapped, so the device can touch no frame.
        unsafe { ManuallyDrop::drop(&mut self.queue) };
    }
}

impl Driver for VerbsDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        self.own.into()
    }

    /// May wait for the network to name a neighbour, as the kernel does for whoever makes an address handle.
    fn resolve(&mut self, raw: &RawAddress) -> Result<AddressId, DriverError> {
        let expected = if self.own.is_ethernet() {
            "the address of a queue pair over Ethernet, version 1"
        } else {
            "the address of a queue pair over InfiniBand, version 1"
        };
        let unusable = DriverError::AddressUnusable { address: *raw, expected };
        let address = VerbsAddress::try_from(raw).map_err(|NotVerbs| unusable)?;
        if address.is_ethernet() != self.own.is_ethernet() {
            return Err(unusable);
        }
        if let Some(known) = self.peers.id(&address) {
            return Ok(known);
        }
        self.peers.check_room()?;
        let handle = self.queue.handle(&address);
        let handle =
            handle.map_err(|errno| DriverError::Transient { operation: Operation::FindPeer, errno })?;
        let path = Path {
            frame_bytes_max: address.frame_bytes_max().min(self.caps.frame_bytes_max),
            on_host: address.gid == self.own.gid && address.lid == self.own.lid,
        };
        self.peers.insert(address, Peer { address, handle, path })
    }

    fn forget(&mut self, address: AddressId) {
        let Some(peer) = self.peers.remove(address) else { return };
        self.retired.push_back((self.queue.next_send, peer.handle));
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.peers.get(to).map(|peer| peer.path)
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        if self.leased.is_none() {
            self.leased = self.free.pop();
        }
        let slot = self.leased?;
        Some(&mut self.queue.frames.frame(slot)[..self.caps.frame_bytes_max])
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        let Some(slot) = self.leased.take() else {
            self.counters.lost_other += 1;
            return;
        };
        self.staged_total += 1;
        let bytes = frame_bytes + payload.len();
        let longest = self.path(to).map_or(self.caps.frame_bytes_max, |path| path.frame_bytes_max);
        // Beyond the device's own limit the pair would fail; beyond the peer's, its pair.
        if bytes > longest {
            self.counters.lost_too_long += 1;
            self.free.push(slot);
            return;
        }
        self.queue.frames.frame(slot)[frame_bytes..bytes].copy_from_slice(payload.as_slice());
        self.staged.push_back(Staged { slot, to, bytes });
    }

    fn send_short(&mut self, to: AddressId, frame: &[u8]) -> bool {
        if !self.staged.is_empty() || !self.queue.is_short(frame.len()) {
            return false;
        }
        // So that it counts as completed, nothing before it may be outstanding.
        if !self.sending.is_empty() || self.room() == 0 {
            if let Err(error) = self.collect() {
                self.failed = Some(error);
                return false;
            }
            if !self.sending.is_empty() || self.room() == 0 {
                return false;
            }
        }
        let Some(peer) = self.peers.get(to) else { return false };
        let one = Sending { what: Bytes::Short(frame), to: &peer.handle, address: &peer.address };
        self.counters.send_calls += 1;
        if let (1, _) = self.queue.post_send(core::iter::once(one)) {
            self.staged_total += 1;
            self.count_sent(frame.len());
            return true;
        }
        false
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        self.collect()?;
        let mut handed = 0;
        while !self.staged.is_empty() {
            let room = self.room().min(BURST_FRAMES);
            let peers = &self.peers;
            let (staged, free, counters) = (&mut self.staged, &mut self.free, &mut self.counters);
            staged.retain(|frame| {
                let is_known = peers.get(frame.to).is_some();
                if !is_known {
                    counters.lost_no_address += 1;
                    free.push(frame.slot);
                }
                is_known
            });
            if staged.is_empty() {
                break;
            }
            let chain = staged.iter().take(room).filter_map(|frame| {
                let peer = peers.get(frame.to)?;
                let what = Bytes::Slot(frame.slot, frame.bytes);
                Some(Sending { what, to: &peer.handle, address: &peer.address })
            });
            let first = self.queue.next_send;
            let (taken, outcome) =
                if room == 0 { (0, Err(Errno(libc::ENOMEM))) } else { self.queue.post_send(chain) };
            self.counters.send_calls += u64::from(room > 0);
            for (request, frame) in (first..).zip(self.staged.drain(..taken).collect::<Vec<_>>()) {
                self.sending.push_back((request, frame.slot));
                self.count_sent(frame.bytes);
            }
            handed += taken;
            match outcome {
                Ok(()) => {}
                // Full, and the rest stays staged.
                Err(Errno(libc::ENOMEM | libc::EAGAIN)) => {
                    self.counters.blocked += 1;
                    break;
                }
                Err(errno) => return Err(DriverError::RailDead { operation: Operation::Send, errno }),
            }
        }
        if handed > 0 {
            self.collect()?;
        }
        Ok(handed)
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        self.collect()?;
        if self.look_in == 0 {
            self.look_around()?;
        }
        self.look_in -= 1;
        if self.armed && self.queue.take_wake() {
            self.armed = false;
        }
        if self.came.len() < frames_max {
            self.take_in(frames_max - self.came.len())?;
        }
        let mut given = 0;
        let mut slots = Vec::with_capacity(self.came.len().min(frames_max));
        let mut failed = None;
        while given < frames_max {
            let Some(done) = self.came.pop_front() else { break };
            let slot = u32::try_from(done.id).unwrap_or(u32::MAX);
            slots.push(slot);
            match done.outcome {
                Ok(bytes) => {
                    each(&self.queue.frames.frame(slot)[..bytes]);
                    given += 1;
                    self.counters.frames_received += 1;
                    self.counters.bytes_received += bytes as u64;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => self.queue.post_receive(&slots).map_err(dead(Operation::Receive))?,
            Some(error) => self.restart(error)?,
        }
        match given {
            0 => self.counters.empty_polls += 1,
            _ => self.counters.receive_calls += 1,
        }
        Ok(given)
    }

    fn staged_total(&self) -> u64 {
        self.staged_total
    }

    fn completed_total(&self) -> u64 {
        self.staged_total - (self.staged.len() + self.sending.len()) as u64
    }

    /// What the device receives into are slots, which are the device's mappings; it reads nothing else.
    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.counters.lost_drained += self.staged.len() as u64;
        self.free.extend(self.staged.drain(..).map(|frame| frame.slot));
        self.collect()?;
        Ok(if self.sent_below == self.queue.next_send { Poll::Ready(()) } else { Poll::Pending })
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        self.queue.mappings()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.queue.descriptors().into_iter().chain([self.epoll.0.as_raw_fd()]).collect()
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        // What the descriptor will tell of may be the device's.
        self.look_in = 0;
        if self.armed && self.queue.take_wake() {
            self.armed = false;
        }
        if !self.armed {
            self.queue.request_wake().map_err(dead(Operation::Wait))?;
            self.armed = true;
        }
        // What came before the channel was asked, it does not tell of.
        if self.came.is_empty() {
            self.take_in(VERBS_COMPLETIONS)?;
        }
        Ok(if self.came.is_empty() { Armed::Sleep } else { Armed::FrameWaiting })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        match self.arm()? {
            Armed::FrameWaiting => Ok(Wake::Frame),
            Armed::Sleep => wait_readable(self.epoll.0.as_fd(), timeout),
        }
    }
}

fn dead(operation: Operation) -> impl Fn(Errno) -> DriverError {
    move |errno| DriverError::RailDead { operation, errno }
}

/// A key that no earlier pair of this number had, so that what was meant for that one is dropped. The highest bit would name the sender's own.
fn random_key() -> Result<u32, Errno> {
    let mut key = [0u8; 4];
    // SAFETY: writable for its length.
    let got = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
    if got == 4 { Ok(u32::from_le_bytes(key) >> 1) } else { Err(Errno::last()) }
}

fn epoll<'a>(sources: impl IntoIterator<Item = BorrowedFd<'a>>) -> Result<Epoll, Errno> {
    let make = || {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for source in sources {
            epoll.add(source, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(epoll)
    };
    make().map_err(|error: nix::errno::Errno| Errno(error as i32))
}
