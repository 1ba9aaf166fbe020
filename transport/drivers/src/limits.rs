//! Bounds of the drivers: every table and queue, with its unit and the reason for its size.

use core::time::Duration;

/// Frames that can be staged between two flushes. One UDP_SEGMENT call takes 64 segments, so a full ring is one system call.
pub const BURST_FRAMES: usize = 64;

/// Addresses that one driver keeps. A job of this many ranks, each known on this rail.
pub const ADDRESSES_MAX: usize = 65_536;

/// Connected send sockets of one UDP driver. Each costs a descriptor; stays far below the usual limit of 1024 per process.
pub const CONNECTED_MAX: usize = 64;

/// Sends to a peer by address before it may take another peer's connected socket. Re-connecting costs about 2 us and
/// each connected send gains about 0.4 us, so the exchange pays for itself many times over.
pub const PROMOTE_SENDS: u32 = 256;

/// Bytes of the largest UDP datagram over IPv4: 65535 less 20 (IP) and 8 (UDP).
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Bytes of frame that every IPv6 path takes: the minimum MTU of 1280 (RFC 8200) less 40 (IP) and 8 (UDP). A
/// path falls back to this when the kernel refuses a size and does not report the one that it would take.
pub const DATAGRAM_BYTES_SAFE: usize = 1232;

/// Segments of one UDP_SEGMENT call: UDP_MAX_SEGMENTS of the kernels before 6.9; later ones take 128.
pub const SEGMENTS_MAX: usize = 64;

/// Datagrams (each up to 64 KiB after coalescing) that one receive call takes in.
pub const RECEIVE_DATAGRAMS: usize = 16;

/// Bytes of one receive buffer: the largest datagram or coalesced run of datagrams, rounded to pages.
pub const RECEIVE_BUFFER_BYTES: usize = 65_536;

/// Bytes asked for as socket buffer. The kernel grants up to `net.core.rmem_max`, more to a privileged process; it charges
/// the true size of each datagram, 768 bytes for the smallest, so this holds about 10,000 of those.
pub const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// Notices that wait to be polled. A further one replaces the oldest: each can be found out again from `path`.
pub const NOTICES_MAX: usize = 64;

/// Frames that wait at one port of a memory hub. More are lost, as at a NIC whose receive queue is empty.
pub const MEM_QUEUE_FRAMES: usize = 4096;

/// Bytes of the largest frame of the memory driver; the same as UDP's, so that tests meet the same fragments.
pub const MEM_FRAME_BYTES_MAX: usize = DATAGRAM_BYTES_MAX;

/// Ports of one memory hub.
pub const MEM_PORTS_MAX: usize = 1024;

/// Empty frame buffers that a memory port keeps for use again.
pub const MEM_SPARE_FRAMES: usize = 256;

/// Frames that a fault wrapper holds back in each direction. Further ones pass unharmed.
pub const FAULT_HELD_MAX: usize = 4096;

/// Committed frames that a fault wrapper has not reported as completed. At the bound there is nothing to lease.
pub const FAULT_OUTSTANDING_MAX: usize = 4096;

/// Later frames that can overtake a reordered one: enough to defeat a threshold of three duplicate acknowledgements.
pub const FAULT_REORDER_FRAMES_MAX: u64 = 5;

/// Calls by which a completion is late.
pub const FAULT_LATE_CALLS_MAX: u64 = 64;

/// Leases in a row that find nothing.
pub const FAULT_STARVE_CALLS_MAX: u64 = 16;

/// Calls after which a frame held for later frames goes on even if none come.
pub const FAULT_BACKSTOP_CALLS: u64 = 10_000;

/// Bytes of the largest frame of the shared-memory driver: a piece of bulk that is read with one system call, whose fixed cost is a few
/// hundredths of the copy's, and of which several are on their way at one time.
pub const SHM_FRAME_BYTES_MAX: usize = 128 << 10;

/// Frames that a shared-memory driver has staged, or whose payload it still offers: a burst of one peer behind the open offers of others.
/// In a model (`cfg(loom)`) as many as slots.
pub const SHM_STAGED_FRAMES: usize = if cfg!(loom) { 2 } else { 2 * BURST_FRAMES };

/// Bytes of payload from which on it is offered to be read, where that is permitted: below, two copies cost less than the system call.
/// In a model (`cfg(loom)`) what its small area has room for.
pub const SHM_OFFER_BYTES_MIN: usize = if cfg!(loom) { 256 } else { 16 << 10 };

/// The time that an offered payload waits for its receiver before the sender copies it into the ring. It is
/// far above the time in which a polling receiver takes all that may be on its way to it. It is little
/// against the time for which a buffer may be missed.
pub const SHM_OFFER_PATIENCE: Duration = Duration::from_millis(1);

/// Large payloads that a sender copies ahead of a receiver that may read its memory; further ones are offered. A sender that waits copies faster
/// than a system call reads, and the two work at the same time; a receiver that does not come for them costs the sender no more than these.
pub const SHM_COPIED_AHEAD: usize = 4;

/// Queues of a device that serve one AF_XDP rail. Each takes a socket, four rings and chunks of its own.
pub const XDP_QUEUES_MAX: usize = 16;

/// Bytes of the chunks of an AF_XDP rail that wait for frames, over all its queues: with those for sending they stay within the 8 MiB that most systems
/// let a process pin.
pub const XDP_RECEIVE_BYTES: usize = 4 << 20;

/// Chunks that wait for frames at one of many queues: two bursts.
pub const XDP_RECEIVE_CHUNKS_MIN: usize = 2 * BURST_FRAMES;

/// Chunks of an AF_XDP rail that wait for frames, at one queue: all entries of its fill ring. A copying device takes in close to a million
/// small frames a second (measured between two virtual Ethernet devices), so this is about a millisecond without a look.
pub const XDP_RECEIVE_CHUNKS_MAX: usize = 1024;

/// Chunks of an AF_XDP rail for sending: a few bursts, so that one can be filled while others are with the device.
pub const XDP_SEND_CHUNKS: usize = 4 * BURST_FRAMES;

/// Chunks that a frame of an AF_XDP rail takes at most: with a headroom of 256 bytes in each, frames of 15,360 bytes, which is more than most devices send.
pub const XDP_FRAME_CHUNKS_MAX: usize = 4;

/// Slots for sending where a frame takes several chunks: two bursts of the longest frames are 2 MiB.
pub const XDP_LONG_SEND_SLOTS: usize = 2 * BURST_FRAMES;

/// How long opening an AF_XDP rail waits for a queue that is still held: the kernel lets go of a closed socket's queue
/// late. Of 200 openings right after a closing, between virtual Ethernet devices, the longest took 40 ms; on a machine
/// with much more to do than processors it took more than 2 s.
pub const XDP_BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// Rails that one nic-helper serves: one program at a device compares each frame with one after the other.
pub const XDP_HELPER_RAILS_MAX: usize = 64;

/// Connections to a nic-helper: its rails, and clients without one. For a further client it drops one without a rail, of the user that has most of these.
pub const XDP_HELPER_CONNECTIONS_MAX: usize = 2 * XDP_HELPER_RAILS_MAX;

/// How long a nic-helper waits for a new client's request, and keeps its answer for it: ranks have the one ready, and read the other.
pub const XDP_HELPER_PATIENCE: Duration = Duration::from_secs(1);

/// Clients that a nic-helper lets in before it turns to those that it has: some tens of microseconds.
pub const XDP_HELPER_ACCEPTS: usize = 32;

/// How often a nic-helper checks that the port of a rail is still the rail's alone: until then frames of another process that has bound it too
/// may go to the rail.
pub const XDP_HELPER_CHECK_PERIOD: Duration = Duration::from_millis(250);

/// How often a nic-helper attaches its program to one device within [`XDP_HELPER_ATTACHES_PERIOD`]: attaching resets the link of some NICs.
pub const XDP_HELPER_ATTACHES_MAX: usize = 6;

/// See [`XDP_HELPER_ATTACHES_MAX`].
pub const XDP_HELPER_ATTACHES_PERIOD: Duration = Duration::from_secs(3600);

/// How long a nic-helper's program stays attached to a device that has no rail any more.
pub const XDP_HELPER_DETACH_AFTER: Duration = Duration::from_secs(600);

/// Threads of a nic-helper that close connections, where the kernel lets others put descriptors into their queues (before Linux 6.16).
pub const XDP_HELPER_CLOSERS_MAX: usize = 64;

/// Those for one user.
pub const XDP_HELPER_USER_CLOSERS_MAX: usize = 8;

/// Connections that wait for such a thread.
pub const XDP_HELPER_PARKED_MAX: usize = 256;

/// The time that a rank waits for a nic-helper: its work takes milliseconds, but others may be before it.
pub const XDP_HELPER_ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// Slots of a verbs rail that wait for frames. As for AF_XDP: a sender of small frames fills them in about a millisecond.
pub const VERBS_RECEIVE_FRAMES: usize = 1024;

/// Slots of a verbs rail for sending, and requests for sending that its queue takes: a few bursts. With the slots above they take 5.3 MB of registered
/// memory at the longest MTU, within the 8 MiB that most systems permit.
pub const VERBS_SEND_FRAMES: usize = 4 * BURST_FRAMES;

/// Bytes of a frame that goes inside its request, and so costs the device no read: the limit of common
/// devices.
pub const VERBS_INLINE_BYTES: usize = 220;

/// Completions that one look at a queue takes.
pub const VERBS_COMPLETIONS: usize = 32;

/// Times that a queue pair is begun anew after an error within [`VERBS_RESTARTS_WINDOW`]; one more, and the rail is dead. One is the price of a peer to
/// which no way leads any more.
pub const VERBS_RESTARTS_MAX: u32 = 16;

/// Long against the time of one restart: a device that fails again and again is found out, and one that fails
/// every few seconds is used.
pub const VERBS_RESTARTS_WINDOW: Duration = Duration::from_secs(60);

/// How long finding a peer over RoCE waits for a neighbour whose Ethernet address the kernel does not know: some round
/// trips of a local network. A neighbour that has not answered by then is asked again when a frame is sent to it.
pub const VERBS_NEIGHBOUR_PATIENCE: Duration = Duration::from_millis(1);

/// Time between two questions to a neighbour that is sent to whether it has still its Ethernet address: the kernel, past which frames go, has no reason to ask.
/// As long as it trusts an answer by default.
pub const VERBS_NEIGHBOUR_REFRESH: Duration = Duration::from_secs(30);

/// Bytes of a captured rail's file, after which it ends: some millions of small frames, and as much as `inspect` reads
/// at once.
pub const CAPTURE_BYTES_MAX: u64 = 1 << 30;
