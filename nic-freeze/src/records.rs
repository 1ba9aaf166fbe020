//! The bytes of a port section, version 1. Everything is little-endian; records have a fixed size and no alignment.
//! A frame, sent and not acknowledged, has the form in which its link keeps it: transport's [`FrameRecord`].
//!
//! ```text
//! header
//! link[]       each: link, sent[], pending[], CTS[], stream[], incoming[], open[0..1], ring bytes
//! posted[]
//! waiting[]    each: waiting, copied payload; those that the program has claimed come last
//! send[]       each: send, owned payload
//! completion[]
//! payload[]    each: payload, bytes; user memory, only where the image does not hold that otherwise
//! ```
//!
//! All counts stand in the header or in the link's record, before the counted entries; every length is checked against
//! the bytes that are left before anything is allocated. The section has no checksum of its own: its container has one,
//! and computes it after the port has been thawed.

use transport::matching::{Message, MessageKey, Receive};
use transport::port::state::{
    Arrived, Control, Ends, FrameRecord, Incoming, Open, Pending, SendOp, Stream, Target,
};
use transport::{Event, OpId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of this kind of section in the registry of the image format.
pub const SECTION_KIND: u32 = 0x0201;

/// Version of the layout in this file.
pub const SECTION_VERSION: u16 = 1;

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident, $bytes:literal { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
            #[repr(C)]
            pub(crate) struct $name { $(pub(crate) $field: $kind,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

records! {
    /// The port as a whole, and how much of everything follows.
    HeaderRecord, 96 {
        section_bytes: U64,
        id: U64,
        life_nonce: U64,
        life_counter: U32,
        epoch: U32,
        job: U32,
        links: U32,
        posted: U32,
        waiting: U32,
        claimed: U32,
        sends: U32,
        completions: U32,
        payloads: U32,
        next_op: U64,
        pause: U64,
        acknowledged: U64,
        reserved: U64,
    }
    /// One link. Place in the list: its index at the owner.
    LinkRecord, 64 {
        peer: U64,
        next: U64,
        expected: U64,
        ring_start: U64,
        ring_bytes: U32,
        sent: U32,
        pending: U32,
        cts_frames: U32,
        streams: U32,
        incoming: U32,
        owed: U32,
        announced: U16,
        flags: U16,
    }
    CtsRecord, 16 { op: U64, total: U64, }
    StreamRecord, 24 { op: U64, offset: U64, end: U64, }
    /// A payload that comes in.
    IncomingRecord, 80 {
        peer_op: U64,
        op: U64,
        context: U64,
        base: U64,
        tag: U64,
        data: U64,
        total: U64,
        granted: U64,
        received: U64,
        finished: u8,
        reserved: [u8; 7],
    }
    /// A copied message of which fragments are missing.
    OpenRecord, 72 {
        target: u8,
        finished: u8,
        reserved: [u8; 6],
        op: U64,
        context: U64,
        base: U64,
        bytes: U64,
        tag: U64,
        data: U64,
        total: U64,
        received: U64,
    }
    PostedRecord, 64 {
        op: U64,
        tag: U64,
        ignore: U64,
        bytes_max: U64,
        context: U64,
        free_bytes_min: U64,
        filled_bytes: U64,
        source: U32,
        space: u8,
        flags: u8,
        reserved: U16,
    }
    /// A waiting message; `payload` is the length of the following payload, or the sender's operation.
    WaitingRecord, 48 {
        key: U64,
        tag: U64,
        data: U64,
        bytes: U64,
        payload: U64,
        source: U32,
        space: u8,
        flags: u8,
        reserved: U16,
    }
    /// A send that is not in a ring.
    SendRecord, 72 {
        op: U64,
        tag: U64,
        data: U64,
        total: U64,
        context: U64,
        granted: U64,
        acked: U64,
        link: U32,
        space: u8,
        flags: u8,
        reserved: U16,
        owned_bytes: U64,
    }
    /// A completion that the owner has not polled.
    CompletionRecord, 72 {
        kind: u8,
        finished: u8,
        reserved: [u8; 2],
        link: U32,
        op: U64,
        context: U64,
        tag: U64,
        data: U64,
        offset: U64,
        bytes: U64,
        sent_bytes: U64,
        reserved_end: U64,
    }
    /// User memory: the first `bytes` of a buffer of `buffer_bytes`.
    PayloadRecord, 32 {
        op: U64,
        kind: u8,
        reserved: [u8; 7],
        bytes: U64,
        buffer_bytes: U64,
    }
}

pub(crate) const LINK_CLOSING: u16 = 1;
pub(crate) const LINK_CLOSE_SENT: u16 = 1 << 1;
pub(crate) const LINK_PEER_CLOSED: u16 = 1 << 2;
pub(crate) const LINK_OPEN: u16 = 1 << 3;
pub(crate) const LINK_FLAGS: u16 = (1 << 4) - 1;

/// Kinds of [`FrameRecord`] beyond those of frames: messages without a number.
pub(crate) const PENDING_COPIED: u8 = 17;
pub(crate) const PENDING_RTS: u8 = 18;

pub(crate) const TARGET_NOWHERE: u8 = 0;
pub(crate) const TARGET_POSTED: u8 = 1;
pub(crate) const TARGET_WAITING: u8 = 2;

pub(crate) const POSTED_SOURCE: u8 = 1;
pub(crate) const POSTED_MULTI: u8 = 1 << 1;

pub(crate) const WAITING_FINISHED: u8 = 1;
pub(crate) const WAITING_ANNOUNCED: u8 = 1 << 1;

pub(crate) const SEND_SILENT: u8 = 1;
pub(crate) const SEND_OWNED: u8 = 1 << 1;
pub(crate) const SEND_GRANTED: u8 = 1 << 2;

pub(crate) const COMPLETION_RECEIVED: u8 = 1;
pub(crate) const COMPLETION_SEND_DONE: u8 = 2;
pub(crate) const COMPLETION_PEER_CLOSED: u8 = 3;
pub(crate) const COMPLETION_LINK_CLOSED: u8 = 4;

pub(crate) const PAYLOAD_SEND: u8 = 1;
pub(crate) const PAYLOAD_RECEIVE: u8 = 2;

pub(crate) fn link_flags(ends: Ends, open: bool) -> u16 {
    let bit = |set: bool, bit: u16| if set { bit } else { 0 };
    bit(ends.closing, LINK_CLOSING)
        | bit(ends.close_sent, LINK_CLOSE_SENT)
        | bit(ends.peer_closed, LINK_PEER_CLOSED)
        | bit(open, LINK_OPEN)
}

/// A message without a number, in the form of a frame.
pub(crate) fn pending_record(pending: &Pending) -> FrameRecord {
    match pending {
        Pending::Copied { envelope, start, sent } => FrameRecord {
            start: U64::new(*start),
            offset: U64::new(u64::from(*sent)),
            ..FrameRecord::of_message(PENDING_COPIED, envelope)
        },
        Pending::Rts { op } => FrameRecord::of_operation(PENDING_RTS, *op),
    }
}

impl CtsRecord {
    pub(crate) fn new(control: &Control) -> CtsRecord {
        let Control::Cts { op, total } = control;
        CtsRecord { op: U64::new(op.0), total: U64::new(*total) }
    }
}

impl StreamRecord {
    pub(crate) fn new(stream: &Stream) -> StreamRecord {
        StreamRecord { op: U64::new(stream.op.0), offset: U64::new(stream.offset), end: U64::new(stream.end) }
    }
}

impl IncomingRecord {
    pub(crate) fn new(incoming: &Incoming) -> IncomingRecord {
        IncomingRecord {
            peer_op: U64::new(incoming.peer_op.0),
            op: U64::new(incoming.op.0),
            context: U64::new(incoming.context),
            base: U64::new(incoming.base),
            tag: U64::new(incoming.tag),
            data: U64::new(incoming.data),
            total: U64::new(incoming.total),
            granted: U64::new(incoming.granted),
            received: U64::new(incoming.received),
            finished: u8::from(incoming.finished),
            reserved: [0; 7],
        }
    }
}

impl OpenRecord {
    pub(crate) fn new(open: &Open) -> OpenRecord {
        let (target, op, context, base, bytes, finished) = match open.target {
            Target::Nowhere => (TARGET_NOWHERE, 0, 0, 0, 0, false),
            Target::Waiting(key) => (TARGET_WAITING, key.0.to_bits(), 0, 0, 0, false),
            Target::Posted { op, context, base, bytes, finished } => {
                (TARGET_POSTED, op.0, context, base, bytes, finished)
            }
        };
        OpenRecord {
            target,
            finished: u8::from(finished),
            reserved: [0; 6],
            op: U64::new(op),
            context: U64::new(context),
            base: U64::new(base),
            bytes: U64::new(bytes),
            tag: U64::new(open.tag),
            data: U64::new(open.data),
            total: U64::new(open.total),
            received: U64::new(open.received),
        }
    }
}

impl PostedRecord {
    pub(crate) fn new(receive: &Receive) -> PostedRecord {
        let source = if receive.pattern.source.is_some() { POSTED_SOURCE } else { 0 };
        let multi = if receive.multi.is_some() { POSTED_MULTI } else { 0 };
        PostedRecord {
            op: U64::new(receive.op.0),
            tag: U64::new(receive.pattern.tag),
            ignore: U64::new(receive.pattern.ignore),
            bytes_max: U64::new(receive.bytes_max),
            context: U64::new(receive.context),
            free_bytes_min: U64::new(receive.multi.map_or(0, |multi| multi.free_bytes_min)),
            filled_bytes: U64::new(receive.multi.map_or(0, |multi| multi.filled_bytes)),
            source: U32::new(receive.pattern.source.map_or(0, |link| link.0)),
            space: receive.pattern.space.0,
            flags: source | multi,
            reserved: U16::ZERO,
        }
    }
}

impl WaitingRecord {
    pub(crate) fn new(key: MessageKey, message: &Message<Arrived>) -> WaitingRecord {
        let (payload, announced) = match &message.payload {
            Arrived::Copied(bytes) => (bytes.len() as u64, 0),
            Arrived::Announced(op) => (op.0, WAITING_ANNOUNCED),
        };
        WaitingRecord {
            key: U64::new(key.0.to_bits()),
            tag: U64::new(message.envelope.tag),
            data: U64::new(message.envelope.data),
            bytes: U64::new(message.envelope.bytes),
            payload: U64::new(payload),
            source: U32::new(message.envelope.source.0),
            space: message.envelope.space.0,
            flags: announced | if message.finished { WAITING_FINISHED } else { 0 },
            reserved: U16::ZERO,
        }
    }
}

impl PayloadRecord {
    pub(crate) fn new(kind: u8, op: OpId, bytes: &[u8], buffer_bytes: u64) -> PayloadRecord {
        PayloadRecord {
            op: U64::new(op.0),
            kind,
            reserved: [0; 7],
            bytes: U64::new(bytes.len() as u64),
            buffer_bytes: U64::new(buffer_bytes),
        }
    }
}

impl SendRecord {
    pub(crate) fn new(send: &SendOp) -> SendRecord {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        SendRecord {
            op: U64::new(send.envelope.op.0),
            tag: U64::new(send.envelope.tag),
            data: U64::new(send.envelope.data),
            total: U64::new(send.envelope.total),
            context: U64::new(send.envelope.context),
            granted: U64::new(send.granted.unwrap_or(0)),
            acked: U64::new(send.acked),
            link: U32::new(send.link.0),
            space: send.envelope.space.0,
            flags: bit(send.envelope.silent, SEND_SILENT)
                | bit(send.owned.is_some(), SEND_OWNED)
                | bit(send.granted.is_some(), SEND_GRANTED),
            reserved: U16::ZERO,
            owned_bytes: U64::new(send.owned.as_ref().map_or(0, |owned| owned.len() as u64)),
        }
    }
}

impl CompletionRecord {
    /// `None` for an event that is no completion.
    pub(crate) fn new(event: &Event) -> Option<CompletionRecord> {
        let mut record = CompletionRecord::new_zeroed();
        match *event {
            Event::Received { op, context, source, tag, data, offset, bytes, sent_bytes, finished } => {
                record.kind = COMPLETION_RECEIVED;
                record.finished = u8::from(finished);
                record.link = U32::new(source.0);
                record.op = U64::new(op.0);
                record.context = U64::new(context);
                record.tag = U64::new(tag);
                record.data = U64::new(data);
                record.offset = U64::new(offset);
                record.bytes = U64::new(bytes);
                record.sent_bytes = U64::new(sent_bytes);
            }
            Event::SendDone { op, context } => {
                record.kind = COMPLETION_SEND_DONE;
                record.op = U64::new(op.0);
                record.context = U64::new(context);
            }
            Event::PeerClosed { link, peer } => {
                record.kind = COMPLETION_PEER_CLOSED;
                record.link = U32::new(link.0);
                record.op = U64::new(peer.0);
            }
            Event::LinkClosed { link, peer } => {
                record.kind = COMPLETION_LINK_CLOSED;
                record.link = U32::new(link.0);
                record.op = U64::new(peer.0);
            }
            _ => return None,
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_registry_knows_this_kind() {
        assert_eq!(super::SECTION_KIND, store::kinds::PORT);
    }
}
