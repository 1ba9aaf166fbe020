//! Where completions go: queues and counters, as they were bound to the endpoint.

use crate::abi::flag;
use crate::cntr;
use crate::cq::{self, Entry};

/// The reports of one operation when it is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Submit {
    /// The application's context.
    pub(crate) context: usize,
    /// Flags of the call.
    pub(crate) flags: u64,
}

/// The queue of one direction.
#[derive(Clone, Default)]
pub(crate) struct Side {
    pub(crate) queue: Option<cq::Handle>,
    /// Only operations that ask for it get an entry.
    pub(crate) selective: bool,
}

impl Side {
    /// Whether an operation with these flags gets an entry when it succeeds.
    pub(crate) fn wants(&self, flags: u64) -> bool {
        self.queue.is_some() && (!self.selective || flags & flag::COMPLETION != 0)
    }

    /// Whether one more entry finds room.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.has_room())
    }

    pub(crate) fn push(&self, entry: Entry) {
        if let Some(queue) = &self.queue {
            queue.push(entry);
        }
    }
}

/// Queues and counters of an endpoint.
#[derive(Clone, Default)]
pub(crate) struct Sinks {
    pub(crate) transmit: Side,
    pub(crate) receive: Side,
    pub(crate) sends: Option<cntr::Handle>,
    pub(crate) receives: Option<cntr::Handle>,
    pub(crate) reads: Option<cntr::Handle>,
    pub(crate) writes: Option<cntr::Handle>,
    pub(crate) remote_reads: Option<cntr::Handle>,
    pub(crate) remote_writes: Option<cntr::Handle>,
}

impl Sinks {
    /// All queues and all counters, each once.
    pub(crate) fn queues(&self) -> Vec<&cq::Handle> {
        let mut queues: Vec<&cq::Handle> = Vec::new();
        for queue in [&self.transmit.queue, &self.receive.queue].into_iter().flatten() {
            if !queues.iter().any(|other| std::sync::Arc::ptr_eq(other, queue)) {
                queues.push(queue);
            }
        }
        queues
    }

    pub(crate) fn counters(&self) -> Vec<&cntr::Handle> {
        let all =
            [&self.sends, &self.receives, &self.reads, &self.writes, &self.remote_reads, &self.remote_writes];
        let mut counters: Vec<&cntr::Handle> = Vec::new();
        for counter in all.into_iter().flatten() {
            if !counters.iter().any(|other| std::sync::Arc::ptr_eq(other, counter)) {
                counters.push(counter);
            }
        }
        counters
    }
}

/// Counts one operation where a counter is bound.
pub(crate) fn tick(counter: &Option<cntr::Handle>, failed: bool) {
    if let Some(counter) = counter {
        counter.count(failed);
    }
}
