//! The receivers of a rail's frames.

use core::ops::Range;
use std::collections::VecDeque;
use std::os::fd::RawFd;

use transport::{AddressId, RawAddress};

use super::address::{EXPECTED, SegmentAddress};
use super::host::Host;
use super::outgoing::{Outcome, Outgoing, Sender};
use super::pull::{Key, pull};
use super::segment::{Outbox, Refused};
use crate::addresses::Addresses;
use crate::counters::Counters;
use crate::error::{DriverError, Operation};
use crate::staging::Staged;

/// Frames that found no room between two looks whether their receiver is still alive.
const FULL_PER_LOOK: u32 = 64;

/// Frames between two attempts to get a ring of a segment whose rings all have living owners.
const CLAIM_EVERY: u32 = 1024;

pub(super) struct Peers {
    host: Host,
    sender: Sender,
    table: Addresses<RawAddress, Peer>,
    /// Unreachable peers, not reported yet.
    pub(super) lost: VecDeque<AddressId>,
}

struct Peer {
    place: SegmentAddress,
    ring: Option<Outgoing>,
    /// It will never be there again: its place names one segment of one process.
    gone: bool,
    /// Frames in a row that found no room.
    full: u32,
    /// Its loss has been reported.
    reported: bool,
    /// The key that is read to recognise the peer; `None`: its memory cannot be read.
    key: Option<Key>,
}

impl Peers {
    pub(super) fn new(host: Host, sender: Sender) -> Peers {
        Peers { host, sender, table: Addresses::new(), lost: VecDeque::new() }
    }

    pub(super) fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        let unusable = DriverError::AddressUnusable { address: *address, expected: EXPECTED };
        let place =
            SegmentAddress::decode(address).filter(|place| place.host == self.host).ok_or(unusable)?;
        if let Some(known) = self.table.id(address) {
            return Ok(known);
        }
        let mut key = None;
        let there = match Outbox::open(&place) {
            Ok(outbox) => {
                key = outbox.key_address().map(|at| Key { address: at, value: Key::value_of(address) });
                true
            }
            // A missing process never comes back: its frames are lost.
            Err(Refused::Gone | Refused::Full) => false,
            Err(Refused::Foreign) => return Err(unusable),
            Err(Refused::Forbidden(errno)) => {
                return Err(DriverError::Transient { operation: Operation::OpenSegment, errno });
            }
        };
        let peer = Peer { place, ring: None, gone: false, full: 0, reported: !there, key };
        let id = self.table.insert(*address, peer)?;
        if !there {
            self.lost.push_back(id);
        }
        Ok(id)
    }

    pub(super) fn forget(&mut self, id: AddressId) {
        self.table.remove(id);
    }

    fn get(&mut self, id: AddressId) -> Option<&mut Peer> {
        self.table.get_mut(id)
    }

    pub(super) fn knows(&self, id: AddressId) -> bool {
        self.table.get(id).is_some()
    }

    pub(super) fn ring(&mut self, id: AddressId) -> Option<&mut Outgoing> {
        self.get(id)?.ring.as_mut()
    }

    /// Writes one frame to its peer's ring. `None`: it is lost, and counted.
    pub(super) fn write(&mut self, frame: Staged<'_>, counters: &mut Counters) -> Option<Outcome> {
        let sender = self.sender;
        let Some(peer) = self.get(frame.to) else {
            counters.lost_no_address += 1;
            return None;
        };
        if peer.ring.is_none() && peer.meet(sender, counters).is_none() {
            if !peer.reported {
                peer.reported = true;
                self.lost.push_back(frame.to);
            }
            return None;
        }
        let outcome = peer.ring.as_mut()?.write(frame);
        if outcome != Outcome::Full {
            peer.full = 0;
            return Some(outcome);
        }
        counters.lost_receiver_full += 1;
        peer.full = peer.full.wrapping_add(1);
        None
    }

    /// Writes one frame and notifies its peer. False: nothing was written.
    pub(super) fn write_short(&mut self, to: AddressId, frame: &[u8]) -> bool {
        let Some(ring) = self.ring(to) else { return false };
        ring.write_short(frame)
    }

    /// Reads a peer's memory. One whose memory cannot be read is not tried again.
    pub(super) fn pull(&mut self, id: AddressId, place: u64, to: &mut [u8]) -> bool {
        let Some(peer) = self.get(id) else { return false };
        let read = peer.key.is_some_and(|key| pull(peer.place.owner.pid, key, place, to));
        if !read {
            peer.key = None;
        }
        read
    }

    /// Notifies a peer of its frames. False: it has gone, and its ring should be parted from.
    pub(super) fn announce(&mut self, id: AddressId) -> bool {
        let Some(peer) = self.get(id) else { return true };
        let Some(ring) = &mut peer.ring else { return true };
        ring.announce()
    }

    /// Peers that take nothing and do not live any more.
    pub(super) fn dead(&mut self, id: AddressId) -> bool {
        self.get(id).is_some_and(|peer| {
            peer.full % FULL_PER_LOOK == 1 && peer.ring.as_ref().is_some_and(Outgoing::receiver_is_dead)
        })
    }

    /// Ends the use of a peer that has gone. Its offers must have been ended before.
    pub(super) fn part(&mut self, id: AddressId) {
        if let Some(peer) = self.get(id) {
            peer.ring = None;
            peer.gone = true;
            if !peer.reported {
                peer.reported = true;
                self.lost.push_back(id);
            }
        }
    }

    pub(super) fn mappings(&self) -> impl Iterator<Item = Range<usize>> {
        self.table.iter().filter_map(|peer| peer.ring.as_ref()).flat_map(Outgoing::mappings)
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let rings = self.table.iter().filter_map(|peer| peer.ring.as_ref());
        rings.flat_map(|ring| ring.outbox.descriptors())
    }
}

impl Peer {
    /// Claims a ring. `None`: the frame is lost, and counted.
    #[cold]
    fn meet(&mut self, sender: Sender, counters: &mut Counters) -> Option<()> {
        if self.gone {
            counters.lost_refused += 1;
            return None;
        }
        if !self.full.is_multiple_of(CLAIM_EVERY) {
            self.full = self.full.wrapping_add(1);
            counters.lost_receiver_full += 1;
            return None;
        }
        match Outbox::open(&self.place).and_then(|outbox| Outgoing::claim(outbox, sender)) {
            Ok(ring) => {
                self.ring = Some(ring);
                self.full = 0;
                return Some(());
            }
            Err(Refused::Gone | Refused::Foreign) => {
                self.gone = true;
                counters.lost_refused += 1;
            }
            Err(Refused::Full) => {
                self.full = self.full.wrapping_add(1);
                counters.lost_receiver_full += 1;
            }
            Err(Refused::Forbidden(_)) => counters.lost_no_memory += 1,
        }
        None
    }
}
