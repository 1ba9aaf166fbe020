//! Closing connections of others without waiting.
//!
//! A message that was sent and not received may have descriptors beside it, and the last one of a file closes it: a connected
//! socket with SO_LINGER then waits for its peer, and a file system may wait for its server. The kernel refuses such messages
//! to a socket that asks for that (SO_PASSRIGHTS, Linux 6.16). Before that, connections are closed by threads that may hang.

use core::ffi::c_int;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::limits::{XDP_HELPER_CLOSERS_MAX, XDP_HELPER_PARKED_MAX, XDP_HELPER_USER_CLOSERS_MAX};

/// Bytes of the stack of a thread that only closes.
const STACK_BYTES: usize = 64 << 10;

/// Has the kernel refuse descriptors that others send to this socket, and to those that are accepted from it. False: it cannot.
pub(super) fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    const SO_PASSRIGHTS: c_int = 83;
    let no: c_int = 0;
    let bytes = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    // SAFETY: the value is readable for its size during the call.
    let rc = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), bytes)
    };
    rc == 0
}

/// Threads that close now, by user.
type Closers = Arc<Mutex<BTreeMap<u32, usize>>>;

/// Closes connections.
pub(super) struct Discarder {
    /// Nothing that waits on a connection has descriptors.
    at_once: bool,
    closers: Closers,
    /// Connections for which there is no thread yet.
    parked: VecDeque<(u32, OwnedFd)>,
}

impl Discarder {
    pub(super) fn new(at_once: bool) -> Discarder {
        Discarder { at_once, closers: Closers::default(), parked: VecDeque::new() }
    }

    /// Closes a connection of this user.
    pub(super) fn close(&mut self, uid: u32, connection: OwnedFd) {
        if !self.at_once {
            self.parked.push_back((uid, connection));
            self.resume();
        }
    }

    /// Has threads close connections that wait for one. Beyond the bound the oldest is closed here, whatever that takes: a user at its bound, with files that hang,
    /// has sent as many of them as it could have open.
    pub(super) fn resume(&mut self) {
        for _ in 0..self.parked.len() {
            let Some((uid, connection)) = self.parked.pop_front() else { return };
            if let Err(connection) = self.start(uid, connection) {
                self.parked.push_back((uid, connection));
            }
        }
        while self.parked.len() > XDP_HELPER_PARKED_MAX {
            self.parked.pop_front();
        }
    }

    /// Whether connections wait for a thread.
    pub(super) fn is_waiting(&self) -> bool {
        !self.parked.is_empty()
    }

    fn start(&self, uid: u32, connection: OwnedFd) -> Result<(), OwnedFd> {
        {
            let mut closers = self.closers.lock().unwrap_or_else(PoisonError::into_inner);
            let all: usize = closers.values().sum();
            let of_user = closers.entry(uid).or_default();
            if *of_user >= XDP_HELPER_USER_CLOSERS_MAX || all >= XDP_HELPER_CLOSERS_MAX {
                return Err(connection);
            }
            *of_user += 1;
        }
        let closers = Arc::clone(&self.closers);
        let close = move || {
            drop(connection);
            leave(&closers, uid);
        };
        // Where no thread can be started, the connection is closed here.
        if thread::Builder::new().name("discard".to_owned()).stack_size(STACK_BYTES).spawn(close).is_err() {
            leave(&self.closers, uid);
        }
        Ok(())
    }

    #[cfg(test)]
    fn waiting(&self) -> (usize, usize) {
        (self.closers.lock().unwrap_or_else(PoisonError::into_inner).values().sum(), self.parked.len())
    }
}

fn leave(closers: &Closers, uid: u32) {
    let mut closers = closers.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(of_user) = closers.get_mut(&uid) {
        *of_user -= 1;
        if *of_user == 0 {
            closers.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use nix::sys::socket::MsgFlags;

    use super::*;
    use crate::xdp::helper::messages;

    /// A connection on which a descriptor waits whose last closing takes a minute: of a connected socket that lingers, and whose peer does not read.
    fn that_hangs(peers: &mut Vec<TcpStream>) -> OwnedFd {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut file = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        peers.push(listener.accept().expect("it connects").0);
        file.set_nonblocking(true).expect("a socket");
        while file.write(&[0; 1 << 16]).is_ok() {}
        let lingering = socket2::SockRef::from(&file);
        lingering.set_linger(Some(Duration::from_secs(60))).expect("an option");
        file.set_nonblocking(false).expect("a socket");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        messages::send(theirs.as_fd(), &[1], &[file.as_fd()], MsgFlags::empty()).expect("room");
        ours.into()
    }

    #[test]
    fn a_file_that_hangs_holds_up_nobody() {
        let mut peers = Vec::new();
        let mut discarder = Discarder::new(false);
        let begun = Instant::now();
        let hanging = XDP_HELPER_USER_CLOSERS_MAX + 2;
        for _ in 0..hanging {
            let connection = that_hangs(&mut peers);
            discarder.close(1000, connection);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "closing took {:?}", begun.elapsed());
        assert_eq!(discarder.waiting(), (XDP_HELPER_USER_CLOSERS_MAX, 2));
        // Another user's are closed meanwhile.
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        theirs.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        discarder.close(1001, ours.into());
        assert_eq!(std::io::Read::read(&mut &theirs, &mut [0]).expect("closed in time"), 0);
        // With their peers gone they end, and those that waited get their turn.
        drop(peers);
        let begun = Instant::now();
        while discarder.waiting() != (0, 0) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?} are left", discarder.waiting());
            thread::sleep(Duration::from_millis(5));
            discarder.resume();
        }
    }
}
