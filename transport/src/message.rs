//! Inputs and outputs of a port's user: messages, receives, events.

use core::time::Duration;

use crate::ids::{AddressId, Epoch, Life, LinkIndex, OpId, PortId, RailIndex, RawAddress};
use crate::matching::Space;

/// A message to be sent, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Matching space.
    pub space: Space,
    /// The key that receives match.
    pub tag: u64,
    /// User data that travels beside the payload.
    pub data: u64,
    /// Comes back in [`Event::SendDone`].
    pub context: u64,
    /// No [`Event::SendDone`] is wanted; only for copied payload.
    pub silent: bool,
}

/// The payload of a message to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied by the port: the caller may reuse it at once. At most [`crate::PortConfig::eager_bytes_max`].
    Copied(&'a [u8]),
    /// Stays with the caller, unchanged, until [`Event::SendDone`]; frames name it by operation, offset and length.
    User {
        /// Length of the payload.
        bytes: u64,
    },
}

/// A receive to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Matching space.
    pub space: Space,
    /// Only from this link; `None`: from any.
    pub source: Option<LinkIndex>,
    /// Tag to match.
    pub tag: u64,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
    /// Length of the buffer.
    pub bytes_max: u64,
    /// Comes back in [`Event::Received`].
    pub context: u64,
    /// The buffer takes several messages until less than this many bytes are free in it.
    pub multi: Option<u64>,
}

/// Memory that the user owns and the port only names. Implemented by the shell. Nothing else writes to it: all data
/// that moves between ranks is the payload of an operation that frames have opened (R11).
pub trait Buffers {
    /// Store `bytes` at `offset` of the buffer posted as `receive`. The same piece may be placed again with the same
    /// content after a thaw; pieces may come in any order.
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]);

    /// Store the payload of the frame that is being handled, `bytes` bytes which the shell has not brought
    /// yet ([`crate::Port::handle_head`]), as [`Buffers::place`] does. Asked at most once per frame. False:
    /// they are no longer available. The stored bytes are arbitrary then; the frame is not counted, and is
    /// retransmitted.
    fn fetch(&mut self, receive: OpId, offset: u64, bytes: usize) -> bool {
        let _ = (receive, offset, bytes);
        false
    }
}

/// Where the payload of a received frame is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// Here.
    InFrame(&'a [u8]),
    /// So many bytes, which lie in their buffer already.
    Placed(usize),
    /// So many bytes, which the shell can bring.
    Deferred(usize),
}

impl<'a> Piece<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Piece::InFrame(bytes) => bytes.len(),
            Piece::Placed(bytes) | Piece::Deferred(bytes) => bytes,
        }
    }

    /// The bytes of a message that is copied, which are always here.
    pub(crate) fn here(self) -> &'a [u8] {
        match self {
            Piece::InFrame(bytes) => bytes,
            Piece::Placed(_) | Piece::Deferred(_) => &[],
        }
    }

    /// Puts it into its buffer. False: it could not be brought.
    pub(crate) fn store(self, receive: OpId, offset: u64, buffers: &mut impl Buffers) -> bool {
        match self {
            Piece::InFrame(bytes) => {
                if !bytes.is_empty() {
                    buffers.place(receive, offset, bytes);
                }
                true
            }
            Piece::Placed(_) => true,
            Piece::Deferred(bytes) => buffers.fetch(receive, offset, bytes),
        }
    }
}

/// A piece of user-owned payload that belongs behind the head of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserPayload {
    /// The send.
    pub op: OpId,
    /// Offset in its payload, in bytes.
    pub offset: u64,
    /// Length of the piece.
    pub bytes: u32,
}

/// A frame that the port has written.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Where it goes, as the rail's driver knows it.
    pub to: AddressId,
    /// Bytes written into the frame buffer: the head, and copied payload.
    pub frame_bytes: usize,
    /// Payload that the shell adds behind them.
    pub payload: Option<UserPayload>,
    /// The shell's work before the frame may leave, when the tag covers a payload that the port cannot see.
    pub seal: Option<crate::auth::Seal>,
    /// The frame announces a payload of the user to a peer on this host: the shell writes its place into it
    /// ([`crate::wire::write_place`]).
    pub announced: Option<Announced>,
}

/// An RTS whose payload a peer on this host may pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The send.
    pub op: OpId,
    /// Where its body begins in the frame.
    pub body: usize,
}

/// A piece of a payload that the shell pulls out of the memory of a peer on this host (R11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pull {
    /// Link to the peer.
    pub link: LinkIndex,
    /// Rail that reaches it within the host.
    pub rail: RailIndex,
    /// The peer, as the rail's driver knows it.
    pub from: AddressId,
    /// Where the piece lies in the peer's memory.
    pub place: u64,
    /// Receive into whose buffer it goes.
    pub receive: OpId,
    /// Where in that buffer.
    pub offset: u64,
    /// Length of the piece.
    pub bytes: u64,
}

/// Why a peer does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// It has announced a pause that is not over yet.
    Frozen,
    /// It owes an acknowledgement for longer than [`crate::config::SLOW_AFTER`].
    Slow,
    /// It owes an acknowledgement for longer than [`crate::config::GONE_AFTER`]. The link goes on trying.
    Gone,
}

/// An event that a port reports to its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A receive is complete. Messages of one link are matched in the order of sending, but complete when their payload is: one that
    /// had to be announced, long or for want of a window (R17), may be complete after a later one (R18).
    Received {
        /// The receive.
        op: OpId,
        /// Its context.
        context: u64,
        /// Where the message came from.
        source: LinkIndex,
        /// Tag of the message.
        tag: u64,
        /// User data of the message.
        data: u64,
        /// Offset in the buffer at which the message starts (multi-receive), in bytes.
        offset: u64,
        /// Bytes stored.
        bytes: u64,
        /// Bytes that were sent; more than `bytes` if the message was truncated.
        sent_bytes: u64,
        /// Nothing more comes into the buffer: it takes no further message, and those that it took are complete.
        finished: bool,
    },
    /// The message has been received: its payload may be reused.
    SendDone {
        /// The send.
        op: OpId,
        /// Its context.
        context: u64,
    },
    /// The link of a message is broken ([`Event::Inconsistent`], [`Event::PeerLost`]): how much of it the peer has is
    /// unknown, and its payload may be reused.
    SendFailed {
        /// The send.
        op: OpId,
        /// Its context.
        context: u64,
    },
    /// The link is broken over which a message was on its way into a receive, or from which alone it could come.
    ReceiveFailed {
        /// The receive.
        op: OpId,
        /// Its context.
        context: u64,
        /// The broken link.
        source: LinkIndex,
        /// Tag of the message; 0 if none had come.
        tag: u64,
        /// Nothing more comes into the buffer.
        finished: bool,
    },
    /// A port that we did not know has made contact; it cannot be answered before [`crate::Port::set_path`].
    PeerAppeared {
        /// The new link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
        /// Rail over which the frame came.
        rail: RailIndex,
        /// The peer's address on that rail, by its own account.
        address: RawAddress,
    },
    /// A frame of a higher epoch came and was dropped: the rank must cut, straight to this epoch (R3).
    CutRequired {
        /// The higher epoch.
        epoch: Epoch,
    },
    /// A frame of a later life came: ours has been superseded (R7).
    NewerLife {
        /// The later one.
        life: Life,
    },
    /// A peer owes us something and is silent. Never an error: a report for the recovery manager.
    PeerSilent {
        /// The link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
        /// Known facts about it.
        silence: Silence,
        /// How long it has been silent.
        since: Duration,
    },
    /// A peer that was reported as silent speaks again.
    PeerBack {
        /// The link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
    },
    /// The peer will send nothing more on this link, and all it sent has been received.
    PeerClosed {
        /// The link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
    },
    /// Everything that was sent on a link we closed has been acknowledged.
    LinkClosed {
        /// The link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
    },
    /// Both ends of a link do not fit together after a restart (R10): the generation must not be used.
    /// Operations that were under way on the link end with [`Event::SendFailed`] and
    /// [`Event::ReceiveFailed`], which follow.
    Inconsistent {
        /// The link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
        /// The peer reports that it has everything before this number.
        peer_expected: u64,
        /// Oldest number that we still hold.
        oldest_held: u64,
        /// Number of the next frame that we would send.
        next: u64,
    },
    /// The owner has said that the peer is gone for good ([`crate::Port::lose_peer`]). Operations that were under way
    /// on the link end with [`Event::SendFailed`] and [`Event::ReceiveFailed`], which follow.
    PeerLost {
        /// The link.
        link: LinkIndex,
        /// Its peer.
        peer: PortId,
    },
    /// A rail lost every frame for a while and is passed over, except for trials.
    RailSuspect {
        /// The rail.
        rail: RailIndex,
    },
    /// A rail that was passed over delivers again.
    RailBack {
        /// The rail.
        rail: RailIndex,
    },
}

impl Event {
    /// Whether the program waits for it: such an event is part of the port's state (rule 5), the others are reports. Of a broken link nothing is:
    /// no image with it is used.
    #[must_use]
    pub fn is_completion(&self) -> bool {
        matches!(
            self,
            Event::Received { .. }
                | Event::SendDone { .. }
                | Event::PeerClosed { .. }
                | Event::LinkClosed { .. }
        )
    }
}

/// Why a send was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// Too much waits on this link. Make progress and try again: nothing of the message was kept.
    #[error(
        "link {link:?} holds {messages} waiting messages and {bytes} copied bytes: make progress and try again"
    )]
    Full {
        /// The link.
        link: LinkIndex,
        /// Messages that wait.
        messages: usize,
        /// Copied bytes that the link holds.
        bytes: usize,
    },
    /// Copied payload above the bound: hand it over as user payload.
    #[error("copied payload of {bytes} bytes, at most {max} are copied: send it from the user's buffer")]
    TooLong {
        /// Bytes of the payload.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The link is not known, or closed by us.
    #[error("link {link:?} does not exist or has been closed")]
    Closed {
        /// The link.
        link: LinkIndex,
    },
    /// The ends of the link contradict each other (R10), or its peer is gone for good (R37).
    #[error(
        "link {link:?} is broken: its peer is lost, or its ends contradict each other since a restart; start from another generation"
    )]
    Broken {
        /// The link.
        link: LinkIndex,
    },
}
