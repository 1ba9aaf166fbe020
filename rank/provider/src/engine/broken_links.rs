//! Requests to an unreachable peer. If both ends of the link contradict each other (R10), they end with
//! `FI_ECONNABORTED`, and so does every later call.
//!
//! If the peer's process has ended and the job goes on without it (R37), messages to it and receives from it alone are
//! accepted, and end with `FI_ETRUNC` and the provider's own number `EHOSTDOWN`. MPICH 5 ends the whole program at every
//! other error, whatever error handler the program has set; with this one a receive fails, and a send is complete.

use transport::LinkIndex;
use transport::slab::SlabKey;

use super::{Engine, Request, State};
use crate::abi::errno;

const ABORTED: i32 = libc::ECONNABORTED;

/// The peer's process has ended, and the job goes on without it.
pub(super) const LOST: i32 = errno::ETRUNC;

impl State {
    /// The error of requests over a broken link.
    fn failure_of(&self, link: LinkIndex) -> i32 {
        if self.lost.contains(&link) { LOST } else { ABORTED }
    }
}

impl Engine {
    /// A link is broken. The endpoint reports its operations one by one; only the engine knows of requests that wait
    /// for an answer.
    pub(super) fn link_broken(&self, state: &mut State, link: LinkIndex) {
        let of_link = |request: &Request| matches!(request, Request::Rma(pending) if pending.link == link);
        let waiting: Vec<SlabKey> =
            state.requests.iter().filter(|(_, request)| of_link(request)).map(|(key, _)| key).collect();
        let failure = state.failure_of(link).unsigned_abs();
        for key in waiting {
            self.rma_broken(state, key, failure);
        }
    }

    pub(super) fn send_broken(&self, state: &mut State, key: SlabKey, buffer: Option<Vec<u8>>) {
        match state.requests.get(key) {
            Some(Request::Send(_)) => {
                if let Some(Request::Send(sending)) = state.requests.remove(key) {
                    self.fail_send(&sending, state.failure_of(sending.link));
                }
            }
            Some(Request::Rma(pending)) => {
                let failure = state.failure_of(pending.link).unsigned_abs();
                self.rma_failed(state, key, failure);
            }
            Some(Request::Served(..)) => self.sent(state, key, buffer),
            _ => {}
        }
    }

    pub(super) fn receive_broken(
        &self,
        state: &mut State,
        key: SlabKey,
        source: LinkIndex,
        (tag, finished): (u64, bool),
    ) {
        let failure = state.failure_of(source);
        match state.requests.get(key) {
            Some(Request::Receive(_)) => self.fail_receive(state, key, tag, finished, failure),
            Some(Request::Rma(_)) => self.rma_failed(state, key, failure.unsigned_abs()),
            Some(Request::TargetBuffer(number)) if finished => {
                // The buffer is posted again with other waiting ones.
                state.rma_target.unposted.push(*number);
                state.requests.remove(key);
            }
            Some(Request::Landing(_)) => landing_broken(state, key),
            Some(Request::Swallow) => _ = state.requests.remove(key),
            None
            | Some(Request::TargetBuffer(_) | Request::Send(_) | Request::Served(..) | Request::Pieces(_)) => {
            }
        }
    }
}

/// A peer's long write will not come, and no local operation waits for it.
fn landing_broken(state: &mut State, key: SlabKey) {
    let Some(Request::Landing(landing)) = state.requests.remove(key) else { return };
    if landing.elsewhere.is_some() {
        state.rma_target.return_credits(landing.link, landing.bytes);
    }
}
