//! A libibverbs of our own, with one device in this process, that does what no device here can be made to do: take a part of a chain, fail, be slow to complete.
//! Frames go from queue pair to queue pair by their numbers and keys.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi;
use super::library::Library;

/// Status of a request that was not carried out (IBV_WC_WR_FLUSH_ERR).
const FLUSHED: c_uint = 5;

/// Faults of the device, and what it has seen.
#[derive(Default)]
pub(super) struct State {
    /// Requests of a chain that it takes before it says ENOMEM, once.
    pub(super) takes: Option<usize>,
    /// The next request for sending ends with this status, once.
    pub(super) fails_with: Option<c_uint>,
    /// Requests for sending complete only when this is over.
    pub(super) is_slow: bool,
    /// Registrations that it refuses.
    pub(super) refused: u32,
    /// Address handles that there are.
    pub(super) handles: usize,
    pub(super) resets: u32,
    pairs: BTreeMap<u32, Pair>,
    numbers: u32,
}

struct Pair {
    key: u32,
    /// A request has failed: so does every later one, until a reset.
    has_failed: bool,
    sent: usize,
    received: usize,
    posted: VecDeque<(u64, u64, u32)>,
    /// Requests that have not completed, each with whether it is to be told.
    sending: VecDeque<(u64, bool, c_uint)>,
}

/// A completion queue: the library's part, and ours.
#[repr(C)]
struct Completions {
    queue: abi::CompletionQueue,
    done: Mutex<VecDeque<abi::Completion>>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The device's state, as one test at a time has it.
pub(super) struct Fake(MutexGuard<'static, ()>);

impl Fake {
    pub(super) fn new() -> Fake {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(State::default());
        Fake(alone)
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let _alone = &self.0;
        state(f)
    }

    /// Requests that were slow complete now.
    pub(super) fn hurry(&self) {
        self.with(|state| {
            state.is_slow = false;
            let numbers: Vec<u32> = state.pairs.keys().copied().collect();
            numbers.into_iter().for_each(|number| state.complete(number));
        });
    }
}

fn state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(STATE.lock().unwrap_or_else(PoisonError::into_inner).as_mut().expect("a fake device"))
}

fn tell(queue: usize, done: abi::Completion) {
    let queue = queue as *const Completions;
    // SAFETY: queues outlive their pairs, which are what names them.
    let queue = unsafe { &*queue };
    queue.done.lock().unwrap_or_else(PoisonError::into_inner).push_back(done);
}

impl State {
    fn complete(&mut self, number: u32) {
        if self.is_slow {
            return;
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        while let Some((id, is_told, status)) = pair.sending.pop_front() {
            if is_told || status != abi::SUCCESS {
                tell(pair.sent, abi::Completion { id, status, ..Default::default() });
            }
        }
    }

    fn deliver(&mut self, to: u32, key: u32, bytes: &[u8]) {
        let Some(pair) = self.pairs.get_mut(&to).filter(|pair| pair.key == key) else { return };
        let Some((id, address, room)) = pair.posted.pop_front() else { return };
        let whole = abi::GRH_BYTES + bytes.len();
        assert!(whole <= room as usize, "a frame longer than its slot");
        // SAFETY: a slot that was posted with this room, and is the device's until the completion.
        unsafe {
            let at = (address as *mut u8).add(abi::GRH_BYTES);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        }
        let bytes = u32::try_from(whole).expect("short");
        tell(pair.received, abi::Completion { id, bytes, ..Default::default() });
    }
}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> abi::DeviceList {
    // SAFETY: the caller's integer.
    unsafe { *count = 1 };
    let list: Box<[*mut abi::Device; 2]> = Box::new([core::ptr::dangling_mut(), null_mut()]);
    Box::into_raw(list).cast()
}

unsafe extern "C" fn free_device_list(list: abi::DeviceList) {
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(list.cast::<[*mut abi::Device; 2]>()) });
}

unsafe extern "C" fn get_device_name(_: *mut abi::Device) -> *const c_char {
    c"fake0".as_ptr()
}

/// A descriptor on which nothing ever comes.
fn quiet_descriptor() -> c_int {
    // SAFETY: takes no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

fn close(fd: c_int) {
    // SAFETY: made above, and nobody else's.
    unsafe { libc::close(fd) };
}

unsafe extern "C" fn open_device(_: *mut abi::Device) -> *mut abi::Context {
    // SAFETY: pointers that may be null, and integers.
    let mut context: Box<abi::Context> = Box::new(unsafe { zeroed() });
    context.command_fd = quiet_descriptor();
    context.event_fd = quiet_descriptor();
    context.calls.poll_cq = Some(poll);
    context.calls.request_notify = Some(request_notify);
    context.calls.post_send = Some(post_send);
    context.calls.post_receive = Some(post_receive);
    Box::into_raw(context)
}

unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: made above.
    let context = unsafe { Box::from_raw(context) };
    close(context.command_fd);
    close(context.event_fd);
    0
}

unsafe extern "C" fn query_device(_: *mut abi::Context, known: *mut abi::DeviceAttributes) -> c_int {
    // SAFETY: the caller's struct, filled with zeros.
    let known = unsafe { &mut *known };
    (known.requests_max, known.completions_max, known.ports) = (4096, 4096, 1);
    0
}

unsafe extern "C" fn query_port(_: *mut abi::Context, _: u8, known: *mut abi::PortAttributes) -> c_int {
    // SAFETY: as above.
    let known = unsafe { &mut *known };
    (known.state, known.mtu, known.gids, known.link_layer) =
        (abi::PORT_ACTIVE, 5, 1, abi::LINK_LAYER_ETHERNET);
    0
}

unsafe extern "C" fn query_gid(_: *mut abi::Context, _: u8, _: c_int, gid: *mut abi::AlignedGid) -> c_int {
    assert!(gid.is_aligned());
    // SAFETY: the caller's.
    unsafe { *gid = abi::AlignedGid(std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets()) };
    0
}

unsafe extern "C" fn get_event(_: *mut abi::Context, _: *mut abi::Event) -> c_int {
    -1
}

unsafe extern "C" fn ack_event(_: *mut abi::Event) {}

unsafe extern "C" fn alloc_domain(_: *mut abi::Context) -> *mut abi::Domain {
    core::ptr::dangling_mut()
}

unsafe extern "C" fn free_domain(_: *mut abi::Domain) -> c_int {
    0
}

unsafe extern "C" fn register(
    _: *mut abi::Domain,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> *mut abi::MemoryRegion {
    let is_refused = state(|state| {
        let is_refused = state.refused > 0;
        state.refused = state.refused.saturating_sub(1);
        is_refused
    });
    if is_refused {
        nix::errno::Errno::EINVAL.set();
        return null_mut();
    }
    // SAFETY: pointers that may be null, and integers.
    Box::into_raw(Box::new(unsafe { zeroed() }))
}

unsafe extern "C" fn deregister(region: *mut abi::MemoryRegion) -> c_int {
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(region) });
    0
}

unsafe extern "C" fn create_channel(_: *mut abi::Context) -> *mut abi::CompletionChannel {
    // SAFETY: pointers that may be null, and integers.
    let mut channel: Box<abi::CompletionChannel> = Box::new(unsafe { zeroed() });
    channel.fd = quiet_descriptor();
    Box::into_raw(channel)
}

unsafe extern "C" fn destroy_channel(channel: *mut abi::CompletionChannel) -> c_int {
    // SAFETY: made above.
    close(unsafe { Box::from_raw(channel) }.fd);
    0
}

unsafe extern "C" fn create_queue(
    context: *mut abi::Context,
    _: c_int,
    _: *mut c_void,
    _: *mut abi::CompletionChannel,
    _: c_int,
) -> *mut abi::CompletionQueue {
    let queue = Completions { queue: abi::CompletionQueue { context }, done: Mutex::default() };
    Box::into_raw(Box::new(queue)).cast()
}

unsafe extern "C" fn destroy_queue(queue: *mut abi::CompletionQueue) -> c_int {
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(queue.cast::<Completions>()) });
    0
}

unsafe extern "C" fn get_wake(
    _: *mut abi::CompletionChannel,
    _: *mut *mut abi::CompletionQueue,
    _: *mut *mut c_void,
) -> c_int {
    -1
}

unsafe extern "C" fn ack_wakes(_: *mut abi::CompletionQueue, _: c_uint) {}

unsafe extern "C" fn create_pair(
    _: *mut abi::Domain,
    setup: *mut abi::QueuePairSetup,
) -> *mut abi::QueuePair {
    // SAFETY: pointers that may be null, and integers.
    let mut made: Box<abi::QueuePair> = Box::new(unsafe { zeroed() });
    // SAFETY: the caller's, filled.
    let setup = unsafe { &*setup };
    made.number = state(|state| {
        state.numbers += 1;
        let pair = Pair {
            key: 0,
            has_failed: false,
            sent: setup.send_queue as usize,
            received: setup.receive_queue as usize,
            posted: VecDeque::new(),
            sending: VecDeque::new(),
        };
        state.pairs.insert(state.numbers, pair);
        state.numbers
    });
    Box::into_raw(made)
}

unsafe extern "C" fn modify_pair(
    pair: *mut abi::QueuePair,
    to: *mut abi::QueuePairAttributes,
    what: c_int,
) -> c_int {
    // SAFETY: made above, and the caller's.
    let (number, to) = unsafe { ((*pair).number, &*to) };
    state(|state| {
        let pair = state.pairs.get_mut(&number).expect("made above");
        if what & abi::HAS_KEY != 0 {
            pair.key = to.key;
        }
        if to.state == abi::RESET {
            pair.posted.clear();
            pair.sending.clear();
            pair.has_failed = false;
            state.resets += 1;
        }
    });
    0
}

unsafe extern "C" fn destroy_pair(pair: *mut abi::QueuePair) -> c_int {
    // SAFETY: made above.
    let pair = unsafe { Box::from_raw(pair) };
    state(|state| state.pairs.remove(&pair.number));
    0
}

unsafe extern "C" fn create_handle(
    _: *mut abi::Domain,
    to: *mut abi::HandleAttributes,
) -> *mut abi::AddressHandle {
    assert!(to.is_aligned());
    state(|state| state.handles += 1);
    core::ptr::dangling_mut()
}

unsafe extern "C" fn destroy_handle(_: *mut abi::AddressHandle) -> c_int {
    state(|state| state.handles -= 1);
    0
}

unsafe extern "C" fn poll(
    queue: *mut abi::CompletionQueue,
    most: c_int,
    found: *mut abi::Completion,
) -> c_int {
    // SAFETY: made above.
    let queue = unsafe { &*queue.cast::<Completions>() };
    let mut done = queue.done.lock().unwrap_or_else(PoisonError::into_inner);
    let mut count = 0;
    while count < most {
        let Some(one) = done.pop_front() else { break };
        // SAFETY: the caller's room for `most`.
        unsafe { *found.add(usize::try_from(count).expect("positive")) = one };
        count += 1;
    }
    count
}

unsafe extern "C" fn request_notify(_: *mut abi::CompletionQueue, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn post_send(
    pair: *mut abi::QueuePair,
    mut next: *mut abi::SendRequest,
    refused: *mut *mut abi::SendRequest,
) -> c_int {
    // SAFETY: made above.
    let number = unsafe { (*pair).number };
    state(|state| {
        let mut most = state.takes.take().unwrap_or(usize::MAX);
        while !next.is_null() {
            // SAFETY: the caller's chain, each with a piece.
            let (request, piece) = unsafe { (&*next, &*(*next).pieces) };
            if most == 0 {
                // SAFETY: the caller's.
                unsafe { *refused = next };
                return libc::ENOMEM;
            }
            most -= 1;
            let failed = state.fails_with.take();
            let pair = state.pairs.get_mut(&number).expect("made above");
            let status = failed.unwrap_or(if pair.has_failed { FLUSHED } else { abi::SUCCESS });
            pair.has_failed |= failed.is_some();
            let is_told = request.flags & abi::SIGNALLED != 0;
            pair.sending.push_back((request.id, is_told, status));
            if status == abi::SUCCESS {
                // SAFETY: the caller's bytes, which stay until the completion.
                let bytes =
                    unsafe { core::slice::from_raw_parts(piece.address as *const u8, piece.bytes as usize) };
                state.deliver(request.to_queue, request.to_key, bytes);
            }
            next = request.next;
        }
        state.complete(number);
        0
    })
}

unsafe extern "C" fn post_receive(
    pair: *mut abi::QueuePair,
    mut next: *mut abi::ReceiveRequest,
    _: *mut *mut abi::ReceiveRequest,
) -> c_int {
    // SAFETY: made above.
    let number = unsafe { (*pair).number };
    state(|state| {
        let posted = &mut state.pairs.get_mut(&number).expect("made above").posted;
        while !next.is_null() {
            // SAFETY: the caller's chain, each with a piece.
            let (request, piece) = unsafe { (&*next, &*(*next).pieces) };
            posted.push_back((request.id, piece.address, piece.bytes));
            next = request.next;
        }
    });
    0
}

pub(super) static LIBRARY: Library = Library {
    fork_init,
    get_device_list,
    free_device_list,
    get_device_name,
    open_device,
    close_device,
    query_device,
    query_port,
    query_gid,
    get_event,
    ack_event,
    alloc_domain,
    free_domain,
    register,
    deregister,
    create_channel,
    destroy_channel,
    create_queue,
    destroy_queue,
    get_wake,
    ack_wakes,
    create_pair,
    modify_pair,
    destroy_pair,
    create_handle,
    destroy_handle,
};
