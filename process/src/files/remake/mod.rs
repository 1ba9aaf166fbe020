//! Descriptors made anew, in a fresh process and by ordinary code.
//!
//! Everything is made above the numbers that it will have, so that nothing collides with descriptors that the restore
//! still needs; when all exist, they are put in their places. Until then standard error is unchanged, for reports.

mod calls;
mod error;
mod file;
mod pair;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;

pub use error::RemakeError;

use crate::state::Files;
use crate::state::files::{LockKind, OpenFile, What};

/// A restore's treatment of files that are not as they were at the cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// A file that was replaced, one that is shorter, or one that the process only reads and that was changed.
    pub changed: Changed,
    /// A file that the process writes, and that is longer.
    pub grown: Grown,
    /// One that is to be truncated, and is not recognised as the file of the cut.
    pub unknown: Unknown,
}

/// See [`Policy::changed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Changed {
    /// The restore ends with an error.
    #[default]
    Refuse,
    /// The process gets the file as it is, and the restore warns.
    Accept,
}

/// See [`Policy::grown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Grown {
    /// It is cut to the length that it had: later bytes are written again.
    #[default]
    Truncate,
    /// It is left as it is.
    Keep,
}

/// See [`Policy::unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unknown {
    /// A copy is kept beside it, and the restore warns.
    #[default]
    KeepCopy,
    /// The restore ends with an error.
    Refuse,
}

/// Descriptors of the fresh process for the restored one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// Descriptors by name.
    pub handed_in: &'a [(String, RawFd)],
    /// Memory by index of [`crate::state::memory::Memory::shared`].
    pub shared: &'a [RawFd],
    /// Descriptors that the restore still needs.
    pub kept: &'a [RawFd],
    /// The policy for changed files.
    pub policy: Policy,
}

/// Its outcome.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remade {
    /// New numbers of [`Given::kept`], above all that were restored.
    pub kept: Vec<RawFd>,
    /// New numbers of [`Given::shared`], likewise.
    pub shared: Vec<RawFd>,
    /// Differences that the policy accepts.
    pub warnings: Vec<String>,
}

/// Makes all descriptors anew. All others of this process are closed, but those given to be kept. After an error the
/// numbers below the highest saved one are as they were.
pub fn remake(files: &Files, given: &Given<'_>) -> Result<Remade, RemakeError> {
    let mut maker = Maker::new(files, given)?;
    for index in 0..files.open.len() {
        maker.make(index)?;
    }
    maker.place_all()?;
    maker.watch_all()?;
    maker.close_others()?;
    maker.lock_all()?;
    Ok(maker.remade)
}

/// Status flags that `F_SETFL` sets.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME;

struct Maker<'a> {
    files: &'a Files,
    /// The handed-in descriptors, by name, at its new number.
    handed_in: BTreeMap<&'a str, RawFd>,
    policy: Policy,
    /// First number above all that are restored.
    base: RawFd,
    /// By index of [`Files::open`]; `None`: not made yet, or its owner makes it.
    made: Vec<Option<RawFd>>,
    /// A number of every open file, for reports.
    numbers: Vec<u32>,
    remade: Remade,
}

impl<'a> Maker<'a> {
    fn new(files: &'a Files, given: &Given<'a>) -> Result<Maker<'a>, RemakeError> {
        let highest = files.descriptors.last().map_or(2, |last| last.number.max(2));
        let needed = u64::from(highest) + 1;
        let extra = files.open.len() + given.kept.len() + given.shared.len() + given.handed_in.len() + 8;
        let limit = calls::raise_limit().map_err(|error| RemakeError::Call {
            number: highest,
            doing: "raising the limit of descriptors",
            error,
        })?;
        let base = RawFd::try_from(needed).ok().filter(|_| needed.saturating_add(extra as u64) <= limit);
        let base = base.ok_or(RemakeError::Limit { needed: needed.saturating_add(extra as u64), limit })?;
        let mut numbers = vec![0; files.open.len()];
        for descriptor in files.descriptors.iter().rev() {
            if let Some(number) = usize::try_from(descriptor.open).ok().and_then(|open| numbers.get_mut(open))
            {
                *number = descriptor.number;
            }
        }
        let mut maker = Maker {
            files,
            handed_in: BTreeMap::new(),
            policy: given.policy,
            base,
            made: vec![None; files.open.len()],
            numbers,
            remade: Remade::default(),
        };
        for fd in given.kept {
            let kept = maker.copy_high(*fd, "keeping a descriptor of the restore")?;
            maker.remade.kept.push(kept);
        }
        for fd in given.shared {
            let shared = maker.copy_high(*fd, "keeping shared memory")?;
            maker.remade.shared.push(shared);
        }
        for (name, fd) in given.handed_in {
            let handed_in = maker.copy_high(*fd, "keeping a descriptor that was handed in")?;
            maker.handed_in.insert(name, handed_in);
        }
        Ok(maker)
    }

    fn copy_high(&self, fd: RawFd, doing: &'static str) -> Result<RawFd, RemakeError> {
        calls::copy_above(fd, self.base).map_err(|error| RemakeError::Call {
            number: fd.cast_unsigned(),
            doing,
            error,
        })
    }

    /// Takes a new descriptor out of the way of the numbers to come.
    fn lift(&self, index: usize, fd: io::Result<RawFd>, doing: &'static str) -> Result<RawFd, RemakeError> {
        let fd = fd.map_err(self.failed(index, doing))?;
        if fd >= self.base {
            return Ok(fd);
        }
        let lifted = calls::copy_above(fd, self.base).map_err(self.failed(index, doing));
        calls::close(fd);
        lifted
    }

    fn failed(&self, index: usize, doing: &'static str) -> impl FnOnce(io::Error) -> RemakeError + use<> {
        let number = self.numbers[index];
        move |error| RemakeError::Call { number, doing, error }
    }

    /// Another description of an open file.
    fn reopen(&self, index: usize, fd: RawFd, flags: i32) -> Result<RawFd, RemakeError> {
        let path = format!("/proc/self/fd/{fd}");
        let flags =
            flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_TMPFILE);
        self.lift(index, calls::open(path.as_bytes(), flags), "opening it once more")
    }

    /// Sets the status flags that an image has.
    fn set_flags(&self, index: usize, fd: RawFd) -> Result<(), RemakeError> {
        let wanted = self.files.open[index].flags.cast_signed();
        if wanted & libc::O_PATH != 0 {
            return Ok(());
        }
        let current = calls::flags(fd).map_err(self.failed(index, "reading its flags"))?;
        let new = (current & !SETTABLE) | (wanted & SETTABLE);
        if new == current {
            return Ok(());
        }
        calls::set_flags(fd, new).map_err(self.failed(index, "setting its flags"))
    }

    fn make(&mut self, index: usize) -> Result<(), RemakeError> {
        if self.made[index].is_some() {
            return Ok(());
        }
        let files = self.files;
        let OpenFile { flags, what } = &files.open[index];
        let flags = flags.cast_signed();
        let fd = match what {
            What::Remade { .. } => return Ok(()),
            What::HandedIn { name } => self.take_handed_in(index, name, flags)?,
            What::Regular(regular) => self.make_regular(index, regular, flags)?,
            What::Directory { path, position } => {
                let fd = self.open_path(index, path, flags | libc::O_DIRECTORY)?;
                self.seek(index, fd, *position)?;
                fd
            }
            What::Device { path } => self.open_path(index, path, flags)?,
            What::Kernel { path, position } => {
                let fd = self.open_path(index, path, flags)?;
                self.seek(index, fd, *position)?;
                fd
            }
            What::Pipe { pipe, .. } => return self.make_pipe(*pipe),
            What::SocketPair { .. } => return self.make_sockets(index),
            What::Event { count, is_semaphore } => {
                let fd = self.lift(index, calls::event(*is_semaphore), "eventfd")?;
                if *count > 0 {
                    calls::write_all(fd, &count.to_ne_bytes())
                        .map_err(self.failed(index, "counting an eventfd up"))?;
                }
                fd
            }
            What::Poll { .. } => self.lift(index, calls::poll(), "epoll_create")?,
            What::Timer { clock, time, ticks } => {
                let fd = self.lift(index, calls::timer(*clock), "timerfd_create")?;
                self.start_timer(index, fd, time.left_ns, time.interval_ns, *ticks)?;
                fd
            }
            What::Signal { mask } => self.lift(index, calls::signals(*mask), "signalfd")?,
            What::Shared { object, position } => {
                let shared = usize::try_from(*object).ok().and_then(|object| self.remade.shared.get(object));
                let Some(shared) = shared.copied() else {
                    let error = io::Error::from(io::ErrorKind::NotFound);
                    return Err(self.failed(index, "memory that it shares with regions")(error));
                };
                let fd = self.reopen(index, shared, flags)?;
                self.seek(index, fd, *position)?;
                fd
            }
        };
        self.set_flags(index, fd)?;
        self.made[index] = Some(fd);
        Ok(())
    }

    fn take_handed_in(&self, index: usize, name: &str, flags: i32) -> Result<RawFd, RemakeError> {
        let Some(fd) = self.handed_in.get(name).copied() else {
            return Err(RemakeError::NotHandedIn { number: self.numbers[index], name: name.to_owned() });
        };
        let is_first = !self.files.open[..index]
            .iter()
            .any(|other| matches!(&other.what, What::HandedIn { name: other } if other == name));
        if is_first { self.copy_high(fd, "handing it in") } else { self.reopen(index, fd, flags) }
    }

    fn start_timer(
        &self,
        index: usize,
        fd: RawFd,
        left_ns: u64,
        interval_ns: u64,
        ticks: u64,
    ) -> Result<(), RemakeError> {
        let start = |left_ns| {
            calls::set_timer(fd, left_ns, interval_ns).map_err(self.failed(index, "timerfd_settime"))
        };
        if left_ns > 0 {
            start(left_ns)?;
        }
        if ticks > 0 && calls::set_ticks(fd, ticks).is_err() {
            // A kernel without this call: the timer fires at once, so that at least one expiration is read.
            start(1)?;
        }
        Ok(())
    }

    fn seek(&self, index: usize, fd: RawFd, position: u64) -> Result<(), RemakeError> {
        let is_path_only = self.files.open[index].flags.cast_signed() & libc::O_PATH != 0;
        if position == 0 || is_path_only {
            return Ok(());
        }
        calls::seek(fd, position).map_err(self.failed(index, "lseek"))
    }

    /// Puts everything at its number.
    fn place_all(&self) -> Result<(), RemakeError> {
        for descriptor in &self.files.descriptors {
            let index = usize::try_from(descriptor.open).unwrap_or(usize::MAX);
            let Some(fd) = self.made.get(index).copied().flatten() else { continue };
            let number = descriptor.number.cast_signed();
            calls::place(fd, number, descriptor.closes_on_exec).map_err(self.failed(index, "dup3"))?;
        }
        Ok(())
    }

    /// Lets epoll descriptors watch their old files. An owner adds the descriptors that it makes anew itself.
    fn watch_all(&self) -> Result<(), RemakeError> {
        for (index, open) in self.files.open.iter().enumerate() {
            let (What::Poll { watched }, Some(poll)) = (&open.what, self.made[index]) else { continue };
            for entry in watched {
                let target =
                    usize::try_from(entry.open).ok().and_then(|open| self.made.get(open)).copied().flatten();
                let Some(target) = target else { continue };
                let current =
                    self.files.descriptors.iter().find(|descriptor| descriptor.number == entry.number);
                let number = entry.number.cast_signed();
                let failed = || self.failed(index, "epoll_ctl");
                if current.is_some_and(|current| current.open == entry.open) {
                    calls::watch(poll, number, entry.events, entry.data).map_err(failed())?;
                    continue;
                }
                // The number was closed, or means something else by now: the watched file gets it for a moment.
                if number >= self.base {
                    let error = io::Error::other(format!("it watches {number}, which is in use"));
                    return Err(failed()(error));
                }
                calls::place(target, number, true).map_err(failed())?;
                let added = calls::watch(poll, number, entry.events, entry.data).map_err(failed());
                let back = current.and_then(|current| {
                    let open = usize::try_from(current.open).ok()?;
                    Some((self.made.get(open).copied().flatten()?, current.closes_on_exec))
                });
                match back {
                    Some((fd, closes_on_exec)) => {
                        calls::place(fd, number, closes_on_exec).map_err(failed())?
                    }
                    None => calls::close(number),
                }
                added?;
            }
        }
        Ok(())
    }

    fn close_others(&self) -> Result<(), RemakeError> {
        let failed = |error| RemakeError::Call { number: 0, doing: "listing what is open", error };
        let restored = self.files.descriptors.iter().filter(|descriptor| {
            usize::try_from(descriptor.open)
                .ok()
                .and_then(|open| self.made.get(open))
                .copied()
                .flatten()
                .is_some()
        });
        let mut wanted: BTreeSet<RawFd> =
            restored.map(|descriptor| descriptor.number.cast_signed()).collect();
        wanted.extend(&self.remade.kept);
        wanted.extend(&self.remade.shared);
        let mut others = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd").map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            others.extend(
                name.to_str().and_then(|name| name.parse::<RawFd>().ok()).filter(|fd| !wanted.contains(fd)),
            );
        }
        // One of them was the list itself, and is closed by now.
        others.into_iter().for_each(calls::close);
        Ok(())
    }

    /// Locks of the process as a whole would go with any descriptor of their file that is closed: they come last.
    fn lock_all(&self) -> Result<(), RemakeError> {
        for (index, open) in self.files.open.iter().enumerate() {
            let What::Regular(regular) = &open.what else { continue };
            let fd = self.numbers[index].cast_signed();
            for lock in regular.locks.iter().filter(|lock| lock.kind == LockKind::Process) {
                calls::lock_range(fd, libc::F_SETLK, lock.is_exclusive, lock.start, lock.last)
                    .map_err(|error| self.not_locked(index, &regular.path, error))?;
            }
        }
        Ok(())
    }
}
