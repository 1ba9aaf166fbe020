//! The driver over AF_XDP: frames pass between a device's queue and our memory, around the kernel's network stack.
//!
//! An ordinary UDP socket on the same port is its companion. It reserves the port, and receives frames that
//! the program at the device lets pass (fragments, frames longer than a chunk, other queues). It sends frames
//! that cannot go directly: to ourselves, through another interface, or while a neighbour is not known, which
//! also makes the kernel look for it. The rail's address is the companion's, so rails over UDP and over
//! AF_XDP reach each other.
//!
//! * `slow_path`: companion, kernel's tables and helper, all outside the rings;
//! * `config`: how a rail is opened;
//! * `device`: the facts about a device;
//! * `rights`: the capabilities that the kernel asks for;
//! * `helper`: a process with the rights, which opens sockets for others;
//! * `program`, `program_at`: the program at the device, and attaching it; whose program is there;
//! * `open`: all of that, put together;
//! * `sockets`, `memory`, `rings`: sockets as they are made, the memory of their frames, and both in use;
//! * `tx_staging`: frames that wait to be sent, several short ones to a datagram;
//! * `headers`: the headers before a frame on the wire;
//! * `neighbours`: routes and neighbours, asked of the kernel;
//! * `bare` (feature of that name): the rings alone, to measure against.

#[cfg(feature = "bare")]
pub mod bare;
mod config;
mod device;
mod headers;
pub mod helper;
mod memory;
pub(crate) mod neighbours;
mod open;
mod program;
mod program_at;
mod rights;
mod rings;
mod slow_path;
mod sockets;
mod tx_staging;

use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use transport::{AddressId, RawAddress};

use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, EachFrame, Notice, Path, Wake};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::BURST_FRAMES;
use crate::pack::{self, Frames, PendingFrames};
use crate::payload::Payload;
use crate::sleep::wait_readable;
use crate::udp::{UdpAddress, UdpConfig, UdpDriver};
pub use config::{Attach, Rights, XdpConfig};
pub use device::{queues, receive_queues};
use headers::{HEADER_BYTES_MAX, Headers, Mac, frame_of};
use neighbours::Neighbours;
pub(crate) use open::helper_for;
use open::{Hold, Layout, Opened, cannot};
pub use rights::{check_capabilities, file_has_capabilities};
use rings::Socket;
pub(crate) use sockets::holds_a_rail;
use tx_staging::{PACK_BYTES, Staged};

/// Bytes before the first frame in a slot for sending: the headers end there, behind them the head of a pack if it becomes one, and the frame is
/// aligned.
const HEADROOM: usize = 128;
const _: () = assert!(HEADROOM >= HEADER_BYTES_MAX + PACK_BYTES);

/// Bytes that the kernel keeps free before each received frame (XDP_PACKET_HEADROOM).
const RECEIVE_HEADROOM: usize = 256;

/// Calls of `receive` between two looks whether companion or kernel's tables have anything new, each a system call. A rail that is about to
/// sleep, and one that has slept, look at once.
const LOOK_CALLS: u32 = 64;

/// Looks between two questions how many frames the kernel has dropped.
const COUNT_LOOKS: u32 = 64;

/// Looks since the last sleep after which the socket is not watched any more: for a watched one the kernel wakes a chain of three `epoll`s for each
/// frame, in the sender's time where the device is a virtual one.
const WATCHED_LOOKS: u32 = 2;

/// Taken frames that are returned to the kernel with the next call of `receive`; more are returned at once.
const UNRETURNED_MAX: usize = 4;

/// Calls that hand over submitted frames, at most, before others have their turn. A copying kernel sends 32
/// frames per call.
const SEND_CALLS: usize = 4;

/// How frames to one address leave.
#[derive(Clone, Copy)]
enum Way {
    /// Not looked up since the kernel's tables last changed.
    Unknown,
    Direct(Headers),
    Companion,
}

struct Peer {
    address: SocketAddr,
    way: Way,
}

/// A rail over AF_XDP. The fields are dropped in order: the program is detached, the socket closed, and only then the port given up.
pub struct XdpDriver {
    caps: Caps,
    counters: Counters,
    attach: Attach,
    hold: Hold,
    socket: Socket,
    /// Queues that serve this rail.
    queues: usize,
    neighbours: Neighbours,
    /// Of companion and neighbours; and of the socket too, while it is watched.
    slow_path: Epoll,
    epoll: Epoll,
    /// Looks for which the socket is watched still; 0: it is not.
    watched: u32,
    companion: UdpDriver,
    own: (Mac, SocketAddr),
    header_bytes: usize,
    /// By `AddressId`, the companion's.
    peers: Vec<Option<Peer>>,
    free: Vec<u64>,
    leased: Option<u64>,
    staged: VecDeque<Staged>,
    /// Frames that they hold.
    staged_frames: usize,
    /// Slots with the kernel for sending, and frames that they hold.
    sending: usize,
    sending_frames: usize,
    /// By slot: frames that it holds while it is with the kernel.
    frames_in: Vec<u8>,
    /// The longest frames lie in several chunks.
    in_parts: bool,
    /// Bytes of a pack at most: it lies in one chunk at the receiver.
    pack_bytes_max: usize,
    /// The rest of a pack that came.
    pending: PendingFrames,
    staged_total: u64,
    /// Taken frames have not been returned to the kernel. Returning takes cache lines that it has just written, and the
    /// answer to such a frame would wait for those.
    unreturned: bool,
    /// Calls of `receive` until the next look around.
    look_in: u32,
    looks: u32,
    /// The last look found frames at the companion.
    more_slow_path: bool,
    /// The kernel's tables have changed since the socket was last asked whether it still has a device.
    may_be_gone: bool,
    /// To be reported.
    helper_gone: bool,
}

impl XdpDriver {
    /// Opens companion, socket and program. Frames that are longer than a chunk are taken where the kernel can divide them.
    ///
    /// # Errors
    /// `CapabilityMissing`, or the error of the helper; `CannotOpen` with the step and errno; `NoOwnAddress`.
    pub fn open(config: &XdpConfig) -> Result<XdpDriver, DriverError> {
        match XdpDriver::open_with(config, true) {
            Err(error) if open::is_about_parts(&error) => XdpDriver::open_with(config, false),
            opened => opened,
        }
    }

    fn open_with(config: &XdpConfig, in_parts: bool) -> Result<XdpDriver, DriverError> {
        let helper = open::helper_for(&config.rights)?;
        let (interface, mac, mtu) = device::find(&config.interface).map_err(cannot)?;
        let layout = Layout::new(mtu, open::queues_wanted(config), in_parts);
        let wire_bytes_max = layout.wire_bytes_max(mtu);
        let header_bytes = program::header_bytes(config.bind);
        let frame_bytes_max = wire_bytes_max.saturating_sub(header_bytes);
        let udp = UdpConfig {
            frame_bytes_max,
            connected_max: 0,
            segment: false,
            coalesce: false,
            ..UdpConfig::new(config.bind)
        };
        let (companion, opened) = match helper {
            Some(path) => {
                let (port, opened) = Opened::by_helper(config, path, layout, wire_bytes_max)?;
                (UdpDriver::over(&udp, port)?, opened)
            }
            None => {
                let companion = UdpDriver::open(&udp)?;
                let own = companion.own_address();
                (companion, Opened::by_own_rights(config, interface, own, layout, wire_bytes_max)?)
            }
        };
        let own = companion.own_address();
        let Opened { hold, attach, socket, queues } = opened;
        if let Some(first) = socket.fds().next() {
            sockets::hold(interface, first);
        }
        let free: Vec<u64> = layout.send_slots().collect();
        let slots = free.len();
        let neighbours =
            Neighbours::open(interface).map_err(|errno| cannot((Operation::AskRoutes, errno)))?;
        let waits = |errno| cannot((Operation::Wait, errno));
        let lease = hold.fd().filter(|_| matches!(hold, Hold::Helper(_)));
        let slow_path = epoll([companion.fd(), Some(neighbours.fd()), lease]).map_err(waits)?;
        let epoll = epoll([Some(slow_path.0.as_fd())]).map_err(waits)?;
        let caps = Caps {
            kind: "xdp",
            frame_bytes_max,
            burst: BURST_FRAMES,
            gather: false,
            ordered: false,
            receive_bytes: layout.receive_chunks * queues * frame_bytes_max,
            within_host: false,
        };
        Ok(XdpDriver {
            caps,
            counters: Counters::default(),
            attach,
            hold,
            socket,
            queues,
            neighbours,
            slow_path,
            epoll,
            watched: 0,
            companion,
            own: (mac, own),
            header_bytes,
            peers: Vec::new(),
            free,
            leased: None,
            staged: VecDeque::new(),
            staged_frames: 0,
            sending: 0,
            sending_frames: 0,
            frames_in: vec![0; slots],
            in_parts: layout.frame_chunks > 1,
            pack_bytes_max: layout.chunk_bytes - RECEIVE_HEADROOM - header_bytes,
            pending: PendingFrames::default(),
            staged_total: 0,
            unreturned: false,
            look_in: 0,
            looks: 0,
            more_slow_path: false,
            may_be_gone: false,
            helper_gone: false,
        })
    }

    /// How the program is attached, and whether the device uses our memory without a copy.
    #[must_use]
    pub fn mode(&self) -> (Attach, bool) {
        (self.attach, self.socket.is_zero_copy())
    }

    /// Whether frames may be longer than a chunk, and are divided by the kernel. Otherwise their length is bounded by it on a device of a longer MTU.
    #[must_use]
    pub fn divides_frames(&self) -> bool {
        self.in_parts
    }

    /// How many queues of the device serve this rail.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Whether a helper has opened it.
    #[must_use]
    pub fn is_by_helper(&self) -> bool {
        !matches!(self.hold, Hold::Own(_))
    }

    /// Frames received and sent around the kernel's stack; the counters have the companion's too.
    #[must_use]
    pub fn direct_frames(&self) -> (u64, u64) {
        let (all, by_companion) = (&self.counters, self.companion.counters());
        (all.frames_received - by_companion.frames_received, all.frames_sent - by_companion.frames_sent)
    }

    /// How frames to `to` leave now; `None`: an unknown address.
    fn way(&mut self, to: AddressId) -> Option<Way> {
        let at = usize::try_from(to.0).ok()?;
        let way = self.peers.get(at)?.as_ref()?.way;
        if matches!(way, Way::Companion) {
            self.renew_ways();
        }
        let peer = self.peers.get_mut(at)?.as_mut()?;
        if matches!(peer.way, Way::Unknown) {
            let mac = self.neighbours.mac_towards(peer.address.ip());
            let direct = mac.and_then(|mac| Headers::new(self.own, (mac, peer.address)));
            peer.way = direct.map_or(Way::Companion, Way::Direct);
        }
        Some(peer.way)
    }

    /// Forgets looked-up routes and neighbours, if the kernel's tables have changed.
    fn renew_ways(&mut self) {
        if self.neighbours.changed() {
            self.may_be_gone = true;
            self.peers.iter_mut().flatten().for_each(|peer| peer.way = Way::Unknown);
        }
    }

    /// Lets the kernel have the memory of frames that were taken.
    fn report_taken(&mut self) {
        if core::mem::take(&mut self.unreturned) {
            self.socket.end_taking();
        }
    }

    /// Takes back the slots of sent frames, and has the kernel continue with the rest. Notices if the device
    /// is gone or was taken down.
    fn collect(&mut self) -> Result<(), DriverError> {
        if self.sending == 0 && !self.may_be_gone {
            return Ok(());
        }
        self.take_sent();
        // A device that sends by itself may need the call to return its sent slots, too.
        let wants_call = if self.socket.is_zero_copy() { self.sending > 0 } else { self.socket.has_unsent() };
        if wants_call || self.may_be_gone { self.send_submitted() } else { Ok(()) }
    }

    /// A slot with so many frames, of so many bytes together, was handed over.
    #[inline]
    fn count_sending(&mut self, slot: u64, frames: usize, frame_bytes: usize) {
        self.sending += 1;
        self.sending_frames += frames;
        self.frames_in[self.socket.number_of(slot)] = u8::try_from(frames).unwrap_or(u8::MAX);
        self.counters.frames_sent += frames as u64;
        self.counters.bytes_sent += frame_bytes as u64;
    }

    /// See [`Driver::receive`].
    #[inline]
    fn receive_each(
        &mut self,
        frames_max: usize,
        each: &mut (impl FnMut(&[u8]) + ?Sized),
    ) -> Result<usize, DriverError> {
        self.report_taken();
        self.collect()?;
        let mut given =
            if self.pending.is_empty() { 0 } else { self.give_pending(frames_max, &mut |frame| each(frame)) };
        let mut taken = 0;
        while given < frames_max {
            let Some((chunk, bytes)) = self.socket.take() else { break };
            match frame_of(bytes, self.header_bytes) {
                Some(frame) if !pack::is_pack(frame) => {
                    each(frame);
                    given += 1;
                    self.counters.bytes_received += frame.len() as u64;
                }
                datagram => match datagram.and_then(Frames::of) {
                    Some(mut frames) => {
                        for frame in frames.by_ref().take(frames_max - given) {
                            each(frame);
                            given += 1;
                            self.counters.bytes_received += frame.len() as u64;
                        }
                        if frames.rest().1 > 0 {
                            self.pending.keep(frames);
                        }
                    }
                    None => self.counters.lost_malformed += 1,
                },
            }
            self.socket.give_back(chunk);
            taken += 1;
        }
        self.counters.frames_received += given as u64;
        self.unreturned = taken > 0;
        if taken > UNRETURNED_MAX {
            self.report_taken();
        }
        if self.look_in == 0 {
            given += self.look_around(frames_max - given, &mut |frame| each(frame))?;
        } else {
            self.look_in -= 1;
        }
        match given {
            0 => self.counters.empty_polls += 1,
            _ => self.counters.receive_calls += 1,
        }
        Ok(given)
    }

    /// Has the kernel send the frames in the ring.
    fn send_submitted(&mut self) -> Result<(), DriverError> {
        for _ in 0..SEND_CALLS {
            let kicked = self.socket.kick(core::mem::take(&mut self.may_be_gone));
            self.counters.send_calls += 1;
            self.take_sent();
            match kicked {
                Ok(()) => {}
                Err(errno) if is_for_now(errno) => {}
                Err(errno) => return Err(DriverError::RailDead { operation: Operation::Send, errno }),
            }
            if self.socket.is_zero_copy() || !self.socket.has_unsent() {
                break;
            }
        }
        Ok(())
    }

    /// Has frames at the socket make the rail's descriptor readable.
    fn watch(&self) -> Result<(), Errno> {
        self.socket.fds().try_for_each(|fd| {
            match self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)) {
                Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
                Err(error) => Err(Errno(error as i32)),
            }
        })
    }

    fn take_sent(&mut self) {
        let XdpDriver { socket, free, sending, sending_frames, frames_in, .. } = self;
        socket.take_sent(|slot, number| {
            free.push(slot);
            *sending -= 1;
            *sending_frames -= usize::from(frames_in[number]);
        });
    }

    /// Gives away frames of a pack that are left, at most `frames_max`.
    #[cold]
    fn give_pending(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut given = 0;
        while given < frames_max
            && let Some(frame) = self.pending.next()
        {
            each(frame);
            given += 1;
            self.counters.bytes_received += frame.len() as u64;
        }
        given
    }
}

/// The kernel sends a batch per call, or has no room now: the entries stay in the ring.
fn is_for_now(errno: Errno) -> bool {
    matches!(errno.0, libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR)
}

impl Driver for XdpDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        self.companion.local_address()
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        let id = self.companion.resolve(address)?;
        let at = id.0 as usize;
        if at >= self.peers.len() {
            self.peers.resize_with(at + 1, || None);
        }
        if let (None, Ok(UdpAddress(address))) = (&self.peers[at], UdpAddress::try_from(address)) {
            self.peers[at] = Some(Peer { address, way: Way::Unknown });
        }
        Ok(id)
    }

    fn forget(&mut self, address: AddressId) {
        self.companion.forget(address);
        if let Some(peer) = self.peers.get_mut(address.0 as usize) {
            *peer = None;
        }
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.companion.path(to)
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        if self.leased.is_none() {
            self.leased = self.free.pop();
        }
        let slot = self.leased?;
        Some(&mut self.socket.slot(slot)[HEADROOM..HEADROOM + self.caps.frame_bytes_max])
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        let Some(slot) = self.leased.take() else {
            self.counters.lost_other += 1;
            return;
        };
        self.staged_total += 1;
        let bytes = frame_bytes + payload.len();
        let longest = self.path(to).map_or(self.caps.frame_bytes_max, |path| path.frame_bytes_max);
        if bytes > longest.min(self.caps.frame_bytes_max) {
            self.counters.lost_too_long += 1;
            self.free.push(slot);
            return;
        }
        self.staged_frames += 1;
        if self.pack(slot, to, frame_bytes, payload.as_slice(), longest) {
            self.free.push(slot);
            return;
        }
        let frame = &mut self.socket.slot(slot)[HEADROOM..HEADROOM + bytes];
        frame[frame_bytes..].copy_from_slice(payload.as_slice());
        let open = !pack::is_pack(frame);
        self.staged.push_back(Staged { slot, to, frame_bytes: bytes, frames: 1, open });
    }

    fn send_fast(&mut self, to: AddressId, frame: &[u8]) -> bool {
        let fits = self.path(to).is_some_and(|path| frame.len() <= path.frame_bytes_max);
        if !fits || !self.staged.is_empty() || self.leased.is_some() {
            return false;
        }
        let Some(Some(Peer { way: Way::Direct(headers), .. })) = self.peers.get(to.0 as usize) else {
            return false;
        };
        let Some(slot) = self.free.pop() else { return false };
        let start = HEADROOM - self.header_bytes;
        let wire = &mut self.socket.slot(slot)[start..HEADROOM + frame.len()];
        wire[self.header_bytes..].copy_from_slice(frame);
        headers.write(wire);
        if !self.socket.submit(slot, start, self.header_bytes + frame.len()) {
            self.free.push(slot);
            return false;
        }
        self.staged_total += 1;
        self.count_sending(slot, 1, frame.len());
        // The next call reports the fatal error again.
        if self.send_submitted().is_err() {
            self.may_be_gone = true;
        }
        true
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        let sent_before = self.counters.frames_sent;
        while let Some(datagram) = self.staged.pop_front() {
            if datagram.frames > 1 {
                let bytes = &mut self.socket.slot(datagram.slot)[HEADROOM - PACK_BYTES..];
                bytes.first_chunk_mut().into_iter().for_each(|head| pack::write_head(datagram.frames, head));
            }
            match self.way(datagram.to) {
                Some(Way::Direct(headers)) => {
                    let start = HEADROOM - datagram.head_bytes() - self.header_bytes;
                    let wire = &mut self.socket.slot(datagram.slot)[start..datagram.end()];
                    headers.write(wire);
                    let wire_bytes = wire.len();
                    if !self.socket.submit(datagram.slot, start, wire_bytes) {
                        self.counters.blocked += 1;
                        self.staged.push_front(datagram);
                        break;
                    }
                    self.count_sending(datagram.slot, datagram.frames, datagram.frame_bytes);
                }
                Some(Way::Unknown | Way::Companion) => {
                    let result = self.send_by_companion(&datagram);
                    self.free.push(datagram.slot);
                    self.staged_frames -= datagram.frames;
                    result?;
                    continue;
                }
                None => {
                    self.counters.lost_no_address += datagram.frames as u64;
                    self.free.push(datagram.slot);
                }
            }
            self.staged_frames -= datagram.frames;
        }
        if self.sending > 0 {
            self.send_submitted()?;
        }
        Ok(usize::try_from(self.counters.frames_sent - sent_before).unwrap_or(usize::MAX))
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        self.receive_each(frames_max, each)
    }

    fn receive_deferred(
        &mut self,
        frames_max: usize,
        each: &mut EachFrame<'_>,
    ) -> Result<usize, DriverError> {
        self.receive_each(frames_max, &mut |frame: &[u8]| each(frame, None))
    }

    fn is_quiet(&self) -> bool {
        self.look_in > 0
            && !self.unreturned
            && self.sending == 0
            && self.pending.is_empty()
            && !self.socket.has_frames()
    }

    fn staged_total(&self) -> u64 {
        self.staged_total
    }

    fn completed_total(&self) -> u64 {
        self.staged_total - (self.staged_frames + self.sending_frames) as u64
    }

    /// The kernel has copied the companion's frames; slots are ours when the completion ring has returned
    /// them.
    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.counters.lost_drained += core::mem::take(&mut self.staged_frames) as u64;
        self.free.extend(self.staged.drain(..).map(|datagram| datagram.slot));
        self.collect()?;
        Ok(if self.sending == 0 { Poll::Ready(()) } else { Poll::Pending })
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        self.socket.mappings()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let own = [self.slow_path.0.as_fd(), self.epoll.0.as_fd()].into_iter();
        let own = own.chain(self.hold.fd()).chain(self.socket.fds()).map(|fd| fd.as_raw_fd());
        let asking = self.neighbours.sockets().map(|socket| socket.as_raw_fd());
        own.chain(asking).chain(self.companion.descriptors()).collect()
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        if core::mem::take(&mut self.helper_gone) {
            return Some(Notice::HelperGone);
        }
        self.companion.poll_notice()
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        // The descriptor's next event may be the companion's.
        self.look_in = 0;
        self.report_taken();
        self.counters.lost_receive_overflow = self.socket.dropped();
        let companion = self.companion.arm()?;
        if self.watched == 0 {
            self.watch().map_err(|errno| DriverError::Transient { operation: Operation::Wait, errno })?;
        }
        self.watched = WATCHED_LOOKS;
        let waits = self.socket.has_frames() || !self.pending.is_empty();
        Ok(if waits { Armed::FrameWaiting } else { companion })
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

fn epoll<'a>(sources: impl IntoIterator<Item = Option<BorrowedFd<'a>>>) -> Result<Epoll, Errno> {
    let make = || {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for source in sources.into_iter().flatten() {
            epoll.add(source, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(epoll)
    };
    make().map_err(|error: nix::errno::Errno| Errno(error as i32))
}
