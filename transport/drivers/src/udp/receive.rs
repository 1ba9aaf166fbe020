//! Receiving: one datagram per call while they come one at a time, bursts when they do not, and coalesced datagrams taken apart.
//!
//! A coalesced datagram needs its control data, and asking for that makes each receive 0.15 us dearer. So a rail starts with plain
//! receives, asks the kernel to coalesce when it meets a burst of equal frames, and stops when only single ones come.

use std::os::fd::BorrowedFd;

use super::socket;
use super::sys::{self, Datagram};
use crate::counters::Counters;
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{RECEIVE_BUFFER_BYTES, RECEIVE_DATAGRAMS};
use crate::pack::{self, Frames};

/// Looks in a row that found something, after which a burst is expected. In a ping-pong the poll after a message finds nothing,
/// so it stays with single receives.
const STREAK: u8 = 2;

/// Equal datagrams in one burst from which on coalescing pays.
const ALIKE: usize = 4;

/// Single datagrams in a row, after which coalescing does not pay any more.
const LONELY: u8 = 16;

/// Successful receives between two looks at the kernel's count of drops; a rail that is about to sleep looks too.
const OVERFLOW_CALLS: u64 = 4096;

/// Whether the kernel coalesces datagrams for us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coalesce {
    /// It cannot, or shall not.
    Never,
    /// It can, and will from the next burst on.
    Ready,
    On,
}

/// The result of a look for a single datagram.
enum Single {
    /// So many frames, which were given away.
    Frames(usize),
    /// A pack, which waits to be taken apart.
    Packed,
}

/// Received datagrams that have not been given away yet.
pub(super) struct Incoming {
    buffers: Vec<u8>,
    datagrams: [Datagram; RECEIVE_DATAGRAMS],
    /// Datagrams received by the last call.
    count: usize,
    /// The first of them not given away completely, and how many of its bytes are.
    next: usize,
    given_bytes: usize,
    /// Frames at that place that are left of a pack, which was found whole.
    packed: usize,
    streak: u8,
    /// Length of the last datagram.
    last_bytes: usize,
    /// Datagrams that came singly and whole since the last that did not.
    lonely: u8,
    coalesce: Coalesce,
    /// Overflow count that the kernel last reported.
    overflow: u32,
}

impl Incoming {
    pub(super) fn new(can_coalesce: bool) -> Incoming {
        Incoming {
            buffers: vec![0; RECEIVE_BUFFER_BYTES * RECEIVE_DATAGRAMS],
            datagrams: [Datagram::default(); RECEIVE_DATAGRAMS],
            count: 0,
            next: 0,
            given_bytes: 0,
            packed: 0,
            streak: 0,
            last_bytes: 0,
            lonely: 0,
            coalesce: if can_coalesce { Coalesce::Ready } else { Coalesce::Never },
            overflow: 0,
        }
    }

    pub(super) fn coalesces(&self) -> bool {
        self.coalesce == Coalesce::On
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.count
    }

    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut Counters,
        frames_max: usize,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, DriverError> {
        let mut given = 0;
        let mut more = true;
        loop {
            given += self.give(counters, frames_max - given, each);
            if given == frames_max || !more {
                return Ok(given);
            }
            let asked = self.burst();
            if asked == 1 && self.coalesce != Coalesce::On {
                match self.receive_single(fd, counters, each)? {
                    // A pack: some of its frames may have to wait.
                    Single::Packed => more = false,
                    Single::Frames(single) => return Ok(given + single),
                }
                continue;
            }
            let found = self.look(fd, counters, asked)?;
            // Only a full burst makes it likely that more is waiting.
            more = asked > 1 && found == asked;
        }
    }

    /// Datagrams to ask for: as many as make up one buffer's worth, so that large ones are handed on (and acknowledged) while
    /// they are in the cache.
    fn burst(&self) -> usize {
        if self.streak < STREAK {
            return 1;
        }
        (RECEIVE_BUFFER_BYTES / self.last_bytes.max(1)).clamp(1, RECEIVE_DATAGRAMS)
    }

    /// Gives away frames of the last call, at most `frames_max`.
    fn give(&mut self, counters: &mut Counters, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut given = 0;
        while given < frames_max && self.next < self.count {
            let datagram = self.datagrams[self.next];
            let start = self.next * RECEIVE_BUFFER_BYTES;
            let bytes = &self.buffers[start..start + datagram.bytes];
            let rest = &bytes[self.given_bytes..];
            let whole = match datagram.segment_bytes {
                0 => rest,
                segment_bytes => &rest[..rest.len().min(segment_bytes)],
            };
            if self.packed > 0 {
                let mut frames = Frames::again((rest, self.packed));
                for frame in frames.by_ref().take(frames_max - given) {
                    each(frame);
                    given += 1;
                    counters.bytes_received += frame.len() as u64;
                }
                let (rest, left) = frames.rest();
                (self.given_bytes, self.packed) = (datagram.bytes - rest.len(), left);
            } else if pack::is_pack(whole) {
                match Frames::of(whole) {
                    Some(frames) => {
                        self.given_bytes += pack::HEAD_BYTES;
                        self.packed = frames.rest().1;
                        continue;
                    }
                    None => counters.lost_malformed += 1,
                }
                self.given_bytes += whole.len();
            } else {
                each(whole);
                given += 1;
                counters.bytes_received += whole.len() as u64;
                self.given_bytes += whole.len();
            }
            if self.given_bytes == datagram.bytes && self.packed == 0 {
                self.next += 1;
                self.given_bytes = 0;
            }
        }
        counters.frames_received += given as u64;
        given
    }

    /// Asks the kernel for up to `asked` datagrams; returns how many came.
    fn look(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut Counters,
        asked: usize,
    ) -> Result<usize, DriverError> {
        self.next = 0;
        self.count = 0;
        let datagrams = &mut self.datagrams[..asked];
        let stride = RECEIVE_BUFFER_BYTES;
        let found = sys::receive_datagrams::<RECEIVE_DATAGRAMS>(fd, &mut self.buffers, stride, datagrams);
        match found {
            Ok(found) => {
                self.count_call(fd, counters);
                self.count = found;
                self.streak = if asked == 1 {
                    STREAK.min(self.streak + 1)
                } else if found > 1 {
                    STREAK
                } else {
                    0
                };
                self.last_bytes = found.checked_sub(1).map_or(0, |last| self.datagrams[last].bytes);
                self.sort_out(counters);
                self.consider_coalescing(fd);
                Ok(found)
            }
            Err(errno) => {
                self.streak = 0;
                counters.empty_polls += 1;
                if self.lonely >= LONELY && self.coalesce == Coalesce::On {
                    self.stop_coalescing(fd, counters);
                }
                nothing_received(errno).map(|()| 0)
            }
        }
    }

    /// The fast path of a datagram that comes alone: from the kernel straight to `each`.
    fn receive_single(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut Counters,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<Single, DriverError> {
        match sys::receive_plain(fd, &mut self.buffers[..RECEIVE_BUFFER_BYTES]) {
            Ok(bytes) => {
                let frame = &self.buffers[..bytes.min(RECEIVE_BUFFER_BYTES)];
                self.last_bytes = frame.len();
                self.streak = STREAK.min(self.streak + 1);
                let packed = pack::is_pack(frame);
                if packed {
                    self.datagrams[0] = Datagram { bytes: frame.len(), ..Datagram::default() };
                    (self.count, self.next) = (1, 0);
                } else {
                    each(frame);
                    counters.frames_received += 1;
                    counters.bytes_received += frame.len() as u64;
                }
                self.count_call(fd, counters);
                Ok(if packed { Single::Packed } else { Single::Frames(1) })
            }
            Err(errno) => {
                self.streak = 0;
                counters.empty_polls += 1;
                nothing_received(errno).map(|()| Single::Frames(0))
            }
        }
    }

    fn count_call(&mut self, fd: BorrowedFd<'_>, counters: &mut Counters) {
        counters.receive_calls += 1;
        if counters.receive_calls.is_multiple_of(OVERFLOW_CALLS) {
            self.count_overflow(fd, counters);
        }
    }

    fn consider_coalescing(&mut self, fd: BorrowedFd<'_>) {
        if self.coalesce == Coalesce::On {
            let first = &self.datagrams[0];
            let whole = first.segment_bytes == 0 || first.bytes <= first.segment_bytes;
            self.lonely = if self.count == 1 && whole { self.lonely.saturating_add(1) } else { 0 };
        }
        if self.coalesce != Coalesce::Ready || self.count < ALIKE {
            return;
        }
        let alike =
            self.datagrams[..self.count].windows(2).filter(|pair| pair[0].bytes == pair[1].bytes).count();
        if alike + 1 >= ALIKE {
            self.coalesce = if socket::coalesce(fd, true) { Coalesce::On } else { Coalesce::Never };
        }
    }

    /// Called when the queue has just been found empty: with the option, the kernel forgets the frame size of waiting
    /// datagrams. Datagrams that arrived since may have been coalesced, cannot be split any more, and are lost.
    fn stop_coalescing(&mut self, fd: BorrowedFd<'_>, counters: &mut Counters) {
        self.lonely = 0;
        if !socket::coalesce(fd, false) {
            return;
        }
        self.coalesce = Coalesce::Ready;
        for _ in 0..RECEIVE_DATAGRAMS {
            if sys::receive_plain(fd, &mut self.buffers[..RECEIVE_BUFFER_BYTES]).is_err() {
                break;
            }
            counters.lost_coalesced += 1;
        }
    }

    /// Counts frames that the kernel has dropped since the last look.
    pub(super) fn count_overflow(&mut self, fd: BorrowedFd<'_>, counters: &mut Counters) {
        if let Some(total) = sys::dropped(fd) {
            counters.lost_receive_overflow += u64::from(total.wrapping_sub(self.overflow));
            self.overflow = total;
        }
    }

    /// Takes out datagrams that did not fit.
    fn sort_out(&mut self, counters: &mut Counters) {
        for datagram in &mut self.datagrams[..self.count] {
            datagram.bytes = datagram.bytes.min(RECEIVE_BUFFER_BYTES);
        }
        let truncated = self.datagrams[..self.count].iter().filter(|datagram| datagram.truncated).count();
        if truncated > 0 {
            counters.lost_truncated += truncated as u64;
            // Longer than any datagram can be: only a damaged kernel answer gets here. Everything of this call is lost.
            self.count = 0;
        }
    }
}

/// Whether a failed receive only means that nothing is there.
fn nothing_received(errno: Errno) -> Result<(), DriverError> {
    match errno.0 {
        libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL | libc::ENOTCONN => {
            Err(DriverError::RailDead { operation: Operation::Receive, errno })
        }
        libc::ENOMEM | libc::ENOBUFS => Err(DriverError::Transient { operation: Operation::Receive, errno }),
        // EAGAIN, EINTR, and ICMP errors of our earlier datagrams.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::{Coalesce, Counters, Incoming, socket};

    #[test]
    fn what_comes_while_coalescing_is_switched_off_has_a_counter_of_its_own() {
        let open = || UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (here, there) = (open(), open());
        here.set_nonblocking(true).expect("a socket");
        let mut incoming = Incoming::new(true);
        if !socket::coalesce(here.as_fd(), true) {
            // A kernel that cannot coalesce has nothing to switch off.
            return;
        }
        incoming.coalesce = Coalesce::On;
        for _ in 0..3 {
            there.send_to(b"too late", here.local_addr().expect("bound")).expect("loopback");
        }
        let mut counters = Counters::default();
        incoming.stop_coalescing(here.as_fd(), &mut counters);
        assert_eq!(counters, Counters { lost_coalesced: 3, ..Counters::default() });
        assert!(!incoming.coalesces());
    }
}
