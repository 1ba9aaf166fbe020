//! Standard input of the ranks of this node: a pipe or the terminal for each rank that reads, and the count of the bytes written into it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use ckpt_glue::names::ExitStatus;
use nix::fcntl::OFlag;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::unistd::pipe2;
use session::input::Record;
use transport::{Life, Rank};

use super::super::process::{Stdin, non_blocking};
use super::super::wire::FromKeeper;
use super::terminal::{Discipline, Terminal, Typed};
use super::{Shell, Source};

/// A rank's pipe, or its terminal.
#[derive(Debug)]
pub(super) struct Feed {
    life: Life,
    pipe: File,
    /// It is the terminal.
    typed: Option<Typed>,
    /// Ctrl-Z is for the job.
    suspends: bool,
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
    /// Nobody can read it any more, or everything has been written.
    Closed,
    /// A key stops the job, and the rest waits until it goes on.
    Suspend,
}

/// All of them, and which ranks of the life that begins are to get one.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    begins: Option<(Life, BTreeMap<Rank, u64>)>,
    feeds: BTreeMap<Rank, Feed>,
    /// A key has interrupted the program on the terminal.
    is_interrupted: bool,
}

impl Feed {
    /// The rank goes on behind byte `from`.
    fn new(life: Life, from: u64, terminal: Option<&Terminal>) -> io::Result<(Feed, Stdin)> {
        let (read, write) = match terminal {
            None => pipe2(OFlag::O_CLOEXEC)?,
            Some(Terminal { keeper_end, rank_end, .. }) => (rank_end.try_clone()?, keeper_end.try_clone()?),
        };
        let stat = fstat(&read)?;
        let record = Record::new(from, (stat.st_dev, stat.st_ino));
        let count = File::from(memfd_create(c"stillwire-input", MFdFlags::MFD_CLOEXEC)?);
        count.write_all_at(&record.emit(), 0)?;
        let theirs: OwnedFd = count.as_fd().try_clone_to_owned()?;
        let pipe = File::from(non_blocking(write)?);
        let typed = terminal.map(|_| Typed::default());
        let waiting = VecDeque::new();
        let suspends = terminal.is_some_and(|terminal| terminal.is_watched);
        let feed = Feed {
            life,
            pipe,
            typed,
            suspends,
            is_held: false,
            count,
            record,
            waiting,
            is_last: false,
            token: None,
        };
        Ok((feed, Stdin { pipe: read, count: theirs }))
    }

    fn note(&mut self) {
        self.record.serial += 1;
        // Memory of our own: it takes every write.
        let _ = self.count.write_all_at(&self.record.emit(), 0);
    }

    /// Writes the waiting bytes, as far as there is room.
    fn write(&mut self, is_interrupted: &mut bool) -> Written {
        while !self.waiting.is_empty() {
            self.note();
            let mut next = self.waiting.as_slices().0;
            let discipline = match &mut self.typed {
                None => None,
                Some(typed) => {
                    let Ok(discipline) = Discipline::of(&self.pipe) else { return Written::Closed };
                    let suspends = |key: &u8| self.suspends && discipline.is_suspend(*key);
                    match next.iter().position(suspends) {
                        Some(0) => {
                            typed.pass_over();
                            self.waiting.pop_front();
                            self.record.given += 1;
                            self.note();
                            return Written::Suspend;
                        }
                        Some(until) => next = &next[..until],
                        None => {}
                    }
                    Some(discipline)
                }
            };
            let written = self.pipe.write(next);
            if let Ok(written) = &written {
                if let Some((typed, discipline)) = self.typed.as_mut().zip(discipline) {
                    *is_interrupted |= typed.add(&next[..*written], &discipline, &mut self.record);
                }
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
        if self.is_last {
            self.end_typing();
            return Written::Closed;
        }
        Written::All
    }
}

impl Feed {
    /// A terminal stays open: a program on it finds the end of its input in the form of a typed key.
    fn end_typing(&mut self) {
        let Some(typed) = &self.typed else { return };
        if let Ok(discipline) = Discipline::of(&self.pipe) {
            // If the terminal is full of unread bytes, nobody waits for the end.
            let _ = self.pipe.write(&discipline.end_of_file(typed));
        }
    }
}

impl Shell {
    /// Which ranks of this node read in a life that begins.
    pub(super) fn on_input_life(&mut self, life: Life, ranks: Vec<(u32, u64)>) {
        self.inputs.begins = Some((life, ranks.into_iter().map(|(rank, from)| (Rank(rank), from)).collect()));
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
        let from = self.inputs.begins.as_ref().filter(|(begins, _)| *begins == life);
        let Some(from) = from.and_then(|(_, ranks)| ranks.get(&rank)).copied() else { return Ok(None) };
        let (mut feed, stdin) = Feed::new(life, from, terminal)?;
        feed.is_held = is_restored && terminal.is_some();
        self.inputs.feeds.insert(rank, feed);
        Ok(Some(stdin))
    }

    /// It has been started.
    pub(super) fn input_begins(&mut self, rank: Rank) {
        if let Some(feed) = self.inputs.feeds.get(&rank) {
            let (life, offset) = (feed.life.into(), feed.record.given);
            self.send_to_launcher(&FromKeeper::InputTaken { rank: rank.0, life, offset, open: true });
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
        let written = feed.write(&mut self.inputs.is_interrupted);
        match written {
            Written::Closed => return self.end_input(rank),
            Written::Suspend => self.send_to_launcher(&FromKeeper::SuspendWanted),
            Written::All | Written::Some => {}
        }
        let Some(feed) = self.inputs.feeds.get(&rank) else { return };
        let (life, offset) = (feed.life.into(), feed.record.given);
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

    /// Writes the input that waits behind a key that has stopped the job.
    pub(super) fn resume_inputs(&mut self) {
        for rank in self.inputs.feeds.keys().copied().collect::<Vec<_>>() {
            self.write_input(rank);
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
