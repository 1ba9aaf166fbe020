//! The helper itself: one thread, one connection for each rail, one program at each device.

use core::fmt;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, UnixAddr, accept4,
    bind, connect, getsockname, getsockopt, listen, socket, sockopt,
};
use nix::unistd::{Gid, chown};

use super::register::{Device, Held, Register, Rules};
use super::wire::{Answer, REQUEST_BYTES, Refusal, Request, Wanted};
use super::{MEMORY_BYTES_MAX, messages};
use crate::error::{DriverError, Errno, Operation};
use crate::interfaces::addresses;
use crate::limits::{XDP_HELPER_CONNECTIONS_MAX, XDP_HELPER_PATIENCE};
use crate::xdp::memory::Mapping;
use crate::xdp::program::{self, Destination, Link};
use crate::xdp::{Attach, check_capabilities, device, open, sockets};

/// How to open a [`Helper`].
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// Where it listens; the folder is made.
    pub path: PathBuf,
    /// The socket's file permissions.
    pub mode: u32,
    /// The group of the socket's file.
    pub group: Option<u32>,
    /// The users that it serves.
    pub rules: Rules,
}

/// Why there is no helper.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// It has not got the rights.
    #[error(
        "it needs {missing}, which this process lacks: run it as root, or give it these (AmbientCapabilities= of systemd, or \
         `setcap cap_net_admin,cap_net_raw,cap_bpf+ep`)"
    )]
    Rights {
        /// Their names.
        missing: &'static str,
    },
    /// Another one is there.
    #[error("another nic-helper listens at {}: end it, or name another socket (--socket)", path.display())]
    Another {
        /// Where.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} is there and is no socket: remove it, or name another socket (--socket)", path.display())]
    NoSocket {
        /// Where.
        path: PathBuf,
    },
    /// The system.
    #[error("cannot listen at {}: {errno}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
}

/// Something that a helper has done, for its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The process that asked.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its outcome.
    pub outcome: Outcome,
}

/// The grant to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Queues.
    Given {
        /// The device.
        device: String,
        /// How the program is attached.
        attach: Attach,
        /// Which queues.
        queues: Vec<u32>,
        /// Whose frames.
        address: SocketAddr,
    },
    /// Nothing.
    Refused(Refusal),
    /// It has given its queues back, or has ended.
    Over {
        /// Whose frames go through the kernel again.
        address: SocketAddr,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { pid, uid, outcome } = self;
        write!(f, "process {pid} of user {uid}: ")?;
        match outcome {
            Outcome::Given { device, attach, queues, address } => {
                let attach = attach.name();
                write!(f, "given queues {queues:?} of {device} ({attach}) for frames to {address}")
            }
            Outcome::Refused(refusal) => write!(f, "refused: {refusal}"),
            Outcome::Over { address } => write!(f, "over; nothing is taken for {address} any more"),
        }
    }
}

struct Connection {
    socket: OwnedFd,
    pid: i32,
    uid: u32,
    since: Instant,
    rail: Option<Rail>,
}

/// The helper's objects for a rail.
struct Rail {
    /// Its UDP socket: as long as that is open no other process gets the port.
    _address: OwnedFd,
    map: OwnedFd,
    wire_bytes_max: usize,
    /// Its longest frames lie in several chunks.
    in_parts: bool,
}

/// The helper. When it is dropped, nothing of it is left at any device.
pub struct Helper {
    listener: OwnedFd,
    path: PathBuf,
    rules: Rules,
    register: Register,
    /// The programs, by device.
    links: BTreeMap<u32, Link>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

impl Helper {
    /// Listens.
    ///
    /// # Errors
    /// [`HelperError`].
    pub fn open(config: &HelperConfig) -> Result<Helper, HelperError> {
        if let Err(DriverError::CapabilityMissing { missing }) = check_capabilities() {
            return Err(HelperError::Rights { missing });
        }
        let path = &config.path;
        let failed = |errno| HelperError::Listen { path: path.clone(), errno };
        let known = |error: nix::errno::Errno| failed(Errno(error as i32));
        let file = |error: std::io::Error| failed(Errno::from(&error));
        let address = UnixAddr::new(path.as_path()).map_err(known)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let make = || socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(known);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(file)?;
        }
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(HelperError::NoSocket { path: path.clone() });
            }
            // A socket without a listener was left by a killed helper.
            match connect(make()?.as_raw_fd(), &address) {
                Err(nix::errno::Errno::ECONNREFUSED) => std::fs::remove_file(path).map_err(file)?,
                _ => return Err(HelperError::Another { path: path.clone() }),
            }
        }
        let listener = make()?;
        bind(listener.as_raw_fd(), &address).map_err(known)?;
        // No client gets in before the file has its permissions.
        if let Some(group) = config.group {
            chown(path.as_path(), None, Some(Gid::from_raw(group))).map_err(known)?;
        }
        let mode = std::fs::Permissions::from_mode(config.mode);
        std::fs::set_permissions(path, mode).map_err(file)?;
        listen(&listener, Backlog::MAXALLOWABLE).map_err(known)?;
        Ok(Helper {
            listener,
            path: path.clone(),
            rules: config.rules.clone(),
            register: Register::default(),
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 0,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves until `stop` is readable.
    ///
    /// # Errors
    /// The system's error if it cannot wait.
    pub fn run(&mut self, stop: BorrowedFd<'_>, report: &mut dyn FnMut(&Event)) -> Result<(), Errno> {
        loop {
            let numbers: Vec<u64> = self.connections.keys().copied().collect();
            let on = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut watched = vec![on(stop)];
            watched.extend(self.connections.values().map(|connection| on(connection.socket.as_fd())));
            // At the bound the next client waits until one leaves.
            let room = self.connections.len() < XDP_HELPER_CONNECTIONS_MAX;
            if room {
                watched.push(on(self.listener.as_fd()));
            }
            let waiting = self.connections.values().any(|connection| connection.rail.is_none());
            let timeout = if waiting { PollTimeout::from(100u16) } else { PollTimeout::NONE };
            match poll(&mut watched, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Errno(error as i32)),
            }
            let ready: Vec<bool> = watched.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            if ready[0] {
                return Ok(());
            }
            for (number, _) in numbers.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                self.hear(*number, report);
            }
            if room && ready.last() == Some(&true) {
                self.let_in();
            }
            let late = |connection: &Connection| {
                connection.rail.is_none() && connection.since.elapsed() > XDP_HELPER_PATIENCE
            };
            self.connections.retain(|_, connection| !late(connection));
        }
    }

    fn let_in(&mut self) {
        let Ok(fd) = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
        else {
            return;
        };
        // SAFETY: just made, and no other code knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let Ok(peer) = getsockopt(&socket, sockopt::PeerCredentials) else { return };
        let connection =
            Connection { socket, pid: peer.pid(), uid: peer.uid(), since: Instant::now(), rail: None };
        self.connections.insert(self.next, connection);
        self.next += 1;
    }

    /// Something came over a connection, or it is over.
    fn hear(&mut self, number: u64, report: &mut dyn FnMut(&Event)) {
        let Some(connection) = self.connections.get(&number) else { return };
        let (pid, uid) = (connection.pid, connection.uid);
        let mut bytes = [0; REQUEST_BYTES + 1];
        let came = messages::receive(connection.socket.as_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT);
        let (length, files) = match came {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
            // A client with a rail has no further requests.
            Ok((length, files)) if length > 0 && connection.rail.is_none() => (length, files),
            Ok(_) | Err(_) => return self.end(number, report),
        };
        let answered = match Request::parse(&bytes[..length]) {
            Err(_) => Err(Refusal::Request),
            Ok(Request::Probe { device }) => self.permit(uid, device.as_str()).map(|()| None),
            Ok(Request::Open(wanted)) => self.give(number, uid, &wanted, files).map(Some),
        };
        let (answer, sockets) = match answered {
            Ok(None) => (Answer::Would, Vec::new()),
            Ok(Some((held, sockets))) => {
                let Held { attach, queues, address, .. } = held;
                let device = wanted_name(&bytes[..length]);
                let (given, of) = (queues.clone(), device);
                report(&Event { pid, uid, outcome: Outcome::Given { device: of, attach, queues, address } });
                (Answer::Given { attach, queues: given }, sockets)
            }
            Err(refusal) => {
                report(&Event { pid, uid, outcome: Outcome::Refused(refusal) });
                (Answer::Refused(refusal), Vec::new())
            }
        };
        let Some(connection) = self.connections.get(&number) else { return };
        let files: Vec<BorrowedFd<'_>> = sockets.iter().map(OwnedFd::as_fd).collect();
        let sent = messages::send(connection.socket.as_fd(), &answer.emit(), &files, MsgFlags::MSG_DONTWAIT);
        if sent.is_err() {
            self.end(number, report);
        }
        // Our copies of the sockets are closed here: from now on they are the rank's alone.
    }

    fn permit(&self, uid: u32, device: &str) -> Result<(), Refusal> {
        self.rules.permit(uid, device)?;
        find(device).map(drop)
    }

    /// Opens the sockets that a rank asks for, and registers them.
    fn give(
        &mut self,
        number: u64,
        uid: u32,
        wanted: &Wanted,
        files: Vec<OwnedFd>,
    ) -> Result<(Held, Vec<OwnedFd>), Refusal> {
        let name = wanted.device.as_str();
        self.rules.permit(uid, name)?;
        let [address_socket, memory]: [OwnedFd; 2] = files.try_into().map_err(|_| Refusal::Request)?;
        let device = find(name)?;
        let address = address_of(address_socket.as_fd(), name).ok_or(Refusal::Address)?;
        let range = (usize::from(wanted.queues_min), usize::from(wanted.queues_max));
        let queues = self.register.find(device, address, range, wanted.attach)?;
        let memory = Mapping::of_file(memory.as_fd(), MEMORY_BYTES_MAX).map_err(|_| Refusal::Memory)?;
        let failed = |(operation, errno)| Refusal::Failed { operation, errno };
        let chunk_bytes = usize::try_from(wanted.chunk_bytes).unwrap_or(usize::MAX);
        let sockets = sockets::open(&memory, chunk_bytes, queues.len()).map_err(failed)?;
        let loading = |errno| failed((Operation::LoadProgram, errno));
        let last = queues.iter().max().copied().unwrap_or(0);
        let map = program::queue_map(last + 1).map_err(loading)?;
        let wire_bytes_max = usize::try_from(wanted.wire_bytes_max).unwrap_or(usize::MAX);
        let in_parts = open::is_in_parts(wire_bytes_max, chunk_bytes);
        let new = Destination { address, wire_bytes_max, map: map.as_fd() };
        // The program first: attaching it may reset the device's queues.
        let attach = self.program(device.interface, Some((new, in_parts)), wanted.attach).map_err(failed)?;
        let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(OwnedFd::as_fd).collect();
        let bound = || -> Result<(), (Operation, Errno)> {
            for (place, queue) in queues.iter().enumerate() {
                sockets::bind(&fds, place, device.interface, *queue, in_parts)
                    .map_err(|errno| (Operation::BindQueue, errno))?;
                program::put_queue(map.as_fd(), *queue, fds[place])
                    .map_err(|errno| (Operation::LoadProgram, errno))?;
            }
            Ok(())
        };
        if let Err(failure) = bound() {
            let _ = self.program(device.interface, None, None);
            return Err(failed(failure));
        }
        let held = Held { interface: device.interface, address, queues, attach };
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.rail = Some(Rail { _address: address_socket, map, wire_bytes_max, in_parts });
            self.register.enter(number, held.clone());
        }
        Ok((held, sockets))
    }

    /// Has a device run the program for the rails that it has, and for a new one; none at all if it has none.
    fn program(
        &mut self,
        interface: u32,
        new: Option<(Destination<'_>, bool)>,
        asked: Option<Attach>,
    ) -> Result<Attach, (Operation, Errno)> {
        let mut any_in_parts = new.as_ref().is_some_and(|(_, in_parts)| *in_parts);
        let mut rails: Vec<Destination<'_>> = new.into_iter().map(|(rail, _)| rail).collect();
        let mut attached = Attach::Native;
        for (number, held) in self.register.at(interface) {
            let Some(rail) = self.connections.get(&number).and_then(|other| other.rail.as_ref()) else {
                continue;
            };
            attached = held.attach;
            let wire_bytes_max = rail.wire_bytes_max;
            any_in_parts |= rail.in_parts;
            rails.push(Destination { address: held.address, wire_bytes_max, map: rail.map.as_fd() });
        }
        if rails.is_empty() {
            self.links.remove(&interface);
            return Ok(attached);
        }
        let program = program::load(&rails, any_in_parts).map_err(|errno| (Operation::LoadProgram, errno))?;
        let attaching = |errno| (Operation::AttachProgram, errno);
        if let Some(link) = self.links.get(&interface) {
            link.replace(program.as_fd()).map_err(attaching)?;
            return Ok(attached);
        }
        let (link, attach) = open::attach_once(&program, interface, asked).map_err(attaching)?;
        self.links.insert(interface, link);
        Ok(attach)
    }

    /// A connection is over: its resources are free, and only then it is closed.
    fn end(&mut self, number: u64, report: &mut dyn FnMut(&Event)) {
        let Some(mut connection) = self.connections.remove(&number) else { return };
        if let Some(held) = self.register.leave(number) {
            connection.rail = None;
            // If the device is gone, so is the program; if the program cannot be renewed, its entry of this rail leads
            // to no socket.
            let _ = self.program(held.interface, None, None);
            let Connection { pid, uid, .. } = connection;
            report(&Event { pid, uid, outcome: Outcome::Over { address: held.address } });
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The programs are detached by their links.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn wanted_name(request: &[u8]) -> String {
    match Request::parse(request) {
        Ok(Request::Open(Wanted { device, .. }) | Request::Probe { device }) => device.as_str().to_owned(),
        Err(_) => String::new(),
    }
}

fn find(name: &str) -> Result<Device, Refusal> {
    let (interface, ..) =
        device::find(name).map_err(|(operation, errno)| Refusal::Failed { operation, errno })?;
    Ok(Device { interface, queues: device::queues(name) })
}

/// The address of a UDP socket, if that is bound to one of the device's in this network namespace: the kernel has given it to the process then, and
/// so may we its frames.
fn address_of(socket: BorrowedFd<'_>, device: &str) -> Option<SocketAddr> {
    let is_udp = getsockopt(&socket, sockopt::SockType).ok()? == SockType::Datagram
        && sockets::protocol(socket).ok()? == SockProtocol::Udp as i32;
    if !is_udp || sockets::namespace(socket).ok()? != own_namespace()? {
        return None;
    }
    let name: SockaddrStorage = getsockname(socket.as_raw_fd()).ok()?;
    let v4 = name.as_sockaddr_in().map(|v4| (IpAddr::V4(v4.ip()), v4.port()));
    let (ip, port) = v4.or_else(|| name.as_sockaddr_in6().map(|v6| (IpAddr::V6(v6.ip()), v6.port())))?;
    let is_own = addresses().into_iter().any(|(on, own)| on == device && own == ip);
    (is_own && port != 0).then_some(SocketAddr::new(ip, port))
}

fn own_namespace() -> Option<u64> {
    let own = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    sockets::namespace(own.as_fd()).ok()
}
