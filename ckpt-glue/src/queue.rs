//! The queue of a machine's outputs; every machine of this crate has one.

use alloc::collections::VecDeque;

use crate::limits::OUTPUTS_MAX;

/// Outputs in the order in which they must be carried out.
#[derive(Debug, Clone)]
pub(crate) struct Queue<T>(VecDeque<T>);

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue(VecDeque::new())
    }
}

impl<T> Queue<T> {
    /// Adds `output` behind all others.
    ///
    /// # Panics
    /// When a shell does not poll: that is a bug of the shell, and going on would eat the node's memory.
    pub(crate) fn push(&mut self, output: T) {
        assert!(self.0.len() < OUTPUTS_MAX, "{OUTPUTS_MAX} outputs wait: the shell does not poll");
        self.0.push_back(output);
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.0.pop_front()
    }
}
