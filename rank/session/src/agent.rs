//! The rank's part in checkpoints, shared by the program's thread and the one that listens to the keeper.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ckpt_glue::control::{Control, CutMode, Message, NicText, NoImageReason};
use ckpt_glue::names::Party;
use ckpt_glue::participant::{Input, Output, Participant};
use ckpt_glue::sabotage::Sabotage;
use client::limits::LINE_WAIT_MAX;
use client::line::Line;
use client::nics::{Moved, Nics};
use client::waits::{OpenOp, Purpose};
use endpoint::Endpoint;
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use transport::{Epoch, JobId, Life, PortId, Rank};

use crate::calls::CurrentCall;
use crate::capture::{FinishedMemory, Memory};
use crate::delay::ProgramDelay;
use crate::error::SessionError;
use crate::limits::DRAIN_MAX;
use crate::requests::NOBODY;
use crate::writer::ImageQueue;

/// The sender: fields of every control message of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) job: JobId,
    pub(crate) life: Life,
    pub(crate) rank: Rank,
}

impl Identity {
    pub(crate) fn control(&self, epoch: Epoch, message: Message) -> Control {
        Control { job: self.job, life: self.life, epoch, sender: Party::Rank(self.rank), message }
    }
}

/// How the wait of a finished rank ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    NotYet,
    /// All ranks have finished.
    Released,
    /// The keeper is gone.
    Lost,
}

struct Part {
    participant: Participant,
    line: Line,
    end: End,
    /// Session section of a program that has finished.
    finished: Option<Vec<u8>>,
    /// When the program came to its newest point.
    entered: Instant,
    /// Of the port's section in the newest image.
    port_bytes: usize,
    delay: ProgramDelay,
}

pub(crate) struct Agent {
    identity: Identity,
    endpoint: Endpoint,
    images: ImageQueue,
    started: Instant,
    part: Mutex<Part>,
    call: CurrentCall,
    /// Taken before the part and the gate.
    nics: Mutex<Nics>,
    /// Set by the thread that finds a rail dead.
    rail_died: Arc<AtomicBool>,
    /// Wakes the thread that listens to the keeper: something waits to be sent.
    wake: Arc<EventFd>,
}

impl Agent {
    pub(crate) fn new(
        identity: Identity,
        endpoint: Endpoint,
        images: ImageQueue,
        line: Line,
        epoch: Epoch,
        points: u64,
        nics: Nics,
    ) -> std::io::Result<Agent> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let rail_died = Arc::new(AtomicBool::new(false));
        let (died, woken) = (Arc::clone(&rail_died), Arc::clone(&wake));
        endpoint.on_rail_news(move || {
            died.store(true, Ordering::Relaxed);
            // Full means that it is readable already.
            let _ = woken.write(1);
        });
        let participant = Participant::new(identity.rank, CutMode::Counted, epoch, points, Sabotage::none());
        let part = Part {
            participant,
            line,
            end: End::NotYet,
            finished: None,
            entered: Instant::now(),
            port_bytes: 0,
            delay: ProgramDelay::default(),
        };
        let (part, nics) = (Mutex::new(part), Mutex::new(nics));
        let call = CurrentCall::default();
        Ok(Agent { identity, endpoint, images, started: Instant::now(), part, call, nics, rail_died, wake })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Gives the participant an input and carries out its outputs, before anybody else can. `memory`: the
    /// program's, if its thread stands at a point.
    pub(crate) fn handle(&self, input: Input, memory: Option<&mut dyn Memory>) {
        let mut part = self.lock();
        part.participant.handle(self.now(), input);
        self.perform(&mut part, memory);
    }

    /// The program is at a point. True if it must stand there: then [`Agent::stand`] until it need not.
    pub(crate) fn point(&self, count: u64, entered: Instant, memory: &mut dyn Memory) -> bool {
        let mut part = self.lock();
        part.entered = entered;
        if part.participant.cuts_at(count) {
            self.look(&mut part);
        }
        part.participant.handle(self.now(), Input::PointReached { count });
        self.perform(&mut part, Some(memory));
        part.participant.is_standing()
    }

    /// Looks again whether the rank may cut. True if the program must stand on.
    pub(crate) fn stand(&self, memory: Option<&mut dyn Memory>) -> bool {
        let mut part = self.lock();
        self.look(&mut part);
        self.perform(&mut part, memory);
        part.participant.is_standing()
    }

    /// Informs the participant of peers that have not received messages sent without a request.
    fn look(&self, part: &mut Part) {
        let peer = self.endpoint.with_port(|port| port.unreceived(|context| context == NOBODY));
        part.participant.handle(self.now(), Input::Unreceived { by: peer.map(PortId::rank) });
    }

    /// Handles due timers; returns the time until the next, and the events to wait for besides messages of the keeper.
    pub(crate) fn tick(&self) -> (Option<Duration>, PollFlags) {
        let _ = self.wake.read();
        let rails = self.attend_rails();
        let mut part = self.lock();
        // The reading thread notices a keeper that is gone.
        let _ = part.line.flush();
        if let Some(bytes) = part.line.overdue(Instant::now()) {
            eprintln!(
                "stillwire: rank {}: the launcher has read nothing for {} s, {bytes} bytes wait for it: is it stopped? The program goes \
                 on, but is not saved",
                self.identity.rank,
                LINE_WAIT_MAX.as_secs()
            );
        }
        let now = self.now();
        if part.participant.poll_timeout().is_some_and(|due| due <= now) {
            part.participant.handle_timeout(now);
            self.perform(&mut part, None);
        }
        let due = part.participant.poll_timeout().map(|due| due.since(self.now()));
        let read = part.line.due().map(|due| due.saturating_duration_since(Instant::now()));
        (due.into_iter().chain(read).chain(rails).min(), part.line.wants())
    }

    /// The call in which the program stands.
    pub(crate) fn call(&self) -> &CurrentCall {
        &self.call
    }

    /// Answers what this rank waits for.
    pub(crate) fn report_waits(&self, query: u32) {
        let purpose = |op: &OpenOp| match op {
            // It was sent without a request.
            OpenOp::Send(send) if send.context == NOBODY => Purpose::Service,
            OpenOp::Send(_) | OpenOp::Receive(_) => Purpose::Message,
        };
        let endpoints = core::slice::from_ref(&self.endpoint);
        let report = client::waits::report(self.identity.rank, endpoints, self.call.known(), purpose);
        self.send(Message::WaitReports { query, reports: vec![report] });
    }

    /// Has the port go on over another NIC, and answers.
    pub(crate) fn hand_over(&self, number: u64, nic: &NicText) {
        let refused = match nic.as_str().parse() {
            Ok(choice) => {
                let moved = self.nics().hand_over(core::slice::from_ref(&self.endpoint), choice);
                self.report_nic(&moved);
                moved.refused.unwrap_or_default()
            }
            Err(unknown) => unknown.to_string(),
        };
        self.send(Message::HandedOver { number, refused: NicText::new(&refused) });
    }

    /// Takes part in a change of all ranks to another NIC (R29).
    pub(crate) fn change_rails(&self, message: Message) {
        let mut nics = self.nics();
        let answer = match message {
            Message::OpenRail { number, nic, anew } => {
                Some(nics.open_rail(core::slice::from_ref(&self.endpoint), number, &nic, anew))
            }
            Message::MeetRails { number, ports, last } => nics.meet_rails(number, &ports, last),
            Message::ChangeRails { number, decided } => {
                // All links are there from the beginning: no peer is looked up later.
                let _ = nics.change_rails(number, decided);
                None
            }
            _ => None,
        };
        if let Some(answer) = answer {
            self.send(answer);
        }
    }

    /// Revives a dead rail, looks at a change that is under way, and returns when to look again.
    fn attend_rails(&self) -> Option<Duration> {
        let mut nics = self.nics();
        if self.rail_died.swap(false, Ordering::Relaxed) {
            nics.note_news(Instant::now());
        }
        if let Some((moved, answer)) = nics.look(core::slice::from_ref(&self.endpoint)) {
            self.report_nic(&moved);
            self.send(answer);
        }
        if let Some(moved) = nics.revive(core::slice::from_ref(&self.endpoint), Instant::now()) {
            moved.complain(self.identity.rank);
            self.report_nic(&moved);
            if moved.lost {
                self.send(Message::RailLost { words: NicText::new(&nics.request().choice) });
            }
        }
        nics.due().map(|due| due.saturating_duration_since(Instant::now()))
    }

    fn report_nic(&self, moved: &Moved) {
        if let Some(taken) = &moved.selection {
            self.send(Message::Nic { words: NicText::new(taken) });
        }
    }

    fn nics(&self) -> MutexGuard<'_, Nics> {
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes readable when [`Agent::tick`] has something to do.
    pub(crate) fn wake_fd(&self) -> &EventFd {
        &self.wake
    }

    /// Sends a message in the rank's current epoch.
    pub(crate) fn send(&self, message: Message) {
        self.say(&mut self.lock(), message);
    }

    /// From now on the rank can be saved at any instant, with `state` as its session section.
    pub(crate) fn finish(&self, state: Vec<u8>) {
        let mut part = self.lock();
        part.finished = Some(state);
        self.look(&mut part);
        part.participant.handle(self.now(), Input::Finalizing);
        self.perform(&mut part, None);
    }

    /// R37: no operation waits for that rank any more.
    pub(crate) fn lose_rank(&self, rank: Rank) {
        self.endpoint.lose_rank(rank);
    }

    /// The keeper has let this rank go.
    pub(crate) fn release(&self) {
        self.lock().end = End::Released;
    }

    /// The keeper is gone. Returns whether the rank had been let go before.
    pub(crate) fn lose(&self) -> bool {
        let mut part = self.lock();
        if part.end == End::NotYet {
            part.end = End::Lost;
        }
        part.end == End::Released
    }

    /// Whether the keeper has let this rank go.
    pub(crate) fn released(&self) -> Result<bool, SessionError> {
        match self.lock().end {
            End::NotYet => Ok(false),
            End::Released => Ok(true),
            End::Lost => Err(SessionError::Ended),
        }
    }

    fn say(&self, part: &mut Part, message: Message) {
        let control = self.identity.control(part.participant.epoch(), message);
        match part.line.send(&control) {
            Ok(()) if part.line.wants().is_empty() => {}
            // Full means that it is readable already.
            Ok(()) => drop(self.wake.write(1)),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                eprintln!("stillwire: rank {}: {error}", self.identity.rank);
            }
            // A keeper that is gone is noticed by the thread that listens to it.
            Err(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Part> {
        // A panic has ended the program's thread; the participant itself is consistent after every call.
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> transport::Instant {
        transport::Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn perform(&self, part: &mut Part, mut memory: Option<&mut dyn Memory>) {
        while let Some(output) = part.participant.poll_output() {
            match output {
                Output::TakeCut { epoch } => {
                    let entered = if memory.is_some() { part.entered } else { Instant::now() };
                    let stands = memory.is_some();
                    if stands {
                        part.delay.begin(entered);
                    }
                    let image = match (&mut memory, &part.finished) {
                        (Some(memory), _) => {
                            Some(self.capture(entered, epoch, &mut **memory, &mut part.port_bytes))
                        }
                        (None, Some(state)) => {
                            let mut memory = FinishedMemory { state: state.clone() };
                            Some(self.capture(entered, epoch, &mut memory, &mut part.port_bytes))
                        }
                        (None, None) => None,
                    };
                    if stands {
                        part.delay.stood();
                    }
                    let queued = image.is_some_and(|mut image| {
                        image.statistics.delay_ns = part.delay.delay_ns();
                        self.images.push(image)
                    });
                    if !queued {
                        // A counted rank cuts at its points only, and the writer lives as long as the process; were
                        // either untrue, the epoch must rise all the same (rule 2).
                        self.raise(epoch);
                        let reason = NoImageReason::Unsavable { what: 0 };
                        part.participant.handle(self.now(), Input::CaptureFailed { epoch, reason });
                    }
                }
                Output::RaiseEpoch { epoch } => self.raise(epoch),
                Output::CancelImage { epoch } => {
                    part.delay.give_up();
                    self.images.cancel(epoch);
                }
                // Nothing older is kept here: the launcher collects.
                Output::Committed { .. } => part.delay.end(),
                Output::Send(message) => self.say(part, message),
            }
        }
    }

    fn capture(
        &self,
        entered: Instant,
        epoch: Epoch,
        memory: &mut dyn Memory,
        port_bytes: &mut usize,
    ) -> crate::writer::Image {
        match crate::capture::capture(&self.endpoint, entered, epoch, memory, port_bytes) {
            Ok(image) => image,
            Err(error) => self.die(&error),
        }
    }

    fn raise(&self, epoch: Epoch) {
        match self.endpoint.freeze(DRAIN_MAX) {
            Ok(mut frozen) => {
                if frozen.port().epoch() < epoch {
                    frozen.port_mut().set_epoch(epoch);
                }
                frozen.thaw();
            }
            Err(error) => self.die(&error),
        }
    }

    /// A rank that cannot raise its epoch could not read its peers' frames any more (rule 2): it ends, and the job
    /// rolls back.
    fn die(&self, error: &dyn core::fmt::Display) -> ! {
        eprintln!("stillwire: rank {} cannot cut and ends: {error}", self.identity.rank);
        std::process::abort();
    }
}
