//! R29: a rail that is added to a port that runs, at an address of its own, and one that is taken away.

use std::collections::BTreeSet;

use drivers::Driver;
use transport::config::RAILS_MAX;
use transport::{LinkIndex, PortId, RailIndex, RawAddress};

use crate::error::EndpointError;
use crate::gate::Endpoint;
use crate::inner::{Inner, rail_index};

impl Endpoint {
    /// Adds a rail of the network to the others; nothing leaves over it before [`Endpoint::reach`] has set a
    /// peer's address on it. Returns its number.
    ///
    /// # Errors
    /// [`EndpointError::Rails`]: there are too many. [`EndpointError::Descriptor`]: its frames could not wake sleepers;
    /// it is closed again.
    pub fn add_rail(&self, driver: Box<dyn Driver>) -> Result<usize, EndpointError> {
        let mut guard = self.shared.lock();
        let inner = &mut *guard;
        let (address, frame_bytes_max) = (driver.local_address(), driver.caps().frame_bytes_max);
        let Some(RailIndex(rail)) = inner.port.add_further_rail(address, frame_bytes_max) else {
            return Err(EndpointError::Rails { rails: RAILS_MAX + 1 });
        };
        let rail = usize::from(rail);
        match inner.rails.get_mut(rail) {
            Some(place) => *place = Some(driver),
            None => inner.rails.push(Some(driver)),
        }
        inner.look_everywhere();
        if let Err(error) = self.shared.waker.watch_another(&inner.rails, rail) {
            self.take_away(inner, rail);
            return Err(EndpointError::Descriptor(error));
        }
        // A sleeper has armed the other drivers.
        inner.arm();
        self.shared.waker.wake();
        Ok(rail)
    }

    /// Sets the address of a peer on a rail that was added. Nothing happens for a peer without a link.
    ///
    /// # Errors
    /// [`EndpointError::Driver`]: the rail finds no way to it.
    pub fn reach(&self, peer: PortId, rail: usize, address: &RawAddress) -> Result<(), EndpointError> {
        let mut inner = self.shared.lock();
        let Some(link) = inner.port.link_to(peer) else { return Ok(()) };
        inner.add_path(link, rail, address).map_err(|source| EndpointError::Driver { rail, source })?;
        self.shared.transmit(&mut inner);
        Ok(())
    }

    /// Peers with a link and without a known address on this rail.
    #[must_use]
    pub fn unreached(&self, rail: usize) -> Vec<PortId> {
        let inner = self.shared.lock();
        let reached: BTreeSet<LinkIndex> = inner.places_on(rail).map(|(link, _)| link).collect();
        let links = (0..inner.port.links()).filter_map(|index| u32::try_from(index).ok()).map(LinkIndex);
        links.filter(|link| !reached.contains(link)).filter_map(|link| inner.port.peer(link)).collect()
    }

    /// Bytes of the longest frame that may have to be sent again and that `rail` alone takes; 0 if there is none, and the rail can be taken away.
    #[must_use]
    pub fn needs_rail(&self, rail: usize) -> usize {
        self.with_port(|port| port.longest_on_its_way(rail_index(rail)))
    }

    /// Closes a rail, alive or dead, for good. Frames on their way over it are lost, and retransmitted over
    /// the others. A rail that is added later may get its number.
    pub fn remove_rail(&self, rail: usize) {
        let mut guard = self.shared.lock();
        let inner = &mut *guard;
        // Peers that have made contact over it.
        inner.collect();
        self.take_away(inner, rail);
        self.shared.transmit(inner);
        inner.arm();
        self.shared.waker.wake();
    }

    fn take_away(&self, inner: &mut Inner, rail: usize) {
        let Some(place) = inner.rails.get_mut(rail) else { return };
        // It gives every buffer back by that.
        *place = None;
        inner.buffers.forget_rail(rail);
        inner.forget_places(rail);
        inner.port.retire_rail(rail_index(rail));
        self.shared.waker.watch_less(&inner.rails);
    }
}
