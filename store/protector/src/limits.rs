//! Bounds and times: each with its unit and the reason for its value.

use std::time::Duration;

/// Bytes from which on strips for the same member travel alone: enough to make the cost of a message negligible.
pub(crate) const ALONE_BYTES: usize = 1 << 20;

/// Bytes of changed content that a window has, if a cycle is not longer than that: large blocks keep a link busy, and several must be in memory.
pub(crate) const WINDOW_BYTES: u64 = 2 << 20;

/// Bytes of the strips that open windows may take, from which on fewer windows are open.
pub(crate) const OPEN_BYTES_MAX: u64 = 64 << 20;

/// Windows that are open where each is on its way for one or a few hops: one that is read, one that travels, one that is kept.
pub(crate) const OPEN_WINDOWS: u64 = 4;

/// Windows of one encoding, at most: their state must fit into memory, regardless of the sizes that members report. With large blocks, 8 TiB of
/// changes of one node.
pub(crate) const WINDOWS_MAX: usize = 1 << 22;

/// The longest message that is received: strips of one window of the largest units, and contents of many runs of pages.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 256 << 20;

/// Messages of strips that are under way to one member, or from it, at one time, and other messages from it: while one is being received the next one is announced.
pub(crate) const MESSAGES_UNDER_WAY_MAX: usize = 4;

/// Questions of one member that wait to be answered, at most: a member under repair asks for its current and next
/// needs, and may have abandoned earlier questions.
pub(crate) const QUESTIONS_MAX: usize = 8;

/// Requests of its owner that a protector has not answered, or whose answers were not taken. One more is not accepted.
pub const REQUESTS_MAX: usize = 64;

/// Jobs which one encoding or repair makes at most for the thread that reads, or the one that writes: for each member a look at its content or a write of it,
/// for each open window a read or a sum (a pipeline has a window for each member, and those of [`OPEN_WINDOWS`]), and a few at its begin and end.
pub(crate) const fn jobs_of_one(members: usize) -> usize {
    2 * members + JOBS_BESIDE
}

/// Jobs of those that do not depend on the number of members.
const JOBS_BESIDE: usize = 16;
const _: () = assert!(OPEN_WINDOWS + 8 <= JOBS_BESIDE as u64);

/// Jobs that wait for the thread that writes. Nothing begins while more wait than leave room for it: its disk does not answer.
pub(crate) const fn writer_jobs_max(members: usize) -> usize {
    2 * jobs_of_one(members)
}

/// Likewise, for the thread that reads, with questions of other members, which have a bound of their own ([`QUESTIONS_MAX`]). There is room for as many questions
/// besides: those that come later never find it taken by an encoding.
pub(crate) const fn reader_jobs_max(members: usize) -> usize {
    2 * jobs_of_one(members) + members * QUESTIONS_MAX
}

/// Messages other than strips that wait for one member. It has at most [`QUESTIONS_MAX`] answers and a few messages of each encoding to come; for one that takes
/// none of them, one more is dropped, and the work with that member fails.
pub(crate) const WORDS_MAX: usize = 256;

/// Shortest time between two questions to awaited members whether they are alive.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// How many times longer than for a sign of life something is waited for that does not come from members that live: one may still be
/// writing its images, or be asked by others.
pub(crate) const STUCK_AFTER: u32 = 20;

/// Messages up to this length do not wait for the link's limit: urgent messages must not wait behind long ones.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Assumed rate and latency of a link of which nothing is known yet: bytes per second of 10 Gbit Ethernet, and a round trip within a machine room.
pub(crate) const LINK_ASSUMED: f64 = 1.2e9;
/// See [`LINK_ASSUMED`].
pub(crate) const LATENCY_ASSUMED: Duration = Duration::from_micros(100);

/// Bytes that an encoding must have sent for its rate to say something of the link.
pub(crate) const LINK_SEEN_BYTES: u64 = 8 << 20;
