//! Every driver of this crate under the tests that belong to the trait.

use std::net::SocketAddr;

use drivers::conformance::Fixture;
use drivers::fault::{FaultDriver, Faults, Rate};
use drivers::mem::Hub;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use drivers::{Driver, DriverError};

struct Memory(Hub);

impl Fixture for Memory {
    fn open(&mut self) -> Box<dyn Driver> {
        Box::new(self.0.open().expect("a port of the hub"))
    }
}

/// Each rail on a free port of the same address.
struct Sockets(UdpConfig);

impl Sockets {
    fn on(address: &str) -> Result<Sockets, DriverError> {
        let bind: SocketAddr = address.parse().expect("an address");
        let config = UdpConfig::new(bind);
        UdpDriver::open(&config).map(|_| Sockets(config))
    }

    /// One connected socket, no offloads: the paths that other systems take.
    fn plain() -> Result<Sockets, DriverError> {
        let Sockets(config) = Sockets::on("127.0.0.1:0")?;
        Ok(Sockets(UdpConfig { connected_max: 1, segment: false, coalesce: false, ..config }))
    }

    /// IPv6 socket on every address, reached over IPv4.
    fn dual() -> Result<Sockets, DriverError> {
        let bind = "[::]:0".parse().expect("an address");
        let advertise = Some("127.0.0.1".parse().expect("an address"));
        let config = UdpConfig { advertise, connected_max: 1, ..UdpConfig::new(bind) };
        UdpDriver::open(&config).map(|_| Sockets(config))
    }
}

impl Fixture for Sockets {
    fn open(&mut self) -> Box<dyn Driver> {
        Box::new(UdpDriver::open(&self.0).expect("opened before"))
    }
}

struct Shared(ShmConfig);

impl Fixture for Shared {
    fn open(&mut self) -> Box<dyn Driver> {
        Box::new(ShmDriver::open(&self.0).expect("memory and /proc"))
    }
}

/// A network under the fault wrapper.
struct Faulty<F> {
    network: F,
    faults: Faults,
    steps: usize,
}

/// Of so many steps one takes the network's time: frames are late by calls.
const STEPS_AT_ONCE: usize = 32;

impl<F> Faulty<F> {
    fn new(network: F, faults: &str) -> Faulty<F> {
        Faulty { network, faults: faults.parse().expect("faults"), steps: 0 }
    }
}

impl<F: Fixture> Fixture for Faulty<F> {
    fn open(&mut self) -> Box<dyn Driver> {
        Box::new(FaultDriver::new(self.network.open(), self.faults))
    }

    fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_AT_ONCE) {
            self.network.step();
        } else {
            std::thread::yield_now();
        }
    }

    /// Every lost frame is waited for so long.
    fn patience_steps(&self) -> usize {
        let at_once = if self.loses() { 1 } else { STEPS_AT_ONCE };
        at_once * self.network.patience_steps()
    }

    fn hang_steps(&self) -> usize {
        STEPS_AT_ONCE * self.network.hang_steps()
    }

    fn loses(&self) -> bool {
        self.faults.loss != Rate::ZERO || self.network.loses()
    }
}

/// The wrapper adds nothing of its own at rates of zero.
const HARMLESS: &str = "";
/// Completions that come late and buffers that are scarce are within the contract.
const LATE: &str = "late=30%,seed=3";
/// So is loss. Of frames that come twice or out of turn a driver knows nothing: those are for the tests of ports.
const LOSSY: &str = "loss=0.5%,late=10%,seed=5";

/// A driver for facilities that every system has is never skipped.
fn everywhere<F>(made: Result<F, DriverError>) -> Result<F, DriverError> {
    Ok(made.expect("memory and IPv4 are everywhere"))
}

drivers::conformance_suite!(mem, everywhere(Ok(Memory(Hub::new()))));
drivers::conformance_suite!(shm, everywhere(Ok(Shared(ShmConfig::default()))));
drivers::conformance_suite!(
    shm_offered,
    everywhere(Ok(Shared(ShmConfig { copied_ahead: 0, ..ShmConfig::default() })))
);
drivers::conformance_suite!(
    shm_staged,
    everywhere(Ok(Shared(ShmConfig { pull: false, ..ShmConfig::default() })))
);
drivers::conformance_suite!(udp_v4, everywhere(Sockets::on("127.0.0.1:0")));
drivers::conformance_suite!(udp_v6, Sockets::on("[::1]:0"));
drivers::conformance_suite!(udp_dual, Sockets::dual());
drivers::conformance_suite!(udp_plain, everywhere(Sockets::plain()));
drivers::conformance_suite!(fault_mem, everywhere(Ok(Faulty::new(Memory(Hub::new()), HARMLESS))));
drivers::conformance_suite!(
    fault_udp,
    everywhere(Sockets::on("127.0.0.1:0").map(|sockets| Faulty::new(sockets, HARMLESS)))
);
drivers::conformance_suite!(late_mem, everywhere(Ok(Faulty::new(Memory(Hub::new()), LATE))));
drivers::conformance_suite!(late_shm, everywhere(Ok(Faulty::new(Shared(ShmConfig::default()), LATE))));
drivers::conformance_suite!(
    late_udp,
    everywhere(Sockets::on("127.0.0.1:0").map(|sockets| Faulty::new(sockets, LATE)))
);
drivers::conformance_suite!(lossy_mem, everywhere(Ok(Faulty::new(Memory(Hub::new()), LOSSY))));
drivers::conformance_suite!(lossy_shm, everywhere(Ok(Faulty::new(Shared(ShmConfig::default()), LOSSY))));
drivers::conformance_suite!(
    lossy_udp,
    everywhere(Sockets::on("127.0.0.1:0").map(|sockets| Faulty::new(sockets, LOSSY)))
);
