//! The network interfaces of this host (of this network namespace): their addresses, and how long packets they take.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::Errno;

/// IP addresses with the names of their interfaces.
pub(crate) fn addresses() -> Vec<(String, IpAddr)> {
    let Ok(found) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let ip = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))?;
        Some((found.interface_name, ip))
    };
    found.filter_map(ip).collect()
}

/// Bytes of the longest IP packet that an interface takes.
pub(crate) fn mtu(name: &str) -> Result<usize, Errno> {
    let asking = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|error| Errno(error as i32))?;
    let mut request = request_about(name).ok_or(Errno(libc::ENODEV))?;
    // SAFETY: the request reads the name and writes the union of a valid `ifreq`.
    let rc = unsafe { libc::ioctl(asking.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if rc != 0 {
        return Err(Errno::last());
    }
    // SAFETY: the kernel has just written the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// The MTU of the interface that has an address; `None`: none has, or it reports none.
pub(crate) fn mtu_at(ip: IpAddr) -> Option<usize> {
    let (name, _) = addresses().into_iter().find(|(_, own)| *own == ip)?;
    mtu(&name).ok()
}

/// A request about a device; `None`: no device has such a name.
pub(crate) fn request_about(name: &str) -> Option<libc::ifreq> {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Some(request)
}
