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
    XDP_BUSY_PATIENCE, XDP_QUEUES_MAX, XDP_RECEIVE_BYTES, XDP_RECEIVE_CHUNKS_MAX, XDP_RECEIVE_CHUNKS_MIN,
    XDP_SEND_CHUNKS,
};

/// How the memory of a rail is divided: chunks for frames to come, queue by queue, and then those for sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) chunk_bytes: usize,
    pub(super) queues: usize,
    /// Chunks of each queue for frames to come.
    pub(super) receive_chunks: usize,
}

impl Layout {
    pub(super) fn new(mtu: usize, queues: usize) -> Layout {
        let chunk_bytes = if mtu + 14 + RECEIVE_HEADROOM <= 2048 { 2048 } else { 4096 };
        let share = XDP_RECEIVE_BYTES / chunk_bytes / queues;
        let receive_chunks = share.clamp(XDP_RECEIVE_CHUNKS_MIN, XDP_RECEIVE_CHUNKS_MAX);
        Layout { chunk_bytes, queues, receive_chunks }
    }

    /// Bytes of the longest frame, headers included.
    pub(super) fn wire_bytes_max(self, mtu: usize) -> usize {
        (mtu + 14).min(self.chunk_bytes - RECEIVE_HEADROOM)
    }

    pub(super) fn bytes(self) -> usize {
        (self.queues * self.receive_chunks + XDP_SEND_CHUNKS) * self.chunk_bytes
    }

    /// The chunks for sending.
    pub(super) fn send_chunks(self) -> impl Iterator<Item = u64> {
        let first = self.queues * self.receive_chunks;
        (first..first + XDP_SEND_CHUNKS).map(move |chunk| (chunk * self.chunk_bytes) as u64)
    }
}

/// Who has the program at the device.
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

/// Queues of a device, and what sends frames there.
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

/// The helper that opens what is asked for; `None`: our own rights do.
pub(super) fn helper_for(config: &XdpConfig) -> Result<Option<&Path>, DriverError> {
    match (&config.rights, check_capabilities()) {
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
        let mut socket = Socket::new(memory, layout.chunk_bytes, sockets).map_err(cannot)?;
        socket.offer(layout.receive_chunks);
        let loaded = failed(Operation::LoadProgram);
        let map = program::queue_map(u32::try_from(layout.queues).unwrap_or(u32::MAX)).map_err(loaded)?;
        let destination = Destination { address: own, wire_bytes_max, map: map.as_fd() };
        let program = program::load(&[destination]).map_err(loaded)?;
        // The program first: it may reset the device's queues.
        let (link, attach) = while_busy(|| attach_once(&program, interface, config.attach))
            .map_err(failed(Operation::AttachProgram))?;
        let fds: Vec<BorrowedFd<'_>> = socket.fds().collect();
        for (queue, place) in iter::zip(0.., 0..fds.len()) {
            while_busy(|| sockets::bind(&fds, place, interface, queue))
                .map_err(failed(Operation::BindQueue))?;
            program::put_queue(map.as_fd(), queue, fds[place]).map_err(loaded)?;
        }
        socket.find_mode().map_err(failed(Operation::BindQueue))?;
        Ok(Opened { hold: Hold::Own(link), attach, socket, queues: layout.queues })
    }

    /// The same by the helper at `path`, which is shown the socket that has the rail's address.
    pub(super) fn by_helper(
        config: &XdpConfig,
        path: &Path,
        address: BorrowedFd<'_>,
        layout: Layout,
        wire_bytes_max: usize,
    ) -> Result<Opened, DriverError> {
        let failed = |operation| move |errno| cannot((operation, errno));
        let (memory, file) = Mapping::shared(layout.bytes()).map_err(failed(Operation::RegisterFrames))?;
        let request = helper::Asked {
            device: &config.interface,
            attach: config.attach,
            queues: layout.queues,
            wire_bytes_max,
            chunk_bytes: layout.chunk_bytes,
            address,
            memory: file.as_fd(),
        };
        let Given { lease, attach, sockets } = helper::open(path, &request)?;
        let queues = sockets.len();
        let mut socket = Socket::new(memory, layout.chunk_bytes, sockets).map_err(cannot)?;
        socket.find_mode().map_err(failed(Operation::BindQueue))?;
        socket.offer(layout.receive_chunks);
        Ok(Opened { hold: Hold::Helper(lease), attach, socket, queues })
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
            Err(Errno(libc::EOPNOTSUPP | libc::EINVAL)) => one(Attach::Generic),
            result => result,
        },
    }
}

/// Repeats what fails with EBUSY: the kernel lets go of a closed socket's queue some time after it was closed.
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
                let layout = Layout::new(mtu, queues);
                let received = (queues * layout.receive_chunks * layout.chunk_bytes) as u64;
                assert_eq!(layout.send_chunks().next(), Some(received));
                let last = layout.send_chunks().last().expect("some") + layout.chunk_bytes as u64;
                assert_eq!(last, layout.bytes() as u64);
                assert!(layout.bytes() <= helper::MEMORY_BYTES_MAX);
                assert!(layout.wire_bytes_max(mtu) + RECEIVE_HEADROOM <= layout.chunk_bytes);
            }
        }
        assert_eq!(Layout::new(1500, 1).receive_chunks, 1024, "a full ring");
    }
}
