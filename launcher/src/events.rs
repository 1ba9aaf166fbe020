//! The descriptors that the launcher or a keeper waits for, and where each event comes from.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Each has a token, which is never used again.
#[derive(Debug)]
pub(super) struct Events<S> {
    epoll: Epoll,
    sources: BTreeMap<u64, S>,
    next_token: u64,
}

impl<S: Copy + PartialEq> Events<S> {
    pub(super) fn new() -> io::Result<Events<S>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Events { epoll, sources: BTreeMap::new(), next_token: 0 })
    }

    /// A token for a source that is about to be watched.
    pub(super) fn token(&mut self, source: S) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.sources.insert(token, source);
        token
    }

    /// Waits until there is something to read.
    pub(super) fn watch(&mut self, fd: impl AsFd, source: S) -> io::Result<u64> {
        self.watch_for(fd, source, EpollFlags::EPOLLIN)
    }

    pub(super) fn watch_for(&mut self, fd: impl AsFd, source: S, flags: EpollFlags) -> io::Result<u64> {
        let token = self.token(source);
        self.add(fd, token, flags).inspect_err(|_| self.forget(token))?;
        Ok(token)
    }

    /// Waits for a further descriptor of a source.
    pub(super) fn add(&self, fd: impl AsFd, token: u64, flags: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(flags, token))?)
    }

    /// Its token stays: it can be put back.
    pub(super) fn take_out(&self, fd: impl AsFd) {
        // Fails only for a descriptor that is being closed.
        let _ = self.epoll.delete(fd);
    }

    pub(super) fn put_back(&self, fd: impl AsFd, token: u64) {
        // Fails only for a descriptor that is being closed.
        let _ = self.add(fd, token, EpollFlags::EPOLLIN);
    }

    /// Waits for these events of a source that is watched.
    pub(super) fn await_flags(&self, fd: impl AsFd, token: u64, flags: EpollFlags) {
        // Fails only for a descriptor that is being closed.
        let _ = self.epoll.modify(fd, &mut EpollEvent::new(flags, token));
    }

    /// Its descriptor is closed, which takes it out of `epoll`, or was taken out.
    pub(super) fn forget(&mut self, token: u64) {
        self.sources.remove(&token);
    }

    /// The same for all of these sources.
    pub(super) fn forget_if(&mut self, is_over: impl Fn(S) -> bool) {
        self.sources.retain(|_, source| !is_over(*source));
    }

    pub(super) fn source(&self, token: u64) -> Option<S> {
        self.sources.get(&token).copied()
    }

    pub(super) fn token_of(&self, source: S) -> Option<u64> {
        self.sources.iter().find(|(_, other)| **other == source).map(|(token, _)| *token)
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

/// How long `epoll` is to wait.
pub(super) fn epoll_timeout(left: Option<Duration>) -> EpollTimeout {
    match left {
        None => EpollTimeout::NONE,
        Some(Duration::ZERO) => EpollTimeout::ZERO,
        // Rounded up, so that a deadline has passed when we look.
        Some(left) => EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::MAX),
    }
}
