//! Queues inside one process: the NIC of tests and of benches that measure the protocol alone.
//!
//! A [`Hub`] is the network, a [`MemDriver`] a port on it. Nothing is lost but by a full queue, nothing is reordered. Drivers of
//! one hub may live on different threads.

use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use transport::{AddressId, RawAddress};

use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, Path, Wake};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{
    ADDRESSES_MAX, BURST_FRAMES, MEM_FRAME_BYTES_MAX, MEM_PORTS_MAX, MEM_QUEUE_FRAMES, MEM_SPARE_FRAMES,
};
use crate::payload::Payload;
use crate::sleep::wait_readable;
use crate::staging::{Staged, Staging};

/// First byte of a memory address, and the version of its encoding.
const ENCODING: [u8; 2] = [1, 1];

/// The kind of address, for messages.
const EXPECTED: &str = "a port of the same memory hub";

/// A network inside this process.
#[derive(Clone)]
pub struct Hub {
    id: u64,
    queues: Arc<Mutex<Vec<Arc<Queue>>>>,
    queue_frames: usize,
    frame_bytes_max: usize,
}

/// Messages that wait at one port.
struct Queue {
    state: Mutex<QueueState>,
    /// Readable while `signalled`.
    event: EventFd,
}

#[derive(Default)]
struct QueueState {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// The receiver is gone.
    closed: bool,
    /// The receiver wants a signal for the next frame.
    armed: bool,
    signalled: bool,
}

impl Queue {
    /// A panic elsewhere leaves the queue whole: every change under the lock is complete in itself.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Hub {
    fn default() -> Self {
        Hub::new()
    }
}

impl Hub {
    /// A hub with [`MEM_QUEUE_FRAMES`] frames of room at each port, of up to [`MEM_FRAME_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new() -> Hub {
        Hub::with_bounds(MEM_QUEUE_FRAMES, MEM_FRAME_BYTES_MAX)
    }

    /// A hub with room for `queue_frames` frames at each port, each at most `frame_bytes_max` bytes long.
    #[must_use]
    pub fn with_bounds(queue_frames: usize, frame_bytes_max: usize) -> Hub {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Hub { id, queues: Arc::default(), queue_frames, frame_bytes_max }
    }

    /// Opens the next port. Numbers are never used again.
    ///
    /// # Errors
    /// `AddressesFull` after [`MEM_PORTS_MAX`] ports; `CannotOpen` if the system gives no event descriptor.
    pub fn open(&self) -> Result<MemDriver, DriverError> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map_err(|e| {
            DriverError::CannotOpen { operation: Operation::OpenQueue, errno: Errno(e as i32) }
        })?;
        let own = Arc::new(Queue { state: Mutex::default(), event });
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= MEM_PORTS_MAX {
            return Err(DriverError::AddressesFull { addresses: MEM_PORTS_MAX });
        }
        let port = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        queues.push(own.clone());
        drop(queues);
        Ok(MemDriver {
            caps: Caps {
                kind: "mem",
                frame_bytes_max: self.frame_bytes_max,
                burst: BURST_FRAMES,
                gather: true,
                ordered: true,
                receive_bytes: self.queue_frames * self.frame_bytes_max,
                within_host: false,
            },
            counters: Counters::default(),
            hub: self.clone(),
            port,
            own,
            peers: Vec::new(),
            staging: Staging::new(BURST_FRAMES, self.frame_bytes_max),
            incoming: VecDeque::new(),
            emptied: Vec::new(),
        })
    }

    fn queue(&self, port: u32) -> Option<Arc<Queue>> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.get(usize::try_from(port).ok()?).cloned()
    }

    fn encode(&self, port: u32) -> RawAddress {
        let mut bytes = [0; 14];
        bytes[..2].copy_from_slice(&ENCODING);
        bytes[2..10].copy_from_slice(&self.id.to_le_bytes());
        bytes[10..].copy_from_slice(&port.to_le_bytes());
        RawAddress::new(&bytes).unwrap_or(RawAddress::NONE)
    }

    fn decode(&self, address: &RawAddress) -> Option<u32> {
        let bytes: &[u8; 14] = address.as_bytes().try_into().ok()?;
        let (head, port) = bytes.split_at(10);
        let own = head[..2] == ENCODING && head[2..] == self.id.to_le_bytes();
        own.then(|| port.try_into().map(u32::from_le_bytes).ok())?
    }
}

/// A port of a [`Hub`].
pub struct MemDriver {
    caps: Caps,
    counters: Counters,
    hub: Hub,
    port: u32,
    own: Arc<Queue>,
    /// By `AddressId`.
    peers: Vec<Option<Peer>>,
    staging: Staging,
    /// Taken from the queue, not yet given to the caller.
    incoming: VecDeque<Vec<u8>>,
    /// Given to the caller; go back to the queue with the next look at it.
    emptied: Vec<Vec<u8>>,
}

struct Peer {
    port: u32,
    /// `None`: the port had not been opened when last looked for.
    queue: Option<Arc<Queue>>,
}

impl MemDriver {
    fn peer(&self, id: AddressId) -> Option<&Peer> {
        self.peers.get(usize::try_from(id.0).ok()?)?.as_ref()
    }

    /// Copies the oldest staged frames, as many as have the same destination, into its queue. Returns how many.
    fn deliver_run(&mut self) -> usize {
        let Some(first) = self.staging.frame(0) else { return 1 };
        let to = first.to;
        let run = (1..self.staging.len())
            .take_while(|i| self.staging.frame(*i).is_some_and(|frame| frame.to == to))
            .count()
            + 1;
        let Some(queue) = self.destination(to) else {
            self.counters.lost_no_address += run as u64;
            return run;
        };
        let mut state = queue.lock();
        if state.closed {
            self.counters.lost_refused += run as u64;
            return run;
        }
        for frame in (0..run).filter_map(|i| self.staging.frame(i)) {
            if state.frames.len() >= self.hub.queue_frames {
                self.counters.lost_receiver_full += 1;
                continue;
            }
            let buffer = filled(state.spare.pop(), frame);
            state.frames.push_back(buffer);
            self.counters.frames_sent += 1;
            self.counters.bytes_sent += frame.len() as u64;
        }
        self.counters.send_calls += 1;
        if core::mem::take(&mut state.armed) && !state.frames.is_empty() {
            // Only a counter near 2^64 could refuse the 1.
            state.signalled = queue.event.write(1).is_ok();
        }
        run
    }

    fn destination(&mut self, to: AddressId) -> Option<Arc<Queue>> {
        let peer = self.peers.get_mut(usize::try_from(to.0).ok()?)?.as_mut()?;
        if peer.queue.is_none() {
            peer.queue = self.hub.queue(peer.port);
        }
        peer.queue.clone()
    }

    /// Takes over waiting frames, and returns the emptied buffers for use again.
    fn refill(&mut self) {
        let mut state = self.own.lock();
        let room = MEM_SPARE_FRAMES.saturating_sub(state.spare.len());
        self.emptied.truncate(room);
        state.spare.append(&mut self.emptied);
        state.armed = false;
        if core::mem::take(&mut state.signalled) {
            // Nothing to read would only mean that the signal is gone already.
            let _ = self.own.event.read();
        }
        core::mem::swap(&mut state.frames, &mut self.incoming);
    }
}

/// The whole frame in one buffer, as the receiver's NIC would lay it down.
fn filled(spare: Option<Vec<u8>>, frame: Staged<'_>) -> Vec<u8> {
    let mut buffer = spare.unwrap_or_default();
    buffer.clear();
    buffer.extend_from_slice(frame.head);
    buffer.extend_from_slice(frame.payload);
    buffer
}

impl Driver for MemDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        self.hub.encode(self.port)
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        let Some(port) = self.hub.decode(address) else {
            return Err(DriverError::AddressUnusable { address: *address, expected: EXPECTED });
        };
        let known = self.peers.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.port == port));
        let at = match known {
            Some(at) => at,
            None if self.peers.len() >= ADDRESSES_MAX => {
                return Err(DriverError::AddressesFull { addresses: ADDRESSES_MAX });
            }
            None => {
                self.peers.push(Some(Peer { port, queue: None }));
                self.peers.len() - 1
            }
        };
        Ok(AddressId(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    fn forget(&mut self, address: AddressId) {
        if let Some(peer) = usize::try_from(address.0).ok().and_then(|at| self.peers.get_mut(at)) {
            *peer = None;
        }
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.peer(to).map(|_| Path { frame_bytes_max: self.caps.frame_bytes_max, on_host: true })
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        self.staging.lease()
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        if frame_bytes + payload.len() > self.caps.frame_bytes_max {
            self.counters.lost_too_long += 1;
            self.staging.commit_refused(to);
        } else if !self.staging.commit(to, frame_bytes, payload) {
            self.counters.lost_other += 1;
        }
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        let before = self.counters.frames_sent;
        while self.staging.len() > 0 {
            let done = self.deliver_run();
            self.staging.complete(done);
        }
        Ok(usize::try_from(self.counters.frames_sent - before).unwrap_or(usize::MAX))
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        if self.incoming.is_empty() {
            self.refill();
        }
        if self.incoming.is_empty() {
            self.counters.empty_polls += 1;
            return Ok(0);
        }
        self.counters.receive_calls += 1;
        let given = frames_max.min(self.incoming.len());
        for frame in self.incoming.drain(..given) {
            each(&frame);
            self.counters.frames_received += 1;
            self.counters.bytes_received += frame.len() as u64;
            self.emptied.push(frame);
        }
        Ok(given)
    }

    fn staged_total(&self) -> u64 {
        self.staging.staged_total()
    }

    fn completed_total(&self) -> u64 {
        self.staging.completed_total()
    }

    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.counters.lost_drained += self.staging.drain() as u64;
        Ok(Poll::Ready(()))
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        let mut state = self.own.lock();
        if !self.incoming.is_empty() || !state.frames.is_empty() {
            return Ok(Armed::FrameWaiting);
        }
        state.armed = true;
        Ok(Armed::Sleep)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.own.event.as_fd())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        match self.arm()? {
            Armed::FrameWaiting => Ok(Wake::Frame),
            Armed::Sleep => wait_readable(self.own.event.as_fd(), timeout),
        }
    }
}

impl Drop for MemDriver {
    fn drop(&mut self) {
        let mut state = self.own.lock();
        state.closed = true;
        state.frames.clear();
        state.spare.clear();
    }
}
