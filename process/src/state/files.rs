//! The open descriptors of a process.

use serde::{Deserialize, Serialize};

/// A descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its number.
    pub number: u32,
    /// Index into [`super::Files::open`]: several descriptors may share one offset.
    pub open: u32,
    /// `FD_CLOEXEC`.
    pub closes_on_exec: bool,
}

/// An open file description.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenFile {
    /// `F_GETFL`: access mode and status flags.
    pub flags: u32,
    /// Its kind.
    pub what: What,
}

/// The object of a description, and how to make it anew.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// The launcher gives a new one, by this name (such as `stdout`, `pmi`).
    HandedIn {
        /// Which one.
        name: String,
    },
    /// Its owner in the process makes a new one after the restore; until then the number is kept free.
    Remade {
        /// The owner, for reports.
        owner: String,
    },
    /// A regular file.
    Regular(Regular),
    /// A directory.
    Directory {
        /// Its path.
        path: Vec<u8>,
        /// Position in the list of its entries.
        position: u64,
    },
    /// A character device that has no state, such as `/dev/null`.
    Device {
        /// Its path.
        path: Vec<u8>,
    },
    /// An end of a pipe; both ends are in this process. Named pipes are refused.
    Pipe {
        /// Which pipe: equal for both ends.
        pipe: u64,
        /// Whether this is the end that is read.
        is_reader: bool,
        /// `F_GETPIPE_SZ`.
        capacity: u32,
        /// Its contents, with one of the reading ends; of a pipe of packets each, of any other one piece.
        content: Vec<Vec<u8>>,
    },
    /// An end of a pair of connected Unix sockets; both ends are in this process.
    SocketPair {
        /// This end.
        socket: u64,
        /// The other end; 0: it was closed.
        peer: u64,
        /// `SOCK_STREAM`, `SOCK_DGRAM`, `SOCK_SEQPACKET`.
        kind: i32,
        /// Messages that wait to be read at this end, by message; of a stream, one piece.
        content: Vec<Vec<u8>>,
        /// Bit 0: it receives no more; bit 1: it sends no more.
        shut: u8,
        /// `SO_SNDBUF`, `SO_RCVBUF`, as the kernel reports them: twice the values that were set.
        buffer_bytes: (u32, u32),
        /// `SO_PASSCRED`.
        passes_credentials: bool,
        /// `SO_RCVTIMEO`, `SO_SNDTIMEO`: ns that a call waits at most; 0: for ever.
        timeouts_ns: (u64, u64),
    },
    /// `eventfd(2)`.
    Event {
        /// Its counter.
        count: u64,
        /// `EFD_SEMAPHORE`.
        is_semaphore: bool,
    },
    /// `epoll_create(2)`.
    Poll {
        /// Its watched descriptors.
        watched: Vec<Watched>,
    },
    /// `timerfd_create(2)`.
    Timer {
        /// Clock.
        clock: i32,
        /// The rest.
        time: super::signals::IntervalTimer,
        /// Expirations that were not read.
        ticks: u64,
    },
    /// `signalfd(2)`.
    Signal {
        /// The signals.
        mask: u64,
    },
    /// Memory that regions map as well (`memfd_create(2)`, an unlinked file, a file of `/dev/shm`).
    Shared {
        /// Index into [`super::memory::Memory::shared`].
        object: u32,
        /// File offset.
        position: u64,
    },
    /// A file of `/proc` or `/sys`: the kernel makes its contents on each read. Of `/proc`, the process's own
    /// part only.
    Kernel {
        /// Its path, with `self` for the process's number.
        path: Vec<u8>,
        /// Offset.
        position: u64,
    },
}

/// A regular file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Regular {
    /// Where it was found.
    pub path: Vec<u8>,
    /// Offset.
    pub position: u64,
    /// Its length at the cut.
    pub bytes: u64,
    /// When it was changed last, nanoseconds since 1970.
    pub modified_ns: i64,
    /// `st_dev` and `st_ino`: two descriptions of one file without a name are known by them, and a file that was put in
    /// the place of another one.
    pub identity: (u64, u64),
    /// Its content, if it has no name any more.
    pub content: Option<Vec<u8>>,
    /// `F_GET_SEALS`, of memory with a descriptor (`memfd_create(2)`).
    pub seals: u32,
    /// Another process had it open, or may have: bytes after the cut may be another one's.
    pub is_shared: bool,
    /// The process's locks on it.
    pub locks: Vec<Lock>,
    /// What it is recognised by, if it has grown; none if the process does not write it, or it could not be read.
    pub marks: Option<Marks>,
}

/// Marks of a file besides its identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Marks {
    /// When it was made (`statx(2)`), nanoseconds since 1970; 0: its file system does not say.
    pub born_ns: i64,
    /// The bytes before its length at the cut; none if there are too few, or all are the same.
    pub tail: Option<Tail>,
}

/// The last bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tail {
    /// How many.
    pub bytes: u32,
    /// XXH3 of them, 128 bits.
    pub hash: u128,
}

/// The call that made a lock, which decides its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// `flock(2)`: the open file description.
    Whole,
    /// `F_SETLK`: the process.
    Process,
    /// `F_OFD_SETLK`: the open file description.
    Description,
}

/// A lock on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lock {
    /// How it was made.
    pub kind: LockKind,
    /// No other process may have one.
    pub is_exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte; `None`: to the end, wherever that is.
    pub last: Option<u64>,
}

/// An entry of an epoll descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watched {
    /// The number under which it was added.
    pub number: u32,
    /// Index into [`super::Files::open`]: the number may have been closed since, or mean something else.
    pub open: u32,
    /// `EPOLL…`.
    pub events: u32,
    /// The data that the program gets back.
    pub data: u64,
}
