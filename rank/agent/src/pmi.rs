//! The program's PMI: a socket pair inside the process, so that the descriptor of the program and its MPI library is a
//! part of the image, and a relay that carries on with the launcher's server in every life.
//!
//! The program finds one end of the pair under the number that the launcher gave its socket. The launcher's own socket
//! moves to another number, which a variable names: a program that only executes another one in its own place (`env`, a
//! shim) passes it on, and the library in the executed program begins anew from there.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Instant;

use ckpt_glue::control::{Message, Wait, WaitKind};
use ckpt_glue::pmi::{Answer, Relay, Unsavable};
use ckpt_glue::sabotage::Sabotage;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::getpid;
use transport::Epoch;

use crate::error::AgentError;
use crate::limits::{CHUNK_BYTES, LAST_WORDS_MAX, LAST_WORDS_SLICE};
use crate::this_rank::{self, ThisRank};

/// Names the variable with the number of the socket over which a program speaks PMI.
const FD_VARIABLE: &str = "PMI_FD";

/// Names the variable with the number of the launcher's own socket, where a program's is one of ours.
pub const LAUNCHERS_VARIABLE: &str = "STILLWIRE_PMI_FD";

/// The code of state that cannot be saved, for a participant (`Input::Unsavable`): the rank's PMI.
pub(crate) const UNSAVABLE_PMI: u32 = 1;

/// State with which an exiting program waits until the launcher can read its last messages: an abort is
/// followed by the end of its process.
struct LastWords {
    /// The process that is the rank: its forks are none. 0: no process is in between.
    process: AtomicI32,
    /// Our end of the pair.
    socket: AtomicI32,
    /// Bytes read from there are on their way to the line.
    carrying: AtomicBool,
}

static LAST_WORDS: LastWords =
    LastWords { process: AtomicI32::new(0), socket: AtomicI32::new(-1), carrying: AtomicBool::new(false) };

impl LastWords {
    fn are_heard(&self) -> bool {
        let mut waiting: libc::c_int = 0;
        // SAFETY: writes an integer; fails if nothing is open under the number.
        let reported =
            unsafe { libc::ioctl(self.socket.load(Ordering::Acquire), libc::FIONREAD, &raw mut waiting) };
        let unread = reported == 0 && waiting > 0;
        !unread
            && !self.carrying.load(Ordering::Acquire)
            && this_rank::seated().is_none_or(ThisRank::has_said_all)
    }
}

/// Called when the program exits: waits until the launcher can read its messages.
extern "C" fn say_last_words() {
    if LAST_WORDS.process.load(Ordering::Acquire) != getpid().as_raw() {
        return;
    }
    let until = Instant::now() + LAST_WORDS_MAX;
    while !LAST_WORDS.are_heard() && Instant::now() < until {
        std::thread::sleep(LAST_WORDS_SLICE);
    }
}

/// While it lives, messages of the program may be on their way.
pub(crate) struct Carrying(());

impl Drop for Carrying {
    fn drop(&mut self) {
        LAST_WORDS.carrying.store(false, Ordering::Release);
    }
}

fn number(variable: &str) -> Option<RawFd> {
    std::env::var(variable).ok()?.parse().ok().filter(|number| *number > 2)
}

/// The number of the launcher's own socket.
pub(crate) fn launchers_socket() -> Option<RawFd> {
    number(LAUNCHERS_VARIABLE).or_else(|| number(FD_VARIABLE))
}

/// This process's part in PMI.
pub(crate) struct Pmi {
    relay: Relay,
    /// Our end of the pair; `None` once the program has closed its own.
    stream: Option<UnixStream>,
    /// The reported state that cannot be saved.
    reported: Option<Unsavable>,
}

impl Pmi {
    /// Puts itself between the program and the launcher. `None`: the launcher has given no socket.
    pub(crate) fn interpose() -> Result<Option<Pmi>, AgentError> {
        let Some(place) = number(FD_VARIABLE) else { return Ok(None) };
        let launchers = number(LAUNCHERS_VARIABLE);
        // SAFETY: borrowed for one system call, which fails if nothing is open there.
        let socket = unsafe { BorrowedFd::borrow_raw(launchers.unwrap_or(place)) };
        if fcntl(socket, FcntlArg::F_GETFD).is_err() {
            return Ok(None);
        }
        if launchers.is_none() {
            // Programs that this one executes inherit it.
            let moved = fcntl(socket, FcntlArg::F_DUPFD(3)).map_err(failed)?;
            // SAFETY: called by the library's constructor, before the program runs. Threads that other libraries may have started by
            // then have no business with a variable of ours, and the C library's own lock orders the rest.
            unsafe { std::env::set_var(LAUNCHERS_VARIABLE, moved.to_string()) };
        }
        let (ours, theirs) = UnixStream::pair().map_err(AgentError::Line)?;
        // SAFETY: the number is one that the launcher gave this process for PMI, or a process before it its
        // end of such a pair; the file that was open there is open under another number, or of no use any
        // more. Its owner, the program's library, has not begun.
        if unsafe { libc::dup2(theirs.as_raw_fd(), place) } < 0 {
            return Err(failed(Errno::last()));
        }
        LAST_WORDS.process.store(getpid().as_raw(), Ordering::Release);
        LAST_WORDS.socket.store(ours.as_raw_fd(), Ordering::Release);
        // SAFETY: the function is one of this library, which is never unloaded, and touches nothing that other handlers tear down.
        if unsafe { libc::atexit(say_last_words) } != 0 {
            return Err(failed(Errno::ENOMEM));
        }
        Ok(Some(Pmi { relay: Relay::new(Sabotage::none()), stream: Some(ours), reported: None }))
    }

    /// The socket and the events to poll for; `None`: nothing to wait for.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, self.relay.has_room());
        flags.set(PollFlags::POLLOUT, !self.relay.to_program().is_empty());
        let stream = self.stream.as_ref().filter(|_| !flags.is_empty())?;
        Some(PollFd::new(stream.as_fd(), flags))
    }

    /// Passes permitted answers to the program, and reads its requests. Send all messages of [`Pmi::poll_message`]
    /// while the returned guard lives.
    pub(crate) fn attend(&mut self, epoch: Epoch) -> Carrying {
        LAST_WORDS.carrying.store(true, Ordering::Release);
        let carrying = Carrying(());
        self.carry(epoch);
        carrying
    }

    fn carry(&mut self, epoch: Epoch) {
        self.relay.hand_over(epoch);
        let Some(stream) = &self.stream else { return };
        let socket = stream.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let mut is_open = true;
        while is_open && !self.relay.to_program().is_empty() {
            match send(socket, self.relay.to_program(), flags) {
                Ok(sent) => self.relay.written(sent),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => is_open = false,
            }
        }
        let mut chunk = [0; CHUNK_BYTES];
        while self.relay.has_room() {
            match recv(socket, &mut chunk, flags) {
                Ok(0) => {
                    is_open = false;
                    break;
                }
                Ok(read) => self.relay.feed(&chunk[..read]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    is_open = false;
                    break;
                }
            }
        }
        if !is_open {
            // An end without its other one could not be saved.
            self.relay.close();
            LAST_WORDS.socket.store(-1, Ordering::Release);
            self.stream = None;
        }
    }

    /// The next message to the keeper.
    pub(crate) fn poll_message(&mut self) -> Option<Message> {
        self.relay.poll_message()
    }

    /// As [`Relay::on_answer`].
    pub(crate) fn on_answer(&mut self, epoch: Epoch, answer: Answer) -> Option<Epoch> {
        self.relay.on_answer(epoch, answer)
    }

    /// A request of the program that the launcher has not answered.
    pub(crate) fn wait(&self) -> Option<Wait> {
        let pending = self.relay.state().pending.as_ref()?;
        let (kind, op) = (WaitKind::Launcher, pending.number);
        Some(Wait { kind, peer: None, op, tag: 0, ignore: 0, bytes: 0, age_ns: 0 })
    }

    /// The process has been restored.
    pub(crate) fn begin_life(&mut self) {
        LAST_WORDS.process.store(getpid().as_raw(), Ordering::Release);
        self.relay.begin_life();
    }

    /// Why the process cannot be saved any more; once for each reason.
    pub(crate) fn poll_unsavable(&mut self) -> Option<&'static str> {
        let why = self.relay.unsavable();
        if why == core::mem::replace(&mut self.reported, why) {
            return None;
        }
        why.map(|why| match why {
            Unsavable::Spawns => "it asks for more processes (MPI_Comm_spawn), and those are in no image",
            Unsavable::PutsTooMuch => "it has put more over PMI than an image has room for",
        })
    }
}

fn failed(error: Errno) -> AgentError {
    AgentError::Line(error.into())
}
