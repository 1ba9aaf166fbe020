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
    /// The coordinator passes a message of one keeper to another on: the receiver, and the message's place.
    Relay { party: u32, place: u32 },
    /// The timer of the coordinator or of a keeper may be due.
    Timer { party: u32 },
    /// The timer of the machine of the nodes' directories may be due.
    NodesTimer,
    /// The process of a rank has ended, in the life with this number.
    Killed { rank: u32, counter: u32 },
    /// A process has read the image of its rank.
    Restored { rank: u32 },
    /// A keeper begins on a spare host.
    KeeperStarts { node: u32 },
    /// The store refuses commits of older lives than this one's.
    Fenced { counter: u32 },
    /// The decision is durable in the job's directory.
    Decided,
    /// A question about its directory reaches a node: its place.
    Asked { node: u32, place: u32 },
    /// The answer reaches the launcher.
    Answers { node: u32, place: u32 },
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

    /// The next one, if it is due by then.
    pub(super) fn next_until(&mut self, until: Nanos) -> Option<(Nanos, Event)> {
        self.heap.peek().filter(|Reverse((at, ..))| *at <= until)?;
        self.next()
    }

    pub(super) fn next(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|Reverse((at, _, _, event))| (at, event))
    }
}
