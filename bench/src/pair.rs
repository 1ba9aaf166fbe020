//! One end of a measured pair: an endpoint over UDP on loopback, and the data that both ends exchange.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
use endpoint::{Endpoint, EndpointConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use transport::config::AuthLevel;
use transport::{
    Epoch, JobId, JobKey, Life, Outgoing, Port, PortConfig, PortId, Rank, RawAddress, Receive, Space,
};

use crate::error::BenchError;
use crate::testbed::Testbed;
use crate::worker::Worker;

/// The key of the benches' job.
pub(crate) const KEY: JobKey = JobKey(*b"bench job secret");

/// The small messages.
pub(crate) const MESSAGE_BYTES: usize = 8;

/// A frame with one of them: header, eager body and message.
pub(crate) const FRAME_BYTES: usize = 80 + 32 + MESSAGE_BYTES;

/// A stall longer than this ends the measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Any free port on loopback.
pub(crate) const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// An endpoint's address on its only rail.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Address(Vec<u8>);

impl Address {
    pub(crate) fn of(endpoint: &Endpoint) -> Address {
        let addresses = endpoint.addresses();
        Address(addresses.first().map_or(Vec::new(), |address| address.as_bytes().to_vec()))
    }

    pub(crate) fn raw(&self) -> RawAddress {
        RawAddress::new(&self.0).unwrap_or(RawAddress::NONE)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address(RawAddress::from(UdpAddress(address)).as_bytes().to_vec())
    }
}

impl From<&dyn Driver> for Address {
    fn from(rail: &dyn Driver) -> Address {
        Address(rail.local_address().as_bytes().to_vec())
    }
}

/// Bytes covered by frames' tags.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Auth {
    /// Header, length and sequence number.
    Header,
    /// The payload too.
    Full,
}

impl Auth {
    fn level(self) -> AuthLevel {
        match self {
            Auth::Header => AuthLevel::Header,
            Auth::Full => AuthLevel::Full,
        }
    }
}

/// The port of `rank` in the benches' job.
pub(crate) fn port_id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

/// A port of the benches' job.
pub(crate) fn port(rank: u32, auth: Auth) -> Port {
    port_with(rank, auth.level())
}

/// A port of the benches' job, at any level.
pub(crate) fn port_with(rank: u32, level: AuthLevel) -> Port {
    Port::new(config(level), port_id(rank), life(1), Epoch(0), Some(&KEY))
}

/// The configuration of ports of the benches' job.
pub(crate) fn config(level: AuthLevel) -> PortConfig {
    let mut config = PortConfig::new(JobId(0xbe_9c).tag());
    config.auth = level;
    config
}

/// The benches' job's life of this number.
pub(crate) fn life(counter: u32) -> Life {
    Life { counter, nonce: 0x00be_9c00 }
}

/// A UDP rail on loopback.
pub(crate) fn rail() -> Result<UdpDriver, BenchError> {
    Ok(UdpDriver::open(&UdpConfig::new(ANY))?)
}

/// An endpoint over UDP on loopback, with a helper.
pub(crate) fn open(rank: u32, auth: Auth) -> Result<Endpoint, BenchError> {
    open_on(Box::new(rail()?), rank, auth)
}

/// An endpoint on a rail, with a helper.
pub(crate) fn open_on(rail: Box<dyn Driver>, rank: u32, auth: Auth) -> Result<Endpoint, BenchError> {
    Ok(Endpoint::open(port(rank, auth), vec![rail], EndpointConfig::default())?)
}

/// The same without a helper: progress is only made by calls.
pub(crate) fn open_without_helper(
    rail: Box<dyn Driver>,
    rank: u32,
    auth: Auth,
) -> Result<Endpoint, BenchError> {
    let config = EndpointConfig { helper: false, ..EndpointConfig::default() };
    Ok(Endpoint::open(port(rank, auth), vec![rail], config)?)
}

/// A message without a completion.
pub(crate) fn silent(tag: u64) -> Outgoing {
    Outgoing { space: Space(0), tag, data: 0, context: 0, silent: true }
}

/// A message whose completion comes with `context`.
pub(crate) fn reported(tag: u64, context: u64) -> Outgoing {
    Outgoing { space: Space(0), tag, data: 0, context, silent: false }
}

/// A receive of one message of at most `bytes_max` bytes.
pub(crate) fn receive(tag: u64, bytes_max: u64, context: u64) -> Receive {
    Receive { space: Space(0), source: None, tag, ignore: 0, bytes_max, context, multi: None }
}

/// Sends their rails to two processes, and to each the other's introduction.
pub(crate) fn introduce<Hello: Serialize + DeserializeOwned>(
    mut workers: [Worker; 2],
    testbed: &Testbed,
) -> Result<[Worker; 2], BenchError> {
    let mut hellos = Vec::new();
    for (rank, worker) in (0u32..).zip(&mut workers) {
        worker.send(&testbed.rail_spec(rank, rank))?;
        hellos.push(worker.hear::<Hello>()?);
    }
    for (hello, worker) in hellos.iter().rev().zip(&mut workers) {
        worker.send(hello)?;
    }
    Ok(workers)
}

/// Gives up on a stall, without looking at the clock every time.
pub(crate) struct Watchdog {
    what: &'static str,
    started: Instant,
    asked: u32,
}

impl Watchdog {
    pub(crate) fn new(what: &'static str) -> Watchdog {
        Watchdog { what, started: Instant::now(), asked: 0 }
    }

    /// Call in a loop that waits.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        self.asked = self.asked.wrapping_add(1);
        if self.asked.is_multiple_of(4096) { self.check_now() } else { Ok(()) }
    }

    /// Call in a loop that sleeps.
    pub(crate) fn check_now(&self) -> Result<(), BenchError> {
        if self.started.elapsed() > PATIENCE {
            return Err(BenchError::Stalled { what: self.what, seconds: PATIENCE.as_secs() });
        }
        Ok(())
    }
}
