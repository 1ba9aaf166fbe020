//! Open operations and the state of links, for people whose job hangs. It is read, and changes nothing.
//!
//! No operation carries the time of its beginning, which would cost every message something. Operations are numbered in turn, so
//! an owner that notes [`Port::next_op`] from time to time knows about when each of them began.

use core::time::Duration;

use crate::ids::{LinkIndex, OpId, PortId};
use crate::link::Flags;
use crate::link::queues::Pending;
use crate::link::receive::Target;
use crate::matching::Space;
use crate::port::Port;
use crate::port::state::SendOp;
use crate::time::Instant;

/// A receive that is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenReceive {
    /// The operation.
    pub op: OpId,
    /// Its context.
    pub context: u64,
    /// The matching space.
    pub space: Space,
    /// The port whose messages it takes; `None`: any.
    pub source: Option<PortId>,
    /// The tag that it takes; of a message on its way, that one's.
    pub tag: u64,
    /// Bits of the tag that may differ.
    pub ignore: u64,
    /// Bytes that it has room for; of a message on its way, those that it takes.
    pub bytes: u64,
    /// Bytes that have come of the message which it was given; `None`: it was given none.
    pub arrived: Option<u64>,
    /// It takes several messages, and is not complete with the next one.
    pub takes_several: bool,
}

/// How far a send is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendStage {
    /// It has not been sent: the peer's window is closed, or others come first.
    Queued,
    /// The peer knows of it, and has not posted a receive for it.
    Announced,
    /// Sent, at least in part, and not acknowledged.
    InFlight,
}

/// A send that is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenSend {
    /// The operation.
    pub op: OpId,
    /// Its context.
    pub context: u64,
    /// The matching space.
    pub space: Space,
    /// The receiver.
    pub peer: PortId,
    /// Its tag.
    pub tag: u64,
    /// Bytes of the message.
    pub bytes: u64,
    /// How far it is.
    pub stage: SendStage,
}

/// A link on which the peer owes an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwingLink {
    /// The peer.
    pub peer: PortId,
    /// Numbered frames that it has not acknowledged.
    pub unacknowledged: u64,
    /// Since when it owes that, or was last heard: the later of both.
    pub silent: Duration,
    /// The counters of both ends contradict each other (R10): the link carries nothing more.
    pub is_broken: bool,
}

impl Port {
    /// Receives that are not complete: posted ones in the order of posting, then those that were given a message which is
    /// not here yet.
    pub fn open_receives(&self) -> impl Iterator<Item = OpenReceive> {
        let posted = self.matcher.posted().map(|receive| OpenReceive {
            op: receive.op,
            context: receive.context,
            space: receive.pattern.space,
            source: receive.pattern.source.and_then(|link| self.peer(link)),
            tag: receive.pattern.tag,
            ignore: receive.pattern.ignore,
            bytes: receive.bytes_max,
            arrived: None,
            takes_several: receive.multi.is_some(),
        });
        let given = self.links.iter().filter_map(|link| Some((link.peer, link.queues.as_ref()?)));
        let arriving = given.flat_map(|(peer, queues)| {
            let long = queues.incoming.iter().map(move |incoming| OpenReceive {
                op: incoming.op,
                context: incoming.context,
                // A long message is placed by its operation: the space is not needed any more, and not kept.
                space: Space(0),
                source: Some(peer),
                tag: incoming.tag,
                ignore: 0,
                bytes: incoming.granted,
                arrived: Some(incoming.received),
                takes_several: !incoming.finished,
            });
            let short = queues.open.as_ref().and_then(|open| match open.target {
                Target::Posted { op, context, bytes, finished, .. } => Some(OpenReceive {
                    op,
                    context,
                    space: Space(0),
                    source: Some(peer),
                    tag: open.tag,
                    ignore: 0,
                    bytes,
                    arrived: Some(open.received),
                    takes_several: !finished,
                }),
                Target::Waiting(_) | Target::Nowhere => None,
            });
            long.chain(short)
        });
        posted.chain(arriving)
    }

    /// Sends that are not complete and report it when they are: those of long messages, then copied ones by link. In no
    /// particular order.
    pub fn open_sends(&self) -> impl Iterator<Item = OpenSend> {
        let long = self.sends.values().filter(|send| !send.envelope.silent);
        let long = long.filter_map(|send| {
            let SendOp { link, envelope, granted, .. } = send;
            let stage = if granted.is_some() { SendStage::InFlight } else { SendStage::Announced };
            Some(OpenSend {
                op: envelope.op,
                context: envelope.context,
                space: envelope.space,
                peer: self.peer(*link)?,
                tag: envelope.tag,
                bytes: envelope.total,
                stage,
            })
        });
        let used = self.links.iter().filter_map(|link| Some((link.peer, link.queues.as_ref()?)));
        let copied = used.flat_map(|(peer, queues)| {
            let sent = queues.frames.iter().filter(|frame| frame.completes().is_some());
            let sent = sent.map(|frame| (frame.envelope(), SendStage::InFlight));
            let queued = queues.pending.iter().filter_map(|pending| match pending {
                Pending::Copied { envelope, .. } if !envelope.silent => Some((*envelope, SendStage::Queued)),
                Pending::Copied { .. } | Pending::Rts { .. } => None,
            });
            sent.chain(queued).map(move |(envelope, stage)| OpenSend {
                op: envelope.op,
                context: envelope.context,
                space: envelope.space,
                peer,
                tag: envelope.tag,
                bytes: envelope.total,
                stage,
            })
        });
        long.chain(copied)
    }

    /// Links on which the peer owes an acknowledgement, and broken ones.
    pub fn owing_links(&self, now: Instant) -> impl Iterator<Item = OwingLink> {
        let now = self.port_time(now);
        self.links.iter().enumerate().filter_map(move |(index, link)| {
            let index = LinkIndex(u32::try_from(index).unwrap_or(u32::MAX));
            // An acknowledgement that was put off is one all the same.
            let late = self.deferred_ack.filter(|late| late.link == index);
            let acked = late.map_or(link.acked, |late| link.acked.max(late.ack.min(link.next)));
            let heard = late.map_or(link.heard_at, |late| link.heard_at.max(late.now));
            let is_broken = link.flags.contains(Flags::BROKEN);
            (is_broken || link.next > acked).then(|| OwingLink {
                peer: link.peer,
                unacknowledged: link.next - acked,
                silent: Duration::from_nanos(now.saturating_sub(heard)),
                is_broken,
            })
        })
    }

    /// A number that grows with every operation that is begun, and with every frame that is numbered or counted:
    /// a port that shows the same one twice has made no progress in between.
    #[must_use]
    pub fn progress_count(&self) -> u64 {
        let counted = self.links.iter().map(|link| link.next.wrapping_add(link.expected));
        counted.fold(self.next_op, u64::wrapping_add)
    }
}
