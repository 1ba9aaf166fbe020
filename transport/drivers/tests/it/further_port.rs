//! A process with several ports, and a device that serves one AF_XDP rail. Alone in its file: the outcome
//! depends on whether the process has such a rail.

use std::net::SocketAddr;
use std::process::Command;

use drivers::nic::{NicChoice, NicRequest};
use drivers::udp::UdpConfig;
use drivers::{DriverError, RailsError, open_rails};
use nix::sched::{CloneFlags, unshare};

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("the tool `ip`");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// On a thread in a namespace of its own.
fn test() {
    ip("link add eth0 type veth peer name eth1");
    ip("addr add 10.9.0.1/24 dev eth0");
    ip("link set eth0 up");
    ip("link set eth1 up");
    let udp = UdpConfig::new(SocketAddr::from(([10, 9, 0, 1], 0)));
    let choice: NicChoice = "xdp:eth0".parse().expect("a choice");
    let request = NicRequest { choice, ranks_here: Some(1) };
    let open = || open_rails(&udp, Some(&request));
    let first = open().expect("rights and a device");
    assert!(first.nic.to_string().starts_with("xdp:eth0 (native, copying"), "{}", first.nic);
    let second = open().expect("UDP");
    assert_eq!(second.nic.to_string(), "udp:eth0 (not xdp:eth0: another port of this process has it)");
    // A call that moves a rail under a port takes the named NIC, or nothing.
    let moved = drivers::open_nic(&udp, &request).map(|(_, taken)| taken);
    let Err(RailsError::Nic(error)) = moved else { panic!("{moved:?}") };
    assert!(error.to_string().contains("Device or resource busy"), "{error}");
    // The device is free again, even if the second port goes over UDP.
    drop(first);
    let third = open().expect("the device");
    assert!(third.nic.to_string().starts_with("xdp:eth0"), "{}", third.nic);
    drop(second);
}

#[test]
fn a_further_port_of_a_process_goes_over_udp() {
    let name = "a_further_port_of_a_process_goes_over_udp";
    if let Err(error @ DriverError::CapabilityMissing { .. }) = drivers::xdp::check_capabilities() {
        return crate::skipped::skipped(name, &error.to_string());
    }
    let inside = || match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => test(),
        Err(error) => crate::skipped::skipped(name, &format!("no namespaces of one's own: {error}")),
    };
    std::thread::spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
