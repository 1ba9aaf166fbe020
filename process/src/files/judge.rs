//! Turns the kernel's facts about descriptors into an image's records, or into refusals.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::details::{self, Options};
use super::facts::{Declaration, Fact, Facts, FileId, Kind, UNNAMED_BYTES_MAX};
use super::refusal::{Refusal, why};
use crate::declared::Declared;
use crate::maps;
use crate::state::Files;
use crate::state::files::{Descriptor, Lock, LockKind, OpenFile, Regular, Watched, What};
use crate::state::signals::IntervalTimer;

/// File systems whose files the kernel makes when they are read: proc, sysfs, cgroup, cgroup2.
const KERNEL_FILE_SYSTEMS: [u64; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];

const DELETED: &[u8] = b" (deleted)";

/// Whether a file has no name that it could be found by.
pub(super) fn is_unnamed(link: &[u8], links: u64) -> bool {
    // NFS keeps a file that was removed under such a name until it is closed.
    let is_nfs_rest = link.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b".nfs"));
    links == 0 || link.ends_with(DELETED) || is_nfs_rest
}

/// The context in which descriptors are judged, besides their facts.
pub(super) struct Context<'a> {
    pub(super) declared: &'a Declared,
    /// Files whose content memory holds, in the order of [`crate::state::memory::Memory::shared`].
    pub(super) objects: &'a [FileId],
    /// Whether the threads still run: then names are compared with files, which takes time.
    pub(super) is_before: bool,
    /// Whose descriptors they are.
    pub(super) pid: u32,
    /// Paths of files that other processes have open.
    pub(super) shared: &'a [Vec<u8>],
}

/// File systems that other hosts may use as well: NFS, Lustre, GPFS, CephFS, SMB (two), 9p, FUSE, BeeGFS, Panasas.
const NETWORK_FILE_SYSTEMS: [u64; 10] = [
    0x6969,
    0x0bd0_0bd0,
    0x4750_4653,
    0x00c3_6400,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x6573_5546,
    0x1983_0326,
    0xaad7_aaea,
];

impl Context<'_> {
    /// Whether another process may write a file that this process writes.
    fn is_shared(&self, fact: &Fact, link: &[u8]) -> bool {
        fact.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY
            && (NETWORK_FILE_SYSTEMS.contains(&fact.file_system)
                || self.shared.iter().any(|path| path == link))
    }
}

type Verdict = Result<What, Refusal>;

/// An image's contents.
pub(super) fn judge(facts: &Facts, context: &Context<'_>) -> Result<Files, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let mut files = Files::default();
    let mut place = vec![0u32; facts.list.len()];
    let judge = Judge { facts, context };
    for (index, fact) in facts.list.iter().enumerate() {
        if fact.shares != index {
            continue;
        }
        match judge.what(fact) {
            Ok(what) => {
                place[index] = u32::try_from(files.open.len()).unwrap_or(u32::MAX);
                files.open.push(OpenFile { flags: fact.flags, what });
            }
            Err(refusal) => refusals.push(refusal),
        }
    }
    if !facts.is_sure {
        refusals.push(Refusal { number: 0, what: "all".to_owned(), why: why::UNCOMPARED });
    }
    let unnamed = files.open.iter().filter_map(|open| match &open.what {
        What::Regular(regular) if regular.content.is_some() => Some(regular.bytes),
        _ => None,
    });
    let unnamed_bytes = unnamed.fold(0u64, u64::saturating_add);
    if unnamed_bytes > UNNAMED_BYTES_MAX {
        refusals.extend(judge.largest_unnamed(unnamed_bytes));
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    for open in &mut files.open {
        if let What::Poll { watched } = &mut open.what {
            for entry in watched {
                entry.open =
                    usize::try_from(entry.open).ok().and_then(|index| place.get(index)).copied().unwrap_or(0);
            }
        }
    }
    files.descriptors = facts
        .list
        .iter()
        .map(|fact| Descriptor {
            number: fact.number.cast_unsigned(),
            open: place[fact.shares],
            closes_on_exec: fact.closes_on_exec,
        })
        .collect();
    Ok(files)
}

struct Judge<'a> {
    facts: &'a Facts,
    context: &'a Context<'a>,
}

impl Judge<'_> {
    fn link(&self, fact: &Fact) -> &[u8] {
        self.facts.blob.get(fact.link)
    }

    fn refuse<T>(&self, fact: &Fact, why: &'static str) -> Result<T, Refusal> {
        let what = String::from_utf8_lossy(self.link(fact)).into_owned();
        Err(Refusal { number: fact.number.cast_unsigned(), what, why })
    }

    fn refuse_as<T>(fact: &Fact, what: String, why: &'static str) -> Result<T, Refusal> {
        Err(Refusal { number: fact.number.cast_unsigned(), what, why })
    }

    fn messages(&self, fact: &Fact) -> Vec<Vec<u8>> {
        let (first, count) = fact.list;
        let spans = self.facts.messages.get(first..first + count).unwrap_or(&[]);
        spans.iter().map(|span| self.facts.blob.get(*span).to_vec()).collect()
    }

    fn largest_unnamed(&self, total: u64) -> Option<Refusal> {
        let unnamed = self
            .facts
            .list
            .iter()
            .filter(|fact| fact.kind == Kind::Regular && is_unnamed(self.link(fact), fact.links));
        let largest = unnamed.max_by_key(|fact| fact.bytes)?;
        let what = format!(
            "{}, {} bytes; all files without a name together {total}, at most {UNNAMED_BYTES_MAX}",
            String::from_utf8_lossy(self.link(largest)),
            largest.bytes
        );
        Some(Refusal { number: largest.number.cast_unsigned(), what, why: why::UNNAMED_TOO_LARGE })
    }

    fn what(&self, fact: &Fact) -> Verdict {
        let declared = match fact.declared {
            Some(Declaration::HandedIn(index)) => self
                .context
                .declared
                .handed_in
                .get(index)
                .map(|(name, _)| What::HandedIn { name: name.clone() }),
            Some(Declaration::Remade(index)) => self
                .context
                .declared
                .remade
                .get(index)
                .map(|(owner, _)| What::Remade { owner: owner.clone() }),
            None => None,
        };
        if let Some(declared) = declared {
            return Ok(declared);
        }
        if fact.flags & libc::O_ASYNC.cast_unsigned() != 0 {
            // A lease shows as this, too.
            self.locks(fact)?;
            return self.refuse(fact, why::ASYNC);
        }
        match fact.kind {
            Kind::Regular => self.regular(fact),
            Kind::Directory => self.directory(fact),
            Kind::Character => self.character(fact),
            Kind::Pipe => self.pipe(fact),
            Kind::UnixSocket => self.unix_socket(fact),
            Kind::Event => self.event(fact),
            Kind::Poll => self.poll(fact),
            Kind::Timer => self.timer(fact),
            Kind::Signal => self.number_after(fact, b"sigmask:", 16).map(|mask| What::Signal { mask }),
            Kind::Socket if self.context.pid != crate::sys::process_id() => self.refuse(fact, why::SOCKET),
            Kind::Socket => {
                Self::refuse_as(fact, super::refusal::socket(fact.number, self.link(fact)), why::SOCKET)
            }
            Kind::Declared | Kind::Other => self.refuse(fact, why::other(self.link(fact), fact.mode)),
        }
    }

    fn number_after(&self, fact: &Fact, label: &[u8], base: u32) -> Result<u64, Refusal> {
        match details::field(self.facts.blob.get(fact.details), label, base) {
            Some(value) => Ok(value),
            None => self.refuse(fact, why::UNTOLD),
        }
    }

    /// Whether the launcher hands in another description of the same pipe or terminal: programs open `/dev/stdout`.
    fn handed_in_elsewhere(&self, fact: &Fact) -> Option<What> {
        let other =
            self.facts.list.iter().find(|other| {
                matches!(other.declared, Some(Declaration::HandedIn(_))) && other.id == fact.id
            })?;
        let Some(Declaration::HandedIn(index)) = other.declared else { return None };
        self.context.declared.handed_in.get(index).map(|(name, _)| What::HandedIn { name: name.clone() })
    }

    fn regular(&self, fact: &Fact) -> Verdict {
        let link = self.link(fact);
        let object = self.context.objects.iter().position(|object| *object == fact.id);
        if let Some(object) = object.and_then(|object| u32::try_from(object).ok()) {
            return Ok(What::Shared { object, position: fact.position });
        }
        if KERNEL_FILE_SYSTEMS.contains(&fact.file_system) {
            return match kernel_path(link, self.context.pid) {
                Some(path) => Ok(What::Kernel { path, position: fact.position }),
                None => self.refuse(fact, why::OTHER_PROCESS),
            };
        }
        let mut path = link.to_vec();
        let mut unnamed = is_unnamed(link, fact.links);
        let is_path_only = fact.flags & libc::O_PATH.cast_unsigned() != 0;
        if unnamed
            && fact.links > 0
            && !link.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b".nfs"))
        {
            // The remark may be part of its name, or one of several names was removed.
            if !is_at(link, fact.id) {
                return self.refuse(fact, why::OTHER_NAME);
            }
            unnamed = false;
        } else if unnamed {
            path.truncate(link.strip_suffix(DELETED).unwrap_or(link).len());
        } else if self.context.is_before && !is_at(link, fact.id) {
            return self.refuse(fact, why::UNREACHABLE);
        }
        if unnamed && is_path_only {
            return self.refuse(fact, why::UNREACHABLE);
        }
        let content = unnamed.then(|| self.messages(fact).into_iter().next().unwrap_or_default());
        let is_read = content.as_ref().is_none_or(|content| content.len() as u64 == fact.bytes);
        if !is_read && !self.context.is_before {
            return self.refuse(fact, why::UNREAD);
        }
        Ok(What::Regular(Regular {
            path,
            position: fact.position,
            bytes: fact.bytes,
            modified_ns: fact.modified_ns,
            identity: (fact.id.device, fact.id.inode),
            content,
            seals: fact.extra,
            is_shared: self.context.is_shared(fact, link),
            locks: self.locks(fact)?,
            marks: None,
        }))
    }

    fn locks(&self, fact: &Fact) -> Result<Vec<Lock>, Refusal> {
        let mut locks = Vec::new();
        for mut words in details::locks(self.facts.blob.get(fact.details)) {
            // "1: POSIX ADVISORY WRITE 1234 fe:00:99 0 EOF"
            let kind = match words.nth(1) {
                Some(b"FLOCK") => LockKind::Whole,
                Some(b"POSIX") => LockKind::Process,
                Some(b"OFDLCK") => LockKind::Description,
                _ => return self.refuse(fact, why::LEASE),
            };
            let is_exclusive = words.nth(1) == Some(b"WRITE");
            let start = words.nth(2).and_then(|word| maps::number(word, 10)).map(|(start, _)| start);
            let Some(start) = start else { return self.refuse(fact, why::LEASE) };
            let last = words.next().and_then(|word| maps::number(word, 10)).map(|(last, _)| last);
            locks.push(Lock { kind, is_exclusive, start, last });
        }
        Ok(locks)
    }

    fn directory(&self, fact: &Fact) -> Verdict {
        let link = self.link(fact);
        if link.ends_with(DELETED) && !is_at(link, fact.id) {
            return self.refuse(fact, why::DIRECTORY_GONE);
        }
        match kernel_path(link, self.context.pid) {
            Some(path) => Ok(What::Directory { path, position: fact.position }),
            None => self.refuse(fact, why::OTHER_PROCESS),
        }
    }

    fn character(&self, fact: &Fact) -> Verdict {
        match (libc::major(fact.device), libc::minor(fact.device)) {
            // null, zero, full, random, urandom; the controlling terminal, whichever that is.
            (1, 3 | 5 | 7 | 8 | 9) | (5, 0) => Ok(What::Device { path: self.link(fact).to_vec() }),
            (136..=143, _) => match self.handed_in_elsewhere(fact) {
                Some(what) => Ok(what),
                None => self.refuse(fact, why::TERMINAL),
            },
            (5, 2) => self.refuse(fact, why::TERMINAL),
            _ => self.refuse(fact, why::DEVICE),
        }
    }

    fn pipe(&self, fact: &Fact) -> Verdict {
        if let Some(what) = self.handed_in_elsewhere(fact) {
            return Ok(what);
        }
        let reads = |fact: &Fact| access(fact) != libc::O_WRONLY;
        let writes = |fact: &Fact| access(fact) != libc::O_RDONLY;
        let ends = || {
            self.facts.list.iter().enumerate().filter(|(index, other)| {
                other.shares == *index && other.kind == Kind::Pipe && other.id == fact.id
            })
        };
        let is_whole = ends().any(|(_, end)| reads(end)) && ends().any(|(_, end)| writes(end));
        if !is_whole && !fact.is_alone {
            return self.refuse(fact, why::PIPE_OUTSIDE);
        }
        Ok(What::Pipe {
            pipe: fact.id.inode,
            is_reader: reads(fact),
            capacity: fact.extra,
            content: self.messages(fact),
        })
    }

    fn unix_socket(&self, fact: &Fact) -> Verdict {
        let Some(peer) = fact.peer else { return self.refuse(fact, why::PEER_UNTOLD) };
        if peer.is_listening() || peer.is_named {
            return self.refuse(fact, why::SOCKET_NAMED);
        }
        if !peer.is_connected() {
            return self.refuse(fact, why::SOCKET_ALONE);
        }
        let other =
            self.facts.list.iter().find(|other| {
                other.kind == Kind::UnixSocket && peer.inode != 0 && other.id.inode == peer.inode
            });
        let is_mutual = other.and_then(|other| other.peer).is_some_and(|back| back.inode == fact.id.inode);
        if peer.inode != 0 && !is_mutual {
            return self.refuse(fact, why::SOCKET_OUTSIDE);
        }
        if fact.has_control {
            return self.refuse(fact, why::CONTROL);
        }
        let Options { kind, send_bytes, receive_bytes, passes_credentials, timeouts_ns } = fact.options;
        Ok(What::SocketPair {
            socket: fact.id.inode,
            peer: peer.inode,
            kind,
            content: self.messages(fact),
            shut: peer.shut,
            buffer_bytes: (send_bytes, receive_bytes),
            passes_credentials,
            timeouts_ns,
        })
    }

    fn event(&self, fact: &Fact) -> Verdict {
        let text = self.facts.blob.get(fact.details);
        let reported = details::field(text, b"eventfd-semaphore:", 10).map(|reported| reported != 0);
        let is_semaphore = reported.or(fact.is_semaphore).unwrap_or(false);
        self.number_after(fact, b"eventfd-count:", 16).map(|count| What::Event { count, is_semaphore })
    }

    fn poll(&self, fact: &Fact) -> Verdict {
        let (first, count) = fact.list;
        let mut watched = Vec::with_capacity(count);
        for entry in self.facts.watched.get(first..first + count).unwrap_or(&[]) {
            let Some(open) = entry.open.and_then(|open| u32::try_from(open).ok()) else {
                let what = format!("an epoll that watches descriptor {}", entry.number);
                return Self::refuse_as(fact, what, why::WATCHED_GONE);
            };
            // The index of a fact as yet; `judge` makes it one of an open file.
            watched.push(Watched { number: entry.number, open, events: entry.events, data: entry.data });
        }
        Ok(What::Poll { watched })
    }

    fn timer(&self, fact: &Fact) -> Verdict {
        let text = self.facts.blob.get(fact.details);
        let left = details::time_ns(text, b"it_value:");
        let interval = details::time_ns(text, b"it_interval:");
        let (Some(left_ns), Some(interval_ns)) = (left, interval) else {
            return self.refuse(fact, why::UNTOLD);
        };
        let clock = i32::try_from(self.number_after(fact, b"clockid:", 10)?).unwrap_or(-1);
        let ticks = self.number_after(fact, b"ticks:", 10)?;
        let time = still_running(IntervalTimer { left_ns, interval_ns }, ticks);
        Ok(What::Timer { clock, time, ticks })
    }
}

/// A timer that expires after it was settled and before /proc is read has nothing left, and is started anew only when
/// it is read; set to nothing it would never expire again. One that was stopped, or never started, has no expiration to
/// report.
fn still_running(time: IntervalTimer, ticks: u64) -> IntervalTimer {
    let has_expired = time.left_ns == 0 && ticks > 0;
    IntervalTimer { left_ns: if has_expired { time.interval_ns } else { time.left_ns }, ..time }
}

fn access(fact: &Fact) -> i32 {
    fact.flags.cast_signed() & libc::O_ACCMODE
}

fn is_at(path: &[u8], id: FileId) -> bool {
    use std::os::unix::fs::MetadataExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (id.device, id.inode))
}

/// A path that means the same in another process: of /proc, the part of this process is its own; another one's is none.
fn kernel_path(path: &[u8], own: u32) -> Option<Vec<u8>> {
    let Some(rest) = path.strip_prefix(b"/proc/") else { return Some(path.to_vec()) };
    let Some((pid, rest)) = maps::number(rest, 10) else { return Some(path.to_vec()) };
    // Threads get other numbers.
    let is_thread = rest.starts_with(b"/task/");
    let is_own = pid == u64::from(own) && !is_thread;
    is_own.then(|| [b"/proc/self", rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_name_is_known() {
        assert!(is_unnamed(b"/tmp/a (deleted)", 0) && is_unnamed(b"/tmp/a (deleted)", 1));
        assert!(is_unnamed(b"/home/.nfs000123", 1) && is_unnamed(b"/tmp/#77", 0));
        assert!(!is_unnamed(b"/tmp/a", 1) && !is_unnamed(b"/tmp/.nfs/a", 2));
    }

    /// As it is when it expires just before /proc is read.
    #[test]
    fn a_timer_that_has_just_expired_goes_on() {
        // SAFETY: a new descriptor, and a structure that the kernel reads.
        let fd = unsafe {
            let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
            let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let time = libc::itimerspec { it_interval: millisecond, it_value: millisecond };
            assert_eq!(libc::timerfd_settime(fd, 0, &raw const time, std::ptr::null_mut()), 0);
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&raw mut poll, 1, -1), 1);
            fd
        };
        let text = std::fs::read(format!("/proc/self/fdinfo/{fd}")).expect("a timer of ours");
        crate::sys::close(fd);
        let of = |label: &[u8]| details::time_ns(&text, label).expect("a time");
        let time = IntervalTimer { left_ns: of(b"it_value:"), interval_ns: of(b"it_interval:") };
        let ticks = details::field(&text, b"ticks:", 10).expect("a number");
        assert_eq!((time.left_ns, time.interval_ns, ticks), (0, 1_000_000, 1));
        assert_eq!(still_running(time, ticks).left_ns, 1_000_000);
        assert_eq!(still_running(time, 0).left_ns, 0, "stopped");
        let left = IntervalTimer { left_ns: 7, ..time };
        assert_eq!(still_running(left, 3), left);
    }

    #[test]
    fn a_path_of_this_process_becomes_any_processs() {
        let me = std::process::id();
        let own = format!("/proc/{me}/maps");
        let kernel_path = |path: &[u8]| kernel_path(path, me);
        assert_eq!(kernel_path(own.as_bytes()).as_deref(), Some(&b"/proc/self/maps"[..]));
        assert_eq!(kernel_path(b"/proc/1/maps"), None);
        assert_eq!(kernel_path(b"/proc/cpuinfo").as_deref(), Some(&b"/proc/cpuinfo"[..]));
        assert_eq!(kernel_path(b"/sys/devices").as_deref(), Some(&b"/sys/devices"[..]));
        let thread = format!("/proc/{0}/task/{0}/stat", std::process::id());
        assert_eq!(kernel_path(thread.as_bytes()), None);
    }
}
