//! The lock of a node (R30): a keeper that has just begun knows of no process, and another one's may still run here.
//!
//! ```text
//!   keeper begins ---> Lock ---> (an earlier keeper, its guard and its ranks end) ---> Locked ---> fences are answered, lives begin
//! ```

use super::{Keeper, Output, State};
use crate::sabotage::Rule;

/// The lock as a keeper knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeLock {
    is_held: bool,
    /// A fence that waits for it, below this counter.
    fence: Option<u32>,
}

impl Keeper {
    /// R30: without it neither a fence is answered nor a life begun.
    pub(super) fn has_lock(&self) -> bool {
        self.lock.is_held || self.sabotage.is_out(Rule::NoLock)
    }

    pub(super) fn ask_lock(&mut self) {
        self.outputs.push(Output::Lock);
    }

    /// No process of any life that another keeper has begun runs on this node, and none will.
    pub(super) fn on_locked(&mut self) {
        self.lock.is_held = true;
        if let (Some(counter), State::Empty { votes, .. }) = (self.lock.fence.take(), &self.state) {
            self.answer_fence(counter, *votes);
        }
    }

    /// Answers a fence of a keeper that keeps nothing, at once or when it has the lock.
    pub(super) fn answer_empty(&mut self, counter: u32, votes: bool) {
        if self.has_lock() {
            self.answer_fence(counter, votes);
        } else {
            self.lock.fence = Some(counter);
        }
    }
}
