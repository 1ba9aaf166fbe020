//! A completion queue that is not read fills up. Completions of a program's own calls always find room, as no such call
//! is accepted while the queue is full. Completions that peers cause without one wait: messages into a buffer for
//! several, and writes with data for the queue. Peers' other requests are served, and counters count, however full a
//! queue is.

use endpoint::Completion;
use transport::slab::SlabKey;

use super::{Engine, Request, State};
use crate::boundary::{EAGAIN, Result};
use crate::limits::BACKLOG_MAX;

impl Engine {
    /// Whether a completion has to wait until the queue of receives has room, or behind others that do.
    #[inline]
    pub(super) fn must_wait(&self, state: &State, completion: &Completion) -> bool {
        let waits = !state.backlog.is_empty();
        (waits || !self.sinks.receive.has_room()) && is_for_the_queue(state, completion, waits)
    }

    /// Takes completions that have room now from the backlog. False: so many wait that nothing more is taken
    /// from the endpoint.
    #[cold]
    pub(super) fn shrink_backlog(&self, state: &mut State) -> bool {
        while self.sinks.receive.has_room()
            && let Some(completion) = state.backlog.pop_front()
        {
            self.perform(state, completion);
        }
        state.backlog.len() < BACKLOG_MAX
    }

    /// A queue has been read that was full.
    pub(crate) fn has_room_again(&self) {
        let mut state = self.lock();
        self.work_off(&mut state);
    }

    /// Whether nothing waits that could be read. A completion that finds room now is read next.
    pub(super) fn has_no_backlog(&self) -> bool {
        let mut state = self.lock();
        let none = state.backlog.is_empty();
        if !none {
            self.shrink_backlog(&mut state);
        }
        none
    }

    /// Refuses a call that may end with an entry in a queue that is full.
    pub(super) fn wants_room(&self, side: &super::sinks::Side) -> Result<()> {
        if side.has_room() {
            return Ok(());
        }
        self.progress();
        Err(EAGAIN)
    }
}

/// Whether a completion ends with an entry that no call of its own stands for; or, if others `wait`, with any about a message.
#[cold]
fn is_for_the_queue(state: &State, completion: &Completion, wait: bool) -> bool {
    let (Completion::Received { context, .. }
    | Completion::Stopped { context, .. }
    | Completion::ReceiveFailed { context, .. }) = completion
    else {
        return false;
    };
    match state.requests.get(SlabKey::from_bits(*context)) {
        Some(Request::Receive(posted)) => wait || posted.multi,
        _ => false,
    }
}
