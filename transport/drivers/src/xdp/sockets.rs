//! Sockets before they are used: opened over the memory of their frames, and bound to queues.

use core::ffi::c_int;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

use nix::net::if_::if_nametoindex;

use super::memory::Mapping;
use crate::error::{Errno, Operation};
use crate::limits::XDP_RECEIVE_CHUNKS_MAX;

/// Entries of a ring.
pub(super) const RING_ENTRIES: u32 = 1024;
/// Those of the ring that takes chunks for frames to come. The kernel shows a frame before it shows that the entry of its chunk is free again (net/xdp/xsk.c,
/// `xsk_flush`), so chunks that come back at once meet a ring in which all of them still seem to be: there is room for each twice.
pub(super) const FILL_ENTRIES: u32 = 2 * RING_ENTRIES;
const _: () = assert!(FILL_ENTRIES as usize >= 2 * XDP_RECEIVE_CHUNKS_MAX);

/// A step of opening that failed.
pub(super) type Failure = (Operation, Errno);

/// Sockets with rings, one for each of `queues` queues, all of which have their frames in `memory`; bound to nothing yet. The first of them has registered it.
pub(super) fn open(memory: &Mapping, chunk_bytes: usize, queues: usize) -> Result<Vec<OwnedFd>, Failure> {
    let mut sockets = Vec::new();
    for queue in 0..queues {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err((Operation::OpenSocket, Errno::last()));
        }
        // SAFETY: just made, and no other code knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if queue == 0 {
            register(fd.as_fd(), memory, chunk_bytes).map_err(|errno| (Operation::RegisterFrames, errno))?;
        }
        for (ring, entries) in [
            (libc::XDP_UMEM_FILL_RING, FILL_ENTRIES),
            (libc::XDP_UMEM_COMPLETION_RING, RING_ENTRIES),
            (libc::XDP_RX_RING, RING_ENTRIES),
            (libc::XDP_TX_RING, RING_ENTRIES),
        ] {
            set(fd.as_fd(), ring, &entries).map_err(|errno| (Operation::MapRings, errno))?;
        }
        sockets.push(fd);
    }
    Ok(sockets)
}

/// The kernel pins the pages: late accesses, after the mapping is gone, hit no other memory.
fn register(socket: BorrowedFd<'_>, memory: &Mapping, chunk_bytes: usize) -> Result<(), Errno> {
    // SAFETY: all-zero bytes are a valid `xdp_umem_reg`.
    let mut registered: libc::xdp_umem_reg = unsafe { core::mem::zeroed() };
    registered.addr = memory.range().start as u64;
    registered.len = memory.bytes as u64;
    registered.chunk_size = u32::try_from(chunk_bytes).unwrap_or(u32::MAX);
    set(socket, libc::XDP_UMEM_REG, &registered)
}

/// Binds the socket at `place` of those that were opened together to a queue, the first before all others; without copies where the device can.
/// With `in_parts` a frame may lie in several chunks (Linux 6.6).
pub(super) fn bind(
    sockets: &[BorrowedFd<'_>],
    place: usize,
    interface: u32,
    queue: u32,
    in_parts: bool,
) -> Result<(), Errno> {
    const XDP_USE_SG: u16 = 1 << 4;
    let number = |socket: BorrowedFd<'_>| u32::try_from(socket.as_raw_fd()).unwrap_or(u32::MAX);
    // The others work as the first does.
    let (flags, of) = match place {
        0 => (libc::XDP_USE_NEED_WAKEUP | if in_parts { XDP_USE_SG } else { 0 }, 0),
        _ => (libc::XDP_SHARED_UMEM, number(sockets[0])),
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(0),
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: of,
    };
    let bytes = libc::socklen_t::try_from(size_of::<libc::sockaddr_xdp>()).unwrap_or(0);
    // SAFETY: `address` is readable for its size during the call.
    let rc = unsafe { libc::bind(sockets[place].as_raw_fd(), (&raw const address).cast(), bytes) };
    if rc == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// A socket that serves a rail of this process.
struct Held {
    interface: u32,
    number: RawFd,
    cookie: u64,
}

impl Held {
    /// A process that is restored remembers sockets that it has not. A kernel gives each cookie once, another kernel may give it again: so it has to be one of
    /// AF_XDP as well, which a process that was just restored has none of.
    fn is_open(&self) -> bool {
        // SAFETY: borrowed for the one question. If another thread closes it meanwhile, or opens another file in its place, the answer is of that, or an error.
        let fd = unsafe { BorrowedFd::borrow_raw(self.number) };
        option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_XDP) && cookie(fd) == Ok(self.cookie)
    }
}

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// The cached data, if no other thread holds it for long. Never waits without end: a process may be saved, and
/// restored, while one of its threads has it, and that thread runs again only after rails have been opened.
fn held() -> Option<MutexGuard<'static, Vec<Held>>> {
    const TRIES: usize = 1000;
    (0..TRIES).find_map(|_| {
        let held = HELD.try_lock().ok();
        if held.is_none() {
            std::thread::yield_now();
        }
        held
    })
}

/// Remembers that a socket serves a rail on this interface.
pub(super) fn hold(interface: u32, socket: BorrowedFd<'_>) {
    if let (Some(mut held), Ok(cookie)) = (held(), cookie(socket)) {
        held.retain(Held::is_open);
        held.push(Held { interface, number: socket.as_raw_fd(), cookie });
    }
}

/// Whether a rail of this process is on this interface.
pub(crate) fn holds_a_rail(interface: &str) -> bool {
    let Ok(interface) = if_nametoindex(interface) else { return false };
    held().is_some_and(|held| held.iter().any(|one| one.interface == interface && one.is_open()))
}

/// The kernel's id of a socket, which no other socket gets until the kernel is started again.
fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    option(socket, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Whether the device reads and writes the chunks of a bound socket itself.
pub(super) fn is_zero_copy(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let options: u32 = get(socket, libc::XDP_OPTIONS)?;
    Ok(options & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

fn set<T>(fd: BorrowedFd<'_>, name: c_int, value: &T) -> Result<(), Errno> {
    let bytes = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let value = core::ptr::from_ref(value).cast();
    // SAFETY: `value` is readable for `bytes` bytes during the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value, bytes) };
    if rc == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// The kernel's id of the network namespace of any socket (Linux 5.14).
pub(super) fn namespace(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: c_int = 71;
    option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// Reads an option of an AF_XDP socket.
pub(super) fn get<T>(fd: BorrowedFd<'_>, name: c_int) -> Result<T, Errno> {
    option(fd, libc::SOL_XDP, name)
}

/// Reads an option made of integers.
fn option<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<T, Errno> {
    // SAFETY: used with structs of integers only, for which all-zero bytes are a value.
    let mut value: T = unsafe { core::mem::zeroed() };
    let mut bytes = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let to = core::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` is writable for `bytes` bytes during the call.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, to, &raw mut bytes) };
    if rc == 0 { Ok(value) } else { Err(Errno::last()) }
}
