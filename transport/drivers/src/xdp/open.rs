//! Opening the queues of a rail: by rights of our own, or through the helper.

use core::iter;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use super::helper::{self, Given, Lease};
use super::memory::Mapping;
use super::program::{self, Destination, Link};
use super::rings::Socket;
use super::sockets::{self, Failure};
use super::{Attach, RECEIVE_HEADROOM, Rights, XdpConfig, check_capabilities, device};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{
    XDP_BUSY_PATIENCE, XDP_FRAME_CHUNKS_MAX, XDP_LONG_SEND_SLOTS, XDP_QUEUES_MAX, XDP_RECEIVE_BYTES,
    XDP_RECEIVE_CHUNKS_MAX, XDP_RECEIVE_CHUNKS_MIN, XDP_SEND_CHUNKS,
};

/// How the memory of a rail is divided: chunks for frames to come, queue by queue, and then slots for sending, each of one chunk or several in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) chunk_bytes: usize,
    pub(super) queues: usize,
    /// Chunks of each queue for frames to come.
    pub(super) receive_chunks: usize,
    /// Chunks that the longest frame takes.
    pub(super) frame_chunks: usize,
    /// Slots for sending.
    slots: usize,
}

impl Layout {
    /// For frames that may lie in several chunks (`in_parts`), or in one only.
    pub(super) fn new(mtu: usize, queues: usize, in_parts: bool) -> Layout {
        let chunk_bytes = if mtu + 14 + RECEIVE_HEADROOM <= 2048 { 2048 } else { 4096 };
        let share = XDP_RECEIVE_BYTES / chunk_bytes / queues;
        let receive_chunks = share.clamp(XDP_RECEIVE_CHUNKS_MIN, XDP_RECEIVE_CHUNKS_MAX);
        let needed = (mtu + 14).div_ceil(chunk_bytes - RECEIVE_HEADROOM);
        let frame_chunks = if in_parts { needed.min(XDP_FRAME_CHUNKS_MAX) } else { 1 };
        let slots = if frame_chunks > 1 { XDP_LONG_SEND_SLOTS } else { XDP_SEND_CHUNKS };
        Layout { chunk_bytes, queues, receive_chunks, frame_chunks, slots }
    }

    /// Bytes of the longest frame, headers included.
    pub(super) fn wire_bytes_max(self, mtu: usize) -> usize {
        (mtu + 14).min(self.frame_chunks * (self.chunk_bytes - RECEIVE_HEADROOM))
    }

    /// Bytes of a slot for sending: a power of two, so that its number is no division away.
    pub(super) fn slot_bytes(self) -> usize {
        (self.frame_chunks * self.chunk_bytes).next_power_of_two()
    }

    pub(super) fn bytes(self) -> usize {
        self.queues * self.receive_chunks * self.chunk_bytes + self.slots * self.slot_bytes()
    }

    /// The slots for sending.
    pub(super) fn send_slots(self) -> impl Iterator<Item = u64> {
        let first = self.queues * self.receive_chunks * self.chunk_bytes;
        (0..self.slots).map(move |slot| (first + slot * self.slot_bytes()) as u64)
    }
}

/// Whether frames of up to so many bytes lie in several chunks.
pub(super) fn is_in_parts(wire_bytes_max: usize, chunk_bytes: usize) -> bool {
    wire_bytes_max > chunk_bytes.saturating_sub(RECEIVE_HEADROOM)
}

/// The owner of the program at the device.
pub(super) enum Hold {
    Own(Link),
    Helper(Lease),
    /// A helper that is gone.
    Nobody,
}

impl Hold {
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Hold::Own(link) => Some(link.fd()),
            Hold::Helper(lease) => Some(lease.fd()),
            Hold::Nobody => None,
        }
    }
}

/// Queues of a device, and the program that steers frames there.
pub(super) struct Opened {
    pub(super) hold: Hold,
    pub(super) attach: Attach,
    pub(super) socket: Socket,
    /// How many they are.
    pub(super) queues: usize,
}

pub(super) fn cannot((operation, errno): Failure) -> DriverError {
    DriverError::CannotOpen { operation, errno }
}

/// The helper that opens the sockets; `None`: our own rights do.
pub(crate) fn helper_for(rights: &Rights) -> Result<Option<&Path>, DriverError> {
    match (rights, check_capabilities()) {
        (Rights::Own, held) => held.map(|()| None),
        (Rights::OwnOrHelper(_), Ok(())) => Ok(None),
        (Rights::OwnOrHelper(path), Err(missing)) if !path.exists() => Err(missing),
        (Rights::OwnOrHelper(path) | Rights::Helper(path), _) => Ok(Some(path)),
    }
}

/// How many queues of the device are to serve the rail.
pub(super) fn queues_wanted(config: &XdpConfig) -> usize {
    let all = usize::try_from(device::queues(&config.interface)).unwrap_or(XDP_QUEUES_MAX);
    config.queues_max.unwrap_or(all).clamp(1, all).min(XDP_QUEUES_MAX)
}

impl Opened {
    /// Frames to `own` of at most `wire_bytes_max` bytes come here.
    pub(super) fn by_own_rights(
        config: &XdpConfig,
        interface: u32,
        own: SocketAddr,
        layout: Layout,
        wire_bytes_max: usize,
    ) -> Result<Opened, DriverError> {
        let failed = |operation| move |errno| cannot((operation, errno));
        let memory = Mapping::anonymous(layout.bytes()).map_err(failed(Operation::RegisterFrames))?;
        let sockets = sockets::open(&memory, layout.chunk_bytes, layout.queues).map_err(cannot)?;
        // Before Linux 6.4 rings are mapped only while a socket is not bound.
        let mut socket = Socket::new(memory, layout, sockets).map_err(cannot)?;
        socket.offer(layout.receive_chunks);
        let loaded = failed(Operation::LoadProgram);
        let map = program::queue_map(u32::try_from(layout.queues).unwrap_or(u32::MAX)).map_err(loaded)?;
        let destination = Destination { address: own, wire_bytes_max, map: map.as_fd() };
        let in_parts = is_in_parts(wire_bytes_max, layout.chunk_bytes);
        let program = program::load(&[destination], in_parts).map_err(loaded)?;
        // The program first: it may reset the device's queues.
        let (link, attach) = while_busy(|| attach_once(&program, interface, config.attach))
            .map_err(failed(Operation::AttachProgram))?;
        let fds: Vec<BorrowedFd<'_>> = socket.fds().collect();
        for (queue, place) in iter::zip(0.., 0..fds.len()) {
            while_busy(|| sockets::bind(&fds, place, interface, queue, in_parts))
                .map_err(failed(Operation::BindQueue))?;
            program::put_queue(map.as_fd(), queue, fds[place]).map_err(loaded)?;
        }
        socket.find_mode().map_err(failed(Operation::BindQueue))?;
        Ok(Opened { hold: Hold::Own(link), attach, socket, queues: layout.queues })
    }

    /// The same by the helper at `path`, which binds the rail's address too.
    pub(super) fn by_helper(
        config: &XdpConfig,
        path: &Path,
        layout: Layout,
        wire_bytes_max: usize,
    ) -> Result<(OwnedFd, Opened), DriverError> {
        let failed = |operation| move |errno| cannot((operation, errno));
        let request = helper::Asked {
            device: &config.interface,
            attach: config.attach,
            queues: layout.queues,
            wire_bytes_max,
            chunk_bytes: layout.chunk_bytes,
            address: config.bind,
            memory_bytes: layout.bytes(),
        };
        let Given { lease, attach, port, memory, sockets } = helper::open(path, &request)?;
        let queues = sockets.len();
        let memory = Mapping::of_file(memory.as_fd(), layout.bytes());
        let memory = memory.map_err(failed(Operation::RegisterFrames))?;
        let mut socket = Socket::new(memory, layout, sockets).map_err(cannot)?;
        socket.find_mode().map_err(failed(Operation::BindQueue))?;
        socket.offer(layout.receive_chunks);
        Ok((port, Opened { hold: Hold::Helper(lease), attach, socket, queues }))
    }
}

/// Attaches as asked, or as the device can.
pub(super) fn attach_once(
    program: &OwnedFd,
    interface: u32,
    asked: Option<Attach>,
) -> Result<(Link, Attach), Errno> {
    let one = |attach| program::attach(program.as_fd(), interface, attach).map(|link| (link, attach));
    match asked {
        Some(attach) => one(attach),
        None => match one(Attach::Native) {
            // The last: its frames are too long for that.
            Err(Errno(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE)) => one(Attach::Generic),
            result => result,
        },
    }
}

/// Whether a rail could not be opened because its frames lie in several chunks, as far as the error shows.
pub(super) fn is_about_parts(error: &DriverError) -> bool {
    let (operation, errno) = match error {
        DriverError::CannotOpen { operation, errno }
        | DriverError::HelperRefused { refusal: helper::Refusal::Failed { operation, errno } } => {
            (operation, errno)
        }
        _ => return false,
    };
    matches!(operation, Operation::LoadProgram | Operation::AttachProgram | Operation::BindQueue)
        && matches!(errno.0, libc::EINVAL | libc::EOPNOTSUPP | libc::ERANGE | libc::E2BIG)
}

/// Repeats an attempt that fails with EBUSY: the kernel lets go of a closed socket's queue some time after it
/// was closed.
fn while_busy<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(errno) if errno.0 == libc::EBUSY && start.elapsed() < XDP_BUSY_PATIENCE => {
                std::thread::sleep(core::time::Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_without_rest_or_overlap() {
        for mtu in [1500, 1790, 3000, 9000] {
            for queues in 1..=XDP_QUEUES_MAX {
                for in_parts in [false, true] {
                    let layout = Layout::new(mtu, queues, in_parts);
                    let received = (queues * layout.receive_chunks * layout.chunk_bytes) as u64;
                    assert_eq!(layout.send_slots().next(), Some(received));
                    let last = layout.send_slots().last().expect("some") + layout.slot_bytes() as u64;
                    assert_eq!(last, layout.bytes() as u64);
                    assert!(layout.bytes() <= helper::MEMORY_BYTES_MAX);
                    let longest = layout.wire_bytes_max(mtu);
                    assert!(longest + RECEIVE_HEADROOM * layout.frame_chunks <= layout.slot_bytes());
                    assert!(super::super::HEADROOM + longest <= layout.slot_bytes());
                    assert_eq!(is_in_parts(longest, layout.chunk_bytes), layout.frame_chunks > 1);
                }
            }
        }
        assert_eq!(Layout::new(1500, 1, true).receive_chunks, 1024, "a full ring");
        assert_eq!(Layout::new(1500, 1, true), Layout::new(1500, 1, false));
        assert_eq!(Layout::new(9000, 1, true).wire_bytes_max(9000), 9014);
    }
}
