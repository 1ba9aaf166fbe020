//! The kernel's facts about every descriptor, written down without allocation: nothing is judged here.
//!
//! The same code runs twice for a capture: before the stop, to see whether everything can be saved and how much room it
//! takes, and in the stop, for the values of the cut.

use std::cmp::Ordering;
use std::os::fd::RawFd;

use super::diagnosis::{self, Peer};
use super::room::{Blob, Span, push};
use super::{details, event, kernel};
use crate::maps::number;
use crate::sys::{self, Answer, Errno, Text};

/// The data that lacked room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Descriptors.
    Descriptors,
    /// Bytes: contents of pipes, sockets and files without a name, and text from /proc.
    Bytes,
    /// Messages in pipes and sockets.
    Messages,
    /// Descriptors that epoll descriptors watch.
    Watched,
}

/// Why the descriptors could not be written down. The next attempt makes more room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// More than there was a moment before.
    #[error(
        "descriptors: more {what:?} than the program had just before its stop; the next attempt has more room"
    )]
    Full {
        /// The room that is full.
        what: Room,
    },
    /// A call that should not fail did.
    #[error("descriptor {number}: {call}: {error}")]
    Kernel {
        /// Descriptor.
        number: RawFd,
        /// The request.
        call: &'static str,
        /// The found value.
        error: Errno,
    },
}

/// Files without a name are copied in the stop; together they may have as many bytes.
pub const UNNAMED_BYTES_MAX: u64 = 64 << 20;

/// Kinds by the name that /proc gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Not looked at, because it was declared.
    Declared,
    Regular,
    Directory,
    Character,
    Pipe,
    UnixSocket,
    Socket,
    Event,
    Poll,
    Timer,
    Signal,
    /// Everything else: by its name.
    Other,
}

/// A file, independent of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// A descriptor. Fields after `shares` are set only for the first descriptor of an open file description.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fact {
    pub(super) number: RawFd,
    pub(super) closes_on_exec: bool,
    pub(super) flags: u32,
    pub(super) id: FileId,
    pub(super) mode: u32,
    pub(super) device: u64,
    pub(super) links: u64,
    pub(super) bytes: u64,
    pub(super) modified_ns: i64,
    /// Index of the first fact with the same open file description; its own if it is that.
    pub(super) shares: usize,
    pub(super) declared: Option<Declaration>,
    pub(super) kind: Kind,
    pub(super) file_system: u64,
    pub(super) position: u64,
    /// `F_GETPIPE_SZ`, or `F_GET_SEALS` of memory files.
    pub(super) extra: u32,
    /// Where its link in /proc leads.
    pub(super) link: Span,
    /// Its text in /proc/thread-self/fdinfo.
    pub(super) details: Span,
    /// Of an eventfd, where the kernel does not report it.
    pub(super) is_semaphore: Option<bool>,
    /// Whether `ppoll(2)` reports that the other end is closed.
    pub(super) is_alone: bool,
    /// First and number of its messages in [`Facts::messages`], or of its watched descriptors in [`Facts::watched`].
    pub(super) list: (usize, usize),
    /// Whether something else than bytes waits in a socket.
    pub(super) has_control: bool,
    pub(super) peer: Option<Peer>,
    pub(super) options: details::Options,
}

impl Fact {
    pub(super) fn new(number: RawFd, closes_on_exec: bool, flags: u32) -> Fact {
        Fact {
            number,
            closes_on_exec,
            shares: 0,
            declared: None,
            kind: Kind::Other,
            flags,
            id: FileId::default(),
            mode: 0,
            device: 0,
            links: 0,
            bytes: 0,
            modified_ns: 0,
            file_system: 0,
            position: 0,
            extra: 0,
            link: Span::default(),
            details: Span::default(),
            is_semaphore: None,
            is_alone: false,
            list: (0, 0),
            has_control: false,
            peer: None,
            options: details::Options::default(),
        }
    }
}

/// Which entry of [`crate::declared::Declared`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Declaration {
    HandedIn(usize),
    Remade(usize),
}

/// The file behind an entry of an epoll descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WatchedFact {
    pub(super) number: u32,
    pub(super) events: u32,
    pub(super) data: u64,
    /// Index of the fact that stands for its open file description; `None`: no descriptor here refers to it any more.
    pub(super) open: Option<usize>,
}

/// All of them, and the room that they lie in.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) list: Vec<Fact>,
    /// One for each open file description, in the order of their files, and of [`kernel::compare`] where they have the same.
    order: Vec<usize>,
    pub(super) messages: Vec<Span>,
    pub(super) watched: Vec<WatchedFact>,
    pub(super) blob: Blob,
    /// The calling thread's descriptors in /proc, while they are looked at: each step of the path costs as much as the
    /// query itself.
    folder: RawFd,
    /// The kernel compares open file descriptions. If not, some that look alike may be one: see `is_sure`.
    compares: bool,
    /// All pairs that look alike were distinguished or known to be one.
    pub(super) is_sure: bool,
}

/// How much room there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capacity {
    pub(super) descriptors: usize,
    pub(super) bytes: usize,
    pub(super) messages: usize,
    pub(super) watched: usize,
}

/// Facts that are known before the descriptors are looked at.
pub(super) struct Known<'a> {
    pub(super) declared: &'a [(RawFd, Declaration)],
    /// Files whose content memory holds, because regions map them; sorted.
    pub(super) mapped: &'a [FileId],
    /// Whether contents are copied: before the stop their lengths are enough.
    pub(super) with_content: bool,
}

impl Facts {
    pub(super) fn new(capacity: Capacity) -> std::io::Result<Facts> {
        Ok(Facts {
            list: Vec::with_capacity(capacity.descriptors),
            order: Vec::with_capacity(capacity.descriptors),
            messages: Vec::with_capacity(capacity.messages),
            watched: Vec::with_capacity(capacity.watched),
            blob: Blob::new(capacity.bytes)?,
            folder: -1,
            compares: true,
            is_sure: true,
        })
    }

    /// Looks at all descriptors. Allocates nothing, and changes nothing that the program could see.
    pub(super) fn gather(&mut self, known: &Known<'_>) -> Result<(), Fault> {
        // Not /proc/self: it is empty once the first thread has ended.
        let path = c"/proc/thread-self/fd";
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let opened = sys::open_at(libc::AT_FDCWD, path, flags);
        self.folder =
            opened.map_err(|error| Fault::Kernel { number: -1, call: "open /proc/thread-self/fd", error })?;
        let gathered = self.gather_from_folder(known);
        sys::close(self.folder);
        gathered
    }

    fn gather_from_folder(&mut self, known: &Known<'_>) -> Result<(), Fault> {
        self.list.clear();
        self.order.clear();
        self.messages.clear();
        self.watched.clear();
        self.blob.clear();
        self.compares = true;
        self.is_sure = true;
        self.number_all()?;
        for index in 0..self.list.len() {
            self.place(index)?;
        }
        for (number, declaration) in known.declared {
            if let Ok(index) = self.list.binary_search_by_key(number, |fact| fact.number) {
                let first = self.list[index].shares;
                let before = self.list[first].declared;
                self.list[first].declared = Some(before.unwrap_or(*declaration));
            }
        }
        for index in 0..self.list.len() {
            if self.list[index].shares == index {
                self.look(index, known)?;
            }
        }
        // Entries of epoll descriptors refer to all other descriptors.
        for index in 0..self.list.len() {
            if self.list[index].kind == Kind::Poll && self.list[index].shares == index {
                self.find_watched(index)?;
            }
        }
        Ok(())
    }

    /// The numbers that are open, rising.
    fn number_all(&mut self) -> Result<(), Fault> {
        let mut chunk = [0u8; 4096];
        loop {
            let filled = kernel::entries(self.folder, &mut chunk).map_err(|error| Fault::Kernel {
                number: self.folder,
                call: "getdents64",
                error,
            })?;
            if filled == 0 {
                break;
            }
            let mut at = 0;
            // struct linux_dirent64: inode 8, offset 8, length of the record 2, type 1, name.
            while let Some(record) = chunk.get(at..filled).filter(|rest| rest.len() > 19) {
                let length = usize::from(u16::from_ne_bytes([record[16], record[17]]));
                let name = record.get(19..length).unwrap_or(&[]);
                at += length.max(20);
                let Some((number, _)) = number(name, 10) else { continue };
                let Ok(number) = RawFd::try_from(number) else { continue };
                if number != self.folder {
                    self.add(number)?;
                }
            }
        }
        self.list.sort_unstable_by_key(|fact| fact.number);
        Ok(())
    }

    fn add(&mut self, number: RawFd) -> Result<(), Fault> {
        // Before the stop, threads may close it meanwhile.
        let Ok(closes) = kernel::fcntl(number, libc::F_GETFD, 0) else { return Ok(()) };
        let Ok(flags) = kernel::fcntl(number, libc::F_GETFL, 0) else { return Ok(()) };
        let Ok(stat) = kernel::stat(number) else { return Ok(()) };
        let mut fact = Fact::new(number, closes & libc::FD_CLOEXEC != 0, flags.cast_unsigned());
        fact.id = FileId { device: stat.st_dev, inode: stat.st_ino };
        fact.mode = stat.st_mode;
        fact.device = stat.st_rdev;
        fact.links = stat.st_nlink;
        fact.bytes = stat.st_size.cast_unsigned();
        fact.modified_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec);
        push(&mut self.list, fact, Room::Descriptors)
    }

    /// Finds out whether an earlier descriptor has the same open file description.
    fn place(&mut self, index: usize) -> Result<(), Fault> {
        let number = self.list[index].number;
        if self.compares {
            let (mut low, mut high) = (0, self.order.len());
            while low < high {
                let middle = usize::midpoint(low, high);
                let other = self.order[middle];
                // Most have files of their own: facts in memory distinguish them without the kernel.
                let compared = match self.list[other].id.cmp(&self.list[index].id) {
                    Ordering::Equal => kernel::compare(self.list[other].number, number),
                    differ => Ok(Some(differ)),
                };
                match compared {
                    Ok(Some(Ordering::Equal)) => {
                        self.list[index].shares = other;
                        return Ok(());
                    }
                    Ok(Some(Ordering::Less)) => low = middle + 1,
                    Ok(Some(Ordering::Greater)) => high = middle,
                    Ok(None) | Err(_) => {
                        self.compares = false;
                        break;
                    }
                }
            }
            if self.compares {
                if self.order.len() == self.order.capacity() {
                    return Err(Fault::Full { what: Room::Descriptors });
                }
                self.order.insert(low, index);
                self.list[index].shares = index;
                return Ok(());
            }
        }
        self.place_by_looks(index);
        Ok(())
    }

    /// Where kcmp(2) is forbidden: asks fcntl(2), and reports if that does not know either.
    fn place_by_looks(&mut self, index: usize) {
        self.list[index].shares = index;
        let looks = |fact: &Fact| (fact.id, fact.flags);
        let mine = looks(&self.list[index]);
        for other in 0..index {
            if self.list[other].shares != other || looks(&self.list[other]) != mine {
                continue;
            }
            match kernel::is_same(self.list[other].number, self.list[index].number) {
                Ok(true) => {
                    self.list[index].shares = other;
                    return;
                }
                Ok(false) => {}
                Err(_) => self.is_sure = false,
            }
        }
    }

    fn look(&mut self, index: usize, known: &Known<'_>) -> Result<(), Fault> {
        let number = self.list[index].number;
        let fault = |call| move |error| Fault::Kernel { number, call, error };
        if self.list[index].declared.is_some() {
            self.list[index].kind = Kind::Declared;
            return Ok(());
        }
        let name = Text::<64>::new().number(number.cast_unsigned());
        let room = self.blob.rest();
        let length = kernel::link(self.folder, name.as_path(), room).map_err(fault("readlink"))?;
        if length == room.len() {
            return Err(Fault::Full { what: Room::Bytes });
        }
        let link = self.blob.take(length);
        self.list[index].link = link;
        let kind = kind(self.blob.get(link), self.list[index].mode);
        self.list[index].kind = kind;
        match kind {
            Kind::Regular => self.look_at_file(index, known),
            Kind::Directory if self.list[index].flags & libc::O_PATH.cast_unsigned() == 0 => {
                self.list[index].position = kernel::position(number).map_err(fault("lseek"))?;
                Ok(())
            }
            Kind::Pipe => self.look_at_pipe(index, known),
            Kind::Socket => self.look_at_socket(index, known),
            Kind::Event => self.look_at_event(index, known),
            Kind::Timer => {
                kernel::settle_timer(number).map_err(fault("timerfd_gettime"))?;
                self.read_details(index)
            }
            Kind::Poll | Kind::Signal => self.read_details(index),
            Kind::Directory | Kind::Declared | Kind::Character | Kind::UnixSocket | Kind::Other => Ok(()),
        }
    }

    /// Its text in fdinfo.
    fn read_details(&mut self, index: usize) -> Result<(), Fault> {
        let number = self.list[index].number;
        let path = Text::<64>::new().push(b"../fdinfo/").number(number.cast_unsigned());
        let length = match sys::read_whole_at(self.folder, path.as_path(), self.blob.rest()) {
            Ok(length) => length,
            Err(Errno(libc::ENOBUFS)) => return Err(Fault::Full { what: Room::Bytes }),
            Err(error) => return Err(Fault::Kernel { number, call: "read fdinfo", error }),
        };
        self.list[index].details = self.blob.take(length);
        Ok(())
    }

    fn look_at_file(&mut self, index: usize, known: &Known<'_>) -> Result<(), Fault> {
        let fact = self.list[index];
        let number = fact.number;
        let fault = |call| move |error| Fault::Kernel { number, call, error };
        if fact.flags & libc::O_PATH.cast_unsigned() != 0 {
            return Ok(());
        }
        self.list[index].file_system = kernel::file_system(number).map_err(fault("fstatfs"))?;
        self.list[index].position = kernel::position(number).map_err(fault("lseek"))?;
        self.read_details(index)?;
        let is_unnamed = super::judge::is_unnamed(self.blob.get(fact.link), fact.links);
        if !is_unnamed || known.mapped.binary_search(&fact.id).is_ok() {
            return Ok(());
        }
        self.list[index].extra = kernel::fcntl(number, libc::F_GET_SEALS, 0).map_or(0, i32::cast_unsigned);
        if !known.with_content {
            return Ok(());
        }
        if fact.flags & libc::O_ACCMODE.cast_unsigned() != libc::O_WRONLY.cast_unsigned() {
            return self.copy_file(index, number);
        }
        let name = Text::<64>::new().number(number.cast_unsigned());
        let reader =
            sys::open_at(self.folder, name.as_path(), libc::O_RDONLY).map_err(fault("open to read"))?;
        let copied = self.copy_file(index, reader);
        sys::close(reader);
        copied
    }

    /// Copies a file without a name. Each description of it gets a copy: two of one such file are rare.
    fn copy_file(&mut self, index: usize, reader: RawFd) -> Result<(), Fault> {
        let start = self.messages.len();
        let bytes = usize::try_from(self.list[index].bytes).unwrap_or(usize::MAX);
        if self.blob.rest().len() < bytes {
            return Err(Fault::Full { what: Room::Bytes });
        }
        let mut filled = 0;
        while filled < bytes {
            let room = &mut self.blob.rest()[filled..bytes];
            match kernel::read_at(reader, room, filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) => {
                    return Err(Fault::Kernel { number: self.list[index].number, call: "pread", error });
                }
            }
        }
        let content = self.blob.take(filled);
        push(&mut self.messages, content, Room::Messages)?;
        self.list[index].list = (start, 1);
        Ok(())
    }

    fn look_at_pipe(&mut self, index: usize, known: &Known<'_>) -> Result<(), Fault> {
        let fact = self.list[index];
        let number = fact.number;
        let fault = |call| move |error| Fault::Kernel { number, call, error };
        let capacity = kernel::fcntl(number, libc::F_GETPIPE_SZ, 0).map_err(fault("F_GETPIPE_SZ"))?;
        self.list[index].extra = capacity.cast_unsigned();
        let state = kernel::state(number).map_err(fault("ppoll"))?;
        self.list[index].is_alone = state & (libc::POLLHUP | libc::POLLERR) != 0;
        let is_reader = fact.flags & libc::O_ACCMODE.cast_unsigned() != libc::O_WRONLY.cast_unsigned();
        let reported = self.list[..index]
            .iter()
            .any(|other| other.kind == Kind::Pipe && other.id == fact.id && other.list.1 > 0);
        if !is_reader
            || reported
            || !known.with_content
            || kernel::waiting(number).map_err(fault("FIONREAD"))? == 0
        {
            return Ok(());
        }
        let [from, into] = kernel::pipe(libc::O_CLOEXEC | libc::O_NONBLOCK).map_err(fault("pipe2"))?;
        let copied = self.copy_pipe(index, capacity, from, into);
        sys::close(from);
        sys::close(into);
        copied
    }

    /// Copies the contents of a pipe by way of another one, which has as many places.
    fn copy_pipe(&mut self, index: usize, capacity: i32, from: RawFd, into: RawFd) -> Result<(), Fault> {
        let number = self.list[index].number;
        let fault = |call| move |error| Fault::Kernel { number, call, error };
        let capacity = usize::try_from(capacity).unwrap_or(0);
        kernel::fcntl(into, libc::F_SETPIPE_SZ, capacity).map_err(fault("F_SETPIPE_SZ of a copy"))?;
        kernel::tee(number, into, capacity).map_err(fault("tee"))?;
        let start = self.messages.len();
        loop {
            // Of a pipe of packets every read gives one.
            let room = self.blob.rest();
            if room.is_empty() {
                return Err(Fault::Full { what: Room::Bytes });
            }
            match sys::read(from, room) {
                Ok(0) | Err(Errno(libc::EAGAIN)) => break,
                Ok(bytes) => {
                    let message = self.blob.take(bytes);
                    push(&mut self.messages, message, Room::Messages)?;
                }
                Err(error) => return Err(Fault::Kernel { number, call: "read of a copy", error }),
            }
        }
        self.list[index].list = (start, self.messages.len() - start);
        Ok(())
    }

    fn look_at_socket(&mut self, index: usize, known: &Known<'_>) -> Result<(), Fault> {
        let number = self.list[index].number;
        let fault = |call| move |error| Fault::Kernel { number, call, error };
        let domain: i32 = kernel::option(number, libc::SO_DOMAIN).map_err(fault("SO_DOMAIN"))?;
        if domain != libc::AF_UNIX {
            return Ok(());
        }
        self.list[index].kind = Kind::UnixSocket;
        self.list[index].options = details::Options {
            kind: kernel::option(number, libc::SO_TYPE).map_err(fault("SO_TYPE"))?,
            send_bytes: kernel::option(number, libc::SO_SNDBUF).map_err(fault("SO_SNDBUF"))?,
            receive_bytes: kernel::option(number, libc::SO_RCVBUF).map_err(fault("SO_RCVBUF"))?,
            passes_credentials: kernel::option::<i32>(number, libc::SO_PASSCRED)
                .map_err(fault("SO_PASSCRED"))?
                != 0,
            timeouts_ns: (
                timeout_ns(number, libc::SO_RCVTIMEO).map_err(fault("SO_RCVTIMEO"))?,
                timeout_ns(number, libc::SO_SNDTIMEO).map_err(fault("SO_SNDTIMEO"))?,
            ),
        };
        // Without an answer nothing is known of the other end, and the descriptor is refused.
        self.list[index].peer = diagnosis::ask(self.list[index].id.inode).ok();
        let is_connected = self.list[index].peer.is_some_and(|peer| peer.is_connected());
        if !is_connected {
            return Ok(());
        }
        let before: i32 = kernel::option(number, libc::SO_PEEK_OFF).map_err(fault("SO_PEEK_OFF"))?;
        if !known.with_content {
            // Threads run, and may use the offset: without one, to look at the first message changes nothing.
            let first = if before < 0 { kernel::peek(number, &mut [0]).unwrap_or(None) } else { None };
            self.list[index].has_control = first.is_some_and(|first| first.flags & libc::MSG_CTRUNC != 0);
            return Ok(());
        }
        kernel::set_option(number, libc::SO_PEEK_OFF, 0).map_err(fault("SO_PEEK_OFF"))?;
        let peeked = self.peek_all(index);
        kernel::set_option(number, libc::SO_PEEK_OFF, before).map_err(fault("SO_PEEK_OFF"))?;
        peeked
    }

    fn peek_all(&mut self, index: usize) -> Result<(), Fault> {
        let number = self.list[index].number;
        let start = self.messages.len();
        let kind = self.list[index].options.kind;
        loop {
            let room = self.blob.rest();
            let available = room.len();
            let peeked = kernel::peek(number, room).map_err(|error| Fault::Kernel {
                number,
                call: "recvmsg",
                error,
            })?;
            let Some(peeked) = peeked else { break };
            // Nothing, and no message: the end that follows a shutdown.
            let is_end = peeked.bytes == 0
                && (kind == libc::SOCK_STREAM
                    || self.list[index].peer.is_some_and(|peer| peer.is_shut_for_reading()));
            if is_end {
                break;
            }
            if peeked.bytes >= available {
                return Err(Fault::Full { what: Room::Bytes });
            }
            self.list[index].has_control |= peeked.flags & libc::MSG_CTRUNC != 0;
            let message = self.blob.take(peeked.bytes);
            push(&mut self.messages, message, Room::Messages)?;
        }
        self.list[index].list = (start, self.messages.len() - start);
        Ok(())
    }

    fn look_at_event(&mut self, index: usize, known: &Known<'_>) -> Result<(), Fault> {
        self.read_details(index)?;
        let text = self.blob.get(self.list[index].details);
        if details::field(text, b"eventfd-semaphore:", 10).is_some() || !known.with_content {
            return Ok(());
        }
        let number = self.list[index].number;
        let count = details::field(text, b"eventfd-count:", 16).unwrap_or(0);
        let answer = event::is_semaphore(number, count).map_err(|error| Fault::Kernel {
            number,
            call: "read or write of an eventfd",
            error,
        })?;
        self.list[index].is_semaphore = Some(answer);
        Ok(())
    }

    /// Finds the files behind the entries of an epoll descriptor.
    fn find_watched(&mut self, index: usize) -> Result<(), Fault> {
        let poll = self.list[index].number;
        let details_of = self.list[index].details;
        let start = self.watched.len();
        let mut at = 0;
        loop {
            let text = self.blob.get(details_of);
            let Some((entry, next)) = details::watched(text, at) else { break };
            at = next;
            // Several files may be watched under one number, if it was closed and used again.
            let nth = self.watched[start..].iter().filter(|earlier| earlier.number == entry.number).count();
            let open = self.find_open(poll, &entry, u32::try_from(nth).unwrap_or(u32::MAX));
            let watched = WatchedFact { number: entry.number, events: entry.events, data: entry.data, open };
            push(&mut self.watched, watched, Room::Watched)?;
        }
        self.list[index].list = (start, self.watched.len() - start);
        Ok(())
    }

    fn find_open(&self, poll: RawFd, entry: &details::Entry, nth: u32) -> Option<usize> {
        let number = RawFd::try_from(entry.number).ok()?;
        let same = self.list.binary_search_by_key(&number, |fact| fact.number).ok();
        if let Some(index) = same {
            match kernel::compare_watched(number, poll, entry.number, nth) {
                Ok(Some(Ordering::Equal)) => return Some(self.list[index].shares),
                Ok(_) => {}
                // The kernel does not report it: the same file under the same number is taken for it.
                Err(_) => {
                    return (self.list[self.list[index].shares].id.inode == entry.inode)
                        .then_some(self.list[index].shares);
                }
            }
        }
        let is_it = |other: &&usize| {
            let compared = |other: &Fact| kernel::compare_watched(other.number, poll, entry.number, nth);
            let other = &self.list[**other];
            other.id.inode == entry.inode && compared(other) == Ok(Some(Ordering::Equal))
        };
        self.order.iter().find(is_it).copied()
    }
}

/// The kind of a descriptor, by the name of its link.
pub(super) fn kind(link: &[u8], mode: u32) -> Kind {
    if link.starts_with(b"pipe:[") {
        return Kind::Pipe;
    }
    if link.starts_with(b"socket:[") {
        return Kind::Socket;
    }
    match link {
        b"anon_inode:[eventfd]" => return Kind::Event,
        b"anon_inode:[eventpoll]" => return Kind::Poll,
        b"anon_inode:[timerfd]" => return Kind::Timer,
        b"anon_inode:[signalfd]" => return Kind::Signal,
        _ => {}
    }
    if !link.starts_with(b"/") {
        return Kind::Other;
    }
    match mode & libc::S_IFMT {
        libc::S_IFREG => Kind::Regular,
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFCHR => Kind::Character,
        _ => Kind::Other,
    }
}

/// The timeout of a socket, in nanoseconds; 0: none.
fn timeout_ns(number: RawFd, name: i32) -> Answer<u64> {
    // Seconds and microseconds: a `struct timeval`.
    let [seconds, microseconds]: [u64; 2] = kernel::option(number, name)?;
    Ok(seconds.saturating_mul(1_000_000_000).saturating_add(microseconds.saturating_mul(1000)))
}
