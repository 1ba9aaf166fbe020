//! The bare path, for benches: the same rings, program and headers, with nothing above them.
//!
//! One end sends datagrams of one length to one other end; it copies out received ones. Headers were written
//! once, and no buffer is leased: a frame is overwritten when its turn comes again. Nothing is counted, and
//! no kernel's table is asked.

use std::net::{SocketAddr, UdpSocket};

use super::headers::{Headers, Mac};
use super::open::{Hold, Layout, Opened, cannot};
use super::rings::Socket;
use super::{HEADROOM, RECEIVE_HEADROOM, XdpConfig, check_capabilities, device, is_for_now, program};
use crate::error::{DriverError, Errno, Operation};

/// Where a bare end is reached: its device's Ethernet address, its IP address and UDP port.
pub type BareAddress = (Mac, SocketAddr);

/// One end. The fields are dropped in order, as those of [`super::XdpDriver`] are.
pub struct BareXdp {
    _hold: Hold,
    socket: Socket,
    _port: UdpSocket,
    own: BareAddress,
    /// The frames, all alike; which of them is sent next.
    frames: Vec<u64>,
    next: usize,
    wire_bytes: usize,
    frame_bytes_max: usize,
}

impl BareXdp {
    /// Opens a queue.
    ///
    /// # Errors
    /// As [`super::XdpDriver::open`].
    pub fn open(config: &XdpConfig) -> Result<BareXdp, DriverError> {
        check_capabilities()?;
        let (interface, mac, mtu) = device::find(&config.interface).map_err(cannot)?;
        let bound = |error| cannot((Operation::Bind, Errno::from(&error)));
        let port = UdpSocket::bind(config.bind).map_err(bound)?;
        let address = port.local_addr().map_err(bound)?;
        // A device of a long MTU takes only a program that sees frames in parts, also if each of ours fits into a chunk.
        let layout = Layout::new(mtu, 1, true);
        let wire_bytes_max = layout.wire_bytes_max(mtu);
        let opened = Opened::by_own_rights(config, interface, address, layout, wire_bytes_max)?;
        Ok(BareXdp {
            _hold: opened.hold,
            socket: opened.socket,
            _port: port,
            own: (mac, address),
            frames: layout.send_slots().collect(),
            next: 0,
            wire_bytes: 0,
            frame_bytes_max: wire_bytes_max.min(layout.chunk_bytes - RECEIVE_HEADROOM)
                - program::header_bytes(address),
        })
    }

    /// The address for the other end.
    #[must_use]
    pub fn address(&self) -> BareAddress {
        self.own
    }

    /// Bytes of the longest frame that goes in one piece.
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Writes the frames: `frame_bytes` bytes each, to `peer`.
    ///
    /// # Errors
    /// `NoOwnAddress`: the peer's address is of another family.
    pub fn prepare(&mut self, peer: BareAddress, frame_bytes: usize) -> Result<(), DriverError> {
        let headers = Headers::new(self.own, peer).ok_or(DriverError::NoOwnAddress)?;
        let start = HEADROOM - program::header_bytes(self.own.1);
        for at in &self.frames {
            let wire = &mut self.socket.slot(*at)[start..HEADROOM + frame_bytes];
            wire.fill(7);
            headers.write(wire);
        }
        self.wire_bytes = HEADROOM + frame_bytes - start;
        Ok(())
    }

    /// Sends so many frames with `datagram`, with as few calls of the kernel as it permits.
    ///
    /// # Errors
    /// `RailDead`.
    pub fn send(&mut self, frames: usize, datagram: &[u8]) -> Result<(), DriverError> {
        let start = HEADROOM - program::header_bytes(self.own.1);
        let mut left = frames;
        while left > 0 {
            while left > 0 && self.submit(start, datagram) {
                self.next = (self.next + 1) % self.frames.len();
                left -= 1;
            }
            self.kick()?;
        }
        while self.socket.has_unsent() {
            self.kick()?;
        }
        Ok(())
    }

    fn submit(&mut self, start: usize, datagram: &[u8]) -> bool {
        let at = self.frames[self.next];
        self.socket.slot(at)[HEADROOM..HEADROOM + datagram.len()].copy_from_slice(datagram);
        self.socket.submit(at, start, self.wire_bytes)
    }

    fn kick(&mut self) -> Result<(), DriverError> {
        let kicked = self.socket.kick(false);
        self.socket.take_sent(|_, _| ());
        match kicked {
            Ok(()) => Ok(()),
            Err(errno) if is_for_now(errno) => Ok(()),
            Err(errno) => Err(DriverError::RailDead { operation: Operation::Send, errno }),
        }
    }

    /// Takes up to `frames_max` frames that have come, each to `datagram`; how many.
    pub fn receive(&mut self, frames_max: usize, datagram: &mut [u8]) -> usize {
        let header_bytes = program::header_bytes(self.own.1);
        let mut taken = 0;
        while taken < frames_max {
            let Some((chunk, bytes)) = self.socket.take() else { break };
            let came = bytes.len().saturating_sub(header_bytes).min(datagram.len());
            datagram[..came].copy_from_slice(&bytes[header_bytes..header_bytes + came]);
            core::hint::black_box(&datagram);
            self.socket.give_back(chunk);
            taken += 1;
        }
        if taken > 0 {
            self.socket.end_taking();
        }
        taken
    }
}
