//! Receives that wait for a message.
//!
//! Receives lie in buckets by source and by the tag bits that they look at. Which bits those are differs
//! between receives, but programs use very few masks; receives with one mask, all addressed or all from any
//! source, form a *class*. An arriving message looks into one bucket per class, and order stamps show whose
//! receive was posted first. With one class per receive this is the plain search of a list, never worse.

use alloc::vec::Vec;

use crate::ids::OpId;
use crate::slab::{NO_SLOT, SLOTS_KEPT};

use super::chain::{Buckets, Chain, Node, Nodes, hash};
use super::{Envelope, Pattern, Placement, Receive, Space};

/// Lane of all receives in the order of posting.
const ORDER: usize = 0;
/// Lane of the buckets by source and tag.
const BIN: usize = 1;

/// Places for operations in a table that is nearly empty; a power of two.
const OPS_MIN: usize = 64;

/// So many classes are remembered when their last receive has gone: the next one is usually like it.
const CLASSES_KEPT: usize = 4;

#[derive(Clone)]
struct Entry {
    receive: Receive,
    /// Orders receives over buckets: smaller was posted earlier.
    stamp: u64,
}

#[derive(Clone)]
struct Class {
    space: Space,
    addressed: bool,
    ignore: u64,
    receives: usize,
}

impl Class {
    fn holds(&self, pattern: &Pattern) -> bool {
        self.space == pattern.space
            && self.addressed == pattern.source.is_some()
            && self.ignore == pattern.ignore
    }
}

#[derive(Clone)]
pub(super) struct Posted {
    nodes: Nodes<Entry, 2>,
    order: Chain,
    bins: Buckets,
    ops: Ops,
    /// Classes of the posted receives, and a few that had some.
    classes: Vec<Class>,
    stamp_next: u64,
}

impl Posted {
    pub(super) fn new() -> Posted {
        Posted {
            nodes: Nodes::new(),
            order: Chain::EMPTY,
            bins: Buckets::new(),
            ops: Ops::new(),
            classes: Vec::new(),
            stamp_next: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Receive> {
        self.order.walk(&self.nodes, ORDER).map(|(_, entry)| &entry.receive)
    }

    pub(super) fn append(&mut self, receive: Receive) {
        match self.classes.iter_mut().find(|class| class.holds(&receive.pattern)) {
            Some(class) => class.receives += 1,
            None => {
                let Pattern { space, source, ignore, .. } = receive.pattern;
                self.classes.push(Class { space, addressed: source.is_some(), ignore, receives: 1 });
            }
        }
        let (bin, op) = (bin_of(&receive.pattern), receive.op);
        let index = self.nodes.insert(Node::new(Entry { receive, stamp: self.stamp_next })).index();
        self.stamp_next += 1;
        self.order.append(&mut self.nodes, ORDER, index);
        if self.bins.crowded(self.nodes.len()) {
            self.spread();
        } else {
            self.bins.chain_mut(bin).append(&mut self.nodes, BIN, index);
            self.ops.insert(op, index);
        }
    }

    /// Doubles the buckets and puts every receive, oldest first, into its new one.
    fn spread(&mut self) {
        self.bins.reset(self.nodes.len());
        self.ops.reset(self.nodes.len());
        let mut indices = Vec::with_capacity(self.nodes.len());
        indices.extend(self.order.walk(&self.nodes, ORDER).map(|(index, _)| index));
        for index in indices {
            let receive = &self.nodes.at(index).value.receive;
            let (bin, op) = (bin_of(&receive.pattern), receive.op);
            self.bins.chain_mut(bin).append(&mut self.nodes, BIN, index);
            self.ops.insert(op, index);
        }
    }

    fn remove(&mut self, index: u32) {
        let Receive { pattern, op, .. } = self.nodes.at(index).value.receive;
        let bin = bin_of(&pattern);
        self.leave_class(&pattern);
        self.order.remove(&mut self.nodes, ORDER, index);
        self.bins.chain_mut(bin).remove(&mut self.nodes, BIN, index);
        self.ops.remove(op, index);
        self.nodes.remove_at(index);
        if self.nodes.is_empty() {
            self.bins.relax();
            self.ops.relax();
        }
    }

    fn leave_class(&mut self, pattern: &Pattern) {
        let Some(place) = self.classes.iter().position(|class| class.holds(pattern)) else {
            unreachable!("a posted receive is of no class");
        };
        self.classes[place].receives -= 1;
        if self.classes[place].receives == 0 && self.classes.len() > CLASSES_KEPT {
            self.classes.swap_remove(place);
        }
    }

    /// The receive posted first among those that take `envelope`.
    fn find(&self, envelope: &Envelope) -> Option<u32> {
        let mut earliest: Option<(u64, u32)> = None;
        for class in self.classes.iter().filter(|class| class.receives > 0 && class.space == envelope.space) {
            let source = class.addressed.then_some(envelope.source);
            let bin = self.bins.chain(hash(envelope.space, source, envelope.tag & !class.ignore));
            // A bucket may hold receives of other classes too; they are matches in their own right.
            let found = bin.walk(&self.nodes, BIN).find(|(_, entry)| entry.receive.pattern.takes(envelope));
            if let Some((index, entry)) = found
                && earliest.is_none_or(|(stamp, _)| entry.stamp < stamp)
            {
                earliest = Some((entry.stamp, index));
            }
        }
        earliest.map(|(_, index)| index)
    }

    /// Whether some receive takes `envelope`.
    pub(super) fn takes(&self, envelope: &Envelope) -> bool {
        self.find(envelope).is_some()
    }

    /// Gives `envelope` to the receive posted first among those that take it; the receive goes, unless it takes more.
    pub(super) fn take(&mut self, envelope: &Envelope) -> Option<(Receive, Placement)> {
        let index = self.find(envelope)?;
        let receive = &mut self.nodes.at_mut(index).value.receive;
        let before = *receive;
        let placement = receive.place(envelope.bytes);
        if placement.last {
            self.remove(index);
        }
        Some((before, placement))
    }

    pub(super) fn contains(&self, op: OpId) -> bool {
        self.find_op(op).is_some()
    }

    pub(super) fn cancel(&mut self, op: OpId) -> Option<Receive> {
        let index = self.find_op(op)?;
        let receive = self.nodes.at(index).value.receive;
        self.remove(index);
        Some(receive)
    }

    fn find_op(&self, op: OpId) -> Option<u32> {
        let is_it = |index: u32| self.nodes.at(index).value.receive.op == op;
        match self.ops.guess(op) {
            Some(index) if is_it(index) => Some(index),
            _ if self.ops.hidden == 0 => None,
            // From both ends: a program takes back its newest receive, or one after the other.
            _ => {
                let older = self.order.walk(&self.nodes, ORDER);
                let newer = self.order.walk_back(&self.nodes, ORDER);
                older.zip(newer).find_map(|((a, _), (b, _))| [a, b].into_iter().find(|index| is_it(*index)))
            }
        }
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.nodes.slots()
    }
}

fn bin_of(pattern: &Pattern) -> u64 {
    hash(pattern.space, pattern.source, pattern.tag & !pattern.ignore)
}

/// Where receives are, by operation. Operations are numbers that are given out in turn, so there is one place for each, and no search: a receive whose
/// place is taken by an older one is hidden, and found by walking. Few are, for a place is taken only by a receive that has waited while as many
/// operations were begun as there are places.
#[derive(Clone)]
struct Ops {
    /// As many as a power of two.
    places: Vec<u32>,
    /// Receives that have no place.
    hidden: usize,
}

impl Ops {
    fn new() -> Ops {
        let mut ops = Ops { places: Vec::new(), hidden: 0 };
        ops.reset(0);
        ops
    }

    /// Forgets everything, and makes enough places for so many receives and as many again.
    fn reset(&mut self, receives: usize) {
        let places = receives.saturating_mul(2).next_power_of_two().max(OPS_MIN);
        self.places.clear();
        self.places.resize(places, NO_SLOT);
        self.hidden = 0;
    }

    /// Gives back the memory of a burst; only while nothing is posted.
    fn relax(&mut self) {
        if self.places.len() > 2 * SLOTS_KEPT {
            *self = Ops::new();
        }
    }

    fn place(&self, op: OpId) -> usize {
        usize::try_from(op.0 & (self.places.len() as u64 - 1)).unwrap_or(0)
    }

    fn guess(&self, op: OpId) -> Option<u32> {
        Some(self.places[self.place(op)]).filter(|index| *index != NO_SLOT)
    }

    fn insert(&mut self, op: OpId, index: u32) {
        let place = self.place(op);
        if self.places[place] == NO_SLOT {
            self.places[place] = index;
        } else {
            self.hidden += 1;
        }
    }

    fn remove(&mut self, op: OpId, index: u32) {
        let place = self.place(op);
        if self.places[place] == index {
            self.places[place] = NO_SLOT;
        } else {
            self.hidden -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LinkIndex;

    fn receive(op: u64) -> Receive {
        let pattern = Pattern { space: Space(0), source: Some(LinkIndex(1)), tag: op, ignore: 0 };
        Receive { op: OpId(op), pattern, bytes_max: 8, context: op, multi: None }
    }

    #[test]
    fn a_receive_whose_place_an_older_one_has_is_found_all_the_same() {
        let mut posted = Posted::new();
        let places = OPS_MIN as u64;
        let ops = [7, 7 + places, 7 + 2 * places, 8];
        for op in ops {
            posted.append(receive(op));
        }
        assert_eq!(posted.ops.hidden, 2);
        assert!(ops.iter().all(|op| posted.contains(OpId(*op))) && !posted.contains(OpId(9)));
        // The place is free again, and hidden entries stay hidden.
        assert_eq!(posted.cancel(OpId(7)), Some(receive(7)));
        assert_eq!((posted.cancel(OpId(7)), posted.ops.hidden), (None, 2));
        assert_eq!(posted.cancel(OpId(7 + 2 * places)), Some(receive(7 + 2 * places)));
        posted.append(receive(7 + 3 * places));
        assert_eq!(posted.ops.hidden, 1);
        for op in [7 + 3 * places, 8, 7 + places] {
            assert_eq!(posted.cancel(OpId(op)), Some(receive(op)));
        }
        assert_eq!((posted.len(), posted.ops.hidden), (0, 0));
        assert!(posted.ops.places.iter().all(|index| *index == NO_SLOT));
    }

    #[test]
    fn places_grow_with_what_is_posted() {
        const MANY: usize = 100 * OPS_MIN;
        let mut posted = Posted::new();
        (0..MANY as u64).for_each(|op| posted.append(receive(op)));
        assert_eq!((posted.ops.hidden, posted.ops.places.len() >= MANY), (0, true));
        (0..MANY as u64).rev().for_each(|op| assert!(posted.cancel(OpId(op)).is_some()));
        assert_eq!((posted.ops.hidden, posted.ops.places.len()), (0, OPS_MIN));
    }
}
