//! Two hosts that are network namespaces, and rails of every driver on them.

use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;

use drivers::fault::{FaultDriver, Faults};
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use drivers::verbs::{VerbsConfig, VerbsDriver};
use drivers::xdp::{Attach, XdpConfig, XdpDriver};
use drivers::{Driver, DriverError};
use endpoint::EndpointConfig;
use nix::sched::{CloneFlags, setns, unshare};
use transport::{JobId, JobKey, PortConfig};

pub(crate) const KEY: JobKey = JobKey([1; 16]);
/// Bytes of messages, in turn.
pub(crate) const LENGTHS: [u64; 6] = [8, 5000, 300_001, 70_000, 1400, 0];

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("the tool `ip`");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The NIC of a port's rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nic {
    Udp,
    Xdp,
    Verbs,
    Shm,
}

/// A namespace with one end of a pair of devices.
pub(crate) struct Host {
    pub(crate) rank: u32,
    namespace: File,
    /// The RDMA device, where there is one; it serves every namespace.
    device: Option<String>,
    faults: Faults,
}

impl Host {
    fn new(rank: u32) -> nix::Result<Host> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(Host::here(rank))
    }

    /// The host that this thread is on.
    pub(crate) fn here(rank: u32) -> Host {
        let namespace = File::open("/proc/thread-self/ns/net").expect("/proc");
        let named = std::env::var("STILLWIRE_TEST_VERBS").ok();
        let at = usize::try_from(rank).expect("two hosts");
        let of_rank = named.as_ref().and_then(|named| named.split_whitespace().nth(at));
        let device = of_rank.and_then(|end| end.split(',').next()).map(str::to_owned);
        Host { rank, namespace, device, faults: Faults::NONE }
    }

    /// Its rails have these faults.
    pub(crate) fn with(self, faults: Faults) -> Host {
        Host { faults, ..self }
    }

    /// From here on this thread works on this host.
    pub(crate) fn enter(&self) {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).expect("a namespace of one's own");
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([10, 9, 0, 1 + u8::try_from(self.rank).expect("two hosts")], 0))
    }

    pub(crate) fn rail(&self, nic: Nic) -> Result<Vec<Box<dyn Driver>>, DriverError> {
        Ok(vec![self.rail_at(self.address(), nic)?])
    }

    /// Rails over UDP and AF_XDP are at `bind`.
    pub(crate) fn rail_at(&self, bind: SocketAddr, nic: Nic) -> Result<Box<dyn Driver>, DriverError> {
        self.enter();
        let rail: Box<dyn Driver> = match nic {
            Nic::Udp => Box::new(UdpDriver::open(&UdpConfig::new(bind))?),
            Nic::Xdp => Box::new(XdpDriver::open(&XdpConfig {
                attach: Some(Attach::Native),
                ..XdpConfig::new(format!("eth{}", self.rank), bind)
            })?),
            Nic::Verbs => {
                let device = self.device.as_deref().expect("asked for before");
                Box::new(VerbsDriver::open(&VerbsConfig::new(device))?)
            }
            Nic::Shm => Box::new(ShmDriver::open(&ShmConfig::default())?),
        };
        Ok(match self.faults {
            Faults::NONE => rail,
            faults => Box::new(FaultDriver::new(rail, faults)),
        })
    }
}

/// Two hosts with a pair of devices between them; else the missing part.
fn hosts() -> Result<[Host; 2], String> {
    let none = |error| format!("no namespaces of one's own: {error}");
    let [a, b] = [Host::new(0).map_err(none)?, Host::new(1).map_err(none)?];
    if let Err(error @ DriverError::CapabilityMissing { .. }) = b.rail(Nic::Xdp) {
        return Err(error.to_string());
    }
    ip("link add eth1 type veth peer name eth0");
    std::thread::scope(|scope| {
        // A device is handed to the namespace of a thread.
        let (reported, report) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let a = &a;
        scope.spawn(move || {
            a.enter();
            reported.send(nix::unistd::gettid()).expect("the test's thread");
            let _ = wait.recv();
        });
        let other = report.recv().expect("the thread");
        ip(&format!("link set eth0 netns {other}"));
        drop(done);
    });
    for host in [&a, &b] {
        host.enter();
        ip(&format!("addr add {}/24 dev eth{}", host.address().ip(), host.rank));
        ip(&format!("link set eth{} up", host.rank));
        ip("link set lo up");
    }
    Ok([a, b])
}

pub(crate) fn config() -> PortConfig {
    PortConfig::new(JobId(1).tag())
}

pub(crate) fn by_hand() -> EndpointConfig {
    EndpointConfig { helper: false, ..EndpointConfig::default() }
}

/// Runs `test` on a thread of its own, which takes its namespaces along.
pub(crate) fn on_hosts(name: &str, needs_verbs: bool, test: impl FnOnce([Host; 2]) + Send) {
    let run = || match hosts() {
        Ok(hosts) if needs_verbs && hosts.iter().any(|host| host.device.is_none()) => {
            crate::skipped::skipped(name, "a guest with RDMA devices (tests/guest/verbs starts one)");
        }
        Ok(hosts) => test(hosts),
        Err(missing) => crate::skipped::skipped(name, &missing),
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
