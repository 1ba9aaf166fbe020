//! Sending and receiving.

use ckpt_glue::control::{FaultReport, Message as Control};
use ckpt_glue::participant::Input;
use endpoint::{Completion, ReceiveBuffer, SendBuffer};
use transport::matching::{Pattern, Space};
use transport::{Event, LinkIndex, OpId, Outgoing, PortId, Rank, Receive, SendError, Silence};

use crate::calls::{NotedCall, Waiting as WaitingCall};
use crate::capture::note;
use crate::error::SessionError;
use crate::limits::WAIT_SLICE;
use crate::message::{From, Message, Outcome, Request, Tags, Waiting};
use crate::requests::NOBODY;
use crate::session::Session;

/// Messages of the program.
pub(crate) const PROGRAM: Space = Space(1);

/// Messages of collective operations, which no receive of the program can take.
pub(crate) const COLLECTIVE: Space = Space(2);

impl Session {
    /// Hands a message over and returns without waiting for its receiver; waits only while more is on its way to that rank
    /// than its link may hold. It arrives exactly once. Receives take messages of one sender in the order of sending; requests for
    /// several may still be complete in another order.
    ///
    /// Messages that the receiver takes only after the next point must be sent with [`Session::isend`]: see
    /// [`Session::point`].
    ///
    /// # Errors
    /// [`SessionError::NoSuchRank`], [`SessionError::RankLost`].
    pub fn send(&mut self, to: u32, tag: u64, bytes: Vec<u8>) -> Result<(), SessionError> {
        self.send_in(PROGRAM, to, tag, bytes, NOBODY)
    }

    /// Begins to send a message. The request ends when the peer's port has received it. It may stay open over points.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRank`], [`SessionError::TooManyRequests`], [`SessionError::RankLost`].
    pub fn isend(&mut self, to: u32, tag: u64, bytes: Vec<u8>) -> Result<Request, SessionError> {
        self.peers.link(to)?;
        let request = self.state.begin(false).ok_or(SessionError::TooManyRequests)?;
        match self.send_in(PROGRAM, to, tag, bytes, request.0) {
            Ok(()) => Ok(request),
            Err(error) => {
                self.state.forget(request);
                Err(error)
            }
        }
    }

    /// Waits for a message and returns it, however long it is.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRank`], [`SessionError::RankLost`].
    pub fn recv(&mut self, from: impl Into<From>, tags: impl Into<Tags>) -> Result<Message, SessionError> {
        self.recv_in(PROGRAM, from.into(), tags.into())
    }

    /// Begins to receive a message of at most `bytes_max` bytes; a longer one is cut off there. The data
    /// arrives while the program computes.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRank`], [`SessionError::TooManyRequests`], [`SessionError::Receive`].
    pub fn irecv(
        &mut self,
        from: impl Into<From>,
        tags: impl Into<Tags>,
        bytes_max: usize,
    ) -> Result<Request, SessionError> {
        let pattern = self.pattern(PROGRAM, from.into(), tags.into())?;
        self.post(&pattern, bytes_max)
    }

    /// The next message that a receive with these arguments would get, if it has arrived.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRank`].
    pub fn probe(
        &mut self,
        from: impl Into<From>,
        tags: impl Into<Tags>,
    ) -> Result<Option<Waiting>, SessionError> {
        let pattern = self.pattern(PROGRAM, from.into(), tags.into())?;
        self.pump()?;
        Ok(self.endpoint.peek(&pattern).map(|envelope| Waiting {
            source: self.peers.rank(envelope.source).unwrap_or(u32::MAX),
            tag: envelope.tag,
            bytes: envelope.bytes,
        }))
    }

    /// The outcome of a request, if it is there. The request then ends.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRequest`].
    pub fn test(&mut self, request: Request) -> Result<Option<Outcome>, SessionError> {
        self.expect_open(request)?;
        self.pump()?;
        Ok(self.state.take(request))
    }

    /// Waits for the outcome of a request. The request then ends.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRequest`].
    pub fn wait(&mut self, request: Request) -> Result<Outcome, SessionError> {
        self.expect_open(request)?;
        let mut noted = None;
        loop {
            self.pump()?;
            if let Some(outcome) = self.state.take(request) {
                return Ok(outcome);
            }
            if !self.endpoint.wait(WAIT_SLICE) {
                noted.get_or_insert_with(|| self.note_call(WaitingCall::Request(request.0)));
            }
        }
    }

    pub(crate) fn send_in(
        &mut self,
        space: Space,
        to: u32,
        tag: u64,
        bytes: Vec<u8>,
        context: u64,
    ) -> Result<(), SessionError> {
        let link = self.peers.link(to)?;
        let copied = bytes.len() <= self.endpoint.copied_bytes_max();
        let silent = copied && context == NOBODY;
        let outgoing = Outgoing { space, tag, data: 0, context, silent };
        let mut noted = None;
        loop {
            if copied && self.endpoint.can_send(link, bytes.len()) {
                let sent = self.endpoint.send(link, outgoing, SendBuffer::Copied(&bytes));
                return self.sent(to, sent);
            }
            // Data that does not fit among the copied bytes any more is announced like a long message.
            if self.endpoint.can_send(link, 0) {
                let outgoing = Outgoing { silent: false, ..outgoing };
                let sent = self.endpoint.send(link, outgoing, SendBuffer::Owned(bytes));
                return self.sent(to, sent);
            }
            self.pump()?;
            if !self.endpoint.wait_room(link, WAIT_SLICE) {
                noted.get_or_insert_with(|| self.note_call(WaitingCall::Room(to, tag, bytes.len())));
            }
        }
    }

    /// The outcome of a call that hands a message over. The port may know sooner than the program that a rank is lost.
    fn sent(&mut self, to: u32, sent: Result<OpId, SendError>) -> Result<(), SessionError> {
        let Err(source) = sent else { return Ok(()) };
        self.pump()?;
        match source {
            SendError::Broken { .. } if self.lost.contains(&to) => Err(SessionError::RankLost { rank: to }),
            source => Err(SessionError::Send { rank: to, source }),
        }
    }

    pub(crate) fn recv_in(&mut self, space: Space, from: From, tags: Tags) -> Result<Message, SessionError> {
        let pattern = self.pattern(space, from, tags)?;
        let mut noted = None;
        loop {
            self.pump()?;
            if let Some(envelope) = self.endpoint.peek(&pattern) {
                // The first message of its source and tag is the one that was seen.
                let exact = Pattern { space, source: Some(envelope.source), tag: envelope.tag, ignore: 0 };
                let bytes = usize::try_from(envelope.bytes).unwrap_or(usize::MAX);
                let request = self.post(&exact, bytes)?;
                // One call ends before the next begins.
                drop(noted.take());
                loop {
                    match self.state.take(request) {
                        Some(Outcome::Received(message)) => return Ok(message),
                        // Its sender was lost before all of it had come.
                        Some(Outcome::Failed) if from == From::Any => break,
                        Some(Outcome::Failed) => {
                            let rank = self.peers.rank(envelope.source).unwrap_or(u32::MAX);
                            return Err(SessionError::RankLost { rank });
                        }
                        Some(Outcome::Sent) | None => {}
                    }
                    if !self.endpoint.wait(WAIT_SLICE) {
                        noted.get_or_insert_with(|| self.note_call(WaitingCall::Request(request.0)));
                    }
                    self.pump()?;
                }
            }
            if let From::Rank(rank) = from
                && self.lost.contains(&rank)
            {
                return Err(SessionError::RankLost { rank });
            }
            if !self.endpoint.wait_message(&pattern, WAIT_SLICE) {
                noted.get_or_insert_with(|| self.note_call(WaitingCall::Message(space, from, tags)));
            }
        }
    }

    fn note_call(&self, waiting: WaitingCall) -> NotedCall {
        NotedCall::begin(&self.agent, waiting)
    }

    /// Takes arrived messages; the program sees them when it asks.
    pub(crate) fn pump(&mut self) -> Result<(), SessionError> {
        while let Some(completion) = self.endpoint.poll() {
            match completion {
                Completion::CutRequired { epoch } => self.agent.handle(Input::CutRequired { epoch }, None),
                Completion::Report(Event::PeerLost { link, .. }) => self.lost.extend(self.peers.rank(link)),
                Completion::Report(event) => self.report(&event),
                Completion::RailDead { rail, reason } => {
                    eprintln!("stillwire: rank {}: rail {} is dead: {reason}", self.rank, rail.0);
                }
                done => note(&mut self.state, &self.peers, done),
            }
        }
        Ok(())
    }

    fn report(&self, event: &Event) {
        let report = match event {
            Event::Inconsistent { peer, peer_expected, oldest_held, next, .. } => FaultReport::Inconsistent {
                port: PortId::of_rank(Rank(self.rank), 0),
                peer: *peer,
                oldest: *oldest_held,
                next: *next,
                found: *peer_expected,
            },
            // It has said that it stands still, and for how long.
            Event::PeerSilent { silence: Silence::Frozen, .. } => return,
            Event::PeerBack { peer, .. } => FaultReport::RankHeard { rank: peer.rank(), by: Rank(self.rank) },
            Event::PeerSilent { peer, since, .. } => FaultReport::RankSilent {
                rank: peer.rank(),
                by: Some(Rank(self.rank)),
                silent_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            },
            _ => return,
        };
        self.agent.send(Control::Fault { report });
    }

    fn post(&mut self, pattern: &Pattern, bytes_max: usize) -> Result<Request, SessionError> {
        let request = self.state.begin(true).ok_or(SessionError::TooManyRequests)?;
        let receive = Receive {
            space: pattern.space,
            source: pattern.source,
            tag: pattern.tag,
            ignore: pattern.ignore,
            bytes_max: bytes_max as u64,
            context: request.0,
            multi: None,
        };
        match self.endpoint.post_receive(receive, ReceiveBuffer::Owned(vec![0; bytes_max])) {
            Ok(_) => Ok(request),
            Err(error) => {
                self.state.forget(request);
                Err(error.into())
            }
        }
    }

    fn pattern(&self, space: Space, from: From, tags: Tags) -> Result<Pattern, SessionError> {
        let source: Option<LinkIndex> = match from {
            From::Any => None,
            From::Rank(rank) => Some(self.peers.link(rank)?),
        };
        Ok(Pattern { space, source, tag: tags.tag, ignore: tags.ignore })
    }

    fn expect_open(&self, request: Request) -> Result<(), SessionError> {
        if self.state.knows(request) {
            Ok(())
        } else {
            Err(SessionError::NoSuchRequest { number: request.0 })
        }
    }
}
