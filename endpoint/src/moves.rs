//! R13: a peer that goes on elsewhere.

use transport::{LinkIndex, PortId, Rank, RawAddress};

use crate::error::EndpointError;
use crate::gate::Endpoint;

impl Endpoint {
    /// A peer's rank has moved, for the `moves`th time in this life, and its ports are at these addresses now: links to them begin again. Nothing happens for
    /// ports without a link. False: that is no news, or it is older.
    ///
    /// # Errors
    /// [`EndpointError::Unreachable`], of the first port to which no rail leads; all are tried.
    pub fn peer_moved(
        &self,
        rank: Rank,
        moves: u32,
        ports: &[(PortId, Vec<RawAddress>)],
    ) -> Result<bool, EndpointError> {
        let linked = {
            let mut inner = self.shared.lock();
            let now = self.shared.clock.now();
            if !inner.port.peer_moved(now, rank, moves) {
                return Ok(false);
            }
            let linked: Vec<(LinkIndex, usize)> = (0..)
                .zip(ports)
                .filter_map(|(at, (port, _))| Some((inner.port.link_to(*port)?, at)))
                .collect();
            let is_theirs = |link: &LinkIndex| linked.iter().any(|(moved, _)| moved == link);
            inner.places.retain(|(_, link), _| !is_theirs(link));
            linked
        };
        let mut outcome = Ok(true);
        for (port, rails) in linked.iter().filter_map(|(_, at)| ports.get(*at)) {
            if let Err(error) = self.connect(*port, rails) {
                outcome = outcome.and(Err(error));
            }
        }
        self.shared.transmit(&mut self.shared.lock());
        outcome
    }
}
