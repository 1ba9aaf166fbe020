//! The sockets over which processes of MPI libraries speak PMI. The server is the coordinator's: here bytes are passed on.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixStream;

use ckpt_glue::control::{Control, Message};
use ckpt_glue::names::Party;
use ckpt_glue::pmi::{self, Member};
use nix::sys::epoll::EpollFlags;
use transport::{Epoch, Life, Rank};

use super::super::pmi::PmiLines;
use super::super::wire::FromKeeper;
use super::{Shell, Source};

/// Whether a process comes to a barrier with these bytes.
fn comes_to_barrier(said: &[u8]) -> bool {
    const WORD: &[u8] = b"cmd=barrier_in";
    said.windows(WORD.len()).any(|window| window == WORD)
}

/// What the keeper has to do with PMI.
pub(super) struct PmiSide {
    lines: PmiLines,
    /// The life of the processes to which those belong.
    life: Option<Life>,
    /// Ranks for which the coordinator's shell speaks.
    pub(super) spoken_for: BTreeSet<Rank>,
    /// Some rank was a program of an MPI library.
    pub(super) is_used: bool,
}

impl PmiSide {
    pub(super) fn new(is_used: bool) -> PmiSide {
        PmiSide { lines: PmiLines::default(), life: None, spoken_for: BTreeSet::new(), is_used }
    }
}

impl Shell {
    /// Before the first process of a life is started: nobody of another life is heard any more.
    pub(super) fn begin_pmi(&mut self, life: Life) {
        if self.pmi.life != Some(life) {
            self.events.forget_if(|source| matches!(source, Source::Pmi(_)));
            self.pmi = PmiSide { life: Some(life), ..PmiSide::new(self.pmi.is_used) };
            self.forget_looks();
        }
    }

    /// A socket for a process that is about to be started; the other end is kept.
    pub(super) fn pmi_socket(&mut self, member: Member) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.events.watch(&ours, Source::Pmi(member))?;
        self.pmi.lines.insert(member, ours)?;
        Ok(theirs)
    }

    /// A request or a state report from a rank's agent to the PMI server.
    pub(super) fn on_pmi_of_agent(&mut self, input: pmi::Input) {
        let life = self.pmi.life.unwrap_or(ckpt_glue::control::NO_LIFE);
        let (rank, epoch, message) = match input {
            pmi::Input::Request { rank, epoch, request } => {
                self.pmi.is_used = true;
                if comes_to_barrier(&request.text.0) {
                    self.note_files_of(Member::of_job(rank));
                }
                (rank, epoch, Message::PmiRequest { request })
            }
            pmi::Input::State { rank, part, last } => (rank, Epoch(0), Message::PmiState { part, last }),
            // The machine hands on nothing else.
            _ => return,
        };
        let control = Control { job: self.site.job, life, epoch, sender: Party::Rank(rank), message };
        let control = self.seal(&control);
        self.send_to_launcher(&FromKeeper::Pmi { control });
    }

    pub(super) fn on_pmi_socket(&mut self, member: Member, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.pmi.lines.flush(member);
            self.watch_pmi(member);
        }
        if !flags.difference(EpollFlags::EPOLLOUT).is_empty() {
            self.hear_pmi(member);
        }
    }

    /// Takes the bytes that a process has sent over PMI. `false`: there were none.
    fn hear_pmi(&mut self, member: Member) -> bool {
        let said = self.pmi.lines.hear(member);
        if said.closed {
            // Its process has ended, or is about to: its status reports that better.
            self.forget_pmi(member);
            return false;
        }
        if said.bytes.is_empty() {
            return false;
        }
        self.pmi.is_used = true;
        if comes_to_barrier(&said.bytes) {
            self.note_files_of(member);
        }
        self.send_to_launcher(&FromKeeper::PmiBytes { who: member, bytes: said.bytes });
        true
    }

    /// Takes all bytes of a process that has ended.
    pub(super) fn hear_last_of_pmi(&mut self, member: Member) {
        while self.hear_pmi(member) {}
        self.forget_pmi(member);
    }

    fn forget_pmi(&mut self, member: Member) {
        self.events.forget_if(|source| source == Source::Pmi(member));
        self.pmi.lines.remove(member);
    }

    pub(super) fn say_over_pmi(&mut self, member: Member, line: &str) {
        if !self.pmi.lines.send(member, line) {
            self.send_to_launcher(&FromKeeper::PmiUnread { who: member });
        }
        self.watch_pmi(member);
    }

    /// Asks `epoll` for room to write only while something waits.
    fn watch_pmi(&mut self, member: Member) {
        let Some(stream) = self.pmi.lines.stream(member) else { return };
        let Some(token) = self.events.token_of(Source::Pmi(member)) else { return };
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, self.pmi.lines.has_waiting(member));
        self.events.await_flags(stream, token, flags);
    }

    /// Ends a process, no matter which process started it.
    pub(super) fn kill_member(&mut self, member: Member) {
        match member.job_rank() {
            Some(rank) => self.kill_rank(rank),
            None => {
                if let Some(group) = self.spawned.group(member) {
                    group.kill();
                }
            }
        }
    }

    pub(super) fn kill_rank(&self, rank: Rank) {
        if let Some(process) = self.ranks.processes.get(&rank) {
            process.group.kill();
        }
    }
}
