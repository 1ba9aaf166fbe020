//! Standard input of the ranks of this node: a pipe or the terminal for each rank that reads, and the count of the bytes written into it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use ckpt_glue::names::ExitStatus;
use client::input::Record;
use nix::fcntl::OFlag;
use nix::sys::epoll::EpollFlags;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::unistd::pipe2;
use transport::{Life, Rank};

use super::super::wire::FromKeeper;
use super::keyboard::{Keyboard, Step};
use super::terminal::Terminal;
use super::{Shell, Source};
use crate::spawn::process::{Stdin, non_blocking};

/// A rank's pipe, or its terminal.
#[derive(Debug)]
pub(super) struct Feed {
    life: Life,
    pipe: File,
    /// It is a terminal.
    keyboard: Option<Keyboard>,
    /// Nothing is typed before the restored process has given its terminal its settings.
    is_held: bool,
    count: File,
    record: Record,
    waiting: VecDeque<u8>,
    /// Nothing follows the waiting bytes.
    is_last: bool,
    /// In `epoll`, for room to write.
    token: Option<u64>,
}

const INTERRUPT: u8 = Signal::SIGINT as u8;
const QUIT: u8 = Signal::SIGQUIT as u8;

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    All,
    /// The pipe is full.
    Some,
    /// The keyboard is due to go on.
    Later,
    /// Nobody can read it any more, or everything has been written.
    Closed,
    /// A key stops the job, and the rest waits until it goes on.
    Suspend,
}

/// A life that begins: its number, and the end of the input that earlier lives have read.
#[derive(Debug)]
struct Begins {
    life: Life,
    /// The ranks that read, and where each begins.
    ranks: BTreeMap<Rank, u64>,
    replay_end: u64,
}

/// All of them, and which ranks of the life that begins are to get one.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    begins: Option<Begins>,
    feeds: BTreeMap<Rank, Feed>,
    /// A key has interrupted the program on the terminal.
    is_interrupted: bool,
}

impl Inputs {
    /// When a keyboard is due to go on.
    pub(super) fn due(&self) -> Option<Instant> {
        self.feeds.values().filter_map(|feed| feed.keyboard.as_ref()?.due).min()
    }
}

impl Feed {
    /// The rank goes on behind byte `from`.
    fn new(life: Life, from: u64, replay_end: u64, terminal: Option<&Terminal>) -> io::Result<(Feed, Stdin)> {
        let (read, write, keyboard) = match terminal {
            None => {
                let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
                (read, write, None)
            }
            Some(Terminal { keeper_end, rank_end, is_watched }) => {
                let keyboard = Keyboard::new(rank_end.try_clone()?, *is_watched, replay_end);
                (rank_end.try_clone()?, keeper_end.try_clone()?, Some(keyboard))
            }
        };
        let stat = fstat(&read)?;
        let record = Record::new(from, (stat.st_dev, stat.st_ino));
        let count = File::from(memfd_create(c"stillwire-input", MFdFlags::MFD_CLOEXEC)?);
        count.write_all_at(&record.emit(), 0)?;
        let theirs: OwnedFd = count.as_fd().try_clone_to_owned()?;
        let pipe = File::from(non_blocking(write)?);
        let waiting = VecDeque::new();
        let (is_held, is_last, token) = (false, false, None);
        let feed = Feed { life, pipe, keyboard, is_held, count, record, waiting, is_last, token };
        Ok((feed, Stdin { pipe: read, count: theirs }))
    }

    fn note(&mut self) {
        self.record.serial += 1;
        // Memory of our own: it takes every write.
        let _ = self.count.write_all_at(&self.record.emit(), 0);
    }

    /// Writes the waiting bytes, as far as there is room.
    fn write(&mut self) -> Written {
        while !self.waiting.is_empty() {
            let next = self.waiting.as_slices().0;
            let step = match &mut self.keyboard {
                None => Step::Type(next.len()),
                Some(keyboard) => keyboard.step(next, self.record.given),
            };
            let bytes = match step {
                Step::Type(bytes) => bytes,
                Step::PassOver => {
                    self.pass_over();
                    continue;
                }
                Step::Suspend => {
                    self.pass_over();
                    return Written::Suspend;
                }
                Step::Later => return Written::Later,
                Step::Gone => return Written::Closed,
            };
            self.note();
            let next = &self.waiting.as_slices().0[..bytes];
            let written = self.pipe.write(next);
            if let Ok(written) = &written {
                match &mut self.keyboard {
                    None => self.record.given += *written as u64,
                    Some(keyboard) => keyboard.typed(&next[..*written], &mut self.record),
                }
                self.waiting.drain(..*written);
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
        match self.is_last {
            false => Written::All,
            true if self.keyboard.is_none() => Written::Closed,
            true => self.type_end(),
        }
    }

    /// The first waiting key is not for the program.
    fn pass_over(&mut self) {
        self.waiting.pop_front();
        self.note();
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.pass_over(&mut self.record);
        }
        self.note();
    }

    /// A terminal stays open: a program on it finds the end of its input in the form of a typed key.
    fn type_end(&mut self) -> Written {
        let Some(key) = self.keyboard.as_mut().and_then(Keyboard::end_key) else { return Written::Later };
        self.note();
        let written = self.pipe.write(&[key]);
        if let Some(keyboard) =
            self.keyboard.as_mut().filter(|_| written.as_ref().is_ok_and(|bytes| *bytes > 0))
        {
            keyboard.ended(&mut self.record);
        }
        self.note();
        Written::Later
    }
}

impl Shell {
    /// Which ranks of this node read in a life that begins.
    pub(super) fn on_input_life(&mut self, life: Life, ranks: Vec<(u32, u64)>, replay_end: u64) {
        let ranks = ranks.into_iter().map(|(rank, from)| (Rank(rank), from)).collect();
        self.inputs.begins = Some(Begins { life, ranks, replay_end });
    }

    /// For a rank that is about to be started, if it reads.
    pub(super) fn new_input(
        &mut self,
        rank: Rank,
        life: Life,
        terminal: Option<&Terminal>,
        is_restored: bool,
    ) -> io::Result<Option<Stdin>> {
        self.end_input(rank);
        self.inputs.is_interrupted = false;
        let begins = self.inputs.begins.as_ref().filter(|begins| begins.life == life);
        let place = begins.and_then(|begins| Some((*begins.ranks.get(&rank)?, begins.replay_end)));
        let Some((from, replay_end)) = place else { return Ok(None) };
        let (mut feed, stdin) = Feed::new(life, from, replay_end, terminal)?;
        feed.is_held = is_restored && terminal.is_some();
        self.inputs.feeds.insert(rank, feed);
        Ok(Some(stdin))
    }

    /// It has been started.
    pub(super) fn input_begins(&mut self, rank: Rank) {
        if let Some(feed) = self.inputs.feeds.get(&rank) {
            let (life, offset) = (feed.life, feed.record.given);
            self.send_to_launcher(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: true });
        }
    }

    /// Its process has ended, or begins anew.
    pub(super) fn end_input(&mut self, rank: Rank) {
        let Some(feed) = self.inputs.feeds.remove(&rank) else { return };
        if let Some(token) = feed.token {
            self.events.forget(token);
            self.events.take_out(&feed.pipe);
        }
        let (life, offset) = (feed.life, feed.record.given);
        self.send_to_launcher(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: false });
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

    /// The process speaks: it has been restored.
    pub(super) fn release_input(&mut self, rank: Rank) {
        let held = self.inputs.feeds.get_mut(&rank).filter(|feed| feed.is_held);
        if let Some(feed) = held {
            feed.is_held = false;
            self.write_input(rank);
        }
    }

    /// Writes on, and reports how far it has come.
    pub(super) fn write_input(&mut self, rank: Rank) {
        let Some(feed) = self.inputs.feeds.get_mut(&rank).filter(|feed| !feed.is_held) else { return };
        let before = feed.record.given;
        let written = feed.write();
        self.inputs.is_interrupted |= feed.keyboard.as_ref().is_some_and(|keyboard| keyboard.is_interrupted);
        match written {
            Written::Closed => return self.end_input(rank),
            Written::Suspend => self.send_to_launcher(&FromKeeper::SuspendWanted),
            Written::All | Written::Some | Written::Later => {}
        }
        let Some(feed) = self.inputs.feeds.get(&rank) else { return };
        let (life, offset) = (feed.life, feed.record.given);
        self.watch_input(rank, written == Written::Some);
        if offset > before {
            self.send_to_launcher(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: true });
        }
    }

    /// How a rank has ended. By a key of a person, who wants the job to end: its exit code is that of a shell.
    pub(super) fn ended_by_key(&self, status: ExitStatus) -> ExitStatus {
        match status {
            ExitStatus::Signal(signal @ (INTERRUPT | QUIT)) if self.inputs.is_interrupted => {
                ExitStatus::Code(128 + signal)
            }
            other => other,
        }
    }

    /// Goes on with keyboards that are due.
    pub(super) fn look_at_keyboards(&mut self) {
        let now = Instant::now();
        let is_due = |feed: &Feed| {
            feed.keyboard.as_ref().and_then(|keyboard| keyboard.due).is_some_and(|due| due <= now)
        };
        let due = self.inputs.feeds.iter().filter(|(_, feed)| is_due(feed));
        for rank in due.map(|(rank, _)| *rank).collect::<Vec<_>>() {
            self.write_input(rank);
        }
    }

    /// Writes the input that waits behind a key that has stopped the job.
    pub(super) fn resume_inputs(&mut self) {
        for rank in self.inputs.feeds.keys().copied().collect::<Vec<_>>() {
            self.write_input(rank);
        }
    }

    /// Asks `epoll` for room to write only while something waits.
    fn watch_input(&mut self, rank: Rank, waits: bool) {
        let Some(feed) = self.inputs.feeds.get_mut(&rank) else { return };
        match feed.token {
            None if waits => {
                // Fails only for a descriptor that is being closed.
                feed.token =
                    self.events.watch_for(&feed.pipe, Source::Input(rank), EpollFlags::EPOLLOUT).ok();
            }
            Some(old) if !waits => {
                self.events.take_out(&feed.pipe);
                self.events.forget(old);
                feed.token = None;
            }
            _ => {}
        }
    }
}
