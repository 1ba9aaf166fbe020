//! A port: one endpoint of a process, with its links, its operations and its matching.
//!
//! The contract: after any call that takes `now`, call [`Port::poll_event`] until it is empty, then
//! [`Port::poll_transmit`] for every rail until it answers `None`, then sleep until [`Port::poll_timeout`] at
//! most. The answers of the three may change with any other call, and only then.

mod broken_links;
mod cache_warmup;
mod check;
mod cut;
mod deferred_ack;
mod deliver;
mod frozen;
mod load;
mod moves;
mod multi_recv;
pub(crate) mod pull;
mod rails;
mod receive;
mod resync;
mod rx_fast_path;
#[cfg(feature = "sabotage")]
mod sabotage;
mod shutdown;
pub mod state;
mod timeout;
mod transmit;
mod tx_fast_path;
mod waits;

pub use check::{NUMBER_MAX, StateError, StatePart};
pub use frozen::{FrozenPort, Reach, Restart};
pub use load::KeyChange;
pub use multi_recv::Stopped;
pub use shutdown::Unsettled;
pub(crate) use state::SendOp;
pub use state::{Arrived, Census, FinalCounters};
pub use waits::{OpenReceive, OpenSend, OwingLink, SendStage};

use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::BuildHasherDefault;
use core::time::Duration;

use hashbrown::HashMap;

use crate::auth::{Authenticator, JobKey};
use crate::config::{
    ANNOUNCED_MAX, AuthLevel, CHECKPOINTABLE, LINKS_MAX, PENDING_MESSAGES_MAX, PortConfig, STOPPED_MIN,
};
use crate::counters::Counters;
use crate::hash::PlainHasher;
use crate::ids::{Epoch, Life, LinkIndex, OpId, PortId, Rank};
use crate::link::queues::{Control, Envelope, Pending};
use crate::link::receive::{Incoming, Target};
use crate::link::timer::NEVER;
use crate::link::{Flags, Link, WINDOW_BYTES_INITIAL, WINDOW_FRAMES_INITIAL, congestion};
use crate::matching::{MatchError, Matcher, MatcherBounds, Message, MessageKey, Pattern, PostOutcome};
use crate::message::{Buffers, Event, Outgoing, Payload, Receive, SendError};
use crate::port::rails::Rail;
use crate::sabotage::Sabotage;
use crate::time::Instant;
use deferred_ack::DeferredAck;
use multi_recv::MultiRecv;

/// A window of the whole reorder buffer.
const WINDOW_FRAMES_ADVERTISED: u16 = 256;
const _: () = assert!(WINDOW_FRAMES_ADVERTISED as u64 == crate::config::WINDOW_FRAMES_MAX);

type Table<K, V> = HashMap<K, V, BuildHasherDefault<PlainHasher>>;

/// One endpoint of a process. See the module documentation for the order of calls.
#[derive(Debug)]
pub struct Port {
    pub(crate) config: PortConfig,
    pub(crate) id: PortId,
    pub(crate) life: Life,
    pub(crate) epoch: Epoch,
    pub(crate) auth: Option<Authenticator>,
    pub(crate) sabotage: Sabotage,
    pub(crate) links: Vec<Link>,
    pub(crate) by_peer: Table<PortId, LinkIndex>,
    pub(crate) rails: Vec<Rail>,
    pub(crate) matcher: Matcher<Arrived>,
    pub(crate) sends: Table<OpId, SendOp>,
    /// Receives for several messages, while messages are on their way into them.
    pub(crate) multi_recv: Table<OpId, MultiRecv>,
    pub(crate) next_op: u64,
    /// Bytes of waiting messages.
    pub(crate) unexpected_bytes: usize,
    /// Bytes in reorder buffers.
    pub(crate) reorder_bytes: usize,
    /// Links with something to send.
    pub(crate) ready: VecDeque<LinkIndex>,
    /// Links whose peers wait for room.
    pub(crate) starved: Vec<LinkIndex>,
    /// Links with payloads to be pulled, one entry for each.
    pub(crate) pulling: VecDeque<LinkIndex>,
    /// Deadlines of links, lazily: an entry may be early, never late.
    pub(crate) deadlines: BinaryHeap<Reverse<(u64, LinkIndex)>>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
    /// Time for which this port has been frozen: port time is the shell's time less this, so that no deadline runs and
    /// nothing has to be shifted while the port stands still.
    pub(crate) frozen_ns: u64,
    /// Number of the last announced pause.
    pub(crate) pause: u64,
    pub(crate) pause_expected_ns: u64,
    /// Highest epoch for which a cut has been asked.
    pub(crate) cut_asked: Epoch,
    /// R13: how often ranks have moved in this life, of those that have.
    pub(crate) moves: BTreeMap<Rank, u32>,
    /// Of the lives that the frames of each link carry (R13), the nonces; empty as long as nobody has moved.
    pub(crate) link_lives: Vec<u64>,
    /// Newest life that has been reported.
    pub(crate) newer_life: Option<Life>,
    /// Numbered frames acknowledged before the last freeze; for the census of the next.
    pub(crate) acked_total: u64,
    pub(crate) acked_reported: u64,
    /// The acknowledgement of the last frame on the fast path, while the port has not looked at it.
    pub(crate) deferred_ack: Option<DeferredAck>,
    /// After a thaw: active peers are informed at once that it is over, and of our epoch.
    pub(crate) news_due: bool,
}

impl Port {
    /// Opens a port. `now` is any instant of the clock that all later calls use.
    ///
    /// # Panics
    /// If the configuration asks for authentication and there is no key: a bug of the caller.
    #[must_use]
    pub fn new(config: PortConfig, id: PortId, life: Life, epoch: Epoch, key: Option<&JobKey>) -> Port {
        let auth = match config.auth {
            AuthLevel::Off => None,
            level => Some(Authenticator::new(level, key.expect("authentication needs the job's key"))),
        };
        let bounds = MatcherBounds {
            posted_max: config.posted_max,
            // RTS frames come on top of the window, and must always find room: a message that a receive waits for may
            // stand behind them. Their bound is the senders', per link.
            unexpected_max: config.unexpected_entries_max.saturating_add(ANNOUNCED_MAX * LINKS_MAX),
        };
        Port {
            config,
            id,
            life,
            epoch,
            auth,
            sabotage: Sabotage::NONE,
            links: Vec::new(),
            by_peer: Table::default(),
            rails: Vec::new(),
            matcher: Matcher::new(bounds),
            sends: Table::default(),
            multi_recv: Table::default(),
            next_op: 1,
            unexpected_bytes: 0,
            reorder_bytes: 0,
            ready: VecDeque::new(),
            starved: Vec::new(),
            pulling: VecDeque::new(),
            deadlines: BinaryHeap::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            frozen_ns: 0,
            pause: 0,
            pause_expected_ns: 0,
            cut_asked: epoch,
            moves: BTreeMap::new(),
            link_lives: Vec::new(),
            newer_life: None,
            acked_total: 0,
            acked_reported: 0,
            deferred_ack: None,
            news_due: false,
        }
    }

    /// The port's identity.
    #[must_use]
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Epoch of the rank, as this port's frames carry it.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Life of the job, as this port's frames carry it to ranks that have not moved (R13).
    #[must_use]
    pub fn life(&self) -> Life {
        self.life
    }

    /// Everything counted since the port was opened or restarted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The authenticator of this port's frames; the shell needs it to finish a [`crate::auth::Seal`].
    #[must_use]
    pub fn authenticator(&self) -> Option<&Authenticator> {
        self.auth.as_ref()
    }

    /// Bytes of received messages that wait for a receive.
    #[must_use]
    pub fn unexpected_bytes(&self) -> usize {
        self.unexpected_bytes
    }

    /// Bytes of frames that came out of turn.
    #[must_use]
    pub fn reorder_bytes(&self) -> usize {
        self.reorder_bytes
    }

    /// The link to `peer`, made if there is none. Causes no traffic.
    ///
    /// # Panics
    /// If there are [`LINKS_MAX`] links: more ports than a job can have. No frame brings that about: a peer too many is not heard.
    pub fn connect(&mut self, peer: PortId) -> LinkIndex {
        if let Some(&link) = self.by_peer.get(&peer) {
            return link;
        }
        assert!(self.links.len() < LINKS_MAX, "a port has at most {LINKS_MAX} links");
        let link = LinkIndex(u32::try_from(self.links.len()).unwrap_or(u32::MAX));
        let window = self.congestion_bytes_initial();
        let mut fresh = Link::new(peer, window, self.window_bytes_initial(), self.window_frames_initial());
        fresh.peer_epoch = self.epoch;
        if !self.link_lives.is_empty() {
            self.link_lives.push(self.life_with(peer.rank()).nonce);
        }
        self.links.push(fresh);
        self.by_peer.insert(peer, link);
        link
    }

    /// The peer at the other end of a link.
    #[must_use]
    pub fn peer(&self, link: LinkIndex) -> Option<PortId> {
        self.links.get(link.0 as usize).map(|link| link.peer)
    }

    /// The shortest round trip that was measured on a link, none before the first.
    #[must_use]
    pub fn round_trip(&self, link: LinkIndex) -> Option<core::time::Duration> {
        let least_ns = self.links.get(link.0 as usize)?.recovery.least_ns;
        (least_ns != u32::MAX).then(|| core::time::Duration::from_nanos(least_ns.into()))
    }

    /// The link to a peer, if there is one.
    #[must_use]
    pub fn link_to(&self, peer: PortId) -> Option<LinkIndex> {
        self.by_peer.get(&peer).copied()
    }

    /// Number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Sends a message. Order per link is the order of calls, regardless of the payload.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message is kept then.
    pub fn send(
        &mut self,
        link: LinkIndex,
        outgoing: Outgoing,
        payload: Payload<'_>,
    ) -> Result<OpId, SendError> {
        let copied_bytes_max = self.config.link_copied_bytes_max;
        let entry = self.links.get_mut(link.0 as usize).ok_or(SendError::Closed { link })?;
        if entry.flags.contains(Flags::BROKEN) {
            return Err(SendError::Broken { link });
        }
        if entry.flags.contains(Flags::CLOSING) {
            return Err(SendError::Closed { link });
        }
        let queues = entry.queues(copied_bytes_max);
        let full = SendError::Full {
            link,
            messages: queues.pending.len(),
            bytes: copied_bytes_max - queues.copied.free(),
        };
        if queues.pending.len() >= PENDING_MESSAGES_MAX {
            return Err(full);
        }
        let op = OpId(self.next_op);
        let total = match payload {
            Payload::Copied(bytes) => bytes.len() as u64,
            Payload::User { bytes } => bytes,
        };
        let envelope = Envelope {
            space: outgoing.space,
            tag: outgoing.tag,
            data: outgoing.data,
            total,
            op,
            context: outgoing.context,
            silent: outgoing.silent,
        };
        match payload {
            Payload::Copied(bytes) => {
                let max = self.config.eager_bytes_max;
                if bytes.len() > max {
                    return Err(SendError::TooLong { bytes: bytes.len(), max });
                }
                let Ok(start) = queues.copied.push(bytes) else { return Err(full) };
                queues.pending.push_back(Pending::Copied { envelope, start, sent: 0 });
            }
            Payload::User { .. } => {
                queues.pending.push_back(Pending::Rts { op });
                let send = SendOp { link, envelope, owned: None, granted: None, acked: 0 };
                self.sends.insert(op, send);
            }
        }
        self.next_op += 1;
        self.make_ready(link);
        Ok(op)
    }

    /// Posts a receive; it may complete at once with a message that has been waiting.
    ///
    /// # Errors
    /// [`MatchError::PostedFull`].
    pub fn post_receive(&mut self, receive: Receive, buffers: &mut impl Buffers) -> Result<OpId, MatchError> {
        let op = OpId(self.next_op);
        let mut posted = crate::matching::Receive {
            op,
            pattern: Pattern {
                space: receive.space,
                source: receive.source,
                tag: receive.tag,
                ignore: receive.ignore,
            },
            bytes_max: receive.bytes_max,
            context: receive.context,
            multi: receive
                .multi
                .map(|free_bytes_min| crate::matching::MultiReceive { free_bytes_min, filled_bytes: 0 }),
        };
        loop {
            match self.matcher.post(posted)? {
                PostOutcome::Posted => {
                    if let Some(source) = receive.source.filter(|source| self.is_broken(*source)) {
                        self.fail_one_posted(source, op, receive.context);
                    }
                    break;
                }
                PostOutcome::Matched { key, message, placement, rest } => {
                    let context = receive.context;
                    let target = Target::Posted {
                        op,
                        context,
                        base: placement.offset,
                        bytes: placement.bytes,
                        finished: placement.last,
                    };
                    self.give(key, message, target, receive.multi.is_some(), buffers);
                    match rest {
                        Some(rest) => posted = rest,
                        None => break,
                    }
                }
            }
        }
        self.next_op += 1;
        Ok(op)
    }

    /// Hands a message that has waited to a receive: places its payload, requests missing payload.
    fn give(
        &mut self,
        key: MessageKey,
        message: Message<Arrived>,
        target: Target,
        multi: bool,
        buffers: &mut impl Buffers,
    ) {
        let Target::Posted { op, context, base, bytes, finished } = target else { return };
        let envelope = message.envelope;
        match message.payload {
            Arrived::Copied(payload) => {
                let stored = payload.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
                if stored > 0 {
                    buffers.place(op, base, &payload[..stored]);
                }
                self.release_unexpected(payload.len());
                if message.finished {
                    let finished = self.fill_at_once(op, finished);
                    self.events.push_back(Event::Received {
                        op,
                        context,
                        source: envelope.source,
                        tag: envelope.tag,
                        data: envelope.data,
                        offset: base,
                        bytes,
                        sent_bytes: envelope.bytes,
                        finished,
                    });
                } else {
                    if multi {
                        self.begin_multi_recv(op);
                    }
                    self.redirect(envelope.source, key, target);
                }
            }
            Arrived::Announced(_) if self.is_broken(envelope.source) => {
                let finished = self.fill_at_once(op, finished);
                self.fail_receive(op, context, &envelope, finished);
                self.release_unexpected(0);
            }
            Arrived::Announced(peer_op) => {
                let incoming = Incoming {
                    peer_op,
                    op,
                    context,
                    base,
                    finished,
                    tag: envelope.tag,
                    data: envelope.data,
                    total: envelope.bytes,
                    granted: bytes,
                    received: 0,
                };
                self.send_cts(envelope.source, incoming, multi);
                self.release_unexpected(0);
            }
        }
    }

    /// The fragments still to come of the waiting message `key` go to `target`.
    fn redirect(&mut self, source: LinkIndex, key: MessageKey, target: Target) {
        let open = self
            .links
            .get_mut(source.0 as usize)
            .and_then(|link| link.queues.as_mut())
            .and_then(|queues| queues.open.as_mut());
        if let Some(open) = open
            && open.target == Target::Waiting(key)
        {
            open.target = target;
        }
    }

    /// Asks the peer for the payload of an announced message. `multi`: its receive may take others.
    pub(crate) fn send_cts(&mut self, source: LinkIndex, mut incoming: Incoming, multi: bool) {
        let copied_bytes_max = self.config.link_copied_bytes_max;
        let queues = self.links[source.0 as usize].queues(copied_bytes_max);
        queues.control.push_back(Control::Cts { op: incoming.peer_op, total: incoming.granted });
        if incoming.granted == 0 {
            incoming.finished = self.fill_at_once(incoming.op, incoming.finished);
            self.events.push_back(received(source, &incoming));
        } else {
            queues.incoming.push(incoming);
            self.begin_pull(source, &incoming);
            if multi {
                self.begin_multi_recv(incoming.op);
            }
        }
        self.make_ready(source);
    }

    /// Takes back a receive that nothing has been matched to: no event follows, the answer is complete.
    pub fn cancel(&mut self, op: OpId) -> bool {
        self.matcher.cancel(op).is_some()
    }

    /// Takes back a receive for several messages: it is given no more of them. `None`: it takes none any more.
    pub fn stop(&mut self, op: OpId) -> Option<Stopped> {
        self.matcher.cancel(op)?;
        Some(self.stop_multi_recv(op))
    }

    /// The envelope of the message that a receive with this pattern would get, which goes on waiting.
    pub fn peek(&mut self, pattern: &Pattern) -> Option<crate::matching::Envelope> {
        self.matcher.peek(pattern).map(|(_, message)| message.envelope)
    }

    /// Sets the message aside that a receive with this pattern would get; only [`Port::receive_claimed`] and
    /// [`Port::discard`] get it from now on.
    pub fn claim(&mut self, pattern: &Pattern) -> Option<(MessageKey, crate::matching::Envelope)> {
        self.matcher.claim(pattern).map(|(key, message)| (key, message.envelope))
    }

    /// Receives a claimed message.
    ///
    /// # Errors
    /// [`MatchError::NotClaimed`].
    pub fn receive_claimed(
        &mut self,
        key: MessageKey,
        bytes_max: u64,
        context: u64,
        buffers: &mut impl Buffers,
    ) -> Result<OpId, MatchError> {
        let (message, placement) = self.matcher.receive_claimed(key, bytes_max)?;
        let op = OpId(self.next_op);
        self.next_op += 1;
        let target = Target::Posted { op, context, base: 0, bytes: placement.bytes, finished: true };
        self.give(key, message, target, false, buffers);
        Ok(op)
    }

    /// Throws a waiting message away. An announced one is received with length zero, so that its sender completes.
    pub fn discard(&mut self, key: MessageKey) -> bool {
        let Some(message) = self.matcher.discard(key) else { return false };
        match message.payload {
            Arrived::Copied(payload) => {
                self.release_unexpected(payload.len());
                if !message.finished {
                    self.redirect(message.envelope.source, key, Target::Nowhere);
                }
            }
            Arrived::Announced(_) if self.is_broken(message.envelope.source) => self.release_unexpected(0),
            Arrived::Announced(op) => {
                let copied_bytes_max = self.config.link_copied_bytes_max;
                let source = message.envelope.source;
                self.forget_place(source, op);
                let queues = self.links[source.0 as usize].queues(copied_bytes_max);
                queues.control.push_back(Control::Cts { op, total: 0 });
                self.make_ready(source);
                self.release_unexpected(0);
            }
        }
        true
    }

    /// Whether [`Port::poll_event`] has an event.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Next thing that the owner should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.catch_up();
        }
        self.events.pop_front()
    }

    /// Queues STOPPED hints to the peers that may be sending to us or waiting for us, ahead of a freeze that is expected
    /// to last for `expected`. Shorter than [`STOPPED_MIN`]: no hint. Call [`Port::poll_transmit`] before freezing.
    /// Returns how many hints were queued.
    pub fn announce_pause(&mut self, now: Instant, expected: Duration) -> usize {
        if expected < STOPPED_MIN {
            return 0;
        }
        // A peer that was heard within this time may well have frames in flight.
        let recent = self.port_time(now).saturating_sub(nanos(crate::config::SLOW_AFTER));
        self.pause += 1;
        self.pause_expected_ns = nanos(expected);
        let mut hints = 0;
        for i in 0..self.links.len() {
            let link = &mut self.links[i];
            if link.is_active(recent) && !link.flags.intersects(Flags::RESYNC | Flags::BROKEN) {
                link.flags.insert(Flags::HINT_DUE);
                hints += 1;
                self.make_ready(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
            }
        }
        hints
    }

    /// Settings of the port.
    #[must_use]
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// The operation that the next send or receive will be.
    #[must_use]
    pub fn next_op(&self) -> OpId {
        OpId(self.next_op)
    }

    /// Whether [`Port::poll_transmit`] may have a frame; false is certain.
    #[must_use]
    pub fn wants_to_transmit(&self) -> bool {
        !self.ready.is_empty() || CHECKPOINTABLE && self.news_due
    }

    /// Whether a send on this link, with this much copied payload, would find room now. A broken link has
    /// room: the send reports the error.
    #[must_use]
    pub fn can_send(&self, link: LinkIndex, copied_bytes: usize) -> bool {
        let Some(entry) = self.links.get(link.0 as usize) else { return false };
        !entry.flags.contains(Flags::CLOSING)
            && entry.queues.as_ref().is_none_or(|queues| {
                queues.pending.len() < PENDING_MESSAGES_MAX && queues.copied.free() >= copied_bytes
            })
    }

    pub(crate) fn congestion_bytes_initial(&self) -> u32 {
        if self.config.network { congestion::CONGESTION_BYTES_INITIAL } else { self.config.flight_bytes_max }
    }

    /// Bytes that a sender may have in flight before it knows a window, and a receiver accepts before it has advertised
    /// one. Never more than a window can be: messages of many peers at once have to fit.
    pub(crate) fn window_bytes_initial(&self) -> u32 {
        WINDOW_BYTES_INITIAL.min(self.config.link_window_bytes)
    }

    /// Likewise for frames.
    pub(crate) fn window_frames_initial(&self) -> u16 {
        WINDOW_FRAMES_INITIAL.min(self.window_frames_most())
    }

    /// The most frames that one peer is ever promised.
    pub(crate) fn window_frames_most(&self) -> u16 {
        let share = self.config.unexpected_entries_max / 4;
        u16::try_from(share).unwrap_or(u16::MAX).min(WINDOW_FRAMES_ADVERTISED)
    }

    pub(crate) fn port_time(&self, now: Instant) -> u64 {
        if !CHECKPOINTABLE {
            return now.as_nanos();
        }
        // A clock that is set back stands still here: a wrapped difference would be the end of time, with every timer due.
        now.as_nanos().saturating_sub(self.frozen_ns)
    }

    pub(crate) fn make_ready(&mut self, index: LinkIndex) {
        let link = &mut self.links[index.0 as usize];
        if !link.flags.contains(Flags::READY) {
            link.flags.insert(Flags::READY);
            self.ready.push_back(index);
        }
    }

    /// Makes sure that the port wakes up in time for this link.
    pub(crate) fn arm(&mut self, index: LinkIndex) {
        let link = &mut self.links[index.0 as usize];
        let earliest = link.timers.earliest();
        if earliest != NEVER && earliest < link.timers.armed {
            link.timers.armed = earliest;
            self.deadlines.push(Reverse((earliest, index)));
        }
    }

    /// R17: copied bytes that a peer may send us now.
    pub(crate) fn window_bytes(&self) -> u32 {
        let free = self.config.unexpected_bytes_max.saturating_sub(self.unexpected_bytes);
        // A quarter: four peers that use all of it at once still fit.
        u32::try_from(free / 4).unwrap_or(u32::MAX).min(self.config.link_window_bytes)
    }

    /// Frames with copied payload that a peer may send us now.
    pub(crate) fn window_frames(&self) -> u16 {
        let free = self.config.unexpected_entries_max.saturating_sub(self.matcher.unexpected_len());
        u16::try_from(free / 4).unwrap_or(u16::MAX).min(WINDOW_FRAMES_ADVERTISED)
    }

    /// A window too small for one message of the largest copied size: its peer waits for news.
    pub(crate) fn is_starving(&self, window_bytes: u32, window_frames: u16) -> bool {
        (window_bytes as usize) < self.config.eager_bytes_max || window_frames == 0
    }

    /// A message has left the table of unexpected ones, with this much copied payload: starved peers may be informed of
    /// room.
    pub(crate) fn release_unexpected(&mut self, bytes: usize) {
        self.unexpected_bytes = self.unexpected_bytes.saturating_sub(bytes);
        if !self.starved.is_empty() && !self.is_starving(self.window_bytes(), self.window_frames()) {
            for index in core::mem::take(&mut self.starved) {
                let link = &mut self.links[index.0 as usize];
                link.flags.remove(Flags::STARVED);
                link.flags.insert(Flags::ACK_NOW);
                self.make_ready(index);
            }
        }
    }
}

/// The event for a payload that has come in completely.
pub(crate) fn received(source: LinkIndex, incoming: &Incoming) -> Event {
    Event::Received {
        op: incoming.op,
        context: incoming.context,
        source,
        tag: incoming.tag,
        data: incoming.data,
        offset: incoming.base,
        bytes: incoming.granted,
        sent_bytes: incoming.total,
        finished: incoming.finished,
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
