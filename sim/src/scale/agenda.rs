//! The next events of a large job: like [`crate::engine::queue`], but with a class between time and order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::queue::Nanos;

/// Something that happens to a party.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// A control message arrives: the receiver, and the message's place.
    Control { party: u32, place: u32 },
    /// A rank has written its image.
    Written { rank: u32 },
    /// The coordinator has written its commit record.
    Committed,
    /// A marker arrives at a rank. Last of all events at one time, regardless of the order of scheduling: so the
    /// aggregate knows, without scheduling, which came before it.
    Marker { rank: u32 },
}

impl Event {
    fn class(self) -> u8 {
        u8::from(matches!(self, Event::Marker { .. }))
    }
}

/// Events by time, then class, then the order of scheduling.
#[derive(Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(Nanos, u8, u64, Event)>>,
    scheduled: u64,
}

impl Agenda {
    pub(super) fn at(&mut self, at: Nanos, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((at, event.class(), self.scheduled, event)));
    }

    pub(super) fn next(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|Reverse((at, _, _, event))| (at, event))
    }
}
