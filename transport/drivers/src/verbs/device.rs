//! An opened RDMA device: the port and the GID that a rail uses; their events.

use core::ffi::{CStr, c_int, c_uint};
use core::mem::zeroed;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::VerbsConfig;
use super::abi::{self, AlignedGid, Gid};
use super::library::{Library, Made, checked};
use crate::error::{DriverError, Errno, Operation};

/// A step of opening that failed.
pub(super) type Failure = (Operation, Errno);

/// A device's port, with the GID by which others reach it.
pub(super) struct Device {
    pub(super) context: Made<abi::Context>,
    pub(super) library: &'static Library,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: Gid,
    /// 0 over Ethernet.
    pub(super) lid: u16,
    /// Every address handle has a route: over Ethernet nothing else gives the destination, and some ports of
    /// InfiniBand, which share their LID with others, take no other.
    pub(super) needs_route: bool,
    /// As the address has it.
    pub(super) mtu: u8,
    /// The most requests that one queue of it holds.
    pub(super) requests_max: usize,
    pub(super) completions_max: usize,
    /// Over Ethernet, the name of the network interface that has the GID.
    pub(super) interface: Option<String>,
}

impl Device {
    /// The device of that name; its first active port and most routable GID where the configuration names none.
    pub(super) fn open(library: &'static Library, config: &VerbsConfig) -> Result<Device, DriverError> {
        let cannot = |(operation, errno)| DriverError::CannotOpen { operation, errno };
        let context = open_named(library, &config.device)?;
        // SAFETY: integers only.
        let mut known: abi::DeviceAttributes = unsafe { zeroed() };
        // SAFETY: an open device, and a struct to be filled.
        checked(unsafe { (library.query_device)(context.at(), &raw mut known) })
            .map_err(|errno| cannot((Operation::OpenDevice, errno)))?;
        let (port, attributes) = find_port(library, &context, known.ports, config.port).map_err(cannot)?;
        let is_ethernet = attributes.link_layer == abi::LINK_LAYER_ETHERNET;
        let all = 0..u8::try_from(attributes.gids).unwrap_or(u8::MAX);
        let gids = match config.gid_index {
            Some(index) => index..index.saturating_add(1),
            None => all,
        };
        let best = gids
            .filter_map(|index| {
                let gid = query_gid(library, &context, port, index)?;
                let version = gid_kind(&config.device, port, index);
                Some((worth(gid, is_ethernet, &version), index, gid))
            })
            // Of equal ones the first.
            .max_by_key(|(worth, index, _)| (*worth, core::cmp::Reverse(*index)));
        let none = (Operation::FindGid, Errno(libc::EADDRNOTAVAIL));
        let (_, gid_index, gid) = best.ok_or_else(|| cannot(none))?;
        let event_fd = {
            // SAFETY: an open device.
            let fd = unsafe { (*context.at()).event_fd };
            // SAFETY: open for as long as `context` is.
            unsafe { BorrowedFd::borrow_raw(fd) }
        };
        dont_block(event_fd).map_err(|errno| cannot((Operation::WatchPort, errno)))?;
        Ok(Device {
            context,
            library,
            port,
            gid_index,
            gid,
            lid: if is_ethernet { 0 } else { attributes.lid },
            needs_route: is_ethernet || attributes.flags & abi::ROUTE_REQUIRED != 0,
            mtu: u8::try_from(attributes.mtu).unwrap_or(1).clamp(1, 5),
            requests_max: usize::try_from(known.requests_max).unwrap_or(0),
            completions_max: usize::try_from(known.completions_max).unwrap_or(0),
            interface: interface(&config.device, port, gid_index).filter(|_| is_ethernet),
        })
    }

    /// Readable when the device has events; completions are reported by the channel.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open device.
        let fd = unsafe { (*self.context.at()).event_fd };
        // SAFETY: open for as long as `self.context` is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn command_fd(&self) -> c_int {
        // SAFETY: an open device.
        unsafe { (*self.context.at()).command_fd }
    }

    /// Takes the events that have come. The error ends the rail.
    pub(super) fn take_events(&self) -> Result<(), Errno> {
        let mut may_have_changed = false;
        loop {
            // SAFETY: an integer and a pointer, which may be null.
            let mut event: abi::Event = unsafe { zeroed() };
            // SAFETY: an open device, whose descriptor does not block.
            if unsafe { (self.library.get_event)(self.context.at(), &raw mut event) } != 0 {
                break;
            }
            let kind = event.kind;
            // SAFETY: just taken, and answered once; objects cannot end before.
            unsafe { (self.library.ack_event)(&raw mut event) };
            tracing::debug!(kind, "the RDMA device tells of an event");
            match kind {
                abi::COMPLETION_QUEUE_ERROR..=abi::QUEUE_PAIR_ACCESS_ERROR | abi::DEVICE_FATAL => {
                    return Err(Errno(libc::EIO));
                }
                // Changes of ports, LIDs, GIDs, and events of later versions: looked up.
                _ => may_have_changed = true,
            }
        }
        if may_have_changed { self.check() } else { Ok(()) }
    }

    /// Whether the port is active, and still reached as it was.
    pub(super) fn check(&self) -> Result<(), Errno> {
        let now = query_port(self.library, &self.context, self.port)?;
        if now.state != abi::PORT_ACTIVE {
            return Err(Errno(libc::ENETDOWN));
        }
        let gid = query_gid(self.library, &self.context, self.port, self.gid_index);
        let same = gid == Some(self.gid) && (self.lid == 0 || now.lid == self.lid);
        if same { Ok(()) } else { Err(Errno(libc::EADDRNOTAVAIL)) }
    }
}

pub(super) fn dont_block(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let set = || {
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(|_| ())
    };
    set().map_err(|error: nix::errno::Errno| Errno(error as i32))
}

fn open_named(library: &'static Library, name: &str) -> Result<Made<abi::Context>, DriverError> {
    let mut count = 0;
    // SAFETY: an integer to be filled.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        // ENOSYS: the kernel has no RDMA at all.
        let errno = Errno::last();
        return match errno.0 {
            libc::ENOSYS => Err(DriverError::DeviceMissing { others: 0 }),
            _ => Err(DriverError::CannotOpen { operation: Operation::FindDevice, errno }),
        };
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has that many entries.
    let devices = unsafe { core::slice::from_raw_parts(list, count) };
    let is_named = |device: &*mut abi::Device| {
        // SAFETY: a device of the list, whose name is a string in it.
        unsafe { CStr::from_ptr((library.get_device_name)(*device)) }.to_bytes() == name.as_bytes()
    };
    let opened = match devices.iter().find(|device| is_named(device)) {
        None => Err(DriverError::DeviceMissing { others: count }),
        Some(device) => {
            // SAFETY: a device of the list; the opened device outlives the list.
            let opened = unsafe { (library.open_device)(*device) };
            // SAFETY: the library's answer.
            let made = unsafe { Made::new(opened, library.close_device) };
            made.map_err(|errno| DriverError::CannotOpen { operation: Operation::OpenDevice, errno })
        }
    };
    // SAFETY: the list, once.
    unsafe { (library.free_device_list)(list) };
    opened
}

fn query_port(
    library: &Library,
    context: &Made<abi::Context>,
    port: u8,
) -> Result<abi::PortAttributes, Errno> {
    // SAFETY: integers only.
    let mut known: abi::PortAttributes = unsafe { zeroed() };
    // SAFETY: an open device, and a struct to be filled.
    checked(unsafe { (library.query_port)(context.at(), port, &raw mut known) })?;
    Ok(known)
}

/// The port that is asked for, or the first active one.
fn find_port(
    library: &Library,
    context: &Made<abi::Context>,
    ports: u8,
    asked: Option<u8>,
) -> Result<(u8, abi::PortAttributes), Failure> {
    let candidates = asked.map_or(1..=ports, |port| port..=port);
    let mut problem = Errno(libc::ENETDOWN);
    for port in candidates {
        match query_port(library, context, port) {
            Ok(known) if known.state == abi::PORT_ACTIVE => return Ok((port, known)),
            Ok(_) => {}
            Err(errno) => problem = errno,
        }
    }
    Err((Operation::FindPort, problem))
}

/// `None`: no such entry, or an empty one.
fn query_gid(library: &Library, context: &Made<abi::Context>, port: u8, index: u8) -> Option<Gid> {
    let mut gid = AlignedGid::default();
    // SAFETY: an open device, and bytes to be filled.
    let failed = unsafe { (library.query_gid)(context.at(), port, c_int::from(index), &raw mut gid) };
    (failed == 0 && gid.0 != [0; 16]).then_some(gid.0)
}

/// The kernel's facts about a GID: `RoCE v2`, `IB/RoCE v1`.
fn gid_kind(device: &str, port: u8, index: u8) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    std::fs::read_to_string(path).unwrap_or_default()
}

fn interface(device: &str, port: u8, index: u8) -> Option<String> {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}");
    std::fs::read_to_string(path).ok().map(|name| name.trim().to_owned())
}

/// The device that has this IP address as a GID, as those of RoCE have.
pub(crate) fn device_at(address: IpAddr) -> Option<String> {
    let wanted = match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_wanted =
        |gid: &Path| std::fs::read_to_string(gid).is_ok_and(|text| text.trim().parse() == Ok(wanted));
    let mut devices: Vec<String> = entries(Path::new("/sys/class/infiniband"))
        .filter(|device| {
            entries(&device.path().join("ports"))
                .any(|port| entries(&port.path().join("gids")).any(|gid| is_wanted(&gid.path())))
        })
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect();
    devices.sort();
    devices.into_iter().next()
}

/// How far a GID reaches. Over Ethernet: version 2 (in UDP) can be routed, and most networks route IPv4; link-local
/// ones end at the first router. Over InfiniBand the first one always is the port's own.
fn worth(gid: Gid, is_ethernet: bool, kind: &str) -> c_uint {
    if !is_ethernet {
        return 0;
    }
    let address = std::net::Ipv6Addr::from(gid);
    let reach = match address.to_ipv4_mapped() {
        Some(ip) if ip.is_link_local() => 1,
        Some(_) => 3,
        None if address.is_unicast_link_local() => 0,
        None => 2,
    };
    reach + if kind.trim() == "RoCE v2" { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn the_most_routable_gid_is_worth_most() {
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let global = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);
        let v4 = |ip: [u8; 4]| Ipv4Addr::from(ip).to_ipv6_mapped();
        let ascending = [
            (link_local, "IB/RoCE v1\n"),
            (v4([169, 254, 1, 1]), "IB/RoCE v1\n"),
            (global, "IB/RoCE v1\n"),
            (v4([10, 0, 0, 1]), "IB/RoCE v1\n"),
            (link_local, "RoCE v2\n"),
            (v4([169, 254, 1, 1]), "RoCE v2\n"),
            (global, "RoCE v2\n"),
            (v4([10, 0, 0, 1]), "RoCE v2\n"),
        ];
        let worths = ascending.map(|(gid, kind)| worth(gid.octets(), true, kind));
        assert!(worths.is_sorted_by(|a, b| a < b), "{worths:?}");
    }
}
