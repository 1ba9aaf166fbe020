//! Standard input of the ranks of this node: a pipe for each rank that reads, and the count of what was written into it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use nix::fcntl::OFlag;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::pipe2;
use session::input::Record;
use transport::{Life, Rank};

use super::super::process::{Stdin, non_blocking};
use super::super::wire::FromKeeper;
use super::{Shell, Source};

/// A rank's pipe.
#[derive(Debug)]
pub(super) struct Feed {
    life: Life,
    pipe: File,
    count: File,
    record: Record,
    waiting: VecDeque<u8>,
    /// Nothing follows what waits.
    is_last: bool,
    /// In `epoll`, for room to write.
    token: Option<u64>,
}

/// What became of an attempt to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    All,
    /// The pipe is full.
    Some,
    /// Nobody can read it any more, or everything has been written.
    Closed,
}

/// All of them, and which ranks of the life that begins are to get one.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    begins: Option<(Life, BTreeMap<Rank, u64>)>,
    feeds: BTreeMap<Rank, Feed>,
}

impl Feed {
    /// The rank goes on behind byte `from`.
    fn new(life: Life, from: u64) -> io::Result<(Feed, Stdin)> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        let stat = fstat(&read)?;
        let record = Record { serial: 0, given: from, pipe: (stat.st_dev, stat.st_ino) };
        let count = File::from(memfd_create(c"stillwire-input", MFdFlags::MFD_CLOEXEC)?);
        count.write_all_at(&record.emit(), 0)?;
        let theirs: OwnedFd = count.as_fd().try_clone_to_owned()?;
        let pipe = File::from(non_blocking(write)?);
        let feed = Feed { life, pipe, count, record, waiting: VecDeque::new(), is_last: false, token: None };
        Ok((feed, Stdin { pipe: read, count: theirs }))
    }

    fn note(&mut self) {
        self.record.serial += 1;
        // Memory of our own: it takes every write.
        let _ = self.count.write_all_at(&self.record.emit(), 0);
    }

    /// Writes what waits, as far as there is room.
    fn write(&mut self) -> Written {
        while !self.waiting.is_empty() {
            self.note();
            let written = self.pipe.write(self.waiting.as_slices().0);
            if let Ok(written) = &written {
                self.waiting.drain(..*written);
                self.record.given += *written as u64;
            }
            self.note();
            match written {
                Ok(0) => return Written::Closed,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::Some,
                Err(_) => return Written::Closed,
            }
        }
        if self.is_last { Written::Closed } else { Written::All }
    }
}

impl Shell {
    /// Which ranks of this node read in a life that begins.
    pub(super) fn on_input_life(&mut self, life: Life, ranks: Vec<(u32, u64)>) {
        self.inputs.begins = Some((life, ranks.into_iter().map(|(rank, from)| (Rank(rank), from)).collect()));
    }

    /// For a rank that is about to be started, if it reads.
    pub(super) fn new_input(&mut self, rank: Rank, life: Life) -> io::Result<Option<Stdin>> {
        self.end_input(rank);
        let from = self.inputs.begins.as_ref().filter(|(begins, _)| *begins == life);
        let Some(from) = from.and_then(|(_, ranks)| ranks.get(&rank)).copied() else { return Ok(None) };
        let (feed, stdin) = Feed::new(life, from)?;
        self.inputs.feeds.insert(rank, feed);
        Ok(Some(stdin))
    }

    /// It has been started.
    pub(super) fn input_begins(&mut self, rank: Rank) {
        if let Some(feed) = self.inputs.feeds.get(&rank) {
            let (life, offset) = (feed.life.into(), feed.record.given);
            self.tell(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: true });
        }
    }

    /// Its process has ended, or begins anew.
    pub(super) fn end_input(&mut self, rank: Rank) {
        let Some(feed) = self.inputs.feeds.remove(&rank) else { return };
        if let Some(token) = feed.token {
            self.sources.remove(&token);
            let _ = self.epoll.delete(&feed.pipe);
        }
        let (life, offset) = (feed.life.into(), feed.record.given);
        self.tell(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: false });
    }

    pub(super) fn on_input(&mut self, rank: Rank, life: Life, offset: u64, bytes: &[u8], is_last: bool) {
        let Some(feed) = self.inputs.feeds.get_mut(&rank).filter(|feed| feed.life == life) else { return };
        if offset != feed.record.given + feed.waiting.len() as u64 {
            return;
        }
        feed.waiting.extend(bytes);
        feed.is_last |= is_last;
        self.write_input(rank);
    }

    /// Writes on, and says how far it has come.
    pub(super) fn write_input(&mut self, rank: Rank) {
        let Some(feed) = self.inputs.feeds.get_mut(&rank) else { return };
        let before = feed.record.given;
        let written = feed.write();
        if written == Written::Closed {
            return self.end_input(rank);
        }
        let (life, offset) = (feed.life.into(), feed.record.given);
        self.watch_input(rank, written == Written::Some);
        if offset > before {
            self.tell(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: true });
        }
    }

    /// Asks `epoll` for room to write only while something waits.
    fn watch_input(&mut self, rank: Rank, waits: bool) {
        let token = self.token();
        let Some(feed) = self.inputs.feeds.get_mut(&rank) else { return };
        match feed.token {
            None if waits => {
                // Fails only for a descriptor that is being closed.
                let _ = self.epoll.add(&feed.pipe, EpollEvent::new(EpollFlags::EPOLLOUT, token));
                feed.token = Some(token);
                self.sources.insert(token, Source::Input(rank));
            }
            Some(old) if !waits => {
                let _ = self.epoll.delete(&feed.pipe);
                feed.token = None;
                self.sources.remove(&old);
            }
            _ => {}
        }
    }
}
