//! Sending the staged frames in as few system calls as possible.
//!
//! Staged frames are cut, in order, into *runs*: frames of equal size to one address (the last may be shorter), which one message
//! with UDP_SEGMENT carries. Consecutive runs that leave through the same socket form a *chain*, one system call: `send` for
//! a single small frame (`sendmmsg` of one costs 0.25 us more), `sendmsg` for a single run, else `sendmmsg`.

use std::os::fd::AsFd;

use socket2::{SockAddr, Socket};
use transport::AddressId;

use super::sys::{self, Message, SendArrays};
use super::{UdpDriver, socket};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{BURST_FRAMES, DATAGRAM_BYTES_MAX, SEGMENTS_MAX};

/// Memory for sending that is kept between calls.
#[derive(Default)]
pub(super) struct Scratch {
    arrays: SendArrays,
    runs: Vec<Run>,
}

/// Consecutive staged frames that one message carries.
#[derive(Clone, Copy, Debug)]
struct Run {
    to: AddressId,
    /// Place of the first in the staging ring, from the oldest.
    first: usize,
    frames: usize,
    /// All frames together.
    bytes: usize,
    /// Size of each frame but the last.
    frame_bytes: usize,
}

/// The socket through which a chain leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The peer's own.
    Own,
    /// The receive socket.
    Shared,
    /// The one that lets the kernel fragment: a frame keeps its length with its number, also when the path has become shorter
    /// since it was first sent.
    InFragments,
}

/// Whether another try makes sense.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    /// The system takes no more now.
    Blocked,
}

impl UdpDriver {
    pub(super) fn flush_staged(&mut self) -> Result<usize, DriverError> {
        if self.flush_only_frame() {
            return Ok(1);
        }
        let before = self.counters.frames_sent;
        // A pending ICMP error of an *earlier* datagram fails the next send once; only the second refusal is ours.
        let mut refused = false;
        while self.staging.len() > 0 {
            let Some(way) = self.plan_chain() else {
                self.staging.complete(1);
                continue;
            };
            let next = match self.send_chain(way) {
                Ok(runs) => {
                    refused = false;
                    self.counters.sent_in_fragments += u64::from(way == Way::InFragments);
                    self.chain_sent(runs);
                    Next::Continue
                }
                Err(Errno(libc::ECONNREFUSED)) if !refused => {
                    refused = true;
                    Next::Continue
                }
                Err(errno) => self.run_failed(errno, way)?,
            };
            if next == Next::Blocked {
                break;
            }
        }
        Ok(usize::try_from(self.counters.frames_sent - before).unwrap_or(usize::MAX))
    }

    /// The fast path of a ping-pong: one small frame to a peer with a socket of its own. False: nothing was sent, and
    /// the slow path decides.
    fn flush_only_frame(&mut self) -> bool {
        if self.staging.len() != 1 {
            return false;
        }
        let Some(frame) = self.staging.frame(0).filter(|frame| frame.payload.is_empty()) else {
            return false;
        };
        let (to, bytes) = (frame.to, frame.head.len());
        let Some(socket) = self.peers.socket_for(to, bytes) else { return false };
        if sys::send_plain(socket.as_fd(), frame.head).is_err() {
            return false;
        }
        self.counters.send_calls += 1;
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += bytes as u64;
        self.staging.complete(1);
        true
    }

    /// Cuts the oldest staged frames into runs that leave through one socket, and returns which; `None` if the oldest frame
    /// cannot be sent at all (it has been counted).
    fn plan_chain(&mut self) -> Option<Way> {
        self.scratch.runs.clear();
        let first = self.staging.frame(0)?;
        let (to, len) = (first.to, first.len());
        let Some(path) = self.peers.path(to) else {
            self.counters.lost_no_address += 1;
            return None;
        };
        if len > path.frame_bytes_max {
            if self.fragmenting().is_none() {
                self.counters.lost_too_long += 1;
                return None;
            }
            self.scratch.runs.push(Run { to, first: 0, frames: 1, bytes: len, frame_bytes: len });
            return Some(Way::InFragments);
        }
        self.peers.before_send(to);
        let own_socket = self.peers.get(to)?.connected.is_some();
        let mut at = 0;
        while let Some(run) = self.plan_run(at) {
            let same_socket = run.to == to || (!own_socket && self.peers.get(run.to)?.connected.is_none());
            if !same_socket {
                break;
            }
            at += run.frames;
            self.scratch.runs.push(run);
        }
        Some(if own_socket { Way::Own } else { Way::Shared })
    }

    /// The socket that lets the kernel fragment, opened when the first frame needs it; `None` if the system gives none.
    fn fragmenting(&mut self) -> Option<&Socket> {
        if self.fragmenting.is_none() {
            self.fragmenting = socket::open_fragmenting(&self.socket).ok();
        }
        self.fragmenting.as_ref()
    }

    /// The longest run that starts at `first`; `None` at the end, and at a frame that cannot be sent.
    fn plan_run(&self, first: usize) -> Option<Run> {
        if first >= self.staging.len() {
            return None;
        }
        let start = self.staging.frame(first)?;
        let peer = self.peers.get(start.to)?;
        let frame_bytes = start.len();
        if frame_bytes > peer.path.frame_bytes_max {
            return None;
        }
        let mut run = Run { to: start.to, first, frames: 1, bytes: frame_bytes, frame_bytes };
        let segment = peer.connected.as_ref().map_or(self.segment, |connected| connected.segment);
        if !segment || frame_bytes == 0 || frame_bytes > usize::from(u16::MAX) {
            return Some(run);
        }
        while run.frames < SEGMENTS_MAX && first + run.frames < self.staging.len() {
            let Some(frame) = self.staging.frame(first + run.frames) else { break };
            let len = frame.len();
            let fits = frame.to == run.to && len <= frame_bytes && run.bytes + len <= DATAGRAM_BYTES_MAX;
            if !fits || len == 0 {
                break;
            }
            run.frames += 1;
            run.bytes += len;
            if len < frame_bytes {
                break;
            }
        }
        Some(run)
    }

    /// Sends the planned chain; returns how many of its runs the system took.
    fn send_chain(&mut self, way: Way) -> Result<usize, Errno> {
        let runs = self.scratch.runs.as_slice();
        let Some(first) = runs.first() else { return Ok(0) };
        let Some(peer) = self.peers.get(first.to) else { return Ok(0) };
        let socket = match (way, &peer.connected, &self.fragmenting) {
            (Way::Own, Some(connected), _) => &connected.socket,
            (Way::InFragments, _, Some(fragmenting)) => fragmenting,
            _ => &self.socket,
        };
        let own_socket = way == Way::Own;
        if let ([Run { frames: 1, .. }], Some(frame)) = (runs, self.staging.frame(first.first))
            && frame.payload.is_empty()
        {
            return send_single(socket, (!own_socket).then_some(&peer.name), frame.head).map(|()| 1);
        }
        let mut messages = [Message { to: None, segment_bytes: 0, parts: 0 }; BURST_FRAMES];
        for (run, message) in runs.iter().zip(&mut messages) {
            if !own_socket {
                message.to = self.peers.get(run.to).map(|peer| &peer.name);
            }
            if run.frames > 1 {
                message.segment_bytes = u16::try_from(run.frame_bytes).unwrap_or(u16::MAX);
            }
            message.parts = parts(&self.staging, run).count();
        }
        let gathered = runs.iter().flat_map(|run| parts(&self.staging, run));
        sys::send_messages(socket.as_fd(), &mut self.scratch.arrays, &messages[..runs.len()], gathered)
    }

    fn chain_sent(&mut self, runs: usize) {
        let sent = &self.scratch.runs[..runs];
        let frames: usize = sent.iter().map(|run| run.frames).sum();
        let bytes: usize = sent.iter().map(|run| run.bytes).sum();
        self.counters.send_calls += 1;
        self.counters.frames_sent += frames as u64;
        self.counters.bytes_sent += bytes as u64;
        self.staging.complete(frames);
    }

    /// The first run of the chain was not taken: decides whether it is lost, or is retried in another form.
    fn run_failed(&mut self, errno: Errno, way: Way) -> Result<Next, DriverError> {
        let Some(run) = self.scratch.runs.first().copied() else { return Ok(Next::Continue) };
        match errno.0 {
            libc::EINTR => return Ok(Next::Continue),
            libc::EAGAIN => {
                self.counters.blocked += 1;
                return Ok(Next::Blocked);
            }
            // The path's limit is now below the frame's length, so the next plan lets it be fragmented.
            libc::EMSGSIZE if way != Way::InFragments => {
                self.shrink_path(run.to, run.frame_bytes);
                return Ok(Next::Continue);
            }
            libc::EIO | libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP if run.frames > 1 => {
                return self.send_unmerged(run, way);
            }
            libc::EBADF | libc::ENOTSOCK if way == Way::Shared => {
                return Err(DriverError::RailDead { operation: Operation::Send, errno });
            }
            _ => {}
        }
        *self.counter_for(errno) += run.frames as u64;
        if way == Way::InFragments {
            // Another one next time, if this one was at fault.
            self.fragmenting = None;
        }
        let expected =
            matches!(errno.0, libc::ECONNREFUSED | libc::EPERM | libc::EACCES | libc::ENOBUFS | libc::ENOMEM);
        if way == Way::Own && !expected {
            self.peers.disconnect(run.to);
        }
        self.staging.complete(run.frames);
        Ok(Next::Continue)
    }

    /// A merged run was refused. If its first frame passes alone, merging was the reason, and is not tried again on this
    /// socket.
    fn send_unmerged(&mut self, run: Run, way: Way) -> Result<Next, DriverError> {
        let single = Run { frames: 1, bytes: run.frame_bytes, ..run };
        self.scratch.runs.clear();
        self.scratch.runs.push(single);
        match self.send_chain(way) {
            Ok(runs) => {
                self.chain_sent(runs);
                self.counters.offloads_lost += 1;
                if way == Way::Own {
                    self.peers.stop_segmenting(run.to);
                } else {
                    self.segment = false;
                }
                Ok(Next::Continue)
            }
            Err(errno) => self.run_failed(errno, way),
        }
    }

    fn counter_for(&mut self, errno: Errno) -> &mut u64 {
        match errno.0 {
            libc::ECONNREFUSED | libc::EPERM | libc::EACCES => &mut self.counters.lost_refused,
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::EADDRNOTAVAIL => &mut self.counters.lost_unreachable,
            libc::ENOBUFS | libc::ENOMEM => &mut self.counters.lost_no_memory,
            libc::EMSGSIZE => &mut self.counters.lost_too_long,
            _ => &mut self.counters.lost_other,
        }
    }
}

fn send_single(socket: &Socket, to: Option<&SockAddr>, frame: &[u8]) -> Result<(), Errno> {
    match to {
        Some(name) => socket.send_to(frame, name).map(|_| ()).map_err(|error| Errno::from(&error)),
        None => sys::send_plain(socket.as_fd(), frame),
    }
}

/// The pieces of memory that make up a run's frames, in order.
fn parts<'a>(staging: &'a crate::staging::Staging, run: &Run) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    (run.first..run.first + run.frames)
        .filter_map(|i| staging.frame(i))
        .flat_map(|frame| [frame.head, frame.payload])
        .filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;
    use crate::driver::{Driver, Notice};
    use crate::payload::Payload;
    use crate::udp::{UdpAddress, UdpConfig};

    fn open(connected_max: usize) -> UdpDriver {
        let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        UdpDriver::open(&UdpConfig { connected_max, ..UdpConfig::new(bind) }).expect("loopback")
    }

    fn stage(driver: &mut UdpDriver, to: AddressId, bytes: usize) {
        driver.lease().expect("a free buffer").fill(1);
        driver.commit(to, bytes, Payload::EMPTY);
    }

    fn received(driver: &mut UdpDriver) -> Vec<usize> {
        let mut sizes = Vec::new();
        while driver.receive(64, &mut |frame| sizes.push(frame.len())).expect("a live rail") > 0 {}
        sizes
    }

    /// A socket without checksums is refused segmentation with EINVAL, as is one on a NIC or kernel that lacks it with EIO.
    fn refuse_segmentation(socket: &Socket) {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("a socket option");
    }

    #[test]
    fn refused_merging_is_replaced_by_single_datagrams_and_not_tried_again() {
        for connected_max in [1, 0] {
            let (mut a, mut b) = (open(connected_max), open(1));
            let to = a.resolve(&b.local_address()).expect("loopback");
            let peer = a.peers.get(to).expect("resolved");
            refuse_segmentation(peer.connected.as_ref().map_or(&a.socket, |connected| &connected.socket));
            for round in 0..2 {
                (0..10).for_each(|_| stage(&mut a, to, 500));
                stage(&mut a, to, 300);
                assert_eq!(a.flush(), Ok(11));
                let mut sizes = received(&mut b);
                assert_eq!(sizes.pop(), Some(300));
                assert_eq!(sizes, [500; 10]);
                assert_eq!(a.counters.offloads_lost, 1, "round {round}");
            }
            assert_eq!(a.counters.lost_on_send(), 0);
        }
    }

    #[test]
    fn frames_to_many_addresses_leave_in_one_call() {
        let mut a = open(0);
        let mut others: Vec<UdpDriver> = (0..5).map(|_| open(0)).collect();
        let to: Vec<_> =
            others.iter().map(|other| a.resolve(&other.local_address()).expect("loopback")).collect();
        for round in 0..3 {
            to.iter().for_each(|to| stage(&mut a, *to, 100 + round));
        }
        assert_eq!(a.flush(), Ok(15));
        assert_eq!(a.counters.send_calls, 1);
        for other in &mut others {
            assert_eq!(received(other), [100, 101, 102]);
        }
    }

    #[test]
    fn a_busy_peer_takes_over_the_connected_socket_of_an_idle_one() {
        let (mut a, idle, mut busy) = (open(1), open(0), open(0));
        let to_idle = a.resolve(&idle.local_address()).expect("loopback");
        let to_busy = a.resolve(&busy.local_address()).expect("loopback");
        let connected = |a: &UdpDriver, id| a.peers.get(id).expect("resolved").connected.is_some();
        assert_eq!((connected(&a, to_idle), connected(&a, to_busy)), (true, false));
        for _ in 0..crate::limits::PROMOTE_SENDS {
            stage(&mut a, to_busy, 10);
            assert_eq!(a.flush(), Ok(1));
        }
        assert_eq!((connected(&a, to_idle), connected(&a, to_busy)), (false, true));
        stage(&mut a, to_busy, 11);
        assert_eq!(a.flush(), Ok(1));
        assert_eq!(received(&mut busy).len(), crate::limits::PROMOTE_SENDS as usize + 1);
    }

    #[test]
    fn a_receiver_that_comes_back_misses_nothing() {
        let (mut a, b) = (open(1), open(1));
        let at = b.own_address();
        let to = a.resolve(&b.local_address()).expect("loopback");
        drop(b);
        for _ in 0..5 {
            stage(&mut a, to, 10);
            a.flush().expect("a live rail");
        }
        // The refusal of the last frame is still pending on the socket; it must not cost the next one.
        let mut b = UdpDriver::open(&UdpConfig::new(at)).expect("the port is free again");
        stage(&mut a, to, 20);
        assert_eq!(a.flush(), Ok(1));
        assert_eq!(received(&mut b), [20]);
        assert_eq!(a.counters.lost_on_send(), 0, "a refusal after the fact is no loss that we see");
    }

    #[test]
    fn a_frame_that_the_path_refuses_shrinks_the_path() {
        // TEST-NET-3 (RFC 5737): routed by the default route, if there is one, but to no host.
        let far = SocketAddr::from((Ipv4Addr::new(203, 0, 113, 1), 9));
        let unbound = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let path = socket::open_connected(unbound, far).map(|socket| socket::path(&socket, far));
        let Some(path) = path.ok().filter(|path| path.frame_bytes_max < 20_000) else {
            let _ = writeln!(std::io::stderr(), "skipped: no route into a network with a small MTU");
            return;
        };
        for connected_max in [1, 0] {
            let advertise = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let config = UdpConfig { advertise, connected_max, ..UdpConfig::new(unbound) };
            let mut a = UdpDriver::open(&config).expect("a socket");
            let to = a.resolve(&UdpAddress(far).into()).expect("an IPv4 address");
            assert!(!a.path(to).expect("resolved").on_host);
            assert_eq!(a.path(to).expect("resolved").frame_bytes_max, path.frame_bytes_max);
            // As if the path had been wider when it was resolved.
            a.peers.set_frame_bytes_max(to, 40_000);
            (0..3).for_each(|_| stage(&mut a, to, path.frame_bytes_max + 1));
            assert_eq!(a.flush(), Ok(3), "they were cut before anybody knew, and cannot be cut again");
            assert_eq!((a.counters.sent_in_fragments, a.counters.lost_too_long), (3, 0));
            let frame_bytes_max = path.frame_bytes_max;
            assert_eq!(a.poll_notice(), Some(Notice::PathShrunk { to, frame_bytes_max }));
            assert_eq!(a.poll_notice(), None);
            assert_eq!(a.path(to).expect("resolved").frame_bytes_max, frame_bytes_max);
            assert_eq!(a.counters.offloads_lost, 0, "the size was refused, not the merging");
        }
    }

    #[test]
    fn frames_cut_for_a_longer_path_arrive_all_the_same() {
        for connected_max in [1, 0] {
            let (mut a, mut b) = (open(connected_max), open(1));
            let to = a.resolve(&b.local_address()).expect("loopback");
            a.peers.set_frame_bytes_max(to, 1000);
            for bytes in [900, 40_000, 1000, 1001] {
                stage(&mut a, to, bytes);
            }
            assert_eq!(a.flush(), Ok(4));
            let mut sizes = received(&mut b);
            sizes.sort_unstable();
            assert_eq!(sizes, [900, 1000, 1001, 40_000]);
            assert_eq!((a.counters.sent_in_fragments, a.counters.lost_on_send()), (2, 0));
            // Without a socket for it they are lost, and counted.
            let file = std::fs::File::open("/dev/null").expect("always there");
            a.fragmenting = Some(Socket::from(std::os::fd::OwnedFd::from(file)));
            stage(&mut a, to, 1001);
            assert_eq!(a.flush(), Ok(0));
            assert_eq!(a.counters.lost_other, 1);
            stage(&mut a, to, 1001);
            assert_eq!(a.flush(), Ok(1), "a new socket is opened");
        }
    }

    #[test]
    fn a_lost_socket_is_a_dead_rail() {
        let mut a = open(0);
        let to = a.resolve(&a.local_address()).expect("loopback");
        let file = std::fs::File::open("/dev/null").expect("always there");
        a.socket = Socket::from(std::os::fd::OwnedFd::from(file));
        stage(&mut a, to, 10);
        assert!(a.flush().is_err_and(|error| error.is_rail_dead()));
        assert!(a.receive(1, &mut |_| ()).is_err_and(|error| error.is_rail_dead()));
    }
}
