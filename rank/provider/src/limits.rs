//! Every bound and time of the provider, with its unit and reason.

use core::time::Duration;

use transport::config::ANNOUNCED_MAX;

/// Bytes of payload that are copied at once and travel with their envelope. One UDP frame on a host; above it the two copies
/// cost more than the round trip that asks for the payload.
pub(crate) const EAGER_BYTES_MAX: usize = 16 << 10;

/// Bytes of the head of a request to a peer's memory: see [`crate::engine::wire`].
pub(crate) const REQUEST_HEAD_BYTES: usize = 40;

/// Bytes that one copied message may have below the interface: the largest payload, with a request's head.
pub(crate) const COPIED_BYTES_MAX: usize = EAGER_BYTES_MAX + REQUEST_HEAD_BYTES;

/// Copied bytes that one link holds, waiting or unacknowledged: 64 of the largest messages.
pub(crate) const LINK_COPIED_BYTES_MAX: usize = 64 * COPIED_BYTES_MAX;

/// Longest message. The interface's users expect at least 2^40.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 40;

/// Segments of one local buffer.
pub(crate) const IOV_MAX: usize = 8;

/// Receives and sends that `tx_attr` and `rx_attr` promise; the real bounds are the port's, and larger.
pub(crate) const CONTEXT_SIZE: usize = 1 << 12;

/// Bytes of one of the buffers into which requests of peers come: several of the largest.
pub(crate) const SERVICE_BYTES: usize = 8 * COPIED_BYTES_MAX;

/// Buffers for requests of peers: one is filled while another is worked off.
pub(crate) const SERVICE_BUFFERS: usize = 3;

/// A longer read or write of a peer's memory is split into pieces of this length, so that a target holds bounded memory
/// for each.
pub(crate) const PIECE_BYTES_MAX: usize = 4 << 20;

/// Copies for peers whose memory is kept for the next ones.
pub(crate) const SPARES_MAX: usize = PIECES_OPEN_MAX;

/// Pieces of one request that are asked for at one time: one is copied while another is on its way.
pub(crate) const PIECES_OPEN_MAX: usize = 4;

/// Requests to peers' memory that one endpoint may have open. Each may cost its target an answer that waits.
pub(crate) const REMOTE_REQUESTS_MAX: usize = 4096;

/// Long writes, or pieces of them, that one link may have open: their payloads are announced, and must leave room for
/// the peer's own requests, else two targets that make each other wait could wait for ever.
pub(crate) const LONG_WRITES_MAX: usize = ANNOUNCED_MAX / 2;

/// Bytes that a target holds for one peer (copies of bytes that it reads, answers that wait) before the peer's further
/// requests wait.
pub(crate) const LINK_CREDIT_BYTES_MAX: usize = 4 * PIECE_BYTES_MAX;

/// Likewise for all peers of an endpoint. Above it one request of each is served at a time, so that no peer waits for
/// others that take nothing.
pub(crate) const CREDIT_BYTES_MAX: usize = 256 << 20;

/// Messages of one peer that wait: the most that its open requests and its answers to ours may come to.
pub(crate) const STALLED_MESSAGES_MAX: usize = 2 * PIECES_OPEN_MAX * REMOTE_REQUESTS_MAX;

/// Entries that a completion queue holds, if it was not opened with a larger size, before calls whose completions go there are refused.
pub(crate) const CQ_ENTRIES: usize = 1 << 16;

/// Messages that have come into buffers for several and wait for room in a completion queue. Beyond it nothing more is taken from the port: peers' requests wait, too.
pub(crate) const BACKLOG_MAX: usize = CQ_ENTRIES;

/// Entries that a completion queue may be asked to hold.
pub(crate) const CQ_ENTRIES_MAX: usize = 1 << 24;

/// Completions that one call takes from an endpoint, so that a reader gets on although more keep coming. By so many a completion queue may be
/// fuller than it was opened for.
pub(crate) const COMPLETIONS_PER_ROUND: usize = 256;

/// Closed objects whose handles are still recognised as closed.
pub(crate) const QUARANTINE_MAX: usize = 1 << 12;

/// How often the helper looks whether the program makes progress by itself.
pub(crate) const HELPER_TICK: Duration = Duration::from_millis(1);

/// A peer that has not been heard for this long while an endpoint closes is taken for gone. A living peer's helper
/// answers at once, also while its program computes; without a keeper nothing could answer for the endpoint later.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A live peer that does not receive its messages is waited for so long when an endpoint closes, unless the
/// user sets another time: its program may compute for long before it receives.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(3600);

/// When such a peer is first reported; again after twice as long, and so on.
pub(crate) const LINGER_WARN_AFTER: Duration = Duration::from_secs(5);

/// Peers that are named then.
pub(crate) const LINGER_NAMED_MAX: usize = 4;

/// Longest wait for a keeper that does not read, or has not sent all of the launch record.
pub(crate) const KEEPER_WRITE_MAX: Duration = Duration::from_secs(2);

/// Answers of the keeper that wait for the port that asked.
pub(crate) const ANSWERS_MAX: usize = 1 << 12;

/// Longest wait of a periodic freeze for the rails to give their buffers back.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Time that a closing endpoint stays after all is done, to acknowledge a peer's retransmissions once more:
/// some probe timeouts. Also how often peers that have not finished are probed.
pub(crate) const QUIET: Duration = Duration::from_millis(2);

/// Longest wait for writes of peers into a memory region that is being closed. Writes that have not ended by
/// then are cut off: a piece of a write takes milliseconds, unless its peer is stopped or dead.
pub(crate) const REGION_CLOSE_MAX: Duration = Duration::from_secs(3);

/// Longest sleep in a blocking call between two looks at state that no descriptor reports.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(10);

/// Default of `FI_OPT_MIN_MULTI_RECV`, bytes.
pub(crate) const MULTI_RECEIVE_FREE_MIN: usize = 64;
