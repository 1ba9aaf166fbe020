//! A libibverbs of our own, with one device in this process, that can be made to fail as no real device can: take a
//! part of a chain, fail, be slow to complete. Frames go from queue pair to queue pair by their numbers and keys.

mod port;

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi;
use super::library::Library;
pub(super) use port::{PORT_DOWN, Port};

/// Status of a request that was not carried out (IBV_WC_WR_FLUSH_ERR).
const FLUSHED: c_uint = 5;

/// The number among a completion's `rest` where its flags are, and the flag of a route's header in front of
/// the frame (IBV_WC_GRH).
const FLAGS_AT: usize = 3;
const HAS_ROUTE_HEADER: u32 = 1;

/// The byte that the device leaves in the place of a missing route's header.
const NO_HEADER: u8 = 0xee;

/// The attributes of an address handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) lid: u16,
    pub(super) has_route: u8,
    pub(super) gid: abi::Gid,
    pub(super) own_gid_index: u8,
    pub(super) port: u8,
}

/// The function of that field of [`Library`] fails with this error number, so many times after the first calls that pass.
pub(super) struct Refusal {
    pub(super) call: &'static str,
    pub(super) passes: usize,
    pub(super) times: usize,
    pub(super) errno: c_int,
}

/// Faults of the device, and its observations.
#[derive(Default)]
pub(super) struct State {
    pub(super) port: Port,
    /// Ports before it, all of which are down.
    pub(super) ports_down: u8,
    /// Most that queues of requests and of completions hold, where that is little.
    pub(super) queues_hold: Option<(c_int, c_int)>,
    pub(super) refusal: Option<Refusal>,
    /// Most that one request may carry in itself: a pair that asks for more is refused.
    pub(super) inline_bytes_max: Option<u32>,
    /// The inline bytes that it reports for pairs, where this is less than they ask for.
    pub(super) inline_bytes_granted: Option<u32>,
    /// The next frame that comes ends with this status, once.
    pub(super) receives_with: Option<c_uint>,
    /// Objects that were made and not yet destroyed.
    pub(super) living: usize,
    /// Events that were taken and not acknowledged.
    pub(super) unacknowledged: usize,
    /// By their descriptor, the events of each opened device.
    events: BTreeMap<c_int, VecDeque<c_uint>>,
    /// Requests of a chain that it takes before it answers ENOMEM, once.
    pub(super) takes: Option<usize>,
    /// The next request for sending ends with this status, once.
    pub(super) fails_with: Option<c_uint>,
    /// Requests for sending complete only when this is over.
    pub(super) is_slow: bool,
    /// Registrations that it refuses.
    pub(super) refused: u32,
    /// Address handles that there are.
    pub(super) handles: BTreeMap<usize, Target>,
    handles_made: usize,
    pub(super) resets: u32,
    pairs: BTreeMap<u32, Pair>,
    numbers: u32,
}

struct Pair {
    port: Port,
    key: u32,
    /// A request has failed: so does every later one, until a reset.
    has_failed: bool,
    sent: usize,
    received: usize,
    receives_max: usize,
    posted: VecDeque<(u64, u64, u32)>,
    /// Requests that have not completed, each with whether its completion is to be reported.
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

    /// The device reports an event to all processes that have opened it.
    pub(super) fn report(&self, kind: c_uint) {
        self.with(|state| {
            for (fd, events) in &mut state.events {
                events.push_back(kind);
                // SAFETY: a descriptor of ours, and the bytes of a number.
                assert_eq!(unsafe { libc::write(*fd, (&raw const ONE).cast(), size_of::<u64>()) }, 8);
            }
        });
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

/// The value that a write adds to a descriptor that counts.
static ONE: u64 = 1;

fn state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(STATE.lock().unwrap_or_else(PoisonError::into_inner).as_mut().expect("a fake device"))
}

fn report(queue: usize, done: abi::Completion) {
    let queue = queue as *const Completions;
    // SAFETY: queues outlive the pairs that name them.
    let queue = unsafe { &*queue };
    queue.done.lock().unwrap_or_else(PoisonError::into_inner).push_back(done);
}

impl State {
    fn complete(&mut self, number: u32) {
        if self.is_slow {
            return;
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        while let Some((id, is_signalled, status)) = pair.sending.pop_front() {
            if is_signalled || status != abi::SUCCESS {
                report(pair.sent, abi::Completion { id, status, ..Default::default() });
            }
        }
    }

    pub(super) fn refuse(&mut self, call: &'static str, passes: usize, errno: c_int) {
        self.refusal = Some(Refusal { call, passes, times: usize::MAX, errno });
    }

    pub(super) fn refuse_once(&mut self, call: &'static str, passes: usize, errno: c_int) {
        self.refusal = Some(Refusal { call, passes, times: 1, errno });
    }

    /// Whether this call of that function is to fail: its error number.
    fn refuses(&mut self, call: &str) -> Option<c_int> {
        let refusal = self.refusal.as_mut().filter(|refusal| refusal.call == call)?;
        if refusal.passes > 0 {
            refusal.passes -= 1;
            return None;
        }
        refusal.times = refusal.times.checked_sub(1)?;
        Some(refusal.errno)
    }

    fn deliver(&mut self, from: u32, request: &abi::SendRequest, bytes: &[u8]) {
        let target = self.handles[&request.to.addr()];
        let link_layer = self.pairs[&from].port.link_layer;
        let has_failed = self.receives_with;
        let Some(pair) = self.pairs.get_mut(&request.to_queue) else { return };
        let has_route = target.has_route != 0;
        // Over InfiniBand the LID leads to the port, and a route's header has to name it, too.
        let is_reached = pair.port.link_layer == link_layer
            && pair.port.lid == target.lid
            && (!has_route || pair.port.gids.contains(&target.gid));
        if !is_reached || pair.key != request.to_key {
            return;
        }
        let Some((id, address, room)) = pair.posted.pop_front() else { return };
        // The filler in the place of a missing header counts among the bytes, too.
        let whole = abi::GRH_BYTES + bytes.len();
        assert!(whole <= room as usize, "a frame longer than its slot");
        let header = if has_route { 0x60 } else { NO_HEADER };
        // SAFETY: a slot that was posted with this room, and is the device's until the completion.
        unsafe {
            let at = address as *mut u8;
            at.write_bytes(header, abi::GRH_BYTES);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(abi::GRH_BYTES), bytes.len());
        }
        let bytes = u32::try_from(whole).expect("short");
        let mut done = abi::Completion { id, bytes, ..Default::default() };
        done.status = has_failed.unwrap_or(abi::SUCCESS);
        done.rest[FLAGS_AT] = if has_route { HAS_ROUTE_HEADER } else { 0 };
        self.receives_with = None;
        report(pair.received, done);
    }
}

/// `errno` and true, if this call of that function is to fail.
fn is_refused(call: &str) -> bool {
    let refused = state(|state| state.refuses(call));
    refused.inspect(|errno| nix::errno::Errno::from_raw(*errno).set()).is_some()
}

/// The error number if this call of that function is to fail, else 0.
fn outcome(call: &str) -> c_int {
    state(|state| state.refuses(call)).unwrap_or(0)
}

/// The pointer that the library returns for an object that it made.
fn made<T>(object: T) -> *mut T {
    state(|state| state.living += 1);
    Box::into_raw(Box::new(object))
}

/// # Safety
/// Takes back a result of `made` that is not used any more.
unsafe fn ended<T>(object: *mut T) -> T {
    state(|state| state.living -= 1);
    // SAFETY: the caller's promise.
    *unsafe { Box::from_raw(object) }
}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> abi::DeviceList {
    if is_refused("get_device_list") {
        return null_mut();
    }
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

/// A descriptor that is readable while something was written to it that was not read: for each read, once.
fn descriptor() -> c_int {
    // SAFETY: takes no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE) }
}

fn close(fd: c_int) {
    // SAFETY: made above, without another owner.
    unsafe { libc::close(fd) };
}

unsafe extern "C" fn open_device(_: *mut abi::Device) -> *mut abi::Context {
    if is_refused("open_device") {
        return null_mut();
    }
    // SAFETY: pointers that may be null, and integers.
    let mut context: abi::Context = unsafe { zeroed() };
    context.command_fd = descriptor();
    context.event_fd = descriptor();
    state(|state| state.events.insert(context.event_fd, VecDeque::new()));
    context.calls.poll_cq = Some(poll);
    context.calls.request_notify = Some(request_notify);
    context.calls.post_send = if is_refused("calls") { None } else { Some(post_send) };
    context.calls.post_receive = Some(post_receive);
    made(context)
}

unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: made above.
    let context = unsafe { ended(context) };
    state(|state| state.events.remove(&context.event_fd));
    close(context.command_fd);
    close(context.event_fd);
    0
}

unsafe extern "C" fn query_device(_: *mut abi::Context, known: *mut abi::DeviceAttributes) -> c_int {
    // SAFETY: the caller's struct, filled with zeros.
    let known = unsafe { &mut *known };
    let (hold, ports_down) = state(|state| (state.queues_hold, state.ports_down));
    (known.requests_max, known.completions_max) = hold.unwrap_or((4096, 4096));
    known.ports = ports_down + 1;
    outcome("query_device")
}

unsafe extern "C" fn query_port(_: *mut abi::Context, port: u8, known: *mut abi::PortAttributes) -> c_int {
    let ports_down = state(|state| state.ports_down);
    if !(1..=ports_down + 1).contains(&port) {
        return libc::EINVAL;
    }
    // SAFETY: as above.
    let known = unsafe { &mut *known };
    if port <= ports_down {
        known.state = PORT_DOWN;
        return 0;
    }
    let Port { state, link_layer, flags, lid, mtu, gids } = self::state(|state| state.port.clone());
    known.gids = c_int::try_from(gids.len()).expect("few");
    (known.state, known.mtu, known.lid, known.link_layer, known.flags) = (state, mtu, lid, link_layer, flags);
    outcome("query_port")
}

unsafe extern "C" fn query_gid(
    _: *mut abi::Context,
    _: u8,
    index: c_int,
    gid: *mut abi::AlignedGid,
) -> c_int {
    assert!(gid.is_aligned());
    let index = usize::try_from(index).expect("positive");
    let Some(found) = state(|state| state.port.gids.get(index).copied()) else { return -1 };
    // SAFETY: the caller's.
    unsafe { *gid = abi::AlignedGid(found) };
    0
}

unsafe extern "C" fn get_event(context: *mut abi::Context, event: *mut abi::Event) -> c_int {
    // SAFETY: made above.
    let fd = unsafe { (*context).event_fd };
    let taken = state(|state| {
        let kind = state.events.get_mut(&fd).expect("made above").pop_front()?;
        state.unacknowledged += 1;
        Some(kind)
    });
    let Some(kind) = taken else { return -1 };
    let mut count = 0u64;
    // SAFETY: a descriptor of ours, room for a number, and the caller's struct.
    unsafe {
        assert_eq!(libc::read(fd, (&raw mut count).cast(), size_of::<u64>()), 8);
        (*event).kind = kind;
    }
    0
}

unsafe extern "C" fn ack_event(_: *mut abi::Event) {
    state(|state| state.unacknowledged -= 1);
}

unsafe extern "C" fn alloc_domain(_: *mut abi::Context) -> *mut abi::Domain {
    if is_refused("alloc_domain") { null_mut() } else { made(state(|state| state.port.clone())).cast() }
}

unsafe extern "C" fn free_domain(domain: *mut abi::Domain) -> c_int {
    // SAFETY: made above.
    unsafe { ended(domain.cast::<Port>()) };
    0
}

unsafe extern "C" fn register(
    _: *mut abi::Domain,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> *mut abi::MemoryRegion {
    let is_first = state(|state| {
        let is_first = state.refused > 0;
        state.refused = state.refused.saturating_sub(1);
        is_first
    });
    if is_first {
        nix::errno::Errno::EINVAL.set();
        return null_mut();
    }
    if is_refused("register") {
        return null_mut();
    }
    // SAFETY: pointers that may be null, and integers.
    made(unsafe { zeroed() })
}

unsafe extern "C" fn deregister(region: *mut abi::MemoryRegion) -> c_int {
    // SAFETY: made above.
    unsafe { ended(region) };
    0
}

unsafe extern "C" fn create_channel(_: *mut abi::Context) -> *mut abi::CompletionChannel {
    if is_refused("create_channel") {
        return null_mut();
    }
    // SAFETY: pointers that may be null, and integers.
    let mut channel: abi::CompletionChannel = unsafe { zeroed() };
    channel.fd = descriptor();
    made(channel)
}

unsafe extern "C" fn destroy_channel(channel: *mut abi::CompletionChannel) -> c_int {
    // SAFETY: made above.
    close(unsafe { ended(channel) }.fd);
    0
}

unsafe extern "C" fn create_queue(
    context: *mut abi::Context,
    _: c_int,
    _: *mut c_void,
    _: *mut abi::CompletionChannel,
    _: c_int,
) -> *mut abi::CompletionQueue {
    if is_refused("create_queue") {
        return null_mut();
    }
    made(Completions { queue: abi::CompletionQueue { context }, done: Mutex::default() }).cast()
}

unsafe extern "C" fn destroy_queue(queue: *mut abi::CompletionQueue) -> c_int {
    // SAFETY: made above.
    unsafe { ended(queue.cast::<Completions>()) };
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
    let mut pair: abi::QueuePair = unsafe { zeroed() };
    // SAFETY: the caller's, filled.
    let setup = unsafe { &mut *setup };
    let inline_bytes = &mut setup.limits.inline_bytes;
    if state(|state| state.inline_bytes_max).is_some_and(|most| *inline_bytes > most) {
        nix::errno::Errno::EINVAL.set();
        return null_mut();
    }
    if is_refused("create_pair") {
        return null_mut();
    }
    let granted = state(|state| state.inline_bytes_granted).unwrap_or(u32::MAX);
    *inline_bytes = granted.min(*inline_bytes);
    pair.number = state(|state| {
        state.numbers += 1;
        let pair = Pair {
            port: state.port.clone(),
            key: 0,
            has_failed: false,
            sent: setup.send_queue as usize,
            received: setup.receive_queue as usize,
            receives_max: setup.limits.receives as usize,
            posted: VecDeque::new(),
            sending: VecDeque::new(),
        };
        state.pairs.insert(state.numbers, pair);
        state.numbers
    });
    made(pair)
}

unsafe extern "C" fn modify_pair(
    pair: *mut abi::QueuePair,
    to: *mut abi::QueuePairAttributes,
    what: c_int,
) -> c_int {
    // SAFETY: made above, and the caller's.
    let (number, to) = unsafe { ((*pair).number, &*to) };
    state(|state| {
        if let Some(errno) = state.refuses("modify_pair") {
            return errno;
        }
        let pair = state.pairs.get_mut(&number).expect("made above");
        if what & abi::HAS_PORT != 0 && to.port != state.ports_down + 1 {
            return libc::EINVAL;
        }
        if what & abi::HAS_KEY != 0 {
            pair.key = to.key;
        }
        if to.state == abi::RESET {
            pair.posted.clear();
            pair.sending.clear();
            pair.has_failed = false;
            state.resets += 1;
        }
        0
    })
}

unsafe extern "C" fn destroy_pair(pair: *mut abi::QueuePair) -> c_int {
    // SAFETY: made above.
    let pair = unsafe { ended(pair) };
    state(|state| state.pairs.remove(&pair.number));
    0
}

unsafe extern "C" fn create_handle(
    domain: *mut abi::Domain,
    to: *mut abi::HandleAttributes,
) -> *mut abi::AddressHandle {
    assert!(to.is_aligned());
    // SAFETY: made above, and the caller's, filled.
    let (port, to) = unsafe { (&*domain.cast::<Port>(), &*to) };
    let target = Target {
        lid: to.to_lid,
        has_route: to.has_route,
        gid: to.route.to.0,
        own_gid_index: to.route.own_gid_index,
        port: to.port,
    };
    // As the kernel does: a port may insist on a route, and a route has to begin at a GID that the port has.
    let is_taken = match target.has_route {
        0 => port.link_layer != abi::LINK_LAYER_ETHERNET && port.flags & abi::ROUTE_REQUIRED == 0,
        _ => port.gid(usize::from(target.own_gid_index)).is_some(),
    };
    if !is_taken {
        nix::errno::Errno::EINVAL.set();
        return null_mut();
    }
    if is_refused("create_handle") {
        return null_mut();
    }
    state(|state| {
        state.handles_made += 1;
        state.handles.insert(state.handles_made, target);
        core::ptr::without_provenance_mut(state.handles_made)
    })
}

unsafe extern "C" fn destroy_handle(handle: *mut abi::AddressHandle) -> c_int {
    let ended = state(|state| state.handles.remove(&handle.addr()));
    assert!(ended.is_some(), "a handle is ended twice");
    0
}

unsafe extern "C" fn poll(
    queue: *mut abi::CompletionQueue,
    most: c_int,
    found: *mut abi::Completion,
) -> c_int {
    if outcome("poll") != 0 {
        return -1;
    }
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
    outcome("request_notify")
}

unsafe extern "C" fn post_send(
    pair: *mut abi::QueuePair,
    mut next: *mut abi::SendRequest,
    refused: *mut *mut abi::SendRequest,
) -> c_int {
    // SAFETY: made above.
    let number = unsafe { (*pair).number };
    state(|state| {
        if let Some(errno) = state.refuses("post_send") {
            // SAFETY: the caller's.
            unsafe { *refused = next };
            return errno;
        }
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
            let is_signalled = request.flags & abi::SIGNALLED != 0;
            pair.sending.push_back((request.id, is_signalled, status));
            if status == abi::SUCCESS {
                // SAFETY: the caller's bytes, which stay until the completion.
                let bytes =
                    unsafe { core::slice::from_raw_parts(piece.address as *const u8, piece.bytes as usize) };
                state.deliver(number, request, bytes);
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
        if let Some(errno) = state.refuses("post_receive") {
            return errno;
        }
        let Pair { posted, receives_max, .. } = state.pairs.get_mut(&number).expect("made above");
        while !next.is_null() {
            // SAFETY: the caller's chain, each with a piece.
            let (request, piece) = unsafe { (&*next, &*(*next).pieces) };
            if posted.len() == *receives_max {
                return libc::ENOMEM;
            }
            posted.push_back((request.id, piece.address, piece.bytes));
            next = request.next;
        }
        0
    })
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
