//! Memory that a target holds for peers: copies of bytes that they read, answers that wait for room. A peer that takes
//! nothing must not make it hold more and more, so from a bound on its further requests wait.
//!
//! No request waits for ever by that. Credits come back when the peer's port has taken the held bytes, into a receive
//! that it posted before it asked, so no request of ours has to be served for it, and the places that announced writes
//! take on the way are bounded ([`crate::limits::LONG_WRITES_MAX`]). A peer that holds no credits is always served, so
//! a dead peer does not delay others.

use std::collections::VecDeque;

use crate::limits::{CREDIT_BYTES_MAX, LINK_CREDIT_BYTES_MAX, STALLED_MESSAGES_MAX};

/// Bytes that are held for all peers.
#[derive(Default)]
pub(super) struct Total(usize);

/// Memory held for one peer, and its requests that wait for that.
#[derive(Default)]
pub(super) struct TargetCredits {
    bytes: usize,
    stalled: VecDeque<Vec<u8>>,
}

impl TargetCredits {
    /// Whether a request may be served that makes us hold so many bytes.
    pub(super) fn may_take(&self, total: &Total, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= LINK_CREDIT_BYTES_MAX && total.0 + bytes <= CREDIT_BYTES_MAX
    }

    pub(super) fn take(&mut self, total: &mut Total, bytes: usize) {
        self.bytes += bytes;
        total.0 += bytes;
    }

    pub(super) fn give_back(&mut self, total: &mut Total, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "{bytes} of {} come back", self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        total.0 = total.0.saturating_sub(bytes);
    }

    pub(super) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Keeps a message whose requests wait. False: a peer that keeps to its own bounds cannot have so many.
    pub(super) fn stall(&mut self, message: &[u8]) -> bool {
        let room = self.stalled.len() < STALLED_MESSAGES_MAX;
        if room {
            self.stalled.push_back(message.to_vec());
        }
        room
    }

    /// Keeps the rest of the message that was taken last.
    pub(super) fn stall_again(&mut self, rest: Vec<u8>) {
        self.stalled.push_front(rest);
    }

    pub(super) fn next_stalled(&mut self) -> Option<Vec<u8>> {
        self.stalled.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_bounded_for_each_and_for_all_but_everybody_is_served() {
        let mut total = Total::default();
        let mut one = TargetCredits::default();
        assert!(one.may_take(&total, usize::MAX), "whatever it is, if nothing else is held");
        one.take(&mut total, LINK_CREDIT_BYTES_MAX - 1);
        assert!(one.may_take(&total, 1) && !one.may_take(&total, 2));
        one.take(&mut total, CREDIT_BYTES_MAX);
        let mut two = TargetCredits::default();
        assert!(two.may_take(&total, 100));
        two.take(&mut total, 100);
        assert!(!two.may_take(&total, 1), "others hold too much");
        one.give_back(&mut total, CREDIT_BYTES_MAX);
        assert!(two.may_take(&total, 1));
    }

    #[test]
    fn what_waits_comes_in_order_and_is_bounded() {
        let mut credits = TargetCredits::default();
        for i in 0..STALLED_MESSAGES_MAX {
            assert!(credits.stall(&i.to_le_bytes()));
        }
        assert!(!credits.stall(b"one more"));
        assert_eq!(credits.next_stalled().unwrap(), 0usize.to_le_bytes());
        credits.stall_again(b"rest".to_vec());
        assert_eq!(credits.next_stalled().unwrap(), b"rest");
        assert_eq!(credits.next_stalled().unwrap(), 1usize.to_le_bytes());
        assert!(credits.is_stalled());
    }
}
