//! The ports of this process at a cut: they stand still, are written down, and go on, here or in a new life.

use core::ops::Range;
use core::time::Duration;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

use client::launch::Launch;
use drivers::udp::UdpConfig;
use drivers::{NicSelection, RailsError};
use endpoint::{Endpoint, EndpointError, Frozen};
use nic_freeze::Mismatch;
use transport::{Epoch, JobKey, PortId, Rank, Reach, Restart};

use crate::limits::DRAIN_MAX;

/// The resources of the rails of all ports, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct System {
    pub(crate) descriptors: Vec<RawFd>,
    pub(crate) mappings: Vec<Range<usize>>,
}

impl System {
    /// Of ports that run: it may be others a moment later.
    pub(crate) fn of(endpoints: &[Endpoint]) -> System {
        System::from_parts(endpoints.iter().map(Endpoint::system))
    }

    fn from_parts(parts: impl Iterator<Item = (Vec<RawFd>, Vec<Range<usize>>)>) -> System {
        let mut all = System::default();
        for (descriptors, mappings) in parts {
            all.descriptors.extend(descriptors);
            all.mappings.extend(mappings);
        }
        all.descriptors.sort_unstable();
        all.mappings.sort_unstable_by_key(|range| range.start);
        all
    }
}

/// A port as it stood at the cut.
#[derive(Debug)]
pub(crate) struct Dump {
    pub(crate) port: PortId,
    pub(crate) section: Vec<u8>,
}

/// Why ports of an image cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviveError {
    #[error("no rail at {bind}: {source}")]
    Rails { bind: SocketAddr, source: RailsError },
    #[error("port {port} cannot continue: {source}")]
    Endpoint { port: PortId, source: EndpointError },
    #[error("port {port} differs from its state in the image: {source}")]
    Mismatch { port: PortId, source: Mismatch },
    #[error("the image has {found} ports, and the process {expected}")]
    Count { found: usize, expected: usize },
}

/// The first port that could not find its peers in a new life, because it is not named after its rank.
pub(crate) fn nameless(endpoints: &[Endpoint], rank: Rank) -> Option<PortId> {
    endpoints.iter().map(|endpoint| endpoint.with_port(transport::Port::id)).find(|port| port.rank() != rank)
}

/// Announces a pause of about `expected` to peers, and warms the caches for a freeze.
pub(crate) fn prepare(endpoints: &[Endpoint], expected: Duration) {
    for endpoint in endpoints {
        endpoint.announce_pause(expected);
        endpoint.warm();
    }
}

/// All ports of the process, frozen.
pub(crate) struct FrozenPorts<'a> {
    frozen: Vec<Frozen<'a>>,
    pub(crate) freeze: Duration,
}

impl<'a> FrozenPorts<'a> {
    /// Freezes all, one after the other. An error leaves none frozen.
    pub(crate) fn freeze(endpoints: &'a [Endpoint]) -> Result<FrozenPorts<'a>, EndpointError> {
        let started = Instant::now();
        let frozen: Result<Vec<_>, _> = endpoints.iter().map(|endpoint| endpoint.freeze(DRAIN_MAX)).collect();
        Ok(FrozenPorts { frozen: frozen?, freeze: started.elapsed() })
    }

    /// R2: all ports of a rank have one epoch.
    pub(crate) fn raise(&mut self, epoch: Epoch) {
        for frozen in &mut self.frozen {
            if frozen.port().epoch() < epoch {
                frozen.port_mut().set_epoch(epoch);
            }
        }
    }

    pub(crate) fn system(&self) -> System {
        System::from_parts(self.frozen.iter().map(Frozen::system))
    }

    /// Writes all down. Payloads lie in the memory of the process.
    pub(crate) fn dump(&self) -> Vec<Dump> {
        let dump = |frozen: &Frozen<'_>| {
            let mut section = Vec::new();
            nic_freeze::dump(frozen.port(), &mut section);
            Dump { port: frozen.port().id(), section }
        };
        self.frozen.iter().map(dump).collect()
    }

    /// Whether the ports in memory are those of the image.
    pub(crate) fn compare(&self, sections: &[Dump]) -> Result<(), ReviveError> {
        if sections.len() != self.frozen.len() {
            return Err(ReviveError::Count { found: sections.len(), expected: self.frozen.len() });
        }
        for frozen in &self.frozen {
            let port = frozen.port().id();
            let found = sections.iter().find(|dump| dump.port == port).map_or(&[][..], |dump| &dump.section);
            nic_freeze::compare(nic_freeze::SECTION_VERSION, found, frozen.port())
                .map_err(|source| ReviveError::Mismatch { port, source })?;
        }
        Ok(())
    }

    /// In a restored process: each goes on in a new life, on new rails. Returns the NIC of the first.
    pub(crate) fn restart(self, launch: &Launch) -> Result<Option<NicSelection>, ReviveError> {
        let bind = SocketAddr::new(launch.bind.ip(), 0);
        let restart = Restart {
            life: launch.life,
            key: Some(JobKey(launch.key)),
            reach: Some(Reach::at(bind.ip(), launch.auth)),
        };
        let mut first = None;
        for frozen in self.frozen {
            let port = frozen.port().id();
            let opened = drivers::open_rails(&UdpConfig::new(bind), Some(&launch.nic));
            let drivers::Opened { rails, nic } =
                opened.map_err(|source| ReviveError::Rails { bind, source })?;
            first.get_or_insert(nic);
            let restarted = frozen.restart(rails, restart.clone());
            restarted.map_err(|source| ReviveError::Endpoint { port, source })?;
        }
        Ok(first)
    }

    /// All go on; how long that took.
    pub(crate) fn thaw(self) -> Duration {
        let started = Instant::now();
        for frozen in self.frozen {
            frozen.thaw();
        }
        started.elapsed()
    }
}

/// Raises the epoch of all ports without an image (R2: a cut cannot be refused).
pub(crate) fn raise(endpoints: &[Endpoint], epoch: Epoch) -> Result<(), EndpointError> {
    let mut frozen_ports = FrozenPorts::freeze(endpoints)?;
    frozen_ports.raise(epoch);
    frozen_ports.thaw();
    Ok(())
}
