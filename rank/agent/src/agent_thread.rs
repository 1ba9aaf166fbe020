//! The agent: a thread of the program that speaks with the keeper and takes checkpoints.

use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ckpt_glue::control::{ControlKey, ControlReader, CutMode, Message, NicText, PortEntry, Registration};
use ckpt_glue::enrolment::Enrolment;
use ckpt_glue::participant::{Input, Output, Participant};
use ckpt_glue::sabotage::Sabotage;
use client::launch::Launch;
use client::limits::ENROL_MAX;
use client::line::Line;
use client::waits::Known;
use endpoint::Endpoint;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::getpid;
use store::GenerationId;

use crate::error::AgentError;
use crate::image::{Cut, ImageDirectory, Images};
use crate::limits::CHUNK_BYTES;
use crate::pmi::{Pmi, UNSAVABLE_PMI};
use crate::ports::{self, FrozenPorts};
use crate::spaces;
use crate::startup::EXIT_NOT_STARTED;
use crate::this_rank::{self, State, ThisRank};

/// Starts the agent's first life; returns when the launcher has no use for this process any more.
pub(crate) fn run(
    stream: &UnixStream,
    directory: ImageDirectory,
    mut pmi: Option<&mut Pmi>,
) -> Result<(), AgentError> {
    let mut images = Images::new(directory, stream)?;
    let (launch, line) = read_launch(stream)?;
    let rank = ThisRank::take_slot(launch, line);
    loop {
        // Every turn is a life: a restored process goes on inside of the call that took its checkpoint.
        let mut life = LifeOfAgent::begin(rank)?;
        match life.live(stream, &mut images, pmi.as_deref_mut())? {
            End::Restored => {
                if let Some(pmi) = &mut pmi {
                    pmi.begin_life();
                }
            }
            End::LauncherGone => {
                // This process cannot be saved, recovered or ended any more.
                eprintln!("stillwire: rank {}: the launcher is gone; ending", rank.rank());
                let _ = kill(getpid(), Signal::SIGKILL);
            }
        }
    }
}

/// Reads the launch of this process, in a life that begins.
fn read_launch(stream: &UnixStream) -> Result<(Launch, Line), AgentError> {
    stream.set_read_timeout(Some(ENROL_MAX)).map_err(AgentError::Line)?;
    let launch = Launch::read(&mut &*stream)?;
    let line = Line::new(stream.try_clone().map_err(AgentError::Line)?, ControlKey::new(&launch.key));
    Ok((launch, line))
}

/// In a restored process: begins a new life, and has its ports, which still stand, go on in that.
fn revive(
    stream: &UnixStream,
    images: &mut Images,
    state: &mut State,
    frozen_ports: FrozenPorts<'_>,
) -> Result<(), AgentError> {
    let (launch, line) = read_launch(stream)?;
    images.look_in(&launch);
    if let Some(generation) = launch.restore {
        frozen_ports.compare(&images.ports_of(generation, launch.rank)?)?;
    }
    let nic = frozen_ports.restart(&launch)?;
    state.enter_life(launch, line);
    if let Some(nic) = nic {
        state.say(Message::Nic { words: NicText::new(&nic) });
    }
    Ok(())
}

/// Ends a restored process whose ports cannot continue: system resources of the saved process must not
/// survive it.
fn cannot_return(error: &AgentError) -> ! {
    eprintln!("stillwire: {error}");
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(EXIT_NOT_STARTED) }
}

/// How a life of an agent ends, besides with its process.
enum End {
    /// The process has been restored from an image that was taken in this life.
    Restored,
    LauncherGone,
}

/// An agent in one life of its job.
struct LifeOfAgent {
    rank: &'static ThisRank,
    launch: Launch,
    reader: ControlReader,
    /// Until the job runs.
    enrolment: Option<Enrolment>,
    participant: Participant,
    began: Instant,
}

impl LifeOfAgent {
    /// Registers this process with the keeper, with the addresses of its ports.
    fn begin(rank: &'static ThisRank) -> Result<LifeOfAgent, AgentError> {
        let mut state = rank.lock();
        let launch = state.launch.clone();
        let entry = |(port, endpoint): (_, &Endpoint)| PortEntry { port, rails: endpoint.addresses() };
        let registration = Registration {
            rank: launch.rank,
            pid: std::process::id(),
            mode: CutMode::Instant,
            ports: state.open.iter().map(|(port, endpoint)| entry((*port, endpoint))).collect(),
        };
        let (enrolment, hello) = Enrolment::new(registration);
        state.send(hello).map_err(AgentError::Line)?;
        let participant = Participant::new(launch.rank, CutMode::Instant, state.epoch, 0, Sabotage::none());
        let reader = ControlReader::new(ControlKey::new(&launch.key));
        drop(state);
        let began = Instant::now();
        Ok(LifeOfAgent { rank, launch, reader, enrolment: Some(enrolment), participant, began })
    }

    fn live(
        &mut self,
        stream: &UnixStream,
        images: &mut Images,
        mut pmi: Option<&mut Pmi>,
    ) -> Result<End, AgentError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            while let Some(control) = self.reader.next()? {
                // R7
                if control.job == self.launch.job && control.life == self.launch.life {
                    let waited = self.enrolment.is_some();
                    self.hear(control.message, pmi.as_deref_mut())?;
                    if waited && self.enrolment.is_none() {
                        images.begin_life();
                    }
                }
            }
            if let Some(done) = images.look() {
                if let Some(reason) = images.take_reason() {
                    self.rank.lock().send(Message::Unsaved { reason }).map_err(AgentError::Line)?;
                }
                self.participant.handle(self.now(), done);
            }
            let now = self.now();
            let required = self.rank.required();
            if self.enrolment.is_none() && required > self.participant.epoch() {
                self.participant.handle(now, Input::CutRequired { epoch: required });
            }
            if self.participant.poll_timeout().is_some_and(|due| due <= now) {
                self.participant.handle_timeout(now);
            }
            if self.perform(stream, images)? {
                return Ok(End::Restored);
            }
            if let Some(pmi) = &mut pmi {
                self.attend(pmi)?;
            }
            let rails = self.rank.lock().attend_rails();
            self.wait(stream, images.due(), rails, pmi.as_deref());
            match recv(stream.as_raw_fd(), &mut chunk, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Ok(End::LauncherGone),
                Ok(read) => self.reader.feed(&chunk[..read]),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(_) => return Ok(End::LauncherGone),
            }
        }
    }

    /// Answers what this rank waits for.
    fn report_waits(&self, query: u32, pmi: Option<&Pmi>) -> Result<(), AgentError> {
        let endpoints: Vec<Endpoint> = self.rank.lock().open.values().cloned().collect();
        let known = Known { call: None, calls: 0, beside: pmi.and_then(Pmi::wait) };
        // Not under the lock of the rank: another thread may hold the gate of a port for long.
        let report = client::waits::report(self.launch.rank, &endpoints, known, spaces::purpose);
        let reports = vec![report];
        self.rank.lock().send(Message::WaitReports { query, reports }).map_err(AgentError::Line)
    }

    fn hear(&mut self, message: Message, pmi: Option<&mut Pmi>) -> Result<(), AgentError> {
        if let Message::PmiAnswer { answer } = message {
            let needs = pmi.and_then(|pmi| pmi.on_answer(self.participant.epoch(), answer));
            if let Some(epoch) = needs {
                self.participant.handle(self.now(), Input::CutRequired { epoch });
            }
            return Ok(());
        }
        if let Message::WaitQuery { query, .. } = message {
            return self.report_waits(query, pmi.as_deref());
        }
        if let Message::ClosedAnswer { port, peer, link } = message {
            self.rank.lock().hear_closed(port, peer, link);
            return Ok(());
        }
        if let Message::RankLost { rank, .. } = message {
            self.rank.lock().lose(rank);
            return Ok(());
        }
        if let Message::HandOver { number, nic } = message {
            self.rank.lock().hand_over(number, &nic);
            return Ok(());
        }
        if matches!(
            message,
            Message::OpenRail { .. } | Message::MeetRails { .. } | Message::ChangeRails { .. }
        ) {
            self.rank.lock().change_rails(message);
            return Ok(());
        }
        let Some(enrolment) = &mut self.enrolment else {
            self.participant.handle(self.now(), Input::Message(message));
            return Ok(());
        };
        if let Some(started) = enrolment.handle(message)? {
            self.enrolment = None;
            let mut state = self.rank.lock();
            state.send(Message::Running { ranks: 1, counted: 0 }).map_err(AgentError::Line)?;
            state.begin_life(started.addresses);
            for (peer, error) in state.connect_all() {
                eprintln!("stillwire: rank {}: port {peer} cannot be reached: {error}", self.launch.rank);
            }
        }
        Ok(())
    }

    /// Carries PMI to and fro, when nothing is left to do that belongs before a cut.
    fn attend(&mut self, pmi: &mut Pmi) -> Result<(), AgentError> {
        let _carrying = pmi.attend(self.participant.epoch());
        if let Some(why) = pmi.poll_unsavable() {
            eprintln!("stillwire: rank {}: from now on there are no images: {why}", self.launch.rank);
            self.participant.handle(self.now(), Input::Unsavable { what: Some(UNSAVABLE_PMI) });
        }
        let mut state = self.rank.lock();
        // Messages without room on the line wait where they are.
        while state.line.wants().is_empty()
            && let Some(message) = pmi.poll_message()
        {
            state.send(message).map_err(AgentError::Line)?;
        }
        Ok(())
    }

    /// Carries out the participant's requests. `true`: the process was restored meanwhile, and all that is
    /// known here is old.
    fn perform(&mut self, stream: &UnixStream, images: &mut Images) -> Result<bool, AgentError> {
        while let Some(output) = self.participant.poll_output() {
            match output {
                Output::TakeCut { epoch } => {
                    let mut state = self.rank.lock();
                    let endpoints: Vec<Endpoint> = state.open.values().cloned().collect();
                    let generation = GenerationId { life: self.launch.life, epoch };
                    state.epoch = epoch;
                    let failed = match images.take(generation, &self.launch, &endpoints) {
                        // The keeper knows then that the program's later actions, its end included, come after the cut.
                        Cut::Taken => {
                            state.send(Message::CutSeen { epoch }).map_err(AgentError::Line)?;
                            None
                        }
                        Cut::Restored(frozen_ports) => {
                            if let Err(error) = revive(stream, images, &mut state, frozen_ports) {
                                cannot_return(&error);
                            }
                            return Ok(true);
                        }
                        Cut::Failed(reason) => {
                            if let Some(reason) = images.take_reason() {
                                state.send(Message::Unsaved { reason }).map_err(AgentError::Line)?;
                            }
                            ports::raise(&endpoints, epoch)?;
                            Some(reason)
                        }
                    };
                    drop(state);
                    if let Some(reason) = failed {
                        let now = self.now();
                        self.participant.handle(now, Input::CaptureFailed { epoch, reason });
                    }
                }
                Output::RaiseEpoch { epoch } => {
                    let mut state = self.rank.lock();
                    state.epoch = epoch;
                    let endpoints: Vec<Endpoint> = state.open.values().cloned().collect();
                    ports::raise(&endpoints, epoch)?;
                }
                Output::CancelImage { epoch } => images.cancel(epoch),
                // Nothing older is kept here: the launcher collects.
                Output::Committed { .. } => images.committed(),
                Output::Send(message) => self.rank.lock().send(message).map_err(AgentError::Line)?,
            }
        }
        Ok(false)
    }

    fn now(&self) -> transport::Instant {
        transport::Instant::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sleeps until bytes are there, or something is due or can be sent.
    fn wait(&self, stream: &UnixStream, image: Option<Instant>, rails: Option<Instant>, pmi: Option<&Pmi>) {
        let due = self.participant.poll_timeout().map(|due| due.since(self.now()));
        let now = Instant::now();
        let others = [image, rails].into_iter().flatten().map(|due| due.saturating_duration_since(now));
        let due = due.into_iter().chain(others).min();
        // Rounded up: a timer that fires early would only come back here.
        let millis = due.map(|due: Duration| u16::try_from(due.as_millis() + 1).unwrap_or(u16::MAX));
        let timeout = millis.map_or(PollTimeout::NONE, PollTimeout::from);
        let wants = {
            let mut state = self.rank.lock();
            // A keeper that is gone is noticed by the read that follows.
            let _ = state.line.flush();
            state.line.wants()
        };
        let mut ready = vec![PollFd::new(stream.as_fd(), PollFlags::POLLIN | wants)];
        ready.extend(pmi.and_then(Pmi::poll_fd));
        ready.extend(this_rank::wake_fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        // An interrupted sleep is a short one.
        let _ = poll(&mut ready, timeout);
        this_rank::hush();
    }
}
