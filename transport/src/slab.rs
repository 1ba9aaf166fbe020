//! A table with stable places: values are named by keys that never come to mean another value.

use alloc::vec::Vec;
use core::fmt;

/// "No slot", where a slot's index is expected.
pub const NO_SLOT: u32 = u32::MAX;

/// An emptied slab keeps memory for this many slots and gives the rest back, so that a burst is not paid for ever.
pub const SLOTS_KEPT: usize = 1024;

/// Names one value of one [`Slab`]. The key of a removed value finds nothing, even when its slot is in use again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabKey {
    index: u32,
    generation: u32,
}

impl SlabKey {
    /// The slot, for [`Slab::at`].
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// The key as a number: to carry through a program's handle or a dump.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key whose [`SlabKey::to_bits`] is `bits`. Any number makes a key; one that was never given out finds nothing.
    #[must_use]
    pub fn from_bits(bits: u64) -> SlabKey {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        SlabKey { index: half(bits), generation: half(bits >> 32) }
    }
}

impl fmt::Debug for SlabKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.index, self.generation)
    }
}

#[derive(Clone)]
enum Content<T> {
    Occupied(T),
    Vacant { free_after: u32 },
}

#[derive(Clone)]
struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

/// A table of `T` with constant-time insertion, look-up and removal, which allocates only while it grows.
///
/// Slots are used again last-in first-out, so equal call sequences give equal keys. The owner bounds the number of
/// values.
#[derive(Clone)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free_first: u32,
    occupied: usize,
    /// Counted up by every insertion anywhere in the slab: slots can be given back without remembering their
    /// keys. A stale key finds a wrong value only if its slot is filled by exactly the 2^32nd insertion after
    /// its own.
    generation_next: u32,
}

impl<T> Slab<T> {
    /// An empty slab; allocates nothing.
    #[must_use]
    pub const fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free_first: NO_SLOT, occupied: 0, generation_next: 0 }
    }

    /// Values present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.occupied
    }

    /// Whether no value is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Slots that memory is held for.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Puts `value` into a free slot.
    ///
    /// # Panics
    /// If 2^32 - 1 values are present.
    #[inline]
    pub fn insert(&mut self, value: T) -> SlabKey {
        let generation = self.generation_next;
        self.generation_next = generation.wrapping_add(1);
        self.occupied += 1;
        if let Some(slot) = self.slots.get_mut(self.free_first as usize) {
            let Content::Vacant { free_after } = slot.content else { unreachable!("free slot is occupied") };
            let index = core::mem::replace(&mut self.free_first, free_after);
            *slot = Slot { generation, content: Content::Occupied(value) };
            return SlabKey { index, generation };
        }
        let index = u32::try_from(self.slots.len()).unwrap_or(NO_SLOT);
        assert!(index != NO_SLOT, "a slab holds at most {NO_SLOT} values");
        self.slots.push(Slot { generation, content: Content::Occupied(value) });
        SlabKey { index, generation }
    }

    /// The value named by `key`, unless removed.
    #[must_use]
    #[inline]
    pub fn get(&self, key: SlabKey) -> Option<&T> {
        match self.slots.get(key.index as usize)? {
            Slot { generation, content: Content::Occupied(value) } if *generation == key.generation => {
                Some(value)
            }
            _ => None,
        }
    }

    /// The value named by `key`, unless removed.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        match self.slots.get_mut(key.index as usize)? {
            Slot { generation, content: Content::Occupied(value) } if *generation == key.generation => {
                Some(value)
            }
            _ => None,
        }
    }

    /// Takes the value named by `key` out, unless removed before.
    pub fn remove(&mut self, key: SlabKey) -> Option<T> {
        self.get(key)?;
        Some(self.remove_at(key.index))
    }

    /// The value in slot `index`, for owners that chain slots by index.
    ///
    /// # Panics
    /// If the slot is vacant: the owner's chain is broken.
    #[must_use]
    #[inline]
    pub fn at(&self, index: u32) -> &T {
        match &self.slots[index as usize].content {
            Content::Occupied(value) => value,
            Content::Vacant { .. } => panic!("slot {index} is vacant"),
        }
    }

    /// The value in slot `index`.
    ///
    /// # Panics
    /// If the slot is vacant.
    #[must_use]
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        match &mut self.slots[index as usize].content {
            Content::Occupied(value) => value,
            Content::Vacant { .. } => panic!("slot {index} is vacant"),
        }
    }

    /// The key of the value in slot `index`.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    #[inline]
    pub fn key_at(&self, index: u32) -> SlabKey {
        SlabKey { index, generation: self.slots[index as usize].generation }
    }

    /// Takes the value in slot `index` out.
    ///
    /// # Panics
    /// If the slot is vacant.
    #[inline]
    pub fn remove_at(&mut self, index: u32) -> T {
        let vacant = Content::Vacant { free_after: self.free_first };
        let content = core::mem::replace(&mut self.slots[index as usize].content, vacant);
        let Content::Occupied(value) = content else { panic!("slot {index} is vacant") };
        self.free_first = index;
        self.occupied -= 1;
        if self.occupied == 0 && self.slots.len() > SLOTS_KEPT {
            self.slots = Vec::new();
            self.free_first = NO_SLOT;
        }
        value
    }

    /// All values, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| match &slot.content {
            Content::Occupied(value) => Some((SlabKey { index, generation: slot.generation }, value)),
            Content::Vacant { .. } => None,
        })
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_removed_value_finds_nothing_although_the_slot_is_used_again() {
        let mut slab = Slab::new();
        let old = slab.insert("old");
        assert_eq!(slab.remove(old), Some("old"));
        let new = slab.insert("new");
        assert_eq!(new.index(), old.index());
        assert_eq!(slab.remove(old), None);
        assert_eq!((slab.get(old), slab.get(new)), (None, Some(&"new")));
    }

    #[test]
    fn memory_of_a_burst_is_given_back_and_its_keys_stay_dead() {
        let mut slab = Slab::new();
        let keys: Vec<SlabKey> = (0..2 * SLOTS_KEPT).map(|n| slab.insert(n)).collect();
        for &key in &keys {
            assert!(slab.remove(key).is_some());
        }
        assert_eq!((slab.len(), slab.slots()), (0, 0));
        slab.insert(7);
        assert!(keys.iter().all(|&key| slab.get(key).is_none()));
    }

    #[test]
    fn steady_use_stays_in_the_same_slots() {
        let mut slab = Slab::new();
        let kept = slab.insert(0);
        for n in 0..1000 {
            let key = slab.insert(n);
            assert_eq!(slab.remove(key), Some(n));
        }
        assert_eq!(slab.slots(), 2);
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(kept, &0)]);
    }

    #[test]
    fn keys_travel_as_numbers() {
        let mut slab = Slab::new();
        slab.insert(1);
        let key = slab.insert(2);
        assert_eq!(SlabKey::from_bits(key.to_bits()), key);
        assert_eq!(slab.get(SlabKey::from_bits(u64::MAX)), None);
    }
}
