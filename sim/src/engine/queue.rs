//! The event queue: the next events in virtual time, ties in the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time of the whole world in nanoseconds since the history's start. No process can see it: see
/// [`Clock`](super::clock::Clock).
pub type Nanos = u64;

/// One microsecond of virtual time.
pub const MICRO: Nanos = 1_000;
/// One millisecond of virtual time.
pub const MILLI: Nanos = 1_000_000;
/// One second of virtual time.
pub const SECOND: Nanos = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry<E> {
    at: Nanos,
    // Ties are broken by order of scheduling, so that a history does not depend on the heap's inner order.
    number: u64,
    event: E,
}

/// Pending events. `E` is small and `Copy`; its `Ord` is never consulted, because `number` is unique.
#[derive(Debug)]
pub struct Queue<E: Copy + Ord> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now: Nanos,
    scheduled: u64,
}

impl<E: Copy + Ord> Default for Queue<E> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::with_capacity(1024), now: 0, scheduled: 0 }
    }
}

impl<E: Copy + Ord> Queue<E> {
    /// The world's time: that of the event popped last.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules `event`; a time in the past means now.
    #[inline]
    pub fn at(&mut self, at: Nanos, event: E) {
        let number = self.scheduled;
        self.scheduled += 1;
        self.heap.push(Reverse(Entry { at: at.max(self.now), number, event }));
    }

    /// Schedules `event` in `delay` nanoseconds.
    #[inline]
    pub fn after(&mut self, delay: Nanos, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// The next event; the world's time moves to it.
    #[inline]
    pub fn pop(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// Events pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if nothing will ever happen again.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Back to time zero with nothing pending; keeps the memory for the next history.
    pub fn clear(&mut self) {
        self.heap.clear();
        self.now = 0;
        self.scheduled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order_of_scheduling() {
        let mut queue = Queue::default();
        queue.at(20, 'c');
        queue.at(10, 'z');
        queue.at(10, 'a');
        assert_eq!([queue.pop(), queue.pop()], [Some('z'), Some('a')]);
        queue.at(5, 'p');
        assert_eq!((queue.pop(), queue.now()), (Some('p'), 10), "the past is now");
        assert_eq!([queue.pop(), queue.pop()], [Some('c'), None]);
    }
}
