//! Receives that wait for a message.
//!
//! Receives lie in buckets by source and by the tag bits that they look at. Which bits those are differs between receives,
//! but programs use very few masks; receives with one mask, all addressed or all from any source, form a *class*. An
//! arriving message looks into one bucket per class, and order stamps say whose receive was posted first. With one class
//! per receive this is the plain search of a list, never worse.

use alloc::vec::Vec;

use crate::ids::OpId;

use super::chain::{Buckets, Chain, Node, Nodes, hash, hash_number};
use super::{Envelope, Pattern, Placement, Receive, Space};

/// Lane of all receives in the order of posting.
const ORDER: usize = 0;
/// Lane of the buckets by source and tag.
const BIN: usize = 1;
/// Lane of the buckets by operation.
const OP: usize = 2;

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
    nodes: Nodes<Entry>,
    order: Chain,
    bins: Buckets,
    ops: Buckets,
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
            ops: Buckets::new(),
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
        let (bin, op) = (bin_of(&receive.pattern), bucket_of(receive.op));
        let index = self.nodes.insert(Node::new(Entry { receive, stamp: self.stamp_next })).index();
        self.stamp_next += 1;
        self.order.append(&mut self.nodes, ORDER, index);
        if self.bins.crowded(self.nodes.len()) {
            self.spread();
        } else {
            self.bins.chain_mut(bin).append(&mut self.nodes, BIN, index);
            self.ops.chain_mut(op).append(&mut self.nodes, OP, index);
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
            let (bin, op) = (bin_of(&receive.pattern), bucket_of(receive.op));
            self.bins.chain_mut(bin).append(&mut self.nodes, BIN, index);
            self.ops.chain_mut(op).append(&mut self.nodes, OP, index);
        }
    }

    fn remove(&mut self, index: u32) {
        let pattern = self.nodes.at(index).value.receive.pattern;
        let (bin, op) = (bin_of(&pattern), bucket_of(self.nodes.at(index).value.receive.op));
        self.leave_class(&pattern);
        self.order.remove(&mut self.nodes, ORDER, index);
        self.bins.chain_mut(bin).remove(&mut self.nodes, BIN, index);
        self.ops.chain_mut(op).remove(&mut self.nodes, OP, index);
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
        let bucket = self.ops.chain(bucket_of(op));
        bucket.walk(&self.nodes, OP).find(|(_, entry)| entry.receive.op == op).map(|(index, _)| index)
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.nodes.slots()
    }
}

fn bin_of(pattern: &Pattern) -> u64 {
    hash(pattern.space, pattern.source, pattern.tag & !pattern.ignore)
}

fn bucket_of(op: OpId) -> u64 {
    hash_number(op.0)
}
