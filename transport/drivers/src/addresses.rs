//! The table of resolved addresses.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use transport::AddressId;

use crate::error::DriverError;
use crate::limits::ADDRESSES_MAX;

/// A driver's data of each resolved address. A caller may still use a forgotten id, so it is reused only when no unused
/// id is left, and after all ids that were forgotten before it.
pub(crate) struct Addresses<A, P> {
    /// By `AddressId`.
    slots: Vec<Option<(A, P)>>,
    ids: HashMap<A, AddressId>,
    forgotten: VecDeque<AddressId>,
}

impl<A: Copy + Eq + Hash, P> Addresses<A, P> {
    pub(crate) fn new() -> Addresses<A, P> {
        Addresses { slots: Vec::new(), ids: HashMap::new(), forgotten: VecDeque::new() }
    }

    /// The id of an address that is known.
    pub(crate) fn id(&self, address: &A) -> Option<AddressId> {
        self.ids.get(address).copied()
    }

    /// Whether one more can be known.
    ///
    /// # Errors
    /// `AddressesFull`.
    pub(crate) fn check_room(&self) -> Result<(), DriverError> {
        if self.ids.len() < ADDRESSES_MAX {
            return Ok(());
        }
        Err(DriverError::AddressesFull { addresses: ADDRESSES_MAX })
    }

    /// Makes an address known that is not.
    ///
    /// # Errors
    /// `AddressesFull`.
    pub(crate) fn insert(&mut self, address: A, peer: P) -> Result<AddressId, DriverError> {
        self.check_room()?;
        let id = if self.slots.len() < ADDRESSES_MAX { None } else { self.forgotten.pop_front() };
        let id = id.unwrap_or_else(|| {
            self.slots.push(None);
            AddressId(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
        });
        self.slots[id.0 as usize] = Some((address, peer));
        self.ids.insert(address, id);
        Ok(id)
    }

    /// Forgets an address, and returns the facts about it.
    pub(crate) fn remove(&mut self, id: AddressId) -> Option<P> {
        let (address, peer) = self.slots.get_mut(id.0 as usize)?.take()?;
        self.ids.remove(&address);
        self.forgotten.push_back(id);
        Some(peer)
    }

    pub(crate) fn get(&self, id: AddressId) -> Option<&P> {
        self.slots.get(id.0 as usize)?.as_ref().map(|(_, peer)| peer)
    }

    pub(crate) fn get_mut(&mut self, id: AddressId) -> Option<&mut P> {
        self.slots.get_mut(id.0 as usize)?.as_mut().map(|(_, peer)| peer)
    }

    pub(crate) fn address(&self, id: AddressId) -> Option<A> {
        self.slots.get(id.0 as usize)?.as_ref().map(|(address, _)| *address)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &P> {
        self.slots.iter().flatten().map(|(_, peer)| peer)
    }

    pub(crate) fn clear(&mut self) {
        *self = Addresses::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_id_comes_again_after_all_others() {
        let mut table = Addresses::new();
        let first = table.insert(0, "first").expect("room");
        assert_eq!(table.remove(first), Some("first"));
        assert_eq!((table.get(first), table.id(&0)), (None, None));
        assert_eq!(table.remove(first), None, "once");
        for address in 1..ADDRESSES_MAX {
            assert_ne!(table.insert(address, "new").expect("room"), first);
        }
        let second = table.id(&1).expect("known");
        table.remove(second);
        assert_eq!(table.insert(usize::MAX, "again"), Ok(first), "the one that was forgotten first");
        assert_eq!(table.insert(usize::MAX - 1, "again"), Ok(second));
        assert_eq!(table.get(second), Some(&"again"));
        let full = DriverError::AddressesFull { addresses: ADDRESSES_MAX };
        assert_eq!(table.check_room(), Err(full));
        assert_eq!(table.insert(0, "more"), Err(full));
    }
}
