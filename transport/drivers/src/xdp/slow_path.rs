//! Everything outside the rings: the companion's frames, the kernel's tables, the helper.

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::open::Hold;
use super::tx_staging::Staged;
use super::{COUNT_LOOKS, HEADROOM, LOOK_CALLS, XdpDriver};
use crate::driver::Driver as _;
use crate::error::DriverError;
use crate::pack::Frames;
use crate::payload::Payload;

impl XdpDriver {
    /// Sends the datagram that was the oldest staged one through the companion, frame by frame.
    pub(super) fn send_by_companion(&mut self, datagram: &Staged) -> Result<(), DriverError> {
        let XdpDriver { socket, companion, counters, .. } = self;
        let bytes = &socket.slot(datagram.slot)[HEADROOM - datagram.head_bytes()..datagram.end()];
        let packed = (datagram.frames > 1).then(|| Frames::of(bytes)).flatten();
        let alone = packed.is_none().then_some(bytes);
        for frame in packed.into_iter().flatten().chain(alone) {
            let sent_before = companion.counters().frames_sent;
            if let Some(buffer) = companion.lease() {
                buffer[..frame.len()].copy_from_slice(frame);
                companion.commit(datagram.to, frame.len(), Payload::EMPTY);
            }
            companion.flush()?;
            // A frame that finds no room in the socket is lost.
            let _ = companion.drain()?;
            if companion.counters().frames_sent > sent_before {
                counters.frames_sent += 1;
                counters.bytes_sent += frame.len() as u64;
            } else {
                counters.lost_unreachable += 1;
            }
        }
        Ok(())
    }

    /// Notices that the helper is gone. The sockets that it has opened work on; only the program has gone
    /// with it.
    pub(super) fn look_for_helper(&mut self) {
        if let Hold::Helper(lease) = &self.hold
            && lease.is_over()
        {
            // Fails only for unwatched descriptors.
            let _ = self.slow_path.delete(lease.fd());
            self.hold = Hold::Nobody;
            self.helper_gone = true;
        }
    }

    /// Handles events outside of the rings: the kernel's tables, and the companion, whose frames `each` gets.
    pub(super) fn look_around(
        &mut self,
        frames_max: usize,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, DriverError> {
        if frames_max == 0 {
            return Ok(0);
        }
        self.look_in = LOOK_CALLS;
        if self.watched == 1 {
            // An error leaves it watched, which only costs time.
            for fd in self.socket.fds() {
                let _ = self.epoll.delete(fd);
            }
        }
        self.watched = self.watched.saturating_sub(1);
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(COUNT_LOOKS) {
            self.counters.lost_receive_overflow = self.socket.dropped();
        }
        // Where one came this way, the companion may hold more. An error will be seen at the descriptor itself.
        if !core::mem::take(&mut self.more_slow_path)
            && self.slow_path.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(0)
        {
            return Ok(0);
        }
        self.renew_ways();
        self.look_for_helper();
        self.collect()?;
        let malformed = self.companion.counters().lost_malformed;
        let bytes = &mut self.counters.bytes_received;
        let given = self.companion.receive(frames_max, &mut |frame| {
            *bytes += frame.len() as u64;
            each(frame);
        })?;
        self.counters.frames_received += given as u64;
        self.counters.lost_malformed += self.companion.counters().lost_malformed - malformed;
        if given > 0 {
            (self.more_slow_path, self.look_in) = (true, 0);
        }
        Ok(given)
    }
}
