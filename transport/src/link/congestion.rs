//! How much may be in flight.
//!
//! Within one host the window is fixed: nothing queues but the receiver's socket, which it fits into. Over a
//! network the window follows the delay, in the manner of Swift (Kumar et al., SIGCOMM 2020): grow additively
//! while the round trip is near its least, shrink in proportion to the excess at most once per round trip. A
//! lost frame alone shows nothing about queues (1 % of losses must not cost 20 % of the goodput); many in one
//! round trip do.

use crate::link::recovery::Recovery;

/// A window is never smaller than this: two of the largest frames.
pub(crate) const CONGESTION_BYTES_MIN: u32 = 128 << 10;
/// The window at first, over a network.
pub(crate) const CONGESTION_BYTES_INITIAL: u32 = 256 << 10;
/// The window at most, over a network.
pub(crate) const CONGESTION_BYTES_MAX: u32 = 8 << 20;

/// Queueing delay that is tolerated, nanoseconds: a few frames per switch.
const QUEUE_NS: u64 = 50_000;

/// The window after `acknowledged` bytes with this round-trip estimate.
pub(crate) fn after_ack(window: u32, acknowledged: u32, recovery: &Recovery) -> u32 {
    let target = u64::from(recovery.least_ns) + QUEUE_NS + 2 * u64::from(recovery.deviation_ns);
    let delay = u64::from(recovery.newest_ns);
    if delay <= target {
        let step = u64::from(acknowledged) * u64::from(CONGESTION_BYTES_MIN) / u64::from(window.max(1));
        return window.saturating_add(u32::try_from(step).unwrap_or(u32::MAX)).min(CONGESTION_BYTES_MAX);
    }
    // At most half of the window per round trip, spread over the acknowledgements of that round trip.
    let excess = (delay - target).min(delay / 2);
    let cut = u64::from(acknowledged) * excess / delay;
    window.saturating_sub(u32::try_from(cut).unwrap_or(u32::MAX)).max(CONGESTION_BYTES_MIN)
}

/// The window after `lost` bytes: losses beyond an eighth of the window mean that something overflows.
pub(crate) fn after_loss(window: u32, lost: u32) -> u32 {
    if lost > window / 8 { (window - window / 4).max(CONGESTION_BYTES_MIN) } else { window }
}
