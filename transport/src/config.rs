//! Bounds and times of the protocol: each with its unit and the reason for its value.

use core::time::Duration;

use crate::ids::JobTag;

/// Whether ports of this build can be checkpointed, which a program may rely on. `--cfg uncheckpointable`
/// takes out the cost of that in normal running: checks of lives and epochs, hints, resyncs, and the clock
/// that stands still. Only `bench checkpointable` builds so, to measure that cost; crates that serve real
/// jobs refuse to be built so.
pub const CHECKPOINTABLE: bool = cfg!(not(uncheckpointable));

/// Rails that one port may have.
pub const RAILS_MAX: usize = 4;

/// Frames that a link may have unacknowledged, and hence the width of the receiver's reorder buffer. 256 frames of
/// 1,400 bytes fill a 100 Gbit/s path of 28 µs; with 64 KiB frames other bounds act first.
pub const WINDOW_FRAMES_MAX: u64 = 256;

/// Frames beyond the cumulative acknowledgement that the selective-acknowledgement bitmap can report.
pub const SACK_FRAMES: usize = 64;

/// A frame may raise our epoch by at most this much (R3); more than that is left to the coordinator's command.
pub const EPOCH_STEP_MAX: u32 = 64;

/// Highest epoch of a rank: one that is not reached by any step of a frame (R3) cannot wrap. No peer names a higher
/// one, and no image has it.
pub const EPOCH_MAX: u32 = u32::MAX / 2;

/// Announced but not yet granted sends of one link: bounds the peer's table of unmatched RTS frames.
pub const ANNOUNCED_MAX: usize = 1024;

/// Messages that wait on one link for window before `send` pushes back.
pub const PENDING_MESSAGES_MAX: usize = 4096;

/// Payloads that may come in on one link at one time: a peer stops announcing while this many of its CTS frames are unused,
/// may then be granted all it has announced, and has a window of pieces on their way.
pub const INCOMING_MAX: usize = 2 * ANNOUNCED_MAX + 256;
const _: () = assert!(INCOMING_MAX as u64 == 2 * ANNOUNCED_MAX as u64 + WINDOW_FRAMES_MAX);

/// Links of one port. 65,536 ranks, and as many again that have been replaced.
pub const LINKS_MAX: usize = 1 << 17;

/// Events that wait to be polled before the port stops reading frames (they are not counted, and peers
/// retransmit them).
pub const EVENTS_MAX: usize = 1 << 16;

/// Received frames after which an acknowledgement is sent at once instead of waiting for data to carry it.
pub const ACK_EVERY_FRAMES: u32 = 16;

/// Longest wait of an acknowledgement for data that could carry it. Far above a reply by a spinning peer (3
/// µs), far below the possible cost of a tail loss (200 µs).
pub const ACK_DELAY: Duration = Duration::from_micros(25);

/// Probe timeout before the first round-trip sample: the peer may still be starting.
pub const PTO_INITIAL: Duration = Duration::from_millis(2);

/// Least time on top of the round trip and of [`ACK_DELAY`] before a silent peer is probed: a context switch and a system
/// call. Jitter beyond that shows in the measured deviation. A needless probe costs a duplicate; waiting longer costs more:
/// of the frames lost at 1 % in each direction 2 % are lost twice, so p99 is two timeouts (the second doubled), which
/// must stay below 200 us.
pub const PTO_MIN: Duration = Duration::from_micros(20);

/// Longest probe timeout after back-off.
pub const PTO_MAX: Duration = Duration::from_millis(100);

/// Least time that a frame may be overtaken before it counts as lost (RFC 8985 section 6.2, `RACK.reo_wnd`).
pub const REORDER_WINDOW_MIN: Duration = Duration::from_micros(8);

/// Most steps by which spurious resends widen the reorder window (RFC 8985, `RACK.reo_wnd_mult`).
pub const REORDER_STEPS_MAX: u8 = 16;

/// A pause shorter than this is not announced: the hint would cost more than the resends it saves.
pub const STOPPED_MIN: Duration = Duration::from_millis(1);

/// Longest time for which a STOPPED hint is believed.
pub const STOPPED_MAX: Duration = Duration::from_secs(10);

/// A peer that has owed an acknowledgement for this long is reported as slow.
pub const SLOW_AFTER: Duration = Duration::from_secs(1);

/// A peer that has owed an acknowledgement for this long is reported as gone. Only a report: the link goes on.
pub const GONE_AFTER: Duration = Duration::from_secs(10);

/// Lost frames on one rail without a delivered one, after which the rail is passed over.
pub const RAIL_LOSSES_MAX: u16 = 8;

/// How often a rail that was passed over is tried again.
pub const RAIL_RETRY: Duration = Duration::from_millis(10);

const _: () =
    assert!(WINDOW_FRAMES_MAX < 1 << 31, "32-bit sequence numbers must be unambiguous in the window");
const _: () = assert!(SACK_FRAMES as u64 <= WINDOW_FRAMES_MAX);

/// The bytes that the authentication tag of a frame covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AuthLevel {
    /// No tag: only for drivers that cannot carry a stranger's frame (memory).
    Off,
    /// Header, length and the 64-bit sequence number: the least on any socket, the default within one host.
    #[default]
    Header,
    /// The payload too: the default off the host.
    Full,
}

/// Settings of one port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Folded id of the job, in every frame.
    pub job: JobTag,
    /// The bytes that the tag covers.
    pub auth: AuthLevel,
    /// Copied payload up to this many bytes travels with its envelope; longer messages are announced first.
    pub eager_bytes_max: usize,
    /// Bytes of copied payload that one link holds: waiting, or sent and not acknowledged.
    pub link_copied_bytes_max: usize,
    /// Bytes of copied payload that a peer may have in flight towards us on one link.
    pub link_window_bytes: u32,
    /// Bytes of unexpected messages, over all links, from which on a link's frames are kept only within the
    /// window that it was promised (R17); others are not counted, and are retransmitted. As promises to
    /// several links may be of the same room, the bytes kept are at most this and `link_window_bytes` for
    /// every link.
    pub unexpected_bytes_max: usize,
    /// Likewise, copied unexpected messages. A link is promised at most a quarter of this, and at most 256; the
    /// messages kept are at most this and such a promise for every link. Announced ones come on top, up to
    /// [`ANNOUNCED_MAX`] of every link.
    pub unexpected_entries_max: usize,
    /// Receives that may be posted at one time.
    pub posted_max: usize,
    /// Bytes held in reorder buffers, over all links.
    pub reorder_bytes_max: usize,
    /// Bytes in flight on one link at which a path within one host stays.
    pub flight_bytes_max: u32,
    /// Whether peers are reached over a network, so that queues build up in switches and the congestion window follows
    /// the measured delay.
    pub network: bool,
    /// This port's process is not saved, but lives among ranks that are: its epoch may follow theirs over any distance
    /// (R3).
    pub follows: bool,
}

impl PortConfig {
    /// The defaults for a job.
    #[must_use]
    pub fn new(job: JobTag) -> PortConfig {
        PortConfig {
            job,
            auth: AuthLevel::Header,
            eager_bytes_max: 8 << 10,
            link_copied_bytes_max: 256 << 10,
            link_window_bytes: 256 << 10,
            unexpected_bytes_max: 64 << 20,
            unexpected_entries_max: 1 << 20,
            posted_max: 1 << 20,
            reorder_bytes_max: 16 << 20,
            flight_bytes_max: 768 << 10,
            network: false,
            follows: false,
        }
    }
}
