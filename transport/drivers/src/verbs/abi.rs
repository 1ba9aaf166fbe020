//! The interface of libibverbs.so.1, as far as it is used here, from rdma-core's `infiniband/verbs.h`. The layouts are
//! those of the library's version 1.1, which later ones keep; the sizes below were printed by a C program with that
//! header, on x86-64.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// Bytes of a global route header, or of its replacement, in front of every received datagram.
pub(super) const GRH_BYTES: usize = 40;

pub(super) type Gid = [u8; 16];

/// A GID where the library has one: it holds 64-bit numbers there.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct AlignedGid(pub(super) Gid);

#[repr(C)]
pub(super) struct Device {
    _private: [u8; 0],
}

#[repr(C)]
pub(super) struct Domain {
    _private: [u8; 0],
}

#[repr(C)]
pub(super) struct AddressHandle {
    _private: [u8; 0],
}

pub(super) type PollCq = unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int;
pub(super) type RequestNotify = unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int;
pub(super) type PostSend =
    unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int;
pub(super) type PostReceive =
    unsafe extern "C" fn(*mut QueuePair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int;

/// The calls that the header makes inline: the device's own library fills them in.
#[repr(C)]
pub(super) struct ContextCalls {
    before_poll: [*mut c_void; 11],
    pub(super) poll_cq: Option<PollCq>,
    pub(super) request_notify: Option<RequestNotify>,
    before_post: [*mut c_void; 12],
    pub(super) post_send: Option<PostSend>,
    pub(super) post_receive: Option<PostReceive>,
    rest: [*mut c_void; 5],
}

#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    pub(super) calls: ContextCalls,
    pub(super) command_fd: c_int,
    pub(super) event_fd: c_int,
}

#[repr(C)]
pub(super) struct CompletionQueue {
    pub(super) context: *mut Context,
}

#[repr(C)]
pub(super) struct CompletionChannel {
    context: *mut Context,
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct QueuePair {
    pub(super) context: *mut Context,
    before_number: [*mut c_void; 5],
    handle: u32,
    pub(super) number: u32,
}

#[repr(C)]
pub(super) struct MemoryRegion {
    before_key: [*mut c_void; 3],
    bytes: usize,
    handle: u32,
    pub(super) local_key: u32,
}

#[repr(C)]
pub(super) struct DeviceAttributes {
    before_entries: [u64; 14],
    pub(super) requests_max: c_int,
    between: [c_int; 4],
    pub(super) completions_max: c_int,
    rest: [u8; 91],
    pub(super) ports: u8,
    padding: u32,
}

pub(super) const PORT_ACTIVE: c_uint = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
/// Of a port's flags: it takes no address handle without a route.
pub(super) const ROUTE_REQUIRED: u8 = 1;

#[repr(C)]
pub(super) struct PortAttributes {
    pub(super) state: c_uint,
    mtu_max: c_uint,
    /// 1 is 256 bytes, and each further one doubles.
    pub(super) mtu: c_uint,
    pub(super) gids: c_int,
    before_lid: [u8; 18],
    pub(super) lid: u16,
    between: [u8; 10],
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    rest: [u8; 4],
}

#[repr(C)]
pub(super) struct GlobalRoute {
    pub(super) to: AlignedGid,
    pub(super) flow_label: u32,
    pub(super) own_gid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
pub(super) struct HandleAttributes {
    pub(super) route: GlobalRoute,
    pub(super) to_lid: u16,
    pub(super) service_level: u8,
    pub(super) source_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) has_route: u8,
    pub(super) port: u8,
}

pub(super) const UNRELIABLE_DATAGRAM: c_uint = 4;

#[repr(C)]
#[derive(Default)]
pub(super) struct QueueLimits {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) send_pieces: u32,
    pub(super) receive_pieces: u32,
    pub(super) inline_bytes: u32,
}

#[repr(C)]
pub(super) struct QueuePairSetup {
    pub(super) user: *mut c_void,
    pub(super) send_queue: *mut CompletionQueue,
    pub(super) receive_queue: *mut CompletionQueue,
    pub(super) shared_receive: *mut c_void,
    pub(super) limits: QueueLimits,
    pub(super) kind: c_uint,
    pub(super) signal_all: c_int,
}

/// States of a queue pair.
pub(super) const RESET: c_uint = 0;
pub(super) const INIT: c_uint = 1;
pub(super) const READY_TO_RECEIVE: c_uint = 2;
pub(super) const READY_TO_SEND: c_uint = 3;

/// Which fields of [`QueuePairAttributes`] count.
pub(super) const HAS_STATE: c_int = 1;
pub(super) const HAS_PARTITION: c_int = 1 << 4;
pub(super) const HAS_PORT: c_int = 1 << 5;
pub(super) const HAS_KEY: c_int = 1 << 6;
pub(super) const HAS_SEND_NUMBER: c_int = 1 << 16;

#[repr(C)]
#[derive(Default)]
pub(super) struct QueuePairAttributes {
    pub(super) state: c_uint,
    pub(super) before_key: [c_uint; 3],
    pub(super) key: u32,
    pub(super) receive_number: u32,
    pub(super) send_number: u32,
    pub(super) between: [u32; 23],
    pub(super) partition: u16,
    pub(super) before_port: [u8; 7],
    pub(super) port: u8,
    pub(super) rest: [u8; 14],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) local_key: u32,
}

#[repr(C)]
pub(super) struct ReceiveRequest {
    pub(super) id: u64,
    pub(super) next: *mut ReceiveRequest,
    pub(super) pieces: *mut Piece,
    pub(super) piece_count: c_int,
}

pub(super) const SEND: c_uint = 2;
pub(super) const SIGNALLED: c_uint = 2;
pub(super) const INLINE: c_uint = 8;

#[repr(C)]
pub(super) struct SendRequest {
    pub(super) id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) pieces: *mut Piece,
    pub(super) piece_count: c_int,
    pub(super) operation: c_uint,
    pub(super) flags: c_uint,
    pub(super) immediate: u32,
    pub(super) to: *mut AddressHandle,
    pub(super) to_queue: u32,
    pub(super) to_key: u32,
    pub(super) rest: [u64; 9],
}

pub(super) const SUCCESS: c_uint = 0;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) status: c_uint,
    pub(super) operation: c_uint,
    pub(super) vendor_error: u32,
    pub(super) bytes: u32,
    pub(super) rest: [u32; 6],
}

/// Kinds of events.
pub(super) const COMPLETION_QUEUE_ERROR: c_uint = 0;
pub(super) const QUEUE_PAIR_ACCESS_ERROR: c_uint = 3;
pub(super) const DEVICE_FATAL: c_uint = 8;

#[repr(C)]
pub(super) struct Event {
    pub(super) element: *mut c_void,
    pub(super) kind: c_uint,
}

/// The list of `ibv_get_device_list`, which ends with a null.
pub(super) type DeviceList = *mut *mut Device;
pub(super) type Name = *const c_char;

#[cfg(target_arch = "x86_64")]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<ContextCalls>() == 256);
    assert!(offset_of!(ContextCalls, poll_cq) == 88 && offset_of!(ContextCalls, request_notify) == 96);
    assert!(offset_of!(ContextCalls, post_send) == 200 && offset_of!(ContextCalls, post_receive) == 208);
    assert!(offset_of!(Context, command_fd) == 264 && offset_of!(Context, event_fd) == 268);
    assert!(offset_of!(QueuePair, number) == 52);
    assert!(offset_of!(MemoryRegion, local_key) == 36);
    assert!(size_of::<DeviceAttributes>() == 232 && offset_of!(DeviceAttributes, requests_max) == 112);
    assert!(
        offset_of!(DeviceAttributes, completions_max) == 132 && offset_of!(DeviceAttributes, ports) == 227
    );
    assert!(size_of::<PortAttributes>() == 52 && offset_of!(PortAttributes, lid) == 34);
    assert!(offset_of!(PortAttributes, link_layer) == 46 && offset_of!(PortAttributes, flags) == 47);
    assert!(size_of::<AlignedGid>() == 16 && size_of::<GlobalRoute>() == 24);
    assert!(size_of::<HandleAttributes>() == 32 && offset_of!(HandleAttributes, to_lid) == 24);
    assert!(offset_of!(HandleAttributes, port) == 30);
    assert!(size_of::<QueuePairSetup>() == 64 && offset_of!(QueuePairSetup, kind) == 52);
    assert!(size_of::<QueuePairAttributes>() == 144 && offset_of!(QueuePairAttributes, key) == 16);
    assert!(offset_of!(QueuePairAttributes, send_number) == 24);
    assert!(
        offset_of!(QueuePairAttributes, partition) == 120 && offset_of!(QueuePairAttributes, port) == 129
    );
    assert!(size_of::<Piece>() == 16 && size_of::<ReceiveRequest>() == 32);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, to_queue) == 48);
    assert!(size_of::<Completion>() == 48 && offset_of!(Completion, bytes) == 20);
    assert!(size_of::<Event>() == 16 && offset_of!(Event, kind) == 8);
};
