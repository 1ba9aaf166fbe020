//! The helper itself: one thread, one connection for each rail, one program at each device.
//!
//! The users of a machine do not trust each other, and this thread serves them all. So it waits for none of them: it reads the bytes that have come, answers without waiting,
//! and takes nothing whose end could wait.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, accept4, getsockopt, socket, sockopt};

use super::discard::Discarder;
use super::event::{Event, Outcome};
use super::listener::{self, HelperError, Listener};
use super::messages;
use super::port::Port;
use super::programs::Programs;
use super::refusal::Refusal;
use super::register::{Device, Held, Register, Rules};
use super::users::{Limits, Line, Users};
use super::wire::{Answer, REQUEST_BYTES, Request, Wanted};
use crate::error::{Errno, Operation};
use crate::limits::{
    XDP_HELPER_ACCEPTS, XDP_HELPER_CHECK_PERIOD, XDP_HELPER_CONNECTIONS_MAX, XDP_HELPER_DETACH_AFTER,
    XDP_HELPER_PATIENCE,
};
use crate::xdp::memory::Mapping;
use crate::xdp::program::{self, Destination};
use crate::xdp::{Attach, device, open, sockets};

/// How often clients without a rail are looked at.
const LATE_PERIOD: Duration = Duration::from_millis(100);

/// How to open a [`Helper`].
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// Where it listens; the folder is made.
    pub path: PathBuf,
    /// The socket's file permissions.
    pub mode: u32,
    /// The group of the socket's file.
    pub group: Option<u32>,
    /// The users and devices that it serves.
    pub rules: Rules,
    /// The most that one user gets.
    pub limits: Limits,
    /// Whether programs are attached in the kernel's receive path; otherwise in the device's driver, where that can.
    pub generic: bool,
    /// How long a program stays attached to a device that has no rail any more.
    pub detach_after: Duration,
    /// Whether the kernel shall refuse descriptors that clients send, where it can (Linux 6.16). Tests of the way without it say no.
    pub refuse_descriptors: bool,
}

impl HelperConfig {
    /// With the usual limits, for the user of this process.
    #[must_use]
    pub fn new(path: PathBuf, rules: Rules) -> HelperConfig {
        HelperConfig {
            path,
            mode: 0o600,
            group: None,
            rules,
            limits: Limits::default(),
            generic: false,
            detach_after: XDP_HELPER_DETACH_AFTER,
            refuse_descriptors: true,
        }
    }
}

struct Connection {
    socket: OwnedFd,
    pid: i32,
    uid: u32,
    since: Instant,
    state: State,
}

enum State {
    /// Its request has not come.
    New,
    /// It has an answer, and no rail.
    Answered,
    Rail(Rail),
}

impl Connection {
    fn is_rail(&self) -> bool {
        matches!(self.state, State::Rail(_))
    }

    /// The request stays in the socket's queue: after it, only the end of the connection is waited for.
    fn awaited(&self) -> PollFlags {
        match self.state {
            State::New => PollFlags::POLLIN,
            State::Answered | State::Rail(_) => PollFlags::from_bits_retain(libc::POLLRDHUP),
        }
    }
}

/// The helper's objects for a rail.
struct Rail {
    /// As long as this is open no other process gets the port.
    port: Port,
    device: String,
    map: OwnedFd,
    wire_bytes_max: usize,
    /// Its longest frames lie in several chunks.
    in_parts: bool,
    memory_bytes: usize,
}

/// The helper's answer to a request for queues.
struct Grant {
    rail: Rail,
    held: Held,
    attach: Attach,
    memory: OwnedFd,
    sockets: Vec<OwnedFd>,
}

/// The helper. When it is dropped, nothing of it is left at any device.
pub struct Helper {
    listener: OwnedFd,
    path: PathBuf,
    rules: Rules,
    users: Users,
    register: Register,
    programs: Programs,
    discarder: Discarder,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    checked: Instant,
    namespace: Option<u64>,
}

impl Helper {
    /// Listens, for processes in the network namespace of this thread.
    ///
    /// # Errors
    /// [`HelperError`].
    pub fn open(config: &HelperConfig) -> Result<Helper, HelperError> {
        let HelperConfig { path, mode, group, .. } = config;
        let Listener { socket, refuses_descriptors } =
            listener::open(path, *mode, *group, config.refuse_descriptors)?;
        Ok(Helper {
            listener: socket,
            path: path.clone(),
            rules: config.rules.clone(),
            users: Users::new(config.limits),
            register: Register::default(),
            programs: Programs::new(config.generic, config.detach_after),
            discarder: Discarder::new(refuses_descriptors),
            connections: BTreeMap::new(),
            next: 0,
            checked: Instant::now(),
            namespace: own_namespace(),
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
            let mut watched = vec![
                PollFd::new(stop, PollFlags::POLLIN),
                PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            ];
            let others = self.connections.values();
            watched.extend(others.map(|other| PollFd::new(other.socket.as_fd(), other.awaited())));
            match poll(&mut watched, self.timeout()) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Errno(error as i32)),
            }
            let ready: Vec<bool> = watched.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            if ready[0] {
                return Ok(());
            }
            for (number, _) in numbers.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
                self.hear(*number, report);
            }
            if ready[1] {
                (0..XDP_HELPER_ACCEPTS).all(|_| self.let_in(report));
            }
            self.tidy(report);
        }
    }

    fn timeout(&self) -> PollTimeout {
        let soonest = if self.connections.values().any(|connection| !connection.is_rail()) {
            LATE_PERIOD
        } else if !self.connections.is_empty() || self.programs.any_idle() || self.discarder.is_waiting() {
            XDP_HELPER_CHECK_PERIOD
        } else {
            return PollTimeout::NONE;
        };
        PollTimeout::try_from(soonest).unwrap_or(PollTimeout::ZERO)
    }

    /// Does whatever has become due.
    fn tidy(&mut self, report: &mut dyn FnMut(&Event)) {
        let is_late = |connection: &Connection| {
            !connection.is_rail() && connection.since.elapsed() > XDP_HELPER_PATIENCE
        };
        let late = self.connections.iter().filter(|(_, connection)| is_late(connection));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.end(number, None, report));
        self.discarder.resume();
        if self.checked.elapsed() >= XDP_HELPER_CHECK_PERIOD {
            self.checked = Instant::now();
            self.check_ports(report);
            self.programs.detach_idle(Instant::now());
        }
    }

    /// Ends rails whose port another process may have now.
    fn check_ports(&mut self, report: &mut dyn FnMut(&Event)) {
        let lost = self.connections.iter().filter_map(|(number, connection)| match &connection.state {
            State::Rail(rail) if !rail.port.is_exclusive(&rail.device) => {
                Some((*number, rail.port.address()))
            }
            _ => None,
        });
        let lost: Vec<_> = lost.collect();
        for (number, address) in lost {
            self.end(number, Some(Outcome::Shared { address }), report);
        }
    }

    /// Lets one client in, or refuses it before anything that it has sent is looked at; false: none waits.
    fn let_in(&mut self, report: &mut dyn FnMut(&Event)) -> bool {
        let accepted = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
        let Ok(fd) = accepted else { return false };
        // SAFETY: just made, and no other code knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let Ok(peer) = getsockopt(&socket, sockopt::PeerCredentials) else { return true };
        let (pid, uid) = (peer.pid(), peer.uid());
        let admitted = self.rules.permit_user(uid).and_then(|()| self.users.connect(uid));
        if let Err(refusal) = admitted {
            let answer = Answer::Refused(refusal).emit();
            let _ = messages::send(socket.as_fd(), &answer, &[], MsgFlags::MSG_DONTWAIT);
            self.discarder.close(uid, socket);
            self.log(Event { pid, uid, outcome: Outcome::Refused(refusal) }, report);
            return true;
        }
        if self.connections.len() >= XDP_HELPER_CONNECTIONS_MAX {
            self.make_room(report);
        }
        let connection = Connection { socket, pid, uid, since: Instant::now(), state: State::New };
        self.connections.insert(self.next, connection);
        self.next += 1;
        true
    }

    /// Drops the oldest connection without a rail, of the user that has most of them.
    fn make_room(&mut self, report: &mut dyn FnMut(&Event)) {
        let without = || self.connections.iter().filter(|(_, connection)| !connection.is_rail());
        let mut of_users = BTreeMap::<u32, usize>::new();
        without().for_each(|(_, connection)| *of_users.entry(connection.uid).or_default() += 1);
        let most = of_users.into_iter().max_by_key(|(_, count)| *count).map(|(uid, _)| uid);
        let oldest =
            without().find(|(_, connection)| Some(connection.uid) == most).map(|(number, _)| *number);
        if let Some(number) = oldest {
            self.end(number, None, report);
        }
    }

    /// Something came over a connection, or it is over.
    fn hear(&mut self, number: u64, report: &mut dyn FnMut(&Event)) {
        let Some(connection) = self.connections.get(&number) else { return };
        let (pid, uid) = (connection.pid, connection.uid);
        let mut bytes = [0; REQUEST_BYTES + 1];
        let length = match (&connection.state, messages::look(connection.socket.as_fd(), &mut bytes)) {
            (State::New, Err(Errno(libc::EAGAIN | libc::EINTR))) => return,
            (State::New, Ok(length)) if length > 0 => length,
            _ => return self.end(number, None, report),
        };
        let namespace = sockets::namespace(connection.socket.as_fd()).ok();
        let answered = match Request::parse(&bytes[..length]) {
            Err(_) => Err(Refusal::Request),
            Ok(Request::Probe { device }) => self.find(device.as_str()).map(|_| None),
            Ok(Request::Open(_)) if namespace.is_none() || namespace != self.namespace => {
                Err(Refusal::Address)
            }
            Ok(Request::Open(wanted)) => self.grant(uid, &wanted).map(Some),
        };
        let sent = match answered {
            Ok(None) => self.answer(number, &Answer::Would, &[]),
            Err(refusal) => {
                self.log(Event { pid, uid, outcome: Outcome::Refused(refusal) }, report);
                self.answer(number, &Answer::Refused(refusal), &[])
            }
            Ok(Some(grant)) => {
                let Grant { rail, held, attach, memory, sockets } = grant;
                let (queues, address) = (held.queues.clone(), held.address);
                let device = rail.device.clone();
                let outcome = Outcome::Given { device, attach, queues: queues.clone(), address };
                self.log(Event { pid, uid, outcome }, report);
                let answer = Answer::Given { attach, queues };
                let files = [rail.port.as_fd(), memory.as_fd()].into_iter();
                let files: Vec<BorrowedFd<'_>> = files.chain(sockets.iter().map(OwnedFd::as_fd)).collect();
                let sent = self.answer(number, &answer, &files);
                self.users.add_rail(uid, rail.memory_bytes);
                self.register.enter(number, held);
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.state = State::Rail(rail);
                }
                // Our copies of sockets and memory are closed here: from now on they are the rank's alone.
                sent
            }
        };
        if sent.is_err() {
            self.end(number, None, report);
        }
    }

    fn answer(&mut self, number: u64, answer: &Answer, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let Some(connection) = self.connections.get_mut(&number) else { return Err(Errno(libc::ENOENT)) };
        connection.state = State::Answered;
        messages::send(connection.socket.as_fd(), &answer.emit(), files, MsgFlags::MSG_DONTWAIT)
    }

    fn find(&self, name: &str) -> Result<Device, Refusal> {
        self.rules.permit_device(name)?;
        let (interface, ..) =
            device::find(name).map_err(|(operation, errno)| Refusal::Failed { operation, errno })?;
        Ok(Device { interface, queues: device::queues(name) })
    }

    /// Opens the sockets that a rank asks for, and has the device's program steer its frames there.
    fn grant(&mut self, uid: u32, wanted: &Wanted) -> Result<Grant, Refusal> {
        let size = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        let name = wanted.device.as_str();
        let device = self.find(name)?;
        let memory_bytes = size(wanted.memory_bytes);
        self.users.permit_rail(uid, memory_bytes)?;
        let is_other = |mode| wanted.attach.is_some_and(|asked| asked != mode);
        if self.programs.mode(device.interface).is_some_and(is_other) {
            return Err(Refusal::Attached);
        }
        let least = usize::from(wanted.queues_min);
        let free = self.register.free(device, least)?;
        let port = Port::bind(wanted.address, name)?;
        let failed = |(operation, errno)| Refusal::Failed { operation, errno };
        let registering = |errno| failed((Operation::RegisterFrames, errno));
        let (frames, memory) = Mapping::shared(memory_bytes).map_err(registering)?;
        let count = usize::from(wanted.queues_max).min(free.len());
        let mut sockets = sockets::open(&frames, size(wanted.chunk_bytes), count).map_err(failed)?;
        let loading = |errno| failed((Operation::LoadProgram, errno));
        let map = program::queue_map(device.queues).map_err(loading)?;
        let wire_bytes_max = size(wanted.wire_bytes_max);
        let in_parts = open::is_in_parts(wire_bytes_max, size(wanted.chunk_bytes));
        let address = port.address();
        let rail = Rail { port, device: name.to_owned(), map, wire_bytes_max, in_parts, memory_bytes };
        // The program first: attaching it may reset the device's queues.
        let attach = self.run_program(device.interface, Some((address, &rail)))?;
        let mut bound = Bound::default();
        let done = if is_other(attach) {
            Err(Refusal::Attached)
        } else {
            bound.bind(&sockets, &free, (device.interface, in_parts), rail.map.as_fd())
        };
        let Bound { queues, busy } = bound;
        let done = done.and_then(|()| match queues.len() < least {
            true => Err(Refusal::Queues {
                left: u32::try_from(queues.len()).unwrap_or(u32::MAX),
                all: device.queues,
                elsewhere: self.register.elsewhere(device.interface, &busy, Instant::now()),
            }),
            false => Ok(()),
        });
        if let Err(refusal) = done {
            let _ = self.run_program(device.interface, None);
            self.register.release(device.interface, &queues, Instant::now());
            return Err(refusal);
        }
        sockets.truncate(queues.len());
        let held = Held { interface: device.interface, address, queues };
        Ok(Grant { rail, held, attach, memory, sockets })
    }

    /// Has a device run the program for the rails that it has, and for a new one.
    fn run_program(&mut self, interface: u32, new: Option<(SocketAddr, &Rail)>) -> Result<Attach, Refusal> {
        let Helper { register, connections, programs, .. } = self;
        let has = |(number, held): (u64, &Held)| match &connections.get(&number)?.state {
            State::Rail(rail) => Some((held.address, rail)),
            State::New | State::Answered => None,
        };
        let rails: Vec<_> = new.into_iter().chain(register.at(interface).filter_map(has)).collect();
        let in_parts = rails.iter().any(|(_, rail)| rail.in_parts);
        let destinations: Vec<Destination<'_>> = rails
            .iter()
            .map(|(address, rail)| Destination {
                address: *address,
                wire_bytes_max: rail.wire_bytes_max,
                map: rail.map.as_fd(),
            })
            .collect();
        programs.run(interface, &destinations, in_parts)
    }

    /// A connection is over: its resources are free, and only then it is closed.
    fn end(&mut self, number: u64, why: Option<Outcome>, report: &mut dyn FnMut(&Event)) {
        let Some(Connection { socket, pid, uid, state, .. }) = self.connections.remove(&number) else {
            return;
        };
        self.users.disconnect(uid);
        if let (State::Rail(rail), Some(held)) = (state, self.register.leave(number)) {
            self.users.remove_rail(uid, rail.memory_bytes);
            // If the device is gone, so is the program; if the program cannot be renewed, its entry of this rail leads
            // to no socket.
            let _ = self.run_program(held.interface, None);
            let outcome = why.unwrap_or(Outcome::Over { address: held.address });
            self.log(Event { pid, uid, outcome }, report);
            self.programs.detach_idle(Instant::now());
        }
        self.discarder.close(uid, socket);
    }

    /// Reports an event, unless its user has had its lines. Users that are not served share the lines of one.
    fn log(&mut self, event: Event, report: &mut dyn FnMut(&Event)) {
        const NOT_SERVED: u32 = u32::MAX;
        let is_served = event.outcome != Outcome::Refused(Refusal::User);
        let of = if is_served { event.uid } else { NOT_SERVED };
        let about = |outcome| Event { outcome, ..event.clone() };
        match self.users.line(of, Instant::now()) {
            Line::Withhold => {}
            Line::Print { withheld } => {
                if withheld > 0 {
                    report(&about(Outcome::Withheld { lines: withheld }));
                }
                report(&event);
            }
            Line::Last => {
                report(&event);
                report(&about(Outcome::WithholdsNow));
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The programs are detached by their links.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sockets that were bound to queues.
#[derive(Default)]
struct Bound {
    /// The queues, in the order of the sockets.
    queues: Vec<u32>,
    /// Queues that another socket has.
    busy: Vec<u32>,
}

impl Bound {
    /// Binds each of the sockets to a queue of those that are `free` of rails, and has the map lead there. A queue that another process has is passed over; the last
    /// sockets may find none.
    fn bind(
        &mut self,
        sockets: &[OwnedFd],
        free: &[u32],
        (interface, in_parts): (u32, bool),
        map: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(OwnedFd::as_fd).collect();
        for queue in free {
            let place = self.queues.len();
            let Some(socket) = fds.get(place) else { break };
            match sockets::bind(&fds, place, interface, *queue, in_parts) {
                Ok(()) => {
                    self.queues.push(*queue);
                    program::put_queue(map, *queue, *socket)
                        .map_err(|errno| Refusal::Failed { operation: Operation::LoadProgram, errno })?;
                }
                Err(Errno(libc::EBUSY)) => self.busy.push(*queue),
                Err(errno) => return Err(Refusal::Failed { operation: Operation::BindQueue, errno }),
            }
        }
        Ok(())
    }
}

fn own_namespace() -> Option<u64> {
    let own = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    sockets::namespace(own.as_fd()).ok()
}
