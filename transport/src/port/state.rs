//! The state of a frozen port as plain data: the state that an image has to hold (R5), and nothing else.
//!
//! [`PortState`] owns it, for loading and comparing. [`FrozenPort::links`] and its neighbours show it in
//! place, for dumping at the speed of memory. Not part of it: frames that came out of turn, selective
//! acknowledgements, the peers' link indexes, rails, addresses, round-trip and congestion state, deadlines.

use alloc::vec::Vec;

use crate::ids::{Epoch, JobTag, Life, LinkIndex, OpId, PortId};
pub use crate::link::queues::{Control, Envelope, Pending, SentBody, Stream};
pub use crate::link::receive::{Incoming, Open, Target};
pub use crate::link::record::FrameRecord;
use crate::link::{Flags, Link};
use crate::matching::{Message, MessageKey, Receive};
use crate::message::Event;
use crate::port::FrozenPort;

/// The payload of a waiting message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// Copied payload, complete or still growing.
    Copied(Vec<u8>),
    /// Still with the sender, under its operation.
    Announced(OpId),
}

/// A send whose payload is not in the link's ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendOp {
    /// The link it goes over.
    pub link: LinkIndex,
    /// The sent data.
    pub envelope: Envelope,
    /// Payload that the port holds itself: a copied message that had to be announced.
    pub owned: Option<Vec<u8>>,
    /// Bytes that the peer wants, once it has asked.
    pub granted: Option<u64>,
    /// Bytes of them that it has acknowledged.
    pub acked: u64,
}

/// Which ends of a link have been closed (R12).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    /// We take no further sends.
    pub closing: bool,
    /// Our close has been numbered.
    pub close_sent: bool,
    /// The peer's close has been counted.
    pub peer_closed: bool,
}

/// A numbered frame that has not been cumulatively acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentFrame {
    /// Its contents.
    pub body: SentBody,
    /// Where its copied payload starts in the ring; for other frames, up to where the ring is free once it is acknowledged.
    pub start: u64,
    /// Length of its payload.
    pub payload_bytes: u32,
}

/// One link of a port. Its place in the list is its index at the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkState {
    /// The port at the other end.
    pub peer: PortId,
    /// Number of the next frame to send; the oldest unacknowledged one is that less the length of `sent`.
    pub next: u64,
    /// Number of the next frame to be counted.
    pub expected: u64,
    /// Frames counted that are not acknowledged to the peer yet: for reports only.
    pub owed: u64,
    /// The closed ends.
    pub ends: Ends,
    /// Announced operations without a CTS.
    pub announced: u16,
    /// Offset of the oldest byte in the ring.
    pub copied_start: u64,
    /// The ring: copied payload of `sent` and `pending`.
    pub copied: Vec<u8>,
    /// Frames not acknowledged, oldest first.
    pub sent: Vec<SentFrame>,
    /// Messages without a number, in order.
    pub pending: Vec<Pending>,
    /// CTS frames without a number.
    pub control: Vec<Control>,
    /// Granted payloads that have not been numbered to their end.
    pub streams: Vec<Stream>,
    /// Payloads that come in.
    pub incoming: Vec<Incoming>,
    /// The copied message of which fragments are missing.
    pub open: Option<Open>,
}

/// A message that no receive has taken yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingMessage {
    /// Its former key; a loaded port knows it by another key.
    pub key: MessageKey,
    /// The program has set it aside.
    pub claimed: bool,
    /// The message.
    pub message: Message<Arrived>,
}

/// A whole port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortState {
    /// Identity of the port.
    pub id: PortId,
    /// Job that it belongs to.
    pub job: JobTag,
    /// Life in which it was frozen.
    pub life: Life,
    /// Epoch of its rank.
    pub epoch: Epoch,
    /// The next operation.
    pub next_op: u64,
    /// Number of the last announced pause.
    pub pause: u64,
    /// Numbered frames acknowledged between the last two freezes: for reports only.
    pub acknowledged: u64,
    /// All links by index.
    pub links: Vec<LinkState>,
    /// Posted receives in the order of posting.
    pub posted: Vec<Receive>,
    /// Waiting messages in the order of arrival, then claimed ones in the order of claiming.
    pub waiting: Vec<WaitingMessage>,
    /// Sends that are not copied in a ring, by operation.
    pub sends: Vec<SendOp>,
    /// Completions that the owner has not polled yet.
    pub completions: Vec<Event>,
}

/// Final counters of one link of a closed port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinalCounters {
    /// The port at the other end.
    pub peer: PortId,
    /// Frames that the closed port has numbered.
    pub next: u64,
    /// Frames that it has counted: it has everything before this number.
    pub expected: u64,
}

/// Messages by the state in which a freeze found them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// State 1: to be sent. Saved with the sender, sent after a restart.
    pub to_be_sent: u64,
    /// State 2: sent, not acknowledged. Saved with the sender, sent again after a restart.
    pub sent_unacknowledged: u64,
    /// State 3: sent and acknowledged since the last freeze. Nothing to save.
    pub acknowledged: u64,
    /// State 4: counted, acknowledgement not sent. Saved with the receiver; the sender's copy will be a duplicate.
    pub received_unacknowledged: u64,
    /// State 5: delivered to the port and not yet to the program. Saved with the receiver.
    pub delivered_waiting: u64,
}

/// One link of a frozen port, in place.
#[derive(Clone, Copy)]
pub struct LinkView<'a> {
    link: &'a Link,
}

impl<'a> LinkView<'a> {
    pub(crate) fn new(link: &'a Link) -> LinkView<'a> {
        LinkView { link }
    }

    /// See [`LinkState::peer`].
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PortId {
        self.link.peer
    }

    /// See [`LinkState::next`].
    #[inline]
    #[must_use]
    pub fn next(&self) -> u64 {
        self.link.next
    }

    /// See [`LinkState::expected`].
    #[inline]
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.link.expected
    }

    /// See [`LinkState::owed`].
    #[inline]
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.link.expected - self.link.ack_reported
    }

    /// See [`LinkState::ends`].
    #[inline]
    #[must_use]
    pub fn ends(&self) -> Ends {
        Ends {
            closing: self.link.flags.contains(Flags::CLOSING),
            close_sent: self.link.flags.contains(Flags::CLOSE_SENT),
            peer_closed: self.link.flags.contains(Flags::PEER_CLOSED),
        }
    }

    /// See [`LinkState::announced`].
    #[inline]
    #[must_use]
    pub fn announced(&self) -> u16 {
        self.link.announced
    }

    /// The queues, if the link has ever had something in them.
    #[inline]
    #[must_use]
    pub fn queues(&self) -> Option<QueuesView<'a>> {
        self.link.queues.as_deref().map(|queues| QueuesView { queues })
    }

    fn state(&self) -> LinkState {
        let mut state = LinkState {
            peer: self.peer(),
            next: self.next(),
            expected: self.expected(),
            owed: self.owed(),
            ends: self.ends(),
            announced: self.announced(),
            copied_start: 0,
            copied: Vec::new(),
            sent: Vec::new(),
            pending: Vec::new(),
            control: Vec::new(),
            streams: Vec::new(),
            incoming: Vec::new(),
            open: None,
        };
        if let Some(queues) = self.queues() {
            let (first, second) = queues.copied();
            state.copied_start = queues.copied_start();
            state.copied = [first, second].concat();
            state.sent = queues.sent().collect();
            state.pending = queues.pending().copied().collect();
            state.control = queues.control().copied().collect();
            state.streams = queues.streams().copied().collect();
            state.incoming = queues.incoming().to_vec();
            state.open = queues.open();
        }
        state
    }
}

/// The queues of a link, in place.
#[derive(Clone, Copy)]
pub struct QueuesView<'a> {
    queues: &'a crate::link::queues::Queues,
}

impl<'a> QueuesView<'a> {
    /// See [`LinkState::copied_start`]. It means nothing, and is 0, once nothing refers to the ring.
    #[inline]
    #[must_use]
    pub fn copied_start(&self) -> u64 {
        let used = !self.queues.frames.is_empty() || !self.queues.pending.is_empty();
        if used { self.queues.copied.start() } else { 0 }
    }

    /// See [`LinkState::copied`]: at most two pieces of memory.
    #[inline]
    #[must_use]
    pub fn copied(&self) -> (&'a [u8], &'a [u8]) {
        self.queues.copied.held()
    }

    /// See [`LinkState::sent`].
    #[inline]
    pub fn sent(&self) -> impl Iterator<Item = SentFrame> + 'a {
        self.queues.frames.iter().filter_map(|frame| {
            let (start, payload_bytes) = (frame.start.get(), frame.bytes.get());
            Some(SentFrame { body: frame.body()?, start, payload_bytes })
        })
    }

    /// The same as bytes: at most two pieces of memory.
    #[inline]
    #[must_use]
    pub fn frames(&self) -> (&'a [FrameRecord], &'a [FrameRecord]) {
        self.queues.frames.as_slices()
    }

    /// See [`LinkState::pending`].
    #[inline]
    pub fn pending(&self) -> impl ExactSizeIterator<Item = &'a Pending> + 'a {
        self.queues.pending.iter()
    }

    /// See [`LinkState::control`].
    #[inline]
    pub fn control(&self) -> impl ExactSizeIterator<Item = &'a Control> + 'a {
        self.queues.control.iter()
    }

    /// See [`LinkState::streams`].
    #[inline]
    pub fn streams(&self) -> impl ExactSizeIterator<Item = &'a Stream> + 'a {
        self.queues.streams.iter()
    }

    /// See [`LinkState::incoming`].
    #[inline]
    #[must_use]
    pub fn incoming(&self) -> &'a [Incoming] {
        &self.queues.incoming
    }

    /// See [`LinkState::open`].
    #[inline]
    #[must_use]
    pub fn open(&self) -> Option<Open> {
        self.queues.open
    }
}

impl FrozenPort {
    /// All links by index, in place.
    #[inline]
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkView<'_>> {
        self.port.links.iter().map(|link| LinkView { link })
    }

    /// Posted receives in the order of posting.
    pub fn posted(&self) -> impl Iterator<Item = &Receive> {
        self.port.matcher.posted()
    }

    /// Number of posted receives.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.port.matcher.posted_len()
    }

    /// Waiting messages in the order of arrival.
    pub fn unexpected(&self) -> impl Iterator<Item = (MessageKey, &Message<Arrived>)> {
        self.port.matcher.unexpected()
    }

    /// Messages that the program has set aside, in the order of claiming.
    pub fn claimed(&self) -> impl Iterator<Item = (MessageKey, &Message<Arrived>)> {
        self.port.matcher.claimed()
    }

    /// Number of waiting messages, claimed ones included.
    #[must_use]
    pub fn waiting_len(&self) -> usize {
        self.port.matcher.unexpected_len()
    }

    /// Sends whose payload is not in a ring, in the order of their operations.
    #[must_use]
    pub fn sends(&self) -> Vec<&SendOp> {
        let mut sends: Vec<&SendOp> = self.port.sends.values().collect();
        sends.sort_unstable_by_key(|send| send.envelope.op);
        sends
    }

    /// Completions that the owner has not polled yet.
    pub fn completions(&self) -> impl Iterator<Item = &Event> {
        self.port.events.iter().filter(|event| event.is_completion())
    }

    /// Job that the port belongs to.
    #[must_use]
    pub fn job(&self) -> JobTag {
        self.port.config.job
    }

    /// The next operation.
    #[must_use]
    pub fn next_op(&self) -> u64 {
        self.port.next_op
    }

    /// Number of the last announced pause.
    #[must_use]
    pub fn pause(&self) -> u64 {
        self.port.pause
    }

    /// A copy of everything that belongs into an image, payload of the user excepted.
    #[must_use]
    pub fn state(&self) -> PortState {
        let waiting = |claimed: bool| {
            move |(key, message): (MessageKey, &Message<Arrived>)| WaitingMessage {
                key,
                claimed,
                message: message.clone(),
            }
        };
        PortState {
            id: self.port.id,
            job: self.job(),
            life: self.port.life,
            epoch: self.port.epoch,
            next_op: self.port.next_op,
            pause: self.port.pause,
            acknowledged: self.port.acked_total - self.port.acked_reported,
            links: self.links().map(|link| link.state()).collect(),
            posted: self.posted().copied().collect(),
            waiting: self.unexpected().map(waiting(false)).chain(self.claimed().map(waiting(true))).collect(),
            sends: self.sends().into_iter().cloned().collect(),
            completions: self.completions().copied().collect(),
        }
    }
}
