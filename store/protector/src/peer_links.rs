//! The endpoint of a protector in one life, and its links to the other members.

use std::net::SocketAddr;
use std::time::Duration;

use drivers::fault::{FaultDriver, Faults};
use drivers::udp::{UdpConfig, UdpDriver};
use drivers::{Driver, DriverError};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer, Waiting};
use transport::auth::JobKey;
use transport::config::{PortConfig, RAILS_MAX};
use transport::matching::{Envelope, Pattern, Space};
use transport::{Epoch, Life, LinkIndex, Outgoing, Port, PortId, Rank, RawAddress, Receive};

use crate::api::{Rail, Settings};
use crate::error::ProtectorError;

/// Number of a protector's port: a rank of that number has ports of its own, from 0.
const PORT_NUMBER: u32 = u32::MAX;

/// Questions, answers and records.
pub(crate) const WORDS: Space = Space(1);

/// Contributions to parity.
pub(crate) const STRIPS: Space = Space(2);

pub(crate) fn port_of(node: u32) -> PortId {
    PortId::of_rank(Rank(node), PORT_NUMBER)
}

/// Everything that comes and goes.
pub(crate) struct PeerLinks {
    endpoint: Endpoint,
    /// Which of the node's rails each rail of the endpoint is.
    rails: Vec<usize>,
    /// Addresses of rails that could not be opened, and why.
    unusable: Vec<String>,
    /// Rails that were given and are not there any more, or never were.
    rails_lost: usize,
    life: Life,
    /// By member; none to itself.
    links: Vec<Option<LinkIndex>>,
}

impl PeerLinks {
    /// Opens every rail that can be opened: one that cannot be costs nothing but its share.
    pub(crate) fn open(settings: &Settings, life: Life) -> Result<PeerLinks, ProtectorError> {
        let node = settings.node;
        let (mut drivers, mut rails, mut unusable) = (Vec::new(), Vec::new(), Vec::new());
        let mut refused = None;
        for (place, rail) in settings.rails.iter().enumerate() {
            match open_rail(rail) {
                Ok(driver) => {
                    drivers.push(driver);
                    rails.push(place);
                }
                Err(error) => {
                    unusable.push(format!("{}: {error}", rail.bind));
                    refused.get_or_insert(error);
                }
            }
        }
        if let Some(error) = refused.filter(|_| drivers.is_empty()) {
            return Err(ProtectorError::socket(node, &error));
        }
        let mut config = PortConfig::new(settings.job.tag());
        config.auth = settings.auth;
        config.network = settings.rails.iter().any(|rail| !rail.bind.is_loopback());
        let port = Port::new(config, port_of(node), life, Epoch(0), Some(&JobKey(settings.key)));
        // Its one thread is nearly always there, and sleeps at once when it has nothing to do: the cores belong to the program.
        let config = EndpointConfig { helper: false, spin: Duration::ZERO, ..EndpointConfig::default() };
        let endpoint =
            Endpoint::open(port, drivers, config).map_err(|error| ProtectorError::endpoint(node, &error))?;
        let rails_lost = unusable.len();
        Ok(PeerLinks {
            endpoint,
            rails,
            unusable,
            rails_lost,
            life,
            links: vec![None; settings.group.members()],
        })
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where this endpoint is: for each of the node's rails a length and that many bytes; none of one that could not be opened.
    pub(crate) fn addresses(&self) -> Vec<u8> {
        let mut addresses = vec![RawAddress::NONE; self.rails.last().map_or(0, |last| last + 1)];
        for (place, address) in self.rails.iter().zip(self.endpoint.addresses()) {
            addresses[*place] = address;
        }
        addresses.iter().flat_map(|rail| [&[rail.len()], rail.as_bytes()].concat()).collect()
    }

    /// Frames handed to each of the node's rails so far; 0 for one that is not there.
    pub(crate) fn rail_frames(&self) -> [u64; RAILS_MAX] {
        let mut frames = [0; RAILS_MAX];
        for (place, count) in self.rails.iter().zip(self.endpoint.frames_by_rail()) {
            frames[*place] = count;
        }
        frames
    }

    pub(crate) fn unusable(&self) -> &[String] {
        &self.unusable
    }

    pub(crate) fn rails_lost(&self) -> usize {
        self.rails_lost
    }

    /// Links up with the other members.
    pub(crate) fn meet(
        &mut self,
        settings: &Settings,
        addresses: &[(u32, Vec<u8>)],
    ) -> Result<(), ProtectorError> {
        let node = settings.node;
        for (member, peer) in settings.group.nodes().iter().copied().enumerate() {
            if peer == node {
                continue;
            }
            let failed = |reason: String| ProtectorError::Address { node, peer, reason };
            let said = addresses.iter().find(|(other, _)| *other == peer);
            let said = said.ok_or_else(|| failed("the launcher did not name it".to_owned()))?;
            let rails =
                parse_addresses(&said.1).ok_or_else(|| failed("its text is no address".to_owned()))?;
            let link = self.endpoint.connect(port_of(peer), &self.pair(&rails));
            self.links[member] = Some(link.map_err(|error| failed(error.to_string()))?);
        }
        Ok(())
    }

    /// The peer's addresses in the order of this endpoint's rails: a rail meets the one of the same network. Where no two of them are on one network, any
    /// may be tried.
    fn pair(&self, theirs: &[RawAddress]) -> Vec<RawAddress> {
        let of = |place: &usize| theirs.get(*place).copied().unwrap_or(RawAddress::NONE);
        let paired: Vec<RawAddress> = self.rails.iter().map(of).collect();
        if paired.iter().all(|address| *address == RawAddress::NONE) { theirs.to_vec() } else { paired }
    }

    /// Whether links to all other members are there.
    pub(crate) fn has_met(&self) -> bool {
        self.links.iter().filter(|link| link.is_none()).count() <= 1
    }

    /// The longest of the known round trips to members.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.links.iter().flatten().filter_map(|link| self.endpoint.round_trip(*link)).max()
    }

    pub(crate) fn can_send(&self, member: usize) -> bool {
        self.links[member].is_some_and(|link| self.endpoint.can_send(link, 0))
    }

    /// Sends a message; `context` comes back when the peer has it. False: there is no room, or no link that can be used.
    pub(crate) fn send(
        &self,
        member: usize,
        space: Space,
        tag: u64,
        data: u64,
        bytes: Vec<u8>,
        context: u64,
    ) -> bool {
        let Some(link) = self.links[member].filter(|_| self.can_send(member)) else { return false };
        let outgoing = Outgoing { space, tag, data, context, silent: false };
        self.endpoint.send(link, outgoing, SendBuffer::Owned(bytes)).is_ok()
    }

    /// How to look for messages of a member, if there is a link to it.
    pub(crate) fn seen(&self, space: Space, member: usize) -> Option<Seen> {
        Some(Seen(Pattern { space, source: Some(self.links[member]?), tag: 0, ignore: u64::MAX }))
    }

    /// The next message of a member that waits to be received.
    pub(crate) fn waiting(&self, space: Space, member: usize) -> Option<Envelope> {
        self.endpoint.peek(&self.seen(space, member)?.0)
    }

    fn exact(envelope: &Envelope) -> Pattern {
        Pattern { space: envelope.space, source: Some(envelope.source), tag: envelope.tag, ignore: 0 }
    }

    /// Begins to receive a message that waits; `context` comes back with it.
    pub(crate) fn receive(&self, envelope: &Envelope, context: u64) -> bool {
        let Pattern { space, source, tag, ignore } = PeerLinks::exact(envelope);
        let bytes = usize::try_from(envelope.bytes).unwrap_or(usize::MAX);
        let receive = Receive { space, source, tag, ignore, bytes_max: envelope.bytes, context, multi: None };
        self.endpoint.post_receive(receive, ReceiveBuffer::Owned(vec![0; bytes])).is_ok()
    }

    /// Throws a message away that waits; for its sender it is received.
    pub(crate) fn discard(&self, envelope: &Envelope) {
        if let Some((key, _)) = self.endpoint.claim(&PeerLinks::exact(envelope)) {
            let _ = self.endpoint.discard(key);
        }
    }

    /// The next completion. A rail that has died is only counted: the others go on.
    pub(crate) fn poll(&mut self) -> Option<Completion> {
        loop {
            match self.endpoint.poll()? {
                Completion::RailDead { .. } => self.rails_lost += 1,
                completion => return Some(completion),
            }
        }
    }
}

/// A view of the waiting messages, for the owner of the port.
pub(crate) struct Seen(Pattern);

impl Seen {
    pub(crate) fn among(&self, waiting: &mut Waiting<'_>) -> Option<Envelope> {
        waiting.peek(&self.0)
    }
}

fn open_rail(rail: &Rail) -> Result<Box<dyn Driver>, DriverError> {
    let driver = UdpDriver::open(&UdpConfig::new(SocketAddr::new(rail.bind, 0)))?;
    Ok(if rail.faults == Faults::NONE {
        Box::new(driver)
    } else {
        Box::new(FaultDriver::new(driver, rail.faults))
    })
}

fn parse_addresses(mut bytes: &[u8]) -> Option<Vec<RawAddress>> {
    let mut rails = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (address, rest) = rest.split_at_checked(usize::from(*length))?;
        rails.push(RawAddress::new(address)?);
        bytes = rest;
    }
    (1..=RAILS_MAX).contains(&rails.len()).then_some(rails)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_make_no_sense_are_none() {
        assert_eq!(parse_addresses(&[2, 7, 8, 0]).map(|rails| rails.len()), Some(2));
        for bytes in [&[][..], &[3, 1, 2], &[0; RAILS_MAX + 1], &[200; 201]] {
            assert!(parse_addresses(bytes).is_none(), "{bytes:?}");
        }
    }
}
