//! The base of the tests: hosts on a bridge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use drivers::conformance::Fixture;
use drivers::fault::{FaultDriver, Faults, Rate};
use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
use drivers::xdp::{Attach, Rights, XdpConfig, XdpDriver};
use drivers::{Driver, DriverError};
use nix::sched::{CloneFlags, unshare};
use transport::{AddressId, RawAddress};

use crate::xdp::helper::Serving;
use crate::xdp::rights::give_up_rights;

/// The port of every rail of the suite.
const PORT: u16 = 4000;

/// A bridge in the namespace of this thread.
pub(crate) struct Bridged {
    attach: Attach,
    v6: bool,
    rails: u8,
    faults: Option<Faults>,
    /// Of devices made from here on.
    pub(crate) queues: u32,
    pub(crate) mtu: u32,
    /// Each host has a helper, and rails are opened by it, on threads without rights.
    pub(crate) by_helper: bool,
    /// Those of the suite: helpers end with their hosts.
    hosts: Vec<Host>,
}

/// Waits until a device of this thread's namespace carries frames: the kernel notices some time after both ends are up.
pub(crate) fn wait_until_up(device: &str) {
    let start = Instant::now();
    while !ip(&format!("link show {device}")).expect("the device").contains("state UP") {
        assert!(start.elapsed() < Duration::from_secs(20), "{device} is not up after 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the kernel answers requests for an address of this thread's namespace: it joins the address's group some
/// time after the device is up, and an unanswered request is repeated only after a second.
fn wait_until_asked_for(address: Ipv6Addr) {
    let [.., a, b, c] = address.octets();
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    let start = Instant::now();
    while !std::fs::read_to_string("/proc/thread-self/net/igmp6").expect("a list of groups").contains(&group)
    {
        assert!(start.elapsed() < Duration::from_secs(20), "the group of {address} is not joined after 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `ip` in the namespace of this thread; returns its output.
pub(crate) fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| format!("no tool `ip`: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("ip {arguments}: {said}"))
    }
}

impl Bridged {
    fn new(attach: Attach, v6: bool, faults: Option<Faults>) -> Result<Bridged, String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no namespaces of one's own: {error}"))?;
        let nowhere = XdpConfig::new("none", SocketAddr::from(([127, 0, 0, 1], 0)));
        if let Err(error @ DriverError::CapabilityMissing { .. }) = XdpDriver::open(&nowhere) {
            return Err(error.to_string());
        }
        ip("link add br0 type bridge forward_delay 0 mcast_snooping 0")?;
        ip("link set br0 up")?;
        Ok(Bridged {
            attach,
            v6,
            rails: 0,
            faults,
            queues: 1,
            mtu: 1500,
            by_helper: false,
            hosts: Vec::new(),
        })
    }

    fn address(&self, rail: u8) -> IpAddr {
        match self.v6 {
            false => Ipv4Addr::new(10, 9, 0, rail).into(),
            true => Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, rail.into()).into(),
        }
    }

    /// A device in a namespace of its own, and the configuration that opens a rail on it.
    pub(crate) fn host(&mut self) -> Host {
        self.rails += 1;
        let (rail, attach, by_helper) = (self.rails, self.attach, self.by_helper);
        let (queues, mtu) = (self.queues, self.mtu);
        let address = self.address(rail);
        let bridge = nix::unistd::gettid();
        let bits = if self.v6 { "64 nodad" } else { "24" };
        let (ask, asked) = std::sync::mpsc::channel::<Work>();
        let (made, is_made) = std::sync::mpsc::channel();
        let (up, bridge_end_is_up) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("as for the bridge");
            ip("link set lo up").expect("a new namespace");
            let size = format!("numrxqueues {queues} numtxqueues {queues} mtu {mtu}");
            let made_with =
                format!("link add eth0 {size} type veth peer name to{rail} {size} netns {bridge}");
            ip(&made_with).expect("a device");
            ip(&format!("addr add {address}/{bits} dev eth0")).expect("an address");
            ip("link set eth0 up").expect("the device");
            made.send(()).expect("the bridge's thread");
            let helper = by_helper.then(|| Serving::start(attach));
            let rights =
                helper.as_ref().map_or(Rights::Own, |helper| Rights::Helper(helper.path().to_path_buf()));
            let bind = SocketAddr::new(address, 0);
            let config = XdpConfig { attach: Some(attach), rights, ..XdpConfig::new("eth0", bind) };
            if bridge_end_is_up.recv().is_ok() {
                wait_until_up("eth0");
                if let IpAddr::V6(address) = address {
                    wait_until_asked_for(address);
                }
            }
            while let Ok(work) = asked.recv() {
                work(&config);
            }
        });
        is_made.recv().expect("the device's thread");
        ip(&format!("link set to{rail} master br0 up")).expect("the bridge's end");
        wait_until_up(&format!("to{rail}"));
        up.send(()).expect("the device's thread");
        Host { ask }
    }
}

/// Something to do on a host's thread, with the configuration that opens a rail there.
type Work = Box<dyn FnOnce(&XdpConfig) + Send>;

pub(crate) struct Host {
    ask: std::sync::mpsc::Sender<Work>,
}

impl Host {
    /// Runs `work` in the host's namespace.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce(&XdpConfig) -> T + Send + 'static) -> T {
        let (answer, answers) = std::sync::mpsc::channel();
        let work = move |config: &XdpConfig| answer.send(work(config)).expect("the test's thread");
        self.ask.send(Box::new(work)).expect("the host's thread");
        answers.recv().expect("the host's thread")
    }

    pub(crate) fn try_open(&self, change: fn(&mut XdpConfig)) -> Result<XdpDriver, DriverError> {
        self.run(move |config| {
            let mut config = config.clone();
            change(&mut config);
            if config.rights == Rights::Own { XdpDriver::open(&config) } else { unprivileged(config) }
        })
    }

    pub(crate) fn open(&self) -> XdpDriver {
        self.try_open(|_| ()).expect("rights and a device")
    }

    pub(crate) fn open_udp(&self) -> UdpDriver {
        self.run(|config| UdpDriver::open(&UdpConfig::new(config.bind))).expect("an address")
    }

    pub(crate) fn resolve(&self, mut rail: XdpDriver, address: RawAddress) -> (XdpDriver, AddressId) {
        self.run(move |_| {
            let to = rail.resolve(&address).expect("on the same bridge");
            (rail, to)
        })
    }

    pub(crate) fn ip(&self, arguments: &'static str) {
        self.run(move |_| ip(arguments)).expect("a device");
    }
}

/// Opens a rail on a thread of this namespace that has no rights, and is another user's.
pub(crate) fn unprivileged(config: XdpConfig) -> Result<XdpDriver, DriverError> {
    let open = move || {
        give_up_rights();
        XdpDriver::open(&config)
    };
    std::thread::spawn(open).join().expect("no panic")
}

impl Fixture for Bridged {
    fn open(&mut self) -> Box<dyn Driver> {
        let host = self.host();
        let rail = host.try_open(|config| config.bind.set_port(PORT));
        let mut rail = rail.expect("rights and a device");
        // The kernel reports a path's limit in the namespace of the thread that asks. So each rail resolves
        // every possible rail where it was opened.
        for other in 1..=4 {
            let address = RawAddress::from(UdpAddress(SocketAddr::new(self.address(other), PORT)));
            (rail, _) = host.resolve(rail, address);
        }
        self.hosts.push(host);
        match self.faults {
            None => Box::new(rail),
            Some(faults) => Box::new(FaultDriver::new(rail, faults)),
        }
    }

    /// Every frame that is lost is waited for so long.
    fn patience_steps(&self) -> usize {
        if self.loses() { 100 } else { 2000 }
    }

    fn loses(&self) -> bool {
        self.faults.is_some_and(|faults| faults.loss != Rate::ZERO)
    }

    fn hang_steps(&self) -> usize {
        200_000
    }
}

/// Runs `test` on a bridge, on a thread of its own. Where bridges are not available it prints that, and
/// returns false.
pub(crate) fn bridged(
    name: &str,
    attach: Attach,
    v6: bool,
    faults: Option<Faults>,
    test: impl FnOnce(Bridged) + Send,
) -> bool {
    std::thread::scope(|scope| {
        let run = || match Bridged::new(attach, v6, faults) {
            Ok(bridge) => {
                test(bridge);
                true
            }
            Err(missing) => {
                crate::skipped::skipped(
                    name,
                    &format!("rights to AF_XDP and network namespaces ({missing})"),
                );
                false
            }
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
