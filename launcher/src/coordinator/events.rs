//! What the coordinator waits for, and where each event comes from.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use ckpt_glue::names::NodeIndex;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::super::watch;

/// Where an event comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Signals,
    Store,
    /// People's commands: the listener (0), and their connections.
    Requests(u64),
    Keeper(NodeIndex),
    Copies,
    /// Standard input.
    Input,
}

/// The descriptors that are waited for. Each has a token, which is never used again.
#[derive(Debug)]
pub(super) struct Events {
    epoll: Epoll,
    sources: BTreeMap<u64, Source>,
    next_token: u64,
}

impl Events {
    pub(super) fn new() -> io::Result<Events> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Events { epoll, sources: BTreeMap::new(), next_token: 0 })
    }

    /// A token for a source that is about to be watched.
    pub(super) fn token(&mut self, source: Source) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.sources.insert(token, source);
        token
    }

    /// Waits for a source from now on.
    pub(super) fn watch(&mut self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let token = self.token(source);
        watch(&self.epoll, fd, token).inspect_err(|_| self.forget(token))
    }

    /// Its descriptor is closed, which has taken it out of `epoll`.
    pub(super) fn forget(&mut self, token: u64) {
        self.sources.remove(&token);
    }

    pub(super) fn source(&self, token: u64) -> Option<Source> {
        self.sources.get(&token).copied()
    }

    pub(super) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Waits for these events of a source that is watched.
    pub(super) fn await_flags(&self, fd: BorrowedFd<'_>, token: u64, flags: EpollFlags) {
        // Fails only for a descriptor that is being closed.
        let _ = self.epoll.modify(fd, &mut EpollEvent::new(flags, token));
    }

    /// How many events have come; none after a signal.
    pub(super) fn wait(&self, events: &mut [EpollEvent], timeout: EpollTimeout) -> io::Result<usize> {
        match self.epoll.wait(events, timeout) {
            Ok(count) => Ok(count),
            Err(nix::Error::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}
