//! The driver over RDMA verbs: unreliable datagrams of queue pairs, over InfiniBand and RoCE, around the kernel.
//!
//! Nothing of it is needed to build or to start: `libibverbs.so.1` is opened when the first rail is.
//!
//! * `abi`: the structures of libibverbs;
//! * `library`: opening it, and objects that it makes;
//! * `device`: a port of a device, its GID, and their events;
//! * `frames`: the memory of frames;
//! * `queue`: the queue pair and its completions;
//! * `ways`: Ethernet addresses of peers over RoCE;
//! * `address`: where others reach it.

mod abi;
mod address;
mod device;
#[cfg(test)]
mod fake;
mod frames;
mod library;
mod queue;
#[cfg(test)]
mod tests;
mod ways;

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use transport::{AddressId, RawAddress};

use crate::addresses::Addresses;
use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, Path, Wake};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{
    BURST_FRAMES, VERBS_COMPLETIONS, VERBS_NEIGHBOUR_REFRESH, VERBS_RESTARTS_MAX, VERBS_RESTARTS_WINDOW,
};
use crate::payload::Payload;
use crate::sleep::wait_readable;
use crate::xdp::neighbours::Way;
pub use address::{NotVerbs, VerbsAddress};
use device::Device;
pub(crate) use device::device_at;
use library::Library;
use queue::{Bytes, Done, Handle, Queue, Sending, WorkError};
use ways::Ways;

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
    /// `None`: its neighbour is not known, and frames to it are lost.
    handle: Option<Handle>,
    /// The way that the handle leads, as it was when `looks` was [`VerbsDriver::changes`].
    way: Way,
    looks: u64,
    /// [`VerbsDriver::refreshes`] when its neighbour was last asked whether it is there still.
    refreshes: u64,
    path: Path,
}

/// A frame with the device, in a slot.
struct WithDevice {
    request: u64,
    slot: u32,
    bytes: usize,
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
    /// `None`: making a handle finds the way by itself, and may wait for that.
    ways: Option<Ways>,
    /// Times that the kernel's tables were seen to have changed.
    changes: u64,
    /// Times that neighbours became due to be asked, and when the last one was.
    refreshes: u64,
    refreshed: Instant,
    /// Address handles that were made.
    handles_made: u64,
    /// Handles of forgotten addresses, each with the number of the first request that cannot use it.
    retired: VecDeque<(u64, Handle)>,
    queue: ManuallyDrop<Queue>,
    epoll: Epoll,
    free: Vec<u32>,
    leased: Option<u32>,
    staged: VecDeque<Staged>,
    sending: VecDeque<WithDevice>,
    /// Every request for sending with a lower number has completed.
    sent_below: u64,
    staged_total: u64,
    /// Slots with frames that came and were not given to anybody yet.
    came: VecDeque<Done>,
    found: Vec<Done>,
    /// Slots that go back to the device, while they do.
    emptied: Vec<u32>,
    /// The channel was asked to report the next frame, and has not done so yet.
    armed: bool,
    /// Calls of `receive` until the next look at the device's events.
    look_in: u32,
    /// Errors of the pair since that instant, which is not longer ago than the window for them.
    restarts: (u32, Instant),
    /// The error that ended the rail in a call that returns none.
    failed: Option<DriverError>,
}

impl VerbsDriver {
    /// Opens the device, and makes a queue pair with a number and a key of its own.
    ///
    /// # Errors
    /// `LibraryMissing`; `DeviceMissing`; `CannotOpen` with the step and errno.
    pub fn open(config: &VerbsConfig) -> Result<VerbsDriver, DriverError> {
        VerbsDriver::open_by(library::library()?, config)
    }

    fn open_by(library: &'static Library, config: &VerbsConfig) -> Result<VerbsDriver, DriverError> {
        let cannot = |(operation, errno)| DriverError::CannotOpen { operation, errno };
        let one_at_a_time = queue::mapping();
        let before = queue::mapped_devices();
        let device = Device::open(library, config)?;
        let key = random_key().map_err(|errno| cannot((Operation::MakeQueuePair, errno)))?;
        let queue = Queue::open(device, key, &before).map_err(cannot)?;
        drop(one_at_a_time);
        let own = queue.own_address();
        let epoll = epoll([queue.wake_fd(), queue.device.event_fd()])
            .map_err(|errno| cannot((Operation::Wait, errno)))?;
        let frame_bytes_max = own.frame_bytes_max();
        let ways = queue.device.interface.as_deref().and_then(|name| Ways::open(own.gid, name));
        let is_huge = queue.frames.is_huge();
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
        tracing::debug!(device = config.device, %own, frame_bytes_max, is_huge, asks = ways.is_some(), "a rail over verbs");
        Ok(VerbsDriver {
            caps,
            counters: Counters::default(),
            own,
            peers: Addresses::new(),
            ways,
            changes: 0,
            refreshes: 0,
            refreshed: Instant::now(),
            handles_made: 0,
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
            emptied: Vec::new(),
            armed: false,
            look_in: 0,
            restarts: (0, Instant::now()),
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

    /// Whether the frames lie on huge pages.
    #[must_use]
    pub fn is_on_huge_pages(&self) -> bool {
        self.queue.frames.is_huge()
    }

    /// Address handles made so far: one for each peer, and one more each time that the Ethernet address on the way to it changes.
    #[must_use]
    pub fn handles_made(&self) -> u64 {
        self.handles_made
    }

    /// Requests for sending that the queue has room for.
    fn room(&self) -> usize {
        let with_device = self.queue.next_send - self.sent_below;
        (self.queue.send_slots as usize).saturating_sub(usize::try_from(with_device).unwrap_or(usize::MAX))
    }

    /// Takes back the slots of sent frames.
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
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if count < VERBS_COMPLETIONS {
                break;
            }
        }
        while self.sending.front().is_some_and(|frame| frame.request < self.sent_below) {
            self.free.extend(self.sending.pop_front().map(|frame| frame.slot));
        }
        while self.retired.front().is_some_and(|(first, _)| *first <= self.sent_below) {
            self.retired.pop_front();
        }
        match failed {
            None => Ok(()),
            Some(error) => self.restart(error),
        }
    }

    /// Whether the device has requests whose completion will not be reported: it took only a part of their chain, and
    /// all others have completed.
    fn is_unreported(&self) -> bool {
        self.sent_below < self.queue.next_send && self.sent_below >= self.queue.reported_below
    }

    /// The pair has met an error, such as a peer to which there is no way any more, and does nothing since. It goes on under the same number,
    /// unless the port is down, or it fails again and again.
    fn restart(&mut self, error: WorkError) -> Result<(), DriverError> {
        self.queue.device.check().map_err(dead(Operation::WatchPort))?;
        if self.restarts.1.elapsed() > VERBS_RESTARTS_WINDOW {
            self.restarts = (0, Instant::now());
        }
        self.restarts.0 += 1;
        tracing::debug!(?error, restarts = self.restarts.0, "the queue pair met an error");
        if self.restarts.0 > VERBS_RESTARTS_MAX {
            return Err(DriverError::RailDead { operation: Operation::Send, errno: Errno(libc::EIO) });
        }
        let thrown_away = self.queue.restart().map_err(dead(Operation::MakeQueuePair))?;
        self.counters.resets += 1;
        self.counters.lost_receive_reset +=
            (thrown_away + self.came.iter().filter(|done| done.outcome.is_ok()).count()) as u64;
        self.came.clear();
        self.sent_below = self.queue.next_send;
        for frame in self.sending.drain(..) {
            self.counters.frames_sent -= 1;
            self.counters.bytes_sent -= frame.bytes as u64;
            self.counters.lost_reset += 1;
            self.free.push(frame.slot);
        }
        self.retired.clear();
        // Requested notifications are gone with the rest.
        self.armed = false;
        Ok(())
    }

    fn look_around(&mut self) -> Result<(), DriverError> {
        self.look_in = LOOK_CALLS;
        if let Some(ways) = &self.ways {
            self.changes += u64::from(ways.changed());
            if self.refreshed.elapsed() > VERBS_NEIGHBOUR_REFRESH {
                self.refreshed = Instant::now();
                self.refreshes += 1;
            }
        }
        self.queue.device.take_events().map_err(dead(Operation::WatchPort))
    }

    /// Takes up to `most` frames that came from the device.
    fn take_in(&mut self, most: usize) -> Result<(), DriverError> {
        let taken = self.queue.poll_received(&mut self.found, most);
        taken.map_err(dead(Operation::Receive))?;
        self.came.extend(self.found.drain(..));
        Ok(())
    }

    /// Looks where a peer is, if that may have changed since: before anything is sent to it.
    fn find_again(&mut self, to: AddressId) {
        let (Some(ways), Some(peer)) = (&self.ways, self.peers.get_mut(to)) else { return };
        if peer.refreshes != self.refreshes {
            peer.refreshes = self.refreshes;
            ways.ask(peer.address.gid);
        }
        if peer.looks == self.changes && peer.handle.is_some() {
            return;
        }
        peer.looks = self.changes;
        let way = ways.look(peer.address.gid);
        if way == Way::Unknown {
            // A handle that there is may still be good: the kernel forgets neighbours that it does not use itself.
            if peer.handle.is_none() {
                ways.ask(peer.address.gid);
            }
            return;
        }
        if peer.handle.is_some() && peer.way == way {
            return;
        }
        match self.queue.handle(&peer.address) {
            Ok(handle) => {
                self.handles_made += 1;
                peer.way = way;
                let old = peer.handle.replace(handle);
                retire(&mut self.retired, old, (self.sent_below, self.queue.next_send));
            }
            Err(errno) => tracing::debug!(%errno, "the way to a peer has changed, and cannot be followed"),
        }
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

    /// Over RoCE, a neighbour that is not known is waited for shortly ([`crate::limits::VERBS_NEIGHBOUR_PATIENCE`]); frames to one that has not answered are lost until it does. Where the kernel cannot
    /// be asked, it waits itself, up to a second.
    fn resolve(&mut self, raw: &RawAddress) -> Result<AddressId, DriverError> {
        let unusable = |expected| DriverError::AddressUnusable { address: *raw, expected };
        let other_kind = unusable(if self.own.is_ethernet() {
            "the address of a queue pair over Ethernet, version 1"
        } else {
            "the address of a queue pair over InfiniBand, version 1"
        });
        let address = VerbsAddress::try_from(raw).map_err(|NotVerbs| other_kind)?;
        if address.is_ethernet() != self.own.is_ethernet() {
            return Err(other_kind);
        }
        // The way there begins with the LID of a router, which only the subnet's manager knows. The peer's own LID may
        // belong to another port here.
        if !address.is_ethernet() && address.subnet() != self.own.subnet() {
            return Err(unusable("the address of a queue pair in the InfiniBand subnet of this port"));
        }
        if let Some(known) = self.peers.id(&address) {
            return Ok(known);
        }
        self.peers.check_room()?;
        let way = self.ways.as_ref().map_or(Way::Elsewhere, |ways| ways.find(address.gid));
        // The search may have received news about other peers.
        self.changes += 1;
        let handle = if way == Way::Unknown {
            None
        } else {
            let failed = |errno| DriverError::Transient { operation: Operation::FindPeer, errno };
            let made = self.queue.handle(&address).map_err(failed)?;
            self.handles_made += 1;
            Some(made)
        };
        let path = Path {
            frame_bytes_max: address.frame_bytes_max().min(self.caps.frame_bytes_max),
            on_host: address.gid == self.own.gid && address.lid == self.own.lid,
        };
        let (looks, refreshes) = (self.changes, self.refreshes);
        self.peers.insert(address, Peer { address, handle, way, looks, refreshes, path })
    }

    fn forget(&mut self, address: AddressId) {
        let Some(peer) = self.peers.remove(address) else { return };
        // The id may be another's when they are flushed.
        let (free, counters) = (&mut self.free, &mut self.counters);
        self.staged.retain(|frame| {
            let stays = frame.to != address;
            if !stays {
                counters.lost_no_address += 1;
                free.push(frame.slot);
            }
            stays
        });
        retire(&mut self.retired, peer.handle, (self.sent_below, self.queue.next_send));
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

    fn send_fast(&mut self, to: AddressId, frame: &[u8]) -> bool {
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
        self.find_again(to);
        let Some(peer) = self.peers.get(to) else { return false };
        let Some(handle) = &peer.handle else { return false };
        let one = Sending { what: Bytes::Short(frame), to: handle, address: &peer.address };
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
        let mut last = None;
        for i in 0..self.staged.len() {
            let to = self.staged[i].to;
            if last.replace(to) != Some(to) {
                self.find_again(to);
            }
        }
        let peers = &self.peers;
        let (free, counters) = (&mut self.free, &mut self.counters);
        self.staged.retain(|frame| {
            match peers.get(frame.to).map(|peer| peer.handle.is_some()) {
                Some(true) => return true,
                Some(false) => counters.lost_unreachable += 1,
                None => counters.lost_no_address += 1,
            }
            free.push(frame.slot);
            false
        });
        while !self.staged.is_empty() {
            let room = self.room().min(BURST_FRAMES);
            let peers = &self.peers;
            let chain = self.staged.iter().take(room).filter_map(|frame| {
                let peer = peers.get(frame.to)?;
                let what = Bytes::Slot(frame.slot, frame.bytes);
                Some(Sending { what, to: peer.handle.as_ref()?, address: &peer.address })
            });
            let first = self.queue.next_send;
            let (taken, outcome) =
                if room == 0 { (0, Err(Errno(libc::ENOMEM))) } else { self.queue.post_send(chain) };
            self.counters.send_calls += u64::from(room > 0);
            for request in (first..).take(taken) {
                let Some(Staged { slot, bytes, .. }) = self.staged.pop_front() else { break };
                self.sending.push_back(WithDevice { request, slot, bytes });
                self.count_sent(bytes);
            }
            handed += taken;
            match outcome {
                Ok(()) => {}
                // Full, and the rest stays staged.
                Err(Errno(libc::ENOMEM | libc::EAGAIN)) => {
                    self.counters.blocked += 1;
                    if taken == 0 && self.is_unreported() {
                        self.restart(WorkError::UNREPORTED)?;
                        continue;
                    }
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
        self.emptied.clear();
        let mut failed = None;
        while given < frames_max {
            let Some(done) = self.came.pop_front() else { break };
            let slot = u32::try_from(done.id).unwrap_or(u32::MAX);
            self.emptied.push(slot);
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
            None => self.queue.post_receive(&self.emptied).map_err(dead(Operation::Receive))?,
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

    /// The device receives into slots, which are the device's mappings; it reads nothing else.
    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.counters.lost_drained += self.staged.len() as u64;
        self.free.extend(self.staged.drain(..).map(|frame| frame.slot));
        self.collect()?;
        if self.is_unreported() {
            self.restart(WorkError::UNREPORTED)?;
        }
        Ok(if self.sent_below == self.queue.next_send { Poll::Ready(()) } else { Poll::Pending })
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        self.queue.mappings()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let asking = self.ways.iter().flat_map(Ways::descriptors);
        self.queue.descriptors().into_iter().chain([self.epoll.0.as_raw_fd()]).chain(asking).collect()
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        // The descriptor's next event may be the device's.
        self.look_in = 0;
        if self.armed && self.queue.take_wake() {
            self.armed = false;
        }
        if !self.armed {
            self.queue.request_wake().map_err(dead(Operation::Wait))?;
            self.armed = true;
        }
        // The channel does not report frames that came before it was asked.
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

/// Keeps a handle until the requests are over that use it: those from the first number on, and below the second.
fn retire(retired: &mut VecDeque<(u64, Handle)>, handle: Option<Handle>, (sent_below, next): (u64, u64)) {
    retired.extend(handle.filter(|_| sent_below < next).map(|handle| (next, handle)));
}

fn dead(operation: Operation) -> impl Fn(Errno) -> DriverError {
    move |errno| DriverError::RailDead { operation, errno }
}

/// A key that no earlier pair of this number had, so that frames for that one are dropped. The highest bit would name
/// the sender's own.
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
