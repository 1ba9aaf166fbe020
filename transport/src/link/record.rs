//! A numbered frame as the bytes that an image holds.
//!
//! A link keeps the contents of its unacknowledged frames in this very form: to dump them is to copy memory,
//! however many there are.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::OpId;
use crate::link::queues::{Envelope, SentBody};
use crate::matching::Space;
use crate::port::state::SentFrame;

/// The contents of a numbered frame, as far as it is needed to build it again. Little-endian; the layout is that of
/// docs/reference/image-format.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FrameRecord {
    /// Its kind: [`FrameRecord::EAGER`] and its neighbours.
    pub kind: u8,
    /// [`FrameRecord::LAST`], [`FrameRecord::SILENT`].
    pub flags: u8,
    /// Matching space.
    pub space: u8,
    /// Zero.
    pub reserved: u8,
    /// Length of the payload.
    pub bytes: U32,
    /// See [`SentFrame::start`].
    pub start: U64,
    /// The operation.
    pub op: U64,
    /// The key that receives match.
    pub tag: U64,
    /// User data beside the payload.
    pub data: U64,
    /// Bytes of the message; of a CTS: those that are taken.
    pub total: U64,
    /// Comes back with the completion.
    pub context: U64,
    /// Where in the message the payload begins.
    pub offset: U64,
}

const _: () = assert!(size_of::<FrameRecord>() == 64);

impl FrameRecord {
    /// First fragment of a copied message.
    pub const EAGER: u8 = 1;
    /// Later fragment.
    pub const MORE: u8 = 2;
    /// RTS.
    pub const RTS: u8 = 3;
    /// CTS.
    pub const CTS: u8 = 4;
    /// Piece of a granted payload.
    pub const DATA: u8 = 5;
    /// End of a direction.
    pub const CLOSE: u8 = 6;

    /// The last fragment of its message.
    pub const LAST: u8 = 1;
    /// No completion is reported.
    pub const SILENT: u8 = 1 << 1;

    /// With every field zero that `kind` has no use for.
    #[inline]
    #[must_use]
    pub fn of_operation(kind: u8, op: OpId) -> FrameRecord {
        FrameRecord {
            kind,
            flags: 0,
            space: 0,
            reserved: 0,
            bytes: U32::ZERO,
            start: U64::ZERO,
            op: U64::new(op.0),
            tag: U64::ZERO,
            data: U64::ZERO,
            total: U64::ZERO,
            context: U64::ZERO,
            offset: U64::ZERO,
        }
    }

    /// Of a message, or a fragment of one.
    #[inline]
    #[must_use]
    pub fn of_message(kind: u8, envelope: &Envelope) -> FrameRecord {
        FrameRecord {
            flags: if envelope.silent { FrameRecord::SILENT } else { 0 },
            space: envelope.space.0,
            tag: U64::new(envelope.tag),
            data: U64::new(envelope.data),
            total: U64::new(envelope.total),
            context: U64::new(envelope.context),
            ..FrameRecord::of_operation(kind, envelope.op)
        }
    }

    /// The bytes of a frame.
    #[inline]
    #[must_use]
    pub fn new(frame: &SentFrame) -> FrameRecord {
        let mut record = match &frame.body {
            SentBody::Eager { envelope, last } => {
                let record = FrameRecord::of_message(FrameRecord::EAGER, envelope);
                FrameRecord { flags: record.flags | u8::from(*last), ..record }
            }
            SentBody::More { envelope, offset, last } => {
                let record = FrameRecord::of_message(FrameRecord::MORE, envelope);
                let offset = U64::new(u64::from(*offset));
                FrameRecord { flags: record.flags | u8::from(*last), offset, ..record }
            }
            SentBody::Rts { op } => FrameRecord::of_operation(FrameRecord::RTS, *op),
            SentBody::Cts { op, total } => {
                let record = FrameRecord::of_operation(FrameRecord::CTS, *op);
                FrameRecord { total: U64::new(*total), ..record }
            }
            SentBody::Data { op, offset } => {
                let record = FrameRecord::of_operation(FrameRecord::DATA, *op);
                FrameRecord { offset: U64::new(*offset), ..record }
            }
            SentBody::Close => FrameRecord::of_operation(FrameRecord::CLOSE, OpId(0)),
        };
        record.bytes = U32::new(frame.payload_bytes);
        record.start = U64::new(frame.start);
        record
    }

    /// The envelope of a fragment.
    #[inline]
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        Envelope {
            space: Space(self.space),
            tag: self.tag.get(),
            data: self.data.get(),
            total: self.total.get(),
            op: OpId(self.op.get()),
            context: self.context.get(),
            silent: self.flags & FrameRecord::SILENT != 0,
        }
    }

    /// The frame's contents. `None`: the kind is unknown, or a later fragment begins beyond the longest copied message;
    /// no link holds such a record.
    #[inline]
    #[must_use]
    pub fn body(&self) -> Option<SentBody> {
        let last = self.flags & FrameRecord::LAST != 0;
        let op = OpId(self.op.get());
        Some(match self.kind {
            FrameRecord::EAGER => SentBody::Eager { envelope: self.envelope(), last },
            FrameRecord::MORE => {
                let offset = u32::try_from(self.offset.get()).ok()?;
                SentBody::More { envelope: self.envelope(), offset, last }
            }
            FrameRecord::RTS => SentBody::Rts { op },
            FrameRecord::CTS => SentBody::Cts { op, total: self.total.get() },
            FrameRecord::DATA => SentBody::Data { op, offset: self.offset.get() },
            FrameRecord::CLOSE => SentBody::Close,
            _ => return None,
        })
    }

    /// Whether the payload is held in the link's ring.
    #[inline]
    #[must_use]
    pub fn is_copied(&self) -> bool {
        matches!(self.kind, FrameRecord::EAGER | FrameRecord::MORE)
    }

    /// The operation that completes once this frame is acknowledged, with its context.
    pub(crate) fn completes(&self) -> Option<(OpId, u64)> {
        let awaited = self.flags & (FrameRecord::LAST | FrameRecord::SILENT) == FrameRecord::LAST;
        (self.is_copied() && awaited).then(|| (OpId(self.op.get()), self.context.get()))
    }

    /// Up to where the ring is free once this frame is acknowledged.
    pub(crate) fn ring_end(&self) -> u64 {
        self.start.get() + if self.is_copied() { u64::from(self.bytes.get()) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_frame_survives_its_record() {
        let envelope = Envelope {
            space: Space(3),
            tag: 0x1111_2222,
            data: u64::MAX,
            total: 70_000,
            op: OpId(1 << 40),
            context: 77,
            silent: true,
        };
        let loud = Envelope { silent: false, ..envelope };
        let op = OpId(9);
        let bodies = [
            SentBody::Eager { envelope, last: true },
            SentBody::Eager { envelope: loud, last: false },
            SentBody::More { envelope, offset: u32::MAX, last: false },
            SentBody::More { envelope: loud, offset: 5, last: true },
            SentBody::Rts { op },
            SentBody::Cts { op, total: 1 << 50 },
            SentBody::Data { op, offset: 1 << 33 },
            SentBody::Close,
        ];
        for body in bodies {
            let frame = SentFrame { body, start: u64::from(u32::MAX) + 7, payload_bytes: 1200 };
            let record = FrameRecord::new(&frame);
            assert_eq!(record.body(), Some(body));
            assert_eq!((record.start.get(), record.bytes.get()), (frame.start, frame.payload_bytes));
            assert_eq!(record.is_copied(), body.is_copied());
            let completes = matches!(body, SentBody::More { last: true, .. });
            assert_eq!(record.completes(), completes.then_some((loud.op, 77)), "{body:?}");
        }
    }

    #[test]
    fn what_no_link_writes_is_no_frame() {
        for kind in [0, 7, 17, u8::MAX] {
            assert_eq!(FrameRecord::of_operation(kind, OpId(1)).body(), None);
        }
        let beyond = FrameRecord {
            offset: U64::new(1 << 32),
            ..FrameRecord::of_operation(FrameRecord::MORE, OpId(1))
        };
        assert_eq!(beyond.body(), None);
    }
}
