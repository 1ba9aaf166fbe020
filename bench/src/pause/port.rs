//! The port of the measured process: links with unacknowledged frames.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use endpoint::{Endpoint, SendBuffer};

use crate::error::BenchError;
use crate::pair::{self, Address, Auth};

/// Peers that never answer.
const LINKS: u32 = 8;

/// Frames to each of them, and their bytes.
const FRAMES: usize = 32;
const FRAME_BYTES: usize = 64;

/// A driver that keeps buffers for longer than this is broken.
const DRAIN_MAX: Duration = Duration::from_secs(1);

const TAG: u64 = 1;

/// Sockets that are not read from, in the bench itself: the measured process must not have them.
pub(super) struct Silent(Vec<UdpSocket>);

impl Silent {
    pub(super) fn new() -> Result<Silent, BenchError> {
        Ok(Silent((0..LINKS).map(|_| UdpSocket::bind(pair::ANY)).collect::<Result<_, _>>()?))
    }

    pub(super) fn addresses(&self) -> Result<Vec<Address>, BenchError> {
        self.0.iter().map(|socket| Ok(Address::from(socket.local_addr()?))).collect()
    }
}

/// In the measured process.
pub(super) struct Port {
    endpoint: Endpoint,
    section: Vec<u8>,
    /// How long it stood still the last time.
    expected: Duration,
}

/// How long a port took, ns.
#[derive(Clone, Copy, Default)]
pub(super) struct Standstill {
    pub(super) freeze_ns: u64,
    pub(super) dump_ns: u64,
    pub(super) thaw_ns: u64,
}

impl Port {
    pub(super) fn open(peers: &[Address]) -> Result<Port, BenchError> {
        let endpoint = pair::open(0, Auth::Header)?;
        for (rank, address) in (1..).zip(peers) {
            let link = endpoint.connect(pair::port_id(rank), &[address.raw()])?;
            for _ in 0..FRAMES {
                endpoint.send(link, pair::reported(TAG, 0), SendBuffer::Copied(&[7; FRAME_BYTES]))?;
            }
        }
        Ok(Port { endpoint, section: Vec::new(), expected: Duration::ZERO })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Freezes the port, as an agent does, while `captures` runs; then the port goes on.
    pub(super) fn still<T>(
        &mut self,
        captures: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, Standstill), BenchError> {
        self.endpoint.announce_pause(self.expected);
        self.endpoint.warm();
        let asked = Instant::now();
        let frozen = self.endpoint.freeze(DRAIN_MAX)?;
        let froze = Instant::now();
        self.section.clear();
        nic_freeze::dump(frozen.port(), &mut self.section);
        let dumped = Instant::now();
        let captured = captures()?;
        let asked_again = Instant::now();
        frozen.thaw();
        let thawed = Instant::now();
        self.expected = thawed - asked;
        let [freeze_ns, dump_ns, thaw_ns] = [froze - asked, dumped - froze, thawed - asked_again]
            .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Ok((captured, Standstill { freeze_ns, dump_ns, thaw_ns }))
    }
}
