//! The agent: a thread of the program that speaks with the keeper and takes checkpoints.

use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ckpt_glue::control::{Control, ControlKey, ControlReader, CutMode, Message, Registration};
use ckpt_glue::enrolment::Enrolment;
use ckpt_glue::names::Party;
use ckpt_glue::participant::{Input, Output, Participant};
use ckpt_glue::sabotage::Sabotage;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::getpid;
use session::launch::Launch;
use session::limits::ENROL_MAX;
use session::line::Line;
use store::{Directory, GenerationId, JobDirectory};
use transport::Epoch;

use crate::error::AgentError;
use crate::image::{Cut, Images};
use crate::limits::{CHUNK_BYTES, WRITING_SLICE};

/// Starts the agent's first life; returns when the launcher has no use for this process any more.
pub(crate) fn run(stream: &UnixStream, directory: JobDirectory<Directory>) -> Result<(), AgentError> {
    let mut images = Images::new(directory, stream)?;
    loop {
        // Every turn is a life: a restored process goes on inside of the call that took its checkpoint.
        let mut life = LifeOfAgent::begin(stream)?;
        match life.live(stream, &mut images)? {
            End::Restored => {}
            End::LauncherGone => {
                // Nobody can save, recover or end this process any more.
                eprintln!("stillwire: rank {}: the launcher is gone; ending", life.launch.rank);
                let _ = kill(getpid(), Signal::SIGKILL);
            }
        }
    }
}

/// How a life of an agent ends, besides with its process.
enum End {
    /// The process has been restored from an image that was taken in this life.
    Restored,
    LauncherGone,
}

/// An agent in one life of its job.
struct LifeOfAgent {
    launch: Launch,
    line: Line,
    reader: ControlReader,
    /// Until the job runs.
    enrolment: Option<Enrolment>,
    participant: Participant,
    began: Instant,
}

impl LifeOfAgent {
    /// Reads who this process is, and says that it is there.
    fn begin(stream: &UnixStream) -> Result<LifeOfAgent, AgentError> {
        stream.set_read_timeout(Some(ENROL_MAX)).map_err(AgentError::Line)?;
        let launch = Launch::read(&mut &*stream)?;
        let key = ControlKey::new(&launch.key);
        let line = Line::new(stream.try_clone().map_err(AgentError::Line)?, key.clone());
        let registration = Registration {
            rank: launch.rank,
            pid: std::process::id(),
            mode: CutMode::Instant,
            ports: Vec::new(),
        };
        let (enrolment, hello) = Enrolment::new(registration);
        let epoch = launch.restore.map_or(Epoch(0), |generation| generation.epoch);
        let participant = Participant::new(launch.rank, CutMode::Instant, epoch, 0, Sabotage::none());
        let mut life = LifeOfAgent {
            launch,
            line,
            reader: ControlReader::new(key),
            enrolment: Some(enrolment),
            participant,
            began: Instant::now(),
        };
        life.say(hello)?;
        Ok(life)
    }

    fn live(&mut self, stream: &UnixStream, images: &mut Images) -> Result<End, AgentError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            while let Some(control) = self.reader.next()? {
                // R7
                if control.job == self.launch.job && control.life == self.launch.life {
                    self.hear(control.message)?;
                }
            }
            if let Some(done) = images.look(self.launch.rank) {
                self.participant.handle(self.now(), done);
            }
            let now = self.now();
            if self.participant.poll_timeout().is_some_and(|due| due <= now) {
                self.participant.handle_timeout(now);
            }
            if self.perform(images)? {
                return Ok(End::Restored);
            }
            // A keeper that is gone is noticed by the read below.
            let _ = self.line.flush();
            self.wait(stream, images.is_writing());
            match recv(stream.as_raw_fd(), &mut chunk, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Ok(End::LauncherGone),
                Ok(read) => self.reader.feed(&chunk[..read]),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(_) => return Ok(End::LauncherGone),
            }
        }
    }

    fn hear(&mut self, message: Message) -> Result<(), AgentError> {
        let Some(enrolment) = &mut self.enrolment else {
            self.participant.handle(self.now(), Input::Message(message));
            return Ok(());
        };
        if enrolment.handle(message)?.is_some() {
            self.enrolment = None;
            self.say(Message::Running { ranks: 1, counted: 0 })?;
        }
        Ok(())
    }

    /// Carries out what the participant wants. `true`: the process was restored meanwhile, and all that is known here is old.
    fn perform(&mut self, images: &mut Images) -> Result<bool, AgentError> {
        while let Some(output) = self.participant.poll_output() {
            match output {
                Output::TakeCut { epoch } => {
                    let generation = GenerationId { life: self.launch.life, epoch };
                    match images.take(generation, self.launch.rank) {
                        // The keeper knows then that what the program does from here on, its end included, comes after the cut.
                        Cut::Taken => self.say(Message::CutSeen { epoch })?,
                        Cut::Restored => return Ok(true),
                        Cut::Failed(reason) => {
                            let now = self.now();
                            self.participant.handle(now, Input::CaptureFailed { epoch, reason });
                        }
                    }
                }
                // There are no ports whose frames would carry it.
                Output::RaiseEpoch { .. } => {}
                Output::CancelImage { epoch } => images.cancel(epoch),
                // Nothing older is kept here: the launcher collects.
                Output::Committed { .. } => {}
                Output::Send(message) => self.say(message)?,
            }
        }
        Ok(false)
    }

    fn say(&mut self, message: Message) -> Result<(), AgentError> {
        let control = Control {
            job: self.launch.job,
            life: self.launch.life,
            epoch: self.participant.epoch(),
            sender: Party::Rank(self.launch.rank),
            message,
        };
        self.line.send(&control).map_err(AgentError::Line)
    }

    fn now(&self) -> transport::Instant {
        transport::Instant::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sleeps until bytes are there, or something is due or can be sent.
    fn wait(&self, stream: &UnixStream, is_writing: bool) {
        let due = self.participant.poll_timeout().map(|due| due.since(self.now()));
        let due = due.into_iter().chain(is_writing.then_some(WRITING_SLICE)).min();
        // Rounded up: a timer that fires early would only come back here.
        let millis = due.map(|due: Duration| u16::try_from(due.as_millis() + 1).unwrap_or(u16::MAX));
        let timeout = millis.map_or(PollTimeout::NONE, PollTimeout::from);
        let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN | self.line.wants())];
        // An interrupted sleep is a short one.
        let _ = poll(&mut ready, timeout);
    }
}
