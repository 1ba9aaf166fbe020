//! Endpoints on a network in memory, for tests of internal state.

use drivers::Driver;
use drivers::mem::Hub;
use transport::config::AuthLevel;
use transport::{Epoch, JobId, Life, Port, PortConfig, PortId, Rank};

use crate::gate::{Endpoint, EndpointConfig};

pub(crate) fn id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

pub(crate) fn port(rank: u32) -> Port {
    let config = PortConfig { auth: AuthLevel::Off, ..PortConfig::new(JobId(1).tag()) };
    Port::new(config, id(rank), Life { counter: 1, nonce: 1 }, Epoch(0), None)
}

/// Without a helper: only the test acts.
pub(crate) fn open(port: Port, hub: &Hub) -> Endpoint {
    open_on(port, Box::new(hub.open().expect("a port")))
}

/// As [`open`], on another rail.
pub(crate) fn open_on(port: Port, rail: Box<dyn Driver>) -> Endpoint {
    let config = EndpointConfig { helper: false, ..EndpointConfig::default() };
    Endpoint::open(port, vec![rail], config).expect("an endpoint")
}
