//! Messages that no receive waited for, and those of them that the program has claimed.
//!
//! Messages lie in buckets by source, and in buckets by the tag bits outside one mask, the *habit*: the mask that recent
//! receives searched with. Both kinds of bucket keep the order of arrival and hold every message a fitting receive can take,
//! so a search may walk either, and walks both in turn: it costs at most twice the shorter way. A receive that ignores a
//! bit outside the habit cannot use the tags' buckets; when searches get long, its mask becomes the habit.

use alloc::vec::Vec;

use crate::slab::{NO_SLOT, SlabKey};

use super::chain::{Buckets, Chain, Node, Nodes, hash};
use super::{Envelope, Message, Pattern};

/// Lane of all messages in the order of arrival; of claimed messages in the order of claiming.
const ORDER: usize = 0;
/// Lane of the buckets by source.
const SOURCE: usize = 1;
/// Lane of the buckets by tag.
const TAG: usize = 2;

/// Steps of searching forgiven before the habit may change: short queues are searched faster than sorted.
const STEPS_FORGIVEN: usize = 64;

#[derive(Clone)]
struct Entry<U> {
    message: Message<U>,
    claimed: bool,
}

#[derive(Clone)]
pub(super) struct Unexpected<U> {
    nodes: Nodes<Entry<U>, 3>,
    arrival: Chain,
    claims: Chain,
    /// Claimed messages: in `nodes` and `claims`, in no other chain.
    claimed: usize,
    sources: Buckets,
    tags: Buckets,
    /// Bits that the tags' buckets do not look at.
    habit: u64,
    /// Steps of searching since the habit was last considered. Sorting anew costs a step per message, and is done after
    /// twice as many: at most half as much again as searching alone.
    steps: usize,
}

impl<U> Unexpected<U> {
    pub(super) fn new() -> Unexpected<U> {
        Unexpected {
            nodes: Nodes::new(),
            arrival: Chain::EMPTY,
            claims: Chain::EMPTY,
            claimed: 0,
            sources: Buckets::new(),
            tags: Buckets::new(),
            habit: 0,
            steps: 0,
        }
    }

    /// Messages held, claimed ones included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Messages that a receive can still take.
    pub(super) fn matchable(&self) -> usize {
        self.nodes.len() - self.claimed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlabKey, &Message<U>)> {
        let walk = self.arrival.walk(&self.nodes, ORDER);
        walk.map(|(index, entry)| (self.nodes.key_at(index), &entry.message))
    }

    pub(super) fn iter_claimed(&self) -> impl Iterator<Item = (SlabKey, &Message<U>)> {
        let walk = self.claims.walk(&self.nodes, ORDER);
        walk.map(|(index, entry)| (self.nodes.key_at(index), &entry.message))
    }

    pub(super) fn message(&self, key: SlabKey) -> Option<&Message<U>> {
        self.nodes.get(key).map(|node| &node.value.message)
    }

    pub(super) fn message_mut(&mut self, key: SlabKey) -> Option<&mut Message<U>> {
        self.nodes.get_mut(key).map(|node| &mut node.value.message)
    }

    pub(super) fn is_claimed(&self, key: SlabKey) -> bool {
        self.nodes.get(key).is_some_and(|node| node.value.claimed)
    }

    pub(super) fn append(&mut self, message: Message<U>) -> SlabKey {
        let (source, tag) = self.buckets_of(&message.envelope);
        let key = self.nodes.insert(Node::new(Entry { message, claimed: false }));
        let index = key.index();
        self.arrival.append(&mut self.nodes, ORDER, index);
        if self.sources.crowded(self.matchable()) {
            self.spread();
        } else {
            self.sources.chain_mut(source).append(&mut self.nodes, SOURCE, index);
            self.tags.chain_mut(tag).append(&mut self.nodes, TAG, index);
        }
        key
    }

    pub(super) fn append_claimed(&mut self, message: Message<U>) -> SlabKey {
        let key = self.nodes.insert(Node::new(Entry { message, claimed: true }));
        self.claims.append(&mut self.nodes, ORDER, key.index());
        self.claimed += 1;
        key
    }

    pub(super) fn claim(&mut self, key: SlabKey) {
        self.unchain(key.index());
        self.nodes.at_mut(key.index()).value.claimed = true;
        self.claims.append(&mut self.nodes, ORDER, key.index());
        self.claimed += 1;
    }

    pub(super) fn remove(&mut self, key: SlabKey) -> Option<Message<U>> {
        if self.nodes.get(key)?.value.claimed {
            self.claims.remove(&mut self.nodes, ORDER, key.index());
            self.claimed -= 1;
        } else {
            self.unchain(key.index());
        }
        let message = self.nodes.remove_at(key.index()).value.message;
        if self.matchable() == 0 {
            self.sources.relax();
            self.tags.relax();
        }
        Some(message)
    }

    /// The message that arrived first among those that `pattern` takes.
    pub(super) fn find(&mut self, pattern: &Pattern) -> Option<SlabKey> {
        if self.arrival.first == NO_SLOT {
            // Nothing to sort anew.
            self.habit = pattern.ignore;
            return None;
        }
        let (found, steps) = self.search(pattern);
        self.steps += steps;
        if self.steps > 2 * self.matchable() + STEPS_FORGIVEN {
            self.steps = 0;
            if self.habit != pattern.ignore {
                self.habit = pattern.ignore;
                self.spread();
            }
        }
        found.map(|index| self.nodes.key_at(index))
    }

    /// Walks the chains that hold every message for `pattern`, a step in each in turn; returns the steps made.
    fn search(&self, pattern: &Pattern) -> (Option<u32>, usize) {
        let source =
            pattern.source.map(|link| (SOURCE, self.sources.chain(hash(pattern.space, Some(link), 0)).first));
        let tag = (pattern.ignore & !self.habit == 0)
            .then(|| (TAG, self.tags.chain(hash(pattern.space, None, pattern.tag & !self.habit)).first));
        let (mut here, mut other) = match (source, tag) {
            (Some(source), tag) => (source, tag),
            (None, Some(tag)) => (tag, None),
            (None, None) => ((ORDER, self.arrival.first), None),
        };
        let mut steps = 0;
        loop {
            let (lane, index) = here;
            if index == NO_SLOT {
                return (None, steps);
            }
            let node = self.nodes.at(index);
            if pattern.takes(&node.value.message.envelope) {
                return (Some(index), steps);
            }
            here.1 = node.after(lane);
            steps += 1;
            if let Some(other) = &mut other {
                core::mem::swap(&mut here, other);
            }
        }
    }

    /// Makes buckets for the present messages and habit, and puts every message, oldest first, into its two.
    fn spread(&mut self) {
        self.sources.reset(self.matchable());
        self.tags.reset(self.matchable());
        let mut indices = Vec::with_capacity(self.matchable());
        indices.extend(self.arrival.walk(&self.nodes, ORDER).map(|(index, _)| index));
        for index in indices {
            let (source, tag) = self.buckets_of(&self.nodes.at(index).value.message.envelope);
            self.sources.chain_mut(source).append(&mut self.nodes, SOURCE, index);
            self.tags.chain_mut(tag).append(&mut self.nodes, TAG, index);
        }
    }

    fn unchain(&mut self, index: u32) {
        let (source, tag) = self.buckets_of(&self.nodes.at(index).value.message.envelope);
        self.arrival.remove(&mut self.nodes, ORDER, index);
        self.sources.chain_mut(source).remove(&mut self.nodes, SOURCE, index);
        self.tags.chain_mut(tag).remove(&mut self.nodes, TAG, index);
    }

    fn buckets_of(&self, envelope: &Envelope) -> (u64, u64) {
        let source = hash(envelope.space, Some(envelope.source), 0);
        (source, hash(envelope.space, None, envelope.tag & !self.habit))
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.nodes.slots()
    }
}
