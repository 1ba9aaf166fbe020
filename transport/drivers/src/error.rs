//! Errors of a rail. A lost datagram is not in here: it is counted, and the protocol sends it again.

use core::fmt;
use thiserror::Error;
use transport::RawAddress;

use crate::xdp::helper::Refusal;

/// An error number of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// Of the system call that just failed on this thread.
    #[must_use]
    pub fn last() -> Errno {
        Errno::from(&std::io::Error::last_os_error())
    }
}

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("no error number");
        }
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// The operation of a driver that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operation {
    OpenSocket,
    Bind,
    SetOption,
    Connect,
    Send,
    Receive,
    Wait,
    Drain,
    OpenQueue,
    FindHost,
    CreateSegment,
    OpenSegment,
    FindDevice,
    RegisterFrames,
    MapRings,
    LoadProgram,
    AttachProgram,
    BindQueue,
    AskRoutes,
    OpenDevice,
    FindPort,
    FindGid,
    MakeQueuePair,
    WatchPort,
    FindPeer,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::OpenSocket => "opening a socket",
            Operation::Bind => "binding the receive socket",
            Operation::SetOption => "setting a socket option",
            Operation::Connect => "connecting a send socket",
            Operation::Send => "sending",
            Operation::Receive => "receiving",
            Operation::Wait => "waiting for frames",
            Operation::Drain => "draining",
            Operation::OpenQueue => "opening a queue",
            Operation::FindHost => "reading /proc to learn which host and process this is",
            Operation::CreateSegment => "making a shared-memory segment that others can open through /proc",
            Operation::OpenSegment => "opening a peer's shared-memory segment through /proc",
            Operation::FindDevice => "looking for the device",
            Operation::RegisterFrames => {
                "registering memory for frames with the kernel (`ulimit -l` bounds it)"
            }
            Operation::MapRings => "mapping the rings of an AF_XDP socket",
            Operation::LoadProgram => "loading the program that picks out our frames",
            Operation::AttachProgram => "attaching the program to the device",
            Operation::BindQueue => "binding to a queue of the device",
            Operation::AskRoutes => "asking the kernel for routes and neighbours",
            Operation::OpenDevice => "opening the device under /dev/infiniband",
            Operation::FindPort => "looking for an active port of the device (`rdma link` shows them)",
            Operation::FindGid => "looking for a GID of the port: give its network interface an address",
            Operation::MakeQueuePair => "making a queue pair",
            Operation::WatchPort => "watching the port of the device",
            Operation::FindPeer => "looking for the way to a peer",
        })
    }
}

/// The reason why a driver's call failed. [`DriverError::is_rail_dead`] decides the caller's reaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DriverError {
    /// The call had no effect; nothing is lost but time.
    #[error("{operation} failed for now ({errno}); the call had no effect: try again at the next progress")]
    Transient {
        /// The step that failed.
        operation: Operation,
        /// The system's error.
        errno: Errno,
    },
    /// The NIC will not work again. Dropping the driver gives every buffer back.
    #[error(
        "the rail is dead: {operation} failed ({errno}); drop this driver, go on over the other rails, open it anew"
    )]
    RailDead {
        /// The step that failed.
        operation: Operation,
        /// The system's error.
        errno: Errno,
    },
    /// The rail could not be opened.
    #[error("cannot open the rail: {operation} failed ({errno}); check address, port and permissions")]
    CannotOpen {
        /// The step that failed.
        operation: Operation,
        /// The system's error.
        errno: Errno,
    },
    /// AF_XDP needs rights that this process does not have.
    #[error(
        "cannot open the rail: AF_XDP needs {missing}, which this process lacks; have root run \
         `stillwire nic-helper` on this host, or run as root"
    )]
    CapabilityMissing {
        /// Their names.
        missing: &'static str,
    },
    /// The helper that has the rights gives nothing.
    #[error("cannot open the rail: the nic-helper refuses: {refusal}")]
    HelperRefused {
        /// Why.
        refusal: Refusal,
    },
    /// The helper that has the rights does not answer.
    #[error(
        "cannot open the rail: the nic-helper does not answer ({errno}); is `stillwire nic-helper` running on this host, is it of this \
         version, and may this user open its socket (--group, --uid)?"
    )]
    HelperUnreachable {
        /// The system's error.
        errno: Errno,
    },
    /// Verbs need a library that is not there.
    #[error(
        "cannot open the rail: RDMA verbs need libibverbs.so.1, which is not found or is too old; install it with the \
         library of the device (Debian: apt-get install libibverbs1 ibverbs-providers), or use another rail"
    )]
    LibraryMissing,
    /// No RDMA device has the name.
    #[error(
        "cannot open the rail: there is no RDMA device of that name, but {others} other(s); `ls /sys/class/infiniband` lists \
         them, and `rdma link add rxe0 type rxe netdev INTERFACE` makes one of a network interface"
    )]
    DeviceMissing {
        /// Devices that there are.
        others: usize,
    },
    /// A rail bound to a wildcard has no address that peers could use.
    #[error(
        "the rail is bound to a wildcard address, which no peer can send to; bind or advertise a concrete one"
    )]
    NoOwnAddress,
    /// The address is not one of this kind of driver, or of a version or family that it cannot use.
    #[error(
        "address {address:?} is not usable here: expected {expected}; hand it to the driver that made it"
    )]
    AddressUnusable {
        /// The found value.
        address: RawAddress,
        /// The kind of address that this driver accepts.
        expected: &'static str,
    },
    /// The table of addresses is at its bound.
    #[error("the rail knows {addresses} addresses, its bound; forget some before resolving more")]
    AddressesFull {
        /// The bound.
        addresses: usize,
    },
}

impl DriverError {
    /// Whether the driver has to be dropped. Otherwise it goes on working.
    #[must_use]
    pub fn is_rail_dead(&self) -> bool {
        matches!(self, DriverError::RailDead { .. })
    }
}
