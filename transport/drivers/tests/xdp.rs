//! The AF_XDP driver between network namespaces of its own: a bridge in one, and a pair of virtual Ethernet devices to each rail.
//! Namespaces and devices vanish with the threads and sockets that hold them.

#[path = "../../../tests/skipped.rs"]
mod skipped;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use drivers::conformance::{CASES, Fixture};
use drivers::fault::{FaultDriver, Faults};
use drivers::xdp::{Attach, XdpConfig, XdpDriver};
use drivers::{Driver, DriverError, Operation};
use nix::sched::{CloneFlags, unshare};

/// A bridge in the namespace of this thread.
struct Bridged {
    attach: Attach,
    v6: bool,
    rails: u8,
    faults: Option<Faults>,
}

/// Waits until a device of this thread's namespace carries frames: the kernel notices some time after both ends are up.
fn wait_until_up(device: &str) {
    let start = Instant::now();
    while !ip(&format!("link show {device}")).expect("the device").contains("state UP") {
        assert!(start.elapsed() < Duration::from_secs(20), "{device} is not up after 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `ip` in the namespace of this thread; what it prints.
fn ip(arguments: &str) -> Result<String, String> {
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
        let nowhere = XdpConfig {
            interface: "none".to_owned(),
            queue: 0,
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            attach: None,
        };
        if let Err(error @ DriverError::CapabilityMissing { .. }) = XdpDriver::open(&nowhere) {
            return Err(error.to_string());
        }
        ip("link add br0 type bridge forward_delay 0 mcast_snooping 0")?;
        ip("link set br0 up")?;
        Ok(Bridged { attach, v6, rails: 0, faults })
    }

    /// A device in a namespace of its own, and what opens a rail on it.
    fn host(&mut self) -> Host {
        self.rails += 1;
        let (rail, attach) = (self.rails, self.attach);
        let address: IpAddr = match self.v6 {
            false => Ipv4Addr::new(10, 9, 0, rail).into(),
            true => Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, rail.into()).into(),
        };
        let bridge = nix::unistd::gettid();
        let bits = if self.v6 { "64 nodad" } else { "24" };
        let (ask, asked) = std::sync::mpsc::channel();
        let (answer, answers) = std::sync::mpsc::channel();
        let (made, is_made) = std::sync::mpsc::channel();
        let (up, bridge_end_is_up) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("as for the bridge");
            ip("link set lo up").expect("a new namespace");
            ip(&format!("link add eth0 type veth peer name to{rail} netns {bridge}")).expect("a device");
            ip(&format!("addr add {address}/{bits} dev eth0")).expect("an address");
            ip("link set eth0 up").expect("the device");
            made.send(()).expect("the bridge's thread");
            let config = XdpConfig {
                interface: "eth0".to_owned(),
                queue: 0,
                bind: SocketAddr::new(address, 0),
                attach: Some(attach),
            };
            while let Ok(change) = asked.recv() {
                let change: fn(&mut XdpConfig) = change;
                if bridge_end_is_up.recv().is_ok() {
                    wait_until_up("eth0");
                }
                let mut config = config.clone();
                change(&mut config);
                if answer.send(XdpDriver::open(&config)).is_err() {
                    return;
                }
            }
        });
        is_made.recv().expect("the device's thread");
        ip(&format!("link set to{rail} master br0 up")).expect("the bridge's end");
        wait_until_up(&format!("to{rail}"));
        up.send(()).expect("the device's thread");
        Host { ask, answers }
    }
}

struct Host {
    ask: std::sync::mpsc::Sender<fn(&mut XdpConfig)>,
    answers: std::sync::mpsc::Receiver<Result<XdpDriver, DriverError>>,
}

impl Host {
    fn open(&self, change: fn(&mut XdpConfig)) -> Result<XdpDriver, DriverError> {
        self.ask.send(change).expect("the host's thread");
        self.answers.recv().expect("the host's thread")
    }
}

impl Fixture for Bridged {
    fn open(&mut self) -> Box<dyn Driver> {
        let rail = self.host().open(|_| ()).expect("rights and a device");
        match self.faults {
            None => Box::new(rail),
            Some(faults) => Box::new(FaultDriver::new(rail, faults)),
        }
    }
}

/// Runs `test` on a bridge, on a thread of its own; says so where that cannot be had.
fn bridged(name: &str, attach: Attach, v6: bool, faults: Option<Faults>, test: impl FnOnce(Bridged) + Send) {
    std::thread::scope(|scope| {
        let run = || match Bridged::new(attach, v6, faults) {
            Ok(bridge) => test(bridge),
            Err(missing) => {
                skipped::skipped(name, &format!("rights to AF_XDP and network namespaces ({missing})"))
            }
        };
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn conforms(name: &str, attach: Attach, v6: bool, faults: Option<Faults>) {
    for (case, run) in CASES {
        eprintln!("{case}");
        bridged(name, attach, v6, faults, |mut bridge| run(&mut bridge));
    }
}

#[test]
fn native_v4_conforms() {
    conforms("native_v4_conforms", Attach::Native, false, None);
}

#[test]
fn native_v6_conforms() {
    conforms("native_v6_conforms", Attach::Native, true, None);
}

#[test]
fn generic_v4_conforms() {
    conforms("generic_v4_conforms", Attach::Generic, false, None);
}

#[test]
fn generic_v6_conforms() {
    conforms("generic_v6_conforms", Attach::Generic, true, None);
}

#[test]
fn it_conforms_under_a_wrapper_that_delays_completions() {
    let faults = "late=30%,seed=3".parse().expect("faults");
    conforms("it_conforms_under_a_wrapper_that_delays_completions", Attach::Generic, false, Some(faults));
}

/// Sends until a frame comes that came around the kernel: nothing of it is in the companion's counters.
#[test]
fn frames_pass_around_the_kernel() {
    bridged("frames_pass_around_the_kernel", Attach::Generic, false, None, |mut bridge| {
        let mut a = bridge.host().open(|_| ()).expect("rights and a device");
        let mut b = bridge.host().open(|_| ()).expect("rights and a device");
        let to = a.resolve(&b.local_address()).expect("on the same bridge");
        for attempt in 0.. {
            assert!(attempt < 1000, "every frame went through the kernel's stack");
            a.lease().expect("free chunks")[..4].copy_from_slice(b"here");
            a.commit(to, 4, drivers::Payload::EMPTY);
            a.flush().expect("a live rail");
            b.wait(Duration::from_millis(10)).expect("a live rail");
            while b.receive(8, &mut |frame| assert_eq!(frame, b"here")).expect("a live rail") > 0 {}
            let ((_, sent), (received, _)) = (a.direct_frames(), b.direct_frames());
            if sent > 0 && received > 0 {
                return;
            }
        }
    });
}

#[test]
fn a_rail_that_was_closed_can_be_opened_again_at_once() {
    bridged("a_rail_that_was_closed", Attach::Native, false, None, |mut bridge| {
        let host = bridge.host();
        for _ in 0..5 {
            drop(host.open(|_| ()).expect("rights and a device"));
        }
    });
}

#[test]
fn a_queue_that_is_taken_is_named() {
    bridged("a_queue_that_is_taken_is_named", Attach::Generic, false, None, |mut bridge| {
        let host = bridge.host();
        let _first = host.open(|_| ()).expect("rights and a device");
        let error = host.open(|_| ()).err().expect("the device is taken");
        let DriverError::CannotOpen { operation, errno } = error else { panic!("{error}") };
        assert_eq!((operation, errno.0), (Operation::AttachProgram, libc::EBUSY));
    });
}

#[test]
fn a_device_that_is_not_there_is_named() {
    bridged("a_device_that_is_not_there_is_named", Attach::Generic, false, None, |mut bridge| {
        let error = bridge.host().open(|config| config.interface = "none".to_owned()).err();
        let Some(DriverError::CannotOpen { operation, errno }) = error else { panic!("{error:?}") };
        assert_eq!((operation, errno.0), (Operation::FindDevice, libc::ENODEV));
    });
}
