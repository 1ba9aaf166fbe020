//! Where measured processes stand: on this host's loopback, or in two network namespaces that pairs of virtual Ethernet devices join.
//!
//! Each path that is measured in turns has a pair of devices of its own, all alike: a device has room for one program
//! of AF_XDP, and frames over UDP must not pass one. Namespaces and devices vanish with the processes and descriptors
//! that hold them.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use drivers::Driver;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use drivers::verbs::{VerbsConfig, VerbsDriver};
use drivers::xdp::bare::BareXdp;
use drivers::xdp::{Attach, Rights, XdpConfig, XdpDriver};
use nix::sched::{CloneFlags, setns, unshare};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::pair;
use crate::worker::Worker;

/// MTU of the devices, if nothing else is asked for: Ethernet's.
pub(crate) const MTU: u32 = 1500;

/// NIC kind to measure.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Nic {
    /// Sockets on loopback
    #[default]
    Udp,
    /// Shared memory
    Shm,
    /// AF_XDP between two network namespaces of its own; needs root
    Xdp,
    /// RDMA between the first two devices here, or from the only one to itself
    Verbs,
}

impl Nic {
    /// As the command line says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Nic::Udp => "udp",
            Nic::Shm => "shm",
            Nic::Xdp => "xdp",
            Nic::Verbs => "verbs",
        }
    }
}

/// How the program of AF_XDP is attached.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// In the device's own driver
    #[default]
    Native,
    /// In the kernel's receive path
    Generic,
}

/// A pair of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wire {
    /// Ours, and another one of ours.
    Ours,
    Second,
    /// The bare path.
    Bare,
    /// The path through the kernel's network stack.
    Kernel,
}

impl Wire {
    const ALL: [Wire; 4] = [Wire::Ours, Wire::Second, Wire::Bare, Wire::Kernel];

    fn device(self) -> &'static str {
        match self {
            Wire::Ours => "ours",
            Wire::Second => "second",
            Wire::Bare => "bare",
            Wire::Kernel => "kernel",
        }
    }

    fn address(self, side: u32) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, self as u8, u8::try_from(side + 1).unwrap_or(u8::MAX))
    }
}

/// A measured process: its rank, and its rails.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct RailSpec {
    pub(crate) rank: u32,
    pub(crate) nic: Nic,
    program: Program,
    /// The namespace, where there are two.
    side: u32,
}

impl RailSpec {
    fn at(&self, wire: Wire) -> SocketAddr {
        match self.nic {
            Nic::Xdp => SocketAddr::from((wire.address(self.side), 0)),
            // The device's own address, so that frames through the kernel take the same network.
            Nic::Verbs => {
                let own = self.verbs().map(|rail| rail.gid().to_canonical());
                own.map_or(pair::ANY, |ip| SocketAddr::new(ip, 0))
            }
            Nic::Udp | Nic::Shm => pair::ANY,
        }
    }

    fn verbs(&self) -> Result<VerbsDriver, BenchError> {
        let devices = rdma_devices();
        let device = devices.get(self.side as usize).or(devices.first()).ok_or(BenchError::NoRdmaDevice)?;
        Ok(VerbsDriver::open(&VerbsConfig::new(device))?)
    }

    /// The local address for sockets of the kernel's network stack.
    pub(crate) fn kernel(&self) -> SocketAddr {
        self.at(Wire::Kernel)
    }

    fn queue(&self, wire: Wire) -> XdpConfig {
        let attach = match self.program {
            Program::Native => Attach::Native,
            Program::Generic => Attach::Generic,
        };
        let interface = wire.device().to_owned();
        XdpConfig {
            interface,
            queues_max: Some(1),
            bind: self.at(wire),
            attach: Some(attach),
            rights: Rights::Own,
        }
    }

    /// A rail over the measured NIC.
    pub(crate) fn rail(&self, wire: Wire) -> Result<Box<dyn Driver>, BenchError> {
        Ok(match self.nic {
            Nic::Udp => Box::new(UdpDriver::open(&UdpConfig::new(pair::ANY))?),
            Nic::Shm => RailSpec::shm_rail()?,
            Nic::Xdp => Box::new(XdpDriver::open(&self.queue(wire))?),
            Nic::Verbs => Box::new(self.verbs()?),
        })
    }

    /// A rail over UDP, as a baseline.
    pub(crate) fn udp_rail(&self) -> Result<Box<dyn Driver>, BenchError> {
        Ok(Box::new(UdpDriver::open(&UdpConfig::new(self.kernel()))?))
    }

    /// A rail over shared memory, as a baseline.
    pub(crate) fn shm_rail() -> Result<Box<dyn Driver>, BenchError> {
        Ok(Box::new(ShmDriver::open(&ShmConfig::default())?))
    }

    /// The rings alone.
    pub(crate) fn bare_xdp(&self) -> Result<BareXdp, BenchError> {
        Ok(BareXdp::open(&self.queue(Wire::Bare))?)
    }

    /// A rail over UDP to the peer at `self`'s device for `wire`, from the other side.
    pub(crate) fn rail_of_a_peer(&self, wire: Wire) -> Result<Box<dyn Driver>, BenchError> {
        match self.nic {
            Nic::Xdp => Ok(Box::new(UdpDriver::open(&UdpConfig::new(self.at(wire)))?)),
            Nic::Udp | Nic::Shm | Nic::Verbs => self.rail(wire),
        }
    }
}

/// Names of the RDMA devices of this system, in order.
fn rdma_devices() -> Vec<String> {
    let listed = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> = listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// The testbed, as the bench sees it.
pub(crate) struct Testbed {
    nic: Nic,
    program: Program,
    mtu: u32,
    /// The bench's own namespace, and the two of the sides.
    spaces: Option<(File, [File; 2])>,
}

impl Testbed {
    /// UDP on loopback.
    pub(crate) const LOOPBACK: Testbed =
        Testbed { nic: Nic::Udp, program: Program::Native, mtu: MTU, spaces: None };

    pub(crate) fn make(nic: Nic, program: Program) -> Result<Testbed, BenchError> {
        Testbed::with_mtu(nic, program, MTU)
    }

    pub(crate) fn with_mtu(nic: Nic, program: Program, mtu: u32) -> Result<Testbed, BenchError> {
        let spaces = match nic {
            Nic::Verbs if rdma_devices().is_empty() => return Err(BenchError::NoRdmaDevice),
            Nic::Udp | Nic::Shm | Nic::Verbs => None,
            Nic::Xdp => Some(join_two_namespaces(mtu)?),
        };
        Ok(Testbed { nic, program, mtu, spaces })
    }

    /// Does something, such as starting a process, in the namespace of `side`.
    pub(crate) fn on<T>(
        &self,
        side: u32,
        act: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let Some((home, spaces)) = &self.spaces else { return act() };
        enter(&spaces[side as usize])?;
        let result = act();
        enter(home)?;
        result
    }

    pub(crate) fn nic(&self) -> Nic {
        self.nic
    }

    pub(crate) fn rail_spec(&self, rank: u32, side: u32) -> RailSpec {
        RailSpec { rank, nic: self.nic, program: self.program, side }
    }

    /// A process for each side.
    pub(crate) fn start_two(&self, role: &'static str) -> Result<[Worker; 2], BenchError> {
        Ok([self.on(0, || Worker::start(role))?, self.on(1, || Worker::start(role))?])
    }

    /// Device named in the report.
    pub(crate) fn device(&self) -> Option<String> {
        let program = self.program.to_possible_value()?;
        let mtu = if self.mtu == MTU { String::new() } else { format!(" of MTU {}", self.mtu) };
        match self.nic {
            Nic::Xdp => Some(format!("veth{mtu}, {} program, copying", program.get_name())),
            Nic::Verbs => Some(rdma_devices().into_iter().take(2).collect::<Vec<_>>().join(" and ")),
            Nic::Udp | Nic::Shm => None,
        }
    }
}

fn no_namespaces(what: impl std::fmt::Display) -> BenchError {
    BenchError::NoNamespaces { what: what.to_string() }
}

fn enter(space: &File) -> Result<(), BenchError> {
    setns(space, CloneFlags::CLONE_NEWNET)
        .map_err(|error| no_namespaces(format_args!("entering one: {error}")))
}

fn join_two_namespaces(mtu: u32) -> Result<(File, [File; 2]), BenchError> {
    let here = || {
        File::open("/proc/thread-self/ns/net")
            .map_err(|error| no_namespaces(format_args!("/proc/thread-self/ns/net: {error}")))
    };
    let home = here()?;
    let fresh = || {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|error| no_namespaces(format_args!("CAP_SYS_ADMIN is missing ({error})")))?;
        here()
    };
    let make = || {
        let second = fresh()?;
        let second_holder = std::os::fd::AsRawFd::as_raw_fd(&second);
        let first = fresh()?;
        for wire in Wire::ALL {
            let device = wire.device();
            let there = format!("/proc/{}/fd/{second_holder}", std::process::id());
            ip(&format!("link add {device} mtu {mtu} type veth peer name {device} mtu {mtu} netns {there}"))?;
        }
        for (side, space) in [(0, &first), (1, &second)] {
            enter(space)?;
            for wire in Wire::ALL {
                let device = wire.device();
                ip(&format!("addr add {}/24 dev {device}", wire.address(side)))?;
                ip(&format!("link set {device} up"))?;
            }
        }
        for space in [&first, &second] {
            enter(space)?;
            Wire::ALL.into_iter().try_for_each(|wire| wait_until_up(wire.device()))?;
        }
        Ok([first, second])
    };
    let spaces: Result<[File; 2], BenchError> = make();
    enter(&home)?;
    Ok((home, spaces?))
}

/// The kernel notices some time after both ends are up.
fn wait_until_up(device: &str) -> Result<(), BenchError> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let start = Instant::now();
    while !ip(&format!("link show {device}"))?.contains("state UP") {
        if start.elapsed() > PATIENCE {
            return Err(BenchError::Stalled {
                what: "a virtual device to be up",
                seconds: PATIENCE.as_secs(),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Runs `ip` in the namespace of this thread and returns its output.
fn ip(arguments: &str) -> Result<String, BenchError> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| no_namespaces(format_args!("the tool `ip` (iproute2): {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(no_namespaces(format_args!("ip {arguments}: {}", said.trim())))
}
