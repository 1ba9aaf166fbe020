//! The launcher's end of a component's process.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ckpt_glue::recovery::Fault;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::wire::{self, Answer, Opening, Question};
use super::{ComponentFailure, ComponentKind};
use crate::limits::{
    COMPONENT_ANSWER_MAX, COMPONENT_END_MAX, COMPONENT_LOOK_EVERY, COMPONENT_QUESTIONS_MAX,
    COMPONENT_START_MAX, READ_BYTES,
};
use crate::secrets::KEY_VARIABLE;
use crate::spawn::process::end_with_launcher;

/// What an answer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The component begins.
    Open,
    /// Nothing: it has seen a report.
    Report,
    /// It may suspect a node.
    Poll,
    /// The job waits for the model of this fault.
    Model(u64, Fault),
    /// The job waits for the reaction to this fault.
    Reaction(u64, Fault),
}

impl Purpose {
    /// The question of the job that waits for it.
    pub(crate) fn number(self) -> Option<u64> {
        match self {
            Purpose::Model(number, _) | Purpose::Reaction(number, _) => Some(number),
            Purpose::Open | Purpose::Report | Purpose::Poll => None,
        }
    }
}

/// A question that is not answered.
#[derive(Debug)]
struct Open {
    purpose: Purpose,
    asked: Instant,
}

/// A component in its process. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct ComponentProcess {
    child: Child,
    socket: UnixStream,
    unsent: Vec<u8>,
    unread: Vec<u8>,
    open: VecDeque<Open>,
    /// The last answer came then.
    answered: Instant,
    /// It has not failed: it may end by itself when its socket is closed.
    is_well: bool,
}

impl ComponentProcess {
    /// Starts the process and asks the component to begin.
    pub(crate) fn start(opening: Opening, now: Instant) -> Result<ComponentProcess, ComponentFailure> {
        let (socket, child) = start_process().map_err(ComponentFailure::NotStarted)?;
        let mut process = ComponentProcess {
            child,
            socket,
            unsent: Vec::new(),
            unread: Vec::new(),
            open: VecDeque::new(),
            answered: now,
            is_well: true,
        };
        process.ask(&Question::Open(opening), Purpose::Open, now)?;
        Ok(process)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether bytes wait for room.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether a question with this purpose is open.
    pub(crate) fn is_asked(&self, purpose: Purpose) -> bool {
        self.open.iter().any(|open| open.purpose == purpose)
    }

    /// The job's questions that are open.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().filter_map(|open| open.purpose.number())
    }

    /// Asks. News for which nobody waits are left out if the component is slow.
    pub(crate) fn ask(
        &mut self,
        question: &Question,
        purpose: Purpose,
        now: Instant,
    ) -> Result<(), ComponentFailure> {
        if purpose == Purpose::Report && self.open.len() >= COMPONENT_QUESTIONS_MAX {
            return Ok(());
        }
        if self.open.is_empty() {
            self.answered = now;
        }
        self.open.push_back(Open { purpose, asked: now });
        self.unsent.extend(wire::emit(question).map_err(|_| ComponentFailure::Lost)?);
        self.flush()
    }

    /// Writes as much as there is room for.
    pub(crate) fn flush(&mut self) -> Result<(), ComponentFailure> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(self.end()),
            }
        }
        Ok(())
    }

    /// The next answer that has come.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<(Purpose, Answer)>, ComponentFailure> {
        let wrong = |words: &str| ComponentFailure::Wrong(words.to_owned());
        loop {
            let taken = wire::take_answer(&mut self.unread)
                .map_err(|_| wrong("its process has sent bytes that are no answer; its memory is damaged"))?;
            if let Some(answer) = taken {
                let open = self.open.pop_front();
                let open = open.ok_or_else(|| wrong("its process has answered without a question"))?;
                self.answered = now;
                return match answer {
                    Answer::Refused(why) => Err(ComponentFailure::Refused(why)),
                    answer => Ok(Some((open.purpose, answer))),
                };
            }
            let mut bytes = [0; READ_BYTES];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(self.end()),
                Ok(read) => self.unread.extend(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(self.end()),
            }
        }
    }

    /// When the component is late, and with which time. A question that the job waits for is not to wait behind others.
    fn deadline(&self) -> Option<(Instant, Duration)> {
        let first = self.open.front()?;
        let allowed = match first.purpose {
            Purpose::Open => COMPONENT_START_MAX,
            _ => COMPONENT_ANSWER_MAX,
        };
        let first = (first.asked.max(self.answered) + allowed, allowed);
        let awaited = self.open.iter().filter(|open| open.purpose.number().is_some());
        let awaited = awaited.map(|open| (open.asked + COMPONENT_ANSWER_MAX, COMPONENT_ANSWER_MAX));
        awaited.chain([first]).min()
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.deadline().map(|(due, _)| due)
    }

    /// Whether an answer is late. Those that have come are to be taken before.
    pub(crate) fn late(&self, now: Instant) -> Option<ComponentFailure> {
        self.deadline().filter(|(due, _)| *due <= now).map(|(_, allowed)| ComponentFailure::Late(allowed))
    }

    /// Why its process has closed its socket.
    fn end(&mut self) -> ComponentFailure {
        match self.wait(COMPONENT_END_MAX) {
            Some(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => ComponentFailure::Killed(signal_words(signal)),
                (_, Some(code)) => ComponentFailure::Exited(code),
                _ => ComponentFailure::Lost,
            },
            None => ComponentFailure::Lost,
        }
    }

    fn wait(&mut self, longest: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + longest;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(COMPONENT_LOOK_EVERY),
                _ => return None,
            }
        }
    }

    /// It has failed, and gets no time to end.
    pub(crate) fn give_up(mut self) {
        self.is_well = false;
    }
}

impl Drop for ComponentProcess {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if !self.is_well || self.wait(COMPONENT_END_MAX).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn start_process() -> io::Result<(UnixStream, Child)> {
    let (ours, its) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("__component").env_remove(KEY_VARIABLE);
    command.stdin(Stdio::from(OwnedFd::from(its))).stdout(Stdio::null());
    // Ctrl-C is for the launcher.
    command.process_group(0);
    end_with_launcher(&mut command, Signal::SIGKILL);
    Ok((ours, command.spawn()?))
}

fn signal_words(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => format!("signal {number} ({signal})"),
        Err(_) => format!("signal {number}"),
    }
}

/// A component that has begun, as its library describes itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Milliseconds between two polls of a detector; 0: it is not polled.
    pub period_ms: u32,
}

/// Loads a component in a process of its own, as a job does, and ends it.
///
/// # Errors
/// Why a job would not take it.
pub fn check(kind: ComponentKind, library: &str, argument: &str) -> Result<Description, ComponentFailure> {
    let opening = Opening {
        kind,
        library: library.to_owned(),
        argument: argument.to_owned(),
        job: String::new(),
        ranks: 0,
        nodes: 0,
    };
    let mut process = ComponentProcess::start(opening, Instant::now())?;
    loop {
        let now = Instant::now();
        let answer = process.next(now);
        if answer.is_err() {
            process.is_well = false;
        }
        match answer? {
            Some((_, Answer::Opened { name, period_ms })) => return Ok(Description { name, period_ms }),
            Some(_) => return Err(ComponentFailure::Wrong("its answer is none to the question".to_owned())),
            None => {}
        }
        if let Some(late) = process.late(now) {
            process.is_well = false;
            return Err(late);
        }
        let left = process.due().map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        // A signal, or a failure of the call, is followed by another look.
        let _ = poll(&mut [PollFd::new(process.fd(), PollFlags::POLLIN)], timeout);
    }
}
