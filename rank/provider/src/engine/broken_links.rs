//! Requests to an unreachable peer, because both ends of the link contradict each other (R10): they end with
//! `FI_ECONNABORTED`, and so does every later call.

use transport::LinkIndex;
use transport::slab::SlabKey;

use super::{Engine, Request, State};

const ABORTED: i32 = libc::ECONNABORTED;

impl Engine {
    /// A link is broken. The endpoint reports its operations one by one; only the engine knows of requests that wait
    /// for an answer.
    pub(super) fn link_broken(&self, state: &mut State, link: LinkIndex) {
        let of_link = |request: &Request| matches!(request, Request::Rma(pending) if pending.link == link);
        let waiting: Vec<SlabKey> =
            state.requests.iter().filter(|(_, request)| of_link(request)).map(|(key, _)| key).collect();
        for key in waiting {
            self.rma_broken(state, key, ABORTED.unsigned_abs());
        }
    }

    pub(super) fn send_broken(&self, state: &mut State, key: SlabKey, buffer: Option<Vec<u8>>) {
        match state.requests.get(key) {
            Some(Request::Send(_)) => {
                if let Some(Request::Send(sending)) = state.requests.remove(key) {
                    self.fail_send(&sending, ABORTED);
                }
            }
            Some(Request::Rma(_)) => self.rma_failed(state, key, ABORTED.unsigned_abs()),
            Some(Request::Served(..)) => self.sent(state, key, buffer),
            _ => {}
        }
    }

    pub(super) fn receive_broken(&self, state: &mut State, key: SlabKey, tag: u64, finished: bool) {
        match state.requests.get(key) {
            Some(Request::Receive(_)) => self.fail_receive(state, key, tag, finished, ABORTED),
            Some(Request::Rma(_)) => self.rma_failed(state, key, ABORTED.unsigned_abs()),
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
