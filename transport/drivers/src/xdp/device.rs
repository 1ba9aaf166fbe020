//! Facts about a device before frames are built for it.

use std::os::fd::AsRawFd as _;

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::headers::Mac;
use super::sockets::Failure;
use crate::error::{Errno, Operation};
use crate::interfaces::{mtu, request_about};

/// Number, Ethernet address and MTU of a device.
pub(super) fn find(name: &str) -> Result<(u32, Mac, usize), Failure> {
    let failed = |errno| (Operation::FindDevice, errno);
    let known = |error| failed(Errno(error as i32));
    let index = if_nametoindex(name).map_err(known)?;
    let asking =
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map_err(known)?;
    let mut request = request_about(name).ok_or(failed(Errno(libc::ENODEV)))?;
    let mtu = mtu(name).map_err(failed)?;
    // SAFETY: the request reads the name and writes the union of a valid `ifreq`.
    let rc = unsafe { libc::ioctl(asking.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if rc != 0 {
        return Err(failed(Errno::last()));
    }
    // SAFETY: the kernel has just written the address.
    let hardware = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = Mac::default();
    for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
        *to = from.cast_unsigned();
    }
    Ok((index, mac, mtu))
}

/// How many queues a device receives by (ETHTOOL_GCHANNELS); `None`: it does not report them.
#[must_use]
pub fn receive_queues(name: &str) -> Option<u32> {
    channels(name).map(|channels| channels.receive + channels.combined)
}

/// How many queues of a device can serve a rail: by which it receives and sends. One at least.
#[must_use]
pub fn queues(name: &str) -> u32 {
    let both = |channels: Channels| channels.receive.min(channels.transmit) + channels.combined;
    channels(name).map_or(1, both).max(1)
}

/// `struct ethtool_channels`: the command, the most of each kind (receive, transmit, other, combined), and as many as there are.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

fn channels(name: &str) -> Option<Channels> {
    const GET_CHANNELS: u32 = 0x3c;
    let asking = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    let mut request = request_about(name)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the request reads the name and writes the struct behind the pointer, of the size that the command has, which lives until the
    // call is over.
    let rc = unsafe { libc::ioctl(asking.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    (rc == 0).then_some(channels)
}
