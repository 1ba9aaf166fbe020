//! What a target holds for peers: copies of what they read, answers that wait for room. A peer that takes nothing must not make it hold more and more, so
//! from a bound on its further requests wait.
//!
//! Nobody waits for ever by that. A debt is paid when the peer's port has taken what is held, into a receive that it posted before it
//! asked, so no request of ours has to be served for it, and the places that announced writes take on the way are bounded
//! ([`crate::limits::LONG_WRITES_MAX`]). A peer without any debt is always served, so one that is dead makes nobody else wait.

use std::collections::VecDeque;

use crate::limits::{DEBT_BYTES_MAX, LINK_DEBT_BYTES_MAX, STALLED_MESSAGES_MAX};

/// Bytes that are held for all peers.
#[derive(Default)]
pub(super) struct Total(usize);

/// What is held for one peer, and its requests that wait for that.
#[derive(Default)]
pub(super) struct Debt {
    bytes: usize,
    stalled: VecDeque<Vec<u8>>,
}

impl Debt {
    /// Whether a request may be served that makes us hold so many bytes.
    pub(super) fn may_grow(&self, total: &Total, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= LINK_DEBT_BYTES_MAX && total.0 + bytes <= DEBT_BYTES_MAX
    }

    pub(super) fn grow(&mut self, total: &mut Total, bytes: usize) {
        self.bytes += bytes;
        total.0 += bytes;
    }

    pub(super) fn shrink(&mut self, total: &mut Total, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "{bytes} of {} are paid", self.bytes);
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

    /// Keeps what is left of the message that was taken last.
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
    fn debts_are_bounded_for_each_and_for_all_but_everybody_is_served() {
        let mut total = Total::default();
        let mut one = Debt::default();
        assert!(one.may_grow(&total, usize::MAX), "whatever it is, if nothing else is held");
        one.grow(&mut total, LINK_DEBT_BYTES_MAX - 1);
        assert!(one.may_grow(&total, 1) && !one.may_grow(&total, 2));
        one.grow(&mut total, DEBT_BYTES_MAX);
        let mut two = Debt::default();
        assert!(two.may_grow(&total, 100));
        two.grow(&mut total, 100);
        assert!(!two.may_grow(&total, 1), "others hold too much");
        one.shrink(&mut total, DEBT_BYTES_MAX);
        assert!(two.may_grow(&total, 1));
    }

    #[test]
    fn what_waits_comes_in_order_and_is_bounded() {
        let mut debt = Debt::default();
        for i in 0..STALLED_MESSAGES_MAX {
            assert!(debt.stall(&i.to_le_bytes()));
        }
        assert!(!debt.stall(b"one more"));
        assert_eq!(debt.next_stalled().unwrap(), 0usize.to_le_bytes());
        debt.stall_again(b"rest".to_vec());
        assert_eq!(debt.next_stalled().unwrap(), b"rest");
        assert_eq!(debt.next_stalled().unwrap(), 1usize.to_le_bytes());
        assert!(debt.is_stalled());
    }
}
